//! Decision on the result of a call, without I/O: what the status says, and when the object is reconciled again.

use std::time::Duration;

use super::GuestResult;
use crate::{
    contract::bindings::reconciler::{Failure, Next, Resolution},
    kube::{
        backoff::add_jitter,
        well_known::{
            annotation::{DELETION_POLICY, FORCE_DELETE},
            condition_type, object_reason,
        },
    },
    plugin::Plugin,
    reconcile::conditions,
    schedule::{dispatcher::Cause, queue::Requeue},
    settings::HostSettings,
};

/// Shortest delay of a requeue, also where a component asks for none.
const MIN_REQUEUE_DELAY: Duration = Duration::from_millis(10);
/// Limit of an interval: a component or a file may ask for any number.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);
/// Jitter of an interval, as a percentage of it.
pub(super) const JITTER_PERCENT: u32 = 10;

/// Intervals of a plugin's reconciles: those of its grants, or of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intervals {
    wait: Duration,
    poll: Duration,
    jitter: u32,
}

impl Intervals {
    pub fn of(plugin: &Plugin, settings: &HostSettings) -> Self {
        let granted = plugin.policy.grants.reconcile();
        Self {
            wait: granted.wait_interval.unwrap_or(settings.wait_interval),
            poll: granted.interval.unwrap_or(settings.poll_interval),
            jitter: granted.jitter.map_or(JITTER_PERCENT, u32::from),
        }
    }

    /// The requeue of an object that waits for something else.
    pub fn requeue_waiting(&self, now: Duration) -> Requeue<Cause> {
        let wait = add_jitter(self.wait.min(MAX_INTERVAL), self.jitter);
        Requeue::Wait(now + wait.max(MIN_REQUEUE_DELAY), Cause::Retry)
    }
}

/// A deletion that is in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deletion {
    /// Time that it may take before the status names remedies.
    pub deadline: Duration,
    /// What is left of it; zero from then on.
    pub left: Duration,
}

/// What a decision depends on besides the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Time of the queue.
    pub now: Duration,
    /// Time since 1970.
    pub since_epoch: Duration,
    /// Intervals of the plugin.
    pub intervals: Intervals,
    /// The deletion of the object; none if it is not deleted.
    pub deletion: Option<Deletion>,
    /// The API server has refused a request of the call for lack of permission (HTTP 403).
    pub is_forbidden: bool,
}

/// What follows from the result of a call.
pub(super) struct Decision {
    /// The result that the status shows.
    pub result: GuestResult,
    /// When the object is reconciled again.
    pub next: Requeue<Cause>,
}

/// Decides what follows from the result of a call.
pub(super) fn decide(result: GuestResult, situation: &Situation) -> Decision {
    let result = match &situation.deletion {
        Some(deletion) => describe_deletion(result, deletion),
        None => result,
    };
    let next = match (choose_requeue(&result, situation), situation.deletion) {
        // No watch reports changes of RBAC, quotas and admission policies.
        (Requeue::Terminal, _) if situation.is_forbidden => {
            situation.intervals.requeue_waiting(situation.now)
        }
        (next, Some(deletion)) if !situation.is_forbidden => {
            requeue_by_deadline(next, &deletion, situation.now)
        }
        (next, _) => next,
    };
    Decision { result, next }
}

/// The requeue that the component asks for.
fn choose_requeue(result: &GuestResult, situation: &Situation) -> Requeue<Cause> {
    let intervals = &situation.intervals;
    let now = situation.now;
    let after = |wait: Duration, cause| Requeue::At(now + wait.max(MIN_REQUEUE_DELAY), cause);
    match result {
        GuestResult::Outcome(outcome) => match outcome.next {
            Next::AwaitChange => Requeue::AwaitChange,
            Next::Poll(ms) => {
                let interval = ms.map_or(intervals.poll, Duration::from_millis);
                after(
                    add_jitter(interval.min(MAX_INTERVAL), intervals.jitter),
                    Cause::Poll,
                )
            }
            Next::After(ms) => after(Duration::from_millis(ms), Cause::Timer),
            Next::At(at) => {
                let left = Duration::from_millis(at).saturating_sub(situation.since_epoch);
                after(left, Cause::Timer)
            }
        },
        GuestResult::Failure(failure) => match failure.resolution {
            Resolution::Retry => Requeue::Retry(Duration::ZERO, Cause::Retry),
            Resolution::Wait => intervals.requeue_waiting(now),
            Resolution::Terminal | Resolution::Denied(_) => Requeue::Terminal,
            Resolution::Throttled(ms) => Requeue::Wait(
                now + Duration::from_millis(ms).max(MIN_REQUEUE_DELAY),
                Cause::Retry,
            ),
        },
    }
}

