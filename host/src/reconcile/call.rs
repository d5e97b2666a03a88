//! The component's call, what its answer means, and the writes that follow.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tracing::{Span, debug, info, warn};

use super::{
    Controller, GuestResult, ReconcileOutcome,
    activation::activate,
    decision::{Decision, Situation, decide},
    run::ReconcileRun,
};
use crate::{
    contract::{
        bindings::reconciler::{self, Failure, Next, Outcome, Resolution},
        trap::{Trap, TrapKind},
    },
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::Projection,
        secret_view::visible_json,
        well_known::{error_reason, object_reason},
    },
    observe::log_ring::LogLevel,
    plugin::{self as plugins, CallResult, CallSubject, Plugin},
    recording::recorder::{CallInfo, CallInput, RecordedCall},
    sandbox::capabilities::{CallTarget, PluginCall, target_reference},
    schedule::{
        dispatcher::Cause,
        queue::{Priority, Requeue},
    },
};

/// Number of failures in a row after which the status of an object says that the host has no memory or instance for its call. Fewer
/// are usual under load, and each status would be a write and an event for whoever watches the object.
const MAX_SILENT_EXHAUSTIONS: u32 = 3;

/// Answer of a call: what the component returns, or the trap that has ended it.
type Answer = Result<Result<Outcome, Failure>, Trap>;

