//! Tests of the Cloudflare driver against the in-memory host of the SDK.

use dns_cloudflare::CloudflareRecordSets;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Resolution, rfc3339};

const NOW: u64 = 1_000_000_000;
const FIND_ZONE: &str = "/zones?name=example.com";
const RECORDS: &str = "/zones/z1/dns_records?name.exact=app.example.com&per_page=100";
const BATCH: &str = "/zones/z1/dns_records/batch";
const TEXT: &str = "heritage=ostler,ostler/owner=prod,ostler/resource=dnsrecord/apps/app";

fn mark_path(kind: &str) -> String {
    format!("/zones/z1/dns_records?name.exact=_ostler-{kind}.app.example.com&per_page=100")
}

fn listing(page: u32) -> String {
    format!("/zones/z1/dns_records?per_page=1000&page={page}")
}

fn record_set(kind: &str, values: &[&str]) -> Value {
    json!({
        "metadata": { "name": "app", "namespace": "apps" },
        "spec": {
            "providerRef": { "name": "dns", "namespace": "infra" },
            "zone": "example.com", "fqdn": "app.example.com", "type": kind, "values": values,
        },
    })
}

/// A record set that was written at this time, in seconds.
fn claimed(written_at: u64) -> Value {
    let mut set = record_set("A", &["192.0.2.1", "192.0.2.2"]);
    set["status"] = json!({
        "mark": { "fqdn": "_ostler-a.app.example.com", "text": TEXT }, "lastApplied": rfc3339(written_at),
    });
    set
}

fn cluster() -> MockHost {
    let host = MockHost::new();
    host.set_now(NOW * 1000).put(json!({
        "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": "infra" },
        "spec": { "class": "Cloudflare", "ownerID": "prod", "allowedNamespaces": ["*"],
                  "credentialsRef": { "name": "dns", "key": "token" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }] },
    }));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream", "metadata": { "name": "dns", "namespace": "infra" },
    }));
    host.answer(
        "GET",
        FIND_ZONE,
        200,
        envelope(&[json!({ "id": "z1", "name": "example.com" })]),
    );
    host.answer("POST", BATCH, 200, envelope(&[]));
    host
}

fn envelope(result: &[Value]) -> Value {
    json!({ "success": true, "errors": [], "result": result, "result_info": { "page": 1, "total_pages": 1 } })
}

fn object(id: &str, content: &str) -> Value {
    json!({ "id": id, "type": "A", "name": "app.example.com", "content": content, "ttl": 1, "proxied": false })
}

fn mark(kind: &str) -> Value {
    json!({ "id": "m1", "type": "TXT", "name": format!("_ostler-{kind}.app.example.com"),
            "content": format!("\"{TEXT}\""), "ttl": 1 })
}

fn serve(host: &MockHost, records: &[Value], marks: &[Value]) {
    host.answer("GET", RECORDS, 200, envelope(records));
    host.answer("GET", &mark_path("a"), 200, envelope(marks));
}

fn batches(host: &MockHost) -> Vec<Value> {
    let sent = host.sent();
    let posts = sent.iter().filter(|r| r.method.as_str() == "POST");
    posts
        .map(|r| from_slice(r.body.as_deref().expect("a body")).expect("JSON"))
        .collect()
}

#[test]
fn absent_records_are_posted_with_their_mark_in_one_batch() {
    let host = cluster();
    serve(&host, &[], &[]);
    let set = record_set("A", &["192.0.2.1", "192.0.2.2"]);
    host.reconcile(&CloudflareRecordSets, &set).expect("is ready");
    let address = |content: &str| json!({ "type": "A", "name": "app.example.com", "ttl": 1, "content": content, "proxied": false });
    assert_eq!(
        batches(&host),
        [json!({ "deletes": [], "patches": [], "posts": [
            { "type": "TXT", "name": "_ostler-a.app.example.com", "content": format!("\"{TEXT}\""), "ttl": 1 },
            address("192.0.2.1"), address("192.0.2.2"),
        ] })]
    );
    assert_eq!(host.checkpoints().len(), 1);
}

#[test]
fn difference_is_written_by_the_ids_of_the_values() {
    let host = cluster();
    serve(
        &host,
        &[object("r1", "192.0.2.1"), object("r9", "192.0.2.9")],
        &[mark("a")],
    );
    host.reconcile(&CloudflareRecordSets, &claimed(NOW))
        .expect("is ready");
    assert_eq!(
        batches(&host),
        [json!({
            "deletes": [{ "id": "r9" }],
            "patches": [{ "id": "r1", "ttl": 1, "proxied": false }],
            "posts": [{ "type": "A", "name": "app.example.com", "ttl": 1, "content": "192.0.2.2", "proxied": false }],
        })]
    );
}

