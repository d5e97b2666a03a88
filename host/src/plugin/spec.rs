//! The `Plugin` kind (`ostler.dev/v1alpha1`): its spec and status, from which its CRD is generated.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    contract::limits::LimitsSpec,
    kube::{
        crd::{self, Condition, any_object_schema},
        key::{Gvk, ObjectRef},
    },
    plugin::LoadState,
    policy::grants::{CLUSTER_PATTERN, Grant, Permissions, ReconcileSettings, ServiceAccount, Subscription},
    supply::signature::{PublicKey, SignaturePolicy},
};

/// Desired state of a plugin: the source of its component, its permissions, and its configuration. The name of the
/// object must be the name that the component declares.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Plugin",
    root = "PluginObject",
    doc = "Plugin is a reconciler that the host runs: the source of its WebAssembly component, its permissions, and its configuration.",
    category = "ostler",
    status = "PluginStatus",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.running.version"}"#,
    printcolumn = r#"{"name":"Digest","type":"string","jsonPath":".status.running.shortDigest"}"#,
    printcolumn = r#"{"name":"Loaded","type":"string","jsonPath":".status.conditions[?(@.type=='Loaded')].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type=='Healthy')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason","priority":1}"#,
    printcolumn = r#"{"name":"Canary","type":"string","jsonPath":".status.canary.state","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.verify) || !has(self.source.file)",
        "message": "verify requires source.oci: a file has no signature"},
    {"rule": "has(self.cluster) == has(oldSelf.cluster) && (!has(self.cluster) || self.cluster == oldSelf.cluster)",
        "message": "cluster is immutable: delete the Plugin, after its objects, and create it again"},
]))]
pub struct PluginSpec {
    /// Source of the component.
    pub source: ComponentSource,
    /// Home cluster of the plugin: namespace and name of the `Cluster` whose objects it reconciles, such as
    /// `fleet/onboarding`. References, lists and entries of `grants.kubernetes` without a cluster are about it, and
    /// `in-cluster` is the host's own. When unset, the plugin reconciles objects of the host's own cluster. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = CLUSTER_PATTERN), length(max = 317))]
    pub cluster: Option<String>,
    /// Signatures that the component must carry. When unset, signatures are not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifySpec>,
    /// Service account that the plugin acts as. The host impersonates it for the plugin's requests, and RBAC must allow
    /// them and the plugin's reads from the cache. When unset, requests are made with the host's own identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccount>,
    /// Permissions granted to the plugin. A permission is effective only if the plugin's manifest requests it too. When
    /// unset, the plugin is denied everything.
    #[serde(default)]
    pub grants: Permissions,
    /// Queues whose messages the plugin handles. It needs a message handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<Subscription>,
    /// Configuration of the plugin. Must match the schema in the plugin's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub config: Option<Map<String, Value>>,
    /// Resource limits of the plugin. A limit that is unset has the host's default.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Interval, jitter and concurrency of the plugin's reconciles.
    #[serde(default)]
    pub reconcile: ReconcileSettings,
    /// Suspends the plugin: its objects stay queued and are neither reconciled nor cleaned up until it is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Second build that reconciles a subset of the objects. It is rolled back automatically if it performs worse than
    /// the primary build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
}

impl PluginSpec {
    /// A spec with this source and nothing else: no permissions, and the host's defaults.
    pub fn new(source: ComponentSource) -> Self {
        Self {
            source,
            cluster: None,
            verify: None,
            service_account: None,
            grants: Permissions::default(),
            subscriptions: Vec::new(),
            config: None,
            limits: LimitsSpec::default(),
            reconcile: ReconcileSettings::default(),
            suspend: false,
            canary: None,
        }
    }

    /// The spec as an entry of a grants file.
    pub fn grant(&self) -> Grant {
        Grant {
            permissions: self.grants.clone(),
            reconcile: self.reconcile,
            subscriptions: self.subscriptions.clone(),
            limits: self.limits.clone(),
            service_account: self.service_account.clone(),
            cluster: self.cluster.clone(),
        }
    }

    /// ConfigMaps and Secrets with keys that the spec refers to.
    pub fn key_objects(&self) -> impl Iterator<Item = ObjectRef> {
        let sources = self.verify.iter().flat_map(|verify| &verify.keys_from);
        sources.flat_map(|source| {
            let config_map = source.config_map_key_ref.as_ref().map(|n| n.object("ConfigMap"));
            let secret = source.secret_key_ref.as_ref().map(|n| n.object("Secret"));
            [config_map, secret].into_iter().flatten()
        })
    }

    /// Files in the plugin directory that the spec refers to.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let canary = self.canary.as_ref().map(|c| &c.source);
        let sources = [Some(&self.source), canary].into_iter().flatten();
        sources.filter_map(|s| s.file.as_deref())
    }
}

/// Source of a component. Exactly one of `oci` and `file` must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.oci) != has(self.file)", "message": "exactly one of oci and file must be set"},
]))]
pub struct ComponentSource {
    /// Component in an OCI registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<Oci>,
    /// Name of a file in the host's plugin directory, such as `greeting.wasm`. Intended for development: the host reloads
    /// the file whenever it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[^/.][^/]*\.wasm$"), length(max = 253))]
    pub file: Option<String>,
}

impl std::fmt::Display for ComponentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.oci, &self.file) {
            (Some(oci), _) => f.write_str(&oci.reference),
            (None, Some(file)) => f.write_str(file),
            (None, None) => Ok(()),
        }
    }
}

