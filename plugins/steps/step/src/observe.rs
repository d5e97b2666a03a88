//! The state of a Step as its pod's status shows it. Pure: each failure that a person meets is one row of a table in the tests.

use ostler_sdk::{from_rfc3339, from_value, serde_json::Value};
use steps_api::StepPhase;
use steps_protocol::{Artifact, ContainerReport, ErrorReason};

use crate::pod::{FETCH_CONTAINER, INSTALL_CONTAINER, PROCESS_CONTAINER, STREAMER_CONTAINER};

/// Reasons of a waiting container about its image.
const IMAGE_REASONS: [&str; 7] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];

/// Reasons of a pod that a kubelet refused, for what the node lacks by then.
const ADMISSION_REASONS: [&str; 5] = [
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "NodeAffinity",
    "UnexpectedAdmissionError",
];

/// Seconds after its grace period within which a kubelet that answers has ended a deleted pod.
const STOP_SECONDS: u64 = 30;

/// The state of a Step that a pod shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Phase of the Step.
    pub phase: StepPhase,
    /// Reason of the phase.
    pub reason: &'static str,
    /// Message, with the remedy of a failure.
    pub message: String,
    /// True if the pod was lost, and the process is not at fault: another pod may succeed.
    pub is_lost: bool,
    /// The report of the shim.
    pub report: Option<ContainerReport>,
    /// Start of the process, in seconds since the Unix epoch.
    pub start_time: Option<u64>,
}

impl Observation {
    fn new(phase: StepPhase, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            phase,
            reason,
            message: message.into(),
            is_lost: false,
            report: None,
            start_time: None,
        }
    }

    fn lost(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_lost: true,
            ..Self::new(StepPhase::Errored, reason, message)
        }
    }

    /// The artifacts of the process.
    pub fn artifacts(&self) -> &[Artifact] {
        self.report.as_ref().map_or(&[], |report| &report.artifacts)
    }
}

/// A pod that does not exist any more.
pub fn observe_missing() -> Observation {
    let message = "The pod was deleted before the process ended. Create the step again, or set spec.onPodLost to Rerun.";
    Observation::lost("PodDeleted", message)
}

/// Observes a pod at this time, in seconds since the Unix epoch.
pub fn observe(pod: &Value, now: u64) -> Observation {
    let status = &pod["status"];
    let process = find_container(&status["containerStatuses"], PROCESS_CONTAINER);
    // The end of the process counts, whatever became of the pod afterwards.
    let terminated = &process["state"]["terminated"];
    if terminated.is_object() && is_own_end(terminated) {
        let observed = observe_process(terminated);
        let streamer = observe_streamer(find_container(&status["containerStatuses"], STREAMER_CONTAINER));
        return streamer
            .filter(|_| observed.phase == StepPhase::Succeeded)
            .unwrap_or(observed);
    }
    if let Some(lost) = observe_loss(pod) {
        let is_running = process["state"]["running"].is_object();
        let may_end = stop_deadline(pod).is_some_and(|deadline| now < deadline);
        if is_running && may_end && lost.reason != "NodeLost" {
            let message = format!("The process has been asked to end. {}", lost.message);
            let stopping = Observation::new(StepPhase::Running, "Stopping", message);
            return Observation {
                start_time: read_start(&process["state"]["running"]),
                ..stopping
            };
        }
        return lost;
    }
    if terminated.is_object() {
        return observe_process(terminated);
    }
    let (inits, containers) = (
        list_own(&status["initContainerStatuses"]),
        list_own(&status["containerStatuses"]),
    );
    for init in &inits {
        if let Some(failed) = observe_init(&init["state"]["terminated"]) {
            return failed;
        }
    }
    for container in inits.iter().chain(&containers) {
        if let Some(waiting) = observe_waiting(container) {
            return waiting;
        }
    }
    if process["state"]["running"].is_object() {
        return observe_running(status, process);
    }
    observe_pending(status)
}

