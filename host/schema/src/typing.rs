//! Types of a value, as a server that decodes it into typed structures checks them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use std::collections::HashSet;

use crate::{ListType, Schema, field_path};

/// Format of times with microseconds, which OpenAPI does not tell apart from others.
pub const MICRO_TIME: &str = "micro-time";

impl Schema {
    /// The first part of a value that cannot be decoded, as `FIELD: WHY`. Nulls count as absent, and constraints beside the
    /// type and the range of its format are not checked.
    pub fn find_type_mismatch(&self, value: &Value) -> Option<String> {
        find_mismatch(self, value, "")
    }

    /// Returns true for a quantity: a number, or a text with a suffix.
    pub fn is_quantity(&self) -> bool {
        let has = |kind: &str| self.one_of.iter().any(|part| part.kind.as_deref() == Some(kind));
        self.kind.is_none() && has("string") && has("number")
    }

    /// Changes each part of a value that is declared, with its schema: a part before those below it.
    pub fn change_parts(&self, value: &mut Value, change: &dyn Fn(&Self, &mut Value)) {
        change(self, value);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(field) = self.field(name) {
                        field.change_parts(value, change);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(item_schema) = self.items.as_deref() {
                    items
                        .iter_mut()
                        .for_each(|item| item_schema.change_parts(item, change));
                }
            }
            _ => {}
        }
    }

    /// Cuts integers off to their formats, as Go converts numbers.
    pub fn cut_integers(&self, value: &mut Value) {
        self.change_parts(value, &|schema, value| {
            let is_short =
                schema.kind.as_deref() == Some("integer") && schema.format.as_deref() == Some("int32");
            if let Value::Number(number) = value
                && is_short
            {
                let low = number.as_i64().map(|whole| whole as i32);
                // Of a number without a fraction that no integer holds nothing is left.
                let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
                if let Some(low) = low.or(whole.then_some(0)) {
                    *value = low.into();
                }
            }
        });
    }

    /// Encodes lists of bytes, which Go decodes as bytes too, in base64.
    pub fn encode_byte_lists(&self, value: &mut Value) {
        self.change_parts(value, &|schema, value| {
            if let Value::Array(items) = value
                && schema.format.as_deref() == Some("byte")
            {
                // As into any list of numbers, a null is decoded as zero.
                let bytes: Vec<u8> = items
                    .iter()
                    .map(|item| item.as_u64().unwrap_or_default() as u8)
                    .collect();
                *value = STANDARD.encode(bytes).into();
            }
        });
    }

    /// The first part of a value that server-side apply cannot merge by the schema, as `FIELD: WHY`: one of another shape, or an
    /// item that occurs twice or lacks its keys.
    pub fn find_untyped(&self, value: &Value) -> Option<String> {
        find_untyped_part(self, value, "", Duplicates::Refused)
    }

    /// The first field of a value that the schema does not declare, which server-side apply refuses. What is below a schema of any
    /// fields is not looked at.
    pub fn find_undeclared(&self, value: &Value) -> Option<String> {
        find_undeclared_field(self, value, "", false)
    }

    /// As [`Schema::find_untyped`], for an object that is stored or updated, in which the items of a keyed list may repeat.
    pub fn find_untyped_update(&self, value: &Value) -> Option<String> {
        find_untyped_part(self, value, "", Duplicates::Allowed)
    }
}

/// Items of a keyed list with the same key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duplicates {
    Allowed,
    Refused,
}

