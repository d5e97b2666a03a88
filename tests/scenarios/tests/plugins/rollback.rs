//! Rollback of a build that traps.

use kube::api::{Patch, PatchParams};
use ostler::testing::plugin::LoadState;
use ostler_test_harness::{Lab, read_component, scenario, with_note};
use serde_json::{Value, json};

use super::{
    CompileCache, PushedComponent, RegistryProcess, apply_hostile, apply_plugin, hostile, kind, make_brittle,
    message, plugin, push_component, report, spec, wait_plugin_condition,
};

/// Applies objects that succeed, and one on which every build traps.
async fn apply_objects(lab: &Lab) {
    apply_hostile(lab, "ever", "trap", "x").await;
    for i in 0..3 {
        apply_hostile(lab, &format!("h{i}"), "behave", "x").await;
    }
    for i in 0..3 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    lab.wait_condition(&hostile(), "ever", "Ready", "False", "PluginTrapped")
        .await;
}

/// Installs a build that traps on the objects applied after it. Recordings of earlier reconciles do not show the trap.
async fn install_brittle(lab: &Lab, sound: &[u8], good: &str) {
    lab.install_bytes("hostile", &make_brittle(sound));
    lab.wait_until("the brittle build serves", async || {
        report(lab, "hostile").digest != good
    })
    .await;
    for i in 0..3 {
        apply_hostile(lab, &format!("h{i}"), "brittle", "x").await;
    }
}

#[scenario]
pub async fn trapping_build_is_rolled_back(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let sound = read_component("hostile/hostile");
    lab.install_bytes("hostile", &sound);
    apply_plugin(&lab, "hostile", spec("hostile.wasm", None)).await;
    lab.start_host().await;
    apply_objects(&lab).await;
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "Trapping").await;
    assert!(
        message(&object, "Healthy").starts_with("1 objects trapped"),
        "{object:#}"
    );
    let good = report(&lab, "hostile").digest;

    install_brittle(&lab, &sound, &good).await;
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    let status = &object["status"];
    assert_eq!(
        (&status["running"]["digest"], &status["lastGoodDigest"]),
        (&json!(good), &json!(good))
    );
    let bad = status["rolledBack"]["digest"]
        .as_str()
        .expect("a digest")
        .to_owned();
    let why = message(&object, "Healthy");
    assert!(
        why.contains(&bad[..12]) && why.contains(&good[..12]) && why.contains("unreachable"),
        "{why}"
    );
    for i in 0..3 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    // Changed grants apply to the previous build, and the trapping build is not retried.
    let mut other = spec("hostile.wasm", None);
    other["grants"] = json!({"reconciles": [{"group": "*", "kinds": ["*"]}]});
    apply_plugin(&lab, "hostile", other).await;
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    assert_eq!(object["status"]["running"]["digest"], good.as_str());
    wait_plugin_condition(&lab, "hostile", "Granted", "False", "GrantsMissing").await;

    lab.install_bytes("hostile", &with_note(&sound, "fixed"));
    lab.wait_until("the fixed one serves", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::Serving && report.digest != good && report.digest != bad
    })
    .await;
    lab.delete_plugin("hostile").await;
}

/// A restarted host has loaded nothing but the build that the one before it has rolled back.
#[scenario]
pub async fn restarted_host_does_not_try_a_rolled_back_build(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let sound = read_component("hostile/hostile");
    lab.install_bytes("hostile", &sound);
    apply_plugin(&lab, "hostile", spec("hostile.wasm", None)).await;
    lab.start_host().await;
    apply_objects(&lab).await;
    let good = report(&lab, "hostile").digest;
    install_brittle(&lab, &sound, &good).await;
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    let record = object["status"]["rolledBack"].clone();
    let bad = record["digest"].as_str().expect("a digest").to_owned();

    lab.host = None;
    lab.start_host().await;
    let object = wait_plugin_condition(&lab, "hostile", "Loaded", "False", "RolledBack").await;
    assert_eq!(object["status"]["rolledBack"], record, "the record stays");
    let why = message(&object, "Loaded");
    assert!(
        why.contains(&bad[..12]) && why.contains("unreachable") && why.contains("spec.source"),
        "{why}"
    );
    let restarted = report(&lab, "hostile");
    assert_eq!(
        (restarted.served, &*restarted.digest),
        (0, ""),
        "nothing has served"
    );
    // Changed grants are no other build.
    let mut other = spec("hostile.wasm", None);
    other["grants"] = json!({"reconciles": [{"group": "*", "kinds": ["*"]}]});
    apply_plugin(&lab, "hostile", other).await;
    wait_plugin_condition(&lab, "hostile", "Loaded", "False", "RolledBack").await;
    assert_eq!(report(&lab, "hostile").served, 0);

    let removed = json!({"status": {"rolledBack": null}});
    lab.api(&kind(), "")
        .patch_status("hostile", &PatchParams::default(), &Patch::Merge(&removed))
        .await
        .expect("written");
    lab.wait_until("the build is tried again", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::Serving && report.digest == bad
    })
    .await;
    wait_plugin_condition(&lab, "hostile", "Loaded", "True", "Loaded").await;
    assert!(
        plugin(&lab, "hostile").await["status"]
            .get("rolledBack")
            .is_none()
    );
    lab.delete_plugin("hostile").await;
}

