//! A host: builds its parts, runs them, and stops them in order.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{sync::watch, task::JoinSet};
use tracing::{debug, info, warn};

pub use crate::settings::HostSettings;
use crate::{
    cache::{
        informer::{ChangeHandler, Informers},
        store::Store,
    },
    client::{access_review::AccessReviewer, api::ApiClient, fence::WriteFence},
    cluster::{self, ClusterPool, ConnectionParts},
    contract::memory_budget::MemoryBudget,
    effect::writer::{ApiWriter, ChangeObserver},
    kube::{
        backoff::Backoff,
        key::{Gvk, ObjectRef},
        object::KubeObject,
        scope::{NamespaceScope, Projection},
        well_known::bookkeeping,
    },
    leader::lease::LeaderElector,
    messages::MessageRunner,
    observe::metrics::Metrics,
    plugin::{self, PluginRegistry},
    policy::network::NetworkPolicy,
    reconcile::{
        Controller,
        activation::{activate, requeue_objects, requeue_scopes},
        rights::role_binding_gvk,
        stats::ReconcileStats,
    },
    recording::RecordingStore,
    rollout::{PluginObjects, Reloader},
    sandbox::{
        engine::Engine,
        memory_limit::memory_limit,
        services::{ServiceParts, Services, SharedCache, UpstreamAccess},
    },
    schedule::{
        connection_users::ConnectionUsers,
        dispatcher::{Cause, Dispatcher},
        host_lane::HostLane,
        queue::{Priority, Queue},
    },
    upstream::{self, ClientPool, DigestKey, EventStreams},
};

/// A running host. Dropping it stops everything at once.
pub struct Host {
    services: Arc<Services>,
    registry: Arc<PluginRegistry>,
    stats: Arc<ReconcileStats>,
    lease: Option<Arc<str>>,
    tasks: JoinSet<anyhow::Result<()>>,
    workers: JoinSet<()>,
    campaign: Option<LeaderElector>,
    plugins_loaded: watch::Receiver<bool>,
}

impl Host {
    /// Starts a host, whose tasks run on the current Tokio runtime. It reconciles while it is the leader; until then it
    /// is a standby with everything compiled, cached and queued. [`Host::wait_loaded`] waits for its plugins.
    pub fn start(client: kube::Client, settings: HostSettings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let registry =
            Arc::new(PluginRegistry::default().require_service_account(settings.require_service_account));
        let network = NetworkPolicy::default();
        network.replace_grant(settings.allowed_networks(&settings.grants));
        let (services, stats) = build_services(client, &settings, &registry, &network);
        let controller = Controller::new(
            services.clone(),
            registry.clone(),
            stats.clone(),
            settings.clone(),
        );
        let controller = Arc::new(controller?);
        let objects = (!settings.shares_cluster).then(|| {
            Arc::new(PluginObjects::new(
                services.clone(),
                settings.plugin_selector.clone(),
                settings.component_store(),
                registry.clone(),
            ))
        });
        let mut reloader = build_reloader(&controller, network);
        if let Some(objects) = &objects {
            reloader = reloader.with_objects(objects.clone());
        }
        let (tasks, plugins_loaded) = spawn_tasks(&controller, &settings, reloader, objects);
        let workers = spawn_workers(&controller);
        let campaign = settings.election.clone();
        let campaign = campaign.map(|c| LeaderElector::start(c, services.fence.clone()));
        Ok(Self {
            services,
            registry,
            stats,
            lease: settings.election.as_ref().map(|e| e.name.as_str().into()),
            tasks,
            workers,
            campaign: campaign.transpose()?,
            plugins_loaded,
        })
    }

    /// Waits until the plugins there are have been loaded or refused. Fails if a part of the host fails before.
    pub async fn wait_loaded(&mut self) -> anyhow::Result<()> {
        let mut loaded = self.plugins_loaded.clone();
        tokio::select! {
            // It fails only when the task that loads them has ended, and `wait_failed` has the error of that task.
            Ok(_) = loaded.wait_for(|loaded| *loaded) => Ok(()),
            e = self.wait_failed() => Err(e),
        }
    }

