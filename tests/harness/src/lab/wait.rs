//! Waiting for conditions.

use std::time::Duration;

use kube::api::ListParams;
use ostler::testing::key::Gvk;
use serde_json::Value;

use super::Lab;
use crate::PATIENCE;

impl Lab {
    /// Waits until something holds; fails, saying what, when it doesn't within [`PATIENCE`].
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, mut holds: impl FnMut() -> F) {
        let waiting = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let facts = self.host.as_ref().map(|h| h.ledger().all());
            panic!("after {PATIENCE:?} it is still not so that {what}\n{facts:#?}");
        }
    }

    /// Waits until an object has a condition with this status and reason; gives the object.
    pub async fn condition(
        &self,
        gvk: &Gvk,
        name: &str,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Value {
        let what = format!("{}/{name} has {condition}={status} ({reason})", gvk.kind);
        self.until(&what, async || {
            let object = self.get(gvk, name).await.unwrap_or_default();
            let found = self::condition(&object, condition);
            found["status"] == status && found["reason"] == reason && observed(&object, &found)
        })
        .await;
        self.get(gvk, name).await.expect("it was there")
    }

    /// Waits until an object is Ready for its current generation; gives it.
    pub async fn ready(&self, gvk: &Gvk, name: &str) -> Value {
        self.until(&format!("{}/{name} is Ready", gvk.kind), async || {
            let object = self.get(gvk, name).await.unwrap_or_default();
            let found = self::condition(&object, "Ready");
            found["status"] == "True" && observed(&object, &found)
        })
        .await;
        self.get(gvk, name).await.expect("it was there")
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, gvk: &Gvk, name: &str) {
        self.until(&format!("{}/{name} is gone", gvk.kind), async || {
            self.get(gvk, name).await.is_none()
        })
        .await;
    }

    /// Waits until the host has nothing to do now.
    pub async fn idle(&self) {
        let router = &self.host().services().router;
        self.until("the host is idle", async || router.idle()).await;
    }

    /// A new CRD is served a moment after it was applied.
    pub(super) async fn established(&self) {
        let crds = self.api(
            &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "",
        );
        self.until("the CRDs are established", async || {
            let list = crds.list(&ListParams::default()).await.expect("CRDs");
            list.items.iter().all(|crd| {
                let conditions = crd.data["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                conditions
                    .iter()
                    .any(|c| c["type"] == "Established" && c["status"] == "True")
            })
        })
        .await;
    }
}

fn observed(object: &Value, condition: &Value) -> bool {
    condition["observedGeneration"] == object["metadata"]["generation"]
}

/// A condition of an object; null when it has none of that type.
pub fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    found.cloned().unwrap_or_default()
}
