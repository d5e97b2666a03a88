//! Puts the parts together and runs them.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context;
use tokio::{sync::oneshot, task::JoinSet};
use tracing::{debug, info, warn};

use crate::{
    capabilities::Services,
    cluster::Cluster,
    effects::Effects,
    engine::{Cache, Engine, Inspector, Limits},
    events::Recorder,
    facts::Ledger,
    gate::Gate,
    grants::Grants,
    key::ObjectRef,
    lease::{self, Campaign},
    lifecycle::Hooks,
    limits::MOST_MEMORY,
    memo::Memo,
    metrics::Metrics,
    object::Object,
    oci,
    plugin::{self, Plugin, Registry},
    queue::{Config as QueueConfig, Priority, Queue},
    rbac::Reviewer,
    reconcile::{self, Controller},
    reload::{Objects, Reloader},
    router::{Cause, Router},
    scope::{Form, Reach},
    selector::Selector,
    store::{Query, Store},
    tape::{self, Tapes},
    upstream::{self, Clients, Network, NetworkGrant, Streams},
    watch::{Informers, Synced},
};

/// How a host runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of components (`NAME.wasm`) and their configurations (`NAME.yaml`).
    pub plugins: PathBuf,
    /// Which `Plugin` objects are followed: those with these labels, all without.
    pub plugin_selector: Option<Selector>,
    /// Registries (`HOST:PORT`) that are spoken to in plain HTTP.
    pub plain_http: Vec<String>,
    /// What plugins may do.
    pub grants: Grants,
    /// The file they are from: when it changes they do.
    pub grants_file: Option<PathBuf>,
    /// Addresses that upstreams may have besides public ones and those of the grants.
    pub network: Vec<ipnet::IpNet>,
    /// Namespaces to be confined to; empty for the whole cluster.
    pub namespaces: Vec<String>,
    /// Reconciles at the same time.
    pub workers: u32,
    /// What one call may use.
    pub limits: Limits,
    /// Interval of outcomes that poll without saying how often.
    pub poll: Duration,
    /// How often an object that waits looks again by itself.
    pub yield_every: Duration,
    /// After this long a deletion that is stuck says what can be done.
    pub deletion_deadline: Duration,
    /// First and longest delay between failing attempts.
    pub backoff: (Duration, Duration),
    /// How long a watch that nobody needs any more is kept.
    pub linger: Duration,
    /// Where compiled code is kept, and who makes it; none compiles at each start, in this process.
    pub cache: Option<Cache>,
    /// Host and port of the API server, for the metrics.
    pub api_server: String,
    /// Campaigns for leadership; none leads always.
    pub election: Option<lease::Settings>,
    /// Which reconciles are recorded.
    pub record: tape::Settings,
    /// Looks at the memory of components after each call. For tests.
    pub inspect: Option<Inspector>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            plugins: PathBuf::from("plugins"),
            plugin_selector: None,
            plain_http: Vec::new(),
            grants: Grants::default(),
            grants_file: None,
            network: Vec::new(),
            namespaces: Vec::new(),
            workers: 16,
            limits: Limits::default(),
            poll: Duration::from_secs(300),
            yield_every: Duration::from_secs(30),
            deletion_deadline: Duration::from_secs(600),
            backoff: (Duration::from_millis(5), Duration::from_secs(1000)),
            linger: Duration::from_secs(60),
            cache: None,
            api_server: String::new(),
            election: None,
            record: tape::Settings::default(),
            inspect: None,
        }
    }
}

impl Settings {
    /// The addresses that upstreams may have besides public ones.
    pub(crate) fn allowed(&self, grants: &Grants) -> NetworkGrant {
        let mut grant = grants.network.clone();
        grant.allow.extend(&self.network);
        grant
    }

    /// Where components are pulled from, and kept.
    pub(crate) fn registries(&self) -> oci::Store {
        let directory = self.cache.as_ref().map(|c| c.directory.join("components"));
        oci::Store::new(directory, oci::Limits::default()).with_plain_http(self.plain_http.clone())
    }
}

/// A running host. Dropping it stops everything at once.
pub struct Host {
    services: Arc<Services>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    tasks: JoinSet<anyhow::Result<()>>,
    workers: JoinSet<()>,
    campaign: Option<Campaign>,
}

