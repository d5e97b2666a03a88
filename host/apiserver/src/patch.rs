//! JSON, merge and strategic merge patches. Server-side apply is in [`crate::apply`].

use ostler_schema::{ListType, Schema};
use serde_json::{Map, Value};

use crate::request::PatchKind;
use crate::status::StatusError;

/// Applies a patch to a copy of an object.
pub fn apply_patch(
    kind: PatchKind,
    schema: &Schema,
    object: &Value,
    body: &Value,
) -> Result<Value, StatusError> {
    let mut patched = object.clone();
    match kind {
        PatchKind::Json => {
            let operations: Vec<json_patch::PatchOperation> = serde_json::from_value(body.clone())
                .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))?;
            json_patch::patch(&mut patched, &operations).map_err(|error| {
                StatusError::new(
                    422,
                    "Invalid",
                    format!("the server rejected our request due to an error in our request: {error}"),
                )
            })?;
        }
        PatchKind::Merge | PatchKind::Apply => json_patch::merge(&mut patched, body),
        PatchKind::Strategic => merge_strategic(schema, &mut patched, body),
    }
    if patched.is_object() {
        Ok(patched)
    } else {
        Err(StatusError::bad_request("the patch does not leave an object"))
    }
}

/// A merge patch that knows keyed lists and sets, and the `$patch`, `$retainKeys` and `$deleteFromPrimitiveList`
/// directives. Keys come from the same schema that server-side apply uses.
fn merge_strategic(schema: &Schema, target: &mut Value, body: &Value) {
    let Value::Object(changes) = body else {
        *target = body.clone();
        return;
    };
    if changes
        .get("$patch")
        .is_some_and(|directive| directive == "replace")
    {
        *target = Value::Object(
            changes
                .iter()
                .filter(|(name, _)| !name.starts_with('$'))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        );
        return;
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    if let Some(kept) = changes.get("$retainKeys").and_then(Value::as_array) {
        fields.retain(|name, _| kept.iter().any(|keep| keep == name));
    }
    let unknown = Schema::default();
    for (name, value) in changes {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Some(gone)) = (fields.get_mut(list), value.as_array()) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if name.starts_with('$') {
            continue;
        }
        let below = schema.field(name).unwrap_or(&unknown);
        match value {
            Value::Null => {
                fields.remove(name);
            }
            Value::Object(_) => {
                merge_strategic(below, fields.entry(name.clone()).or_insert(Value::Null), value)
            }
            Value::Array(items) if below.list_type() != ListType::Atomic => {
                let list = fields
                    .entry(name.clone())
                    .or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    merge_strategic_list(below, list, items);
                }
            }
            _ => {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
}

fn merge_strategic_list(schema: &Schema, list: &mut Vec<Value>, changes: &[Value]) {
    if changes.iter().any(|change| change["$patch"] == "replace") {
        *list = changes
            .iter()
            .filter(|change| change.get("$patch").is_none())
            .cloned()
            .collect();
        return;
    }
    let unknown = Schema::default();
    for change in changes {
        let element = schema.item_path_element(change);
        let at = list
            .iter()
            .position(|item| schema.item_path_element(item) == element);
        match (at, change["$patch"] == "delete") {
            (Some(at), true) => drop(list.remove(at)),
            (Some(at), false) => {
                merge_strategic(schema.items.as_deref().unwrap_or(&unknown), &mut list[at], change)
            }
            (None, true) => {}
            (None, false) => list.push(change.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        }}))
        .unwrap()
    }

    #[test]
    fn strategic_patch_merges_lists_by_key() {
        let object = json!({"list": [{"name": "a", "v": 1}, {"name": "b"}], "set": ["x", "y"], "map": {"k": 1, "gone": 2}});
        let body = json!({
            "list": [{"name": "a", "w": 2}, {"name": "b", "$patch": "delete"}, {"name": "c"}],
            "$deleteFromPrimitiveList/set": ["x"], "map": {"gone": null},
        });
        let patched = apply_patch(PatchKind::Strategic, &schema(), &object, &body).unwrap();
        assert_eq!(
            patched,
            json!({"list": [{"name": "a", "v": 1, "w": 2}, {"name": "c"}], "set": ["y"], "map": {"k": 1}})
        );
    }

    #[test]
    fn failed_json_patch_test_is_an_error() {
        let object = json!({"a": 1});
        let body =
            json!([{"op": "test", "path": "/a", "value": 2}, {"op": "replace", "path": "/a", "value": 3}]);
        assert_eq!(
            apply_patch(PatchKind::Json, &schema(), &object, &body)
                .unwrap_err()
                .code,
            422
        );
        assert_eq!(
            apply_patch(PatchKind::Json, &schema(), &object, &json!("x"))
                .unwrap_err()
                .code,
            400
        );
    }
}
