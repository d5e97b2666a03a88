//! The secure address of the admin server: HTTPS for users with a bearer token or a client certificate that the API server accepts.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::{Extension, Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    serve::Listener,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{debug, warn};

use super::{
    access::{AccessRefusal, Requester, Reviewers},
    certificate::{CHECK_INTERVAL, ServerCertificate},
    client_certificate::{build_verifier, read_client_authority, read_user},
};
use crate::client::{access_review::ReviewedUser, api::ApiClient};

/// Time in which a client must have finished the handshake, or have sent the next request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open connections: whoever reaches the port may open them.
const MAX_CONNECTIONS: usize = 256;

/// Serves these routes by TLS, to authenticated users only. Returns the address that it listens on.
///
/// # Errors
/// The address can't be bound.
pub async fn serve(
    routes: Router,
    address: SocketAddr,
    certificate: Arc<ServerCertificate>,
    reviewers: Arc<Reviewers>,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let config = ArcSwap::from_pointee(certificate.server_config(None)?);
    let tls = Arc::new(TlsSettings { certificate, config });
    tokio::spawn(tls.clone().refresh(reviewers.client.clone()));
    let routes = routes.layer(middleware::from_fn_with_state(reviewers, authenticate));
    tokio::spawn(accept_connections(listener, tls, routes));
    Ok(bound)
}

/// What new connections are encrypted with.
struct TlsSettings {
    certificate: Arc<ServerCertificate>,
    /// With the authority of client certificates once it is known.
    config: ArcSwap<ServerConfig>,
}

impl TlsSettings {
    /// Replaces the certificate and the authority of client certificates whenever they change.
    async fn refresh(self: Arc<Self>, client: ApiClient) {
        let mut known: Option<Result<Option<String>, String>> = None;
        loop {
            self.certificate.renew(SystemTime::now());
            let read = read_client_authority(&client).await.map_err(|e| e.to_string());
            if known.as_ref() != Some(&read) {
                let used = match &read {
                    Ok(authority) => self.use_authority(authority.as_deref()),
                    Err(e) => Err(anyhow::Error::msg(e.clone())),
                };
                if let Err(e) = used {
                    warn!(
                        error = %format!("{e:#}"),
                        "the authority of client certificates can't be read, so users of the secure address need tokens"
                    );
                }
                known = Some(read);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    fn use_authority(&self, authority: Option<&str>) -> anyhow::Result<()> {
        let verifier = authority.map(build_verifier).transpose()?;
        self.config
            .store(Arc::new(self.certificate.server_config(verifier)?));
        Ok(())
    }
}

/// Serves connections side by side: a client that sends nothing holds up no other, and is disconnected.
async fn accept_connections(mut listener: TcpListener, tls: Arc<TlsSettings>, routes: Router) {
    let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(permit) = open.clone().acquire_owned().await {
        // That of axum waits while there are no file descriptors left.
        let (stream, _) = Listener::accept(&mut listener).await;
        let acceptor = TlsAcceptor::from(tls.config.load_full());
        let routes = routes.clone();
        tokio::spawn(async move {
            let _permit = permit;
            // Scanners, probes and clients that do not trust the certificate end here: nothing to report.
            if let Ok(Ok(stream)) = timeout(CLIENT_TIMEOUT, acceptor.accept(stream)).await {
                serve_connection(stream, routes).await;
            }
        });
    }
}

async fn serve_connection(stream: TlsStream<TcpStream>, routes: Router) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(CLIENT_TIMEOUT)
        .keep_alive_timeout(CLIENT_TIMEOUT);
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let user = CertificateUser(certificate.and_then(read_user).map(Arc::new));
    let service = TowerToHyperService::new(routes.layer(Extension(user)));
    if let Err(e) = http.serve_connection(TokioIo::new(stream), service).await {
        debug!(error = %e, "connection to the secure address broke");
    }
}

/// The user of the client certificate of a connection; none without one.
#[derive(Clone)]
struct CertificateUser(Option<Arc<ReviewedUser>>);

/// Finds the user of a request, who stands in its extensions from then on. A certificate is asked first, as by the API server.
async fn authenticate(
    State(reviewers): State<Arc<Reviewers>>,
    Extension(CertificateUser(certified)): Extension<CertificateUser>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_impersonation = |name: &HeaderName| name.as_str().starts_with("impersonate-");
    if request.headers().keys().any(is_impersonation) {
        let message = "a user can't be impersonated here: ask with credentials of its own";
        return AccessRefusal(StatusCode::BAD_REQUEST, message.into()).into_response();
    }
    let user = match (certified, read_token(request.headers())) {
        (Some(user), _) => Ok(Some(user)),
        (None, Some(token)) => reviewers.tokens.authenticate(token).await,
        (None, None) => Ok(None),
    };
    match user {
        Ok(Some(user)) => {
            request
                .extensions_mut()
                .insert(Requester::User { user, reviewers });
            next.run(request).await
        }
        Ok(None) => {
            let message = "a bearer token or a client certificate that the API server accepts is needed";
            let refusal = AccessRefusal(StatusCode::UNAUTHORIZED, message.into());
            ([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response()
        }
        Err(e) => {
            let message = format!("the API server can't be asked about the token: {e}");
            AccessRefusal(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
    }
}

/// Reads the bearer token of a request (RFC 6750).
fn read_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("Bearer") && !token.is_empty()).then_some(token)
}
