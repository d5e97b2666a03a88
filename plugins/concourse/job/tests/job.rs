//! Tests of the Job reconciler against the in-memory host of the SDK.

use concourse_job::Jobs;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{ConditionStatus, Error, Failure, Next, Resolution, gvk};

const PATH: &str = "/api/v1/teams/alpha/pipelines/demo/jobs/unit";
const LIST: &str = "/api/v1/teams/alpha/pipelines/demo/jobs";
/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn job(paused: bool) -> Value {
    json!({
        "metadata": { "name": "unit", "namespace": "apps" },
        "spec": { "pipelineRef": { "name": "demo" }, "paused": paused },
    })
}

fn job_with_pause(paused: bool) -> Value {
    let mut job = job(paused);
    job["status"] = json!({ "pauseOwned": true, "claimedServer": "http://ci" });
    job
}

fn ready(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
        "metadata": { "name": name, "namespace": "apps" }, "spec": spec,
        "status": {
            "webURL": "http://ci/teams/alpha/pipelines/demo?vars.a=1",
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn cluster() -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.put(ready(
        "Pipeline",
        "demo",
        json!({ "teamRef": { "name": "alpha" }, "config": { "inline": "jobs: []" } }),
    ));
    host.put(ready("Team", "alpha", json!({ "instanceRef": { "name": "ci" } })));
    host.put(ready("Instance", "ci", json!({ "url": "http://ci", "auth": {} })));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "ci", "namespace": "apps" }, "spec": { "url": "http://ci" },
    }));
    host
}

fn object(kind: &str, name: &str) -> ostler_sdk::ObjectRef {
    gvk("concourse-ci.org", "v1alpha1", kind).named("apps", name)
}

fn shown(paused: bool) -> Value {
    let other = json!({ "id": 2, "name": "other" });
    json!([other, {
        "id": 3, "name": "unit", "paused": paused, "paused_by": "somebody", "paused_at": 1_000_000_000,
        "groups": ["all"], "has_new_inputs": true, "disable_manual_trigger": true,
        "inputs": [{ "name": "src", "resource": "source", "trigger": true, "passed": ["lint"] }],
        "outputs": [{ "name": "image", "resource": "image" }],
        "next_build": { "id": 9, "name": "3", "status": "started" },
        "finished_build": { "id": 8, "name": "2", "status": "failed", "end_time": 1_000_000_000 },
    }])
}

/// `Cache-Control` of the requests for the list.
fn list_ages(host: &MockHost) -> Vec<String> {
    let sent = host.sent();
    let headers = sent.iter().flat_map(|request| &request.headers);
    let ages = headers.filter(|header| header.name == "Cache-Control");
    ages.map(|header| header.value.clone()).collect()
}

fn resolution(failure: &Failure) -> (&str, &Resolution) {
    (&failure.reason, &failure.resolution)
}

fn status(outcome: &ostler_sdk::Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("status")).expect("JSON")
}

#[test]
fn unchanged_job_costs_one_read_and_no_write() {
    let host = cluster();
    host.answer("GET", LIST, 200, shown(false));
    let outcome = host.reconcile(&Jobs, &job(false)).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(60_000)));
    assert_eq!(host.requests(), [format!("GET {LIST}")]);
    assert_eq!(
        list_ages(&host),
        ["max-age=60"],
        "all Jobs of the pipeline share it"
    );
    assert!(host.checkpoints().is_empty() && host.writes().is_empty());
    assert_eq!(
        status(&outcome),
        json!({
            "resolvedName": "unit", "webURL": "http://ci/teams/alpha/pipelines/demo/jobs/unit?vars.a=1", "jobID": 3,
            "paused": false, "pausedBy": "somebody", "pausedAt": "2001-09-09T01:46:40Z", "hasNewInputs": true,
            "disableManualTrigger": true, "groups": ["all"],
            "inputs": [{ "name": "src", "resource": "source", "trigger": true, "passed": ["lint"] }],
            "outputs": [{ "name": "image", "resource": "image" }],
            "nextBuildID": 9, "nextBuildName": "3", "nextBuildStatus": "started",
            "lastBuildID": 8, "lastBuildName": "2", "lastBuildStatus": "failed",
            "lastBuildTime": "2001-09-09T01:46:40Z",
        })
    );
    let last = &outcome.conditions[1];
    assert_eq!(
        (&*last.type_, last.status, &*last.reason),
        ("LastBuildSucceeded", ConditionStatus::False, "Failed")
    );
}

