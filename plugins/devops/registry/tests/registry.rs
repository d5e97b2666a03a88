//! Tests of the ContainerRegistry reconciler against the in-memory host of the SDK.

use base64::{Engine, prelude::BASE64_STANDARD};
use devops_registry::Registries;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Condition, ConditionStatus, Error, Failure, Next, ObjectRef, Outcome, Resolution, gvk};

const LABEL: &str = "devops.ostler.dev/container-registry";

fn registry() -> Value {
    json!({
        "metadata": { "name": "images", "namespace": "shop", "uid": "u-1" },
        "spec": {
            "url": "https://registry.example.com/",
            "repository": "shop/app",
            "username": "robot",
            "passwordRef": { "name": "registry", "key": "password" },
            "imagePullSecrets": [{ "name": "pull" }, { "name": "pull", "namespace": "alpha" }],
        },
    })
}

fn healthy_host() -> MockHost {
    let host = MockHost::new();
    host.answer("GET", "/v2/", 200, json!({})).answer(
        "GET",
        "/v2/shop/app/tags/list?n=1",
        200,
        json!({ "name": "shop/app", "tags": ["1"] }),
    );
    host
}

fn secret(namespace: &str, name: &str) -> ObjectRef {
    gvk("", "v1", "Secret").named(namespace, name)
}

fn foreign_secret(namespace: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "pull", "namespace": namespace, "uid": uid }, "data": { "own": "eA==" } })
}

fn condition(all: &[Condition], kind: &str) -> (ConditionStatus, String) {
    let found = all.iter().find(|c| c.type_ == kind).expect(kind);
    (found.status, found.reason.clone())
}

fn status(outcome: &Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("a status")).expect("JSON")
}

fn failure(host: &MockHost, object: &Value) -> Failure {
    host.reconcile(&Registries, object).expect_err("fails")
}

#[test]
fn registry_is_checked_and_pull_secrets_are_created_with_placeholders() {
    let host = healthy_host();
    let outcome = host.reconcile(&Registries, &registry()).expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    for (kind, reason) in [
        ("Ready", "Ready"),
        ("Authenticated", "Authenticated"),
        ("RepositoryReadable", "Readable"),
    ] {
        assert_eq!(
            condition(&outcome.conditions, kind),
            (ConditionStatus::True, reason.into())
        );
    }
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("shop", "registry-images");
    assert_eq!(
        host.object(&upstream).expect("applied")["spec"],
        json!({ "url": "https://registry.example.com", "auth": { "registry": {
            "username": "robot", "passwordSecretRef": { "name": "registry", "key": "password" },
            "scopes": ["repository:shop/app:pull"],
        }}})
    );
    assert_eq!(
        host.writes(),
        [
            "apply Upstream registry-images owned",
            "create Secret pull owned",
            "create Secret pull"
        ]
    );
    for namespace in ["shop", "alpha"] {
        let written = host.object(&secret(namespace, "pull")).expect("created");
        assert_eq!(written["type"], "kubernetes.io/dockerconfigjson");
        assert_eq!(written["metadata"]["labels"][LABEL], "u-1");
        let config = written["data"][".dockerconfigjson"].as_str().expect("data");
        let config = BASE64_STANDARD.decode(config).expect("base64");
        let config: Value = from_slice(&config).expect("JSON");
        assert_eq!(
            config["auths"]["registry.example.com"],
            json!({ "username": "robot", "password": "ostler-registry-password",
                "auth": "ostler-registry-user-and-password" })
        );
    }
    // Recorded before they are created, so that a crash in between leaves nothing behind.
    assert_eq!(
        host.checkpoints(),
        [json!({ "pullSecrets": [{ "name": "pull", "namespace": "shop" },
            { "name": "pull", "namespace": "alpha" }] })]
    );
}

#[test]
fn docker_hub_has_its_own_key_and_token_server() {
    let host = healthy_host();
    let mut object = registry();
    object["spec"]["url"] = "https://registry-1.docker.io".into();
    object["spec"]["tokenURL"] = "https://auth.docker.io/token".into();
    host.reconcile(&Registries, &object).expect("is ready");
    let written = host.object(&secret("shop", "pull")).expect("created");
    let config = written["data"][".dockerconfigjson"].as_str().expect("data");
    let config = BASE64_STANDARD.decode(config).expect("base64");
    assert!(String::from_utf8_lossy(&config).contains("\"https://index.docker.io/v1/\""));
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("shop", "registry-images");
    let auth = &host.object(&upstream).expect("applied")["spec"]["auth"];
    assert_eq!(auth["registry"]["tokenUrl"], "https://auth.docker.io/token");
}

#[test]
fn own_secrets_are_corrected_and_foreign_ones_are_left_alone() {
    let host = healthy_host();
    let mut ours = foreign_secret("shop", "s-1");
    ours["metadata"]["labels"] = json!({ (LABEL): "u-1" });
    host.put(ours).put(foreign_secret("alpha", "s-2"));
    let failed = failure(&host, &registry());
    assert_eq!(
        (failed.reason.as_str(), failed.resolution),
        ("SecretExists", Resolution::Retry)
    );
    assert!(failed.message.contains("alpha/pull"), "{}", failed.message);
    assert_eq!(
        host.writes(),
        ["apply Upstream registry-images owned", "apply Secret pull owned"]
    );
    assert_eq!(
        host.object(&secret("alpha", "pull")),
        Some(foreign_secret("alpha", "s-2"))
    );
}

#[test]
fn secret_that_appears_before_its_creation_is_not_taken_over() {
    let host = healthy_host();
    host.deny("kubernetes.create");
    assert!(matches!(
        failure(&host, &registry()).resolution,
        Resolution::Denied(_)
    ));
}

