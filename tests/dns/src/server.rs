//! The server of a simulator: one function answers its requests, after faults and the rate limit.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    response::Response,
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum DnsFault {
    /// Responds with this status, `Retry-After` in seconds and body, without executing the request.
    Status(u16, Option<u32>, Value),
    /// Executes the request and responds with HTTP 502: the response is lost.
    LoseResponse,
}

/// A request as an API sees it.
pub struct ApiRequest {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub authorization: String,
    pub body: Value,
}

impl ApiRequest {
    /// The value of a query parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A query parameter as a number.
    pub fn number(&self, name: &str, default: usize) -> usize {
        self.parameter(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }
}

/// The status and body of a response.
pub type SimulatedResponse = (u16, Value);

/// An API that is simulated.
pub trait SimulatedApi: Send + 'static {
    /// Answers a request.
    fn answer(&mut self, call: &ApiRequest) -> SimulatedResponse;
    /// The body of HTTP 429.
    fn throttled(&self, seconds: u32) -> Value;
}

struct Shared<A> {
    api: A,
    requests: Vec<String>,
    faults: Vec<(usize, String, DnsFault)>,
    /// Requests that are answered before HTTP 429 with this number of seconds.
    quota: Option<(usize, u32)>,
}

/// A simulator on loopback. It ends when it is dropped.
pub struct DnsSimulator<A: SimulatedApi> {
    address: SocketAddr,
    shared: Arc<Mutex<Shared<A>>>,
    task: JoinHandle<()>,
}

impl<A: SimulatedApi> Drop for DnsSimulator<A> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<A: SimulatedApi> DnsSimulator<A> {
    pub(crate) async fn serve(api: A) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            api,
            requests: Vec::new(),
            faults: Vec::new(),
            quota: None,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let app = Router::new().fallback(respond::<A>).with_state(shared.clone());
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self {
            address,
            shared,
            task,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared<A>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the origin.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Injects a fault into the next requests, as `METHOD /path` that contains this text.
    pub fn fail_next(&self, times: usize, request: &str, fault: DnsFault) {
        self.lock().faults.push((times, request.to_owned(), fault));
    }

    /// Answers this number of requests, and further ones with HTTP 429 and this number of seconds.
    pub fn set_quota(&self, requests: usize, seconds: u32) {
        self.lock().quota = Some((requests, seconds));
    }

    /// Lifts the limit of [`DnsSimulator::set_quota`].
    pub fn clear_quota(&self) {
        self.lock().quota = None;
    }

    /// Returns the requests since the last call, as `METHOD /path?query`.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().requests)
    }

    /// Runs a function on the API's state.
    pub(crate) fn with_api<T>(&self, run: impl FnOnce(&mut A) -> T) -> T {
        run(&mut self.lock().api)
    }
}

async fn respond<A: SimulatedApi>(State(shared): State<Arc<Mutex<Shared<A>>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let header = parts.headers.get("authorization");
    let query = parts.uri.query().unwrap_or_default();
    let call = ApiRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        authorization: header
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let full = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let line = format!("{} {full}", call.method);
    let fault = shared
        .faults
        .iter_mut()
        .find(|(left, text, _)| *left > 0 && line.contains(&**text));
    let fault = fault.map(|(left, _, fault)| {
        *left -= 1;
        fault.clone()
    });
    shared.requests.push(line);
    if let Some((left, seconds)) = &mut shared.quota {
        let seconds = *seconds;
        if *left == 0 {
            let body = shared.api.throttled(seconds);
            return build_response(429, Some(seconds), &body);
        }
        *left -= 1;
    }
    match fault {
        Some(DnsFault::Status(status, retry_after, body)) => build_response(status, retry_after, &body),
        Some(DnsFault::LoseResponse) => {
            shared.api.answer(&call);
            build_response(502, None, &Value::Null)
        }
        None => {
            let (status, body) = shared.api.answer(&call);
            build_response(status, None, &body)
        }
    }
}

fn build_response(status: u16, retry_after: Option<u32>, body: &Value) -> Response {
    let text = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after {
        headers.insert("retry-after", HeaderValue::from(seconds));
    }
    response
}