#[test]
fn pause_is_applied_recorded_and_reverted() {
    let host = cluster();
    let answers = [false, false, true].map(|paused| Ok(response(200, &[], shown(paused))));
    host.answers("GET", LIST, answers);
    host.answer("PUT", &format!("{PATH}/pause"), 200, Value::Null);
    let outcome = host.reconcile(&Jobs, &job(true)).expect("is ready");
    assert_eq!(
        host.requests(),
        [
            format!("GET {LIST}"),
            format!("GET {LIST}"),
            format!("PUT {PATH}/pause"),
            format!("GET {LIST}")
        ]
    );
    assert_eq!(list_ages(&host), ["max-age=60", "max-age=0", "max-age=0"]);
    assert_eq!(
        host.checkpoints(),
        [json!({ "pauseOwned": true, "claimedServer": "http://ci" })],
        "before the request"
    );
    assert_eq!(status(&outcome)["pauseOwned"], true);
    assert_eq!(status(&outcome)["claimedServer"], "http://ci");

    let host = cluster();
    let answers = [true, true, false].map(|paused| Ok(response(200, &[], shown(paused))));
    host.answers("GET", LIST, answers);
    host.answer("PUT", &format!("{PATH}/unpause"), 200, Value::Null);
    let outcome = host.reconcile(&Jobs, &job_with_pause(false)).expect("is ready");
    assert!(
        status(&outcome)["pauseOwned"].is_null() && status(&outcome)["claimedServer"].is_null(),
        "there is no pause to own"
    );
}

#[test]
fn pause_of_another_user_is_not_owned() {
    let host = cluster();
    host.answer("GET", LIST, 200, shown(true));
    let outcome = host.reconcile(&Jobs, &job(true)).expect("is ready");
    assert_eq!(host.requests().len(), 1);
    assert!(status(&outcome)["pauseOwned"].is_null());
    let outcome = host.reconcile(&Jobs, &job_with_pause(true)).expect("is ready");
    assert_eq!(status(&outcome)["pauseOwned"], true, "ownership is recorded");
}

#[test]
fn failures_have_distinct_reasons_and_resolutions() {
    let host = cluster();
    host.answer("GET", LIST, 404, Value::Null);
    let failure = host.reconcile(&Jobs, &job(false)).expect_err("waits");
    assert_eq!(resolution(&failure), ("JobNotFound", &Resolution::Wait));
    host.answer("GET", LIST, 500, "oops");
    let failure = host.reconcile(&Jobs, &job(false)).expect_err("fails");
    assert_eq!(resolution(&failure), ("FetchFailed", &Resolution::Retry));
    assert_eq!(failure.conditions[0].type_, "LastBuildSucceeded");
    host.answer("GET", LIST, 200, shown(false));
    host.answer("PUT", &format!("{PATH}/pause"), 403, "forbidden");
    let failure = host.reconcile(&Jobs, &job(true)).expect_err("refused");
    assert_eq!(resolution(&failure), ("PauseFailed", &Resolution::Retry));

    host.put(ready(
        "Pipeline",
        "demo",
        json!({ "teamRef": { "name": "alpha" }, "config": { "inline": "jobs: []" }, "archived": true }),
    ));
    host.forget();
    let failure = host.reconcile(&Jobs, &job(true)).expect_err("waits");
    assert_eq!(resolution(&failure), ("PipelineArchived", &Resolution::Wait));
    host.remove(&object("Pipeline", "demo"));
    let failure = host.reconcile(&Jobs, &job(true)).expect_err("waits");
    assert_eq!(resolution(&failure), ("PipelineNotReady", &Resolution::Wait));
    let mut suspended = job(true);
    suspended["spec"]["suspend"] = true.into();
    host.reconcile(&Jobs, &suspended).expect("does nothing");
    assert!(host.requests().is_empty(), "no request is sent to Concourse");
}

#[test]
fn builds_beyond_history_limits_are_deleted() {
    let host = cluster();
    host.answer("GET", LIST, 200, shown(false));
    for (number, how) in [
        (1, "succeeded"),
        (2, "failed"),
        (3, "succeeded"),
        (4, "aborted"),
        (5, "started"),
    ] {
        host.put(json!({
            "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Build",
            "metadata": { "name": format!("b{number}"), "namespace": "apps", "uid": format!("u{number}") },
            "spec": { "jobRef": { "name": "unit" } },
            "status": { "concourseStatus": how, "endTime": format!("2026-01-01T00:00:0{number}Z") },
        }));
    }
    let mut few = job(false);
    few["spec"]["successfulBuildsHistoryLimit"] = 1.into();
    few["spec"]["failedBuildsHistoryLimit"] = 1.into();
    host.reconcile(&Jobs, &few).expect("is ready");
    assert_eq!(host.writes(), ["delete Build b2", "delete Build b1"]);
}

#[test]
fn cleanup_unpauses_only_owned_pause() {
    let unpause = format!("{PATH}/unpause");
    let host = cluster();
    host.cleanup(&Jobs, &job(true)).expect("is cleaned up");
    assert!(host.requests().is_empty());
    for status in [200, 404] {
        host.forget();
        host.answer("PUT", &unpause, status, Value::Null);
        let outcome = host.cleanup(&Jobs, &job_with_pause(true)).expect("is cleaned up");
        assert_eq!(
            (outcome.next, host.requests()),
            (Next::AwaitChange, vec![format!("PUT {unpause}")])
        );
    }
    host.answer("PUT", &unpause, 500, "oops");
    let failure = host
        .cleanup(&Jobs, &job_with_pause(true))
        .expect_err("is retried");
    assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Retry));
}

