//! The state of a Step by its pod's status: one row per situation that a person meets.

use ostler_sdk::serde_json::{Value, json};
use steps_api::StepPhase::{self, Errored, Failed, Fetching, Pending, Running, Succeeded};
use steps_step::observe::{is_streamer_gone, observe};

/// A minute after the deletions of these tests.
const NOW: u64 = 1_767_225_660;

/// A pod whose process has ended with this state.
fn ended(terminated: Value) -> Value {
    json!({"status": {"phase": "Failed", "containerStatuses": [
        {"name": "streamer", "state": {"running": {}}},
        {"name": "process", "state": {"terminated": terminated}},
    ]}})
}

/// A pod whose shim has reported this.
fn reported(exit_code: i64, report: Value) -> Value {
    ended(
        json!({"exitCode": exit_code, "reason": "Error", "startedAt": "2026-01-01T00:00:10Z", "message": report.to_string()}),
    )
}

fn waiting(list: &str, reason: &str, message: &str) -> Value {
    json!({"status": {"phase": "Pending", list: [
        {"name": "process", "image": "example.com/a:1", "state": {"waiting": {"reason": reason, "message": message}}},
    ]}})
}

fn init_failed(message: &str) -> Value {
    json!({"status": {"phase": "Failed", "initContainerStatuses": [
        {"name": "fetch", "state": {"terminated": {"exitCode": 126, "reason": "Error", "message": message}}},
    ], "containerStatuses": [
        {"name": "process", "image": "a", "state": {"waiting": {"reason": "PodInitializing"}}},
    ]}})
}

fn disrupted(reason: &str) -> Value {
    json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}],
            "containerStatuses": [{"name": "process", "state": {"running": {}}}]},
    })
}

