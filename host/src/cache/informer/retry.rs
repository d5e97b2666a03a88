//! Retries of an informer: the delay after a failed list or watch, and the version to go on from.
//!
//! The figures are those of client-go's reflector. One counter serves lists and watches, because a kind may be listed
//! and not watched: a counter that a successful list resets would list it again and again at the shortest delay.

use std::time::{Duration, Instant};

use super::State;
use crate::{client::api::ApiError, kube::backoff::Backoff};

/// Backoff of failed lists and watches. Jitter keeps informers from coming back in step after an outage.
pub const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(800), Duration::from_secs(30)).with_jitter(50);

/// Minimum duration of a watch that ended without an event, or whose kind has to be listed again; after a shorter one the server
/// is asked with backoff.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

/// Time without a failure after which the next one is retried after the shortest delay.
const RESET_TIMEOUT: Duration = Duration::from_mins(2);

/// Interval of lists of a kind that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum delay until a kind that is not served is discovered again.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of failures in a row after which a watch is still resumed from the same version. The server may fail
/// because of the version (`Too large resource version` after a restore of etcd), and a list is always right.
const MAX_RESUMES: u32 = 5;

/// Failures in a row of one informer.
#[derive(Debug)]
pub(super) struct Retry {
    backoff: Backoff,
    failures: u32,
    last_failure: Option<Instant>,
}