    /// Waits until a part of the host fails, and returns the error. The host never ends by itself.
    pub async fn wait_failed(&mut self) -> anyhow::Error {
        let campaigning = async {
            match &mut self.campaign {
                Some(campaign) => campaign.wait_failure().await,
                None => std::future::pending().await,
            }
        };
        let ended = || anyhow::anyhow!("a part of the host ended");
        tokio::select! {
            e = campaigning => e.context("leader election"),
            task = self.tasks.join_next() => match task {
                Some(Ok(Err(e))) => e,
                Some(Err(e)) => e.into(),
                Some(Ok(Ok(()))) | None => ended(),
            },
            worker = self.workers.join_next() => match worker {
                Some(Err(e)) => e.into(),
                Some(Ok(())) | None => ended(),
            },
        }
    }

    /// Stops in order: no reconcile begins, running ones are asked to end and get `grace` for that, and then the lease
    /// is released. Reconciles that have not ended by then are abandoned like in a crash, which loses nothing.
    pub async fn drain(mut self, grace: Duration) {
        self.services.fence.start_drain();
        let ending = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ending).await.is_err() {
            let reconciles = self.workers.len();
            warn!(reconciles, grace_period = ?grace, "abandoning unfinished reconciles");
            self.workers.shutdown().await;
        }
        self.tasks.shutdown().await;
        self.services.fence.close();
        self.services.upstreams.streams.close_all();
        self.services.upstreams.clients.close_brokers();
        if let Some(campaign) = self.campaign {
            if campaign.release(RELEASE_TIMEOUT).await {
                info!("lease released");
            } else {
                warn!("releasing lease failed, it will expire");
            }
        }
    }

    /// The services that calls and controllers share.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The registry of plugins.
    pub fn registry(&self) -> &Arc<PluginRegistry> {
        &self.registry
    }

    /// Statistics of the reconciles of each object.
    pub fn stats(&self) -> &Arc<ReconcileStats> {
        &self.stats
    }

    /// The name of the Lease that this host is a candidate for; none without leader election.
    pub fn lease(&self) -> Option<&Arc<str>> {
        self.lease.as_ref()
    }

    /// The causes for which an object has been queued, oldest first.
    pub fn causes(&self, key: &ObjectRef) -> Vec<Cause> {
        self.services.dispatcher.causes(key)
    }
}

/// Kinds that the host reconciles itself in the watched namespaces, with their lanes. [`crate::rollout`] watches Plugins.
fn host_kinds() -> [(Gvk, HostLane); 3] {
    [
        (upstream::upstream_gvk(), HostLane::Upstreams),
        (cluster::cluster_gvk(), HostLane::Clusters),
        (role_binding_gvk(), HostLane::RoleBindings),
    ]
}

/// Part of the instances (a quarter) that are left to calls other than reconciles: half to message handlers, the rest to
/// hooks, `describe` and replays.
const INSTANCES_BESIDES_RECONCILES: u32 = 4;

/// Memory of the process where neither a cgroup nor the system gives its size.
const DEFAULT_MEMORY_LIMIT: usize = 512 << 20;

/// Limit of the time to release the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Shortest interval in which watches, upstream clients and code that are not needed are stopped or unloaded.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Time from the first list of a watch that covers others until the others are stopped. It is longer than most reconciles.
const COVERED_WATCH_DELAY: Duration = Duration::from_secs(1);

/// Backoff between discovery requests while the API server does not serve the kind `Upstream` or `Cluster`.
const DISCOVERY_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(50);

/// Builds the work queue and the dependency graph. The host writes the status of Upstreams and Clusters itself while their
/// dependants use them.
fn build_dispatcher(
    settings: &HostSettings,
    namespaces: &NamespaceScope,
    memory: &MemoryBudget,
) -> Arc<Dispatcher> {
    let queue = Queue::new(settings.backoff);
    let mut dispatcher = Dispatcher::new(queue, namespaces.clone()).with_capacity(max_reconciles(memory));
    for kind in [upstream::upstream_gvk(), cluster::cluster_gvk()] {
        dispatcher = dispatcher.wake_on_recovery_only(kind.clone());
        if settings.shares_cluster {
            dispatcher = dispatcher.wake_when_first_read(kind);
        }
    }
    Arc::new(dispatcher)
}

