//! State, refresh and deletion of applications.

use devops_api::ApplicationState;
use ostler_sdk::{DeleteOptions, Preconditions, prelude::*, serde_json::Value};

use crate::claim::{name_of, reference_of, unchanged};

/// Annotation that has Argo CD compare an application again. Argo CD removes it.
const REFRESH_ANNOTATION: &str = "argocd.argoproj.io/refresh";

/// The state of an application. Health alone means little: an application whose repository or path is missing is Healthy
/// with an error among its conditions.
pub fn observe(application: &Value) -> ApplicationState {
    let status = &application["status"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut errors = conditions.filter(|c| c["type"].as_str().is_some_and(|t| t.ends_with("Error")));
    ApplicationState {
        name: name_of(application),
        sync: text(&status["sync"]["status"]),
        health: text(&status["health"]["status"]),
        revision: text(&status["sync"]["revision"]),
        error: errors.next().and_then(|condition| text(&condition["message"])),
    }
}

/// Has Argo CD compare an application again. Neither a mended Secret of a repository nor a new commit does, until its next
/// resync.
pub fn refresh(ctx: &Context, application: &Value) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { REFRESH_ANNOTATION: "normal" } } });
    match ctx.patch(&reference_of(application), &patch, &Preconditions::default()) {
        Ok(_) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error).reason("RefreshFailed"),
    }
}

/// Deletes an application with what it has deployed. Argo CD deletes only after the running operation, which may never end,
/// so that is terminated first.
pub fn delete(ctx: &Context, application: &Value) -> Result<(), Failure> {
    if let Some(patch) = build_termination(application) {
        match ctx.patch(&reference_of(application), &patch, &unchanged(application)) {
            Ok(_) | Err(Error::NotFound(_)) => {}
            // It has changed: the next reconcile, which that change causes, looks again.
            Err(Error::Conflict(_)) => return Ok(()),
            Err(error) => return Err(error).reason("TerminateFailed"),
        }
    }
    let metadata = &application["metadata"];
    if !metadata["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let options = DeleteOptions {
        preconditions: Preconditions {
            uid: metadata["uid"].as_str().map(Into::into),
            resource_version: None,
        },
        ..DeleteOptions::default()
    };
    match ctx.delete_with(&reference_of(application), &options) {
        Err(Error::Conflict(_)) => Ok(()),
        deleted => deleted.reason("DeleteFailed"),
    }
}

/// The patch that terminates the running operation; none if there is none. Without the field `operation`, which another
/// user may have removed, Argo CD neither continues nor ends it, so it is set again.
fn build_termination(application: &Value) -> Option<Value> {
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
