//! The controllers of a cluster besides Argo CD's: cert-manager and an ingress controller, and a DNS provider where the DNS pack
//! does not run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, workspace_root};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Interval between two looks at all objects.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Address of the ingress controller.
pub const INGRESS_ADDRESS: &str = "192.0.2.7";
/// Message of a certificate that the issuer refuses.
pub const REFUSAL: &str = "The certificate request has failed to complete: the order is invalid";

pub fn dns_record() -> Gvk {
    Gvk::new("dns.ostler.dev", "v1alpha1", "DnsRecord")
}

pub fn certificate() -> Gvk {
    Gvk::new("cert-manager.io", "v1", "Certificate")
}

pub fn ingress() -> Gvk {
    Gvk::new("networking.k8s.io", "v1", "Ingress")
}

pub fn secrets() -> Gvk {
    Gvk::new("", "v1", "Secret")
}

/// Running controllers, which end when this is dropped.
pub struct ClusterControllers {
    refuses_certificates: Arc<AtomicBool>,
    is_cert_manager_down: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for ClusterControllers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ClusterControllers {
    /// Applies the CRD of cert-manager, and starts the controllers of the test's namespace.
    pub async fn start(lab: &Lab, has_dns: bool) -> Self {
        let path = workspace_root().join("tests/argocd/crds/certificates.yaml");
        lab.apply_yaml(&std::fs::read_to_string(path).expect("a CRD"))
            .await;
        lab.wait_until("certificates are served", async || {
            let api = lab.api(&certificate(), &lab.namespace);
            api.list(&ListParams::default()).await.is_ok()
        })
        .await;
        let api = |gvk: &Gvk| lab.api(gvk, &lab.namespace);
        let (certificates, ingresses) = (api(&certificate()), api(&ingress()));
        let records = has_dns.then(|| api(&dns_record()));
        let secrets = api(&secrets());
        let refuses_certificates = Arc::new(AtomicBool::default());
        let refuses = refuses_certificates.clone();
        let is_cert_manager_down = Arc::new(AtomicBool::default());
        let is_down = is_cert_manager_down.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                if !is_down.load(Ordering::Relaxed) {
                    issue(&certificates, &secrets, refuses.load(Ordering::Relaxed)).await;
                }
                serve(&ingresses).await;
                if let Some(records) = &records {
                    for record in list(records).await {
                        set_ready(records, &record).await;
                    }
                }
            }
        });
        Self {
            refuses_certificates,
            is_cert_manager_down,
            task,
        }
    }

    /// Sets whether cert-manager runs.
    pub fn set_cert_manager_down(&self, is_down: bool) {
        self.is_cert_manager_down.store(is_down, Ordering::Relaxed);
    }

    /// Sets whether the issuer refuses the certificates that are requested from now on.
    pub fn refuse_certificates(&self, refuses: bool) {
        self.refuses_certificates.store(refuses, Ordering::Relaxed);
    }
}

/// The objects that are not being deleted. A failed list is repeated like a real controller's.
async fn list(api: &Api<DynamicObject>) -> Vec<Value> {
    let found = api.list(&ListParams::default()).await;
    let objects = found.into_iter().flatten();
    let live = objects.filter(|object| object.metadata.deletion_timestamp.is_none());
    live.filter_map(|object| serde_json::to_value(object).ok())
        .collect()
}

async fn set_status(api: &Api<DynamicObject>, object: &Value, status: Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    // It may be gone already.
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.ok();
}

async fn set_ready(api: &Api<DynamicObject>, object: &Value) {
    if object["status"].is_object() {
        return;
    }
    set_condition(api, object, ("True", "Ready", "")).await;
}

/// Sets the condition Ready.
async fn set_condition(
    api: &Api<DynamicObject>,
    object: &Value,
    (status, reason, message): (&str, &str, &str),
) {
    let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": message,
        "observedGeneration": object["metadata"]["generation"], "lastTransitionTime": "2026-11-22T08:00:00Z" });
    set_status(api, object, json!({ "conditions": [condition] })).await;
}

/// Writes the Secret of each certificate, which cert-manager leaves behind, and then its condition. One that is refused has the
/// condition only.
async fn issue(certificates: &Api<DynamicObject>, secrets: &Api<DynamicObject>, refuses: bool) {
    for certificate in list(certificates).await {
        if certificate["status"].is_object() {
            continue;
        }
        if refuses {
            set_condition(certificates, &certificate, ("False", "Failed", REFUSAL)).await;
            continue;
        }
        let name = certificate["spec"]["secretName"].as_str().unwrap_or_default();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "name": name, "namespace": certificate["metadata"]["namespace"] },
            "stringData": { "tls.crt": "a certificate", "tls.key": "a key" } });
        let parameters = PatchParams::apply("cert-manager").force();
        secrets
            .patch(name, &parameters, &Patch::Apply(&secret))
            .await
            .ok();
        set_ready(certificates, &certificate).await;
    }
}

async fn serve(ingresses: &Api<DynamicObject>) {
    for ingress in list(ingresses).await {
        if ingress["status"]["loadBalancer"]["ingress"].is_null() {
            let status = json!({ "loadBalancer": { "ingress": [{ "ip": INGRESS_ADDRESS }] } });
            set_status(ingresses, &ingress, status).await;
        }
    }
}