/// Time until which the process of a deleted pod may still end by itself, in seconds since the Unix epoch: the grace period
/// is part of `deletionTimestamp`.
pub fn stop_deadline(pod: &Value) -> Option<u64> {
    let deleted = pod["metadata"]["deletionTimestamp"]
        .as_str()
        .and_then(from_rfc3339)?;
    Some(deleted + STOP_SECONDS)
}

fn read_start(state: &Value) -> Option<u64> {
    state["startedAt"].as_str().and_then(from_rfc3339)
}

/// Returns whether the streamer of a pod has ended, and with it the artifacts.
pub fn is_streamer_gone(pod: &Value) -> bool {
    let streamer = find_container(&pod["status"]["containerStatuses"], STREAMER_CONTAINER);
    streamer["state"]["terminated"].is_object()
}

/// The containers of the Step. Those that others have injected are not its business: a sidecar that cannot start does not end a
/// process that runs.
fn list_own(statuses: &Value) -> Vec<&Value> {
    const OWN: [&str; 4] = [
        INSTALL_CONTAINER,
        FETCH_CONTAINER,
        PROCESS_CONTAINER,
        STREAMER_CONTAINER,
    ];
    let all = statuses.as_array().into_iter().flatten();
    all.filter(|container| OWN.iter().any(|name| container["name"] == *name))
        .collect()
}

/// Finds a container, or the status of one, by its name; null without it.
pub(crate) fn find_container<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|container| container["name"] == name)
        .unwrap_or(&Value::Null)
}

/// The report in a termination message; none if it is not of the shim.
fn decode_report(text: &str) -> Option<ContainerReport> {
    ContainerReport::decode_by(text, |value| from_value(&value).ok())
}

/// Returns whether a process has ended by itself, and not because its pod was being removed.
fn is_own_end(terminated: &Value) -> bool {
    let report = terminated["message"].as_str().and_then(decode_report);
    report.is_some_and(|report| !report.stopped || report.exit_code == Some(0))
        || terminated["reason"] == "OOMKilled"
}

/// The loss of a pod, by its own reason or the condition `DisruptionTarget`.
fn observe_loss(pod: &Value) -> Option<Observation> {
    let status = &pod["status"];
    let cause = status["message"].as_str().unwrap_or_default();
    let reason = status["reason"].as_str().unwrap_or_default();
    let with_cause = |text: &str| match cause {
        "" => text.to_owned(),
        cause => format!("{text} {cause}"),
    };
    if reason == "Evicted" {
        let message = "The node evicted the pod: set spec.resources.requests to what the process uses.";
        return Some(Observation::lost("Evicted", with_cause(message)));
    }
    if reason == "NodeLost" {
        return Some(lose_node());
    }
    if ADMISSION_REASONS.contains(&reason) {
        let message = "The node refused the pod. Create the step again, or set spec.onPodLost to Rerun.";
        return Some(Observation::lost("AdmissionRefused", with_cause(message)));
    }
    if reason == "Preempting" {
        return Some(preempt());
    }
    let is_deleted = !pod["metadata"]["deletionTimestamp"].is_null();
    let target = find_condition(status, "DisruptionTarget").filter(|condition| condition["status"] == "True");
    match target.and_then(|condition| condition["reason"].as_str()) {
        Some("DeletionByTaintManager" | "DeletionByPodGC") => Some(lose_node()),
        Some("PreemptionByScheduler") => Some(preempt()),
        Some("EvictionByEvictionAPI") => {
            let message = "The pod was evicted, as when its node is drained. Create the step again, or set spec.onPodLost \
                           to Rerun.";
            Some(Observation::lost("Evicted", message))
        }
        Some("TerminationByKubelet") => {
            let message = "The kubelet ended the pod, for the node's resources or its shutdown. Set \
                           spec.resources.requests to what the process uses, or spec.onPodLost to Rerun.";
            Some(Observation::lost("Evicted", message))
        }
        _ if is_deleted => Some(observe_missing()),
        _ => None,
    }
}

fn lose_node() -> Observation {
    let message = "The node does not answer any more. Create the step again, or set spec.onPodLost to Rerun.";
    Observation::lost("NodeLost", message)
}

