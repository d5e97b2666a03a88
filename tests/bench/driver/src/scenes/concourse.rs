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
    load::Shape,
    server::{Counters, Server},
};
use super::{Stage, told};
use crate::{
    api::{Cluster, requests_since},
    observer::Observer,
    report::{Report, print_progress},
    subject::{Running, Subject},
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

fn path(plural: &str) -> String {
    format!("{GROUP_PATH}/{plural}")
}

/// Runs one subject with this number of pipelines.
pub async fn run(stage: &Stage, subject: Subject, pipelines: usize, window: Duration) -> Result<()> {
    let report = Report {
        bench: "concourse",
        subject,
    };
    let shape = Shape::of(pipelines);
    match subject {
        Subject::Ostler => measure(stage, report, shape, window).await,
        Subject::Original => {
            original(report, shape);
            Ok(())
        }
        _ => bail!("{} has no Concourse pack", subject.name()),
    }
}

/// Reports the computed requests of the original.
fn original(report: Report<'_>, shape: Shape) {
    const UNIT: &str = "requests/min, computed";
    let load = load::original(shape);
    report.value("requests_per_minute", load::requests(&load), UNIT);
    report.value("writes_per_minute", load::writes(&load), UNIT);
    for part in &load {
        let metric = format!("requests_per_minute.{}", part.kind);
        report.value(&metric, part.requests_per_minute(), UNIT);
    }
    report.note(&format!("computed, not run: {}", load::sum(&load)));
}

async fn measure(stage: &Stage, report: Report<'_>, shape: Shape, window: Duration) -> Result<()> {
    let cluster = &stage.cluster;
    let crds = stage.programs.crds.as_deref().context("--crds is not given")?;
    install(cluster, crds).await?;
    let simulator = stage.programs.simulator.as_deref();
    let server = Server::start(simulator.context("--simulator is not given")?, &stage.folder).await?;
    let watched = observers(cluster, shape).await?;
    apply(cluster, shape, server.url()).await?;

    let before = cluster.requests_of(&COUNTED_RESOURCES).await?;
    print_progress(format!("from nothing to {} objects", shape.objects()));
    let started = Instant::now();
    let mut running = Running::start_pack(stage).await?;
    for (kind, observer, wanted) in &watched {
        while !observer.reaches(*wanted, Duration::from_secs(2)).await? {
            print_progress(format!("{} of {wanted} {kind}", observer.count()));
            running.process.check_running()?;
            if started.elapsed() > stage.limit {
                bail!("{} of {wanted} {kind} are reconciled", observer.count());
            }
        }
    }
    let mut last = started;
    for (_, observer, _) in &watched {
        last = last.max(observer.span()?.1);
    }
    let first = server.counters().await?;
    if first.triggers != shape.builds as u64 {
        bail!(
            "{} builds were triggered for {} Builds",
            first.triggers,
            shape.builds
        );
    }
    report.value("total_s", (last - started).as_secs_f64(), "s");
    report.value("start_requests", first.all(), "requests");
    for (kind, n) in by_kind(&first) {
        report.value(&format!("start_requests.{kind}"), n, "requests");
    }
    report.value("start_logins", first.logins, "requests");
    report.value("start_cpu_seconds", running.process.usage()?.cpu_seconds, "s");
    let writes = requests_since(&before, &cluster.requests_of(&COUNTED_RESOURCES).await?);
    report.value("start_api_requests", writes.values().sum::<u64>(), "requests");
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
        cluster.requests_of(&COUNTED_RESOURCES).await?,
        running.process.usage()?,
    );
    server.reset().await?;
    let began = Instant::now();
    tokio::time::sleep(window).await;
    let steady = server.counters().await?;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let usage = running.process.usage()?;
    told(
        report,
        &requests_since(&before, &cluster.requests_of(&COUNTED_RESOURCES).await?),
    );
    tell(report, &steady, minutes);
    report.value("window_s", minutes * 60.0, "s");
    report.value("rss", usage.rss, "bytes");
    report.value("rss_peak", usage.rss_peak, "bytes");
    report.value("cpu_seconds", usage.cpu_seconds - used.cpu_seconds, "s");
    running.process.check_running()?;
    running.process.end().await?;
    server.end().await
}

/// Reports the requests to Concourse per minute.
fn tell(report: Report<'_>, counters: &Counters, minutes: f64) {
    let value = |metric: &str, n: u64| report.value(metric, n as f64 / minutes, "requests/min");
    value("requests_per_minute", counters.all());
    value("writes_per_minute", counters.writes);
    for (kind, n) in by_kind(counters) {
        value(&format!("requests_per_minute.{kind}"), n);
    }
}

/// Sums the requests by the kind of the object they belong to.
fn by_kind(counters: &Counters) -> BTreeMap<&'static str, u64> {
    let mut by_kind: BTreeMap<_, u64> = load::KINDS.iter().map(|kind| (*kind, 0)).collect();
    for (route, n) in &counters.routes {
        *by_kind.entry(load::kind_of(route)).or_default() += n;
    }
    by_kind
}

/// Installs the pack's CRDs and waits until they are served.
async fn install(cluster: &Cluster, crds: &Path) -> Result<()> {
    for file in std::fs::read_dir(crds).with_context(|| format!("reading {}", crds.display()))? {
        let text = std::fs::read_to_string(file?.path())?;
        cluster.install(&serde_saphyr::from_str(&text)?).await?;
    }
    for kind in ["instances", "teams", "pipelines", "jobs", "builds"] {
        cluster.served(&path(kind)).await?;
    }
    cluster
        .served("/apis/ostler.dev/v1alpha1/namespaces/bench/upstreams")
        .await
}

async fn observers(cluster: &Cluster, shape: Shape) -> Result<Vec<(&'static str, Observer, usize)>> {
    let mut all = Vec::new();
    for (kind, wanted) in shape.kinds() {
        let path = path(kind);
        let observer = Observer::start(cluster, &path, move |o| {
            let over = kind != "builds" || objects::is_long(&o.metadata.name) || o.has_condition("Complete");
            o.ready() && over
        });
        all.push((kind, observer.await?, wanted));
    }
    Ok(all)
}

/// Creates all objects before the operator starts.
async fn apply(cluster: &Cluster, shape: Shape, url: &str) -> Result<()> {
    cluster
        .create("/api/v1/namespaces/bench/secrets", &objects::secret())
        .await?;
    cluster
        .create(&path("instances"), &objects::instance(url))
        .await?;
    cluster.create(&path("teams"), &objects::team()).await?;
    let told = |what: &'static str| move |done| print_progress(format!("{done} {what} made"));
    let pipelines = (0..shape.pipelines).map(|p| objects::pipeline(p, shape));
    cluster
        .create_all(&path("pipelines"), pipelines, told("pipelines"))
        .await?;
    let jobs = shape.each_job().map(|(p, j)| objects::job(p, j));
    cluster.create_all(&path("jobs"), jobs, told("jobs")).await?;
    let builds = shape.each_build().map(|(p, j, b)| objects::build(p, j, b));
    cluster.create_all(&path("builds"), builds, told("builds")).await
}
