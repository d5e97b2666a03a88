//! JSON, merge and strategic merge patches. Server-side apply is in [`crate::apply`].

use ostler_schema::Schema;
use serde_json::{Map, Value};

use crate::limits::check_patch_operations;
use crate::patch_operations::apply_operations;
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
            let operations = body.as_array();
            let operations = operations.filter(|list| list.iter().all(Value::is_object));
            let operations = operations.ok_or_else(|| {
                StatusError::bad_request("error decoding patch: it is not a list of operations")
            })?;
            check_patch_operations(operations.len())?;
            apply_operations(&mut patched, operations).map_err(|why| {
                let message =
                    format!("the server rejected our request due to an error in our request: {why}");
                StatusError::new(422, "Invalid", message)
            })?;
        }
        PatchKind::Merge | PatchKind::Apply => merge_json(&mut patched, body),
        PatchKind::Strategic => merge_strategic(schema, &mut patched, body)?,
    }
    if patched.is_object() {
        Ok(patched)
    } else {
        Err(StatusError::invalid_patch(
            &patched,
            "the patch does not leave an object",
        ))
    }
}

/// A JSON merge patch (RFC 7396), except that nulls go from new lists, too, as the library of a kube-apiserver removes them.
pub fn merge_json(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                match fields.get_mut(name) {
                    _ if change.is_null() => {
                        fields.remove(name);
                    }
                    Some(Value::Null) | None => {
                        fields.insert(name.clone(), without_nulls(change));
                    }
                    Some(field) => merge_json(field, change),
                }
            }
        }
        // A list in the place of an object is taken as it is.
        (target @ Value::Object(_), _) => *target = patch.clone(),
        (target, _) => *target = without_nulls(patch),
    }
}

/// A copy of a value of which no object, in lists either, has a field that is null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, field)| !field.is_null());
            kept.map(|(name, field)| (name.clone(), without_nulls(field)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        _ => value.clone(),
    }
}

/// Directive with the order of a list, before its name.
const ORDER_DIRECTIVE: &str = "$setElementOrder/";
/// Directive with items that go from a list of plain values, before its name.
const DELETION_DIRECTIVE: &str = "$deleteFromPrimitiveList/";

/// The merge of a list by a strategic merge patch.
#[derive(Clone, Copy)]
enum ListMerge<'a> {
    /// Replaced as a whole.
    Replace,
    /// Items are the same if the field of this name is equal.
    ByKey(&'a str),
    /// Items are the same if they are equal.
    ByValue,
}

impl<'a> ListMerge<'a> {
    fn of(schema: &'a Schema) -> Self {
        let strategies = schema.patch_strategy.as_deref().unwrap_or_default();
        if !strategies.split(',').any(|strategy| strategy == "merge") {
            return Self::Replace;
        }
        schema
            .patch_merge_key
            .as_deref()
            .map_or(Self::ByValue, Self::ByKey)
    }

    fn is_same(self, item: &Value, other: &Value) -> bool {
        match self {
            Self::ByKey(key) => item[key] == other[key],
            _ => item == other,
        }
    }
}

/// A merge patch that merges lists by their published keys, and knows the directives `$patch`, `$retainKeys`,
/// `$setElementOrder` and `$deleteFromPrimitiveList`.
fn merge_strategic(schema: &Schema, target: &mut Value, body: &Value) -> Result<(), StatusError> {
    let Value::Object(changes) = body else {
        *target = body.clone();
        return Ok(());
    };
    match changes.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let kept = changes.iter().filter(|(name, _)| !name.starts_with('$'));
            *target = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            return Err(StatusError::bad_request(format!("Unrecognized $patch: {other}")));
        }
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return Ok(());
    };
    if let Some(kept) = changes.get("$retainKeys").and_then(Value::as_array) {
        fields.retain(|name, _| kept.iter().any(|keep| keep == name));
    }
    for (name, value) in changes {
        if let Some(list) = name.strip_prefix(DELETION_DIRECTIVE) {
            if let (Some(Value::Array(items)), Some(gone)) = (fields.get_mut(list), value.as_array()) {
                items.retain(|item| !gone.contains(item));
            }
        } else if !name.starts_with('$') {
            let order = changes.get(&format!("{ORDER_DIRECTIVE}{name}"));
            merge_strategic_field(schema, fields, name, value, order.and_then(Value::as_array))?;
        }
    }
    for (name, order) in changes {
        let name = name.strip_prefix(ORDER_DIRECTIVE);
        let Some(name) = name.filter(|name| !changes.contains_key(*name)) else {
            continue;
        };
        if let (Some(Value::Array(items)), Some(order)) = (fields.get_mut(name), order.as_array()) {
            let merge = schema.field(name).map_or(ListMerge::Replace, ListMerge::of);
            let before = items.clone();
            sort_items(merge, items, order, &before);
        }
    }
    Ok(())
}

