//! Versions that no build may use.

use concourse_api::{ConcourseOperation, ResourceSpec, ResourceStatus, VersionFields, concourse_status};
use ostler_sdk::prelude::*;

use crate::{
    format_version,
    remote::{RemoteResource, version_path},
};

/// Versions that one entry of the spec may match.
const MAX_MATCHES: usize = 100;

const DISABLE_VERSION: ConcourseOperation =
    ConcourseOperation::new("disable a version", "DisableFailed").in_pipeline();
const ENABLE_VERSION: ConcourseOperation =
    ConcourseOperation::new("enable a version", "EnableFailed").in_pipeline();

/// Disables the versions that match the spec, and enables those that this object has disabled and the spec no longer
/// matches. Returns the entries of the spec that match no version.
pub fn apply<'a>(
    remote: &RemoteResource,
    spec: &'a ResourceSpec,
    status: &mut ResourceStatus,
) -> Result<Vec<&'a VersionFields>, Failure> {
    let mut desired = Vec::new();
    let mut unmatched = Vec::new();
    for fields in spec.disabled_versions.iter().filter(|fields| !fields.is_empty()) {
        let found = remote.find_versions(fields, MAX_MATCHES)?;
        if found.is_empty() {
            unmatched.push(fields);
        }
        if found.len() >= MAX_MATCHES {
            let message = format!(
                "{MAX_MATCHES} versions or more match {} of spec.disabledVersions: give more fields.",
                format_version(fields)
            );
            return Err(Failure::terminal(DISABLE_VERSION.reason(), message));
        }
        for version in found {
            desired.push(version.id);
            if version.enabled {
                disable(remote, version.id, status)?;
            }
        }
    }
    for id in status.disabled_version_ids.clone() {
        if !desired.contains(&id) {
            enable(remote, id)?;
            status.disabled_version_ids.retain(|disabled| *disabled != id);
        }
    }
    Ok(unmatched)
}

fn disable(remote: &RemoteResource, id: i64, status: &mut ResourceStatus) -> Result<(), Failure> {
    if !status.disabled_version_ids.contains(&id) {
        status.disabled_version_ids.push(id);
        // A checkpoint before the request: this object enables the version again even if this call is interrupted.
        status.claimed_server = remote.find_server()?;
        let checkpoint = json!({
            "disabledVersionIDs": status.disabled_version_ids, "claimedServer": status.claimed_server,
        });
        remote
            .ctx
            .checkpoint(&checkpoint)
            .reason(DISABLE_VERSION.reason())?;
    }
    remote.put_checked(&DISABLE_VERSION, &version_path(id, "/disable"), None)
}

fn enable(remote: &RemoteResource, id: i64) -> Result<(), Failure> {
    let answer = remote.put(&version_path(id, "/enable"), None);
    let response = answer.reason(ENABLE_VERSION.reason())?;
    match concourse_status(&response) {
        Some(200 | 404) => Ok(()),
        _ => Err(ENABLE_VERSION.failure(&response)),
    }
}
