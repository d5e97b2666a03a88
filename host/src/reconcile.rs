//! One reconcile, from the queue to the status: checks, finalizer, the component's call, requeue.
//!
//! What a reconcile rarely awaits is in a box: its state would be part of each reconcile's, which is moved several times.
#![cfg_attr(not(test), warn(clippy::large_futures))]

mod action;
pub(crate) mod activation;
mod call;
pub mod cluster;
pub mod conditions;
mod connection;
mod decision;
mod deletion;
mod durations;
mod finalized;
pub mod former_builds;
mod holds;
mod home;
pub mod lifecycle;
mod owned;
pub mod plugin;
mod protection;
mod report;
mod requeue;
pub mod rights;
mod run;
pub mod run_once;
pub mod stats;
mod status;
pub mod upstream;

use std::{
    collections::{BTreeSet, HashSet},
    hash::{Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::{Instrument, debug, error, field::Empty, trace_span};

use crate::{
    client::{
        api::{ApiError, warn_api_error},
        fence::NotLeader,
    },
    contract::{
        bindings::{reconciler, types::Condition},
        limits::MAX_GRANTED_MEMORY,
    },
    kube::{
        backoff::add_jitter,
        key::{ObjectMap, ObjectRef},
        object::KubeObject,
        uid::Uid,
        well_known::error_reason,
    },
    observe::{metrics::ReconcileResult, telemetry::SPANS},
    plugin::PluginRegistry,
    reconcile::{lifecycle::HookRunner, rights::RightsProtection, stats::ReconcileStats},
    sandbox::{engine::Engine, services::Services},
    schedule::{
        dependencies::ReadDependency,
        dispatcher::Cause,
        host_lane::HostLane,
        hot_loop::LoopDetector,
        queue::{Requeue, Work},
    },
    settings::HostSettings,
    upstream::StreamKey,
};

/// Delay until an object is reconciled again after HTTP 404: the watch has delivered its deletion by then, or it was
/// not deleted.
const NOT_FOUND_RECHECK: Duration = Duration::from_secs(1);

/// Maximum wait that an API server may ask for. That of another cluster is not ours.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Reconciles objects; the workers share one.
pub struct Controller {
    /// Services that calls use.
    pub services: Arc<Services>,
    /// Registry of the plugins that serve.
    pub registry: Arc<PluginRegistry>,
    /// Runs components.
    pub engine: Arc<Engine>,
    /// Statistics per object.
    pub stats: Arc<ReconcileStats>,
    /// Runs life-cycle hooks before the first reconcile.
    pub hooks: Arc<HookRunner>,
    /// Intervals and limits.
    pub settings: Arc<HostSettings>,
    /// Detector of objects whose reconciles cause each other.
    pub loops: Mutex<LoopDetector>,
    /// Permits of health checks of Upstreams: fewer than the lane has slots, so that some are left for deletions.
    pub health_checks: Semaphore,
    /// State of each object between its reconciles.
    pub states: Mutex<ObjectMap<ObjectState>>,
}

/// State of an object between its reconciles. It is a cache: after a restart it is computed again.
#[derive(Default)]
pub struct ObjectState {
    /// Hash of the last result and of the version of the object after its status was written. The same hash means that
    /// the status is current.
    written: u64,
    /// Leader term in which it was compared with the API server's version, before a request that may not be repeated.
    fresh_term: Option<u64>,
    /// A status of which the server dropped fields: as desired, and as stored.
    dropped: Option<Box<(Value, Value)>>,
    /// Its uid and the objects that it holds, which have to be released when it is gone.
    held_objects: Option<Box<(Uid, BTreeSet<ObjectRef>)>>,
    /// Its uid and the annotation that lists the Upstreams and Clusters that it uses, in case that it is overwritten.
    used_connections: Option<Box<(Uid, Box<str>)>>,
    /// Its uid and the objects that it owns on other clusters, in case that its inventory is overwritten.
    owned_objects: Option<Box<(Uid, BTreeSet<ObjectRef>)>>,
}

/// Outcome of a reconcile, for the queue.
struct ReconcileOutcome {
    next: Requeue<Cause>,
    /// The dependencies that it read; none to keep those of the reconcile before.
    reads: Option<Vec<ReadDependency>>,
    /// The event streams that it follows; none to keep those of the reconcile before.
    follows: Option<HashSet<StreamKey>>,
    /// The pools of which it has requested a permit; none to keep the permits of the reconcile before.
    pools: Option<BTreeSet<Box<str>>>,
}

impl ReconcileOutcome {
    fn settled() -> Self {
        Self {
            next: Requeue::AwaitChange,
            reads: Some(Vec::new()),
            follows: Some(HashSet::new()),
            pools: Some(BTreeSet::new()),
        }
    }

    fn retry() -> Self {
        Self::retry_from(Duration::ZERO)
    }

    /// Retries with the backoff, which begins at this time if that is not over.
    fn retry_from(from: Duration) -> Self {
        Self::of(Requeue::Retry(from, Cause::Retry))
    }

    /// Waits for a change, and reconciles again at this time at the latest.
    fn wait(until: Duration, cause: Cause) -> Self {
        Self::of(Requeue::Wait(until, cause))
    }

    /// Keeps what the reconcile before has read, follows and holds.
    fn of(next: Requeue<Cause>) -> Self {
        Self {
            next,
            reads: None,
            follows: None,
            pools: None,
        }
    }

    /// Awaits a change of the object, and of nothing else.
    fn leave_unread() -> Self {
        Self {
            reads: Some(Vec::new()),
            ..Self::of(Requeue::AwaitChange)
        }
    }

    fn result(&self) -> ReconcileResult {
        match self.next {
            Requeue::AwaitChange => ReconcileResult::Success,
            Requeue::At(..) | Requeue::Wait(..) => ReconcileResult::RequeueAfter,
            Requeue::Retry(..) => ReconcileResult::Error,
            Requeue::Terminal => ReconcileResult::TerminalError,
        }
    }
}

/// Result of the component's call.
enum GuestResult {
    Outcome(reconciler::Outcome),
    Failure(reconciler::Failure),
}

impl GuestResult {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Failure(_))
    }

    /// True for a failure that is no wait.
    fn is_error(&self) -> bool {
        matches!(self, Self::Failure(failure) if !decision::is_wait(failure))
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        match self {
            Self::Outcome(outcome) => &mut outcome.conditions,
            Self::Failure(failure) => &mut failure.conditions,
        }
    }
}

