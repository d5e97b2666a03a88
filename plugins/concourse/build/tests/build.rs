//! Tests of the Build reconciler against the in-memory host of the SDK.

use concourse_build::Builds;
use ostler_sdk::mock::MockHost;
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Error, Failure, Next, Outcome, Resolution};

const PIPELINE: &str = "/api/v1/teams/alpha/pipelines/app";
const NOW: u64 = 1_000_000_000_000;
/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "apps", "uid": name}, "spec": spec,
        "status": {"webURL": format!("http://ci/{name}"), "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn create_host() -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.set_now(NOW)
        .put(json!({
            "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": "ci", "namespace": "apps"}, "spec": {"url": "http://ci"},
        }))
        .put(object("Team", "alpha", json!({"instanceRef": {"name": "ci"}})))
        .put(object(
            "Pipeline",
            "app",
            json!({"teamRef": {"name": "alpha"}, "config": {"inline": "jobs: []"}}),
        ))
        .put(object(
            "Job",
            "unit",
            json!({"pipelineRef": {"name": "app"}, "jobName": "unit-tests"}),
        ))
        .answer(
            "GET",
            &format!("{PIPELINE}/builds?limit=1"),
            200,
            json!([{"id": 41}]),
        )
        .answer(
            "GET",
            "/api/v1/user",
            200,
            json!({"user_name": "ostler", "display_user_id": "ostler"}),
        )
        .answer("POST", &builds_path(""), 200, remote_build(42, "pending"));
    host
}

fn builds_path(rest: &str) -> String {
    format!("{PIPELINE}/jobs/unit-tests/builds{rest}")
}

fn build(name: &str, more: Value) -> Value {
    let mut build = object("Build", name, json!({"jobRef": {"name": "unit"}}));
    build["status"] = json!({});
    merge(&mut build["spec"], more);
    build
}

fn merge(into: &mut Value, from: Value) {
    let from = from.as_object().expect("an object").clone();
    into.as_object_mut().expect("an object").extend(from);
}

fn remote_build(id: i64, status: &str) -> Value {
    json!({"id": id, "name": "7", "status": status, "job_name": "unit-tests", "created_by": "ostler",
        "api_url": format!("/api/v1/builds/{id}"), "start_time": 100, "end_time": if status == "started" { 0 } else { 190 }})
}

fn answer_build(host: &MockHost, id: i64, status: &str) {
    let at = format!("/api/v1/builds/{id}");
    host.answer("GET", &at, 200, remote_build(id, status)).answer(
        "GET",
        &format!("{at}/resources"),
        200,
        json!({"inputs": [{"name": "source", "version": {"ref": "abc"}, "first_occurrence": true}], "outputs": []}),
    );
}

fn status(answer: &Result<Outcome, Failure>) -> Value {
    let bytes = match answer {
        Ok(outcome) => &outcome.status,
        Err(failure) => &failure.status,
    };
    from_slice(bytes.as_ref().expect("a status")).expect("JSON")
}

fn condition_reason(answer: &Result<Outcome, Failure>, kind: &str) -> String {
    let found = match answer {
        Ok(outcome) => outcome.conditions.iter().find(|c| c.type_ == kind),
        Err(_) => None,
    };
    found.map(|c| c.reason.clone()).unwrap_or_default()
}

fn failure(answer: Result<Outcome, Failure>) -> (String, Resolution) {
    let failure = answer.expect_err("a failure");
    (failure.reason, failure.resolution)
}

/// The object with the status of a reconcile.
fn with_status(build: &Value, answer: &Result<Outcome, Failure>) -> Value {
    let mut build = build.clone();
    build["status"] = status(answer);
    build
}

