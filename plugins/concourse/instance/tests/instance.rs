//! Tests of the Instance reconciler against the in-memory host of the SDK.

use concourse_instance::Instances;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Condition, ConditionStatus, Error, Failure, Next, Outcome, Resolution, gvk};

/// Header by which a response is recognised as one of Concourse.
const VERSION: &[(&str, &str)] = &[("x-concourse-version", "8.2.5")];

fn instance() -> Value {
    json!({
        "metadata": { "name": "ci", "namespace": "infra" },
        "spec": {
            "url": "https://ci.example.com/",
            "auth": { "password": {
                "username": "ops",
                "passwordRef": { "name": "ci-login", "key": "password" },
            }},
            "tls": { "caRef": { "name": "ca", "key": "ca.crt" } },
            "allowedNamespaces": ["apps"],
            "healthProbeInterval": "2m",
        },
    })
}

fn healthy_host() -> MockHost {
    let host = MockHost::new();
    host.set_response_headers(VERSION);
    host.answer(
        "GET",
        "/api/v1/info",
        200,
        json!({
            "version": "8.2.5", "worker_version": "2.5", "feature_flags": { "build_rerun": true },
            "external_url": "https://ci.example.com", "cluster_name": "prod",
        }),
    )
    .answer(
        "GET",
        "/api/v1/user",
        200,
        json!({ "user_name": "ops", "is_admin": true }),
    )
    .answer(
        "GET",
        "/api/v1/workers",
        200,
        json!([{ "state": "running" }, { "state": "landing" }]),
    )
    .answer("GET", "/api/v1/wall", 200, json!({ "message": "hi", "TTL": 5 }))
    .answer("GET", "/api/v1/teams", 200, json!([{ "name": "main" }]))
    .answer("GET", "/api/v1/pipelines", 200, Value::Null);
    host
}

fn condition<'a>(all: &'a [Condition], kind: &str) -> (ConditionStatus, &'a str) {
    let found = all.iter().find(|c| c.type_ == kind).expect(kind);
    (found.status, &found.reason)
}

fn status(outcome: &Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("has a status")).expect("is JSON")
}

fn failure(host: &MockHost) -> Failure {
    host.reconcile(&Instances, &instance()).expect_err("fails")
}

#[test]
fn healthy_server_is_ready_and_polled() {
    let host = healthy_host();
    let outcome = host.reconcile(&Instances, &instance()).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(120_000)));
    assert_eq!(
        condition(&outcome.conditions, "Ready"),
        (ConditionStatus::True, "Ready")
    );
    assert_eq!(
        condition(&outcome.conditions, "Authenticated"),
        (ConditionStatus::True, "Authenticated")
    );
    assert_eq!(
        condition(&outcome.conditions, "WorkersHealthy"),
        (ConditionStatus::True, "AllRunning")
    );
    assert_eq!(
        condition(&outcome.conditions, "WallActive"),
        (ConditionStatus::True, "WallSet")
    );
    assert_eq!(
        status(&outcome),
        json!({
            "version": "8.2.5", "workerVersion": "2.5", "clusterName": "prod",
            "externalURL": "https://ci.example.com", "webURL": "https://ci.example.com",
            "workerCount": 2, "runningWorkers": 1, "landingWorkers": 1, "stalledWorkers": 0,
            "featureFlags": { "build_rerun": true }, "authenticatedUser": "ops",
            "authenticatedAdmin": true, "wallMessage": "hi", "teamCount": 1,
            "authSecretGeneration": 1,
        })
    );
    assert_eq!(host.writes(), ["apply Upstream ci owned"]);
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("infra", "ci");
    assert_eq!(
        host.object(&upstream).expect("applied")["spec"],
        json!({
            "url": "https://ci.example.com",
            "auth": { "oauth2Password": {
                "tokenPath": "/sky/issuer/token", "clientId": "fly", "clientSecret": "Zmx5",
                "username": "ops",
                "passwordSecretRef": { "name": "ci-login", "key": "password" },
                "scopes": ["openid", "profile", "email", "federated:id", "groups"],
            }},
            "tls": { "caSecretRef": { "name": "ca", "key": "ca.crt" } },
            "allowedNamespaces": ["apps"],
            "timeoutSeconds": 30,
        })
    );
    let again = host.reconcile(&Instances, &instance()).expect("is ready");
    assert_eq!(
        again.status, outcome.status,
        "the same state gives the same bytes"
    );
}

#[test]
fn token_auth_becomes_bearer_upstream() {
    let host = healthy_host();
    let mut object = instance();
    object["spec"]["auth"] = json!({ "token": { "tokenRef": { "name": "t", "key": "k" } } });
    host.reconcile(&Instances, &object).expect("is ready");
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("infra", "ci");
    assert_eq!(
        host.object(&upstream).expect("applied")["spec"]["auth"],
        json!({ "bearer": { "tokenSecretRef": { "name": "t", "key": "k" } } })
    );
}

