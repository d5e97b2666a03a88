//! Tests of the PowerDNS driver, and of the reconcile that all drivers share, against the in-memory host of the SDK.

use dns_powerdns::PowerDnsRecordSets;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Condition, ConditionStatus, Error, Failure, Next, Outcome, Resolution};

const ZONE: &str = "/api/v1/servers/localhost/zones/example.com.";
const RECORDS: &str = "/api/v1/servers/localhost/zones/example.com.?rrset_name=app.example.com.";
const MARK: &str = "/api/v1/servers/localhost/zones/example.com.?rrset_name=_ostler-a.app.example.com.";
const TEXT: &str = "heritage=ostler,ostler/owner=prod,ostler/resource=dnsrecord/apps/app";

fn record_set() -> Value {
    json!({
        "metadata": { "name": "app", "namespace": "apps" },
        "spec": {
            "providerRef": { "name": "dns", "namespace": "infra" },
            "zone": "example.com", "fqdn": "app.example.com", "type": "A",
            "values": ["192.0.2.2", "192.0.2.1"], "ttl": 60,
        },
    })
}

fn with(key: &str, value: impl Into<Value>) -> Value {
    let mut set = record_set();
    set["spec"][key] = value.into();
    set
}

/// `record_set()` as it is after it was written.
fn claimed() -> Value {
    let mut set = record_set();
    set["status"] = json!({
        "mark": { "fqdn": "_ostler-a.app.example.com", "text": TEXT },
        "ttl": 60, "lastApplied": "2001-09-09T01:46:40Z",
    });
    set
}

fn cluster() -> MockHost {
    let host = MockHost::new();
    host.set_now(1_000_000_000_000).put(json!({
        "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": "infra" },
        "spec": {
            "class": "PowerDNS", "url": "http://dns:8081", "ownerID": "prod",
            "credentialsRef": { "name": "dns", "key": "api-key" },
            "zones": ["example.com"], "allowedNamespaces": ["apps"], "pollInterval": "2m",
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }] },
    }));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "dns", "namespace": "infra" },
    }));
    host
}

fn rrset(name: &str, kind: &str, contents: &[&str]) -> Value {
    let records = contents
        .iter()
        .map(|content| json!({ "content": content, "disabled": false }));
    json!({ "name": name, "type": kind, "ttl": 60, "records": records.collect::<Vec<_>>() })
}

fn zone(rrsets: &[Value]) -> Value {
    json!({ "name": "example.com.", "rrsets": rrsets })
}

fn serve(host: &MockHost, records: &[Value], mark: Option<&str>) {
    let mark: Vec<Value> = mark
        .map(|text| rrset("_ostler-a.app.example.com.", "TXT", &[&format!("\"{text}\"")]))
        .into_iter()
        .collect();
    host.answer("GET", RECORDS, 200, zone(records));
    host.answer("GET", MARK, 200, zone(&mark));
    host.answer("PATCH", ZONE, 204, Value::Null);
}

fn current() -> Value {
    rrset("APP.example.com.", "A", &["192.0.2.1", "192.0.2.2"])
}

fn patches(host: &MockHost) -> Vec<Value> {
    let sent = host.sent();
    let patches = sent.iter().filter(|r| r.method.as_str() == "PATCH");
    patches
        .map(|r| from_slice(r.body.as_deref().expect("a body")).expect("JSON"))
        .collect()
}

fn status(outcome: &Outcome) -> Value {
    from_slice(outcome.status.as_deref().expect("a status")).expect("JSON")
}

fn ready(conditions: &[Condition]) -> (ConditionStatus, &str, &str) {
    let ready = conditions.iter().find(|c| c.type_ == "Ready").expect("Ready");
    (ready.status, &ready.reason, &ready.message)
}

fn resolution(failure: &Failure) -> (&str, &Resolution) {
    (&failure.reason, &failure.resolution)
}

