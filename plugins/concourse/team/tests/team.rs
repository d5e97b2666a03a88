//! Tests of the Team reconciler against the in-memory host of the SDK.

use concourse_team::Teams;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Error, Failure, Next, Resolution, gvk};

const PATH: &str = "/api/v1/teams/alpha";
/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn team() -> Value {
    json!({
        "metadata": { "name": "alpha", "namespace": "apps" },
        "spec": {
            "instanceRef": { "name": "ci", "namespace": "infra" },
            "roles": [
                { "role": "owner", "users": ["local:b", "local:a"] },
                { "role": "pipeline-operator", "groups": ["github:o:t"] },
            ],
        },
    })
}

fn with(key: &str, value: impl Into<Value>) -> Value {
    let mut team = team();
    team["spec"][key] = value.into();
    team
}

/// `team()` as it is after it was written.
fn claimed() -> Value {
    let mut team = team();
    team["status"] = json!({ "teamID": 7, "resolvedName": "alpha", "claimedServer": "http://ci" });
    team
}

fn auth() -> Value {
    json!({
        "owner": { "users": ["local:a", "local:b"], "groups": null },
        "pipeline-operator": { "users": [], "groups": ["github:o:t"] },
    })
}

fn cluster(ready: &str) -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.set_now(1_000_000_000_000).put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Instance",
        "metadata": { "name": "ci", "namespace": "infra" },
        "spec": { "url": "http://ci", "auth": {}, "allowedNamespaces": ["apps"] },
        "status": {
            "webURL": "http://ci",
            "conditions": [{ "type": "Ready", "status": ready, "reason": "R", "message": "because" }],
        },
    }));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "ci", "namespace": "infra" }, "spec": { "url": "http://ci" },
    }));
    host
}

fn instance() -> ostler_sdk::ObjectRef {
    gvk("concourse-ci.org", "v1alpha1", "Instance").named("infra", "ci")
}

fn resolution(failure: &Failure) -> (&str, &Resolution) {
    (&failure.reason, &failure.resolution)
}

#[test]
fn missing_team_is_created_once() {
    let host = cluster("True");
    host.answer("GET", PATH, 404, Value::Null);
    host.answer(
        "PUT",
        PATH,
        201,
        json!({
            "team": { "id": 7, "name": "alpha" }, "warnings": [{ "type": "x", "message": "odd name" }],
        }),
    );
    let outcome = host.reconcile(&Teams, &team()).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    assert_eq!(host.requests(), [format!("GET {PATH}"), format!("PUT {PATH}")]);
    let claim = json!({ "claimedServer": "http://ci", "resolvedName": "alpha", "teamID": null });
    assert_eq!(host.checkpoints(), [claim], "before the write");
    let sent: Value = from_slice(host.sent()[1].body.as_deref().expect("a body")).expect("JSON");
    assert_eq!(
        sent["auth"]["owner"],
        json!({ "users": ["local:a", "local:b"], "groups": [] })
    );
    let status: Value = from_slice(outcome.status.as_deref().expect("status")).expect("JSON");
    assert_eq!(
        status,
        json!({
            "teamID": 7, "resolvedName": "alpha", "webURL": "http://ci/teams/alpha", "claimedServer": "http://ci",
            "lastApplied": "2001-09-09T01:46:40Z", "warnings": ["odd name"],
        })
    );

    host.forget();
    host.set_now(2_000_000_000_000);
    host.answer("GET", PATH, 200, json!({ "id": 7, "auth": auth() }));
    let mut object = team();
    object["status"] = status;
    let again = host.reconcile(&Teams, &object).expect("is ready");
    assert_eq!(
        host.requests(),
        [format!("GET {PATH}")],
        "order and null have no meaning"
    );
    assert_eq!(again.status, outcome.status);
    assert_eq!(again.conditions, outcome.conditions, "the warning is kept");
}

#[test]
fn different_roles_are_written() {
    let host = cluster("True");
    let mut auth = auth();
    auth["viewer"] = json!({ "users": ["local:x"] });
    host.answer("GET", PATH, 200, json!({ "id": 7, "auth": auth }));
    host.answer("PUT", PATH, 200, json!({ "team": { "id": 7 } }));
    host.reconcile(&Teams, &team()).expect("is ready");
    assert_eq!(host.requests().len(), 2);
}

