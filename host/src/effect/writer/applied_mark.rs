//! The mark that an apply leaves on its object, and the comparison of what was applied with what is live; no I/O.

use std::hash::{DefaultHasher, Hash};

use serde_json::{Value, json};

use super::applied::Applied;
use crate::kube::{hash::hash_to_u64, well_known::bookkeeping};

/// The annotation with the digest of what a field manager applied, by which the next leader knows that it need not be
/// sent again.
pub(super) struct AppliedMark {
    name: String,
    digest: String,
}

/// Maximum length of the name of an annotation behind the slash.
const MAX_ANNOTATION_NAME: usize = 63;

impl AppliedMark {
    pub(super) fn new(manager: &str, force: bool, sent: u64) -> Self {
        let digest = hash_to_u64(|hasher| (manager, force, sent).hash(hasher));
        Self {
            name: format!("{}{manager}", bookkeeping::APPLIED),
            digest: format!("{digest:016x}"),
        }
    }

    /// The apply that left a live object with this mark, if its fields are live exactly as applied. A field that the
    /// server normalized is not, so that such an object is sent once by each leader.
    pub(super) fn recognize(&self, live: &Value, object: &Value, sent: u64) -> Option<Applied> {
        let metadata = &live["metadata"];
        let is_marked = metadata["annotations"][&self.name] == *self.digest;
        let fields = fingerprint_fields(live, object);
        let is_live = fields == fingerprint_fields(object, object);
        (is_marked && is_live && metadata["deletionTimestamp"].is_null()).then_some(Applied {
            request_digest: 0,
            version: 0,
            sent,
            live: fields,
        })
    }

    /// The object with the mark.
    pub(super) fn add_to(&self, object: &Value) -> Value {
        let mut marked = object.clone();
        let fits = self.name.len() <= bookkeeping::APPLIED.len() + MAX_ANNOTATION_NAME;
        if fits && let Some(metadata) = marked.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert(Value::Null);
            if annotations.is_null() {
                *annotations = json!({});
            }
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.insert(self.name.clone(), self.digest.as_str().into());
            }
        }
        marked
    }
}

/// Computes a digest of those fields of `live` that `applied` names. A list that the server lengthened or shortened
/// counts as a whole, because its items cannot be matched.
pub(super) fn fingerprint_fields(live: &Value, applied: &Value) -> u64 {
    fn walk(live: Option<&Value>, applied: &Value, hasher: &mut DefaultHasher) {
        match (live, applied) {
            (Some(Value::Object(live)), Value::Object(applied)) => {
                for (key, value) in applied {
                    key.hash(hasher);
                    walk(live.get(key), value, hasher);
                }
            }
            (Some(Value::Array(live)), Value::Array(applied)) if live.len() == applied.len() => {
                for (live, applied) in live.iter().zip(applied) {
                    walk(Some(live), applied, hasher);
                }
            }
            (live, _) => live.hash(hasher),
        }
    }
    hash_to_u64(|hasher| walk(Some(live), applied, hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_of_a_former_leader_is_recognized_while_its_fields_are_live() {
        let object = json!({"metadata": {"name": "a", "annotations": {"x": "y"}}, "spec": {"l": [1, 2]}});
        let mark = AppliedMark::new("plugin", false, 7);
        let live = mark.add_to(&object);
        assert_eq!(live["metadata"]["annotations"]["x"], "y", "beside others");
        let recognized = |mark: &AppliedMark, live: &Value| mark.recognize(live, &object, 7).is_some();
        assert!(recognized(&mark, &live));
        let changed = |pointer: &str, value: Value| {
            let mut live = live.clone();
            *live.pointer_mut(pointer).expect("a field") = value;
            live
        };
        for live in [
            object.clone(),
            changed("/spec/l/0", json!(3)),
            changed("/spec/l", json!([1])),
            changed("/spec", json!({})),
            changed("/metadata", json!({"name": "a", "annotations": {"x": "y"}})),
        ] {
            assert!(!recognized(&mark, &live), "{live}");
        }
        let mut deleting = live.clone();
        deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!recognized(&mark, &deleting));
        let mut defaulted = live.clone();
        defaulted["spec"]["defaulted"] = json!(true);
        assert!(recognized(&mark, &defaulted), "a field that was not applied");
        for other in [
            AppliedMark::new("other", false, 7),
            AppliedMark::new("plugin", true, 7),
            AppliedMark::new("plugin", false, 8),
        ] {
            assert!(!recognized(&other, &live), "{}", other.digest);
        }
        let bare = mark.add_to(&json!({"metadata": {"annotations": null}}));
        assert!(bare["metadata"]["annotations"].is_object());
    }

    #[test]
    fn fingerprint_ignores_server_defaults_and_notices_changes_of_applied_fields() {
        let applied = json!({"spec": {"a": "1000m", "l": [{"n": "x"}], "injected": [1]}});
        let live =
            json!({"spec": {"a": "1", "defaulted": true, "l": [{"n": "x", "d": 1}], "injected": [1, 2]}});
        let left = fingerprint_fields(&live, &applied);
        let changed = |path: &str, value: Value| {
            let mut other = live.clone();
            *other.pointer_mut(path).expect("a field") = value;
            fingerprint_fields(&other, &applied) != left
        };
        assert!(!changed("/spec/defaulted", json!(false)), "not ours");
        assert!(!changed("/spec/l/0/d", json!(2)), "not ours");
        assert!(changed("/spec/a", json!("2")));
        assert!(changed("/spec/l/0/n", json!("y")));
        assert!(changed("/spec/l", json!([])));
        assert!(changed("/spec/injected/1", json!(3)));
        assert!(changed("/spec", json!({})));
    }
}
