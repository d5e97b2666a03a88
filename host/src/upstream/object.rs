//! The parts of an `Upstream` that a client needs, read from a stored object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    UpstreamSecretKey,
    spec::{SecretKeySelector, Upstream, UpstreamAuth, UpstreamSpec},
};
use crate::{kube::object::KubeObject, policy::origin::Origin};

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
    pub fn from_object(object: &KubeObject) -> Result<Self, String> {
        let upstream: Upstream =
            serde_json::from_slice(&object.json.text()).map_err(|e| format!("Upstream: {}", e))?;
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

    /// The origin of the URL, which substituted Secrets are sent to.
    pub fn origin(&self) -> Result<Origin, String> {
        let tls = self.spec.tls.as_ref();
        parse_origin(
            "url",
            &self.spec.url,
            tls.is_some_and(|tls| tls.insecure_skip_verify),
        )
    }

    /// The origins that the credentials are sent to: the URL's, and that of a token endpoint on another host.
    pub fn credential_origins(&self) -> Result<Vec<Origin>, String> {
        let unverified = self.spec.tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify);
        let token_url = match &self.spec.auth {
            UpstreamAuth::Oauth2Password(a) => a.token_url.as_deref(),
            UpstreamAuth::Oauth2ClientCredentials(a) => a.token_url.as_deref(),
            UpstreamAuth::Registry(a) => a.token_url.as_deref(),
            _ => None,
        };
        let token_origin = token_url.map(|url| parse_origin("tokenUrl", url, unverified));
        [self.origin()].into_iter().chain(token_origin).collect()
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
    pub fn secret_key(&self, selector: &SecretKeySelector) -> UpstreamSecretKey {
        UpstreamSecretKey {
            namespace: self.namespace.clone(),
            name: selector.name.clone(),
            key: selector.key.clone(),
        }
    }

    /// The Secret keys that the Upstream needs.
    pub fn secret_keys(&self) -> Vec<UpstreamSecretKey> {
        let mut selectors: Vec<&SecretKeySelector> = Vec::new();
        selectors.extend(self.spec.tls.iter().filter_map(|tls| tls.ca_secret_ref.as_ref()));
        let pair = self.client_certificate();
        selectors.extend(pair.iter().flatten());
        match &self.spec.auth {
            UpstreamAuth::None {} => {}
            UpstreamAuth::Basic(a) => selectors.push(&a.password_secret_ref),
            UpstreamAuth::Bearer(a) => selectors.push(&a.token_secret_ref),
            UpstreamAuth::Header(a) => selectors.push(&a.value_secret_ref),
            UpstreamAuth::Oauth2Password(a) => {
                selectors.push(&a.password_secret_ref);
                selectors.extend(&a.client_secret_ref);
            }
            UpstreamAuth::Oauth2ClientCredentials(a) => selectors.push(&a.client_secret_ref),
            UpstreamAuth::Login(a) => selectors.push(&a.password_secret_ref),
            UpstreamAuth::Registry(a) => selectors.push(&a.password_secret_ref),
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

/// The Secrets that an `Upstream` would send, and their destinations, as a plugin writes it.
#[derive(Debug, PartialEq, Eq)]
pub struct SecretUses {
    /// The fields that name a Secret, and its name.
    pub secrets: Vec<(String, String)>,
    /// The origins that these Secrets are sent to.
    pub origins: Vec<Origin>,
}

impl SecretUses {
    /// The uses of an `Upstream` after a server-side apply of `applied` to the live object, whose fields may belong to
    /// other managers. The error names the field.
    pub fn of_apply(applied: &Value, live: Option<&Value>) -> Result<Self, String> {
        let mut spec = live.map_or(Value::Null, |live| live["spec"].clone());
        let applied = without_nulls(&applied["spec"]);
        // Exactly one method may be set, so another one is in place of the live one. A part of the same method, or none,
        // leaves the live fields of other managers.
        let methods = |spec: &Value| -> BTreeSet<String> {
            let auth = spec["auth"].as_object();
            auth.into_iter().flat_map(|auth| auth.keys().cloned()).collect()
        };
        let named = methods(&applied);
        if !named.is_empty()
            && named.is_disjoint(&methods(&spec))
            && let Some(fields) = spec.as_object_mut()
        {
            fields.remove("auth");
        }
        json_patch::merge(&mut spec, &applied);
        let mut secrets = Vec::new();
        find_secret_references("spec", &spec, &mut secrets);
        if secrets.is_empty() {
            return Ok(Self {
                secrets,
                origins: Vec::new(),
            });
        }
        let unverified = spec["tls"]["insecureSkipVerify"] == true;
        let mut origins = Vec::new();
        for (field, pointer, required) in [
            ("url", "/url", true),
            (
                "auth.oauth2Password.tokenUrl",
                "/auth/oauth2Password/tokenUrl",
                false,
            ),
            (
                "auth.oauth2ClientCredentials.tokenUrl",
                "/auth/oauth2ClientCredentials/tokenUrl",
                false,
            ),
            ("auth.registry.tokenUrl", "/auth/registry/tokenUrl", false),
        ] {
            match spec.pointer(pointer).and_then(Value::as_str) {
                None if !required => {}
                url => origins.push(parse_origin(field, url.unwrap_or_default(), unverified)?),
            }
        }
        Ok(Self { secrets, origins })
    }
}

/// The value without nulls: a server-side apply of null leaves the field to its other managers, and a merge would
/// remove it.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect()
        }
        value => value.clone(),
    }
}

