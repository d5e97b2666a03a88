//! A circuit breaker: requests to a failing upstream fail at once, and one trial at a time tests it.
//!
//! ```text
//!             failures in a row               the interval ends
//!  closed ──────────────────────▶ open ──────────────────────▶ half-open: one trial
//!     ▲                             ▲                             │ │
//!     └─────────────────────────────┼────────── trial succeeded ──┘ │
//!                                   └────────── trial failed ───────┘ twice the interval
//! ```

use std::time::{Duration, Instant};

/// Failures in a row that open the breaker.
const FAILURES: u32 = 5;
/// First and longest interval for which the breaker stays open.
const OPEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests pass.
    Closed,
    /// Requests fail at once.
    Open,
    /// One request is the trial.
    HalfOpen,
}

impl Circuit {
    /// The state as a label of metrics.
    pub fn word(self) -> &'static str {
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
    Pass,
    /// The request may be sent and is the trial: all others wait for its result.
    Trial,
    /// The request waits for the trial.
    Wait,
    /// The request fails: the breaker is open until then.
    Refused(Instant),
}

/// The state of the breaker. It is a pure state machine: callers pass the time.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Number of openings since the breaker was last closed.
    openings: u32,
    open_until: Option<Instant>,
    trial: bool,
}

impl Breaker {
    /// The state at a moment.
    pub fn circuit(&self, now: Instant) -> Circuit {
        match self.open_until {
            None => Circuit::Closed,
            Some(until) if now < until => Circuit::Open,
            Some(_) => Circuit::HalfOpen,
        }
    }

    /// The time of the next trial; `None` while the breaker is closed.
    pub fn reopens(&self) -> Option<Instant> {
        self.open_until
    }

    /// Decides about a request.
    pub fn admit(&mut self, now: Instant) -> Admission {
        match self.open_until {
            None => Admission::Pass,
            Some(until) if now < until => Admission::Refused(until),
            Some(_) if self.trial => Admission::Wait,
            Some(_) => {
                self.trial = true;
                Admission::Trial
            }
        }
    }

    /// Records a success. A request that began before the breaker opened proves nothing and is ignored.
    pub fn succeeded(&mut self, trial: bool) {
        if trial || self.open_until.is_none() {
            *self = Self::default();
        }
    }

    /// Records a failure. Returns true if it opened the breaker.
    pub fn failed(&mut self, trial: bool, now: Instant) -> bool {
        if self.open_until.is_some() && !trial {
            return false;
        }
        self.trial = false;
        self.failures = self.failures.saturating_add(1);
        if !trial && self.failures < FAILURES {
            return false;
        }
        let open = OPEN.0.saturating_mul(1 << self.openings.min(16)).min(OPEN.1);
        self.openings += 1;
        self.open_until = Some(now + open);
        true
    }

    /// The trial ended without a result; the next request becomes the trial.
    pub fn abandoned(&mut self) {
        self.trial = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn breaker_opens_allows_one_trial_and_closes() {
        let (mut breaker, t) = (Breaker::default(), Instant::now());
        for _ in 0..FAILURES - 1 {
            assert!(!breaker.failed(false, t));
        }
        breaker.succeeded(false);
        for i in 1..=FAILURES {
            assert_eq!(breaker.failed(false, t), i == FAILURES);
        }
        assert_eq!(breaker.admit(t), Admission::Refused(t + OPEN.0));
        breaker.succeeded(false);
        assert_eq!(breaker.circuit(t), Circuit::Open, "an old request's success");
        let t = t + OPEN.0;
        assert_eq!(
            (breaker.admit(t), breaker.admit(t)),
            (Admission::Trial, Admission::Wait)
        );
        breaker.abandoned();
        assert_eq!(breaker.admit(t), Admission::Trial);
        assert!(breaker.failed(true, t));
        assert_eq!(breaker.admit(t), Admission::Refused(t + 2 * OPEN.0));
        let t = t + 2 * OPEN.0;
        assert_eq!(breaker.admit(t), Admission::Trial);
        breaker.succeeded(true);
        assert_eq!(
            (breaker.circuit(t), breaker.admit(t)),
            (Circuit::Closed, Admission::Pass)
        );
    }

    proptest! {
        /// Any sequence: never two trials at once, never open for longer than the maximum, never stuck.
        #[test]
        fn one_trial_and_no_end(steps in proptest::collection::vec((0..4u8, 0..40_000u64), 1..200)) {
            let (mut breaker, mut now, mut trials) = (Breaker::default(), Instant::now(), 0u32);
            for (step, ms) in steps {
                match step {
                    0 => match breaker.admit(now) {
                        Admission::Trial => trials += 1,
                        Admission::Refused(until) => prop_assert!(until > now && until - now <= OPEN.1),
                        _ => {}
                    },
                    1 => { breaker.failed(trials > 0, now); trials = 0; }
                    2 => { breaker.succeeded(trials > 0); trials = 0; }
                    _ => now += Duration::from_millis(ms),
                }
                prop_assert!(trials <= 1);
            }
            if trials > 0 { breaker.abandoned(); }
            now += OPEN.1;
            prop_assert!(matches!(breaker.admit(now), Admission::Pass | Admission::Trial));
        }
    }
}
