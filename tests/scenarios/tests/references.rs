//! What is held cannot go: deletion in the order of use, and nothing is held by nobody.

use ostler_test_harness::{
    Lab, find_condition,
    probe::{config_map, kind},
    scenarios,
};
use serde_json::{Value, json};

scenarios!(
    deleted_in_the_order_of_use,
    a_secret_is_held,
    held_no_more,
    a_circle_is_named,
    a_holder_that_is_removed_by_force,
    a_holder_that_went_while_nobody_looked,
    forced,
);

fn hold(kind: &str, name: &str) -> Value {
    let api_version = if kind == "Probe" {
        "tests.ostler.dev/v1alpha1"
    } else {
        "v1"
    };
    json!([{"do": "hold", "apiVersion": api_version, "kind": kind, "name": name}])
}

fn holders(object: &Value) -> usize {
    let finalizers = object["metadata"]["finalizers"].as_array();
    let held = |f: &&Value| f.as_str().is_some_and(|f| f.starts_with("held-by.ostler.dev/"));
    finalizers.into_iter().flatten().filter(held).count()
}

/// A waits for nobody, B is held by A, C by B: deleted all at once they go A, B, C.
async fn deleted_in_the_order_of_use(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("c", json!([]), json!([])).await;
    lab.apply_probe("b", hold("Probe", "c"), json!([])).await;
    lab.apply_probe(
        "a",
        hold("Probe", "b"),
        json!([{"do": "get", "kind": "ConfigMap", "name": "go"}, {"do": "yield"}]),
    )
    .await;
    for name in ["a", "b", "c"] {
        lab.wait_ready(&kind(), name).await;
    }
    lab.wait_until("b holds c and a holds b", async || {
        let held = async |name| holders(&lab.get(&kind(), name).await.unwrap_or_default()) == 1;
        held("b").await && held("c").await
    })
    .await;
    for name in ["c", "b", "a"] {
        lab.delete(&kind(), name).await;
    }
    for (name, holder) in [("b", "Probe/NS/a"), ("c", "Probe/NS/b")] {
        let probe = lab
            .wait_condition(&kind(), name, "DeletionBlocked", "True", "Held")
            .await;
        let message = find_condition(&probe, "Ready")["message"].to_string();
        assert!(
            message.contains(&holder.replace("NS", &lab.namespace)),
            "{message}"
        );
    }
    // A's cleanup does not end before it is told to; nothing moves until then.
    lab.wait_condition(&kind(), "a", "Ready", "False", "AsTold").await;
    assert!(lab.get(&kind(), "b").await.is_some() && lab.get(&kind(), "c").await.is_some());
    lab.patch(&kind(), "a", json!({"spec": {"cleanup": []}})).await;
    for name in ["a", "b", "c"] {
        lab.wait_gone(&kind(), name).await;
    }
}

