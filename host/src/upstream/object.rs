//! An `Upstream` as a client needs it, read from a stored object.

use std::collections::BTreeSet;

use super::{
    SecretKey,
    spec::{Auth, SecretKeySelector, Upstream, UpstreamSpec},
};
use crate::kube::object::Object;

/// An `Upstream` as a client needs it.
#[derive(Clone, Debug)]
pub struct UpstreamObject {
    /// Its uid: another of the same name gets another client.
    pub uid: String,
    /// Changes with its spec.
    pub generation: i64,
    /// Where it and its Secrets live.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it says.
    pub spec: UpstreamSpec,
}

impl UpstreamObject {
    /// Reads a stored object; the error names the field.
    pub fn parse(object: &Object) -> Result<Self, String> {
        let upstream: Upstream =
            serde_json::from_slice(&object.json.text()).map_err(|e| format!("Upstream: {e}"))?;
        Ok(Self {
            uid: object.uid.to_string(),
            generation: object.generation,
            namespace: upstream.metadata.namespace.unwrap_or_default(),
            name: upstream.metadata.name.unwrap_or_default(),
            spec: upstream.spec,
        })
    }

    /// Whether requests can be sent to it; others are for messaging.
    pub fn speaks_http(&self) -> bool {
        !self.spec.url.starts_with("amqp")
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

    /// The client certificate and its key, as a Secret of type `kubernetes.io/tls` has them.
    pub fn client_certificate(&self) -> Option<[SecretKeySelector; 2]> {
        let reference = self.spec.tls.as_ref()?.client_certificate_secret_ref.as_ref()?;
        let key = |key: &str| SecretKeySelector {
            name: reference.name.clone(),
            key: key.into(),
        };
        Some([key("tls.crt"), key("tls.key")])
    }

    /// The names of the Secrets it needs, in its namespace.
    pub fn secrets(&self) -> BTreeSet<String> {
        self.secret_keys().into_iter().map(|key| key.name).collect()
    }
}
