//! Values as rules see them.

use std::collections::HashMap;

use serde_json::Value;

use crate::{ListType, Schema};

/// Returns a value without the declared fields that are null, which rules take for missing. Nulls in maps and lists stay.
pub(super) fn without_null_fields(schema: &Schema, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_missing =
                |name: &String, field: &Value| field.is_null() && schema.properties.contains_key(name);
            let kept = fields.iter().filter(|(name, field)| !is_missing(name, field));
            let convert = |(name, field): (&String, &Value)| {
                let field = schema
                    .field(name)
                    .map_or_else(|| field.clone(), |below| without_null_fields(below, field));
                (name.clone(), field)
            };
            kept.map(convert).collect()
        }
        Value::Array(items) => {
            let item_schema = schema.items.as_deref();
            let convert = |item: &Value| {
                item_schema.map_or_else(|| item.clone(), |below| without_null_fields(below, item))
            };
            items.iter().map(convert).collect()
        }
        _ => value.clone(),
    }
}

/// Returns an old value with the items of its sets and keyed lists in the order of the new ones, and what the new value lacks at
/// their ends. Rules that compare such lists with their old state ignore the order.
pub(super) fn reorder_items(schema: &Schema, old: &Value, new: &Value) -> Value {
    match (old, new) {
        (Value::Object(fields), Value::Object(new)) => {
            let convert = |(name, field): (&String, &Value)| {
                let below = schema.field(name).zip(new.get(name));
                let field = below.map_or_else(
                    || field.clone(),
                    |(schema, new)| reorder_items(schema, field, new),
                );
                (name.clone(), field)
            };
            fields.iter().map(convert).collect()
        }
        (Value::Array(items), Value::Array(new)) if schema.list_type() != ListType::Atomic => {
            let places = new.iter().enumerate().rev();
            let places: HashMap<String, usize> = places
                .map(|(place, item)| (schema.item_path_element(item), place))
                .collect();
            let place = |item: &Value| places.get(&schema.item_path_element(item)).copied();
            let mut placed: Vec<(Option<usize>, &Value)> =
                items.iter().map(|item| (place(item), item)).collect();
            placed.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));
            let convert = |(place, item): (Option<usize>, &Value)| {
                let below = schema.items.as_deref().zip(place);
                below.map_or_else(
                    || item.clone(),
                    |(schema, place)| reorder_items(schema, item, &new[place]),
                )
            };
            placed.into_iter().map(convert).collect()
        }
        _ => old.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_fields_are_missing_and_null_items_are_not() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "field": {"type": "string", "nullable": true},
            "list": {"type": "array", "items": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "nullable": true}},
        }}))
        .unwrap();
        let value = json!({"field": null, "other": null, "list": [null, {"a": null}], "map": {"a": null}});
        assert_eq!(
            without_null_fields(&schema, &value),
            json!({"other": null, "list": [null, {}], "map": {"a": null}})
        );
    }

    #[test]
    fn old_items_are_in_the_order_of_the_new_ones() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "atomic": {"type": "array", "items": {"type": "string"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {
                    "name": {"type": "string"},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
                }}},
        }}))
        .unwrap();
        let old = json!({"atomic": ["a", "b"], "set": ["gone", "a", "b"], "keyed": [
            {"name": "a", "set": [1, 2]}, {"name": "gone"}, {"name": "b"},
        ]});
        let new = json!({"atomic": ["b", "a"], "set": ["b", "new", "a"], "keyed": [
            {"name": "b"}, {"name": "new"}, {"name": "a", "set": [2, 1]},
        ]});
        assert_eq!(
            reorder_items(&schema, &old, &new),
            json!({"atomic": ["a", "b"], "set": ["b", "a", "gone"], "keyed": [
                {"name": "b"}, {"name": "a", "set": [2, 1]}, {"name": "gone"},
            ]})
        );
    }
}
