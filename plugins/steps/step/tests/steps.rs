//! The life cycle of Steps against the SDK's mock.

use ostler_sdk::{
    Error, Failure, Next, OWNER_UID_LABEL, ObjectRef, Outcome, Resolution, gvk,
    mock::MockHost,
    serde_json::{Value, from_slice, json},
};
use steps_step::Steps;

/// Seconds since the Unix epoch at which the tests begin.
const START_TIME: u64 = 1_767_225_600;

fn host() -> MockHost {
    let host = MockHost::new();
    host.set_config(json!({"shimImage": "shim:1"}));
    host.set_now(START_TIME * 1000);
    host.secret("steps-artifact-key", "key", "digest");
    host
}

fn step(name: &str) -> Value {
    json!({
        "apiVersion": "steps.ostler.dev/v1alpha1", "kind": "Step",
        "metadata": {"name": name, "namespace": "ci", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"image": "busybox", "process": {"path": "true"}},
    })
}

fn producer() -> Value {
    let mut step = step("build");
    step["spec"]["outputs"] = json!([{"name": "binary", "path": "/work/out"}]);
    step
}

fn consumer() -> Value {
    let mut step = step("test");
    step["spec"]["inputs"] = json!([{"name": "binary", "fromStep": "build", "path": "/work/in"}]);
    step
}

/// A producer that has succeeded, with its artifact at this address.
fn succeeded_producer(address: Option<&str>) -> Value {
    let mut step = producer();
    let mut artifact = json!({"name": "binary", "digest": "sha256:a", "bytes": 7});
    if let Some(address) = address {
        artifact["url"] = format!("http://{address}/v1/artifacts/binary").into();
    }
    step["status"] = json!({"phase": "Succeeded", "attempt": 1, "pod": "build-1", "podUID": "pod-1",
        "podState": "Retained", "finishTime": "2026-01-01T00:00:00Z", "artifacts": [artifact]});
    step
}

fn pod(name: &str) -> ObjectRef {
    gvk("", "v1", "Pod").named("ci", name)
}

fn step_reference(name: &str) -> ObjectRef {
    gvk("steps.ostler.dev", "v1alpha1", "Step").named("ci", name)
}

/// Sets the status of a pod, as the kubelet does.
fn set_status(host: &MockHost, name: &str, status: Value) {
    let mut object = host.object(&pod(name)).expect("is created");
    object["spec"]["nodeName"] = "node-1".into();
    object["status"] = status;
    host.put(object);
}

fn running() -> Value {
    json!({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [
        {"name": "process", "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}},
    ]})
}

fn ended(report: &Value) -> Value {
    let terminated = json!({"exitCode": report["exitCode"], "reason": "Completed",
        "startedAt": "2026-01-01T00:00:05Z", "message": report.to_string()});
    json!({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [
        {"name": "process", "state": {"terminated": terminated}},
        {"name": "streamer", "state": {"running": {}}},
    ]})
}

fn success() -> Value {
    json!({"exitCode": 0, "startTime": START_TIME + 5, "endTime": START_TIME + 9, "log": "done\n",
        "artifacts": [{"name": "binary", "digest": "sha256:a", "bytes": 7}]})
}

fn reconcile(host: &MockHost, step: &mut Value) -> Result<Outcome, Failure> {
    let result = host.reconcile(&Steps, step);
    store_status(step, &result);
    result
}

fn cleanup(host: &MockHost, step: &mut Value) -> Result<Outcome, Failure> {
    let result = host.cleanup(&Steps, step);
    store_status(step, &result);
    result
}

fn store_status(step: &mut Value, result: &Result<Outcome, Failure>) {
    let status = match result {
        Ok(outcome) => &outcome.status,
        Err(failure) => &failure.status,
    };
    if let Some(status) = status {
        step["status"] = from_slice(status).expect("JSON");
    }
}

/// The reason of Ready after a reconcile.
fn reason(result: &Result<Outcome, Failure>) -> String {
    match result {
        Ok(outcome) => outcome.conditions[0].reason.clone(),
        Err(failure) => failure.reason.clone(),
    }
}

/// The reason of Stalled after a reconcile, if it is set.
fn stalled(result: &Result<Outcome, Failure>) -> Option<String> {
    let conditions = &result.as_ref().expect("an outcome").conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "Stalled");
    found.map(|condition| condition.reason.clone())
}

