//! `GitCredentials`: access to a git repository.

use ostler_sdk::{api, resource};

use crate::SecretKey;

/// Access to a git repository over HTTP(S). It applies an Upstream, through which other kinds read the repository.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "GitCredentials",
    plural = "gitcredentials",
    namespaced,
    status = GitCredentialsStatus,
    shortname = "gitcred",
    category = "devops",
    doc = "Access to a git repository.",
    printcolumn(name = "URL", type = "string", json_path = ".spec.url"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Commit", type = "string", json_path = ".status.headCommit", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct GitCredentialsSpec {
    /// URL of the repository. SSH is not supported.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"))]
    pub url: String,
    /// User name; leave it out with a token.
    #[schemars(length(min = 1, max = 255))]
    pub username: Option<String>,
    /// Password or token; without it, the repository is read anonymously.
    pub password_ref: Option<SecretKey>,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Suspends reconciliation.
    #[serde(default)]
    pub suspend: bool,
}

/// Observed state of the repository.
#[api]
#[derive(Default)]
pub struct GitCredentialsStatus {
    /// Commit of the default branch when it was last checked.
    pub head_commit: Option<String>,
    /// The default branch.
    pub default_branch: Option<String>,
}
