//! Dry runs: the changes that reconciling would make, computed without making them.
//!
//! A plan runs the host's own queue and reconciles against an overlay over the API server, with a closed write fence,
//! until no planned change enqueues another object.
//!
//! ```text
//! objects → queue → reconcile → effects → overlay (dry run) → store → dependants → queue
//! ```

mod diff;
mod intent;
pub(crate) mod merge;
mod overlay;
mod plugins;
mod report;
mod secrets;
mod selection;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use self::diff::DisplayFilter;
pub use self::{
    overlay::{Overlay, PlannedEvent, UnsentRequest},
    report::{PlanReport, PlannedAction, PlannedChange, PlannedObject, Verdict},
};
use crate::{
    cache::{informer::Informers, store::Store},
    client::{
        access_review::AccessReviewer,
        api::{ApiClient, Interceptor},
        fence::WriteFence,
    },
    cluster::{ClusterPool, ConnectionParts, cluster_gvk},
    contract::memory_budget::MemoryBudget,
    effect::writer::ApiWriter,
    kube::{
        key::ObjectRef,
        scope::{NamespaceScope, Projection},
    },
    observe::metrics::Metrics,
    policy::network::NetworkPolicy,
    reconcile::{Controller, run_once::ReconcileStep, stats::ReconcileStats},
    recording::RecordingStore,
    sandbox::services::{ServiceParts, Services, SharedCache, UpstreamAccess},
    schedule::{
        dependencies::ReadDependency,
        dispatcher::{Cause, Dispatcher},
        queue::{Priority, Queue, Work},
    },
    settings::HostSettings,
    upstream::{self, ClientPool, DigestKey, EventStreams},
};

/// Maximum number of reconciles of one object: a hot loop would not end in a plan either.
const MAX_ROUNDS: u32 = 10;

/// Maximum number of attempts when writes of others conflict with the plan.
const MAX_ATTEMPTS: u32 = 3;

/// Timeout of the first list of a kind.
const PLAN_SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// Objects to plan, and the changes to plan them with.
#[derive(Clone, Debug, Default)]
pub struct PlanRequest {
    /// Objects as `KIND/NAME`. Empty for all objects of the plugins, unless `files` names some.
    pub objects: Vec<String>,
    /// Namespace of the objects; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Namespace of objects that name none.
    pub default_namespace: String,
    /// Desired objects, each with the name of its file.
    pub files: Vec<(String, Value)>,
    /// Components that replace the plugins of the same name.
    pub builds: Vec<PathBuf>,
    /// Plans the deletion of the objects.
    pub delete: bool,
    /// Connects to Upstreams whose server or credentials the plan changes.
    pub trust_files: bool,
}

/// Computes a plan. It writes neither to the API server nor to an upstream.
pub async fn plan(
    client: kube::Client,
    settings: HostSettings,
    plan_request: &PlanRequest,
) -> anyhow::Result<PlanReport> {
    let since = now();
    let planner = Planner::new(client, settings);
    let planner = planner.await?;
    let result = planner.compute(plan_request).await;
    let filter = DisplayFilter::new(planner.overlay.secrets(), planner.overlay.planned_uids(), since);
    // The API server quotes rejected values in its errors, so these are redacted as well.
    let report = result.map_err(|e| anyhow::anyhow!(filter.redact_text(&format!("{e:#}"))))?;
    Ok(planner.finish_report(report, &filter))
}

/// The current time to the second, as Kubernetes timestamps have it.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The host that computes a plan.
struct Planner {
    settings: Arc<HostSettings>,
    cluster: ApiClient,
    overlay: Arc<Overlay>,
    services: Arc<Services>,
    controller: Controller,
}

impl Planner {
    async fn new(client: kube::Client, settings: HostSettings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let overlay = Arc::new(Overlay::default());
        let (services, cluster) = Self::build_services(client, &settings, &overlay);
        let stats = Arc::new(ReconcileStats::new(services.cache.store.clone()));
        overlay.attach_services(&services);
        let registry = Arc::default();
        let controller = Controller::new(services.clone(), registry, stats, settings.clone())?;
        Ok(Self {
            settings,
            cluster,
            overlay,
            services,
            controller,
        })
    }