#[test]
fn failures_have_distinct_reasons_and_resolutions() {
    let host = cluster("False");
    let failure = host.reconcile(&Teams, &team()).expect_err("waits");
    assert_eq!(resolution(&failure), ("InstanceNotReady", &Resolution::Wait));
    assert!(failure.message.contains("because"), "{}", failure.message);

    let host = cluster("True");
    let mut elsewhere = team();
    elsewhere["metadata"]["namespace"] = "foreign".into();
    let failure = host.reconcile(&Teams, &elsewhere).expect_err("not allowed");
    assert_eq!(
        resolution(&failure),
        ("NamespaceNotAllowed", &Resolution::Terminal)
    );

    for roles in [json!([]), json!([{ "role": "owner" }])] {
        let failure = host.reconcile(&Teams, &with("roles", roles)).expect_err("wrong");
        assert_eq!(resolution(&failure), ("InvalidSpec", &Resolution::Terminal));
    }

    host.answer("GET", PATH, 503, "down for maintenance");
    let failure = host.reconcile(&Teams, &team()).expect_err("down");
    assert_eq!(resolution(&failure), ("CreateOrUpdateFailed", &Resolution::Retry));
    assert!(failure.message.contains("503"), "{}", failure.message);
    assert!(
        host.requests().iter().all(|r| r.starts_with("GET")),
        "nothing was written"
    );
}

#[test]
fn cleanup_deletes_team_and_accepts_not_found() {
    let shown = json!({ "id": 7, "auth": auth() });
    for status in [204, 404] {
        let host = cluster("False");
        host.answer("GET", PATH, 200, shown.clone());
        host.answer("DELETE", PATH, status, Value::Null);
        assert_eq!(
            host.cleanup(&Teams, &claimed()).expect("is cleaned up").next,
            Next::AwaitChange
        );
        assert_eq!(host.requests(), [format!("GET {PATH}"), format!("DELETE {PATH}")]);
    }
    for answer in [
        Ok(ostler_sdk::mock::response(500, &[], "oops")),
        Err(Error::Unavailable("connection refused".into())),
    ] {
        let host = cluster("True");
        host.answer("GET", PATH, 200, shown.clone());
        host.answers("DELETE", PATH, [answer]);
        let failure = host.cleanup(&Teams, &claimed()).expect_err("is retried");
        assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Retry));
    }
}

#[test]
fn cleanup_sends_no_request_without_claim() {
    let host = cluster("True");
    host.deny("http.send");
    for name in ["alpha", "main"] {
        let outcome = host
            .cleanup(&Teams, &with("teamName", name))
            .expect("is cleaned up");
        assert_eq!(outcome.next, Next::AwaitChange);
    }
    assert!(host.events().is_empty());
    host.cleanup(&Teams, &claimed()).expect_err("the claim stays");
}

#[test]
fn refused_first_write_leaves_no_claim() {
    let host = cluster("True");
    host.answer("GET", PATH, 200, json!({ "id": 9 }));
    host.answer("PUT", PATH, 403, "forbidden");
    let failure = host.reconcile(&Teams, &team()).expect_err("refused");
    // A team that exists is claimed when it has been written.
    assert!(host.checkpoints().is_empty());
    let mut refused = team();
    refused["status"] = from_slice(failure.status.as_deref().expect("a status")).expect("JSON");
    host.forget();
    host.cleanup(&Teams, &refused).expect("is cleaned up");
    assert!(host.requests().is_empty());
}

#[test]
fn cleanup_keeps_team_with_another_id_or_server() {
    let host = cluster("True");
    host.answer("GET", PATH, 200, json!({ "id": 8 }));
    host.cleanup(&Teams, &claimed()).expect("is cleaned up");
    assert_eq!(host.requests(), [format!("GET {PATH}")], "it was made anew");

    let mut elsewhere = claimed();
    elsewhere["status"]["claimedServer"] = "http://before".into();
    host.forget();
    host.cleanup(&Teams, &elsewhere).expect("is cleaned up");
    assert!(host.requests().is_empty());
    let (reason, note) = &host.events()[0];
    assert_eq!(reason, "Orphaned");
    assert!(
        note.contains("team alpha") && note.contains("http://before"),
        "{note}"
    );
}

