//! Deletion of projects.

use ostler_sdk::{DeleteOptions, Preconditions, Selection, prelude::*, serde_json::Value};

use crate::{
    application_kind,
    claim::{name_of, reference_of},
};

/// Annotation whose change has Argo CD look at a project again.
const TOUCHED_ANNOTATION: &str = "devops.ostler.dev/touched";

/// Deletes a project. Argo CD keeps it while an application refers to it, and looks again at its next resync, minutes later,
/// unless the project changes.
pub fn delete(ctx: &Context, project: &Value) -> Result<(), Failure> {
    let reference = reference_of(project);
    let metadata = &project["metadata"];
    let Some(deleted_at) = metadata["deletionTimestamp"].as_str() else {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: metadata["uid"].as_str().map(Into::into),
                resource_version: None,
            },
            ..DeleteOptions::default()
        };
        return match ctx.delete_with(&reference, &options) {
            Err(Error::Conflict(_)) => Ok(()),
            deleted => deleted.reason("DeleteFailed"),
        };
    };
    let fields = format!("spec.project={}", name_of(project));
    let selection = Selection {
        namespace: metadata["namespace"].as_str(),
        fields: Some(&fields),
        ..Selection::default()
    };
    let users = ctx.list_json(&application_kind(), &selection, &["metadata", "spec.project"]);
    if users.reason("ListFailed")?.is_empty() && metadata["annotations"][TOUCHED_ANNOTATION] != *deleted_at {
        let patch = json!({ "metadata": { "annotations": { TOUCHED_ANNOTATION: deleted_at } } });
        let uid = Preconditions {
            uid: metadata["uid"].as_str().map(Into::into),
            resource_version: None,
        };
        match ctx.patch(&reference, &patch, &uid) {
            Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)) => {}
            Err(error) => return Err(error).reason("DeleteFailed"),
        }
    }
    Ok(())
}
