//! One reconcile, from the queue to the status: gates, finalizer, the component's call, what came of it.

pub(crate) mod activation;
mod call;
pub mod conditions;
mod deletion;
mod holds;
pub mod lifecycle;
pub mod plugin;
mod requeue;
pub mod run_once;
pub mod stats;
mod status;
pub mod upstream;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use tracing::{Instrument, debug, field::Empty, trace_span};

use self::requeue::{JITTER, jittered};
use crate::{
    client::{
        api::{ApiError, warn_api_error},
        fence::NotLeader,
    },
    contract::{bindings::reconciler, limits::MOST_MEMORY},
    effect::events::{EventDraft, EventType},
    kube::{key::ObjectRef, object::Object, references, scope::Projection},
    observe::{metrics::Ended, telemetry::SPANS},
    plugin::{Plugin, Registry},
    reconcile::{lifecycle::Hooks, stats::Ledger},
    sandbox::{capabilities::Services, engine::Engine},
    schedule::{
        dependencies::Dependency,
        dispatcher::Cause,
        hot_loop::LoopDetector,
        queue::{Requeue, Work},
    },
    settings::Settings,
    upstream::StreamKey,
};

/// Skips reconciles of an object while `true`; its cleanup still runs.
pub const PAUSED: &str = "ostler.dev/paused";
/// `Orphan` lets a deleted object go without cleaning up behind it.
pub const DELETION_POLICY: &str = "ostler.dev/deletion-policy";
/// `true` lets a deleted object go at once, whatever is left behind.
pub const FORCE_DELETE: &str = "ostler.dev/force-delete";

/// When to look again at what the API server says is not there: the watch has told by then, or it was not so.
const MISSING: Duration = Duration::from_secs(1);

/// When to look again at what is about to be held.
const SOON: Duration = Duration::from_millis(20);

/// What workers share.
pub struct Controller {
    /// What calls work with.
    pub services: Arc<Services>,
    /// Who reconciles what.
    pub registry: Arc<Registry>,
    /// Runs components.
    pub engine: Arc<Engine>,
    /// What happened.
    pub ledger: Arc<Ledger>,
    /// What comes before the first reconcile.
    pub hooks: Arc<Hooks>,
    /// Intervals and limits.
    pub settings: Arc<Settings>,
    /// Who keeps changing what it reads.
    pub loops: Mutex<LoopDetector>,
    /// What is known of each object between its reconciles.
    pub notes: Mutex<HashMap<ObjectRef, Notes>>,
}

/// What is known of an object between its reconciles, and found out again after a restart.
#[derive(Default)]
pub struct Notes {
    /// A digest of what was last said of it and of its version then: said again, its status is as it should be.
    said: u64,
    /// A status that the server did not keep whole: as wanted, and as kept.
    dropped: Option<Box<(Value, Value)>>,
    /// What it holds, by its uid: known for when it is gone.
    holding: Option<Box<(Box<str>, BTreeSet<ObjectRef>)>>,
}

/// How a reconcile ended, for the queue.
struct End {
    next: Requeue<Cause>,
    /// What it read; none where it did not come to that, and what it read before counts on.
    reads: Option<Vec<Dependency>>,
    /// The event streams it follows; none where what it followed before counts on.
    follows: Option<HashSet<StreamKey>>,
}

impl End {
    fn settled() -> Self {
        Self {
            next: Requeue::AwaitChange,
            reads: Some(Vec::new()),
            follows: Some(HashSet::new()),
        }
    }

    fn retry() -> Self {
        Self {
            next: Requeue::Retry(Cause::Retry),
            reads: None,
            follows: None,
        }
    }

    /// Waits for a change, and looks again at this time at the latest.
    fn wait(until: Duration, cause: Cause) -> Self {
        Self {
            next: Requeue::Wait(until, cause),
            reads: None,
            follows: None,
        }
    }

    fn ended(&self) -> Ended {
        match self.next {
            Requeue::AwaitChange => Ended::Success,
            Requeue::At(..) | Requeue::Wait(..) => Ended::RequeueAfter,
            Requeue::Retry(_) => Ended::Error,
            Requeue::Terminal => Ended::TerminalError,
        }
    }
}

