//! Versions that no build may use.

use concourse_api::{Place, ResourceObservation, ResourceSpec, Version};
use ostler_sdk::prelude::*;

use crate::{
    remote::{Remote, tail},
    words,
};

const REASON: &str = "DisableFailed";
const LIMIT: usize = 100;

/// Disables the versions the spec names, and enables again those of ours that it no longer does. Gives what matches no
/// version.
pub fn converge<'a>(
    remote: &Remote,
    spec: &'a ResourceSpec,
    status: &mut ResourceObservation,
) -> Result<Vec<&'a Version>, Failure> {
    let mut wanted = Vec::new();
    let mut unmatched = Vec::new();
    for fields in spec.disabled_versions.iter().filter(|fields| !fields.is_empty()) {
        let found = remote.versions(fields, &LIMIT.to_string())?;
        if found.is_empty() {
            unmatched.push(fields);
        }
        if found.len() >= LIMIT {
            let message = [
                "More versions than can be looked at have ",
                &words(fields),
                " of spec.disabledVersions: give more fields.",
            ];
            return Err(Failure::terminal(REASON, message.concat()));
        }
        for version in found {
            let Some(id) = version["id"].as_i64() else {
                continue;
            };
            wanted.push(id);
            if version["enabled"] == false {
                continue;
            }
            if !status.disabled_version_ids.contains(&id) {
                status.disabled_version_ids.push(id);
                // Before, so that it is known who did it whatever happens in between.
                let begun = json!({ "disabledVersionIDs": status.disabled_version_ids });
                remote.ctx.checkpoint(&begun).reason(REASON)?;
            }
            remote.change(&tail(id, "/disable"), None, "disable a version", REASON)?;
        }
    }
    let ours = status.disabled_version_ids.clone();
    for id in ours.into_iter().filter(|id| !wanted.contains(id)) {
        let response = remote.put(&tail(id, "/enable"), None).reason("EnableFailed")?;
        if !matches!(response.status(), 200 | 404) {
            return Err(Place::refused(&response, "enable a version", "EnableFailed"));
        }
        status.disabled_version_ids.retain(|one| *one != id);
    }
    Ok(unmatched)
}
