//! The `Upstream` kind (`ostler.dev/v1alpha1`): its spec and status, from which its CRD is generated.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::kube::crd::{self, Condition, any_object_schema};

/// Desired state of an upstream: a service that plugins refer to by name. The host authenticates and adds the
/// credentials to requests; plugins never see them.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Upstream",
    doc = "Upstream is a service that plugins refer to by name: its URL, its authentication, and its limits.",
    namespaced,
    category = "ostler",
    status = "UpstreamStatus",
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".spec.url"}"#,
    printcolumn = r#"{"name":"Connected","type":"string","jsonPath":".status.conditions[?(@.type=='Connected')].status"}"#,
    printcolumn = r#"{"name":"Authenticated","type":"string","jsonPath":".status.conditions[?(@.type=='Authenticated')].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!self.url.startsWith('amqp') || !has(self.auth) || has(self.auth.none) || has(self.auth.basic)",
        "message": "an amqp or amqps url supports only auth.none and auth.basic"},
]))]
pub struct UpstreamSpec {
    /// Base URL with the scheme http, https, amqp or amqps. The paths of requests are appended to it.
    #[schemars(
        regex(pattern = r"^(https?|amqps?)://[^/?#@]+(/[^?#]*)?$"),
        length(max = 2048)
    )]
    pub url: String,
    /// TLS settings of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<UpstreamTls>,
    /// Authentication of requests. Exactly one method must be set; defaults to `none`.
    #[serde(default)]
    pub auth: UpstreamAuth,
    /// Limits on requests, on bodies, and on concurrency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<UpstreamLimits>,
    /// Namespaces, besides the Upstream's own, whose objects may use it. `*` allows all namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_namespaces: Vec<String>,
    /// Timeout of a request in seconds. Defaults to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub timeout_seconds: Option<u32>,
    /// Timeout for establishing a connection in seconds. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 300))]
    pub connect_timeout_seconds: Option<u32>,
}

/// Observed state of an upstream, written by the host.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of types Ready, Connected and Authenticated; Reconciling or Stalled while the upstream is not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Reference to a key of a Secret in the Upstream's namespace.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the data of the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Reference to a Secret in the Upstream's namespace.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// TLS settings of the connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UpstreamTls {
    /// CA certificates in PEM format, trusted in addition to the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeySelector>,
    /// Secret of type `kubernetes.io/tls` with the client certificate (keys `tls.crt` and `tls.key`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_secret_ref: Option<SecretReference>,
    /// Skips the verification of the server's certificate. For tests only.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Authentication of requests.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UpstreamAuth {
    /// No authentication.
    None {},
    /// HTTP Basic authentication (RFC 7617).
    Basic(Basic),
    /// Static bearer token (RFC 6750).
    Bearer(Bearer),
    /// Static value in a header of any name.
    Header(Header),
    /// Token from the OAuth2 password grant (RFC 6749, section 4.3).
    Oauth2Password(Oauth2Password),
    /// Token from the OAuth2 client credentials grant (RFC 6749, section 4.4).
    Oauth2ClientCredentials(Oauth2ClientCredentials),
    /// Token from a login endpoint that accepts a JSON body with user name and password.
    Login(Login),
    /// Token from the token server that an OCI registry names, or HTTP Basic authentication if it asks for that.
    Registry(RegistryLogin),
}

impl Default for UpstreamAuth {
    fn default() -> Self {
        Self::None {}
    }
}

/// HTTP Basic authentication.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Basic {
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
}

/// Static bearer token.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Bearer {
    /// Secret key with the token.
    pub token_secret_ref: SecretKeySelector,
}

/// Static value in a header of any name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    pub name: String,
    /// Text before the value, for example the scheme `sso-key `.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[ -~]*$"), length(max = 64))]
    pub prefix: Option<String>,
    /// Secret key with the value of the header.
    pub value_secret_ref: SecretKeySelector,
}