#[test]
fn step_is_created_runs_ends_and_is_destroyed() {
    let (host, mut step) = (host(), producer());
    let starting = reconcile(&host, &mut step);
    assert_eq!(reason(&starting), "Starting");
    // The start timeout, without a change in between.
    assert_eq!(
        starting.expect("an outcome").next,
        Next::At((START_TIME + 600) * 1000)
    );
    let created = host.object(&pod("build-1")).expect("is created");
    assert_eq!(host.writes(), ["create Pod build-1 owned"]);
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["podState"]),
        (&json!("Pending"), &json!("Created"))
    );
    set_status(&host, "build-1", running());
    let result = reconcile(&host, &mut step);
    assert_eq!(reason(&result), "Running");
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["podState"]),
        (&json!("Running"), &json!("Running"))
    );
    assert_eq!(step["status"]["node"], "node-1");
    host.set_now((START_TIME + 10) * 1000);
    set_status(&host, "build-1", ended(&success()));
    let ended = reconcile(&host, &mut step);
    assert_eq!((reason(&ended), stalled(&ended)), ("Succeeded".into(), None));
    let expected = json!({
        "phase": "Succeeded", "pod": "build-1", "podUID": created["metadata"]["uid"], "podState": "Retained", "node": "node-1",
        "attempt": 1, "exitCode": 0, "podTime": "2026-01-01T00:00:00Z", "startTime": "2026-01-01T00:00:05Z",
        "endTime": "2026-01-01T00:00:09Z", "finishTime": "2026-01-01T00:00:10Z", "reason": "Succeeded",
        "message": "The process has ended with exit code 0.", "logTail": "done\n", "logLine": "done",
        "artifacts": [{"name": "binary", "url": "http://10.0.0.7:17788/v1/artifacts/binary", "digest": "sha256:a", "bytes": 7}],
    });
    assert_eq!(step["status"], expected);
    // The pod with the artifacts stays for an hour.
    let kept = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(kept.next, Next::At((START_TIME + 10 + 3600) * 1000));
    assert!(host.object(&pod("build-1")).is_some());
    host.set_now((START_TIME + 10 + 3600) * 1000);
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(
        host.writes(),
        [
            "create Pod build-1 owned",
            "patch Pod/resize build-1",
            "delete Pod build-1"
        ]
    );
    assert_eq!(step["status"]["podState"], "Gone");
    assert_eq!(step["status"]["artifacts"][0].get("url"), None);
    let settled = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(
        (settled.next, step["status"]["phase"].as_str()),
        (Next::AwaitChange, Some("Succeeded"))
    );
}

#[test]
fn retained_step_releases_its_requests_once_and_keeps_its_status() {
    let (host, mut step) = (host(), producer());
    step["spec"]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}});
    reconcile(&host, &mut step).expect("an outcome");
    // The API server makes a limit a request, too.
    let mut created = host.object(&pod("build-1")).expect("is created");
    created["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Gi".into();
    host.put(created);
    set_status(&host, "build-1", running());
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "build-1", ended(&success()));
    reconcile(&host, &mut step).expect("an outcome");
    let before = step["status"].clone();
    host.forget();
    host.fail("kubernetes.patch-subresource", Error::Unavailable("down".into()));
    let result = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(result.next, Next::At((START_TIME + 10) * 1000));
    host.fail("kubernetes.patch-subresource", None);
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(host.writes(), ["patch Pod/resize build-1"]);
    let released = host.object(&pod("build-1")).expect("stays");
    let resources = |n: usize| released["spec"]["containers"][n]["resources"].clone();
    assert_eq!(
        resources(0),
        json!({"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "1Gi"}})
    );
    assert_eq!(resources(1)["requests"]["cpu"], "10m", "the streamer's stay");
    host.forget();
    for _ in 0..3 {
        reconcile(&host, &mut step).expect("an outcome");
    }
    assert_eq!(
        (step["status"].clone(), host.writes(), host.events()),
        (before, vec![], vec![])
    );
}

#[test]
fn failed_step_is_stalled_though_its_pod_is_destroyed_later() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(
        &host,
        "unit-1",
        ended(&json!({"exitCode": 3, "log": "assertion failed"})),
    );
    let failed = reconcile(&host, &mut step);
    assert_eq!(
        (reason(&failed), stalled(&failed)),
        ("ProcessFailed".into(), Some("ProcessFailed".into()))
    );
    let retained = reconcile(&host, &mut step);
    assert_eq!(stalled(&retained).as_deref(), Some("ProcessFailed"));
    assert_eq!(
        retained.expect("an outcome").next,
        Next::At((START_TIME + 3600) * 1000)
    );
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["exitCode"]),
        (&json!("Failed"), &json!(3))
    );
    assert_eq!(step["status"]["logTail"], "assertion failed");
    host.set_now((START_TIME + 3600) * 1000);
    let destroyed = reconcile(&host, &mut step);
    assert_eq!(stalled(&destroyed).as_deref(), Some("ProcessFailed"));
    assert_eq!(destroyed.expect("an outcome").next, Next::AwaitChange);
    assert_eq!(step["status"]["podState"], "Gone");
}