#[test]
fn new_build_is_recorded_triggered_and_followed() {
    let host = create_host();
    let build = build("b", json!({"comment": "nice"}));
    let begun = host.reconcile(&Builds, &build);
    assert_eq!(
        host.requests(),
        [
            format!("GET {PIPELINE}/builds?limit=1"),
            format!("POST {}", builds_path(""))
        ]
    );
    let noted = host.checkpoints();
    assert_eq!(
        noted,
        [json!({"trigger": {"after": 41, "at": NOW, "state": "InFlight"}, "claimedServer": "http://ci"})]
    );
    assert_eq!(status(&begun)["claimedServer"], "http://ci");
    assert_eq!(
        (
            status(&begun)["buildID"].clone(),
            status(&begun)["trigger"].clone()
        ),
        (json!(42), Value::Null)
    );
    host.forget();
    answer_build(&host, 42, "started");
    host.answer("PUT", "/api/v1/builds/42/comment", 200, Value::Null);
    let followed = host.reconcile(&Builds, &with_status(&build, &begun));
    assert_eq!(host.subscriptions(), ["/api/v1/builds/42/events"]);
    assert_eq!(
        (
            &*condition_reason(&followed, "Ready"),
            &*condition_reason(&followed, "Complete")
        ),
        ("Tracked", "InProgress")
    );
    let seen = status(&followed);
    assert_eq!(
        (&seen["comment"], &seen["buildName"]),
        (&json!("nice"), &json!("7"))
    );
    assert_eq!(seen["inputs"][0]["version"]["ref"], "abc");
    assert_eq!(seen["webURL"], "http://ci/app/jobs/unit-tests/builds/7");
    assert!(matches!(
        followed.expect("an outcome").next,
        Next::Poll(Some(600_000))
    ));
}

