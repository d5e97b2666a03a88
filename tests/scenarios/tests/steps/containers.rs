//! Steps in real containers, with a host beside the node.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, find_condition, scenario};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::{
    observability::{ostler, serve_admin},
    steps::{pods, start_pack, steps},
};

/// Image of the shim, which `cargo xtask test` puts on the node.
pub const SHIM_IMAGE: &str = "steps-shim:1";
/// Image of the processes, which it puts there, too.
const SHELL_IMAGE: &str = "busybox:1.37";
/// Finished Steps whose requests would not fit on the node together.
const PRODUCER_COUNT: usize = 20;

/// Timeout until the Steps of a node that does not answer are lost: its lease and the toleration of the pods come before.
const NODE_LOSS_TIMEOUT: Duration = Duration::from_mins(5);

/// A lab on a node, with the pack in a host.
struct NodeLab {
    lab: Lab,
}

impl NodeLab {
    async fn start(lab: Lab) -> Self {
        Self::start_with(lab, json!({})).await
    }

    /// Starts a host with further settings of the pack.
    async fn start_with(lab: Lab, mut config: Value) -> Self {
        config["shimImage"] = SHIM_IMAGE.into();
        config["logInterval"] = "1s".into();
        Self {
            lab: start_pack(lab, config).await,
        }
    }

    /// A Step that runs a shell script.
    fn script(&self, name: &str, script: &str) -> Value {
        json!({ "apiVersion": "steps.ostler.dev/v1alpha1", "kind": "Step",
            "metadata": { "name": name, "namespace": self.lab.namespace },
            "spec": { "image": SHELL_IMAGE, "process": { "path": "sh", "args": ["-c", script] },
                "resources": { "limits": { "memory": "64Mi" } } } })
    }

    async fn step(&self, name: &str) -> Value {
        self.lab.get(&steps(), name).await.unwrap_or_default()
    }

    /// Waits until a Step has ended, and returns it.
    async fn wait_ended(&self, name: &str) -> Value {
        let description = format!("Step {name} has ended");
        self.lab
            .wait_until(&description, async || {
                let phase = &self.step(name).await["status"]["phase"];
                matches!(phase.as_str(), Some("Succeeded" | "Failed" | "Errored"))
            })
            .await;
        self.step(name).await
    }

    /// Waits until a Step has ended well.
    async fn wait_succeeded(&self, name: &str) -> Value {
        let step = self.wait_ended(name).await;
        assert_eq!(step["status"]["phase"], "Succeeded", "{:#}", step["status"]);
        step
    }

    /// The CPU that pods on the node may request together, in thousandths.
    async fn allocatable_cpu(&self) -> u64 {
        let nodes = self.lab.api(&Gvk::new("", "v1", "Node"), "");
        let nodes = nodes.list(&Default::default()).await.expect("nodes");
        let cpu = &nodes.items[0].data["status"]["allocatable"]["cpu"];
        let text = cpu.as_str().expect("a quantity");
        match text.strip_suffix('m') {
            Some(thousandths) => thousandths.parse().expect("a number"),
            None => text.parse::<u64>().expect("a number") * 1000,
        }
    }
}

/// The state of the process's container in a pod; null before its kubelet reports one.
fn process_state(pod: &Value) -> Value {
    let mut statuses = pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten();
    let process = statuses.find(|status| status["name"] == "process");
    process.map(|status| status["state"].clone()).unwrap_or_default()
}