#[test]
fn cleanup_with_missing_parent_does_not_block_deletion() {
    let missing = || Err(Error::NotFound("Upstream apps/ci".into()));
    let unpause = format!("{PATH}/unpause");
    let host = cluster();
    host.answers("PUT", &unpause, [missing()]);
    let failure = host
        .cleanup(&Jobs, &job_with_pause(true))
        .expect_err("a Secret may come back");
    assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Wait));
    for (kind, name) in [("Instance", "ci"), ("Team", "alpha"), ("Pipeline", "demo")] {
        host.remove(&object(kind, name)).forget();
        host.cleanup(&Jobs, &job_with_pause(true)).expect("is cleaned up");
        assert_eq!(host.events()[0].0, "Orphaned", "without the {kind}");
    }
    // The job is deleted with its pipeline, and resuming it now could start a build.
    let mut going = ready(
        "Pipeline",
        "demo",
        json!({ "teamRef": { "name": "alpha" }, "config": { "inline": "jobs: []" } }),
    );
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let host = cluster();
    host.put(going);
    host.cleanup(&Jobs, &job_with_pause(true)).expect("is cleaned up");
    assert!(host.requests().is_empty());
}

#[test]
fn response_of_a_proxy_neither_ends_a_deletion_nor_hides_a_job() {
    let unpause = format!("{PATH}/unpause");
    for status in [200, 404] {
        let host = cluster();
        host.set_response_headers(&[])
            .answer("PUT", &unpause, status, Value::Null)
            .answer("PUT", &format!("{PATH}/pause"), status, Value::Null)
            .answer("GET", LIST, status, json!([]));
        let failure = host
            .cleanup(&Jobs, &job_with_pause(true))
            .expect_err("is retried");
        assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Retry));
        let failure = host.reconcile(&Jobs, &job(true)).expect_err("is retried");
        assert_eq!(resolution(&failure), ("FetchFailed", &Resolution::Retry));
        host.set_response_headers(VERSION)
            .answer("GET", LIST, 200, shown(false));
        let failure = host.reconcile(&Jobs, &job(true)).expect_err("is retried");
        assert_eq!(resolution(&failure), ("PauseFailed", &Resolution::Retry));
    }
}

#[test]
fn pause_on_another_server_is_neither_removed_nor_owned() {
    let mut elsewhere = job_with_pause(true);
    elsewhere["status"]["claimedServer"] = "http://before".into();
    let host = cluster();
    host.cleanup(&Jobs, &elsewhere).expect("is cleaned up");
    assert!(host.requests().is_empty());
    let (reason, note) = &host.events()[0];
    assert_eq!(reason, "Orphaned");
    assert!(
        note.contains("job unit") && note.contains("http://before"),
        "{note}"
    );

    // Another user has paused the job of this name on the present server.
    host.forget();
    host.answer("GET", LIST, 200, shown(true));
    let outcome = host.reconcile(&Jobs, &elsewhere).expect("is ready");
    assert!(status(&outcome)["pauseOwned"].is_null());
    assert_eq!(host.events()[0].0, "Orphaned");

    // A status of before the server was recorded.
    let mut old = job_with_pause(true);
    old["status"] = json!({ "pauseOwned": true });
    host.answer("PUT", &format!("{PATH}/unpause"), 200, Value::Null);
    host.forget();
    host.cleanup(&Jobs, &old).expect("is cleaned up");
    assert_eq!(host.requests(), [format!("PUT {PATH}/unpause")]);
}

#[test]
fn stale_list_neither_changes_nor_misses_a_job() {
    // Somebody has paused the job since the shared list was read.
    let host = cluster();
    let answers = [false, true].map(|paused| Ok(response(200, &[], shown(paused))));
    host.answers("GET", LIST, answers);
    let outcome = host.reconcile(&Jobs, &job(true)).expect("is ready");
    assert_eq!(host.requests().len(), 2, "nothing to change");
    assert!(status(&outcome)["pauseOwned"].is_null());
    // The config has the job since.
    let host = cluster();
    let answers = [json!([]), shown(false)].map(|list| Ok(response(200, &[], list)));
    host.answers("GET", LIST, answers);
    host.reconcile(&Jobs, &job(false)).expect("is ready");
}

#[test]
fn cleanup_deletes_builds_of_namespace() {
    let host = cluster();
    for (name, namespace, of) in [
        ("b1", "apps", "unit"),
        ("b2", "apps", "other"),
        ("b3", "far", "unit"),
    ] {
        host.put(json!({
            "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Build",
            "metadata": { "name": name, "namespace": namespace, "uid": name },
            "spec": { "jobRef": { "name": of, "namespace": "apps" } },
        }));
    }
    host.cleanup(&Jobs, &job(false)).expect("is cleaned up");
    assert_eq!(host.writes(), ["delete Build b1"]);
}
