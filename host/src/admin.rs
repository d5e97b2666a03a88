//! The admin server: health for the kubelet, metrics for Prometheus, status for the CLI.

pub mod explain;
mod logs;
pub mod question;
mod recordings;
pub mod scrape;
pub mod status;

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::{
    question::Question,
    scrape::{Format, Scraped},
};
use crate::{
    cache::informer::SyncState, kube::scope::Scope, plugin::Registry, reconcile::stats::ReconcileStats,
    sandbox::services::Services,
};

/// The state that the admin server exposes.
#[derive(Clone)]
pub struct Admin {
    /// For readiness and sizes.
    pub services: Arc<Services>,
    /// For `/plugins`.
    pub registry: Arc<Registry>,
    /// For `/objects`.
    pub stats: Arc<ReconcileStats>,
    /// The name of the Lease that this process is a candidate for; none without leader election.
    pub lease: Option<Arc<str>>,
    /// Maximum number of concurrent reconciles of one plugin.
    pub workers: u32,
}

impl Admin {
    /// Binds and serves in the background; gives the address it got.
    pub async fn serve(self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let routes = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/readyz", get(get_readiness))
            .route(
                "/objects",
                get(async |State(admin): State<Self>| {
                    run_blocking(move || Json(admin.stats.all_objects())).await
                }),
            )
            .route(
                "/plugins",
                get(async |State(admin): State<Self>| Json(admin.registry.reports())),
            )
            .route("/store", get(store))
            .route("/reconciles", get(reconciles))
            .route("/metrics", get(metrics))
            .route(
                "/status",
                get(async |State(admin): State<Self>| run_blocking(move || Json(admin.status())).await),
            )
            .route("/explain", get(explain))
            .route("/logs", get(logs::logs))
            .route("/recordings", get(recordings::recordings))
            .route("/recording", get(recordings::recording))
            .route("/record", get(recordings::record).post(recordings::record))
            .route("/trace", get(recordings::trace))
            .with_state(self);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(bound)
    }
}

/// Ready when the plugins have been loaded and the kinds that they reconcile listed; names those that have not. What else is
/// watched depends on the references of objects: a tenant who refers to a namespace that the host may not read must not make
/// it unready.
async fn get_readiness(State(admin): State<Admin>) -> (StatusCode, String) {
    let cache = &admin.services.cache;
    let states = cache.informers.scopes();
    let is_synced = |scope: &Scope| {
        states
            .iter()
            .any(|(wider, state)| *state == SyncState::Synced && wider.covers(scope))
    };
    let describe = |scope: &Scope| match states.iter().find(|(own, _)| own == scope) {
        Some((_, SyncState::Failed(why) | SyncState::Refused(why))) => format!("{}: {why}", scope.gvk),
        _ => format!("{}: listing", scope.gvk),
    };
    let serving = admin.registry.serving();
    let kinds = serving.iter().flat_map(|plugin| &plugin.kinds);
    let scopes = kinds.flat_map(|kind| kind.scopes(&cache.namespaces));
    let waiting: Vec<String> = scopes
        .filter(|scope| !is_synced(scope))
        .map(|scope| describe(&scope))
        .collect();
    if !waiting.is_empty() {
        let message = format!("not synced: {}", waiting.join(", "));
        return (StatusCode::SERVICE_UNAVAILABLE, message);
    }
    if !admin.registry.is_first_load_complete() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "plugins are being loaded".to_owned(),
        );
    }
    // Still ready: the previous grants apply, and a host that is not ready is no reason to stop the others.
    let note = admin.registry.grants_error();
    let note = note.map(|e| format!("; the grants file is invalid, the previous grants still apply: {e}"));
    (StatusCode::OK, format!("ok{}", note.unwrap_or_default()))
}

#[derive(Deserialize)]
struct After {
    /// Number of reconciles to skip; without it only the total number is returned.
    after: Option<usize>,
}

/// Runs a query that visits all objects: for a million of them it takes longer than an async thread may be blocked.
async fn run_blocking<T: IntoResponse + Send + 'static>(
    query: impl FnOnce() -> T + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(query).await {
        Ok(answer) => answer.into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let format = Format::negotiated(accept.unwrap_or_default());
    run_blocking(move || encode_metrics(&admin, format)).await
}

fn encode_metrics(admin: &Admin, format: Format) -> Response {
    let scraped = Scraped {
        services: &admin.services,
        registry: &admin.registry,
        stats: &admin.stats,
        lease: admin.lease.as_ref(),
        workers: admin.workers,
    };
    match admin.services.metrics.text(format, &scraped) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn explain(State(admin): State<Admin>, Query(question): Query<Question>) -> Response {
    match admin.explain(&question) {
        Ok(explanation) => Json(explanation).into_response(),
        Err(message) => (StatusCode::NOT_FOUND, Json(json!({ "message": message }))).into_response(),
    }
}

async fn store(State(admin): State<Admin>) -> Response {
    let describe = move || {
        let size = admin.services.cache.store.size();
        Json(json!({
            "objects": size.objects,
            "bytes": size.bytes,
            "watches": admin.services.list_watches().len(),
        }))
    };
    run_blocking(describe).await
}

/// How many reconciles there were, and how long they took. Asked often while it is measured: the number costs nothing.
async fn reconciles(State(admin): State<Admin>, Query(After { after }): Query<After>) -> Json<Value> {
    let Some(after) = after else {
        return Json(json!({"reconciles": admin.stats.count_reconciles()}));
    };
    let mut durations = admin.stats.list_durations(after);
    let n = durations.len();
    let mut whole: Vec<_> = durations.iter().map(|(_, whole)| *whole).collect();
    let mut whole = |q: usize| (n > 0).then(|| *whole.select_nth_unstable(n * q / 100).1);
    // What the host adds to the component's call.
    let mut overhead = |q: usize| {
        let at = |(call, whole): &(u64, u64)| (whole.saturating_sub(*call), *call);
        (n > 0).then(|| {
            let (call, whole) = *durations.select_nth_unstable_by_key(n * q / 100, at).1;
            json!({"call_us": call, "whole_us": whole})
        })
    };
    Json(json!({
        "reconciles": n,
        "p50": overhead(50),
        "p99": overhead(99),
        "whole_p50_us": whole(50),
        "whole_p99_us": whole(99),
    }))
}
