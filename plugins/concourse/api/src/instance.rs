use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::{ContainerImage, SecretKey};

/// Where a Concourse is, and how to log in to it.
#[resource(
    group = "concourse-ci.org",
    version = "v1alpha1",
    kind = "Instance",
    namespaced,
    status = InstanceStatus,
    shortname = "cci",
    shortname = "concinst",
    category = "concourse",
    doc = "A Concourse server.",
    printcolumn(name = "URL", type = "string", json_path = ".spec.url"),
    printcolumn(name = "Version", type = "string", json_path = ".status.version"),
    printcolumn(name = "Workers", type = "integer", json_path = ".status.workerCount"),
    printcolumn(name = "Stalled", type = "integer", json_path = ".status.stalledWorkers"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "WebURL", type = "string", json_path = ".status.webURL", priority = 1),
    printcolumn(name = "Cluster", type = "string", json_path = ".status.clusterName", priority = 1),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(
    rule = "!has(self.healthProbeInterval) || (duration(self.healthProbeInterval) >= duration('30s') && duration(self.healthProbeInterval) <= duration('1h'))",
    message = "healthProbeInterval must be between 30s and 1h"
)]
pub struct InstanceSpec {
    /// Base URL of the Concourse web node, for example https://ci.example.com.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"), extend("format" = "uri"))]
    pub url: String,
    /// How to log in.
    pub auth: Auth,
    /// TLS settings of the connection.
    pub tls: Option<Tls>,
    /// Namespaces whose objects may use this instance besides its own; "*" for all.
    pub allowed_namespaces: Vec<String>,
    /// How often the server is looked at, between 30s and 1h.
    #[serde(default = "five_minutes")]
    #[schemars(extend("type" = "string"))]
    pub health_probe_interval: String,
    /// The team meant where none is named. Every kind there is names its Team, so that nothing depends on it.
    #[serde(default = "main")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"))]
    pub default_team: String,
    /// Settings for the pipelines of this instance that don't give their own.
    pub defaults: Option<Defaults>,
    /// Stops reconciling this instance; what is in Concourse stays as it is.
    #[serde(default)]
    pub suspend: bool,
}

fn five_minutes() -> String {
    "5m".into()
}

fn main() -> String {
    "main".into()
}

/// How to log in: a password or a token.
#[api]
#[validation(
    rule = "[has(self.password), has(self.token)].filter(x, x).size() == 1",
    message = "exactly one of password or token must be set"
)]
pub struct Auth {
    /// User name and password (OAuth2 password grant).
    pub password: Option<PasswordAuth>,
    /// A bearer token.
    pub token: Option<TokenAuth>,
}

/// A user name and password.
#[api]
pub struct PasswordAuth {
    /// Name of the user.
    #[schemars(length(min = 1))]
    pub username: String,
    /// The password.
    pub password_ref: SecretKey,
    /// OAuth2 client; that of the fly command when there is none.
    #[serde(rename = "clientID", default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Secret of the OAuth2 client; that of the fly command when there is none.
    pub client_secret_ref: Option<SecretKey>,
}

/// A bearer token.
#[api]
pub struct TokenAuth {
    /// The token.
    pub token_ref: SecretKey,
}

/// TLS settings.
#[api]
#[validation(
    rule = "!(has(self.caRef) && self.insecureSkipVerify)",
    message = "caRef and insecureSkipVerify are mutually exclusive"
)]
pub struct Tls {
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Accepts any certificate. For tests only.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Settings for pipelines.
#[api]
pub struct Defaults {
    /// Image of the resource type that brings ConfigMaps and Secrets into pipelines.
    pub k8s_config_image: Option<ContainerImage>,
}

/// What was found at the server.
#[api]
#[derive(Default)]
pub struct InstanceStatus {
    /// Version of Concourse.
    #[serde(skip_deserializing)]
    pub version: Option<String>,
    /// Version of the worker protocol.
    #[serde(skip_deserializing)]
    pub worker_version: Option<String>,
    /// Name the server gives its cluster.
    #[serde(skip_deserializing)]
    pub cluster_name: Option<String>,
    /// URL the server says it is reached at.
    #[serde(
        rename = "externalURL",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub external_url: Option<String>,
    /// URL of the web pages.
    #[serde(
        rename = "webURL",
        skip_deserializing,
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub web_url: Option<String>,
    /// Number of workers, whatever their state.
    #[serde(skip_deserializing)]
    pub worker_count: Option<i32>,
    /// Number of workers that don't answer.
    #[serde(skip_deserializing)]
    pub stalled_workers: Option<i32>,
    /// Number of workers that take work.
    #[serde(skip_deserializing)]
    pub running_workers: Option<i32>,
    /// Number of workers that are being drained.
    #[serde(skip_deserializing)]
    pub landing_workers: Option<i32>,
    /// Features of the server that are switched on or off.
    #[serde(skip_deserializing)]
    pub feature_flags: BTreeMap<String, bool>,
    /// User the host is logged in as.
    #[serde(skip_deserializing)]
    pub authenticated_user: Option<String>,
    /// Whether that user is an administrator.
    #[serde(skip_deserializing)]
    pub authenticated_admin: Option<bool>,
    /// Message on the server's wall.
    #[serde(skip_deserializing)]
    pub wall_message: Option<String>,
    /// Number of teams the user sees.
    #[serde(skip_deserializing)]
    pub team_count: Option<i32>,
    /// Number of pipelines the user sees.
    #[serde(skip_deserializing)]
    pub pipeline_count: Option<i32>,
    /// Rises by one whenever a running host sees another value in the Secrets of `spec.auth`.
    pub auth_secret_generation: Option<i64>,
}