#[test]
fn log_of_a_process_that_runs_is_read_at_intervals() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", running());
    // A short process costs no request.
    let started = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(started.next, Next::At((START_TIME + 5 + 30) * 1000));
    assert_eq!(step["status"].get("logTail"), None);
    host.set_now((START_TIME + 40) * 1000);
    host.set_log(&pod("unit-1"), "process", "compiling\nlinking\n");
    let read = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(read.next, Next::At((START_TIME + 70) * 1000));
    assert_eq!(step["status"]["logTail"], "compiling\nlinking\n");
    assert_eq!(step["status"]["logLine"], "linking");
    // One that cannot be read stays as it was, and is read again.
    host.set_now((START_TIME + 70) * 1000);
    host.fail(
        "kubernetes.read-log",
        Error::Unavailable("the node is gone".into()),
    );
    let unread = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(unread.next, Next::At((START_TIME + 100) * 1000));
    assert_eq!(step["status"]["logLine"], "linking");
    // A node that does not answer is not asked.
    let mut silent = running();
    silent["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    set_status(&host, "unit-1", silent);
    host.set_log(&pod("unit-1"), "process", "more\n");
    host.fail("kubernetes.read-log", None);
    let unasked = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(unasked.next, Next::AwaitChange);
    assert_eq!(step["status"]["logLine"], "linking");
    set_status(&host, "unit-1", running());
    // Without the permission there is no use in it.
    host.fail("kubernetes.read-log", Error::Denied("no grant".into()));
    let denied = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(denied.next, Next::AwaitChange);
    host.set_config(json!({"shimImage": "shim:1", "logInterval": "0s"}));
    let off = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(off.next, Next::AwaitChange);
}

#[test]
fn pod_beyond_the_limit_waits_until_another_process_has_ended() {
    let host = host();
    host.set_config(json!({"shimImage": "shim:1", "maxPods": 1}));
    let (mut first, mut second) = (producer(), step("unit"));
    assert_eq!(reason(&reconcile(&host, &mut first)), "Starting");
    host.set_now((START_TIME + 3600) * 1000);
    let waiting = reconcile(&host, &mut second).expect("an outcome");
    assert_eq!(waiting.next, Next::AwaitChange, "the host wakes it");
    assert_eq!(
        waiting.conditions[0].message,
        "Waiting for one of the pods that Steps may have at a time (maxPods: 1)."
    );
    set_status(&host, "build-1", running());
    assert_eq!(reason(&reconcile(&host, &mut first)), "Running");
    assert_eq!(host.permits("pods"), 1);
    // The pod stays for its artifacts, and takes the place of no other.
    set_status(&host, "build-1", ended(&success()));
    assert_eq!(reason(&reconcile(&host, &mut first)), "Succeeded");
    assert_eq!(host.permits("pods"), 0);
    // The hour that it has waited is not of its `startTimeout` of ten minutes.
    let created = reconcile(&host, &mut second).expect("an outcome");
    assert_eq!(created.next, Next::At((START_TIME + 3600 + 600) * 1000));
    assert_eq!(second["status"]["permitTime"], "2026-01-01T01:00:00Z");
    assert_eq!(host.permits("pods"), 1);
}