#[test]
fn probe_distinguishes_refused_unreachable_and_foreign_servers() {
    for status in [401, 403] {
        let host = healthy_host();
        host.answer("GET", "/api/v1/user", status, "not authorized");
        let failure = failure(&host);
        assert_eq!(
            (failure.reason.as_str(), failure.resolution),
            ("AuthenticationFailed", Resolution::Retry)
        );
        assert_eq!(
            condition(&failure.conditions, "Authenticated"),
            (ConditionStatus::False, "AuthenticationFailed")
        );
    }
    let unreachable = || Err(Error::Unavailable("connection refused".into()));
    for answer in [
        unreachable(),
        Ok(response(502, &[], "<html>")),
        Ok(response(200, &[], "<html>")),
        Ok(response(200, &[], "[]")),
        Ok(response(200, &[], r#"{"name": "another server"}"#)),
    ] {
        let host = healthy_host();
        host.answers("GET", "/api/v1/info", [answer]);
        let failure = failure(&host);
        assert_eq!(
            (failure.reason.as_str(), failure.resolution),
            ("InfoFailed", Resolution::Retry)
        );
        assert_eq!(
            condition(&failure.conditions, "Authenticated"),
            (ConditionStatus::Unknown, "InfoFailed")
        );
    }
    let host = healthy_host();
    host.answers(
        "GET",
        "/api/v1/info",
        [Err(Error::NotFound("Secret infra/ci-login".into()))],
    );
    let failure = failure(&host);
    assert_eq!(
        (failure.reason.as_str(), failure.resolution),
        ("AuthenticationFailed", Resolution::Wait)
    );
}

#[test]
fn response_of_a_proxy_is_no_health() {
    for (path, body) in [
        ("info", json!({ "version": "8.2.5" })),
        ("user", json!({ "user_name": "ops", "is_admin": true })),
    ] {
        let host = healthy_host();
        host.set_response_headers(&[])
            .answer("GET", &format!("/api/v1/{path}"), 200, body);
        let failure = failure(&host);
        assert_eq!(failure.reason, "InfoFailed", "{path}");
        assert!(
            failure.message.contains("X-Concourse-Version"),
            "{}",
            failure.message
        );
    }
    let host = healthy_host();
    host.set_response_headers(&[])
        .answer("GET", "/api/v1/workers", 200, json!([]));
    let outcome = host.reconcile(&Instances, &instance()).expect("is ready");
    assert_eq!(
        condition(&outcome.conditions, "WorkersHealthy"),
        (ConditionStatus::Unknown, "ListFailed")
    );
}

#[test]
fn stalled_workers_leave_instance_ready() {
    let host = healthy_host();
    host.answer("GET", "/api/v1/workers", 200, json!([{ "state": "stalled" }]));
    host.answer("GET", "/api/v1/wall", 500, Value::Null);
    let outcome = host.reconcile(&Instances, &instance()).expect("is ready");
    assert_eq!(condition(&outcome.conditions, "Ready").0, ConditionStatus::True);
    assert_eq!(
        condition(&outcome.conditions, "WorkersHealthy"),
        (ConditionStatus::False, "WorkersStalled")
    );
    assert_eq!(
        condition(&outcome.conditions, "WallActive"),
        (ConditionStatus::Unknown, "ListFailed")
    );
}

#[test]
fn numbers_that_cannot_be_read_keep_their_last_value() {
    let host = healthy_host();
    let last = json!({"workerCount": 3, "stalledWorkers": 1, "teamCount": 2, "pipelineCount": 5, "wallMessage": "hi"});
    let mut known = instance();
    known["status"] = last.clone();
    for list in ["workers", "wall", "teams", "pipelines"] {
        host.answer("GET", &format!("/api/v1/{list}"), 500, Value::Null);
    }
    let outcome = host.reconcile(&Instances, &known).expect("is ready");
    let status = status(&outcome);
    for (field, value) in last.as_object().expect("an object") {
        assert_eq!(&status[field.as_str()], value, "{field}");
    }
}

#[test]
fn suspended_instance_sends_no_request() {
    let host = MockHost::new();
    let mut object = instance();
    object["spec"]["suspend"] = true.into();
    let outcome = host.reconcile(&Instances, &object).expect("is suspended");
    assert_eq!(
        condition(&outcome.conditions, "Ready"),
        (ConditionStatus::False, "Suspended")
    );
    assert!(host.writes().is_empty() && host.requests().is_empty());
}

#[test]
fn cleanup_waits_for_teams_of_all_namespaces() {
    let host = MockHost::new();
    let team = |namespace: &str, name: &str, reference: Value| {
        json!({
            "apiVersion": "concourse-ci.org/v1alpha1", "kind": "Team",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "instanceRef": reference },
        })
    };
    let used = |mut team: Value| {
        team["status"] = json!({ "claimedServer": "https://ci.example.com" });
        team
    };
    let remote = || json!({ "name": "ci", "namespace": "infra" });
    host.put(team("infra", "a", json!({ "name": "ci" })))
        .put(used(team("apps", "b", remote())))
        // Of another namespace, and without a claim: anybody may create it.
        .put(team("apps", "foreign", remote()))
        .put(used(team("apps", "other", json!({ "name": "ci" }))));
    let failure = host.cleanup(&Instances, &instance()).expect_err("waits");
    assert_eq!(
        (failure.reason.as_str(), failure.resolution),
        ("TeamsRemain", Resolution::Wait)
    );
    assert!(
        failure.message.contains(": apps/b, infra/a."),
        "{}",
        failure.message
    );

    let teams = || gvk("concourse-ci.org", "v1alpha1", "Team");
    host.remove(&teams().named("infra", "a"))
        .remove(&teams().named("apps", "b"));
    let outcome = host.cleanup(&Instances, &instance()).expect("is cleaned up");
    assert_eq!(outcome.next, Next::AwaitChange);
}

#[test]
fn auth_secret_generation_counts_secret_changes() {
    let host = healthy_host();
    let generation = |object: &Value| {
        let outcome = host.reconcile(&Instances, object).expect("is ready");
        status(&outcome)["authSecretGeneration"].clone()
    };
    let mut object = instance();
    host.secret("ci-login", "password", "digest-1");
    assert_eq!(generation(&object), 1);
    object["status"] = json!({ "authSecretGeneration": 4 });
    assert_eq!(generation(&object), 4);
    host.secret("ci-login", "password", "digest-2");
    assert_eq!(generation(&object), 5);
}
