//! A build has a part of the objects, and is promoted or taken back.

use ostler_test_harness::{Lab, read_component, with_note};
use serde_json::{Value, json};

use super::{alone, brittle, builds, forget, govern, hostile, misbehave, plugin, report, says, spec};

/// Waits until the canary is in a state; gives the Plugin.
async fn canary_is(lab: &Lab, state: &str, objects: &str) -> Value {
    lab.wait_until(&format!("the canary is {state} for {objects}"), async || {
        let canary = plugin(lab, "hostile").await["status"]["canary"].clone();
        canary["state"] == state && canary["objects"] == objects
    })
    .await;
    plugin(lab, "hostile").await
}

pub async fn a_canary_has_its_share_and_is_promoted(mut lab: Lab) {
    const OBJECTS: usize = 40;
    let _alone = alone(&lab, "hostile").await;
    let stable = read_component("hostile/hostile");
    let canary = with_note(&stable, "canary");
    lab.install_bytes("v1", &stable);
    lab.install_bytes("v2", &canary);
    govern(&lab, "hostile", spec("v1.wasm", None)).await;
    lab.start_host().await;
    for i in 0..OBJECTS {
        let tier = if i == 0 { "test" } else { "prod" };
        misbehave(&lab, &format!("h{i}"), "behave", tier).await;
    }
    lab.wait_until("all are reconciled", async || builds(&lab).len() == OBJECTS)
        .await;
    let old = report(&lab, "hostile").digest;
    let by_new = |lab: &Lab| -> Vec<String> {
        let builds = builds(lab).into_iter();
        builds
            .filter(|(_, digest)| *digest != old)
            .map(|(name, _)| name)
            .collect()
    };

    govern(
        &lab,
        "hostile",
        spec("v1.wasm", Some(("v2.wasm", json!({"selector": "tier=test"})))),
    )
    .await;
    let told = canary_is(&lab, "Serving", "tier=test").await;
    assert_ne!(told["status"]["canary"]["digest"], old.as_str());
    lab.wait_until("the selected one is the canary's", async || {
        by_new(&lab) == ["h0"]
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(by_new(&lab), ["h0"]);

    govern(
        &lab,
        "hostile",
        spec("v1.wasm", Some(("v2.wasm", json!({"weight": 50})))),
    )
    .await;
    canary_is(&lab, "Serving", "50 %").await;
    lab.wait_until("a share is the canary's", async || by_new(&lab).len() > 1)
        .await;
    lab.wait_idle().await;
    let half = by_new(&lab);
    // Of a fair coin thrown forty times: one in a million is outside.
    assert!((5..=35).contains(&half.len()), "{half:?}");

    govern(
        &lab,
        "hostile",
        spec("v1.wasm", Some(("v2.wasm", json!({"weight": 80})))),
    )
    .await;
    canary_is(&lab, "Serving", "80 %").await;
    lab.wait_until("more are the canary's", async || by_new(&lab).len() > half.len())
        .await;
    lab.wait_idle().await;
    let more = by_new(&lab);
    assert!(half.iter().all(|name| more.contains(name)), "{half:?} {more:?}");

    govern(&lab, "hostile", spec("v2.wasm", None)).await;
    lab.wait_until("it is promoted", async || by_new(&lab).len() == OBJECTS)
        .await;
    let told = says(&lab, "hostile", "Ready", "True", "Ready").await;
    assert!(told["status"]["canary"].is_null(), "{told:#}");
    assert_eq!(told["status"]["running"]["source"], "v2.wasm");
    let failed: Vec<_> = lab
        .host()
        .stats()
        .all_objects()
        .into_iter()
        .filter(|f| f.failures > 0)
        .collect();
    assert!(failed.is_empty(), "no call failed: {failed:#?}");
    forget(&lab, "hostile").await;
}

pub async fn a_canary_that_does_worse_goes_back(mut lab: Lab) {
    let _alone = alone(&lab, "hostile").await;
    let stable = read_component("hostile/hostile");
    lab.install_bytes("v1", &stable);
    lab.install_bytes("v2", &brittle(&stable));
    govern(&lab, "hostile", spec("v1.wasm", None)).await;
    lab.start_host().await;
    let all = async |behaviour: &str| {
        for i in 0..8 {
            let tier = if i < 4 { "test" } else { "prod" };
            misbehave(&lab, &format!("h{i}"), behaviour, tier).await;
        }
    };
    all("behave").await;
    for i in 0..8 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    let good = report(&lab, "hostile").digest;
    let with = spec("v1.wasm", Some(("v2.wasm", json!({"selector": "tier=test"}))));
    govern(&lab, "hostile", with.clone()).await;
    canary_is(&lab, "Serving", "tier=test").await;
    // After the swap: what was recorded before would have told.
    all("brittle").await;
    let told = canary_is(&lab, "RolledBack", "tier=test").await;
    let why = told["status"]["canary"]["message"].as_str().unwrap_or_default();
    assert!(
        why.contains("of its 4 objects fail") && why.contains("trapped"),
        "{why}"
    );
    says(&lab, "hostile", "Ready", "False", "CanaryRolledBack").await;
    says(&lab, "hostile", "Healthy", "True", "Serving").await;
    for i in 0..8 {
        lab.wait_ready(&hostile(), &format!("h{i}")).await;
    }
    assert_eq!(report(&lab, "hostile").digest, good);
    // Said again otherwise, it is not tried again; another build is.
    let mut again = with.clone();
    again["limits"] = json!({"hostCalls": 900});
    govern(&lab, "hostile", again).await;
    says(&lab, "hostile", "Ready", "False", "CanaryRolledBack").await;
    assert!(builds(&lab).iter().all(|(_, digest)| *digest == good));
    lab.install_bytes("v2", &with_note(&stable, "mended"));
    canary_is(&lab, "Serving", "tier=test").await;
    says(&lab, "hostile", "Ready", "True", "Ready").await;
    forget(&lab, "hostile").await;
}
