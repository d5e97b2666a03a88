//! Changes of an object that many others read, each of which is written in turn.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::{SceneStage, per_second, report_requests, wait_reached};
use crate::{
    api::{Requests, add_requests, config_maps_path, mean_requests, requests_since, samples_path},
    observer::Observer,
    report::{SubjectReport, print_progress},
    subject::RunningSubject,
    work,
};

/// Measures changes of an object that `n` objects read, one after the other.
pub(super) async fn measure(
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
