//! The pin of a resource. The pin of another user stays unless the spec asks for another version.

use concourse_api::{
    ConcourseOperation, ResourceSpec, ResourceStatus, VersionFields, concourse_status, rest,
};
use ostler_sdk::prelude::*;

use crate::{
    format_version,
    remote::{RemoteResource, version_path},
};

/// Candidates that are read to find the version to pin.
const MAX_CANDIDATES: usize = 50;

const PIN_VERSION: ConcourseOperation = ConcourseOperation::new("pin the version", "PinFailed").in_pipeline();
const UNPIN_RESOURCE: ConcourseOperation =
    ConcourseOperation::new("unpin the resource", "PinFailed").in_pipeline();
const WRITE_COMMENT: ConcourseOperation =
    ConcourseOperation::new("write the pin's comment", "PinFailed").in_pipeline();

/// The next step towards the desired pin.
#[derive(Debug, PartialEq)]
enum Step {
    Keep,
    Pin,
    Unpin,
    /// The config pins another version, which no request can change.
    ConflictWithConfig,
}

/// The pin that Concourse shows.
struct CurrentPin {
    /// The pinned version; empty if there is none.
    version: VersionFields,
    /// Indicates whether the config pins it.
    in_config: bool,
    /// Indicates whether this object has set it.
    is_owned: bool,
}

fn next_step(desired: Option<&VersionFields>, current: &CurrentPin) -> Step {
    match desired {
        Some(desired) if matches(&current.version, desired) => Step::Keep,
        Some(_) if current.in_config => Step::ConflictWithConfig,
        Some(_) => Step::Pin,
        None if current.is_owned => Step::Unpin,
        None => Step::Keep,
    }
}

/// Returns whether a version has all these fields.
fn matches(version: &VersionFields, fields: &VersionFields) -> bool {
    fields
        .iter()
        .all(|(name, value)| version.get(name) == Some(value))
}

/// Picks the version that consists of exactly these fields, or else the only one that has them.
fn pick<'a>(
    candidates: &'a [rest::ResourceVersion],
    fields: &VersionFields,
) -> Result<&'a rest::ResourceVersion, Failure> {
    let exact = candidates.iter().find(|candidate| candidate.version == *fields);
    match (exact, candidates) {
        (Some(picked), _) | (None, [picked]) => Ok(picked),
        (None, []) => {
            let message = format!(
                "No version of the resource has {} of spec.pinnedVersion: no check has found it yet, or it does not \
                 exist.",
                format_version(fields)
            );
            Err(Failure::wait(PIN_VERSION.reason(), message))
        }
        (None, [first, second, ..]) => {
            let message = format!(
                "Several versions have {}, such as {} and {}: give more fields in spec.pinnedVersion.",
                format_version(fields),
                format_version(&first.version),
                format_version(&second.version)
            );
            Err(Failure::terminal(PIN_VERSION.reason(), message))
        }
    }
}

/// Pins or unpins the resource, and comments on the pin, as the spec says.
pub fn apply(
    remote: &RemoteResource,
    spec: &ResourceSpec,
    found: &rest::ResourceResponse,
    status: &mut ResourceStatus,
) -> Result<(), Failure> {
    let desired = spec.pinned_version.as_ref().filter(|fields| !fields.is_empty());
    let is_unchanged = status.pinned_version == found.pinned_version;
    let is_owned = status.pin_owned == Some(true)
        && is_unchanged
        && !found.pinned_version.is_empty()
        && !found.pinned_in_config;
    let current = CurrentPin {
        version: found.pinned_version.clone(),
        in_config: found.pinned_in_config,
        is_owned,
    };
    let mut comment = found.pin_comment.as_deref().unwrap_or_default();
    status.pinned = Some(!current.version.is_empty());
    status.pinned_in_config = Some(current.in_config);
    let step = next_step(desired, &current);
    if step != Step::Pin {
        status.pin_owned = is_owned.then_some(true);
    }
    status.pinned_version = current.version;
    match (step, desired) {
        (Step::Keep, Some(desired)) if !is_unchanged || status.pinned_version_id.is_none() => {
            status.pinned_version_id = find_version_id(remote, desired, &status.pinned_version)?;
        }
        (Step::Pin, Some(desired)) => {
            let candidates = remote.find_versions(desired, MAX_CANDIDATES)?;
            set_pin(remote, status, pick(&candidates, desired)?)?;
            // Concourse clears the comment with the old pin.
            comment = "";
        }
        (Step::Unpin, _) => unpin(remote, status)?,
        (Step::ConflictWithConfig, _) => {
            let message = format!(
                "The pipeline's config pins {} (`version:` of the resource), which overrides spec.pinnedVersion: \
                 remove one of them.",
                format_version(&status.pinned_version)
            );
            return Err(Failure::terminal(PIN_VERSION.reason(), message));
        }
        _ => {}
    }
    if desired.is_none() {
        status.pinned_version_id = None;
        return Ok(());
    }
    let is_owned = status.pin_owned == Some(true);
    let desired_comment = spec.pin_comment.as_deref().or(is_owned.then_some(""));
    apply_comment(remote, desired_comment, comment, found.pinned_in_config)
}

