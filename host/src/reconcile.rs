//! One reconcile, from the queue to the status: gates, finalizer, the component's call, what came of it.

mod deletion;
mod holding;
pub mod plugin;
mod status;
pub mod step;
pub mod upstream;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;
use tracing::{Instrument, Span, debug, field::Empty, info, trace_span, warn};

use crate::{
    bindings::{reconciler, types::Condition},
    capabilities::{Call, Services, Subject},
    cluster::{ApiError, complain},
    conditions,
    dependencies::Dependency,
    engine::{Engine, Trap},
    facts::Ledger,
    gate::Deposed,
    host::Settings,
    hotloop::Loops,
    key::ObjectRef,
    lifecycle::Hooks,
    metrics::Ended,
    object::Object,
    plugin::{self as plugins, Ending, Plugin, Registry},
    queue::{Next, Priority, Work},
    rbac::{Read, Refusal},
    references,
    router::Cause,
    scope::Form,
    tape::rolling::About,
    telemetry::{ReconcileId, SPANS},
    upstream::StreamKey,
};

/// Skips reconciles of an object while `true`; its cleanup still runs.
pub const PAUSED: &str = "ostler.dev/paused";
/// `Orphan` lets a deleted object go without cleaning up behind it.
pub const DELETION_POLICY: &str = "ostler.dev/deletion-policy";
/// `true` lets a deleted object go at once, whatever is left behind.
pub const FORCE_DELETE: &str = "ostler.dev/force-delete";

/// Whoever wants to be called again at once is, but not without a breath.
const SOONEST: Duration = Duration::from_millis(10);
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
    pub loops: Mutex<Loops>,
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
    next: Next<Cause>,
    /// What it read; none where it did not come to that, and what it read before counts on.
    reads: Option<Vec<Dependency>>,
    /// The event streams it follows; none where what it followed before counts on.
    follows: Option<HashSet<StreamKey>>,
}

impl End {
    fn settled() -> Self {
        Self {
            next: Next::Settled,
            reads: Some(Vec::new()),
            follows: Some(HashSet::new()),
        }
    }

    fn retry() -> Self {
        Self {
            next: Next::Retry(Cause::Retry),
            reads: None,
            follows: None,
        }
    }

    /// Waits for a change, and looks again at this time at the latest.
    fn wait(until: Duration, cause: Cause) -> Self {
        Self {
            next: Next::Yield(until, cause),
            reads: None,
            follows: None,
        }
    }

