//! Checks that this object triggers, and the result of the last one.

use concourse_api::{ConcourseOperation, Resource, ResourceStatus, concourse_status, is_finished, rest};
use ostler_sdk::{duration, from_rfc3339, prelude::*, rfc3339};

use crate::remote::RemoteResource;

/// Annotation whose new value triggers one check.
const CHECK_NOW_ANNOTATION: &str = "concourse-ci.org/check-now";
/// A running check is polled after as long as it has run already, between these limits.
const MIN_FOLLOW_INTERVAL_MS: u64 = 1000;
const MAX_FOLLOW_INTERVAL_MS: u64 = 30_000;

/// Limits of `spec.checkInterval`.
const MIN_CHECK_INTERVAL_MS: u64 = 10_000;
const MAX_CHECK_INTERVAL_MS: u64 = 604_800_000;

const START_CHECK: ConcourseOperation =
    ConcourseOperation::new("check the resource", "CheckFailed").in_pipeline();

/// Reads the running check that this object has triggered, if there is one.
pub fn follow(remote: &RemoteResource, status: &mut ResourceStatus) -> Result<(), Failure> {
    let Some(id) = status.running_check_id else {
        return Ok(());
    };
    match remote.find_build(id)? {
        Some(build) => record_result(&build, status),
        // Concourse deletes builds of checks early. The resource itself shows the result.
        None => status.running_check_id = None,
    }
    Ok(())
}

/// Records the result of a check that has ended, unless a newer result is known.
pub fn record_result(build: &rest::BuildResponse, status: &mut ResourceStatus) {
    if !is_finished(build.status.as_deref()) {
        return;
    }
    if status.running_check_id.is_some_and(|running| running <= build.id) {
        status.running_check_id = None;
    }
    if status.check_build_id.is_none_or(|known| known <= build.id) {
        status.check_build_id = Some(build.id);
        status.check_status.clone_from(&build.status);
    }
}

/// Starts a check if one is due. Returns the delay until the next look, in milliseconds; none if no check is running
/// or scheduled.
pub fn start_if_due(
    remote: &RemoteResource,
    resource: &Resource,
    status: &mut ResourceStatus,
) -> Result<Option<u64>, Failure> {
    let now = remote.ctx.now();
    let last_request = status.check_requested.as_deref().and_then(from_rfc3339);
    let last_request = last_request.map(|seconds| seconds * 1000);
    if status.running_check_id.is_some() {
        let age = now.saturating_sub(last_request.unwrap_or(now));
        return Ok(Some(age.clamp(MIN_FOLLOW_INTERVAL_MS, MAX_FOLLOW_INTERVAL_MS)));
    }
    let check_now = resource.metadata.annotation(CHECK_NOW_ANNOTATION);
    let check_now = check_now.filter(|value| !value.is_empty());
    let interval = resource.spec.check_interval.as_deref().and_then(duration);
    let interval = interval.map(|interval| interval.clamp(MIN_CHECK_INTERVAL_MS, MAX_CHECK_INTERVAL_MS));
    let delay = interval.map(|interval| (last_request.unwrap_or(0) + interval).saturating_sub(now));
    if check_now.is_none() {
        status.check_now = None;
    }
    let is_requested = check_now.is_some() && check_now != status.check_now.as_deref();
    if delay != Some(0) && !is_requested {
        return Ok(delay);
    }
    start(remote, check_now, interval, status)
}

/// Starts a check. A check that Concourse does not start leaves the object Ready: the next one may succeed.
fn start(
    remote: &RemoteResource,
    check_now: Option<&str>,
    interval: Option<u64>,
    status: &mut ResourceStatus,
) -> Result<Option<u64>, Failure> {
    status.check_requested = Some(rfc3339(remote.ctx.now() / 1000));
    let response = remote.start_check().reason(START_CHECK.reason())?;
    // In an archived pipeline the request stays open until the pipeline is active again.
    if concourse_status(&response) == Some(409) {
        return Err(START_CHECK.failure(&response));
    }
    status.check_now = check_now.map(ToOwned::to_owned);
    if concourse_status(&response) == Some(201) {
        let build: rest::BuildResponse = response.json().reason(START_CHECK.reason())?;
        status.running_check_id = Some(build.id);
        record_result(&build, status);
        return Ok(Some(MIN_FOLLOW_INTERVAL_MS));
    }
    let cause = response.excerpt();
    let note = format!("Concourse did not start the check: {cause}");
    remote.ctx.warn("CheckFailed", &note);
    status.check_status = Some("errored".to_owned());
    Ok(interval)
}

/// The condition `CheckHealthy`, by the result of the last check.
pub fn healthy_condition(status: &ResourceStatus) -> Condition {
    const CONDITION_TYPE: &str = "CheckHealthy";
    match (status.check_status.as_deref(), status.check_build_id) {
        (None, _) => Condition::new_unknown(CONDITION_TYPE, "CheckPending", "No check has ended yet."),
        (Some("succeeded"), _) => {
            Condition::new_true(CONDITION_TYPE, "CheckSucceeded", "The last check succeeded.")
        }
        (Some(result), Some(id)) => {
            let message = format!("The last check (build {id}) {result}.");
            Condition::new_false(CONDITION_TYPE, "CheckFailed", message)
        }
        (Some(result), None) => {
            let message = format!("The last check {result}.");
            Condition::new_false(CONDITION_TYPE, "CheckFailed", message)
        }
    }
}
