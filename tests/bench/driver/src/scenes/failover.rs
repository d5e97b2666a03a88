//! Failover between two replicas, after a graceful end of the leader and after a kill.

use std::time::Instant;

use anyhow::{Result, bail};
use rustix::process::Signal;

use super::SceneStage;
use crate::{
    api::samples_path,
    observer::{ObservedObject, Observer},
    report::{SubjectReport, print_progress},
    subject::{BenchSubject, RunningSubject},
    work,
};

/// Measures the time without a reconcile.
pub async fn run(stage: &SceneStage, subject: BenchSubject) -> Result<()> {
    let bench = "failover";
    let report = SubjectReport { bench, subject };
    match subject {
        BenchSubject::Ostler | BenchSubject::ControllerRuntime => {}
        BenchSubject::KubeRs => {
            report.report_note("has no leader election");
            return Ok(());
        }
        BenchSubject::Kopf => {
            report.report_note("has peering, where replicas pause for each other by priority, and no Lease");
            return Ok(());
        }
        _ => return Ok(()),
    }
    let first = RunningSubject::start(stage, subject, Some("-1")).await?;
    wait_reconciled(stage, "begin").await?;
    let second = RunningSubject::start(stage, subject, Some("-2")).await?;
    second.process.wait_idle(stage.limit).await?;

    print_progress(format!("{}: the leader ends", subject.name()));
    let began = Instant::now();
    first.process.send_signal(Signal::TERM)?;
    let at = wait_reconciled(stage, "graceful").await?;
    report.report_value("graceful_s", (at - began).as_secs_f64(), "s");
    first.process.terminate().await?;

    let third = RunningSubject::start(stage, subject, Some("-3")).await?;
    third.process.wait_idle(stage.limit).await?;
    print_progress(format!("{}: the leader is killed", subject.name()));
    let began = Instant::now();
    second.process.send_signal(Signal::KILL)?;
    let at = wait_reconciled(stage, "crash").await?;
    report.report_value("crash_s", (at - began).as_secs_f64(), "s");
    second.process.terminate().await?;
    third.process.terminate().await
}

/// Creates an object and returns when it is Ready.
async fn wait_reconciled(stage: &SceneStage, name: &str) -> Result<Instant> {
    let wanted = name.to_owned();
    let observer = Observer::start(&stage.cluster, &samples_path(), move |o: &ObservedObject| {
        o.metadata.name == wanted && o.is_ready()
    })
    .await?;
    stage
        .cluster
        .create(&samples_path(), &work::build_sample(name, None))
        .await?;
    if !observer.wait_count(1, stage.limit).await? {
        bail!("{name} is not Ready after {} s", stage.limit.as_secs());
    }
    Ok(observer.first_and_last()?.1)
}
