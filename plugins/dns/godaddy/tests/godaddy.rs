//! Tests of the GoDaddy driver against the in-memory host of the SDK.

use dns_godaddy::GoDaddyRecordSets;
use ostler_sdk::mock::{MockHost, response};
use ostler_sdk::serde_json::{Value, from_slice, json};
use ostler_sdk::{Resolution, rfc3339};

const NOW: u64 = 1_000_000_000;
const RECORDS: &str = "/v1/domains/example.com/records/A/app";
const MARK: &str = "/v1/domains/example.com/records/TXT/_ostler-a.app";
const LISTING: &str = "/v1/domains/example.com/records";
const TEXT: &str = "heritage=ostler,ostler/owner=prod,ostler/resource=dnsrecord/apps/app";

fn record_set(fqdn: &str, kind: &str, values: &[&str]) -> Value {
    json!({
        "metadata": { "name": "app", "namespace": "apps" },
        "spec": {
            "providerRef": { "name": "dns", "namespace": "infra" },
            "zone": "example.com", "fqdn": fqdn, "type": kind, "values": values,
        },
    })
}

fn app() -> Value {
    record_set("app.example.com", "A", &["192.0.2.1"])
}

fn claimed(mut set: Value, mark: &str, written_at: u64) -> Value {
    set["status"] = json!({
        "mark": { "fqdn": format!("{mark}.example.com"), "text": TEXT }, "lastApplied": rfc3339(written_at),
    });
    set
}

fn cluster() -> MockHost {
    let host = MockHost::new();
    host.set_now(NOW * 1000).put(json!({
        "apiVersion": "dns.ostler.dev/v1alpha1", "kind": "DnsProvider",
        "metadata": { "name": "dns", "namespace": "infra" },
        "spec": { "class": "GoDaddy", "ownerID": "prod", "allowedNamespaces": ["*"],
                  "credentialsRef": { "name": "dns", "key": "key" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "message": "" }] },
    }));
    host.put(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream", "metadata": { "name": "dns", "namespace": "infra" },
    }));
    host
}

fn serve(host: &MockHost, paths: (&str, &str), records: Value, mark: bool) {
    let (path, mark_path) = paths;
    let name = mark_path.rsplit('/').next().expect("a name");
    let marks = if mark {
        json!([{ "type": "TXT", "name": name, "data": TEXT, "ttl": 600 }])
    } else {
        json!([])
    };
    host.answer("GET", path, 200, records);
    host.answer("GET", mark_path, 200, marks);
    for path in [path, mark_path] {
        host.answer("PUT", path, 200, Value::Null);
        host.answer("DELETE", path, 204, Value::Null);
    }
}

fn current() -> Value {
    json!([{ "type": "A", "name": "app", "data": "192.0.2.1", "ttl": 600 }])
}

/// The requests that change something, with their bodies.
fn writes(host: &MockHost) -> Vec<(String, Value)> {
    let sent = host.sent();
    let writes = sent.iter().filter(|r| r.method.as_str() != "GET");
    writes
        .map(|r| {
            let body = r
                .body
                .as_deref()
                .map_or(Value::Null, |body| from_slice(body).expect("JSON"));
            (format!("{} {}", r.method.as_str(), r.path_and_query), body)
        })
        .collect()
}

#[test]
fn mark_is_written_before_the_records() {
    let host = cluster();
    serve(&host, (RECORDS, MARK), json!([]), false);
    host.reconcile(&GoDaddyRecordSets, &app()).expect("is ready");
    assert_eq!(
        writes(&host),
        [
            (format!("PUT {MARK}"), json!([{ "data": TEXT, "ttl": 600 }])),
            (
                format!("PUT {RECORDS}"),
                json!([{ "data": "192.0.2.1", "ttl": 600 }])
            ),
        ]
    );
    assert_eq!(host.checkpoints().len(), 1);

    // The host was killed between the two: the mark shows that the name is ours.
    let host = cluster();
    serve(&host, (RECORDS, MARK), json!([]), true);
    host.reconcile(&GoDaddyRecordSets, &claimed(app(), "_ostler-a.app", NOW))
        .expect("is ready");
    assert_eq!(writes(&host).len(), 1);
}

