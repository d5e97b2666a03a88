//! `ContainerRegistry`: access to a registry of images.

use ostler_sdk::{api, resource};

use crate::SecretKey;

/// Access to a container registry, and the imagePullSecrets with which images are pulled from it.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "ContainerRegistry",
    plural = "containerregistries",
    namespaced,
    status = ContainerRegistryStatus,
    shortname = "cregistry",
    category = "devops",
    doc = "Access to a container registry.",
    printcolumn(name = "URL", type = "string", json_path = ".spec.url"),
    printcolumn(name = "Repository", type = "string", json_path = ".spec.repository"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ContainerRegistrySpec {
    /// URL of the registry, such as https://registry.example.com.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^/]+/?$"))]
    pub url: String,
    /// Repository whose access is checked; without it, only the login is.
    #[schemars(length(min = 1, max = 255))]
    pub repository: Option<String>,
    /// User name.
    #[schemars(length(min = 1, max = 255))]
    pub username: Option<String>,
    /// Password or token; without it, the registry is used anonymously.
    pub password_ref: Option<SecretKey>,
    /// URL of the token server if it is on another host, such as https://auth.docker.io/token for Docker Hub. The password
    /// is sent to no other server, whatever the registry says.
    #[serde(rename = "tokenURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^?#@]+$"))]
    pub token_url: Option<String>,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Secrets for pulling images, of type `kubernetes.io/dockerconfigjson`.
    #[schemars(length(max = 100))]
    pub image_pull_secrets: Vec<ImagePullSecret>,
    /// Suspends reconciliation.
    #[serde(default)]
    pub suspend: bool,
}

/// A Secret for pulling images.
#[api]
pub struct ImagePullSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret; defaults to the object's own.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// Observed state of the registry.
#[api]
#[derive(Default)]
pub struct ContainerRegistryStatus {
    /// Secrets that this object manages. A Secret is recorded before it is first written.
    pub pull_secrets: Vec<PullSecretState>,
}

/// A Secret that an object manages.
#[api]
pub struct PullSecretState {
    /// Name of the Secret.
    pub name: String,
    /// Namespace of the Secret.
    pub namespace: String,
    /// UID of the Secret, once it has been written.
    pub uid: Option<String>,
}
