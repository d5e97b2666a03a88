//! Merge and comparison of objects as the API server does it.

use serde_json::{Map, Value, json};

use crate::{kube::well_known::bookkeeping::APPLIED, reconcile::conditions::merge_patch};

/// Metadata that the API server manages, which is not part of the desired state.
const BOOKKEEPING_FIELDS: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Part of the bookkeeping that identifies an object and its stage of deletion.
const IDENTITY_FIELDS: [&str; 4] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "uid",
];

/// The JSON merge patch (RFC 7386) from one object to the other, without bookkeeping; empty if they are equal.
pub fn create_patch(from: &Value, to: &Value) -> Value {
    merge_patch(Some(&strip_bookkeeping(from)), &strip_bookkeeping(to)).unwrap_or_else(|| json!({}))
}

/// An object without bookkeeping.
pub fn strip_bookkeeping(object: &Value) -> Value {
    let mut bare = object.clone();
    if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in BOOKKEEPING_FIELDS {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !name.starts_with(APPLIED));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    bare
}

/// Returns `true` if two states of an object differ in bookkeeping at most.
pub fn is_same_state(one: &Value, other: &Value) -> bool {
    is_deleting(one) == is_deleting(other) && strip_bookkeeping(one) == strip_bookkeeping(other)
}

/// Completes the bookkeeping of the next state of an object: identity is kept, and a changed spec raises `generation`.
pub fn carry_bookkeeping(before: &Value, next: &mut Value) {
    for field in IDENTITY_FIELDS {
        let kept = before["metadata"].get(field).cloned();
        set_field(&mut next["metadata"], field, kept);
    }
    if let Some(generation) = before["metadata"]["generation"].as_i64() {
        let changed = spec_fields(before).ne(spec_fields(next));
        next["metadata"]["generation"] = (generation + i64::from(changed)).into();
    }
}

/// Applies a merge patch to an object and completes its bookkeeping.
pub fn apply_patch(before: &Value, patch: &Value) -> Value {
    let mut next = before.clone();
    json_patch::merge(&mut next, patch);
    carry_bookkeeping(before, &mut next);
    next
}

/// Returns `true` if an object has a deletion timestamp.
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Returns `true` if finalizers keep a deleted object from being removed.
pub fn has_finalizers(object: &Value) -> bool {
    let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let namespace = object["kind"] == "Namespace" && object["apiVersion"] == "v1";
    some(&object["metadata"]["finalizers"]) || (namespace && some(&object["spec"]["finalizers"]))
}

/// Sets a field, or removes it if `value` is `None`.
pub fn set_field(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    match value {
        Some(value) => drop(fields.insert(field.to_owned(), value)),
        None => drop(fields.remove(field)),
    }
}

/// The patch that `kubectl apply` would send: sets the fields of the file, and removes those that only the last applied
/// configuration has.
pub fn three_way_patch(last: Option<&Value>, file: &Value, live: &Value) -> Value {
    fn walk(last: Option<&Value>, file: &Value, live: &Value) -> Option<Value> {
        let (Value::Object(fields), Value::Object(there)) = (file, live) else {
            return (file != live).then(|| file.clone());
        };
        let mut patch = Map::new();
        let before = last.and_then(Value::as_object);
        for name in before.into_iter().flat_map(Map::keys) {
            if !fields.contains_key(name) && there.contains_key(name) {
                patch.insert(name.clone(), Value::Null);
            }
        }
        for (name, value) in fields {
            let change = match there.get(name) {
                Some(there) => walk(before.and_then(|b| b.get(name)), value, there),
                None => Some(value.clone()),
            };
            patch.extend(change.map(|change| (name.clone(), change)));
        }
        (!patch.is_empty()).then(|| patch.into())
    }
    walk(last, file, live).unwrap_or_else(|| json!({}))
}

/// The fields whose change raises `metadata.generation`.
fn spec_fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-d]", json_value(), 0..4)
            .prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn delta_applied_to_an_object_gives_the_other(from in object(), to in object()) {
            let mut target = from.clone();
            json_patch::merge(&mut target, &create_patch(&from, &to));
            prop_assert_eq!(target, to);
        }

        #[test]
        fn three_way_patch_keeps_fields_of_other_managers(last in object(), file in object(), live in object()) {
            let mut target = live.clone();
            json_patch::merge(&mut target, &three_way_patch(Some(&last), &file, &live));
            for (name, value) in file.as_object().expect("an object") {
                // An object field may also have fields of other managers.
                if !value.is_object() {
                    prop_assert_eq!(&target[name], value);
                }
            }
            for (name, value) in live.as_object().expect("an object") {
                if file.get(name).is_none() {
                    prop_assert_eq!(target.get(name), Some(value).filter(|_| last.get(name).is_none()));
                }
            }
        }
    }

    #[test]
    fn next_state_keeps_the_identity_and_raises_the_generation() {
        let before = json!({"metadata": {"uid": "u", "generation": 3, "deletionTimestamp": "t"}, "spec": 1});
        let mut next = json!({"metadata": {"uid": "other", "labels": {"a": "b"}}, "spec": 1, "status": {}});
        carry_bookkeeping(&before, &mut next);
        assert_eq!(
            next["metadata"],
            json!({"uid": "u", "generation": 3, "deletionTimestamp": "t", "labels": {"a": "b"}})
        );
        next["spec"] = json!(2);
        carry_bookkeeping(&before, &mut next);
        assert_eq!(next["metadata"]["generation"], 4);
        assert!(!is_same_state(&before, &next));
        let mut touched = before.clone();
        touched["metadata"]["resourceVersion"] = "9".into();
        assert!(is_same_state(&before, &touched));
        touched["metadata"]["deletionTimestamp"] = Value::Null;
        assert!(!is_same_state(&before, &touched));
    }
}