/// OAuth2 password grant.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.tokenPath) != has(self.tokenUrl)", "message": "exactly one of tokenPath and tokenUrl must be set"},
    {"rule": "!(has(self.clientSecret) && has(self.clientSecretRef))", "message": "clientSecret and clientSecretRef are mutually exclusive"},
]))]
pub struct Oauth2Password {
    /// Path of the token endpoint, relative to the URL of the Upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_path: Option<String>,
    /// URL of a token endpoint on another host. Only user name, password and client secret are sent to it. Must be https
    /// unless it has the same origin as the Upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client ID.
    pub client_id: String,
    /// Client secret of a public client, such as Concourse's `fly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// Secret key with the client secret of a confidential client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<SecretKeySelector>,
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
    /// Scopes that the token is requested for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// OAuth2 client credentials grant.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.tokenPath) != has(self.tokenUrl)", "message": "exactly one of tokenPath and tokenUrl must be set"},
]))]
pub struct Oauth2ClientCredentials {
    /// Path of the token endpoint, relative to the URL of the Upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_path: Option<String>,
    /// URL of a token endpoint on another host. Only client ID and client secret are sent to it. Must be https unless it
    /// has the same origin as the Upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Client ID.
    pub client_id: String,
    /// Secret key with the client secret.
    pub client_secret_ref: SecretKeySelector,
    /// Scopes that the token is requested for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// Login endpoint that returns a token.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(has(self.expirationSeconds) && has(self.expirationJsonPath))",
        "message": "expirationSeconds and expirationJsonPath are mutually exclusive"},
]))]
pub struct Login {
    /// Path of the login endpoint, relative to the URL of the Upstream. The body is sent to it by POST.
    #[schemars(regex(pattern = r"^/"))]
    pub path: String,
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password_secret_ref: SecretKeySelector,
    /// Body of the login request: a JSON object in whose strings `$(username)` and `$(password)` are replaced. Defaults to
    /// `{"username": "$(username)", "password": "$(password)"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub body: Option<Map<String, Value>>,
    /// JSONPath of the token in the response, such as `.token` or `.data.sessions[0].id`.
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub token_json_path: String,
    /// JSONPath of the token's lifetime in seconds in the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\$?(\.[A-Za-z0-9_-]+|\[[0-9]+\])+$"))]
    pub expiration_json_path: Option<String>,
    /// Lifetime of the token in seconds. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub expiration_seconds: Option<u32>,
    /// Header that carries the token. When unset, the token is sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub header: Option<String>,
}

/// Authentication at an OCI registry, by the challenge of its `/v2/`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RegistryLogin {
    /// User name.
    pub username: String,
    /// Password or access token of the user.
    pub password_secret_ref: SecretKeySelector,
    /// URL of the token server if it is on another host than the registry, such as https://auth.docker.io/token. User name
    /// and password are sent only to its origin and the registry's, whatever the challenge says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://[^?#@]+$"), length(max = 2048))]
    pub token_url: Option<String>,
    /// Scopes that the token is requested for, such as `repository:team/app:pull`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// Largest `requestsInFlight` and body sizes of an Upstream. The host clamps larger ones: their author need not be its
/// administrator.
pub const MAX_REQUESTS_IN_FLIGHT: u32 = 256;
pub const MAX_BODY_BYTES: u32 = 64 << 20;

/// Limits on requests, on bodies, and on concurrency.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.burst) || has(self.requestsPerSecond)", "message": "burst requires requestsPerSecond"},
]))]
pub struct UpstreamLimits {
    /// Maximum number of requests per second. Unlimited when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub requests_per_second: Option<u32>,
    /// Maximum number of requests in a burst. Defaults to `requestsPerSecond`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub burst: Option<u32>,
    /// Maximum number of concurrent requests. Defaults to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REQUESTS_IN_FLIGHT))]
    pub requests_in_flight: Option<u32>,
    /// Maximum size of a request body in bytes. Defaults to 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_BODY_BYTES))]
    pub request_body_bytes: Option<u32>,
    /// Maximum size of a response body in bytes. Defaults to 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_BODY_BYTES))]
    pub response_body_bytes: Option<u32>,
}

/// The CustomResourceDefinition as YAML, as it is checked in under `crds/`.
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
