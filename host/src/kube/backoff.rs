//! Exponential backoff with jitter, for everything that is attempted again, and the jitter of polls.

use std::time::Duration;

/// An exponential backoff: `initial` doubles with each failure up to `max`, and jitter takes a part off.
///
/// Jitter keeps clients that failed together from coming back together. The same struct serves all callers,
/// so that they differ in figures and not in formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    jitter_percent: u32,
}

impl Backoff {
    /// A backoff from `initial` doubling up to `max`, without jitter.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            jitter_percent: 0,
        }
    }

    /// Limits the delay to less than before.
    pub fn with_max(self, max: Duration) -> Self {
        Self {
            max: self.max.min(max),
            ..self
        }
    }

    /// Takes a random part of up to `percent` (0–100) off each delay.
    pub const fn with_jitter(self, percent: u32) -> Self {
        let jitter_percent = if percent > 100 { 100 } else { percent };
        Self {
            jitter_percent,
            ..self
        }
    }

    /// The longest delay after this many failures in a row: `initial · 2^(failures-1)`, at most `max`.
    pub fn max_delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The delay after this many failures in a row, with jitter.
    pub fn delay(&self, failures: u32) -> Duration {
        self.delay_with(failures, &mut fastrand::Rng::new())
    }

    /// The delay with jitter from the caller's generator, for code that must be reproducible.
    pub fn delay_with(&self, failures: u32, rng: &mut fastrand::Rng) -> Duration {
        let delay = self.max_delay(failures);
        delay - delay.mul_f64(f64::from(self.jitter_percent) / 100.0 * rng.f64())
    }
}

/// Adds a random part of up to `percent` (0–100) to an interval, so that what began together does not poll together forever.
pub fn add_jitter(interval: Duration, percent: u32) -> Duration {
    let added = f64::from(percent.min(100)) / 100.0 * fastrand::f64();
    interval.saturating_add(interval.mul_f64(added))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_with_each_failure_up_to_the_maximum() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let delays: Vec<u128> = (0..10).map(|n| backoff.delay(n).as_millis()).collect();
        assert_eq!(
            delays,
            [100, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        assert_eq!(backoff.delay(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn jitter_takes_off_no_more_than_its_percentage() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(64)).with_jitter(25);
        let mut rng = fastrand::Rng::with_seed(7);
        let mut delays: Vec<Duration> = (0..1000).map(|_| backoff.delay_with(3, &mut rng)).collect();
        delays.sort_unstable();
        assert!(delays[0] >= Duration::from_secs(3) && delays[0] < Duration::from_millis(3100));
        assert!(delays[999] <= Duration::from_secs(4) && delays[999] > Duration::from_millis(3900));
    }

    #[test]
    fn added_jitter_is_no_more_than_its_percentage() {
        for (interval, percent, max) in [
            (Duration::from_secs(100), 10, Duration::from_secs(110)),
            (Duration::from_secs(100), u32::MAX, Duration::from_secs(200)),
            (Duration::ZERO, 10, Duration::ZERO),
        ] {
            let jittered = add_jitter(interval, percent);
            assert!(jittered >= interval && jittered <= max, "{jittered:?}");
        }
    }
}
