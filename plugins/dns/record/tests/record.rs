//! Tests of the DnsRecord reconciler against the in-memory host of the SDK.

use dns_record::DnsRecords;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{ConditionStatus, Error, Next, ObjectRef, Outcome, Resolution, gvk};

fn record() -> Value {
    json!({
        "metadata": { "name": "app", "namespace": "apps", "uid": "record-uid" },
        "spec": {
            "providerRef": { "name": "dns", "namespace": "infra" },
            "zone": "Example.com.", "name": "App", "type": "A", "values": ["192.0.2.1"], "ttl": 60,
        },
    })
}

fn with(key: &str, value: impl Into<Value>) -> Value {
    let mut record = record();
    record["spec"][key] = value.into();
    record
}

fn cluster(class: &str, resolver: Value) -> MockHost {
    let host = MockHost::new();
    let mut provider = json!({
        "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": "infra" },
        "spec": {
            "class": class, "url": "http://dns", "ownerID": "prod", "pollInterval": "2m",
            "credentialsRef": { "name": "dns", "key": "key" }, "allowedNamespaces": ["apps"],
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }] },
    });
    if !resolver.is_null() {
        provider["spec"]["resolver"] = resolver;
    }
    host.set_now(1_000_000_010_000).put(provider);
    host
}

fn set_ref(class: &str) -> ObjectRef {
    gvk("dns.ostler.dev", "v1alpha1", &format!("{class}RecordSet")).named("apps", "app")
}

/// Gives the record set a condition, as its driver does.
fn set_condition(host: &MockHost, status: &str, reason: &str, stalled: bool) {
    let mut set = host.object(&set_ref("PowerDns")).expect("applied");
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": reason, "message": "because", "observedGeneration": 1 });
    set["metadata"]["generation"] = 1.into();
    set["status"] = json!({
        "ttl": 60, "lastApplied": "2001-09-09T01:46:40Z", "mark": { "fqdn": "_ostler-a.app.example.com", "text": "t" },
        "conditions": [condition("Ready", status)],
    });
    if stalled {
        let all = set["status"]["conditions"].as_array_mut().expect("conditions");
        all.push(condition("Stalled", "True"));
    }
    host.put(set);
}

fn applied(resolver: Value) -> MockHost {
    let host = cluster("PowerDNS", resolver);
    host.reconcile(&DnsRecords, &record())
        .expect_err("waits for the driver");
    set_condition(&host, "True", "Ready", false);
    host
}

fn propagated(outcome: &Outcome) -> (ConditionStatus, &str) {
    let found = outcome
        .conditions
        .iter()
        .find(|c| c.type_ == "Propagated")
        .expect("Propagated");
    (found.status, &found.reason)
}

#[test]
fn text_of_a_record_set_is_decoded_once() {
    for (value, encoded) in [
        ("v=spf1 -all", "\"v=spf1 -all\""),
        ("\"v=spf1\" \" -all\"", "\"v=spf1 -all\""),
        ("\"\\\"quoted\\\" \"", "\"\\\"quoted\\\" \""),
        (" blanks ", "\" blanks \""),
    ] {
        let host = cluster("PowerDNS", Value::Null);
        let mut record = with("type", "TXT");
        record["spec"]["values"] = json!([value]);
        host.reconcile(&DnsRecords, &record).expect_err("waits");
        let set = host.object(&set_ref("PowerDns")).expect("applied");
        assert_eq!(set["spec"]["values"], json!([encoded]));
        let text = set["spec"]["values"][0].as_str().expect("text");
        let decoded = dns_api::decode_text(text);
        assert_eq!(decoded, dns_api::decode_text(value), "as it was meant");
    }
}

