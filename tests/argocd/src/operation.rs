//! The operation of an Application: one slot, a merge into the state of the last one, hooks and waves that wait, retries.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{ApplicationWorld, Hook, RepositorySource};

/// Argo CD's pause before the first retry, if the operation names none.
const DEFAULT_RETRY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// Argo CD's longest pause before a retry, if the operation names none.
const DEFAULT_MAX_RETRY_PAUSE: SignedDuration = SignedDuration::from_mins(3);
/// Argo CD's factor of one pause to the next, if the operation names none.
const DEFAULT_RETRY_FACTOR: u64 = 2;
/// Number of entries in the history of an application that names no other.
const MAX_HISTORY: usize = 10;
/// Option of a sync that has the namespace created.
const CREATE_NAMESPACE: &str = "CreateNamespace=true";

/// Takes the operation, merging it into the last one: what it does not name stays, unless its writer has removed the state.
pub fn take(application: &mut Value, time: &str) {
    let operation = application["operation"].clone();
    let state = &mut application["status"]["operationState"];
    if !state.is_object() {
        *state = json!({});
    }
    merge(&mut state["operation"], &json!({"retry": {}}));
    merge(&mut state["operation"], &operation);
    state["phase"] = "Running".into();
    state["startedAt"] = time.into();
    remove_field(state, "finishedAt");
}

/// Continues the running operation. Returns whether there is anything to write.
pub fn advance(application: &mut Value, world: &ApplicationWorld, time: &str) -> bool {
    if application["status"]["operationState"]["finishedAt"].is_string() {
        return retry(application, time);
    }
    let sync = application["operation"]["sync"].clone();
    let is_dry_run = sync["dryRun"] == true;
    let revision = match sync["revision"].as_str() {
        Some(revision) if !revision.is_empty() => revision,
        _ => target_revision(application),
    }
    .to_owned();
    if let Some((condition, message)) = world.find_error(&revision) {
        finish(application, "Error", &format!("{condition}: {message}"), time);
        return true;
    }
    let commit = world.find_commit(&revision);
    application["status"]["operationState"]["syncResult"] = json!({ "revision": commit });
    match &world.source {
        _ if is_dry_run => finish(
            application,
            "Succeeded",
            "successfully synced (no more tasks)",
            time,
        ),
        RepositorySource::Empty => finish(
            application,
            "Succeeded",
            "successfully synced (no more tasks)",
            time,
        ),
        _ if lacks_namespace(application, world) => {
            let message = "one or more objects failed to apply, reason: namespaces not found";
            finish(application, "Failed", message, time);
        }
        RepositorySource::Refused(message) => {
            application["status"]["deployed"] = json!({ "revision": null, "drift": world.drift });
            finish(application, "Failed", message, time);
        }
        _ => return deploy(application, world, &commit.unwrap_or_default(), time),
    }
    true
}

/// Runs the hook, and applies the manifests. Returns whether there is anything to write.
fn deploy(application: &mut Value, world: &ApplicationWorld, commit: &str, time: &str) -> bool {
    match world.hook {
        Some(Hook::Running) => return wait(application, "waiting for completion of hook batch/Job/before"),
        Some(Hook::Failed) => {
            let message = "one or more synchronization tasks failed";
            finish(application, "Failed", message, time);
            return true;
        }
        Some(Hook::Succeeded) | None => {}
    }
    // An inherited dry run runs the hooks, and deploys nothing.
    if application["status"]["operationState"]["operation"]["sync"]["dryRun"] != true {
        let deployed = json!({ "revision": commit, "drift": world.drift });
        application["status"]["deployed"] = deployed;
    }
    if world.waits_for_health && world.health != "Healthy" {
        application["status"]["health"]["status"] = (*world.health).into();
        return wait(application, "waiting for healthy state of apps/Deployment/second");
    }
    finish(
        application,
        "Succeeded",
        "successfully synced (all tasks run)",
        time,
    );
    true
}

/// Shows what the operation waits for. Returns whether that is to be written.
fn wait(application: &mut Value, message: &str) -> bool {
    let state = &mut application["status"]["operationState"];
    let is_new = state["message"] != message;
    state["message"] = message.into();
    is_new
}

