//! Insertion of secrets into a written object: the substitutions of `apply` and `create`.
//!
//! Only objects of the kind `Secret` take them. Their values are a flat map, so that a mark on the object names exactly the
//! values that were inserted, and other managers cannot move a value from under its mark.

use std::{collections::HashMap, hash::Hash};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value};

use super::super::{PluginCall, http::StoreSecrets};
use crate::{
    contract::bindings::types::{Error, Substitution},
    kube::{hash::hash_to_u64, key::ObjectRef, secret_view::mark_keys, well_known::annotation::ORIGINS},
    policy::grants::SecretDestination,
    sandbox::services::Services,
    upstream::{self, Redactor, RequestSecrets, SecretHistory, SecretStore, UpstreamSecretKey},
};

/// Maximum size of all values of a Secret together, as the API server has it.
const MAX_SECRET_BYTES: usize = 1 << 20;

/// An object with its secrets. Not `Debug`: it holds secrets.
pub(super) struct FilledObject {
    /// The object to send.
    pub object: Value,
    /// The object with placeholders, as the component reads it.
    pub template: Value,
    /// Takes the secrets out of errors of the API server.
    pub redactor: Redactor,
    /// Digest of the object, made of the placeholders and keyed digests of the secrets.
    pub digest: u64,
}

impl PluginCall {
    /// Inserts the secrets of substitutions into an object. They become dependencies: a rotated secret wakes the
    /// reconciled object, and so does one that is missing now.
    pub(super) async fn insert_secrets(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        object: Value,
        substitutions: Vec<Substitution>,
    ) -> Result<FilledObject, Error> {
        for placeholder in substitutions.iter().map(|s| s.placeholder.len()) {
            self.charge_bytes_to_host(placeholder)?;
        }
        let destination = SecretDestination::Object {
            namespace: &key.namespace,
        };
        let substitutions = self
            .load_substitutions(services, substitutions, destination)
            .await?;
        let store = StoreSecrets(&services.cache.store);
        let mut values = HashMap::new();
        let mut digests = Vec::new();
        for secret in substitutions.iter().flat_map(upstream::Substitution::secret_keys) {
            if values.contains_key(secret) {
                continue;
            }
            check_annotation(&store, secret)?;
            if let Some(value) = store.get(secret) {
                let value = value.expose().to_vec();
                digests.push(services.upstreams.clients.digest_secret(secret, &value).await?);
                values.insert(secret, value);
            }
        }
        let get = |secret: &UpstreamSecretKey| values.get(secret).cloned();
        let secrets = RequestSecrets::resolve(&substitutions, get, &SecretHistory::default())?;
        let (object, template) = fill_secret(object, &secrets)?;
        let mut redactor = secrets.redactor;
        for value in object["data"].as_object().into_iter().flat_map(Map::values) {
            if let Some(value) = value.as_str() {
                redactor.add_placeholder(b"***", value.as_bytes());
            }
        }
        let digest = hash_to_u64(|hasher| {
            (template.to_string(), format!("{substitutions:?}"), &digests).hash(hasher);
        });
        Ok(FilledObject {
            object,
            template,
            redactor,
            digest,
        })
    }
}

/// Refuses a secret whose owner confines it to origins: an object is none.
fn check_annotation(store: &StoreSecrets<'_>, secret: &UpstreamSecretKey) -> Result<(), Error> {
    match store.allowed_origins(secret) {
        None => Ok(()),
        Some(_) => Err(Error::Denied(format!(
            "Secret {}/{} may not be written into an object: its annotation {ORIGINS} confines it to origins",
            secret.namespace, secret.name
        ))),
    }
}

