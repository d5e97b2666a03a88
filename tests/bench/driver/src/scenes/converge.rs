//! Existing objects at the start of an operator. The same process then reconciles all of them without changes ([`noop`]), and objects of
//! which each reads one that changes ([`fanout`]).

use std::time::Instant;

use anyhow::Result;
use serde_json::Value;

use super::{SceneStage, fanout, noop, per_second, report_requests, wait_reached};
use crate::{
    api::{Requests, add_requests, config_maps_path, mean_requests, requests_since, samples_path},
    observer::{ObservedObject, Observer},
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, RunningSubject},
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
            "noop" => noop::measure(stage, &mut running, report, n, rounds).await?,
            _ => fanout::measure(stage, &mut running, report, n, rounds).await?,
        }
    }
    running.process.terminate().await
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
