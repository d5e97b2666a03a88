//! The rules against what a real application controller wrote.

use argocd_simulator::{
    ApplicationWorld, ControllerStep, Hook, RepositorySource, next_step, releases_project, resync,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Time of the first action, in seconds since the Unix epoch.
const START_SECONDS: i64 = 1_795_334_400;
/// Bound of the writes between two actions; the recorded controller needs up to 20.
const MAX_WRITES: usize = 40;

/// What a real server was seen to do and the simulator does not, with the reason. Each is a timeline of the recording, or the
/// steps of one that `recording.json` leaves out.
const LEFT_OUT: [(&str, &str); 6] = [
    (
        "Events of the Application web",
        "the pack reads no Events of Argo CD",
    ),
    (
        "Secret of the repository",
        "Argo CD only reads it, so that each of its versions is an action",
    ),
    (
        "Two Applications with the same resource",
        "the simulator has no single resources; the pack ignores the warning, which is no error",
    ),
    (
        "Application: sync fails, with and without retries",
        "without the operation for one resource, which the pack never writes",
    ),
    (
        "Application: written by server-side apply, with and without the operation field",
        "without its last step, in which the controller overwrote a Terminating that it had not seen",
    ),
    (
        "Application: automated, self-healing, a new commit",
        "without the second syncs by a comparison that was older than the first, which not every run has",
    ),
];

fn set_source(world: &mut ApplicationWorld, error: &Value) {
    world.source = match error.as_str() {
        Some(condition) => RepositorySource::Error {
            condition: condition.into(),
            message: "as recorded".into(),
        },
        None => RepositorySource::Manifests,
    };
}

fn set_commits(world: &mut ApplicationWorld, commits: &Value) {
    for (revision, commit) in commits.as_object().into_iter().flatten() {
        let commit = commit.as_str().map(Into::into);
        world.commits.insert(revision.clone(), commit);
    }
}

fn world(recorded: &Value) -> ApplicationWorld {
    let mut world = ApplicationWorld::default();
    if let Some(error) = recorded.get("error") {
        set_source(&mut world, error);
    }
    if recorded["empty"] == true {
        world.source = RepositorySource::Empty;
    }
    if recorded["refused"] == true {
        world.source = RepositorySource::Refused("as recorded".into());
    }
    set_commits(&mut world, &recorded["commits"]);
    world.has_project = recorded["project"] != false;
    world.has_namespace = recorded["namespace"] != false;
    world.is_watched = recorded["watched"] != false;
    world.is_held = recorded["held"] == true;
    world.is_normalized = recorded["normalized"] == true;
    world.waits_for_health = recorded["waves"] == true;
    if recorded["hook"] == true {
        world.hook = Some(Hook::Running);
    }
    if recorded["progresses"] == true {
        world.health = "Progressing".into();
    }
    world
}

/// The API server, as far as it matters: merge patches, and deletion behind finalizers.
fn act(application: &mut Value, world: &mut ApplicationWorld, input: &Value, time: &str) {
    if input["has_hook"] == true {
        world.hook = Some(Hook::Running);
    }
    if let Some(patch) = input.get("patch") {
        merge_patch(application, patch);
        // Each operation starts a hook of its own.
        if patch["operation"].is_object() && world.hook.is_some() && !is_running(application) {
            world.hook = Some(Hook::Running);
        }
    }
    if input["delete"] == true {
        application["metadata"]["deletionTimestamp"] = time.into();
    }
    if let Some(finalizers) = input.get("finalizers") {
        application["metadata"]["finalizers"] = finalizers.clone();
    }
    if let Some(succeeds) = input["hook"].as_bool() {
        world.hook = Some(if succeeds { Hook::Succeeded } else { Hook::Failed });
    }
    if let Some(exists) = input["project"].as_bool() {
        world.has_project = exists;
        // The real one tries again after a minute.
        if exists {
            application["status"]["conditions"] = json!([]);
        }
    }
    if let Some(error) = input.get("error") {
        set_source(world, error);
    }
    set_commits(world, &input["commits"]);
    if let Some(is_watched) = input["watched"].as_bool() {
        world.is_watched = is_watched;
    }
    if input["drift"] == true {
        world.drift += 1;
    }
    if input["released"] == true {
        world.is_held = false;
    }
    if input["resync"] == true {
        resync(application);
    }
    if input["ready"] == true {
        world.health = "Healthy".into();
    }
    if input["degraded"] == true {
        world.health = "Degraded".into();
    }
}

fn is_running(application: &Value) -> bool {
    matches!(
        application["status"]["operationState"]["phase"].as_str(),
        Some("Running" | "Terminating")
    )
}

fn merge_patch(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().expect("an object").remove(key);
        } else {
            merge_patch(&mut into[key], value);
        }
    }
}

/// The state of the operation, as the recording has it.
fn operation(application: &Value) -> Value {
    let state = &application["status"]["operationState"];
    let info = state["operation"]["info"].as_array().into_iter().flatten();
    let mut sync = state["operation"]["sync"].clone();
    if let Some(fields) = sync.as_object_mut() {
        fields.retain(|field, _| field != "source" && field != "resources");
    }
    json!({
        "operation": application["operation"].is_object(),
        "phase": state["phase"],
        "finished": state["finishedAt"].is_string(),
        "sync": sync,
        "info": info.map(|entry| entry["value"].clone()).collect::<Vec<_>>(),
        "deleting": application["metadata"]["deletionTimestamp"].is_string(),
    })
}