    /// Builds the services, whose writes the overlay intercepts, and the client of the cluster.
    fn build_services(
        client: kube::Client,
        settings: &HostSettings,
        overlay: &Arc<Overlay>,
    ) -> (Arc<Services>, ApiClient) {
        // A fence that is never opened: no write leaves this process, even if a layer above it has a bug.
        let closed_fence = WriteFence::closed();
        // The client of access reviews has no fence: a SubjectAccessReview is a POST that changes nothing.
        let reviewer = AccessReviewer::new(ApiClient::new(client.clone()));
        let own_namespace = settings.own_namespace.as_deref();
        let digest_key =
            own_namespace.map(|own| DigestKey::in_namespace(ApiClient::new(client.clone()), own, false));
        let cluster = ApiClient::new(client)
            .with_fence(closed_fence.clone())
            .with_interceptor(overlay.clone());
        let store = Arc::new(Store::default());
        let namespaces = NamespaceScope::new(&settings.namespaces);
        let queue = Queue::new(settings.backoff);
        let dispatcher =
            Dispatcher::new(queue, namespaces.clone()).wake_on_recovery_only(upstream::upstream_gvk());
        let dispatcher = Arc::new(dispatcher);
        // The change handler does nothing: the listed objects are the initial state of the plan and enqueue nothing.
        let informers = Informers::new(cluster.clone(), store.clone(), Arc::new(|_, _| {}));
        let network = NetworkPolicy::default();
        network.replace_grant(settings.allowed_networks(&settings.grants));
        let over_clusters = overlay.clone();
        let metrics = Arc::new(Metrics::default());
        let clusters = ClusterPool::new(ConnectionParts {
            store: store.clone(),
            dispatcher: dispatcher.clone(),
            on_change: Arc::new(|_, _| {}),
            observer: Arc::new(|_| {}),
            intercept: Some(Box::new(move |cluster| -> Arc<dyn Interceptor> {
                over_clusters.add_cluster(cluster)
            })),
            fence: closed_fence.clone(),
            network: network.clone(),
            metrics: metrics.clone(),
            watch_backoff: settings.watch_backoff,
            watch_idle_timeout: settings.watch_idle_timeout,
        });
        let parts = ServiceParts {
            cache: SharedCache {
                store: store.clone(),
                informers: Arc::new(informers),
                namespaces,
            },
            reviewer,
            writer: ApiWriter::new(cluster.clone(), store, dispatcher.clone()),
            clusters,
            upstreams: UpstreamAccess {
                clients: ClientPool::default()
                    .with_fence(closed_fence)
                    .with_network(network)
                    .with_digest_key(digest_key.unwrap_or_default())
                    .with_dry_run(overlay.clone()),
                streams: EventStreams::disabled(),
                subscriptions: Arc::default(),
            },
            dispatcher,
            memory: MemoryBudget::unlimited(),
            fence: WriteFence::default(),
        };
        let services = Services {
            recordings: Arc::new(RecordingStore::new(settings.record.clone())),
            metrics,
            ..Services::new(parts)
        };
        (Arc::new(services), cluster)
    }

    async fn compute(&self, plan_request: &PlanRequest) -> anyhow::Result<PlanReport> {
        let mut report = PlanReport::default();
        self.overlay.trust_files(plan_request.trust_files);
        // The files come first, because they may contain Plugin objects.
        let intended = self.apply_files(plan_request).await?;
        self.load_plugins(&plan_request.builds, &mut report.notes).await?;
        // Before the kinds are listed, since the home cluster of a plugin may be among them.
        let unconnected = self.connect_clusters().await;
        self.list_kinds(&mut report.notes).await?;
        let chosen = self
            .select_objects(plan_request, &intended, &mut report.notes)
            .await?;
        self.run_hooks(&mut report.notes).await;
        for key in &chosen {
            self.services
                .dispatcher
                .enqueue(key, Priority::Normal, Cause::Start);
        }
        let mut read_clusters = BTreeSet::new();
        report.objects = self.run_queue(&mut report.notes, &mut read_clusters).await;
        // Those of other teams are none of this plan's concern.
        let used = unconnected.iter().filter(|(key, _)| read_clusters.contains(*key));
        report
            .notes
            .extend(used.map(|(key, why)| format!("{key} is not connected to: {why}")));
        report.notes.extend(self.overlay.unconnected_upstreams().map(|upstream| {
            format!(
                "the Upstream {upstream} is not connected to, because the plan changes its url, tls or auth: its responses \
                 are guesses (--trust-files sends requests and credentials there)"
            )
        }));
        Ok(report)
    }

