//! Counters of the host.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::demo::stage::DemoStage;

/// Requests by what they were sent to.
pub type TargetCounts = BTreeMap<String, f64>;

/// The counters of the host.
pub struct CounterSnapshot {
    pub reconciles: u64,
    pub requests: TargetCounts,
    pub cpu_seconds: f64,
}

impl CounterSnapshot {
    /// Reads them.
    pub fn read(stage: &DemoStage) -> Result<Self> {
        let metrics = stage.metrics()?;
        Ok(Self {
            reconciles: count_reconciles(&metrics),
            requests: count_requests(&metrics),
            cpu_seconds: stage.host_cpu_seconds().unwrap_or(0.0),
        })
    }
}

/// Sums the requests of the host in its metrics: to the API server by method, and to each upstream.
fn count_requests(metrics: &str) -> TargetCounts {
    let mut counts = TargetCounts::new();
    for line in metrics.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let label = |name: &str| Some(find_label(series, name)?.to_owned());
        let name = match series.split_once('{') {
            Some(("rest_client_requests_total", _)) => label("method").map(|m| format!("API {m}")),
            Some(("ostler_upstream_requests_total", _)) => label("upstream").map(|u| format!("upstream {u}")),
            _ => None,
        };
        if let (Some(name), Ok(value)) = (name, value.parse::<f64>()) {
            *counts.entry(name).or_default() += value;
        }
    }
    counts
}

/// Finds the value of a label of a series.
fn find_label<'a>(series: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = series.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0)
}

/// Sums the reconciles of all plugins.
pub fn count_reconciles(metrics: &str) -> u64 {
    sum_series(metrics, |series| {
        series.starts_with("controller_runtime_reconcile_total{")
    })
}

/// Sums the messages that were handled and acknowledged.
pub fn count_acknowledged(metrics: &str) -> u64 {
    sum_series(metrics, |series| {
        series.starts_with("ostler_messages_handled_total{")
            && find_label(series, "result") == Some("acknowledged")
    })
}

fn sum_series(metrics: &str, is_counted: impl Fn(&str) -> bool) -> u64 {
    let series = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let counted = series.filter(|(series, _)| is_counted(series));
    counted
        .filter_map(|(_, value)| value.parse::<f64>().ok())
        .sum::<f64>() as u64
}

/// Sums the writes of all objects to the API server.
pub fn count_writes(stage: &DemoStage) -> Result<u64> {
    Ok(stage.objects()?.iter().map(|object| object.api_writes).sum())
}

/// The requests between two snapshots.
pub fn subtract(now: &TargetCounts, before: &TargetCounts) -> TargetCounts {
    let since = now.iter().map(|(name, n)| {
        let earlier = before.get(name).copied().unwrap_or(0.0);
        (name.clone(), (n - earlier).max(0.0))
    });
    since.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_method_and_upstream() {
        let metrics = "rest_client_requests_total{code=\"200\",method=\"PATCH\",host=\"h\"} 3\n\
            rest_client_requests_total{code=\"409\",method=\"PATCH\",host=\"h\"} 1\n\
            ostler_upstream_requests_total{upstream=\"ns/git\",code=\"200\"} 2\nother{method=\"GET\"} 9\n";
        let counts = count_requests(metrics);
        assert_eq!(
            counts,
            TargetCounts::from([("API PATCH".into(), 4.0), ("upstream ns/git".into(), 2.0)])
        );
        assert_eq!(subtract(&counts, &counts)["API PATCH"], 0.0);
    }

    #[test]
    fn acknowledged_messages_of_all_queues_are_summed() {
        let line = |queue: &str, result: &str, n: u32| {
            format!(
                "ostler_messages_handled_total{{plugin=\"p\",upstream=\"u\",queue=\"{queue}\",result=\"{result}\"}} {n}\n"
            )
        };
        let metrics = [
            line("a", "acknowledged", 3),
            line("a", "retried", 5),
            line("b", "acknowledged", 4),
            "ostler_messages_in_flight{result=\"acknowledged\"} 9\n".into(),
        ];
        assert_eq!(count_acknowledged(&metrics.concat()), 7);
    }
}