#[test]
fn absent_records_are_claimed_and_written_in_one_transaction() {
    let host = cluster();
    serve(&host, &[], None);
    let outcome = host
        .reconcile(&PowerDnsRecordSets, &record_set())
        .expect("is ready");
    assert_eq!(outcome.next, Next::Poll(Some(120_000)));
    assert_eq!(
        host.requests(),
        [
            format!("GET {RECORDS}"),
            format!("GET {MARK}"),
            format!("PATCH {ZONE}")
        ]
    );
    let mark = json!({ "fqdn": "_ostler-a.app.example.com", "text": TEXT });
    assert_eq!(host.checkpoints(), [json!({ "mark": mark })], "before the write");
    assert_eq!(
        patches(&host),
        [json!({ "rrsets": [
            { "name": "_ostler-a.app.example.com.", "type": "TXT", "ttl": 60, "changetype": "REPLACE",
              "records": [{ "content": format!("\"{TEXT}\""), "disabled": false }] },
            { "name": "app.example.com.", "type": "A", "ttl": 60, "changetype": "REPLACE",
              "records": [{ "content": "192.0.2.1", "disabled": false },
                          { "content": "192.0.2.2", "disabled": false }] },
        ] })]
    );
    assert_eq!(
        status(&outcome),
        json!({ "mark": mark, "ttl": 60, "lastApplied": "2001-09-09T01:46:40Z" })
    );

    host.forget();
    serve(&host, &[current()], Some(TEXT));
    let mut written = record_set();
    written["status"] = status(&outcome);
    let again = host.reconcile(&PowerDnsRecordSets, &written).expect("is ready");
    assert_eq!(patches(&host), [] as [Value; 0], "order and case have no meaning");
    assert_eq!(status(&again), status(&outcome));
}

#[test]
fn drift_is_corrected_without_writing_the_mark() {
    let mut disabled = current();
    disabled["records"][0]["disabled"] = true.into();
    let mut slower = current();
    slower["ttl"] = 61.into();
    for drifted in [
        vec![rrset("app.example.com.", "A", &["192.0.2.9"])],
        vec![disabled],
        vec![slower],
        Vec::new(),
    ] {
        let host = cluster();
        serve(&host, &drifted, Some(TEXT));
        host.reconcile(&PowerDnsRecordSets, &claimed()).expect("is ready");
        let patches = patches(&host);
        assert_eq!(patches.len(), 1, "{drifted:?}");
        assert_eq!(patches[0]["rrsets"].as_array().map(Vec::len), Some(1));
        assert_eq!(patches[0]["rrsets"][0]["name"], "app.example.com.");
    }
}

#[test]
fn foreign_records_are_left_alone_with_remedy() {
    let host = cluster();
    serve(&host, &[current()], None);
    let outcome = host
        .reconcile(&PowerDnsRecordSets, &record_set())
        .expect("an outcome");
    let (is_ready, reason, message) = ready(&outcome.conditions);
    assert_eq!((is_ready, reason), (ConditionStatus::False, "ForeignRecord"));
    assert!(
        message.contains("_ostler-a.app.example.com") && message.contains(TEXT),
        "{message}"
    );
    assert_eq!(outcome.next, Next::Poll(Some(120_000)), "it may be handed over");
    assert_eq!(host.events().len(), 1);
    assert!(patches(&host).is_empty() && host.checkpoints().is_empty());

    host.forget();
    let mut again = record_set();
    again["status"] = status(&outcome);
    host.reconcile(&PowerDnsRecordSets, &again).expect("an outcome");
    assert!(host.events().is_empty(), "one Event for one conflict");
    host.forget();
    host.cleanup(&PowerDnsRecordSets, &again).expect("is cleaned up");
    assert!(host.requests().is_empty(), "nothing was claimed");

    // Handed over.
    serve(&host, &[current()], Some(TEXT));
    let outcome = host.reconcile(&PowerDnsRecordSets, &again).expect("is ready");
    assert_eq!(ready(&outcome.conditions).1, "Ready");
    assert_eq!(status(&outcome).get("conflict"), None);
}

#[test]
fn records_of_another_owner_are_left_alone() {
    for text in [
        "heritage=ostler,ostler/owner=staging,ostler/resource=dnsrecord/apps/app",
        "heritage=ostler,ostler/owner=prod,ostler/resource=dnsrecord/apps/other",
        "heritage=external-dns,external-dns/owner=prod",
    ] {
        let host = cluster();
        serve(&host, &[], Some(text));
        let outcome = host
            .reconcile(&PowerDnsRecordSets, &claimed())
            .expect("an outcome");
        assert_eq!(ready(&outcome.conditions).1, "OwnedByAnother");
        assert!(ready(&outcome.conditions).2.contains(text));
        assert!(patches(&host).is_empty());
        host.cleanup(&PowerDnsRecordSets, &claimed())
            .expect("is cleaned up");
        assert!(patches(&host).is_empty());
    }
}

