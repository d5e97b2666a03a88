//! Writes: none without a change, and no endless conflict.

use ostler_test_harness::{
    HeldCompiler, Lab, find_condition,
    probe::{config_map, kind, write},
    scenario,
};
use serde_json::{Value, json};

async fn reconcile_again(lab: &Lab, name: &str, value: &str) {
    let before = lab
        .host()
        .stats()
        .object(&lab.key(&kind(), name))
        .map_or(0, |f| f.reconciles);
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": value}}});
    lab.patch(&kind(), name, annotations).await;
    lab.wait_until("it was reconciled again", async || {
        let facts = lab.host().stats().object(&lab.key(&kind(), name));
        facts.is_some_and(|f| f.reconciles > before)
    })
    .await;
    lab.wait_idle().await;
}

#[scenario(real = "server-side apply and conflicts")]
async fn unchanged_apply_sends_no_write(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("p", json!([write("apply", "child", "1")]), json!([]))
        .await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_idle().await;
    let before = lab.api_writes();
    let version = |o: Option<Value>| o.map(|o| o["metadata"]["resourceVersion"].clone());
    let child = version(lab.get(&config_map(), "child").await);
    for i in 0..10 {
        reconcile_again(&lab, "p", &i.to_string()).await;
    }
    assert_eq!(lab.api_writes(), before, "ten reconciles, no write");
    assert_eq!(version(lab.get(&config_map(), "child").await), child);
    // A change by another writer is reverted with one write.
    lab.patch(&config_map(), "child", json!({"data": {"v": "2"}}))
        .await;
    lab.wait_until("the child is as it should be", async || {
        lab.get(&config_map(), "child")
            .await
            .is_some_and(|c| c["data"]["v"] == "1")
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(lab.api_writes(), before + 1);
}

/// A new leader, or a host after a restart, finds 300 children as they were applied.
#[scenario]
async fn restarted_host_sends_no_apply_again(mut lab: Lab) {
    lab.start_probe().await;
    let names = ["a", "b", "c"];
    for name in names {
        let children = (0..100).map(|i| write("apply", &format!("{name}-{i}"), "1"));
        lab.apply_probe(name, children.collect(), json!([])).await;
    }
    for name in names {
        lab.wait_ready(&kind(), name).await;
    }
    lab.wait_idle().await;
    assert!(lab.api_writes() >= 300);
    lab.host = None;
    lab.start_host().await;
    lab.wait_until("all are reconciled again", async || {
        names.iter().all(|name| {
            let stats = lab.host().stats().object(&lab.key(&kind(), name));
            stats.is_some_and(|stats| stats.reconciles > 0)
        })
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(lab.api_writes(), 0);
    // A field that is no longer applied is still removed.
    lab.apply_probe("a", json!([write("apply", "a-0", "2")]), json!([]))
        .await;
    lab.wait_seen("a", &[r#"{"v":"2"}"#]).await;
}

/// The API server defaults a Service's ports and assigns a cluster IP; the CRD of a probe defaults its steps.
#[scenario(real = "server-side apply and conflicts")]
async fn defaulted_fields_cause_no_writes(mut lab: Lab) {
    lab.settings.grants = ostler::testing::grants::Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{group: '*', kinds: ['*'], verbs: [get, apply], namespaces: ['*']}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    let child = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": "child", "labels": {"n": "1"}}, "spec": {"behaviour": "behave"}});
    lab.apply_probe(
        "p",
        json!([{"do": "apply", "object": child.to_string()}]),
        json!([]),
    )
    .await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_idle().await;
    let before = lab.api_writes();
    for i in 0..3 {
        reconcile_again(&lab, "p", &i.to_string()).await;
    }
    assert_eq!(lab.api_writes(), before);
}

#[scenario(real = "server-side apply and conflicts")]
async fn field_no_longer_applied_is_removed(mut lab: Lab) {
    lab.start_probe().await;
    let with = |data: Value| {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}, "data": data});
        json!([{"do": "apply", "object": object.to_string()}])
    };
    lab.apply_probe("p", with(json!({"a": "1", "b": "2"})), json!([]))
        .await;
    lab.wait_seen("p", &[r#"{"a":"1","b":"2"}"#]).await;
    lab.apply_probe("p", with(json!({"a": "1"})), json!([])).await;
    lab.wait_seen("p", &[r#"{"a":"1"}"#]).await;
    let child = lab.get(&config_map(), "child").await.expect("the child");
    assert_eq!(child["data"], json!({"a": "1"}));
    assert_eq!(child["metadata"]["ownerReferences"][0]["kind"], "Probe");
}

/// A patch is a command, which must not be carried out on what another client has written meanwhile.
#[scenario(real = "server-side apply and conflicts")]
async fn patch_of_a_version_that_was_overtaken_is_a_conflict(mut lab: Lab) {
    lab.start_probe().await;
    let version = async |value: &str| {
        lab.apply_config_map("target", "x", value).await;
        let target = lab.get(&config_map(), "target").await.expect("it is there");
        target["metadata"]["resourceVersion"].clone()
    };
    let (overtaken, current) = (version("1").await, version("2").await);
    let patch = |version: &Value| {
        json!([{"do": "patch", "kind": "ConfigMap", "name": "target", "resourceVersion": version,
            "object": "{\"data\": {\"v\": \"patched\"}}"}])
    };
    lab.apply_probe("late", patch(&overtaken), json!([])).await;
    lab.wait_condition(&kind(), "late", "Ready", "False", "Conflict")
        .await;
    let target = lab.get(&config_map(), "target").await.expect("it is there");
    assert_eq!(target["data"]["v"], "2");
    lab.apply_probe("p", patch(&current), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"patched"}"#]).await;
    let target = lab.get(&config_map(), "target").await.expect("it is there");
    assert_eq!(target["data"]["v"], "patched");
}

/// Two probes apply different values of one field, which would never end without loop detection.
#[scenario(real = "server-side apply and conflicts")]
async fn conflicting_writers_are_throttled(mut lab: Lab) {
    lab.start_probe().await;
    let fight = |value: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}, "data": {"v": value}});
        json!([{"do": "force", "object": object.to_string()}])
    };
    lab.apply_probe("a", fight("a"), json!([])).await;
    lab.apply_probe("b", fight("b"), json!([])).await;
    let slowed = async |name: &str| {
        let probe = lab.get(&kind(), name).await.unwrap_or_default();
        find_condition(&probe, "HotLoop")["status"] == "True"
    };
    lab.wait_until("one of them has the condition", async || {
        slowed("a").await || slowed("b").await
    })
    .await;
    let name = if slowed("a").await { "a" } else { "b" };
    let probe = lab.get(&kind(), name).await.expect("it is there");
    let message = find_condition(&probe, "HotLoop")["message"].to_string();
    assert!(message.contains("child is changed back"), "{message}");
    let reconciles = lab
        .host()
        .stats()
        .object(&lab.key(&kind(), name))
        .map_or(0, |f| f.reconciles);
    assert!(reconciles < 40, "{reconciles} reconciles before it was noticed");
    // One probe stops: the conflict ends, and the condition is removed.
    let other = if name == "a" { "b" } else { "a" };
    lab.apply_probe(other, json!([]), json!([])).await;
    lab.wait_ready(&kind(), other).await;
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}});
    lab.patch(&kind(), name, annotations).await;
    lab.wait_until("the loop is over", async || !slowed(name).await)
        .await;
}