#[test]
fn proxied_state_of_one_value_is_mended() {
    let host = cluster();
    let mut proxied = object("r1", "192.0.2.1");
    proxied["proxied"] = true.into();
    serve(&host, &[proxied, object("r2", "192.0.2.2")], &[mark("a")]);
    let mut set = claimed(NOW);
    set["spec"]["proxied"] = true.into();
    host.reconcile(&CloudflareRecordSets, &set).expect("is ready");
    assert_eq!(batches(&host)[0]["patches"].as_array().map(Vec::len), Some(2));
}

#[test]
fn records_in_fields_are_written_and_read() {
    for (kind, value, post, shown) in [
        (
            "MX",
            "10 mail.example.com",
            json!({ "priority": 10, "content": "mail.example.com" }),
            json!({ "priority": 10, "content": "Mail.example.com" }),
        ),
        (
            "SRV",
            "0 5 5060 sip.example.com",
            json!({ "data": { "priority": 0, "weight": 5, "port": 5060, "target": "sip.example.com" } }),
            json!({ "content": "5 5060 sip.example.com",
                    "data": { "priority": 0, "weight": 5, "port": 5060, "target": "sip.example.com" } }),
        ),
        (
            "TXT",
            "v=spf1 -all",
            json!({ "content": "\"v=spf1 -all\"" }),
            json!({ "content": "\"v=spf1 -all\"" }),
        ),
    ] {
        let low = kind.to_lowercase();
        let host = cluster();
        host.answer("GET", RECORDS, 200, envelope(&[]));
        host.answer("GET", &mark_path(&low), 200, envelope(&[]));
        host.reconcile(&CloudflareRecordSets, &record_set(kind, &[value]))
            .expect("is ready");
        let posted = &batches(&host)[0]["posts"][1];
        for (field, expected) in post.as_object().expect("fields") {
            assert_eq!(&posted[field], expected, "{kind}");
        }
        host.forget();
        let mut record = json!({ "id": "r1", "type": kind, "name": "app.example.com", "ttl": 1 });
        for (field, value) in shown.as_object().expect("fields") {
            record[field] = value.clone();
        }
        host.answer("GET", RECORDS, 200, envelope(&[record]));
        host.answer("GET", &mark_path(&low), 200, envelope(&[mark(&low)]));
        host.reconcile(&CloudflareRecordSets, &record_set(kind, &[value]))
            .expect("is ready");
        assert!(batches(&host).is_empty(), "{kind}");
    }
}

#[test]
fn polls_share_the_listing_of_the_zone() {
    let host = cluster();
    let in_sync = [object("r1", "192.0.2.1"), object("r2", "192.0.2.2"), mark("a")];
    let mut first = envelope(&in_sync[..1]);
    first["result_info"]["total_pages"] = 2.into();
    host.answer("GET", &listing(1), 200, first);
    host.answer("GET", &listing(2), 200, envelope(&in_sync[1..]));
    host.reconcile(&CloudflareRecordSets, &claimed(NOW - 61))
        .expect("is ready");
    assert_eq!(
        host.requests(),
        [
            format!("GET {FIND_ZONE}"),
            format!("GET {}", listing(1)),
            format!("GET {}", listing(2))
        ]
    );
    let ages: Vec<String> = host
        .sent()
        .iter()
        .flat_map(|request| request.headers.iter().map(|header| header.value.clone()))
        .collect();
    assert_eq!(ages, ["max-age=300", "max-age=60", "max-age=60"]);

    // A listing may be older than the last write: what it shows must not count then.
    host.forget();
    serve(&host, &in_sync[..2], &in_sync[2..]);
    host.reconcile(&CloudflareRecordSets, &claimed(NOW - 60))
        .expect("is ready");
    assert!(
        host.requests()
            .iter()
            .all(|request| !request.contains("page=1&") && !request.ends_with("page=1"))
    );

    // A difference in the listing is looked at by name before anything is written.
    host.forget();
    host.answer("GET", &listing(1), 200, envelope(&[]));
    host.reconcile(&CloudflareRecordSets, &claimed(NOW - 61))
        .expect("is ready");
    assert!(batches(&host).is_empty());

    // A zone with too many pages is read by name.
    host.forget();
    let mut huge = envelope(&[]);
    huge["result_info"]["total_pages"] = 11.into();
    host.answer("GET", &listing(1), 200, huge);
    host.reconcile(&CloudflareRecordSets, &claimed(NOW - 61))
        .expect("is ready");
    assert!(host.requests().contains(&format!("GET {RECORDS}")));
}