#[test]
fn contents_have_the_form_of_the_server() {
    for (kind, value, content) in [
        ("CNAME", "www.example.com", "www.example.com."),
        ("MX", "10 mail.example.com", "10 mail.example.com."),
        ("MX", "0 .", "0 ."),
        ("SRV", "0 5 5060 sip.example.com", "0 5 5060 sip.example.com."),
        ("TXT", "say \"hi\"", "\"say \\\"hi\\\"\""),
        ("AAAA", "2001:db8::1", "2001:db8::1"),
    ] {
        let host = cluster();
        let mark = MARK.replace("-a.", &format!("-{}.", kind.to_lowercase()));
        host.answer("GET", RECORDS, 200, zone(&[]));
        host.answer("GET", &mark, 200, zone(&[]));
        host.answer("PATCH", ZONE, 204, Value::Null);
        let mut set = with("values", json!([value]));
        set["spec"]["type"] = kind.into();
        let outcome = host.reconcile(&PowerDnsRecordSets, &set).expect("is ready");
        assert_eq!(patches(&host)[0]["rrsets"][1]["records"][0]["content"], content);

        // What the server shows then is no difference.
        host.forget();
        host.answer(
            "GET",
            RECORDS,
            200,
            zone(&[rrset("app.example.com.", kind, &[content])]),
        );
        let name = mark.rsplit('=').next().expect("a name");
        let text = format!("\"{TEXT}\"");
        host.answer("GET", &mark, 200, zone(&[rrset(name, "TXT", &[&text])]));
        set["status"] = status(&outcome);
        host.reconcile(&PowerDnsRecordSets, &set).expect("is ready");
        assert!(patches(&host).is_empty(), "{kind}");
    }
}

#[test]
fn wildcard_and_apex_have_marks_in_the_zone() {
    for (fqdn, mark) in [
        ("*.example.com", "_ostler-a._wildcard.example.com"),
        ("example.com", "_ostler-a.example.com"),
    ] {
        let host = cluster();
        let path = |name: &str| format!("{ZONE}?rrset_name={name}.");
        host.answer("GET", &path(fqdn), 200, zone(&[]));
        host.answer("GET", &path(mark), 200, zone(&[]));
        host.answer("PATCH", ZONE, 204, Value::Null);
        host.reconcile(&PowerDnsRecordSets, &with("fqdn", fqdn))
            .expect("is ready");
        assert_eq!(patches(&host)[0]["rrsets"][0]["name"], format!("{mark}."));
    }
}

#[test]
fn invalid_specs_are_terminal_and_send_nothing() {
    let mut apex = with("fqdn", "example.com");
    apex["spec"]["type"] = "CNAME".into();
    apex["spec"]["values"] = json!(["www.example.com"]);
    for (set, reason) in [
        (with("ttl", 0), "InvalidSpec"),
        (with("proxied", true), "InvalidSpec"),
        (with("values", json!(["not an address"])), "InvalidSpec"),
        (with("fqdn", "_ostler-a.example.com"), "InvalidSpec"),
        (apex, "InvalidSpec"),
        (with("zone", "example.org"), "ZoneNotAllowed"),
    ] {
        let host = cluster();
        let failure = host.reconcile(&PowerDnsRecordSets, &set).expect_err("refused");
        assert_eq!(resolution(&failure), (reason, &Resolution::Terminal));
        assert!(host.requests().is_empty());
    }
    let mut elsewhere = record_set();
    elsewhere["metadata"]["namespace"] = "other".into();
    let failure = cluster()
        .reconcile(&PowerDnsRecordSets, &elsewhere)
        .expect_err("refused");
    assert_eq!(failure.reason, "NamespaceNotAllowed");
}

#[test]
fn failures_have_distinct_reasons_and_resolutions() {
    let text = |status, body: &str| response(status, &[], body);
    for (answer, reason, expected) in [
        (
            text(401, "Unauthorized"),
            "AuthenticationFailed",
            Resolution::Throttled(300_000),
        ),
        (
            text(403, "Forbidden"),
            "AccessDenied",
            Resolution::Throttled(300_000),
        ),
        (
            response(404, &[], json!({ "error": "Not Found" })),
            "ZoneNotFound",
            Resolution::Throttled(300_000),
        ),
        // Of a proxy in front of it.
        (
            text(404, "<html>Not Found</html>"),
            "ReadFailed",
            Resolution::Retry,
        ),
        (text(500, "oops"), "ReadFailed", Resolution::Retry),
        (
            response(429, &[("retry-after", "7")], "slow down"),
            "Throttled",
            Resolution::Throttled(7000),
        ),
        (text(429, "slow down"), "Throttled", Resolution::Throttled(60_000)),
    ] {
        let host = cluster();
        serve(&host, &[], None);
        host.answers("GET", RECORDS, [Ok(answer)]);
        let failure = host
            .reconcile(&PowerDnsRecordSets, &record_set())
            .expect_err("fails");
        assert_eq!(resolution(&failure), (reason, &expected));
        assert!(patches(&host).is_empty());
    }

    let host = cluster();
    serve(&host, &[], None);
    host.answer(
        "PATCH",
        ZONE,
        422,
        json!({ "error": "RRset app.example.com. IN CNAME: Conflicts with pre-existing RRset" }),
    );
    let failure = host
        .reconcile(&PowerDnsRecordSets, &record_set())
        .expect_err("refused");
    assert_eq!(resolution(&failure), ("Refused", &Resolution::Throttled(300_000)));
    assert!(
        failure.message.contains("Conflicts with pre-existing"),
        "{}",
        failure.message
    );
    let kept: Value = from_slice(failure.status.as_deref().expect("a status")).expect("JSON");
    assert_eq!(kept["mark"]["text"], TEXT, "the claim stays");

    let host = cluster();
    host.answers("GET", MARK, [Err(Error::Unavailable("refused".into()))]);
    host.answer("GET", RECORDS, 200, zone(&[]));
    let failure = host
        .reconcile(&PowerDnsRecordSets, &record_set())
        .expect_err("down");
    assert_eq!(resolution(&failure), ("ReadFailed", &Resolution::Retry));
}