/// A missing grant is terminal; adding the grant wakes the object.
#[scenario]
async fn denied_write_is_retried_after_grant(mut lab: Lab) {
    let file = lab.path().join("grants.yaml");
    let grants = |verbs: &str| {
        let text = format!(
            "plugins: {{probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}], kubernetes: [{{kinds: [ConfigMap], verbs: {verbs}}}]}}}}"
        );
        std::fs::write(&file, &text).expect("written");
        ostler::testing::grants::Grants::parse(&text, "grants.yaml").expect("grants")
    };
    lab.settings.grants = grants("[get]");
    lab.settings.grants_file = Some(file.clone());
    lab.start_probe().await;
    lab.apply_probe("p", json!([write("apply", "child", "1")]), json!([]))
        .await;
    let probe = lab
        .wait_condition(&kind(), "p", "Stalled", "True", "PermissionDenied")
        .await;
    let message = find_condition(&probe, "Ready")["message"].to_string();
    assert!(message.contains("verbs: [apply]"), "{message}");
    // A file that is broken or gone keeps the previous grants, and the host says so.
    let registry = lab.host().registry().clone();
    for content in [Some("plugins: ["), None] {
        match content {
            Some(text) => std::fs::write(&file, text).expect("written"),
            None => std::fs::remove_file(&file).expect("removed"),
        }
        lab.wait_until("the broken file is reported", async || {
            registry.grants_error().is_some()
        })
        .await;
        let error = registry.grants_error().unwrap_or_default();
        assert!(error.contains("grants.yaml"), "{error}");
        grants("[get]");
        lab.wait_until("the file is valid again", async || {
            registry.grants_error().is_none()
        })
        .await;
    }
    grants("[get, apply]");
    lab.wait_ready(&kind(), "p").await;
    let changed = lab
        .wake_causes(&kind(), "p")
        .contains(&ostler::testing::dispatcher::Cause::ConfigChange);
    assert!(changed, "{:?}", lab.wake_causes(&kind(), "p"));
}

/// A component of an interpreter takes minutes to compile. Nothing that an administrator revokes may wait for that.
#[scenario]
async fn revoked_grant_applies_while_another_component_compiles(mut lab: Lab) {
    let grants_file = lab.path().join("grants.yaml");
    let grants = |verbs: &str| {
        let text = format!(
            "plugins: {{greeting: {{reconciles: [{{group: examples.ostler.dev, kinds: [Greeting]}}]}}, \
             probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}], kubernetes: [{{kinds: [ConfigMap], verbs: {verbs}}}]}}}}"
        );
        std::fs::write(&grants_file, &text).expect("written");
        ostler::testing::grants::Grants::parse(&text, "grants.yaml").expect("grants")
    };
    lab.settings.grants = grants("[get, apply]");
    lab.settings.grants_file = Some(grants_file.clone());
    let compiler = HeldCompiler::install(&mut lab);
    lab.start_probe().await;
    lab.apply_probe("before", json!([write("apply", "child", "1")]), json!([]))
        .await;
    lab.wait_ready(&kind(), "before").await;

    compiler.hold();
    lab.install(&["examples/greeting"]);
    lab.wait_until("the compiler runs", async || compiler.is_compiling())
        .await;
    grants("[get]");
    lab.apply_probe("after", json!([write("apply", "other", "1")]), json!([]))
        .await;
    lab.wait_condition(&kind(), "after", "Stalled", "True", "PermissionDenied")
        .await;
    let serves = |name: &str| {
        lab.host()
            .registry()
            .serving()
            .iter()
            .any(|p| &**p.name() == name)
    };
    assert!(!serves("greeting"), "it is still being compiled");
    compiler.release();
    lab.wait_until("the other component serves", async || serves("greeting"))
        .await;
}
