//! The operation of an application: its progress, its place in the history, and its termination.

use ostler_sdk::{
    Preconditions,
    serde_json::{Value, json},
};

/// Progress of an operation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationProgress<'a> {
    /// The application is as it was before the request, which has not arrived yet, or never will.
    Unseen,
    /// It runs, or waits to be taken, or to be retried.
    Running,
    /// It has ended.
    Ended {
        /// `Succeeded`, `Failed` or `Error`.
        phase: &'a str,
        /// Message of Argo CD.
        message: &'a str,
        /// Commit that was synced.
        revision: Option<&'a str>,
        /// Time of the end.
        finished_at: &'a str,
    },
    /// Another operation has begun since. Whether this one ran before is not known.
    Replaced,
}

/// Start of the operation that an application shows, to be recorded before a sync is requested; none if there was none.
#[must_use]
pub fn operation_start(application: &Value) -> Option<&str> {
    application["status"]["operationState"]["startedAt"].as_str()
}

/// Finds the progress of an operation by its info, among what the application shows. `start_before` is the start of the
/// operation that was there before the request.
#[must_use]
pub fn find_progress<'a>(
    application: &'a Value,
    info: (&str, &str),
    start_before: Option<&str>,
) -> OperationProgress<'a> {
    let state = &application["status"]["operationState"];
    let is_own = |operation: &Value| {
        let mut entries = operation["info"].as_array().into_iter().flatten();
        entries.any(|entry| entry["name"] == info.0 && entry["value"] == info.1)
    };
    let has_operation = application["operation"].is_object();
    if is_own(&application["operation"]) {
        return OperationProgress::Running;
    }
    if !is_own(&state["operation"]) {
        let is_unchanged = !has_operation && state["startedAt"].as_str() == start_before;
        return if is_unchanged {
            OperationProgress::Unseen
        } else {
            OperationProgress::Replaced
        };
    }
    // Argo CD removes the field in the write that sets the final phase; one that is there again is another operation.
    let text = |field: &str| state[field].as_str().unwrap_or_default();
    match text("phase") {
        phase @ ("Succeeded" | "Failed" | "Error") => OperationProgress::Ended {
            phase,
            message: text("message"),
            revision: state["syncResult"]["revision"].as_str(),
            finished_at: text("finishedAt"),
        },
        _ => OperationProgress::Running,
    }
}

/// Finds a sync that has succeeded in the history of an application, where it stays when other operations have begun since. Those
/// that failed are not in it.
#[must_use]
pub fn find_deployed(application: &Value, is_own: impl Fn(&Value) -> bool) -> Option<&Value> {
    let history = application["status"]["history"].as_array()?;
    history.iter().rev().find(|entry| is_own(entry))
}

/// Builds the patch that ends the operation of an application; none if there is none. Without the field `operation`, which
/// another user may have removed, Argo CD neither continues nor ends it, so it is set again.
#[must_use]
pub fn build_termination(application: &Value) -> Option<Value> {
    let has_operation = application["operation"].is_object();
    let phase = application["status"]["operationState"]["phase"].as_str();
    let terminate = json!({ "operationState": { "phase": "Terminating" } });
    match (phase, has_operation) {
        // Argo CD has not taken it yet.
        (None | Some("Succeeded" | "Failed" | "Error"), true) => Some(json!({ "operation": null })),
        (Some("Running"), true) => Some(json!({ "status": terminate })),
        (Some("Running" | "Terminating"), false) => {
            Some(json!({ "operation": { "sync": {} }, "status": terminate }))
        }
        _ => None,
    }
}

/// The preconditions of a write to the very version of an object that was read.
#[must_use]
pub fn unchanged(object: &Value) -> Preconditions {
    let text = |field: &str| object["metadata"][field].as_str().map(Into::into);
    Preconditions {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_operation_is_terminated_whether_or_not_its_field_is_there() {
        let patch = |operation: Value, phase: &str| {
            build_termination(
                &json!({ "operation": operation, "status": { "operationState": { "phase": phase } } }),
            )
        };
        let terminating = json!({ "operationState": { "phase": "Terminating" } });
        assert_eq!(
            patch(json!({}), "Running"),
            Some(json!({ "status": terminating }))
        );
        let again = json!({ "operation": { "sync": {} }, "status": terminating });
        assert_eq!(patch(Value::Null, "Running"), Some(again.clone()));
        assert_eq!(patch(Value::Null, "Terminating"), Some(again));
        assert_eq!(patch(json!({}), "Terminating"), None);
        assert_eq!(patch(Value::Null, "Succeeded"), None);
        assert_eq!(patch(json!({}), "Succeeded"), Some(json!({ "operation": null })));
        assert_eq!(build_termination(&json!({})), None);
    }
}
