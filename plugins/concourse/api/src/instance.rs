use std::collections::BTreeMap;

use ostler_sdk::{api, resource};

use crate::{ContainerImage, SecretKey};

/// Address and credentials of a Concourse server.
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
    rule = "!has(self.healthProbeInterval) || duration(self.healthProbeInterval) > duration('0s')",
    message = "healthProbeInterval must be a duration such as 5m"
)]
pub struct InstanceSpec {
    /// Base URL of the Concourse web node, for example https://ci.example.com.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"), extend("format" = "uri"))]
    pub url: String,
    /// Credentials of the login.
    pub auth: InstanceAuth,
    /// TLS settings of the connection.
    pub tls: Option<InstanceTls>,
    /// Namespaces, besides its own, whose objects may use this instance; "*" for all.
    pub allowed_namespaces: Vec<String>,
    /// Interval between health probes of the server. One below 30s or above 1h counts as that limit.
    #[serde(default = "default_probe_interval")]
    #[schemars(extend("type" = "string"))]
    pub health_probe_interval: String,
    /// Name of the team to use where none is given. Unused so far: every kind names its Team.
    #[serde(default = "main_team")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"))]
    pub default_team: String,
    /// Defaults for the pipelines of this instance.
    pub defaults: Option<Defaults>,
    /// Suspends reconciliation of this instance; nothing is changed in Concourse meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

fn default_probe_interval() -> String {
    "5m".into()
}

fn main_team() -> String {
    "main".into()
}

/// Credentials: a password or a token.
#[api]
#[validation(
    rule = "[has(self.password), has(self.token)].filter(x, x).size() == 1",
    message = "exactly one of password or token must be set"
)]
pub struct InstanceAuth {
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
    /// ID of the OAuth2 client; defaults to the client of the fly command.
    #[serde(rename = "clientID", default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Secret of the OAuth2 client; defaults to the secret of the fly command's client.
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
pub struct InstanceTls {
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Accepts any certificate. For tests only.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Defaults for pipelines.
#[api]
pub struct Defaults {
    /// Image of the resource type that provides ConfigMaps and Secrets to pipelines.
    pub k8s_config_image: Option<ContainerImage>,
}

/// Observed state of the server.
#[api]
#[derive(Default)]
pub struct InstanceStatus {
    /// Version of Concourse.
    pub version: Option<String>,
    /// Version of the worker protocol.
    pub worker_version: Option<String>,
    /// Name of the cluster that the server reports.
    pub cluster_name: Option<String>,
    /// External URL that the server reports.
    #[serde(rename = "externalURL", default, skip_serializing_if = "Option::is_none")]
    pub external_url: Option<String>,
    /// URL of the web pages.
    #[serde(rename = "webURL", default, skip_serializing_if = "Option::is_none")]
    pub web_url: Option<String>,
    /// Number of workers in any state.
    pub worker_count: Option<i32>,
    /// Number of workers that have stopped responding.
    pub stalled_workers: Option<i32>,
    /// Number of workers that accept work.
    pub running_workers: Option<i32>,
    /// Number of workers that are being drained.
    pub landing_workers: Option<i32>,
    /// Feature flags of the server.
    pub feature_flags: BTreeMap<String, bool>,
    /// User that the credentials log in.
    pub authenticated_user: Option<String>,
    /// Indicates whether that user is an administrator.
    pub authenticated_admin: Option<bool>,
    /// Message of the day that the server shows.
    pub wall_message: Option<String>,
    /// Number of teams visible to the user.
    pub team_count: Option<i32>,
    /// Number of pipelines visible to the user.
    pub pipeline_count: Option<i32>,
    /// Counter of the changes of the Secrets in `spec.auth` that a running host has observed.
    pub auth_secret_generation: Option<i64>,
}
