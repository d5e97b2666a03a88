//! Sequences of lists: selectors, pages, tables and watches.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::Choose as _;
use super::objects::CUSTOM_COLLECTION;
use super::sequence::{JSON, MERGE_PATCH, RequestStep, Step};

/// `Accept` of kubectl's tables.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// `Accept` of metadata alone.
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
/// `Accept` of a list of metadata alone.
const PARTIAL_LIST: &str =
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";

/// Collections that a sequence lists, with their kind.
const COLLECTIONS: [(&str, &str, &str); 3] = [
    (CUSTOM_COLLECTION, "§group/v1", "Thing"),
    ("/api/v1/namespaces/§namespace/configmaps", "v1", "ConfigMap"),
    ("/api/v1/namespaces/§namespace/secrets", "v1", "Secret"),
];

/// Generates objects, and lists of them. All have the label `set=§id`, since a block's sequences share a namespace.
pub fn generate_steps(rng: &mut Rng) -> Vec<Step> {
    let (collection, api_version, kind) = rng.choose(&COLLECTIONS);
    let mut steps: Vec<Step> = Vec::new();
    for index in 0..rng.usize(1..5) {
        let mut labels = json!({"set": "§id"});
        if rng.percent(60) {
            labels["app"] = rng.choose(&["a", "b", ""]).into();
        }
        let mut object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": format!("l{index}-§id"), "labels": labels},
        });
        if kind == "Secret" && rng.bool() {
            object["type"] = "a.example/own".into();
        }
        steps.push(RequestStep::post(collection, object).into());
    }
    for _ in 0..rng.usize(1..4) {
        steps.push(generate_read(rng, collection));
        if rng.percent(25) {
            let path = format!("{collection}/l0-§id");
            let app = rng.choose(&[json!("a"), json!("c"), Value::Null]);
            steps.push(
                RequestStep::patch(path, MERGE_PATCH, json!({"metadata": {"labels": {"app": app}}})).into(),
            );
        }
    }
    if rng.percent(10) {
        // The events since the first object, until the server ends the watch.
        steps.push(RequestStep::delete(format!("{collection}/l0-§id"), Value::Null).into());
        let query = rng.choose(&["", "%2Capp%3Da", "%2C%21app"]);
        steps.push(
            RequestStep::get(format!(
                "{collection}?watch=1&timeoutSeconds=1&labelSelector=set%3D§id{query}&resourceVersion=§revision({collection}/l0-§id)"
            ))
            .into(),
        );
    }
    steps
}

fn generate_read(rng: &mut Rng, collection: &str) -> Step {
    let selector = rng.choose(&[
        "",
        "",
        "%2Capp%3Da",
        "%2Capp%3D",
        "%2Capp%21%3Da",
        "%2Capp%20in%20(a%2Cb)",
        "%2Capp%20notin%20(a)",
        "%2C%21app",
        "%2Capp",
        "%2Capp%3E1",
        "%2Capp%20in%20(a",
        "%2C-bad%3Da",
        "%2Capp%3D%3Da",
        "%2Capp%3Dnot%20valid!",
    ]);
    let mut path = format!("{collection}?labelSelector=set%3D§id{selector}");
    match rng.u32(0..12) {
        0 => path.push_str("&fieldSelector=metadata.name%3Dl0-§id"),
        1 => path.push_str("&fieldSelector=metadata.name%21%3Dl0-§id"),
        2 => path.push_str("&fieldSelector=metadata.namespace%3D§namespace"),
        3 => path.push_str("&fieldSelector=spec.absent%3Da"),
        4 => path.push_str("&fieldSelector=type%3Da.example/own"),
        5 => path.push_str("&fieldSelector=metadata.name"),
        6 => path.push_str("&fieldSelector=spec.url%3D"),
        _ => {}
    }
    match rng.u32(0..12) {
        0 => path.push_str("&limit=1"),
        1 => path.push_str("&limit=2"),
        2 => path.push_str("&limit=-1"),
        3 => path.push_str("&limit=x"),
        4 => path.push_str("&resourceVersion=0"),
        5 => path.push_str("&resourceVersion=x"),
        6 => path.push_str("&resourceVersionMatch=Exact"),
        7 => path.push_str("&resourceVersion=0&resourceVersionMatch=NotOlderThan"),
        8 => path.push_str("&resourceVersion=0&resourceVersionMatch=Exact"),
        9 => path.push_str("&continue=bad"),
        10 => path.push_str("&sendInitialEvents=true"),
        _ => {}
    }
    let mut request = RequestStep::get(path);
    request.accept = rng.choose(&[JSON, JSON, JSON, TABLE, PARTIAL_LIST]);
    if rng.percent(15) {
        request = RequestStep::get(format!("{collection}/l0-§id"));
        request.accept = rng.choose(&[JSON, TABLE, PARTIAL]);
    }
    if request.path.contains("resourceVersion=0") {
        // The real server answers from its cache, which may lag behind.
        return Step::Settle(request);
    }
    request.into()
}
