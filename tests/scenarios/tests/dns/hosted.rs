//! Cloudflare and GoDaddy, simulated: the whole host with their drivers.

use std::collections::BTreeSet;

use dns_simulators::{Cloudflare, DnsFault, DnsSimulator, GoDaddy};
use ostler::testing::{dispatcher::Cause, queue::Priority};
use ostler_test_harness::{Lab, find_condition, scenario};
use serde_json::{Value, json};

use crate::dns::{ZONE, kind, start_host};

const TOKEN: &str = "cloudflare-token-0001";
const KEYS: &str = "godaddy-key-0001:godaddy-secret-0001";

async fn start(lab: &mut Lab, class: &str, url: &str, credentials: &str) {
    let driver = format!("dns/dns-{}", class.to_lowercase());
    start_host(lab, &["dns/dns-provider", "dns/dns-record", &driver]).await;
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dns", "namespace": lab.namespace},
        "stringData": {"credentials": credentials}}),
    )
    .await;
    // The default limit of GoDaddy would make the tests slow; the simulator has one of its own.
    let spec = json!({"class": class, "url": url, "ownerID": "tests", "limits": {"requestsPerSecond": 1000},
        "credentialsRef": {"name": "dns", "key": "credentials"}});
    lab.apply(object(lab, "DnsProvider", "dns", spec)).await;
    lab.wait_ready(&kind("DnsProvider"), "dns").await;
}

async fn start_cloudflare(lab: &mut Lab) -> DnsSimulator<Cloudflare> {
    let server = DnsSimulator::start_cloudflare(ZONE, TOKEN).await;
    start(lab, "Cloudflare", &server.url(), TOKEN).await;
    server.take_requests();
    server
}

async fn start_godaddy(lab: &mut Lab) -> DnsSimulator<GoDaddy> {
    let server = DnsSimulator::start_godaddy(ZONE, KEYS).await;
    start(lab, "GoDaddy", &server.origin(), KEYS).await;
    server.take_requests();
    server
}

fn object(lab: &Lab, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "dns.ostler.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": spec})
}

fn record(lab: &Lab, object_name: &str, name: &str, kind: &str, values: &[&str]) -> Value {
    let spec =
        json!({"providerRef": {"name": "dns"}, "zone": ZONE, "name": name, "type": kind, "values": values});
    object(lab, "DnsRecord", object_name, spec)
}

const OF_EVERY_TYPE: [(&str, &str, &str, &[&str]); 6] = [
    ("app", "app", "A", &["192.0.2.1", "192.0.2.2"]),
    ("www", "www", "CNAME", &["app.example.test"]),
    ("spf", "@", "TXT", &["v=spf1 mx -all"]),
    ("mail", "@", "MX", &["10 mx.example.test"]),
    ("sip", "_sip._tcp", "SRV", &["0 5 5060 sip.example.test"]),
    ("wild", "*", "AAAA", &["2001:db8::1"]),
];

async fn apply_every_type(lab: &Lab) {
    for (object_name, name, kind_name, values) in OF_EVERY_TYPE {
        lab.apply(record(lab, object_name, name, kind_name, values)).await;
    }
    for (object_name, ..) in OF_EVERY_TYPE {
        lab.wait_ready(&kind("DnsRecord"), object_name).await;
    }
    lab.wait_idle().await;
}

async fn delete_every_type(lab: &Lab) {
    for (object_name, ..) in OF_EVERY_TYPE {
        lab.delete(&kind("DnsRecord"), object_name).await;
    }
    for (object_name, ..) in OF_EVERY_TYPE {
        lab.wait_gone(&kind("DnsRecord"), object_name).await;
    }
}

fn without_marks(records: Vec<String>) -> Vec<String> {
    let is_mark = |line: &String| line.contains("_ostler-");
    records.into_iter().filter(|line| !is_mark(line)).collect()
}

async fn poll(lab: &Lab, kind_name: &str, name: &str) {
    let dispatcher = &lab.host().services().dispatcher;
    dispatcher.enqueue(&lab.key(&kind(kind_name), name), Priority::Normal, Cause::Poll);
    lab.wait_idle().await;
}

