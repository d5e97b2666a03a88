//! Pods on a node: the binding by a scheduler, and the grace period in which their kubelet ends them.

use serde_json::{Value, json};

use crate::kind::ServedKind;
use crate::object::current_time;
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::StoredKey;

/// Grace period of a pod that names none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Returns true for the kind Pod.
pub fn is_pod_kind(kind: &ServedKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

/// Seconds for which a deleted object stays until its kubelet removes it: zero unless it is a pod on a node with containers
/// that may run. A deletion that has begun can only be shortened.
pub fn grace_seconds(kind: &ServedKind, live: &Value, requested: Option<i64>) -> i64 {
    let metadata = &live["metadata"];
    if metadata["deletionTimestamp"].is_string() {
        let begun = metadata["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default();
        return requested.map_or(begun, |requested| begun.min(requested.max(0)));
    }
    let is_bound = live["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let has_ended = matches!(live["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if !is_pod_kind(kind) || !is_bound || has_ended {
        return 0;
    }
    let own = live["spec"]["terminationGracePeriodSeconds"].as_i64();
    requested.or(own).unwrap_or(DEFAULT_GRACE_SECONDS).max(0)
}

/// Checks the container of which a log is read. It may be left out where the pod has one alone.
pub fn check_log_container(name: &str, pod: &Value, container: Option<&str>) -> Result<(), StatusError> {
    let names = |field: &str| -> Vec<&str> {
        let containers = pod["spec"][field].as_array().into_iter().flatten();
        containers
            .filter_map(|container| container["name"].as_str())
            .collect()
    };
    let containers = names("containers");
    let all = [
        names("initContainers"),
        containers.clone(),
        names("ephemeralContainers"),
    ]
    .concat();
    match container.filter(|container| !container.is_empty()) {
        Some(container) if all.contains(&container) => Ok(()),
        Some(container) => Err(StatusError::bad_request(format!(
            "container {container} is not valid for pod {name}"
        ))),
        None if containers.len() == 1 => Ok(()),
        None => Err(StatusError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

impl RequestHandler {
    /// Binds a pod to the node that a `Binding` names.
    pub fn bind_pod(
        &self,
        kind: &ServedKind,
        key: &StoredKey,
        binding: &Value,
    ) -> Result<Value, StatusError> {
        let subject = kind.subject(&key.name);
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        if node.is_empty() {
            return Err(StatusError::bad_request("Binding: target.name: Required value"));
        }
        loop {
            let live = self
                .storage
                .get(&kind.resource, key)
                .ok_or_else(|| StatusError::not_found(subject))?;
            if live.is_terminating() {
                let why = format!("pod {} is being deleted, cannot be assigned to a host", key.name);
                return Err(StatusError::conflict(subject, why));
            }
            if let Some(taken) = live.value["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
                let why = format!("pod {} is already assigned to node \"{taken}\"", key.name);
                return Err(StatusError::conflict(subject, why));
            }
            let mut bound = live.value.clone();
            bound["spec"]["nodeName"] = node.into();
            set_scheduled(&mut bound["status"]);
            if self.storage.update(&kind.resource, &live, bound).is_ok() {
                return Ok(
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
                );
            }
        }
    }
}

/// Sets the resources of a pod's containers to those of another state of it, which the subresource `resize` takes and nothing else.
/// The containers are found by name.
pub fn set_container_resources(pod: &mut Value, resized: &Value) {
    let resized = resized["spec"]["containers"].as_array();
    let containers = pod["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        let mut named = resized.into_iter().flatten();
        if let Some(resources) = named
            .find(|other| other["name"] == container["name"])
            .and_then(|other| other.get("resources"))
        {
            container["resources"] = resources.clone();
        }
    }
}

/// Sets the condition `PodScheduled`.
fn set_scheduled(status: &mut Value) {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    conditions.push(
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": current_time()}),
    );
    status["conditions"] = conditions.into();
}