impl ReconcileRun<'_> {
    /// Calls the component, decides what its answer means, and writes that.
    pub(super) async fn call_component(&mut self) -> ReconcileOutcome {
        if let Err(outcome) = self.check_access().await {
            return outcome;
        }
        let (controller, plugin) = (self.controller, self.plugin);
        let upgrade = controller
            .hooks
            .upgrade_if_outdated(plugin, self.key(), &self.object);
        match upgrade.await {
            Ok(upgraded) => self.object = upgraded,
            Err(why) => return Box::pin(self.report_failed_upgrade(&why)).await,
        }
        let started = Instant::now();
        let stats = &controller.stats;
        stats.begin_reconcile(self.key(), plugin.name(), &plugin.digest);
        let (call, request) = self.prepare_call();
        let (calling, is_cleanup) = (Instant::now(), self.cleanup.is_some());
        let (answer, mut call) = controller
            .engine
            .reconcile(&plugin.compiled, call, request, is_cleanup)
            .await;
        let took = calling.elapsed();
        let recorded = self.record_call(&answer, &mut call, took);
        let trap = answer.as_ref().err().cloned();
        if let Some(Trap::HostExhausted(why)) = &trap
            && self.work.attempt < MAX_SILENT_EXHAUSTIONS
        {
            return self.retry_exhausted(&call, why);
        }
        call.watch_absent_objects();
        let result = self.interpret_answer(&call, answer);
        self.record_health(&result, trap.as_ref());
        let (failed, is_error) = (result.is_failure(), result.is_error());
        if !failed && call.effects.counts.api_writes > 0 {
            for writer in controller.services.writers() {
                writer.drop_unused_applies(self.key());
            }
        }
        let next = match self.write_result(result, &mut call).await {
            Ok(next) => next,
            Err(end) => end.next,
        };
        let outcome = ReconcileOutcome {
            next,
            reads: Some(call.effects.reads),
            // After a failure the streams of the reconcile before stay: their next event may be what ends the failure.
            follows: (!failed).then_some(call.effects.streams),
            pools: (!failed).then_some(call.effects.pools),
        };
        if let Some(recorded) = recorded {
            let is_error = is_error || outcome.result().is_error();
            controller.keep_recording(plugin, recorded, is_error);
        }
        let whole = started.elapsed();
        stats.end_reconcile(self.key(), failed, whole);
        stats.durations.record(whole);
        outcome
    }

    /// The context and the request of a call. If the object is recorded, the recording begins here.
    fn prepare_call(&self) -> (Box<PluginCall>, reconciler::Request) {
        let (controller, work, plugin, key) = (self.controller, self.work, self.plugin, self.key());
        let causes: Vec<String> = work.causes.iter().map(|c| c.as_str().to_owned()).collect();
        let request = reconciler::Request {
            object: visible_json(
                &key.gvk,
                &self.object,
                plugin.policy.grants.shows_secret_values(),
                None,
            ),
            ref_: target_reference(key),
            attempt: work.attempt,
            causes,
        };
        let finalizer = plugin.kind(&key.gvk).and_then(|kind| kind.finalizer.as_deref());
        let target = CallTarget {
            key: key.clone(),
            object: self.object.clone(),
            fresh_term: controller
                .states
                .lock()
                .get(key)
                .and_then(|state| state.fresh_term),
            is_finalized: finalizer.is_some_and(|finalizer| self.object.has_finalizer(finalizer)),
            services: controller.services.clone(),
        };
        let mut call = PluginCall::new(plugin.policy.clone(), Some(target));
        let id = call.context.id;
        call.mode = controller.services.recordings.begin_call(key, || CallInfo {
            id,
            key: key.clone(),
            input: CallInput::Reconcile {
                object: self.object.clone(),
                attempt: work.attempt,
                causes: request.causes.clone(),
                cleanup: self.cleanup.is_some(),
            },
            policy: plugin.policy.clone(),
            version: plugin.version.clone(),
            digest: plugin.digest.clone(),
        });
        debug!(object = %key, plugin = &**plugin.name(), reconcile = %id, attempt = work.attempt, causes = request.causes.join(","), "reconciling");
        Span::current().record("reconcile", tracing::field::display(id));
        (call, request)
    }

    /// Counts a call that has ended, and returns its recording where there is one.
    fn record_call(&self, answer: &Answer, call: &mut PluginCall, took: Duration) -> Option<RecordedCall> {
        // What it uses is in its metadata now, from where it is released with its finalizer.
        call.effects.protected.clear();
        let recorded = std::mem::take(&mut call.mode).finish(&answer.into(), call.budget.cpu_time);
        if let Some(term) = call.effects.fresh_term {
            self.controller
                .update_state(self.key(), |state| state.fresh_term = Some(term));
        }
        self.controller.stats.add_counts(self.key(), call.effects.counts);
        if let Some(metrics) = &call.context.metrics {
            let bytes = call.budget.bytes();
            metrics.record_call(took, call.budget.cpu_time);
            metrics.record_usage((bytes.to_host, bytes.from_host), call.budget.memory);
        }
        recorded
    }

    /// Retries a call for which the host had no memory or instance, without a word in the status: most get them at the next attempt.
    fn retry_exhausted(&self, call: &PluginCall, why: &str) -> ReconcileOutcome {
        let (key, stats) = (self.key(), &self.controller.stats);
        warn!(object = %key, plugin = &**self.plugin.name(), reconcile = %call.context.id, error = why, "call not run to its end, retrying");
        if let Some(metrics) = &call.context.metrics {
            metrics.record_trap(TrapKind::HostExhausted);
        }
        stats.record_error(key, error_reason::HOST_EXHAUSTED, why);
        stats.abandon_reconcile(key);
        ReconcileOutcome::retry()
    }

    /// The result of a call: an outcome or failure within its limits, or the failure that stands for a trap.
    fn interpret_answer(&self, call: &PluginCall, answer: Answer) -> GuestResult {
        let (key, plugin) = (self.key(), self.plugin);
        let trap = match answer {
            Ok(Ok(outcome)) => {
                return self.enforce_limits(GuestResult::Outcome(outcome));
            }
            Ok(Err(failure)) => {
                return self.enforce_limits(GuestResult::Failure(failure));
            }
            Err(trap) => trap,
        };
        warn!(object = %key, plugin = &**plugin.name(), reconcile = %call.context.id, digest = &plugin.digest[..12], error = %trap, stack = trap.stack(), "component call failed");
        let line = format!("component call failed: {trap}");
        call.context.keep_log_line(LogLevel::Error, &line, trap.stack());
        if let Some(metrics) = &call.context.metrics {
            metrics.record_trap(trap.kind());
            if let Some(limit) = trap.limit() {
                metrics.record_exceeded(limit);
            }
        }
        GuestResult::Failure(failure_of_trap(&trap))
    }

    /// Records the result of a call for the health of its build.
    fn record_health(&self, result: &GuestResult, trap: Option<&Trap>) {
        let (controller, object) = (self.controller, &self.object);
        let result = match (trap, result) {
            // No verdict on the build.
            (Some(Trap::HostExhausted(_)), _) => return,
            // A slow upstream is as likely the cause as the plugin.
            (Some(Trap::Timeout(_)), _) => CallResult::Failed,
            (Some(_), _) => CallResult::Trapped,
            (None, result) if result.is_error() => CallResult::Failed,
            (None, _) => CallResult::Succeeded,
        };
        let message = trap.map(ToString::to_string).unwrap_or_default();
        controller.record_call(self.plugin, CallSubject::Object(&object.uid), result, &message);
        if result == CallResult::Trapped {
            // It may have been deleted during the call, and is not forgotten again.
            let live = controller
                .services
                .cache
                .store
                .get(self.key(), Projection::Metadata);
            if live.is_none_or(|live| live.uid != object.uid) {
                controller.forget_subject(self.plugin, CallSubject::Object(&object.uid));
            }
        }
    }

    /// Writes what follows from the result of a call: releases what the object does not hold any more, and removes the finalizer after
    /// a complete cleanup, or writes the status. Returns when the object is reconciled again.
    ///
    /// # Errors
    /// The outcome of a reconcile whose writes have failed.
    async fn write_result(
        &self,
        mut result: GuestResult,
        call: &mut PluginCall,
    ) -> Result<Requeue<Cause>, ReconcileOutcome> {
        let (controller, key) = (self.controller, self.key());
        self.remember_owned(&call.effects);
        // A checkpoint may have been answered with a newer one than the component was given.
        let newest = &call
            .effects
            .written
            .clone()
            .unwrap_or_else(|| self.object.clone());
        self.remember_used(newest);
        if let (GuestResult::Outcome(_), None) = (&result, &self.cleanup) {
            controller.update_holds(key, newest, &call.effects.holds).await?;
        }
        self.report_conflicting_writer(&call.effects, &mut result);
        if let (Some(finalizer), GuestResult::Outcome(outcome)) = (&self.cleanup, &mut result)
            && outcome.next == Next::AwaitChange
        {
            let reads = &mut call.effects.reads;
            let Some(left) = Box::pin(self.release_owned(newest, reads)).await else {
                let removed = Box::pin(controller.remove_finalizer(key, newest, finalizer)).await;
                return Ok(removed.next);
            };
            result = GuestResult::Failure(Failure {
                conditions: std::mem::take(&mut outcome.conditions),
                status: outcome.status.take(),
                ..left
            });
        }
        let Decision { mut result, next } = decide(result, &self.situation(call));
        self.log_failure(&result, call);
        self.report_tight_loop(&next, &mut result);
        let was_sent = self.write_status(&result, newest).await?;
        let wrote = was_sent || !call.effects.writes.is_empty() || call.effects.written.is_some();
        Ok(self.throttle_requeue(next, wrote))
    }

    /// What the decision on the result of a call depends on.
    fn situation(&self, call: &PluginCall) -> Situation {
        Situation {
            now: self.controller.services.dispatcher.now(),
            since_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            intervals: self.intervals(),
            deletion: self.deletion(),
            is_forbidden: call.effects.forbidden,
        }
    }

    /// Logs a failure, for the log of the host and that of the plugin.
    fn log_failure(&self, result: &GuestResult, call: &PluginCall) {
        let GuestResult::Failure(failure) = result else {
            return;
        };
        let Failure { reason, message, .. } = failure;
        // A trap is logged already.
        if !is_trap_reason(reason) {
            let resolution = resolution_name(&failure.resolution);
            info!(object = %self.key(), plugin = &**self.plugin.name(), reconcile = %call.context.id, resolution, reason, error = message, "reconcile failed");
            let line = format!("reconcile failed: {resolution}: {reason}: {message}");
            call.context.keep_log_line(LogLevel::Info, &line, None);
        }
        // Waiting is no error.
        if !matches!(failure.resolution, Resolution::Wait) {
            self.controller.stats.record_error(self.key(), reason, message);
        }
    }

    /// Writes the status of a result over that of the newest version of the object, and records an Event where it has failed. Returns
    /// true if a status was sent. It is that of the generation that the component was given.
    pub(super) async fn write_status(
        &self,
        result: &GuestResult,
        newest: &Arc<KubeObject>,
    ) -> Result<bool, ReconcileOutcome> {
        // A checkpoint raises the generation of a kind without the status subresource.
        let generation = match newest.intent == self.object.intent {
            true => newest.generation,
            false => self.object.generation,
        };
        let writer = self.controller.status_of(self.plugin.name(), self.key());
        let was_sent = writer.write_of(generation, newest, result).await?;
        if let GuestResult::Failure(failure) = result
            && was_sent
        {
            Box::pin(self.record_failure_event(newest, failure)).await;
        }
        Ok(was_sent)
    }
}

