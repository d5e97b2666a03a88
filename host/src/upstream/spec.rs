//! The spec of `Upstream` (`ostler.dev/v1alpha1`), and the CRD generated from it.

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
    /// Base URL (http, https, amqp or amqps); the paths of requests are appended to it.
    #[schemars(
        regex(pattern = r"^(https?|amqps?)://[^/?#@]+(/[^?#]*)?$"),
        length(max = 2048)
    )]
    pub url: String,
    /// TLS settings of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Authentication of requests. Exactly one method.
    #[serde(default)]
    pub auth: Auth,
    /// Limits of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Namespaces whose objects may use the Upstream besides its own; `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// Timeout of a request in seconds, 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: Option<u32>,
    /// Timeout of connecting in seconds, 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub connect_timeout_seconds: Option<u32>,
}

/// Status of the Upstream, written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// The generation of the spec that the status describes.
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
    /// PEM certificates of authorities to trust in addition to the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeySelector>,
    /// A Secret of type `kubernetes.io/tls` (keys `tls.crt` and `tls.key`) with the client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_secret_ref: Option<SecretReference>,
    /// Accept any server certificate. For tests.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Authentication of requests.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Auth {
    /// No authentication.
    None {},
    /// HTTP Basic (RFC 7617).
    Basic(Basic),
    /// A bearer token (RFC 6750).
    Bearer(Bearer),
    /// A header of any name.
    Header(Header),
    /// A token by OAuth2's password grant (RFC 6749, section 4.3).
    Oauth2Password(Oauth2Password),
    /// A token by OAuth2's client credentials grant (RFC 6749, section 4.4).
    Oauth2ClientCredentials(Oauth2ClientCredentials),
    /// A token in exchange for a JSON body with user name and password, as the login of many servers.
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
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
}

/// A bearer token.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bearer {
    /// The token.
    pub token_secret_ref: SecretKeySelector,
}

/// A header of any name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    pub name: String,
    /// Value of the header.
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
    /// The token endpoint, if it is not below the URL. Only user name, password and client secret are sent there; it
    /// must be https unless it is of the URL's own origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client ID.
    pub client_id: String,
    /// Client secret, if it is public (as that of Concourse's `fly`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Client secret, if it is confidential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<SecretKeySelector>,
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
    /// Requested scopes.
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
    /// The token endpoint, if it is not below the URL. Only client ID and secret are sent there; it must be https
    /// unless it is of the URL's own origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client ID.
    pub client_id: String,
    /// Client secret.
    pub client_secret_ref: SecretKeySelector,
    /// Requested scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// A login whose response contains a token.
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
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
    /// The body: any JSON object, with `$(username)` and `$(password)` in its strings. By default `{"username":
    /// "$(username)", "password": "$(password)"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub body: Option<Map<String, Value>>,
    /// Path of the token in the response, such as `.token` or `.data.sessions[0].id`.
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub token_json_path: String,
    /// Path of the token's lifetime in seconds in the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub lifetime_json_path: Option<String>,
    /// Lifetime of the token in seconds, 300 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub lifetime_seconds: Option<u32>,
    /// The header that carries the token as it is; without it, the token is sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub header: Option<String>,
}

/// Limits of the requests.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.burst) || has(self.requestsPerSecond)", "message": "burst needs requestsPerSecond"},
]))]
pub struct Limits {
    /// Requests per second; unlimited by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub requests_per_second: Option<u32>,
    /// Maximum burst of requests after a pause, by default as many as `requestsPerSecond`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub burst: Option<u32>,
    /// Maximum number of concurrent requests, 16 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub in_flight: Option<u32>,
    /// Maximum size of a request body in bytes, 8 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub request_body_bytes: Option<u32>,
    /// Maximum size of a response body in bytes, 8 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub response_body_bytes: Option<u32>,
}

/// The CRD as YAML, as checked in under `crds/`.
pub fn crd_yaml() -> String {
    crd::render_yaml::<Upstream>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn checked_in_crd_is_current() {
        crate::kube::crd::assert_crd_current("ostler.dev_upstreams.yaml", &super::crd_yaml());
    }
}
