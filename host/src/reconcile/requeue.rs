//! Requeue of an object: after its component's request, with jitter, and throttled in a hot loop.

use std::time::Duration;

use super::{Controller, GuestResult};
use crate::{
    contract::bindings::reconciler,
    kube::key::ObjectRef,
    plugin::Plugin,
    schedule::{
        dispatcher::Cause,
        queue::{Requeue, Work},
    },
};

/// Shortest delay of a requeue, also where a component asks for none.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(10);
/// Limit of an interval: a component or a file may ask for any number.
const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);
/// Jitter of an interval, as a percentage of it.
const JITTER_PERCENT: u32 = 10;

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
        self.services.dispatcher.now() + add_jitter(interval, JITTER_PERCENT)
    }

    /// True when an object with this requeue is throttled for requeuing itself in a tight loop.
    pub(super) fn is_tight_loop(&self, key: &ObjectRef, next: &Requeue<Cause>) -> bool {
        self.delay_until(next)
            .is_some_and(|after| self.loops.lock().is_tight_loop(key, after))
    }

    /// Delays a requeue that is part of a tight loop.
    pub(super) fn throttle_requeue(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        mut next: Requeue<Cause>,
        wrote: bool,
    ) -> Requeue<Cause> {
        let after = self.delay_until(&next);
        let throttled = self.loops.lock().throttle_requeue(key, after, wrote);
        if let Requeue::At(at, _) | Requeue::Wait(at, _) = &mut next {
            *at = self.services.dispatcher.now() + throttled.delay;
        }
        if throttled.reached_maximum {
            self.services.metrics.plugin_metrics(plugin.name()).hot_loop();
        }
        next
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

    /// Requeues an object that waits, at the plugin's interval of waits.
    pub(super) fn requeue_waiting(&self, plugin: &Plugin) -> Requeue<Cause> {
        let settings = plugin.policy.grants.reconcile();
        let interval = settings.wait_interval.unwrap_or(self.settings.wait_interval);
        let wait = add_jitter(interval, settings.jitter.map_or(JITTER_PERCENT, u32::from));
        Requeue::Wait(
            self.services.dispatcher.now() + wait.max(MIN_REQUEUE_DELAY),
            Cause::Retry,
        )
    }

    /// The requeue that the component asks for.
    pub(super) fn choose_requeue(&self, plugin: &Plugin, result: &GuestResult) -> Requeue<Cause> {
        let settings = plugin.policy.grants.reconcile();
        let jitter = settings.jitter.map_or(JITTER_PERCENT, u32::from);
        let interval = settings.interval.unwrap_or(self.settings.poll_interval);
        let router = &self.services.dispatcher;
        let after = |wait: Duration, cause| Requeue::At(router.now() + wait.max(MIN_REQUEUE_DELAY), cause);
        match result {
            GuestResult::Outcome(outcome) => match outcome.next {
                reconciler::Next::AwaitChange => Requeue::AwaitChange,
                reconciler::Next::Poll(ms) => after(
                    add_jitter(ms.map_or(interval, Duration::from_millis), jitter),
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
            GuestResult::Failure(failure) => match failure.resolution {
                reconciler::Resolution::Retry => Requeue::Retry(Duration::ZERO, Cause::Retry),
                reconciler::Resolution::Wait => self.requeue_waiting(plugin),
                reconciler::Resolution::Terminal | reconciler::Resolution::Denied(_) => Requeue::Terminal,
                reconciler::Resolution::Throttled(ms) => Requeue::Wait(
                    router.now() + Duration::from_millis(ms).max(MIN_REQUEUE_DELAY),
                    Cause::Retry,
                ),
            },
        }
    }
}

/// Adds up to this percentage to an interval, so that objects that were created together don't poll together forever.
pub(super) fn add_jitter(interval: Duration, percent: u32) -> Duration {
    let interval = interval.min(MAX_INTERVAL);
    interval + interval * percent.min(100) / 100 * (crate::kube::time::unique_id() % 1000) as u32 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_jitter_to_any_interval_stays_within_limits() {
        for interval in [Duration::ZERO, Duration::from_millis(u64::MAX), Duration::MAX] {
            let jittered = add_jitter(interval, u32::MAX);
            assert!(jittered >= interval.min(MAX_INTERVAL) && jittered <= MAX_INTERVAL * 2);
        }
    }
}
