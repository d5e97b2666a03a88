//! Failures that a person meets: each ends in a condition with reason and remedy.

use kube::api::{Patch, PatchParams, PostParams};
use kubelet_simulator::{Course, end_with, succeed_with};
use ostler::testing::key::Gvk;
use ostler_apiserver::{Effect, Match, RequestFault};
use ostler_test_harness::{Lab, find_condition, scenario};
use serde_json::{Value, json};
use steps_protocol::{ContainerReport, ErrorReason};

use crate::steps::{StepsLab, pods, steps};

fn failed(exit_code: i32, report: ContainerReport) -> Course {
    end_with(&ContainerReport {
        exit_code: Some(exit_code),
        ..report
    })
}

fn error(reason: ErrorReason, message: &str) -> String {
    ContainerReport::of_error(reason, message).encode()
}

#[scenario]
async fn process_that_fails_ends_its_step_with_a_remedy(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let killed = ContainerReport {
        signal: Some(9),
        ..ContainerReport::default()
    };
    let late = ContainerReport {
        timed_out: true,
        ..ContainerReport::default()
    };
    let not_found = error(
        ErrorReason::CommandNotFound,
        "golang: not found in PATH: name the path of the executable.",
    );
    let corrupted = error(ErrorReason::InputCorrupted, "binary: create both steps again.");
    let rows: [(&str, Course, &str, &str, &str); 9] = [
        (
            "exit",
            failed(3, ContainerReport::default()),
            "Failed",
            "ProcessFailed",
            "status.logTail",
        ),
        ("signal", failed(137, killed), "Failed", "Signaled", "signal 9"),
        ("timeout", failed(143, late), "Failed", "TimedOut", "spec.timeout"),
        (
            "memory",
            Course::OomKilled,
            "Failed",
            "OOMKilled",
            "spec.resources.limits.memory",
        ),
        (
            "command",
            Course::Ended(126, not_found),
            "Errored",
            "CommandNotFound",
            "name the path",
        ),
        (
            "input",
            Course::InitFailed(corrupted),
            "Errored",
            "InputCorrupted",
            "create both steps again",
        ),
        (
            "report",
            Course::Ended(1, "panicked".into()),
            "Errored",
            "NoReport",
            "log",
        ),
        (
            "evicted",
            Course::Evicted("The node was low on resource: memory.".into()),
            "Errored",
            "Evicted",
            "spec.resources.requests",
        ),
        (
            "image",
            Course::Waiting("InvalidImageName", "invalid reference format".into()),
            "Errored",
            "InvalidImageName",
            "spec.image",
        ),
    ];
    for (name, course, ..) in &rows {
        steps_lab.kubelet.direct(&format!("{name}-1"), course.clone());
        steps_lab.lab.apply(steps_lab.step(name)).await;
    }
    for (name, _, phase, reason, remedy) in rows {
        let status = steps_lab.wait_phase(name, phase).await;
        let message = steps_lab.wait_reason(name, reason).await;
        assert!(message.contains(remedy), "{name}: {message}");
        assert_eq!(
            (&status["reason"], &status["message"]),
            (&json!(reason), &json!(message))
        );
        // Tools that know kstatus do not wait for it any more.
        let step = steps_lab.lab.get(&steps(), name).await.expect("it exists");
        assert_eq!(find_condition(&step, "Stalled")["reason"], reason, "{step}");
    }
}

#[scenario]
async fn pod_that_cannot_start_is_named_until_its_cause_is_mended(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let waiting = |reason, message: &str| Course::Waiting(reason, message.into());
    let rows = [
        (
            "nodes",
            Course::Unschedulable("0/1 nodes are available: 1 Insufficient cpu.".into()),
            "Unschedulable",
            "spec.resources.requests",
        ),
        (
            "pull",
            waiting("ImagePullBackOff", "Back-off pulling image \"busybox:1.37\""),
            "ImagePullFailed",
            "spec.imagePullSecrets",
        ),
        (
            "secret",
            waiting("CreateContainerConfigError", "secret \"token\" not found"),
            "ConfigMissing",
            "create it",
        ),
        (
            "root",
            waiting(
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root",
            ),
            "RootRefused",
            "spec.securityContext.runAsUser",
        ),
        (
            "create",
            waiting("CreateContainerError", "context deadline exceeded"),
            "StartFailed",
            "Events",
        ),
    ];
    for (name, course, ..) in &rows {
        steps_lab.kubelet.direct(&format!("{name}-1"), course.clone());
        steps_lab.lab.apply(steps_lab.step(name)).await;
    }
    for (name, _, reason, remedy) in rows {
        let message = steps_lab.wait_reason(name, reason).await;
        assert!(message.contains(remedy), "{name}: {message}");
        assert_eq!(steps_lab.status(name).await["phase"], "Pending", "{name}");
        steps_lab.kubelet.direct(&format!("{name}-1"), succeed_with(&[]));
        steps_lab.lab.wait_ready(&steps(), name).await;
    }
}