impl Host {
    /// Starts; returns once the plugins there are have been looked at. It reconciles while it leads: until then it
    /// stands by, with everything compiled, cached and queued.
    pub async fn start(client: kube::Client, settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let metrics = Arc::new(Metrics::default());
        let gate = match settings.election {
            Some(_) => Gate::shut(),
            None => Gate::default(),
        };
        if let Some(election) = &settings.election {
            metrics.stands_for(&election.name, gate.clone());
        }
        let cluster = Cluster::new(client)
            .counted(metrics.rest(), &settings.api_server)
            .gated(gate.clone());
        let store = Arc::new(Store::default());
        let (first, longest) = settings.backoff;
        let queue = Queue::new(QueueConfig::new(first, longest, crate::time::unique()));
        let reach = Reach::new(&settings.namespaces);
        let router = Arc::new(Router::new(queue, reach.clone()));
        let ledger = Arc::new(Ledger::new(store.clone()));
        let waking = router.clone();
        let streams = Streams::new(gate.clone(), move |object, stream| {
            let cause = Cause::Event(stream.to_string().into());
            waking.add(object, Priority::Normal, cause);
        });
        let (listening, seeing, closing) = (router.clone(), ledger.clone(), streams.clone());
        let registry = Arc::new(Registry::default());
        let governing = registry.clone();
        let informers = Arc::new(Informers::new(
            cluster.clone(),
            store.clone(),
            Arc::new(move |change, origin| {
                if change.new.is_some() && listening.reconciles(&change.key.gvk) {
                    seeing.seen(&change.key);
                }
                let intent = |o: &Option<Arc<Object>>| o.as_ref().map(|o| o.intent);
                if change.key.gvk == plugin::kind() && intent(&change.old) != intent(&change.new) {
                    governing.look_again();
                }
                closing.changed(&change.key, change.new.as_deref());
                listening.changed(&change, origin, None);
            }),
        ));
        let network = Network::default();
        network.allow(settings.allowed(&settings.grants));
        let telling = router.clone();
        let upstreams = Clients::default()
            .gated(gate.clone())
            .within(network.clone())
            .telling(move |namespace, name| {
                let key = ObjectRef::new(upstream::kind(), namespace, name);
                telling.add(&key, Priority::Normal, Cause::Traffic);
            });
        let services = Arc::new(Services {
            store: store.clone(),
            router: router.clone(),
            informers: informers.clone(),
            reviewer: Reviewer::new(cluster.clone()),
            effects: Arc::new(Effects::new(cluster, store, router.clone())),
            recorder: Recorder::default(),
            upstreams,
            streams,
            memo: Memo::default(),
            tapes: Arc::new(Tapes::new(settings.record.clone())),
            metrics,
            gate: gate.clone(),
            reach: reach.clone(),
        });
        let engine = Engine::new(
            (settings.workers + RESERVE) * 2,
            settings.limits.memory.max(MOST_MEMORY),
            settings.cache.clone(),
            settings.inspect.clone(),
        );
        let engine = Arc::new(
            engine
                .map_err(|e| anyhow::anyhow!("{e:#}"))
                .context("the WebAssembly engine")?,
        );
        let mut tasks = JoinSet::new();
        let hooks = Arc::new(Hooks::new(
            services.clone(),
            registry.clone(),
            engine.clone(),
            settings.backoff,
        ));
        let controller = Arc::new(Controller {
            services: services.clone(),
            registry: registry.clone(),
            engine: engine.clone(),
            ledger: ledger.clone(),
            hooks: hooks.clone(),
            settings: settings.clone(),
            loops: Mutex::default(),
            notes: Mutex::default(),
        });
        let most = settings.workers;
        let objects = Arc::new(Objects::new(
            services.clone(),
            settings.plugin_selector.clone(),
            settings.registries(),
            registry.clone(),
        ));
        let (swapping, hooking) = (services.clone(), hooks.clone());
        let reloader = Reloader::new(
            settings.plugins.clone(),
            engine,
            registry.clone(),
            settings.grants.clone(),
            settings.grants_file.clone(),
            settings.limits.clone(),
            Box::new(move |new, before| {
                swapped(&swapping, most, new, before);
                hooking.swapped();
            }),
        );
        let (allowing, asking) = (settings.clone(), services.clone());
        let reloader = reloader
            .following(objects.clone())
            .probing(services.tapes.clone());
        let reloader = reloader.telling(Box::new(move |grants| {
            if network.allow(allowing.allowed(grants)) {
                asking.streams.network_changed();
                requeue_upstreams(&asking, &Cause::ConfigChange);
            }
        }));
        let (looked, looking) = oneshot::channel();
        tasks.spawn(reloader.run(move || {
            let _ = looked.send(());
        }));
        tasks.spawn(objects.follow());
        let (letting_go, linger) = (services.clone(), settings.linger);
        tasks.spawn(async move {
            let mut sweep = tokio::time::interval((linger / 2).max(Duration::from_millis(10)));
            loop {
                sweep.tick().await;
                let needed = letting_go.router.scopes();
                letting_go.informers.retain(&needed, linger);
                letting_go.upstreams.sweep();
            }
        });
        tasks.spawn(follow_upstreams(services.clone()));
        let mut workers = JoinSet::new();
        for _ in 0..settings.workers + RESERVE {
            workers.spawn(controller.clone().work());
        }
        workers.spawn(hooks.run());
        workers.spawn(reigns(services.clone(), registry.clone()));
        let campaign = settings.election.clone();
        let mut host = Self {
            services,
            registry,
            ledger,
            tasks,
            workers,
            campaign: campaign.map(|c| Campaign::start(c, gate)).transpose()?,
        };
        tokio::select! {
            _ = looking => Ok(host),
            ended = host.tasks.join_next() => {
                ended.context("no task")??.with_context(|| format!("the plugin directory {}", settings.plugins.display()))?;
                anyhow::bail!("the host ended while starting")
            }
        }
    }

