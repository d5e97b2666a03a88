//! When an object is looked at again.

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

/// Whoever wants to be called again at once is, but not without a breath.
const SOONEST: Duration = Duration::from_millis(10);
/// No interval is longer.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Per cent of an interval.
pub(super) const JITTER_PERCENT: u32 = 10;

impl Controller {
    /// Until when an object has to wait because it goes round in circles.
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

    /// Whether an object that wants this next is slowed down because it hurries.
    pub(super) fn is_tight_loop(&self, key: &ObjectRef, next: &Requeue<Cause>) -> bool {
        self.delay_until(next)
            .is_some_and(|after| self.loops.lock().is_tight_loop(key, after))
    }

    /// As it wants it, but not at once again and again.
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
            self.services.metrics.plugin(plugin.name()).hot_loop();
        }
        next
    }

    /// After how long an object comes again, whatever happens; none where something has to happen first.
    fn delay_until(&self, next: &Requeue<Cause>) -> Option<Duration> {
        match next {
            Requeue::At(at, _) | Requeue::Wait(at, _) => {
                Some(at.saturating_sub(self.services.dispatcher.now()))
            }
            Requeue::AwaitChange | Requeue::Retry(_) | Requeue::Terminal => None,
        }
    }

    /// Nobody tells of what it waits for.
    pub(super) fn requeue_waiting(&self) -> Requeue<Cause> {
        let wait = add_jitter(self.settings.wait_interval, JITTER_PERCENT);
        Requeue::Wait(self.services.dispatcher.now() + wait, Cause::Retry)
    }

    /// As the component wants it.
    pub(super) fn choose_requeue(&self, plugin: &Plugin, result: &GuestResult) -> Requeue<Cause> {
        let pace = plugin.terms.grants.pace();
        let jitter = pace.jitter.map_or(JITTER_PERCENT, u32::from);
        let interval = pace.poll.unwrap_or(self.settings.poll_interval);
        let dispatcher = &self.services.dispatcher;
        let after = |wait: Duration, cause| Requeue::At(dispatcher.now() + wait.max(SOONEST), cause);
        match result {
            GuestResult::Outcome(outcome) => match outcome.next {
                reconciler::Next::Settled => Requeue::AwaitChange,
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
                reconciler::Resolution::Retry => Requeue::Retry(Cause::Retry),
                reconciler::Resolution::Yield => Requeue::Wait(
                    dispatcher.now() + add_jitter(self.settings.wait_interval, jitter),
                    Cause::Retry,
                ),
                reconciler::Resolution::Parked | reconciler::Resolution::Denied(_) => Requeue::Terminal,
                reconciler::Resolution::Throttled(ms) => Requeue::Wait(
                    dispatcher.now() + Duration::from_millis(ms).max(SOONEST),
                    Cause::Retry,
                ),
            },
        }
    }
}

/// Up to so many per cent more, so that objects that were made together don't poll together for ever.
pub(super) fn add_jitter(interval: Duration, percent: u32) -> Duration {
    // What a component or a file says may be any number.
    let interval = interval.min(LONGEST);
    interval + interval * percent.min(100) / 100 * (crate::kube::time::unique_id() % 1000) as u32 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_an_interval() {
        for interval in [Duration::ZERO, Duration::from_millis(u64::MAX), Duration::MAX] {
            let jittered = add_jitter(interval, u32::MAX);
            assert!(jittered >= interval.min(LONGEST) && jittered <= LONGEST * 2);
        }
    }
}
