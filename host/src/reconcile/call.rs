//! The component's call, and what came of it.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use tracing::{Span, debug, info, warn};

use super::{Answer, Controller, End, activation::swapped};
use crate::{
    client::{
        access_review::{AccessError, ReadAccess},
        api::warn_api_error,
    },
    contract::{bindings::reconciler, trap::Trap},
    kube::{key::ObjectRef, object::Object},
    observe::metrics::Ended,
    plugin::{self as plugins, Ending, Plugin},
    reconcile::conditions,
    recording::recorder::About,
    sandbox::capabilities::{Call, Subject},
    schedule::{
        dispatcher::Cause,
        queue::{Priority, Requeue, Work},
    },
};

impl Controller {
    /// Calls the component and acts on its answer.
    pub(super) async fn call(
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
        let causes: Vec<String> = work.causes.iter().map(|c| c.as_str().to_owned()).collect();
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
                let result = self.looping(plugin, key, &call.wrote, result);
                self.conclude(key, plugin, object, result, deleting, &call).await
            }
            Err(end) => end,
        };
        if let Some(recorded) = recorded {
            let bad = matches!(end.ended(), Ended::Error | Ended::TerminalError);
            self.services.tapes.keep(recorded, bad);
            // Unloaded meanwhile: nobody else would forget it.
            let serves = self.registry.serving();
            if serves.iter().all(|serves| serves.name() != plugin.name()) {
                self.services.tapes.forget(plugin.name());
            }
        }
        self.ledger.ended(key, failed, called, started.elapsed());
        End {
            next: match end.next {
                // Nobody tells when RBAC changes.
                Requeue::Terminal if call.forbidden => self.look_again(),
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
            swapped(
                &self.services,
                self.settings.workers,
                Some(&back.now),
                Some(before),
            );
            self.hooks.swapped();
        }
        if back.is_some() || news {
            let key = ObjectRef::new(plugins::kind(), "", plugin.name());
            self.services
                .dispatcher
                .enqueue(&key, Priority::Normal, Cause::UpstreamStatus);
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
        let read = ReadAccess::for_object("get", key);
        match self.services.reviewer.check_access(account, read).await {
            Ok(()) => Ok(()),
            Err(AccessError::Unavailable(e)) => {
                warn_api_error!(e, object = %key, plugin = &**plugin.name(), "RBAC was not asked: {e}");
                self.ledger.failed(key, "AccessUnknown", &e.to_string());
                Err(End::retry())
            }
            Err(AccessError::Forbidden(message)) => Err(self.denied(plugin, key, object, message).await),
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
            Ok(_) => End {
                next: self.look_again(),
                reads: None,
                follows: None,
            },
            Err(end) => end,
        }
    }

    /// Says so where an object keeps changing what it reads.
    fn looping(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        wrote: &BTreeSet<ObjectRef>,
        mut result: Answer,
    ) -> Answer {
        let now = self.services.dispatcher.now();
        let Some(with) = self.loops.lock().expect("lock").on_reconciled(key, wrote, now) else {
            return result;
        };
        self.services.metrics.plugin(plugin.name()).hot_loop();
        let note = format!(
            "{with} is changed back each time it is written: another controller, or another object, writes the \
             same fields. This object is reconciled ever more slowly until that ends"
        );
        hot(&mut result, "KeepsChanging", &note);
        result
    }

    async fn conclude(
        &self,
        key: &ObjectRef,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        mut result: Answer,
        deleting: Option<&str>,
        call: &Call,
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
            info!(object = %key, plugin = &**plugin.name(), reconcile = %call.id, resolution = resolution(&failure.resolution), "{}: {}", failure.reason, failure.message);
            // Waiting is no error.
            if !matches!(failure.resolution, reconciler::Resolution::Yield) {
                self.ledger.failed(key, &failure.reason, &failure.message);
            }
        }
        if self.hurries(key, &next) {
            let note = "Each reconcile writes something and asks for the next one at once: they come once a second \
                        until that ends";
            hot(&mut result, "Hurries", note);
        }
        match self.write_status(plugin.name(), key, object, &result).await {
            Ok(sent) => {
                let wrote = sent || !call.wrote.is_empty() || call.checkpointed.is_some();
                End {
                    next: self.unhurried(plugin, key, next, wrote),
                    reads: None,
                    follows: None,
                }
            }
            Err(end) => end,
        }
    }
}

/// Says that the object is slowed down.
fn hot(result: &mut Answer, reason: &str, note: &str) {
    let conditions = match result {
        Answer::Outcome(outcome) => &mut outcome.conditions,
        Answer::Failure(failure) => &mut failure.conditions,
    };
    conditions.push(conditions::condition("HotLoop", true, reason, note));
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
        conditions: Vec::new(),
        status: None,
    }
}
