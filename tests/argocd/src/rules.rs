//! The rules, as a function of an Application and of what it deploys. The state of the controller is in the Application.

use serde_json::{Value, json};

/// Annotation that asks for a comparison.
const REFRESH_ANNOTATION: &str = "argocd.argoproj.io/refresh";

/// Surroundings of an Application: what it deploys, and its project.
#[derive(Clone, Debug)]
pub struct World {
    /// Content of the directory of the repository.
    pub source: Source,
    /// True if its AppProject exists.
    pub has_project: bool,
    /// The hook that runs before the sync; none if there is none.
    pub hook: Option<Hook>,
    /// Health of what was deployed.
    pub health: String,
}

/// Content of the directory of a repository.
#[derive(Clone, Debug)]
pub enum Source {
    /// Manifests that are applied.
    Manifests,
    /// Manifests that the API server refuses, with its message.
    Refused(String),
    /// Nothing that can be compared: type and message of the condition (`ComparisonError`, `InvalidSpecError`).
    Error {
        /// Type of the condition.
        condition: String,
        /// Message of the condition.
        message: String,
    },
}

/// State of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Its Job runs.
    Running,
    /// Its Job has ended well.
    Succeeded,
    /// Its Job has failed.
    Failed,
}

impl Default for World {
    /// Manifests that are healthy once they are applied.
    fn default() -> Self {
        Self {
            source: Source::Manifests,
            has_project: true,
            hook: None,
            health: "Healthy".into(),
        }
    }
}

/// Next step of the controller.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Nothing until the Application or the world changes.
    Wait,
    /// Writes this version of the Application.
    Write(Value),
}

/// The next step of the controller for an Application. The time is in RFC 3339.
pub fn next_step(application: &Value, world: &World, time: &str) -> Step {
    let mut next = application.clone();
    let is_deleting = !application["metadata"]["deletionTimestamp"].is_null();
    let has_operation = application["operation"].is_object();
    match application["status"]["operationState"]["phase"].as_str() {
        // Without the field the operation neither continues nor ends, and a deletion waits with it.
        Some("Running" | "Terminating") if !has_operation => return Step::Wait,
        Some("Running") => {
            if !continue_operation(&mut next, world, time) {
                return Step::Wait;
            }
        }
        Some("Terminating") => finish_operation(&mut next, "Failed", "Operation terminated", time),
        _ if has_operation => take_operation(&mut next, time),
        _ if is_deleting => return delete(next, world, time),
        _ => return compare(next, application, world, time),
    }
    Step::Write(next)
}

/// Takes the operation, merging it into the last one: what it does not name stays, unless its writer has removed the state.
fn take_operation(application: &mut Value, time: &str) {
    let operation = application["operation"].clone();
    let state = &mut application["status"]["operationState"];
    if !state.is_object() {
        *state = json!({});
    }
    merge(&mut state["operation"], &json!({"retry": {}}));
    merge(&mut state["operation"], &operation);
    state["phase"] = "Running".into();
    state["startedAt"] = time.into();
    if let Some(state) = state.as_object_mut() {
        state.remove("finishedAt");
    }
}

/// Continues the running operation. Returns whether there is anything to write.
fn continue_operation(application: &mut Value, world: &World, time: &str) -> bool {
    let is_dry_run = application["operation"]["sync"]["dryRun"] == true;
    // One that was inherited runs the hooks, and deploys nothing.
    let inherits_dry_run = application["status"]["operationState"]["operation"]["sync"]["dryRun"] == true;
    if !world.has_project {
        finish_operation(
            application,
            "Error",
            "InvalidSpecError: the project does not exist",
            time,
        );
        return true;
    }
    match &world.source {
        Source::Error { condition, message } => {
            finish_operation(application, "Error", &format!("{condition}: {message}"), time);
        }
        Source::Refused(message) if !is_dry_run => finish_operation(application, "Failed", message, time),
        _ if is_dry_run => finish_operation(
            application,
            "Succeeded",
            "successfully synced (no more tasks)",
            time,
        ),
        _ => match world.hook {
            Some(Hook::Running) => {
                let message = "waiting for completion of hook batch/Job/before";
                let state = &mut application["status"]["operationState"];
                if state["message"] == message {
                    return false;
                }
                state["message"] = message.into();
            }
            Some(Hook::Failed) => finish_operation(
                application,
                "Failed",
                "one or more synchronization tasks failed",
                time,
            ),
            Some(Hook::Succeeded) | None => {
                finish_operation(
                    application,
                    "Succeeded",
                    "successfully synced (all tasks run)",
                    time,
                );
                application["status"]["operationState"]["syncResult"] = json!({"revision": "841f4bb"});
                if !inherits_dry_run {
                    application["status"]["deployed"] = true.into();
                }
            }
        },
    }
    true
}

