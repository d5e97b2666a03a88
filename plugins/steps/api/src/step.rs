//! `Step`: one process in a pod of its own, with inputs from other steps and outputs for them.

use std::collections::BTreeMap;

use ostler_sdk::{LocalReference, SecretKey, api, resource};

use crate::StepSecurityContext;

/// One process in a pod of its own.
#[resource(
    group = "steps.ostler.dev",
    version = "v1alpha1",
    kind = "Step",
    namespaced,
    status = StepStatus,
    shortname = "cistep",
    category = "steps",
    doc = "One process in a pod of its own, with inputs and outputs.",
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Exit", type = "integer", json_path = ".status.exitCode"),
    printcolumn(name = "Pod", type = "string", json_path = ".status.pod"),
    printcolumn(name = "Node", type = "string", json_path = ".status.node", priority = 1),
    printcolumn(name = "Image", type = "string", json_path = ".spec.image", priority = 1),
    printcolumn(name = "Log", type = "string", json_path = ".status.logLine", priority = 1),
    printcolumn(name = "Started", type = "date", json_path = ".status.startTime"),
    printcolumn(name = "Ended", type = "date", json_path = ".status.endTime"),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "self.image == oldSelf.image",
    message = "image is immutable: a step runs once"
)]
#[validation(
    rule = "self.process == oldSelf.process",
    message = "process is immutable: a step runs once"
)]
#[validation(
    rule = "has(self.inputs) == has(oldSelf.inputs) && (!has(self.inputs) || self.inputs == oldSelf.inputs)",
    message = "inputs are immutable: a step runs once"
)]
#[validation(
    rule = "has(self.outputs) == has(oldSelf.outputs) && (!has(self.outputs) || self.outputs == oldSelf.outputs)",
    message = "outputs are immutable: a step runs once"
)]
#[validation(
    rule = "!has(self.inputs) || self.inputs.all(a, self.inputs.exists_one(b, a.path == b.path))",
    message = "inputs must have different paths"
)]
#[validation(
    rule = "!has(self.outputs) || self.outputs.all(a, self.outputs.exists_one(b, a.path == b.path))",
    message = "outputs must have different paths"
)]
#[validation(
    rule = "!has(self.inputs) || !has(self.outputs) || self.inputs.all(a, !self.outputs.exists(b, a.path == b.path))",
    message = "an output must not have the path of an input: write to a directory of its own"
)]
pub struct StepSpec {
    /// Image of the process.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^\s]+$"))]
    pub image: String,
    /// Policy for pulling the image; defaults to that of Kubernetes.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets for pulling the image.
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalReference>,
    /// Artifacts of other steps.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub inputs: Vec<StepInput>,
    /// Directories that become artifacts when the process has ended.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub outputs: Vec<StepOutput>,
    /// The process.
    pub process: StepProcess,
    /// CPU and memory of the process.
    #[serde(default)]
    pub resources: StepResources,
    /// Security options of the process; restricted by default.
    #[serde(default)]
    pub security_context: StepSecurityContext,
    /// Time that the process may run, such as 1h30m; without it, there is no limit.
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: Option<String>,
    /// Time from the creation of the step to the start of the process, for scheduling, image and inputs. It counts from the end of
    /// the last step that an input is of, and from the beginning of each further attempt.
    #[serde(default = "default_start_timeout")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub start_timeout: String,
    /// Time for which the pod, with the artifacts and the log, stays after the end. It stays longer while other steps need
    /// the artifacts.
    #[serde(default = "default_retain")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub retain: String,
    /// Seconds from the end to the deletion of this object; without it, the object stays.
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Reaction to the loss of the pod: while it runs, or before other steps have the artifacts.
    #[serde(default)]
    pub on_pod_lost: PodLostPolicy,
    /// Size of the tail of the log in the status, in bytes. Who may read this object can read it.
    #[serde(default = "default_log_tail_bytes")]
    #[schemars(range(min = 0, max = 2048))]
    pub log_tail_bytes: i64,
}

fn default_start_timeout() -> String {
    "10m".into()
}

fn default_retain() -> String {
    "1h".into()
}

fn default_log_tail_bytes() -> i64 {
    1024
}

/// Policy for pulling an image.
#[api]
#[derive(Copy, Eq)]
pub enum ImagePullPolicy {
    /// The image is pulled before each start.
    Always,
    /// The image is pulled if the node does not have it.
    IfNotPresent,
    /// The node must have the image.
    Never,
}

/// An artifact of another step.
#[api]
pub struct StepInput {
    /// Name of the input.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Name of the Step that produces it, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub from_step: String,
    /// Name of that step's output; defaults to the name of the input.
    #[schemars(length(min = 1, max = 63))]
    pub artifact: Option<String>,
    /// Directory of the input in the container.
    #[schemars(
        length(min = 2, max = 1024),
        regex(pattern = r"^(/[A-Za-z0-9_+@%=,-][A-Za-z0-9._+@%=,-]*)+$")
    )]
    #[validation(
        rule = "self != '/ostler' && !self.startsWith('/ostler/')",
        message = "/ostler is the directory of the shim"
    )]
    pub path: String,
}

