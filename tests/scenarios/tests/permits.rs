//! Permits: semaphores that bound how many objects of a plugin do something at a time.

use ostler_test_harness::{Lab, probe::kind, scenario};
use serde_json::{Value, json};

use crate::observability::question;

/// Steps of a probe that requests a permit of the pool `seats`, or has begun already what the permit is for.
fn request_permit(limit: u32, is_held: bool) -> Value {
    json!([{"do": "permit", "name": "seats", "times": limit, "owned": is_held}])
}

/// Applies a probe in another namespace than that of the test.
async fn apply_in(lab: &Lab, namespace: &str, name: &str, steps: Value) {
    lab.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"steps": steps}}))
        .await;
}

/// Number of reconciles of a probe.
fn count_reconciles(lab: &Lab, name: &str) -> u64 {
    let stats = lab.host().stats().object(&lab.key(&kind(), name));
    stats.map_or(0, |stats| stats.reconciles)
}

async fn wait_seen_in(lab: &Lab, namespace: &str, name: &str, seen: &str) {
    let probes = lab.api(&kind(), namespace);
    lab.wait_until(&format!("{namespace}/{name} is {seen}"), async || {
        let probe = probes.get(name).await.expect("it exists");
        probe.data["status"]["seen"] == json!([seen])
    })
    .await;
}

#[scenario]
async fn freed_permit_wakes_one_object_of_the_namespace_with_the_fewest(mut lab: Lab) {
    let second = format!("{}-second", lab.namespace);
    lab.settings.namespaces.push(second.clone());
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second}}))
        .await;
    lab.start_probe().await;
    for name in ["first-0", "first-1"] {
        lab.apply_probe(name, request_permit(2, false), json!([])).await;
        lab.wait_seen(name, &["granted"]).await;
    }
    // They have waited longer.
    for name in ["first-2", "first-3", "first-4"] {
        lab.apply_probe(name, request_permit(2, false), json!([])).await;
        lab.wait_seen(name, &["waiting"]).await;
    }
    apply_in(&lab, &second, "second-0", request_permit(2, false)).await;
    wait_seen_in(&lab, &second, "second-0", "waiting").await;
    let explained = lab.admin().explain(&question(&lab, "probe", "first-3"));
    assert_eq!(
        explained.expect("explained").permits,
        ["waits for one of `seats` (2 of 2 in use, 4 waiting)"]
    );
    lab.wait_idle().await;
    let count = |name: &str| count_reconciles(&lab, name);
    let before = ["first-2", "first-3", "first-4"].map(count);

    // One that ends to request it.
    lab.apply_probe("first-0", json!([]), json!([])).await;
    wait_seen_in(&lab, &second, "second-0", "granted").await;
    lab.wait_idle().await;
    assert_eq!(
        ["first-2", "first-3", "first-4"].map(count),
        before,
        "nobody else is woken"
    );

    // One that is deleted.
    lab.delete(&kind(), "first-1").await;
    lab.wait_seen("first-2", &["granted"]).await;
    lab.wait_idle().await;
    assert_eq!(["first-3", "first-4"].map(count), before[1..]);

    // One that fails keeps it.
    lab.apply_probe("first-2", json!([{"do": "park"}]), json!([]))
        .await;
    lab.wait_condition(&kind(), "first-2", "Stalled", "True", "Requested")
        .await;
    lab.wait_idle().await;
    assert_eq!(["first-3", "first-4"].map(count), before[1..]);

    // A higher limit serves all of them.
    lab.apply_probe("first-3", request_permit(9, false), json!([]))
        .await;
    for name in ["first-3", "first-4"] {
        lab.wait_seen(name, &["granted"]).await;
    }
}

#[scenario]
async fn permits_of_a_host_that_starts_go_to_those_that_hold_them(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("z-holder", request_permit(1, true), json!([]))
        .await;
    lab.wait_seen("z-holder", &["granted"]).await;
    let waiting = ["a", "b", "c", "d"];
    for name in waiting {
        lab.apply_probe(name, request_permit(1, false), json!([])).await;
        lab.wait_seen(name, &["waiting"]).await;
    }
    for _ in 0..3 {
        lab.host = None;
        lab.start_host().await;
        lab.wait_until("all have been reconciled", async || {
            waiting
                .iter()
                .chain(&["z-holder"])
                .all(|name| count_reconciles(&lab, name) > 0)
        })
        .await;
        lab.wait_idle().await;
        for name in waiting {
            lab.wait_seen(name, &["waiting"]).await;
        }
    }
    lab.delete(&kind(), "z-holder").await;
    lab.wait_seen("a", &["granted"]).await;
}
