//! The host or the pod ends at each phase of a Step.

use kubelet_simulator::{Course, succeed_with};
use ostler_test_harness::{Lab, scenario};
use serde_json::json;

use crate::steps::{StepsLab, pods, steps};

/// The phases before the end, with what the Step shows of each.
fn phases() -> [(&'static str, Course, &'static str); 3] {
    [
        ("created", Course::Unseen, "Starting"),
        ("initializing", Course::Initializing, "Starting"),
        ("running", Course::Running, "Running"),
    ]
}

#[scenario]
async fn process_that_ends_while_the_host_is_stopped_is_reported(lab: Lab) {
    let mut steps_lab = StepsLab::start(lab).await;
    for (name, course, _) in phases() {
        steps_lab.kubelet.direct(&format!("{name}-1"), course);
        steps_lab.lab.apply(steps_lab.producer(name)).await;
    }
    steps_lab.lab.apply(steps_lab.producer("ended")).await;
    let mut before = Vec::new();
    for (name, _, reason) in phases() {
        steps_lab.wait_reason(name, reason).await;
    }
    steps_lab.lab.wait_ready(&steps(), "ended").await;
    let names = ["created", "initializing", "running", "ended"];
    for name in names {
        let pod = steps_lab.wait_pod(&format!("{name}-1")).await;
        before.push(pod["metadata"]["uid"].clone());
    }
    steps_lab.lab.host = None;
    for (name, ..) in phases() {
        steps_lab
            .kubelet
            .direct(&format!("{name}-1"), succeed_with(&["binary"]));
        let description = format!("the process of {name} has ended");
        steps_lab
            .lab
            .wait_until(&description, async || {
                let pod = steps_lab.pod(&format!("{name}-1")).await.expect("it exists");
                pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object()
            })
            .await;
    }
    steps_lab.restart_host().await;
    for (name, uid) in names.iter().zip(before) {
        steps_lab.lab.wait_ready(&steps(), name).await;
        let status = steps_lab.status(name).await;
        assert_eq!(
            (&status["podUID"], &status["attempt"]),
            (&uid, &json!(1)),
            "{name}"
        );
        assert!(status["artifacts"][0]["url"].is_string(), "{name}");
        let pod = steps_lab.pod(&format!("{name}-1")).await.expect("it stays");
        assert_eq!(pod["metadata"]["uid"], uid, "{name}");
    }
    assert_eq!(steps_lab.lab.list(&pods()).await.len(), names.len());
}

#[scenario]
async fn host_restarted_in_a_deletion_finishes_it(lab: Lab) {
    let mut steps_lab = StepsLab::start(lab).await;
    steps_lab.kubelet.direct("a-1", Course::Running);
    steps_lab.lab.apply(steps_lab.step("a")).await;
    steps_lab.wait_phase("a", "Running").await;
    // The process takes its time to end.
    steps_lab.kubelet.set_silent(true);
    steps_lab.lab.delete(&steps(), "a").await;
    steps_lab
        .lab
        .wait_until("the pod is being deleted", async || {
            steps_lab.status("a").await["podState"] == "Destroying"
        })
        .await;
    steps_lab.restart_host().await;
    let pod = steps_lab.pod("a-1").await.expect("it is on its node");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    steps_lab.kubelet.set_silent(false);
    steps_lab.lab.wait_gone(&steps(), "a").await;
    assert!(steps_lab.pod("a-1").await.is_none());
}

#[scenario]
async fn pod_deleted_at_any_phase_ends_its_step(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    for (name, course, reason) in phases() {
        steps_lab.kubelet.direct(&format!("{name}-1"), course);
        steps_lab.lab.apply(steps_lab.step(name)).await;
        steps_lab.wait_reason(name, reason).await;
        steps_lab.wait_pod(&format!("{name}-1")).await;
    }
    for (name, ..) in phases() {
        steps_lab.lab.delete(&pods(), &format!("{name}-1")).await;
        let status = steps_lab.wait_phase(name, "Errored").await;
        assert_eq!(
            (&status["reason"], &status["attempt"]),
            (&json!("PodDeleted"), &json!(1)),
            "{name}"
        );
        let message = status["message"].as_str().expect("a message");
        assert!(message.contains("spec.onPodLost"), "{message}");
    }
    steps_lab
        .lab
        .wait_until("no pod is left", async || {
            steps_lab.lab.list(&pods()).await.is_empty()
        })
        .await;
}

#[scenario]
async fn pod_deleted_at_any_phase_is_replaced_by_policy(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    for (name, course, reason) in phases() {
        steps_lab.kubelet.direct(&format!("{name}-1"), course);
        let mut step = steps_lab.step(name);
        step["spec"]["onPodLost"] = "Rerun".into();
        steps_lab.lab.apply(step).await;
        steps_lab.wait_reason(name, reason).await;
        steps_lab.wait_pod(&format!("{name}-1")).await;
    }
    for (name, ..) in phases() {
        steps_lab.lab.delete(&pods(), &format!("{name}-1")).await;
        steps_lab.lab.wait_ready(&steps(), name).await;
        let status = steps_lab.status(name).await;
        assert_eq!(
            (&status["pod"], &status["attempt"]),
            (&json!(format!("{name}-2")), &json!(2))
        );
    }
}

#[scenario]
async fn artifacts_of_a_deleted_pod_are_gone(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    lab.apply(steps_lab.producer("build")).await;
    lab.wait_ready(&steps(), "build").await;
    lab.delete(&pods(), "build-1").await;
    lab.wait_until("the Step shows that its pod is gone", async || {
        steps_lab.status("build").await["podState"] == "Gone"
    })
    .await;
    let status = steps_lab.status("build").await;
    assert_eq!(status["phase"], "Succeeded");
    assert!(status["artifacts"][0]["url"].is_null(), "{status}");
    lab.apply(steps_lab.consumer("test", "build")).await;
    let message = steps_lab.wait_reason("test", "InputLost").await;
    assert!(message.contains("onPodLost: Rerun"), "{message}");
    assert_eq!(steps_lab.status("test").await["phase"], "Errored");
}
