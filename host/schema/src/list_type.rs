//! Lists of type `set` and `map`, whose items must differ.

use std::collections::HashMap;

use serde_json::Value;

use crate::{FieldError, ListType, Schema, field_path};

impl Schema {
    /// The items of sets, and of lists with keys, that occur twice. Each is reported once, at its second place.
    pub fn validate_list_types(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate_value(self, value, "", &mut errors);
        errors
    }
}

fn validate_value(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                // The metadata of an object has lists of its own, whose rules are the API server's.
                if path.is_empty() && name == "metadata" {
                    continue;
                }
                if let Some(property) = schema.properties.get(name) {
                    validate_value(property, value, &field_path(path, name), errors);
                } else if let Some(map_value) = schema.additional_properties.values() {
                    validate_value(map_value, value, &format!("{path}[{name}]"), errors);
                }
            }
        }
        Value::Array(items) => {
            validate_items(schema, items, path, errors);
            if let Some(item_schema) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    validate_value(item_schema, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn validate_items(schema: &Schema, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let list_type = schema.list_type();
    if list_type == ListType::Atomic {
        return;
    }
    let is_object = |item: &Value| item.is_object() || item.is_null();
    if list_type == ListType::Map
        && let Some(index) = items.iter().position(|item| !is_object(item))
    {
        let field = format!("{path}[{index}]");
        let rule = "must be an object for an array of list-type map";
        return errors.push(FieldError::invalid(&field, &items[index], rule));
    }
    let mut seen: HashMap<String, u32> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let count = seen.entry(schema.item_path_element(item)).or_default();
        *count += 1;
        if *count != 2 {
            continue;
        }
        // Of a keyed item the API server shows the keys only.
        let shown = if list_type == ListType::Map {
            let keys = schema.list_map_keys.iter();
            keys.filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
                .collect()
        } else {
            item.clone()
        };
        errors.push(FieldError::duplicate(&format!("{path}[{index}]"), &shown));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeated_item_is_reported_once_at_its_second_place() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "object", "additionalProperties": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}}},
            }},
        }}))
        .unwrap();
        let value = json!({"set": ["a", "b", "a", "a"], "map": {"k": [{"name": "x"}, {"name": "x", "v": 1}], "l": [1]}});
        let errors: Vec<String> = schema
            .validate_list_types(&value)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            errors,
            [
                "map[k][1]: Duplicate value: {\"name\":\"x\"}",
                "map[l][0]: Invalid value: 1: must be an object for an array of list-type map",
                "set[2]: Duplicate value: \"a\"",
            ]
        );
    }
}
