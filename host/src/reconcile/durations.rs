//! Durations of the first reconciles of a process, for benchmarks. A production image is built without them.

use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

/// Maximum number of reconciles whose durations are kept.
const MAX_SAMPLES: usize = 100_000;

/// Durations of reconciles, in their order.
#[derive(Debug, Default)]
pub struct ReconcileDurations(Mutex<Vec<Sample>>);

/// Durations of one reconcile in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// Of the component's call.
    call_us: u32,
    /// Of the whole reconcile.
    whole_us: u32,
}

/// Number and percentiles of reconciles.
#[derive(Debug, Serialize)]
pub struct DurationSummary {
    /// Number of reconciles.
    reconciles: usize,
    /// The reconcile at the median and the 99th percentile of what the host adds to the component's call.
    p50: Option<Sample>,
    p99: Option<Sample>,
    /// Percentiles of the whole reconcile.
    whole_p50_us: Option<u32>,
    whole_p99_us: Option<u32>,
}

impl ReconcileDurations {
    /// Adds a reconcile.
    pub fn record(&self, call: Duration, whole: Duration) {
        let microseconds = |took: Duration| u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let mut samples = self.0.lock();
        if samples.len() < MAX_SAMPLES {
            samples.push(Sample {
                call_us: microseconds(call),
                whole_us: microseconds(whole),
            });
        }
    }

    /// Number of reconciles whose durations are kept.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The reconciles without the first `after` ones.
    pub fn summarize(&self, after: usize) -> DurationSummary {
        let mut samples = self.0.lock().get(after..).unwrap_or_default().to_vec();
        let mut select = |percent: usize, key: fn(&Sample) -> u32| {
            let rank = samples.len() * percent / 100;
            (!samples.is_empty()).then(|| *samples.select_nth_unstable_by_key(rank, key).1)
        };
        let overhead = |sample: &Sample| sample.whole_us.saturating_sub(sample.call_us);
        let (p50, p99) = (select(50, overhead), select(99, overhead));
        let whole = |sample: &Sample| sample.whole_us;
        let (whole_p50, whole_p99) = (select(50, whole), select(99, whole));
        DurationSummary {
            reconciles: samples.len(),
            p50,
            p99,
            whole_p50_us: whole_p50.map(|sample| sample.whole_us),
            whole_p99_us: whole_p99.map(|sample| sample.whole_us),
        }
    }
}