/// Inserts secrets into the values of a Secret. Returns it with them, and as it is with placeholders; both have the marks of
/// the values, and all values in `data`.
fn fill_secret(mut template: Value, secrets: &RequestSecrets) -> Result<(Value, Value), Error> {
    let invalid = |what: String| Error::Invalid(format!("object: {what}"));
    let take_map =
        |object: &mut Value, field: &str| match object.as_object_mut().and_then(|o| o.remove(field)) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(invalid(format!("{field} is no object"))),
        };
    let mut data = take_map(&mut template, "data")?;
    // The API server does the same, and does not return `stringData`.
    for (key, value) in take_map(&mut template, "stringData")? {
        let Some(text) = value.as_str() else {
            return Err(invalid(format!("stringData.{key} is no string")));
        };
        data.insert(key, BASE64_STANDARD.encode(text).into());
    }
    if has_placeholder(&template, secrets) || data.keys().any(|key| secrets.has_placeholder(key.as_bytes())) {
        return Err(invalid(
            "a placeholder is neither in a value of `data` nor of `stringData`".into(),
        ));
    }
    let (mut filled, mut inserted, mut left_bytes) = (Map::new(), Vec::new(), MAX_SECRET_BYTES);
    for (key, value) in &data {
        let text = value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
        let text = text.ok_or_else(|| invalid(format!("data.{key} is not base64")))?;
        let value = secrets.fill_text(&text, left_bytes).ok_or_else(|| {
            Error::LimitExceeded(format!(
                "the values of a Secret have at most {MAX_SECRET_BYTES} bytes together, also with inserted secrets"
            ))
        })?;
        left_bytes -= value.len();
        filled.insert(key.clone(), BASE64_STANDARD.encode(value).into());
        if secrets.has_placeholder(&text) {
            inserted.push(key.clone());
        }
    }
    mark_keys(&mut template, &inserted);
    let mut object = template.clone();
    object["data"] = filled.into();
    template["data"] = data.into();
    Ok((object, template))
}

