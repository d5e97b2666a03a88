//! Memory of the store per object, as counted by the allocator.

use std::alloc::System;

use ostler::testing::{
    key::Gvk,
    object::KubeObject,
    scope::{Projection, Scope},
    selector::{FieldSelector, LabelSelector},
    store::{ListQuery, Put, Store, VersionSource},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of objects: an eighth of the 100,000 of the benchmark, so that hash maps are as full as with these.
const OBJECT_COUNT: usize = 12_500;
/// Size of an object's JSON without `managedFields`; two thirds of it are unique.
const JSON_BYTES: usize = 1331;
/// Maximum size per object, including the indexes.
const MAX_BYTES: usize = 1450;

/// The only test of this file, since the allocations of a concurrent test would count.
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
    for i in 0..OBJECT_COUNT {
        let (key, object) = KubeObject::parse(&gvk, pipeline(i).as_bytes()).expect("an object");
        assert!(matches!(
            store.put(&key, object, Projection::Full, VersionSource::Watch),
            Put::Changed(_)
        ));
    }
    // One index by label, one by field.
    let labels = LabelSelector::parse("team=t7").expect("a selector");
    let fields = FieldSelector::parse("spec.teamRef.name=t7").expect("a selector");
    for query in [
        ListQuery {
            labels: Some(&labels),
            ..ListQuery::default()
        },
        ListQuery {
            fields: Some(&fields),
            ..ListQuery::default()
        },
    ] {
        assert_eq!(store.list(&scope, &query).len(), OBJECT_COUNT / 50);
    }
    let change = before.change();
    // Reallocations are included in the difference of allocated and deallocated bytes.
    let kept = change.bytes_allocated - change.bytes_deallocated;
    let size = store.size();
    let (objects, json) = (size.objects, size.bytes);
    println!(
        "{} bytes of JSON, {} bytes in all",
        json / objects,
        kept / objects
    );
    assert_eq!((objects, json / objects), (OBJECT_COUNT, JSON_BYTES));
    assert!(kept / objects <= MAX_BYTES, "{} bytes", kept / objects);
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
    format!("{head}{}{tail}", noise(i, JSON_BYTES - head.len() - tail.len()))
}

/// Random digits, which make each object unique.
fn noise(seed: usize, len: usize) -> String {
    let mut dice = fastrand::Rng::with_seed(seed as u64);
    std::iter::repeat_with(|| dice.digit(16)).take(len).collect()
}
