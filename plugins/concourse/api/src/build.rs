use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::Reference;

/// A build of a job. It is triggered once, or an existing one is adopted, and followed until it finishes.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Build",
    namespaced,
    status = BuildStatus,
    shortname = "ccb",
    category = "concourse",
    doc = "A build of a Concourse job.",
    printcolumn(name = "Job", type = "string", json_path = ".spec.jobRef.name"),
    printcolumn(name = "BuildID", type = "integer", json_path = ".status.buildID"),
    printcolumn(name = "Status", type = "string", json_path = ".status.concourseStatus"),
    printcolumn(name = "Complete", type = "string", json_path = ".status.conditions[?(@.type==\"Complete\")].status"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", priority = 1),
    printcolumn(name = "Duration", type = "string", json_path = ".status.duration", priority = 1),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Build", type = "string", json_path = ".status.buildName", priority = 1),
    printcolumn(name = "CreatedBy", type = "string", json_path = ".status.createdBy", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "self.jobRef == oldSelf.jobRef", message = "jobRef is immutable")]
#[validation(
    rule = "!has(oldSelf.buildID) || (has(self.buildID) && self.buildID == oldSelf.buildID)",
    message = "buildID is immutable once it is set"
)]
#[validation(
    rule = "!has(self.rerunOf) || !has(self.buildID)",
    message = "rerunOf and buildID are mutually exclusive"
)]
#[validation(
    rule = "!has(self.rerunOf) || (has(oldSelf.rerunOf) && self.rerunOf == oldSelf.rerunOf)",
    message = "rerunOf cannot be set or changed later, only removed"
)]
pub struct BuildSpec {
    /// The Job to build.
    pub job_ref: Reference,
    /// ID of an existing build to follow instead of triggering one. Set it later to resolve an ambiguous trigger.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub build_id: Option<i64>,
    /// Name of a build of the job, for example 42 or 42.1, to run again with the same inputs.
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub rerun_of: Option<String>,
    /// Comment to set on the build in Concourse.
    #[schemars(length(max = 1024))]
    pub comment: Option<String>,
    /// Aborts the build, or prevents it from being triggered.
    #[serde(default)]
    pub canceled: bool,
    /// Aborts the build if this object is deleted before it finishes, unless it was adopted by buildID.
    #[serde(default)]
    pub abort_on_delete: bool,
    /// Number of lines from the end of a failed build's log to show in the status; 0 for none.
    #[serde(default = "default_log_tail_lines")]
    #[schemars(range(min = 0, max = 100))]
    pub log_tail_lines: i32,
    /// Seconds after the end of the build at which this object is deleted; it is kept if unset.
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Suspends reconciliation of this build; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

fn default_log_tail_lines() -> i32 {
    20
}

/// Observed state of the build.
#[api]
#[derive(Default)]
pub struct BuildStatus {
    /// ID of the build in Concourse.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<i64>,
    /// URL of the server on which the build was triggered or adopted.
    pub claimed_server: Option<String>,
    /// The Instance that has the build: its Job is not needed to follow it.
    pub instance_ref: Option<Reference>,
    /// Name of the build, a number that is unique within the job.
    pub build_name: Option<String>,
    /// State of the build: pending, started, succeeded, failed, errored or aborted.
    pub concourse_status: Option<String>,
    /// Time at which the build started.
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Time at which the build finished, or was canceled before it was triggered.
    #[schemars(extend("format" = "date-time"))]
    pub end_time: Option<String>,
    /// Duration of the build, for example 1m30s.
    pub duration: Option<String>,
    /// Path of the build in Concourse's API.
    #[serde(rename = "apiURL", default, skip_serializing_if = "Option::is_none")]
    pub api_url: Option<String>,
    /// URL of the build's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// Account that triggered the build.
    pub created_by: Option<String>,
    /// Versions that the build got.
    pub inputs: Vec<BuildInput>,
    /// Versions that the build put.
    pub outputs: Vec<BuildOutput>,
    /// Comment on the build in Concourse.
    pub comment: Option<String>,
    /// Name of the build that this one repeats.
    pub rerun_of: Option<String>,
    /// The last lines of a failed build's log.
    pub log_tail: Option<String>,
    /// An attempt to trigger a build whose result is not known yet.
    pub trigger: Option<BuildTrigger>,
}

/// An attempt to trigger a build, recorded before the request is sent.
#[api]
pub struct BuildTrigger {
    /// ID of the pipeline's newest build before the attempt; the triggered build has a greater ID.
    pub after: i64,
    /// Time of the attempt, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Progress of the attempt.
    pub state: TriggerState,
}

/// Progress of an attempt to trigger a build.
#[api]
#[derive(Copy, Eq)]
pub enum TriggerState {
    /// The request is being sent.
    InFlight,
    /// The attempt was interrupted or its response was lost: a search for its build is under way.
    Unknown,
    /// Several builds may be the one of this attempt; spec.buildID has to name it.
    Ambiguous,
}

/// A version that a build got.
#[api]
pub struct BuildInput {
    /// Name of the input.
    pub name: String,
    /// Fields of the version.
    pub version: BTreeMap<String, String>,
    /// Indicates whether this is the first build of the job with this version.
    pub first_occurrence: Option<bool>,
}

/// A version that a build put.
#[api]
pub struct BuildOutput {
    /// Name of the output.
    pub name: String,
    /// Fields of the version.
    pub version: BTreeMap<String, String>,
}