/// A string or a field name within a value contains a placeholder.
fn has_placeholder(value: &Value, secrets: &RequestSecrets) -> bool {
    match value {
        Value::String(text) => secrets.has_placeholder(text.as_bytes()),
        Value::Array(items) => items.iter().any(|item| has_placeholder(item, secrets)),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| secrets.has_placeholder(name.as_bytes()) || has_placeholder(value, secrets)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Takes secrets out of an error of the API server, which may quote a rejected object.
pub(super) fn redact_error(error: Error, redactor: &Redactor) -> Error {
    let redact = |text: String| redactor.redact_text(&text);
    match error {
        Error::Denied(text) => Error::Denied(redact(text)),
        Error::NotFound(text) => Error::NotFound(redact(text)),
        Error::Conflict(text) => Error::Conflict(redact(text)),
        Error::Invalid(text) => Error::Invalid(redact(text)),
        Error::Unavailable(text) => Error::Unavailable(redact(text)),
        Error::LimitExceeded(text) => Error::LimitExceeded(redact(text)),
        Error::Unsupported(text) => Error::Unsupported(redact(text)),
        Error::Throttled(_) | Error::NotReady(_) => error,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        kube::{
            key::Gvk,
            object::KubeObject,
            secret_view::{visible_json, visible_value},
        },
        upstream::{Encoding, SecretSource},
    };

    const PLACEHOLDER: &str = "{{placeholder-1}}";

    fn resolve(encoding: Encoding, value: &str) -> RequestSecrets {
        let substitution = upstream::Substitution {
            placeholder: PLACEHOLDER.into(),
            source: SecretSource::Key(UpstreamSecretKey {
                namespace: "n".into(),
                name: "s".into(),
                key: "k".into(),
            }),
            encoding,
        };
        let get = |_: &UpstreamSecretKey| Some(value.as_bytes().to_vec());
        RequestSecrets::resolve(&[substitution], get, &SecretHistory::default())
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn fill(object: &Value, value: &str) -> Result<(Value, Value), Error> {
        fill_secret(object.clone(), &resolve(Encoding::JsonString, value))
    }

    fn decode(object: &Value, key: &str) -> String {
        let bytes = BASE64_STANDARD.decode(object["data"][key].as_str().expect("a value"));
        String::from_utf8(bytes.expect("base64")).expect("text")
    }

    #[test]
    fn secret_enters_decoded_values_of_data_and_string_data() {
        let config = json!({ "auths": { "r": { "password": PLACEHOLDER } } }).to_string();
        let secret = json!({"kind": "Secret", "metadata": {"name": "x"}, "type": "t",
            "data": {"config": BASE64_STANDARD.encode(config), "b": "AP8="},
            "stringData": {"text": format!("a {PLACEHOLDER} b"), "b": "plain"}});
        let (object, template) = fill(&secret, "p\"w").expect("valid");
        let config: Value = serde_json::from_str(&decode(&object, "config")).expect("JSON");
        assert_eq!(config["auths"]["r"]["password"], "p\"w");
        assert_eq!(decode(&object, "text"), "a p\\\"w b");
        assert_eq!(decode(&object, "b"), "plain", "stringData overrides data");
        assert_eq!(decode(&template, "text"), format!("a {PLACEHOLDER} b"));
        assert_eq!((&object["type"], object.get("stringData")), (&json!("t"), None));
        let marks = object["metadata"]["annotations"].as_object().expect("marks");
        let marked: Vec<_> = marks.values().collect();
        assert!(
            marked.len() == 2 && !marked.contains(&&json!("b")),
            "values without secrets have no mark: {marks:?}"
        );
        assert_eq!(object["metadata"], template["metadata"]);
    }

    #[test]
    fn placeholder_outside_of_values_is_invalid() {
        for secret in [
            json!({"metadata": {"name": "x", "labels": {"l": PLACEHOLDER}}}),
            json!({"metadata": {"name": "x"}, "other": [{PLACEHOLDER: 1}]}),
            json!({"metadata": {"name": "x"}, "data": {PLACEHOLDER: "YQ=="}}),
        ] {
            let refused = fill(&secret, "secret").expect_err("invalid");
            assert!(
                matches!(&refused, Error::Invalid(why) if why.contains("a placeholder is neither")),
                "{refused:?}"
            );
        }
        for (secret, words) in [
            (
                json!({"metadata": {}, "data": {"a": "*"}}),
                "data.a is not base64",
            ),
            (json!({"metadata": {}, "data": {"a": 1}}), "data.a is not base64"),
            (json!({"metadata": {}, "data": []}), "data is no object"),
            (
                json!({"metadata": {}, "stringData": {"a": 1}}),
                "stringData.a is no string",
            ),
        ] {
            let refused = fill(&secret, "secret").expect_err("invalid");
            assert!(
                matches!(&refused, Error::Invalid(why) if why.contains(words)),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn values_are_measured_with_their_secrets() {
        let secret = json!({"metadata": {"name": "x"}, "stringData": {"a": PLACEHOLDER, "b": PLACEHOLDER}});
        let fits = "x".repeat(MAX_SECRET_BYTES / 2);
        assert!(fill(&secret, &fits).is_ok());
        let refused = fill(&secret, &format!("{fits}x")).expect_err("too large");
        assert!(matches!(refused, Error::LimitExceeded(_)));
    }

    #[test]
    fn error_that_quotes_a_value_is_redacted() {
        let secrets = resolve(Encoding::Plain, "hush-hush-value");
        let quoted = Error::Invalid(format!(
            "webhook: hush-hush-value, {}",
            BASE64_STANDARD.encode("a hush-hush-value")
        ));
        let Error::Invalid(text) = redact_error(quoted, &secrets.redactor) else {
            panic!("another error")
        };
        assert!(
            text.starts_with("webhook: ") && !text.contains("hush") && !text.contains("aHVzaC1odXNoLX"),
            "{text}"
        );
    }

    proptest! {
        /// Every value has the secret in place of its placeholders, and no view of the written object has the secret.
        #[test]
        fn any_values_are_filled_and_hidden(
            texts in prop::collection::btree_map("[a-z.]{1,8}", ("\\PC{0,12}", any::<bool>(), any::<bool>(), "\\PC{0,12}"), 0..6),
            secret in "[A-Z]{12}[\"\\\\é]{0,3}",
        ) {
            let (mut data, mut string_data) = (json!({}), json!({}));
            for (key, (before, has_secret, is_text, after)) in &texts {
                let text = format!("{before}{}{after}", if *has_secret { PLACEHOLDER } else { "" });
                if *is_text {
                    string_data[key] = text.into();
                } else {
                    data[key] = BASE64_STANDARD.encode(text).into();
                }
            }
            let given = json!({"metadata": {"name": "x"}, "data": data, "stringData": string_data});
            let (object, template) = fill(&given, &secret).expect("valid");
            let escaped = json!(secret).to_string();
            let escaped = &escaped[1..escaped.len() - 1];
            for (key, (before, has_secret, _, after)) in &texts {
                let expected = format!("{before}{}{after}", if *has_secret { escaped } else { "" });
                prop_assert_eq!(decode(&object, key), expected);
            }
            let (_, stored) = KubeObject::parse(&Gvk::secret(), object.to_string().as_bytes()).expect("an object");
            let returned = visible_json(&Gvk::secret(), &stored, true, Some(&template));
            let returned: Value = serde_json::from_slice(&returned).expect("JSON");
            prop_assert_eq!(&returned["data"], &template["data"]);
            let read = visible_value(&Gvk::secret(), &stored, true);
            for (key, (_, has_secret, ..)) in &texts {
                let expected = if *has_secret { &json!("Kioq") } else { &template["data"][key] };
                prop_assert_eq!(&read["data"][key], expected);
            }
        }
    }
}
