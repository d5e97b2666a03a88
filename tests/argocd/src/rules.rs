//! The rules, as a function of an Application and of what it deploys. The state of the controller is in the Application.

use serde_json::{Value, json};

use crate::{ApplicationWorld, comparison, operation};

/// Annotation with which the controller leaves an Application alone.
const SKIP_ANNOTATION: &str = "argocd.argoproj.io/skip-reconcile";

/// Next step of the controller.
#[derive(Debug, PartialEq)]
pub enum ControllerStep {
    /// Nothing until the Application, the world or the time changes.
    Wait,
    /// Writes this version of the Application.
    Write(Value),
}

/// The next step of the controller for an Application. The time is in RFC 3339.
pub fn next_step(application: &Value, world: &ApplicationWorld, time: &str) -> ControllerStep {
    if !world.is_watched || application["metadata"]["annotations"][SKIP_ANNOTATION] == "true" {
        return ControllerStep::Wait;
    }
    let mut next = application.clone();
    let is_deleting = !application["metadata"]["deletionTimestamp"].is_null();
    let has_operation = application["operation"].is_object();
    match application["status"]["operationState"]["phase"].as_str() {
        // Without the field the operation neither continues nor ends, and a deletion waits with it.
        Some("Running" | "Terminating") if !has_operation => return ControllerStep::Wait,
        Some("Running") => {
            if !operation::advance(&mut next, world, time) {
                return ControllerStep::Wait;
            }
        }
        Some("Terminating") => operation::finish(&mut next, "Failed", "Operation terminated", time),
        _ if has_operation => operation::take(&mut next, time),
        _ if is_deleting => return delete(next, world, time),
        _ => return comparison::compare(application, world, time),
    }
    ControllerStep::Write(next)
}

/// Returns whether the controller gives an AppProject free: one that is deleted while no Application uses it. It looks when the
/// project is not the version that it has seen last, or at its resync; that an Application has gone does not wake it.
pub fn releases_project(project: &Value, seen_version: Option<&str>, is_used: bool, is_resync: bool) -> bool {
    let metadata = &project["metadata"];
    let is_due = is_resync || metadata["resourceVersion"].as_str() != seen_version;
    is_due && !metadata["deletionTimestamp"].is_null() && !is_used
}

/// Deletes what was deployed, and then gives the Application free.
fn delete(mut next: Value, world: &ApplicationWorld, time: &str) -> ControllerStep {
    let finalizers = next["metadata"]["finalizers"].as_array();
    if !finalizers.is_some_and(|all| all.iter().any(is_resources_finalizer)) {
        return ControllerStep::Wait;
    }
    if !world.has_project {
        // Without its project the controller does not know what it may delete.
        let conditions = next["status"]["conditions"].as_array();
        if conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "DeletionError")) {
            return ControllerStep::Wait;
        }
        let error = |kind: &str| json!({"type": kind, "message": "the project does not exist", "lastTransitionTime": time});
        next["status"]["conditions"] = json!([error("DeletionError"), error("InvalidSpecError")]);
        return ControllerStep::Write(next);
    }
    if next["status"]["deployed"].is_object() {
        let health = if world.is_held { &*world.health } else { "Missing" };
        let status = &mut next["status"];
        status["deployed"] = Value::Null;
        status["sync"]["status"] = "OutOfSync".into();
        status["health"]["status"] = health.into();
        return ControllerStep::Write(next);
    }
    if world.is_held {
        return ControllerStep::Wait;
    }
    if let Some(finalizers) = next["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| !is_resources_finalizer(finalizer));
    }
    ControllerStep::Write(next)
}

fn is_resources_finalizer(finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|name| name.starts_with("resources-finalizer.argocd.argoproj.io"))
}