fn apply_comment(
    remote: &RemoteResource,
    desired: Option<&str>,
    current: &str,
    in_config: bool,
) -> Result<(), Failure> {
    match desired {
        Some(desired) if !in_config && desired != current => {
            let body = json!({ "pin_comment": desired });
            remote.put_checked(&WRITE_COMMENT, "/pin_comment", Some(body))
        }
        _ => Ok(()),
    }
}

/// Finds the ID of the pinned version. None if no check has found the version, which a config may pin nevertheless.
fn find_version_id(
    remote: &RemoteResource,
    desired: &VersionFields,
    pinned: &VersionFields,
) -> Result<Option<i64>, Failure> {
    let candidates = remote.find_versions(pinned, MAX_CANDIDATES)?;
    let picked = pick(&candidates, desired).or_else(|_| pick(&candidates, pinned));
    Ok(picked.ok().map(|picked| picked.id))
}

fn set_pin(
    remote: &RemoteResource,
    status: &mut ResourceStatus,
    picked: &rest::ResourceVersion,
) -> Result<(), Failure> {
    status.pin_owned = Some(true);
    status.pinned_version.clone_from(&picked.version);
    status.pinned_version_id = Some(picked.id);
    // A checkpoint before the request: the owner of the pin is known even if this call is interrupted.
    status.claimed_server = remote.find_server()?;
    let checkpoint = json!({
        "pinOwned": true, "pinnedVersion": picked.version, "pinnedVersionID": picked.id,
        "claimedServer": status.claimed_server,
    });
    remote.ctx.checkpoint(&checkpoint).reason(PIN_VERSION.reason())?;
    let pinned = remote.put_checked(&PIN_VERSION, &version_path(picked.id, "/pin"), None);
    if let Err(failure) = pinned {
        remote.ctx.warn(PIN_VERSION.reason(), &failure.message);
        return Err(failure);
    }
    status.pinned = Some(true);
    let note = format!("Pinned to {}.", format_version(&picked.version));
    remote.ctx.event("Pinned", &note);
    Ok(())
}

fn unpin(remote: &RemoteResource, status: &mut ResourceStatus) -> Result<(), Failure> {
    let response = remote.put("/unpin", None).reason(UNPIN_RESOURCE.reason())?;
    // Concourse fails to unpin what another user has unpinned meanwhile.
    if concourse_status(&response) != Some(200) {
        let (found, _) = remote.read()?;
        if !found.pinned_version.is_empty() {
            return Err(UNPIN_RESOURCE.failure(&response));
        }
    }
    status.pin_owned = None;
    status.pinned = Some(false);
    status.pinned_version = VersionFields::new();
    remote
        .ctx
        .event("Unpinned", "The pin that this object had set is removed.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> VersionFields {
        let owned = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        owned.collect()
    }

    #[test]
    fn next_step_unpins_only_owned_pins() {
        let a = fields(&[("ref", "a"), ("branch", "main")]);
        let pin = |version: &VersionFields, in_config, is_owned| CurrentPin {
            version: version.clone(),
            in_config,
            is_owned,
        };
        let none = VersionFields::new();
        let desired = fields(&[("ref", "a")]);
        assert_eq!(next_step(Some(&desired), &pin(&none, false, false)), Step::Pin);
        assert_eq!(next_step(Some(&desired), &pin(&a, false, false)), Step::Keep);
        assert_eq!(next_step(Some(&desired), &pin(&a, true, false)), Step::Keep);
        let other = fields(&[("ref", "b")]);
        assert_eq!(next_step(Some(&other), &pin(&a, false, true)), Step::Pin);
        assert_eq!(
            next_step(Some(&other), &pin(&a, true, false)),
            Step::ConflictWithConfig
        );
        assert_eq!(next_step(None, &pin(&a, false, true)), Step::Unpin);
        assert_eq!(next_step(None, &pin(&a, false, false)), Step::Keep);
    }

    #[test]
    fn pick_prefers_exact_and_refuses_ambiguous_versions() {
        let found = |all: &[&[(&str, &str)]]| -> Vec<rest::ResourceVersion> {
            let version = |(id, version): (i64, &&[(&str, &str)])| rest::ResourceVersion {
                id,
                version: fields(version),
                enabled: true,
            };
            (0..).zip(all).map(version).collect()
        };
        let pick = |candidates: &[rest::ResourceVersion], fields: &VersionFields| {
            super::pick(candidates, fields).map(|picked| picked.id)
        };
        let desired = fields(&[("ref", "a")]);
        let (a, more): (&[_], &[_]) = (&[("ref", "a")], &[("ref", "a"), ("x", "1")]);
        assert_eq!(pick(&found(&[more]), &desired), Ok(0), "the only one");
        assert_eq!(pick(&found(&[more, a]), &desired), Ok(1), "the one without more");
        let several = pick(&found(&[more, more]), &desired).expect_err("which one?");
        assert!(several.message.contains("{ref: a, x: 1}"), "{}", several.message);
        let none = pick(&[], &desired).expect_err("none");
        assert!(none.message.contains("{ref: a}"), "{}", none.message);
    }
}