/// A pod, with what it stands for: phase, reason, whether another pod may succeed, and a word of the message.
type Row = (&'static str, Value, StepPhase, &'static str, bool, &'static str);

fn error(reason: &str) -> Value {
    json!({"error": {"reason": reason, "message": "The remedy."}})
}

fn progress_rows() -> Vec<Row> {
    let running = |ready: Value| {
        json!({"status": {"phase": "Running", "conditions": [ready], "containerStatuses": [
            {"name": "process", "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}},
        ]}})
    };
    let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu."});
    let fetching = json!({"status": {"phase": "Pending",
        "initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}],
        "containerStatuses": [{"name": "process", "state": {"waiting": {"reason": "PodInitializing"}}}]}});
    vec![
        (
            "new",
            json!({"status": {"phase": "Pending"}}),
            Pending,
            "Starting",
            false,
            "",
        ),
        (
            "creating",
            waiting("containerStatuses", "ContainerCreating", ""),
            Pending,
            "Starting",
            false,
            "",
        ),
        ("fetching", fetching, Fetching, "Fetching", false, ""),
        (
            "running",
            running(json!({"type": "Ready", "status": "True"})),
            Running,
            "Running",
            false,
            "",
        ),
        (
            "starting containers",
            running(json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady"})),
            Running,
            "Running",
            false,
            "",
        ),
        (
            "node silent",
            running(json!({"type": "Ready", "status": "False"})),
            Running,
            "NodeNotReady",
            false,
            "node",
        ),
        (
            "unschedulable",
            json!({"status": {"phase": "Pending", "conditions": [unschedulable]}}),
            Pending,
            "Unschedulable",
            false,
            "Insufficient cpu",
        ),
    ]
}

fn start_rows() -> Vec<Row> {
    let config = |message| waiting("containerStatuses", "CreateContainerConfigError", message);
    let image = |reason| waiting("containerStatuses", reason, "not found");
    vec![
        (
            "pull backoff",
            image("ImagePullBackOff"),
            Pending,
            "ImagePullFailed",
            false,
            "imagePullSecrets",
        ),
        (
            "pull error",
            image("ErrImagePull"),
            Pending,
            "ImagePullFailed",
            false,
            "not found",
        ),
        (
            "never pull",
            image("ErrImageNeverPull"),
            Pending,
            "ImagePullFailed",
            false,
            "imagePullPolicy",
        ),
        (
            "shim's image",
            waiting("initContainerStatuses", "ImagePullBackOff", ""),
            Pending,
            "ImagePullFailed",
            false,
            "example.com/a:1",
        ),
        (
            "image name",
            image("InvalidImageName"),
            Errored,
            "InvalidImageName",
            false,
            "example.com/a:1",
        ),
        (
            "missing secret",
            config("secret \"login\" not found"),
            Pending,
            "ConfigMissing",
            false,
            "login",
        ),
        (
            "root image",
            config("container has runAsNonRoot and image will run as root"),
            Pending,
            "RootRefused",
            false,
            "runAsUser",
        ),
        (
            "create error",
            waiting("containerStatuses", "CreateContainerError", "no space"),
            Pending,
            "StartFailed",
            false,
            "no space",
        ),
        (
            "start error",
            ended(json!({"exitCode": 128, "reason": "StartError", "message": "exec format error"})),
            Errored,
            "StartFailed",
            false,
            "exec format error",
        ),
        (
            "missing input",
            init_failed(&error("InputMissing").to_string()),
            Errored,
            "InputMissing",
            false,
            "remedy",
        ),
        (
            "corrupted",
            init_failed(&error("InputCorrupted").to_string()),
            Errored,
            "InputCorrupted",
            false,
            "remedy",
        ),
        (
            "init without report",
            init_failed("panicked"),
            Errored,
            "ShimFailed",
            false,
            "panicked",
        ),
        (
            "command",
            reported(126, error("CommandNotFound")),
            Errored,
            "CommandNotFound",
            false,
            "remedy",
        ),
        (
            "mode",
            reported(126, error("CommandNotExecutable")),
            Errored,
            "CommandNotExecutable",
            false,
            "remedy",
        ),
        (
            "directory",
            reported(126, error("DirectoryNotFound")),
            Errored,
            "DirectoryNotFound",
            false,
            "remedy",
        ),
        (
            "user",
            reported(126, error("UserNotUsable")),
            Errored,
            "UserNotUsable",
            false,
            "remedy",
        ),
    ]
}

fn end_rows() -> Vec<Row> {
    let unreported = |reason: &str, code: i64| ended(json!({"exitCode": code, "reason": reason}));
    let packed = json!({"exitCode": 0, "error": {"reason": "OutputNotPacked", "message": "No space."}});
    vec![
        (
            "success",
            reported(0, json!({"exitCode": 0})),
            Succeeded,
            "Succeeded",
            false,
            "",
        ),
        (
            "failure",
            reported(3, json!({"exitCode": 3})),
            Failed,
            "ProcessFailed",
            false,
            "exit code 3",
        ),
        (
            "signal",
            reported(139, json!({"exitCode": 139, "signal": 11})),
            Failed,
            "Signaled",
            false,
            "signal 11",
        ),
        (
            "timeout",
            reported(143, json!({"exitCode": 143, "signal": 15, "timedOut": true})),
            Failed,
            "TimedOut",
            false,
            "spec.timeout",
        ),
        (
            "pack",
            reported(126, packed),
            Errored,
            "OutputNotPacked",
            false,
            "No space",
        ),
        (
            "oom of the container",
            unreported("OOMKilled", 137),
            Failed,
            "OOMKilled",
            false,
            "limits.memory",
        ),
        (
            "oom of the process",
            reported(137, json!({"exitCode": 137, "signal": 9, "oomKilled": true})),
            Failed,
            "OOMKilled",
            false,
            "limits.memory",
        ),
        // A child was killed, and the process went on without it.
        (
            "oom of a child",
            reported(0, json!({"exitCode": 0, "oomKilled": true})),
            Succeeded,
            "Succeeded",
            false,
            "",
        ),
        (
            "killed",
            unreported("Error", 137),
            Errored,
            "Killed",
            true,
            "onPodLost",
        ),
        (
            "streamer",
            streamer_failed(0),
            Errored,
            "StreamerFailed",
            false,
            "port",
        ),
        (
            "streamer of a failure",
            streamer_failed(3),
            Failed,
            "ProcessFailed",
            false,
            "exit code 3",
        ),
        (
            "no report",
            unreported("Error", 2),
            Errored,
            "NoReport",
            false,
            "exit code 2",
        ),
    ]
}

fn streamer_failed(exit_code: i64) -> Value {
    let mut pod = reported(exit_code, json!({"exitCode": exit_code}));
    let terminated = json!({"exitCode": 126, "message": error("StreamerFailed").to_string()});
    pod["status"]["containerStatuses"][0]["state"] = json!({ "terminated": terminated });
    pod
}

fn loss_rows() -> Vec<Row> {
    let status = |reason: &str| json!({"status": {"phase": "Failed", "reason": reason, "message": "Why."}});
    let mut deleted = json!({"status": {"phase": "Running"}});
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut stopped = reported(143, json!({"exitCode": 143, "signal": 15, "stopped": true}));
    let container_stopped = stopped.clone();
    stopped["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut evicted = reported(1, json!({"exitCode": 1, "stopped": true}));
    evicted["status"]["reason"] = "Evicted".into();
    let mut late = reported(0, json!({"exitCode": 0, "stopped": true}));
    late["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut failed_before = reported(4, json!({"exitCode": 4}));
    failed_before["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    vec![
        ("evicted", status("Evicted"), Errored, "Evicted", true, "requests"),
        ("node lost", status("NodeLost"), Errored, "NodeLost", true, "node"),
        (
            "admission",
            status("OutOfcpu"),
            Errored,
            "AdmissionRefused",
            true,
            "Why.",
        ),
        (
            "preempting",
            status("Preempting"),
            Errored,
            "Preempted",
            true,
            "priority",
        ),
        (
            "taint",
            disrupted("DeletionByTaintManager"),
            Errored,
            "NodeLost",
            true,
            "node",
        ),
        (
            "node removed",
            disrupted("DeletionByPodGC"),
            Errored,
            "NodeLost",
            true,
            "node",
        ),
        (
            "drained",
            disrupted("EvictionByEvictionAPI"),
            Errored,
            "Evicted",
            true,
            "drained",
        ),
        (
            "preempted",
            disrupted("PreemptionByScheduler"),
            Errored,
            "Preempted",
            true,
            "priority",
        ),
        (
            "kubelet",
            disrupted("TerminationByKubelet"),
            Errored,
            "Evicted",
            true,
            "kubelet",
        ),
        ("deleted", deleted, Errored, "PodDeleted", true, "onPodLost"),
        (
            "deleted while running",
            stopped,
            Errored,
            "PodDeleted",
            true,
            "onPodLost",
        ),
        (
            "stopped",
            container_stopped,
            Errored,
            "Stopped",
            true,
            "onPodLost",
        ),
        (
            "evicted while running",
            evicted,
            Errored,
            "Evicted",
            true,
            "requests",
        ),
        // The process was faster than the deletion.
        ("deleted after success", late, Succeeded, "Succeeded", false, ""),
        (
            "deleted after failure",
            failed_before,
            Failed,
            "ProcessFailed",
            false,
            "exit code 4",
        ),
    ]
}

#[test]
fn pod_status_has_its_phase_reason_and_remedy() {
    let rows = [progress_rows(), start_rows(), end_rows(), loss_rows()].concat();
    for (name, pod, phase, reason, is_lost, word) in rows {
        let observed = observe(&pod, NOW);
        assert_eq!(
            (observed.phase, observed.reason, observed.is_lost),
            (phase, reason, is_lost),
            "{name}"
        );
        assert!(observed.message.contains(word), "{name}: {}", observed.message);
    }
}

/// The kubelet may cut a message, and others may write one.
#[test]
fn injected_containers_neither_end_nor_delay_a_step() {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}});
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:10Z"}});
    let failed = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    let pod = json!({"status": {"phase": "Running",
        "initContainerStatuses": [{"name": "istio-init", "state": failed}, {"name": "install", "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [{"name": "istio-proxy", "image": "a", "state": waiting}, {"name": "process", "state": running}]}});
    let observed = observe(&pod, NOW);
    assert_eq!((observed.phase, observed.reason), (Running, "Running"));
}

#[test]
fn malformed_status_is_no_success() {
    for pod in [
        json!({}),
        json!({"status": null}),
        json!({"status": {"containerStatuses": "x"}}),
        json!({"status": {"containerStatuses": [{"name": "process", "state": {"terminated": {}}}]}}),
        reported(0, json!("text")),
        reported(0, json!({})),
        ended(json!({"exitCode": 0, "message": "{\"exitCode\": 0, \"artifa"})),
    ] {
        assert_ne!(observe(&pod, NOW).phase, Succeeded, "{pod}");
    }
}

#[test]
fn start_of_the_process_and_end_of_the_streamer_are_read() {
    let observed = observe(&reported(0, json!({"exitCode": 0})), NOW);
    assert_eq!(observed.start_time, Some(1_767_225_610));
    assert!(!is_streamer_gone(&reported(0, json!({}))));
    let gone = json!({"status": {"containerStatuses": [{"name": "streamer", "state": {"terminated": {"exitCode": 1}}}]}});
    assert!(is_streamer_gone(&gone));
}

/// A process that is asked to end may still succeed; a node that is lost meanwhile does not delay the end for ever.
#[test]
fn process_of_a_deleted_pod_may_end_within_its_grace_period() {
    let mut pod = disrupted("EvictionByEvictionAPI");
    let deletion = NOW - 60;
    for (now, phase, reason) in [
        (deletion, Running, "Stopping"),
        (deletion + 29, Running, "Stopping"),
        (deletion + 30, Errored, "Evicted"),
    ] {
        let observed = observe(&pod, now);
        assert_eq!((observed.phase, observed.reason), (phase, reason), "{now}");
    }
    let lost = observe(&disrupted("DeletionByTaintManager"), deletion);
    assert_eq!((lost.phase, lost.reason), (Errored, "NodeLost"));
    pod["status"]["containerStatuses"] =
        json!([{"name": "process", "state": {"waiting": {"reason": "PodInitializing"}}}]);
    assert_eq!(observe(&pod, deletion).phase, Errored);
}
