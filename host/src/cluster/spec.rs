//! The `Cluster` kind (`ostler.dev/v1alpha1`): its spec and status, from which its CRD is generated.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kube::crd::{self, Condition};

/// Desired state of the access to another Kubernetes cluster. The host connects with the kubeconfig; plugins never see it.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Cluster",
    doc = "Cluster is another Kubernetes cluster that plugins refer to by name: its credentials, and its limits.",
    namespaced,
    category = "ostler",
    status = "ClusterStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Secret with the kubeconfig, whose current context is used. It must contain all certificates and credentials: exec
    /// plugins, auth providers, files, proxies and impersonation are refused.
    pub kubeconfig_secret_ref: KubeconfigSelector,
    /// User that the host acts as on the cluster. When unset, it is that of the kubeconfig, for all plugins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonation: Option<Impersonation>,
    /// Namespaces, besides the Cluster's own, whose objects may use it. `*` allows all namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// Limits on the requests to the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ClusterLimits>,
    /// Timeout of a request in seconds. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60))]
    pub timeout_seconds: Option<u32>,
}

/// Reference to the key of a Secret in the Cluster's namespace that has the kubeconfig.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubeconfigSelector {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the data of the Secret. Defaults to `kubeconfig`.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1))]
    pub key: String,
}

fn default_key() -> String {
    "kubeconfig".into()
}

/// User that the host acts as on the cluster. The user of the kubeconfig needs the right to impersonate it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Impersonation {
    /// The same user for all plugins.
    User(ImpersonatedUser),
    /// The service account of each plugin, as on the host's own cluster: RBAC of the cluster decides for each of them. A
    /// plugin without a service account acts as the user of the kubeconfig.
    PluginServiceAccount {},
}

/// User that all plugins act as.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImpersonatedUser {
    /// Name of the user, such as `system:serviceaccount:ostler:robot`.
    #[schemars(regex(pattern = r"^[!-~]+$"), length(min = 1, max = 512))]
    pub name: String,
}

/// Number of concurrent requests to a cluster without `requestsInFlight`.
const DEFAULT_REQUESTS_IN_FLIGHT: u32 = 16;

/// Largest `requestsInFlight`. The host clamps larger ones: their author need not be its administrator.
const MAX_REQUESTS_IN_FLIGHT: u32 = 256;

/// Default and largest timeout of a request in seconds.
const DEFAULT_TIMEOUT_SECONDS: u32 = 10;
const MAX_TIMEOUT_SECONDS: u32 = 60;

/// Limits on the requests to a cluster.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterLimits {
    /// Maximum number of concurrent requests, watches not included. Defaults to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REQUESTS_IN_FLIGHT))]
    pub requests_in_flight: Option<u32>,
}

/// Observed state of a cluster, written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of types Ready, Connected and Authenticated; Reconciling or Stalled while the cluster is not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Version of the API server, such as `v1.36.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl ClusterSpec {
    /// Maximum number of concurrent requests.
    pub fn requests_in_flight(&self) -> u32 {
        let set = self.limits.as_ref().and_then(|limits| limits.requests_in_flight);
        set.unwrap_or(DEFAULT_REQUESTS_IN_FLIGHT)
            .clamp(1, MAX_REQUESTS_IN_FLIGHT)
    }

    /// Timeout of a request in seconds.
    pub fn request_timeout_seconds(&self) -> u32 {
        let seconds = self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        seconds.clamp(1, MAX_TIMEOUT_SECONDS)
    }
}

/// The CustomResourceDefinition as YAML, as it is checked in under `crds/`.
pub fn crd_yaml() -> String {
    crd::render_yaml::<Cluster>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn checked_in_crd_is_current() {
        crate::kube::crd::assert_crd_current("ostler.dev_clusters.yaml", &super::crd_yaml());
    }
}
