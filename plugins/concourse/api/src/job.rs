use ostler_sdk::{api, resource};

use crate::{ConcourseName, NamedSpec, Reference};

/// A job of a pipeline: its pause, and the history limits of its Builds.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Job",
    namespaced,
    status = JobStatus,
    shortname = "ccj",
    category = "concourse",
    doc = "A job of a Concourse pipeline.",
    printcolumn(name = "Pipeline", type = "string", json_path = ".spec.pipelineRef.name"),
    printcolumn(name = "Job", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Paused", type = "boolean", json_path = ".status.paused"),
    printcolumn(name = "Last", type = "string", json_path = ".status.lastBuildStatus"),
    printcolumn(name = "Next", type = "string", json_path = ".status.nextBuildStatus"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "has(self.jobName) == has(oldSelf.jobName) && (!has(self.jobName) || self.jobName == oldSelf.jobName)",
    message = "jobName is immutable"
)]
#[validation(
    rule = "self.pipelineRef == oldSelf.pipelineRef",
    message = "pipelineRef is immutable"
)]
pub struct JobSpec {
    /// The Pipeline that contains the job.
    pub pipeline_ref: Reference,
    /// Name of the job in Concourse; defaults to the object's name.
    pub job_name: Option<ConcourseName>,
    /// Pauses the job. A job that this object paused is resumed when the object is deleted.
    #[serde(default)]
    pub paused: bool,
    /// Number of succeeded Builds of this job to keep as objects; the oldest are deleted first.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0))]
    pub successful_builds_history_limit: i32,
    /// Number of failed, errored and aborted Builds of this job to keep as objects; the oldest are deleted first.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0))]
    pub failed_builds_history_limit: i32,
    /// Suspends reconciliation of this job; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

impl NamedSpec for JobSpec {
    fn name_override(&self) -> Option<&str> {
        self.job_name.as_deref()
    }
}

fn default_history_limit() -> i32 {
    3
}

/// Observed state of the job.
#[api]
#[derive(Default)]
pub struct JobStatus {
    /// Name of the job in Concourse.
    pub resolved_name: Option<String>,
    /// URL of the job's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// ID of the job in Concourse.
    #[serde(rename = "jobID", default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<i64>,
    /// Indicates whether the job is paused.
    pub paused: Option<bool>,
    /// Indicates whether this object has set the pause, which is then removed when the object is deleted.
    pub pause_owned: Option<bool>,
    /// URL of the server on which this object has set the pause.
    pub claimed_server: Option<String>,
    /// Account that paused the job.
    pub paused_by: Option<String>,
    /// Time at which the job was paused.
    #[schemars(extend("format" = "date-time"))]
    pub paused_at: Option<String>,
    /// Indicates whether there are inputs that no build has used yet.
    pub has_new_inputs: Option<bool>,
    /// Indicates whether the job cannot be triggered by hand, and hence not by a Build.
    pub disable_manual_trigger: Option<bool>,
    /// Groups of the pipeline that contain the job.
    pub groups: Vec<String>,
    /// Inputs of the job.
    pub inputs: Vec<JobInput>,
    /// Outputs of the job.
    pub outputs: Vec<JobOutput>,
    /// ID of the build that is pending or running.
    #[serde(rename = "nextBuildID", default, skip_serializing_if = "Option::is_none")]
    pub next_build_id: Option<i64>,
    /// Name of that build, a number that is unique within the job.
    pub next_build_name: Option<String>,
    /// Status of that build: pending or started.
    pub next_build_status: Option<String>,
    /// ID of the last build that finished.
    #[serde(rename = "lastBuildID", default, skip_serializing_if = "Option::is_none")]
    pub last_build_id: Option<i64>,
    /// Name of that build, a number that is unique within the job.
    pub last_build_name: Option<String>,
    /// Status of that build: succeeded, failed, errored or aborted.
    pub last_build_status: Option<String>,
    /// Time at which that build finished.
    #[schemars(extend("format" = "date-time"))]
    pub last_build_time: Option<String>,
}

/// An input of a job.
#[api]
pub struct JobInput {
    /// Name of the input.
    pub name: String,
    /// Resource that provides the input.
    pub resource: Option<String>,
    /// Indicates whether a new version triggers a build.
    pub trigger: Option<bool>,
    /// Jobs that a version must have passed.
    pub passed: Vec<String>,
}

/// An output of a job.
#[api]
pub struct JobOutput {
    /// Name of the output.
    pub name: String,
    /// Resource that receives the output.
    pub resource: Option<String>,
}