/// Builds the services that calls and controllers share: cache, queue, API client, upstream clients and recordings.
fn build_services(
    client: kube::Client,
    settings: &HostSettings,
    registry: &Arc<PluginRegistry>,
    network: &NetworkPolicy,
) -> (Arc<Services>, Arc<ReconcileStats>) {
    let metrics = Arc::new(Metrics::default());
    let fence = match settings.election {
        Some(_) => WriteFence::closed(),
        None => WriteFence::default(),
    };
    let own_namespace = settings.own_namespace.as_deref();
    let digest_key =
        own_namespace.map(|own| DigestKey::in_namespace(ApiClient::new(client.clone()), own, true));
    let cluster = ApiClient::new(client)
        .with_metrics(metrics.rest_client(), &settings.api_server)
        .with_fence(fence.clone());
    let store = Arc::new(Store::default());
    let namespaces = NamespaceScope::new(&settings.namespaces);
    let memory = Arc::new(MemoryBudget::new(
        settings.memory_budget.unwrap_or_else(default_memory_budget),
    ));
    let dispatcher = build_dispatcher(settings, &namespaces, &memory);
    let stats = Arc::new(ReconcileStats::new(store.clone()));
    let streams = build_streams(&fence, &dispatcher);
    let connection_users = Arc::new(ConnectionUsers::new([
        upstream::upstream_gvk(),
        cluster::cluster_gvk(),
    ]));
    let observe_common = build_common_observer(&connection_users, registry, &dispatcher);
    let observer = build_change_observer(&dispatcher, &stats, &streams, registry, &observe_common);
    let on_change = build_change_handler(&observer, &dispatcher, &stats, &fence);
    let cluster_observer = build_cluster_observer(&dispatcher, &stats, &streams, &observe_common);
    let clusters = ClusterPool::new(ConnectionParts {
        store: store.clone(),
        dispatcher: dispatcher.clone(),
        on_change: build_cluster_change_handler(&cluster_observer, &dispatcher),
        observer: cluster_observer,
        intercept: None,
        fence: fence.clone(),
        network: network.clone(),
        metrics: metrics.clone(),
        watch_backoff: settings.watch_backoff,
        watch_idle_timeout: settings.watch_idle_timeout,
    });
    let informers = Informers::new(cluster.clone(), store.clone(), on_change)
        .with_namespaces(namespaces.clone())
        .with_backoff(settings.watch_backoff)
        .with_idle_timeout(settings.watch_idle_timeout);
    let parts = ServiceParts {
        clusters,
        cache: SharedCache {
            store: store.clone(),
            informers: Arc::new(informers),
            namespaces,
        },
        reviewer: AccessReviewer::new(cluster.clone()),
        writer: ApiWriter::new(cluster, store, dispatcher.clone()).with_observer(observer),
        upstreams: UpstreamAccess {
            clients: build_upstreams(&fence, &dispatcher, network)
                .with_digest_key(digest_key.unwrap_or_default()),
            streams,
            subscriptions: Arc::default(),
        },
        dispatcher,
        memory,
        fence,
    };
    let services = Services {
        connection_users,
        recordings: Arc::new(RecordingStore::new(settings.record.clone())),
        metrics,
        ..Services::new(parts)
    };
    (Arc::new(services), stats)
}

/// Builds the event streams of upstreams. An event queues the objects that follow its stream.
fn build_streams(fence: &WriteFence, dispatcher: &Arc<Dispatcher>) -> Arc<EventStreams> {
    let dispatcher = dispatcher.clone();
    EventStreams::new(fence.clone(), move |object, stream| {
        let cause = Cause::Event(stream.to_string().into());
        dispatcher.enqueue(object, Priority::Normal, cause);
    })
}

/// Builds the upstream clients. A changed status of an upstream queues its object.
fn build_upstreams(fence: &WriteFence, dispatcher: &Arc<Dispatcher>, network: &NetworkPolicy) -> ClientPool {
    let dispatcher = dispatcher.clone();
    ClientPool::default()
        .with_fence(fence.clone())
        .with_network(network.clone())
        .with_status_listener(move |namespace, name| {
            let key = ObjectRef::new(upstream::upstream_gvk(), namespace, name);
            dispatcher.enqueue(&key, Priority::Normal, Cause::StatusStale);
        })
}

/// Builds the observer of changes on any cluster. It indexes the users of Upstreams and Clusters: one that has no user any more may
/// wait for that with its deletion, and is queued. And it forgets deleted objects in the health of builds.
fn build_common_observer(
    users: &Arc<ConnectionUsers>,
    registry: &Arc<PluginRegistry>,
    dispatcher: &Arc<Dispatcher>,
) -> ChangeObserver {
    let (users, registry, dispatcher) = (users.clone(), registry.clone(), dispatcher.clone());
    Arc::new(move |change| {
        if let (Some(deleted), None) = (&change.old, &change.new)
            && let Some(plugin) = registry.forget_object(&change.key.gvk, &deleted.uid)
        {
            let plugin = ObjectRef::new(plugin::kind(), "", &plugin);
            dispatcher.enqueue(&plugin, Priority::Normal, Cause::Dependency(change.key.clone()));
        }
        for unused in users.on_change(change) {
            dispatcher.enqueue(&unused, Priority::Normal, Cause::Dependency(change.key.clone()));
        }
    })
}

