//! A server in front of PowerDNS: it counts requests, fails some, and answers DNS over HTTPS (RFC 8484).

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

struct Shared {
    target: String,
    dns: SocketAddr,
    http: reqwest::Client,
    requests: Mutex<Vec<String>>,
    is_down: Mutex<bool>,
}

/// The server. It ends with the test's runtime.
pub struct Front {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Front {
    pub async fn start(target: String, dns: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            target,
            dns,
            http: reqwest::Client::new(),
            requests: Mutex::default(),
            is_down: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let app = Router::new().fallback(serve).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests about zones since the last call, as `METHOD /path?query`.
    pub fn take_requests(&self) -> Vec<String> {
        let mut requests = self
            .shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *requests)
    }

    /// Answers with HTTP 503, or no longer.
    pub fn set_down(&self, is_down: bool) {
        *self.shared.is_down.lock().unwrap_or_else(PoisonError::into_inner) = is_down;
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    if let Some(query) = path.strip_prefix("/dns-query?dns=") {
        return resolve(&shared, query).await;
    }
    if path.contains("/zones/") {
        let line = format!("{} {path}", parts.method);
        shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }
    if *shared.is_down.lock().unwrap_or_else(PoisonError::into_inner) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
    forward(&shared, parts.method, &path, &parts.headers, body).await
}

async fn forward(
    shared: &Shared,
    method: axum::http::Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let mut request = shared.http.request(method, format!("{}{path}", shared.target));
    for name in ["x-api-key", "content-type"] {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let Ok(response) = request.body(body).send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let status = response.status();
    (status, response.bytes().await.unwrap_or_default()).into_response()
}

/// Passes a DNS message on by UDP.
async fn resolve(shared: &Shared, query: &str) -> Response {
    let Ok(query) = URL_SAFE_NO_PAD.decode(query) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0")
        .await
        .expect("a socket");
    socket.send_to(&query, shared.dns).await.expect("sent");
    let mut message = vec![0; 4096];
    let length = socket.recv(&mut message).await.expect("PowerDNS responds");
    message.truncate(length);
    ([("content-type", "application/dns-message")], message).into_response()
}
