//! An HTTPS gateway in front of a server, simulated or real, which fails as the server, the network, or a proxy between them does.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

/// A page as proxies and portals answer with.
const PAGE: &str = "<!DOCTYPE html><html><body><h1>Sign in</h1></body></html>";
/// Delay of each response of a slow server.
const SLOW_DELAY: Duration = Duration::from_millis(300);

/// A way in which a server, the network, or a proxy in front of it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// Connections are closed as soon as they are accepted.
    Down,
    /// Requests are received, and neither carried out nor answered.
    Hangs,
    /// Requests are carried out, and the connection is closed in place of the response.
    LosesResponses,
    /// Requests are carried out, and the connection is closed in the middle of the response's body.
    CutsResponses,
    /// Requests are carried out, and answered after a moment.
    Slow,
    /// The certificate has expired.
    CertificateExpired,
    /// HTTP 401 without a challenge.
    Unauthorized,
    /// HTTP 403.
    Forbidden,
    /// HTTP 404 of a proxy that does not know the server.
    ProxyNotFound,
    /// HTTP 502 of a proxy that does not reach the server.
    BadGateway,
    /// HTTP 200 with a page of something else.
    OtherPage,
}

impl ServerFault {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Down,
        Self::Hangs,
        Self::LosesResponses,
        Self::CutsResponses,
        Self::Slow,
        Self::CertificateExpired,
        Self::Unauthorized,
        Self::Forbidden,
        Self::ProxyNotFound,
        Self::BadGateway,
        Self::OtherPage,
    ];

    /// Those that take no time of their own.
    pub const QUICK: [Self; 9] = [
        Self::Down,
        Self::LosesResponses,
        Self::CutsResponses,
        Self::CertificateExpired,
        Self::Unauthorized,
        Self::Forbidden,
        Self::ProxyNotFound,
        Self::BadGateway,
        Self::OtherPage,
    ];

    /// The response in place of the server's, if the fault is one.
    fn response(self) -> Option<StatusCode> {
        match self {
            Self::Unauthorized => Some(StatusCode::UNAUTHORIZED),
            Self::Forbidden => Some(StatusCode::FORBIDDEN),
            Self::ProxyNotFound => Some(StatusCode::NOT_FOUND),
            Self::BadGateway => Some(StatusCode::BAD_GATEWAY),
            Self::OtherPage => Some(StatusCode::OK),
            _ => None,
        }
    }
}

type Faults = watch::Receiver<Option<ServerFault>>;
type GatewayBody = BoxBody<Bytes, ConnectionCut>;

/// The connection is closed in place of the rest of a response.
#[derive(Debug)]
struct ConnectionCut;

impl std::fmt::Display for ConnectionCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the gateway cuts the connection")
    }
}

impl std::error::Error for ConnectionCut {}

/// A gateway with a certificate of its own authority. It ends when it is dropped.
pub struct Gateway {
    address: SocketAddr,
    authority: String,
    fault: watch::Sender<Option<ServerFault>>,
    failures: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What connections share.
#[derive(Clone)]
struct Shared {
    /// The server's `http://HOST:PORT`.
    origin: Arc<str>,
    http: reqwest::Client,
    valid: TlsAcceptor,
    expired: TlsAcceptor,
    failures: Arc<AtomicUsize>,
}

impl Gateway {
    /// Listens on loopback, for the server at `origin` (`http://HOST:PORT`).
    pub async fn start(origin: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let authority = Authority::new();
        let shared = Shared {
            origin: origin.trim_end_matches('/').into(),
            http: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .build()
                .expect("a client"),
            valid: authority.issue(2100),
            expired: authority.issue(2020),
            failures: Arc::default(),
        };
        let (fault, faults) = watch::channel(None);
        let failures = shared.failures.clone();
        let accept = async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                tokio::spawn(serve_connection(stream, shared.clone(), faults.clone()));
            }
        };
        Self {
            address,
            authority: authority.certificate,
            fault,
            failures,
            task: tokio::spawn(accept).abort_handle(),
        }
    }

    /// Its URL, without a trailing slash.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Host and port, as messages name it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of its authority, as PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Fails in this way from now on, or no longer. Connections are closed.
    pub fn set_fault(&self, fault: Option<ServerFault>) {
        self.failures.store(0, Ordering::Relaxed);
        self.fault.send_replace(fault);
    }

    /// Number of connections and requests that have met the fault.
    pub fn count_failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }
}

/// A certificate authority for servers on loopback.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).expect("a certificate").pem();
        Self {
            certificate,
            issuer: Issuer::new(parameters, key),
        }
    }

    /// Issues a certificate that is valid until a year.
    fn issue(&self, until: i32) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
        parameters.not_after = date_time_ymd(until, 1, 1);
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a configuration");
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Serves a connection until the fault changes. Errors are the client's or intended.
async fn serve_connection(stream: TcpStream, shared: Shared, mut faults: Faults) {
    let fault = *faults.borrow_and_update();
    let acceptor = match fault {
        Some(ServerFault::Down) => {
            shared.failures.fetch_add(1, Ordering::Relaxed);
            return;
        }
        Some(ServerFault::CertificateExpired) => {
            shared.failures.fetch_add(1, Ordering::Relaxed);
            shared.expired.clone()
        }
        _ => shared.valid.clone(),
    };
    let serve = async {
        let Ok(stream) = acceptor.accept(stream).await else {
            return;
        };
        let service = service_fn(|request| answer(request, shared.clone(), fault));
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    };
    tokio::select! {
        () = serve => {}
        _ = faults.changed() => {}
    }
}

/// Answers a request. An error closes the connection.
async fn answer(
    request: Request<Incoming>,
    shared: Shared,
    fault: Option<ServerFault>,
) -> Result<Response<GatewayBody>, ConnectionCut> {
    if fault.is_some() {
        shared.failures.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(status) = fault.and_then(ServerFault::response) {
        let mut response = Response::new(whole(Bytes::from_static(PAGE.as_bytes())));
        *response.status_mut() = status;
        let html = header::HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, html);
        return Ok(response);
    }
    if fault == Some(ServerFault::Hangs) {
        return std::future::pending().await;
    }
    let (status, headers, body) = forward(request, &shared).await?;
    let body = match fault {
        Some(ServerFault::LosesResponses) => return Err(ConnectionCut),
        Some(ServerFault::CutsResponses) if body.is_empty() => return Err(ConnectionCut),
        Some(ServerFault::Slow) => {
            tokio::time::sleep(SLOW_DELAY).await;
            whole(body)
        }
        Some(ServerFault::CutsResponses) => {
            let half = body.slice(..body.len() / 2);
            BodyExt::boxed(StreamBody::new(stream::iter([
                Ok(Frame::data(half)),
                Err(ConnectionCut),
            ])))
        }
        _ => whole(body),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

fn whole(body: Bytes) -> GatewayBody {
    http_body_util::Full::new(body)
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// Sends a request to the server. Returns status, headers and body of the response.
async fn forward(
    request: Request<Incoming>,
    shared: &Shared,
) -> Result<(StatusCode, HeaderMap, Bytes), ConnectionCut> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| ConnectionCut)?.to_bytes();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    for name in [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let sent = shared
        .http
        .request(parts.method, format!("{}{target}", shared.origin))
        .headers(parts.headers)
        .body(body)
        .send()
        .await;
    let response = sent.map_err(|_| ConnectionCut)?;
    let (status, mut headers) = (response.status(), response.headers().clone());
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let body = response.bytes().await.map_err(|_| ConnectionCut)?;
    Ok((status, headers, body))
}
