//! Deletion of the chain: in any order, with failures, and with the means to override them.

use ostler::testing::{
    annotation::{self, DELETION_POLICY, FORCE_DELETE},
    key::Gvk,
};
use ostler_test_harness::{Lab, concourse::kind, find_condition, probe, scenarios};
use serde_json::json;

scenarios!(
    chain_deleted_children_first_is_gone,
    parents_deleted_first_wait_for_their_children,
    chain_deleted_at_once_is_gone,
    pipeline_without_parents_is_orphaned_with_event,
    deletion_waits_for_unreachable_concourse_and_names_remedies,
    suspended_pipeline_can_be_deleted,
    paused_pipeline_can_be_deleted,
    reclaim_policy_orphan_keeps_pipeline,
    deletion_policy_annotation_keeps_pipeline,
    force_delete_annotation_removes_object_with_event,
    phase_reports_progress_ready_and_termination,
);

fn assert_gone_from_concourse(lab: &Lab) {
    assert_eq!(
        lab.concourse.pipeline("platform", "app").map(|p| p.saves),
        None,
        "the pipeline is gone"
    );
    assert!(lab.concourse.team("platform").is_none(), "the team is gone");
}

async fn start_with_chain(mut lab: Lab) -> Lab {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab
}

async fn chain_deleted_children_first_is_gone(lab: Lab) {
    let lab = start_with_chain(lab).await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.delete(&kind(kind_name), name).await;
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
    lab.wait_gone(&Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci")
        .await;
}

async fn parents_deleted_first_wait_for_their_children(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.delete(&kind("Instance"), "ci").await;
    let waiting = lab
        .wait_condition(&kind("Instance"), "ci", "Ready", "False", "TeamsRemain")
        .await;
    assert!(
        find_condition(&waiting, "Ready")["message"]
            .to_string()
            .contains("platform"),
        "the message names the Team"
    );
    lab.delete(&kind("Team"), "platform").await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "PipelinesRemain")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
}

async fn chain_deleted_at_once_is_gone(lab: Lab) {
    let lab = start_with_chain(lab).await;
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        lab.delete(&kind(kind_name), name).await;
    }
    for (kind_name, name) in [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")] {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert_gone_from_concourse(&lab);
}

async fn pipeline_without_parents_is_orphaned_with_event(lab: Lab) {
    let lab = start_with_chain(lab).await;
    // A user force-deletes the parents: the host removes their finalizers without a cleanup.
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
        "its location in Concourse is unknown"
    );
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(
        events
            .iter()
            .any(|e| e["reason"] == "Orphaned" && e["involvedObject"]["kind"] == "Pipeline"),
        "an Event reports it"
    );
}

async fn deletion_waits_for_unreachable_concourse_and_names_remedies(mut lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    lab.settings.deletion_deadline = std::time::Duration::ZERO;
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_until("the condition names obstacle and remedies", async || {
        let object = lab
            .get(&kind("Pipeline"), "app")
            .await
            .expect("the object still exists");
        let message = find_condition(&object, "DeletionBlocked")["message"].to_string();
        message.contains(DELETION_POLICY) && message.contains(FORCE_DELETE)
    })
    .await;
    assert!(lab.get(&kind("Pipeline"), "app").await.is_some());
    lab.concourse.faults().set_outage(false);
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn suspended_pipeline_can_be_deleted(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"suspend": true}}))
        .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "Suspended")
        .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn paused_pipeline_can_be_deleted(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {(annotation::PAUSED): "true"}}}),
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
        "nothing is applied"
    );
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(lab.concourse.pipeline("platform", "app").is_none());
}

async fn reclaim_policy_orphan_keeps_pipeline(lab: Lab) {
    let lab = start_with_chain(lab).await;
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

async fn deletion_policy_annotation_keeps_pipeline(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"metadata": {"annotations": {DELETION_POLICY: "Orphan"}}}),
    )
    .await;
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
}

async fn force_delete_annotation_removes_object_with_event(lab: Lab) {
    if !lab.concourse.is_simulated("Concourse is not to be reached") {
        return;
    }
    let lab = start_with_chain(lab).await;
    lab.concourse.faults().set_outage(true);
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

/// The host keeps `status.phase` for a kind that requests it.
async fn phase_reports_progress_ready_and_termination(mut lab: Lab) {
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