    fn ended(&self) -> Ended {
        match self.next {
            Next::Settled => Ended::Success,
            Next::At(..) | Next::Yield(..) => Ended::RequeueAfter,
            Next::Retry(_) => Ended::Error,
            Next::Park => Ended::TerminalError,
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
    /// Takes work from the queue while this host leads, until it is drained.
    pub async fn work(self: Arc<Self>) {
        let Services { router, gate, .. } = &*self.services;
        while let Some(term) = gate.opened().await {
            match router.pop() {
                Ok(work) => {
                    let key = work.key.clone();
                    let running = self.services.metrics.plugin(&work.lane).begin(work.waited);
                    let span = trace_span!(target: SPANS, "reconcile", object = %key, plugin = &*work.lane, attempt = work.attempt, reconcile = Empty, result = Empty, otel.status_code = Empty);
                    let reconcile = self.reconcile(&work).instrument(span.clone());
                    let ended = gate.during(term, reconcile).await;
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
                            router.done(&key, end.next, end.reads);
                        }
                        Ok(None) => router.forget(&key),
                        // Somebody else's from here on; ours again if we lead again.
                        Err(Deposed) => {
                            debug!(object = %key, "abandoned: {Deposed}");
                            self.ledger.abandoned(&key);
                            let again = Next::Yield(router.now(), Cause::Retry);
                            router.done(&key, again, None);
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
                        () = router.work.notified() => {}
                        () = wait => {}
                        () = gate.drained() => {}
                        () = gate.ended(term) => {}
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
        let object = self.services.store.get(key, Form::Whole);
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
            let again = self.services.router.now() + SOON;
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
        if object.deleting() {
            if references::held(&object)
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
        self.services.effects.forget(key);
        self.loops.lock().expect("lock").forget(key);
        self.notes.lock().expect("lock").remove(key);
        None
    }

    /// Until when an object has to wait because it goes round in circles.
    fn slowed(&self, work: &Work<ObjectRef, Cause>) -> Option<Duration> {
        let by = work.causes.iter().filter_map(|cause| match cause {
            Cause::Dependency(on) => Some(on),
            _ => None,
        });
        let asked = |cause: &Cause| matches!(cause, Cause::Change | Cause::Manual | Cause::PluginChange);
        let asked = work.causes.iter().any(asked);
        let mut loops = self.loops.lock().expect("lock");
        loops.woken(&work.key, by, asked, self.services.router.now())
    }

    /// Says so where an object keeps changing what it reads.
    fn looping(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        wrote: BTreeSet<ObjectRef>,
        mut result: Answer,
    ) -> Answer {
        let now = self.services.router.now();
        let Some(with) = self.loops.lock().expect("lock").ended(key, wrote, now) else {
            return result;
        };
        self.services.metrics.plugin(plugin.name()).hot_loop();
        let note = format!(
            "{with} is changed back each time it is written: another controller, or another object, writes the \
             same fields. This object is reconciled ever more slowly until that ends"
        );
        let conditions = match &mut result {
            Answer::Outcome(outcome) => &mut outcome.conditions,
            Answer::Failure(failure) => &mut failure.conditions,
        };
        conditions.push(conditions::condition("HotLoop", true, "KeepsChanging", &note));
        result
    }

    async fn set_finalizers(
        &self,
        key: &ObjectRef,
        object: &Object,
        finalizers: &[Box<str>],
    ) -> Result<Arc<Object>, End> {
        let written = self
            .services
            .effects
            .set_finalizers(key, object, finalizers)
            .await;
        self.ledger.count(key, api_writes(1));
        match written {
            Ok(object) => Ok(object),
            Err(e) if e.code() == 404 => Err(End::settled()),
            Err(ApiError::Deposed(_)) => Err(End::retry()),
            // Somebody changed it meanwhile: that change is on its way and will wake it; a retry makes sure.
            Err(e) => {
                if e.code() != 409 {
                    complain!(e, object = %key, "finalizer not written: {e}");
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
            Ok(()) => End::settled(),
            Err(end) => end,
        }
    }

    /// Calls the component and acts on its answer.
    async fn call(
        &self,
        work: &Work<ObjectRef, Cause>,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        deleting: Option<&str>,
    ) -> End {
        let key = &work.key;
        if let Err(end) = self.visible(plugin, key, object).await {
            return end;
        }
        let started = Instant::now();
        self.ledger.reconciled(key, plugin.name(), &plugin.digest);
        let causes: Vec<String> = work.causes.iter().map(|c| c.word().to_owned()).collect();
        let request = reconciler::Request {
            object: object.json.to_vec(),
            ref_: key.into(),
            attempt: work.attempt,
            causes,
        };
        let subject = Subject {
            key: key.clone(),
            object: object.clone(),
            services: self.services.clone(),
        };
        let mut call = Call::new(plugin.terms.clone(), Some(subject));
        let id = call.id;
        call.tape = self.services.tapes.begin(key, || About {
            id,
            key: key.clone(),
            object: object.clone(),
            attempt: work.attempt,
            causes: request.causes.clone(),
            cleanup: deleting.is_some(),
            terms: plugin.terms.clone(),
            version: plugin.version.clone(),
            digest: plugin.digest.clone(),
        });
        debug!(object = %key, plugin = &**plugin.name(), reconcile = %id, attempt = work.attempt, causes = request.causes.join(","), "reconcile");
        Span::current().record("reconcile", tracing::field::display(id));
        let calling = Instant::now();
        let (answer, mut call) = self
            .engine
            .reconcile(&plugin.compiled, call, request, deleting.is_some())
            .await;
        let called = calling.elapsed();
        let recorded = std::mem::take(&mut call.tape).finish(&answer, call.cpu);
        self.ledger.count(key, call.counts);
        let metrics = call.metrics.clone();
        if let Some(metrics) = &metrics {
            metrics.called(called, call.cpu);
            metrics.used(call.bytes(), call.memory);
        }
        let trap = answer.as_ref().err().cloned();
        let result = match answer {
            Ok(Ok(outcome)) => self.bounded(plugin, key, Answer::Outcome(outcome)),
            Ok(Err(failure)) => self.bounded(plugin, key, Answer::Failure(failure)),
            Err(trap) => {
                warn!(object = %key, plugin = &**plugin.name(), reconcile = %id, digest = &plugin.digest[..12], "{trap}");
                if let Some(metrics) = &metrics {
                    metrics.trapped(trap.kind());
                    if let Some(limit) = trap.limit() {
                        metrics.exceeded(limit);
                    }
                }
                Answer::Failure(trapped(&trap))
            }
        };
        self.judge(plugin, object, &result, trap.as_ref());
        let object = call.checkpointed.as_ref().unwrap_or(object);
        let failed = matches!(result, Answer::Failure(_));
        let end = match (&result, deleting) {
            (Answer::Outcome(_), None) => self.let_go(key, object, &call.holds).await,
            _ => Ok(()),
        };
        let end = match end {
            Ok(()) => {
                let result = self.looping(plugin, key, call.wrote, result);
                self.conclude(key, plugin, object, result, deleting, id).await
            }
            Err(end) => end,
        };
        if let Some(recorded) = recorded {
            let bad = matches!(end.ended(), Ended::Error | Ended::TerminalError);
            self.services.tapes.keep(recorded, bad);
            // Unloaded meanwhile: nobody else would forget it.
            let serves = self.registry.of_kind(&key.gvk);
            if serves.is_none_or(|serves| serves.name() != plugin.name()) {
                self.services.tapes.forget(plugin.name());
            }
        }
        self.ledger.ended(key, failed, called, started.elapsed());
        End {
            next: match end.next {
                // Nobody tells when RBAC changes.
                Next::Park if call.forbidden => self.look_again(),
                next => next,
            },
            reads: Some(call.reads),
            // A failure lets go of nothing: what it is about may well be what comes next in the stream.
            follows: (!failed).then_some(call.follows),
        }
    }

    /// A build that does worse than another goes back to that, at once.
    fn judge(&self, plugin: &Arc<Plugin>, object: &Object, result: &Answer, trap: Option<&Trap>) {
        let ending = match (trap, result) {
            // As likely the world's fault as the plugin's.
            (Some(Trap::Wall(_)), _) => Ending::Failed,
            (Some(_), _) => Ending::Trapped,
            (None, Answer::Failure(failure)) => match failure.resolution {
                reconciler::Resolution::Yield | reconciler::Resolution::Throttled(_) => Ending::Fine,
                _ => Ending::Failed,
            },
            (None, Answer::Outcome(_)) => Ending::Fine,
        };
        let said = trap.map(ToString::to_string).unwrap_or_default();
        let (back, news) = self
            .registry
            .ended(plugin, &object.uid, ending, &said, Instant::now());
        if let Some(back) = &back {
            let what = if back.canary { "canary" } else { "build" };
            warn!(
                plugin = &**plugin.name(),
                digest = &back.bad.digest[..12],
                "{what} taken back, {} serves: {}",
                &back.now.digest[..12],
                back.why
            );
            let before = if back.canary { &back.now } else { &back.bad };
            crate::host::swapped(
                &self.services,
                self.settings.workers,
                Some(&back.now),
                Some(before),
            );
            self.hooks.swapped();
        }
        if back.is_some() || news {
            let key = ObjectRef::new(plugins::kind(), "", plugin.name());
            self.services.router.add(&key, Priority::Normal, Cause::Traffic);
        }
    }

    /// Whether the plugin's service account may see the object at all.
    async fn visible(&self, plugin: &Plugin, key: &ObjectRef, object: &Arc<Object>) -> Result<(), End> {
        // Granted when it was loaded, and no more.
        if key.gvk.is_secret() && !plugin.terms.grants.reads_secrets() {
            return Err(self
                .denied(
                    plugin,
                    key,
                    object,
                    "it may not read Secrets: `secretsAreReadable` is missing".into(),
                )
                .await);
        }
        let Some(account) = plugin.terms.grants.service_account() else {
            return Ok(());
        };
        let read = Read::of("get", key);
        match self.services.reviewer.may(account, read).await {
            Ok(()) => Ok(()),
            Err(Refusal::Unknown(e)) => {
                complain!(e, object = %key, plugin = &**plugin.name(), "RBAC was not asked: {e}");
                self.ledger.failed(key, "AccessUnknown", &e.to_string());
                Err(End::retry())
            }
            Err(Refusal::Forbidden(message)) => Err(self.denied(plugin, key, object, message).await),
        }
    }

    /// The plugin may not see the object: that is said, and it is looked at again.
    async fn denied(&self, plugin: &Plugin, key: &ObjectRef, object: &Arc<Object>, message: String) -> End {
        self.ledger.failed(key, "Denied", &message);
        let failure = reconciler::Failure {
            resolution: reconciler::Resolution::Denied(message.clone()),
            reason: "Denied".into(),
            message,
            conditions: Vec::new(),
            status: None,
        };
        let answer = Answer::Failure(failure);
        match self.write_status(plugin.name(), key, object, &answer).await {
            Ok(()) => End {
                next: self.look_again(),
                reads: None,
                follows: None,
            },
            Err(end) => end,
        }
    }

    fn look_again(&self) -> Next<Cause> {
        let wait = jittered(self.settings.yield_every, JITTER);
        Next::Yield(self.services.router.now() + wait, Cause::Retry)
    }

    async fn conclude(
        &self,
        key: &ObjectRef,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        mut result: Answer,
        deleting: Option<&str>,
        id: ReconcileId,
    ) -> End {
        if let (Some(finalizer), Answer::Outcome(outcome)) = (deleting, &result)
            && outcome.next == reconciler::Next::Settled
        {
            return self.release(key, object, finalizer).await;
        }
        if deleting.is_some() {
            result = self.still_there(object, result);
        }
        let next = self.next(plugin, &result);
        if let Answer::Failure(failure) = &result {
            info!(object = %key, plugin = &**plugin.name(), reconcile = %id, resolution = resolution(&failure.resolution), "{}: {}", failure.reason, failure.message);
            // Waiting is no error.
            if !matches!(failure.resolution, reconciler::Resolution::Yield) {
                self.ledger.failed(key, &failure.reason, &failure.message);
            }
        }
        match self.write_status(plugin.name(), key, object, &result).await {
            Ok(()) => End {
                next,
                reads: None,
                follows: None,
            },
            Err(end) => end,
        }
    }

    fn next(&self, plugin: &Plugin, result: &Answer) -> Next<Cause> {
        let pace = plugin.terms.grants.pace();
        let jitter = pace.jitter.map_or(JITTER, u32::from);
        let interval = pace.poll.unwrap_or(self.settings.poll);
        let router = &self.services.router;
        let after = |wait: Duration, cause| Next::At(router.now() + wait.max(SOONEST), cause);
        match result {
            Answer::Outcome(outcome) => match outcome.next {
                reconciler::Next::Settled => Next::Settled,
                reconciler::Next::Poll(ms) => after(
                    jittered(ms.map_or(interval, Duration::from_millis), jitter),
                    Cause::Poll,
                ),
                reconciler::Next::After(ms) => after(Duration::from_millis(ms), Cause::Timer),
                reconciler::Next::At(at) => {
                    let now = std::time::SystemTime::now()
                        .duration_since(std::time::UNIX_EPOCH)
                        .unwrap_or_default();
                    after(Duration::from_millis(at).saturating_sub(now), Cause::Timer)
                }
            },
            Answer::Failure(failure) => match failure.resolution {
                reconciler::Resolution::Retry => Next::Retry(Cause::Retry),
                reconciler::Resolution::Yield => Next::Yield(
                    router.now() + jittered(self.settings.yield_every, jitter),
                    Cause::Retry,
                ),
                reconciler::Resolution::Parked | reconciler::Resolution::Denied(_) => Next::Park,
                reconciler::Resolution::Throttled(ms) => Next::Yield(
                    router.now() + Duration::from_millis(ms).max(SOONEST),
                    Cause::Retry,
                ),
            },
        }
    }

    async fn event(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Object,
        warning: bool,
        reason: &str,
        note: &str,
    ) {
        let services = &self.services;
        let sent = services.recorder.record(
            &services.effects,
            plugin.name(),
            key,
            object,
            warning,
            reason,
            note,
            None,
        );
        if sent.await {
            self.ledger.count(key, api_writes(1));
        }
    }
}

fn api_writes(n: u64) -> crate::facts::Counts {
    crate::facts::Counts {
        api_writes: n,
        ..Default::default()
    }
}

fn resolution(resolution: &reconciler::Resolution) -> &'static str {
    match resolution {
        reconciler::Resolution::Retry => "retry",
        reconciler::Resolution::Yield => "yield",
        reconciler::Resolution::Parked => "parked",
        reconciler::Resolution::Throttled(_) => "throttled",
        reconciler::Resolution::Denied(_) => "denied",
    }
}

/// A trap is the plugin's fault, and the person who looks at the object is told so.
fn trapped(trap: &Trap) -> reconciler::Failure {
    let reason = match trap {
        Trap::Cpu(_) | Trap::Wall(_) => "PluginTimeout",
        Trap::Memory(_) | Trap::Tables(_) => "PluginOutOfMemory",
        Trap::Bytes(_) | Trap::Other(_) => "PluginTrapped",
    };
    reconciler::Failure {
        resolution: reconciler::Resolution::Retry,
        reason: reason.into(),
        message: format!("The plugin {trap}"),
        conditions: Vec::<Condition>::new(),
        status: None,
    }
}

/// No interval is longer.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Per cent of an interval.
const JITTER: u32 = 10;

/// Up to so many per cent more, so that objects that were made together don't poll together for ever.
fn jittered(interval: Duration, percent: u32) -> Duration {
    // What a component or a file says may be any number.
    let interval = interval.min(LONGEST);
    interval + interval * percent.min(100) / 100 * (crate::time::unique() % 1000) as u32 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_an_interval() {
        for interval in [Duration::ZERO, Duration::from_millis(u64::MAX), Duration::MAX] {
            let jittered = jittered(interval, u32::MAX);
            assert!(jittered >= interval.min(LONGEST) && jittered <= LONGEST * 2);
        }
    }
}
