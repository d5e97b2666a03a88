//! The view of a Secret that components have: the JSON of the object without the values that they may not read.
//!
//! Two rules hide values. Without `readSecrets` a plugin reads none. With it, a plugin still does not read the values that
//! the host has inserted for a plugin: each of them has an annotation on the object, so that the rule holds after a restart,
//! on every replica and for every plugin. The annotation is written together with the value, by the same field manager, so
//! that server-side apply removes both together. The key of digests of secrets is hidden from every plugin.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::kube::{hash::encode_hex, key::Gvk, object::KubeObject, well_known::bookkeeping::SUBSTITUTED};

/// Value in place of a hidden one: `***` in base64.
const HIDDEN_VALUE: &str = "Kioq";

/// Annotation in which kubectl keeps the whole object as it was applied, with its values.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Name of the Secret with the key of digests, in the namespace of a host. No plugin reads, writes or names a Secret of this
/// name: whoever has the key can find the value of a digest by guessing.
pub const DIGEST_KEY_SECRET: &str = "ostler-digest-key";

/// Returns true for a Secret with the key of digests, in any namespace: other hosts may use the same cluster.
pub fn is_digest_key(gvk: &Gvk, name: &str) -> bool {
    gvk.is_secret() && name == DIGEST_KEY_SECRET
}

/// Bytes of the digest in the name of an annotation, which Kubernetes limits to 63 characters.
const MARK_BYTES: usize = 20;

/// The JSON of an object as a component reads it. Objects of other kinds than `Secret` are whole. `written` is the object
/// that the component has just written, whose placeholders take the place of the values again.
pub fn visible_json(gvk: &Gvk, object: &KubeObject, shows_values: bool, written: Option<&Value>) -> Vec<u8> {
    match visible_secret(gvk, object, shows_values, written) {
        Some(visible) => visible.to_string().into_bytes(),
        None => object.json.to_vec(),
    }
}

/// An object as [`visible_json`] has it, as a value.
pub fn visible_value(gvk: &Gvk, object: &KubeObject, shows_values: bool) -> Value {
    visible_secret(gvk, object, shows_values, None).unwrap_or_else(|| object.to_value())
}

/// A Secret without its hidden values; `None` if none is hidden.
fn visible_secret(
    gvk: &Gvk,
    object: &KubeObject,
    shows_values: bool,
    written: Option<&Value>,
) -> Option<Value> {
    if !gvk.is_secret() {
        return None;
    }
    let mut secret = object.to_value();
    let name = secret["metadata"]["name"].as_str().unwrap_or_default();
    let shows_values = shows_values && !is_digest_key(gvk, name);
    let marked = list_marked_keys(&secret);
    if shows_values && marked.is_empty() {
        return None;
    }
    if let Some(data) = secret.get_mut("data").and_then(Value::as_object_mut) {
        for (key, value) in data {
            if !shows_values || marked.contains(key) {
                let written = written.and_then(|written| written["data"].get(key));
                *value = written.cloned().unwrap_or_else(|| HIDDEN_VALUE.into());
            }
        }
    }
    let annotations = secret.pointer_mut("/metadata/annotations");
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    Some(secret)
}

/// The keys in `data` whose values the host has inserted.
fn list_marked_keys(secret: &Value) -> Vec<String> {
    let annotations = secret["metadata"]["annotations"].as_object();
    let marks = annotations.into_iter().flatten();
    let marks = marks.filter(|(name, _)| name.starts_with(SUBSTITUTED));
    marks
        .filter_map(|(_, key)| key.as_str().map(str::to_owned))
        .collect()
}

/// Marks keys in `data` of a Secret, so that no plugin reads their values. Each key has an annotation of its own: two field
/// managers that write different keys do not overwrite each other's marks.
pub fn mark_keys(secret: &mut Value, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let annotations = &mut secret["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    for key in keys {
        let digest = Sha256::digest(key.as_bytes());
        let name = format!("{SUBSTITUTED}{}", encode_hex(&digest[..MARK_BYTES]));
        annotations[name] = key.as_str().into();
    }
}

