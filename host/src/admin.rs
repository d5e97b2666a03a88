//! The admin server: health for the kubelet, metrics for Prometheus, status for the CLI.
//!
//! | address | serves | to |
//! |---|---|---|
//! | health | `/healthz`, `/readyz` | anybody |
//! | local | everything | processes that reach the loopback interface |
//! | secure | everything but health | users that the API server authenticates, by their rights |

mod access;
pub mod certificate;
mod client_certificate;
mod console;
pub mod explain;
mod logs;
pub mod objects;
pub mod question;
mod recordings;
pub mod scrape;
mod secure;
pub mod status;

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Extension, Query, State},
    http::{HeaderMap, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use self::{
    access::{AccessRefusal, Requester, Reviewers},
    certificate::ServerCertificate,
    explain::ObjectExplanation,
    question::Question,
    scrape::{Format, Scraped},
};
use crate::{
    cache::informer::SyncState,
    client::api::ApiClient,
    host::Host,
    kube::{
        key::{Gvk, ObjectRef},
        scope::Scope,
    },
    plugin::PluginRegistry,
    reconcile::stats::ReconcileStats,
    sandbox::services::Services,
};

/// The state that the admin server exposes.
#[derive(Clone)]
pub struct Admin {
    /// For readiness and sizes.
    pub services: Arc<Services>,
    /// For `/plugins`.
    pub registry: Arc<PluginRegistry>,
    /// For `/objects`.
    pub stats: Arc<ReconcileStats>,
    /// The name of the Lease that this process is a candidate for; none without leader election.
    pub lease: Option<Arc<str>>,
    /// Maximum number of concurrent reconciles of one plugin.
    pub workers: u32,
    /// Authenticate and authorize the users of the secure address.
    reviewers: Arc<Reviewers>,
}

impl Admin {
    /// Exposes a host with this maximum of concurrent reconciles per plugin. The client authenticates and authorizes users.
    pub fn new(host: &Host, workers: u32, client: ApiClient) -> Self {
        Self {
            services: host.services().clone(),
            registry: host.registry().clone(),
            stats: host.stats().clone(),
            lease: host.lease().cloned(),
            workers,
            reviewers: Arc::new(Reviewers::new(client)),
        }
    }

    /// Serves everything without authentication, in the background. Returns the address that it listens on.
    ///
    /// # Errors
    /// The address can't be bound, or others than processes of this machine could reach it.
    pub async fn serve_local(self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        anyhow::ensure!(
            address.ip().is_loopback(),
            "it is no loopback address, and nobody is authenticated there: health is served by --health-bind-address, all else \
             by --secure-bind-address"
        );
        let routes = Self::health_routes().merge(Self::routes());
        let routes = routes.layer(Extension(Requester::Local)).with_state(self);
        serve_plain(routes, address).await
    }

    /// Serves health, in the background. Returns the address that it listens on.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn serve_health(self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        serve_plain(Self::health_routes().with_state(self), address).await
    }

    /// Serves everything but health by TLS, to users with a token that the API server accepts, in the background. Returns the
    /// address that it listens on.
    ///
    /// # Errors
    /// The address can't be bound.
    pub async fn serve_secure(
        self,
        address: SocketAddr,
        certificate: Arc<ServerCertificate>,
    ) -> anyhow::Result<SocketAddr> {
        let reviewers = self.reviewers.clone();
        let routes = Self::routes().with_state(self);
        secure::serve(routes, address, certificate, reviewers).await
    }

    fn health_routes() -> Router<Self> {
        Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/readyz", get(get_readiness))
    }

    fn routes() -> Router<Self> {
        let of_host = Router::new()
            .route("/metrics", get(metrics))
            .route(
                "/plugins",
                get(async |State(admin): State<Self>| Json(admin.registry.reports())),
            )
            .route(
                "/status",
                get(async |State(admin): State<Self>| run_blocking(move || Json(admin.status())).await),
            )
            .route("/store", get(store))
            .route(
                "/reconciles",
                get(async |State(admin): State<Self>| Json(admin.stats.durations.load())),
            )
            .route_layer(middleware::from_fn(access::check_host_path));
        Router::new()
            .route("/explain", get(explain))
            .route("/logs", get(logs::logs))
            .route("/objects", get(list_statistics))
            .route("/states", get(objects::states))
            .route("/reconcile", post(objects::reconcile))
            .route("/record", get(recordings::record).post(recordings::record))
            .route("/recording", get(recordings::recording))
            .route("/recordings", get(recordings::recordings))
            .route("/trace", get(recordings::trace))
            .merge(console::routes())
            .merge(of_host)
    }

    /// Refuses what only the leader can do.
    fn check_leads(&self) -> Result<(), AccessRefusal> {
        match self.services.fence.term() {
            Some(_) => Ok(()),
            None => Err(AccessRefusal(
                StatusCode::CONFLICT,
                "this host is a standby and reconciles nothing: query the leader".into(),
            )),
        }
    }

    /// Finds the object of a question among those that the requester has a verb on. An object that he may not see is refused in
    /// the same words whether it is there or not.
    async fn find_visible(
        &self,
        requester: &Requester,
        verb: &'static str,
        question: &Question,
        mut keys: Vec<ObjectRef>,
    ) -> Result<ObjectRef, AccessRefusal> {
        let not_found = |message| AccessRefusal(StatusCode::NOT_FOUND, message);
        if matches!(requester, Requester::Local) {
            return question.find(&keys).map_err(not_found);
        }
        keys = question.filter_kind(&keys).unwrap_or_default();
        let kinds: BTreeSet<Gvk> = keys.iter().map(|key| key.gvk.clone()).collect();
        keys.retain(|key| question.is_in_namespace(key));
        let visible = requester.retain_visible(verb, keys.clone()).await?;
        let message = match question.find(&visible) {
            Ok(key) => return Ok(key),
            Err(message) => message,
        };
        let mut refused = None;
        for gvk in kinds {
            // A role may name the object alone.
            let namespace = question.namespace.as_deref().unwrap_or_default();
            let named = ObjectRef::new(gvk, namespace, &question.name);
            match requester.check_object(verb, &named).await {
                Ok(()) if keys.contains(&named) => return Ok(named),
                Ok(()) => {}
                Err(refusal) => refused = Some(refusal),
            }
        }
        Err(refused.unwrap_or(not_found(message)))
    }
}

