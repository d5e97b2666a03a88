//! IngressResource, with its DNS provider, cert-manager and ingress controller played by the test.

use kube::api::{Patch, PatchParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, scenario, workspace_root};
use serde_json::{Value, json};

use super::{kind, object, secret, start};

fn record() -> Gvk {
    Gvk::new("dns.ostler.dev", "v1alpha1", "DnsRecord")
}

fn certificate() -> Gvk {
    Gvk::new("cert-manager.io", "v1", "Certificate")
}

fn served() -> Gvk {
    Gvk::new("networking.k8s.io", "v1", "Ingress")
}

async fn set_status(lab: &Lab, gvk: &Gvk, status: Value) {
    lab.wait_until("it is applied", async || lab.get(gvk, "web").await.is_some())
        .await;
    let patch = Patch::Merge(json!({ "status": status }));
    let api = lab.api(gvk, &lab.namespace);
    api.patch_status("web", &PatchParams::default(), &patch)
        .await
        .expect("the status is written");
}

#[scenario]
async fn address_becomes_live_and_leaves_nothing_behind(mut lab: Lab) {
    let crds = workspace_root().join("crds/dns.ostler.dev_dnsrecords.yaml");
    let names: &[&str] = if crds.is_file() {
        &["certificates"]
    } else {
        &["certificates", "dnsrecords"]
    };
    for name in names {
        let path = workspace_root().join(format!("tests/argocd/crds/{name}.yaml"));
        lab.apply_yaml(&std::fs::read_to_string(path).expect("a CRD"))
            .await;
    }
    lab.wait_until("the kinds are served", async || {
        let is_served = async |gvk: &Gvk| {
            let api = lab.api(gvk, &lab.namespace);
            api.list(&kube::api::ListParams::default()).await.is_ok()
        };
        is_served(&certificate()).await && is_served(&record()).await
    })
    .await;
    start(&mut lab, &["devops/devops-ingress"]).await;
    let spec = json!({ "host": "app.example.com",
        "dns": { "zone": "example.com", "providerRef": { "name": "pdns" }, "target": { "addresses": ["192.0.2.7"] } },
        "certificate": { "issuerRef": { "name": "letsencrypt" } },
        "backend": { "service": "web", "port": 80 } });
    lab.apply(object(&lab, "IngressResource", "web", spec)).await;
    let reason = async |reason: &str| {
        lab.wait_condition(&kind("IngressResource"), "web", "Ready", "False", reason)
            .await;
    };
    reason("DnsNotReady").await;
    assert_eq!(lab.get(&certificate(), "web").await, None);
    let ready = |generation: i64| {
        json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "observedGeneration": generation, "lastTransitionTime": "2026-11-22T08:00:00Z" }] })
    };
    set_status(&lab, &record(), ready(1)).await;
    reason("CertificateNotReady").await;
    assert_eq!(lab.get(&served(), "web").await, None);
    // cert-manager writes the Secret, and leaves it behind.
    lab.apply(secret(&lab, "web-tls", "a certificate")).await;
    set_status(&lab, &certificate(), ready(1)).await;
    reason("IngressNotReady").await;
    set_status(
        &lab,
        &served(),
        json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } }),
    )
    .await;
    let live = lab.wait_ready(&kind("IngressResource"), "web").await;
    assert_eq!(live["status"]["url"], "https://app.example.com");
    lab.delete(&kind("IngressResource"), "web").await;
    lab.wait_gone(&kind("IngressResource"), "web").await;
    let tls = Gvk::new("", "v1", "Secret");
    for (gvk, name) in [
        (served(), "web"),
        (record(), "web"),
        (certificate(), "web"),
        (tls, "web-tls"),
    ] {
        assert_eq!(lab.get(&gvk, name).await, None, "{}", gvk.kind);
    }
}
