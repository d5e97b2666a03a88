//! The part of Concourse's REST API that several kinds read.
//!
//! Concourse writes `null` for an empty list or map and for a missing text, which is read like a missing field.

use std::collections::{BTreeMap, BTreeSet};

use ostler_sdk::api;

use crate::VersionFields;

/// A build of a job or of a check.
#[api]
#[serde(rename_all = "snake_case")]
pub struct BuildResponse {
    /// ID, unique on the server.
    pub id: i64,
    /// Name, a number that is unique within the job.
    pub name: Option<String>,
    /// State: pending, started, succeeded, failed, errored or aborted.
    pub status: Option<String>,
    /// Job of the build.
    pub job_name: Option<String>,
    /// Path in the REST API.
    pub api_url: Option<String>,
    /// Account that started the build; none for a build that a new version triggered.
    pub created_by: Option<String>,
    /// Seconds since the Unix epoch; zero before the build starts.
    pub start_time: Option<u64>,
    /// Seconds since the Unix epoch; zero before the build ends.
    pub end_time: Option<u64>,
    /// Comment of a user.
    pub comment: Option<String>,
    /// The build that this one repeats.
    pub rerun_of: Option<RerunOf>,
}

/// A build that another one repeats.
#[api]
#[serde(rename_all = "snake_case")]
pub struct RerunOf {
    /// Name of the build.
    pub name: String,
}

/// Inputs and outputs of a build.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct BuildResources {
    /// Versions the build got.
    pub inputs: Vec<BuildInputResponse>,
    /// Versions the build put.
    pub outputs: Vec<BuildOutputResponse>,
}

/// A version that a build got.
#[api]
#[serde(rename_all = "snake_case")]
pub struct BuildInputResponse {
    /// Name of the input.
    pub name: String,
    /// The version.
    #[serde(default)]
    pub version: VersionFields,
    /// Indicates whether this is the first build of the job with the version.
    pub first_occurrence: Option<bool>,
}

/// A version that a build put.
#[api]
#[serde(rename_all = "snake_case")]
pub struct BuildOutputResponse {
    /// Name of the output.
    pub name: String,
    /// The version.
    #[serde(default)]
    pub version: VersionFields,
}

/// A pipeline, without its config.
#[api]
#[serde(rename_all = "snake_case")]
pub struct PipelineResponse {
    /// ID, unique on the server.
    pub id: i32,
    /// Indicates whether the pipeline is paused.
    #[serde(default)]
    pub paused: bool,
    /// Account that paused it.
    pub paused_by: Option<String>,
    /// Seconds since the Unix epoch.
    pub paused_at: Option<u64>,
    /// Indicates whether the pipeline is visible without a login.
    #[serde(default)]
    pub public: bool,
    /// Indicates whether the pipeline is archived.
    #[serde(default)]
    pub archived: bool,
    /// Seconds since the Unix epoch.
    pub last_updated: Option<u64>,
    /// Groups of jobs.
    pub groups: Vec<Group>,
}

/// A group of jobs.
#[api]
#[serde(rename_all = "snake_case")]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Names of its jobs, or patterns of names.
    pub jobs: Vec<String>,
    /// Names of its resources.
    pub resources: Vec<String>,
}

/// A job, as the list of a pipeline's jobs shows it.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct JobResponse {
    /// ID, unique on the server.
    pub id: Option<i64>,
    /// Name of the job.
    pub name: String,
    /// Indicates whether the job is paused.
    pub paused: bool,
    /// Account that paused it.
    pub paused_by: Option<String>,
    /// Seconds since the Unix epoch.
    pub paused_at: Option<u64>,
    /// Indicates whether there are inputs that no build has used yet.
    pub has_new_inputs: bool,
    /// Set if the job disallows manual triggering.
    pub disable_manual_trigger: bool,
    /// Groups of the pipeline that contain the job.
    pub groups: Vec<String>,
    /// Inputs of the job.
    pub inputs: Vec<crate::JobInput>,
    /// Outputs of the job.
    pub outputs: Vec<crate::JobOutput>,
    /// The build that is pending or running.
    pub next_build: Option<BuildResponse>,
    /// The last build that finished.
    pub finished_build: Option<BuildResponse>,
}

/// A resource.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct ResourceResponse {
    /// Type of the resource.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Seconds since the Unix epoch.
    pub last_checked: Option<u64>,
    /// The version that an API call or the config pins.
    pub pinned_version: VersionFields,
    /// Indicates whether the config pins the version.
    pub pinned_in_config: bool,
    /// Comment on the pin.
    pub pin_comment: Option<String>,
    /// The newest check.
    pub build: Option<BuildResponse>,
}

/// A version of a resource.
#[api]
#[serde(rename_all = "snake_case")]
pub struct ResourceVersion {
    /// ID, unique on the server.
    pub id: i64,
    /// Fields of the version.
    #[serde(default)]
    pub version: VersionFields,
    /// Indicates whether builds may use the version.
    #[serde(default = "enabled_by_default")]
    pub enabled: bool,
}

fn enabled_by_default() -> bool {
    true
}

/// A team.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct TeamResponse {
    /// ID, unique on the server.
    pub id: Option<i32>,
    /// Members by role.
    pub auth: TeamAuth,
}

/// Members of a team by role.
pub type TeamAuth = BTreeMap<String, RoleMembers>;

/// Members of one role. Sets, because order and repetition have no meaning.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct RoleMembers {
    /// Users, as `connector:name`.
    pub users: BTreeSet<String>,
    /// Groups, as `connector:group`.
    pub groups: BTreeSet<String>,
}

/// A worker.
#[api]
#[serde(rename_all = "snake_case", default)]
#[derive(Default)]
pub struct WorkerResponse {
    /// Name of the worker.
    pub name: String,
    /// State: running, landing, landed, retiring or stalled.
    pub state: Option<String>,
    /// The only team the worker serves; empty if it serves all.
    pub team: Option<String>,
    /// Platform of the tasks it runs.
    pub platform: Option<String>,
    /// Tags that select the worker.
    pub tags: Vec<String>,
    /// Number of containers.
    pub active_containers: Option<i64>,
    /// Number of volumes.
    pub active_volumes: Option<i64>,
    /// Number of running tasks.
    pub active_tasks: Option<i64>,
    /// Version of the worker protocol.
    pub version: Option<String>,
    /// Seconds since the Unix epoch.
    pub start_time: Option<u64>,
    /// Indicates whether Concourse forgets the worker when it stalls.
    pub ephemeral: Option<bool>,
    /// Resource types that the worker brings.
    pub resource_types: Vec<crate::WorkerResourceType>,
}