impl Controller {
    /// Keeps the recording of a call, unless its plugin was unloaded meanwhile: its recordings are already forgotten.
    fn keep_recording(&self, plugin: &Plugin, recorded: RecordedCall, is_error: bool) {
        self.services.recordings.store_call(recorded, is_error);
        if !self.registry.is_serving(plugin.name()) {
            self.services.recordings.forget_plugin(plugin.name());
        }
    }

    /// Records the result of a call for the health of its build, and rolls the build back at once if it does worse than
    /// another. `trap` is the message where it trapped.
    pub fn record_call(
        &self,
        plugin: &Arc<Plugin>,
        subject: CallSubject<'_>,
        result: CallResult,
        trap: &str,
    ) {
        let (rollback, trapping_changed) =
            self.registry
                .record_call(plugin, subject, result, trap, Instant::now());
        if let Some(rollback) = &rollback {
            warn!(
                plugin = &**plugin.name(),
                digest = &rollback.bad.digest[..12],
                running = &rollback.now.digest[..12],
                canary = rollback.canary,
                reason = %rollback.why,
                "build rolled back"
            );
            let before = if rollback.canary {
                &rollback.now
            } else {
                &rollback.bad
            };
            activate(
                &self.services,
                self.settings.workers,
                Some(&rollback.now),
                Some(before),
            );
            self.hooks.on_activate();
        }
        if rollback.is_some() || trapping_changed {
            self.update_plugin_status(plugin);
        }
    }