#[test]
fn record_set_of_the_class_is_applied() {
    for (class, kind) in [
        ("PowerDNS", "PowerDns"),
        ("Cloudflare", "Cloudflare"),
        ("GoDaddy", "GoDaddy"),
    ] {
        let host = cluster(class, Value::Null);
        let failure = host.reconcile(&DnsRecords, &record()).expect_err("waits");
        assert_eq!(
            (&*failure.reason, failure.resolution),
            ("Applying", Resolution::Wait)
        );
        assert_eq!(host.writes(), [format!("apply {kind}RecordSet app owned")]);
        assert_eq!(
            host.object(&set_ref(kind)).expect("applied")["spec"],
            json!({
                "providerRef": { "name": "dns", "namespace": "infra" }, "zone": "example.com",
                "fqdn": "app.example.com", "type": "A", "values": ["192.0.2.1"], "ttl": 60,
                "reclaimPolicy": "Delete", "suspend": false,
            })
        );
    }
}

#[test]
fn result_of_the_driver_becomes_that_of_the_record() {
    let host = applied(Value::Null);
    let outcome = host.reconcile(&DnsRecords, &record()).expect("is ready");
    assert_eq!(outcome.next, Next::AwaitChange);
    assert_eq!(propagated(&outcome), (ConditionStatus::Unknown, "NoResolver"));
    let status: Value = from_slice(outcome.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(
        status,
        json!({ "fqdn": "app.example.com", "ttl": 60, "mark": "_ostler-a.app.example.com",
                "lastApplied": "2001-09-09T01:46:40Z" })
    );

    set_condition(&host, "False", "ForeignRecord", false);
    let failure = host.reconcile(&DnsRecords, &record()).expect_err("waits");
    assert_eq!(
        (&*failure.reason, &*failure.message, failure.resolution),
        ("ForeignRecord", "because", Resolution::Wait)
    );
    set_condition(&host, "False", "Refused", true);
    let failure = host.reconcile(&DnsRecords, &record()).expect_err("is refused");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("Refused", Resolution::Terminal)
    );

    // A condition of an earlier generation says nothing about this one.
    let mut set = host.object(&set_ref("PowerDns")).expect("there");
    set["metadata"]["generation"] = 2.into();
    host.put(set);
    let failure = host.reconcile(&DnsRecords, &record()).expect_err("waits");
    assert_eq!(failure.reason, "Applying");
}

#[test]
fn invalid_specs_are_terminal_and_apply_nothing() {
    for (object, reason) in [
        (with("name", "bücher"), "InvalidSpec"),
        (with("name", "app.example.org."), "InvalidSpec"),
        (with("zone", ".."), "InvalidSpec"),
        (with("values", json!(["2001:db8::1"])), "InvalidSpec"),
    ] {
        let host = cluster("PowerDNS", Value::Null);
        let failure = host.reconcile(&DnsRecords, &object).expect_err("refused");
        assert_eq!(
            (&*failure.reason, failure.resolution),
            (reason, Resolution::Terminal)
        );
        assert!(host.writes().is_empty());
    }
    let mut elsewhere = record();
    elsewhere["metadata"]["namespace"] = "other".into();
    let failure = cluster("PowerDNS", Value::Null)
        .reconcile(&DnsRecords, &elsewhere)
        .expect_err("refused");
    assert_eq!(failure.reason, "NamespaceNotAllowed");
    let failure = MockHost::new()
        .reconcile(&DnsRecords, &record())
        .expect_err("no provider");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("ProviderNotReady", Resolution::Wait)
    );
}

#[test]
fn suspension_reaches_the_record_set() {
    let host = cluster("PowerDNS", Value::Null);
    let outcome = host
        .reconcile(&DnsRecords, &with("suspend", true))
        .expect("an outcome");
    assert_eq!(outcome.conditions[0].reason, "Suspended");
    assert_eq!(
        host.object(&set_ref("PowerDns")).expect("applied")["spec"]["suspend"],
        true
    );
}

/// The path of the query for `app.example.com` A.
const QUERY: &str = "/dns-query?dns=AAABAAABAAAAAAAAA2FwcAdleGFtcGxlA2NvbQAAAQAB";

/// A response to it: one address or none.
fn dns_response(code: u8, address: Option<[u8; 4]>) -> Vec<u8> {
    let mut message = vec![
        0,
        0,
        0x81,
        0x80 | code,
        0,
        1,
        0,
        u8::from(address.is_some()),
        0,
        0,
        0,
        0,
    ];
    message.extend_from_slice(b"\x03app\x07example\x03com\x00\x00\x01\x00\x01");
    if let Some(address) = address {
        message.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        message.extend_from_slice(&address);
    }
    message
}

