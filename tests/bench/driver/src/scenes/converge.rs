//! Existing objects at the start of an operator; then all of them again without changes; then a change of an object
//! that all of them read.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::{Stage, told};
use crate::{
    api::{config_maps, requests_since, samples},
    observer::{Object, Observer},
    report::{Report, print_progress},
    subject::{Running, Subject},
    work,
};

/// Runs one subject with `n` objects.
pub async fn run(stage: &Stage, subject: Subject, n: usize, rounds: usize) -> Result<()> {
    let report = stage.bench("converge").map(|bench| Report { bench, subject });
    let creating = (0..n).map(|i| work::sample(&work::name("a", i), None));
    stage
        .cluster
        .create_all(&samples(), creating, |done| {
            print_progress(format!("{done} objects made"))
        })
        .await?;
    if subject.is_raw() {
        return raw(stage, subject, report).await;
    }
    let before = stage.cluster.requests().await?;
    let observer = Observer::start(&stage.cluster, &samples(), Object::ready).await?;
    let started = Instant::now();
    print_progress(format!("{}: converging {n}", subject.name()));
    let mut running = Running::start(stage, subject, None).await?;
    if !reaches(&observer, n, stage.limit).await? {
        running.process.check_running()?;
        let done = observer.count();
        let note = format!("{done} of {n} objects in {} s", stage.limit.as_secs());
        for bench in &stage.benches {
            Report { bench, subject }.note(&note);
        }
        return running.process.end().await;
    }
    let usage = running.process.usage()?;
    let requests = requests_since(&before, &stage.cluster.requests().await?);
    if let Some(report) = report {
        let (first, last) = observer.span()?;
        report.value("throughput", rate(n - 1, last - first), "objects/s");
        report.value("start_s", (first - started).as_secs_f64(), "s");
        report.value("total_s", (last - started).as_secs_f64(), "s");
        report.value("rss_peak", usage.rss_peak, "bytes");
        report.value("rss_anon", usage.rss_anon, "bytes");
        report.value("cpu_seconds", usage.cpu_seconds, "s");
        told(report, &requests);
    }
    drop(observer);
    for kind in ["noop", "fanout"] {
        let Some(bench) = stage.bench(kind) else { continue };
        let report = Report { bench, subject };
        if subject == Subject::Kopf {
            report.note(match kind {
                "noop" => "has no way to reconcile everything again",
                _ => "has no way to wake whoever reads an object",
            });
            continue;
        }
        running.process.idle(stage.limit).await?;
        match kind {
            "noop" => noop(stage, &mut running, report, n, rounds).await?,
            _ => fanout(stage, &mut running, report, n).await?,
        }
    }
    running.process.end().await
}

fn rate(n: usize, took: Duration) -> f64 {
    n as f64 / took.as_secs_f64()
}