    /// Forgets an object that is gone, or a message that is not handled again, so that its trap is no longer reported.
    pub fn forget_subject(&self, plugin: &Plugin, subject: CallSubject<'_>) {
        if plugin.health.forget_subject(subject) {
            self.update_plugin_status(plugin);
        }
    }

    fn update_plugin_status(&self, plugin: &Plugin) {
        let key = ObjectRef::new(plugins::kind(), "", plugin.name());
        self.services
            .dispatcher
            .enqueue(&key, Priority::Normal, Cause::StatusStale);
    }
}

fn resolution_name(resolution: &Resolution) -> &'static str {
    match resolution {
        Resolution::Retry => "retry",
        Resolution::Wait => "wait",
        Resolution::Terminal => "terminal",
        Resolution::Throttled(_) => "throttled",
        Resolution::Denied(_) => "denied",
    }
}

/// True for the reasons of [`failure_of_trap`].
fn is_trap_reason(reason: &str) -> bool {
    [
        object_reason::PLUGIN_TIMEOUT,
        object_reason::PLUGIN_OUT_OF_MEMORY,
        object_reason::PLUGIN_TRAPPED,
        object_reason::HOST_EXHAUSTED,
    ]
    .contains(&reason)
}

/// The failure that stands for a trap. Its reason tells that the plugin or the host, not the object, is at fault.
fn failure_of_trap(trap: &Trap) -> Failure {
    let reason = match trap {
        Trap::CpuTime(_) | Trap::Timeout(_) => object_reason::PLUGIN_TIMEOUT,
        Trap::Memory(_) | Trap::Tables(_) => object_reason::PLUGIN_OUT_OF_MEMORY,
        Trap::HostExhausted(_) => object_reason::HOST_EXHAUSTED,
        Trap::Bytes(_) | Trap::Panicked(_) | Trap::Other(_) => object_reason::PLUGIN_TRAPPED,
    };
    Failure {
        resolution: Resolution::Retry,
        reason: reason.into(),
        message: format!("The plugin {trap}"),
        conditions: Vec::new(),
        status: None,
    }
}
