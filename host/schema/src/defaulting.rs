//! Defaulting: nulls that the schema does not allow are dropped, and missing fields get its defaults.

use serde_json::{Map, Value};

use crate::{Schema, SchemaNode};

impl Schema {
    /// Drops the nulls of fields and map keys that are neither nullable nor have a default, and fills in missing fields that
    /// have one. A null counts as missing where the schema is not nullable.
    ///
    /// A missing object without a default stays missing, even if its fields have defaults: the API server does not create
    /// parents. Items of lists stay, also as nulls.
    pub fn apply_defaults(&self, value: &mut Value) {
        complete(self, value, true);
    }

    /// As [`Schema::apply_defaults`], but nulls without a default stay.
    pub fn fill_defaults(&self, value: &mut Value) {
        complete(self, value, false);
    }
}

fn complete(schema: &Schema, value: &mut Value, drops_nulls: bool) {
    match value {
        Value::Object(fields) => {
            if drops_nulls {
                drop_nulls(schema, fields);
            }
            complete_fields(schema, fields, drops_nulls);
        }
        Value::Array(items) => {
            if let Some(node) = &schema.items {
                for item in items {
                    complete_node(node, item, drops_nulls);
                }
            }
        }
        _ => {}
    }
}

fn drop_nulls(schema: &Schema, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        let node = schema.node(name).filter(|_| value.is_null());
        node.is_none_or(|node| node.nullable || node.default_value().is_some())
    });
}

fn complete_fields(schema: &Schema, fields: &mut Map<String, Value>, drops_nulls: bool) {
    for (name, node) in &schema.properties {
        if let Some(default) = node.default_value()
            && !fields.contains_key(name)
        {
            fields.insert(name.clone(), default.clone());
        }
    }
    for (name, value) in fields.iter_mut() {
        if let Some(node) = schema.node(name) {
            complete_node(node, value, drops_nulls);
        }
    }
}

/// Replaces a null that is not allowed by the default, and completes what is below.
fn complete_node(node: &SchemaNode, value: &mut Value, drops_nulls: bool) {
    if let Some(default) = node.default_value().filter(|_| value.is_null() && !node.nullable) {
        *value = default.clone();
    }
    complete(node, value, drops_nulls);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_reach_list_items_without_creating_parents() {
        let schema = Schema::parse_root(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer", "default": 2},
                "env": {"type": "array", "items": {"type": "object", "properties": {
                    "name": {"type": "string"}, "kind": {"type": "string", "default": "plain"},
                }}},
            },
        }}}))
        .unwrap();
        let mut value = json!({"spec": {"env": [{"name": "a"}], "replicas": null}});
        schema.apply_defaults(&mut value);
        assert_eq!(
            value,
            json!({"spec": {"env": [{"name": "a", "kind": "plain"}], "replicas": 2}})
        );
        let mut empty = json!({});
        schema.apply_defaults(&mut empty);
        assert_eq!(empty, json!({}));
    }
    #[test]
    fn null_is_kept_only_where_the_schema_allows_it() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "plain": {"type": "string"},
            "nullable": {"type": "string", "nullable": true},
            "defaulted": {"type": "string", "default": "x"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "items": {"type": "array", "items": {"type": "string"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}))
        .unwrap();
        let mut value = json!({
            "plain": null, "nullable": null, "defaulted": null, "labels": {"a": null, "b": "c"}, "items": [null],
            "free": {"a": null},
        });
        schema.apply_defaults(&mut value);
        assert_eq!(
            value,
            json!({"nullable": null, "defaulted": "x", "labels": {"b": "c"}, "items": [null], "free": {"a": null}})
        );
    }
}
