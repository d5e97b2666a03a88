//! Reconciles without changes, in rounds of all objects.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::spawn_blocking;

use super::{SceneStage, report_requests};
use crate::{
    api::requests_since,
    cores::{NEAR_TRANSFER_NS, measure_line_transfer},
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, Percentiles, RunningSubject},
};

/// Time for which rounds without changes go on until both distances of the cores had their share.
const MAX_NOOP_TIME: Duration = Duration::from_secs(45);

/// A round of reconciles without changes.
struct NoopRound {
    reconciles: u64,
    busy: Duration,
    cpu_seconds: f64,
    percentiles: Percentiles,
    /// Nanoseconds in which a cache line got from core to core, before the round and after it.
    transfers: Vec<f64>,
}

impl NoopRound {
    /// Returns true if the cores were near each other for the whole round, false if they were far, none if they were moved.
    fn is_near(&self) -> Option<bool> {
        let mut near = self.transfers.iter().map(|ns| *ns < NEAR_TRANSFER_NS);
        let first = near.next().unwrap_or(true);
        near.all(|near| near == first).then_some(first)
    }
}

/// Measures reconciles without changes, at the distances of the cores that the machine has meanwhile.
pub(super) async fn measure(
    stage: &SceneStage,
    running: &mut RunningSubject,
    report: SubjectReport<'_>,
    n: usize,
    rounds: usize,
) -> Result<()> {
    print_progress(format!(
        "{}: {rounds} rounds of {n} with nothing to do",
        report.subject.name()
    ));
    let before = stage.cluster.count_requests().await?;
    let began = Instant::now();
    let mut all: Vec<NoopRound> = Vec::new();
    let lacks = |all: &[NoopRound], near: bool| {
        all.iter().filter(|round| round.is_near() == Some(near)).count() < rounds
    };
    while all.len() < rounds || (began.elapsed() < MAX_NOOP_TIME && (lacks(&all, true) || lacks(&all, false)))
    {
        all.push(measure_round(stage, running, report.subject, n).await?);
    }
    let writes = requests_since(&before, &stage.cluster.count_requests().await?);
    let (mut near, mut far, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    for round in all {
        match round.is_near() {
            Some(true) => near.push(round),
            Some(false) => far.push(round),
            None => moved.push(round),
        }
    }
    let has_both = !near.is_empty() && !far.is_empty();
    let main = [&near, &far, &moved]
        .into_iter()
        .find(|rounds| !rounds.is_empty());
    let main = main.context("no rounds")?;
    let busy: Duration = main.iter().map(|round| round.busy).sum();
    let reconciles: u64 = main.iter().map(|round| round.reconciles).sum();
    report.report_value(
        "throughput",
        reconciles as f64 / busy.as_secs_f64(),
        "reconciles/s",
    );
    report_rounds(report, main, "");
    if has_both {
        report_rounds(report, &far, "_far");
    }
    report.report_value("rss_peak", running.process.read_usage()?.rss_peak, "bytes");
    report_requests(report, &writes);
    Ok(())
}

/// Measures one round of reconciles without changes.
async fn measure_round(
    stage: &SceneStage,
    running: &mut RunningSubject,
    subject: BenchSubject,
    n: usize,
) -> Result<NoopRound> {
    running.reset_stats().await?;
    let mut transfers = Vec::from_iter(spawn_blocking(measure_line_transfer).await?);
    let (used, started) = (running.process.read_usage()?, Instant::now());
    running.reconcile_all().await?;
    // The queue merges an object that is due twice, so that a round ends when the count no longer grows.
    let mut last = (running.count_reconciles().await?, Instant::now());
    while last.0 < n as u64 {
        // Polling costs the subject CPU time, too.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = running.count_reconciles().await?;
        if now != last.0 {
            last = (now, Instant::now());
        }
        if started.elapsed() > stage.limit {
            bail!("{}: {now} of {n} reconciles", subject.name());
        }
    }
    let cpu_seconds = running.process.read_usage()?.cpu_seconds - used.cpu_seconds;
    transfers.extend(spawn_blocking(measure_line_transfer).await?);
    let percentiles = running.reconcile_percentiles().await?;
    let ns: Vec<String> = transfers.iter().map(|ns| format!("{ns:.0}")).collect();
    print_progress(format!(
        "{} reconciles in {cpu_seconds:.2} s of CPU time, {} ns from core to core",
        last.0,
        ns.join(" and ")
    ));
    running.process.wait_idle(stage.limit).await?;
    Ok(NoopRound {
        reconciles: last.0,
        busy: last.1 - started,
        cpu_seconds,
        percentiles,
        transfers,
    })
}

/// Reports rounds without changes at one distance of the cores.
fn report_rounds(report: SubjectReport<'_>, rounds: &[NoopRound], suffix: &str) {
    let reconciles: u64 = rounds.iter().map(|round| round.reconciles).sum();
    let cpu_seconds: f64 = rounds.iter().map(|round| round.cpu_seconds).sum();
    let name = |metric: &str| format!("{metric}{suffix}");
    report.report_value(
        &name("per_second_per_core"),
        reconciles as f64 / cpu_seconds,
        "reconciles/s",
    );
    let p50 = rounds.iter().map(|round| round.percentiles.p50_us as f64);
    let p99 = rounds.iter().map(|round| round.percentiles.p99_us as f64);
    let transfers = rounds.iter().flat_map(|round| &round.transfers).copied();
    for (metric, median, unit) in [
        ("p50_us", find_median(p50), "us"),
        ("p99_us", find_median(p99), "us"),
        ("line_transfer_ns", find_median(transfers), "ns"),
    ] {
        if let Some(median) = median {
            report.report_value(&name(metric), median, unit);
        }
    }
}

fn find_median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
