use ostler_sdk::crd::file;

use crate::{BuildSpec, InstanceSpec, JobSpec, PipelineSpec, ResourceSpec, TeamSpec, WorkerSpec};

/// File name and text of every CRD of the pack.
#[must_use]
pub fn crds() -> Vec<(String, String)> {
    vec![
        file::<InstanceSpec>(),
        file::<TeamSpec>(),
        file::<PipelineSpec>(),
        file::<JobSpec>(),
        file::<ResourceSpec>(),
        file::<WorkerSpec>(),
        file::<BuildSpec>(),
    ]
}
