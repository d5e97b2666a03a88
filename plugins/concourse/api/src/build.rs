use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::Reference;

/// A build of a job: begun once, or one that is there already; followed until it has finished.
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
    printcolumn(name = "Build", type = "string", json_path = ".status.buildName"),
    printcolumn(name = "Status", type = "string", json_path = ".status.concourseStatus"),
    printcolumn(name = "Duration", type = "string", json_path = ".status.duration"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "ID", type = "integer", json_path = ".status.buildID", priority = 1),
    printcolumn(name = "CreatedBy", type = "string", json_path = ".status.createdBy", priority = 1),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
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
    /// The Job the build is of.
    pub job_ref: Reference,
    /// ID of a build that is there already: it is followed, and none is begun. Set it later to say which one is
    /// meant where that could not be told.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub build_id: Option<i64>,
    /// Name of a build of the job, for example 42 or 42.1, that is run again with the same inputs.
    #[schemars(length(max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub rerun_of: Option<String>,
    /// Comment on the build in Concourse.
    #[schemars(length(max = 1024))]
    pub comment: Option<String>,
    /// Aborts the build. One that was not begun yet is not begun at all.
    #[serde(default)]
    pub canceled: bool,
    /// Aborts the build when this object is deleted before it has finished, unless it was adopted by buildID.
    #[serde(default)]
    pub abort_on_delete: bool,
    /// How many of the last lines of the log of a build that failed are shown in the status; 0 for none.
    #[serde(default = "twenty")]
    #[schemars(range(min = 0, max = 100))]
    pub log_tail_lines: i32,
    /// Deletes this object so many seconds after the build has finished; never when there is none.
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Stops reconciling this build; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

fn twenty() -> i32 {
    20
}

/// What was found about the build.
#[api]
#[derive(Default)]
pub struct BuildStatus {
    /// ID of the build in Concourse.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<i64>,
    /// Name of the build, which counts within the job.
    pub build_name: Option<String>,
    /// How far the build is: pending, started, succeeded, failed, errored or aborted.
    pub concourse_status: Option<String>,
    /// When the build started.
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// When the build finished.
    #[schemars(extend("format" = "date-time"))]
    pub end_time: Option<String>,
    /// How long the build took, for example 1m30s.
    pub duration: Option<String>,
    /// Path of the build in Concourse's API.
    #[serde(rename = "apiURL", default, skip_serializing_if = "Option::is_none")]
    pub api_url: Option<String>,
    /// URL of the build's page.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub web_url: Option<String>,
    /// Who began the build.
    pub created_by: Option<String>,
    /// What the build got.
    pub inputs: Vec<BuildInput>,
    /// What the build put.
    pub outputs: Vec<BuildOutput>,
    /// Comment on the build in Concourse.
    pub comment: Option<String>,
    /// Name of the build that this one runs again.
    pub rerun_of: Option<String>,
    /// The last lines of the log of a build that failed.
    pub log_tail: Option<String>,
    /// An attempt to begin a build of which is not known yet what came of it.
    pub trigger: Option<BuildTrigger>,
}

/// An attempt to begin a build, written before it is made.
#[api]
pub struct BuildTrigger {
    /// ID of the pipeline's newest build before the attempt: the one begun has a greater one.
    pub after: i64,
    /// When it was made, in milliseconds since 1970.
    pub at: i64,
    /// What is known of it.
    pub state: TriggerState,
}

/// What is known of an attempt to begin a build.
#[api]
#[derive(Copy, Eq)]
pub enum TriggerState {
    /// It is being made.
    InFlight,
    /// It was interrupted, or its answer was lost: it is found out whether there is a build.
    Unknown,
    /// There are builds, and it can't be told which is this one's: spec.buildID has to say it.
    Ambiguous,
}

/// What a build got.
#[api]
pub struct BuildInput {
    /// Name of the input.
    pub name: String,
    /// Its version.
    pub version: BTreeMap<String, String>,
    /// Whether no build of the job had this version before.
    pub first_occurrence: Option<bool>,
}

/// What a build put.
#[api]
pub struct BuildOutput {
    /// Name of the output.
    pub name: String,
    /// Its version.
    pub version: BTreeMap<String, String>,
}
