//! The rate of a plugin's log lines: its reconciles are limited one by one, and there may be many of them.

use std::time::{Duration, Instant};

/// Period of the limit. After a pause of this length, all lines of a period may be written at once.
const RATE_PERIOD: Duration = Duration::from_secs(60);

/// Token bucket of log lines, represented by the time at which it will be full again. It is pure: callers pass the time.
#[derive(Debug, Default)]
pub struct LogRate {
    full_at: Option<Instant>,
    warned_at: Option<Instant>,
}

/// Decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineVerdict {
    /// The line may be written.
    Allowed,
    /// The line is dropped.
    Dropped {
        /// True once in a minute: the limit should be logged.
        warn: bool,
    },
}

impl LogRate {
    /// Takes a line from the bucket, which `per_minute` refills.
    pub fn take_line(&mut self, now: Instant, per_minute: u32) -> LineVerdict {
        let full_at = self.full_at.unwrap_or(now).max(now) + RATE_PERIOD / per_minute.max(1);
        if full_at <= now + RATE_PERIOD {
            self.full_at = Some(full_at);
            return LineVerdict::Allowed;
        }
        let warn = self
            .warned_at
            .is_none_or(|at| now.duration_since(at) >= RATE_PERIOD);
        if warn {
            self.warned_at = Some(now);
        }
        LineVerdict::Dropped { warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_dropped_with_one_warning_per_minute() {
        let (mut rate, start) = (LogRate::default(), Instant::now());
        let mut lines = |second: u64, count: usize| {
            let now = start + Duration::from_secs(second);
            let verdicts: Vec<_> = (0..count).map(|_| rate.take_line(now, 60)).collect();
            let of = |verdict| verdicts.iter().filter(|v| **v == verdict).count();
            (of(LineVerdict::Allowed), of(LineVerdict::Dropped { warn: true }))
        };
        assert_eq!(lines(0, 100), (60, 1));
        assert_eq!(lines(1, 100), (1, 0));
        assert_eq!(lines(30, 100), (29, 0));
        assert_eq!(lines(61, 10), (10, 0));
        assert_eq!(lines(61, 100), (21, 1));
        assert_eq!(lines(1000, 100), (60, 1));
    }
}
