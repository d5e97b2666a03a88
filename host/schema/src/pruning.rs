//! Pruning: fields that the schema does not declare are dropped.

use serde_json::{Map, Value};

use crate::{Schema, field_path};

impl Schema {
    /// Drops unknown fields and returns their paths, sorted.
    pub fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut unknown_fields = Vec::new();
        self.prune_value(value, "", &mut unknown_fields);
        unknown_fields.sort();
        unknown_fields
    }

    fn prune_value(&self, value: &mut Value, path: &str, unknown_fields: &mut Vec<String>) {
        match value {
            Value::Object(fields) => self.prune_fields(fields, path, unknown_fields),
            Value::Array(items) => self.prune_items(items, path, unknown_fields),
            _ => {}
        }
    }

    fn prune_items(&self, items: &mut [Value], path: &str, unknown_fields: &mut Vec<String>) {
        // Items without a schema have no known fields.
        let unknown = Self::default();
        let item_schema = match self.items.as_deref() {
            Some(schema) => schema,
            None if self.preserve_unknown_fields => return,
            None => &unknown,
        };
        for (index, item) in items.iter_mut().enumerate() {
            item_schema.prune_value(item, &format!("{path}[{index}]"), unknown_fields);
        }
    }

    fn prune_fields(&self, fields: &mut Map<String, Value>, path: &str, unknown_fields: &mut Vec<String>) {
        fields.retain(|name, value| {
            if self.embedded_resource && matches!(name.as_str(), "apiVersion" | "kind") {
                return true;
            }
            match self.field(name) {
                Some(schema) => schema.prune_value(value, &field_path(path, name), unknown_fields),
                None if self.preserve_unknown_fields => {}
                None => {
                    unknown_fields.push(field_path(path, name));
                    return false;
                }
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_dropped_and_named() {
        let schema = Schema::parse_root(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "properties": {
                "url": {"type": "string"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "env": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {
                    "type": "object", "properties": {"a": {"type": "string"}},
                }},
            },
        }}}))
        .unwrap();
        let mut value = json!({
            "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "extra": 1,
            "spec": {
                "url": "u", "typo": 1, "free": {"any": {"thing": 1}}, "env": [{"name": "a", "b": 1}],
                "map": {"k": {"a": "", "c": 1}},
            },
        });
        let unknown_fields = schema.prune(&mut value);
        assert_eq!(
            unknown_fields,
            ["extra", "spec.env[0].b", "spec.map.k.c", "spec.typo"]
        );
        assert_eq!(value["spec"]["free"]["any"]["thing"], 1);
        assert_eq!(value["spec"].get("typo"), None);
    }
}
