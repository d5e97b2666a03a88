//! The decision about a message after a call of its handler. Pure.

use std::time::Duration;

use crate::{
    contract::{
        bindings::{messages::Disposition, types::Error},
        trap::Trap,
    },
    kube::backoff::Backoff,
    plugin::CallResult,
};

/// Largest delay that a handler can ask for.
const MAX_DELAY: Duration = Duration::from_secs(24 * 3600);

/// The end of a call of a message handler.
pub type HandleEnd = Result<Result<Disposition, Error>, Trap>;

/// The treatment of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is handled.
    Acknowledge,
    /// It is delivered again after this delay.
    Retry {
        delay: Duration,
        /// The delivery counts towards the limit.
        counts: bool,
        why: String,
    },
    /// It is dead-lettered for this reason.
    DeadLetter(String),
}

/// Decides about a message. `deliveries` are the earlier ones, `attempts` those of them that count, and `max` is the limit
/// of deliveries that count.
///
/// What the plugin decides, and what only its code can cause, counts: `retry-after` and traps. Errors do not, since they may
/// be a missing grant, a conflict, or an upstream that is down, and pass without a change of the message.
pub fn decide(
    end: &HandleEnd,
    deliveries: u32,
    attempts: u32,
    max: Option<u32>,
    backoff: Backoff,
) -> Settlement {
    let backed_off = backoff.delay(deliveries.saturating_add(1));
    let is_last = max.is_some_and(|max| attempts.saturating_add(1) >= max);
    let after = |ms: u64| Duration::from_millis(ms).min(MAX_DELAY);
    match end {
        Ok(Ok(Disposition::Ack)) => Settlement::Acknowledge,
        Ok(Ok(Disposition::Reject(reason))) => Settlement::DeadLetter(format!("rejected: {reason}")),
        Ok(Ok(Disposition::RetryAfter(_))) if is_last => Settlement::DeadLetter(format!(
            "retried {} times, as often as maxDeliveries allows",
            attempts + 1
        )),
        Ok(Ok(Disposition::RetryAfter(ms))) => Settlement::Retry {
            delay: after(*ms),
            counts: true,
            why: "its plugin asks for it".into(),
        },
        Ok(Err(Error::Throttled(ms))) => Settlement::Retry {
            delay: after(*ms).max(backoff.max_delay(1)),
            counts: false,
            why: format!("throttled for {ms} ms"),
        },
        Ok(Err(error)) => Settlement::Retry {
            delay: backed_off,
            counts: false,
            why: describe_error(error),
        },
        // The host had no memory or instance: it is no verdict on the message.
        Err(trap @ Trap::HostExhausted(_)) => Settlement::Retry {
            delay: backed_off,
            counts: false,
            why: trap.to_string(),
        },
        Err(trap) if is_last => Settlement::DeadLetter(format!(
            "the plugin {trap}, in each of {} deliveries that count",
            attempts + 1
        )),
        Err(trap) => Settlement::Retry {
            delay: backed_off,
            counts: true,
            why: format!("the plugin {trap}"),
        },
    }
}

/// The result of a call, as far as it says something about the build.
pub fn rate_build(end: &HandleEnd) -> Option<CallResult> {
    match end {
        Ok(Ok(_)) => Some(CallResult::Succeeded),
        // A slow upstream is as likely the cause as the plugin.
        Ok(Err(_)) | Err(Trap::Timeout(_)) => Some(CallResult::Failed),
        Err(Trap::HostExhausted(_)) => None,
        Err(_) => Some(CallResult::Trapped),
    }
}

/// The error in words.
fn describe_error(error: &Error) -> String {
    match error {
        Error::Denied(why) => format!("denied: {why}"),
        Error::NotFound(why) => format!("not found: {why}"),
        Error::Conflict(why) => format!("conflict: {why}"),
        Error::Invalid(why) => format!("invalid: {why}"),
        Error::Unavailable(why) => format!("unavailable: {why}"),
        Error::LimitExceeded(why) => format!("limit exceeded: {why}"),
        Error::Unsupported(why) => format!("unsupported: {why}"),
        Error::Throttled(ms) => format!("throttled for {ms} ms"),
        Error::NotReady(other) => format!("{} {} is not ready", other.ref_.gvk.kind, other.ref_.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

    fn decided(end: HandleEnd, deliveries: u32, attempts: u32, max: Option<u32>) -> Settlement {
        decide(&end, deliveries, attempts, max, BACKOFF)
    }

    #[test]
    fn errors_never_dead_letter_and_back_off() {
        for error in [
            Error::Denied("no".into()),
            Error::Conflict("c".into()),
            Error::Unavailable("u".into()),
            Error::Invalid("i".into()),
            Error::LimitExceeded("l".into()),
        ] {
            for deliveries in [0, 3, 1000] {
                let decision = decided(Ok(Err(error.clone())), deliveries, 1000, Some(1));
                let Settlement::Retry { delay, counts, .. } = decision else {
                    panic!("{decision:?}")
                };
                assert_eq!((delay, counts), (BACKOFF.max_delay(deliveries + 1), false));
            }
        }
        let exhausted = decided(Err(Trap::HostExhausted("full".into())), 0, 9, Some(1));
        assert!(
            matches!(exhausted, Settlement::Retry { counts: false, .. }),
            "{exhausted:?}"
        );
        let Settlement::Retry { delay, .. } = decided(Ok(Err(Error::Throttled(5000))), 0, 0, None) else {
            panic!("retried")
        };
        assert_eq!(delay, Duration::from_secs(5));
    }

    #[test]
    fn only_traps_of_the_component_are_held_against_its_build() {
        for (end, result) in [
            (
                Ok(Ok(Disposition::Reject("garbage".into()))),
                Some(CallResult::Succeeded),
            ),
            (Ok(Err(Error::Denied("no".into()))), Some(CallResult::Failed)),
            (
                Err(Trap::Timeout(Duration::from_secs(1))),
                Some(CallResult::Failed),
            ),
            (Err(Trap::HostExhausted("full".into())), None),
            (Err(Trap::Other("unreachable".into())), Some(CallResult::Trapped)),
        ] {
            assert_eq!(rate_build(&end), result, "{end:?}");
        }
    }

    #[test]
    fn rejection_and_the_last_attempt_dead_letter_with_a_reason() {
        assert_eq!(
            decided(Ok(Ok(Disposition::Ack)), 9, 9, Some(1)),
            Settlement::Acknowledge
        );
        let rejected = decided(Ok(Ok(Disposition::Reject("no such project".into()))), 0, 0, None);
        assert_eq!(
            rejected,
            Settlement::DeadLetter("rejected: no such project".into())
        );
        let retry = |attempts, max| decided(Ok(Ok(Disposition::RetryAfter(2000))), attempts, attempts, max);
        assert!(
            matches!(retry(0, Some(3)), Settlement::Retry { counts: true, delay, .. } if delay == Duration::from_secs(2))
        );
        assert!(matches!(retry(1, Some(3)), Settlement::Retry { .. }));
        assert!(matches!(retry(2, Some(3)), Settlement::DeadLetter(why) if why.contains("3 times")));
        assert!(matches!(retry(1000, None), Settlement::Retry { .. }), "no limit");
        let trap = |attempts| decided(Err(Trap::Other("trapped".into())), 0, attempts, Some(2));
        assert!(matches!(trap(0), Settlement::Retry { counts: true, .. }));
        assert!(matches!(trap(1), Settlement::DeadLetter(_)));
    }
}
