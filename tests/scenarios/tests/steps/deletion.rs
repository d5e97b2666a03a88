//! Deletion: of Steps in the reverse order of use, of their pods before them, and of Steps that have expired.

use kubelet_simulator::{Course, succeed_with};
use ostler_test_harness::{Lab, scenario};

use crate::steps::{StepsLab, pods, steps};

#[scenario(real = "finalizers and garbage collection")]
async fn deleted_steps_go_in_the_reverse_order_of_use(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let (lab, kubelet) = (&steps_lab.lab, &steps_lab.kubelet);
    kubelet.direct("test-1", Course::Running);
    lab.apply(steps_lab.producer("build")).await;
    lab.apply(steps_lab.consumer("test", "build")).await;
    steps_lab.wait_phase("test", "Running").await;
    // The process of the consumer takes its time to end.
    kubelet.set_silent(true);
    for name in ["build", "test"] {
        lab.delete(&steps(), name).await;
    }
    lab.wait_until("the pod of the consumer is being deleted", async || {
        steps_lab.status("test").await["podState"] == "Destroying"
    })
    .await;
    lab.wait_condition(&steps(), "build", "DeletionBlocked", "True", "Held")
        .await;
    let producer = steps_lab.pod("build-1").await.expect("it stays");
    assert!(producer["metadata"]["deletionTimestamp"].is_null());
    kubelet.set_silent(false);
    for name in ["test", "build"] {
        lab.wait_gone(&steps(), name).await;
    }
    assert!(lab.list(&pods()).await.is_empty());
}

#[scenario]
async fn expired_step_goes_with_its_pod(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    for (name, course) in [("good", succeed_with(&[])), ("bad", Course::OomKilled)] {
        steps_lab.kubelet.direct(&format!("{name}-1"), course);
        let mut step = steps_lab.step(name);
        step["spec"]["ttlSecondsAfterFinished"] = 1.into();
        steps_lab.lab.apply(step).await;
    }
    for name in ["good", "bad"] {
        steps_lab.lab.wait_gone(&steps(), name).await;
        assert!(steps_lab.pod(&format!("{name}-1")).await.is_none());
    }
}

#[scenario]
async fn pod_is_removed_when_it_is_retained_no_more(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let mut step = steps_lab.producer("build");
    step["spec"]["retain"] = "1s".into();
    steps_lab.lab.apply(step).await;
    steps_lab
        .lab
        .wait_until("the Step shows that its pod is gone", async || {
            steps_lab.status("build").await["podState"] == "Gone"
        })
        .await;
    assert!(steps_lab.lab.list(&pods()).await.is_empty());
    let status = steps_lab.status("build").await;
    assert_eq!(status["phase"], "Succeeded");
    assert!(status["artifacts"][0]["url"].is_null());
}
