use ostler_sdk::{api, resource};

use crate::{NamedSpec, Reference};

/// A worker of a server and its desired lifecycle state.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Worker",
    namespaced,
    status = WorkerStatus,
    shortname = "ccw",
    category = "concourse",
    doc = "A worker of a Concourse server.",
    printcolumn(name = "Instance", type = "string", json_path = ".spec.instanceRef.name"),
    printcolumn(name = "Worker", type = "string", json_path = ".status.resolvedName"),
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "Platform", type = "string", json_path = ".status.platform"),
    printcolumn(name = "Version", type = "string", json_path = ".status.version"),
    printcolumn(name = "Tasks", type = "integer", json_path = ".status.activeTasks", priority = 1),
    printcolumn(name = "Stalled", type = "string", json_path = ".status.conditions[?(@.type==\"WorkerStalled\")].status"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Lifecycle", type = "string", json_path = ".spec.lifecycle", priority = 1),
    printcolumn(name = "Team", type = "string", json_path = ".status.team", priority = 1),
    printcolumn(name = "Containers", type = "integer", json_path = ".status.activeContainers", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "has(self.workerName) == has(oldSelf.workerName) && (!has(self.workerName) || self.workerName == oldSelf.workerName)",
    message = "workerName is immutable"
)]
#[validation(
    rule = "self.instanceRef == oldSelf.instanceRef",
    message = "instanceRef is immutable"
)]
pub struct WorkerSpec {
    /// The Instance with which the worker has registered.
    pub instance_ref: Reference,
    /// Name of the worker in Concourse, which need not be an identifier; defaults to the object's name.
    #[schemars(length(min = 1, max = 100))]
    pub worker_name: Option<String>,
    /// Desired state: the worker accepts work (Running), finishes its work and stays registered (Draining), or
    /// finishes its work and is removed (Removed). Only a restart of its process returns a worker to Running.
    #[serde(default)]
    pub lifecycle: WorkerLifecycle,
    /// Suspends reconciliation of this worker; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

impl NamedSpec for WorkerSpec {
    fn name_override(&self) -> Option<&str> {
        self.worker_name.as_deref()
    }
}

/// Desired state of a worker.
#[api]
#[derive(Copy, Default, Eq)]
pub enum WorkerLifecycle {
    /// It accepts work.
    #[default]
    Running,
    /// It lands: it finishes its work and accepts no more.
    Draining,
    /// It retires, and Concourse forgets it.
    Removed,
}

/// Observed state of the worker.
#[api]
#[derive(Default)]
pub struct WorkerStatus {
    /// Name of the worker in Concourse.
    pub resolved_name: Option<String>,
    /// State of the worker: running, landing, landed, retiring or stalled; missing if Concourse has no worker of this name.
    pub phase: Option<String>,
    /// Platform of the tasks it runs.
    pub platform: Option<String>,
    /// Tags that a step needs to run on it.
    pub tags: Vec<String>,
    /// Number of containers.
    pub active_containers: Option<i64>,
    /// Number of volumes.
    pub active_volumes: Option<i64>,
    /// Number of running tasks.
    pub active_tasks: Option<i64>,
    /// Version of its worker protocol.
    pub version: Option<String>,
    /// Time at which it started.
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,
    /// Indicates whether Concourse forgets the worker when it stalls.
    pub ephemeral: Option<bool>,
    /// The only team it serves; it serves all teams if unset.
    pub team: Option<String>,
    /// Resource types that it provides.
    pub resource_types: Vec<WorkerResourceType>,
}

/// A resource type that a worker provides.
#[api]
pub struct WorkerResourceType {
    /// Name of the type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Version of its image.
    pub version: Option<String>,
    /// Indicates whether its containers run privileged.
    pub privileged: Option<bool>,
}
