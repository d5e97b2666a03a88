//! Tests of the DnsProvider reconciler against the in-memory host of the SDK.

use dns_provider::DnsProviders;
use ostler_sdk::mock::MockHost;
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Error, Next, Outcome, Resolution, gvk};

fn provider(class: &str) -> Value {
    json!({
        "metadata": { "name": "dns", "namespace": "infra" },
        "spec": {
            "class": class, "ownerID": "prod", "pollInterval": "2m", "allowedNamespaces": ["apps"],
            "credentialsRef": { "name": "dns-key", "key": "key" },
        },
    })
}

fn powerdns() -> Value {
    let mut provider = provider("PowerDNS");
    provider["spec"]["url"] = "https://dns.example.com:8081/".into();
    provider
}

fn upstream(host: &MockHost, name: &str) -> Option<Value> {
    host.object(&gvk("ostler.dev", "v1alpha1", "Upstream").named("infra", name))
}

fn status(outcome: &Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("a status")).expect("JSON")
}

#[test]
fn each_class_has_its_upstream_and_probe() {
    let secret = json!({ "name": "dns-key", "key": "key" });
    for (object, path, url, auth, limits) in [
        (
            powerdns(),
            "/api/v1/servers/localhost",
            "https://dns.example.com:8081",
            json!({ "header": { "name": "X-API-Key", "valueSecretRef": secret } }),
            Value::Null,
        ),
        (
            provider("Cloudflare"),
            "/user/tokens/verify",
            "https://api.cloudflare.com/client/v4",
            json!({ "bearer": { "tokenSecretRef": secret } }),
            json!({ "requestsPerSecond": 4, "burst": 100 }),
        ),
        (
            provider("GoDaddy"),
            "/v1/domains?statuses=ACTIVE&limit=1",
            "https://api.godaddy.com",
            json!({ "header": { "name": "Authorization", "prefix": "sso-key ", "valueSecretRef": secret } }),
            json!({ "requestsPerSecond": 1, "burst": 5 }),
        ),
    ] {
        let host = MockHost::new();
        host.secret("dns-key", "key", "0123456789abcdef0123456789abcdef");
        host.answer("GET", path, 200, json!({ "version": "4.7.3" }));
        let outcome = host.reconcile(&DnsProviders, &object).expect("is ready");
        assert_eq!(outcome.next, Next::Poll(Some(120_000)));
        assert_eq!(host.writes(), ["apply Upstream dns owned"]);
        let spec = upstream(&host, "dns").expect("applied")["spec"].clone();
        assert_eq!(spec["url"], url);
        assert_eq!(spec["auth"], auth);
        assert_eq!(spec["limits"], limits);
        assert_eq!(spec["allowedNamespaces"], json!(["apps"]));
        assert_eq!(
            status(&outcome),
            json!({ "url": url, "version": "4.7.3", "credentialsDigest": "0123456789abcdef" })
        );
    }
}

#[test]
fn limits_and_authority_of_the_spec_are_used() {
    let host = MockHost::new();
    host.answer("GET", "/api/v1/servers/localhost", 200, json!({}));
    let mut object = powerdns();
    object["spec"]["limits"] = json!({ "requestsPerSecond": 3 });
    object["spec"]["tls"] = json!({ "caRef": { "name": "ca", "key": "ca.crt" } });
    host.reconcile(&DnsProviders, &object).expect("is ready");
    let spec = upstream(&host, "dns").expect("applied")["spec"].clone();
    assert_eq!(spec["limits"], json!({ "requestsPerSecond": 3, "burst": 3 }));
    assert_eq!(
        spec["tls"],
        json!({ "caSecretRef": { "name": "ca", "key": "ca.crt" } })
    );
}