/// Builds the observer of each change in the store, whether a watch or the response to a write brought it.
fn build_change_observer(
    dispatcher: &Arc<Dispatcher>,
    stats: &Arc<ReconcileStats>,
    streams: &Arc<EventStreams>,
    registry: &Arc<PluginRegistry>,
    observe_common: &ChangeObserver,
) -> ChangeObserver {
    let observe_common = observe_common.clone();
    let (dispatcher, stats) = (dispatcher.clone(), stats.clone());
    let (streams, registry) = (streams.clone(), registry.clone());
    // The host looks after some bindings, and nobody waits for them to be Ready.
    let bindings = role_binding_gvk();
    Arc::new(move |change| {
        if dispatcher.is_reconciled(&change.key) && change.key.gvk != bindings {
            stats.observe_change(&change.key, change.new.as_deref());
        }
        let intent = |o: &Option<Arc<KubeObject>>| o.as_ref().map(|o| o.intent);
        let rollback = |o: &Option<Arc<KubeObject>>| o.as_deref().and_then(plugin::recorded_rollback);
        let is_plugin = change.key.gvk == plugin::kind()
            && (intent(&change.old) != intent(&change.new) || rollback(&change.old) != rollback(&change.new));
        if is_plugin || registry.is_followed(&change.key) {
            registry.request_rescan();
        }
        observe_common(change);
        streams.on_object_change(&change.key, change.new.as_deref());
    })
}

/// Builds the observer of each change of another cluster. Of its objects, only those that a plugin reconciles there concern
/// the streams and statistics of this host.
fn build_cluster_observer(
    dispatcher: &Arc<Dispatcher>,
    stats: &Arc<ReconcileStats>,
    streams: &Arc<EventStreams>,
    observe_common: &ChangeObserver,
) -> ChangeObserver {
    let (dispatcher, stats, streams) = (dispatcher.clone(), stats.clone(), streams.clone());
    let observe_common = observe_common.clone();
    Arc::new(move |change| {
        observe_common(change);
        if dispatcher.is_reconciled(&change.key) {
            stats.observe_change(&change.key, change.new.as_deref());
            streams.on_object_change(&change.key, change.new.as_deref());
        }
    })
}

/// Builds the handler that the informers of another cluster call for each change.
fn build_cluster_change_handler(observer: &ChangeObserver, dispatcher: &Arc<Dispatcher>) -> ChangeHandler {
    let (observe, dispatcher) = (observer.clone(), dispatcher.clone());
    Arc::new(move |change, source| {
        observe(&change);
        dispatcher.on_change(&change, source, None);
    })
}

/// Builds the handler that the informers call for each change in the store.
fn build_change_handler(
    observer: &ChangeObserver,
    dispatcher: &Arc<Dispatcher>,
    stats: &Arc<ReconcileStats>,
    fence: &WriteFence,
) -> ChangeHandler {
    let (observer, dispatcher) = (observer.clone(), dispatcher.clone());
    let (stats, fence) = (stats.clone(), fence.clone());
    Arc::new(move |change, origin| {
        observer(&change);
        dispatcher.on_change(&change, origin, None);
        // What the object held is released by its next reconcile, so that one stays queued.
        let held = |object: &Arc<KubeObject>| object.annotation(bookkeeping::HOLDS).is_some();
        if change.new.is_none() && fence.term().is_none() && !change.old.as_ref().is_some_and(held) {
            dispatcher.drop_deleted(&change.key);
            stats.forget(&change.key);
        }
    })
}