    /// Runs until a part of the host fails; it never ends by itself.
    pub async fn failed(&mut self) -> anyhow::Error {
        let campaigning = async {
            match &mut self.campaign {
                Some(campaign) => campaign.failed().await,
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

    /// Ends in order: nothing is begun any more, what runs is asked to end early and gets this long, and then
    /// another may lead. What hasn't ended by then is abandoned, as a crash would; nothing is lost by that.
    pub async fn drain(mut self, grace: Duration) {
        self.services.gate.drain();
        let ending = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ending).await.is_err() {
            warn!(
                "not ended after {grace:?}: {} reconciles abandoned",
                self.workers.len()
            );
            self.workers.shutdown().await;
        }
        self.tasks.shutdown().await;
        self.services.gate.close();
        self.services.streams.clear();
        if let Some(campaign) = self.campaign {
            match campaign.resign(RELEASE).await {
                true => info!("the lease is released"),
                false => warn!("the lease is not released: it expires by itself"),
            }
        }
    }

    /// What the host works with.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The plugins.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// What happened to each object.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Everything that woke an object so far, oldest first.
    pub fn causes(&self, key: &ObjectRef) -> Vec<Cause> {
        self.services.router.causes(key)
    }

    /// Whether every informer has had everything once.
    pub fn synced(&self) -> bool {
        synced(&self.services)
    }
}

/// Workers besides those that one plugin may occupy at most: however long its reconciles take, others have their turn.
const RESERVE: u32 = 4;

/// How long letting the lease go may take.
const RELEASE: Duration = Duration::from_secs(5);

/// When this host leads no more: others will change what it remembers, so that it looks at everything again when
/// it leads again.
async fn reigns(services: Arc<Services>, registry: Arc<Registry>) {
    while let Some(term) = services.gate.opened().await {
        tokio::select! {
            () = services.gate.ended(term) => {}
            () = services.gate.drained() => return,
        }
        services.streams.clear();
        services.effects.forget_all();
        services.memo.clear();
        for plugin in registry.serving() {
            requeue(&services, &plugin, Cause::Start);
        }
        requeue_upstreams(&services, &Cause::Start);
    }
}

/// Reconciles Upstreams from when their kind is served on: where nobody uses any their CRD may be missing.
async fn follow_upstreams(services: Arc<Services>) -> anyhow::Result<()> {
    let mut pause = Duration::from_secs(1);
    while let Err(e) = services.effects.resource(&upstream::kind()).await {
        debug!("Upstreams are not followed yet: {e}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(30));
    }
    let scopes = services.reach.everywhere(&upstream::kind(), None, Form::Whole);
    let (lane, limit) = (reconcile::upstream::LANE.into(), reconcile::upstream::CONCURRENCY);
    services.router.assign(&lane, &[upstream::kind()], scopes, limit);
    requeue_upstreams(&services, &Cause::Start);
    std::future::pending().await
}

/// Queues all Upstreams, those included that are still to be listed.
fn requeue_upstreams(services: &Services, cause: &Cause) {
    if !services.router.reconciles(&upstream::kind()) {
        return;
    }
    for scope in services.reach.everywhere(&upstream::kind(), None, Form::Whole) {
        let (serving, _) = services.informers.ensure(&scope);
        for (key, _) in services.store.list(&serving, &Query::default()) {
            services.router.add(&key, Priority::Low, cause.clone());
        }
    }
}

/// Queues everything a plugin reconciles, from now on or again.
fn requeue(services: &Services, plugin: &Plugin, cause: Cause) {
    for scope in plugin.kinds.iter().flat_map(|k| services.kind_scopes(k)) {
        let (serving, _) = services.informers.ensure(&scope);
        let query = Query {
            namespace: &scope.namespace,
            labels: scope.selector.as_ref(),
            ..Query::default()
        };
        for (key, _) in services.store.list(&serving, &query) {
            services.router.add(&key, Priority::Low, cause.clone());
        }
    }
}

/// Whether every informer has had everything once.
pub fn synced(services: &Services) -> bool {
    services.informers.scopes().iter().all(|(_, s)| *s == Synced::Yes)
}

/// New kinds are watched before anything else; then everything the plugin reconciles is looked at again.
/// One plugin has so many reconciles at the same time at most.
pub(crate) fn swapped(
    services: &Arc<Services>,
    most: u32,
    new: Option<&Arc<Plugin>>,
    before: Option<&Arc<Plugin>>,
) {
    let router = &services.router;
    if let Some(gone) = before.filter(|b| new.is_none_or(|n| n.name() != b.name())) {
        router.assign(gone.name(), &[], Vec::new(), 0);
        services.tapes.forget(gone.name());
    }
    let Some(plugin) = new else { return };
    let same_build = before.is_some_and(|b| b.digest == plugin.digest);
    let cause = if same_build {
        Cause::ConfigChange
    } else {
        Cause::PluginChange
    };
    let kinds: Vec<_> = plugin.kinds.iter().map(|k| k.gvk.clone()).collect();
    let scopes: Vec<_> = plugin
        .kinds
        .iter()
        .flat_map(|k| services.kind_scopes(k))
        .collect();
    let concurrent = [
        plugin.terms.grants.pace().concurrency.unwrap_or(0),
        plugin.max_concurrent,
        most,
    ];
    let concurrent = concurrent.into_iter().filter(|n| *n > 0).min().unwrap_or(0);
    let shown: BTreeSet<_> = plugin.terms.grants.secret_namespaces().collect();
    if !shown.is_empty() {
        let shown: Vec<_> = shown.into_iter().collect();
        let place = match shown.contains(&"*") {
            true => "every namespace".to_owned(),
            false => format!("the namespaces {}", shown.join(", ")),
        };
        warn!(
            "plugin {} is granted to read Secrets of {place} (secretsAreReadable): what is in them is no longer the \
             host's to keep",
            plugin.name()
        );
    }
    router.assign(plugin.name(), &kinds, scopes, concurrent);
    // What has hooks waits for them, and is let go by these.
    if plugin.suspended || !plugin.lifecycle {
        router.hold(plugin.name(), plugin.suspended);
    }
    requeue(services, plugin, cause);
    if plugin.terms.grants.holdable().next().is_some() {
        tokio::spawn(watch_holdable(services.clone(), plugin.clone()));
    }
    info!(plugin = &**plugin.name(), kinds = kinds.len(), "reconciling");
}

/// What a plugin may hold is watched by its metadata: an object that is deleted while its holder is long gone
/// must not wait for ever.
async fn watch_holdable(services: Arc<Services>, plugin: Arc<Plugin>) {
    for (group, kind) in plugin.terms.grants.holdable() {
        let gvk = match services.effects.preferred(group, kind).await {
            Ok(gvk) => gvk,
            Err(e) => {
                warn!(
                    plugin = &**plugin.name(),
                    kind, group, "what is held of it is not followed: {e}"
                );
                continue;
            }
        };
        for scope in services.reach.everywhere(&gvk, None, Form::Metadata) {
            services.router.also(plugin.name(), scope.clone());
            services.informers.ensure(&scope);
        }
    }
}
