//! A circuit breaker: who is down is not asked again and again.
//!
//! ```text
//!            failures in a row             the time is over
//! closed ──────────────────────▶ open ──────────────────────▶ half-open: one trial
//!    ▲                             ▲                             │ │
//!    └─────────────────────────────┼─────────── it succeeded ────┘ │
//!                                  └─────────── it failed ─────────┘ for twice as long
//! ```

use std::time::{Duration, Instant};

/// Failures in a row that open it.
const FAILURES: u32 = 5;
/// How long it is open at first, and at most.
const OPEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests pass.
    Closed,
    /// Requests are answered at once.
    Open,
    /// One request tries.
    HalfOpen,
}

impl Circuit {
    /// The word, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// What a request is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Go.
    Pass,
    /// Go, and tell how it was: all others wait for that.
    Trial,
    /// Wait for the trial.
    Wait,
    /// Give up: it is open until then.
    Refused(Instant),
}

/// The breaker's state. Time is given to it.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Openings since it was last closed.
    openings: u32,
    open_until: Option<Instant>,
    trial: bool,
}

impl Breaker {
    /// Where it is now.
    pub fn circuit(&self, now: Instant) -> Circuit {
        match self.open_until {
            None => Circuit::Closed,
            Some(until) if now < until => Circuit::Open,
            Some(_) => Circuit::HalfOpen,
        }
    }

    /// When a trial may be made, unless it is closed.
    pub fn reopens(&self) -> Option<Instant> {
        self.open_until
    }

    /// A request asks.
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

    /// A request has succeeded. One that began before it opened proves nothing.
    pub fn succeeded(&mut self, trial: bool) {
        if trial || self.open_until.is_none() {
            *self = Self::default();
        }
    }

    /// A request has failed. Gives whether that opened it.
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

    /// A trial was given up before it told anything: the next request is one.
    pub fn abandoned(&mut self) {
        self.trial = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn opens_tries_once_and_closes() {
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
        /// Whatever happens: never two trials at once, never open for longer than the longest, never stuck.
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