#[test]
fn pod_that_a_quota_refuses_keeps_no_permit_and_its_time_goes_on() {
    let (host, mut step) = (host(), step("unit"));
    host.set_config(json!({"shimImage": "shim:1", "maxPods": 1}));
    let refused = "pods \"unit-1\" is forbidden: exceeded quota: compute";
    for seconds in [0, 300] {
        host.set_now((START_TIME + seconds) * 1000);
        host.fail("kubernetes.create", Error::Denied(refused.into()));
        assert_eq!(reason(&reconcile(&host, &mut step)), "QuotaExceeded");
        assert_eq!(step["status"]["permitTime"], "2026-01-01T00:00:00Z");
        assert_eq!(host.permits("pods"), 0);
    }
    host.set_now((START_TIME + 600) * 1000);
    assert_eq!(reason(&reconcile(&host, &mut step)), "QuotaExceeded");
    assert_eq!(step["status"]["phase"], "Errored");
}

#[test]
fn pod_of_a_reconcile_whose_end_was_lost_is_followed() {
    let (host, mut step) = (host(), step("unit"));
    // The host stops right after the creation: no status is written.
    host.reconcile(&Steps, &step).expect("an outcome");
    set_status(&host, "unit-1", running());
    assert_eq!(reason(&reconcile(&host, &mut step)), "Running");
    assert_eq!(host.writes(), ["create Pod unit-1 owned"]);
}

#[test]
fn pod_of_another_owner_is_left_alone() {
    for (labels, expected) in [
        (json!({}), "PodExists"),
        (json!({OWNER_UID_LABEL: "another"}), "NotClaimed"),
    ] {
        let (host, mut step) = (host(), step("unit"));
        let metadata = json!({"name": "unit-1", "namespace": "ci", "uid": "x", "labels": labels});
        host.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}));
        assert_eq!(reason(&reconcile(&host, &mut step)), expected);
        cleanup(&host, &mut step).expect("is released");
        assert_eq!(host.writes(), Vec::<String>::new());
    }
}

/// Each reconcile reads its own pod, however many there are.
#[test]
fn pods_of_other_steps_are_not_read() {
    let (host, mut step) = (host(), step("unit"));
    for other in 0..100 {
        let mut other = self::step(&format!("other-{other}"));
        reconcile(&host, &mut other).expect("an outcome");
    }
    reconcile(&host, &mut step).expect("an outcome");
    host.forget();
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(host.listed_objects(), 1);
}

#[test]
fn consumer_waits_for_its_producer_and_holds_it_until_it_has_ended() {
    let (first, mut step) = (host(), consumer());
    assert_eq!(reason(&reconcile(&first, &mut step)), "InputMissing");
    first.put(producer());
    assert_eq!(reason(&reconcile(&first, &mut step)), "InputPending");
    assert_eq!(
        (first.writes(), first.held()),
        (vec![], vec!["Step ci/build".to_owned()])
    );
    first.put(succeeded_producer(Some("10.0.0.7:17788")));
    assert_eq!(reason(&reconcile(&first, &mut step)), "Starting");
    let created = first.object(&pod("test-1")).expect("is created");
    let sources = created["metadata"]["annotations"]["steps.ostler.dev/inputs"]
        .as_str()
        .expect("sources");
    let sources: Value = from_slice(sources.as_bytes()).expect("JSON");
    let expected = json!([{"name": "binary", "artifact": "binary", "step": "uid-build", "address": "10.0.0.7:17788",
        "digest": "sha256:a", "bytes": 7}]);
    assert_eq!(sources, expected);
    for (status, is_held) in [(running(), true), (ended(&json!({"exitCode": 0})), false)] {
        set_status(&first, "test-1", status);
        reconcile(&first, &mut step).expect("an outcome");
        assert_eq!(!first.held().is_empty(), is_held, "{}", step["status"]);
    }
    assert_eq!(step["status"]["phase"], "Succeeded");
}

