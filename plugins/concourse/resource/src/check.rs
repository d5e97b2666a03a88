//! Checks that this object asks for, and how the last one went.

use concourse_api::{Place, ResourceObservation, ResourceSpec, finished, first_line};
use ostler_sdk::{duration, from_rfc3339, prelude::*, rfc3339, serde_json::Value};

use crate::remote::Remote;

const CHECK_NOW: &str = "concourse-ci.org/check-now";
/// A running check is looked at as often as it has lasted, between these.
const SOONEST: u64 = 1000;
const LATEST: u64 = 30_000;

/// Looks at the check that runs, if one of ours does.
pub fn follow(remote: &Remote, status: &mut ResourceObservation) -> Result<(), Failure> {
    let Some(id) = status.running_check_id else {
        return Ok(());
    };
    match remote.build(id)? {
        Some(build) => learn(&build, status),
        // Concourse keeps no build of a check for long: how it went, `learn` is told by the resource.
        None => status.running_check_id = None,
    }
    Ok(())
}

/// Remembers how a check went, if it has ended and is newer than what is known.
pub fn learn(build: &Value, status: &mut ResourceObservation) {
    let (Some(id), Some(how)) = (build["id"].as_i64(), build["status"].as_str()) else {
        return;
    };
    if !finished(Some(how)) {
        return;
    }
    if status.running_check_id.is_some_and(|running| running <= id) {
        status.running_check_id = None;
    }
    if status.check_build_id.is_none_or(|known| known <= id) {
        status.check_build_id = Some(id);
        status.check_status = Some(how.to_owned());
    }
}

/// Starts a check when one is due. Gives when to come back, in milliseconds.
pub fn start(
    remote: &Remote,
    object: &Object<ResourceSpec>,
    status: &mut ResourceObservation,
) -> Result<Option<u64>, Failure> {
    let now = remote.ctx.now();
    let requested = status.check_requested.as_deref().and_then(from_rfc3339);
    let requested = requested.map(|seconds| seconds * 1000);
    if status.running_check_id.is_some() {
        let lasted = now.saturating_sub(requested.unwrap_or(now));
        return Ok(Some(lasted.clamp(SOONEST, LATEST)));
    }
    let asked = object.metadata.annotations.get(CHECK_NOW).and_then(Value::as_str);
    let asked = asked.filter(|value| !value.is_empty());
    let interval = object.spec.check_interval.as_deref().and_then(duration);
    let left = interval.map(|interval| (requested.unwrap_or(0) + interval).saturating_sub(now));
    if asked.is_none() {
        status.check_now = None;
    }
    if left != Some(0) && (asked.is_none() || asked == status.check_now.as_deref()) {
        return Ok(left);
    }
    status.check_requested = Some(rfc3339(now / 1000));
    let response = remote.check()?;
    // Archived it waits, and is asked then.
    if response.status() == 409 {
        return Err(Place::refused(&response, "check the resource", "CheckFailed"));
    }
    status.check_now = asked.map(ToOwned::to_owned);
    match response.status() {
        201 => {
            let build = response.value().reason("CheckFailed")?;
            status.running_check_id = build["id"].as_i64();
            learn(&build, status);
            Ok(Some(SOONEST))
        }
        _ => {
            // It is the check that could not be made; the resource is as wanted, and the next one may go well.
            let detail = first_line(&response.text());
            let note = ["Concourse did not start the check: ", &detail].concat();
            remote.ctx.warn("CheckFailed", &note);
            status.check_status = Some("errored".to_owned());
            Ok(interval)
        }
    }
}

/// How the last check went.
pub fn healthy(status: &ResourceObservation) -> Condition {
    const TYPE: &str = "CheckHealthy";
    match status.check_status.as_deref() {
        None => Condition::new_unknown(TYPE, "CheckPending", "No check has ended yet."),
        Some("succeeded") => Condition::new_true(TYPE, "CheckSucceeded", "The last check succeeded."),
        Some(how) => {
            let build = match status.check_build_id {
                Some(id) => [" (build ", &id.to_string(), ")"].concat(),
                None => String::new(),
            };
            let message = ["The last check", &build, " ", how, "."].concat();
            Condition::new_false(TYPE, "CheckFailed", message)
        }
    }
}
