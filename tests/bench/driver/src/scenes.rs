//! What is measured.

pub mod concourse;
pub mod converge;
pub mod failover;
pub mod growth;

use std::{path::PathBuf, time::Duration};

use crate::{
    api::{Cluster, Requests},
    report::Report,
    subject::Programs,
};

/// What scenes are played on.
pub struct Stage {
    /// The control plane.
    pub cluster: Cluster,
    /// The operators.
    pub programs: Programs,
    /// For the operators.
    pub kubeconfig: PathBuf,
    /// For logs.
    pub folder: PathBuf,
    /// Reconciles at the same time.
    pub workers: u32,
    /// Time for one measure.
    pub limit: Duration,
    /// What to tell of.
    pub benches: Vec<String>,
}

impl Stage {
    /// The bench of this kind that is to be told of (`converge` finds `converge-1k`).
    fn bench(&self, kind: &str) -> Option<&str> {
        self.benches
            .iter()
            .map(String::as_str)
            .find(|b| b.starts_with(kind))
    }
}

fn told(report: Report<'_>, requests: &Requests) {
    report.value("api_requests", requests.values().sum::<u64>(), "requests");
    for (verb, n) in requests {
        report.value(&format!("api_requests.{verb}"), n, "requests");
    }
}