/// Builds the reloader of plugins, which activates builds and applies changed grants.
fn build_reloader(controller: &Controller, network: NetworkPolicy) -> Reloader {
    let settings = controller.settings.clone();
    let (services, hooks) = (controller.services.clone(), controller.hooks.clone());
    let stats = controller.stats.clone();
    let max_concurrent = settings.workers;
    let reloader = Reloader::new(
        settings.plugins.clone(),
        controller.engine.clone(),
        controller.registry.clone(),
        settings.grants.clone(),
        settings.grants_file.clone(),
        settings.limits.clone(),
        Box::new(move |new, before| {
            activate(&services, max_concurrent, new, before);
            let kinds = before.into_iter().flat_map(|build| &build.kinds);
            for kind in kinds.filter(|kind| !services.dispatcher.has_reconciler(&kind.gvk)) {
                stats.forget_kind(&kind.gvk);
            }
            hooks.on_activate();
        }),
    );
    let services = controller.services.clone();
    reloader
        .with_recordings(services.recordings.clone())
        .on_grants(Box::new(move |grants| {
            if network.replace_grant(settings.allowed_networks(grants)) {
                services.upstreams.streams.on_network_change();
                requeue_kind(&services, &upstream::upstream_gvk(), &Cause::ConfigChange);
                // The next connections are checked.
                services.clusters.disconnect_all();
                requeue_kind(&services, &cluster::cluster_gvk(), &Cause::ConfigChange);
            }
        }))
}

/// Spawns the tasks that run on the leader and on standbys. The receiver turns true once the plugins there are have been
/// loaded or refused.
fn spawn_tasks(
    controller: &Arc<Controller>,
    settings: &HostSettings,
    reloader: Reloader,
    objects: Option<Arc<PluginObjects>>,
) -> (JoinSet<anyhow::Result<()>>, watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    let (sender, plugins_loaded) = watch::channel(false);
    let directory = settings.plugins.clone();
    tasks.spawn(async move {
        let reloading = reloader.run(|| {
            sender.send_replace(true);
        });
        reloading
            .await
            .with_context(|| format!("the plugin directory {}", directory.display()))
    });
    if let Some(objects) = objects {
        tasks.spawn(objects.run());
    }
    let services = &controller.services;
    tasks.spawn(sweep_unneeded(services.clone(), settings.watch_linger));
    if !settings.unload_after.is_zero() {
        tasks.spawn(unload_idle_code(controller.engine.clone(), settings.unload_after));
    }
    for (kind, lane) in host_kinds() {
        // Those of an installation, which another host protects.
        if settings.shares_cluster && lane == HostLane::RoleBindings {
            continue;
        }
        tasks.spawn(watch_host_kind(services.clone(), kind, lane));
    }
    (tasks, plugins_loaded)
}

/// The number of concurrent reconciles of all plugins. One that awaits an upstream holds memory and no thread, so memory
/// is what bounds them.
fn max_reconciles(memory: &MemoryBudget) -> u32 {
    let instances = memory.max_calls();
    instances - instances / INSTANCES_BESIDES_RECONCILES
}

/// Half of the memory that this process may have: the rest is for the cache, the queue and the compilers.
fn default_memory_budget() -> usize {
    memory_limit().unwrap_or(DEFAULT_MEMORY_LIMIT) / 2
}

/// Spawns the workers, and the tasks that follow the leader's term.
fn spawn_workers(controller: &Arc<Controller>) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    let host_lanes: u32 = HostLane::ALL.into_iter().map(HostLane::max_concurrent).sum();
    for _ in 0..max_reconciles(&controller.services.memory) + host_lanes {
        workers.spawn(controller.clone().run_worker());
    }
    let services = controller.services.clone();
    workers.spawn(async move {
        tokio::select! {
            () = services.dispatcher.run_timer() => {}
            () = services.fence.wait_drain() => {}
        }
    });
    workers.spawn(controller.hooks.clone().run());
    let instances = controller.services.memory.max_calls();
    let messages = MessageRunner::new(
        controller.clone(),
        (
            instances / INSTANCES_BESIDES_RECONCILES / 2,
            controller.settings.workers,
        ),
    );
    workers.spawn(Arc::new(messages).run());
    workers.spawn(reset_on_lost_leadership(
        controller.services.clone(),
        controller.registry.clone(),
    ));
    workers
}

/// Stops watches and upstream clients that no reconciler has needed for a while, and watches that wider ones cover.
async fn sweep_unneeded(services: Arc<Services>, linger: Duration) -> anyhow::Result<()> {
    let mut sweep = tokio::time::interval((linger / 2).max(MIN_SWEEP_INTERVAL));
    let informers = &services.cache.informers;
    loop {
        tokio::select! {
            _ = sweep.tick() => {
                let needed = services.dispatcher.scopes();
                services.clusters.sweep_watches(&needed, linger);
                informers.stop_unneeded(&needed, linger);
                services.upstreams.clients.drop_unused();
            }
            // Each event is sent and parsed once for each watch. The read that needs the wider one is recorded when its reconcile ends.
            () = informers.wait_covered() => sweep.reset_after(COVERED_WATCH_DELAY),
            // The scope of a reconciled kind has no read that would try a narrower watch at once.
            () = informers.wait_refused() => {}
        }
        // A scope that became needed while the others were stopped must not stay without a watch.
        for scope in services.dispatcher.scopes() {
            if scope.cluster.is_empty() {
                informers.ensure_informer(&scope);
            }
        }
    }
}

