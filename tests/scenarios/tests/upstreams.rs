//! Status of Upstreams, which the host itself reconciles.

use ostler::testing::key::Gvk;
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab, captured_logs, concourse::kind, find_condition, scenario, simulator::FaultAction,
};
use serde_json::{Value, json};

fn upstreams() -> Gvk {
    ostler::testing::upstream::upstream_gvk()
}

fn upstream(lab: &Lab, spec: Value) -> Value {
    json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "ci", "namespace": lab.namespace}, "spec": spec})
}

fn concourse(lab: &Lab) -> Value {
    let auth = json!({"oauth2Password": {"tokenPath": "/sky/issuer/token", "clientId": "fly", "clientSecret": "Zmx5",
        "scopes": ["openid", "profile", "email", "federated:id", "groups"],
        "username": "test", "passwordSecretRef": {"name": "ci-admin", "key": "password"}}});
    upstream(lab, json!({"url": lab.concourse.url(), "auth": auth}))
}

/// A condition as `status (reason)`.
fn condition_text(object: &Value, kind: &str) -> String {
    let found = find_condition(object, kind);
    let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
    format!("{} ({})", text("status"), text("reason"))
}

#[scenario(simulated)]
async fn reachable_upstream_becomes_ready(mut lab: Lab) {
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.start_host().await;
    lab.apply(concourse(&lab)).await;
    let object = lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(condition_text(&object, "Connected"), "True (Connected)");
    assert_eq!(condition_text(&object, "Authenticated"), "True (LoggedIn)");
    assert_eq!(
        object["status"]["observedGeneration"],
        object["metadata"]["generation"]
    );
    lab.wait_idle().await;
    let (before, logins) = (lab.api_writes(), lab.concourse.counters().logins);
    // Another reconcile without a change sends no write and no login.
    let router = &lab.host().services().dispatcher;
    router.enqueue(
        &lab.key(&upstreams(), "ci"),
        ostler::testing::queue::Priority::High,
        ostler::testing::dispatcher::Cause::Poll,
    );
    lab.wait_idle().await;
    assert_eq!(
        (lab.api_writes(), lab.concourse.counters().logins),
        (before, logins)
    );
    assert_eq!((before, logins), (1, 1));
    lab.delete(&upstreams(), "ci").await;
    lab.wait_until("its client is dropped", async || {
        lab.host().services().upstreams.clients.collect_stats().is_empty()
    })
    .await;
}

#[scenario(simulated)]
async fn upstream_with_wrong_password_recovers_by_rotation(mut lab: Lab) {
    lab.apply(lab.password_secret("not-the-password")).await;
    lab.start_host().await;
    lab.apply(concourse(&lab)).await;
    let object = lab
        .wait_condition(
            &upstreams(),
            "ci",
            "Authenticated",
            "False",
            "AuthenticationFailed",
        )
        .await;
    assert_eq!(condition_text(&object, "Connected"), "True (Connected)");
    assert_eq!(condition_text(&object, "Ready"), "False (AuthenticationFailed)");
    assert_eq!(
        condition_text(&object, "Reconciling"),
        "True (AuthenticationFailed)"
    );
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    let object = lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(condition_text(&object, "Authenticated"), "True (LoggedIn)");
    assert_eq!(condition_text(&object, "Reconciling"), "- (-)");
    // A rotation of a valid password is checked at once, before a request needs it.
    let logins = lab.concourse.counters().logins;
    lab.concourse.set_password("test", "the-next-password");
    lab.apply(lab.password_secret("the-next-password")).await;
    lab.wait_until("the new password is used", async || {
        lab.concourse.counters().logins == logins + 1
    })
    .await;
    lab.wait_idle().await;
    lab.wait_ready(&upstreams(), "ci").await;
    for secret in ["not-the-password", ADMIN_PASSWORD, "the-next-password"] {
        assert!(!captured_logs().contains(secret), "{secret} in the log");
    }
}

#[scenario(simulated)]
async fn secret_is_sent_to_the_origins_of_its_annotation_only(mut lab: Lab) {
    let confined = |origins: &str| {
        let mut secret = lab.password_secret(ADMIN_PASSWORD);
        secret["metadata"]["annotations"] = json!({"ostler.dev/origins": origins});
        secret
    };
    let (elsewhere, here) = (
        confined("https://ci.example.com, https://*.example.com"),
        confined(&format!("https://ci.example.com, {}", lab.concourse.url())),
    );
    lab.apply(elsewhere.clone()).await;
    lab.start_host().await;
    lab.apply(concourse(&lab)).await;
    let object = lab
        .wait_condition(&upstreams(), "ci", "Authenticated", "False", "OriginNotAllowed")
        .await;
    let message = find_condition(&object, "Authenticated")["message"].to_string();
    let url = lab.concourse.url();
    assert!(
        message.contains("/ci-admin may not be sent to ") && message.contains(url),
        "{message}"
    );
    assert_eq!(lab.concourse.counters().logins, 0);
    lab.apply(here).await;
    lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(lab.concourse.counters().logins, 1);
    // It is taken back at once.
    lab.apply(elsewhere).await;
    lab.wait_condition(&upstreams(), "ci", "Ready", "False", "OriginNotAllowed")
        .await;
    assert_eq!(lab.concourse.counters().logins, 1);
}

#[scenario(simulated)]
async fn upstream_waits_for_its_secret(mut lab: Lab) {
    lab.start_host().await;
    lab.apply(concourse(&lab)).await;
    let object = lab
        .wait_condition(&upstreams(), "ci", "Ready", "False", "SecretNotFound")
        .await;
    assert_eq!(condition_text(&object, "Connected"), "Unknown (NotChecked)");
    let message = find_condition(&object, "Authenticated")["message"].to_string();
    assert!(
        message.contains("ci-admin") && message.contains("`password`"),
        "{message}"
    );
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(lab.concourse.counters().logins, 1);
}

