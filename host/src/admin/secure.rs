//! The secure address of the admin server: HTTPS for users with a bearer token that the API server accepts.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    serve::Listener,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{
    access::{Refusal, Requester, Reviewers},
    certificate::{CHECK_INTERVAL, ServerCertificate},
};

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
    let acceptor = TlsAcceptor::from(Arc::new(certificate.server_config()?));
    let routes = routes.layer(middleware::from_fn_with_state(reviewers, authenticate));
    tokio::spawn(async move {
        loop {
            sleep(CHECK_INTERVAL).await;
            certificate.renew(SystemTime::now());
        }
    });
    tokio::spawn(accept_connections(listener, acceptor, routes));
    Ok(bound)
}

/// Serves connections side by side: a client that sends nothing holds up no other, and is disconnected.
async fn accept_connections(mut listener: TcpListener, acceptor: TlsAcceptor, routes: Router) {
    let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(permit) = open.clone().acquire_owned().await {
        // That of axum waits while there are no file descriptors left.
        let (stream, _) = Listener::accept(&mut listener).await;
        let (acceptor, routes) = (acceptor.clone(), routes.clone());
        tokio::spawn(async move {
            let _permit = permit;
            // Scanners, probes and clients that do not trust the certificate end here: nothing to report.
            if let Ok(Ok(stream)) = timeout(CLIENT_TIMEOUT, acceptor.accept(stream)).await {
                let mut http = auto::Builder::new(TokioExecutor::new());
                http.http1()
                    .timer(TokioTimer::new())
                    .header_read_timeout(CLIENT_TIMEOUT);
                http.http2()
                    .timer(TokioTimer::new())
                    .keep_alive_interval(CLIENT_TIMEOUT)
                    .keep_alive_timeout(CLIENT_TIMEOUT);
                let service = TowerToHyperService::new(routes);
                if let Err(e) = http.serve_connection(TokioIo::new(stream), service).await {
                    debug!(error = %e, "connection to the secure address broke");
                }
            }
        });
    }
}

/// Finds the user of a request, who stands in its extensions from then on.
async fn authenticate(State(reviewers): State<Arc<Reviewers>>, mut request: Request, next: Next) -> Response {
    let user = match read_token(request.headers()) {
        Some(token) => reviewers.tokens.authenticate(token).await,
        None => Ok(None),
    };
    match user {
        Ok(Some(user)) => {
            request
                .extensions_mut()
                .insert(Requester::User { user, reviewers });
            next.run(request).await
        }
        Ok(None) => {
            let message = "a bearer token that the API server accepts is needed";
            let refusal = Refusal(StatusCode::UNAUTHORIZED, message.into());
            ([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response()
        }
        Err(e) => {
            let message = format!("the API server can't be asked about the token: {e}");
            Refusal(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
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