/// Unloads the code of components that were not called for a while.
async fn unload_idle_code(engine: Arc<Engine>, idle: Duration) -> anyhow::Result<()> {
    let mut sweep = tokio::time::interval((idle / 2).max(MIN_SWEEP_INTERVAL));
    loop {
        sweep.tick().await;
        let engine = engine.clone();
        // Unmapping the code and the warm instances of an interpreter takes milliseconds.
        let unloaded = tokio::task::spawn_blocking(move || engine.unload_idle(idle)).await?;
        if unloaded > 0 {
            debug!(plugins = unloaded, "unloaded the code of idle plugins");
        }
    }
}

/// Forgets what was remembered of the cluster whenever this host is no longer the leader, and queues everything: another
/// leader will change it meanwhile.
async fn reset_on_lost_leadership(services: Arc<Services>, registry: Arc<PluginRegistry>) {
    while let Some(term) = services.fence.wait_open().await {
        tokio::select! {
            () = services.fence.wait_term_end(term) => {}
            () = services.fence.wait_drain() => return,
        }
        services.upstreams.streams.close_all();
        services.upstreams.clients.close_brokers();
        services.clusters.disconnect_all();
        services.api.writer.forget_all();
        services.object_cache.clear();
        for plugin in registry.serving() {
            requeue_objects(&services, &plugin, Cause::Start);
        }
        for (kind, _) in host_kinds() {
            requeue_kind(&services, &kind, &Cause::Start);
        }
    }
}

/// Reconciles the objects of a kind of the host's own from when the API server serves it: without any their CRD may not be
/// installed.
async fn watch_host_kind(services: Arc<Services>, kind: Gvk, lane: HostLane) -> anyhow::Result<()> {
    let mut failures = 0;
    while let Err(e) = services.api.writer.discover_resource(&kind).await {
        debug!(error = %e, "kind {} is not served yet", kind.kind);
        failures += 1;
        tokio::time::sleep(DISCOVERY_BACKOFF.delay(failures)).await;
    }
    let scopes = services
        .cache
        .namespaces
        .kind_scopes(&kind, None, Projection::Full);
    services.dispatcher.assign_kinds(
        &lane.name().into(),
        std::slice::from_ref(&kind),
        scopes,
        lane.max_concurrent(),
    );
    requeue_kind(&services, &kind, &Cause::Start);
    std::future::pending().await
}

/// Queues all objects of a kind of the host's own, also those that are still to be listed.
fn requeue_kind(services: &Services, kind: &Gvk, cause: &Cause) {
    if !services.dispatcher.has_reconciler(kind) {
        return;
    }
    let scopes = services
        .cache
        .namespaces
        .kind_scopes(kind, None, Projection::Full);
    requeue_scopes(services, scopes, cause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::{ObjectChange, VersionSource};

    #[test]
    fn standby_keeps_nothing_of_deleted_objects() {
        let fence = WriteFence::closed();
        let gvk = Gvk::new("g", "v1", "Thing");
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&gvk), Vec::new(), 0);
        let stats = Arc::new(ReconcileStats::new(Arc::default()));
        let streams = build_streams(&fence, &dispatcher);
        let ignore: ChangeObserver = Arc::new(|_| {});
        let observer = build_change_observer(&dispatcher, &stats, &streams, &Arc::default(), &ignore);
        let handle = build_change_handler(&observer, &dispatcher, &stats, &fence);
        for i in 0..10_000 {
            let json = format!(
                r#"{{"metadata":{{"name":"a-{i}","namespace":"n","uid":"u","resourceVersion":"{}"}}}}"#,
                i + 1
            );
            let (key, object) = KubeObject::parse(&gvk, json.as_bytes()).expect("an object");
            let object = Some(Arc::new(object));
            let change = |old, new| ObjectChange {
                key: key.clone(),
                old,
                new,
            };
            handle(change(None, object.clone()), VersionSource::Watch);
            assert_eq!(stats.keys().len(), 1);
            handle(change(object, None), VersionSource::Watch);
        }
        assert!(dispatcher.is_idle(), "{:?}", dispatcher.lanes());
        assert!(stats.keys().is_empty());
    }
}