async fn serve_plain(routes: Router, address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(bound)
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
            .any(|(wider, state)| state.is_synced() && wider.covers(scope))
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

async fn explain(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(question): Query<Question>,
) -> Result<Json<ObjectExplanation>, AccessRefusal> {
    let keys = admin.stats.keys();
    let key = admin.find_visible(&requester, "get", &question, keys).await?;
    let explained = admin.explain_object(&key);
    explained
        .map(Json)
        .map_err(|message| AccessRefusal(StatusCode::NOT_FOUND, message))
}

#[derive(Deserialize)]
struct ObjectQuery {
    /// The namespace of the objects; without it, all of them.
    namespace: Option<String>,
}

/// The objects that are reconciled and that the requester may list.
async fn list_statistics(
    State(admin): State<Admin>,
    Extension(requester): Extension<Requester>,
    Query(query): Query<ObjectQuery>,
) -> Response {
    let mut keys = admin.stats.keys();
    if let Some(namespace) = &query.namespace {
        keys.retain(|key| *key.namespace == **namespace);
    }
    match requester.retain_visible("list", keys).await {
        Ok(keys) => {
            let describe = move || {
                let objects = keys.iter().filter_map(|key| admin.stats.object(key));
                Json(objects.collect::<Vec<_>>())
            };
            run_blocking(describe).await
        }
        Err(refusal) => refusal.into_response(),
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