#[scenario]
async fn cloudflare_records_come_and_go_with_their_marks(mut lab: Lab) {
    let server = start_cloudflare(&mut lab).await;
    apply_every_type(&lab).await;
    let all = server.records();
    assert_eq!(all.len(), 13, "7 records and 6 marks: {all:?}");
    assert_eq!(
        without_marks(all),
        [
            "*.example.test AAAA 1 2001:db8::1",
            "_sip._tcp.example.test SRV 1 5 5060 sip.example.test",
            "app.example.test A 1 192.0.2.1",
            "app.example.test A 1 192.0.2.2",
            "example.test MX 1 mx.example.test",
            "example.test TXT 1 \"v=spf1 mx -all\"",
            "www.example.test CNAME 1 app.example.test",
        ]
    );
    lab.patch(
        &kind("DnsRecord"),
        "app",
        json!({"spec": {"values": ["192.0.2.2", "192.0.2.3"], "ttl": 300}}),
    )
    .await;
    lab.wait_ready(&kind("DnsRecord"), "app").await;
    let changed = without_marks(server.records());
    assert!(
        changed.contains(&"app.example.test A 300 192.0.2.3".to_owned()),
        "{changed:?}"
    );
    assert!(
        !changed.iter().any(|line| line.ends_with("192.0.2.1")),
        "{changed:?}"
    );
    server.take_requests();
    for (object_name, ..) in OF_EVERY_TYPE {
        poll(&lab, "CloudflareRecordSet", object_name).await;
    }
    let requests = server.take_requests();
    assert!(
        requests.iter().all(|request| request.starts_with("GET")),
        "no difference: {requests:?}"
    );
    delete_every_type(&lab).await;
    assert!(server.records().is_empty(), "{:?}", server.records());
}

#[scenario]
async fn cloudflare_leaves_foreign_records_alone(mut lab: Lab) {
    let server = start_cloudflare(&mut lab).await;
    server.put_record(&json!({"type": "A", "name": "app.example.test", "content": "198.51.100.1", "ttl": 1}));
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    lab.wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "ForeignRecord")
        .await;
    lab.delete(&kind("DnsRecord"), "app").await;
    lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(server.records(), ["app.example.test A 1 198.51.100.1"]);
}

#[scenario]
async fn cloudflare_records_share_the_search_for_their_zone(mut lab: Lab) {
    let server = start_cloudflare(&mut lab).await;
    let names: Vec<String> = (0..10).map(|number| format!("app-{number}")).collect();
    for name in &names {
        lab.apply(record(&lab, name, name, "A", &["192.0.2.1"])).await;
    }
    for name in &names {
        lab.wait_ready(&kind("DnsRecord"), name).await;
    }
    lab.wait_idle().await;
    let mut requests = server.take_requests();
    requests.retain(|request| request.contains("/zones"));
    let count = |part: &str| requests.iter().filter(|request| request.contains(part)).count();
    assert_eq!(count("/zones?name="), 1, "the zone's ID is shared: {requests:?}");
    assert_eq!(count("/batch"), 10, "one for each record: {requests:?}");
    // The API server may deliver the first write of a reconcile so late that it causes another one.
    let reads: BTreeSet<&String> = requests.iter().filter(|r| r.contains("name.exact=")).collect();
    assert_eq!(reads.len(), 20, "two for each record: {requests:?}");
}

#[scenario]
async fn cloudflare_lost_response_doubles_nothing(mut lab: Lab) {
    let server = start_cloudflare(&mut lab).await;
    server.fail_next(1, "/batch", DnsFault::LoseResponse);
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    lab.wait_ready(&kind("DnsRecord"), "app").await;
    assert_eq!(
        without_marks(server.records()),
        ["app.example.test A 1 192.0.2.1"]
    );
    server.fail_next(1, "/batch", DnsFault::LoseResponse);
    lab.delete(&kind("DnsRecord"), "app").await;
    lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert!(server.records().is_empty());
}