/// The requeue of a deletion that is not complete: at its deadline at the latest, because its status has to name the
/// remedies then, also where nothing else would wake the object. A retry by backoff comes by itself.
fn requeue_by_deadline(next: Requeue<Cause>, deletion: &Deletion, now: Duration) -> Requeue<Cause> {
    if deletion.left.is_zero() {
        return next;
    }
    let deadline = now + deletion.left;
    match next {
        Requeue::Terminal | Requeue::AwaitChange => Requeue::Wait(deadline, Cause::Timer),
        Requeue::At(at, _) if at > deadline => Requeue::At(deadline, Cause::Timer),
        Requeue::Wait(at, _) if at > deadline => Requeue::Wait(deadline, Cause::Timer),
        next => next,
    }
}

/// The failure that describes a deletion in progress: its reason, and the remedies after the deadline.
pub(super) fn describe_deletion(result: GuestResult, deletion: &Deletion) -> GuestResult {
    let (mut failure, next) = match result {
        GuestResult::Failure(failure) => (failure, None),
        GuestResult::Outcome(outcome) => {
            let failure = Failure {
                resolution: Resolution::Wait,
                reason: object_reason::TERMINATING.into(),
                message: "Cleanup in progress".into(),
                conditions: outcome.conditions,
                status: outcome.status,
            };
            (failure, Some(outcome.next))
        }
    };
    if let Some(Next::After(ms)) = next {
        failure.resolution = Resolution::Throttled(ms);
    }
    if deletion.left.is_zero() {
        failure.message = format!(
            "{}. Not deleted after {:?}: remove what stands in the way, or annotate it {DELETION_POLICY}=Orphan (or \
             {FORCE_DELETE}=true) to let it go without cleanup",
            failure.message, deletion.deadline
        );
        let blocked = conditions::condition(
            condition_type::DELETION_BLOCKED,
            true,
            &failure.reason,
            &failure.message,
        );
        failure.conditions.push(blocked);
    }
    GuestResult::Failure(failure)
}

/// Returns true if a failure is worth an Event: the object ceases to be Ready, or is not Ready for another reason than before. Waiting
/// is no failure.
pub(super) fn needs_event(failure: &Failure, reason_before: &str) -> bool {
    !is_wait(failure) && reason_before != conditions::valid_reason(&failure.reason)
}