#[test]
fn resolver_decides_whether_the_record_is_visible() {
    let resolver = || json!({ "url": "https://resolver" });
    for (code, address, expected, next) in [
        (
            0,
            Some([192, 0, 2, 1]),
            (ConditionStatus::True, "Propagated"),
            120_000,
        ),
        (
            0,
            Some([192, 0, 2, 9]),
            (ConditionStatus::False, "NotVisible"),
            10_000,
        ),
        (0, None, (ConditionStatus::False, "NotVisible"), 10_000),
        (3, None, (ConditionStatus::False, "NotVisible"), 10_000),
        (2, None, (ConditionStatus::Unknown, "ResolverFailed"), 10_000),
    ] {
        let host = applied(resolver());
        let mut answer = response(200, &[], Value::Null);
        answer.body = dns_response(code, address);
        host.answers("GET", QUERY, [Ok(answer)]);
        let outcome = host.reconcile(&DnsRecords, &record()).expect("is ready");
        assert_eq!(propagated(&outcome), expected, "{code} {address:?}");
        assert_eq!(
            outcome.next,
            Next::Poll(Some(next)),
            "as long as it has been written"
        );
    }
    for answer in [
        Ok(response(502, &[], "bad gateway")),
        Ok(response(200, &[], "<html>")),
        Err(Error::Unavailable("refused".into())),
    ] {
        let host = applied(resolver());
        host.answers("GET", QUERY, [answer]);
        let outcome = host
            .reconcile(&DnsRecords, &record())
            .expect("is ready nevertheless");
        assert_eq!(propagated(&outcome), (ConditionStatus::Unknown, "ResolverFailed"));
    }
}

#[test]
fn proxied_name_is_visible_with_any_address() {
    let host = applied(json!({ "url": "https://resolver", "path": "/q" }));
    let mut answer = response(200, &[], Value::Null);
    answer.body = dns_response(0, Some([198, 51, 100, 1]));
    host.answers("GET", &QUERY.replace("/dns-query", "/q"), [Ok(answer)]);
    let outcome = host
        .reconcile(&DnsRecords, &with("proxied", true))
        .expect("is ready");
    assert_eq!(propagated(&outcome), (ConditionStatus::True, "Propagated"));
}

#[test]
fn cleanup_deletes_the_record_set_and_waits_for_it() {
    let host = cluster("PowerDNS", Value::Null);
    host.cleanup(&DnsRecords, &record()).expect("nothing was applied");
    let set = |owner: &str, deleted: Value| {
        json!({ "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "PowerDnsRecordSet",
                "metadata": { "name": "app", "namespace": "apps", "uid": "set-uid", "deletionTimestamp": deleted,
                              "ownerReferences": [{ "uid": owner }] },
                "status": { "conditions": [{ "type": "Ready", "status": "False", "message": "It is down." }] } })
    };
    host.put(set("somebody", Value::Null));
    host.cleanup(&DnsRecords, &record())
        .expect("it is of another object");
    assert!(host.writes().is_empty());

    host.put(set("record-uid", "2001-09-09T01:46:40Z".into()));
    let failure = host.cleanup(&DnsRecords, &record()).expect_err("waits");
    assert_eq!(
        (&*failure.reason, &failure.resolution),
        ("RecordSetRemains", &Resolution::Wait)
    );
    assert!(failure.message.ends_with("It is down."), "{}", failure.message);
    assert!(host.writes().is_empty(), "it is being deleted already");

    // Also when the provider is gone, which knew the class.
    host.remove(&gvk("dns.ostler.dev", "v1alpha1", "DnsProvider").named("infra", "dns"));
    host.put(set("record-uid", Value::Null));
    host.cleanup(&DnsRecords, &record()).expect_err("waits");
    assert_eq!(host.writes(), ["delete PowerDnsRecordSet app"]);
    host.cleanup(&DnsRecords, &record()).expect("is cleaned up");
}
