//! Puts the parts together and runs them.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{sync::oneshot, task::JoinSet};
use tracing::{debug, info, warn};

pub use crate::settings::Settings;
use crate::{
    cache::{
        informer::{Informers, SyncState},
        store::{Query, Store},
    },
    client::{access_review::AccessReviewer, api::ApiClient, fence::WriteFence},
    effect::{events::EventRecorder, writer::ApiWriter},
    kube::{
        key::ObjectRef,
        object::Object,
        scope::{NamespaceScope, Projection},
    },
    leader::lease::LeaderElector,
    observe::metrics::Metrics,
    plugin::{self, Registry},
    policy::network::Network,
    reconcile::{
        self, Controller,
        activation::{requeue, swapped},
        stats::Ledger,
    },
    recording::Tapes,
    rollout::{Objects, Reloader},
    sandbox::{capabilities::Services, object_cache::Memo},
    schedule::{
        dispatcher::{Cause, Dispatcher},
        queue::{Priority, Queue},
    },
    upstream::{self, Clients, Streams},
};

/// A running host. Dropping it stops everything at once.
pub struct Host {
    services: Arc<Services>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    tasks: JoinSet<anyhow::Result<()>>,
    workers: JoinSet<()>,
    campaign: Option<LeaderElector>,
}

impl Host {
    /// Starts; returns once the plugins there are have been looked at. It reconciles while it leads: until then it
    /// stands by, with everything compiled, cached and queued.
    pub async fn start(client: kube::Client, settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let metrics = Arc::new(Metrics::default());
        let gate = match settings.election {
            Some(_) => WriteFence::closed(),
            None => WriteFence::default(),
        };
        let cluster = ApiClient::new(client)
            .with_metrics(metrics.rest(), &settings.api_server)
            .with_fence(gate.clone());
        let store = Arc::new(Store::default());
        let (first, longest) = settings.backoff;
        let queue = Queue::new(first, longest);
        let reach = NamespaceScope::new(&settings.namespaces);
        // The host writes the status of Upstreams itself while their dependants use them.
        let router = Dispatcher::new(queue, reach.clone()).wake_on_recovery_only(upstream::kind());
        let router = Arc::new(router);
        let ledger = Arc::new(Ledger::new(store.clone()));
        let waking = router.clone();
        let streams = Streams::new(gate.clone(), move |object, stream| {
            let cause = Cause::Event(stream.to_string().into());
            waking.enqueue(object, Priority::Normal, cause);
        });
        let (listening, seeing, closing) = (router.clone(), ledger.clone(), streams.clone());
        let registry = Arc::new(Registry::default());
        let governing = registry.clone();
        let informers = Arc::new(Informers::new(
            cluster.clone(),
            store.clone(),
            Arc::new(move |change, origin| {
                if change.new.is_some() && listening.has_reconciler(&change.key.gvk) {
                    seeing.seen(&change.key);
                }
                let intent = |o: &Option<Arc<Object>>| o.as_ref().map(|o| o.intent);
                if change.key.gvk == plugin::kind() && intent(&change.old) != intent(&change.new) {
                    governing.look_again();
                }
                closing.changed(&change.key, change.new.as_deref());
                listening.on_change(&change, origin, None);
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
                telling.enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
            });
        let services = Arc::new(Services {
            store: store.clone(),
            dispatcher: router.clone(),
            informers: informers.clone(),
            reviewer: AccessReviewer::new(cluster.clone()),
            writer: Arc::new(ApiWriter::new(cluster, store, router.clone())),
            recorder: EventRecorder::default(),
            upstreams,
            streams,
            memo: Memo::default(),
            tapes: Arc::new(Tapes::new(settings.record.clone())),
            metrics,
            fence: gate.clone(),
            lease: settings.election.as_ref().map(|e| e.name.as_str().into()),
            namespaces: reach.clone(),
        });
        let at_once = settings.workers + RESERVE;
        let controller = Controller::new(
            services.clone(),
            registry.clone(),
            ledger.clone(),
            settings.clone(),
            at_once,
        );
        let controller = Arc::new(controller?);
        let hooks = controller.hooks.clone();
        let mut tasks = JoinSet::new();
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
            controller.engine.clone(),
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
                let needed = letting_go.dispatcher.scopes();
                letting_go.informers.stop_unneeded(&needed, linger);
                letting_go.upstreams.sweep();
            }
        });
        tasks.spawn(follow_upstreams(services.clone()));
        let mut workers = JoinSet::new();
        for _ in 0..at_once {
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
            campaign: campaign.map(|c| LeaderElector::start(c, gate)).transpose()?,
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

    /// Ends in order: nothing is begun any more, what runs is asked to end early and gets this long, and then
    /// another may lead. What hasn't ended by then is abandoned, as a crash would; nothing is lost by that.
    pub async fn drain(mut self, grace: Duration) {
        self.services.fence.start_drain();
        let ending = async { while self.workers.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ending).await.is_err() {
            warn!(
                "not ended after {grace:?}: {} reconciles abandoned",
                self.workers.len()
            );
            self.workers.shutdown().await;
        }
        self.tasks.shutdown().await;
        self.services.fence.close();
        self.services.streams.clear();
        if let Some(campaign) = self.campaign {
            match campaign.release(RELEASE).await {
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
        self.services.dispatcher.causes(key)
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
    while let Some(term) = services.fence.wait_open().await {
        tokio::select! {
            () = services.fence.wait_term_end(term) => {}
            () = services.fence.wait_drain() => return,
        }
        services.streams.clear();
        services.writer.forget_all();
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
    while let Err(e) = services.writer.discover_resource(&upstream::kind()).await {
        debug!("Upstreams are not followed yet: {e}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(30));
    }
    let scopes = services
        .namespaces
        .kind_scopes(&upstream::kind(), None, Projection::Full);
    let (lane, limit) = (reconcile::upstream::LANE.into(), reconcile::upstream::CONCURRENCY);
    services
        .dispatcher
        .assign_kinds(&lane, &[upstream::kind()], scopes, limit);
    requeue_upstreams(&services, &Cause::Start);
    std::future::pending().await
}

/// Queues all Upstreams, those included that are still to be listed.
fn requeue_upstreams(services: &Services, cause: &Cause) {
    if !services.dispatcher.has_reconciler(&upstream::kind()) {
        return;
    }
    for scope in services
        .namespaces
        .kind_scopes(&upstream::kind(), None, Projection::Full)
    {
        let (serving, _) = services.informers.ensure_informer(&scope);
        for (key, _) in services.store.list(&serving, &Query::default()) {
            services.dispatcher.enqueue(&key, Priority::Low, cause.clone());
        }
    }
}

/// Whether every informer has had everything once.
pub fn synced(services: &Services) -> bool {
    services
        .informers
        .scopes()
        .iter()
        .all(|(_, s)| *s == SyncState::Synced)
}
