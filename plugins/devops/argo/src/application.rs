//! State, refresh and deletion of applications.

use devops_api::ApplicationState;
use devops_argo_client::{build_termination, unchanged};
use ostler_sdk::{DeleteOptions, Preconditions, prelude::*, serde_json::Value};

use crate::claim::{name_of, reference_of};

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
