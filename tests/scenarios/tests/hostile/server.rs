//! A server that echoes and stores requests, and redirects.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{
        Method, StatusCode, Uri,
        header::{CONTENT_TYPE, LOCATION},
    },
    response::{IntoResponse, Response},
};
use futures::stream;
use ostler_test_harness::Lab;
use serde_json::{Value, json};

/// Size of a large response.
const LARGE_BYTES: usize = 4 << 20;
/// Size of the parts of a stream, and the interval between two.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_INTERVAL: Duration = Duration::from_millis(100);

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Path and query.
    pub path: String,
    /// Body.
    pub body: String,
}

#[derive(Default)]
struct Memory {
    seen: Vec<ReceivedRequest>,
    elsewhere: Option<SocketAddr>,
    hangs: Option<Duration>,
}

/// The server; it ends with the test's runtime.
pub struct Mirror {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
}

impl Mirror {
    /// Starts a server that optionally delays each response.
    pub async fn start(hangs: Option<Duration>) -> Self {
        let memory = Arc::new(Mutex::new(Memory {
            hangs,
            ..Memory::default()
        }));
        let app = Router::new().fallback(answer).with_state(memory.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, memory }
    }

    /// Sets the target of `/redirect`.
    pub fn redirect_to(&self, other: &Self) {
        self.memory.lock().expect("lock").elsewhere = Some(other.address);
    }

    /// Received requests, oldest first.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.memory.lock().expect("lock").seen.clone()
    }

    /// An Upstream of this server.
    pub fn upstream(&self, lab: &Lab, name: &str) -> Value {
        json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"url": format!("http://{}", self.address)}})
    }
}

/// Answers with an event whose line never ends.
fn stream_without_lines() -> Response {
    let chunks = stream::unfold((), async |()| {
        tokio::time::sleep(CHUNK_INTERVAL).await;
        Some((Ok::<_, Infallible>(vec![b'x'; CHUNK_BYTES]), ()))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response()
}

async fn answer(State(memory): State<Arc<Mutex<Memory>>>, _: Method, uri: Uri, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    let (hangs, elsewhere, last) = {
        let mut memory = memory.lock().expect("lock");
        let last = memory
            .seen
            .iter()
            .rev()
            .find(|s| !s.body.is_empty())
            .map(|s| s.body.clone());
        memory.seen.push(ReceivedRequest {
            path: uri.to_string(),
            body: text.clone(),
        });
        (memory.hangs, memory.elsewhere, last)
    };
    if let Some(long) = hangs {
        tokio::time::sleep(long).await;
    }
    match (uri.path(), elsewhere) {
        ("/redirect", Some(to)) => (StatusCode::FOUND, [(LOCATION, format!("http://{to}/"))]).into_response(),
        ("/large", _) => "x".repeat(LARGE_BYTES).into_response(),
        ("/repeat", _) => text.repeat(LARGE_BYTES / text.len().max(1)).into_response(),
        ("/last", _) => last.unwrap_or_default().into_response(),
        (path, _) if path.starts_with("/stream/") => stream_without_lines(),
        _ => text.into_response(),
    }
}
