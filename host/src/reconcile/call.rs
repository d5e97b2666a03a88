//! The component's call, and the effects of its result.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use tracing::{Span, debug, info, warn};

use super::{Controller, GuestResult, ReconcileOutcome, activation::activate};
use crate::{
    client::{
        access_review::{AccessError, ObjectAccess, Subject},
        api::warn_api_error,
    },
    contract::{
        bindings::reconciler,
        trap::{Trap, TrapKind},
    },
    effect::events::EventType,
    kube::{
        key::ObjectRef,
        object::Object,
        scope::Projection,
        secret_view::visible_json,
        well_known::{condition_type, error_reason, object_reason},
    },
    observe::{log_ring::LogLevel, metrics::ReconcileResult},
    plugin::{self as plugins, CallResult, CallSubject, Plugin},
    policy::grants::Access,
    reconcile::conditions,
    recording::recorder::{CallInfo, CallInput, RecordedCall},
    sandbox::capabilities::{Call, CallTarget, target_reference},
    schedule::{
        dispatcher::Cause,
        queue::{Priority, Requeue, Work},
    },
};

/// Number of failures in a row after which the status of an object says that the host has no memory or instance for its call. Fewer
/// are usual under load, and each status would be a write and an event for whoever watches the object.
const MAX_SILENT_EXHAUSTIONS: u32 = 3;

impl Controller {
    /// Calls the component and acts on its result.
    pub(super) async fn call_component(
        &self,
        work: &Work<ObjectRef, Cause>,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        deleting: Option<&str>,
    ) -> ReconcileOutcome {
        let key = &work.key;
        if let Err(outcome) = self.check_access(plugin, key, object).await {
            return outcome;
        }
        let object = &match self.hooks.upgrade_if_outdated(plugin, key, object).await {
            Ok(upgraded) => upgraded,
            Err(why) => {
                let deleting = deleting.is_some();
                return Box::pin(self.report_failed_upgrade(plugin, key, object, deleting, &why)).await;
            }
        };
        let started = Instant::now();
        self.stats.begin_reconcile(key, plugin.name(), &plugin.digest);
        let (call, request) = self.prepare_call(work, plugin, object, deleting.is_some());
        let calling = Instant::now();
        let (answer, mut call) = self
            .engine
            .reconcile(&plugin.compiled, call, request, deleting.is_some())
            .await;
        let called = calling.elapsed();
        // What it uses is in its metadata now, from where it is released with its finalizer.
        call.effects.protected.clear();
        let recorded = std::mem::take(&mut call.mode).finish(&(&answer).into(), call.budget.cpu_time);
        if let Some(term) = call.effects.fresh_term {
            self.update_state(key, |state| state.fresh_term = Some(term));
        }
        self.stats.add_counts(key, call.effects.counts);
        if let Some(metrics) = &call.context.metrics {
            let bytes = call.budget.bytes();
            metrics.record_call(called, call.budget.cpu_time);
            metrics.record_usage((bytes.to_host, bytes.from_host), call.budget.memory);
        }
        let trap = answer.as_ref().err().cloned();
        if let Some(Trap::HostExhausted(why)) = &trap
            && work.attempt < MAX_SILENT_EXHAUSTIONS
        {
            return self.retry_exhausted(plugin, key, &call, why);
        }
        call.watch_absent_objects();
        let result = self.interpret_answer(plugin, key, &call, answer);
        self.record_call_result(plugin, key, object, &result, trap.as_ref());
        let failed = matches!(result, GuestResult::Failure(_));
        if !failed && call.effects.counts.api_writes > 0 {
            for writer in self.services.writers() {
                writer.drop_unused_applies(key);
            }
        }
        let outcome = self
            .apply_result(key, plugin, object, result, deleting, &mut call)
            .await;
        if let Some(recorded) = recorded {
            self.keep_recording(plugin, recorded, outcome.result());
        }
        self.stats.end_call(key, failed, called, started.elapsed());
        ReconcileOutcome {
            next: match outcome.next {
                // No watch reports changes of RBAC, quotas and admission policies.
                Requeue::Terminal if call.effects.forbidden => self.requeue_waiting(plugin),
                next => next,
            },
            reads: Some(call.effects.reads),
            // After a failure the streams of the reconcile before stay: their next event may be what ends the failure.
            follows: (!failed).then_some(call.effects.streams),
            pools: (!failed).then_some(call.effects.pools),
        }
    }

