//! Fuzz tests: thousands of random external inputs must give a result or an error, and keep the invariants.
//!
//! `OSTLER_FUZZ=20` multiplies the number of inputs by twenty. Each test prints its number of inputs.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseResult, TestRunner},
};
use serde_json::{Value, json};

use crate::{
    contract::{
        bindings::{
            reconciler::{Failure, Next, Outcome, Resolution},
            types::{Condition, ConditionStatus},
        },
        inspection,
    },
    kube::{
        key::Gvk,
        object::KubeObject,
        selector::{FieldSelector, LabelSelector},
    },
    policy::{grants::Grants, manifest},
    reconcile::conditions::{self, StatusContext},
};

pub(crate) fn fuzz<S: Strategy>(
    name: &str,
    cases: u32,
    strategy: S,
    test: impl Fn(S::Value) -> TestCaseResult,
) {
    let times = std::env::var("OSTLER_FUZZ")
        .ok()
        .and_then(|n| n.parse::<u32>().ok());
    let config = Config {
        cases: cases.saturating_mul(times.unwrap_or(1)),
        failure_persistence: None,
        ..Config::default()
    };
    let tried = AtomicU64::new(0);
    let ended = TestRunner::new(config).run(&strategy, |input| {
        tried.fetch_add(1, Ordering::Relaxed);
        test(input)
    });
    println!("fuzz {name}: {} inputs", tried.into_inner());
    if let Err(e) = ended {
        panic!("{name}: {e}");
    }
}

/// The smallest component that fits the contract.
fn component() -> Vec<u8> {
    use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve
        .push_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit"))
        .expect("the contract");
    let world = resolve.packages[package].worlds["plugin"];
    let mut module = dummy_module(&resolve, world, wit_parser::ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("embedded");
    let wasm = ComponentEncoder::default()
        .module(&module)
        .expect("a module")
        .encode()
        .expect("a component");
    manifest::embed_manifest(&wasm, &manifest::Manifest::default()).expect("embedded")
}

/// Bytes changed, cut, doubled or put in.
fn mutation() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6)
}

fn mutated(bytes: &[u8], changes: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, byte, how) in changes {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at.max(8)),
        }
    }
    bytes
}

#[test]
fn components() {
    let whole = component();
    inspection::inspect(&whole).expect("it fits");
    let engine = crate::sandbox::engine::Engine::new(2, 1 << 20, None, None).expect("an engine");
    let compiled = AtomicU64::new(0);
    fuzz("components", 3000, mutation(), |changes| {
        let wasm = mutated(&whole, &changes);
        let _ = manifest::read_manifest(&wasm);
        // What passes may be compiled: that takes time, and every kind of change is seen in some dozens.
        if let Ok(found) = inspection::inspect(&wasm)
            && compiled.fetch_add(1, Ordering::Relaxed) < 40
        {
            let _ = engine.compile(&wasm, found.wasi);
        }
        Ok(())
    });
    println!("fuzz components: {} passed the inspection", compiled.into_inner());
}

#[test]
fn manifests_and_grants() {
    let good = "{permissions: {kubernetes: [{group: g, kinds: [A, 'B*'], verbs: [get, hold], namespaces: [n]}], \
                upstreams: [{methods: [GET]}], messages: [{exchanges: [''], routingKeys: ['a.*']}], secrets: [{origins: ['*', 'http://127.0.0.1:*']}], reconciles: [{group: g, kinds: [A]}], events: true}, config: {schema: {type: object}}}";
    manifest::Manifest::parse(good, "p").expect("it is good");
    fuzz("manifests", 5000, mutation(), |changes| {
        let text = String::from_utf8_lossy(&mutated(good.as_bytes(), &changes)).into_owned();
        if let Err(e) = manifest::Manifest::parse(&text, "p.yaml") {
            prop_assert!(e.starts_with("p.yaml"), "{}", e);
        }
        let grants = format!("plugins: {{p: {text}}}");
        if let Err(e) = Grants::parse(&grants, "g.yaml") {
            prop_assert!(e.starts_with("g.yaml"), "{}", e);
        }
        Ok(())
    });
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Z][a-z]{0,6}",
        "\\PC{0,12}",
        any::<String>(),
        Just("x".repeat(40_000))
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    let kind = prop_oneof![
        prop::sample::select(vec!["Ready", "Stalled", "Reconciling", "HotLoop"]).prop_map(String::from),
        text()
    ];
    let status = prop::sample::select(vec![
        ConditionStatus::True,
        ConditionStatus::False,
        ConditionStatus::Unknown,
    ]);
    (kind, status, text(), text()).prop_map(|(type_, status, reason, message)| Condition {
        type_,
        status,
        reason,
        message,
    })
}

/// Status fields, some of which are the host's.
fn fields() -> impl Strategy<Value = Option<Value>> {
    let name = prop_oneof![
        prop::sample::select(vec!["conditions", "observedGeneration", "phase"]).prop_map(String::from),
        "[a-z]{1,3}"
    ];
    let value = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
        Just(json!([{"type": "Ready", "status": "True"}]))
    ];
    prop::option::of(
        prop::collection::hash_map(name, value, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
    )
}

