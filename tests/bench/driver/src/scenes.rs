//! The scenes: each measures one or more benches.

pub mod concourse;
pub mod converge;
pub mod density;
pub mod failover;
mod fanout;
pub mod growth;
mod noop;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    api::{Cluster, Requests},
    observer::Observer,
    report::{SubjectReport, print_progress},
    subject::OperatorPrograms,
};

/// Environment of a scene.
pub struct SceneStage {
    /// The control plane.
    pub cluster: Cluster,
    /// The operators.
    pub programs: OperatorPrograms,
    /// Kubeconfig for the operators.
    pub kubeconfig: PathBuf,
    /// Folder for logs.
    pub folder: PathBuf,
    /// Number of concurrent reconciles.
    pub workers: u32,
    /// Timeout of one measurement.
    pub limit: Duration,
    /// Benches to report.
    pub benches: Vec<String>,
}

impl SceneStage {
    /// Returns the folder in which hosts keep the code of compiled components between their starts, as in a deployment.
    pub fn compiled_folder(&self) -> PathBuf {
        self.folder.join("compiled")
    }

    /// Returns the bench to report with this prefix (`converge` finds `converge-1k`).
    fn bench_name(&self, kind: &str) -> Option<&str> {
        self.benches
            .iter()
            .map(String::as_str)
            .find(|b| b.starts_with(kind))
    }
}

fn report_requests(report: SubjectReport<'_>, requests: &Requests) {
    report.report_value("api_requests", requests.values().sum::<u64>(), "requests");
    for (verb, n) in requests {
        report.report_value(&format!("api_requests.{verb}"), n, "requests");
    }
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
