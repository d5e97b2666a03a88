//! `DeploymentRecord`: one deployment, from the build to its end.

use std::collections::BTreeMap;

use ostler_sdk::{Object, api, resource};

use crate::{IngressResourceSpec, LocalReference, UpstreamReference};

/// One deployment: a build in Jenkins, a sync in Argo CD, an address, and the clean-up after its time to live.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "DeploymentRecord",
    namespaced,
    status = DeploymentRecordStatus,
    shortname = "deprec",
    category = "devops",
    doc = "One deployment: build, sync, address and clean-up.",
    printcolumn(name = "Environment", type = "string", json_path = ".spec.environment"),
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "State", type = "string", json_path = ".status.state"),
    printcolumn(name = "URL", type = "string", json_path = ".status.url"),
    printcolumn(name = "Expires", type = "date", json_path = ".status.ttl.expirationTime"),
    printcolumn(name = "Build", type = "integer", json_path = ".status.build.number", priority = 1),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "has(self.build) == has(oldSelf.build) && (!has(self.build) || self.build == oldSelf.build)",
    message = "build is immutable: a deployment runs once"
)]
#[validation(
    rule = "self.sync == oldSelf.sync",
    message = "sync is immutable: a deployment runs once"
)]
#[validation(
    rule = "has(self.deploymentID) == has(oldSelf.deploymentID) && (!has(self.deploymentID) || self.deploymentID == oldSelf.deploymentID)",
    message = "deploymentID is immutable"
)]
pub struct DeploymentRecordSpec {
    /// ID of the deployment, in heartbeats and as the build's parameter DEPLOYMENT_ID; defaults to the object's UID. It has
    /// to be unique: a build with this ID is taken for the one of this deployment.
    #[serde(rename = "deploymentID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub deployment_id: Option<String>,
    /// Name of the project, for people.
    #[schemars(length(max = 63))]
    pub project: Option<String>,
    /// Environment that is deployed to, such as alpha or production.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub environment: String,
    /// The build; without it, what is in the repository is deployed.
    pub build: Option<DeploymentBuild>,
    /// The sync.
    pub sync: DeploymentSync,
    /// The address; without it, the deployment has no URL.
    pub ingress: Option<DeploymentIngress>,
    /// Target of the heartbeats; without it, none are published.
    pub heartbeat: Option<HeartbeatTarget>,
    /// Seconds from the end of the deployment to its clean-up; 0 for never. It may be changed until the clean-up begins.
    #[serde(default = "default_ttl_seconds")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds: i64,
    /// Time limits of the phases.
    #[serde(default)]
    pub timeouts: DeploymentTimeouts,
}

fn default_ttl_seconds() -> i64 {
    10_800
}

/// A build of a Jenkins pipeline.
#[api]
pub struct DeploymentBuild {
    /// The JenkinsSetting.
    pub setting_ref: LocalReference,
    /// Name of the pipeline in the folder of the setting's project and this environment.
    #[schemars(length(min = 1, max = 128))]
    pub pipeline: String,
    /// Parameters of the build. DEPLOYMENT_ID is set by the host.
    pub parameters: BTreeMap<String, String>,
}

/// A sync of an application of Argo CD.
#[api]
pub struct DeploymentSync {
    /// The ArgoSetting.
    pub setting_ref: LocalReference,
    /// Name of the application in it.
    #[schemars(length(min = 1, max = 63))]
    pub application: String,
    /// Commit, branch or tag to sync to; defaults to the revision of the application.
    #[schemars(length(min = 1, max = 255))]
    pub revision: Option<String>,
    /// Keeps objects that are no longer in the repository. Argo CD then shows the application as OutOfSync, and the
    /// deployment fails, if there are any.
    #[serde(default)]
    pub keep_removed: bool,
}

/// The address of a deployment: an IngressResource of the record's name is applied.
#[api]
pub struct DeploymentIngress {
    /// Spec of the IngressResource.
    pub template: IngressResourceSpec,
}

/// Target of heartbeats.
#[api]
pub struct HeartbeatTarget {
    /// The broker.
    pub upstream_ref: UpstreamReference,
    /// Exchange; empty for the default exchange, which delivers to the queue of the routing key.
    #[serde(default)]
    #[schemars(length(max = 255))]
    pub exchange: String,
    /// Routing key.
    #[schemars(length(min = 1, max = 255))]
    pub routing_key: String,
}

/// Time limits of the phases.
#[api]
#[derive(Default)]
pub struct DeploymentTimeouts {
    /// Seconds for the settings to be Ready, from the creation of the record; defaults to ten minutes. A project that does
    /// not exist ends the deployment by it.
    #[schemars(range(min = 1))]
    pub initialize_seconds: Option<i64>,
    /// Seconds for the build, from its trigger; defaults to an hour.
    #[schemars(range(min = 1))]
    pub build_seconds: Option<i64>,
    /// Seconds for the sync, from its start; defaults to ten minutes.
    #[schemars(range(min = 1))]
    pub sync_seconds: Option<i64>,
    /// Seconds for the application to become healthy and the address to work, from the end of the sync; defaults to ten
    /// minutes.
    #[schemars(range(min = 1))]
    pub verify_seconds: Option<i64>,
}