#[test]
fn invalid_specs_are_terminal_and_send_nothing() {
    let with = |kind: &str, field: &str, value: Value| {
        let mut set = record_set(kind, &["x.example.com"]);
        set["spec"][field] = value;
        set
    };
    let mut slow_proxy = record_set("A", &["192.0.2.1"]);
    slow_proxy["spec"]["ttl"] = 300.into();
    slow_proxy["spec"]["proxied"] = true.into();
    for set in [
        with("CNAME", "ttl", 59.into()),
        with("TXT", "proxied", true.into()),
        slow_proxy,
    ] {
        let host = cluster();
        let failure = host.reconcile(&CloudflareRecordSets, &set).expect_err("refused");
        assert_eq!(
            (&*failure.reason, failure.resolution),
            ("InvalidSpec", Resolution::Terminal)
        );
        assert!(host.requests().is_empty());
    }
}

#[test]
fn failures_have_distinct_reasons_and_resolutions() {
    let failed = json!({ "success": false, "errors": [{ "code": 81053, "message": "An A record exists." }] });
    for (answer, reason, resolution) in [
        (
            response(400, &[], failed.clone()),
            "Refused",
            Resolution::Throttled(300_000),
        ),
        (response(200, &[], failed), "WriteFailed", Resolution::Retry),
        (
            response(429, &[("retry-after", "300")], json!({ "success": false })),
            "Throttled",
            Resolution::Throttled(300_000),
        ),
    ] {
        let host = cluster();
        serve(&host, &[], &[]);
        host.answers("POST", BATCH, [Ok(answer)]);
        let failure = host
            .reconcile(&CloudflareRecordSets, &record_set("A", &["192.0.2.1"]))
            .expect_err("fails");
        assert_eq!((&*failure.reason, failure.resolution), (reason, resolution));
    }
    let host = cluster();
    host.answer("GET", FIND_ZONE, 200, envelope(&[]));
    let failure = host
        .reconcile(&CloudflareRecordSets, &record_set("A", &["192.0.2.1"]))
        .expect_err("no zone");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("ZoneNotVisible", Resolution::Throttled(300_000))
    );
    host.cleanup(&CloudflareRecordSets, &claimed(NOW))
        .expect_err("a token that shows less does not orphan records");
}

#[test]
fn cleanup_deletes_records_and_mark_by_id() {
    let host = cluster();
    serve(
        &host,
        &[object("r1", "192.0.2.1"), object("r2", "192.0.2.2")],
        &[mark("a")],
    );
    host.cleanup(&CloudflareRecordSets, &claimed(NOW))
        .expect("is cleaned up");
    assert_eq!(
        batches(&host),
        [json!({ "deletes": [{ "id": "r1" }, { "id": "r2" }, { "id": "m1" }] })]
    );
}

#[test]
fn marks_of_two_owners_stop_both() {
    let host = cluster();
    let mut other = mark("a");
    other["content"] = "\"heritage=ostler,ostler/owner=other\"".into();
    serve(&host, &[object("r1", "192.0.2.1")], &[mark("a"), other]);
    let outcome = host
        .reconcile(&CloudflareRecordSets, &claimed(NOW))
        .expect("an outcome");
    assert_eq!(outcome.conditions[0].reason, "OwnedByAnother");
    assert!(batches(&host).is_empty());
}

#[test]
fn zone_of_another_script_is_found_by_the_name_that_people_write() {
    let host = cluster();
    let found = json!({ "id": "z1", "name": "bücher.example" });
    host.answer(
        "GET",
        "/zones?name=xn--bcher-kva.example",
        200,
        envelope(&[found]),
    );
    let mut set = record_set("CNAME", &["www.xn--bcher-kva.example"]);
    set["spec"]["zone"] = "xn--bcher-kva.example".into();
    set["spec"]["fqdn"] = "app.xn--bcher-kva.example".into();
    let path =
        |name: &str| format!("/zones/z1/dns_records?name.exact={name}.xn--bcher-kva.example&per_page=100");
    let record = json!({ "id": "r1", "type": "CNAME", "name": "app.bücher.example", "content": "www.bücher.example",
        "ttl": 1, "proxied": false });
    let mark = json!({ "id": "m1", "type": "TXT", "name": "_ostler-cname.app.bücher.example",
        "content": format!("\"{TEXT}\""), "ttl": 1 });
    host.answer("GET", &path("app"), 200, envelope(&[record]));
    host.answer("GET", &path("_ostler-cname.app"), 200, envelope(&[mark]));
    host.reconcile(&CloudflareRecordSets, &set).expect("is ready");
    assert!(batches(&host).is_empty(), "nothing differs");
}