/// The producer is released at its deletion otherwise, and its pod destroyed while the consumer fetches from it.
#[test]
fn producer_that_is_deleted_stays_held_by_the_consumer_it_has() {
    let mut deleted = succeeded_producer(Some("10.0.0.7:17788"));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for status in [None, Some(running())] {
        let (host, mut step) = (host(), consumer());
        host.put(succeeded_producer(Some("10.0.0.7:17788")));
        assert_eq!(reason(&reconcile(&host, &mut step)), "Starting");
        host.put(deleted.clone());
        let expected = if status.is_some() { "Running" } else { "Starting" };
        if let Some(status) = status {
            set_status(&host, "test-1", status);
        }
        assert_eq!(reason(&reconcile(&host, &mut step)), expected);
        assert_eq!(host.held(), ["Step ci/build"]);
    }
    // Another one comes too late.
    let (host, mut step) = (host(), consumer());
    host.put(deleted);
    assert_eq!(reason(&reconcile(&host, &mut step)), "InputMissing");
    assert_eq!((host.held(), host.writes()), (vec![], vec![]));
}

#[test]
fn producer_keeps_its_pod_while_a_consumer_needs_it() {
    let (host, mut step) = (host(), producer());
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "build-1", ended(&success()));
    reconcile(&host, &mut step).expect("an outcome");
    host.add_holder(&step_reference("build"), step_reference("test"));
    host.set_now((START_TIME + 86_400) * 1000);
    reconcile(&host, &mut step).expect("an outcome");
    assert!(host.object(&pod("build-1")).is_some());
    assert_eq!(step["status"]["podState"], "Retained");
    assert!(step["status"]["artifacts"][0]["url"].is_string());
}

#[test]
fn fetcher_follows_the_producers_new_pod() {
    let (host, mut step) = (host(), consumer());
    host.put(succeeded_producer(Some("10.0.0.7:17788")));
    reconcile(&host, &mut step).expect("an outcome");
    let fetching =
        json!({"phase": "Pending", "initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}]});
    set_status(&host, "test-1", fetching);
    host.forget();
    assert_eq!(reason(&reconcile(&host, &mut step)), "Fetching");
    assert_eq!(host.writes(), Vec::<String>::new());
    host.put(succeeded_producer(Some("10.0.0.9:17788")));
    assert_eq!(reason(&reconcile(&host, &mut step)), "Fetching");
    assert_eq!(host.writes(), ["patch Pod test-1"]);
    let patched = host.object(&pod("test-1")).expect("is there");
    let sources = patched["metadata"]["annotations"]["steps.ostler.dev/inputs"]
        .as_str()
        .expect("sources");
    assert!(sources.contains("10.0.0.9:17788"), "{sources}");
}

#[test]
fn input_that_will_never_come_ends_the_step() {
    let mut failed = producer();
    failed["status"] = json!({"phase": "Failed"});
    let mut without = succeeded_producer(Some("10.0.0.7:17788"));
    without["status"]["artifacts"] = json!([]);
    let mut other = succeeded_producer(Some("10.0.0.7:17788"));
    other["spec"]["outputs"] = json!([{"name": "docs", "path": "/work/out"}]);
    for (producer, expected) in [
        (failed, "InputFailed"),
        (without, "InputMissing"),
        (other, "InputMissing"),
        (succeeded_producer(None), "InputLost"),
    ] {
        let (host, mut step) = (host(), consumer());
        host.put(producer);
        assert_eq!(reason(&reconcile(&host, &mut step)), expected);
        assert_eq!(step["status"]["phase"], "Errored");
        // An ended step needs no producer.
        assert_eq!((host.writes(), host.held()), (vec![], vec![]), "{expected}");
        assert_eq!(stalled(&reconcile(&host, &mut step)).as_deref(), Some(expected));
    }
}

#[test]
fn lost_pod_fails_the_step_or_is_replaced_by_policy() {
    let lost = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."});
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", lost.clone());
    assert_eq!(reason(&reconcile(&host, &mut step)), "Evicted");
    assert_eq!(step["status"]["phase"], "Errored");

    let (host, mut step) = (self::host(), self::step("unit"));
    step["spec"]["onPodLost"] = "Rerun".into();
    for attempt in 1..=4 {
        reconcile(&host, &mut step).expect("an outcome");
        let name = format!("unit-{attempt}");
        assert_eq!(step["status"]["pod"], *name);
        set_status(&host, &name, lost.clone());
        let expected = if attempt < 4 { "Rerun" } else { "Evicted" };
        assert_eq!(reason(&reconcile(&host, &mut step)), expected, "{attempt}");
    }
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["attempt"]),
        (&json!("Errored"), &json!(4))
    );
    // Nothing runs on of the pods that were replaced.
    for (attempt, is_left) in [(1, false), (2, false), (3, false), (4, true)] {
        let name = format!("unit-{attempt}");
        assert_eq!(host.object(&pod(&name)).is_some(), is_left, "{name}");
    }
}