fn preempt() -> Observation {
    let message =
        "A pod of higher priority took the place. Create the step again, or set spec.onPodLost to Rerun.";
    Observation::lost("Preempted", message)
}

/// The end of the process.
fn observe_process(terminated: &Value) -> Observation {
    let text = terminated["message"].as_str().unwrap_or_default();
    let report = decode_report(text);
    let mut observed = describe_end(terminated, report.as_ref(), text);
    observed.start_time = read_start(terminated);
    observed.report = report;
    observed
}

fn describe_end(terminated: &Value, report: Option<&ContainerReport>, text: &str) -> Observation {
    let is_oom_killed = terminated["reason"] == "OOMKilled" || report.is_some_and(|report| report.oom_killed);
    let exit_code = report.and_then(|report| report.exit_code);
    if is_oom_killed && exit_code != Some(0) {
        let message = "The process used more memory than its limit: raise spec.resources.limits.memory.";
        return Observation::new(StepPhase::Failed, "OOMKilled", message);
    }
    let Some(report) = report else {
        return describe_unreported(terminated, text);
    };
    if report.stopped && exit_code != Some(0) {
        let message = "The container was asked to end before the process did. Create the step again, or set \
                       spec.onPodLost to Rerun.";
        return Observation::lost("Stopped", message);
    }
    if report.timed_out {
        let message = "The process ran longer than spec.timeout.";
        return Observation::new(StepPhase::Failed, "TimedOut", message);
    }
    if let Some(error) = &report.error {
        return Observation::new(StepPhase::Errored, error_reason(error.reason), &error.message);
    }
    match (exit_code, report.signal) {
        (Some(0), _) => Observation::new(
            StepPhase::Succeeded,
            "Succeeded",
            "The process has ended with exit code 0.",
        ),
        (_, Some(signal)) => {
            let message = format!("The process was ended by signal {signal}.");
            Observation::new(StepPhase::Failed, "Signaled", message)
        }
        (Some(code), None) => {
            let message =
                format!("The process has ended with exit code {code}: see status.logTail and the pod's log.");
            Observation::new(StepPhase::Failed, "ProcessFailed", message)
        }
        (None, None) => Observation::new(StepPhase::Errored, "NoReport", "The shim reported no exit code."),
    }
}

/// The failure of the streamer, without which a success has no artifacts. One that was stopped with its pod has not failed.
fn observe_streamer(streamer: &Value) -> Option<Observation> {
    let text = streamer["state"]["terminated"]["message"].as_str()?;
    let error = decode_report(text)?.error?;
    let message = format!(
        "The streamer of the artifacts failed: {} The process must not listen at its port.",
        error.message
    );
    Some(Observation::new(
        StepPhase::Errored,
        error_reason(error.reason),
        message,
    ))
}

/// The end of a container without a report: its runtime could not start the shim, or ended it.
fn describe_unreported(terminated: &Value, text: &str) -> Observation {
    let code = terminated["exitCode"].as_i64().unwrap_or_default();
    if matches!(
        terminated["reason"].as_str(),
        Some("StartError" | "ContainerCannotRun")
    ) {
        let message = format!("The container could not start: check spec.image and its platform. {text}");
        return Observation::new(StepPhase::Errored, "StartFailed", message.trim_end());
    }
    if code == 137 {
        let message = "The container was killed before the shim could report. Create the step again, or set \
                       spec.onPodLost to Rerun.";
        return Observation::lost("Killed", message);
    }
    let message =
        format!("The container ended with exit code {code} and without a report: see the pod's log.");
    Observation::new(StepPhase::Errored, "NoReport", message)
}

fn error_reason(reason: ErrorReason) -> &'static str {
    match reason {
        ErrorReason::CommandNotFound => "CommandNotFound",
        ErrorReason::CommandNotExecutable => "CommandNotExecutable",
        ErrorReason::DirectoryNotFound => "DirectoryNotFound",
        ErrorReason::UserNotUsable => "UserNotUsable",
        ErrorReason::InputMissing => "InputMissing",
        ErrorReason::InputCorrupted => "InputCorrupted",
        ErrorReason::InputNotUnpacked => "InputNotUnpacked",
        ErrorReason::OutputNotPacked => "OutputNotPacked",
        ErrorReason::StreamerFailed => "StreamerFailed",
        ErrorReason::ConfigInvalid => "ShimFailed",
    }
}