#[scenario]
async fn step_that_does_not_start_in_time_ends_without_its_pod(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let message = "0/1 nodes are available: 1 node(s) had untolerated taint.";
    steps_lab
        .kubelet
        .direct("late-1", Course::Unschedulable(message.into()));
    let mut step = steps_lab.step("late");
    step["spec"]["startTimeout"] = "1s".into();
    steps_lab.lab.apply(step).await;
    let status = steps_lab.wait_phase("late", "Errored").await;
    assert_eq!(status["reason"], "Unschedulable");
    let text = status["message"].as_str().expect("a message");
    assert!(
        text.starts_with("The process did not start within 1s: "),
        "{text}"
    );
    assert!(text.ends_with(message), "{text}");
    steps_lab
        .lab
        .wait_until("its pod is gone", async || {
            steps_lab.pod("late-1").await.is_none()
        })
        .await;
}

/// Waits until the API server refuses a pod with this cause. Its admission reads quotas and namespaces from a cache.
async fn wait_refused(lab: &Lab, word: &str) {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "probe" },
        "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
    let api = lab.api(&pods(), &lab.namespace);
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pod = serde_json::from_value(pod).expect("a pod");
    lab.wait_until("the pod is refused", async || {
        let created = api.create(&parameters, &pod).await;
        created.is_err_and(|error| error.to_string().contains(word))
    })
    .await;
}

/// Makes the embedded server refuse pods with the message that admission has for them.
fn refuse_pods(lab: &Lab, message: &str) -> bool {
    let Some(server) = &lab.embedded else {
        return false;
    };
    let fault = RequestFault {
        matches: Match {
            verb: Some("create".into()),
            resource: Some("pods".into()),
            ..Match::default()
        },
        times: None,
        effect: Effect::Refuse(message.into()),
    };
    server.faults().add(fault).expect("a fault");
    true
}

#[scenario(real = "quotas and admission")]
async fn pod_beyond_the_quota_waits_for_room(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    let quotas = Gvk::new("", "v1", "ResourceQuota");
    let message = r#"pods "a-1" is forbidden: exceeded quota: builds, requested: pods=1, used: pods=0, limited: pods=0"#;
    if !refuse_pods(lab, message) {
        lab.apply(json!({ "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "name": "builds", "namespace": lab.namespace }, "spec": { "hard": { "pods": "0" } } }))
            .await;
        // Its controller does this, which the control plane of the tests does not run.
        let status = json!({ "status": { "hard": { "pods": "0" }, "used": { "pods": "0" } } });
        lab.api(&quotas, &lab.namespace)
            .patch_status("builds", &PatchParams::default(), &Patch::Merge(status))
            .await
            .expect("patched");
        wait_refused(lab, "exceeded quota").await;
    }
    lab.apply(steps_lab.step("a")).await;
    let text = steps_lab.wait_reason("a", "QuotaExceeded").await;
    assert!(
        text.contains("raise the ResourceQuota") && text.contains("exceeded quota: builds"),
        "{text}"
    );
    assert!(!text.contains("RBAC"), "{text}");
    match &lab.embedded {
        Some(server) => server.faults().clear(),
        None => lab.delete(&quotas, "builds").await,
    }
    lab.wait_ready(&steps(), "a").await;
    assert_eq!(steps_lab.status("a").await["attempt"], 1);
}

#[scenario(real = "quotas and admission")]
async fn pod_that_violates_pod_security_is_named(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    let message = r#"pods "a-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "process" must set securityContext.runAsNonRoot=true), runAsUser=0 (pod must not set runAsUser=0)"#;
    let namespaces = Gvk::new("", "v1", "Namespace");
    let set_policy = async |policy: Value| {
        let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": policy } } });
        lab.api(&namespaces, "")
            .patch(&lab.namespace, &PatchParams::default(), &Patch::Merge(labels))
            .await
            .expect("patched");
    };
    if !refuse_pods(lab, message) {
        set_policy("restricted".into()).await;
        wait_refused(lab, "violates PodSecurity").await;
    }
    let mut step = steps_lab.step("a");
    step["spec"]["securityContext"] = json!({ "runAsUser": 0, "runAsNonRoot": false });
    lab.apply(step).await;
    let text = steps_lab.wait_reason("a", "PodSecurityRefused").await;
    assert!(
        text.contains("remove what spec.securityContext adds") && text.contains("runAsNonRoot != true"),
        "{text}"
    );
    assert!(!text.contains("RBAC"), "{text}");
    match &lab.embedded {
        Some(server) => server.faults().clear(),
        None => {
            // A step with the defaults is restricted, and runs there.
            lab.apply(steps_lab.step("b")).await;
            lab.wait_ready(&steps(), "b").await;
            set_policy(Value::Null).await;
        }
    }
    lab.wait_ready(&steps(), "a").await;
}
