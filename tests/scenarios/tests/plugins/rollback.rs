//! What a build that traps goes back to.

use ostler::testing::plugin::LoadState;
use ostler_test_harness::{Lab, read_component, with_note};
use serde_json::json;

use super::{alone, brittle, forget, govern, hostile, message, misbehave, report, says, spec};

/// Objects that behave, and one that any build traps on.
async fn some_objects(lab: &Lab) {
    misbehave(lab, "ever", "trap", "x").await;
    for i in 0..3 {
        misbehave(lab, &format!("h{i}"), "behave", "x").await;
    }
    for i in 0..3 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    lab.wait_condition(&hostile(), "ever", "Ready", "False", "PluginTrapped")
        .await;
}

/// Puts a build in place that traps on what comes after it: recordings of what came before tell nothing.
async fn break_it(lab: &Lab, sound: &[u8], good: &str) {
    lab.install_bytes("hostile", &brittle(sound));
    lab.wait_until("the brittle build serves", async || {
        report(lab, "hostile").digest != good
    })
    .await;
    for i in 0..3 {
        misbehave(lab, &format!("h{i}"), "brittle", "x").await;
    }
}

pub async fn a_build_that_traps_goes_back(mut lab: Lab) {
    let _alone = alone(&lab, "hostile").await;
    let sound = read_component("hostile/hostile");
    lab.install_bytes("hostile", &sound);
    govern(&lab, "hostile", spec("hostile.wasm", None)).await;
    lab.start_host().await;
    some_objects(&lab).await;
    let told = says(&lab, "hostile", "Healthy", "False", "Trapping").await;
    assert!(
        message(&told, "Healthy").starts_with("1 objects trapped"),
        "{told:#}"
    );
    let good = report(&lab, "hostile").digest;

    break_it(&lab, &sound, &good).await;
    let told = says(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    let status = &told["status"];
    assert_eq!(
        (&status["running"]["digest"], &status["lastGoodDigest"]),
        (&json!(good), &json!(good))
    );
    let bad = status["rolledBack"]["digest"]
        .as_str()
        .expect("a digest")
        .to_owned();
    let why = message(&told, "Healthy");
    assert!(
        why.contains(&bad[..12]) && why.contains(&good[..12]) && why.contains("unreachable"),
        "{why}"
    );
    for i in 0..3 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    // What may be done is agreed anew all the same, and the bad build is not tried again.
    let mut other = spec("hostile.wasm", None);
    other["grants"] = json!({});
    govern(&lab, "hostile", other).await;
    let told = says(&lab, "hostile", "Healthy", "False", "RolledBack").await;
    assert_eq!(told["status"]["running"]["digest"], good.as_str());
    says(&lab, "hostile", "Granted", "False", "GrantsMissing").await;

    lab.install_bytes("hostile", &with_note(&sound, "mended"));
    lab.wait_until("the mended one serves", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::Serving && report.digest != good && report.digest != bad
    })
    .await;
    forget(&lab, "hostile").await;
}

pub async fn a_file_that_traps_goes_back(mut lab: Lab) {
    let _alone = alone(&lab, "hostile").await;
    let sound = read_component("hostile/hostile");
    lab.install_bytes("hostile", &sound);
    lab.start_host().await;
    some_objects(&lab).await;
    let good = report(&lab, "hostile").digest;
    break_it(&lab, &sound, &good).await;
    lab.wait_until("it has gone back", async || {
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
    lab.install_bytes("hostile", &with_note(&sound, "mended"));
    lab.wait_until("the mended one serves", async || {
        let report = report(&lab, "hostile");
        report.state == LoadState::Serving && report.digest != good
    })
    .await;
}
