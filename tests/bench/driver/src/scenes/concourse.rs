//! A whole Concourse: from an empty server until all objects are reconciled, then the steady state; compared with the
//! requests of concourse-operator, computed from its code.

mod load;
mod objects;
mod server;

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use self::{
    load::LoadShape,
    server::{SimulatorCounters, SimulatorServer},
};
use super::{SceneStage, report_requests};
use crate::{
    api::{Cluster, requests_since},
    observer::Observer,
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, RunningSubject},
};

/// API path of the pack's namespace.
const GROUP_PATH: &str = "/apis/concourse-ci.org/v1alpha1/namespaces/bench";
/// Resources whose API requests are counted.
const COUNTED_RESOURCES: [&str; 8] = [
    "instances",
    "teams",
    "pipelines",
    "jobs",
    "builds",
    "upstreams",
    "secrets",
    "events",
];

fn collection_path(plural: &str) -> String {
    format!("{GROUP_PATH}/{plural}")
}

/// Runs one subject with this number of pipelines.
pub async fn run(
    stage: &SceneStage,
    subject: BenchSubject,
    pipelines: usize,
    window: Duration,
) -> Result<()> {
    let report = SubjectReport {
        bench: "concourse",
        subject,
    };
    let shape = LoadShape::for_pipelines(pipelines);
    match subject {
        BenchSubject::Ostler => measure_pack(stage, report, shape, window).await,
        BenchSubject::Original => {
            report_original(report, shape);
            Ok(())
        }
        _ => bail!("{} has no Concourse pack", subject.name()),
    }
}

/// Reports the computed requests of the original.
fn report_original(report: SubjectReport<'_>, shape: LoadShape) {
    const UNIT: &str = "requests/min, computed";
    let load = load::original_load(shape);
    report.report_value("requests_per_minute", load::sum_requests(&load), UNIT);
    report.report_value("writes_per_minute", load::sum_writes(&load), UNIT);
    for part in &load {
        let metric = format!("requests_per_minute.{}", part.kind);
        report.report_value(&metric, part.requests_per_minute(), UNIT);
    }
    report.report_note(&format!("computed, not run: {}", load::format_sum(&load)));
}

async fn measure_pack(
    stage: &SceneStage,
    report: SubjectReport<'_>,
    shape: LoadShape,
    window: Duration,
) -> Result<()> {
    let cluster = &stage.cluster;
    let crds = stage.programs.crds.as_deref().context("--crds is not given")?;
    install_crds(cluster, crds).await?;
    let simulator = stage.programs.simulator.as_deref();
    let server =
        SimulatorServer::start(simulator.context("--simulator is not given")?, &stage.folder).await?;
    let watched = start_observers(cluster, shape).await?;
    create_objects(cluster, shape, server.url()).await?;

    let before = cluster.count_requests_of(&COUNTED_RESOURCES).await?;
    print_progress(format!("from nothing to {} objects", shape.object_count()));
    let started = Instant::now();
    let mut running = RunningSubject::start_pack(stage).await?;
    for (kind, observer, wanted) in &watched {
        while !observer.wait_count(*wanted, Duration::from_secs(2)).await? {
            print_progress(format!("{} of {wanted} {kind}", observer.count()));
            running.process.check_running()?;
            if started.elapsed() > stage.limit {
                bail!("{} of {wanted} {kind} are reconciled", observer.count());
            }
        }
    }
    let mut last = started;
    for (_, observer, _) in &watched {
        last = last.max(observer.first_and_last()?.1);
    }
    let first = server.fetch_counters().await?;
    if first.triggers != shape.builds as u64 {
        bail!(
            "{} builds were triggered for {} Builds",
            first.triggers,
            shape.builds
        );
    }
    report.report_value("total_s", (last - started).as_secs_f64(), "s");
    report.report_value("start_requests", first.total_requests(), "requests");
    for (kind, n) in by_kind(&first) {
        report.report_value(&format!("start_requests.{kind}"), n, "requests");
    }
    report.report_value("start_logins", first.logins, "requests");
    report.report_value(
        "start_cpu_seconds",
        running.process.read_usage()?.cpu_seconds,
        "s",
    );
    let writes = requests_since(&before, &cluster.count_requests_of(&COUNTED_RESOURCES).await?);
    report.report_value("start_api_requests", writes.values().sum::<u64>(), "requests");
    drop(watched);

    // Each object's interval starts with its last reconcile. Starting a quarter of the window later, every interval
    // of five minutes ends equally often within the window, and none ends at its edges.
    print_progress(format!(
        "steady after {} s, for {} s",
        (window / 4).as_secs(),
        window.as_secs()
    ));
    tokio::time::sleep(window / 4).await;
    let (before, used) = (
        cluster.count_requests_of(&COUNTED_RESOURCES).await?,
        running.process.read_usage()?,
    );
    server.reset_counters().await?;
    let began = Instant::now();
    tokio::time::sleep(window).await;
    let steady = server.fetch_counters().await?;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let usage = running.process.read_usage()?;
    report_requests(
        report,
        &requests_since(&before, &cluster.count_requests_of(&COUNTED_RESOURCES).await?),
    );
    report_rates(report, &steady, minutes);
    report.report_value("window_s", minutes * 60.0, "s");
    report.report_value("rss", usage.rss, "bytes");
    report.report_value("rss_peak", usage.rss_peak, "bytes");
    report.report_value("cpu_seconds", usage.cpu_seconds - used.cpu_seconds, "s");
    running.process.check_running()?;
    running.process.terminate().await?;
    server.terminate().await
}