/// Refuses a merge patch that changes the marks of a Secret, without which its plugins could read the values. The error
/// names the field.
pub fn check_patched_marks(gvk: &Gvk, patch: &Value) -> Result<(), String> {
    let keeps_marks = match patch.pointer("/metadata/annotations") {
        None => true,
        Some(Value::Object(annotations)) => !annotations.keys().any(|name| name.starts_with(SUBSTITUTED)),
        // It removes all annotations.
        Some(_) => false,
    };
    if keeps_marks || !gvk.is_secret() {
        return Ok(());
    }
    Err(format!(
        "metadata.annotations of a Secret must be an object without `{SUBSTITUTED}…`, which the host writes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(secret: &Value) -> KubeObject {
        let parsed = KubeObject::parse(&Gvk::secret(), secret.to_string().as_bytes());
        parsed.expect("an object").1
    }

    fn read(secret: &Value, shows_values: bool, written: Option<&Value>) -> Value {
        let json = visible_json(&Gvk::secret(), &parse(secret), shows_values, written);
        serde_json::from_slice(&json).expect("JSON")
    }

    #[test]
    fn marked_value_is_hidden_from_plugins_that_read_secrets() {
        let mut secret = json!({"metadata": {"name": "s"}, "data": {".a": "c2VjcmV0", "b": "Yg=="}});
        assert_eq!(read(&secret, true, None)["data"], secret["data"]);
        mark_keys(&mut secret, &[".a".into()]);
        secret["metadata"]["annotations"][LAST_APPLIED] = "c2VjcmV0".into();
        let visible = read(&secret, true, None);
        assert_eq!(visible["data"], json!({".a": HIDDEN_VALUE, "b": "Yg=="}));
        assert!(!visible.to_string().contains("c2VjcmV0"), "{visible}");
        // A second manager's mark leaves the first.
        mark_keys(&mut secret, &["b".into()]);
        let visible = read(&secret, true, None);
        assert_eq!(visible["data"], json!({".a": HIDDEN_VALUE, "b": HIDDEN_VALUE}));
    }

    #[test]
    fn plugin_without_read_secrets_reads_no_value() {
        let secret = json!({"metadata": {"name": "s", "labels": {"l": "m"}}, "type": "t", "data": {"a": "YQ==", "b": "Yg=="}});
        let visible = read(&secret, false, None);
        assert_eq!(visible["data"], json!({"a": HIDDEN_VALUE, "b": HIDDEN_VALUE}));
        assert_eq!(
            (&visible["type"], &visible["metadata"]["labels"]["l"]),
            (&json!("t"), &json!("m"))
        );
        let written = json!({"data": {"a": "cGxhY2Vob2xkZXI="}});
        let visible = read(&secret, false, Some(&written));
        assert_eq!(
            visible["data"],
            json!({"a": "cGxhY2Vob2xkZXI=", "b": HIDDEN_VALUE})
        );
    }

    #[test]
    fn key_of_digests_is_hidden_from_plugins_that_read_secrets() {
        let secret = json!({"metadata": {"name": DIGEST_KEY_SECRET}, "data": {"key": "c2VjcmV0"}});
        let visible = read(&secret, true, None);
        assert_eq!(visible["data"], json!({"key": HIDDEN_VALUE}));
    }

    #[test]
    fn patch_of_the_marks_of_a_secret_is_invalid() {
        let mark = format!("{}0123", SUBSTITUTED);
        for (annotations, is_valid) in [
            (json!({"a": "b", "c": null}), true),
            (json!({ mark: null }), false),
            (json!(null), false),
            (json!("text"), false),
        ] {
            let patch = json!({"metadata": {"annotations": annotations}});
            let checked = check_patched_marks(&Gvk::secret(), &patch);
            assert_eq!(checked.is_ok(), is_valid, "{patch}");
            assert_eq!(
                check_patched_marks(&Gvk::new("", "v1", "ConfigMap"), &patch),
                Ok(())
            );
        }
    }

    #[test]
    fn object_of_another_kind_is_whole() {
        let mut map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
        mark_keys(&mut map, &["a".into()]);
        let gvk = Gvk::new("", "v1", "ConfigMap");
        let (_, object) = KubeObject::parse(&gvk, map.to_string().as_bytes()).expect("an object");
        assert_eq!(visible_json(&gvk, &object, false, None), object.json.to_vec());
    }
}