impl Hash for GuestResult {
    /// Hashes everything that the status depends on.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (conditions, status) = match self {
            Self::Outcome(outcome) => (&outcome.conditions, &outcome.status),
            Self::Failure(failure) => {
                (&failure.reason, &failure.message).hash(state);
                std::mem::discriminant(&failure.resolution).hash(state);
                (&failure.conditions, &failure.status)
            }
        };
        for c in conditions {
            (&c.type_, c.status as u8, &c.reason, &c.message).hash(state);
        }
        (matches!(self, Self::Outcome(_)), status).hash(state);
    }
}

/// Creates the engine, with the caches of the settings.
fn new_engine(concurrency: u32, settings: &HostSettings) -> wasmtime::Result<Engine> {
    let memory = settings.limits.memory.max(MAX_GRANTED_MEMORY);
    #[cfg(feature = "dev")]
    if let Some(functions) = &settings.functions {
        return Engine::with_function_cache(concurrency, memory, functions, settings.inspect.clone());
    }
    Engine::new(
        concurrency,
        memory,
        settings.cache.clone(),
        settings.inspect.clone(),
    )
}

impl Controller {
    /// Creates a controller, with an engine for as many concurrent calls as the memory budget has room for.
    pub fn new(
        services: Arc<Services>,
        registry: Arc<PluginRegistry>,
        stats: Arc<ReconcileStats>,
        settings: Arc<HostSettings>,
    ) -> anyhow::Result<Self> {
        let engine = new_engine(services.memory.max_calls(), &settings);
        let engine = engine
            .map_err(|e| anyhow::anyhow!("{e:#}"))
            .context("the WebAssembly engine")?;
        let engine = Arc::new(engine.with_memory_budget(services.memory.clone()));
        let hooks = HookRunner::new(
            services.clone(),
            registry.clone(),
            engine.clone(),
            settings.backoff,
        );
        Ok(Self {
            services,
            registry,
            engine,
            stats,
            hooks: Arc::new(hooks),
            settings,
            loops: Mutex::default(),
            health_checks: Semaphore::new(upstream::MAX_CONCURRENT_CHECKS),
            states: Mutex::default(),
        })
    }