/// Reports the requests to Concourse per minute.
fn report_rates(report: SubjectReport<'_>, counters: &SimulatorCounters, minutes: f64) {
    let value = |metric: &str, n: u64| report.report_value(metric, n as f64 / minutes, "requests/min");
    value("requests_per_minute", counters.total_requests());
    value("writes_per_minute", counters.writes);
    for (kind, n) in by_kind(counters) {
        value(&format!("requests_per_minute.{kind}"), n);
    }
}

/// Sums the requests by the kind of the object they belong to.
fn by_kind(counters: &SimulatorCounters) -> BTreeMap<&'static str, u64> {
    let mut by_kind: BTreeMap<_, u64> = load::LOADED_KINDS.iter().map(|kind| (*kind, 0)).collect();
    for (route, n) in &counters.routes {
        *by_kind.entry(load::kind_of(route)).or_default() += n;
    }
    by_kind
}

/// Installs the pack's CRDs and waits until they are served.
async fn install_crds(cluster: &Cluster, crds: &Path) -> Result<()> {
    for file in std::fs::read_dir(crds).with_context(|| format!("reading {}", crds.display()))? {
        let path = file?.path();
        // The folder with those of the examples.
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(path)?;
        cluster.install_crd(&serde_saphyr::from_str(&text)?).await?;
    }
    for kind in ["instances", "teams", "pipelines", "jobs", "builds"] {
        cluster.wait_served(&collection_path(kind)).await?;
    }
    cluster
        .wait_served("/apis/ostler.dev/v1alpha1/namespaces/bench/upstreams")
        .await
}

async fn start_observers(
    cluster: &Cluster,
    shape: LoadShape,
) -> Result<Vec<(&'static str, Observer, usize)>> {
    let mut all = Vec::new();
    for (kind, wanted) in shape.kind_counts() {
        let path = collection_path(kind);
        let observer = Observer::start(cluster, &path, move |o| {
            let over = kind != "builds" || objects::is_long(&o.metadata.name) || o.has_condition("Complete");
            o.is_ready() && over
        });
        all.push((kind, observer.await?, wanted));
    }
    Ok(all)
}

/// Creates all objects before the operator starts.
async fn create_objects(cluster: &Cluster, shape: LoadShape, url: &str) -> Result<()> {
    cluster
        .create("/api/v1/namespaces/bench/secrets", &objects::build_secret())
        .await?;
    cluster
        .create(&collection_path("instances"), &objects::build_instance(url))
        .await?;
    cluster
        .create(&collection_path("teams"), &objects::build_team())
        .await?;
    let progress = |what: &'static str| move |done| print_progress(format!("{done} {what} created"));
    let pipelines = (0..shape.pipelines).map(|p| objects::build_pipeline(p, shape));
    cluster
        .create_all(&collection_path("pipelines"), pipelines, progress("pipelines"))
        .await?;
    let jobs = shape.each_job().map(|(p, j)| objects::build_job(p, j));
    cluster
        .create_all(&collection_path("jobs"), jobs, progress("jobs"))
        .await?;
    let builds = shape.each_build().map(|(p, j, b)| objects::build_build(p, j, b));
    cluster
        .create_all(&collection_path("builds"), builds, progress("builds"))
        .await
}