/// For any outcome of a component, the status is accepted by an API server, and the host's fields are the host's.
#[test]
fn outcomes() {
    let moment = StatusContext {
        generation: 7,
        now: "2026-01-02T03:04:05Z",
    };
    let strategy = (
        prop::collection::vec(condition(), 0..5),
        fields(),
        fields(),
        any::<bool>(),
        text(),
    );
    fuzz(
        "outcomes",
        3000,
        strategy,
        |(conditions, fields, old, failed, message)| {
            let old = old.as_ref();
            let status = if failed {
                let failure = Failure {
                    resolution: Resolution::Terminal,
                    reason: message.clone(),
                    message,
                    conditions,
                    status: None,
                };
                conditions::status_after_failure(old, &failure, fields.as_ref(), moment)
            } else {
                let outcome = Outcome {
                    conditions,
                    status: None,
                    next: Next::AwaitChange,
                };
                conditions::status_after_outcome(old, &outcome, fields.as_ref(), moment)
            };
            prop_assert_eq!(&status["observedGeneration"], &json!(7));
            let list = status["conditions"].as_array().expect("conditions");
            let mut kinds = std::collections::BTreeSet::new();
            for condition in list.iter().filter(|c| c["lastTransitionTime"].is_string()) {
                prop_assert!(
                    kinds.insert(condition["type"].to_string()),
                    "twice: {}",
                    condition
                );
                let reason = condition["reason"].as_str().expect("a reason");
                let valid = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
                prop_assert!(
                    !reason.is_empty() && reason.len() <= 1024 && reason.chars().all(valid),
                    "{}",
                    reason
                );
                prop_assert!(condition["message"].as_str().expect("a message").chars().count() <= 32_768);
            }
            prop_assert!(list.iter().any(|c| c["type"] == "Ready"), "no Ready");
            // The patch from what was is one that makes it: nothing is left of what was forged before.
            if let Some(patch) = conditions::merge_patch(old, &status) {
                prop_assert!(patch.is_object());
            }
            Ok(())
        },
    );
}

#[test]
fn selectors() {
    let part = "[a-z./]{0,5}(=|==|!=| in | notin |>|<|)[a-z(), ]{0,8}";
    let strategy = prop_oneof![
        prop::collection::vec(part, 0..4).prop_map(|p| p.join(",")),
        "\\PC{0,40}",
        any::<String>()
    ];
    let object = br#"{"metadata":{"name":"x","namespace":"a","uid":"u","resourceVersion":"1","labels":{"a":"b"}},"spec":{"a":"b"}}"#;
    let (_, object) = KubeObject::parse(&Gvk::new("", "v1", "X"), object).expect("an object");
    fuzz("selectors", 20_000, strategy, |text| {
        if let Ok(selector) = LabelSelector::parse(&text) {
            let before = selector.matches(&object.labels);
            // As it is sent to the API server: the same there.
            let again = LabelSelector::parse(&selector.to_string());
            prop_assert!(again.is_ok(), "{} is written as {}", text, selector);
            prop_assert_eq!(again.is_ok_and(|s| s.matches(&object.labels)), before);
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            let _ = object.is_selected_by(&selector);
        }
        Ok(())
    });
}

#[test]
fn objects() {
    let good = br#"{"apiVersion":"v1","kind":"X","metadata":{"name":"x","namespace":"a","uid":"u","resourceVersion":"12","generation":3,"labels":{"a":"b"},"annotations":{"c":"d"},"finalizers":["e/f"],"managedFields":[{"x":1}],"deletionTimestamp":"2026-01-02T03:04:05Z","ownerReferences":[{"uid":"o"}]},"spec":{"a":[1,{"b":"\u00e4"}]},"data":{"k":"dg=="},"status":{"conditions":[{"type":"Ready","status":"True","observedGeneration":3}]}}"#;
    let gvk = Gvk::new("", "v1", "X");
    KubeObject::parse(&gvk, good).expect("it is good");
    fuzz("objects", 20_000, mutation(), |changes| {
        let bytes = mutated(good, &changes);
        let Ok((key, object)) = KubeObject::parse(&gvk, &bytes) else {
            return Ok(());
        };
        prop_assert!(!key.name.is_empty(), "an object without a name");
        let whole = object.to_value();
        prop_assert!(whole["metadata"].get("managedFields").is_none() || !whole["metadata"].is_object());
        let _ = (
            object.readiness(),
            object.data_value("k"),
            object.field_text("spec.a"),
            object.annotation("c"),
            object.is_deleting(),
        );
        // What is kept can be read again, as the same.
        let again = KubeObject::parse(&gvk, &object.json.text());
        prop_assert!(
            again.is_ok_and(|(k, o)| k == key && o.uid == object.uid),
            "{}",
            String::from_utf8_lossy(&object.json.text())
        );
        Ok(())
    });
}
