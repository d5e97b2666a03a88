//! Tests of the Resource reconciler against the in-memory host of the SDK.

use concourse_resource::Resources;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{ConditionStatus, Failure, Next, Outcome, Resolution, gvk};

const PATH: &str = "/api/v1/teams/alpha/pipelines/demo/resources/source";
const A: &str = "versions?limit=50&filter=ref%3Aa";

/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn resource(spec: Value, status: Value) -> Value {
    let mut spec = spec;
    spec["pipelineRef"] = json!({ "name": "demo" });
    json!({ "metadata": { "name": "source", "namespace": "apps" }, "spec": spec, "status": status })
}

fn ready(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
        "metadata": { "name": name, "namespace": "apps" }, "spec": spec,
        "status": { "webURL": "http://ci/p", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// A host whose Concourse shows the resource with these additional fields.
fn create_host(more: Value) -> MockHost {
    let host = MockHost::new();
    host.set_now(1_000_000_000_000).set_response_headers(VERSION);
    host.put(ready(
        "Pipeline",
        "demo",
        json!({ "teamRef": { "name": "alpha" }, "config": { "inline": "jobs: []" } }),
    ));
    host.put(ready("Team", "alpha", json!({ "instanceRef": { "name": "ci" } })));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "ci", "namespace": "apps" }, "spec": { "url": "http://ci" },
    }));
    show(&host, more);
    let latest = json!([{ "id": 2, "version": { "ref": "b" }, "enabled": true }]);
    host.answer("GET", &format!("{PATH}/versions?limit=1"), 200, latest);
    host
}

fn shown(more: Value) -> Value {
    let mut shown = json!({ "name": "source", "type": "git", "last_checked": 1_000_000_000 });
    for (key, value) in more.as_object().expect("fields") {
        shown[key] = value.clone();
    }
    shown
}

fn show(host: &MockHost, more: Value) {
    host.answer("GET", PATH, 200, shown(more));
}

fn reads() -> Vec<String> {
    vec![format!("GET {PATH}"), format!("GET {PATH}/versions?limit=1")]
}

fn status(bytes: Option<&[u8]>) -> Value {
    from_slice(bytes.expect("status")).expect("JSON")
}

fn condition(outcome: &Outcome, kind: &str) -> (ConditionStatus, String) {
    let found = outcome.conditions.iter().find(|c| c.type_ == kind);
    let found = found.expect("a condition");
    (found.status, found.reason.clone())
}

fn resolution(failure: &Failure) -> (&str, &Resolution) {
    (&failure.reason, &failure.resolution)
}

#[test]
fn unchanged_resource_costs_two_reads_and_no_write() {
    let host = create_host(json!({ "build": { "id": 4, "status": "succeeded" } }));
    let outcome = host
        .reconcile(&Resources, &resource(json!({}), Value::Null))
        .expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    assert_eq!(host.requests(), reads());
    assert_eq!(
        condition(&outcome, "CheckHealthy"),
        (ConditionStatus::True, "CheckSucceeded".into())
    );
    assert_eq!(
        status(outcome.status.as_deref()),
        json!({
            "resolvedName": "source", "webURL": "http://ci/p/resources/source", "type": "git",
            "lastChecked": "2001-09-09T01:46:40Z", "latestVersion": { "ref": "b" }, "pinned": false,
            "pinnedInConfig": false, "checkBuildID": 4, "checkStatus": "succeeded",
        })
    );
}