    /// Retries a call for which the host had no memory or instance, without a word in the status: most get them at the next attempt.
    fn retry_exhausted(&self, plugin: &Plugin, key: &ObjectRef, call: &Call, why: &str) -> ReconcileOutcome {
        warn!(object = %key, plugin = &**plugin.name(), reconcile = %call.context.id, error = why, "call not run to its end, retrying");
        if let Some(metrics) = &call.context.metrics {
            metrics.record_trap(TrapKind::HostExhausted);
        }
        self.stats.record_error(key, error_reason::HOST_EXHAUSTED, why);
        self.stats.abandon_reconcile(key);
        ReconcileOutcome::retry()
    }

    /// The context and the request of a call. If the object is recorded, the recording begins here.
    fn prepare_call(
        &self,
        work: &Work<ObjectRef, Cause>,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        cleanup: bool,
    ) -> (Call, reconciler::Request) {
        let key = &work.key;
        let causes: Vec<String> = work.causes.iter().map(|c| c.as_str().to_owned()).collect();
        let request = reconciler::Request {
            object: visible_json(&key.gvk, object, plugin.policy.grants.shows_secret_values(), None),
            ref_: target_reference(key),
            attempt: work.attempt,
            causes,
        };
        let finalizer = plugin.kind(&key.gvk).and_then(|kind| kind.finalizer.as_deref());
        let target = CallTarget {
            key: key.clone(),
            object: object.clone(),
            fresh_term: self.states.lock().get(key).and_then(|state| state.fresh_term),
            is_finalized: finalizer.is_some_and(|finalizer| object.has_finalizer(finalizer)),
            services: self.services.clone(),
        };
        let mut call = Call::new(plugin.policy.clone(), Some(target));
        let id = call.context.id;
        call.mode = self.services.recordings.begin_call(key, || CallInfo {
            id,
            key: key.clone(),
            input: CallInput::Reconcile {
                object: object.clone(),
                attempt: work.attempt,
                causes: request.causes.clone(),
                cleanup,
            },
            policy: plugin.policy.clone(),
            version: plugin.version.clone(),
            digest: plugin.digest.clone(),
        });
        debug!(object = %key, plugin = &**plugin.name(), reconcile = %id, attempt = work.attempt, causes = request.causes.join(","), "reconciling");
        Span::current().record("reconcile", tracing::field::display(id));
        (call, request)
    }

