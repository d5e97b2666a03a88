use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, find_condition, powerdns::POWERDNS_KEY, scenario};
use serde_json::json;

use crate::dns::{DnsLab, ZONE, kind, secret_kind};

fn mark(lab: &Lab, name: &str) -> String {
    format!(
        "\"heritage=ostler,ostler/owner=tests,ostler/resource=dnsrecord/{}/{name}\"",
        lab.namespace
    )
}

#[scenario]
async fn records_of_every_type_are_served(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    let long = "k".repeat(300);
    for (name, kind_name, values) in [
        ("app", "A", vec!["192.0.2.1", "192.0.2.2"]),
        ("@", "AAAA", vec!["2001:db8::1"]),
        ("www", "CNAME", vec!["App.example.test."]),
        ("key._domainkey", "TXT", vec![&*long, "say \"hi\""]),
        ("mail", "MX", vec!["10 mx.example.test"]),
        ("_sip._tcp", "SRV", vec!["0 5 5060 sip.example.test"]),
        ("*.wild", "A", vec!["192.0.2.3"]),
    ] {
        dns.apply_visible(dns.record(name, kind_name, &values)).await;
    }
    let app = dns.dns.resolve("app.example.test", 1).await;
    assert_eq!((app.code(), app.answers()), (0, 2));
    assert!(app.has(&[192, 0, 2, 1]) && app.has(&[192, 0, 2, 2]));
    let apex = dns.dns.resolve("example.test", 28).await;
    assert!(apex.has(&[0x20, 0x01, 0x0d, 0xb8]));
    let alias = dns.dns.resolve("www.example.test", 1).await;
    assert!(alias.has(&[192, 0, 2, 1]), "by way of the CNAME");
    let text = dns.dns.resolve("key._domainkey.example.test", 16).await;
    assert_eq!(text.answers(), 2);
    let mut strings = vec![255];
    strings.extend([b'k'; 255]);
    strings.push(45);
    strings.extend([b'k'; 45]);
    assert!(text.has(&strings), "in two strings");
    assert!(text.has(b"say \"hi\""));
    let mail = dns.dns.resolve("mail.example.test", 15).await;
    assert!(mail.has(b"\x00\x0a\x02mx"));
    let service = dns.dns.resolve("_sip._tcp.example.test", 33).await;
    assert!(service.has(b"\x00\x00\x00\x05\x13\xc4\x03sip"));
    let wild = dns.dns.resolve("anything.wild.example.test", 1).await;
    assert!(wild.has(&[192, 0, 2, 3]));
    // The mark of an alias is below its name, where records of other types may be.
    let marked = dns.dns.resolve("_ostler-cname.www.example.test", 16).await;
    assert!(marked.has(format!("dnsrecord/{}/www", dns.lab.namespace).as_bytes()));
    let events = dns.lab.list(&Gvk::new("", "v1", "Event")).await;
    let warnings = events.iter().filter(|event| event["type"] == "Warning");
    assert_eq!(warnings.count(), 0, "{events:?}");
}

#[scenario]
async fn changed_values_are_served(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    let name = dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    let spec = json!({"spec": {"values": ["192.0.2.7"], "ttl": 120}});
    dns.lab.patch(&kind("DnsRecord"), &name, spec).await;
    dns.lab.wait_ready(&kind("DnsRecord"), &name).await;
    let sets = dns.dns.record_sets(ZONE).await;
    assert!(
        sets.contains(&"app.example.test. A 120 192.0.2.7".to_owned()),
        "{sets:?}"
    );
    assert_eq!(sets.len(), 2, "the record and its mark: {sets:?}");
    let refused = dns
        .lab
        .try_apply(dns.record("app", "AAAA", &["2001:db8::1"]))
        .await;
    let error = refused.expect_err("the type is immutable").to_string();
    assert!(error.contains("immutable"), "{error}");
}

#[scenario]
async fn unchanged_records_write_nothing(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    let name = dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    dns.lab.wait_idle().await;
    dns.front.take_requests();
    let writes = dns.lab.api_writes();
    for _ in 0..5 {
        dns.poll(&name).await;
    }
    let requests = dns.front.take_requests();
    assert_eq!(requests.len(), 10, "two reads each: {requests:?}");
    assert!(
        requests.iter().all(|request| request.starts_with("GET")),
        "{requests:?}"
    );
    assert_eq!(dns.lab.api_writes(), writes, "writes to the API server");
}

