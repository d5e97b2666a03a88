//! Existing objects at the start of an operator; then all of them again without changes; then a change of an object
//! that all of them read.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{SceneStage, report_requests};
use crate::{
    api::{Requests, config_maps_path, requests_since, samples_path},
    cores::{NEAR_TRANSFER_NS, measure_line_transfer},
    observer::{ObservedObject, Observer},
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, Percentiles, RunningSubject},
    work,
};

/// Runs one subject with `n` objects.
pub async fn run(stage: &SceneStage, subject: BenchSubject, n: usize, rounds: usize) -> Result<()> {
    let report = stage
        .bench_name("converge")
        .map(|bench| SubjectReport { bench, subject });
    let creating = (0..n).map(|i| work::build_sample(&work::object_name("a", i), None));
    stage
        .cluster
        .create_all(&samples_path(), creating, |done| {
            print_progress(format!("{done} objects created"))
        })
        .await?;
    if subject.is_raw() {
        return measure_raw(stage, subject, rounds).await;
    }
    let before = stage.cluster.count_requests().await?;
    let observer = Observer::start(&stage.cluster, &samples_path(), ObservedObject::is_ready).await?;
    let started = Instant::now();
    print_progress(format!("{}: converging {n}", subject.name()));
    let mut running = RunningSubject::start(stage, subject, None).await?;
    if !wait_reached(&observer, n, stage.limit).await? {
        running.process.check_running()?;
        let done = observer.count();
        let note = format!("{done} of {n} objects in {} s", stage.limit.as_secs());
        for bench in &stage.benches {
            SubjectReport { bench, subject }.report_note(&note);
        }
        return running.process.terminate().await;
    }
    let usage = running.process.read_usage()?;
    let requests = requests_since(&before, &stage.cluster.count_requests().await?);
    if let Some(report) = report {
        let (first, last) = observer.first_and_last()?;
        report.report_value("throughput", per_second(n - 1, last - first), "objects/s");
        report.report_value("start_s", (first - started).as_secs_f64(), "s");
        report.report_value("total_s", (last - started).as_secs_f64(), "s");
        report.report_value("rss_peak", usage.rss_peak, "bytes");
        report.report_value("rss_anon", usage.rss_anon, "bytes");
        report.report_value("cpu_seconds", usage.cpu_seconds, "s");
        report_requests(report, &requests);
    }
    drop(observer);
    for kind in ["noop", "fanout"] {
        let Some(bench) = stage.bench_name(kind) else {
            continue;
        };
        let report = SubjectReport { bench, subject };
        if subject == BenchSubject::Kopf {
            report.report_note(match kind {
                "noop" => "has no way to reconcile everything again",
                _ => "has no way to wake the readers of an object",
            });
            continue;
        }
        running.process.wait_idle(stage.limit).await?;
        match kind {
            "noop" => measure_noop(stage, &mut running, report, n, rounds).await?,
            _ => measure_fanout(stage, &mut running, report, n, rounds).await?,
        }
    }
    running.process.terminate().await
}

fn per_second(n: usize, took: Duration) -> f64 {
    n as f64 / took.as_secs_f64()
}

