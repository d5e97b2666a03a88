//! Reconciles `concourse-ci.org/v1alpha1` Resource: its pin, its disabled versions and its checks.
//!
//! Cleanup undoes what this object has changed, and nothing else.

mod check;
mod disabled;
mod pin;
mod remote;

use concourse_api::{
    Location, NamespacedName, Resource, ResourceSpec, ResourceStatus, VersionFields, concourse_name,
    suspended_outcome,
};
use ostler_sdk::{Resolution, prelude::*, rfc3339};
use remote::RemoteResource;

const POLL_INTERVAL_MS: u64 = 300_000;

/// Reconciles Resources.
pub struct Resources;

impl Reconciler for Resources {
    type Spec = ResourceSpec;
    const FINALIZER: Option<&'static str> = Some("concourse-ci.org/resource-finalizer");

    fn reconcile(&self, ctx: &Context, resource: &Resource) -> Result<Outcome, Failure> {
        if resource.spec.suspend {
            return Ok(suspended_outcome());
        }
        let location = Location::dereference(ctx, pipeline_of(resource))?;
        let name = concourse_name(resource);
        let remote = RemoteResource::new(ctx, &location, name);
        let mut status = ResourceStatus {
            resolved_name: Some(name.to_owned()),
            web_url: remote.web_url(),
            ..resource.status.clone()
        };
        if owns_changes(&status) && !remote.is_on_claimed_server(&status, &format!("resource {name}"))? {
            status.pin_owned = None;
            status.pinned_version_id = None;
            status.disabled_version_ids.clear();
        }
        // The status is written even after a failure, because it records what this object has changed so far.
        let applied = apply(&remote, resource, &mut status);
        if !owns_changes(&status) {
            status.claimed_server = None;
        }
        match applied {
            Ok(outcome) => Ok(outcome.status(&status)),
            Err(failure) => Err(failure.status(&status)),
        }
    }

    fn cleanup(&self, ctx: &Context, resource: &Resource) -> Result<Outcome, Failure> {
        let status = &resource.status;
        if !owns_changes(status) {
            return Ok(Outcome::await_change());
        }
        let name = concourse_name(resource);
        let what = format!("resource {name}");
        let Some(location) = Location::dereference_for_cleanup(ctx, pipeline_of(resource), &what)? else {
            return Ok(Outcome::await_change());
        };
        let remote = RemoteResource::new(ctx, &location, name);
        if !remote.is_on_claimed_server(status, &what)? {
            return Ok(Outcome::await_change());
        }
        remote.undo_changes(status, &what)
    }
}

/// Returns whether the object has changed something that a cleanup has to undo.
fn owns_changes(status: &ResourceStatus) -> bool {
    status.pin_owned == Some(true) || !status.disabled_version_ids.is_empty()
}

fn pipeline_of(resource: &Resource) -> NamespacedName<'_> {
    resource.spec.pipeline_ref.resolve(resource.namespace())
}

/// Applies checks, pin and disabled versions, in an order in which each step sees what the steps before it changed.
fn apply(
    remote: &RemoteResource,
    resource: &Resource,
    status: &mut ResourceStatus,
) -> Result<Outcome, Failure> {
    let spec = &resource.spec;
    // First, so that the reads below show what the check has found.
    check::follow(remote, status)?;
    let (found, latest_version) = remote.read()?;
    status.kind.clone_from(&found.kind);
    status.last_checked = found.last_checked.map(rfc3339);
    status.latest_version = latest_version;
    if let Some(build) = &found.build {
        check::record_result(build, status);
    }
    // Before the pin, because the check may find the version to pin.
    let next_check = check::start_if_due(remote, resource, status)?;
    let next_check = next_check.map(|delay| delay.min(POLL_INTERVAL_MS));
    let applied = pin::apply(remote, spec, &found, status);
    let unmatched = match applied.and_then(|()| disabled::apply(remote, spec, status)) {
        Ok(unmatched) => unmatched,
        Err(mut failure) => {
            // Checks continue while the pin or a version waits.
            if let (Some(delay), Resolution::Terminal | Resolution::Wait) = (next_check, &failure.resolution)
            {
                failure.resolution = Resolution::Throttled(delay);
            }
            return Err(failure.with(check::healthy_condition(status)));
        }
    };
    let outcome = match next_check {
        Some(delay) => Outcome::after(delay),
        None => Outcome::poll(POLL_INTERVAL_MS),
    };
    Ok(outcome
        .with(ready_condition(&unmatched))
        .with(check::healthy_condition(status)))
}

fn ready_condition(unmatched: &[&VersionFields]) -> Condition {
    let mut message = "The resource matches its spec.".to_owned();
    for version in unmatched {
        let version = format_version(version);
        message += &format!(" No version matches {version} of spec.disabledVersions yet.");
    }
    Condition::new_true("Ready", "Ready", message)
}

/// A version as `{ref: 61cbef}`.
fn format_version(version: &VersionFields) -> String {
    let fields: Vec<_> = version
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

ostler_sdk::plugin!(Resources);
