//! The API server against what a real one answered.

use std::collections::BTreeMap;

use argocd_simulator::{ArgoRequest, Hook, RepositorySource, Rest};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const START: &str = "2026-11-22T08:30:00Z";

/// What is played of the 398 recorded exchanges; the others are of these kinds.
const LEFT_OUT: [(&str, &str); 9] = [
    (
        "sessions, accounts, tokens, clusters, settings, webhooks, rights of other users",
        "the host sends a token, and the pack makes none; refusals are played in the client's tests",
    ),
    (
        "repositories without a project, repocreds, validate, refs, appdetails",
        "the pack's repositories belong to a project, and are stored untested",
    ),
    (
        "malformed and incomplete bodies, unknown fields, wrong types, bad names",
        "the client builds its bodies from a spec that the CRD and the component have validated",
    ),
    (
        "projects: roles, events, links, windows other than one that denies all",
        "the pack writes none",
    ),
    (
        "project: update that an application breaks, or that takes its repository away",
        "the component changes applications first; a refusal is an error like any other",
    ),
    (
        "applications: manifests, resource tree, managed and live resources, actions, logs, events, rollback, JSON patch",
        "the pack reads and writes none of them",
    ),
    (
        "sync without prune, of one resource, by the token of a role",
        "the simulator has no single resources",
    ),
    (
        "an automated sync in the midst of it, and a refresh, which leaves an annotation",
        "its answer depends on how far the controller is; the rules are played in recording.rs",
    ),
    (
        "streams",
        "they withhold their headers until the first message, so the pack polls",
    ),
];

fn set_up(rest: &mut Rest, setup: &Value, now: &mut Timestamp) {
    if let Some(seconds) = setup["seconds"].as_i64() {
        for _ in 0..seconds {
            *now += SignedDuration::from_secs(1);
            rest.time = now.to_string();
            while rest.advance() {}
        }
    }
    let Some(application) = setup["application"].as_str() else {
        return;
    };
    let world = rest.world(application);
    for (revision, commit) in setup["commits"].as_object().into_iter().flatten() {
        let commit = commit.as_str().map(Into::into);
        world.commits.insert(revision.clone(), commit);
    }
    if let Some(condition) = setup["error"].as_str() {
        world.source = RepositorySource::Error {
            condition: condition.into(),
            message: "as recorded".into(),
        };
    }
    if setup["refused"] == true {
        world.source = RepositorySource::Refused("as recorded".into());
    }
    if let Some(health) = setup["health"].as_str() {
        world.health = health.into();
    }
    match setup["hook"].as_str() {
        Some("Running") => world.hook = Some(Hook::Running),
        Some(_) => world.hook = Some(Hook::Succeeded),
        None => {}
    }
    if let Some(is_held) = setup["held"].as_bool() {
        world.is_held = is_held;
    }
}

/// What is compared of an answer.
fn cut(body: &Value, recorded: &Value) -> Value {
    let status = &body["status"];
    let state = &status["operationState"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut types: Vec<&str> = conditions.filter_map(|c| c["type"].as_str()).collect();
    types.sort_unstable();
    let names = |items: &Value| -> Value {
        let items = items.as_array();
        items.map_or(Value::Null, |items| {
            items
                .iter()
                .map(|item| item["metadata"]["name"].clone())
                .collect()
        })
    };
    let mut cut = json!({
        "name": body["metadata"]["name"],
        "labels": body["metadata"]["labels"],
        "deleting": body["metadata"]["deletionTimestamp"].is_string(),
        "spec": body["spec"],
        "items": names(&body["items"]),
        "code": body["code"],
        "repo": body["repo"],
        "operation": body["operation"]["sync"],
        "info": body["operation"]["info"],
    });
    if recorded["status"].is_object() {
        cut["status"] = json!({
            "sync": status["sync"]["status"],
            "health": status["health"]["status"],
            "phase": state["phase"],
            "info": state["operation"]["info"],
            "conditions": types,
        });
    }
    cut
}

fn cut_recorded(body: &Value, is_settled: bool) -> Value {
    let mut recorded = body.clone();
    if let Some(fields) = recorded.as_object_mut() {
        fields.remove("status");
    }
    let mut cut = cut(&recorded, &Value::Null);
    if is_settled && body["status"].is_object() {
        cut["status"] = body["status"].clone();
    }
    cut
}

#[test]
fn server_agrees_with_the_recording() {
    let recording: Value = serde_json::from_str(include_str!("../rest.json")).expect("JSON");
    let exchanges = recording["exchanges"].as_array().expect("exchanges");
    assert_eq!(exchanges.len(), 123);
    assert!(
        LEFT_OUT
            .iter()
            .all(|(kind, reason)| !kind.is_empty() && !reason.is_empty())
    );
    let mut now: Timestamp = START.parse().expect("a time");
    let mut rest = Rest::new(START);
    // The versions of the recorded server, and those of this one.
    let mut versions = BTreeMap::new();
    let mut differences = Vec::new();
    for exchange in exchanges {
        set_up(&mut rest, &exchange["setup"], &mut now);
        let is_settled = exchange["settled"] == true;
        if is_settled {
            while rest.advance() {}
        }
        let recorded = &exchange["request"];
        let mut body = recorded["body"].clone();
        if let Some(version) = body.pointer_mut("/project/metadata/resourceVersion")
            && let Some(own) = versions.get(version.as_str().unwrap_or_default())
        {
            *version = Value::String(String::clone(own));
        }
        let reply = rest.answer(ArgoRequest {
            method: recorded["method"].as_str().expect("a method"),
            path: recorded["path"].as_str().expect("a path"),
            content_type: recorded["content_type"].as_str(),
            body: &body,
        });
        let expected = &exchange["response"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let version = |body: &Value| text(&body["metadata"]["resourceVersion"]);
        if let (Some(theirs), Some(own)) = (version(&expected["body"]), version(&reply.body)) {
            versions.insert(theirs, own);
        }
        let name = &exchange["name"];
        if expected["status"] != reply.status {
            differences.push(format!("{name}: {} instead of {}", json!(reply.body), expected));
            continue;
        }
        let message = text(&reply.body["message"]).unwrap_or_default();
        if !text(&expected["body"]["message"]).is_none_or(|full| full.starts_with(&message)) {
            differences.push(format!("{name}: {message} instead of {}", expected["body"]));
        }
        let theirs = cut_recorded(&expected["body"], is_settled && recorded["method"] == "GET");
        let own = cut(&reply.body, &theirs);
        if own != theirs {
            differences.push(format!("{name}: {own} instead of {theirs}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn write_without_a_content_type_is_refused() {
    let reply = Rest::new(START).answer(ArgoRequest {
        method: "DELETE",
        path: "/api/v1/applications/nosuch",
        content_type: None,
        body: &Value::Null,
    });
    assert_eq!(reply.status, 415);
}
