//! When an object is looked at again.

use std::time::Duration;

use super::{Answer, Controller};
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
pub(super) const JITTER: u32 = 10;

impl Controller {
    /// Until when an object has to wait because it goes round in circles.
    pub(super) fn slowed(&self, work: &Work<ObjectRef, Cause>) -> Option<Duration> {
        let by = work.causes.iter().filter_map(|cause| match cause {
            Cause::Dependency(on) => Some(on),
            _ => None,
        });
        let asked = |cause: &Cause| matches!(cause, Cause::Change | Cause::Manual | Cause::PluginChange);
        let asked = work.causes.iter().any(asked);
        let mut loops = self.loops.lock().expect("lock");
        loops.on_wake(&work.key, by, asked, self.services.dispatcher.now())
    }

    /// Whether an object that wants this next is slowed down because it hurries.
    pub(super) fn hurries(&self, key: &ObjectRef, next: &Requeue<Cause>) -> bool {
        self.after(next)
            .is_some_and(|after| self.loops.lock().expect("lock").is_tight_loop(key, after))
    }

    /// As it wants it, but not at once again and again.
    pub(super) fn unhurried(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        mut next: Requeue<Cause>,
        wrote: bool,
    ) -> Requeue<Cause> {
        let after = self.after(&next);
        let throttled = self
            .loops
            .lock()
            .expect("lock")
            .throttle_requeue(key, after, wrote);
        if let Requeue::At(at, _) | Requeue::Wait(at, _) = &mut next {
            *at = self.services.dispatcher.now() + throttled.delay;
        }
        if throttled.reached_maximum {
            self.services.metrics.plugin(plugin.name()).hot_loop();
        }
        next
    }

    /// After how long an object comes again, whatever happens; none where something has to happen first.
    fn after(&self, next: &Requeue<Cause>) -> Option<Duration> {
        match next {
            Requeue::At(at, _) | Requeue::Wait(at, _) => {
                Some(at.saturating_sub(self.services.dispatcher.now()))
            }
            Requeue::AwaitChange | Requeue::Retry(_) | Requeue::Terminal => None,
        }
    }

    /// Nobody tells of what it waits for.
    pub(super) fn look_again(&self) -> Requeue<Cause> {
        let wait = jittered(self.settings.yield_every, JITTER);
        Requeue::Wait(self.services.dispatcher.now() + wait, Cause::Retry)
    }

    /// As the component wants it.
    pub(super) fn next(&self, plugin: &Plugin, result: &Answer) -> Requeue<Cause> {
        let pace = plugin.terms.grants.pace();
        let jitter = pace.jitter.map_or(JITTER, u32::from);
        let interval = pace.poll.unwrap_or(self.settings.poll);
        let dispatcher = &self.services.dispatcher;
        let after = |wait: Duration, cause| Requeue::At(dispatcher.now() + wait.max(SOONEST), cause);
        match result {
            Answer::Outcome(outcome) => match outcome.next {
                reconciler::Next::Settled => Requeue::AwaitChange,
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
                reconciler::Resolution::Retry => Requeue::Retry(Cause::Retry),
                reconciler::Resolution::Yield => Requeue::Wait(
                    dispatcher.now() + jittered(self.settings.yield_every, jitter),
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
pub(super) fn jittered(interval: Duration, percent: u32) -> Duration {
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
            let jittered = jittered(interval, u32::MAX);
            assert!(jittered >= interval.min(LONGEST) && jittered <= LONGEST * 2);
        }
    }
}