    /// Initializes the plugins as a new leader does. Objects are upgraded by their reconciles.
    async fn run_hooks(&self, notes: &mut Vec<String>) {
        let Controller { registry, hooks, .. } = &self.controller;
        for plugin in registry.serving().iter().filter(|p| !p.suspended) {
            self.overlay
                .begin_run(&format!("the hooks of {}", plugin.name()), None);
            if let Err(why) = hooks.run_once(plugin).await {
                notes.push(format!("the objects of {} would wait: {why}", plugin.name()));
            }
            self.overlay.end_run(&[]);
        }
    }

    /// Reconciles until the queue is empty. Adds the `Cluster` objects that the reconciles have read.
    async fn run_queue(
        &self,
        notes: &mut Vec<String>,
        read_clusters: &mut BTreeSet<ObjectRef>,
    ) -> Vec<PlannedObject> {
        let dispatcher = &self.services.dispatcher;
        let mut rounds: HashMap<ObjectRef, u32> = HashMap::new();
        let mut planned = BTreeMap::new();
        while let Some(work) = dispatcher.pop() {
            let key = work.key.clone();
            let round = rounds.entry(key.clone()).or_default();
            *round += 1;
            if *round > MAX_ROUNDS {
                notes.push(format!(
                    "{key} was still enqueued after {MAX_ROUNDS} reconciles: its plan is incomplete"
                ));
                dispatcher.forget(&key);
                continue;
            }
            if let Some(object) = self.reconcile_object(&work, *round, read_clusters).await {
                planned.insert(key, object);
            }
        }
        planned.into_values().collect()
    }

    /// Reconciles one object. Returns `None` if a conflict re-enqueued it, because its result is not known yet.
    async fn reconcile_object(
        &self,
        work: &Work<ObjectRef, Cause>,
        round: u32,
        read_clusters: &mut BTreeSet<ObjectRef>,
    ) -> Option<PlannedObject> {
        let dispatcher = &self.services.dispatcher;
        let key = &work.key;
        self.overlay.begin_run(&key.to_string(), Some(key.clone()));
        let (step, reads) = self.controller.reconcile_once(work).await;
        let ran = self.overlay.end_run(&reads);
        read_clusters.extend(reads.into_iter().filter_map(|read| match read {
            ReadDependency::Object(key, _) if key.gvk == cluster_gvk() => Some(key),
            _ => None,
        }));
        if step == ReconcileStep::Fails && ran.conflict && round < MAX_ATTEMPTS {
            // Another client changed the live object since it was listed: plan again with its current version.
            if let Some(api) = self.services.find_api(&key.cluster)
                && let Err(e) = api.writer.read_uncached(None, key, key).await
            {
                tracing::debug!(object = %key, error = %e, "reading conflicting object failed");
            }
            dispatcher.enqueue(key, Priority::Normal, Cause::Retry);
            return None;
        }
        let ready = self
            .services
            .cache
            .store
            .get(key, Projection::Full)
            .map(|o| o.readiness())
            .unwrap_or_default();
        let facts = self.controller.stats.object(key);
        let error = facts.as_ref().and_then(|f| f.errors.last());
        let (reason, message) = match (step, error) {
            (ReconcileStep::Done | ReconcileStep::Gone, _) => (String::new(), String::new()),
            (ReconcileStep::Fails | ReconcileStep::Parked, Some(error))
                if ready.ready || ready.reason.is_empty() =>
            {
                (error.reason.clone(), error.message.clone())
            }
            _ => (ready.reason, ready.message),
        };
        Some(PlannedObject {
            object: key.to_string(),
            plugin: work.lane.to_string(),
            verdict: step.into(),
            reason,
            message,
            guess: ran.guess,
        })
    }

    /// Completes the report with the changes, requests and Events of the overlay, redacted for display.
    fn finish_report(&self, mut report: PlanReport, filter: &DisplayFilter) -> PlanReport {
        for entry in &self.overlay.changes() {
            report.changes.extend(PlannedChange::from_entry(entry, filter));
        }
        (report.requests, report.events) = self.overlay.recorded_effects();
        report.redact(filter);
        report.changes.sort_by(|a, b| a.object.cmp(&b.object));
        report
    }
}