#[test]
fn cleanup_compares_claim_with_server_of_requests() {
    // The Instance's URL was changed, and the Upstream has still the one before: the Instance is suspended.
    let host = cluster("True");
    let mut suspended = host.object(&instance()).expect("an Instance");
    suspended["spec"]["url"] = "http://later".into();
    host.put(suspended);
    host.answer("GET", PATH, 200, json!({ "id": 7 }));
    host.answer("DELETE", PATH, 204, Value::Null);
    host.cleanup(&Teams, &claimed()).expect("is cleaned up");
    assert_eq!(host.requests(), [format!("GET {PATH}"), format!("DELETE {PATH}")]);
}

#[test]
fn cleanup_keeps_orphaned_and_main_team() {
    let claimed = |key: &str, value: Value| {
        let mut team = with(key, value);
        let name = team["spec"]["teamName"].as_str().unwrap_or("alpha").to_owned();
        team["status"] = json!({ "teamID": 7, "resolvedName": name });
        team
    };
    let host = cluster("True");
    host.cleanup(&Teams, &claimed("reclaimPolicy", "Orphan".into()))
        .expect("is cleaned up");
    assert_eq!(host.events()[0].0, "Orphaned");
    assert!(host.requests().is_empty());

    let main = claimed("teamName", "main".into());
    let failure = host.cleanup(&Teams, &main).expect_err("refused");
    assert_eq!(resolution(&failure), ("DeleteRefused", &Resolution::Terminal));
    let mut allowed = main;
    allowed["spec"]["allowDestroy"] = true.into();
    host.answer("GET", "/api/v1/teams/main", 200, json!({ "id": 7 }));
    host.answer("DELETE", "/api/v1/teams/main", 204, Value::Null);
    host.cleanup(&Teams, &allowed).expect("is cleaned up");
}

#[test]
fn cleanup_waits_for_pipelines() {
    let host = cluster("True");
    let pipeline = |name: &str, namespace: &str, status: Value| {
        json!({
            "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Pipeline",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "teamRef": { "name": "alpha", "namespace": "apps" } }, "status": status,
        })
    };
    host.put(pipeline("own", "apps", Value::Null))
        .put(pipeline("used", "other", json!({ "claimedServer": "http://ci" })))
        .put(pipeline("old", "other", json!({ "pipelineID": 4 })))
        .put(pipeline("foreign", "other", json!({ "conditions": [] })));
    for policy in ["Delete", "Orphan"] {
        let failure = host
            .cleanup(&Teams, &with("reclaimPolicy", policy))
            .expect_err("waits");
        assert_eq!(resolution(&failure), ("PipelinesRemain", &Resolution::Wait));
        let names = "apps/own, other/old, other/used.";
        assert!(failure.message.contains(names), "{}", failure.message);
    }
}

#[test]
fn cleanup_does_not_wait_for_foreign_pipeline_without_claim() {
    let host = cluster("True");
    host.put(json!({
        "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Pipeline",
        "metadata": { "name": "p", "namespace": "other" },
        "spec": { "teamRef": { "name": "alpha", "namespace": "apps" } },
        "status": { "conditions": [{ "type": "Ready", "status": "False" }] },
    }));
    host.cleanup(&Teams, &team()).expect("is cleaned up");
}

#[test]
fn response_of_a_proxy_does_not_end_a_deletion() {
    let shown = json!({ "id": 7, "auth": auth() });
    for (method, status, body) in [
        ("GET", 404, Value::Null),
        ("GET", 200, json!({})),
        ("GET", 200, json!({ "id": 8 })),
        ("DELETE", 404, "default backend - 404".into()),
        ("DELETE", 200, "<html>".into()),
        ("DELETE", 204, Value::Null),
    ] {
        let host = cluster("True");
        host.answer("GET", PATH, 200, shown.clone());
        host.set_response_headers(&[]).answer(method, PATH, status, body);
        let failure = host.cleanup(&Teams, &claimed()).expect_err("is retried");
        assert_eq!(
            resolution(&failure),
            ("DeleteFailed", &Resolution::Retry),
            "{method} {status}"
        );
        assert!(
            failure.message.contains("X-Concourse-Version"),
            "{}",
            failure.message
        );
    }
}