/// The message of Ready.
fn ready_message(step: &Value) -> String {
    find_condition(step, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[scenario(node_only = "the log is the kubelet's")]
async fn log_of_a_running_process_is_in_the_status(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    let script = "echo fetching; echo compiling; while [ ! -e /ostler/home/never ]; do sleep 0.2; done";
    lab.apply(node_lab.script("build", script)).await;
    lab.wait_until("its log is in the status", async || {
        node_lab.step("build").await["status"]["logLine"] == "compiling"
    })
    .await;
    let step = node_lab.step("build").await;
    assert_eq!(step["status"]["phase"], "Running");
    assert_eq!(step["status"]["logTail"], "fetching\ncompiling\n");
    let (_, url) = serve_admin(lab).await;
    let kubeconfig = std::env::var("OSTLER_TEST_NODE_KUBECONFIG").expect("a kubeconfig");
    let query = ["logs", "step/build", "-n", &lab.namespace, "--pods"];
    let printed = ostler(&[&query[..], &["--kubeconfig", &kubeconfig, "--admin", &url]].concat()).await;
    assert!(printed.status.success(), "{printed:?}");
    let text = String::from_utf8_lossy(&printed.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        ["build-1/process fetching", "build-1/process compiling"],
        "{printed:?}"
    );
    lab.delete(&steps(), "build").await;
    lab.wait_gone(&steps(), "build").await;
}

/// As by `kubectl drain`.
#[scenario(node_only = "the eviction, and the end of the process by the kubelet")]
async fn evicted_pod_ends_its_step_or_is_replaced_by_policy(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    for (name, policy) in [("ended", "Fail"), ("again", "Rerun")] {
        let mut step = node_lab.script(name, "sleep 600");
        step["spec"]["onPodLost"] = policy.into();
        lab.apply(step).await;
    }
    for name in ["ended", "again"] {
        lab.wait_until("its process runs", async || {
            node_lab.step(name).await["status"]["phase"] == "Running"
        })
        .await;
        let pod = format!("{name}-1");
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod, "namespace": lab.namespace } });
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", lab.namespace);
        let request = axum::http::Request::post(path)
            .header("content-type", "application/json")
            .body(eviction.to_string().into_bytes());
        let evicted = lab.client.request::<Value>(request.expect("a request")).await;
        evicted.expect("it is evicted");
    }
    let ended = node_lab.wait_ended("ended").await;
    let status = &ended["status"];
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Errored"), &json!("Evicted")),
        "{status:#}"
    );
    lab.wait_until("it runs again", async || {
        let step = node_lab.step("again").await;
        step["status"]["attempt"] == 2 && step["status"]["phase"] == "Running"
    })
    .await;
}

/// Without a release, the second Step would wait for the pod of the first one, and the consumer for those that it holds itself.
#[scenario(node_only = "the scheduler and the resize by the kubelet")]
async fn finished_steps_hold_no_cpu_of_the_node(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    // Two of them do not fit.
    let cpu = format!("{}m", node_lab.allocatable_cpu().await * 6 / 10);
    let names: Vec<String> = (0..PRODUCER_COUNT).map(|i| format!("producer-{i}")).collect();
    for name in &names {
        let mut step = node_lab.script(name, "echo made > /work/out/file");
        step["spec"]["outputs"] = json!([{ "name": "out", "path": "/work/out" }]);
        step["spec"]["resources"]["requests"] = json!({ "cpu": cpu });
        lab.apply(step).await;
    }
    for name in &names {
        node_lab.wait_succeeded(name).await;
    }
    let mut consumer = node_lab.script("consumer", "cat /work/in-0/file /work/in-1/file /work/in-2/file");
    let input = |i: usize| json!({ "name": format!("in-{i}"), "artifact": "out", "fromStep": names[i], "path": format!("/work/in-{i}") });
    consumer["spec"]["inputs"] = (0..3).map(input).collect();
    consumer["spec"]["resources"]["requests"] = json!({ "cpu": cpu });
    lab.apply(consumer).await;
    let consumer = node_lab.wait_succeeded("consumer").await;
    assert_eq!(consumer["status"]["logTail"], "made\nmade\nmade\n");
    for name in &names {
        let pod = lab.get(&pods(), &format!("{name}-1")).await.expect("it stays");
        let of_process = &pod["spec"]["containers"][0];
        assert_eq!(
            (&of_process["name"], &of_process["resources"]["requests"]),
            (&json!("process"), &json!({ "cpu": "0", "memory": "0" })),
            "{name}"
        );
        assert_eq!(pod["status"]["phase"], "Running", "its streamer goes on: {name}");
    }
}