/// Observed state of a deployment.
#[api]
#[derive(Default)]
pub struct DeploymentRecordStatus {
    /// Phase of the deployment.
    pub phase: Option<DeploymentPhase>,
    /// Result so far.
    pub state: Option<DeploymentState>,
    /// The phase in words.
    pub phase_message: Option<String>,
    /// URL of the deployment once it is live.
    pub url: Option<String>,
    /// Time at which the phase began.
    #[schemars(extend("format" = "date-time"))]
    pub phase_start_time: Option<String>,
    /// Time at which the deployment ended.
    #[schemars(extend("format" = "date-time"))]
    pub completion_time: Option<String>,
    /// The build.
    pub build: Option<DeploymentBuildStatus>,
    /// The sync.
    pub sync: Option<SyncStatus>,
    /// The heartbeats.
    pub heartbeat: Option<HeartbeatStatus>,
    /// The time to live.
    pub ttl: Option<TtlStatus>,
}

/// Phase of a deployment.
#[api]
#[derive(Copy, Default, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentPhase {
    /// The settings are waited for.
    #[default]
    Initializing,
    /// The build is triggered and runs.
    Building,
    /// The sync is started and runs.
    Deploying,
    /// Health and address are waited for.
    Verifying,
}

impl DeploymentPhase {
    /// The phase as heartbeats have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Building => "building",
            Self::Deploying => "deploying",
            Self::Verifying => "verifying",
        }
    }
}

/// Result of a deployment.
#[api]
#[derive(Copy, Default, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentState {
    /// Not at its end.
    #[default]
    Running,
    /// Live.
    Success,
    /// A phase failed.
    Failed,
    /// Aborted, or deleted before its end.
    Terminated,
}

/// The build of a deployment.
#[api]
#[derive(Default)]
pub struct DeploymentBuildStatus {
    /// Progress of the build.
    pub phase: BuildPhase,
    /// Time at which the trigger was last sent, in milliseconds since the Unix epoch. It is recorded before it is sent.
    pub triggered_at: Option<i64>,
    /// Time at which Jenkins first answered, after the trigger was last sent, that it has no such build; in milliseconds since the
    /// Unix epoch.
    pub searched_at: Option<i64>,
    /// ID of the item in Jenkins' queue.
    #[serde(rename = "queueID", default, skip_serializing_if = "Option::is_none")]
    pub queue_id: Option<i64>,
    /// Number of the build.
    pub number: Option<i64>,
    /// Result of the build, as Jenkins shows it.
    pub result: Option<String>,
}

/// Progress of a build.
#[api]
#[derive(Copy, Default, Eq)]
pub enum BuildPhase {
    /// The trigger may have been sent: the build is searched for.
    #[default]
    Triggering,
    /// It waits in Jenkins' queue.
    Queued,
    /// It runs.
    Running,
    /// It has ended.
    Completed,
    /// It was cancelled with the deployment, or was never triggered.
    Cancelled,
}

/// The sync of a deployment.
#[api]
#[derive(Default)]
pub struct SyncStatus {
    /// ID of the operation, which Argo CD shows among its information. It is recorded before the operation is written.
    #[serde(rename = "operationID", default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// UID of the application that was synced.
    #[serde(rename = "applicationUID", default, skip_serializing_if = "Option::is_none")]
    pub application_uid: Option<String>,
    /// resourceVersion of the application on which the operation was written. The write is conditional on it.
    pub resource_version: Option<String>,
    /// Start of the operation that was there before, of an Argo CD that is reached by its API. Another one is seen by it.
    pub previous_start_time: Option<String>,
    /// Time at which the API of Argo CD first answered, after the request, that no operation had begun; in milliseconds since the
    /// Unix epoch.
    pub searched_at: Option<i64>,
    /// Set when the operation has been seen in Argo CD.
    #[serde(default)]
    pub started: bool,
    /// Start of the operation, as Argo CD shows it. An entry of the application's history has it, too.
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Set when the operation was terminated or removed, because the deployment had ended before it.
    #[serde(default)]
    pub withdrawn: bool,
    /// Time at which the operation finished, as Argo CD shows it.
    #[schemars(extend("format" = "date-time"))]
    pub finish_time: Option<String>,
    /// Phase of the operation, as Argo CD shows it.
    pub phase: Option<String>,
    /// Commit that was synced.
    pub revision: Option<String>,
}

/// The heartbeats of a deployment.
#[api]
#[derive(Default)]
pub struct HeartbeatStatus {
    /// Set when the broker has confirmed the last heartbeat, which has the final state.
    #[serde(default)]
    pub final_confirmed: bool,
}

/// The time to live of a deployment.
#[api]
#[derive(Default)]
pub struct TtlStatus {
    /// Progress.
    pub phase: TtlPhase,
    /// Time from which it counts: the end of the deployment.
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Time at which the clean-up begins; absent if it never does.
    #[schemars(extend("format" = "date-time"))]
    pub expiration_time: Option<String>,
    /// Step of the clean-up.
    pub step: Option<CleanupStep>,
}

/// Progress of the time to live.
#[api]
#[derive(Copy, Default, Eq)]
pub enum TtlPhase {
    /// The deployment is live, or has failed.
    #[default]
    Monitoring,
    /// It is cleaned up.
    Cleanup,
    /// Nothing of it is left.
    Completed,
}

/// Step of a clean-up. They are taken in this order, each when the one before is done.
#[api]
#[derive(Copy, Default, Eq, PartialOrd, Ord)]
pub enum CleanupStep {
    /// The applications, with what they have deployed.
    #[default]
    Applications,
    /// The Ingress.
    Ingress,
    /// The DNS records.
    Dns,
    /// The certificates and their Secrets.
    Certificates,
}

impl DeploymentRecordSpec {
    /// The ID of the deployment of an object.
    #[must_use]
    pub fn id(record: &Object<Self>) -> &str {
        record
            .spec
            .deployment_id
            .as_deref()
            .unwrap_or(&record.metadata.uid)
    }
}
