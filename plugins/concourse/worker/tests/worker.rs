//! Tests of the Worker reconciler against the in-memory host of the SDK.

use concourse_worker::Workers;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{ConditionStatus, Failure, Next, Outcome, Resolution};

const LIST: &str = "/api/v1/workers";
/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn worker(lifecycle: &str) -> Value {
    json!({
        "metadata": { "name": "w1", "namespace": "apps" },
        "spec": { "instanceRef": { "name": "ci", "namespace": "infra" }, "lifecycle": lifecycle },
    })
}

fn cluster(allowed: &str) -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Instance",
        "metadata": { "name": "ci", "namespace": "infra" },
        "spec": { "url": "http://ci", "auth": {}, "allowedNamespaces": [allowed] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    }));
    host
}

fn list(state: &str) -> Value {
    json!([
        { "name": "w0", "state": "running", "team": "" },
        {
            "name": "w1", "state": state, "team": "platform", "platform": "linux", "tags": ["big"],
            "active_containers": 2, "active_volumes": 4, "active_tasks": 1, "version": "3.0",
            "start_time": 1_000_000_000, "ephemeral": true, "resource_types": [{ "type": "git", "image": "x" }],
        },
    ])
}

/// A host whose list shows the worker in these states, one after another.
fn showing(states: &[&str]) -> MockHost {
    let host = cluster("apps");
    let answers = states.iter().map(|state| Ok(response(200, &[], list(state))));
    host.answers("GET", LIST, answers.collect::<Vec<_>>());
    host
}

fn conditions(outcome: &Outcome) -> Vec<(&str, ConditionStatus, &str)> {
    let all = outcome.conditions.iter();
    all.map(|c| (&*c.type_, c.status, &*c.reason)).collect()
}

fn resolution(failure: &Failure) -> (&str, &Resolution) {
    (&failure.reason, &failure.resolution)
}

fn status(bytes: Option<&[u8]>) -> Value {
    from_slice(bytes.expect("status")).expect("JSON")
}

/// Maximum age of the list that the first request accepts.
fn requested_age(host: &MockHost) -> String {
    host.sent()[0].headers[0].value.clone()
}

#[test]
fn running_worker_costs_one_read_and_no_write() {
    let host = showing(&["running"]);
    let outcome = host.reconcile(&Workers, &worker("Running")).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(120_000)));
    assert_eq!(host.requests(), [format!("GET {LIST}")]);
    assert_eq!(
        conditions(&outcome),
        [
            ("Ready", ConditionStatus::True, "Ready"),
            ("WorkerStalled", ConditionStatus::False, "NotStalled"),
            ("StateTransitioning", ConditionStatus::False, "Converged"),
        ]
    );
    let found = status(outcome.status.as_deref());
    assert_eq!(
        found,
        json!({
            "resolvedName": "w1", "phase": "running", "platform": "linux", "tags": ["big"], "activeContainers": 2,
            "activeVolumes": 4, "activeTasks": 1, "version": "3.0", "startTime": "2001-09-09T01:46:40Z",
            "ephemeral": true, "team": "platform", "resourceTypes": [{ "type": "git" }],
        })
    );
    assert_eq!(requested_age(&host), "max-age=2", "its state is not known yet");
    host.forget();
    let mut known = worker("Running");
    known["status"] = found;
    host.reconcile(&Workers, &known).expect("is ready");
    assert_eq!(requested_age(&host), "max-age=120", "a shared list suffices");
}

#[test]
fn draining_worker_lands_once_with_its_team() {
    let host = showing(&["running", "landing"]);
    host.answer("PUT", "/api/v1/workers/w1/land", 200, Value::Null);
    let outcome = host
        .reconcile(&Workers, &worker("Draining"))
        .expect("is on its way");
    let body: Value = from_slice(host.sent()[1].body.as_deref().expect("a body")).expect("JSON");
    assert_eq!(body, json!({ "team": "platform" }));
    assert_eq!(outcome.next, Next::After(5_000));
    assert_eq!(
        conditions(&outcome)[0],
        ("Ready", ConditionStatus::False, "TransitionPending")
    );
    assert_eq!(
        conditions(&outcome)[2],
        ("StateTransitioning", ConditionStatus::True, "TransitionPending")
    );
    assert_eq!(host.events()[0].0, "Draining");
    for state in ["landing", "landed"] {
        let host = showing(&[state]);
        host.reconcile(&Workers, &worker("Draining"))
            .expect("is looked at");
        assert_eq!(
            host.requests().len(),
            1,
            "no transition is requested in state {state}"
        );
    }
}