/// Collects the fields that name a Secret: by convention their names end with `SecretRef`.
fn find_secret_references(path: &str, value: &Value, found: &mut Vec<(String, String)>) {
    for (field, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{field}");
        match value["name"].as_str() {
            Some(name) if field.ends_with("SecretRef") => found.push((path, name.to_owned())),
            _ => find_secret_references(&path, value, found),
        }
    }
}

fn parse_origin(field: &str, url: &str, unverified: bool) -> Result<Origin, String> {
    let origin = Origin::of_url(url).ok_or_else(|| {
        format!("spec.{field} {url:?}: a URL with the scheme http, https, amqp or amqps is needed")
    })?;
    Ok(if unverified { origin.unverified() } else { origin })
}

#[cfg(test)]
mod tests {
    use schemars::schema_for;
    use serde_json::json;

    use super::*;

    fn uses(applied: Value, live: Option<Value>) -> (Vec<String>, Vec<String>) {
        let uses = SecretUses::of_apply(&applied, live.as_ref()).expect("an origin");
        let secrets = uses
            .secrets
            .into_iter()
            .map(|(field, name)| format!("{field}={name}"));
        (
            secrets.collect(),
            uses.origins.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn applied_upstream_uses_secrets_of_both_sides() {
        let live = json!({"spec": {"url": "https://ci", "tls": {"clientCertificateSecretRef": {"name": "pair"}},
            "auth": {"basic": {"username": "a", "passwordSecretRef": {"name": "old", "key": "k"}}}}});
        let token = json!({"oauth2Password": {"tokenUrl": "https://id/t", "passwordSecretRef": {"name": "new", "key": "k"}}});
        let pair = "spec.tls.clientCertificateSecretRef=pair".to_owned();
        for (applied, secret, origins) in [
            (
                json!({"spec": {"url": "https://other:1"}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["https://other:1"][..],
            ),
            // A server-side apply keeps what other managers have below the same method, and below none.
            (
                json!({"spec": {"url": "https://other:1", "auth": {}}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["https://other:1"],
            ),
            (
                json!({"spec": {"url": "https://other:1", "auth": null, "tls": null}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["https://other:1"],
            ),
            (
                json!({"spec": {"url": "https://other:1", "auth": {"basic": {"username": "x"}}}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["https://other:1"],
            ),
            (
                json!({"spec": {"url": "https://other:1", "auth": {"basic": {"passwordSecretRef": {"key": "x"}}}}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["https://other:1"],
            ),
            (
                json!({"spec": {"auth": token}}),
                "spec.auth.oauth2Password.passwordSecretRef=new",
                &["https://ci", "https://id"],
            ),
            (
                json!({"spec": {"tls": {"insecureSkipVerify": true}}}),
                "spec.auth.basic.passwordSecretRef=old",
                &["http://ci:443"],
            ),
        ] {
            let (mut secrets, found) = uses(applied, Some(live.clone()));
            secrets.sort();
            assert_eq!(
                (secrets, found),
                (
                    vec![secret.into(), pair.clone()],
                    origins.iter().map(|o| (*o).to_owned()).collect()
                )
            );
        }
        assert_eq!(uses(json!({"spec": {"url": "nothing"}}), None), (vec![], vec![]));
        let invalid = SecretUses::of_apply(&json!({"spec": {"auth": token}}), None).expect_err("no URL");
        assert!(invalid.contains("spec.url"), "{invalid}");
    }

    /// A reference of another name would escape the check.
    #[test]
    fn every_reference_to_a_secret_ends_with_secret_ref() {
        fn walk(schema: &Value, field: &str, root: &Value, found: &mut usize) {
            if let Some(name) = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
                if name.starts_with("Secret") {
                    assert!(field.ends_with("SecretRef"), "{field} refers to a Secret");
                    *found += 1;
                }
                return walk(&root["$defs"][name], field, root, found);
            }
            for part in ["anyOf", "oneOf", "allOf"] {
                for schema in schema[part].as_array().into_iter().flatten() {
                    walk(schema, field, root, found);
                }
            }
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                walk(schema, field, root, found);
            }
        }
        let (root, mut found) = (schema_for!(UpstreamSpec).to_value(), 0);
        walk(&root, "", &root, &mut found);
        assert!(found >= 9, "{found}");
    }
}
