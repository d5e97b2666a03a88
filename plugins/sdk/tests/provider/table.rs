//! The table of cases that the SDKs of all languages have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ostler_sdk::{
    Gvk, Next, ObjectRef, Resolution, gvk,
    mock::merge_patch,
    prelude::*,
    serde_json::{self, Map, Value},
};

use super::world::{DomainDeletion, ProviderWorld};

/// Reads the key of an object, such as `ConfigMap copies a on n/copies-workload-0123456789abcdef`.
fn parse_key(key: &str) -> ObjectRef {
    let mut words = key.split(' ');
    let mut next_word = || words.next().unwrap_or_default();
    let (kind, namespace, name) = (next_word(), next_word(), next_word());
    let reference = find_kind(kind).named(namespace, name);
    match key.split_once(" on ") {
        Some((_, cluster)) => reference.on_cluster(cluster),
        None => reference,
    }
}

fn find_kind(kind: &str) -> Gvk {
    match kind {
        "ConfigMap" => gvk("", "v1", kind),
        "Cluster" => gvk("ostler.dev", "v1alpha1", kind),
        _ => gvk("clusters.openmcp.cloud", "v1alpha1", kind),
    }
}

fn describe_result(result: Result<Outcome, Failure>) -> Value {
    match result {
        Ok(outcome) => match outcome.next {
            Next::AwaitChange => json!({ "next": "await-change" }),
            Next::Poll(Some(interval)) => json!({ "next": "poll", "milliseconds": interval }),
            other => panic!("not in the table: {other:?}"),
        },
        Err(failure) => {
            let resolution = match failure.resolution {
                Resolution::Wait => "wait",
                Resolution::Retry => "retry",
                Resolution::Terminal => "terminal",
                other => panic!("not in the table: {other:?}"),
            };
            json!({ "resolution": resolution, "reason": failure.reason, "message": failure.message })
        }
    }
}

/// Number of the calls of the domain that a step has shown.
#[derive(Default)]
struct Shown {
    calls: usize,
}

impl Shown {
    fn call(&mut self, world: &ProviderWorld, step: &Value) -> Value {
        let stop_after = step["stopAfter"].as_u64().map(|effects| effects as usize);
        world.host.forget();
        world.host.stop_after(stop_after);
        let result = catch_unwind(AssertUnwindSafe(|| match step["call"].as_str() {
            Some("reconcile") => world.reconcile(),
            _ => world.delete(),
        }));
        world.host.stop_after(None);
        // After a panic the checkpoints are stored, and no result is.
        world.store_status(None);
        let calls = world.list_calls().split_off(self.calls);
        self.calls += calls.len();
        let result = result.map_or_else(|_| json!({ "stopped": true }), describe_result);
        json!({ "result": result, "writes": world.host.writes(), "calls": calls, "status": world.status() })
    }
}

/// Lists the objects by their keys. The host does not tell on which clusters copies are, so those of the keys are looked up.
fn list_objects(world: &ProviderWorld, expected: &Value) -> Value {
    let mut listed = Map::new();
    for kind in ["AccessRequest", "Cluster", "ClusterRequest"] {
        for object in world.host.objects(&find_kind(kind)) {
            let text = |field: &str| object["metadata"][field].as_str().expect("a text").to_owned();
            let key = [kind, &*text("namespace"), &*text("name")].join(" ");
            listed.insert(key, describe_object(&object));
        }
    }
    let keys = expected.as_object().expect("objects").keys();
    let copies = keys.filter(|key| key.starts_with("ConfigMap "));
    let found =
        copies.filter_map(|key| Some((key.clone(), describe_object(&world.host.object(&parse_key(key))?))));
    let found: Map<_, _> = found.collect();
    assert_eq!(
        world.host.objects(&find_kind("ConfigMap")).len(),
        found.len(),
        "copies"
    );
    listed.extend(found);
    Value::Object(listed)
}

fn describe_object(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let fields = [
        ("labels", &metadata["labels"]),
        ("annotations", &metadata["annotations"]),
        ("spec", &object["spec"]),
        ("data", &object["data"]),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    given
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

fn run_step(world: &ProviderWorld, shown: &mut Shown, step: &Value) {
    let text = |field: &str| step[field].as_str();
    if step["call"].is_string() {
        let found = shown.call(world, step);
        for field in ["result", "writes", "calls", "status"] {
            assert_eq!(found[field], step[field], "{field}");
        }
    } else if step["install"] == true {
        world.install();
        shown.calls = world.list_calls().len();
    } else if step["grant"] == true {
        world.grant_all();
    } else if let Some(key) = text("patch") {
        let mut object = world.object(&parse_key(key));
        merge_patch(&mut object, &step["with"]);
        match key.split_once(" on ") {
            Some((_, cluster)) => world.host.put_on(cluster, object),
            None => world.host.put(object),
        };
    } else if let Some(key) = text("remove") {
        let reference = parse_key(key);
        assert!(world.host.object(&reference).is_some(), "{key}");
        world.host.remove(&reference);
    } else if let Some(name) = text("config") {
        match &step["spec"] {
            Value::Null => world.remove_config(),
            spec => world.put_config_named(name, spec.clone()),
        }
    } else if !step["pluginConfig"].is_null() {
        world.host.set_config(step["pluginConfig"].clone());
    } else if let Some(deletion) = text("deletion") {
        world.set_deletion(match deletion {
            "complete" => DomainDeletion::Complete,
            "skipped" => DomainDeletion::Skipped,
            "failing" => DomainDeletion::Failing,
            other => panic!("unknown deletion {other}"),
        });
    } else if step["owner"].is_object() {
        world.patch_owner(&step["owner"]);
    } else {
        assert_eq!(list_objects(world, &step["objects"]), step["objects"]);
    }
}

#[test]
fn provider_acts_as_in_the_table_of_all_languages() {
    let table: Value = serde_json::from_str(include_str!("table.json")).expect("JSON");
    let cases = table["cases"].as_array().expect("cases");
    assert!(!cases.is_empty());
    for case in cases {
        let world = if case["mcp"] == true {
            ProviderWorld::with_mcp()
        } else {
            ProviderWorld::new()
        };
        let mut shown = Shown::default();
        for (index, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
            let run = catch_unwind(AssertUnwindSafe(|| run_step(&world, &mut shown, step)));
            assert!(run.is_ok(), "{}, step {index}: {step}", case["name"]);
        }
    }
}
