//! Rollback of a build that traps.

use ostler::testing::plugin::LoadState;
use ostler_test_harness::{Lab, read_component, with_note};
use serde_json::json;

use super::{
    apply_hostile, apply_plugin, hostile, make_brittle, message, report, spec, wait_plugin_condition,
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