/// Reasons of Steps whose process waits for an administrator, until the start timeout. A kubelet with much to do takes half a minute until
/// it reports that an image cannot be pulled.
const NEVER_STARTED: [&str; 4] = [
    "ImagePullFailed",
    "ConfigMissing",
    "Unschedulable",
    "InputMissing",
];

/// The words of the kubelet, the scheduler and the kernel, as they are.
#[scenario(node_only = "containers that fail")]
async fn failure_of_a_container_is_named_with_its_remedy(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    let edited = |name: &str, script: &str, edit: &dyn Fn(&mut Value)| {
        let mut step = node_lab.script(name, script);
        edit(&mut step["spec"]);
        step
    };
    let unedited = |_: &mut Value| {};
    let rows: Vec<(Value, &str, &str, &str)> = vec![
        (
            edited("exit", "exit 3", &unedited),
            "Failed",
            "ProcessFailed",
            "exit code 3",
        ),
        (
            edited("signal", "kill -SEGV $$", &unedited),
            "Failed",
            "Signaled",
            "signal 11",
        ),
        (
            edited("timeout", "sleep 600", &|spec| spec["timeout"] = "1s".into()),
            "Failed",
            "TimedOut",
            "spec.timeout",
        ),
        (
            edited("memory", "x=aaaaaaaa; while true; do x=$x$x; done", &unedited),
            "Failed",
            "OOMKilled",
            "spec.resources.limits.memory",
        ),
        (
            edited("command", "", &|spec| {
                spec["process"] = json!({ "path": "no-such-command" })
            }),
            "Errored",
            "CommandNotFound",
            "no-such-command",
        ),
        (
            edited("directory", "", &|spec| {
                spec["process"]["dir"] = "/no/such".into()
            }),
            "Errored",
            "DirectoryNotFound",
            "/no/such",
        ),
        (
            edited("user", "", &|spec| {
                spec["process"]["user"] = "65532:65531".into();
                spec["securityContext"] = json!({ "runAsUser": 0, "runAsNonRoot": false });
            }),
            "Errored",
            "UserNotUsable",
            "spec.securityContext.runAsUser to 65532",
        ),
        (
            edited("image", "", &|spec| {
                spec["image"] = "busybox:absent".into();
                spec["imagePullPolicy"] = "Never".into();
            }),
            "Errored",
            "ImagePullFailed",
            "load it on the node",
        ),
        (
            edited("unpulled", "", &|spec| {
                spec["image"] = "127.0.0.1:9/absent:1".into()
            }),
            "Errored",
            "ImagePullFailed",
            "spec.imagePullSecrets",
        ),
        (
            edited("config", "", &|spec| {
                let key = json!({ "name": "absent", "key": "k" });
                spec["process"]["env"] = json!([{ "name": "A", "secretKeyRef": key }]);
            }),
            "Errored",
            "ConfigMissing",
            "spec.process.env",
        ),
        (
            edited("nodes", "", &|spec| {
                spec["resources"]["requests"] = json!({ "cpu": "1000" })
            }),
            "Errored",
            "Unschedulable",
            "spec.resources.requests",
        ),
        (
            edited("input", "", &|spec| {
                spec["inputs"] = json!([{ "name": "in", "fromStep": "absent", "path": "/work/in" }]);
            }),
            "Errored",
            "InputMissing",
            "Step absent does not exist",
        ),
    ];
    for (step, _, reason, _) in &rows {
        let mut step = step.clone();
        if NEVER_STARTED.contains(reason) {
            step["spec"]["startTimeout"] = "45s".into();
        }
        lab.apply(step).await;
    }
    for (step, phase, reason, remedy) in &rows {
        let name = step["metadata"]["name"].as_str().expect("a name");
        let ended = node_lab.wait_ended(name).await;
        let status = &ended["status"];
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!(phase), &json!(reason)),
            "{name}: {status:#}"
        );
        let message = ready_message(&ended);
        assert!(message.contains(remedy), "{name}: {message}");
    }
}

