//! Canary builds: their share of the objects, promotion and rollback.

use ostler_test_harness::{Lab, read_component, scenario, with_note};
use serde_json::{Value, json};

use super::{
    apply_hostile, apply_plugin, builds, hostile, make_brittle, plugin, report, spec, wait_plugin_condition,
};

/// Waits until the canary is in a state, and returns the Plugin.
async fn wait_canary_state(lab: &Lab, state: &str, objects: &str) -> Value {
    lab.wait_until(&format!("the canary is {state} for {objects}"), async || {
        let canary = plugin(lab, "hostile").await["status"]["canary"].clone();
        canary["state"] == state && canary["objects"] == objects
    })
    .await;
    plugin(lab, "hostile").await
}

#[scenario]
pub async fn canary_reconciles_its_share_and_is_promoted(mut lab: Lab) {
    const OBJECT_COUNT: usize = 40;
    let _lock = lab.lock_plugin("hostile").await;
    let stable = read_component("hostile/hostile");
    let canary = with_note(&stable, "canary");
    lab.install_bytes("v1", &stable);
    lab.install_bytes("v2", &canary);
    apply_plugin(&lab, "hostile", spec("v1.wasm", None)).await;
    lab.start_host().await;
    for i in 0..OBJECT_COUNT {
        let tier = if i == 0 { "test" } else { "prod" };
        apply_hostile(&lab, &format!("h{i}"), "behave", tier).await;
    }
    lab.wait_until("all are reconciled", async || builds(&lab).len() == OBJECT_COUNT)
        .await;
    let old = report(&lab, "hostile").digest;
    let by_new = |lab: &Lab| -> Vec<String> {
        let builds = builds(lab).into_iter();
        builds
            .filter(|(_, digest)| *digest != old)
            .map(|(name, _)| name)
            .collect()
    };

    apply_plugin(
        &lab,
        "hostile",
        spec(
            "v1.wasm",
            Some(("v2.wasm", json!({"labelSelector": "tier=test"}))),
        ),
    )
    .await;
    let object = wait_canary_state(&lab, "Serving", "tier=test").await;
    assert_ne!(object["status"]["canary"]["digest"], old.as_str());
    lab.wait_until("the selected one is the canary's", async || {
        by_new(&lab) == ["h0"]
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(by_new(&lab), ["h0"]);

    apply_plugin(
        &lab,
        "hostile",
        spec("v1.wasm", Some(("v2.wasm", json!({"weight": 50})))),
    )
    .await;
    wait_canary_state(&lab, "Serving", "50 %").await;
    lab.wait_until("a share is the canary's", async || by_new(&lab).len() > 1)
        .await;
    lab.wait_idle().await;
    let half = by_new(&lab);
    // A binomial distribution (n = 40, p = 0.5) is outside of this range with a probability below 10⁻⁶.
    assert!((5..=35).contains(&half.len()), "{half:?}");

    apply_plugin(
        &lab,
        "hostile",
        spec("v1.wasm", Some(("v2.wasm", json!({"weight": 80})))),
    )
    .await;
    wait_canary_state(&lab, "Serving", "80 %").await;
    lab.wait_until("more are the canary's", async || by_new(&lab).len() > half.len())
        .await;
    lab.wait_idle().await;
    let more = by_new(&lab);
    assert!(half.iter().all(|name| more.contains(name)), "{half:?} {more:?}");

    apply_plugin(&lab, "hostile", spec("v2.wasm", None)).await;
    lab.wait_until("it is promoted", async || by_new(&lab).len() == OBJECT_COUNT)
        .await;
    let object = wait_plugin_condition(&lab, "hostile", "Ready", "True", "Ready").await;
    assert!(object["status"]["canary"].is_null(), "{object:#}");
    assert_eq!(object["status"]["running"]["source"], "v2.wasm");
    let failed: Vec<_> = lab
        .host()
        .stats()
        .all_objects()
        .into_iter()
        .filter(|f| f.failures > 0)
        .collect();
    assert!(failed.is_empty(), "no call failed: {failed:#?}");
    lab.delete_plugin("hostile").await;
}

#[scenario]
pub async fn canary_with_more_failures_is_rolled_back(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let stable = read_component("hostile/hostile");
    lab.install_bytes("v1", &stable);
    lab.install_bytes("v2", &make_brittle(&stable));
    apply_plugin(&lab, "hostile", spec("v1.wasm", None)).await;
    lab.start_host().await;
    let all = async |behaviour: &str| {
        for i in 0..8 {
            let tier = if i < 4 { "test" } else { "prod" };
            apply_hostile(&lab, &format!("h{i}"), behaviour, tier).await;
        }
    };
    all("behave").await;
    for i in 0..8 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    let good = report(&lab, "hostile").digest;
    let with = spec(
        "v1.wasm",
        Some(("v2.wasm", json!({"labelSelector": "tier=test"}))),
    );
    apply_plugin(&lab, "hostile", with.clone()).await;
    wait_canary_state(&lab, "Serving", "tier=test").await;
    // The behaviour changes after the swap; otherwise the replay of recordings would refuse the canary.
    all("brittle").await;
    let object = wait_canary_state(&lab, "RolledBack", "tier=test").await;
    let why = object["status"]["canary"]["message"].as_str().unwrap_or_default();
    assert!(
        why.contains("of its 4 objects fail") && why.contains("trapped"),
        "{why}"
    );
    wait_plugin_condition(&lab, "hostile", "Ready", "False", "CanaryRolledBack").await;
    wait_plugin_condition(&lab, "hostile", "Healthy", "True", "Serving").await;
    for i in 0..8 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    assert_eq!(report(&lab, "hostile").digest, good);
    // A change of other fields does not retry the same build; another build is tried.
    let mut again = with.clone();
    again["limits"] = json!({"hostCalls": 900});
    apply_plugin(&lab, "hostile", again).await;
    wait_plugin_condition(&lab, "hostile", "Ready", "False", "CanaryRolledBack").await;
    assert!(builds(&lab).iter().all(|(_, digest)| *digest == good));
    lab.install_bytes("v2", &with_note(&stable, "fixed"));
    wait_canary_state(&lab, "Serving", "tier=test").await;
    wait_plugin_condition(&lab, "hostile", "Ready", "True", "Ready").await;
    lab.delete_plugin("hostile").await;
}
