//! The rate of requests to an upstream (`spec.limits` and the server's `Retry-After`), and the budget of retries.

use std::time::{Duration, Instant, SystemTime};

/// Maximum wait that a server can ask for; then the next request is sent.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Balance of the retry budget, in hundredths of a retry: the credit for each request, and the maximum.
const EARNED_PER_REQUEST: u32 = 10;
const MAX_BALANCE: u32 = 1000;
/// Balance at the start.
const INITIAL_BALANCE: u32 = 300;
/// Price of a retry.
const RETRY_COST: u32 = 100;

/// A rate limiter by the generic cell rate algorithm. It is pure: callers pass the time.
#[derive(Debug)]
pub struct RateLimiter {
    /// Interval between requests; `None` for no limit.
    interval: Option<Duration>,
    /// The burst, as time.
    tolerance: Duration,
    /// The slot of the next request at an even rate.
    next_slot: Option<Instant>,
    /// End of the wait that the server asked for.
    paused_until: Option<Instant>,
}

impl RateLimiter {
    /// Allows `per_second` requests with bursts of `burst`; `None` for no limit.
    pub fn new(per_second: Option<u32>, burst: Option<u32>) -> Self {
        let interval = per_second.map(|n| Duration::from_secs(1) / n.max(1));
        let burst = burst.or(per_second).unwrap_or(1).max(1);
        Self {
            interval,
            tolerance: interval.unwrap_or_default() * (burst - 1),
            next_slot: None,
            paused_until: None,
        }
    }

    /// The wait until the next slot. The slot is taken only if the wait is at most `max_wait`.
    pub fn reserve_slot(&mut self, now: Instant, max_wait: Duration) -> Duration {
        let pause = self
            .paused_until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let Some(interval) = self.interval else {
            return pause;
        };
        let next = self.next_slot.unwrap_or(now).max(now);
        let wait = next.saturating_duration_since(now + self.tolerance).max(pause);
        if wait <= max_wait {
            self.next_slot = Some(next + interval);
        }
        wait
    }

    /// Holds back requests for the wait that the server asks for.
    pub fn pause_for(&mut self, now: Instant, wait: Duration) {
        let until = now + wait.min(MAX_RETRY_AFTER);
        self.paused_until = self.paused_until.max(Some(until));
    }
}

/// The budget of retries: a fraction of the requests, so that retries cannot multiply the load of a failing server.
#[derive(Debug)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    balance: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            balance: INITIAL_BALANCE,
        }
    }
}

impl RetryBudget {
    /// Credits a part of a retry for each new request.
    pub fn credit_request(&mut self) {
        self.balance = (self.balance + EARNED_PER_REQUEST).min(MAX_BALANCE);
    }

    /// Withdraws a retry. Returns false if the balance is too low.
    pub fn withdraw_retry(&mut self) -> bool {
        let left = self.balance.checked_sub(RETRY_COST);
        self.balance = left.unwrap_or(self.balance);
        left.is_some()
    }
}

/// The wait in a `Retry-After` header (RFC 9110, section 10.2.3): seconds, or a date.
pub fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
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
    fn burst_passes_and_then_requests_are_spaced() {
        let (mut limiter, t) = (RateLimiter::new(Some(10), Some(3)), Instant::now());
        let waits: Vec<_> = (0..5)
            .map(|_| limiter.reserve_slot(t, SECOND).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(
            limiter.reserve_slot(t, Duration::from_millis(100)).as_millis(),
            300,
            "and not taken"
        );
        assert_eq!(limiter.reserve_slot(t + SECOND, SECOND).as_millis(), 0);
        let mut free = RateLimiter::new(None, None);
        assert!((0..1000).all(|_| free.reserve_slot(t, SECOND).is_zero()));
    }

    #[test]
    fn retry_after_delays_requests_up_to_maximum() {
        let (mut limiter, t) = (RateLimiter::new(None, None), Instant::now());
        limiter.pause_for(t, 7 * SECOND);
        limiter.pause_for(t, 3 * SECOND);
        assert_eq!(limiter.reserve_slot(t + SECOND, SECOND), 6 * SECOND);
        assert!(limiter.reserve_slot(t + 7 * SECOND, SECOND).is_zero());
        limiter.pause_for(t, Duration::from_secs(u64::MAX));
        assert_eq!(limiter.reserve_slot(t, SECOND), MAX_RETRY_AFTER);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_retry_after(" 120", now), Some(120 * SECOND));
        assert_eq!(
            parse_retry_after("Sun, 06 Nov 1994 08:49:47 GMT", now),
            Some(10 * SECOND)
        );
        assert_eq!(
            parse_retry_after("Sat, 06 Nov 1993 08:49:47 GMT", now),
            Some(Duration::ZERO)
        );
        assert_eq!(parse_retry_after("soon", now), None);
    }

    proptest! {
        /// No second contains more requests than the rate and the burst allow.
        #[test]
        fn rate_and_burst_bound_each_second(rate in 1..50u32, burst in 1..20u32, gaps in proptest::collection::vec(0..200u64, 1..200)) {
            let (mut limiter, start) = (RateLimiter::new(Some(rate), Some(burst)), Instant::now());
            let (mut now, mut sent) = (start, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                let wait = limiter.reserve_slot(now, SECOND);
                if wait <= SECOND { sent.push(now + wait); }
            }
            for at in &sent {
                let within = sent.iter().filter(|s| **s >= *at && **s < *at + SECOND).count();
                prop_assert!(within <= (rate + burst) as usize);
            }
        }

        /// Retries never exceed a tenth of the requests and the initial balance.
        #[test]
        fn retries_are_a_fraction_of_requests(requests in 1..500u32) {
            let mut budget = RetryBudget::default();
            let mut retried = 0;
            for _ in 0..requests {
                budget.credit_request();
                while budget.withdraw_retry() { retried += 1; }
            }
            prop_assert!(retried <= requests / 10 + INITIAL_BALANCE / RETRY_COST);
        }
    }
}