fn merge_strategic_field(
    schema: &Schema,
    fields: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    order: Option<&Vec<Value>>,
) -> Result<(), StatusError> {
    let unknown = Schema::default();
    let below = schema.field(name).unwrap_or(&unknown);
    match (value, ListMerge::of(below)) {
        (Value::Null, _) => {
            fields.remove(name);
        }
        (Value::Object(_), _) if !schema.replaces_field(name) => {
            merge_strategic(below, fields.entry(name).or_insert(Value::Null), value)?;
        }
        (Value::Array(changes), merge @ (ListMerge::ByKey(_) | ListMerge::ByValue)) => {
            if let Some(Value::Array(list)) = fields.get_mut(name) {
                let before = list.clone();
                merge_strategic_list(below, merge, list, changes)?;
                sort_items(merge, list, order.unwrap_or(changes), &before);
            } else {
                fields.insert(name.to_owned(), build_strategic_list(below, changes)?);
            }
        }
        _ => {
            fields.insert(name.to_owned(), value.clone());
        }
    }
    Ok(())
}

fn merge_strategic_list(
    schema: &Schema,
    merge: ListMerge<'_>,
    list: &mut Vec<Value>,
    changes: &[Value],
) -> Result<(), StatusError> {
    if changes.iter().any(|change| change["$patch"] == "replace") {
        let kept = changes.iter().filter(|change| change.get("$patch").is_none());
        *list = kept.cloned().collect();
        return Ok(());
    }
    let unknown = Schema::default();
    let item_schema = schema.items.as_deref().unwrap_or(&unknown);
    for change in changes {
        if let ListMerge::ByKey(key) = merge
            && change.get(key).is_none()
        {
            let message = format!("map: {change} does not contain declared merge key: {key}");
            return Err(StatusError::new(500, "", message));
        }
        let at = list.iter().position(|item| merge.is_same(item, change));
        match (at, change["$patch"] == "delete") {
            (Some(at), true) => drop(list.remove(at)),
            (Some(at), false) => merge_strategic(item_schema, &mut list[at], change)?,
            (None, true) => {}
            (None, false) => {
                // What it merges into is new, too, so that its own directives are applied.
                let mut item = Value::Null;
                merge_strategic(item_schema, &mut item, change)?;
                list.push(item);
            }
        }
    }
    Ok(())
}

/// Builds a list that an object does not have yet, for which items need no keys.
fn build_strategic_list(schema: &Schema, changes: &[Value]) -> Result<Value, StatusError> {
    let unknown = Schema::default();
    let item_schema = schema.items.as_deref().unwrap_or(&unknown);
    let is_item = |change: &&Value| change["$patch"].is_null() || change["$patch"] == "merge";
    let items = changes.iter().filter(is_item).map(|change| {
        // Their own directives are applied.
        let mut item = Value::Null;
        merge_strategic(item_schema, &mut item, change)?;
        Ok(item)
    });
    items.collect::<Result<Vec<_>, StatusError>>().map(Value::Array)
}

/// Sorts the items of a list as `order` names them: that of the directive, or of the patch. Items that it does not name keep their
/// place before those that they stood before.
fn sort_items(merge: ListMerge<'_>, items: &mut Vec<Value>, order: &[Value], before: &[Value]) {
    let rank = |item: &Value| order.iter().position(|one| merge.is_same(one, item));
    let place = |item: &Value| before.iter().position(|one| merge.is_same(one, item));
    let (mut named, others): (Vec<Value>, Vec<Value>) = std::mem::take(items)
        .into_iter()
        .partition(|item| rank(item).is_some());
    named.sort_by_key(&rank);
    let mut others = others.into_iter().peekable();
    for item in named {
        while let Some(other) = others.next_if(|other| place(other) < place(&item)) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "list": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name", "items": {"type": "object"}},
            "set": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "string"}},
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
    fn strategic_patch_sorts_lists_by_its_order() {
        let object = json!({"list": [{"name": "other"}, {"name": "a"}, {"name": "b"}, {"name": "last"}]});
        let body = json!({
            "$setElementOrder/list": [{"name": "b"}, {"name": "a"}, {"name": "c"}], "list": [{"name": "c", "v": 1}],
        });
        let patched = apply_patch(PatchKind::Strategic, &schema(), &object, &body).unwrap();
        let names: Vec<&str> = patched["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["other", "b", "a", "c", "last"]);
    }

    #[test]
    fn new_item_of_a_strategic_patch_comes_first() {
        let patch = |body: Value| {
            let object = json!({"list": [{"name": "a"}, {"name": "b"}], "set": ["x", "y"]});
            apply_patch(PatchKind::Strategic, &schema(), &object, &body).unwrap()
        };
        let patched = patch(json!({"list": [{"name": "c"}, {"name": "b"}], "set": ["z"]}));
        assert_eq!(
            patched["list"],
            json!([{"name": "c"}, {"name": "a"}, {"name": "b"}])
        );
        assert_eq!(patched["set"], json!(["z", "x", "y"]));
    }

    #[test]
    fn item_without_its_merge_key_is_refused() {
        let body = json!({"list": [{"v": 1}]});
        let patch = |object: Value| apply_patch(PatchKind::Strategic, &schema(), &object, &body);
        assert_eq!(patch(json!({"list": []})).unwrap_err().code, 500);
        assert_eq!(
            patch(json!({})).unwrap(),
            body,
            "there is nothing to merge it into"
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