/// Ends the operation. One write sets the final phase and removes the field.
fn finish_operation(application: &mut Value, phase: &str, message: &str, time: &str) {
    let state = &mut application["status"]["operationState"];
    state["phase"] = phase.into();
    state["message"] = message.into();
    state["finishedAt"] = time.into();
    // Below, since the last comparison is older now.
    application["status"]["compared"] = false.into();
    if let Some(fields) = application.as_object_mut() {
        fields.remove("operation");
    }
}

/// Compares the Application with its source, when it has not been since the last operation or refresh.
fn compare(mut next: Value, application: &Value, world: &World, time: &str) -> Step {
    let refresh = next["metadata"]["annotations"].as_object_mut();
    let is_asked = refresh.is_some_and(|annotations| annotations.remove(REFRESH_ANNOTATION).is_some());
    let is_deployed = application["status"]["deployed"] == true;
    let (sync, health) = match &world.source {
        _ if !world.has_project => ("Unknown", "Unknown"),
        Source::Error { condition, .. } if condition == "InvalidSpecError" => ("Unknown", "Unknown"),
        Source::Error { .. } => ("Unknown", "Healthy"),
        Source::Manifests | Source::Refused(_) if is_deployed => ("Synced", &*world.health),
        Source::Manifests | Source::Refused(_) => ("OutOfSync", "Missing"),
    };
    let status = &application["status"];
    // The deletion of a project wakes no application.
    let is_same =
        !world.has_project || (status["sync"]["status"] == sync && status["health"]["status"] == health);
    if is_same && !is_asked && status["compared"] == true && status["comparedSpec"] == application["spec"] {
        return Step::Wait;
    }
    let error = match &world.source {
        _ if !world.has_project => Some(("InvalidSpecError", "the project does not exist")),
        Source::Error { condition, message } => Some((&**condition, &**message)),
        _ => None,
    };
    let conditions: Vec<Value> = error
        .iter()
        .map(|(kind, message)| json!({"type": kind, "message": message, "lastTransitionTime": time}))
        .collect();
    let status = &mut next["status"];
    status["sync"] = json!({"status": sync, "revision": "841f4bb"});
    status["health"] = json!({"status": health, "lastTransitionTime": time});
    status["conditions"] = conditions.into();
    status["reconciledAt"] = time.into();
    status["compared"] = true.into();
    status["comparedSpec"] = application["spec"].clone();
    Step::Write(next)
}

/// Deletes what was deployed, and then gives the Application free.
fn delete(mut next: Value, world: &World, time: &str) -> Step {
    let finalizers = next["metadata"]["finalizers"].as_array();
    if !finalizers.is_some_and(|all| all.iter().any(is_resources_finalizer)) {
        return Step::Wait;
    }
    if !world.has_project {
        // Without its project the controller does not know what it may delete.
        let conditions = next["status"]["conditions"].as_array();
        if conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "DeletionError")) {
            return Step::Wait;
        }
        let error = |kind: &str| json!({"type": kind, "message": "the project does not exist", "lastTransitionTime": time});
        next["status"]["conditions"] = json!([error("DeletionError"), error("InvalidSpecError")]);
        return Step::Write(next);
    }
    if next["status"]["deployed"] == true {
        let status = &mut next["status"];
        status["deployed"] = false.into();
        status["sync"]["status"] = "OutOfSync".into();
        status["health"]["status"] = "Missing".into();
        return Step::Write(next);
    }
    if let Some(finalizers) = next["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| !is_resources_finalizer(finalizer));
    }
    Step::Write(next)
}

fn is_resources_finalizer(finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|name| name.starts_with("resources-finalizer.argocd.argoproj.io"))
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