#[scenario]
async fn foreign_record_is_left_alone_until_it_is_handed_over(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    dns.dns
        .replace(ZONE, "app.example.test", "A", &["198.51.100.1"])
        .await;
    let before = dns.dns.record_sets(ZONE).await;
    dns.lab.apply(dns.record("app", "A", &["192.0.2.1"])).await;
    let refused = dns
        .lab
        .wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "ForeignRecord")
        .await;
    let message = find_condition(&refused, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let text = mark(&dns.lab, "app");
    assert!(
        message.contains("_ostler-a.app.example.test") && message.contains(&text),
        "{message}"
    );
    dns.lab.wait_idle().await;
    assert_eq!(dns.dns.record_sets(ZONE).await, before);
    let events = dns.lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(events.iter().any(|event| event["reason"] == "ForeignRecord"));

    // An object that never took the record over leaves it when it goes.
    dns.lab.delete(&kind("DnsRecord"), "app").await;
    dns.lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(dns.dns.record_sets(ZONE).await, before);

    dns.lab.apply(dns.record("app", "A", &["192.0.2.1"])).await;
    dns.lab
        .wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "ForeignRecord")
        .await;
    dns.dns
        .replace(ZONE, "_ostler-a.app.example.test", "TXT", &[&text])
        .await;
    dns.poll("app").await;
    dns.lab.wait_ready(&kind("DnsRecord"), "app").await;
    assert!(dns.dns.resolve("app.example.test", 1).await.has(&[192, 0, 2, 1]));
}

#[scenario]
async fn two_objects_of_one_name_do_not_fight(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    let mut second = dns.record("app", "A", &["192.0.2.2"]);
    second["metadata"]["name"] = "second".into();
    dns.lab.apply(second).await;
    dns.lab
        .wait_condition(&kind("DnsRecord"), "second", "Ready", "False", "OwnedByAnother")
        .await;
    dns.lab.wait_ready(&kind("DnsRecord"), "app").await;
    assert!(dns.dns.resolve("app.example.test", 1).await.has(&[192, 0, 2, 1]));
    // The name becomes free, and the other object gets it.
    dns.lab.delete(&kind("DnsRecord"), "app").await;
    dns.lab.wait_gone(&kind("DnsRecord"), "app").await;
    dns.poll("second").await;
    dns.lab.wait_ready(&kind("DnsRecord"), "second").await;
    assert!(dns.dns.resolve("app.example.test", 1).await.has(&[192, 0, 2, 2]));
}

#[scenario]
async fn drift_is_corrected_at_the_poll(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    let name = dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    dns.lab.wait_idle().await;
    let before = dns.dns.record_sets(ZONE).await;
    for contents in [&["198.51.100.1"][..], &[]] {
        dns.dns.replace(ZONE, "app.example.test", "A", contents).await;
        dns.poll(&name).await;
        assert_eq!(dns.dns.record_sets(ZONE).await, before);
    }
    // Somebody else took the name over: it is theirs now.
    let other = "\"heritage=external-dns,external-dns/owner=other\"";
    dns.dns
        .replace(ZONE, "_ostler-a.app.example.test", "TXT", &[other])
        .await;
    dns.dns
        .replace(ZONE, "app.example.test", "A", &["198.51.100.1"])
        .await;
    dns.poll(&name).await;
    dns.lab
        .wait_condition(&kind("DnsRecord"), &name, "Ready", "False", "OwnedByAnother")
        .await;
    dns.lab.delete(&kind("DnsRecord"), &name).await;
    dns.lab.wait_gone(&kind("DnsRecord"), &name).await;
    assert!(
        dns.dns
            .resolve("app.example.test", 1)
            .await
            .has(&[198, 51, 100, 1])
    );
}

#[scenario]
async fn ten_records_cost_few_requests(lab: Lab) {
    let dns = DnsLab::start_with_provider(lab).await;
    dns.front.take_requests();
    let names: Vec<String> = (0..10).map(|number| format!("app-{number}")).collect();
    for name in &names {
        dns.lab.apply(dns.record(name, "A", &["192.0.2.1"])).await;
    }
    for name in &names {
        dns.lab.wait_ready(&kind("DnsRecord"), name).await;
    }
    dns.lab.wait_idle().await;
    let requests = dns.front.take_requests();
    let count = |method: &str| {
        requests
            .iter()
            .filter(|request| request.starts_with(method))
            .count()
    };
    assert_eq!((count("PATCH"), count("GET")), (10, 20), "{requests:?}");
    assert_eq!(dns.dns.record_sets(ZONE).await.len(), 20);
}

