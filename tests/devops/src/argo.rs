//! Argo CD's API on a socket, with a token: that of the simulated server and controller, or that of a real server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use argocd_simulator::{ApplicationWorld, ArgoRequest as Call, Rest};
use bytes::Bytes;
use concourse_simulator::FaultHandle;
use http::{HeaderMap, Request, Response, StatusCode, header};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    Exchange, RequestObserver,
    server::{ServerBehavior, TestServer, lock},
};

/// Token that the simulator accepts.
pub const ARGO_TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.argo-token-0042";
/// Interval between two writes of the controller.
const STEP_INTERVAL: Duration = Duration::from_millis(50);

/// A running Argo CD, stopped when dropped, or a proxy in front of a real one.
pub struct Argo {
    server: TestServer,
    token: String,
    backend: Backend,
}

enum Backend {
    Simulator(Arc<Simulator>, JoinHandle<()>),
    Real(Arc<Forward>),
}

struct Simulator(Mutex<Rest>);

/// The API of a real server.
struct Forward {
    /// Its `http://HOST:PORT`.
    origin: String,
    http: reqwest::Client,
    /// Token of an administrator.
    admin_token: String,
}

impl Drop for Argo {
    fn drop(&mut self) {
        if let Backend::Simulator(_, controller) = &self.backend {
            controller.abort();
        }
    }
}

impl Argo {
    /// Starts an Argo CD with the project `default`.
    pub async fn start() -> Self {
        let simulator = Arc::new(Simulator(Mutex::new(Rest::now())));
        let played = simulator.clone();
        let controller = tokio::spawn(async move {
            loop {
                tokio::time::sleep(STEP_INTERVAL).await;
                lock(&played.0).play();
            }
        });
        Self {
            server: TestServer::start(simulator.clone()).await,
            token: ARGO_TOKEN.to_owned(),
            backend: Backend::Simulator(simulator, controller),
        }
    }

    /// Starts a proxy in front of the real server at `origin` (`http://HOST:PORT`). `token` is that of the account that the tests
    /// use, `admin_token` that of an administrator.
    pub async fn front(origin: &str, token: String, admin_token: String) -> Self {
        let forward = Arc::new(Forward {
            origin: origin.to_owned(),
            http: reqwest::Client::builder().no_proxy().build().expect("a client"),
            admin_token,
        });
        Self {
            server: TestServer::start(forward.clone()).await,
            token,
            backend: Backend::Real(forward),
        }
    }

    /// Returns its URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Returns a token that it accepts.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the handle for fault injection.
    pub fn faults(&self) -> &FaultHandle {
        &self.server.faults
    }

    /// Has a test observe the requests from now on.
    pub fn observe(&self, observer: Arc<dyn RequestObserver>) {
        self.server.observe(observer);
    }

    /// Returns the requests since the start.
    pub fn requests(&self) -> Vec<Exchange> {
        self.server.requests()
    }

    /// Sets what an application deploys.
    ///
    /// # Panics
    /// In front of a real server, which has no such world.
    pub fn set_world(&self, application: &str, world: ApplicationWorld) {
        match &self.backend {
            Backend::Simulator(simulator, _) => lock(&simulator.0).set_world(application, world),
            Backend::Real(_) => panic!("the world of {application} is set in the simulator only"),
        }
    }

    /// Returns the operations that were started, each with the name of its application.
    ///
    /// # Panics
    /// In front of a real server, where they are seen in its Applications only.
    pub fn operations(&self) -> Vec<(String, Value)> {
        match &self.backend {
            Backend::Simulator(simulator, _) => lock(&simulator.0).operations().to_vec(),
            Backend::Real(_) => panic!("operations are read from the simulator only"),
        }
    }

    /// Sends a request as an administrator. Returns status and body.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        match &self.backend {
            Backend::Simulator(simulator, _) => {
                let reply = lock(&simulator.0).answer(Call {
                    method,
                    path,
                    content_type: Some("application/json"),
                    body,
                });
                (reply.status, reply.body)
            }
            Backend::Real(forward) => {
                let request = Request::builder()
                    .method(method)
                    .uri(path)
                    .header(header::AUTHORIZATION, format!("Bearer {}", forward.admin_token))
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(if body.is_null() {
                        Bytes::new()
                    } else {
                        body.to_string().into()
                    });
                let response = forward.answer(request.expect("a request")).await;
                let body = serde_json::from_slice(response.body()).unwrap_or_default();
                (response.status().as_u16(), body)
            }
        }
    }
}

impl ServerBehavior for Forward {
    /// Answers with 502 where the server does not, as a proxy does.
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        // The client writes those of its own connection.
        for name in [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
            parts.headers.remove(name);
        }
        let sent = self
            .http
            .request(parts.method, [&self.origin, target].concat())
            .headers(parts.headers)
            .body(body)
            .send();
        let read = async {
            let answer = sent.await?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            Ok::<_, reqwest::Error>((status, headers, answer.bytes().await?))
        };
        let Ok((status, mut headers, body)) = read.await else {
            return respond(502, &Value::String("the server does not answer".into()));
        };
        for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
            headers.remove(name);
        }
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

impl ServerBehavior for Simulator {
    async fn answer(&self, request: Request<Bytes>) -> Response<Bytes> {
        if text(request.headers(), header::AUTHORIZATION) != Some(&["Bearer ", ARGO_TOKEN].concat()) {
            let message = "invalid session: token is malformed";
            let body = serde_json::json!({ "error": message, "code": 16, "message": message });
            return respond(401, &body);
        }
        let body = serde_json::from_slice(request.body()).unwrap_or_default();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let reply = lock(&self.0).answer(Call {
            method: request.method().as_str(),
            path,
            content_type: text(request.headers(), header::CONTENT_TYPE),
            body: &body,
        });
        respond(reply.status, &reply.body)
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn respond(status: u16, body: &Value) -> Response<Bytes> {
    // The router answers in plain text.
    let (kind, bytes) = match body.as_str() {
        Some(text) => ("text/plain", text.to_owned()),
        None => ("application/json", body.to_string()),
    };
    let mut response = Response::new(Bytes::from(bytes));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
