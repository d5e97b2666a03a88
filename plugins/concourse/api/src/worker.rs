use ostler_sdk::{api, resource};

use crate::Reference;

/// A worker of a server, and whether it is to go.
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
    printcolumn(name = "Lifecycle", type = "string", json_path = ".spec.lifecycle"),
    printcolumn(name = "Phase", type = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Platform", type = "string", json_path = ".status.platform", priority = 1),
    printcolumn(name = "Team", type = "string", json_path = ".status.team", priority = 1),
    printcolumn(name = "Containers", type = "integer", json_path = ".status.activeContainers", priority = 1),
    printcolumn(name = "Version", type = "string", json_path = ".status.version", priority = 1),
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
    /// The Instance the worker has registered with.
    pub instance_ref: Reference,
    /// Name of the worker in Concourse; the object's name when there is none.
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    )]
    pub worker_name: Option<String>,
    /// Whether the worker takes work (Running), finishes what it has and stays (Draining), or goes for good
    /// (Removed). Only its own start brings a worker back to work.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Stops reconciling this worker; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

/// What a worker is to do.
#[api]
#[derive(Copy, Default, Eq)]
pub enum Lifecycle {
    /// It takes work.
    #[default]
    Running,
    /// It lands: finishes what it has and takes nothing new.
    Draining,
    /// It retires, and is forgotten.
    Removed,
}

/// What was found about the worker.
#[api]
#[derive(Default)]
pub struct WorkerStatus {
    /// Name of the worker in Concourse.
    #[serde(skip_deserializing)]
    pub resolved_name: Option<String>,
    /// State of the worker: running, landing, landed, retiring, stalled; missing when Concourse has none of its name.
    pub phase: Option<String>,
    /// Platform it runs tasks of.
    #[serde(skip_deserializing)]
    pub platform: Option<String>,
    /// Tags that steps must have to run on it.
    #[serde(skip_deserializing)]
    pub tags: Vec<String>,
    /// Number of its containers.
    #[serde(skip_deserializing)]
    pub active_containers: Option<i64>,
    /// Number of its volumes.
    #[serde(skip_deserializing)]
    pub active_volumes: Option<i64>,
    /// Number of tasks it runs.
    #[serde(skip_deserializing)]
    pub active_tasks: Option<i64>,
    /// Version of the worker protocol it speaks.
    #[serde(skip_deserializing)]
    pub version: Option<String>,
    /// When it started.
    #[schemars(extend("format" = "date-time"))]
    #[serde(skip_deserializing)]
    pub start_time: Option<String>,
    /// Whether Concourse forgets it when it stalls.
    #[serde(skip_deserializing)]
    pub ephemeral: Option<bool>,
    /// The only team it works for; all of them when there is none.
    #[serde(skip_deserializing)]
    pub team: Option<String>,
    /// Types of resources it brings.
    #[serde(skip_deserializing)]
    pub resource_types: Vec<String>,
}
