//! How fast requests go: the rate, what the server asks for by `Retry-After`, and the budget of retries.

use std::time::{Duration, Instant, SystemTime};

/// However long a server asks to wait: after that it is asked again.
pub const LONGEST: Duration = Duration::from_secs(600);

/// So much of a retry is earned by each request, in hundredths, and this much may be saved up.
const EARNED: u32 = 10;
const SAVED: u32 = 1000;
/// What there is at first.
const INITIAL: u32 = 300;
/// What a retry costs.
const COST: u32 = 100;

/// When the next request may go. Time is given to it.
#[derive(Debug)]
pub struct Pace {
    /// Between requests; none for as fast as they come.
    interval: Option<Duration>,
    /// What may go at once, as time.
    tolerance: Duration,
    /// When the next request would go if all went evenly (the generic cell rate algorithm).
    next: Option<Instant>,
    /// The server asked not to come before.
    paused: Option<Instant>,
    retries: u32,
}

impl Pace {
    /// So many requests per second, and so many at once; none for as fast as they come.
    pub fn new(per_second: Option<u32>, burst: Option<u32>) -> Self {
        let interval = per_second.map(|n| Duration::from_secs(1) / n.max(1));
        let burst = burst.or(per_second).unwrap_or(1).max(1);
        Self {
            interval,
            tolerance: interval.unwrap_or_default() * (burst - 1),
            next: None,
            paused: None,
            retries: INITIAL,
        }
    }

    /// How long a request has to wait. Where that is no longer than its patience it is expected to come then.
    pub fn take(&mut self, now: Instant, patience: Duration) -> Duration {
        let pause = self
            .paused
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let Some(interval) = self.interval else {
            return pause;
        };
        let next = self.next.unwrap_or(now).max(now);
        let wait = next.saturating_duration_since(now + self.tolerance).max(pause);
        if wait <= patience {
            self.next = Some(next + interval);
        }
        wait
    }

    /// The server asked to be left alone for this long.
    pub fn pause(&mut self, now: Instant, wait: Duration) {
        let until = now + wait.min(LONGEST);
        self.paused = self.paused.max(Some(until));
    }

    /// A request begins, and earns a part of a retry.
    pub fn earn(&mut self) {
        self.retries = (self.retries + EARNED).min(SAVED);
    }

    /// Whether a failed request may be repeated.
    pub fn retry(&mut self) -> bool {
        let left = self.retries.checked_sub(COST);
        self.retries = left.unwrap_or(self.retries);
        left.is_some()
    }
}

/// What `Retry-After` says (RFC 9110, section 10.2.3): seconds, or a date.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_and_then_evenly() {
        let (mut pace, t) = (Pace::new(Some(10), Some(3)), Instant::now());
        let waits: Vec<_> = (0..5).map(|_| pace.take(t, SECOND).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(
            pace.take(t, Duration::from_millis(100)).as_millis(),
            300,
            "and not taken"
        );
        assert_eq!(pace.take(t + SECOND, SECOND).as_millis(), 0);
        let mut free = Pace::new(None, None);
        assert!((0..1000).all(|_| free.take(t, SECOND).is_zero()));
    }

    #[test]
    fn the_server_is_left_alone_for_as_long_as_it_asks() {
        let (mut pace, t) = (Pace::new(None, None), Instant::now());
        pace.pause(t, 7 * SECOND);
        pace.pause(t, 3 * SECOND);
        assert_eq!(pace.take(t + SECOND, SECOND), 6 * SECOND);
        assert!(pace.take(t + 7 * SECOND, SECOND).is_zero());
        pace.pause(t, Duration::from_secs(u64::MAX));
        assert_eq!(pace.take(t, SECOND), LONGEST);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after(" 120", now), Some(120 * SECOND));
        assert_eq!(
            retry_after("Sun, 06 Nov 1994 08:49:47 GMT", now),
            Some(10 * SECOND)
        );
        assert_eq!(
            retry_after("Sat, 06 Nov 1993 08:49:47 GMT", now),
            Some(Duration::ZERO)
        );
        assert_eq!(retry_after("soon", now), None);
    }

    proptest! {
        /// In any second no more than the rate and the burst.
        #[test]
        fn never_faster(rate in 1..50u32, burst in 1..20u32, gaps in proptest::collection::vec(0..200u64, 1..200)) {
            let (mut pace, start) = (Pace::new(Some(rate), Some(burst)), Instant::now());
            let (mut now, mut sent) = (start, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                let wait = pace.take(now, SECOND);
                if wait <= SECOND { sent.push(now + wait); }
            }
            for at in &sent {
                let within = sent.iter().filter(|s| **s >= *at && **s < *at + SECOND).count();
                prop_assert!(within <= (rate + burst) as usize);
            }
        }

        /// However much fails: no more retries than a tenth of the requests and what there was at first.
        #[test]
        fn retries_are_a_part(requests in 1..500u32) {
            let mut pace = Pace::new(None, None);
            let mut retried = 0;
            for _ in 0..requests {
                pace.earn();
                while pace.retry() { retried += 1; }
            }
            prop_assert!(retried <= requests / 10 + INITIAL / COST);
        }
    }
}
