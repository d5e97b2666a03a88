//! Probe objects: their spec lists the host calls that the plugin `probe` makes.

use ostler::testing::key::Gvk;
use serde_json::{Value, json};

use crate::Lab;

/// Returns the kind `Probe`.
pub fn kind() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Probe")
}

/// Returns the kind `ConfigMap`, which most steps use.
pub fn config_map() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

/// Builds a step that writes a ConfigMap with this value by `action`: `apply`, `create` or `force`.
pub fn write(action: &str, name: &str, value: &str) -> Value {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}});
    json!({"do": action, "object": object.to_string()})
}

impl Lab {
    /// Installs the probe and starts a host.
    pub async fn start_probe(&mut self) {
        self.install(&["tests/probe"]);
        self.start_host().await;
    }

    /// Applies a Probe with steps for its reconcile and for its cleanup.
    pub async fn apply_probe(&self, name: &str, steps: Value, cleanup: Value) {
        self.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"steps": steps, "cleanup": cleanup}}))
            .await;
    }

    /// Applies a ConfigMap with a label and a value.
    pub async fn apply_config_map(&self, name: &str, label: &str, value: &str) {
        self.apply(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name,
                "namespace": self.namespace, "labels": {"l": label}}, "data": {"v": value}}),
        )
        .await;
    }

    /// Waits until the results of a probe's steps, in `status.seen`, are these.
    pub async fn wait_seen(&self, name: &str, seen: &[&str]) {
        self.wait_until(&format!("status.seen of {name} is {seen:?}"), async || {
            let probe = self.get(&kind(), name).await.unwrap_or_default();
            probe["status"]["seen"] == json!(seen)
        })
        .await;
    }
}
