//! Artifacts: a Step takes what another one has made, from its pod of the moment.

use kubelet_simulator::{Course, pod_ip, succeed_with};
use ostler_test_harness::{Lab, scenario};
use serde_json::{Value, json};

use crate::steps::{StepsLab, pods, steps};

/// The sources in the annotation of a pod, which the kubelet passes on to the fetcher.
fn sources(pod: &Value) -> Value {
    let text = pod["metadata"]["annotations"]["steps.ostler.dev/inputs"].as_str();
    serde_json::from_str(text.expect("the annotation")).expect("JSON")
}

/// Rules that the examples do not need.
const UNUSED_RULES: &[&str] = &[
    // Users of the secure address, of which there are none.
    "ostler create tokenreviews.authentication.k8s.io",
    // The pack has no Upstream.
    "ostler get upstreams.ostler.dev",
    "ostler patch secrets",
    "ostler patch upstreams.ostler.dev",
    "ostler patch upstreams/status.ostler.dev",
    // `ttlSecondsAfterFinished`, which is a day there.
    "steps-step delete steps.steps.ostler.dev",
    // The log of a process that runs for half a minute: on a node, it is read.
    "steps-step get pods/log",
    // The address of a producer that runs again.
    "steps-step patch pods",
];

/// The examples of `deploy/`. Host and plugin act as their service accounts, and no rule of theirs is without use.
#[scenario(real = "RBAC and impersonation")]
async fn samples_run_with_the_shipped_grants(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    for samples in [
        include_str!("../../../../deploy/examples/steps.yaml"),
        include_str!("../../../../deploy/examples/steps-pipeline.yaml"),
    ] {
        steps_lab
            .lab
            .apply_yaml(&crate::steps::localize(samples, &steps_lab.lab))
            .await;
    }
    for name in ["greet", "print", "source", "lint", "unit", "build", "publish"] {
        steps_lab.lab.wait_ready(&steps(), name).await;
        let status = steps_lab.status(name).await;
        assert_eq!(
            (&status["phase"], &status["exitCode"]),
            (&json!("Succeeded"), &json!(0))
        );
        assert_eq!(
            (&status["node"], &status["logTail"]),
            (&json!("node-1"), &json!("done\n"))
        );
        assert_eq!(status["podState"], "Retained");
    }
    for name in ["print", "greet"] {
        steps_lab.lab.delete(&steps(), name).await;
        steps_lab.lab.wait_gone(&steps(), name).await;
    }
    steps_lab.lab.wait_idle().await;
    steps_lab.lab.assert_exact_rights(UNUSED_RULES);
}

#[scenario(real = "the subresource resize")]
async fn process_that_has_ended_requests_nothing(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    let mut step = steps_lab.producer("build");
    step["spec"]["resources"] =
        json!({ "requests": { "cpu": "2", "memory": "1Gi" }, "limits": { "memory": "1Gi" } });
    lab.apply(step).await;
    lab.wait_ready(&steps(), "build").await;
    let resources = async || {
        let pod = steps_lab.pod("build-1").await.expect("it stays");
        let of = |n: usize| pod["spec"]["containers"][n]["resources"].clone();
        (of(0), of(1))
    };
    lab.wait_until("the requests are released", async || {
        resources().await.0["requests"] == json!({ "cpu": "0", "memory": "0" })
    })
    .await;
    let (process, streamer) = resources().await;
    assert_eq!(process["limits"], json!({ "memory": "1Gi" }));
    assert_eq!(streamer["requests"], json!({ "cpu": "10m", "memory": "16Mi" }));
    lab.wait_idle().await;
    assert_eq!(steps_lab.status("build").await["podState"], "Retained");
}

#[scenario]
async fn artifact_is_fetched_from_the_pod_of_its_producer(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let (lab, kubelet) = (&steps_lab.lab, &steps_lab.kubelet);
    kubelet.direct("build-1", Course::Running);
    kubelet.direct("test-1", Course::Initializing);
    lab.apply(steps_lab.consumer("test", "build")).await;
    steps_lab.wait_reason("test", "InputMissing").await;
    lab.apply(steps_lab.producer("build")).await;
    steps_lab.wait_reason("test", "InputPending").await;
    steps_lab.wait_phase("build", "Running").await;
    assert!(steps_lab.pod("test-1").await.is_none());

    kubelet.direct("build-1", succeed_with(&["binary"]));
    let producer = lab.wait_ready(&steps(), "build").await;
    steps_lab.wait_phase("test", "Fetching").await;
    let build_pod = steps_lab.pod("build-1").await.expect("it stays");
    let artifact = &producer["status"]["artifacts"][0];
    let address = format!("{}:17788", pod_ip(&build_pod));
    assert_eq!(artifact["url"], format!("http://{address}/v1/artifacts/binary"));
    let test_pod = steps_lab.pod("test-1").await.expect("it is created");
    let expected = json!([{ "name": "binary", "artifact": "binary", "step": producer["metadata"]["uid"],
        "address": address, "digest": artifact["digest"], "bytes": 7 }]);
    assert_eq!(sources(&test_pod), expected);

    // The producer stays for its consumer, and goes with its pod afterwards.
    lab.delete(&steps(), "build").await;
    lab.wait_condition(&steps(), "build", "DeletionBlocked", "True", "Held")
        .await;
    let held = steps_lab.pod("build-1").await.expect("it stays");
    assert!(held["metadata"]["deletionTimestamp"].is_null());
    kubelet.direct("test-1", succeed_with(&[]));
    lab.wait_ready(&steps(), "test").await;
    lab.wait_gone(&steps(), "build").await;
    assert!(steps_lab.pod("build-1").await.is_none());
}

#[scenario]
async fn fetcher_follows_a_producer_that_runs_again(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let (lab, kubelet) = (&steps_lab.lab, &steps_lab.kubelet);
    kubelet.direct("test-1", Course::Initializing);
    let mut producer = steps_lab.producer("build");
    producer["spec"]["onPodLost"] = "Rerun".into();
    lab.apply(producer).await;
    lab.apply(steps_lab.consumer("test", "build")).await;
    steps_lab.wait_phase("test", "Fetching").await;
    lab.delete(&pods(), "build-1").await;
    let second = steps_lab.wait_pod("build-2").await;
    let address = format!("{}:17788", pod_ip(&second));
    lab.wait_until("the fetcher has the new address", async || {
        let pod = steps_lab.pod("test-1").await.expect("it exists");
        sources(&pod)[0]["address"] == address
    })
    .await;
    kubelet.direct("test-1", succeed_with(&[]));
    lab.wait_ready(&steps(), "test").await;
    assert_eq!(steps_lab.status("build").await["attempt"], 2);
    assert_eq!(steps_lab.status("test").await["attempt"], 1);
}

#[scenario]
async fn missing_key_is_named_until_it_is_there(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    let secrets = ostler::testing::key::Gvk::new("", "v1", "Secret");
    lab.delete(&secrets, "steps-artifact-key").await;
    lab.apply(steps_lab.producer("build")).await;
    let message = steps_lab.wait_reason("build", "ArtifactKeyMissing").await;
    assert!(
        message.contains("kubectl create secret generic steps-artifact-key"),
        "{message}"
    );
    assert!(steps_lab.pod("build-1").await.is_none());
    lab.apply(json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "steps-artifact-key", "namespace": lab.namespace },
        "stringData": { "key": "another key of thirty-two bytes.." } }))
        .await;
    lab.wait_ready(&steps(), "build").await;
}