/// The failure of an init container.
fn observe_init(terminated: &Value) -> Option<Observation> {
    if terminated["exitCode"].as_i64()? == 0 {
        return None;
    }
    let text = terminated["message"].as_str().unwrap_or_default();
    let error = decode_report(text).and_then(|report| report.error);
    Some(match error {
        Some(error) => Observation::new(StepPhase::Errored, error_reason(error.reason), error.message),
        None => {
            let message = format!(
                "The init container ended with exit code {}: see its log. {text}",
                terminated["exitCode"]
            );
            Observation::new(StepPhase::Errored, "ShimFailed", message.trim_end())
        }
    })
}

/// A container that cannot start as it is. The kubelet tries again, so that a remedy takes effect until the start timeout.
fn observe_waiting(container: &Value) -> Option<Observation> {
    let waiting = &container["state"]["waiting"];
    let reason = waiting["reason"].as_str()?;
    let cause = waiting["message"].as_str().unwrap_or_default();
    let image = container["image"].as_str().unwrap_or_default();
    let pending =
        |reason, message: String| Some(Observation::new(StepPhase::Pending, reason, message.trim_end()));
    if reason == "InvalidImageName" {
        let message =
            format!("The image {image} is no valid name: create the step again with another spec.image.");
        return Some(Observation::new(StepPhase::Errored, "InvalidImageName", message));
    }
    if IMAGE_REASONS.contains(&reason) {
        let remedy = if reason == "ErrImageNeverPull" {
            "load it on the node, or set spec.imagePullPolicy to IfNotPresent"
        } else {
            "check its name and spec.imagePullSecrets"
        };
        return pending(
            "ImagePullFailed",
            format!("The image {image} cannot be pulled: {remedy}. {cause}"),
        );
    }
    match reason {
        "CreateContainerConfigError" if cause.contains("runAsNonRoot") => pending(
            "RootRefused",
            format!("The image runs as root: set spec.securityContext.runAsUser. {cause}"),
        ),
        "CreateContainerConfigError" => pending(
            "ConfigMissing",
            format!("A Secret that spec.process.env names is missing: create it. {cause}"),
        ),
        "CreateContainerError" | "RunContainerError" | "CrashLoopBackOff" => pending(
            "StartFailed",
            format!("The container cannot be created: see the pod's Events. {cause}"),
        ),
        _ => None,
    }
}

fn observe_running(status: &Value, process: &Value) -> Observation {
    let start_time = read_start(&process["state"]["running"]);
    // The node controller sets the condition without a reason, the kubelet always with one.
    let is_unreachable = find_condition(status, "Ready").is_some_and(|ready| {
        ready["status"] == "False" && ready["reason"].as_str().is_none_or(str::is_empty)
    });
    let observed = if is_unreachable {
        let message =
            "The node does not answer: the process may be running, and the pod is lost if that lasts.";
        Observation::new(StepPhase::Running, "NodeNotReady", message)
    } else {
        Observation::new(StepPhase::Running, "Running", "The process is running.")
    };
    Observation {
        start_time,
        ..observed
    }
}

fn observe_pending(status: &Value) -> Observation {
    let scheduled = find_condition(status, "PodScheduled");
    if let Some(refused) = scheduled.filter(|condition| condition["status"] == "False") {
        let cause = refused["message"].as_str().unwrap_or_default();
        let message =
            format!("No node can take the pod: lower spec.resources.requests, or add nodes. {cause}");
        return Observation::new(StepPhase::Pending, "Unschedulable", message.trim_end());
    }
    let fetch = find_container(&status["initContainerStatuses"], FETCH_CONTAINER);
    if fetch["state"]["running"].is_object() {
        return Observation::new(StepPhase::Fetching, "Fetching", "The inputs are being fetched.");
    }
    Observation::new(StepPhase::Pending, "Starting", "The pod is being started.")
}

fn find_condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}