#[test]
fn refused_mark_leaves_the_records_alone() {
    let host = cluster();
    serve(&host, (RECORDS, MARK), json!([]), false);
    host.answer(
        "PUT",
        MARK,
        409,
        json!({ "code": "CONFLICT", "message": "not eligible" }),
    );
    let failure = host.reconcile(&GoDaddyRecordSets, &app()).expect_err("refused");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("Refused", Resolution::Throttled(300_000))
    );
    assert_eq!(writes(&host).len(), 1);
}

#[test]
fn records_are_deleted_before_the_mark() {
    let set = claimed(app(), "_ostler-a.app", NOW);
    let host = cluster();
    serve(&host, (RECORDS, MARK), current(), true);
    host.cleanup(&GoDaddyRecordSets, &set).expect("is cleaned up");
    let requests: Vec<String> = writes(&host).into_iter().map(|(request, _)| request).collect();
    assert_eq!(requests, [format!("DELETE {RECORDS}"), format!("DELETE {MARK}")]);

    // A failure keeps the mark, so that the next attempt still knows whose the records are.
    host.forget();
    host.answer("DELETE", RECORDS, 500, "oops");
    host.cleanup(&GoDaddyRecordSets, &set).expect_err("is retried");
    assert_eq!(writes(&host).len(), 1);
    host.answer("DELETE", RECORDS, 404, json!({ "code": "NOT_FOUND" }));
    host.cleanup(&GoDaddyRecordSets, &set)
        .expect("somebody was faster");
}

#[test]
fn apex_mx_and_wildcard_have_their_names_and_fields() {
    for (fqdn, kind, value, name, mark, body) in [
        (
            "example.com",
            "MX",
            "10 mail.example.com",
            "@",
            "_ostler-mx",
            json!({ "data": "mail.example.com", "priority": 10, "ttl": 600 }),
        ),
        (
            "*.example.com",
            "TXT",
            "say \"hi\"",
            "*",
            "_ostler-txt._wildcard",
            json!({ "data": "say \"hi\"", "ttl": 600 }),
        ),
    ] {
        let path = format!("{LISTING}/{kind}/{name}");
        let mark_path = format!("{LISTING}/TXT/{mark}");
        let host = cluster();
        serve(&host, (&path, &mark_path), json!([]), false);
        let set = record_set(fqdn, kind, &[value]);
        host.reconcile(&GoDaddyRecordSets, &set).expect("is ready");
        assert_eq!(writes(&host)[1], (format!("PUT {path}"), json!([body])));

        host.forget();
        let mut shown = body;
        shown["name"] = name.into();
        shown["type"] = kind.into();
        serve(&host, (&path, &mark_path), json!([shown]), true);
        host.reconcile(&GoDaddyRecordSets, &set).expect("is ready");
        assert!(writes(&host).is_empty(), "{kind}");
    }
}

#[test]
fn services_at_one_host_are_kept_apart() {
    const PATH: &str = "/v1/domains/example.com/records/SRV/@";
    const MARK: &str = "/v1/domains/example.com/records/TXT/_ostler-srv._sip._tcp";
    let service = |service: &str, target: &str| {
        json!({ "type": "SRV", "name": "@", "service": service, "protocol": "_tcp", "data": target,
                "priority": 0, "weight": 5, "port": 5060, "ttl": 600 })
    };
    let set = record_set("_sip._tcp.example.com", "SRV", &["0 5 5060 sip.example.com"]);
    let ldap = service("_ldap", "ldap.example.com");

    let host = cluster();
    serve(&host, (PATH, MARK), json!([ldap]), false);
    host.reconcile(&GoDaddyRecordSets, &set)
        .expect("is ready: the other service is another name");
    let (_, body) = writes(&host).remove(1);
    assert_eq!(body[0], ldap, "a write replaces all services of the host");
    assert_eq!(
        (&body[1]["service"], &body[1]["data"]),
        (&json!("_sip"), &json!("sip.example.com"))
    );
    assert_eq!(body.as_array().map(Vec::len), Some(2));

    host.forget();
    serve(
        &host,
        (PATH, MARK),
        json!([ldap, service("_sip", "sip.example.com")]),
        true,
    );
    host.reconcile(&GoDaddyRecordSets, &set).expect("is ready");
    assert!(writes(&host).is_empty());
    host.cleanup(&GoDaddyRecordSets, &claimed(set, "_ostler-srv._sip._tcp", NOW))
        .expect("is cleaned up");
    assert_eq!(
        writes(&host),
        [
            (format!("PUT {PATH}"), json!([ldap])),
            (format!("DELETE {MARK}"), Value::Null)
        ]
    );
}