/// Waits for `n` objects and prints the progress.
async fn wait_reached(observer: &Observer, n: usize, limit: Duration) -> Result<bool> {
    let began = Instant::now();
    while !observer.wait_count(n, Duration::from_secs(2)).await? {
        print_progress(format!("{} of {n}", observer.count()));
        if began.elapsed() > limit {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Measures the writes of an operator by a bare client: those that make objects Ready, and those after changes of what all
/// objects read.
async fn measure_raw(stage: &SceneStage, subject: BenchSubject, rounds: usize) -> Result<()> {
    let list = async |path: &str| -> Result<Vec<Value>> {
        let list = stage.cluster.get(path).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    };
    let there = &list(&samples_path()).await?;
    let (workers, apply) = (stage.workers as usize, subject == BenchSubject::RawApply);
    for kind in ["converge", "fanout"] {
        let rounds = if kind == "converge" { 1 } else { rounds };
        print_progress(format!("{}: {} objects", subject.name(), there.len()));
        let (mut took, mut requests) = (0.0, Requests::new());
        for round in 0..rounds {
            // An operator has them in its cache.
            let children = &list(&config_maps_path()).await?;
            let before = stage.cluster.count_requests().await?;
            took += match kind {
                "converge" => work::send_raw_writes(&stage.cluster, there, workers, apply).await?,
                _ => {
                    let value = work::shared_value(round);
                    work::send_raw_updates(&stage.cluster, there, children, &value, workers, apply).await?
                }
            };
            add_requests(
                &mut requests,
                requests_since(&before, &stage.cluster.count_requests().await?),
            );
        }
        if let Some(bench) = stage.bench_name(kind) {
            let report = SubjectReport { bench, subject };
            report.report_value("throughput", (rounds * there.len()) as f64 / took, "objects/s");
            report_requests(report, &mean_requests(requests, rounds));
        }
    }
    Ok(())
}

/// Adds the requests of one round to those of the rounds before.
fn add_requests(total: &mut Requests, of_round: Requests) {
    for (verb, n) in of_round {
        *total.entry(verb).or_default() += n;
    }
}

/// Divides the requests of all rounds by their number.
fn mean_requests(mut total: Requests, rounds: usize) -> Requests {
    total.values_mut().for_each(|n| *n /= rounds as u64);
    total.retain(|_, n| *n > 0);
    total
}

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
async fn measure_noop(
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
        all.push(measure_noop_round(stage, running, report.subject, n).await?);
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
    report_noop_rounds(report, main, "");
    if has_both {
        report_noop_rounds(report, &far, "_far");
    }
    report.report_value("rss_peak", running.process.read_usage()?.rss_peak, "bytes");
    report_requests(report, &writes);
    Ok(())
}

/// Measures one round of reconciles without changes.
async fn measure_noop_round(
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
fn report_noop_rounds(report: SubjectReport<'_>, rounds: &[NoopRound], suffix: &str) {
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

/// Measures changes of an object that `n` objects read, one after the other.
async fn measure_fanout(
    stage: &SceneStage,
    running: &mut RunningSubject,
    report: SubjectReport<'_>,
    n: usize,
    rounds: usize,
) -> Result<()> {
    let cluster = &stage.cluster;
    let shared = config_maps_path();
    cluster.create(&shared, &work::build_shared("before")).await?;
    let ready = Observer::start(cluster, &samples_path(), |o| {
        o.metadata.name.starts_with("f-") && o.is_ready()
    })
    .await?;
    let creating =
        (0..n).map(|i| work::build_sample(&work::object_name("f", i), Some(work::SHARED_CONFIG_MAP)));
    let began = Instant::now();
    cluster.create_all(&samples_path(), creating, |_| ()).await?;
    if !wait_reached(&ready, n, stage.limit).await? {
        bail!("{}: {} of {n} Ready", report.subject.name(), ready.count());
    }
    // These objects are created while the operator runs.
    report.report_value(
        "running_throughput",
        per_second(n, ready.first_and_last()?.1 - began),
        "objects/s",
    );
    drop(ready);
    running.process.wait_idle(stage.limit).await?;

    let path = format!("{shared}/{}", work::SHARED_CONFIG_MAP);
    let (mut to_first, mut to_all, mut cpu, mut requests) =
        (Duration::ZERO, Duration::ZERO, 0.0, Requests::new());
    for round in 0..rounds {
        let value = work::shared_value(round);
        let wanted = value.clone();
        let changed = Observer::start(cluster, &shared, move |o| {
            o.metadata.name.starts_with("f-") && o.value() == Some(&wanted)
        })
        .await?;
        let before = cluster.count_requests().await?;
        let used = running.process.read_usage()?;
        let began = Instant::now();
        print_progress(format!(
            "{}: what {n} objects read changes",
            report.subject.name()
        ));
        cluster
            .merge_patch(&path, &json!({"data": {"value": value}}))
            .await?;
        if !wait_reached(&changed, n, stage.limit).await? {
            bail!("{}: {} of {n} changed", report.subject.name(), changed.count());
        }
        let (first, last) = changed.first_and_last()?;
        to_first += first - began;
        to_all += last - began;
        cpu += running.process.read_usage()?.cpu_seconds - used.cpu_seconds;
        // The request that makes the change is not counted.
        let mut of_round = requests_since(&before, &cluster.count_requests().await?);
        of_round.entry("PATCH".into()).and_modify(|n| *n -= 1);
        add_requests(&mut requests, of_round);
        running.process.wait_idle(stage.limit).await?;
    }
    let mean = |total: Duration| total.as_secs_f64() / rounds as f64;
    report.report_value("throughput", per_second(n * rounds, to_all), "objects/s");
    report.report_value("first_s", mean(to_first), "s");
    report.report_value("total_s", mean(to_all), "s");
    report.report_value("cpu_seconds", cpu / rounds as f64, "s");
    report_requests(report, &mean_requests(requests, rounds));
    Ok(())
}