fn end(application: &Value) -> Value {
    let status = &application["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut types: Vec<&str> = conditions.filter_map(|c| c["type"].as_str()).collect();
    types.sort_unstable();
    json!({"sync": status["sync"]["status"], "health": status["health"]["status"], "conditions": types})
}

/// Acts, and lets the controller write until it waits, also for as many seconds as the action took if they matter. Returns the
/// states of the operation, each once.
fn play(
    application: &mut Value,
    world: &mut ApplicationWorld,
    now: &mut Timestamp,
    input: &Value,
) -> Vec<Value> {
    act(application, world, input, &now.to_string());
    let mut seconds_left = input["seconds"].as_u64().unwrap_or_default();
    let mut seen = Vec::new();
    for _ in 0..MAX_WRITES {
        let finalizers = application["metadata"]["finalizers"].as_array();
        let is_deleted = application["metadata"]["deletionTimestamp"].is_string();
        if is_deleted && finalizers.is_none_or(Vec::is_empty) {
            seen.push("deleted".into());
            return seen;
        }
        let state = operation(application);
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        loop {
            match next_step(application, world, &now.to_string()) {
                ControllerStep::Write(next) => {
                    *application = next;
                    break;
                }
                ControllerStep::Wait if seconds_left == 0 => return seen,
                ControllerStep::Wait => {
                    seconds_left -= 1;
                    *now += SignedDuration::from_secs(1);
                }
            }
        }
    }
    panic!("the controller does not come to rest: {application:#}");
}

#[test]
fn simulator_agrees_with_the_recording() {
    let recording: Value = serde_json::from_str(include_str!("../recording.json")).expect("JSON");
    let timelines = recording["timelines"].as_array().expect("timelines");
    assert_eq!(timelines.len(), 31);
    let mut differences = Vec::new();
    for timeline in timelines {
        let mut world = world(&timeline["world"]);
        let mut now = Timestamp::from_second(START_SECONDS).expect("a time");
        let mut application =
            json!({"metadata": {"finalizers": timeline["finalizers"]}, "spec": timeline["spec"]});
        if timeline["annotations"].is_object() {
            application["metadata"]["annotations"] = timeline["annotations"].clone();
        }
        let mut before = Value::Null;
        for step in timeline["steps"].as_array().expect("steps") {
            let mut seen = play(&mut application, &mut world, &mut now, &step["input"]);
            let mut recorded = step["operations"].as_array().expect("states").clone();
            // The state before the action may be seen once more after it.
            for states in [&mut seen, &mut recorded] {
                if states.first() == Some(&before) {
                    states.remove(0);
                }
            }
            before = recorded.last().cloned().unwrap_or(before);
            let at = format!("{}, {}", timeline["name"], step["action"]);
            if seen != recorded {
                differences.push(format!("{at}: {} instead of {}", json!(seen), json!(recorded)));
            } else if !step["end"].is_null() && end(&application) != step["end"] {
                differences.push(format!("{at}: {} instead of {}", end(&application), step["end"]));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn deleted_project_goes_when_it_is_looked_at_without_a_user() {
    let recording: Value = serde_json::from_str(include_str!("../recording.json")).expect("JSON");
    let timelines = recording["projects"].as_array().expect("timelines");
    assert_eq!(timelines.len(), 2);
    for timeline in timelines {
        let mut project = json!({ "metadata": { "resourceVersion": "0" } });
        let (mut version, mut seen, mut is_used) = (0, None, false);
        for step in timeline["steps"].as_array().expect("steps") {
            let input = &step["input"];
            is_used = input["used"].as_bool().unwrap_or(is_used);
            let mut states = Vec::new();
            if input["delete"] == true {
                project["metadata"]["deletionTimestamp"] = "2026-11-22T08:25:08Z".into();
                states.push("deleting");
            }
            if input["delete"] == true || input["touch"] == true {
                version += 1;
            }
            project["metadata"]["resourceVersion"] = version.to_string().into();
            if releases_project(&project, seen.as_deref(), is_used, input["resync"] == true) {
                states.push("deleted");
            }
            seen = Some(version.to_string());
            assert_eq!(
                json!(states),
                step["states"],
                "{}, {}",
                timeline["name"],
                step["action"]
            );
        }
    }
}

#[test]
fn every_recorded_timeline_is_played_or_left_out_with_a_reason() {
    let recording: Value = serde_json::from_str(include_str!("../recording.json")).expect("JSON");
    let names = |field: &str| {
        let timelines = recording[field].as_array().expect("timelines");
        let names = timelines.iter().filter_map(|timeline| timeline["name"].as_str());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let played = [names("timelines"), names("projects")].concat();
    let missing = LEFT_OUT
        .iter()
        .filter(|(name, _)| !played.iter().any(|p| p == name));
    assert_eq!(
        played.len() + missing.count(),
        36,
        "timelines of the recorded server"
    );
    assert!(LEFT_OUT.iter().all(|(_, reason)| !reason.is_empty()));
}