/// What the component's call came to.
enum Answer {
    Outcome(reconciler::Outcome),
    Failure(reconciler::Failure),
}

impl Hash for Answer {
    /// All that decides the status.
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

impl Controller {
    /// Reconciles as these settings say, so many objects at once.
    pub fn new(
        services: Arc<Services>,
        registry: Arc<Registry>,
        ledger: Arc<Ledger>,
        settings: Arc<Settings>,
        at_once: u32,
    ) -> anyhow::Result<Self> {
        let engine = Engine::new(
            at_once * 2,
            settings.limits.memory.max(MOST_MEMORY),
            settings.cache.clone(),
            settings.inspect.clone(),
        );
        let engine = engine
            .map_err(|e| anyhow::anyhow!("{e:#}"))
            .context("the WebAssembly engine")?;
        let engine = Arc::new(engine);
        let hooks = Hooks::new(
            services.clone(),
            registry.clone(),
            engine.clone(),
            settings.backoff,
        );
        Ok(Self {
            services,
            registry,
            engine,
            ledger,
            hooks: Arc::new(hooks),
            settings,
            loops: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    /// Takes work from the queue while this host leads, until it is drained.
    pub async fn work(self: Arc<Self>) {
        let Services {
            dispatcher, fence, ..
        } = &*self.services;
        while let Some(term) = fence.wait_open().await {
            match dispatcher.pop() {
                Ok(work) => {
                    let key = work.key.clone();
                    let running = self.services.metrics.plugin(&work.lane).begin(work.waited);
                    let span = trace_span!(target: SPANS, "reconcile", object = %key, plugin = &*work.lane, attempt = work.attempt, reconcile = Empty, result = Empty, otel.status_code = Empty);
                    let reconcile = self.reconcile(&work).instrument(span.clone());
                    let ended = fence.run_in_term(term, reconcile).await;
                    if let Ok(end) = &ended {
                        let how = end.as_ref().map_or(Ended::Success, End::ended);
                        running.ended(how);
                        span.record("result", how.word());
                        if matches!(how, Ended::Error | Ended::TerminalError) {
                            span.record("otel.status_code", "ERROR");
                        }
                    }
                    match ended {
                        Ok(Some(end)) => {
                            if let Some(follows) = &end.follows {
                                self.services.streams.retain(&key, follows);
                            }
                            dispatcher.done(&key, end.next, end.reads);
                        }
                        Ok(None) => dispatcher.forget(&key),
                        // Somebody else's from here on; ours again if we lead again.
                        Err(NotLeader) => {
                            debug!(object = %key, "abandoned: {NotLeader}");
                            self.ledger.abandoned(&key);
                            let again = Requeue::Wait(dispatcher.now(), Cause::Retry);
                            dispatcher.done(&key, again, None);
                        }
                    }
                    // A worker that always finds work must not keep the watches of its thread waiting.
                    tokio::task::yield_now().await;
                }
                Err(wait) => {
                    let wait = async {
                        match wait {
                            Some(wait) => tokio::time::sleep(wait).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = dispatcher.work.notified() => {}
                        () = wait => {}
                        () = fence.wait_drain() => {}
                        () = fence.wait_term_end(term) => {}
                    }
                }
            }
        }
    }

    /// Reconciles one object. None when it is gone.
    async fn reconcile(&self, work: &Work<ObjectRef, Cause>) -> Option<End> {
        let key = &work.key;
        if *work.lane == *upstream::LANE {
            return self.upstream(key).await;
        }
        if *work.lane == *plugin::LANE {
            return self.plugin(work).await;
        }
        let object = self.services.store.get(key, Projection::Full);
        let plugin = match &object {
            Some(object) => self.registry.of_object(&key.gvk, object),
            None => self.registry.of_kind(&key.gvk),
        };
        let Some(plugin) = plugin else {
            return Some(self.others(key).await);
        };
        let Some(object) = object else {
            return self.gone(key).await;
        };
        if !self.hooks.done(&plugin) {
            // A new build, whose objects are about to be held.
            let again = self.services.dispatcher.now() + SOON;
            return Some(End::wait(again, Cause::PluginChange));
        }
        if let Some(until) = self.slowed(work) {
            return Some(End::wait(until, Cause::Retry));
        }
        let Some(kind) = plugin.kind(&key.gvk) else {
            return Some(End::settled());
        };
        if kind.selector.as_ref().is_some_and(|s| !s.matches(&object.labels)) {
            return Some(End::settled());
        }
        let finalizer = kind.finalizer.as_deref();
        let held = finalizer.is_some_and(|f| object.finalizers.iter().any(|have| **have == *f));
        if object.is_deleting() {
            if references::is_held(&object)
                && let Some(end) = self.held(key, &object, Some(&plugin)).await
            {
                return Some(end);
            }
            return match finalizer {
                Some(finalizer) if held => Some(self.delete(work, &plugin, &object, finalizer).await),
                _ => Some(End::settled()),
            };
        }
        if object.annotation(PAUSED) == Some("true") {
            return Some(self.pause(&plugin, key, &object).await);
        }
        let object = match finalizer {
            Some(finalizer) if !held => {
                let mut finalizers = object.finalizers.to_vec();
                finalizers.push(finalizer.into());
                match self.set_finalizers(key, &object, &finalizers).await {
                    Ok(object) => object,
                    Err(end) => return Some(end),
                }
            }
            _ => object,
        };
        Some(self.call(work, &plugin, &object, None).await)
    }

    /// The object is gone: so are its facts, and what it held.
    async fn gone(&self, key: &ObjectRef) -> Option<End> {
        if let Err(end) = self.dropped(key).await {
            return Some(end);
        }
        self.ledger.forget(key);
        self.services.memo.forget(key);
        self.services.streams.retain(key, &HashSet::new());
        self.services.writer.forget(key);
        self.loops.lock().expect("lock").forget(key);
        self.notes.lock().expect("lock").remove(key);
        None
    }

    /// The API server says that an object is not there. Where that is so, the watch tells; where it is only that the
    /// kind is not served for a moment, nobody does.
    fn missing(&self) -> End {
        End::wait(self.services.dispatcher.now() + MISSING, Cause::Retry)
    }

    async fn set_finalizers(
        &self,
        key: &ObjectRef,
        object: &Object,
        finalizers: &[Box<str>],
    ) -> Result<Arc<Object>, End> {
        let written = self.services.writer.set_finalizers(key, object, finalizers).await;
        self.ledger.count(key, api_writes(1));
        match written {
            Ok(object) => Ok(object),
            Err(e) if e.code() == 404 => Err(self.missing()),
            Err(ApiError::NotLeader(_)) => Err(End::retry()),
            // Somebody changed it meanwhile: that change is on its way and will wake it; a retry makes sure.
            Err(e) => {
                if e.code() != 409 {
                    warn_api_error!(e, object = %key, "finalizer not written: {e}");
                    self.ledger.failed(key, "FinalizerNotWritten", &e.to_string());
                }
                Err(End::retry())
            }
        }
    }

    async fn pause(&self, plugin: &Arc<Plugin>, key: &ObjectRef, object: &Arc<Object>) -> End {
        let note = format!("Not reconciled while annotated {PAUSED}=true; deletion still cleans up");
        let paused = conditions::condition("Paused", true, "PausedByAnnotation", &note);
        let failure = reconciler::Failure {
            resolution: reconciler::Resolution::Yield,
            reason: "Paused".into(),
            message: note,
            conditions: vec![paused],
            status: None,
        };
        match self
            .write_status(plugin.name(), key, object, &Answer::Failure(failure))
            .await
        {
            Ok(_) => End::settled(),
            Err(end) => end,
        }
    }

    async fn event(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Object,
        event_type: EventType,
        reason: &str,
        note: &str,
    ) {
        let services = &self.services;
        let draft = EventDraft {
            component: plugin.name(),
            event_type,
            reason,
            note,
        };
        let sent = services
            .recorder
            .record(&services.writer, key, object, draft, None);
        if sent.await {
            self.ledger.count(key, api_writes(1));
        }
    }
}

fn api_writes(n: u64) -> crate::sandbox::capabilities::Counts {
    crate::sandbox::capabilities::Counts {
        api_writes: n,
        ..Default::default()
    }
}
