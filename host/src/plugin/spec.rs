//! `Plugin` (`ostler.dev/v1alpha1`): its spec, and its CRD generated from it.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    contract::limits::LimitsSpec,
    kube::crd::{self, Condition, any_object_schema},
    plugin::LoadState,
    policy::grants::{Grant, Pace, Permissions, ServiceAccount},
};

/// A plugin of the host: where its component comes from, what it may do, and how it is configured. Its name is the one
/// the component gives itself.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Plugin",
    root = "PluginObject",
    doc = "A plugin of the host: where its component comes from, what it may do, how it is configured.",
    category = "ostler",
    status = "PluginStatus",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.running.version"}"#,
    printcolumn = r#"{"name":"Digest","type":"string","jsonPath":".status.running.short"}"#,
    printcolumn = r#"{"name":"Loaded","type":"string","jsonPath":".status.conditions[?(@.type=='Loaded')].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type=='Healthy')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason","priority":1}"#,
    printcolumn = r#"{"name":"Canary","type":"string","jsonPath":".status.canary.state","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.verify) || !has(self.source.file)",
        "message": "verify is for components from a registry: a file has no signature"},
]))]
pub struct PluginSpec {
    /// Where its component comes from.
    pub source: Source,
    /// Whose signatures the component needs. Nobody's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Who it is to the API server: its requests are made as this service account, and RBAC decides about them and
    /// about what it reads. Without one they are the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccount>,
    /// What it may do, of what its manifest asks for. Nothing without it.
    #[serde(default)]
    pub grants: Permissions,
    /// Its configuration, as the schema in its manifest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub config: Option<Map<String, Value>>,
    /// What it may use; the host's own limits where nothing is said.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// How its reconciles are paced.
    #[serde(default)]
    pub pace: Pace,
    /// Keeps its objects waiting: none is reconciled or cleaned up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Another build, for a part of its objects. It goes back by itself when it does worse than the one beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl PluginSpec {
    /// What a grants file would say of it.
    pub fn grant(&self) -> Grant {
        let Permissions {
            kubernetes,
            upstreams,
            secrets,
            events,
            secrets_are_readable,
        } = self.grants.clone();
        Grant {
            kubernetes,
            upstreams,
            secrets,
            events,
            secrets_are_readable,
            pace: self.pace,
            limits: self.limits.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// The files of the plugin directory that it names.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let canary = self.canary.as_ref().map(|c| &c.source);
        let sources = [Some(&self.source), canary].into_iter().flatten();
        sources.filter_map(|s| s.file.as_deref())
    }
}

/// Where a component comes from. Exactly one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.oci) != has(self.file)", "message": "exactly one of oci and file is needed"},
]))]
pub struct Source {
    /// A registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<Oci>,
    /// A file of the host's plugin directory, such as `greeting.wasm`. For development: what is saved there serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[^/.][^/]*\.wasm$"), length(max = 253))]
    pub file: Option<String>,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.oci, &self.file) {
            (Some(oci), _) => f.write_str(&oci.reference),
            (None, Some(file)) => f.write_str(file),
            (None, None) => Ok(()),
        }
    }
}

/// A component in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Oci {
    /// `REGISTRY/REPOSITORY@sha256:DIGEST`; a tag before the digest is for people.
    #[schemars(
        regex(pattern = r"^[^/@\s]+/[^@\s]+@sha256:[0-9a-f]{64}$"),
        length(max = 1024)
    )]
    pub reference: String,
    /// A Secret of type `kubernetes.io/dockerconfigjson` to pull with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret: Option<SecretName>,
}

/// A Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretName {
    /// Its namespace.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Whose signatures a component needs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "(has(self.keys) && size(self.keys) > 0) || (has(self.keysFrom) && size(self.keysFrom) > 0)",
        "message": "keys or keysFrom is needed"},
]))]
pub struct Verify {
    /// Public keys in PEM, as `cosign generate-key-pair` writes them to `cosign.pub`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Where further keys are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys_from: Vec<KeySource>,
    /// Whether every one of them must have signed; otherwise any one is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Whether a component without is refused; otherwise it is only said.
    #[serde(default = "yes")]
    pub required: bool,
}

fn yes() -> bool {
    true
}

/// Where public keys are. Exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.configMap) != has(self.secret)", "message": "exactly one of configMap and secret is needed"},
]))]
pub struct KeySource {
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<KeyName>,
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyName>,
}

/// A key of a ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct KeyName {
    /// Namespace of the object.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in its data.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Another build, for a part of the objects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Canary {
    /// Where its component comes from.
    pub source: Source,
    /// Which objects it reconciles.
    pub objects: CanaryObjects,
}

/// Which objects a canary reconciles. Exactly one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.share) != has(self.selector)", "message": "exactly one of share and selector is needed"},
]))]
pub struct CanaryObjects {
    /// So many of a hundred, the same ones until that is changed; more of them are these and others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub share: Option<u8>,
    /// Those that a label selector such as `tier=test` selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub selector: Option<String>,
}

/// How it is with the plugin. Written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the newest build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LoadState>,
    /// Ready, Loaded, Granted and Healthy; Reconciling or Stalled while it is not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The build that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Build>,
    /// SHA-256 of the last component that has served well: what it goes back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<String>,
    /// The build that it went back from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// The kinds it reconciles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// What its manifest asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<String>,
    /// What it is granted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<String>,
    /// What of that which it asks for it has used since it was loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<String>,
    /// How it is with the canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,
}

/// A build.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Build {
    /// The version it gives itself.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// The start of that.
    pub short: String,
    /// Where it is from.
    pub source: String,
}

/// A build that was taken back.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct RolledBack {
    /// SHA-256 of the component.
    pub digest: String,
    /// Why.
    pub message: String,
}

/// How it is with a canary.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct CanaryStatus {
    /// The version it gives itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// SHA-256 of the component.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// `Loading`, `Serving`, `Refused` or `RolledBack`.
    pub state: LoadState,
    /// Why it does not serve.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Which objects it reconciles.
    pub objects: String,
    /// Objects it has reconciled so far.
    pub reconciled: usize,
    /// Those of them whose last reconcile failed.
    pub failing: usize,
}

/// The CRD as YAML, as it is checked in under `crds/`.
pub fn crd_yaml() -> String {
    crd::render_yaml::<PluginObject>()
}

/// What is in a ConfigMap or a Secret, as far as it is looked at here.
#[derive(Deserialize)]
pub(crate) struct Data {
    /// Its entries; in a Secret they are base64.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_crd_is_current() {
        crate::kube::crd::assert_crd_current("ostler.dev_plugins.yaml", &super::crd_yaml());
    }
}