#[test]
fn finished_build_sends_no_request_and_expires_after_ttl() {
    let host = create_host();
    answer_build(&host, 42, "failed");
    let log = |text: &str| json!({"event": "log", "data": {"payload": text}}).to_string();
    host.stream(
        "/api/v1/builds/42/events",
        &[
            ("event", &log("one\n")),
            ("event", &log("two\n")),
            ("event", &log("three\n")),
        ],
    );
    let mut build = build("b", json!({"logTailLines": 2, "ttlSecondsAfterFinished": 60}));
    build["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    let ended = host.reconcile(&Builds, &build);
    let seen = status(&ended);
    assert_eq!(
        (&seen["logTail"], &seen["duration"]),
        (&json!("two\nthree"), &json!("1m30s"))
    );
    assert_eq!(condition_reason(&ended, "Complete"), "Failed");
    assert_eq!(host.events()[0].0, "BuildFailed");
    host.forget();
    host.put(build.clone());
    let build = with_status(&build, &ended);
    host.set_now(200_000);
    let waiting = host.reconcile(&Builds, &build).expect("an outcome");
    assert!(matches!(waiting.next, Next::At(250_000)), "{:?}", waiting.next);
    host.set_now(250_000);
    let gone = host.reconcile(&Builds, &build).expect("an outcome");
    assert!(matches!(gone.next, Next::AwaitChange));
    assert_eq!(host.writes(), ["delete Build b"]);
    assert!(host.requests().is_empty() && host.subscriptions().is_empty());
}

#[test]
fn lost_response_starts_search_and_no_second_trigger() {
    let host = create_host();
    let build = build("b", json!({}));
    host.put(build.clone());
    host.answers("POST", &builds_path(""), [Err(Error::Unavailable("cut".into()))]);
    let lost = host.reconcile(&Builds, &build);
    assert_eq!(status(&lost)["trigger"]["state"], "Unknown");
    assert_eq!(failure(lost.clone()), ("TriggerFailed".into(), Resolution::Retry));
    let build = with_status(&build, &lost);
    let since = format!("{PIPELINE}/builds?from=42&limit=100");
    // No build yet: the lost request may still be carried out.
    host.forget();
    host.answer(
        "GET",
        &since,
        200,
        json!([{"id": 42, "job_name": "other", "created_by": "ostler"}]),
    );
    let waiting = failure(host.reconcile(&Builds, &build));
    assert_eq!(waiting, ("TriggerUnknown".into(), Resolution::Throttled(5000)));
    // The build appears.
    host.answer("GET", &since, 200, json!([remote_build(43, "pending")]));
    assert_eq!(status(&host.reconcile(&Builds, &build))["buildID"], 43);
    // No build for longer than the settle time: the request was never carried out.
    host.answer("GET", &since, 200, json!([]));
    host.set_now(NOW + 5000);
    assert!(!host.requests().iter().any(|r| r.starts_with("POST")));
    host.answer("POST", &builds_path(""), 200, remote_build(44, "pending"));
    assert_eq!(status(&host.reconcile(&Builds, &build))["buildID"], 44);
}

#[test]
fn interrupted_attempt_records_search_and_waits_for_siblings() {
    let host = create_host();
    let mut interrupted = build("b", json!({}));
    interrupted["status"] = json!({"trigger": {"after": 41, "at": 0, "state": "InFlight"}});
    let mut other = build("a", json!({}));
    other["status"] = interrupted["status"].clone();
    host.put(interrupted.clone()).put(other.clone());
    let waiting = failure(host.reconcile(&Builds, &interrupted));
    assert_eq!(waiting, ("TriggerWaiting".into(), Resolution::Wait));
    assert_eq!(host.checkpoints()[0]["trigger"]["state"], "Unknown");
    // A new Build triggers none meanwhile.
    other["status"]["trigger"]["state"] = json!("Unknown");
    host.put(other);
    let fresh = build("c", json!({}));
    assert_eq!(failure(host.reconcile(&Builds, &fresh)).0, "TriggerWaiting");
    assert!(host.requests().is_empty());
}

#[test]
fn ambiguous_search_names_candidates_and_remedy() {
    let host = create_host();
    let mut build = build("b", json!({}));
    build["status"] = json!({"trigger": {"after": 41, "at": 0, "state": "Unknown"}});
    let since = format!("{PIPELINE}/builds?from=42&limit=100");
    host.answer(
        "GET",
        &since,
        200,
        json!([remote_build(43, "pending"), remote_build(42, "started")]),
    );
    let outcome = host.reconcile(&Builds, &build);
    let message = outcome.clone().expect_err("parked").message;
    assert!(
        message.contains("42, 43") && message.contains("spec.buildID"),
        "{message}"
    );
    assert_eq!(status(&outcome)["trigger"]["state"], "Ambiguous");
    host.forget();
    let mut build = with_status(&build, &outcome);
    assert_eq!(
        failure(host.reconcile(&Builds, &build)),
        ("TriggerAmbiguous".into(), Resolution::Terminal)
    );
    assert!(host.requests().is_empty());
    build["spec"]["buildID"] = json!(43);
    answer_build(&host, 43, "started");
    assert_eq!(status(&host.reconcile(&Builds, &build))["buildID"], 43);
}

#[test]
fn vanished_build_is_retriggered_unless_adopted() {
    let host = create_host();
    host.answer("GET", "/api/v1/builds/42", 404, Value::Null).answer(
        "GET",
        "/api/v1/builds/42/resources",
        404,
        Value::Null,
    );
    let mut ours = build("b", json!({}));
    ours["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    let vanished = host.reconcile(&Builds, &ours);
    assert_eq!(status(&vanished)["buildID"], Value::Null);
    assert_eq!(host.events()[0].0, "BuildVanished");
    let adopted = build("b", json!({"buildID": 42}));
    assert_eq!(
        failure(host.reconcile(&Builds, &adopted)),
        ("BuildVanished".into(), Resolution::Terminal)
    );
    // A build of another job.
    let mut other = remote_build(42, "started");
    other["job_name"] = json!("other");
    host.answer("GET", "/api/v1/builds/42", 200, other);
    assert_eq!(failure(host.reconcile(&Builds, &adopted)).0, "InvalidSpec");
}

#[test]
fn trigger_handles_refusal_cancellation_and_rerun() {
    let host = create_host();
    host.answer("POST", &builds_path(""), 409, Value::Null);
    let refused = host.reconcile(&Builds, &build("b", json!({})));
    assert_eq!(status(&refused)["trigger"], Value::Null, "no build was triggered");
    assert_eq!(failure(refused), ("TriggerFailed".into(), Resolution::Wait));
    host.forget();
    let canceled = host.reconcile(&Builds, &build("b", json!({"canceled": true})));
    assert_eq!(
        (&*condition_reason(&canceled, "Ready"), host.requests().len()),
        ("Canceled", 0)
    );
    // It has ended for the history limits and its time to live.
    let ended = status(&canceled);
    assert_eq!(
        (&ended["concourseStatus"], &ended["endTime"]),
        (&json!("aborted"), &json!("2001-09-09T01:46:40Z"))
    );
    let mut expired = build("b", json!({"canceled": true, "ttlSecondsAfterFinished": 10}));
    expired["status"] = ended;
    host.put(expired.clone()).set_now(NOW + 11_000);
    let outcome = host.reconcile(&Builds, &expired);
    assert_eq!(condition_reason(&outcome, "Complete"), "Aborted");
    assert_eq!(host.writes(), ["delete Build b"]);
    host.set_now(NOW);
    let mut running = build("b", json!({"canceled": true}));
    running["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    answer_build(&host, 42, "started");
    host.answer("PUT", "/api/v1/builds/42/abort", 204, Value::Null);
    host.reconcile(&Builds, &running).expect("an outcome");
    assert_eq!(
        host.requests().last().expect("one"),
        "PUT /api/v1/builds/42/abort"
    );
    host.answer("POST", &builds_path("/7.1"), 200, remote_build(50, "pending"));
    let again = host.reconcile(&Builds, &build("b", json!({"rerunOf": "7.1"})));
    assert_eq!(status(&again)["buildID"], 50);
}

#[test]
fn cleanup_aborts_running_build_only_with_abort_on_delete() {
    let host = create_host();
    let mut running = build("b", json!({}));
    running["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    host.cleanup(&Builds, &running).expect("is cleaned up");
    assert!(host.requests().is_empty());
    running["spec"]["abortOnDelete"] = json!(true);
    host.answer("PUT", "/api/v1/builds/42/abort", 500, "boom");
    assert_eq!(failure(host.cleanup(&Builds, &running)).0, "DeleteFailed");
    host.answer("PUT", "/api/v1/builds/42/abort", 204, Value::Null);
    host.cleanup(&Builds, &running).expect("is cleaned up");
    assert_eq!(host.requests().len(), 2);
    running["status"]["concourseStatus"] = json!("succeeded");
    host.cleanup(&Builds, &running).expect("is cleaned up");
    assert_eq!(host.requests().len(), 2);
}

#[test]
fn finished_build_deleted_by_concourse_stays_finished() {
    let host = create_host();
    host.answer("GET", "/api/v1/builds/42", 404, Value::Null).answer(
        "GET",
        "/api/v1/builds/42/resources",
        404,
        Value::Null,
    );
    let mut old = build("b", json!({"comment": "edited later"}));
    old["status"] = json!({"buildID": 42, "concourseStatus": "succeeded"});
    let answer = host.reconcile(&Builds, &old);
    assert_eq!(status(&answer)["buildID"], 42);
    assert_eq!(condition_reason(&answer, "Ready"), "Tracked");
    // From then on it sends no request, as with an empty comment.
    host.forget();
    host.reconcile(&Builds, &with_status(&old, &answer))
        .expect("an outcome");
    let mut silent = build("c", json!({"comment": ""}));
    silent["status"] = json!({"buildID": 42, "concourseStatus": "succeeded"});
    host.reconcile(&Builds, &silent).expect("an outcome");
    assert!(host.requests().is_empty());
}

#[test]
fn refused_comment_does_not_prevent_abort_or_events() {
    let host = create_host();
    answer_build(&host, 42, "started");
    host.answer("PUT", "/api/v1/builds/42/abort", 204, Value::Null)
        .answer("PUT", "/api/v1/builds/42/comment", 403, Value::Null);
    let mut running = build("b", json!({"comment": "why", "canceled": true}));
    running["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    let answer = host.reconcile(&Builds, &running);
    assert!(
        host.requests()
            .contains(&"PUT /api/v1/builds/42/abort".to_owned())
    );
    assert_eq!(failure(answer).0, "CommentFailed");
    // The end is reported once, however often the comment is retried.
    answer_build(&host, 42, "succeeded");
    let ended = host.reconcile(&Builds, &running);
    host.reconcile(&Builds, &with_status(&running, &ended))
        .expect_err("still refused");
    let outcome = host.events().iter().filter(|e| e.0 == "BuildFinished").count();
    assert_eq!(outcome, 1);
}

#[test]
fn canceled_search_without_candidates_triggers_nothing() {
    let host = create_host();
    let mut lost = build("b", json!({"canceled": true}));
    lost["status"] = json!({"trigger": {"after": 41, "at": 0, "state": "Unknown"}});
    host.put(lost.clone());
    let since = format!("{PIPELINE}/builds?from=42&limit=100");
    host.answer("GET", &since, 200, json!([]));
    let answer = host.reconcile(&Builds, &lost);
    assert_eq!(condition_reason(&answer, "Ready"), "Canceled");
    assert_eq!(status(&answer)["trigger"], Value::Null);
    assert!(!host.requests().iter().any(|r| r.starts_with("POST")));
}

#[test]
fn known_build_is_followed_and_aborted_without_its_job() {
    let host = create_host();
    for (kind, name) in [("Job", "unit"), ("Pipeline", "app"), ("Team", "alpha")] {
        host.remove(&ostler_sdk::gvk("concourse-ci.org", "v1alpha1", kind).named("apps", name));
    }
    let mut running = build("b", json!({"abortOnDelete": true}));
    running["status"] = json!({
        "buildID": 42, "buildName": "7", "concourseStatus": "started", "webURL": "http://ci/7",
        "instanceRef": {"name": "ci", "namespace": "apps"},
    });
    answer_build(&host, 42, "succeeded");
    let answer = host.reconcile(&Builds, &running);
    assert_eq!(condition_reason(&answer, "Complete"), "Succeeded");
    assert_eq!(status(&answer)["webURL"], "http://ci/7");
    host.answer("PUT", "/api/v1/builds/42/abort", 204, Value::Null);
    host.forget();
    host.cleanup(&Builds, &running).expect("is cleaned up");
    assert_eq!(host.requests(), ["PUT /api/v1/builds/42/abort"]);
}

#[test]
fn build_of_another_server_with_the_same_id_is_not_followed() {
    let host = create_host();
    answer_build(&host, 42, "succeeded");
    for known in [
        json!({"buildName": "8"}),
        json!({"buildName": "7", "startTime": "2001-09-09T01:46:40Z"}),
    ] {
        let mut running = build("b", json!({}));
        running["status"] = json!({"buildID": 42, "concourseStatus": "started"});
        merge(&mut running["status"], known);
        let answer = host.reconcile(&Builds, &running);
        assert_eq!(condition_reason(&answer, "Ready"), "BuildVanished");
        assert_eq!(status(&answer), json!({}));
    }
}

#[test]
fn response_of_a_proxy_is_no_build_and_no_abort() {
    let host = create_host();
    let mut running = build("b", json!({"abortOnDelete": true}));
    running["status"] = json!({"buildID": 42, "concourseStatus": "started"});
    answer_build(&host, 42, "started");
    host.set_response_headers(&[]);
    for status in [200, 404] {
        host.answer("GET", "/api/v1/builds/42", status, remote_build(42, "succeeded"))
            .answer("PUT", "/api/v1/builds/42/abort", status, Value::Null);
        assert_eq!(
            failure(host.reconcile(&Builds, &running)),
            ("FetchFailed".into(), Resolution::Retry)
        );
        assert_eq!(
            failure(host.cleanup(&Builds, &running)),
            ("DeleteFailed".into(), Resolution::Retry)
        );
    }
    assert!(host.events().is_empty());
}

#[test]
fn response_of_a_proxy_to_a_trigger_starts_search() {
    for status in [200, 404] {
        let host = create_host();
        host.set_response_headers(&[])
            .answer("POST", &builds_path(""), status, remote_build(42, "pending"));
        let lost = host.reconcile(&Builds, &build("b", json!({})));
        assert_eq!(self::status(&lost)["trigger"]["state"], "Unknown");
        assert_eq!(failure(lost), ("TriggerFailed".into(), Resolution::Retry));
    }
}

#[test]
fn build_on_another_server_is_neither_followed_nor_aborted() {
    let host = create_host();
    let mut running = build("b", json!({"abortOnDelete": true}));
    running["status"] = json!({
        "buildID": 42, "buildName": "7", "concourseStatus": "started", "claimedServer": "http://before",
        "instanceRef": {"name": "ci", "namespace": "apps"},
    });
    host.cleanup(&Builds, &running).expect("is cleaned up");
    let (reason, note) = &host.events()[0];
    assert_eq!(reason, "Orphaned");
    assert!(
        note.contains("build 42") && note.contains("http://before"),
        "{note}"
    );
    host.forget();
    let answer = host.reconcile(&Builds, &running);
    assert_eq!(condition_reason(&answer, "Ready"), "BuildVanished");
    assert!(host.requests().is_empty() && host.subscriptions().is_empty());
}

#[test]
fn attempt_on_another_server_is_not_searched_for() {
    let host = create_host();
    let mut lost = build("b", json!({}));
    lost["status"] = json!({
        "trigger": {"after": 3, "at": 0, "state": "Unknown"}, "claimedServer": "http://before",
    });
    host.put(lost.clone());
    let triggered = host.reconcile(&Builds, &lost);
    assert_eq!(host.events()[0].0, "Orphaned");
    assert_eq!(
        host.requests(),
        [
            format!("GET {PIPELINE}/builds?limit=1"),
            format!("POST {}", builds_path(""))
        ]
    );
    assert_eq!(status(&triggered)["buildID"], 42);
    assert_eq!(status(&triggered)["claimedServer"], "http://ci");
}
