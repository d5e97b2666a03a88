//! The comparison of an Application with its source, and the operations that automation starts by its result.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::{
    ApplicationWorld, ControllerStep, RepositorySource,
    operation::{has_passed, target_revision},
};

/// Annotation that asks for a comparison.
const REFRESH_ANNOTATION: &str = "argocd.argoproj.io/refresh";
/// Limit of retries of an automated sync.
const AUTOMATED_RETRY_LIMIT: u32 = 5;
/// Longest pause between two attempts to heal.
const MAX_HEAL_PAUSE: SignedDuration = SignedDuration::from_secs(300);

/// Has the next step compare an Application, as the periodic resync of the controller does.
pub fn resync(application: &mut Value) {
    application["status"]["compared"] = Value::Null;
}

/// Compares the Application with its source, if it has not been since the last operation, refresh, resync, change of its spec
/// or change of what it has deployed. A new commit or a mended repository does not cause it.
pub fn compare(application: &Value, world: &ApplicationWorld, time: &str) -> ControllerStep {
    let mut next = application.clone();
    let refresh = next["metadata"]["annotations"].as_object_mut();
    let is_asked = refresh.is_some_and(|annotations| annotations.remove(REFRESH_ANNOTATION).is_some());
    let target = target_revision(application);
    let error = world.find_error(target);
    let commit = world.find_commit(target);
    let status = &application["status"];
    let (sync, health) = match error {
        Some(("InvalidSpecError", _)) => ("Unknown", "Unknown"),
        Some(_) => ("Unknown", "Healthy"),
        None => find_state(status, world, &json!(commit)),
    };
    let compared = json!({ "spec": application["spec"], "drift": world.drift });
    let had_error = status["conditions"].as_array().is_some_and(|all| !all.is_empty());
    let has_new_health = error.is_none()
        && !had_error
        && status["deployed"].is_object()
        && status["health"]["status"] != health;
    if !is_asked && !has_new_health && status["compared"] == compared {
        return start_automated(application, time).map_or(ControllerStep::Wait, ControllerStep::Write);
    }
    let conditions: Vec<Value> = error
        .iter()
        .map(|(kind, message)| json!({"type": kind, "message": message, "lastTransitionTime": time}))
        .collect();
    let status = &mut next["status"];
    status["sync"] = json!({"status": sync, "revision": commit});
    status["health"] = json!({"status": health, "lastTransitionTime": time});
    status["conditions"] = conditions.into();
    status["reconciledAt"] = time.into();
    status["compared"] = compared;
    ControllerStep::Write(next)
}

/// Sync and health of an Application that can be compared.
fn find_state<'a>(status: &Value, world: &'a ApplicationWorld, commit: &Value) -> (&'a str, &'a str) {
    let deployed = &status["deployed"];
    match world.source {
        RepositorySource::Empty => ("Synced", "Healthy"),
        _ if !deployed.is_object() => ("OutOfSync", "Missing"),
        _ if world.is_normalized || deployed["revision"] != *commit || deployed["drift"] != world.drift => {
            ("OutOfSync", &world.health)
        }
        _ => ("Synced", &world.health),
    }
}

/// The Application with an automated operation, which removes the state of the last one: to a commit that has not been synced,
/// or to the same again to heal it, with growing pauses.
fn start_automated(application: &Value, time: &str) -> Option<Value> {
    let automated = application["spec"]["syncPolicy"]["automated"].as_object()?;
    let status = &application["status"];
    if status["sync"]["status"] != "OutOfSync" {
        return None;
    }
    let is_set = |field: &str| automated.get(field).is_some_and(|value| *value == true);
    let commit = &status["sync"]["revision"];
    let mut sync = json!({ "revision": commit });
    if is_set("prune") {
        sync["prune"] = true.into();
    }
    let options = &application["spec"]["syncPolicy"]["syncOptions"];
    if options.is_array() {
        sync["syncOptions"] = options.clone();
    }
    let state = &status["operationState"];
    let result = &state["syncResult"]["revision"];
    if state["phase"].is_string() && (result.is_null() || result == commit) {
        let attempts = state["operation"]["sync"]["autoHealAttemptsCount"]
            .as_u64()
            .unwrap_or_default();
        let can_heal = state["phase"] == "Succeeded" && is_set("selfHeal");
        if !can_heal || !has_passed(&state["finishedAt"], heal_pause(attempts), time) {
            return None;
        }
        sync["autoHealAttemptsCount"] = (attempts + 1).into();
    }
    let mut next = application.clone();
    next["operation"] = json!({
        "initiatedBy": { "automated": true },
        "retry": { "limit": AUTOMATED_RETRY_LIMIT },
        "sync": sync,
    });
    next["status"].as_object_mut()?.remove("operationState");
    Some(next)
}

/// The pause after a number of attempts to heal: none, 2 s, 6 s, 18 s, …
fn heal_pause(attempts: u64) -> SignedDuration {
    let Some(exponent) = attempts.checked_sub(1) else {
        return SignedDuration::ZERO;
    };
    let exponent = u32::try_from(exponent).unwrap_or(u32::MAX);
    SignedDuration::from_secs(3i64.saturating_pow(exponent).saturating_mul(2)).min(MAX_HEAL_PAUSE)
}
