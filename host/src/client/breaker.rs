//! A circuit breaker: requests to a failing server fail at once, and one trial at a time tests it. Upstreams and other
//! clusters each have one.
//!
//! ```text
//!             failures in a row               the interval ends
//!  closed ──────────────────────▶ open ──────────────────────▶ half-open: one trial
//!     ▲                             ▲                             │ │
//!     └─────────────────────────────┼────────── trial succeeded ──┘ │
//!                                   └────────── trial failed ───────┘ twice the interval
//! ```

use std::time::{Duration, Instant};

use crate::kube::backoff::Backoff;

/// Failures in a row that open the breaker.
const FAILURE_THRESHOLD: u32 = 5;
/// First and longest interval for which the breaker stays open.
const INITIAL_OPEN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_OPEN_INTERVAL: Duration = Duration::from_secs(30);
const OPEN_INTERVALS: Backoff = Backoff::new(INITIAL_OPEN_INTERVAL, MAX_OPEN_INTERVAL);

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// Requests pass.
    Closed,
    /// Requests fail at once.
    Open,
    /// One request is the trial.
    HalfOpen,
}

impl CircuitState {
    /// The state as a label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request may be sent.
    Allowed,
    /// The request may be sent and is the trial.
    Trial,
    /// The request fails: another one is the trial.
    TrialRunning,
    /// The request fails: the breaker is open until then.
    Rejected(Instant),
}

/// The state of the breaker. It is a pure state machine: callers pass the time.
#[derive(Debug, Default)]
pub struct CircuitBreaker {
    failures: u32,
    /// Number of openings since the breaker was last closed.
    openings: u32,
    open_until: Option<Instant>,
    trial_running: bool,
}

impl CircuitBreaker {
    /// The state at a moment.
    pub fn circuit_state(&self, now: Instant) -> CircuitState {
        match self.open_until {
            None => CircuitState::Closed,
            Some(until) if now < until => CircuitState::Open,
            Some(_) => CircuitState::HalfOpen,
        }
    }

    /// The time of the next trial; `None` while the breaker is closed.
    pub fn trial_at(&self) -> Option<Instant> {
        self.open_until
    }

    /// Decides about a request.
    pub fn admit_request(&mut self, now: Instant) -> Admission {
        match self.open_until {
            None => Admission::Allowed,
            Some(until) if now < until => Admission::Rejected(until),
            Some(_) if self.trial_running => Admission::TrialRunning,
            Some(_) => {
                self.trial_running = true;
                Admission::Trial
            }
        }
    }

    /// Records a success. A request that began before the breaker opened proves nothing and is ignored.
    pub fn record_success(&mut self, trial: bool) {
        if trial || self.open_until.is_none() {
            *self = Self::default();
        }
    }

    /// Records a failure. Returns true if it opened the breaker.
    pub fn record_failure(&mut self, trial: bool, now: Instant) -> bool {
        if self.open_until.is_some() && !trial {
            return false;
        }
        self.trial_running = false;
        self.failures = self.failures.saturating_add(1);
        if !trial && self.failures < FAILURE_THRESHOLD {
            return false;
        }
        self.openings += 1;
        self.open_until = Some(now + OPEN_INTERVALS.delay(self.openings));
        true
    }

    /// The trial ended without a result; the next request becomes the trial.
    pub fn cancel_trial(&mut self) {
        self.trial_running = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn breaker_opens_allows_one_trial_and_closes() {
        let (mut breaker, t) = (CircuitBreaker::default(), Instant::now());
        for _ in 0..FAILURE_THRESHOLD - 1 {
            assert!(!breaker.record_failure(false, t));
        }
        breaker.record_success(false);
        for i in 1..=FAILURE_THRESHOLD {
            assert_eq!(breaker.record_failure(false, t), i == FAILURE_THRESHOLD);
        }
        assert_eq!(
            breaker.admit_request(t),
            Admission::Rejected(t + INITIAL_OPEN_INTERVAL)
        );
        breaker.record_success(false);
        assert_eq!(
            breaker.circuit_state(t),
            CircuitState::Open,
            "an old request's success"
        );
        let t = t + INITIAL_OPEN_INTERVAL;
        assert_eq!(
            (breaker.admit_request(t), breaker.admit_request(t)),
            (Admission::Trial, Admission::TrialRunning)
        );
        breaker.cancel_trial();
        assert_eq!(breaker.admit_request(t), Admission::Trial);
        assert!(breaker.record_failure(true, t));
        assert_eq!(
            breaker.admit_request(t),
            Admission::Rejected(t + 2 * INITIAL_OPEN_INTERVAL)
        );
        let t = t + 2 * INITIAL_OPEN_INTERVAL;
        assert_eq!(breaker.admit_request(t), Admission::Trial);
        breaker.record_success(true);
        assert_eq!(
            (breaker.circuit_state(t), breaker.admit_request(t)),
            (CircuitState::Closed, Admission::Allowed)
        );
    }

    proptest! {
        /// Any sequence: never two trials at once, never open for longer than the maximum, never stuck.
        #[test]
        fn any_sequence_allows_one_trial_and_recovers(steps in proptest::collection::vec((0..4u8, 0..40_000u64), 1..200)) {
            let (mut breaker, mut now, mut trials) = (CircuitBreaker::default(), Instant::now(), 0u32);
            for (step, ms) in steps {
                match step {
                    0 => match breaker.admit_request(now) {
                        Admission::Trial => trials += 1,
                        Admission::Rejected(until) => prop_assert!(until > now && until - now <= MAX_OPEN_INTERVAL),
                        _ => {}
                    },
                    1 => { breaker.record_failure(trials > 0, now); trials = 0; }
                    2 => { breaker.record_success(trials > 0); trials = 0; }
                    _ => now += Duration::from_millis(ms),
                }
                prop_assert!(trials <= 1);
            }
            if trials > 0 { breaker.cancel_trial(); }
            now += MAX_OPEN_INTERVAL;
            prop_assert!(matches!(breaker.admit_request(now), Admission::Allowed | Admission::Trial));
        }
    }
}