/// The user of the process is in no `/etc/passwd`, so that the runtime names `/` as its home.
#[scenario(node_only = "the home directory that the runtime names")]
async fn process_of_an_unlisted_user_has_a_home(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let script = "id -u && echo $HOME && echo kept > $HOME/file && cat $HOME/file";
    node_lab.lab.apply(node_lab.script("home", script)).await;
    let step = node_lab.wait_succeeded("home").await;
    assert_eq!(step["status"]["logTail"], "65532\n/ostler/home\nkept\n");
}

/// Sizes of the artifacts of a run, in bytes.
const ARTIFACT_BYTES: [u64; 9] = [
    1 << 10,
    16 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    128 << 20,
    256 << 20,
];

/// Ten Steps, each with the artifact of the one before. Random bytes are as large when they are compressed.
#[scenario(node_only = "artifacts from pod to pod")]
async fn run_of_ten_steps_passes_artifacts_of_all_sizes(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let output = json!([{ "name": "out", "path": "/work/out" }]);
    let input = |i: usize| json!([{ "name": "in", "artifact": "out", "fromStep": format!("step-{i}"), "path": "/work/in" }]);
    let count_input = "wc -c < /work/in/file";
    // Consumers first: they wait for their producers.
    for i in (0..=ARTIFACT_BYTES.len()).rev() {
        let script = match ARTIFACT_BYTES.get(i) {
            Some(bytes) if i == 0 => format!("head -c {bytes} /dev/urandom > /work/out/file"),
            Some(bytes) => format!("{count_input} && head -c {bytes} /dev/urandom > /work/out/file"),
            None => count_input.to_owned(),
        };
        let mut step = node_lab.script(&format!("step-{i}"), &script);
        if i < ARTIFACT_BYTES.len() {
            step["spec"]["outputs"] = output.clone();
        }
        if i > 0 {
            step["spec"]["inputs"] = input(i - 1);
        }
        node_lab.lab.apply(step).await;
    }
    for i in 0..=ARTIFACT_BYTES.len() {
        let status = node_lab.wait_succeeded(&format!("step-{i}")).await["status"].clone();
        if let Some(bytes) = ARTIFACT_BYTES.get(i) {
            let packed = status["artifacts"][0]["bytes"].as_u64();
            assert!(packed.is_some_and(|packed| packed > *bytes), "{status:#}");
        }
        if i > 0 {
            assert_eq!(
                status["logTail"],
                format!("{}\n", ARTIFACT_BYTES[i - 1]),
                "step-{i}"
            );
        }
    }
}

/// Neither side has an artifact in memory: process and shim have 64 MiB together in each container.
#[scenario(node_only = "limits of memory")]
async fn artifact_of_a_gibibyte_passes_through_64_mebibytes(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let bytes = 1_u64 << 30;
    let mut producer = node_lab.script(
        "producer",
        &format!("head -c {bytes} /dev/urandom > /work/out/file"),
    );
    producer["spec"]["outputs"] = json!([{ "name": "out", "path": "/work/out" }]);
    let mut consumer = node_lab.script("consumer", "wc -c < /work/in/file");
    consumer["spec"]["inputs"] = json!([{ "name": "out", "fromStep": "producer", "path": "/work/in" }]);
    for step in [producer, consumer] {
        assert_eq!(step["spec"]["resources"]["limits"]["memory"], "64Mi");
        node_lab.lab.apply(step).await;
    }
    node_lab.wait_succeeded("producer").await;
    let consumer = node_lab.wait_succeeded("consumer").await;
    assert_eq!(consumer["status"]["logTail"], format!("{bytes}\n"));
    let pod = node_lab.lab.get(&pods(), "consumer-1").await.expect("it stays");
    let init = pod["status"]["initContainerStatuses"]
        .as_array()
        .expect("statuses");
    let fetch = init
        .iter()
        .find(|status| status["name"] == "fetch")
        .expect("it fetches");
    let time = |field: &str| -> jiff::Timestamp {
        let text = fetch["state"]["terminated"][field].as_str().expect("a time");
        text.parse().expect("RFC 3339")
    };
    let seconds = (time("finishedAt") - time("startedAt")).get_seconds();
    println!("a GiB was fetched, checked and unpacked in about {seconds} s");
}