#[test]
fn process_that_failed_is_not_run_again() {
    let (host, mut step) = (host(), step("unit"));
    step["spec"]["onPodLost"] = "Rerun".into();
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", ended(&json!({"exitCode": 1})));
    assert_eq!(reason(&reconcile(&host, &mut step)), "ProcessFailed");
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["attempt"]),
        (&json!("Failed"), &json!(1))
    );
}

#[test]
fn producer_whose_artifacts_are_lost_runs_again_for_its_consumers_alone() {
    for (policy, is_held, expected) in [("Rerun", true, 2), ("Rerun", false, 1), ("Fail", true, 1)] {
        let (host, mut step) = (host(), producer());
        step["spec"]["onPodLost"] = policy.into();
        reconcile(&host, &mut step).expect("an outcome");
        set_status(&host, "build-1", ended(&success()));
        reconcile(&host, &mut step).expect("an outcome");
        if is_held {
            host.add_holder(&step_reference("build"), step_reference("test"));
        }
        host.remove(&pod("build-1"));
        reconcile(&host, &mut step).expect("an outcome");
        assert_eq!(step["status"]["attempt"], expected, "{policy} {is_held}");
        let phase = if expected == 2 { "Pending" } else { "Succeeded" };
        assert_eq!(step["status"]["phase"], phase, "{policy} {is_held}");
        // The consumer does not fetch from an address that belongs to another pod by now.
        let artifacts = step["status"]["artifacts"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        assert!(artifacts.iter().all(|artifact| artifact.get("url").is_none()));
    }
}

/// A producer that another Step holds, and whose streamer has ended, and with it the artifacts.
fn producer_without_its_streamer() -> (MockHost, Value) {
    let (host, mut step) = (host(), producer());
    step["spec"]["onPodLost"] = "Rerun".into();
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "build-1", ended(&success()));
    reconcile(&host, &mut step).expect("an outcome");
    host.add_holder(&step_reference("build"), step_reference("test"));
    let mut status = ended(&success());
    status["containerStatuses"][1]["state"] = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    set_status(&host, "build-1", status);
    (host, step)
}

#[test]
fn producer_whose_streamer_has_ended_runs_again_in_another_pod() {
    let (host, mut step) = producer_without_its_streamer();
    reconcile(&host, &mut step).expect("an outcome");
    assert!(host.object(&pod("build-1")).is_none());
    assert_eq!(step["status"]["attempt"], 2);
    reconcile(&host, &mut step).expect("an outcome");
    assert!(host.object(&pod("build-2")).is_some());
}

#[test]
fn producer_on_a_node_that_is_gone_runs_again_after_two_minutes() {
    let (host, mut step) = producer_without_its_streamer();
    // Nobody confirms the end of the pod.
    let mut live = host.object(&pod("build-1")).expect("a pod");
    live["metadata"]["deletionTimestamp"] = ostler_sdk::rfc3339(START_TIME).into();
    host.put(live);
    let result = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(step["status"]["attempt"], 1);
    assert_eq!(result.next, Next::At((START_TIME + 120) * 1000));
    host.set_now((START_TIME + 120) * 1000);
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(step["status"]["attempt"], 2);
    reconcile(&host, &mut step).expect("an outcome");
    assert!(host.object(&pod("build-2")).is_some());
}

/// The status has the UID from the response to the creation: whether the process has run is not known.
#[test]
fn pod_deleted_before_it_was_seen_ends_the_step_instead_of_running_it_twice() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    assert!(step["status"]["podUID"].is_string());
    host.remove(&pod("unit-1"));
    assert_eq!(reason(&reconcile(&host, &mut step)), "PodDeleted");
    assert_eq!(host.writes(), ["create Pod unit-1 owned"]);
}

/// As after a change of the leader, while the new one's watch is behind.
#[test]
fn pod_that_the_cache_does_not_have_yet_is_followed() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", running());
    host.hide_from_cache(&pod("unit-1"));
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(step["status"]["phase"], "Running");
    // Nor is a pod that still runs left to the garbage collection.
    host.cleanup(&Steps, &step).expect("the pod is deleted");
    assert!(host.object(&pod("unit-1")).is_none());
}

