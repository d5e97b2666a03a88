//! The API types of the Concourse pack (`concourse-ci.org/v1alpha1`), and what its reconcilers share.

mod build;
mod claim;
mod cleanup;
mod common;
#[cfg(not(target_arch = "wasm32"))]
mod crds;
mod instance;
mod job;
mod location;
mod path;
mod pipeline;
mod resource;
mod response;
pub mod rest;
mod team;
mod worker;

use ostler_sdk::{Condition, Outcome};

pub use build::{Build, BuildInput, BuildOutput, BuildSpec, BuildStatus, BuildTrigger, TriggerState};
pub use claim::{delete_claimed, find_server_url, is_on_server, server_url};
pub use cleanup::{
    abandon_without_instance, delete_dependents, delete_object, finish_cleanup, list_dependents, resolve_json,
};
pub use common::{ConcourseName, ConfigMapKey, ContainerImage, NamedSpec, ReclaimPolicy, concourse_name};
#[cfg(not(target_arch = "wasm32"))]
pub use crds::crds;
pub use instance::{
    Defaults, Instance, InstanceAuth, InstanceSpec, InstanceStatus, InstanceTls, PasswordAuth, TokenAuth,
};
pub use job::{Job, JobInput, JobOutput, JobSpec, JobStatus};
pub use location::{Location, check_namespace_allowed, upstream_ref};
pub use ostler_sdk::{NamespacedName, Reference, SecretKey};
pub use path::{build_path, encode_segment, pipeline_path, team_path};
pub use pipeline::{
    ConfigSource, InstanceVars, K8sConfig, Pipeline, PipelineGroup, PipelineJob, PipelineResource,
    PipelineResourceType, PipelineSpec, PipelineStatus, PipelineVar,
};
pub use resource::{Resource, ResourceSpec, ResourceStatus, VersionFields};
pub use response::{
    ConcourseOperation, NOT_OF_CONCOURSE, concourse_status, config_warning_condition, is_finished,
    read_warnings, unexpected_status,
};
pub use team::{RoleName, Team, TeamRole, TeamSpec, TeamStatus};
pub use worker::{Worker, WorkerLifecycle, WorkerResourceType, WorkerSpec, WorkerStatus};

/// The outcome for a suspended object, which is reached without any request.
#[must_use]
pub fn suspended_outcome() -> Outcome {
    let message = "Not reconciled while spec.suspend is true.";
    Outcome::await_change().with(Condition::new_false("Ready", "Suspended", message))
}