/// The controller takes the options of the operation, and not those of the Application's policy: the API server copies them.
fn lacks_namespace(application: &Value, world: &ApplicationWorld) -> bool {
    let status = &application["status"];
    let options = &status["operationState"]["operation"]["sync"]["syncOptions"];
    let mut options = options.as_array().into_iter().flatten();
    // The namespace stays after the first sync that has created it.
    !world.has_namespace
        && !status["deployed"].is_object()
        && !options.any(|option| option == CREATE_NAMESPACE)
}

/// Ends the operation, or one try of it. One write sets the final phase and removes the field.
pub fn finish(application: &mut Value, phase: &str, message: &str, time: &str) {
    application["status"]["compared"] = Value::Null;
    let state = &mut application["status"]["operationState"];
    let is_terminated = state["phase"] == "Terminating";
    state["message"] = message.into();
    state["finishedAt"] = time.into();
    let limit = state["operation"]["retry"]["limit"].as_i64().unwrap_or_default();
    // The count is inherited by the next operation too.
    let retries = state["retryCount"].as_i64().unwrap_or_default();
    if phase != "Succeeded" && !is_terminated && (retries < limit || limit < 0) {
        state["retryCount"] = (retries + 1).into();
        return;
    }
    state["phase"] = phase.into();
    if phase == "Succeeded" {
        record_deployment(application, time);
    }
    remove_field(application, "operation");
}

/// Adds the operation to the history, in which those that failed, dry runs and syncs of single resources are not.
fn record_deployment(application: &mut Value, time: &str) {
    let state = &application["status"]["operationState"];
    let operation = &state["operation"];
    let sync = &operation["sync"];
    if sync["dryRun"] == true || sync["resources"].as_array().is_some_and(|r| !r.is_empty()) {
        return;
    }
    let mut entry = json!({
        "revision": state["syncResult"]["revision"],
        "deployedAt": time,
        "deployStartedAt": state["startedAt"],
        "initiatedBy": operation.get("initiatedBy").cloned().unwrap_or_else(|| json!({})),
        "source": application["spec"]["source"],
    });
    let history = &mut application["status"]["history"];
    let mut entries = history.as_array().cloned().unwrap_or_default();
    let last = entries.last().and_then(|entry| entry["id"].as_i64());
    entry["id"] = last.map_or(0, |id| id + 1).into();
    entries.push(entry);
    let first = entries.len().saturating_sub(MAX_HISTORY);
    *history = entries.split_off(first).into();
}

/// Begins the next try when its time has come.
fn retry(application: &mut Value, time: &str) -> bool {
    let state = &mut application["status"]["operationState"];
    let retries = state["retryCount"].as_u64().unwrap_or_default();
    let backoff = &state["operation"]["retry"]["backoff"];
    let pause_of = |field: &str| backoff[field].as_str().and_then(|text| text.parse().ok());
    let factor = backoff["factor"].as_u64().unwrap_or(DEFAULT_RETRY_FACTOR);
    let pause: SignedDuration = pause_of("duration").unwrap_or(DEFAULT_RETRY_PAUSE);
    let exponent = u32::try_from(retries).unwrap_or(u32::MAX);
    let multiplier = i32::try_from(factor.saturating_pow(exponent)).unwrap_or(i32::MAX);
    let pause = pause.saturating_mul(multiplier);
    let max_pause = pause_of("maxDuration").unwrap_or(DEFAULT_MAX_RETRY_PAUSE);
    if !has_passed(&state["finishedAt"], pause.min(max_pause), time) {
        return false;
    }
    remove_field(state, "finishedAt");
    state["message"] = format!("Retrying operation. Attempt #{retries}").into();
    true
}

/// Returns whether a duration has passed since a time.
pub fn has_passed(since: &Value, duration: SignedDuration, time: &str) -> bool {
    let parse = |text: &str| text.parse::<Timestamp>().ok();
    match (since.as_str().and_then(parse), parse(time)) {
        (Some(since), Some(time)) => time.duration_since(since) >= duration,
        _ => true,
    }
}

/// The revision that an Application follows.
pub fn target_revision(application: &Value) -> &str {
    application["spec"]["source"]["targetRevision"]
        .as_str()
        .unwrap_or("HEAD")
}

fn remove_field(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