    /// The result of a call: an outcome or failure within its limits, or the failure that stands for a trap.
    fn interpret_answer(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        call: &Call,
        answer: Result<Result<reconciler::Outcome, reconciler::Failure>, Trap>,
    ) -> GuestResult {
        let trap = match answer {
            Ok(Ok(outcome)) => return self.enforce_limits(plugin, key, GuestResult::Outcome(outcome)),
            Ok(Err(failure)) => return self.enforce_limits(plugin, key, GuestResult::Failure(failure)),
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

    /// Releases objects that are no longer held, then writes the status or finishes the deletion.
    async fn apply_result(
        &self,
        key: &ObjectRef,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        result: GuestResult,
        deleting: Option<&str>,
        call: &mut Call,
    ) -> ReconcileOutcome {
        self.remember_owned(key, object, &call.effects);
        let newest = call.effects.written.as_ref().unwrap_or(object);
        self.remember_used(key, newest);
        if let (GuestResult::Outcome(_), None) = (&result, deleting)
            && let Err(outcome) = self.update_holds(key, newest, &call.effects.holds).await
        {
            return outcome;
        }
        let result = self.report_hot_loop(plugin, key, &call.effects.writes, result);
        self.finish_call(key, plugin, object, result, deleting, call)
            .await
    }

    /// Keeps the recording of a call, unless its plugin was unloaded meanwhile: its recordings are already forgotten.
    fn keep_recording(&self, plugin: &Plugin, recorded: RecordedCall, result: ReconcileResult) {
        let failed = matches!(result, ReconcileResult::Error | ReconcileResult::TerminalError);
        self.services.recordings.store_call(recorded, failed);
        if !self.registry.is_serving(plugin.name()) {
            self.services.recordings.forget_plugin(plugin.name());
        }
    }

    /// Records the result of a reconcile for the health of its build.
    fn record_call_result(
        &self,
        plugin: &Arc<Plugin>,
        key: &ObjectRef,
        object: &Object,
        result: &GuestResult,
        trap: Option<&Trap>,
    ) {
        let result = match (trap, result) {
            // No verdict on the build.
            (Some(Trap::HostExhausted(_)), _) => return,
            // A slow upstream is as likely the cause as the plugin.
            (Some(Trap::Timeout(_)), _) => CallResult::Failed,
            (Some(_), _) => CallResult::Trapped,
            (None, GuestResult::Failure(failure)) => match failure.resolution {
                reconciler::Resolution::Wait | reconciler::Resolution::Throttled(_) => CallResult::Succeeded,
                _ => CallResult::Failed,
            },
            (None, GuestResult::Outcome(_)) => CallResult::Succeeded,
        };
        let message = trap.map(ToString::to_string).unwrap_or_default();
        self.record_call(plugin, CallSubject::Object(&object.uid), result, &message);
        if result == CallResult::Trapped {
            // It may have been deleted during the call, and is not forgotten again.
            let live = self.services.cache.store.get(key, Projection::Metadata);
            if live.is_none_or(|live| live.uid != object.uid) {
                self.forget_subject(plugin, CallSubject::Object(&object.uid));
            }
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
            .enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
    }

    /// Checks that the plugin's service account may read the object. If it may not, the status says so.
    pub(super) async fn check_access(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Arc<Object>,
    ) -> Result<(), ReconcileOutcome> {
        // It was granted when the build was loaded, and may have been revoked since.
        let reconcile = Access::Reconcile { gvk: &key.gvk };
        if let Err(e) = plugin.policy.grants.check_access(&reconcile, &key.namespace) {
            return Err(Box::pin(self.report_denied(plugin, key, object, e.to_string())).await);
        }
        if key.gvk.is_secret() && !plugin.policy.grants.can_read_secrets() {
            let message = "it may not read Secrets: `readSecrets` is missing".into();
            return Err(Box::pin(self.report_denied(plugin, key, object, message)).await);
        }
        if let Err(e) = self.registry.check_service_account(plugin) {
            return Err(Box::pin(self.report_denied(plugin, key, object, e.message)).await);
        }
        let Some(account) = plugin.policy.grants.service_account() else {
            return Ok(());
        };
        let read = ObjectAccess::to_object("get", key);
        let Ok(api) = self.find_api(key) else {
            return Err(ReconcileOutcome::retry());
        };
        if !api.acts_as_plugins {
            return Ok(());
        }
        match api.reviewer.check_access(Subject::Account(account), read).await {
            Ok(()) => Ok(()),
            Err(AccessError::Unavailable(e)) => {
                warn_api_error!(e, object = %key, plugin = &**plugin.name(), error = %e, "access review failed");
                self.stats
                    .record_error(key, error_reason::ACCESS_REVIEW_FAILED, &e.to_string());
                Err(self.retry_request(&e))
            }
            Err(AccessError::Forbidden(message)) => {
                Err(Box::pin(self.report_denied(plugin, key, object, message)).await)
            }
        }
    }

    /// Writes the status of an object for which the hook `upgrade` has failed, and retries it with backoff. The build does
    /// not reconcile it before.
    async fn report_failed_upgrade(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Arc<Object>,
        deleting: bool,
        why: &str,
    ) -> ReconcileOutcome {
        let message = format!("The hook `upgrade` of its plugin has failed, and is retried: {why}");
        warn!(object = %key, plugin = &**plugin.name(), digest = &plugin.digest[..12], error = why, "upgrade failed");
        self.stats
            .record_error(key, object_reason::UPGRADE_FAILED, &message);
        let failure = reconciler::Failure {
            resolution: reconciler::Resolution::Retry,
            reason: object_reason::UPGRADE_FAILED.into(),
            message,
            conditions: Vec::new(),
            status: None,
        };
        let mut result = GuestResult::Failure(failure);
        if deleting {
            result = self.describe_deletion(object, result);
        }
        match self.write_status(plugin.name(), key, object, &result).await {
            Ok(sent) => {
                if let GuestResult::Failure(failure) = &result
                    && sent
                {
                    self.record_failure_event(plugin, key, object, failure).await;
                }
                ReconcileOutcome::retry()
            }
            Err(end) => end,
        }
    }

    /// Writes a status that says that the plugin may not read the object, and requeues it: RBAC may change.
    async fn report_denied(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        object: &Arc<Object>,
        message: String,
    ) -> ReconcileOutcome {
        self.stats
            .record_error(key, object_reason::PERMISSION_DENIED, &message);
        let failure = reconciler::Failure {
            resolution: reconciler::Resolution::Denied(message.clone()),
            reason: object_reason::PERMISSION_DENIED.into(),
            message,
            conditions: Vec::new(),
            status: None,
        };
        let answer = GuestResult::Failure(failure);
        match self.write_status(plugin.name(), key, object, &answer).await {
            Ok(_) => ReconcileOutcome::of(self.requeue_waiting(plugin)),
            Err(end) => end,
        }
    }

    /// Adds the condition `HotLoop` where another writer reverts what the object's reconciles write.
    fn report_hot_loop(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        wrote: &BTreeSet<ObjectRef>,
        mut result: GuestResult,
    ) -> GuestResult {
        let now = self.services.dispatcher.now();
        let Some(with) = self.loops.lock().on_reconciled(key, wrote, now) else {
            return result;
        };
        self.services.metrics.plugin_metrics(plugin.name()).hot_loop();
        let note = format!(
            "{with} is changed back each time it is written: another controller, or another object, writes the \
             same fields. This object is reconciled ever more slowly until that ends"
        );
        add_hot_loop(&mut result, object_reason::CONFLICTING_WRITER, &note);
        result
    }

    /// Writes the status of a result, or removes the finalizer when a cleanup is complete. `object` is the one that the
    /// component was given: the status is of its generation, also when a checkpoint was answered with a newer one.
    async fn finish_call(
        &self,
        key: &ObjectRef,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        mut result: GuestResult,
        deleting: Option<&str>,
        call: &mut Call,
    ) -> ReconcileOutcome {
        let newest = &call.effects.written.clone().unwrap_or_else(|| object.clone());
        if let (Some(finalizer), GuestResult::Outcome(outcome)) = (deleting, &mut result)
            && outcome.next == reconciler::Next::AwaitChange
        {
            let reads = &mut call.effects.reads;
            let Some(left) = Box::pin(self.release_owned(plugin, key, newest, reads)).await else {
                return Box::pin(self.remove_finalizer(key, newest, finalizer)).await;
            };
            result = GuestResult::Failure(reconciler::Failure {
                conditions: std::mem::take(&mut outcome.conditions),
                status: outcome.status.take(),
                ..left
            });
        }
        if deleting.is_some() {
            result = self.describe_deletion(object, result);
        }
        let mut next = self.choose_requeue(plugin, &result);
        // One that lacks a permission is requeued soon anyway.
        if deleting.is_some() && !call.effects.forbidden {
            next = self.requeue_by_deadline(object, next);
        }
        if let GuestResult::Failure(failure) = &result {
            // A trap is logged already.
            if !is_trap_reason(&failure.reason) {
                info!(object = %key, plugin = &**plugin.name(), reconcile = %call.context.id, resolution = resolution_name(&failure.resolution), reason = failure.reason, error = failure.message, "reconcile failed");
                let resolution = resolution_name(&failure.resolution);
                let line = format!(
                    "reconcile failed: {resolution}: {}: {}",
                    failure.reason, failure.message
                );
                call.context.keep_log_line(LogLevel::Info, &line, None);
            }
            // `yield` means waiting, which is no error.
            if !matches!(failure.resolution, reconciler::Resolution::Wait) {
                self.stats.record_error(key, &failure.reason, &failure.message);
            }
        }
        if self.is_tight_loop(key, &next) {
            let note = "Each reconcile writes something and asks for the next one at once: they come once a second \
                        until that ends";
            add_hot_loop(&mut result, object_reason::TIGHT_REQUEUE_LOOP, note);
        }
        // A checkpoint raises the generation of a kind without the status subresource.
        let generation = match newest.intent == object.intent {
            true => newest.generation,
            false => object.generation,
        };
        let written = self
            .write_status_of(generation, plugin.name(), key, newest, &result)
            .await;
        match written {
            Ok(sent) => {
                if let GuestResult::Failure(failure) = &result
                    && sent
                {
                    Box::pin(self.record_failure_event(plugin, key, newest, failure)).await;
                }
                let wrote = sent || !call.effects.writes.is_empty() || call.effects.written.is_some();
                ReconcileOutcome::of(self.throttle_requeue(plugin, key, next, wrote))
            }
            Err(end) => end,
        }
    }
}

impl Controller {
    /// Records an Event when an object ceases to be Ready, or is not Ready for another reason than before. Waiting is no
    /// failure.
    async fn record_failure_event(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        before: &Object,
        failure: &reconciler::Failure,
    ) {
        use reconciler::Resolution;
        if matches!(failure.resolution, Resolution::Wait | Resolution::Throttled(_)) {
            return;
        }
        if before.readiness().reason == conditions::valid_reason(&failure.reason) {
            return;
        }
        self.record_event(
            plugin,
            key,
            before,
            EventType::Warning,
            &failure.reason,
            &failure.message,
        )
        .await;
    }
}

/// Adds the condition `HotLoop`.
fn add_hot_loop(result: &mut GuestResult, reason: &str, note: &str) {
    let conditions = match result {
        GuestResult::Outcome(outcome) => &mut outcome.conditions,
        GuestResult::Failure(failure) => &mut failure.conditions,
    };
    conditions.push(conditions::condition(
        condition_type::HOT_LOOP,
        true,
        reason,
        note,
    ));
}

fn resolution_name(resolution: &reconciler::Resolution) -> &'static str {
    match resolution {
        reconciler::Resolution::Retry => "retry",
        reconciler::Resolution::Wait => "wait",
        reconciler::Resolution::Terminal => "terminal",
        reconciler::Resolution::Throttled(_) => "throttled",
        reconciler::Resolution::Denied(_) => "denied",
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
fn failure_of_trap(trap: &Trap) -> reconciler::Failure {
    let reason = match trap {
        Trap::CpuTime(_) | Trap::Timeout(_) => object_reason::PLUGIN_TIMEOUT,
        Trap::Memory(_) | Trap::Tables(_) => object_reason::PLUGIN_OUT_OF_MEMORY,
        Trap::HostExhausted(_) => object_reason::HOST_EXHAUSTED,
        Trap::Bytes(_) | Trap::Panicked(_) | Trap::Other(_) => object_reason::PLUGIN_TRAPPED,
    };
    reconciler::Failure {
        resolution: reconciler::Resolution::Retry,
        reason: reason.into(),
        message: format!("The plugin {trap}"),
        conditions: Vec::new(),
        status: None,
    }
}