/// Returns true if a failure means that the object waits for something else.
pub(super) fn is_wait(failure: &Failure) -> bool {
    matches!(failure.resolution, Resolution::Wait | Resolution::Throttled(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::bindings::reconciler::Outcome;

    const NOW: Duration = Duration::from_secs(1000);
    const POLL: Duration = Duration::from_secs(300);
    const WAIT: Duration = Duration::from_secs(30);
    const DEADLINE: Duration = Duration::from_secs(600);

    fn situation() -> Situation {
        Situation {
            now: NOW,
            since_epoch: Duration::from_secs(50_000),
            intervals: Intervals {
                wait: WAIT,
                poll: POLL,
                jitter: 0,
            },
            deletion: None,
            is_forbidden: false,
        }
    }

    fn outcome(next: Next) -> GuestResult {
        GuestResult::Outcome(Outcome {
            next,
            conditions: Vec::new(),
            status: None,
        })
    }

    fn failure(resolution: Resolution) -> GuestResult {
        GuestResult::Failure(Failure {
            resolution,
            reason: "Refused".into(),
            message: "the server has refused it".into(),
            conditions: Vec::new(),
            status: None,
        })
    }

    fn at(seconds: u64, cause: Cause) -> Requeue<Cause> {
        Requeue::At(NOW + Duration::from_secs(seconds), cause)
    }

    fn wait(seconds: u64, cause: Cause) -> Requeue<Cause> {
        Requeue::Wait(NOW + Duration::from_secs(seconds), cause)
    }

    fn retry() -> Requeue<Cause> {
        Requeue::Retry(Duration::ZERO, Cause::Retry)
    }

    /// A result, and its requeue in four situations: as usual, after HTTP 403, in a deletion of which 60 s are left, and in an overdue one.
    #[test]
    fn requeue_follows_from_the_result_and_the_situation() {
        let soon = MIN_REQUEUE_DELAY;
        for (name, result, requeues) in [
            (
                "await",
                (|| outcome(Next::AwaitChange)) as fn() -> GuestResult,
                // In a deletion it means that the cleanup is complete, which is not decided here; what is left waits.
                [
                    Requeue::AwaitChange,
                    Requeue::AwaitChange,
                    wait(30, Cause::Retry),
                    wait(30, Cause::Retry),
                ],
            ),
            (
                "poll",
                || outcome(Next::Poll(None)),
                [
                    at(300, Cause::Poll),
                    at(300, Cause::Poll),
                    wait(30, Cause::Retry),
                    wait(30, Cause::Retry),
                ],
            ),
            (
                "poll in 5 s",
                || outcome(Next::Poll(Some(5000))),
                [
                    at(5, Cause::Poll),
                    at(5, Cause::Poll),
                    wait(30, Cause::Retry),
                    wait(30, Cause::Retry),
                ],
            ),
            (
                "after 90 s",
                || outcome(Next::After(90_000)),
                [
                    at(90, Cause::Timer),
                    at(90, Cause::Timer),
                    wait(60, Cause::Timer),
                    wait(90, Cause::Retry),
                ],
            ),
            (
                "at a time",
                || outcome(Next::At(50_007_000)),
                [
                    at(7, Cause::Timer),
                    at(7, Cause::Timer),
                    wait(30, Cause::Retry),
                    wait(30, Cause::Retry),
                ],
            ),
            (
                "at a time that is over",
                || outcome(Next::At(0)),
                [
                    Requeue::At(NOW + soon, Cause::Timer),
                    Requeue::At(NOW + soon, Cause::Timer),
                    wait(30, Cause::Retry),
                    wait(30, Cause::Retry),
                ],
            ),
            (
                "retry",
                || failure(Resolution::Retry),
                [retry(), retry(), retry(), retry()],
            ),
            (
                "wait",
                || failure(Resolution::Wait),
                [30, 30, 30, 30].map(|seconds| wait(seconds, Cause::Retry)),
            ),
            (
                "throttled",
                || failure(Resolution::Throttled(90_000)),
                [
                    wait(90, Cause::Retry),
                    wait(90, Cause::Retry),
                    wait(60, Cause::Timer),
                    wait(90, Cause::Retry),
                ],
            ),
            (
                "terminal",
                || failure(Resolution::Terminal),
                [
                    Requeue::Terminal,
                    wait(30, Cause::Retry),
                    wait(60, Cause::Timer),
                    Requeue::Terminal,
                ],
            ),
            (
                "denied",
                || failure(Resolution::Denied("why".into())),
                [
                    Requeue::Terminal,
                    wait(30, Cause::Retry),
                    wait(60, Cause::Timer),
                    Requeue::Terminal,
                ],
            ),
        ] {
            let usual = situation();
            let forbidden = Situation {
                is_forbidden: true,
                ..usual
            };
            let deleted = |left| Situation {
                deletion: Some(Deletion {
                    deadline: DEADLINE,
                    left: Duration::from_secs(left),
                }),
                ..usual
            };
            let situations = [usual, forbidden, deleted(60), deleted(0)];
            for (situation, requeue) in situations.iter().zip(requeues) {
                assert_eq!(decide(result(), situation).next, requeue, "{name}: {situation:?}");
            }
        }
    }

    #[test]
    fn status_of_an_overdue_deletion_names_the_remedies() {
        for (left, is_blocked) in [(1, false), (0, true)] {
            let deletion = Deletion {
                deadline: DEADLINE,
                left: Duration::from_secs(left),
            };
            for (result, reason) in [
                (outcome(Next::AwaitChange), "Terminating"),
                (failure(Resolution::Retry), "Refused"),
            ] {
                let GuestResult::Failure(failure) = describe_deletion(result, &deletion) else {
                    panic!("an object that is being deleted is not Ready");
                };
                assert_eq!(failure.reason, reason);
                assert_eq!(
                    failure.message.contains("ostler.dev/deletion-policy=Orphan"),
                    is_blocked
                );
                let blocked = failure.conditions.iter().filter(|c| c.type_ == "DeletionBlocked");
                assert_eq!(blocked.count(), usize::from(is_blocked));
            }
        }
    }

    #[test]
    fn event_is_recorded_for_another_reason_than_before_and_not_for_a_wait() {
        for (resolution, before, expected) in [
            (Resolution::Retry, "Ready", true),
            (Resolution::Retry, "Refused", false),
            (Resolution::Terminal, "", true),
            (Resolution::Wait, "Ready", false),
            (Resolution::Throttled(1), "Ready", false),
        ] {
            let GuestResult::Failure(failure) = failure(resolution) else {
                unreachable!("it is one");
            };
            assert_eq!(needs_event(&failure, before), expected, "{before}");
        }
    }
}
