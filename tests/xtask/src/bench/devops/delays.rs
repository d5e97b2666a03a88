//! Delays of heartbeats.

/// Interval of the heartbeats of a running deployment.
const HEARTBEAT_INTERVAL_MS: u64 = 30_000;

/// The delays of the heartbeats that were due in a time: by how much more than the interval they followed the one before. One that
/// has not come until `end` is as late as that.
pub fn find_delays(series: &[Vec<u64>], from: u64, until: u64, end: u64) -> Vec<u64> {
    let mut delays = Vec::new();
    for times in series {
        let due = |at: u64| at + HEARTBEAT_INTERVAL_MS;
        let is_here = |at: u64| (from..until).contains(&due(at));
        let pairs = times.windows(2).filter(|pair| is_here(pair[0]));
        delays.extend(pairs.map(|pair| pair[1].saturating_sub(due(pair[0]))));
        let open = times.last().filter(|at| is_here(**at) && due(**at) < end);
        delays.extend(open.map(|at| end - due(*at)));
    }
    delays.sort_unstable();
    delays
}

/// The value below which this share of the sorted values is.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).ceil() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_counts_from_the_interval_and_belongs_to_the_time_it_was_due() {
        let series = [vec![0, 30_100, 66_100], vec![1_000, 30_500]];
        // Due at 30.0 and 31.0 s; the second came early, as after a restart.
        assert_eq!(find_delays(&series, 0, 40_000, 66_200), [0, 100]);
        // Due at 60.1 s, and one at 60.5 s that has not come.
        assert_eq!(find_delays(&series, 40_000, 66_200, 66_200), [5_700, 6_000]);
    }

    #[test]
    fn percentile_of_few_values_is_one_of_them() {
        assert_eq!(
            [0.5, 0.99, 1.0].map(|share| percentile(&[1, 2, 3], share)),
            [2, 3, 3]
        );
        assert_eq!(percentile(&[], 0.5), 0);
    }
}