impl StepInput {
    /// Name of the producer's output.
    #[must_use]
    pub fn artifact(&self) -> &str {
        self.artifact.as_deref().unwrap_or(&self.name)
    }
}

/// A directory that becomes an artifact.
#[api]
pub struct StepOutput {
    /// Name of the output.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Directory of the output in the container.
    #[schemars(
        length(min = 2, max = 1024),
        regex(pattern = r"^(/[A-Za-z0-9_+@%=,-][A-Za-z0-9._+@%=,-]*)+$")
    )]
    #[validation(
        rule = "self != '/ostler' && !self.startsWith('/ostler/')",
        message = "/ostler is the directory of the shim"
    )]
    pub path: String,
}

/// A process.
#[api]
pub struct StepProcess {
    /// Path of the executable, or a name that is looked up in PATH.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Arguments, as they are: no shell and no expansion.
    #[schemars(length(max = 256), inner(length(max = 32768)))]
    pub args: Vec<String>,
    /// Environment.
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub env: Vec<EnvVariable>,
    /// Working directory; defaults to that of the image.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/"))]
    pub dir: Option<String>,
    /// User: a number, or a name in /etc/passwd of the image. A number is the default of securityContext.runAsUser.
    #[schemars(length(min = 1, max = 64))]
    pub user: Option<String>,
}

/// A variable of the environment.
#[api]
#[validation(
    rule = "!(has(self.value) && has(self.secretKeyRef))",
    message = "at most one of value and secretKeyRef can be set"
)]
pub struct EnvVariable {
    /// Name.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[^=]+$"))]
    pub name: String,
    /// Value, as it is: no expansion.
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// A key of a Secret. The value is read by the kubelet.
    pub secret_key_ref: Option<SecretKey>,
}

/// CPU and memory, in the quantities of Kubernetes.
#[api]
#[derive(Default)]
pub struct StepResources {
    /// Resources that the node must have; cpu defaults to 100m and memory to 128Mi.
    #[schemars(extend("maxProperties" = 16))]
    pub requests: BTreeMap<String, String>,
    /// Resources that the process may use at most.
    #[schemars(extend("maxProperties" = 16))]
    pub limits: BTreeMap<String, String>,
}

/// Reaction to the loss of a pod.
#[api]
#[derive(Copy, Default, Eq)]
pub enum PodLostPolicy {
    /// The step fails.
    #[default]
    Fail,
    /// The process runs again in another pod, up to three times.
    Rerun,
}

/// Observed state of the step.
#[api]
#[derive(Default)]
pub struct StepStatus {
    /// Phase of the step.
    #[serde(default)]
    pub phase: StepPhase,
    /// Name of the pod.
    pub pod: Option<String>,
    /// UID of the pod.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// State of the pod in its life cycle.
    pub pod_state: Option<PodState>,
    /// Node of the pod.
    pub node: Option<String>,
    /// Number of the pod: it rises when the process runs again.
    #[serde(default)]
    pub attempt: i64,
    /// Beginning of this attempt; none for the first, which begins with the step.
    pub attempt_time: Option<String>,
    /// Time at which this attempt got one of the pods of `maxPods`; none without that limit.
    pub permit_time: Option<String>,
    /// Exit code of the process: 128 plus the number for a signal.
    pub exit_code: Option<i64>,
    /// Creation of the pod.
    pub pod_time: Option<String>,
    /// Start of the process.
    pub start_time: Option<String>,
    /// End of the process.
    pub end_time: Option<String>,
    /// End of the step, from which retain and ttlSecondsAfterFinished count.
    pub finish_time: Option<String>,
    /// Reason of the end.
    pub reason: Option<String>,
    /// Message about the end, with a remedy where there is one.
    pub message: Option<String>,
    /// Artifacts.
    pub artifacts: Vec<StepArtifact>,
    /// The end of what the process wrote, while it runs as of the last read.
    pub log_tail: Option<String>,
    /// The last line that the process wrote, while it runs as of the last read.
    pub log_line: Option<String>,
}

/// Phase of a step.
#[api]
#[derive(Copy, Default, Eq)]
pub enum StepPhase {
    /// The process has not started.
    #[default]
    Pending,
    /// The inputs are being fetched.
    Fetching,
    /// The process is running.
    Running,
    /// The process has ended with the exit code 0.
    Succeeded,
    /// The process has ended with another exit code, or by its own timeout or memory limit.
    Failed,
    /// The process could not run, or not to its end.
    Errored,
}

impl StepPhase {
    /// Returns whether the step has ended.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Errored)
    }
}

/// State of a pod in its life cycle.
#[api]
#[derive(Copy, Eq)]
pub enum PodState {
    /// The pod exists.
    Created,
    /// The process is running.
    Running,
    /// The process has ended; the pod has its artifacts and its log.
    Retained,
    /// The pod is being deleted.
    Destroying,
    /// The pod does not exist any more.
    Gone,
}

/// An artifact.
#[api]
pub struct StepArtifact {
    /// Name of the output.
    pub name: String,
    /// URL at which the streamer of the pod serves it; none when the pod is gone.
    pub url: Option<String>,
    /// Digest of the compressed archive.
    pub digest: String,
    /// Size of the compressed archive in bytes.
    pub bytes: i64,
}