#[scenario]
async fn unreachable_upstream_recovers(mut lab: Lab) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    lab.start_host().await;
    lab.apply(upstream(&lab, json!({"url": format!("http://{address}")})))
        .await;
    let object = lab
        .wait_condition(&upstreams(), "ci", "Ready", "False", "ConnectionFailed")
        .await;
    let message = find_condition(&object, "Connected")["message"].to_string();
    assert!(message.contains("refused"), "{message}");
    let _listener = std::net::TcpListener::bind(address).expect("still free");
    let object = lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(condition_text(&object, "Authenticated"), "True (NoCredentials)");
}

/// A plugin's request that is refused, and later accepted, changes the status without a check by the host.
#[scenario(simulated)]
async fn failed_plugin_request_updates_upstream_status(mut lab: Lab) {
    lab.start_pack().await;
    for object in [lab.password_secret(ADMIN_PASSWORD), lab.instance_object()] {
        lab.apply(object).await;
    }
    lab.wait_ready(&kind("Instance"), "ci").await;
    lab.wait_ready(&upstreams(), "ci").await;
    let refused = FaultAction::Status(401, "not authorized".into());
    let faults = lab.concourse.faults();
    faults.fail_next(usize::MAX, "*", "/api/v1/teams/platform", refused);
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&upstreams(), "ci", "Ready", "False", "AuthenticationFailed")
        .await;
    faults.clear();
    let object = lab.wait_ready(&upstreams(), "ci").await;
    assert_eq!(condition_text(&object, "Authenticated"), "True (Accepted)");
    lab.wait_ready(&kind("Team"), "platform").await;
}

#[scenario]
async fn disallowed_address_is_never_connected(mut lab: Lab) {
    lab.settings.network.clear();
    lab.start_host().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let port = listener.local_addr().expect("an address").port();
    lab.apply(upstream(&lab, json!({"url": format!("http://127.0.0.1:{port}")})))
        .await;
    let object = lab
        .wait_condition(&upstreams(), "ci", "Connected", "False", "AddressNotAllowed")
        .await;
    assert_eq!(condition_text(&object, "Stalled"), "True (AddressNotAllowed)");
    let message = find_condition(&object, "Ready")["message"].to_string();
    assert!(message.contains("network.allow"), "{message}");
    // A host name is resolved before the check.
    lab.apply(upstream(&lab, json!({"url": format!("http://localhost:{port}")})))
        .await;
    lab.wait_until("the name is refused, too", async || {
        let object = lab.get(&upstreams(), "ci").await.unwrap_or_default();
        find_condition(&object, "Connected")["message"]
            .to_string()
            .contains("localhost resolves to")
    })
    .await;
    assert!(is_pending(listener.accept()).await, "there was no connection");
}

/// Returns `true` if a future is pending when polled once.
async fn is_pending(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[scenario]
async fn messaging_upstream_that_is_absent_is_not_ready(mut lab: Lab) {
    lab.start_host().await;
    lab.apply(upstream(&lab, json!({"url": "amqp://127.0.0.1:9/vhost"})))
        .await;
    let object = lab
        .wait_condition(&upstreams(), "ci", "Ready", "False", "ConnectionFailed")
        .await;
    assert_eq!(condition_text(&object, "Connected"), "False (ConnectionFailed)");
    assert_eq!(condition_text(&object, "Authenticated"), "True (NoCredentials)");
}

#[scenario(real = "CRDs: changes and validation")]
async fn invalid_upstream_is_rejected_by_field(lab: Lab) {
    let secret = json!({"name": "s", "key": "k"});
    let url = "https://ci.example";
    for (spec, word) in [
        (json!({"url": "ftp://ci.example"}), "spec.url"),
        (json!({"url": "https://user@ci.example"}), "spec.url"),
        (
            json!({"url": url, "auth": {"none": {}, "bearer": {"tokenSecretRef": secret}}}),
            "spec.auth",
        ),
        (
            json!({"url": url, "auth": {"oauth2ClientCredentials": {"clientId": "a", "clientSecretRef": secret}}}),
            "exactly one of tokenPath and tokenUrl",
        ),
        (
            json!({"url": url, "limits": {"burst": 2}}),
            "burst requires requestsPerSecond",
        ),
        (
            json!({"url": "amqp://rabbit.example", "auth": {"bearer": {"tokenSecretRef": secret}}}),
            "auth.none and auth.basic",
        ),
        (
            json!({"url": url, "auth": {"login": {"path": "/login", "username": "u", "passwordSecretRef": secret,
                "tokenJsonPath": ".token", "expirationSeconds": 5, "expirationJsonPath": ".ttl"}}}),
            "mutually exclusive",
        ),
    ] {
        let error = lab
            .try_apply(upstream(&lab, spec.clone()))
            .await
            .expect_err("refused")
            .to_string();
        assert!(error.contains(word), "{spec}: {error}");
    }
    let login = json!({"path": "/login", "username": "u", "passwordSecretRef": secret, "tokenJsonPath": "$.data[0].token",
        "body": {"auth": {"user": "$(username)", "password": ["$(password)"]}}});
    let kept = lab
        .apply(upstream(&lab, json!({"url": url, "auth": {"login": login}})))
        .await;
    assert_eq!(
        kept["spec"]["auth"]["login"]["body"], login["body"],
        "nothing of the body is dropped"
    );
}