/// Pairs of a Step and a bare pod that are started one after the other.
const START_COUNT: usize = 20;

/// The time from the request to the first sight of a process that has started, in a Step and in a bare pod of the same image.
#[scenario(node_only = "it measures", campaign = "it measures", alone)]
async fn start_of_a_step_is_measured_beside_that_of_a_pod(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    let started = async |pod: &str| {
        let state = process_state(&lab.get(&pods(), pod).await.unwrap_or_default());
        state.is_object() && state["waiting"].is_null()
    };
    let (mut of_steps, mut of_pods) = (Vec::new(), Vec::new());
    for i in 0..START_COUNT {
        let step = node_lab.script(&format!("step-{i}"), "sleep 1");
        let began = Instant::now();
        lab.apply(step.clone()).await;
        lab.wait_until("the process of the Step has started", async || {
            started(&format!("step-{i}-1")).await
        })
        .await;
        of_steps.push(began.elapsed());
        node_lab.wait_succeeded(&format!("step-{i}")).await;
        let pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("pod-{i}"), "namespace": lab.namespace },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "process", "image": SHELL_IMAGE,
                "command": ["sleep", "1"], "resources": step["spec"]["resources"] }] } });
        let began = Instant::now();
        lab.apply(pod).await;
        lab.wait_until("the pod has started", async || started(&format!("pod-{i}")).await)
            .await;
        of_pods.push(began.elapsed());
        lab.wait_until("the pod has ended", async || {
            let pod = lab.get(&pods(), &format!("pod-{i}")).await.unwrap_or_default();
            pod["status"]["phase"] == "Succeeded"
        })
        .await;
    }
    for (name, times) in [("Step", &mut of_steps), ("pod", &mut of_pods)] {
        times.sort_unstable();
        println!(
            "{name:>4}: p50 {:.2?}, maximum {:.2?}",
            times[START_COUNT / 2],
            times[START_COUNT - 1]
        );
    }
}

/// A pod that waits for a node, and one whose process runs and is asked to end by its kubelet.
#[scenario(node_only = "the end of a pod by its kubelet")]
async fn deleted_pod_ends_its_step_or_is_replaced_by_policy(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    let (waiting, running) = ("Unschedulable", "Running");
    let rows = [
        ("fail-waiting", "Fail", waiting),
        ("fail-running", "Fail", running),
        ("rerun-waiting", "Rerun", waiting),
        ("rerun-running", "Rerun", running),
    ];
    for (name, policy, reason) in &rows {
        let mut step = node_lab.script(name, "sleep 600");
        step["spec"]["onPodLost"] = (*policy).into();
        if *reason == waiting {
            step["spec"]["resources"]["requests"] = json!({ "cpu": "1000" });
        }
        lab.apply(step).await;
    }
    for (name, _, reason) in &rows {
        lab.wait_condition(&steps(), name, "Ready", "False", reason).await;
        lab.delete(&pods(), &format!("{name}-1")).await;
    }
    for (name, policy, reason) in &rows {
        if *policy == "Rerun" {
            lab.wait_until("the next attempt is as far", async || {
                let step = node_lab.step(name).await;
                step["status"]["attempt"] == 2 && find_condition(&step, "Ready")["reason"] == **reason
            })
            .await;
            assert!(lab.get(&pods(), &format!("{name}-1")).await.is_none(), "{name}");
            continue;
        }
        let status = node_lab.wait_ended(name).await["status"].clone();
        // The kubelet reports the end of the process before it removes the pod, and the watch may show both as one.
        let reasons: &[&str] = if *reason == running {
            &["Stopped", "PodDeleted"]
        } else {
            &["PodDeleted"]
        };
        assert!(
            reasons.iter().any(|reason| status["reason"] == **reason),
            "{name}: {status:#}"
        );
        assert_eq!(
            (&status["phase"], &status["attempt"]),
            (&json!("Errored"), &json!(1)),
            "{name}"
        );
    }
    // Clean-up ends processes that run.
    for (name, ..) in &rows {
        lab.delete(&steps(), name).await;
    }
    for (name, ..) in &rows {
        lab.wait_gone(&steps(), name).await;
    }
    assert_eq!(lab.list(&pods()).await, Vec::<Value>::new());
}

