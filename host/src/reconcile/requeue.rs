//! Requeue of an object: after its component's request, with jitter, and throttled in a hot loop.

use std::time::Duration;

use super::{Controller, GuestResult};
use crate::{
    contract::bindings::reconciler,
    kube::key::ObjectRef,
    plugin::Plugin,
    schedule::{
        dispatcher::Cause,
        queue::{Next, Work},
    },
};

/// Shortest delay of a requeue, also where a component asks for none.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(10);
/// Limit of an interval: a component or a file may ask for any number.
const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);
/// Jitter of an interval, as a percentage of it.
pub(super) const JITTER_PERCENT: u32 = 10;

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
        loops.woken(&work.key, by, asked, self.services.router.now())
    }

    /// True when an object with this requeue is throttled for requeuing itself in a tight loop.
    pub(super) fn is_tight_loop(&self, key: &ObjectRef, next: &Next<Cause>) -> bool {
        self.delay_until(next)
            .is_some_and(|after| self.loops.lock().hurries(key, after))
    }

    /// Delays a requeue that is part of a tight loop.
    pub(super) fn throttle_requeue(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        mut next: Next<Cause>,
        wrote: bool,
    ) -> Next<Cause> {
        let after = self.delay_until(&next);
        let (wait, news) = self.loops.lock().again(key, after, wrote);
        if let Next::At(at, _) | Next::Yield(at, _) = &mut next {
            *at = self.services.router.now() + wait;
        }
        if news {
            self.services.metrics.plugin(plugin.name()).hot_loop();
        }
        next
    }

    /// Delay of a requeue by time; none for one that depends on an event or a backoff.
    fn delay_until(&self, next: &Next<Cause>) -> Option<Duration> {
        match next {
            Next::At(at, _) | Next::Yield(at, _) => Some(at.saturating_sub(self.services.router.now())),
            Next::Settled | Next::Retry(_) | Next::Park => None,
        }
    }

    /// Requeues an object that waits for something that has no watch.
    pub(super) fn requeue_waiting(&self) -> Next<Cause> {
        let wait = add_jitter(self.settings.wait_interval, JITTER_PERCENT);
        Next::Yield(self.services.router.now() + wait, Cause::Retry)
    }

    /// The requeue that the component asks for.
    pub(super) fn choose_requeue(&self, plugin: &Plugin, result: &GuestResult) -> Next<Cause> {
        let settings = plugin.terms.grants.reconcile();
        let jitter = settings.jitter.map_or(JITTER_PERCENT, u32::from);
        let interval = settings.interval.unwrap_or(self.settings.poll_interval);
        let router = &self.services.router;
        let after = |wait: Duration, cause| Next::At(router.now() + wait.max(MIN_REQUEUE_DELAY), cause);
        match result {
            GuestResult::Outcome(outcome) => match outcome.next {
                reconciler::Next::AwaitChange => Next::Settled,
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
                reconciler::Resolution::Retry => Next::Retry(Cause::Retry),
                reconciler::Resolution::Wait => Next::Yield(
                    router.now() + add_jitter(self.settings.wait_interval, jitter),
                    Cause::Retry,
                ),
                reconciler::Resolution::Terminal | reconciler::Resolution::Denied(_) => Next::Park,
                reconciler::Resolution::Throttled(ms) => Next::Yield(
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
    interval + interval * percent.min(100) / 100 * (crate::kube::time::unique() % 1000) as u32 / 1000
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