#[test]
fn version_is_pinned_with_comment_and_unpinned() {
    let host = create_host(json!({}));
    let found = json!([{ "id": 1, "version": { "ref": "a", "branch": "main" }, "enabled": true }]);
    host.answer("GET", &format!("{PATH}/{A}"), 200, found);
    host.answer("PUT", &format!("{PATH}/versions/1/pin"), 200, Value::Null);
    host.answer("PUT", &format!("{PATH}/pin_comment"), 200, Value::Null);
    let spec = json!({ "pinnedVersion": { "ref": "a" }, "pinComment": "good" });
    let outcome = host
        .reconcile(&Resources, &resource(spec.clone(), Value::Null))
        .expect("is ready");
    let version = json!({ "ref": "a", "branch": "main" });
    assert_eq!(
        host.checkpoints(),
        [json!({
            "pinOwned": true, "pinnedVersion": version, "pinnedVersionID": 1, "claimedServer": "http://ci",
        })]
    );
    assert_eq!(
        host.requests()[3..],
        [
            format!("PUT {PATH}/versions/1/pin"),
            format!("PUT {PATH}/pin_comment")
        ]
    );
    assert_eq!(host.events()[0].0, "Pinned");
    let first = status(outcome.status.as_deref());
    assert_eq!(
        (&first["pinned"], &first["pinOwned"]),
        (&json!(true), &json!(true))
    );

    host.forget();
    show(&host, json!({ "pinned_version": version, "pin_comment": "good" }));
    let outcome = host
        .reconcile(&Resources, &resource(spec, first.clone()))
        .expect("is ready");
    assert_eq!(host.requests(), reads(), "it is pinned");
    assert_eq!(status(outcome.status.as_deref()), first);

    host.forget();
    host.answer("PUT", &format!("{PATH}/unpin"), 200, Value::Null);
    let outcome = host
        .reconcile(&Resources, &resource(json!({}), first))
        .expect("is ready");
    assert_eq!(host.requests()[2..], [format!("PUT {PATH}/unpin")]);
    let last = status(outcome.status.as_deref());
    assert_eq!(
        (&last["pinOwned"], &last["claimedServer"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn pin_of_another_user_is_kept() {
    let host = create_host(json!({ "pinned_version": { "ref": "b" }, "pin_comment": "theirs" }));
    let ours = json!({ "pinOwned": true, "pinnedVersion": { "ref": "a" }, "pinnedVersionID": 1 });
    let outcome = host
        .reconcile(&Resources, &resource(json!({}), ours.clone()))
        .expect("is ready");
    assert_eq!(host.requests(), reads());
    assert_eq!(status(outcome.status.as_deref())["pinOwned"], Value::Null);
    host.cleanup(&Resources, &resource(json!({}), ours))
        .expect("is cleaned up");
    assert!(host.requests().iter().all(|r| r.starts_with("GET")));
}

#[test]
fn impossible_pin_fails_with_cause() {
    let wanted = || resource(json!({ "pinnedVersion": { "ref": "a" } }), Value::Null);
    let host = create_host(json!({ "pinned_version": { "ref": "b" }, "pinned_in_config": true }));
    let failure = host.reconcile(&Resources, &wanted()).expect_err("refused");
    assert_eq!(resolution(&failure), ("PinFailed", &Resolution::Terminal));
    assert!(
        failure.message.contains("config pins {ref: b}"),
        "{}",
        failure.message
    );
    assert_eq!(status(failure.status.as_deref())["pinnedInConfig"], true);

    let host = create_host(json!({}));
    host.answer("GET", &format!("{PATH}/{A}"), 200, json!([]));
    let failure = host.reconcile(&Resources, &wanted()).expect_err("waits");
    assert_eq!(resolution(&failure), ("PinFailed", &Resolution::Wait));
    let two = json!([{ "id": 1, "version": { "ref": "a", "x": "1" } }, { "id": 2, "version": { "ref": "a", "x": "2" } }]);
    host.answer("GET", &format!("{PATH}/{A}"), 200, two);
    let failure = host.reconcile(&Resources, &wanted()).expect_err("which?");
    assert_eq!(resolution(&failure), ("PinFailed", &Resolution::Terminal));

    host.answer(
        "GET",
        &format!("{PATH}/{A}"),
        200,
        json!([{ "id": 1, "version": { "ref": "a" } }]),
    );
    host.answer(
        "PUT",
        &format!("{PATH}/versions/1/pin"),
        409,
        "action not allowed for an archived pipeline\n",
    );
    let failure = host.reconcile(&Resources, &wanted()).expect_err("waits");
    assert_eq!(resolution(&failure), ("PipelineArchived", &Resolution::Wait));
    host.answer("GET", PATH, 404, Value::Null);
    let failure = host.reconcile(&Resources, &wanted()).expect_err("waits");
    assert_eq!(resolution(&failure), ("ResourceNotFound", &Resolution::Wait));
}

#[test]
fn versions_are_disabled_and_enabled_again() {
    let host = create_host(json!({}));
    let path = format!("{PATH}/versions?limit=100&filter=ref%3Aa");
    let found = json!([{ "id": 1, "version": { "ref": "a" }, "enabled": true }, { "id": 7, "version": { "ref": "a" }, "enabled": false }]);
    host.answer("GET", &path, 200, found);
    host.answer(
        "GET",
        &format!("{PATH}/versions?limit=100&filter=ref%3Anone"),
        200,
        json!([]),
    );
    host.answer("PUT", &format!("{PATH}/versions/1/disable"), 200, Value::Null);
    let spec = json!({ "disabledVersions": [{ "ref": "a" }, { "ref": "none" }] });
    let outcome = host
        .reconcile(&Resources, &resource(spec, Value::Null))
        .expect("is ready");
    assert!(
        host.requests()
            .contains(&format!("PUT {PATH}/versions/1/disable"))
    );
    let claim = json!({ "disabledVersionIDs": [1], "claimedServer": "http://ci" });
    assert_eq!(host.checkpoints(), [claim]);
    let first = status(outcome.status.as_deref());
    assert_eq!(
        first["disabledVersionIDs"],
        json!([1]),
        "another user disabled the other one"
    );
    assert!(outcome.conditions[0].message.contains("{ref: none}"));

    host.forget();
    host.answer("PUT", &format!("{PATH}/versions/1/enable"), 200, Value::Null);
    let outcome = host
        .reconcile(&Resources, &resource(json!({}), first.clone()))
        .expect("is ready");
    assert_eq!(host.requests()[2..], [format!("PUT {PATH}/versions/1/enable")]);
    assert_eq!(
        status(outcome.status.as_deref())["disabledVersionIDs"],
        Value::Null
    );
    host.forget();
    host.cleanup(&Resources, &resource(json!({}), first))
        .expect("is cleaned up");
    assert_eq!(host.requests(), [format!("PUT {PATH}/versions/1/enable")]);
}

#[test]
fn check_now_annotation_starts_check_and_follows_it() {
    let host = create_host(json!({ "build": { "id": 4, "status": "succeeded" } }));
    host.answer(
        "POST",
        &format!("{PATH}/check"),
        201,
        json!({ "id": 5, "status": "started" }),
    );
    let mut asked = resource(json!({}), Value::Null);
    asked["metadata"]["annotations"] = json!({ "concourse-ci.org/check-now": "1" });
    let outcome = host.reconcile(&Resources, &asked).expect("is ready");
    assert_eq!(outcome.next, Next::After(1000));
    assert_eq!(
        condition(&outcome, "CheckHealthy").0,
        ConditionStatus::True,
        "the last check that ended counts"
    );
    asked["status"] = status(outcome.status.as_deref());
    assert_eq!(asked["status"]["runningCheckID"], 5);

    host.forget();
    host.set_now(1_000_000_009_000);
    host.answer(
        "GET",
        "/api/v1/builds/5",
        200,
        json!({ "id": 5, "status": "started" }),
    );
    let outcome = host.reconcile(&Resources, &asked).expect("is ready");
    assert_eq!(outcome.next, Next::After(9000), "it lasts longer");
    host.answer(
        "GET",
        "/api/v1/builds/5",
        200,
        json!({ "id": 5, "status": "errored" }),
    );
    let outcome = host.reconcile(&Resources, &asked).expect("is ready");
    assert_eq!(
        condition(&outcome, "CheckHealthy"),
        (ConditionStatus::False, "CheckFailed".into())
    );
    assert_eq!(outcome.next, Next::Poll(Some(300_000)), "once is enough");
    assert!(host.requests().iter().all(|r| !r.starts_with("POST")));

    // Concourse deletes the build of a check early.
    host.answer("GET", "/api/v1/builds/5", 404, Value::Null);
    show(&host, json!({ "build": { "id": 5, "status": "succeeded" } }));
    let outcome = host.reconcile(&Resources, &asked).expect("is ready");
    assert_eq!(condition(&outcome, "CheckHealthy").0, ConditionStatus::True);
}

#[test]
fn checks_are_started_at_interval() {
    let host = create_host(json!({}));
    host.answer(
        "POST",
        &format!("{PATH}/check"),
        201,
        json!({ "id": 5, "status": "succeeded" }),
    );
    let spec = json!({ "checkInterval": "1m" });
    let outcome = host
        .reconcile(&Resources, &resource(spec.clone(), Value::Null))
        .expect("is ready");
    let first = status(outcome.status.as_deref());
    assert_eq!(first["checkRequested"], "2001-09-09T01:46:40Z");
    host.forget();
    host.set_now(1_000_000_020_000);
    let outcome = host
        .reconcile(&Resources, &resource(spec.clone(), first.clone()))
        .expect("is ready");
    assert_eq!((outcome.next, host.requests()), (Next::After(40_000), reads()));
    host.set_now(1_000_000_060_000);
    host.answer("POST", &format!("{PATH}/check"), 500, "no worker");
    let outcome = host
        .reconcile(&Resources, &resource(spec, first))
        .expect("is ready all the same");
    assert_eq!(
        condition(&outcome, "CheckHealthy"),
        (ConditionStatus::False, "CheckFailed".into())
    );
    assert_eq!(
        (outcome.next, host.events()[0].0.as_str()),
        (Next::After(60_000), "CheckFailed")
    );
}

#[test]
fn pending_pin_is_retried_after_running_check() {
    let host = create_host(json!({}));
    host.answer("GET", &format!("{PATH}/{A}"), 200, json!([]));
    host.answer(
        "POST",
        &format!("{PATH}/check"),
        201,
        json!({ "id": 5, "status": "started" }),
    );
    let spec = json!({ "pinnedVersion": { "ref": "a" }, "checkInterval": "1m" });
    let failure = host
        .reconcile(&Resources, &resource(spec, Value::Null))
        .expect_err("waits");
    assert_eq!(resolution(&failure), ("PinFailed", &Resolution::Throttled(1000)));
    assert_eq!(status(failure.status.as_deref())["runningCheckID"], 5);
}

#[test]
fn cleanup_undoes_only_owned_changes() {
    let ours = || {
        resource(
            json!({}),
            json!({ "pinOwned": true, "pinnedVersion": { "ref": "a" } }),
        )
    };
    let pinned = json!({ "pinned_version": { "ref": "a" } });
    let host = create_host(pinned.clone());
    host.answer("PUT", &format!("{PATH}/unpin"), 200, Value::Null);
    host.cleanup(&Resources, &ours()).expect("is cleaned up");
    assert_eq!(
        host.requests(),
        [format!("GET {PATH}"), format!("PUT {PATH}/unpin")]
    );

    host.answer("PUT", &format!("{PATH}/unpin"), 409, "archived");
    host.cleanup(&Resources, &ours()).expect("is cleaned up");
    assert_eq!(host.events()[0].0, "Orphaned");
    host.answer("PUT", &format!("{PATH}/unpin"), 503, "down");
    let failure = host.cleanup(&Resources, &ours()).expect_err("is retried");
    assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Retry));

    host.answers("GET", PATH, [Ok(response(404, &[], Value::Null))]);
    host.cleanup(&Resources, &ours()).expect("the resource is gone");
    host.forget();
    host.cleanup(&Resources, &resource(json!({}), Value::Null))
        .expect("there is nothing to undo");
    assert!(host.requests().is_empty());
    host.remove(&gvk("concourse-ci.org", "v1alpha1", "Pipeline").named("apps", "demo"));
    host.cleanup(&Resources, &ours()).expect("is cleaned up");
    assert_eq!(host.events()[0].0, "Orphaned");
}

#[test]
fn response_of_a_proxy_does_not_end_a_deletion() {
    let pinned = resource(
        json!({}),
        json!({ "pinOwned": true, "pinnedVersion": { "ref": "a" } }),
    );
    let disabled = resource(json!({}), json!({ "disabledVersionIDs": [1] }));
    let unpin = format!("{PATH}/unpin");
    let enable = format!("{PATH}/versions/1/enable");
    for (object, method, path) in [
        (&pinned, "GET", PATH),
        (&pinned, "PUT", &unpin),
        (&disabled, "PUT", &enable),
    ] {
        for status in [200, 404] {
            let host = create_host(json!({ "pinned_version": { "ref": "a" } }));
            host.set_response_headers(&[])
                .answer(method, path, status, json!({}));
            let failure = host.cleanup(&Resources, object).expect_err("is retried");
            assert_eq!(
                resolution(&failure),
                ("DeleteFailed", &Resolution::Retry),
                "{method} {path} {status}"
            );
        }
    }
}

#[test]
fn response_of_a_proxy_leaves_versions_disabled() {
    for status in [200, 404] {
        let host = create_host(json!({}));
        let enable = format!("{PATH}/versions/1/enable");
        host.set_response_headers(&[])
            .answer("PUT", &enable, status, Value::Null);
        let ours = json!({ "disabledVersionIDs": [1], "claimedServer": "http://ci" });
        let failure = host
            .reconcile(&Resources, &resource(json!({}), ours))
            .expect_err("is retried");
        assert_eq!(resolution(&failure), ("EnableFailed", &Resolution::Retry));
        let kept = self::status(failure.status.as_deref());
        assert_eq!(kept["disabledVersionIDs"], json!([1]));
    }
}

#[test]
fn changes_on_another_server_are_neither_undone_nor_owned() {
    let elsewhere = json!({
        "pinOwned": true, "pinnedVersion": { "ref": "a" }, "pinnedVersionID": 1, "disabledVersionIDs": [1, 2],
        "claimedServer": "http://before",
    });
    // A version that has the same ID, and is pinned by another user.
    let host = create_host(json!({ "pinned_version": { "ref": "a" } }));
    host.cleanup(&Resources, &resource(json!({}), elsewhere.clone()))
        .expect("is cleaned up");
    assert!(host.requests().is_empty());
    let (reason, note) = &host.events()[0];
    assert_eq!(reason, "Orphaned");
    assert!(
        note.contains("resource source") && note.contains("http://before"),
        "{note}"
    );

    host.forget();
    let outcome = host
        .reconcile(&Resources, &resource(json!({}), elsewhere))
        .expect("is ready");
    assert_eq!(host.requests(), reads(), "nothing is unpinned or enabled");
    assert_eq!(host.events()[0].0, "Orphaned");
    let after = status(outcome.status.as_deref());
    for field in [
        "pinOwned",
        "pinnedVersionID",
        "disabledVersionIDs",
        "claimedServer",
    ] {
        assert_eq!(after[field], Value::Null, "{field}");
    }
}
