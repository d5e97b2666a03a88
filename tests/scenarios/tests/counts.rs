//! Costs that are the same on every machine: the allocations of a reconcile, of a change and of an event. The limits are in
//! `tests/scenarios/counts`.

use ostler::testing::{
    dispatcher::Cause,
    key::{Gvk, ObjectRef},
    queue::Priority,
    scope::Projection,
};
use ostler_test_harness::{
    Lab,
    allocations::{Allocations, count_allocations},
    scenario, workspace_root,
};
use serde_json::{Value, json};

/// Objects that are reconciled. A change costs the server of the same process many allocations more, each of which is traced.
const OBJECT_COUNT: usize = 8;
/// Times that each is reconciled while allocations are counted.
const ROUNDS: usize = 16;
/// Room above the counts of the files: repeated runs differ by less than a hundredth.
const RATIO: f64 = 1.05;

fn greetings() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

fn greeting(lab: &Lab, object: &str, greeted: &str) -> Value {
    json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": { "name": object, "namespace": lab.namespace }, "spec": { "name": greeted } })
}

/// Starts a host with objects that are Ready. Returns their keys.
async fn start_greetings(lab: &mut Lab) -> Vec<ObjectRef> {
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let names: Vec<String> = (0..OBJECT_COUNT).map(|number| format!("g-{number}")).collect();
    for name in &names {
        lab.apply(greeting(lab, name, "Ada")).await;
    }
    for name in &names {
        lab.wait_ready(&greetings(), name).await;
    }
    lab.wait_idle().await;
    names.iter().map(|name| lab.key(&greetings(), name)).collect()
}

/// Compares counts with the limits of a file.
fn check_limits(counted: &Allocations, file: &str) {
    let limits = workspace_root().join("tests/scenarios/counts").join(file);
    counted.assert_at_most(&limits, RATIO);
}

/// Reconciles all objects this number of times.
async fn reconcile_all(lab: &Lab, keys: &[ObjectRef], rounds: usize) {
    for _ in 0..rounds {
        for key in keys {
            lab.host()
                .services()
                .dispatcher
                .enqueue(key, Priority::Normal, Cause::Poll);
        }
        lab.wait_idle().await;
    }
}

fn count_reconciles(lab: &Lab, keys: &[ObjectRef]) -> u64 {
    let facts = keys.iter().filter_map(|key| lab.host().stats().object(key));
    facts.map(|facts| facts.reconciles).sum()
}

#[scenario(embedded = "it counts what the host allocates", alone)]
async fn reconcile_without_a_change_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    // Caches are filled and histories are full once.
    reconcile_all(&lab, &keys, 2).await;
    let (writes, reconciles) = (lab.api_writes(), count_reconciles(&lab, &keys));
    let counted = count_allocations(OBJECT_COUNT * ROUNDS, reconcile_all(&lab, &keys, ROUNDS)).await;
    assert_eq!(lab.api_writes(), writes, "nothing is written");
    let expected = reconciles + (OBJECT_COUNT * ROUNDS) as u64;
    assert_eq!(count_reconciles(&lab, &keys), expected);
    check_limits(&counted, "reconcile-without-change.txt");
}

/// A change of an object leads to two writes, of the object that it owns and of its status.
#[scenario(embedded = "it counts what the host allocates", alone)]
async fn change_with_two_writes_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    let change_all = async |greeted: &str| {
        let writes = lab.api_writes();
        for key in &keys {
            lab.apply(greeting(&lab, &key.name, greeted)).await;
        }
        lab.wait_until("all changes are written", async || {
            lab.api_writes() == writes + 2 * OBJECT_COUNT as u64
        })
        .await;
        lab.wait_idle().await;
    };
    change_all("Grace").await;
    let reconciles = count_reconciles(&lab, &keys);
    let counted = count_allocations(OBJECT_COUNT, change_all("Mary")).await;
    let expected = reconciles + OBJECT_COUNT as u64;
    assert_eq!(
        count_reconciles(&lab, &keys),
        expected,
        "what it writes wakes nothing"
    );
    check_limits(&counted, "change-with-two-writes.txt");
}

/// The watch of owned objects delivers the change of one that no reconcile has read.
#[scenario(embedded = "it counts what the host allocates", alone)]
async fn event_that_wakes_nothing_allocates_no_more_than_before(mut lab: Lab) {
    let keys = start_greetings(&mut lab).await;
    let config_maps = Gvk::new("", "v1", "ConfigMap");
    let foreign = lab.key(&config_maps, "foreign");
    let change = async |value: &str| {
        let written = lab
            .apply(json!({ "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "foreign", "namespace": lab.namespace,
                    "labels": { "ostler.dev/owner-uid": "another" } }, "data": { "value": value } }))
            .await;
        let version = written["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        lab.wait_until("the watch has delivered the change", async || {
            let cached = lab.host().services().cache.store.get(&foreign, Projection::Full);
            cached.is_some_and(|object| object.resource_version.to_string() == version)
        })
        .await;
    };
    change("before").await;
    let reconciles = count_reconciles(&lab, &keys);
    let counted = count_allocations(OBJECT_COUNT, async {
        for round in 0..OBJECT_COUNT {
            change(&format!("after {round}")).await;
        }
    });
    let counted = counted.await;
    assert_eq!(count_reconciles(&lab, &keys), reconciles);
    check_limits(&counted, "event-that-wakes-nothing.txt");
}