#[test]
fn resolver_has_an_upstream_for_as_long_as_it_is_set() {
    let host = MockHost::new();
    host.answer("GET", "/api/v1/servers/localhost", 200, json!({}));
    let mut object = powerdns();
    object["spec"]["resolver"] = json!({ "url": "https://resolver.example.com" });
    let outcome = host.reconcile(&DnsProviders, &object).expect("is ready");
    let resolver = upstream(&host, "dns-resolver").expect("applied");
    assert_eq!(resolver["spec"]["url"], "https://resolver.example.com");
    assert_eq!(resolver["spec"].get("auth"), None);

    let mut without = powerdns();
    without["status"] = status(&outcome);
    host.reconcile(&DnsProviders, &without).expect("is ready");
    assert_eq!(upstream(&host, "dns-resolver"), None);
}

#[test]
fn refused_credentials_are_reported_with_a_hint() {
    for (object, path, code, hint) in [
        (powerdns(), "/api/v1/servers/localhost", 401, "api-key"),
        (provider("Cloudflare"), "/user/tokens/verify", 403, "DNS:Edit"),
        (
            provider("GoDaddy"),
            "/v1/domains?statuses=ACTIVE&limit=1",
            401,
            "KEY:SECRET",
        ),
        (
            provider("GoDaddy"),
            "/v1/domains?statuses=ACTIVE&limit=1",
            403,
            "10 domains",
        ),
    ] {
        let host = MockHost::new();
        host.answer("GET", path, code, "no");
        let failure = host.reconcile(&DnsProviders, &object).expect_err("refused");
        assert_eq!(failure.reason, "AuthenticationFailed");
        assert_eq!(failure.resolution, Resolution::Retry);
        assert!(failure.message.contains(hint), "{}", failure.message);
    }
}

#[test]
fn token_without_the_form_of_one_is_reported_as_refused() {
    let host = MockHost::new();
    let errors = json!([{"code": 6003, "message": "Invalid request headers",
        "error_chain": [{"code": 6111, "message": "Invalid format for Authorization header"}]}]);
    let body = json!({"success": false, "errors": errors, "messages": [], "result": null});
    host.answer("GET", "/user/tokens/verify", 400, body);
    let failure = host
        .reconcile(&DnsProviders, &provider("Cloudflare"))
        .expect_err("refused");
    assert_eq!(failure.reason, "AuthenticationFailed");
    assert!(failure.message.contains("DNS:Edit"), "{}", failure.message);
}

#[test]
fn other_failures_of_the_probe_have_their_own_reason() {
    let host = MockHost::new();
    host.answer("GET", "/api/v1/servers/localhost", 503, "down");
    let failure = host.reconcile(&DnsProviders, &powerdns()).expect_err("down");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("ProbeFailed", Resolution::Retry)
    );

    host.answers(
        "GET",
        "/api/v1/servers/localhost",
        [Err(Error::NotFound("Secret infra/dns-key".into()))],
    );
    let failure = host.reconcile(&DnsProviders, &powerdns()).expect_err("no Secret");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("AuthenticationFailed", Resolution::Wait)
    );

    let failure = host
        .reconcile(&DnsProviders, &provider("PowerDNS"))
        .expect_err("no URL");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("InvalidSpec", Resolution::Terminal)
    );
}

#[test]
fn cleanup_waits_for_the_records() {
    let host = MockHost::new();
    let record = |namespace: &str, name: &str, provider: Value| {
        json!({ "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsRecord",
                "metadata": { "name": name, "namespace": namespace }, "spec": { "providerRef": provider } })
    };
    host.put(record("apps", "other", json!({ "name": "dns" })));
    host.cleanup(&DnsProviders, &powerdns())
        .expect("not in its namespace");
    host.put(record(
        "apps",
        "app",
        json!({ "name": "dns", "namespace": "infra" }),
    ));
    let failure = host.cleanup(&DnsProviders, &powerdns()).expect_err("waits");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("RecordsRemain", Resolution::Wait)
    );
    assert!(failure.message.contains("apps/app") && !failure.message.contains("other"));
}
