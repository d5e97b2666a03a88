//! Connections, and what every request goes through: counting and faults.

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

use crate::faults::Answer;
use crate::{App, api, control, counters};

/// Ends the connection a request came on, without an answer.
#[derive(Clone)]
struct Hangup(CancellationToken);

/// Serves until told to stop; then all connections are closed.
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>, stop: CancellationToken) {
    let router = Router::new()
        .merge(api::routes())
        .fallback(api::unknown)
        .method_not_allowed_fallback(api::unknown)
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .merge(control::routes())
        .with_state(app.clone());
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        // What accept fails with is the peer's, or passes.
        let Ok((stream, _)) = accepted else {
            tokio::task::yield_now().await;
            continue;
        };
        connections.spawn(stop.clone().run_until_cancelled_owned(connection(
            stream,
            router.clone(),
            app.clone(),
        )));
    }
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, router: Router, app: Arc<App>) {
    let hangup = Hangup(CancellationToken::new());
    let mut outages = app.faults.outages();
    let router = router.layer(axum::Extension(hangup.clone()));
    // Small answers at once; where that can't be set they are only later.
    let _ = stream.set_nodelay(true);
    let served =
        http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let began = async {
        // Those that are open when an outage begins close; what comes later closes at its first request,
        // so that the control endpoints stay in reach.
        while outages.changed().await.is_ok() && !*outages.borrow() {}
    };
    tokio::select! {
        // A client that goes away is no error.
        _ = served => {}
        () = hangup.0.cancelled() => {}
        () = began => {}
    }
}

impl Hangup {
    async fn now(self) -> Result<Response, Infallible> {
        self.0.cancel();
        std::future::pending().await
    }
}

async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Infallible> {
    let hangup = request
        .extensions()
        .get::<Hangup>()
        .cloned()
        .unwrap_or_else(|| Hangup(CancellationToken::new()));
    if *app.faults.outages().borrow() {
        return hangup.now().await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("(unknown)", MatchedPath::as_str)
        .to_owned();
    let seen = counters::Request {
        method: method.to_string(),
        path: path.clone(),
        query: request.uri().query().map(str::to_owned),
        status: None,
    };
    // Before the log has it: whoever reads there that this one came may release it.
    let released = app.faults.released();
    let number = app.meter.came(seen, &route, path == api::TOKEN_PATH);
    let (answer, latency) = app.faults.meet(method.as_str(), &path);
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let mut response = match answer {
        Some(Answer::Status(status, body)) => fault(status, body),
        Some(Answer::Drop) => return hangup.now().await,
        Some(Answer::DropAnswer) => {
            drop(next.run(request).await);
            return hangup.now().await;
        }
        Some(Answer::Hang) => {
            released.await;
            next.run(request).await
        }
        None => next.run(request).await,
    };
    if path.starts_with("/api/") {
        response
            .headers_mut()
            .insert("x-concourse-version", HeaderValue::from_static(crate::VERSION));
    }
    app.meter.answered(number, response.status().as_u16());
    Ok(response)
}

fn fault(status: u16, body: String) -> Response {
    let kind = if serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok() {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    };
    let status =
        axum::http::StatusCode::from_u16(status).unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}