/// The spec of a component in a registry.
fn oci_spec(pushed: &PushedComponent) -> Value {
    let mut spec = spec("", None);
    spec["source"] = json!({"oci": {"reference": pushed.reference.to_string()}});
    spec
}

#[scenario]
pub async fn restarted_host_pulls_the_build_before_the_rolled_back_one(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let mut registry = RegistryProcess::start_public();
    let sound = read_component("hostile/hostile");
    let good = push_component(&registry, "hostile", sound.clone()).await;
    let brittle = push_component(&registry, "hostile", make_brittle(&sound)).await;
    apply_plugin(&lab, "hostile", oci_spec(&good)).await;
    lab.start_host().await;
    apply_objects(&lab).await;
    let good_digest = report(&lab, "hostile").digest;
    apply_plugin(&lab, "hostile", oci_spec(&brittle)).await;
    lab.wait_until("the brittle build serves", async || {
        report(&lab, "hostile").digest != good_digest
    })
    .await;
    for i in 0..3 {
        apply_hostile(&lab, &format!("h{i}"), "brittle", "x").await;
    }
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    let record = object["status"]["rolledBack"].clone();
    assert_eq!(record["previousSource"], good.reference.to_string());

    // An empty cache: the components come from the registry.
    lab.settings.cache = Some(CompileCache {
        directory: lab.path().join("new-cache"),
        compiler: None,
    });
    lab.host = None;
    lab.start_host().await;
    lab.wait_until("the previous build serves", async || {
        report(&lab, "hostile").digest == good_digest
    })
    .await;
    let object = wait_plugin_condition(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    assert_eq!(object["status"]["rolledBack"], record, "the record stays");
    assert_eq!(object["status"]["running"]["source"], good.reference.to_string());
    apply_hostile(&lab, "after-restart", "behave", "x").await;
    lab.wait_ready(&hostile(), "after-restart").await;

    // Without the registry and the cache there is nothing to serve, and the error names the reference.
    lab.settings.cache = Some(CompileCache {
        directory: lab.path().join("third-cache"),
        compiler: None,
    });
    lab.host = None;
    let brittle_only = RegistryProcess::start_public();
    let elsewhere = push_component(&brittle_only, "hostile", make_brittle(&sound)).await;
    apply_plugin(&lab, "hostile", oci_spec(&elsewhere)).await;
    registry.stop();
    lab.start_host().await;
    let object = wait_plugin_condition(&lab, "hostile", "Loaded", "False", "RolledBack").await;
    let why = message(&object, "Loaded");
    assert!(why.contains(&good.reference.to_string()), "{why}");
    assert_eq!(report(&lab, "hostile").served, 0);
    lab.delete_plugin("hostile").await;
}

#[scenario]
pub async fn trapping_build_of_a_file_is_rolled_back(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let sound = read_component("hostile/hostile");
    lab.install_bytes("hostile", &sound);
    lab.start_host().await;
    apply_objects(&lab).await;
    let good = report(&lab, "hostile").digest;
    install_brittle(&lab, &sound, &good).await;
    lab.wait_until("it is rolled back", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::RolledBack
            && report.digest == good
            && report.message.contains("unreachable")
    })
    .await;
    for i in 0..3 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    assert_eq!(report(&lab, "hostile").rolled_back, 1);
    lab.install_bytes("hostile", &with_note(&sound, "fixed"));
    lab.wait_until("the fixed one serves", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::Serving && report.digest != good
    })
    .await;
}