async fn a_secret_is_held(mut lab: Lab) {
    lab.start_probe().await;
    let secret = ostler::testing::key::Gvk::new("", "v1", "Secret");
    lab.apply(lab.password_secret("held-and-hidden-0001")).await;
    lab.apply_probe("a", hold("Secret", "ci-admin"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.delete(&secret, "ci-admin").await;
    let events = ostler::testing::key::Gvk::new("", "v1", "Event");
    lab.wait_until("an event says who holds it", async || {
        let events = lab.list(&events).await;
        let blocked = |e: &Value| {
            let note = e["message"].as_str().unwrap_or_default();
            e["reason"] == "DeletionBlocked" && e["involvedObject"]["kind"] == "Secret" && note.contains("/a")
        };
        events.iter().any(blocked)
    })
    .await;
    assert!(lab.get(&secret, "ci-admin").await.is_some());
    lab.delete(&kind(), "a").await;
    lab.wait_gone(&secret, "ci-admin").await;
    lab.wait_gone(&kind(), "a").await;
}

/// Declared afresh in each reconcile: what is not held again goes free.
async fn held_no_more(mut lab: Lab) {
    lab.start_probe().await;
    for name in ["x", "y"] {
        lab.apply_config_map(name, "a", "1").await;
    }
    lab.apply_probe("a", hold("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.apply_probe("a", hold("ConfigMap", "y"), json!([])).await;
    lab.wait_until("y is held, x is not", async || {
        let held = async |name| holders(&lab.get(&config_map(), name).await.unwrap_or_default());
        held("x").await == 0 && held("y").await == 1
    })
    .await;
    let y = lab.get(&config_map(), "y").await.expect("y");
    let who = y["metadata"]["annotations"].to_string();
    assert!(
        who.contains("Probe.v1alpha1.tests.ostler.dev") && who.contains("/a"),
        "{who}"
    );
    lab.wait_idle().await;
    let writes = lab.api_writes();
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}});
    lab.patch(&kind(), "a", annotations).await;
    lab.wait_until("it was reconciled", async || {
        lab.wake_causes(&kind(), "a")
            .contains(&ostler::testing::dispatcher::Cause::Manual)
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(lab.api_writes(), writes, "held already: nothing to write");
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_until("nothing is held", async || {
        let a = lab.get(&kind(), "a").await.unwrap_or_default();
        let held = holders(&lab.get(&config_map(), "y").await.unwrap_or_default());
        held == 0 && a["metadata"]["annotations"]["ostler.dev/holds"].is_null()
    })
    .await;
}

async fn a_circle_is_named(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "a").await;
    lab.apply_probe("b", hold("Probe", "a"), json!([])).await;
    lab.wait_seen("b", &["held"]).await;
    lab.apply_probe("a", hold("Probe", "b"), json!([])).await;
    let a = lab
        .wait_condition(&kind(), "a", "Stalled", "True", "Invalid")
        .await;
    let message = find_condition(&a, "Ready")["message"].to_string();
    let way = "Probe/NS/a → Probe/NS/b → Probe/NS/a".replace("NS", &lab.namespace);
    assert!(message.contains(&way), "{message}");
    assert_eq!(holders(&lab.get(&kind(), "b").await.expect("b")), 0);
}

async fn a_holder_that_is_removed_by_force(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("x", "a", "1").await;
    lab.apply_probe("a", hold("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    // Somebody takes its finalizers off: no cleanup will ever run.
    lab.apply_probe("a", hold("ConfigMap", "x"), json!([{"do": "yield"}]))
        .await;
    lab.delete(&kind(), "a").await;
    lab.wait_condition(&kind(), "a", "Ready", "False", "AsTold").await;
    lab.patch(&kind(), "a", json!({"metadata": {"finalizers": null}}))
        .await;
    lab.wait_gone(&kind(), "a").await;
    lab.wait_until("x is free", async || {
        holders(&lab.get(&config_map(), "x").await.unwrap_or_default()) == 0
    })
    .await;
}

async fn a_holder_that_went_while_nobody_looked(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("x", "a", "1").await;
    lab.apply_probe("a", hold("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.host = None;
    lab.delete(&kind(), "a").await;
    lab.patch(&kind(), "a", json!({"metadata": {"finalizers": null}}))
        .await;
    lab.wait_gone(&kind(), "a").await;
    lab.delete(&config_map(), "x").await;
    assert!(lab.get(&config_map(), "x").await.is_some(), "still marked");
    lab.start_host().await;
    lab.wait_gone(&config_map(), "x").await;
}

async fn forced(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("b", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "b").await;
    lab.apply_probe("a", hold("Probe", "b"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.delete(&kind(), "b").await;
    lab.wait_condition(&kind(), "b", "DeletionBlocked", "True", "Held")
        .await;
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/force-delete": "true"}}});
    lab.patch(&kind(), "b", annotations).await;
    lab.wait_gone(&kind(), "b").await;
}
