use ostler_sdk::{api, resource};

use crate::Reference;

/// A job of a pipeline: whether it is paused, and how many of its Builds are kept.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Job",
    namespaced,
    status = JobObservation,
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
    /// The Pipeline the job belongs to.
    pub pipeline_ref: Reference,
    /// Name of the job in Concourse; the object's name when there is none.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub job_name: Option<String>,
    /// Whether the job is paused. One that this object paused is resumed when the object is deleted.
    #[serde(default)]
    pub paused: bool,
    /// How many Builds of this job that succeeded are kept as objects; the oldest go first.
    #[serde(default = "three")]
    #[schemars(range(min = 0))]
    pub successful_builds_history_limit: i32,
    /// How many Builds of this job that failed, errored or were aborted are kept as objects; the oldest go first.
    #[serde(default = "three")]
    #[schemars(range(min = 0))]
    pub failed_builds_history_limit: i32,
    /// Stops reconciling this job; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

fn three() -> i32 {
    3
}

/// What was found about the job. Most is found anew each time, so that it is
/// written but never read.
#[api]
#[derive(Default)]
pub struct JobObservation {
    /// Name of the job in Concourse.
    #[serde(skip_deserializing)]
    pub resolved_name: Option<String>,
    /// URL of the job's page.
    #[serde(
        rename = "webURL",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// Number of the job in Concourse.
    #[serde(
        rename = "jobID",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub job_id: Option<i64>,
    /// Whether it is paused.
    #[serde(skip_deserializing)]
    pub paused: Option<bool>,
    /// Whether it is paused because this object said so; then it is resumed when the object is deleted.
    pub pause_owned: Option<bool>,
    /// Who paused it.
    #[serde(skip_deserializing)]
    pub paused_by: Option<String>,
    /// When it was paused.
    #[schemars(extend("format" = "date-time"))]
    #[serde(skip_deserializing)]
    pub paused_at: Option<String>,
    /// Whether there are inputs that no build has had yet.
    #[serde(skip_deserializing)]
    pub has_new_inputs: Option<bool>,
    /// Whether it can't be triggered by hand, and so not by a Build.
    #[serde(skip_deserializing)]
    pub disable_manual_trigger: Option<bool>,
    /// Groups of the pipeline it is in.
    #[serde(skip_deserializing)]
    pub groups: Vec<String>,
    /// What it gets.
    #[serde(skip_deserializing)]
    pub inputs: Vec<JobInput>,
    /// What it puts.
    #[serde(skip_deserializing)]
    pub outputs: Vec<JobOutput>,
    /// Number of the build that waits or runs.
    #[serde(
        rename = "nextBuildID",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub next_build_id: Option<i64>,
    /// Name of that build, which counts within the job.
    #[serde(skip_deserializing)]
    pub next_build_name: Option<String>,
    /// Status of that build: pending or started.
    #[serde(skip_deserializing)]
    pub next_build_status: Option<String>,
    /// Number of the last build that finished.
    #[serde(
        rename = "lastBuildID",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub last_build_id: Option<i64>,
    /// Name of that build, which counts within the job.
    #[serde(skip_deserializing)]
    pub last_build_name: Option<String>,
    /// Status of that build: succeeded, failed, errored or aborted.
    #[serde(skip_deserializing)]
    pub last_build_status: Option<String>,
    /// When that build finished.
    #[schemars(extend("format" = "date-time"))]
    #[serde(skip_deserializing)]
    pub last_build_time: Option<String>,
}

/// What a job gets.
#[api]
pub struct JobInput {
    /// Name of the input.
    pub name: String,
    /// The resource it comes from.
    pub resource: Option<String>,
    /// Whether a new version starts a build.
    pub trigger: Option<bool>,
    /// Jobs a version must have passed.
    pub passed: Vec<String>,
}

/// What a job puts.
#[api]
pub struct JobOutput {
    /// Name of the output.
    pub name: String,
    /// The resource it goes to.
    pub resource: Option<String>,
}