#[test]
fn deleted_pod_ends_the_step_instead_of_running_it_twice() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", running());
    reconcile(&host, &mut step).expect("an outcome");
    host.remove(&pod("unit-1"));
    assert_eq!(reason(&reconcile(&host, &mut step)), "PodDeleted");
    assert_eq!(
        (&step["status"]["phase"], &step["status"]["podState"]),
        (&json!("Errored"), &json!("Gone"))
    );
    assert_eq!(host.writes(), ["create Pod unit-1 owned"]);
}

#[test]
fn pod_that_does_not_start_ends_the_step_with_its_cause() {
    let (host, mut step) = (host(), step("unit"));
    step["spec"]["startTimeout"] = "2m".into();
    reconcile(&host, &mut step).expect("an outcome");
    let waiting = json!({"reason": "ImagePullBackOff", "message": "not found"});
    let status = json!({"phase": "Pending", "containerStatuses": [
        {"name": "process", "image": "busybox", "state": {"waiting": waiting}},
    ]});
    set_status(&host, "unit-1", status);
    let result = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(
        (&*result.conditions[0].reason, &result.next),
        ("ImagePullFailed", &Next::At((START_TIME + 120) * 1000))
    );
    assert_eq!(step["status"]["phase"], "Pending");
    host.set_now((START_TIME + 120) * 1000);
    assert_eq!(reason(&reconcile(&host, &mut step)), "ImagePullFailed");
    assert_eq!(step["status"]["phase"], "Errored");
    let message = step["status"]["message"].as_str().expect("a message");
    assert!(
        message.starts_with("The process did not start within 2m: The image busybox cannot be pulled"),
        "{message}"
    );
    // A pod that hangs takes no place on its node for the time of retain: nothing of it is of use.
    assert!(stalled(&reconcile(&host, &mut step)).is_some());
    assert_eq!(host.writes(), ["create Pod unit-1 owned", "delete Pod unit-1"]);
}

#[test]
fn inputs_that_are_not_fetched_in_time_end_the_step() {
    let (host, mut step) = (host(), consumer());
    host.put(succeeded_producer(Some("10.0.0.7:17788")));
    reconcile(&host, &mut step).expect("an outcome");
    let fetch = json!([{"name": "fetch", "state": {"running": {}}}]);
    set_status(
        &host,
        "test-1",
        json!({"phase": "Pending", "initContainerStatuses": fetch}),
    );
    host.set_now((START_TIME + 600) * 1000);
    assert_eq!(reason(&reconcile(&host, &mut step)), "StartTimeout");
    assert_eq!(step["status"]["phase"], "Errored");
}

/// Nothing else bounds the wait for an administrator, or for a producer that nobody creates.
#[test]
fn step_without_a_pod_ends_at_its_start_timeout() {
    let without_key = host();
    without_key.remove_secret("steps-artifact-key", "key");
    let over_quota = host();
    let text = "pods \"build-1\" is forbidden: exceeded quota: compute";
    over_quota.fail("kubernetes.create", Error::Denied(text.into()));
    for (host, mut step, expected) in [
        (without_key, producer(), "ArtifactKeyMissing"),
        (over_quota, producer(), "QuotaExceeded"),
        (host(), consumer(), "InputMissing"),
    ] {
        host.set_now((START_TIME + 599) * 1000);
        assert_eq!(reason(&reconcile(&host, &mut step)), expected);
        assert_ne!(step["status"]["phase"], "Errored", "{expected}");
        host.set_now((START_TIME + 600) * 1000);
        let result = reconcile(&host, &mut step);
        assert_eq!(
            (&*reason(&result), stalled(&result).as_deref()),
            (expected, Some(expected))
        );
        assert_eq!(step["status"]["phase"], "Errored");
        let message = step["status"]["message"].as_str().expect("a message");
        assert!(
            message.starts_with("The process did not start within 10m: "),
            "{message}"
        );
    }
}

