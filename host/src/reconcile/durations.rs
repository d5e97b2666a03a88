//! Durations of reconciles, counted by their length.

use std::time::Duration;

use histogram::{AtomicHistogram32, SparseHistogram32};

/// Power of two below whose double durations have a bucket for each microsecond; above, a bucket is at most 1/32 of its duration wide.
const GROUPING_POWER: u8 = 5;
/// Power of two in microseconds that durations are counted to: 71 minutes. Longer ones are in the last bucket.
const MAX_VALUE_POWER: u8 = 32;

/// Number of reconciles by their duration since the start of the process: 3.5 KiB, however many there were.
#[derive(Debug)]
pub struct DurationHistogram(AtomicHistogram32);

impl Default for DurationHistogram {
    fn default() -> Self {
        Self(AtomicHistogram32::new(GROUPING_POWER, MAX_VALUE_POWER).expect("the powers are valid"))
    }
}

impl DurationHistogram {
    /// Counts a reconcile.
    pub fn record(&self, took: Duration) {
        let microseconds = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        // Cannot fail: each u32 has a bucket.
        let _ = self.0.increment(microseconds.into());
    }

    /// Returns the counts in microseconds, as the crate `histogram` writes them. Two of them differ by what was counted in between.
    pub fn load(&self) -> SparseHistogram32 {
        SparseHistogram32::from(&self.0.load())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_by_microsecond_when_short_and_however_long() {
        let histogram = DurationHistogram::default();
        for took in [0, 20, 20, 21, u64::MAX] {
            histogram.record(Duration::from_micros(took));
        }
        let buckets = histogram.load();
        let buckets: Vec<_> = buckets
            .iter()
            .map(|bucket| (bucket.start(), bucket.count()))
            .collect();
        assert_eq!(buckets[..3], [(0, 1), (20, 2), (21, 1)]);
        assert_eq!(buckets.len(), 4);
        assert_eq!(buckets[3].1, 1);
    }
}
