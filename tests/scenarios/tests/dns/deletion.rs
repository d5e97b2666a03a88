use ostler::testing::{dispatcher::Cause, key::Gvk};
use ostler_test_harness::{Lab, scenario};
use serde_json::json;

use crate::dns::{DnsLab, ZONE, kind, secret_kind};

async fn start_with_records(lab: Lab) -> DnsLab {
    let dns = DnsLab::start_with_provider(lab).await;
    dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    dns.apply_visible(dns.record("www", "CNAME", &["app.example.test"]))
        .await;
    // Records of others.
    dns.dns
        .replace(ZONE, "other.example.test", "A", &["198.51.100.1"])
        .await;
    dns
}

async fn assert_only_foreign_records_remain(dns: &DnsLab) {
    assert_eq!(
        dns.dns.record_sets(ZONE).await,
        ["other.example.test. A 60 198.51.100.1"]
    );
}

#[scenario]
async fn deleted_record_is_gone_with_its_mark(lab: Lab) {
    let dns = start_with_records(lab).await;
    for name in ["app", "www"] {
        dns.lab.delete(&kind("DnsRecord"), name).await;
        dns.lab.wait_gone(&kind("DnsRecord"), name).await;
        assert!(dns.lab.get(&kind("PowerDnsRecordSet"), name).await.is_none());
    }
    assert_only_foreign_records_remain(&dns).await;
    assert_eq!(
        dns.dns.resolve("app.example.test", 1).await.code(),
        3,
        "no such name"
    );
}

#[scenario(real = "finalizers and garbage collection")]
async fn provider_deleted_first_waits_for_its_records(lab: Lab) {
    let dns = start_with_records(lab).await;
    dns.lab.delete(&secret_kind(), "powerdns").await;
    dns.lab.delete(&kind("DnsProvider"), "dns").await;
    dns.lab
        .wait_condition(&kind("DnsProvider"), "dns", "Ready", "False", "RecordsRemain")
        .await;
    for name in ["app", "www"] {
        dns.lab.delete(&kind("DnsRecord"), name).await;
    }
    for name in ["app", "www"] {
        dns.lab.wait_gone(&kind("DnsRecord"), name).await;
    }
    dns.lab.wait_gone(&kind("DnsProvider"), "dns").await;
    dns.lab.wait_gone(&secret_kind(), "powerdns").await;
    assert_only_foreign_records_remain(&dns).await;
}

#[scenario(real = "deletion of a namespace")]
async fn namespace_deletion_leaves_nothing_in_dns(lab: Lab) {
    let dns = start_with_records(lab).await;
    let namespaces = dns.lab.api(&Gvk::new("", "v1", "Namespace"), "");
    namespaces
        .delete(&dns.lab.namespace, &kube::api::DeleteParams::default())
        .await
        .expect("deletion is accepted");
    dns.lab
        .wait_until("the namespace is gone", async || {
            let found = namespaces.get_opt(&dns.lab.namespace).await;
            found.expect("an answer").is_none()
        })
        .await;
    assert_only_foreign_records_remain(&dns).await;
}

#[scenario]
async fn deletion_waits_for_an_unreachable_server(lab: Lab) {
    let dns = start_with_records(lab).await;
    dns.front.set_down(true);
    dns.lab.delete(&kind("DnsRecord"), "app").await;
    dns.lab
        .wait_until("the cleanup has failed", async || {
            let causes = dns.lab.wake_causes(&kind("PowerDnsRecordSet"), "app");
            causes.contains(&Cause::Retry)
        })
        .await;
    assert!(dns.lab.get(&kind("DnsRecord"), "app").await.is_some());
    dns.front.set_down(false);
    dns.lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(dns.dns.resolve("app.example.test", 1).await.answers(), 0);
}

#[scenario]
async fn orphaned_record_stays_with_its_mark(lab: Lab) {
    let dns = start_with_records(lab).await;
    let before = dns.dns.record_sets(ZONE).await;
    dns.lab
        .patch(
            &kind("DnsRecord"),
            "app",
            json!({"spec": {"reclaimPolicy": "Orphan"}}),
        )
        .await;
    dns.lab.wait_ready(&kind("DnsRecord"), "app").await;
    dns.lab.delete(&kind("DnsRecord"), "app").await;
    dns.lab.wait_gone(&kind("DnsRecord"), "app").await;
    assert_eq!(dns.dns.record_sets(ZONE).await, before);
    // An object of the same name takes it over again.
    dns.apply_visible(dns.record("app", "A", &["192.0.2.1"])).await;
    assert_eq!(dns.dns.record_sets(ZONE).await, before);
}
