//! Holds: an object is deleted after those that hold it, and no hold outlives its holder.

use kube::api::{Patch, PatchParams};
use ostler::testing::{grants::Grants, key::Gvk};
use ostler_apiserver::{Effect, Match, RequestFault};
use ostler_test_harness::{
    Lab, captured_logs, find_condition,
    probe::{config_map, kind},
    scenario,
};
use serde_json::{Value, json};

fn hold_step(kind: &str, name: &str) -> Value {
    let api_version = if kind == "Probe" || kind == "Hostile" {
        "tests.ostler.dev/v1alpha1"
    } else {
        "v1"
    };
    json!([{"do": "hold", "apiVersion": api_version, "kind": kind, "name": name}])
}

fn count_holders(object: &Value) -> usize {
    let finalizers = object["metadata"]["finalizers"].as_array();
    let held = |f: &&Value| f.as_str().is_some_and(|f| f.starts_with("held-by.ostler.dev/"));
    finalizers.into_iter().flatten().filter(held).count()
}

/// A holds B, and B holds C. Deleted together, A goes first, then B, then C.
#[scenario(real = "finalizers and garbage collection")]
async fn held_objects_are_deleted_after_their_holders(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("c", json!([]), json!([])).await;
    lab.apply_probe("b", hold_step("Probe", "c"), json!([])).await;
    lab.apply_probe(
        "a",
        hold_step("Probe", "b"),
        json!([{"do": "get", "kind": "ConfigMap", "name": "go"}, {"do": "yield"}]),
    )
    .await;
    for name in ["a", "b", "c"] {
        lab.wait_ready(&kind(), name).await;
    }
    lab.wait_until("b holds c and a holds b", async || {
        let held = async |name| count_holders(&lab.get(&kind(), name).await.unwrap_or_default()) == 1;
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
    // The cleanup of A waits for the patch below, and the others wait for A.
    lab.wait_condition(&kind(), "a", "Ready", "False", "Requested")
        .await;
    assert!(lab.get(&kind(), "b").await.is_some() && lab.get(&kind(), "c").await.is_some());
    lab.patch(&kind(), "a", json!({"spec": {"cleanup": []}})).await;
    for name in ["a", "b", "c"] {
        lab.wait_gone(&kind(), name).await;
    }
}

#[scenario(real = "finalizers and garbage collection")]
async fn held_secret_is_deleted_after_its_holder(mut lab: Lab) {
    lab.start_probe().await;
    let secret = Gvk::new("", "v1", "Secret");
    lab.apply(lab.password_secret("held-and-hidden-0001")).await;
    lab.apply_probe("a", hold_step("Secret", "ci-admin"), json!([]))
        .await;
    lab.wait_seen("a", &["held"]).await;
    lab.delete(&secret, "ci-admin").await;
    let events = Gvk::new("", "v1", "Event");
    lab.wait_until("an Event names the holder", async || {
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

/// A reconcile declares all of its holds: those that it does not declare again are released.
/// The kind of the holder is served in another version than the one by which it is known.
#[scenario(embedded = "it changes a definition that other tests use")]
async fn held_object_stays_while_its_holder_exists_in_another_version(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("x", "a", "1").await;
    lab.apply_probe("a", hold_step("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    let definitions = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions = lab.api(&definitions, "");
    let name = "probes.tests.ostler.dev";
    let before = definitions.get(name).await.expect("the definition");
    let mut versions = before.data["spec"]["versions"].clone();
    let mut newer = versions[0].clone();
    newer["name"] = "v1alpha2".into();
    versions[0]["served"] = false.into();
    versions[0]["storage"] = false.into();
    versions.as_array_mut().expect("versions").push(newer);
    let serve = async |versions: &Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
        let patched = definitions.patch(name, &PatchParams::default(), &patch).await;
        patched.expect("patched");
    };
    serve(&versions).await;
    lab.wait_until("only the newer version is served", async || {
        lab.get(&Gvk::new("tests.ostler.dev", "v1alpha2", "Probe"), "a")
            .await
            .is_some()
    })
    .await;
    lab.delete(&config_map(), "x").await;
    lab.wait_event("DeletionBlocked", "x", "/a").await;
    assert_eq!(
        count_holders(&lab.get(&config_map(), "x").await.expect("it is held")),
        1
    );
    versions[0]["served"] = true.into();
    serve(&versions).await;
    lab.delete(&kind(), "a").await;
    lab.wait_gone(&config_map(), "x").await;
}

#[scenario]
async fn hold_not_renewed_is_released(mut lab: Lab) {
    lab.start_probe().await;
    for name in ["x", "y"] {
        lab.apply_config_map(name, "a", "1").await;
    }
    lab.apply_probe("a", hold_step("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.apply_probe("a", hold_step("ConfigMap", "y"), json!([])).await;
    lab.wait_until("y is held, x is not", async || {
        let held = async |name| count_holders(&lab.get(&config_map(), name).await.unwrap_or_default());
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
    assert_eq!(lab.api_writes(), writes, "an existing hold costs no write");
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_until("nothing is held", async || {
        let a = lab.get(&kind(), "a").await.unwrap_or_default();
        let held = count_holders(&lab.get(&config_map(), "y").await.unwrap_or_default());
        held == 0 && a["metadata"]["annotations"]["ostler.dev/holds"].is_null()
    })
    .await;
}

#[scenario]
async fn cycle_of_holds_is_reported_with_its_path(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "a").await;
    lab.apply_probe("b", hold_step("Probe", "a"), json!([])).await;
    lab.wait_seen("b", &["held"]).await;
    lab.apply_probe("a", hold_step("Probe", "b"), json!([])).await;
    let a = lab
        .wait_condition(&kind(), "a", "Stalled", "True", "Invalid")
        .await;
    let message = find_condition(&a, "Ready")["message"].to_string();
    let way = "Probe/NS/a → Probe/NS/b → Probe/NS/a".replace("NS", &lab.namespace);
    assert!(message.contains(&way), "{message}");
    assert_eq!(count_holders(&lab.get(&kind(), "b").await.expect("b")), 0);
}

/// The plugin reconciles no object of the held kind, so that only a watch for the holds sees its deletion.
#[scenario(embedded = "it injects faults into the API server")]
async fn hold_of_gone_holder_is_released_after_a_failed_discovery(mut lab: Lab) {
    let grants = "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: [Probe, SelectedProbe]}], \
         kubernetes: [{group: tests.ostler.dev, kinds: [Hostile], verbs: [hold]}]}}";
    lab.settings.grants = Grants::parse(grants, "grants.yaml").expect("they parse");
    let hostile = Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile");
    lab.apply(
        json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": "x", "namespace": lab.namespace}, "spec": {"behaviour": "behave"}}),
    )
    .await;
    lab.start_probe().await;
    lab.apply_probe("a", hold_step("Hostile", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.host = None;
    lab.delete(&kind(), "a").await;
    lab.patch(&kind(), "a", json!({"metadata": {"finalizers": null}}))
        .await;
    lab.wait_gone(&kind(), "a").await;
    let server = lab.embedded.as_ref().expect("it is the embedded one");
    let busy = RequestFault {
        matches: Match {
            path: Some("^/apis/tests\\.ostler\\.dev$".into()),
            ..Match::default()
        },
        times: Some(1),
        effect: Effect::Respond {
            code: 503,
            retry_after: None,
        },
    };
    server.faults().add(busy).expect("a pattern");
    lab.start_host().await;
    lab.wait_until("the discovery has failed", async || {
        captured_logs().contains("discovery failed, trying again")
    })
    .await;
    lab.delete(&hostile, "x").await;
    lab.wait_gone(&hostile, "x").await;
}

#[scenario(real = "finalizers and garbage collection")]
async fn hold_of_force_removed_holder_is_released(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("x", "a", "1").await;
    lab.apply_probe("a", hold_step("ConfigMap", "x"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    // A user removes its finalizers, so no cleanup will run.
    lab.apply_probe("a", hold_step("ConfigMap", "x"), json!([{"do": "yield"}]))
        .await;
    lab.delete(&kind(), "a").await;
    lab.wait_condition(&kind(), "a", "Ready", "False", "Requested")
        .await;
    lab.patch(&kind(), "a", json!({"metadata": {"finalizers": null}}))
        .await;
    lab.wait_gone(&kind(), "a").await;
    lab.wait_until("x is free", async || {
        count_holders(&lab.get(&config_map(), "x").await.unwrap_or_default()) == 0
    })
    .await;
}

#[scenario]
async fn hold_of_holder_deleted_without_host_is_released(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("x", "a", "1").await;
    lab.apply_probe("a", hold_step("ConfigMap", "x"), json!([])).await;
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

#[scenario(real = "finalizers and garbage collection")]
async fn force_deleted_held_object_is_removed(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("b", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "b").await;
    lab.apply_probe("a", hold_step("Probe", "b"), json!([])).await;
    lab.wait_seen("a", &["held"]).await;
    lab.delete(&kind(), "b").await;
    lab.wait_condition(&kind(), "b", "DeletionBlocked", "True", "Held")
        .await;
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/force-delete": "true"}}});
    lab.patch(&kind(), "b", annotations).await;
    lab.wait_gone(&kind(), "b").await;
}