/// Waits for `n` objects and prints the progress.
async fn reaches(observer: &Observer, n: usize, limit: Duration) -> Result<bool> {
    let began = Instant::now();
    while !observer.reaches(n, Duration::from_secs(2)).await? {
        print_progress(format!("{} of {n}", observer.count()));
        if began.elapsed() > limit {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn raw(stage: &Stage, subject: Subject, report: Option<Report<'_>>) -> Result<()> {
    let list = stage.cluster.get(&samples()).await?;
    let there = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let before = stage.cluster.requests().await?;
    print_progress(format!("{}: {} objects", subject.name(), there.len()));
    let took = work::raw(
        &stage.cluster,
        there,
        stage.workers as usize,
        subject == Subject::RawApply,
    )
    .await?;
    let requests = requests_since(&before, &stage.cluster.requests().await?);
    if let Some(report) = report {
        report.value("throughput", there.len() as f64 / took, "objects/s");
        told(report, &requests);
    }
    Ok(())
}

/// Measures reconciles without changes.
async fn noop(
    stage: &Stage,
    running: &mut Running,
    report: Report<'_>,
    n: usize,
    rounds: usize,
) -> Result<()> {
    print_progress(format!(
        "{}: {rounds} rounds of {n} with nothing to do",
        report.subject.name()
    ));
    running.forget().await?;
    let before = stage.cluster.requests().await?;
    let (mut busy, mut cpu, mut done) = (Duration::ZERO, 0.0, 0);
    for _ in 0..rounds {
        let (used, told) = (running.process.usage()?, Instant::now());
        running.resync().await?;
        // The queue merges an object that is due twice, so that a round ends when the count no longer grows.
        let mut last = (running.reconciles().await?, Instant::now());
        let wanted = done + n as u64;
        while last.0 < wanted {
            // Polling costs the subject CPU time, too.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = running.reconciles().await?;
            if now != last.0 {
                last = (now, Instant::now());
            }
            if told.elapsed() > stage.limit {
                bail!("{}: {now} of {wanted} reconciles", report.subject.name());
            }
        }
        busy += last.1 - told;
        cpu += running.process.usage()?.cpu_seconds - used.cpu_seconds;
        done = last.0;
        running.process.idle(stage.limit).await?;
    }
    let writes = requests_since(&before, &stage.cluster.requests().await?);
    let percentiles = running.percentiles().await?;
    report.value("throughput", done as f64 / busy.as_secs_f64(), "reconciles/s");
    report.value("per_second_per_core", done as f64 / cpu, "reconciles/s");
    report.value("cpu_seconds", cpu, "s");
    report.value("p50_us", percentiles.p50_us, "us");
    report.value("p99_us", percentiles.p99_us, "us");
    told(report, &writes);
    Ok(())
}

/// Measures a change of an object that `n` objects read.
async fn fanout(stage: &Stage, running: &mut Running, report: Report<'_>, n: usize) -> Result<()> {
    let cluster = &stage.cluster;
    let shared = config_maps();
    cluster.create(&shared, &work::shared("before")).await?;
    let ready = Observer::start(cluster, &samples(), |o| {
        o.metadata.name.starts_with("f-") && o.ready()
    })
    .await?;
    let creating = (0..n).map(|i| work::sample(&work::name("f", i), Some(work::SHARED_CONFIG_MAP)));
    let began = Instant::now();
    cluster.create_all(&samples(), creating, |_| ()).await?;
    if !reaches(&ready, n, stage.limit).await? {
        bail!("{}: {} of {n} Ready", report.subject.name(), ready.count());
    }
    // These objects are created while the operator runs.
    report.value(
        "running_throughput",
        rate(n, ready.span()?.1 - began),
        "objects/s",
    );
    drop(ready);
    running.process.idle(stage.limit).await?;

    let changed = Observer::start(cluster, &shared, |o| {
        o.metadata.name.starts_with("f-") && o.value() == Some("after")
    })
    .await?;
    let before = cluster.requests().await?;
    let used = running.process.usage()?;
    let began = Instant::now();
    print_progress(format!(
        "{}: what {n} objects read changes",
        report.subject.name()
    ));
    let path = format!("{shared}/{}", work::SHARED_CONFIG_MAP);
    cluster.merge(&path, &json!({"data": {"value": "after"}})).await?;
    if !reaches(&changed, n, stage.limit).await? {
        bail!("{}: {} of {n} changed", report.subject.name(), changed.count());
    }
    let (first, last) = changed.span()?;
    let cpu = running.process.usage()?.cpu_seconds - used.cpu_seconds;
    // The request that makes the change is not counted.
    let mut requests = requests_since(&before, &cluster.requests().await?);
    requests.entry("PATCH".into()).and_modify(|n| *n -= 1);
    requests.retain(|_, n| *n > 0);
    report.value("throughput", rate(n, last - began), "objects/s");
    report.value("first_s", (first - began).as_secs_f64(), "s");
    report.value("total_s", (last - began).as_secs_f64(), "s");
    report.value("cpu_seconds", cpu, "s");
    told(report, &requests);
    Ok(())
}