#[scenario]
async fn rotated_credentials_are_used(lab: Lab) {
    let dns = DnsLab::start(lab).await;
    dns.lab.apply(dns.secret("another-key-0002")).await;
    dns.lab.apply(dns.provider()).await;
    let refused = dns
        .lab
        .wait_condition(
            &kind("DnsProvider"),
            "dns",
            "Ready",
            "False",
            "AuthenticationFailed",
        )
        .await;
    assert!(!refused.to_string().contains("another-key"), "{refused}");
    dns.lab.apply(dns.record("app", "A", &["192.0.2.1"])).await;
    dns.lab
        .wait_condition(&kind("DnsRecord"), "app", "Ready", "False", "ProviderNotReady")
        .await;
    dns.lab.apply(dns.secret(POWERDNS_KEY)).await;
    dns.lab.wait_ready(&kind("DnsRecord"), "app").await;
    for kind_name in ["DnsProvider", "DnsRecord", "PowerDnsRecordSet"] {
        let objects = dns.lab.list(&kind(kind_name)).await;
        assert!(!format!("{objects:?}").contains(POWERDNS_KEY), "{kind_name}");
    }
    assert!(dns.lab.get(&secret_kind(), "powerdns").await.is_some());
}

#[scenario]
async fn samples_become_ready(lab: Lab) {
    let dns = DnsLab::start(lab).await;
    apply_samples(&dns).await;
    assert_eq!(dns.dns.record_sets(ZONE).await.len(), 12);
}

/// Rules that records of PowerDNS do not need.
const UNUSED_RULES: &[&str] = &[
    // Users of the secure address, of which there are none.
    "ostler create tokenreviews.authentication.k8s.io",
    // The record sets of other providers: one plugin has rights for all.
    "dns-record delete cloudflarerecordsets.dns.ostler.dev",
    "dns-record delete godaddyrecordsets.dns.ostler.dev",
    "dns-record get cloudflarerecordsets.dns.ostler.dev",
    "dns-record get godaddyrecordsets.dns.ostler.dev",
    "dns-record create cloudflarerecordsets.dns.ostler.dev",
    "dns-record create godaddyrecordsets.dns.ostler.dev",
    "dns-record patch cloudflarerecordsets.dns.ostler.dev",
    "dns-record patch godaddyrecordsets.dns.ostler.dev",
    "ostler list cloudflarerecordsets.dns.ostler.dev",
    "ostler list godaddyrecordsets.dns.ostler.dev",
    "ostler watch cloudflarerecordsets.dns.ostler.dev",
    "ostler watch godaddyrecordsets.dns.ostler.dev",
    // Of a resolver that a DnsProvider no longer names.
    "dns-provider delete upstreams.ostler.dev",
    // Of a failure.
    "ostler create events",
    // A plugin may read past the cache, which its manifest does not tell; this one does not.
    "ostler impersonate dns-powerdns",
];

/// Host and plugins act as their service accounts, and no rule of theirs is without use.
#[scenario(real = "RBAC and impersonation")]
async fn shipped_rights_are_exactly_what_the_pack_needs(lab: Lab) {
    let dns = DnsLab::start(lab).await;
    apply_samples(&dns).await;
    for name in SAMPLES {
        dns.lab.delete(&kind("DnsRecord"), name).await;
    }
    for name in SAMPLES {
        dns.lab.wait_gone(&kind("DnsRecord"), name).await;
    }
    dns.lab.delete(&kind("DnsProvider"), "powerdns").await;
    dns.lab.wait_gone(&kind("DnsProvider"), "powerdns").await;
    assert!(dns.dns.record_sets(ZONE).await.is_empty());
    dns.lab.assert_exact_rights(UNUSED_RULES);
}

const SAMPLES: [&str; 6] = ["app", "www", "spf", "mail", "sip", "wildcard"];

async fn apply_samples(dns: &DnsLab) {
    let text = include_str!("../../../../deploy/examples/dns.yaml")
        .replace("namespace: dns\n", &format!("namespace: {}\n", dns.lab.namespace))
        .replace("\n  name: dns\n", &format!("\n  name: {}\n", dns.lab.namespace))
        .replace("${POWERDNS_URL}", &dns.front.url())
        .replace("${POWERDNS_KEY}", POWERDNS_KEY)
        .replace("${DNS_ZONE}", ZONE);
    dns.lab.apply_yaml(&text).await;
    for name in SAMPLES {
        dns.lab.wait_ready(&kind("DnsRecord"), name).await;
    }
}
