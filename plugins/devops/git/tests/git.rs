//! Tests of the GitCredentials reconciler against the in-memory host of the SDK.

use devops_git::CredentialsReconciler;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Condition, ConditionStatus, Error, Failure, Next, Resolution, gvk};

const ADVERTISEMENT: &str = "GET /info/refs?service=git-upload-pack";
const HEAD: &str = "1111111111111111111111111111111111111111";

fn credentials() -> Value {
    json!({
        "metadata": { "name": "app", "namespace": "shop" },
        "spec": {
            "url": "https://git.example.com/shop/app.git",
            "passwordRef": { "name": "git", "key": "token" },
            "caRef": { "name": "ca", "key": "ca.crt" },
        },
    })
}

fn lines(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| format!("{:04x}{line}\n", line.len() + 5));
    lines.collect::<String>() + "0000"
}

fn answer_advertisement(host: &MockHost, lines_of: &[&str]) {
    let headers = [("content-type", "application/x-git-upload-pack-advertisement")];
    let answer = response(200, &headers, lines(lines_of));
    host.answers("GET", "/info/refs?service=git-upload-pack", [Ok(answer)]);
}

fn answer_references(host: &MockHost, lines_of: &[&str]) {
    let headers = [("content-type", "application/x-git-upload-pack-result")];
    let answer = response(200, &headers, lines(lines_of));
    host.answers("POST", "/git-upload-pack", [Ok(answer)]);
}

fn healthy_host() -> MockHost {
    let host = MockHost::new();
    answer_advertisement(
        &host,
        &[
            "version 2",
            "ls-refs",
            "fetch=shallow filter",
            "object-format=sha1",
        ],
    );
    answer_references(&host, &[&format!("{HEAD} HEAD symref-target:refs/heads/trunk")]);
    host
}

fn condition(all: &[Condition], kind: &str) -> (ConditionStatus, String) {
    let found = all.iter().find(|c| c.type_ == kind).expect(kind);
    (found.status, found.reason.clone())
}

fn failure(host: &MockHost) -> Failure {
    host.reconcile(&CredentialsReconciler, &credentials())
        .expect_err("fails")
}

#[test]
fn readable_repository_is_ready_with_its_head() {
    let host = healthy_host();
    let outcome = host
        .reconcile(&CredentialsReconciler, &credentials())
        .expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(300_000)));
    for (kind, reason) in [
        ("Ready", "Ready"),
        ("Authenticated", "Authenticated"),
        ("PartialClone", "Offered"),
    ] {
        assert_eq!(
            condition(&outcome.conditions, kind),
            (ConditionStatus::True, reason.into())
        );
    }
    let status: Value = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(status, json!({ "headCommit": HEAD, "defaultBranch": "trunk" }));
    assert_eq!(host.requests(), [ADVERTISEMENT, "POST /git-upload-pack"]);
    assert_eq!(host.writes(), ["apply Upstream git-app owned"]);
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("shop", "git-app");
    assert_eq!(
        host.object(&upstream).expect("applied")["spec"],
        json!({
            "url": "https://git.example.com/shop/app.git",
            "auth": { "basic": {
                "username": "oauth2",
                "passwordSecretRef": { "name": "git", "key": "token" },
            }},
            "tls": { "caSecretRef": { "name": "ca", "key": "ca.crt" } },
        })
    );
}

#[test]
fn empty_repository_and_one_without_filters_are_ready() {
    let host = healthy_host();
    answer_advertisement(&host, &["version 2", "fetch=shallow"]);
    answer_references(&host, &[]);
    let mut object = credentials();
    object["spec"] = json!({ "url": "http://127.0.0.1:1/app.git" });
    let outcome = host.reconcile(&CredentialsReconciler, &object).expect("is ready");
    let partial = condition(&outcome.conditions, "PartialClone");
    assert_eq!(partial, (ConditionStatus::False, "NotOffered".into()));
    let authenticated = condition(&outcome.conditions, "Authenticated");
    assert_eq!(authenticated, (ConditionStatus::True, "Anonymous".into()));
    let status: Value = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(status, json!({}));
    let upstream = gvk("ostler.dev", "v1alpha1", "Upstream").named("shop", "git-app");
    assert_eq!(
        host.object(&upstream).expect("applied")["spec"]["auth"],
        json!({ "none": {} })
    );
}

#[test]
fn unsafe_urls_are_refused_without_a_request() {
    for spec in [
        json!({ "url": "http://git.example.com/app.git" }),
        json!({ "url": "ssh://git@git.example.com/app.git" }),
        json!({ "url": "git@git.example.com:app.git" }),
        json!({ "url": "https://user:word@git.example.com/app.git" }),
        json!({ "url": "https://git.example.com/app.git", "username": "u" }),
    ] {
        let host = healthy_host();
        let mut object = credentials();
        object["spec"] = spec.clone();
        let failure = host
            .reconcile(&CredentialsReconciler, &object)
            .expect_err("is invalid");
        assert_eq!(
            (failure.reason.as_str(), failure.resolution),
            ("InvalidSpec", Resolution::Terminal),
            "{spec}"
        );
        assert!(host.requests().is_empty() && host.writes().is_empty(), "{spec}");
    }
}

#[test]
fn failures_of_the_server_are_told_apart() {
    let git = [("content-type", "application/x-git-upload-pack-advertisement")];
    let html = [("content-type", "text/html")];
    for (answer, reason, authenticated) in [
        (
            Ok(response(401, &[], "")),
            "AuthenticationFailed",
            ConditionStatus::False,
        ),
        (
            Ok(response(403, &[], "")),
            "AuthenticationFailed",
            ConditionStatus::False,
        ),
        (
            Ok(response(404, &[], "")),
            "RepositoryNotFound",
            ConditionStatus::Unknown,
        ),
        (
            Ok(response(200, &html, "<html>")),
            "NotAGitRepository",
            ConditionStatus::Unknown,
        ),
        (Ok(response(301, &[], "")), "GitFailed", ConditionStatus::Unknown),
        (Ok(response(502, &[], "")), "GitFailed", ConditionStatus::Unknown),
        (
            Ok(response(200, &git, lines(&["version 1"]))),
            "ProtocolNotSupported",
            ConditionStatus::Unknown,
        ),
        (
            Ok(response(200, &git, "00")),
            "ProtocolNotSupported",
            ConditionStatus::Unknown,
        ),
        (
            Err(Error::Unavailable("refused".into())),
            "GitFailed",
            ConditionStatus::Unknown,
        ),
    ] {
        let host = healthy_host();
        host.answers("GET", "/info/refs?service=git-upload-pack", [answer]);
        let failure = failure(&host);
        assert_eq!(
            (failure.reason.as_str(), &failure.resolution),
            (reason, &Resolution::Retry)
        );
        assert_eq!(
            condition(&failure.conditions, "Authenticated").0,
            authenticated,
            "{reason}"
        );
    }
    let host = healthy_host();
    let missing = Err(Error::NotFound("Secret shop/git".into()));
    host.answers("GET", "/info/refs?service=git-upload-pack", [missing]);
    assert_eq!(
        failure(&host).resolution,
        Resolution::Wait,
        "until the Secret is there"
    );
}

#[test]
fn suspended_object_sends_nothing() {
    let host = healthy_host();
    let mut object = credentials();
    object["spec"]["suspend"] = true.into();
    let outcome = host
        .reconcile(&CredentialsReconciler, &object)
        .expect("is suspended");
    assert_eq!(
        condition(&outcome.conditions, "Ready"),
        (ConditionStatus::False, "Suspended".into())
    );
    assert!(host.requests().is_empty() && host.writes().is_empty());
}