/// A producer has time limits of its own.
#[test]
fn start_timeout_counts_from_the_end_of_the_last_producer() {
    let (host, mut step) = (host(), consumer());
    host.put(producer());
    host.set_now((START_TIME + 7200) * 1000);
    assert_eq!(reason(&reconcile(&host, &mut step)), "InputPending");
    let mut ended = succeeded_producer(Some("10.0.0.7:17788"));
    ended["status"]["finishTime"] = "2026-01-01T02:00:00Z".into();
    host.put(ended);
    let result = reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(
        (&*result.conditions[0].reason, result.next),
        ("Starting", Next::At((START_TIME + 7800) * 1000))
    );
}

#[test]
fn missing_key_is_named_with_its_remedy() {
    let (host, mut step) = (host(), producer());
    host.remove_secret("steps-artifact-key", "key");
    let failure = reconcile(&host, &mut step).expect_err("waits");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "ArtifactKeyMissing")
    );
    assert!(
        failure
            .message
            .contains("kubectl create secret generic steps-artifact-key"),
        "{}",
        failure.message
    );
    assert_eq!(host.writes(), Vec::<String>::new());
    // A step without artifacts needs none.
    let mut plain = self::step("unit");
    assert_eq!(reason(&reconcile(&host, &mut plain)), "Starting");
}

#[test]
fn ended_step_is_deleted_after_its_time_to_live() {
    let (host, mut step) = (host(), step("unit"));
    step["spec"]["ttlSecondsAfterFinished"] = 60.into();
    host.put(step.clone());
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", ended(&json!({"exitCode": 0})));
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(
        reconcile(&host, &mut step).expect("an outcome").next,
        Next::At((START_TIME + 60) * 1000)
    );
    host.set_now((START_TIME + 60) * 1000);
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(host.writes()[1..], ["delete Step unit"]);
    // Created again while the cache has the ended one.
    let mut another = self::step("unit");
    another["metadata"]["uid"] = "another".into();
    host.put(another.clone());
    reconcile(&host, &mut step).expect("an outcome");
    assert_eq!(host.object(&step_reference("unit")), Some(another));
}

#[test]
fn deleted_step_waits_for_its_pod_but_not_for_a_lost_node() {
    let (host, mut step) = (host(), step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", running());
    reconcile(&host, &mut step).expect("an outcome");
    let mut terminating = host.object(&pod("unit-1")).expect("is there");
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z".into();
    host.put(terminating);
    let failure = cleanup(&host, &mut step).expect_err("waits");
    assert_eq!(
        (failure.resolution, &*failure.reason),
        (Resolution::Wait, "PodRemains")
    );
    assert_eq!(step["status"]["podState"], "Destroying");
    host.set_now((START_TIME + 150) * 1000);
    cleanup(&host, &mut step).expect("is released");
    assert_eq!(host.events().last().expect("an event").0, "PodAbandoned");

    // A pod whose node answers is gone, and the Step at once.
    let (host, mut step) = (self::host(), self::step("unit"));
    reconcile(&host, &mut step).expect("an outcome");
    set_status(&host, "unit-1", running());
    cleanup(&host, &mut step).expect("is released");
    assert_eq!(host.writes(), ["create Pod unit-1 owned", "delete Pod unit-1"]);
}

#[test]
fn spec_that_no_pod_can_have_is_refused_before_any_write() {
    let long = "n".repeat(61);
    let spec = |path: &str, value: Value| {
        let mut step = producer();
        *step.pointer_mut(path).expect("a field") = value;
        step
    };
    for (step, word) in [
        (spec("/metadata/name", long.into()), "metadata.name"),
        (spec("/spec/outputs/0/path", "/ostler/bin".into()), "/ostler/bin"),
        (spec("/spec/outputs/0/path", "/var/run".into()), "/var/run"),
        (spec("/spec/outputs/0/path", "/etc".into()), "/etc"),
        (
            spec("/spec/process", json!({"path": "true", "user": "0"})),
            "runAsNonRoot",
        ),
        (
            spec(
                "/spec/outputs",
                json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/a/b"}]),
            ),
            "/a and /a/b",
        ),
    ] {
        let host = host();
        let failure = host.reconcile(&Steps, &step).expect_err("is refused");
        assert_eq!(
            (failure.resolution, &*failure.reason),
            (Resolution::Terminal, "InvalidSpec"),
            "{word}"
        );
        assert!(failure.message.contains(word), "{}", failure.message);
        assert_eq!(host.writes(), Vec::<String>::new());
    }
}
