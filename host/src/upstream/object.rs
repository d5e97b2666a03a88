//! The parts of an `Upstream` that a client needs, read from a stored object.

use std::collections::BTreeSet;

use super::{
    SecretKey,
    spec::{Auth, SecretKeySelector, Upstream, UpstreamSpec},
};
use crate::kube::{object::Object, renamed_fields::explain_unknown_field};

/// An `Upstream` as its client needs it.
#[derive(Clone, Debug)]
pub struct UpstreamObject {
    /// The uid: another object of the same name gets another client.
    pub uid: String,
    /// The generation, which changes with the spec.
    pub generation: i64,
    /// Namespace of the Upstream and its Secrets.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The spec.
    pub spec: UpstreamSpec,
}

impl UpstreamObject {
    /// Parses a stored object; the error names the field.
    pub fn from_object(object: &Object) -> Result<Self, String> {
        let upstream: Upstream = serde_json::from_slice(&object.json.text())
            .map_err(|e| format!("Upstream: {}", explain_unknown_field(e)))?;
        Ok(Self {
            uid: object.uid.to_string(),
            generation: object.generation,
            namespace: upstream.metadata.namespace.unwrap_or_default(),
            name: upstream.metadata.name.unwrap_or_default(),
            spec: upstream.spec,
        })
    }

    /// The Upstream takes HTTP requests; others are message brokers.
    pub fn is_http(&self) -> bool {
        !self.spec.url.starts_with("amqp")
    }

    /// Objects of this namespace may use the Upstream.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        *namespace == self.namespace
            || self
                .spec
                .allowed_namespaces
                .iter()
                .any(|n| n == "*" || n == namespace)
    }

    /// The Secret key of a selector, in the namespace of the Upstream.
    pub fn secret_key(&self, selector: &SecretKeySelector) -> SecretKey {
        SecretKey {
            namespace: self.namespace.clone(),
            name: selector.name.clone(),
            key: selector.key.clone(),
        }
    }

    /// The Secret keys that the Upstream needs.
    pub fn secret_keys(&self) -> Vec<SecretKey> {
        let mut selectors: Vec<&SecretKeySelector> = Vec::new();
        selectors.extend(self.spec.tls.iter().filter_map(|tls| tls.ca_secret_ref.as_ref()));
        let pair = self.client_certificate();
        selectors.extend(pair.iter().flatten());
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
            Auth::Login(a) => selectors.push(&a.password_secret_ref),
        }
        selectors.into_iter().map(|s| self.secret_key(s)).collect()
    }

    /// The client certificate and its key, in the keys of a Secret of type `kubernetes.io/tls`.
    pub fn client_certificate(&self) -> Option<[SecretKeySelector; 2]> {
        let reference = self.spec.tls.as_ref()?.client_certificate_secret_ref.as_ref()?;
        let key = |key: &str| SecretKeySelector {
            name: reference.name.clone(),
            key: key.into(),
        };
        Some([key("tls.crt"), key("tls.key")])
    }

    /// The names of the Secrets that the Upstream needs, in its namespace.
    pub fn secret_names(&self) -> BTreeSet<String> {
        self.secret_keys().into_iter().map(|key| key.name).collect()
    }
}