#[test]
fn unwanted_and_all_own_secrets_are_deleted_but_no_foreign_ones() {
    let host = healthy_host();
    let mut object = registry();
    let outcome = host.reconcile(&Registries, &object).expect("is ready");
    object["status"] = status(&outcome);
    // The API server gives each object a UID.
    let mut created = host.object(&secret("alpha", "pull")).expect("created");
    created["metadata"]["uid"] = "s-2".into();
    host.put(created);
    object["spec"]["imagePullSecrets"] = json!([{ "name": "pull" }]);
    let outcome = host.reconcile(&Registries, &object).expect("is ready");
    assert!(
        host.object(&secret("alpha", "pull")).is_none(),
        "no longer wanted"
    );
    assert_eq!(status(&outcome)["pullSecrets"].as_array().map(Vec::len), Some(1));

    // Somebody has replaced it by one of their own.
    host.put(foreign_secret("shop", "s-9"));
    object["status"] = status(&outcome);
    let released = host.cleanup(&Registries, &object).expect("is cleaned up");
    assert_eq!(released.next, Next::AwaitChange);
    assert!(host.object(&secret("shop", "pull")).is_some(), "not ours");

    let mut ours = foreign_secret("shop", "s-9");
    ours["metadata"]["labels"] = json!({ (LABEL): "u-1" });
    host.put(ours);
    host.cleanup(&Registries, &object).expect("is cleaned up");
    assert!(host.object(&secret("shop", "pull")).is_none());
}

#[test]
fn object_that_never_wrote_deletes_nothing() {
    let host = healthy_host();
    let mut labelled = foreign_secret("shop", "s-1");
    labelled["metadata"]["labels"] = json!({ (LABEL): "u-1" });
    host.put(labelled);
    host.cleanup(&Registries, &registry()).expect("is cleaned up");
    assert!(
        host.object(&secret("shop", "pull")).is_some(),
        "it is not in the status"
    );
}

#[test]
fn failures_of_the_registry_are_told_apart() {
    let object = registry();
    for (answer, reason, authenticated) in [
        (
            Ok(response(401, &[], "HTTP 401: no")),
            "AuthenticationFailed",
            ConditionStatus::False,
        ),
        (
            Ok(response(404, &[], "")),
            "NotARegistry",
            ConditionStatus::Unknown,
        ),
        (
            Ok(response(503, &[], "")),
            "RegistryFailed",
            ConditionStatus::Unknown,
        ),
        (
            Err(Error::Unavailable("refused".into())),
            "RegistryUnreachable",
            ConditionStatus::Unknown,
        ),
    ] {
        let host = healthy_host();
        host.answers("GET", "/v2/", [answer]);
        let failed = failure(&host, &object);
        assert_eq!(
            (failed.reason.as_str(), &failed.resolution),
            (reason, &Resolution::Retry)
        );
        assert_eq!(
            condition(&failed.conditions, "Authenticated").0,
            authenticated,
            "{reason}"
        );
        assert_eq!(
            host.writes().len(),
            1,
            "no pull secret before the login has succeeded"
        );
    }
    let host = healthy_host();
    host.answer("GET", "/v2/shop/app/tags/list?n=1", 403, Value::Null);
    assert_eq!(failure(&host, &object).reason, "RepositoryDenied");
    host.answer("GET", "/v2/shop/app/tags/list?n=1", 404, Value::Null);
    let outcome = host.reconcile(&Registries, &object).expect("is ready");
    let readable = condition(&outcome.conditions, "RepositoryReadable");
    assert_eq!(readable, (ConditionStatus::False, "RepositoryNotFound".into()));
}

#[test]
fn anonymous_registry_has_no_credentials() {
    let host = healthy_host();
    let mut object = registry();
    object["spec"] = json!({ "url": "https://registry.example.com" });
    let outcome = host.reconcile(&Registries, &object).expect("is ready");
    assert_eq!(condition(&outcome.conditions, "Authenticated").1, "Anonymous");
    assert_eq!(host.requests(), ["GET /v2/"]);
    host.answer("GET", "/v2/", 401, Value::Null);
    let failed = failure(&host, &object);
    assert!(failed.message.contains("spec.passwordRef"), "{}", failed.message);
}

#[test]
fn invalid_specs_are_refused_without_a_request() {
    for (field, value) in [
        ("url", json!("http://registry.example.com")),
        ("tokenURL", json!("http://auth.example.com/token")),
        ("repository", json!("../admin")),
        ("repository", json!("a//b")),
        ("repository", json!("a?b")),
        ("username", Value::Null),
        ("passwordRef", Value::Null),
        (
            "imagePullSecrets",
            json!([{ "name": "a" }, { "name": "a", "namespace": "shop" }]),
        ),
    ] {
        let host = healthy_host();
        let mut object = registry();
        object["spec"][field] = value.clone();
        let failed = failure(&host, &object);
        let expected = ("InvalidSpec", Resolution::Terminal);
        assert_eq!(
            (failed.reason.as_str(), failed.resolution),
            expected,
            "{field} {value}"
        );
        assert!(
            host.requests().is_empty() && host.writes().is_empty(),
            "{field} {value}"
        );
    }
}

#[test]
fn suspended_object_sends_nothing() {
    let host = healthy_host();
    let mut object = registry();
    object["spec"]["suspend"] = true.into();
    let outcome = host.reconcile(&Registries, &object).expect("is suspended");
    assert_eq!(condition(&outcome.conditions, "Ready").1, "Suspended");
    assert!(host.requests().is_empty() && host.writes().is_empty());
}
