//! `Upstream` (`ostler.dev/v1alpha1`): its spec, and its CRD generated from it.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::kube::crd::{self, Condition, any_object_schema};

/// A service that plugins use by its name. The host logs in and adds the credentials; plugins never see them.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Upstream",
    doc = "A service that plugins use by its name: where it is, how to log in, what may be used.",
    namespaced,
    category = "ostler",
    status = "UpstreamStatus",
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".spec.url"}"#,
    printcolumn = r#"{"name":"Connected","type":"string","jsonPath":".status.conditions[?(@.type=='Connected')].status"}"#,
    printcolumn = r#"{"name":"Authenticated","type":"string","jsonPath":".status.conditions[?(@.type=='Authenticated')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!self.url.startsWith('amqp') || !has(self.auth) || has(self.auth.none) || has(self.auth.basic)",
        "message": "an amqp or amqps url takes auth none or basic"},
]))]
pub struct UpstreamSpec {
    /// Base URL (http, https, amqp or amqps); requests' paths are appended to it.
    #[schemars(
        regex(pattern = r"^(https?|amqps?)://[^/?#@]+(/[^?#]*)?$"),
        length(max = 2048)
    )]
    pub url: String,
    /// TLS settings of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// How requests are authenticated. Exactly one.
    #[serde(default)]
    pub auth: Auth,
    /// What may be used at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Namespaces whose objects may use it besides its own; `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// Seconds until a request is given up, 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: Option<u32>,
    /// Seconds until a connection that can't be made is given up, 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub connect_timeout_seconds: Option<u32>,
}

/// How it is with the upstream. Written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Connected and Authenticated; Reconciling or Stalled while it is not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A key of a Secret in the Upstream's namespace.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in its data.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// A Secret in the Upstream's namespace.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// TLS settings of the connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// PEM certificates of the authorities to trust besides the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeySelector>,
    /// A Secret of type `kubernetes.io/tls` (keys `tls.crt` and `tls.key`): what the client shows of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_secret_ref: Option<SecretReference>,
    /// Trust any certificate. For tests.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// How requests are authenticated.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Auth {
    /// Not at all.
    None {},
    /// HTTP Basic (RFC 7617).
    Basic(Basic),
    /// A bearer token (RFC 6750).
    Bearer(Bearer),
    /// Any header.
    Header(Header),
    /// A token by OAuth2's password grant (RFC 6749, section 4.3).
    Oauth2Password(Oauth2Password),
    /// A token by OAuth2's client credentials grant (RFC 6749, section 4.4).
    Oauth2ClientCredentials(Oauth2ClientCredentials),
    /// A token for a JSON body with user name and password, as many servers' own log-ins are.
    Login(Login),
}

impl Default for Auth {
    fn default() -> Self {
        Self::None {}
    }
}

/// HTTP Basic.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Basic {
    /// User name.
    pub username: String,
    /// Its password.
    pub password_secret_ref: SecretKeySelector,
}

/// A bearer token.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bearer {
    /// The token.
    pub token_secret_ref: SecretKeySelector,
}

/// Any header.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    pub name: String,
    /// Its value.
    pub value_secret_ref: SecretKeySelector,
}

/// OAuth2's password grant.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.tokenPath) != has(self.tokenUrl)", "message": "exactly one of tokenPath and tokenUrl is needed"},
    {"rule": "!(has(self.clientSecret) && has(self.clientSecretRef))", "message": "clientSecret and clientSecretRef exclude each other"},
]))]
pub struct Oauth2Password {
    /// Path of the token endpoint below the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_path: Option<String>,
    /// The token endpoint, where it is somewhere else. User name, password and client secret go there, and nothing
    /// else does; it must be https unless it is of the URL's own origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client id.
    pub client_id: String,
    /// Client secret, where it is public (as Concourse's `fly` is).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Client secret, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<SecretKeySelector>,
    /// User name.
    pub username: String,
    /// Its password.
    pub password_secret_ref: SecretKeySelector,
    /// Scopes asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// OAuth2's client credentials grant.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.tokenPath) != has(self.tokenUrl)", "message": "exactly one of tokenPath and tokenUrl is needed"},
]))]
pub struct Oauth2ClientCredentials {
    /// Path of the token endpoint below the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_path: Option<String>,
    /// The token endpoint, where it is somewhere else. Client id and secret go there, and nothing else does; it must
    /// be https unless it is of the URL's own origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client id.
    pub client_id: String,
    /// Client secret.
    pub client_secret_ref: SecretKeySelector,
    /// Scopes asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// A log-in that is answered with a token.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.lifetimeSeconds) && has(self.lifetimeJsonPath))",
        "message": "lifetimeSeconds and lifetimeJsonPath exclude each other"},
]))]
pub struct Login {
    /// Path below the URL that the body is POSTed to.
    #[schemars(regex(pattern = r"^/"))]
    pub path: String,
    /// User name.
    pub username: String,
    /// Its password.
    pub password_secret_ref: SecretKeySelector,
    /// The body: any JSON object, with `$(username)` and `$(password)` in its texts. By default
    /// `{"username": "$(username)", "password": "$(password)"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub body: Option<Map<String, Value>>,
    /// Where in the answer the token is, such as `.token` or `.data.sessions[0].id`.
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub token_json_path: String,
    /// Where in the answer the seconds are that the token lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub lifetime_json_path: Option<String>,
    /// Seconds the token lasts, 300 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub lifetime_seconds: Option<u32>,
    /// The header that the token goes into as it is; without it, it is a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub header: Option<String>,
}

/// What may be used at most.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.burst) || has(self.requestsPerSecond)", "message": "burst needs requestsPerSecond"},
]))]
pub struct Limits {
    /// Requests per second; any number without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub requests_per_second: Option<u32>,
    /// Requests at once after a pause, as many as `requestsPerSecond` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub burst: Option<u32>,
    /// Requests at the same time, 16 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub in_flight: Option<u32>,
    /// Bytes of a request's body, 8 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub request_body_bytes: Option<u32>,
    /// Bytes of an answer's body, 8 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub response_body_bytes: Option<u32>,
}

/// The CRD as YAML, as it is checked in under `crds/`.
pub fn crd_yaml() -> String {
    crd::render_yaml::<Upstream>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_crd_is_current() {
        crate::kube::crd::assert_current("ostler.dev_upstreams.yaml", &super::crd_yaml());
    }
}
