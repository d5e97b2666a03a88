//! When an object is looked at again.

use std::time::Duration;

use super::{Answer, Controller};
use crate::{
    contract::bindings::reconciler,
    kube::key::ObjectRef,
    plugin::Plugin,
    schedule::{
        dispatcher::Cause,
        queue::{Next, Work},
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
        loops.woken(&work.key, by, asked, self.services.router.now())
    }

    /// Whether an object that wants this next is slowed down because it hurries.
    pub(super) fn hurries(&self, key: &ObjectRef, next: &Next<Cause>) -> bool {
        self.after(next)
            .is_some_and(|after| self.loops.lock().expect("lock").hurries(key, after))
    }

    /// As it wants it, but not at once again and again.
    pub(super) fn unhurried(
        &self,
        plugin: &Plugin,
        key: &ObjectRef,
        mut next: Next<Cause>,
        wrote: bool,
    ) -> Next<Cause> {
        let after = self.after(&next);
        let (wait, news) = self.loops.lock().expect("lock").again(key, after, wrote);
        if let Next::At(at, _) | Next::Yield(at, _) = &mut next {
            *at = self.services.router.now() + wait;
        }
        if news {
            self.services.metrics.plugin(plugin.name()).hot_loop();
        }
        next
    }

    /// After how long an object comes again, whatever happens; none where something has to happen first.
    fn after(&self, next: &Next<Cause>) -> Option<Duration> {
        match next {
            Next::At(at, _) | Next::Yield(at, _) => Some(at.saturating_sub(self.services.router.now())),
            Next::Settled | Next::Retry(_) | Next::Park => None,
        }
    }

    /// Nobody tells of what it waits for.
    pub(super) fn look_again(&self) -> Next<Cause> {
        let wait = jittered(self.settings.wait_interval, JITTER);
        Next::Yield(self.services.router.now() + wait, Cause::Retry)
    }

    /// As the component wants it.
    pub(super) fn next(&self, plugin: &Plugin, result: &Answer) -> Next<Cause> {
        let pace = plugin.terms.grants.pace();
        let jitter = pace.jitter.map_or(JITTER, u32::from);
        let interval = pace.poll.unwrap_or(self.settings.poll_interval);
        let router = &self.services.router;
        let after = |wait: Duration, cause| Next::At(router.now() + wait.max(SOONEST), cause);
        match result {
            Answer::Outcome(outcome) => match outcome.next {
                reconciler::Next::AwaitChange => Next::Settled,
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
                reconciler::Resolution::Wait => Next::Yield(
                    router.now() + jittered(self.settings.wait_interval, jitter),
                    Cause::Retry,
                ),
                reconciler::Resolution::Terminal | reconciler::Resolution::Denied(_) => Next::Park,
                reconciler::Resolution::Throttled(ms) => Next::Yield(
                    router.now() + Duration::from_millis(ms).max(SOONEST),
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
    interval + interval * percent.min(100) / 100 * (crate::kube::time::unique() % 1000) as u32 / 1000
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
