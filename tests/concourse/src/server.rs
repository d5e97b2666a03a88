//! Connections, and the middleware that counts requests and injects faults.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::faults::FaultAction;
use crate::{App, api, control, counters};

/// Closes the connection of a request without a response.
#[derive(Clone)]
struct Hangup(CancellationToken);

/// Serves until `stop` is cancelled, then closes all connections.
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>, stop: CancellationToken) {
    let router = Router::new()
        .merge(api::routes())
        .fallback(api::not_simulated)
        .method_not_allowed_fallback(api::not_simulated)
        .layer(middleware::from_fn_with_state(app.clone(), count_and_inject))
        .merge(control::routes())
        .with_state(app.clone());
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        // Errors of accept are the peer's or temporary.
        let Ok((stream, _)) = accepted else {
            tokio::task::yield_now().await;
            continue;
        };
        connections.spawn(stop.clone().run_until_cancelled_owned(serve_connection(
            stream,
            router.clone(),
            app.clone(),
        )));
    }
    connections.close();
    connections.wait().await;
}

async fn serve_connection(stream: TcpStream, router: Router, app: Arc<App>) {
    let hangup = Hangup(CancellationToken::new());
    let mut outages = app.faults.subscribe_outages();
    let router = router.layer(axum::Extension(hangup.clone()));
    // Without it small responses are only slower.
    let _ = stream.set_nodelay(true);
    let served =
        http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let began = async {
        // Only connections that are open when an outage begins are closed here. Later ones close at their first
        // API request, so that the control endpoints stay reachable.
        while outages.changed().await.is_ok() && !*outages.borrow() {}
    };
    tokio::select! {
        // A client that disconnects is not an error.
        _ = served => {}
        () = hangup.0.cancelled() => {}
        () = began => {}
    }
}

impl Hangup {
    async fn close_connection(self) -> Result<Response, Infallible> {
        self.0.cancel();
        std::future::pending().await
    }
}

async fn count_and_inject(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, Infallible> {
    let hangup = request
        .extensions()
        .get::<Hangup>()
        .cloned()
        .unwrap_or_else(|| Hangup(CancellationToken::new()));
    if *app.faults.subscribe_outages().borrow() {
        return hangup.close_connection().await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("(unknown)", MatchedPath::as_str)
        .to_owned();
    let seen = counters::LoggedRequest {
        method: method.to_string(),
        path: path.clone(),
        query: request.uri().query().map(str::to_owned),
        status: None,
    };
    // Subscribe before the request is logged: a test that finds it in the log may release it at once.
    let released = app.faults.next_release();
    let number = app.meter.record_request(seen, &route, path == api::TOKEN_PATH);
    let (answer, latency) = app.faults.take_fault(method.as_str(), &path);
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let is_of_concourse = !matches!(answer, Some(FaultAction::Proxy(..)));
    let mut response = match answer {
        Some(FaultAction::Status(status, body) | FaultAction::Proxy(status, body)) => {
            fault_response(status, body)
        }
        Some(FaultAction::Drop) => return hangup.close_connection().await,
        Some(FaultAction::DropAnswer) => {
            drop(next.run(request).await);
            return hangup.close_connection().await;
        }
        Some(FaultAction::Hang) => {
            released.await;
            next.run(request).await
        }
        None => next.run(request).await,
    };
    if path.starts_with("/api/") && is_of_concourse {
        response.headers_mut().insert(
            "x-concourse-version",
            HeaderValue::from_static(crate::CONCOURSE_VERSION),
        );
    }
    app.meter.record_status(number, response.status().as_u16());
    Ok(response)
}

fn fault_response(status: u16, body: String) -> Response {
    let kind = if serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok() {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    };
    let status =
        axum::http::StatusCode::from_u16(status).unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}