    /// Takes work from the queue while this host leads, until it is drained.
    pub async fn run_worker(self: Arc<Self>) {
        let Services {
            dispatcher, fence, ..
        } = &*self.services;
        while let Some(term) = fence.wait_open().await {
            let Some(work) = dispatcher.pop() else {
                tokio::select! {
                    () = dispatcher.wait_work() => {}
                    () = fence.wait_drain() => {}
                }
                continue;
            };
            self.run_reconcile(term, &work).await;
            // A worker that always finds work must not starve the watches on its thread.
            tokio::task::yield_now().await;
        }
    }

    /// Reconciles one object in a leader term, and tells the queue what comes next.
    async fn run_reconcile(&self, term: u64, work: &Work<ObjectRef, Cause>) {
        let Services {
            dispatcher, fence, ..
        } = &*self.services;
        let key = &work.key;
        let metrics = self.services.metrics.plugin_metrics(&work.lane);
        let running = metrics.begin_reconcile(work.waited);
        let span = trace_span!(target: SPANS, "reconcile", object = %key, plugin = &*work.lane, attempt = work.attempt, reconcile = Empty, result = Empty, otel.status_code = Empty);
        let reconcile = self.reconcile_or_recover(work).instrument(span.clone());
        let ended = fence.run_in_term(term, reconcile).await;
        if let Ok(end) = &ended {
            let how = end
                .as_ref()
                .map_or(ReconcileResult::Success, ReconcileOutcome::result);
            running.finish(how);
            span.record("result", how.label());
            if how.is_error() {
                span.record("otel.status_code", "ERROR");
            }
        }
        match ended {
            Ok(Some(end)) => {
                if let Some(follows) = &end.follows {
                    self.services.upstreams.streams.retain_subscriptions(key, follows);
                }
                dispatcher.done(key, end.next, end.reads, end.pools.as_ref());
            }
            Ok(None) => dispatcher.forget(key),
            // The next leader reconciles it; this host does if it leads again.
            Err(NotLeader) => {
                debug!(object = %key, error = %NotLeader, "abandoning reconcile");
                self.stats.abandon_reconcile(key);
                let again = Requeue::Wait(dispatcher.now(), Cause::Retry);
                dispatcher.done(key, again, None, None);
            }
        }
    }

    /// Reconciles one object, and retries it with backoff if the host panics: a bug of the host costs one reconcile, not
    /// the process with all other objects.
    async fn reconcile_or_recover(&self, work: &Work<ObjectRef, Cause>) -> Option<ReconcileOutcome> {
        Box::pin(recover_panic(self.reconcile_object(work))).await.unwrap_or_else(|message| {
            let key = &work.key;
            error!(object = %key, plugin = &*work.lane, error = message, "panic in a reconcile: this is a bug of the host");
            self.services.metrics.plugin_metrics(&work.lane).record_panic();
            self.stats.record_error(key, error_reason::RECONCILE_PANICKED, &message);
            self.stats.abandon_reconcile(key);
            Some(ReconcileOutcome::retry())
        })
    }

    /// Reconciles one object. Returns none when it is gone.
    async fn reconcile_object(&self, work: &Work<ObjectRef, Cause>) -> Option<ReconcileOutcome> {
        let key = &work.key;
        match HostLane::find(&work.lane) {
            Some(HostLane::Upstreams) => Box::pin(self.reconcile_upstream(key)).await,
            Some(HostLane::Clusters) => Box::pin(self.reconcile_cluster(key)).await,
            Some(HostLane::Plugins) => Box::pin(self.reconcile_plugin(work)).await,
            Some(HostLane::RoleBindings) => Box::pin(RightsProtection::new(self).reconcile(work)).await,
            Some(HostLane::Unowned) | None => self.reconcile_for_plugin(work).await,
        }
    }

