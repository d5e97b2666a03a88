//! What the store costs: bytes for each object, counted by the allocator.

use std::alloc::System;

use ostler::testing::{
    key::Gvk,
    object::Object,
    scope::{Projection, Scope},
    selector::{FieldSelector, Selector},
    store::{Put, Query, Source, Store},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// As many as the promise speaks of.
const OBJECTS: usize = 100_000;
/// Of each object, without `managedFields`; two thirds of it like nothing else.
const JSON: usize = 1331;
/// For each object at most, the indexes included.
const LIMIT: usize = 1450;

/// One test in this file: what others allocate at the same time would count.
#[test]
fn object_of_1331_bytes_costs_at_most_1450() {
    let gvk = Gvk::new("concourse-ci.org", "v1alpha1", "Pipeline");
    let scope = Scope {
        gvk: gvk.clone(),
        cluster: "".into(),
        namespace: "".into(),
        selector: None,
        projection: Projection::Full,
    };
    let store = Store::default();
    store.open_collection(&scope);
    let before = Region::new(ALLOCATOR);
    for i in 0..OBJECTS {
        let (key, object) = Object::parse(&gvk, pipeline(i).as_bytes()).expect("an object");
        assert!(matches!(
            store.put(&key, object, Projection::Full, Source::Watch),
            Put::Changed(_)
        ));
    }
    // One index by label, one by field.
    let labels = Selector::parse("team=t7").expect("a selector");
    let fields = FieldSelector::parse("spec.teamRef.name=t7").expect("a selector");
    for query in [
        Query {
            labels: Some(&labels),
            ..Query::default()
        },
        Query {
            fields: Some(&fields),
            ..Query::default()
        },
    ] {
        assert_eq!(store.list(&scope, &query).len(), OBJECTS / 50);
    }
    let change = before.change();
    // What was reallocated is told as a difference.
    let kept = change.bytes_allocated - change.bytes_deallocated;
    let size = store.size();
    let (objects, json) = (size.objects, size.bytes);
    println!(
        "{} bytes of JSON, {} bytes in all",
        json / objects,
        kept / objects
    );
    assert_eq!((objects, json / objects), (OBJECTS, JSON));
    assert!(kept / objects <= LIMIT, "{} bytes", kept / objects);
}

fn pipeline(i: usize) -> String {
    let head = format!(
        r#"{{"apiVersion":"concourse-ci.org/v1alpha1","kind":"Pipeline","metadata":{{"name":"pipeline-{i:06}","namespace":"team-{:02}","uid":"00000000-0000-4000-8000-{i:012}","resourceVersion":"{}","generation":1,"labels":{{"team":"t{}","app":"storefront"}},"finalizers":["concourse-ci.org/pipeline-finalizer"]}},"spec":{{"teamRef":{{"name":"t{}"}},"config":""#,
        i % 50,
        100_000 + i,
        i % 50,
        i % 50
    );
    let tail = r#""},"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","observedGeneration":1}],"observedGeneration":1}}"#;
    format!("{head}{}{tail}", noise(i, JSON - head.len() - tail.len()))
}

/// What is each object's own: digits that say nothing twice.
fn noise(seed: usize, len: usize) -> String {
    let mut dice = fastrand::Rng::with_seed(seed as u64);
    std::iter::repeat_with(|| dice.digit(16)).take(len).collect()
}
