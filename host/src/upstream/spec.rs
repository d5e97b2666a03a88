//! `Upstream` (`ostler.dev/v1alpha1`): its spec, and its CRD generated from it.

use std::collections::BTreeSet;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SecretKey;
use crate::object::Object;

/// An HTTP service that plugins use by its name. The host logs in and adds the credentials; plugins
/// never see them.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "ostler.dev",
    version = "v1alpha1",
    kind = "Upstream",
    doc = "An HTTP service that plugins use by its name: where it is, how to log in, what may be used.",
    namespaced,
    category = "ostler",
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".spec.url"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamSpec {
    /// Base URL; requests' paths are appended to it.
    #[schemars(regex(pattern = r"^https?://[^/?#@]+(/[^?#]*)?$"), length(max = 2048))]
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

/// TLS settings of the connection.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// PEM certificates of the authorities to trust besides the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeySelector>,
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
pub struct Oauth2Password {
    /// Path of the token endpoint below the URL.
    pub token_path: String,
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
pub struct Oauth2ClientCredentials {
    /// Path of the token endpoint below the URL.
    pub token_path: String,
    /// Client id.
    pub client_id: String,
    /// Client secret.
    pub client_secret_ref: SecretKeySelector,
    /// Scopes asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

/// What may be used at most.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Requests at the same time, 16 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub in_flight: Option<u32>,
    /// Bytes of a body, 8 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub body_bytes: Option<u32>,
}

/// An `Upstream` as a client needs it.
#[derive(Clone, Debug)]
pub struct UpstreamObject {
    /// Its uid: another of the same name gets another client.
    pub uid: String,
    /// Changes with its spec.
    pub generation: i64,
    /// Where it and its Secrets live.
    pub namespace: String,
    /// What it says.
    pub spec: UpstreamSpec,
}

impl UpstreamObject {
    /// Reads a stored object; the error names the field.
    pub fn parse(object: &Object) -> Result<Self, String> {
        let upstream: Upstream =
            serde_json::from_slice(&object.json).map_err(|e| format!("Upstream: {e}"))?;
        Ok(Self {
            uid: object.uid.to_string(),
            generation: object.generation,
            namespace: upstream.metadata.namespace.unwrap_or_default(),
            spec: upstream.spec,
        })
    }

    /// Whether objects of a namespace may use it.
    pub fn allows(&self, namespace: &str) -> bool {
        *namespace == self.namespace
            || self
                .spec
                .allowed_namespaces
                .iter()
                .any(|n| n == "*" || n == namespace)
    }

    /// A selector, with the namespace it is meant in.
    pub fn secret_key(&self, selector: &SecretKeySelector) -> SecretKey {
        SecretKey {
            namespace: self.namespace.clone(),
            name: selector.name.clone(),
            key: selector.key.clone(),
        }
    }

    /// The keys of Secrets it needs.
    pub fn secret_keys(&self) -> Vec<SecretKey> {
        let mut selectors: Vec<&SecretKeySelector> = Vec::new();
        selectors.extend(self.spec.tls.iter().filter_map(|tls| tls.ca_secret_ref.as_ref()));
        match &self.spec.auth {
            Auth::None {} => {}
            Auth::Basic(a) => selectors.push(&a.password_secret_ref),
            Auth::Bearer(a) => selectors.push(&a.token_secret_ref),
            Auth::Header(a) => selectors.push(&a.value_secret_ref),
            Auth::Oauth2Password(a) => {
                selectors.push(&a.password_secret_ref);
                selectors.extend(&a.client_secret_ref);
            }
            Auth::Oauth2ClientCredentials(a) => selectors.push(&a.client_secret_ref),
        }
        selectors.into_iter().map(|s| self.secret_key(s)).collect()
    }

    /// The names of the Secrets it needs, in its namespace.
    pub fn secrets(&self) -> BTreeSet<String> {
        self.secret_keys().into_iter().map(|key| key.name).collect()
    }
}

/// The CRD as YAML, as it is checked in under `crds/`.
pub fn crd_yaml() -> String {
    use kube::CustomResourceExt;
    serde_saphyr::to_string(&Upstream::crd()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_crd_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/ostler.dev_upstreams.yaml");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(
            checked_in,
            super::crd_yaml(),
            "run: cargo run -p ostler -- crds > crds/ostler.dev_upstreams.yaml"
        );
    }
}