/// Nothing of a process passes through the host, and its end is in the status of its pod.
#[scenario(node_only = "processes that go on without the host")]
async fn process_that_ends_without_a_host_is_reported_by_the_next_one(lab: Lab) {
    let mut node_lab = NodeLab::start(lab).await;
    let mut step = node_lab.script("build", "echo made > /work/out/file && echo done");
    step["spec"]["outputs"] = json!([{ "name": "out", "path": "/work/out" }]);
    // It starts when the Secret is there, which is after the host has ended.
    let key = json!({ "name": "gate", "key": "k" });
    step["spec"]["process"]["env"] = json!([{ "name": "GATE", "secretKeyRef": key }]);
    node_lab.lab.apply(step).await;
    node_lab
        .lab
        .wait_condition(&steps(), "build", "Ready", "False", "ConfigMissing")
        .await;
    node_lab.lab.host = None;
    let lab = &node_lab.lab;
    lab.apply(json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "gate", "namespace": lab.namespace }, "stringData": { "k": "v" } }))
        .await;
    lab.wait_until("the process has ended", async || {
        let pod = lab.get(&pods(), "build-1").await.expect("it stays");
        process_state(&pod)["terminated"].is_object()
    })
    .await;
    assert_eq!(node_lab.step("build").await["status"]["phase"], "Pending");
    node_lab.lab.start_host().await;
    let step = node_lab.wait_succeeded("build").await;
    assert_eq!(
        (&step["status"]["logTail"], &step["status"]["attempt"]),
        (&json!("done\n"), &json!(1))
    );
}

/// Hosts end at whatever phase the Steps are in: in a write, between two, while containers start, run and end.
#[scenario(node_only = "processes and artifacts that go on without the host")]
async fn run_of_steps_survives_hosts_that_end_again_and_again(lab: Lab) {
    const TERMS: u64 = 12;
    let mut node_lab = NodeLab::start(lab).await;
    let names: Vec<String> = (0..6).map(|i| format!("step-{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let mut step = node_lab.script(name, "sleep 1; echo made > /work/out/file");
        step["spec"]["outputs"] = json!([{ "name": "out", "path": "/work/out" }]);
        if i > 0 {
            let producer = &names[(i - 1) / 2];
            step["spec"]["inputs"] = json!([{ "name": "out", "fromStep": producer, "path": "/work/in" }]);
        }
        node_lab.lab.apply(step).await;
    }
    for term in 0..TERMS {
        // From less than the start of a host takes to more than a Step does.
        tokio::time::sleep(Duration::from_millis(100 + 170 * term)).await;
        node_lab.lab.host = None;
        node_lab.lab.start_host().await;
    }
    for name in &names {
        let step = node_lab.wait_succeeded(name).await;
        assert_eq!(step["status"]["attempt"], 1, "{name}");
    }
    assert_eq!(node_lab.lab.list(&pods()).await.len(), names.len());
}

/// The kubelet of the node, stopped by a signal until this is dropped.
struct StoppedKubelet {
    kubelet: String,
    /// It stops with the kubelet, since it has to tell its own parent how that is, and does not go on with it.
    parent: String,
}

impl StoppedKubelet {
    fn stop() -> Self {
        let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
        let mut kubelets = processes.filter(|process| {
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
            arguments.next() == Some(b"kubelet")
                && arguments.any(|argument| argument == b"--hostname-override=node")
        });
        let process = kubelets.next().expect("the kubelet runs");
        assert!(kubelets.next().is_none(), "one node");
        let status = std::fs::read_to_string(process.path().join("status")).expect("it runs");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let stopped = Self {
            kubelet: process.file_name().into_string().expect("a number"),
            parent: parent.expect("a parent").trim().to_owned(),
        };
        send_signal("-STOP", &stopped.kubelet);
        stopped
    }
}

impl Drop for StoppedKubelet {
    fn drop(&mut self) {
        send_signal("-CONT", &self.parent);
        send_signal("-CONT", &self.kubelet);
    }
}

fn send_signal(signal: &str, process: &str) {
    let sent = Command::new("kill").args([signal, process]).status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "kill {signal} {process}"
    );
}

