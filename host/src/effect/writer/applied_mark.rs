//! The mark that an apply leaves on its object, and the comparison of what was applied with what is live; no I/O.

use std::hash::{DefaultHasher, Hash};

use serde_json::{Value, json, value::RawValue};

use super::applied::Applied;
use crate::kube::{
    hash::hash_to_u64,
    raw_json::{Entries, SortedEntries, Text, find_field, find_scalar},
    well_known::bookkeeping,
};

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

    /// The apply that left a live object with this mark, if its fields are live exactly as applied. A field that the server
    /// normalized is not, so that such an object is sent once by each leader. `live` and `body`, the object as it is sent, are JSON;
    /// `live_fields` is the fingerprint of the live object.
    pub(super) fn recognize(
        &self,
        live: &[u8],
        live_fields: u64,
        object: &Value,
        body: &[u8],
        sent: u64,
    ) -> Option<Applied> {
        let metadata = find_field(std::str::from_utf8(live).ok()?, ["metadata"])?;
        let is_marked = find_scalar(metadata, ["annotations", &self.name]).is_some_and(|d| d == self.digest);
        let is_deleting = find_scalar(metadata, ["deletionTimestamp"]).is_some();
        let is_live = || live_fields == fingerprint_fields(body, object);
        (is_marked && !is_deleting && is_live()).then_some(Applied {
            request_digest: 0,
            version: 0,
            sent,
            live: live_fields,
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

/// Computes a digest of those fields of `live` (JSON) that `applied` names. A list that the server lengthened or shortened
/// counts as a whole, because its items cannot be matched.
pub(super) fn fingerprint_fields(live: &[u8], applied: &Value) -> u64 {
    let live = std::str::from_utf8(live).ok();
    hash_to_u64(|hasher| hash_fields(live, applied, hasher))
}

fn hash_fields(live: Option<&str>, applied: &Value, hasher: &mut DefaultHasher) {
    match (live, applied) {
        (Some(text), Value::Object(applied)) => {
            if let Ok(live) = serde_json::from_str::<Entries>(text) {
                let live = SortedEntries::from(live);
                for (key, value) in applied {
                    key.hash(hasher);
                    hash_fields(live.get(key), value, hasher);
                }
                return;
            }
        }
        (Some(text), Value::Array(applied)) => {
            if let Ok(live) = serde_json::from_str::<Vec<&RawValue>>(text)
                && live.len() == applied.len()
            {
                for (live, applied) in live.iter().zip(applied) {
                    hash_fields(Some(live.get()), applied, hasher);
                }
                return;
            }
        }
        _ => {}
    }
    // A field without a value (the number `1e999`, a lone surrogate) counts as absent.
    match live {
        Some(text) if text.starts_with('"') => serde_json::from_str::<Text>(text).ok().hash(hasher),
        Some(text) => serde_json::from_str::<Value>(text).ok().hash(hasher),
        None => None::<Value>.hash(hasher),
    }
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
        let body = object.to_string().into_bytes();
        let recognized = |mark: &AppliedMark, live: &Value| {
            let live = live.to_string().into_bytes();
            let fields = fingerprint_fields(&live, &object);
            mark.recognize(&live, fields, &object, &body, 7).is_some()
        };
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
        let left = fingerprint_fields(live.to_string().as_bytes(), &applied);
        let changed = |path: &str, value: Value| {
            let mut other = live.clone();
            *other.pointer_mut(path).expect("a field") = value;
            fingerprint_fields(other.to_string().as_bytes(), &applied) != left
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
