//! An HTTP server on loopback that records requests and injects faults.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use concourse_simulator::{FaultAction, FaultHandle};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A request that the server has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Body, as text.
    pub body: String,
    /// Status of the response; none while there is none, or when the connection was closed instead.
    pub status: Option<u16>,
}

/// A test that stands between a server and its clients.
pub trait RequestObserver: Send + Sync {
    /// Returns whether requests are carried out. Otherwise the connection is closed.
    fn admits(&self) -> bool;

    /// Returns whether the client gets the response to a request that has been carried out. Otherwise the connection is
    /// closed.
    fn is_answered(&self, exchange: &Exchange) -> bool;
}

/// The behavior of a server.
pub(crate) trait ServerBehavior: Send + Sync + 'static {
    /// Answers a request.
    fn answer(&self, request: Request<Bytes>) -> impl Future<Output = Response<Bytes>> + Send;
}

/// A running server, stopped when dropped.
pub(crate) struct TestServer {
    pub url: String,
    pub faults: FaultHandle,
    log: Arc<Mutex<Vec<Exchange>>>,
    observer: ObserverSlot,
    _stop: DropGuard,
}

/// The observer, once there is one.
type ObserverSlot = Arc<OnceLock<Arc<dyn RequestObserver>>>;

impl TestServer {
    /// Listens on loopback.
    pub async fn start<H: ServerBehavior>(handler: Arc<H>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (faults, log, stop) = (FaultHandle::default(), Arc::default(), CancellationToken::new());
        let observer = ObserverSlot::default();
        let shared = (handler, faults.clone(), Arc::clone(&log), observer.clone());
        tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(accept(listener, shared, stop.clone())),
        );
        Self {
            url,
            faults,
            log,
            observer,
            _stop: stop.drop_guard(),
        }
    }

    /// Has a test observe the requests from now on. The first observer stays.
    pub fn observe(&self, observer: Arc<dyn RequestObserver>) {
        self.observer.set(observer).ok();
    }

    /// Returns the requests since the start or the last [`TestServer::forget`].
    pub fn requests(&self) -> Vec<Exchange> {
        lock(&self.log).clone()
    }

    /// Clears the recorded requests.
    pub fn forget(&self) {
        lock(&self.log).clear();
    }
}

type Shared<H> = (Arc<H>, FaultHandle, Arc<Mutex<Vec<Exchange>>>, ObserverSlot);

async fn accept<H: ServerBehavior>(listener: TcpListener, shared: Shared<H>, stop: CancellationToken) {
    loop {
        // Errors of accept are the peer's or temporary.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let connection = serve_connection(stream, shared.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}

async fn serve_connection<H: ServerBehavior>(stream: TcpStream, shared: Shared<H>) {
    let service = service_fn(move |request| respond(request, shared.clone()));
    // A client that disconnects is not an error, and neither is an injected fault.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Answers one request. An error closes the connection without a response.
async fn respond<H: ServerBehavior>(
    request: Request<Incoming>,
    (handler, faults, log, observer): Shared<H>,
) -> io::Result<Response<Full<Bytes>>> {
    let closed = || io::Error::from(io::ErrorKind::ConnectionAborted);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let method = parts.method.to_string();
    // Subscribed before the request is recorded: a test that finds it may release it at once.
    let released = faults.next_release();
    let number = {
        let mut log = lock(&log);
        log.push(Exchange {
            method: method.clone(),
            target: parts.uri.to_string(),
            body: String::from_utf8_lossy(&body).into_owned(),
            status: None,
        });
        log.len() - 1
    };
    let observer = observer.get();
    if *faults.subscribe_outages().borrow() || observer.is_some_and(|observer| !observer.admits()) {
        return Err(closed());
    }
    let (fault, latency) = faults.take_fault(&method, parts.uri.path());
    tokio::time::sleep(latency).await;
    let request = Request::from_parts(parts, body);
    let response = match fault {
        Some(FaultAction::Status(status, body) | FaultAction::Proxy(status, body)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            let mut response = Response::new(Bytes::from(body));
            *response.status_mut() = status;
            response
        }
        Some(FaultAction::Drop) => return Err(closed()),
        Some(FaultAction::DropAnswer) => {
            handler.answer(request).await;
            return Err(closed());
        }
        Some(FaultAction::Hang) => {
            released.await;
            handler.answer(request).await
        }
        None => handler.answer(request).await,
    };
    let seen = lock(&log).get_mut(number).map(|seen| {
        seen.status = Some(response.status().as_u16());
        seen.clone()
    });
    if let (Some(observer), Some(seen)) = (observer, seen)
        && !observer.is_answered(&seen)
    {
        return Err(closed());
    }
    Ok(response.map(Full::new))
}

/// Locks, also after a test has panicked with the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
