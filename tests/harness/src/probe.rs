//! Objects that do what they say: see the plugin `probe`.

use ostler::testing::key::Gvk;
use serde_json::{Value, json};

use crate::Lab;

/// The kind.
pub fn kind() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Probe")
}

/// The kind most steps are about.
pub fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

/// A step that writes a ConfigMap with this value.
pub fn write(what: &str, name: &str, value: &str) -> Value {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}});
    json!({"do": what, "object": object.to_string()})
}

impl Lab {
    /// Installs the probe and starts a host.
    pub async fn start_probe(&mut self) {
        self.install(&["tests/probe"]);
        self.start_host().await;
    }

    /// A probe with these steps, and these when it is deleted.
    pub async fn probe(&self, name: &str, steps: Value, cleanup: Value) {
        self.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"steps": steps, "cleanup": cleanup}}))
            .await;
    }

    /// A ConfigMap with a label and a value.
    pub async fn map(&self, name: &str, label: &str, value: &str) {
        self.apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name,
                "namespace": self.namespace, "labels": {"l": label}}, "data": {"v": value}}),
        )
        .await;
    }

    /// Waits until a probe's steps have seen this.
    pub async fn saw(&self, name: &str, seen: &[&str]) {
        self.until(&format!("{name} saw {seen:?}"), async || {
            let probe = self.get(&kind(), name).await.unwrap_or_default();
            probe["status"]["seen"] == json!(seen)
        })
        .await;
    }
}
