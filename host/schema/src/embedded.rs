//! Whole objects in fields (`x-kubernetes-embedded-resource`), which must say what they are.

use serde_json::Value;

use crate::{FieldError, Schema, field_path};

impl Schema {
    /// Everything that is wrong with the type of the objects in fields, and with their metadata: what `validate_metadata`
    /// returns for it and its path.
    pub fn validate_embedded(
        &self,
        value: &Value,
        validate_metadata: &dyn Fn(&Value, &str) -> Vec<FieldError>,
    ) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.collect_embedded(value, "", validate_metadata, &mut errors);
        errors
    }

    /// Changes the metadata of all objects that are embedded in a value.
    pub fn change_embedded_metadata(&self, value: &mut Value, change: &dyn Fn(&mut Value)) {
        if self.embedded_resource
            && let Some(metadata) = value.get_mut("metadata")
        {
            change(metadata);
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(schema) = self.field(name) {
                        schema.change_embedded_metadata(value, change);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items
                        .iter_mut()
                        .for_each(|item| schema.change_embedded_metadata(item, change));
                }
            }
            _ => {}
        }
    }

    /// The first part of the objects in fields that cannot be decoded as their type or metadata, as `FIELD: WHY`.
    pub fn find_undecodable_embedded(&self, value: &Value) -> Option<String> {
        find_undecodable(self, value, "")
    }

    fn collect_embedded(
        &self,
        value: &Value,
        path: &str,
        validate_metadata: &dyn Fn(&Value, &str) -> Vec<FieldError>,
        errors: &mut Vec<FieldError>,
    ) {
        match value {
            Value::Object(fields) => {
                if self.embedded_resource {
                    errors.extend(validate_type(value, path));
                    if let Some(metadata) = fields.get("metadata") {
                        errors.extend(validate_metadata(metadata, &field_path(path, "metadata")));
                    }
                }
                for (name, value) in fields {
                    if let Some(schema) = self.properties.get(name) {
                        schema.collect_embedded(value, &field_path(path, name), validate_metadata, errors);
                    } else if let Some(schema) = self.additional_properties.values() {
                        schema.collect_embedded(value, &format!("{path}[{name}]"), validate_metadata, errors);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter().enumerate() {
                        schema.collect_embedded(item, &format!("{path}[{index}]"), validate_metadata, errors);
                    }
                }
            }
            _ => {}
        }
    }
}

fn find_undecodable(schema: &Schema, value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let of_type = |name: &&str| fields.get(*name).is_some_and(|text| !text.is_string());
            if schema.embedded_resource
                && let Some(name) = ["apiVersion", "kind"].into_iter().find(of_type)
            {
                let field = field_path(path, name);
                return Some(FieldError::invalid(&field, &fields[name], "must be a string").to_string());
            }
            fields.iter().find_map(|(name, value)| {
                let field = field_path(path, name);
                if schema.embedded_resource && name == "metadata" {
                    let mismatch = schema.field(name)?.find_type_mismatch(value);
                    return mismatch.map(|why| format!("{field}: {why}"));
                }
                find_undecodable(schema.field(name)?, value, &field)
            })
        }
        Value::Array(items) => {
            let item_schema = schema.items.as_deref()?;
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| find_undecodable(item_schema, item, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

fn validate_type(object: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for name in ["apiVersion", "kind"] {
        let field = field_path(path, name);
        match object.get(name) {
            None => errors.push(FieldError::required(&field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(
                    &field,
                    &text.as_str().into(),
                    "must not be empty",
                ));
            }
            Some(Value::String(text)) if name == "apiVersion" && text.matches('/').count() > 1 => {
                let rule = format!("unexpected GroupVersion string: {text}");
                errors.push(FieldError::invalid(&field, &text.as_str().into(), rule));
            }
            Some(Value::String(text)) if name == "kind" && !is_kind(text) => {
                let rule = "may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
                errors.push(FieldError::invalid(&field, &text.as_str().into(), rule));
            }
            Some(Value::String(_)) => {}
            Some(other) => errors.push(FieldError::invalid(&field, other, "must be a string")),
        }
    }
    errors
}

fn is_kind(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_in_a_field_must_have_a_type() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"list": {"type": "array", "items": {
            "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
        }}}}))
        .unwrap();
        let value = json!({"list": [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
            {"kind": "A B", "metadata": {"name": "b"}},
        ]});
        let metadata =
            |metadata: &Value, path: &str| vec![FieldError::invalid(path, &metadata["name"], "seen")];
        let fields: Vec<String> = schema
            .validate_embedded(&value, &metadata)
            .into_iter()
            .map(|error| error.field)
            .collect();
        assert_eq!(
            fields,
            [
                "list[0].metadata",
                "list[1].apiVersion",
                "list[1].kind",
                "list[1].metadata"
            ]
        );
    }
}
