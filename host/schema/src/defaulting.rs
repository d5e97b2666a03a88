//! Defaulting: missing fields get the defaults of the schema.

use serde_json::{Map, Value};

use crate::Schema;

impl Schema {
    /// Fills in missing fields that have a default.
    ///
    /// A null counts as missing where the schema is not nullable. A missing object without a default stays missing, even
    /// if its fields have defaults: the API server does not create parents.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => self.default_fields(fields),
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.apply_defaults(item));
                }
            }
            _ => {}
        }
    }

    fn default_fields(&self, fields: &mut Map<String, Value>) {
        for (name, schema) in &self.properties {
            let Some(default) = &schema.default else {
                continue;
            };
            let is_missing = match fields.get(name) {
                None => true,
                Some(Value::Null) => !schema.nullable,
                Some(_) => false,
            };
            if is_missing {
                fields.insert(name.clone(), default.clone());
            }
        }
        for (name, value) in fields.iter_mut() {
            if let Some(schema) = self.field(name) {
                schema.apply_defaults(value);
            }
        }
    }
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
}