    /// Forgets an object that is gone, and releases what it held.
    async fn forget_object(&self, key: &ObjectRef) -> Option<ReconcileOutcome> {
        if let Err(end) = self.release_held(key).await {
            return Some(end);
        }
        self.stats.forget(key);
        self.services.object_cache.forget(key);
        self.services
            .upstreams
            .streams
            .retain_subscriptions(key, &HashSet::new());
        for writer in self.services.writers() {
            writer.forget(key);
        }
        self.loops.lock().forget(key);
        self.states.lock().remove(key);
        None
    }

    /// Waits for the watch after HTTP 404, and reconciles again in case the 404 meant that the kind is not served for a
    /// moment: then no watch event comes.
    fn wait_for_watch(&self) -> ReconcileOutcome {
        ReconcileOutcome::wait(self.services.dispatcher.now() + NOT_FOUND_RECHECK, Cause::Retry)
    }

    /// Retries with the backoff of the object after a request that the API server has refused, and not before it asks for that by
    /// `Retry-After`.
    fn retry_request(&self, error: &ApiError) -> ReconcileOutcome {
        match error.retry_after() {
            // Those that were refused together shall not come back together.
            Some(delay) => {
                let delay = add_jitter(delay.min(MAX_RETRY_AFTER), 100);
                ReconcileOutcome::retry_from(self.services.dispatcher.now() + delay)
            }
            None => ReconcileOutcome::retry(),
        }
    }

    async fn set_finalizers(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        finalizers: &[Box<str>],
    ) -> Result<Arc<KubeObject>, ReconcileOutcome> {
        let written = match self.find_api(key) {
            Ok(api) => api.writer.set_finalizers(key, object, finalizers).await,
            Err(e) => Err(e),
        };
        self.settle_finalizers(key, written)
    }

    /// Counts a write of finalizers. The error is the outcome of a reconcile that needs it.
    fn settle_finalizers(
        &self,
        key: &ObjectRef,
        written: Result<Arc<KubeObject>, ApiError>,
    ) -> Result<Arc<KubeObject>, ReconcileOutcome> {
        self.stats.add_counts(key, count_writes(1));
        match written {
            Ok(object) => Ok(object),
            Err(e) if e.code() == 404 => Err(self.wait_for_watch()),
            Err(ApiError::NotLeader(_)) => Err(ReconcileOutcome::retry()),
            // HTTP 409: another writer was faster, and the watch event of that wakes the object. The retry is for the
            // case that the event was handled before.
            Err(e) => {
                if e.code() != 409 {
                    warn_api_error!(e, object = %key, error = %e, "writing finalizers failed");
                    self.stats
                        .record_error(key, error_reason::FINALIZER_UPDATE_FAILED, &e.to_string());
                }
                Err(self.retry_request(&e))
            }
        }
    }
}

/// Runs a future; the error is the message of its panic. Not an `async fn`, which would hold the future twice.
fn recover_panic<T>(future: impl Future<Output = T>) -> impl Future<Output = Result<T, String>> {
    let ended = AssertUnwindSafe(future).catch_unwind();
    ended.map(|ended| {
        ended.map_err(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            text.unwrap_or("no message").to_owned()
        })
    })
}

/// Names the first objects, at most this number, and counts the others.
fn name_objects<'a>(objects: impl ExactSizeIterator<Item = &'a ObjectRef>, max_named: usize) -> String {
    let others = objects.len().saturating_sub(max_named);
    let named: Vec<String> = objects.take(max_named).map(ToString::to_string).collect();
    let more = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    named.join(", ") + &more
}

/// Counts of this number of writes to the API server.
fn count_writes(n: u64) -> crate::sandbox::capabilities::EffectCounts {
    crate::sandbox::capabilities::EffectCounts {
        api_writes: n,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_reconcile_becomes_an_error_and_its_locks_stay_usable() {
        let loops = Mutex::new(0);
        let reconcile = async {
            tokio::task::yield_now().await;
            let mut loops = loops.lock();
            *loops += 1;
            let fields: Vec<u32> = Vec::with_capacity(*loops);
            *fields.first().expect("the field was checked")
        };
        assert_eq!(
            recover_panic(reconcile).await,
            Err("the field was checked".to_owned())
        );
        assert_eq!(*loops.lock(), 1);
        assert_eq!(recover_panic(async { 7 }).await, Ok(7));
    }
}