/// A node that is Ready and takes no pods, until this is dropped. Where all nodes of a zone are gone, Kubernetes evicts nothing: it
/// takes the network for the cause.
struct ReadyNode(AbortHandle);

impl ReadyNode {
    async fn start(lab: &Lab) -> Self {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "other" },
            "spec": { "unschedulable": true } });
        lab.apply(node).await;
        let nodes = lab.api(&Gvk::new("", "v1", "Node"), "");
        let mut heartbeat = tokio::time::interval(Duration::from_secs(5));
        let task = tokio::spawn(async move {
            loop {
                heartbeat.tick().await;
                let now = jiff::Timestamp::now().to_string();
                let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now });
                let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
                let patched = nodes.patch_status("other", &PatchParams::default(), &patch).await;
                patched.expect("the heartbeat");
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for ReadyNode {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The node does not answer for some minutes, and comes back.
#[scenario(
    node_only = "the node controller, and the taints that evict",
    campaign = "minutes until a node counts as gone",
    alone
)]
async fn node_that_is_gone_ends_its_steps_or_has_them_run_again(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    for name in ["lost", "again"] {
        let mut step = node_lab.script(name, "sleep 600");
        if name == "again" {
            step["spec"]["onPodLost"] = "Rerun".into();
        }
        lab.apply(step).await;
    }
    for name in ["lost", "again"] {
        lab.wait_condition(&steps(), name, "Ready", "False", "Running")
            .await;
    }
    let other = ReadyNode::start(lab).await;
    let stopped = StoppedKubelet::stop();
    // The lease of the node expires after 40 s, and its pods are evicted some time later.
    let began = Instant::now();
    let is_lost = async || {
        let (lost, again) = (node_lab.step("lost").await, node_lab.step("again").await);
        lost["status"]["phase"] == "Errored" && again["status"]["attempt"] == 2
    };
    while !is_lost().await {
        assert!(
            began.elapsed() < NODE_LOSS_TIMEOUT,
            "{:#}",
            node_lab.step("lost").await
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("lost after {:.0?}", began.elapsed());
    assert_eq!(node_lab.step("lost").await["status"]["reason"], "NodeLost");
    // The next pod waits for a node.
    lab.wait_condition(&steps(), "again", "Ready", "False", "Unschedulable")
        .await;
    drop(stopped);
    lab.wait_condition(&steps(), "again", "Ready", "False", "Running")
        .await;
    drop(other);
    let nodes = lab.api(&Gvk::new("", "v1", "Node"), "");
    nodes
        .delete("other", &DeleteParams::default())
        .await
        .expect("deleted");
    for name in ["lost", "again"] {
        lab.delete(&steps(), name).await;
        lab.wait_gone(&steps(), name).await;
    }
    assert!(lab.list(&pods()).await.is_empty());
}

/// The API server refuses the pods, and the conditions say why.
#[scenario(node_only = "admission")]
async fn refusal_by_quota_or_pod_security_is_named_and_retried(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let lab = &node_lab.lab;
    lab.apply(
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": lab.namespace,
        "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } }),
    )
    .await;
    let quota = |pods: &str| {
        json!({ "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "name": "pods", "namespace": lab.namespace }, "spec": { "hard": { "pods": pods, "services": "0" } } })
    };
    lab.apply(quota("0")).await;
    // The API server learns of a quota by a watch of its own, and admits pods until then.
    let services = lab.api(&Gvk::new("", "v1", "Service"), &lab.namespace);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "probe" },
        "spec": { "ports": [{ "port": 80 }] } });
    let service: DynamicObject = serde_json::from_value(service).expect("an object");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    lab.wait_until("the API server enforces the quota", async || {
        let created = services.create(&dry_run, &service).await;
        matches!(created, Err(kube::Error::Api(status)) if status.code == 403)
    })
    .await;
    lab.apply(node_lab.script("queued", "true")).await;
    lab.wait_condition(&steps(), "queued", "Ready", "False", "QuotaExceeded")
        .await;
    lab.apply(quota("10")).await;
    node_lab.wait_succeeded("queued").await;
    let mut privileged = node_lab.script("privileged", "true");
    privileged["spec"]["securityContext"] = json!({ "privileged": true, "allowPrivilegeEscalation": true });
    lab.apply(privileged).await;
    let step = lab
        .wait_condition(&steps(), "privileged", "Ready", "False", "PodSecurityRefused")
        .await;
    let message = ready_message(&step);
    assert!(
        message.contains("pod-security.kubernetes.io/enforce"),
        "{message}"
    );
}

/// Steps that are applied at once.
const LOAD_COUNT: usize = 200;

/// `maxPods` of the Steps that are bounded by it.
const MAX_PODS: usize = 12;

/// More Steps than the node has CPU and places for.
#[scenario(node_only = "it measures", campaign = "it measures", alone)]
async fn two_hundred_steps_pass_on_one_node(lab: Lab) {
    let node_lab = NodeLab::start(lab).await;
    let most = pass_many_steps(&node_lab).await;
    println!("bounded by the node: {most} pods at a time at most");
}

/// More Steps than the pack may have pods for.
#[scenario(node_only = "it measures", campaign = "it measures", alone)]
async fn two_hundred_steps_pass_within_a_limit_of_pods(lab: Lab) {
    let node_lab = NodeLab::start_with(lab, json!({ "maxPods": MAX_PODS })).await;
    let most = pass_many_steps(&node_lab).await;
    println!("bounded by maxPods: {most} pods at a time at most");
    assert_eq!(most, MAX_PODS);
}

/// Applies many Steps at once, and waits until they have succeeded. Returns how many pods whose process had not ended were seen together.
async fn pass_many_steps(node_lab: &NodeLab) -> usize {
    let lab = &node_lab.lab;
    let (began, mut most) = (Instant::now(), 0);
    for i in 0..LOAD_COUNT {
        lab.apply(node_lab.script(&format!("step-{i}"), "true")).await;
    }
    let applied = began.elapsed();
    for i in 0..LOAD_COUNT {
        let pods = lab.list(&pods()).await;
        let has_ended = |pod: &&Value| process_state(pod)["terminated"].is_object();
        most = most.max(pods.len() - pods.iter().filter(has_ended).count());
        node_lab.wait_succeeded(&format!("step-{i}")).await;
    }
    let took = began.elapsed();
    println!(
        "{LOAD_COUNT} Steps: applied in {applied:.1?}, ended after {took:.1?}, {:.0} per minute",
        LOAD_COUNT as f64 / took.as_secs_f64() * 60.0
    );
    most
}
