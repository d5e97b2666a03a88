//! Costs that are the same on every machine: the allocations of a reconcile. The limits are in `tests/scenarios/counts`.

use ostler::testing::{
    dispatcher::Cause,
    key::{Gvk, ObjectRef},
    queue::Priority,
};
use ostler_test_harness::{Lab, allocations::count_allocations, scenario, workspace_root};
use serde_json::{Value, json};

/// Objects that are reconciled.
const OBJECT_COUNT: usize = 50;
/// Times that each is reconciled while allocations are counted.
const ROUNDS: usize = 4;
/// Room above the counts of the files: repeated runs differ by less than a hundredth.
const RATIO: f64 = 1.05;

fn greetings() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({ "apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": { "name": name, "namespace": lab.namespace }, "spec": { "name": "Ada" } })
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
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let names: Vec<String> = (0..OBJECT_COUNT).map(|number| format!("g-{number}")).collect();
    let keys: Vec<ObjectRef> = names.iter().map(|name| lab.key(&greetings(), name)).collect();
    for name in &names {
        lab.apply(greeting(&lab, name)).await;
    }
    for name in &names {
        lab.wait_ready(&greetings(), name).await;
    }
    lab.wait_idle().await;
    // Caches are filled and histories are full once.
    reconcile_all(&lab, &keys, 2).await;
    let (writes, reconciles) = (lab.api_writes(), count_reconciles(&lab, &keys));
    let counted = count_allocations(OBJECT_COUNT * ROUNDS, reconcile_all(&lab, &keys, ROUNDS)).await;
    assert_eq!(lab.api_writes(), writes, "nothing is written");
    let expected = reconciles + (OBJECT_COUNT * ROUNDS) as u64;
    assert_eq!(count_reconciles(&lab, &keys), expected);
    let limits = workspace_root().join("tests/scenarios/counts/reconcile-without-change.txt");
    counted.assert_at_most(&limits, RATIO);
}
