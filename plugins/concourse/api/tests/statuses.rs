//! Statuses that another build of the pack, or another operator, has written.

use concourse_api::{
    BuildSpec, InstanceSpec, JobSpec, PipelineSpec, ResourceSpec, TeamSpec, WorkerSpec, crds,
};
use ostler_sdk::{
    KindSpec,
    serde_json::{Map, Value, json},
};

/// Reads a status as a reconcile does, and returns what it would write back.
fn read_back<S: KindSpec>(spec: &Value, status: Value) -> Value {
    let (_, status) = S::read(spec.clone(), status).expect("an object");
    ostler_sdk::serde_json::to_value(&status).expect("JSON")
}

/// Status fields of a kind with a value that none of them can have.
fn wrong_fields(kind: &str) -> Map<String, Value> {
    let (_, text) = crds()
        .into_iter()
        .find(|(_, text)| text.contains(&format!("kind: {kind}\n")))
        .expect("a CRD");
    let crd: Value = serde_saphyr::from_str(&text).expect("YAML");
    let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    let fields = status["properties"].as_object().expect("fields");
    let of_plugin = fields
        .iter()
        .filter(|(name, _)| !["conditions", "observedGeneration"].contains(&name.as_str()));
    of_plugin
        .map(|(name, schema)| {
            let wrong = match schema["type"].as_str() {
                Some("array") => json!([true]),
                _ => json!(["wrong"]),
            };
            (name.clone(), wrong)
        })
        .collect()
}

fn check_kind<S: KindSpec>(spec: &Value, good: &Value) {
    let wrong = wrong_fields(S::KIND);
    assert!(wrong.len() > 5, "{} has only these fields: {wrong:?}", S::KIND);
    let nothing = read_back::<S>(spec, json!({}));
    assert_eq!(read_back::<S>(spec, wrong.clone().into()), nothing, "{}", S::KIND);
    for (name, value) in wrong.into_iter().filter(|(name, _)| good.get(name).is_none()) {
        let mut status = good.clone();
        status[&name] = value;
        assert_eq!(
            read_back::<S>(spec, status),
            read_back::<S>(spec, good.clone()),
            "{}.{name}",
            S::KIND
        );
    }
    for whole in [json!([]), json!("x"), Value::Null] {
        assert_eq!(read_back::<S>(spec, whole), nothing, "{}", S::KIND);
    }
}

#[test]
fn unreadable_status_field_counts_as_missing_in_every_kind() {
    let name = json!({ "name": "x" });
    let claim = json!({ "claimedServer": "http://ci", "resolvedName": "x" });
    check_kind::<InstanceSpec>(
        &json!({ "url": "http://ci", "auth": {} }),
        &json!({ "version": "8.2.5", "workerCount": 3 }),
    );
    check_kind::<TeamSpec>(&json!({ "instanceRef": name, "roles": [] }), &claim);
    check_kind::<PipelineSpec>(&json!({ "teamRef": name, "config": {} }), &claim);
    check_kind::<JobSpec>(&json!({ "pipelineRef": name }), &claim);
    check_kind::<ResourceSpec>(&json!({ "pipelineRef": name }), &claim);
    check_kind::<BuildSpec>(
        &json!({ "jobRef": name }),
        &json!({ "claimedServer": "http://ci", "buildID": 42 }),
    );
    check_kind::<WorkerSpec>(&json!({ "instanceRef": name }), &json!({ "phase": "running" }));
}

#[test]
fn worker_status_with_names_of_resource_types_is_read() {
    let status = json!({ "phase": "running", "platform": "linux", "resourceTypes": ["git", "time"] });
    let read = read_back::<WorkerSpec>(&json!({ "instanceRef": { "name": "ci" } }), status);
    assert_eq!(read, json!({ "phase": "running", "platform": "linux" }));
}