impl Retry {
    /// Creates the state of an informer without failures.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            failures: 0,
            last_failure: None,
        }
    }

    /// Returns the state after a list or watch that took this long, and the delay before it is entered.
    pub fn advance(
        &mut self,
        state: State,
        result: &Result<State, ApiError>,
        took: Duration,
        now: Instant,
    ) -> (State, Option<Duration>) {
        match result {
            Ok(next) => {
                // A server or proxy that ends every watch at once must not be asked in a tight loop, nor one whose
                // versions expire (HTTP 410) while it is listed.
                let is_unproductive = *next == state || *next == State::Listing;
                let delay =
                    (is_unproductive && took < MIN_WATCH_DURATION).then(|| self.record_failure(None, now));
                (next.clone(), delay)
            }
            Err(error) => {
                let delay = self.record_failure(Some(error), now);
                let next = if self.may_resume(error) {
                    state
                } else {
                    State::Listing
                };
                (next, Some(delay))
            }
        }
    }

    /// Counts a failure and returns the delay until the next attempt, which is at least the `Retry-After` of the server.
    fn record_failure(&mut self, error: Option<&ApiError>, now: Instant) -> Duration {
        let is_fresh = self
            .last_failure
            .is_none_or(|last| now.duration_since(last) > RESET_TIMEOUT);
        self.failures = if is_fresh {
            1
        } else {
            self.failures.saturating_add(1)
        };
        self.last_failure = Some(now);
        let delay = self.backoff.delay(self.failures);
        match error {
            Some(ApiError::Status { code: 405, .. }) => POLL_INTERVAL,
            Some(ApiError::Status {
                retry_after: Some(milliseconds),
                ..
            }) => delay.max(Duration::from_millis(*milliseconds).min(POLL_INTERVAL)),
            // Discovery is cheap, and a CRD is often installed a moment later.
            Some(ApiError::UnknownKind(..)) => delay.min(DISCOVERY_INTERVAL),
            _ => delay,
        }
    }

    /// Returns true if a watch that failed with this error is resumed from its version instead of listing everything:
    /// an overloaded server (HTTP 429, 5xx) must not be answered with full lists.
    fn may_resume(&self, error: &ApiError) -> bool {
        let is_transient = match error {
            ApiError::Status { code, .. } => *code == 429 || *code >= 500,
            ApiError::InvalidResponse(_) | ApiError::TooLarge(_) => false,
            _ => return true,
        };
        is_transient && self.failures <= MAX_RESUMES
    }

    /// Returns true for the first failure after a time without one.
    pub fn is_first(&self) -> bool {
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(code: u16, retry_after: Option<u64>) -> Result<State, ApiError> {
        Err(ApiError::Status {
            code,
            reason: String::new(),
            message: String::new(),
            retry_after,
            fields: Vec::new(),
        })
    }

    fn watching() -> State {
        State::Watching { version: "5".into() }
    }

    /// Lists and watches for a while of virtual time. Each list succeeds after 10 ms and each watch ends after 10 ms with
    /// the result of `watch`, which is given its number. Returns the milliseconds at which it listed and watched.
    fn simulate(
        runtime: Duration,
        watch: impl Fn(usize) -> Result<State, ApiError>,
    ) -> (Vec<u128>, Vec<u128>) {
        let start = Instant::now();
        let (mut now, mut retry, mut state) = (start, Retry::new(RETRY_BACKOFF), State::Listing);
        let (mut lists, mut watches) = (Vec::new(), Vec::new());
        while now - start < runtime {
            let result = if state == State::Listing {
                lists.push((now - start).as_millis());
                Ok(watching())
            } else {
                watches.push((now - start).as_millis());
                watch(watches.len())
            };
            let took = Duration::from_millis(10);
            now += took;
            let (next, delay) = retry.advance(state, &result, took, now);
            (state, now) = (next, now + delay.unwrap_or_default());
        }
        (lists, watches)
    }

    #[test]
    fn watch_forbidden_lists_with_growing_delay() {
        let (lists, _) = simulate(Duration::from_secs(30), |_| refuse(403, None));
        assert!((4..=8).contains(&lists.len()), "{lists:?}");
        let (lists, _) = simulate(Duration::from_mins(10), |_| refuse(403, None));
        assert!((20..=50).contains(&lists.len()), "{lists:?}");
    }

    #[test]
    fn watch_expired_at_once_lists_with_growing_delay() {
        let (lists, _) = simulate(Duration::from_secs(30), |_| Ok(State::Listing));
        assert!((4..=8).contains(&lists.len()), "{lists:?}");
    }

    #[test]
    fn watch_ended_at_once_is_resumed_with_growing_delay() {
        let (lists, watches) = simulate(Duration::from_secs(30), |_| Ok(watching()));
        assert!(
            lists.len() == 1 && (4..=8).contains(&watches.len()),
            "{watches:?}"
        );
    }

    #[test]
    fn kind_is_listed_without_delay_after_a_watch_that_lasted() {
        let advance =
            |took| Retry::new(RETRY_BACKOFF).advance(watching(), &Ok(State::Listing), took, Instant::now());
        let (next, delay) = advance(MIN_WATCH_DURATION);
        assert_eq!((next, delay), (State::Listing, None));
        let (_, delay) = advance(MIN_WATCH_DURATION / 2);
        assert!(delay.is_some());
    }

    #[test]
    fn watch_throttled_resumes_after_retry_after_without_a_list() {
        let (lists, watches) = simulate(Duration::from_secs(10), |_| refuse(429, Some(7000)));
        assert_eq!((lists, watches), (vec![0], vec![10, 7020]));
    }

    #[test]
    fn watch_that_always_fails_is_listed_again_after_a_few_resumes() {
        let (lists, watches) = simulate(Duration::from_mins(1), |_| refuse(504, None));
        assert!((2..=4).contains(&lists.len()), "{lists:?} {watches:?}");
        assert!(lists[1] > watches[MAX_RESUMES as usize], "{lists:?} {watches:?}");
    }

    #[test]
    fn kind_without_watch_is_polled_every_minute() {
        let (lists, _) = simulate(Duration::from_mins(10), |_| refuse(405, None));
        assert_eq!(lists.len(), 10, "{lists:?}");
    }

    #[test]
    fn failures_long_apart_are_retried_after_the_shortest_delay() {
        let (mut retry, start) = (Retry::new(RETRY_BACKOFF), Instant::now());
        for second in 0..10 {
            retry.record_failure(None, start + Duration::from_secs(second));
        }
        assert!(!retry.is_first());
        let delay = retry.record_failure(None, start + Duration::from_secs(10) + RESET_TIMEOUT);
        assert!(
            retry.is_first() && delay <= Duration::from_millis(800),
            "{delay:?}"
        );
    }
}
