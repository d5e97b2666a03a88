//! Stand-ins for controllers that the pack works with and that are not here: cert-manager, which gets self-signed certificates,
//! and an ingress controller, which serves nothing and has an address for documentation (RFC 5737).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Interval between two looks at all objects.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Address that Ingresses get.
const INGRESS_ADDRESS: &str = "192.0.2.10";

/// Certificates and hosts of the objects that exist.
#[derive(Default)]
struct Served {
    certificates: BTreeSet<String>,
    hosts: BTreeSet<String>,
}

/// The running stand-ins. They stop when dropped.
pub struct StandIns {
    served: Arc<Mutex<Served>>,
    task: JoinHandle<()>,
}

impl Drop for StandIns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIns {
    /// Starts them for a namespace.
    pub fn start(client: Client, namespace: &str) -> Self {
        let served = Arc::new(Mutex::new(Served::default()));
        let api = |group: &str, version: &str, kind: &str| -> Api<DynamicObject> {
            let gvk = GroupVersionKind::gvk(group, version, kind);
            Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk))
        };
        let controllers = Controllers {
            certificates: api("cert-manager.io", "v1", "Certificate"),
            secrets: api("", "v1", "Secret"),
            ingresses: api("networking.k8s.io", "v1", "Ingress"),
            served: served.clone(),
        };
        Self {
            served,
            task: tokio::spawn(controllers.run()),
        }
    }

    /// Returns the certificates, each with its Secret.
    pub fn certificates(&self) -> Vec<String> {
        lock(&self.served).certificates.iter().cloned().collect()
    }

    /// Returns the hosts of the Ingresses, each with its address.
    pub fn hosts(&self) -> Vec<String> {
        lock(&self.served).hosts.iter().cloned().collect()
    }
}

struct Controllers {
    certificates: Api<DynamicObject>,
    secrets: Api<DynamicObject>,
    ingresses: Api<DynamicObject>,
    served: Arc<Mutex<Served>>,
}

impl Controllers {
    async fn run(self) {
        loop {
            // A failed request is repeated, as by a real controller. The kinds are served a moment after their CRDs were applied.
            if let Ok(issued) = self.issue().await {
                lock(&self.served).certificates = issued;
            }
            if let Ok(hosts) = self.admit().await {
                lock(&self.served).hosts = hosts;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Issues the certificates that have no Secret yet.
    async fn issue(&self) -> Result<BTreeSet<String>> {
        let mut issued = BTreeSet::new();
        for certificate in self.certificates.list(&ListParams::default()).await? {
            let name = certificate.metadata.name.clone().unwrap_or_default();
            let spec = &certificate.data["spec"];
            let secret = spec["secretName"].as_str().unwrap_or(&name);
            let names: Vec<String> = spec["dnsNames"].as_array().map_or(Vec::new(), |names| {
                names
                    .iter()
                    .filter_map(|n| n.as_str().map(str::to_owned))
                    .collect()
            });
            issued.insert(format!("{} in Secret {secret}", names.join(" ")));
            let generation = certificate.metadata.generation;
            let conditions = certificate.data["status"]["conditions"].as_array();
            let is_ready = |c: &Value| c["status"] == "True" && c["observedGeneration"] == json!(generation);
            if conditions.into_iter().flatten().any(is_ready) {
                continue;
            }
            let made = rcgen::generate_simple_self_signed(names).context("a certificate")?;
            let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": secret },
                "type": "kubernetes.io/tls",
                "stringData": { "tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem() } });
            let apply = PatchParams::apply("cert-manager-stand-in").force();
            self.secrets.patch(secret, &apply, &Patch::Apply(object)).await?;
            let ready = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "Certificate is up to date",
                "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let patch = Patch::Merge(json!({ "status": { "conditions": [ready] } }));
            self.certificates
                .patch_status(&name, &PatchParams::default(), &patch)
                .await?;
        }
        Ok(issued)
    }

    /// Gives Ingresses their address.
    async fn admit(&self) -> Result<BTreeSet<String>> {
        let mut hosts = BTreeSet::new();
        for ingress in self.ingresses.list(&ListParams::default()).await? {
            let rules = ingress.data["spec"]["rules"].as_array();
            let rules = rules.into_iter().flatten();
            hosts.extend(
                rules.filter_map(|rule| Some(format!("{} at {INGRESS_ADDRESS}", rule["host"].as_str()?))),
            );
            if ingress.data["status"]["loadBalancer"]["ingress"].is_array() {
                continue;
            }
            let patch = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": INGRESS_ADDRESS }] } } });
            let name = ingress.metadata.name.unwrap_or_default();
            self.ingresses
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        Ok(hosts)
    }
}

fn lock(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}