fn find_untyped_part(schema: &Schema, value: &Value, path: &str, duplicates: Duplicates) -> Option<String> {
    let expected = |expected: &str| Some(format!("{path}: expected {expected}, got {value}"));
    if value.is_null() {
        return None;
    }
    match schema.kind.as_deref().filter(|_| !schema.int_or_string) {
        // Of the formats only `byte` says more than that it is no list and no map.
        Some("string") if !matches!(schema.format.as_deref(), None | Some("" | "byte")) => {
            let is_scalar = !value.is_array() && !value.is_object();
            if is_scalar { None } else { expected("scalar") }
        }
        Some("string") if !value.is_string() => expected("string"),
        Some("integer" | "number") if !value.is_number() => expected("numeric (int or float)"),
        Some("boolean") if !value.is_boolean() => expected("boolean"),
        Some("array") => match value.as_array() {
            Some(items) => find_untyped_item(schema, items, path, duplicates),
            None => expected("list"),
        },
        Some("object") => match value.as_object() {
            Some(fields) => fields.iter().find_map(|(name, value)| {
                let is_type = schema.embedded_resource && matches!(name.as_str(), "apiVersion" | "kind");
                if is_type && !value.is_string() && !value.is_null() {
                    return Some(format!(
                        "{}: expected string, got {value}",
                        field_path(path, name)
                    ));
                }
                find_untyped_part(schema.field(name)?, value, &field_path(path, name), duplicates)
            }),
            None => expected("map"),
        },
        None if schema.is_quantity() && (value.is_array() || value.is_object()) => expected("any scalar"),
        _ => None,
    }
}

fn find_undeclared_field(schema: &Schema, value: &Value, path: &str, is_preserved: bool) -> Option<String> {
    if schema.preserve_unknown_fields && schema.embedded_resource {
        // Only the metadata of an embedded object has a type, to which nothing around it applies.
        let metadata = schema.field("metadata")?;
        return find_undeclared_field(metadata, &value["metadata"], &field_path(path, "metadata"), false);
    }
    if schema.int_or_string {
        return None;
    }
    // What is below a field that keeps unknown ones does so, too.
    let is_preserved = is_preserved || schema.preserve_unknown_fields;
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let path = field_path(path, name);
            match schema.field(name) {
                Some(field) => find_undeclared_field(field, value, &path, is_preserved),
                None => (!is_preserved).then_some(path),
            }
        }),
        Value::Array(items) => {
            let item_schema = schema.items.as_deref()?;
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| {
                find_undeclared_field(item_schema, item, &format!("{path}[{index}]"), is_preserved)
            })
        }
        _ => None,
    }
}

fn find_untyped_item(schema: &Schema, items: &[Value], path: &str, duplicates: Duplicates) -> Option<String> {
    let mut seen = HashSet::new();
    items.iter().enumerate().find_map(|(index, item)| {
        let field = format!("{path}[{index}]");
        let list_type = schema.list_type();
        if list_type == ListType::Map {
            let has_default = |key: &str| {
                let node = schema.items.as_deref().and_then(|items| items.properties.get(key));
                node.is_some_and(|node| node.default_value().is_some())
            };
            let mut keys = schema.list_map_keys.iter();
            let has_keys = keys.any(|key| item.get(key).is_some() || has_default(key));
            if !item.is_object() || !has_keys {
                return Some(format!(
                    "{field}: associative list with keys has an element that omits all of them"
                ));
            }
        }
        if list_type == ListType::Set && item.is_null() {
            return Some(format!(
                "{path}: element {index}: associative list without keys has an element that's an explicit null"
            ));
        }
        if duplicates == Duplicates::Refused
            && list_type != ListType::Atomic
            && !seen.insert(schema.item_path_element(item)) {
            return Some(format!(
                "{path}: duplicate entries for key {}",
                schema.item_path_element(item)
            ));
        }
        find_untyped_part(schema.items.as_deref()?, item, &field, duplicates)
    })
}

