//! What is deleted goes, in whatever order and whatever is broken; what fails is not forgotten.

use ostler::testing::{
    key::Gvk,
    reconcile::{DELETION_POLICY, FORCE_DELETE, PAUSED_ANNOTATION},
};
use ostler_test_harness::{Lab, concourse::kind, find_condition, probe, scenarios};
use serde_json::json;

scenarios!(
    children_first,
    parents_first,
    all_at_once,
    with_the_parent_gone,
    with_concourse_down,
    while_suspended,
    while_paused,
    orphaned_by_its_spec,
    orphaned_by_annotation,
    forced,
    told_by_the_phase,
);

fn gone_from_concourse(lab: &Lab) {
    assert_eq!(
        lab.concourse.pipeline("platform", "app").map(|p| p.saves),
        None,
        "the pipeline is gone"
    );
    assert!(lab.concourse.team("platform").is_none(), "the team is gone");
}

async fn chained(mut lab: Lab) -> Lab {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab
}

async fn children_first(lab: Lab) {
    let lab = chained(lab).await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    gone_from_concourse(&lab);
    lab.wait_gone(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
        .await;
}

async fn parents_first(lab: Lab) {
    let lab = chained(lab).await;
    lab.delete(&kind("Instance"), "ci").await;
    let waiting = lab
        .wait_condition(&kind("Instance"), "ci", "Ready", "False", "TeamsRemain")
        .await;
    assert!(
        find_condition(&waiting, "Ready")["message"]
            .to_string()
            .contains("platform"),
        "it names what it waits for"
    );
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "PipelinesRemain")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    gone_from_concourse(&lab);
}

async fn all_at_once(lab: Lab) {
    let lab = chained(lab).await;
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        lab.delete(&kind(kind_name), name).await;
    }
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    gone_from_concourse(&lab);
}

async fn with_the_parent_gone(lab: Lab) {
    let lab = chained(lab).await;
    // Somebody takes the parents away by force: their finalizers are removed by hand.
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform")] {
        lab.patch(
            &kind(kind_name),
            name,
            json!({"metadata": {"annotations": {FORCE_DELETE: "true"}}}),
        )
        .await;
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(
        lab.concourse.pipeline("platform", "app").is_some(),
        "nobody knows where it is any more"
    );
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(
        events
            .iter()
            .any(|e| e["reason"] == "Orphaned" && e["involvedObject"]["kind"] == "Pipeline"),
        "and that is said"
    );
}

async fn with_concourse_down(mut lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    lab.settings.deletion_deadline = std::time::Duration::ZERO;
    let lab = chained(lab).await;
    lab.concourse.faults().outage(true);
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_until("it says what stands in the way and what to do", async || {
        let object = lab
            .get(&kind("Pipeline"), "app")
            .await
            .expect("it is not forgotten");
        let message = find_condition(&object, "DeletionBlocked")["message"].to_string();
        message.contains(DELETION_POLICY) && message.contains(FORCE_DELETE)
    })
    .await;
    assert!(lab.get(&kind("Pipeline"), "app").await.is_some());
    lab.concourse.faults().outage(false);
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn while_suspended(lab: Lab) {
    let lab = chained(lab).await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"suspend": true}}))
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "Suspended")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn while_paused(lab: Lab) {
    let lab = chained(lab).await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {PAUSED_ANNOTATION: "true"}}}),
    )
    .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Paused", "True", "PausedByAnnotation")
        .await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"exposed": true}}))
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Paused", "True", "PausedByAnnotation")
        .await;
    lab.wait_idle().await;
    assert!(
        !lab.concourse.pipeline("platform", "app").expect("there").public,
        "nothing is done"
    );
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn orphaned_by_its_spec(lab: Lab) {
    let lab = chained(lab).await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"spec": {"reclaimPolicy": "Orphan"}}),
    )
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_some());
}

async fn orphaned_by_annotation(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = chained(lab).await;
    lab.concourse.faults().outage(true);
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {DELETION_POLICY: "Orphan"}}}),
    )
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
}

async fn forced(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = chained(lab).await;
    lab.concourse.faults().outage(true);
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_until("it is being deleted", async || {
        lab.get(&kind("Pipeline"), "app")
            .await
            .is_some_and(|o| o["metadata"]["deletionTimestamp"].is_string())
    })
    .await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {FORCE_DELETE: "true"}}}),
    )
    .await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(events.iter().any(|e| e["reason"] == "ForceDeleted"));
}

/// For a kind that asks for it, one word says how an object is.
async fn told_by_the_phase(mut lab: Lab) {
    lab.start_probe().await;
    let phase = async |phase: &str| {
        lab.wait_until(&format!("the phase is {phase}"), async || {
            lab.get(&probe::kind(), "p")
                .await
                .is_some_and(|o| o["status"]["phase"] == phase)
        })
        .await;
    };
    lab.apply_probe("p", json!([{"do": "yield"}]), json!([{"do": "park"}]))
        .await;
    phase("Progressing").await;
    lab.patch(&probe::kind(), "p", json!({"spec": {"steps": []}}))
        .await;
    phase("Ready").await;
    lab.delete(&probe::kind(), "p").await;
    phase("Terminating").await;
    lab.patch(&probe::kind(), "p", json!({"spec": {"cleanup": []}}))
        .await;
    lab.wait_gone(&probe::kind(), "p").await;
}