#[test]
fn response_of_a_proxy_neither_creates_nor_confirms_a_team() {
    for (status, body) in [(404, Value::Null), (200, json!({ "id": 7, "auth": auth() }))] {
        let host = cluster("True");
        host.set_response_headers(&[]).answer("GET", PATH, status, body);
        let failure = host.reconcile(&Teams, &team()).expect_err("is retried");
        assert_eq!(resolution(&failure), ("CreateOrUpdateFailed", &Resolution::Retry));
        assert_eq!(host.requests(), [format!("GET {PATH}")]);
        assert!(host.checkpoints().is_empty());
    }
    // Of a write it is not known whether it has reached Concourse, so the claim stays.
    for status in [200, 404] {
        let host = cluster("True");
        host.answer("GET", PATH, 404, Value::Null);
        host.set_response_headers(&[])
            .answer("PUT", PATH, status, json!({}));
        let failure = host.reconcile(&Teams, &team()).expect_err("is retried");
        assert_eq!(resolution(&failure), ("CreateOrUpdateFailed", &Resolution::Retry));
        assert_eq!((host.checkpoints().len(), failure.status), (1, None));
    }
}

#[test]
fn cleanup_with_missing_parent_does_not_block_deletion() {
    let not_found = || Err(Error::NotFound("Upstream infra/ci".into()));
    let host = cluster("True");
    host.remove(&instance()).answers("GET", PATH, [not_found()]);
    host.cleanup(&Teams, &claimed()).expect("is cleaned up");
    assert_eq!(host.events()[0].0, "Orphaned");

    // Instance and Upstream exist, so the credentials are missing.
    let host = cluster("True");
    host.answers("GET", PATH, [not_found()]);
    let failure = host.cleanup(&Teams, &claimed()).expect_err("waits");
    assert_eq!(resolution(&failure), ("DeleteFailed", &Resolution::Wait));
}

#[test]
fn name_set_later_renames_owned_team() {
    const NEW: &str = "/api/v1/teams/beta";
    let mut team = with("teamName", "beta");
    team["status"] = json!({ "teamID": 7, "resolvedName": "alpha" });
    let shown = |name: &str, id: u64| json!({ "id": id, "name": name, "auth": auth() });
    let host = cluster("True");
    host.answers(
        "GET",
        NEW,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], shown("beta", 7))),
        ],
    );
    host.answer("GET", PATH, 200, shown("alpha", 7));
    host.answer("PUT", "/api/v1/teams/alpha/rename", 200, json!({}));
    let outcome = host.reconcile(&Teams, &team).expect("is ready");
    let status: Value = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(
        (&status["teamID"], &status["resolvedName"]),
        (&json!(7), &json!("beta"))
    );
    assert_eq!(host.requests().iter().filter(|r| r.starts_with("PUT")).count(), 1);

    // The former name belongs to another team: it is left alone, and a team is created.
    let host = cluster("True");
    host.answer("GET", NEW, 404, Value::Null);
    host.answer("GET", PATH, 200, shown("alpha", 8));
    host.answer("PUT", NEW, 201, json!({ "team": shown("beta", 9) }));
    host.reconcile(&Teams, &team).expect("is ready");

    // The response to the first write was lost, so its id is not known.
    let mut lost = team.clone();
    lost["status"] = json!({ "claimedServer": "http://ci", "resolvedName": "alpha" });
    let host = cluster("True");
    host.answers(
        "GET",
        NEW,
        [
            Ok(response(404, &[], Value::Null)),
            Ok(response(200, &[], shown("beta", 7))),
        ],
    );
    host.answer("GET", PATH, 200, shown("alpha", 7));
    host.answer("PUT", "/api/v1/teams/alpha/rename", 200, json!({}));
    host.reconcile(&Teams, &lost).expect("is ready");
    assert_eq!(host.events()[0].0, "Renamed");

    // The team is deleted before it was renamed.
    let host = cluster("True");
    host.answer("GET", PATH, 200, shown("alpha", 7));
    host.answer("DELETE", PATH, 204, Value::Null);
    host.cleanup(&Teams, &team).expect("is cleaned up");

    // The team is deleted before the rename was recorded.
    let host = cluster("True");
    host.answer("GET", PATH, 404, Value::Null);
    host.answer("GET", NEW, 200, shown("beta", 7));
    host.answer("DELETE", NEW, 204, Value::Null);
    host.cleanup(&Teams, &team).expect("is cleaned up");
}