#[test]
fn lost_checkpoint_prevents_the_write() {
    let host = cluster();
    serve(&host, &[], None);
    host.deny("status.checkpoint");
    host.reconcile(&PowerDnsRecordSets, &record_set())
        .expect_err("fails");
    assert!(patches(&host).is_empty());
}

#[test]
fn unready_provider_is_waited_for() {
    let host = cluster();
    host.put(json!({
        "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": "infra" },
    }));
    let failure = host
        .reconcile(&PowerDnsRecordSets, &record_set())
        .expect_err("waits");
    assert_eq!(resolution(&failure), ("ProviderNotReady", &Resolution::Wait));
    let outcome = host
        .reconcile(&PowerDnsRecordSets, &with("suspend", true))
        .expect("an outcome");
    assert_eq!(ready(&outcome.conditions).1, "Suspended");
}

#[test]
fn cleanup_deletes_records_and_mark_in_one_transaction() {
    let host = cluster();
    serve(&host, &[current()], Some(TEXT));
    let outcome = host
        .cleanup(&PowerDnsRecordSets, &claimed())
        .expect("is cleaned up");
    assert_eq!(outcome.next, Next::AwaitChange);
    assert_eq!(
        patches(&host),
        [json!({ "rrsets": [
            { "name": "app.example.com.", "type": "A", "changetype": "DELETE" },
            { "name": "_ostler-a.app.example.com.", "type": "TXT", "changetype": "DELETE" },
        ] })]
    );
}

#[test]
fn cleanup_deletes_nothing_without_claim_or_mark() {
    let host = cluster();
    host.cleanup(&PowerDnsRecordSets, &record_set())
        .expect("is cleaned up");
    assert!(host.requests().is_empty(), "nothing was claimed");

    serve(&host, &[current()], None);
    host.cleanup(&PowerDnsRecordSets, &claimed())
        .expect("is cleaned up");
    assert!(patches(&host).is_empty(), "the mark was taken away");
    assert_eq!(host.events()[0].0, "Orphaned");

    host.forget();
    let mut orphan = claimed();
    orphan["spec"]["reclaimPolicy"] = "Orphan".into();
    host.cleanup(&PowerDnsRecordSets, &orphan).expect("is cleaned up");
    assert!(host.requests().is_empty());
}

#[test]
fn cleanup_is_retried_until_the_provider_answers() {
    let host = cluster();
    serve(&host, &[current()], Some(TEXT));
    host.answer("PATCH", ZONE, 422, json!({ "error": "not now" }));
    let failure = host
        .cleanup(&PowerDnsRecordSets, &claimed())
        .expect_err("is retried");
    assert_eq!(resolution(&failure), ("Refused", &Resolution::Retry));

    host.answers("GET", MARK, [Err(Error::NotFound("Secret infra/dns".into()))]);
    let failure = host.cleanup(&PowerDnsRecordSets, &claimed()).expect_err("waits");
    assert_eq!(failure.resolution, Resolution::Wait, "the Secret may come back");

    host.answer("GET", MARK, 404, "<html>Not Found</html>");
    let failure = host.cleanup(&PowerDnsRecordSets, &claimed());
    let failure = failure.expect_err("a proxy does not reach it");
    assert!(
        failure.message.contains("not the provider's"),
        "{}",
        failure.message
    );
    host.answer("GET", MARK, 404, json!({ "error": "Not Found" }));
    host.cleanup(&PowerDnsRecordSets, &claimed())
        .expect("the zone is gone");

    host.remove(&ostler_sdk::gvk("ostler.dev", "v1alpha1", "Upstream").named("infra", "dns"));
    host.forget();
    host.cleanup(&PowerDnsRecordSets, &claimed())
        .expect("is abandoned");
    assert!(host.requests().is_empty());
    assert_eq!(host.events()[0].0, "Orphaned");
}
