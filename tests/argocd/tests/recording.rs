//! The rules against what a real application controller wrote.

use argocd_simulator::{Hook, Source, Step, World, next_step};
use serde_json::{Value, json};

const TIME: &str = "2026-11-22T08:00:00Z";
/// Bound of the writes between two actions; the recorded controller needs six.
const MAX_WRITES: usize = 10;

fn world(recorded: &Value) -> World {
    let mut world = World::default();
    if let Some(condition) = recorded["error"].as_str() {
        world.source = Source::Error {
            condition: condition.into(),
            message: "as recorded".into(),
        };
    }
    world.has_project = recorded["project"] != false;
    if recorded["hook"] == true {
        world.hook = Some(Hook::Running);
    }
    if recorded["progresses"] == true {
        world.health = "Progressing".into();
    }
    world
}

/// The API server, as far as it matters: merge patches, and deletion behind finalizers.
fn act(application: &mut Value, world: &mut World, input: &Value) {
    if let Some(patch) = input.get("patch") {
        merge_patch(application, patch);
        // Each operation starts a hook of its own.
        if patch["operation"].is_object() && world.hook.is_some() && !is_running(application) {
            world.hook = Some(Hook::Running);
        }
    }
    if input["delete"] == true {
        application["metadata"]["deletionTimestamp"] = TIME.into();
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
    json!({
        "operation": application["operation"].is_object(),
        "phase": state["phase"],
        "finished": state["finishedAt"].is_string(),
        "sync": state["operation"]["sync"],
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

/// Acts, and lets the controller write until it waits. Returns the states of the operation, each once.
fn play(application: &mut Value, world: &mut World, input: &Value) -> Vec<Value> {
    act(application, world, input);
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
        match next_step(application, world, TIME) {
            Step::Write(next) => *application = next,
            Step::Wait => return seen,
        }
    }
    panic!("the controller does not come to rest: {application:#}");
}

#[test]
fn simulator_agrees_with_the_recording() {
    let recording: Value = serde_json::from_str(include_str!("../recording.json")).expect("JSON");
    let timelines = recording["timelines"].as_array().expect("timelines");
    assert_eq!(timelines.len(), 18);
    let mut differences = Vec::new();
    for timeline in timelines {
        let mut world = world(&timeline["world"]);
        let mut application =
            json!({"metadata": {"finalizers": timeline["finalizers"]}, "spec": timeline["spec"]});
        let mut before = Value::Null;
        for step in timeline["steps"].as_array().expect("steps") {
            let mut seen = play(&mut application, &mut world, &step["input"]);
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
