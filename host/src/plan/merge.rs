//! JSON, merged and compared as the API server does.

use serde_json::{Map, Value, json};

use crate::reconcile::conditions::merge_patch;

/// What the API server keeps about an object: nobody's intent.
const BOOKKEEPING: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// What of it says which object it is, and how far its life is.
const IDENTITY: [&str; 4] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "uid",
];

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge(fields.entry(name).or_insert(Value::Null), value),
        }
    }
}

/// The merge patch that makes one object into the other, bookkeeping aside; empty when there is nothing to do.
pub fn delta(from: &Value, to: &Value) -> Value {
    merge_patch(Some(&bare(from)), &bare(to)).unwrap_or_else(|| json!({}))
}

/// An object without bookkeeping.
pub fn bare(object: &Value) -> Value {
    let mut bare = object.clone();
    if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in BOOKKEEPING {
            metadata.remove(field);
        }
    }
    bare
}

/// Whether two states of an object differ by nothing but bookkeeping.
pub fn same(one: &Value, other: &Value) -> bool {
    deleting(one) == deleting(other) && bare(one) == bare(other)
}

/// The bookkeeping of the next state of an object: it stays the same object, and counts its changes.
pub fn follow(before: &Value, next: &mut Value) {
    for field in IDENTITY {
        let kept = before["metadata"].get(field).cloned();
        set(&mut next["metadata"], field, kept);
    }
    if let Some(generation) = before["metadata"]["generation"].as_i64() {
        let changed = content(before).ne(content(next));
        next["metadata"]["generation"] = (generation + i64::from(changed)).into();
    }
}

/// The next state of an object, by a patch.
pub fn patched(before: &Value, patch: &Value) -> Value {
    let mut next = before.clone();
    merge(&mut next, patch);
    follow(before, &mut next);
    next
}

/// Whether its deletion was asked for.
pub fn deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether something still has to happen before a deleted object goes.
pub fn held(object: &Value) -> bool {
    let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let namespace = object["kind"] == "Namespace" && object["apiVersion"] == "v1";
    some(&object["metadata"]["finalizers"]) || (namespace && some(&object["spec"]["finalizers"]))
}

/// Sets a field, or takes it away.
pub fn set(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    match value {
        Some(value) => drop(fields.insert(field.to_owned(), value)),
        None => drop(fields.remove(field)),
    }
}

/// The patch that `kubectl apply` would send: what the file says, and away with what it said the last time.
pub fn three_way(last: Option<&Value>, file: &Value, live: &Value) -> Value {
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

/// Everything but the fields that don't make a generation.
fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
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
        fn a_delta_leads_from_one_to_the_other(from in object(), to in object()) {
            let mut target = from.clone();
            merge(&mut target, &delta(&from, &to));
            prop_assert_eq!(target, to);
        }

        #[test]
        fn kubectl_s_patch_leaves_what_others_said(last in object(), file in object(), live in object()) {
            let mut target = live.clone();
            merge(&mut target, &three_way(Some(&last), &file, &live));
            for (name, value) in file.as_object().expect("an object") {
                // Within a field others may have said more.
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
    fn a_next_state_is_the_same_object_and_counts_its_changes() {
        let before = json!({"metadata": {"uid": "u", "generation": 3, "deletionTimestamp": "t"}, "spec": 1});
        let mut next = json!({"metadata": {"uid": "other", "labels": {"a": "b"}}, "spec": 1, "status": {}});
        follow(&before, &mut next);
        assert_eq!(
            next["metadata"],
            json!({"uid": "u", "generation": 3, "deletionTimestamp": "t", "labels": {"a": "b"}})
        );
        next["spec"] = json!(2);
        follow(&before, &mut next);
        assert_eq!(next["metadata"]["generation"], 4);
        assert!(!same(&before, &next));
        let mut touched = before.clone();
        touched["metadata"]["resourceVersion"] = "9".into();
        assert!(same(&before, &touched));
        touched["metadata"]["deletionTimestamp"] = Value::Null;
        assert!(!same(&before, &touched));
    }
}
