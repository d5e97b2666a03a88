//! Throttling of objects whose reconciles cause each other, or themselves.

use std::time::Duration;

use super::{
    Controller, GuestResult,
    decision::{JITTER_PERCENT, MAX_INTERVAL},
    run::ReconcileRun,
};
use crate::{
    contract::bindings::types::Condition,
    kube::{
        backoff::add_jitter,
        key::ObjectRef,
        well_known::{condition_type, object_reason},
    },
    reconcile::conditions,
    sandbox::capabilities::Effects,
    schedule::{
        dispatcher::Cause,
        queue::{Requeue, Work},
    },
};

impl Controller {
    /// Time until which an object is throttled because its reconciles form a hot loop.
    pub(super) fn throttled_until(&self, work: &Work<ObjectRef, Cause>) -> Option<Duration> {
        let by = work.causes.iter().filter_map(|cause| match cause {
            Cause::Dependency(on) => Some(on),
            _ => None,
        });
        let asked = |cause: &Cause| matches!(cause, Cause::Change | Cause::Manual | Cause::PluginChange);
        let asked = work.causes.iter().any(asked);
        let mut loops = self.loops.lock();
        loops.on_wake(&work.key, by, asked, self.services.dispatcher.now())
    }

    /// The time after an interval, with jitter.
    pub(super) fn time_after(&self, interval: Duration) -> Duration {
        self.services.dispatcher.now() + add_jitter(interval.min(MAX_INTERVAL), JITTER_PERCENT)
    }

    /// Delay of a requeue by time; none for one that depends on an event or a backoff.
    fn delay_until(&self, next: &Requeue<Cause>) -> Option<Duration> {
        match next {
            Requeue::At(at, _) | Requeue::Wait(at, _) => {
                Some(at.saturating_sub(self.services.dispatcher.now()))
            }
            Requeue::AwaitChange | Requeue::Retry(..) | Requeue::Terminal => None,
        }
    }
}

impl ReconcileRun<'_> {
    /// Adds the condition `HotLoop` where another writer reverts what the object's reconciles write.
    pub(super) fn report_conflicting_writer(&self, effects: &Effects, result: &mut GuestResult) {
        let now = self.controller.services.dispatcher.now();
        let mut loops = self.controller.loops.lock();
        let Some(with) = loops.on_reconciled(self.key(), &effects.writes, now) else {
            return;
        };
        self.metrics().hot_loop();
        let note = format!(
            "{with} is changed back each time it is written: another controller, or another object, writes the \
             same fields. This object is reconciled ever more slowly until that ends"
        );
        result
            .conditions_mut()
            .push(hot_loop(object_reason::CONFLICTING_WRITER, &note));
    }

    /// Adds the condition `HotLoop` where the object is throttled for requesting its next reconcile at once.
    pub(super) fn report_tight_loop(&self, next: &Requeue<Cause>, result: &mut GuestResult) {
        let after = self.controller.delay_until(next);
        if after.is_some_and(|after| self.controller.loops.lock().is_tight_loop(self.key(), after)) {
            let note = "Each reconcile writes something and asks for the next one at once: they come once a second \
                        until that ends";
            result
                .conditions_mut()
                .push(hot_loop(object_reason::TIGHT_REQUEUE_LOOP, note));
        }
    }

    /// Delays a requeue that is part of a tight loop.
    pub(super) fn throttle_requeue(&self, mut next: Requeue<Cause>, wrote: bool) -> Requeue<Cause> {
        let after = self.controller.delay_until(&next);
        let throttled = self
            .controller
            .loops
            .lock()
            .throttle_requeue(self.key(), after, wrote);
        if let Requeue::At(at, _) | Requeue::Wait(at, _) = &mut next {
            *at = self.controller.services.dispatcher.now() + throttled.delay;
        }
        if throttled.reached_maximum {
            self.metrics().hot_loop();
        }
        next
    }
}

fn hot_loop(reason: &str, note: &str) -> Condition {
    conditions::condition(condition_type::HOT_LOOP, true, reason, note)
}