fn find_mismatch(schema: &Schema, value: &Value, path: &str) -> Option<String> {
    let mismatch = |expected: &str| Some(format!("{path}: cannot decode {value} as {expected}"));
    if value.is_null() {
        return None;
    }
    if !schema.one_of.is_empty() && schema.kind.is_none() {
        let is_small = schema.format.as_deref() != Some("int-or-string")
            || value.is_string()
            || is_integer(value, Some("int32"));
        let fits = |part: &Schema| is_small && find_mismatch(part, value, path).is_none();
        return if schema.one_of.iter().any(fits) {
            None
        } else {
            mismatch("one of several types")
        };
    }
    if schema.int_or_string {
        let is_valid = value.is_string() || is_integer(value, Some("int32"));
        return if is_valid { None } else { mismatch("int or string") };
    }
    match schema.kind.as_deref() {
        Some("string") => {
            if schema.format.as_deref() == Some("byte")
                && let Some(items) = value.as_array()
            {
                let is_byte = |item: &Value| item.is_null() || item.as_u64().is_some_and(|byte| byte < 256);
                return if items.iter().all(is_byte) {
                    None
                } else {
                    mismatch("byte")
                };
            }
            let Some(text) = value.as_str() else {
                return mismatch("string");
            };
            let is_valid = match schema.format.as_deref() {
                Some("date-time") => text.parse::<jiff::Timestamp>().is_ok(),
                Some(MICRO_TIME) => text.parse::<jiff::Timestamp>().is_ok() && has_microseconds(text),
                Some("byte") => STANDARD.decode(text).is_ok(),
                _ => true,
            };
            if is_valid {
                None
            } else {
                mismatch(schema.format.as_deref().unwrap_or("string"))
            }
        }
        Some("integer") => {
            let format = schema.format.as_deref();
            if is_integer(value, format) {
                None
            } else {
                mismatch(format.unwrap_or("integer"))
            }
        }
        Some("number") if !value.is_number() => mismatch("number"),
        Some("boolean") if !value.is_boolean() => mismatch("boolean"),
        Some("array") => {
            let Some(items) = value.as_array() else {
                return mismatch("array");
            };
            let item_schema = schema.items.as_deref()?;
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| find_mismatch(item_schema, item, &format!("{path}[{index}]")))
        }
        Some("object") => {
            let Some(fields) = value.as_object() else {
                return mismatch("object");
            };
            fields
                .iter()
                .find_map(|(name, value)| find_mismatch(schema.field(name)?, value, &field_path(path, name)))
        }
        _ => None,
    }
}

/// Returns true for a time with six digits of its second.
fn has_microseconds(text: &str) -> bool {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    fraction.bytes().take_while(u8::is_ascii_digit).count() == 6
}

fn is_integer(value: &Value, format: Option<&str>) -> bool {
    match (format, value.as_i64()) {
        (Some("int32"), Some(number)) => i32::try_from(number).is_ok(),
        (_, number) => number.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_of_bytes_is_encoded_in_base64() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "data": {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}},
        }}))
        .unwrap();
        let mut object = json!({"data": {"empty": [], "list": [104, 105, null], "text": "aGk="}});
        assert_eq!(schema.find_type_mismatch(&object), None);
        schema.encode_byte_lists(&mut object);
        assert_eq!(
            object,
            json!({"data": {"empty": "", "list": "aGkA", "text": "aGk="}})
        );
        for wrong in [json!([256]), json!(["a"]), json!({}), json!(1)] {
            let found = schema.find_type_mismatch(&json!({"data": {"a": wrong}})).unwrap();
            assert!(found.starts_with("data.a: "), "{found}");
        }
    }

    #[test]
    fn first_part_of_another_type_is_named() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "replicas": {"type": "integer", "format": "int32"},
            "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        }}))
        .unwrap();
        let valid = json!({"replicas": null, "quantity": 1, "labels": {"a": "b"}, "list": [{"name": "a", "other": 1}, null]});
        assert_eq!(schema.find_type_mismatch(&valid), None);
        for (value, field) in [
            (json!({"replicas": 3_000_000_000_i64}), "replicas: "),
            (json!({"replicas": 1.5}), "replicas: "),
            (json!({"quantity": true}), "quantity: "),
            (json!({"labels": {"a": 1}}), "labels.a: "),
            (json!({"list": [{}, {"name": 7}]}), "list[1].name: "),
        ] {
            let found = schema.find_type_mismatch(&value).unwrap();
            assert!(found.starts_with(field), "{found}");
        }
    }
}