#[scenario]
async fn godaddy_records_come_and_go_with_their_marks(mut lab: Lab) {
    let server = start_godaddy(&mut lab).await;
    server.put_record(
        &json!({"type": "SRV", "name": "@", "service": "_ldap", "protocol": "_tcp",
        "data": "ldap.example.test", "priority": 0, "weight": 1, "port": 389, "ttl": 600}),
    );
    apply_every_type(&lab).await;
    assert_eq!(
        without_marks(server.records()),
        [
            "* AAAA 600 2001:db8::1",
            "@ MX 600 mx.example.test",
            "@ SRV 600 ldap.example.test",
            "@ SRV 600 sip.example.test",
            "@ TXT 600 v=spf1 mx -all",
            "app A 600 192.0.2.1",
            "app A 600 192.0.2.2",
            "www CNAME 600 app.example.test",
        ]
    );
    server.take_requests();
    for (object_name, ..) in OF_EVERY_TYPE {
        poll(&lab, "GoDaddyRecordSet", object_name).await;
    }
    let requests = server.take_requests();
    assert!(
        requests.iter().all(|request| request.starts_with("GET")),
        "no difference: {requests:?}"
    );
    delete_every_type(&lab).await;
    assert_eq!(server.records(), ["@ SRV 600 ldap.example.test"]);
}

#[scenario]
async fn godaddy_leaves_foreign_records_alone(mut lab: Lab) {
    let server = start_godaddy(&mut lab).await;
    server.put_record(&json!({"type": "A", "name": "app", "data": "198.51.100.1", "ttl": 600}));
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    lab.wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "ForeignRecord")
        .await;
    lab.delete(&kind("DnsRecord"), "app").await;
    lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(server.records(), ["app A 600 198.51.100.1"]);
}

#[scenario]
async fn godaddy_write_interrupted_after_the_mark_is_finished(mut lab: Lab) {
    let server = start_godaddy(&mut lab).await;
    server.fail_next(
        2,
        "PUT /v1/domains/example.test/records/A/",
        DnsFault::Status(500, None, Value::Null),
    );
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    lab.wait_ready(&kind("DnsRecord"), "app").await;
    assert_eq!(without_marks(server.records()), ["app A 600 192.0.2.1"]);
    let marks = server.take_requests();
    let marks = marks
        .iter()
        .filter(|request| request.starts_with("PUT") && request.contains("/TXT/"));
    assert_eq!(marks.count(), 1, "the mark is written once");
    // The record is deleted first: what interrupts the deletion leaves the mark.
    server.fail_next(
        1,
        "DELETE /v1/domains/example.test/records/TXT/",
        DnsFault::Status(500, None, Value::Null),
    );
    lab.delete(&kind("DnsRecord"), "app").await;
    lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert!(server.records().is_empty());
}

#[scenario]
async fn godaddy_limit_is_waited_for(mut lab: Lab) {
    let server = start_godaddy(&mut lab).await;
    server.set_quota(2, 2);
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    let throttled = lab
        .wait_condition(&kind("GoDaddyRecordSet"), "app", "Ready", "False", "Throttled")
        .await;
    assert_eq!(find_condition(&throttled, "Reconciling")["status"], "True");
    server.clear_quota();
    lab.wait_ready(&kind("DnsRecord"), "app").await;
}

#[scenario]
async fn godaddy_refusal_names_the_cause(mut lab: Lab) {
    let server = start_godaddy(&mut lab).await;
    server.put_record(&json!({"type": "CNAME", "name": "app", "data": "other.example.test", "ttl": 600}));
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    let refused = lab
        .wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "Refused")
        .await;
    assert!(
        find_condition(&refused, "Ready")["message"]
            .to_string()
            .contains("already exists")
    );
    lab.delete(&kind("DnsRecord"), "app").await;
    lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(
        server.records(),
        ["app CNAME 600 other.example.test"],
        "the mark is gone, too"
    );
    lab.apply(record(&lab, "app", "app", "A", &["192.0.2.1"])).await;
    lab.wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "Refused")
        .await;
    server.remove_records("CNAME", "app");
    poll(&lab, "GoDaddyRecordSet", "app").await;
    lab.wait_ready(&kind("DnsRecord"), "app").await;
}