#[test]
fn polls_share_the_listing_of_the_zone() {
    let host = cluster();
    let mut all = current();
    let records = all.as_array_mut().expect("records");
    records.push(json!({ "type": "TXT", "name": "_ostler-a.app", "data": TEXT, "ttl": 600 }));
    records.push(json!({ "type": "AAAA", "name": "app", "data": "2001:db8::1", "ttl": 600 }));
    host.answer("GET", LISTING, 200, all);
    let settled = claimed(app(), "_ostler-a.app", NOW - 61);
    host.reconcile(&GoDaddyRecordSets, &settled).expect("is ready");
    assert_eq!(host.requests(), [format!("GET {LISTING}")]);
    assert_eq!(host.sent()[0].headers[0].value, "max-age=60");

    host.forget();
    host.answer("GET", LISTING, 200, json!([]));
    serve(&host, (RECORDS, MARK), current(), true);
    host.reconcile(&GoDaddyRecordSets, &settled).expect("is ready");
    assert_eq!(host.requests().len(), 3, "a difference is looked at by name");
    assert!(writes(&host).is_empty());
}

#[test]
fn invalid_specs_are_terminal_and_send_nothing() {
    let with = |mut set: Value, field: &str, value: Value| {
        set["spec"][field] = value;
        set
    };
    for (set, remedy) in [
        (with(app(), "ttl", 300.into()), "600 to 604800"),
        (with(app(), "proxied", true.into()), "Cloudflare"),
        (
            record_set("example.com", "CNAME", &["www.example.com"]),
            "use A and AAAA",
        ),
        (
            record_set("sip.example.com", "SRV", &["0 5 5060 sip.example.com"]),
            "_service._protocol",
        ),
    ] {
        let host = cluster();
        let failure = host.reconcile(&GoDaddyRecordSets, &set).expect_err("refused");
        assert_eq!(
            (&*failure.reason, failure.resolution),
            ("InvalidSpec", Resolution::Terminal)
        );
        assert!(failure.message.contains(remedy), "{}", failure.message);
        assert!(host.requests().is_empty());
    }
}

#[test]
fn failures_have_distinct_reasons_and_resolutions() {
    for (answer, reason, resolution) in [
        (
            response(
                429,
                &[],
                json!({ "code": "TOO_MANY_REQUESTS", "retryAfterSec": 30 }),
            ),
            "Throttled",
            Resolution::Throttled(30_000),
        ),
        (
            response(429, &[], json!({ "code": "QUOTA_EXCEEDED", "message": "over" })),
            "QuotaExceeded",
            Resolution::Throttled(3_600_000),
        ),
        (
            response(
                403,
                &[],
                json!({ "code": "ACCESS_DENIED", "message": "Authenticated user is not allowed" }),
            ),
            "AccessDenied",
            Resolution::Throttled(300_000),
        ),
        (
            response(
                404,
                &[],
                json!({ "code": "UNKNOWN_DOMAIN", "message": "not registered" }),
            ),
            "ZoneNotFound",
            Resolution::Throttled(300_000),
        ),
    ] {
        let host = cluster();
        serve(&host, (RECORDS, MARK), json!([]), false);
        host.answers("GET", RECORDS, [Ok(answer)]);
        let failure = host.reconcile(&GoDaddyRecordSets, &app()).expect_err("fails");
        assert_eq!((&*failure.reason, failure.resolution), (reason, resolution));
    }
    let host = cluster();
    serve(&host, (RECORDS, MARK), json!([]), false);
    let body = json!({ "code": "INVALID_BODY", "message": "Request body doesn't fulfill schema",
        "fields": [{ "path": "records[0].data", "message": "is too long" }] });
    host.answer("PUT", RECORDS, 422, body);
    let failure = host.reconcile(&GoDaddyRecordSets, &app()).expect_err("refused");
    assert_eq!(
        (&*failure.reason, failure.resolution),
        ("Refused", Resolution::Throttled(300_000))
    );
    assert!(failure.message.contains("is too long"), "{}", failure.message);
}
