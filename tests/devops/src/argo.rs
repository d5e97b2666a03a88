//! Argo CD on a socket: the simulated API server and controller, with a token.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use argocd_simulator::{Request as Call, Rest, World};
use bytes::Bytes;
use concourse_simulator::Faults;
use http::{HeaderMap, Request, Response, StatusCode, header};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    Exchange, Observer,
    server::{Handler, Server, lock},
};

/// Token that the simulator accepts.
pub const ARGO_TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.argo-token-0042";
/// Interval between two writes of the controller.
const STEP_INTERVAL: Duration = Duration::from_millis(50);

/// A running Argo CD, stopped when dropped.
pub struct Argo {
    server: Server,
    model: Arc<Model>,
    controller: JoinHandle<()>,
}

struct Model(Mutex<Rest>);

impl Drop for Argo {
    fn drop(&mut self) {
        self.controller.abort();
    }
}

impl Argo {
    /// Starts an Argo CD with the project `default`.
    pub async fn start() -> Self {
        let model = Arc::new(Model(Mutex::new(Rest::now())));
        let played = model.clone();
        let controller = tokio::spawn(async move {
            loop {
                tokio::time::sleep(STEP_INTERVAL).await;
                lock(&played.0).play();
            }
        });
        Self {
            server: Server::start(model.clone()).await,
            model,
            controller,
        }
    }

    /// Returns its URL, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Returns the handle for fault injection.
    pub fn faults(&self) -> &Faults {
        &self.server.faults
    }

    /// Has a test observe the requests from now on.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.server.observe(observer);
    }

    /// Returns the requests since the start.
    pub fn requests(&self) -> Vec<Exchange> {
        self.server.requests()
    }

    /// Sets what an application deploys.
    pub fn set_world(&self, application: &str, world: World) {
        lock(&self.model.0).set_world(application, world);
    }

    /// Returns the operations that were started, each with the name of its application.
    pub fn operations(&self) -> Vec<(String, Value)> {
        lock(&self.model.0).operations().to_vec()
    }

    /// Sends a request as an administrator. Returns status and body.
    pub fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let reply = lock(&self.model.0).answer(Call {
            method,
            path,
            content_type: Some("application/json"),
            body,
        });
        (reply.status, reply.body)
    }
}

impl Handler for Model {
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
