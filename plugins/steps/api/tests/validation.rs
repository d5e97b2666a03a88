//! Steps that the API server accepts and refuses, by the schema and the CEL rules of the CRD.

use ostler_schema::{Rules, Schema, TypeMeta, check_definition};
use ostler_sdk::serde_json::{Value, json};

/// Schema of the CRD.
fn schema() -> Value {
    let (_, text) = &steps_api::crds()[0];
    let crd: Value = serde_saphyr::from_str(text).expect("YAML");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Errors of the API server for a Step with this spec, which replaces another one on update.
fn errors_of(spec: &Value, old: Option<&Value>) -> Vec<String> {
    let declared = schema();
    let complete = |spec: &Value| {
        let mut object = json!({"apiVersion": "steps.ostler.dev/v1alpha1", "kind": "Step", "metadata": {"name": "a"}, "spec": spec});
        Schema::parse_root(&declared)
            .expect("a schema")
            .apply_defaults(&mut object);
        object
    };
    let object = complete(spec);
    let mut errors = Schema::parse_root(&declared).expect("a schema").validate(&object);
    if errors.is_empty() {
        let meta = TypeMeta {
            group: "steps.ostler.dev".into(),
            api_version: "steps.ostler.dev/v1alpha1".into(),
            kind: "Step".into(),
        };
        let rules = Rules::compile(&declared).expect("rules");
        errors = rules.validate(&object, old.map(complete).as_ref(), meta);
    }
    errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.message))
        .collect()
}

fn spec() -> Value {
    json!({
        "image": "golang:1.25",
        "inputs": [{"name": "source", "fromStep": "checkout", "path": "/work/source"},
            {"name": "cache", "fromStep": "restore", "artifact": "modules", "path": "/work/cache"}],
        "outputs": [{"name": "binary", "path": "/work/binary.d"}],
        "process": {"path": "go", "args": ["build"], "dir": "/work/source", "env": [{"name": "A", "value": ""},
            {"name": "B", "secretKeyRef": {"name": "login", "key": "password"}}]},
        "securityContext": {"runAsUser": 1000},
        "timeout": "1h30m",
    })
}

#[test]
fn schema_is_structural_and_its_rules_compile() {
    assert_eq!(check_definition(&schema(), "openAPIV3Schema", true), vec![]);
}

#[test]
fn valid_steps_are_accepted_with_defaults() {
    assert_eq!(errors_of(&spec(), None), Vec::<String>::new());
    assert_eq!(
        errors_of(&json!({"image": "a", "process": {"path": "b"}}), None),
        Vec::<String>::new()
    );
    let root = json!({"image": "a", "process": {"path": "b"}, "securityContext": {"runAsUser": 0, "runAsNonRoot": false,
        "privileged": true, "allowPrivilegeEscalation": true}});
    assert_eq!(errors_of(&root, None), Vec::<String>::new());
    let mut object = json!({"spec": {"image": "a", "process": {"path": "b"}}});
    Schema::parse_root(&schema())
        .expect("a schema")
        .apply_defaults(&mut object);
    let defaults = [
        ("startTimeout", json!("10m")),
        ("retain", json!("1h")),
        ("onPodLost", json!("Fail")),
        ("logTailBytes", json!(1024)),
    ];
    for (field, value) in defaults {
        assert_eq!(object["spec"][field], value, "{field}");
    }
}

#[test]
fn invalid_steps_are_refused_with_the_field() {
    let input = |path: &str| json!([{"name": "a", "fromStep": "b", "path": path}]);
    for (pointer, value, word) in [
        ("/image", json!(""), "image"),
        ("/image", json!("a b"), "image"),
        ("/process/path", json!(""), "process.path"),
        ("/process/dir", json!("relative"), "process.dir"),
        ("/process/env", json!([{"name": "A=B"}]), "process.env"),
        (
            "/process/env",
            json!([{"name": "A", "value": "x", "secretKeyRef": {"name": "s", "key": "k"}}]),
            "at most one of value",
        ),
        (
            "/process/env",
            json!([{"name": "A"}, {"name": "A"}]),
            "process.env",
        ),
        ("/inputs", input("relative"), "inputs"),
        ("/inputs", input("/"), "inputs"),
        ("/inputs", input("/work/../etc"), "inputs"),
        ("/inputs", input("/a:b"), "inputs"),
        ("/inputs", input("/ostler/bin"), "directory of the shim"),
        (
            "/inputs",
            input("/work/binary.d"),
            "must not have the path of an input",
        ),
        (
            "/inputs",
            json!([{"name": "a", "fromStep": "b", "path": "/a"}, {"name": "a", "fromStep": "b", "path": "/b"}]),
            "inputs",
        ),
        (
            "/inputs",
            json!([{"name": "a", "fromStep": "b", "path": "/a"}, {"name": "b", "fromStep": "b", "path": "/a"}]),
            "different paths",
        ),
        (
            "/inputs",
            json!([{"name": "Upper", "fromStep": "b", "path": "/a"}]),
            "inputs",
        ),
        (
            "/outputs",
            json!([{"name": "a", "path": "/ostler"}]),
            "directory of the shim",
        ),
        (
            "/outputs",
            json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/a"}]),
            "different paths",
        ),
        ("/timeout", json!("soon"), "timeout"),
        ("/timeout", json!(""), "timeout"),
        ("/securityContext", json!({"runAsUser": 0}), "runAsNonRoot: false"),
        (
            "/securityContext",
            json!({"privileged": true}),
            "allowPrivilegeEscalation: true",
        ),
    ] {
        let mut spec = spec();
        *spec.pointer_mut(pointer).expect("a field") = value.clone();
        let errors = errors_of(&spec, None);
        assert!(
            errors.iter().any(|error| error.contains(word)),
            "{pointer} {value}: {errors:?}"
        );
    }
    for (field, value) in [
        ("logTailBytes", json!(4096)),
        ("ttlSecondsAfterFinished", json!(-1)),
        ("onPodLost", json!("Ignore")),
    ] {
        let mut spec = spec();
        spec[field] = value;
        assert!(
            errors_of(&spec, None).iter().any(|error| error.contains(field)),
            "{field}"
        );
    }
}

#[test]
fn what_a_step_runs_cannot_change_and_how_long_it_stays_can() {
    for (field, value) in [
        ("image", json!("golang:1.26")),
        ("process", json!({"path": "sh"})),
        ("inputs", json!([])),
        ("outputs", json!([{"name": "binary", "path": "/work/other"}])),
    ] {
        let mut changed = spec();
        changed[field] = value;
        let errors = errors_of(&changed, Some(&spec()));
        assert!(
            errors.iter().any(|error| error.contains("a step runs once")),
            "{field}: {errors:?}"
        );
    }
    let mut without = spec();
    without.as_object_mut().expect("an object").remove("outputs");
    assert!(!errors_of(&without, Some(&spec())).is_empty());
    let mut kept = spec();
    (kept["retain"], kept["ttlSecondsAfterFinished"]) = ("2h".into(), 60.into());
    assert_eq!(errors_of(&kept, Some(&spec())), Vec::<String>::new());
}