/// Component in an OCI registry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Oci {
    /// Reference in the form `REGISTRY/REPOSITORY[:TAG]@sha256:DIGEST`. The digest is required; a tag is informational.
    #[schemars(
        regex(pattern = r"^[^/@\s]+/[^@\s]+@sha256:[0-9a-f]{64}$"),
        length(max = 1024)
    )]
    pub reference: String,
    /// Secret of type `kubernetes.io/dockerconfigjson` with the credentials to pull the component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_secret_ref: Option<SecretName>,
}

/// Reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretName {
    /// Namespace of the Secret.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Verification of a component's cosign signatures.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "(has(self.keys) && size(self.keys) > 0) || (has(self.keysFrom) && size(self.keysFrom) > 0)",
        "message": "at least one of keys and keysFrom is required"},
]))]
pub struct VerifySpec {
    /// Trusted public keys in PEM format, as `cosign generate-key-pair` writes them to `cosign.pub`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// ConfigMaps and Secrets that contain further trusted public keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys_from: Vec<KeySource>,
    /// Requires a valid signature by every key. Defaults to false: one valid signature is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_all: bool,
    /// Refuses a component that is not signed as specified. Defaults to true; if false, the component is accepted and the
    /// `Loaded` condition carries a warning.
    #[serde(default = "default_true")]
    pub required: bool,
}

impl VerifySpec {
    /// The signature policy, with the keys that it names.
    pub fn build_policy(&self, keys: Vec<PublicKey>) -> SignaturePolicy {
        let policy = match self.require_all {
            true => SignaturePolicy::all_of(keys),
            false => SignaturePolicy::any_of(keys),
        };
        match self.required {
            true => policy,
            false => policy.permissive(),
        }
    }
}

fn default_true() -> bool {
    true
}

/// Source of a public key. Exactly one of `configMapKeyRef` and `secretKeyRef` must be set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.configMapKeyRef) != has(self.secretKeyRef)", "message": "exactly one of configMapKeyRef and secretKeyRef must be set"},
]))]
pub struct KeySource {
    /// Key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyName>,
    /// Key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyName>,
}

/// Reference to a key of a ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyName {
    /// Namespace of the object.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the data of the object.
    #[schemars(length(min = 1))]
    pub key: String,
}

impl KeyName {
    /// The object, of this kind of the core group.
    pub fn object(&self, kind: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("", "v1", kind), &self.namespace, &self.name)
    }
}

/// Second build that reconciles a subset of the objects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CanarySpec {
    /// Source of the canary's component.
    pub source: ComponentSource,
    /// Objects that the canary reconciles.
    pub objects: CanaryObjects,
}

/// Objects that a canary reconciles. Exactly one of `weight` and `labelSelector` must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.weight) != has(self.labelSelector)", "message": "exactly one of weight and labelSelector must be set"},
]))]
pub struct CanaryObjects {
    /// Percentage of objects (0-100) that the canary reconciles. The selection is stable by UID: raising the weight only
    /// adds objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub weight: Option<u8>,
    /// Label selector, such as `tier=test`, of the objects that the canary reconciles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub label_selector: Option<String>,
}

/// Observed state of a plugin, written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the newest build of the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LoadState>,
    /// Conditions of types Ready, Loaded, Granted and Healthy; Reconciling or Stalled while the plugin is not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Build that currently reconciles objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningBuild>,
    /// SHA-256 digest of the last component that passed its trial: the target of a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good_digest: Option<String>,
    /// Build that was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Kinds that the plugin reconciles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Permissions that the plugin's manifest requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<String>,
    /// Permissions that are granted to the plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<String>,
    /// Requested permissions that the plugin has used since it was loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<String>,
    /// Observed state of the canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,
}

/// Build of a plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunningBuild {
    /// Version that the component declares.
    pub version: String,
    /// SHA-256 digest of the component.
    pub digest: String,
    /// First 12 characters of the digest.
    pub short_digest: String,
    /// Registry reference or file that the component was loaded from.
    pub source: String,
}

/// Build that was rolled back. No host tries it again while this is recorded and the spec names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// SHA-256 digest of the component.
    pub digest: String,
    /// SHA-256 digest of the configuration. When unset, the component is not tried with any configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// Registry reference of the build that serves instead, if it came from a registry. A restarted host pulls it, with
    /// `spec.verify` and the pull secret of `spec.source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_source: Option<String>,
    /// Reason for the rollback.
    pub message: String,
}

/// Observed state of a canary.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct CanaryStatus {
    /// Version that the component declares.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// SHA-256 digest of the component.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// State of the canary: `Serving`, `Loading`, `Refused` or `RolledBack`.
    pub state: LoadState,
    /// Explanation when the state is not `Serving`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Objects that the canary reconciles: a percentage or a label selector.
    pub objects: String,
    /// Number of objects that the canary has reconciled.
    pub reconciled: usize,
    /// Number of those objects whose last reconcile failed.
    pub failing: usize,
}

/// The CustomResourceDefinition as YAML, as it is checked in under `crds/`.
pub fn crd_yaml() -> String {
    crd::render_yaml::<PluginObject>()
}

/// The data of a ConfigMap or a Secret.
#[derive(Deserialize)]
pub(crate) struct Data {
    pub metadata: DataMetadata,
    /// Entries by key; base64-encoded in a Secret.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}

/// The metadata of a ConfigMap or a Secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataMetadata {
    pub resource_version: String,
}

#[cfg(test)]
mod tests {
    #[test]
    fn checked_in_crd_is_current() {
        crate::kube::crd::assert_crd_current("ostler.dev_plugins.yaml", &super::crd_yaml());
    }
}
