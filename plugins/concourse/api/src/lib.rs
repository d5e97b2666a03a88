//! The API types of the Concourse pack (`concourse-ci.org/v1alpha1`).

mod build;
mod common;
mod concourse;
#[cfg(not(target_arch = "wasm32"))]
mod crds;
mod instance;
mod job;
mod pipeline;
mod place;
mod resource;
mod team;
mod worker;

pub use build::{Build, BuildInput, BuildOutput, BuildSpec, BuildStatus, BuildTrigger, TriggerState};
pub use common::{ConfigMapKey, ContainerImage, ReclaimPolicy, Reference, SecretKey};
pub use concourse::{
    config_warning, delete, discard, escape, finished, first_line, name_of, path_of, pipeline_path, refused,
    remaining, suspended, target, undone, upstream, version, warnings,
};
#[cfg(not(target_arch = "wasm32"))]
pub use crds::crds;
pub use instance::{Auth, Defaults, Instance, InstanceSpec, InstanceStatus, PasswordAuth, Tls, TokenAuth};
pub use job::{Job, JobInput, JobObservation, JobOutput, JobSpec};
pub use pipeline::{
    ConfigSource, GroupStatus, JobStatus, K8sConfig, Pipeline, PipelineSpec, PipelineStatus, PipelineVar,
    ResourceStatus, ResourceTypeStatus,
};
pub use place::{Place, namespace_allowed, out_of_reach};
pub use resource::{ResourceObservation, ResourceSpec, Version};
pub use team::{Role, Team, TeamRole, TeamSpec, TeamStatus};
pub use worker::{Lifecycle, Worker, WorkerSpec, WorkerStatus};