#[test]
fn removed_worker_retires_or_is_pruned_by_state() {
    for (state, verb) in [("running", "retire"), ("stalled", "prune"), ("landed", "prune")] {
        let host = cluster("apps");
        let gone = Ok(response(200, &[], json!([])));
        host.answers("GET", LIST, [Ok(response(200, &[], list(state))), gone]);
        host.answer("PUT", &format!("/api/v1/workers/w1/{verb}"), 200, Value::Null);
        let outcome = host.reconcile(&Workers, &worker("Removed")).expect("is gone");
        assert_eq!(
            conditions(&outcome)[0],
            ("Ready", ConditionStatus::True, "Removed"),
            "from {state}"
        );
        assert_eq!(status(outcome.status.as_deref())["phase"], "missing");
        host.forget();
        host.reconcile(&Workers, &worker("Removed")).expect("stays gone");
        assert_eq!(host.requests(), [format!("GET {LIST}")]);
    }
}

#[test]
fn obstacles_are_reported_in_conditions_and_failures() {
    let host = showing(&["stalled"]);
    let outcome = host
        .reconcile(&Workers, &worker("Running"))
        .expect("is looked at");
    assert_eq!(
        conditions(&outcome)[0],
        ("Ready", ConditionStatus::False, "TransitionPending")
    );
    assert_eq!(
        conditions(&outcome)[1],
        ("WorkerStalled", ConditionStatus::True, "WorkerStalled")
    );
    assert_eq!(host.events()[0].0, "WorkerStalled");

    let host = showing(&["landed"]);
    let outcome = host
        .reconcile(&Workers, &worker("Running"))
        .expect("is looked at");
    assert_eq!(
        conditions(&outcome)[0],
        ("Ready", ConditionStatus::False, "NotRunning")
    );

    let host = cluster("apps");
    host.answer("GET", LIST, 200, json!([]));
    for lifecycle in ["Running", "Draining"] {
        let failure = host.reconcile(&Workers, &worker(lifecycle)).expect_err("waits");
        assert_eq!(resolution(&failure), ("WorkerNotFound", &Resolution::Wait));
        assert_eq!(status(failure.status.as_deref())["phase"], "missing");
    }

    let host = showing(&["landed"]);
    let refusal = json!({ "stderr": "cannot prune running worker" });
    host.answer("PUT", "/api/v1/workers/w1/prune", 400, refusal);
    let failure = host.reconcile(&Workers, &worker("Removed")).expect_err("refused");
    assert_eq!(resolution(&failure), ("TransitionFailed", &Resolution::Retry));
    assert!(
        failure.message.contains("cannot prune running worker"),
        "{}",
        failure.message
    );
    assert_eq!(host.events()[0].0, "PruneFailed");

    let host = cluster("others");
    let failure = host
        .reconcile(&Workers, &worker("Running"))
        .expect_err("not allowed");
    assert_eq!(
        resolution(&failure),
        ("NamespaceNotAllowed", &Resolution::Terminal)
    );
    let host = MockHost::new();
    let failure = host.reconcile(&Workers, &worker("Running")).expect_err("waits");
    assert_eq!(resolution(&failure), ("InstanceNotReady", &Resolution::Wait));
    assert!(host.requests().is_empty());
}

#[test]
fn response_of_a_proxy_is_neither_a_list_nor_a_transition() {
    for status in [200, 404] {
        let host = cluster("apps");
        host.set_response_headers(&[])
            .answer("GET", LIST, status, json!([]));
        let failure = host
            .reconcile(&Workers, &worker("Removed"))
            .expect_err("is retried");
        assert_eq!(resolution(&failure), ("ListFailed", &Resolution::Retry));

        let host = showing(&["landed"]);
        host.set_response_headers(&[])
            .answer("PUT", "/api/v1/workers/w1/prune", status, Value::Null);
        let failure = host
            .reconcile(&Workers, &worker("Removed"))
            .expect_err("is retried");
        assert_eq!(resolution(&failure), ("TransitionFailed", &Resolution::Retry));
    }
}

#[test]
fn status_of_a_former_build_is_replaced() {
    let host = showing(&["running"]);
    let mut former = worker("Running");
    former["status"] = json!({ "phase": "running", "resourceTypes": ["git", "time"] });
    let outcome = host.reconcile(&Workers, &former).expect("is ready");
    assert_eq!(
        status(outcome.status.as_deref())["resourceTypes"],
        json!([{ "type": "git" }])
    );
    assert_eq!(requested_age(&host), "max-age=120", "the phase was read");
}
