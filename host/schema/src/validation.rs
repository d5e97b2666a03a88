//! Validation of a value against a schema, with the error texts of the API server.

use std::{collections::HashSet, fmt};

use serde_json::{Map, Value};

use crate::{FieldError, ListType, Schema, field_path, format::matches_format};

impl Schema {
    /// Everything about a value that violates the schema; empty for a valid value.
    ///
    /// A top-level field `metadata` is skipped: the API server has its own rules for it. CEL rules are evaluated apart,
    /// since they are written for values that already fit the schema.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate_value(self, value, "", &mut errors);
        errors
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Compares types. A number without a fraction is an integer, however it was written.
fn has_type(value: &Value, expected: &str) -> bool {
    let found = type_name(value);
    found == expected
        || (expected == "number" && found == "integer")
        || (expected == "integer" && value.as_f64().is_some_and(|number| number.fract() == 0.0))
}

fn validate_value(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if let Some(expected) = find_expected_type(schema, value) {
        errors.push(FieldError::wrong_type(path, type_name(value), expected));
        return;
    }
    validate_constraints(schema, value, path, errors);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if path.is_empty() && name == "metadata" {
                    continue;
                }
                if let Some(field_schema) = schema.field(name) {
                    validate_value(field_schema, value, &field_path(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    validate_value(item_schema, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}

/// The expected type, if the value has another one.
fn find_expected_type<'a>(schema: &'a Schema, value: &Value) -> Option<&'a str> {
    if schema.int_or_string {
        return (!value.is_string() && !has_type(value, "integer")).then_some("integer,string");
    }
    schema
        .kind
        .as_deref()
        .filter(|expected| !has_type(value, expected))
}

fn validate_constraints(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(supported) = &schema.enum_values
        && !supported.contains(value)
    {
        errors.push(FieldError::unsupported(path, value, supported));
    }
    let mut constraints = Constraints {
        schema,
        value,
        path,
        errors,
    };
    match value {
        Value::String(text) => constraints.validate_string(text),
        Value::Number(number) => constraints.validate_number(number.as_f64().unwrap_or_default()),
        Value::Array(items) => constraints.validate_array(items),
        Value::Object(fields) => constraints.validate_object(fields),
        Value::Null | Value::Bool(_) => {}
    }
    constraints.validate_combinations();
}

/// The constraints of one schema on one value.
struct Constraints<'a> {
    schema: &'a Schema,
    value: &'a Value,
    path: &'a str,
    errors: &'a mut Vec<FieldError>,
}

impl Constraints<'_> {
    fn report_should(&mut self, rule: impl fmt::Display) {
        self.report_invalid(format_args!("should {rule}"));
    }

    fn report_invalid(&mut self, rule: impl fmt::Display) {
        let explanation = format!("{} in body {rule}", self.path);
        self.errors
            .push(FieldError::invalid(self.path, self.value, explanation));
    }

    fn validate_string(&mut self, text: &str) {
        let schema = self.schema;
        let length = text.chars().count();
        if let Some(limit) = schema.max_length.filter(|limit| length > *limit) {
            self.errors.push(FieldError::too_long(self.path, limit));
            return;
        }
        if let Some(limit) = schema.min_length.filter(|limit| length < *limit) {
            self.report_should(format_args!("be at least {limit} chars long"));
        }
        if let Some(pattern) = &schema.pattern
            && !pattern.regex.as_ref().is_some_and(|regex| regex.is_match(text))
        {
            self.report_should(format_args!("match '{}'", pattern.source));
        }
        if let Some(format) = schema.format.as_deref()
            && !matches_format(format, text)
        {
            let value = self.value;
            self.report_invalid(format_args!("must be of type {format}: {value}"));
        }
    }

    fn validate_number(&mut self, number: f64) {
        let schema = self.schema;
        if let Some(bound) = schema.minimum {
            if schema.exclusive_minimum && number <= bound {
                self.report_should(format_args!("be greater than {bound}"));
            } else if number < bound {
                self.report_should(format_args!("be greater than or equal to {bound}"));
            }
        }
        if let Some(bound) = schema.maximum {
            if schema.exclusive_maximum && number >= bound {
                self.report_should(format_args!("be less than {bound}"));
            } else if number > bound {
                self.report_should(format_args!("be less than or equal to {bound}"));
            }
        }
        if let Some(factor) = schema.multiple_of.filter(|factor| *factor > 0.0)
            && (number / factor).fract() != 0.0
        {
            self.report_should(format_args!("be a multiple of {factor}"));
        }
    }

    fn validate_array(&mut self, items: &[Value]) {
        if let Some(limit) = self.schema.min_items.filter(|limit| items.len() < *limit) {
            self.report_should(format_args!("have at least {limit} items"));
        }
        if let Some(limit) = self.schema.max_items.filter(|limit| items.len() > *limit) {
            self.errors
                .push(FieldError::too_many(self.path, items.len(), limit));
        }
        self.validate_uniqueness(items);
    }

    fn validate_uniqueness(&mut self, items: &[Value]) {
        let list_type = self.schema.list_type();
        if list_type == ListType::Atomic {
            return;
        }
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            if seen.insert(self.schema.item_path_element(item)) {
                continue;
            }
            // Of a keyed item the API server shows the keys only.
            let shown = if list_type == ListType::Map {
                let keys = self.schema.list_map_keys.iter();
                keys.filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
                    .collect()
            } else {
                item.clone()
            };
            let field = format!("{}[{index}]", self.path);
            self.errors.push(FieldError::duplicate(&field, &shown));
        }
    }

    fn validate_object(&mut self, fields: &Map<String, Value>) {
        if let Some(limit) = self.schema.min_properties.filter(|limit| fields.len() < *limit) {
            self.report_should(format_args!("have at least {limit} properties"));
        }
        if let Some(limit) = self.schema.max_properties.filter(|limit| fields.len() > *limit) {
            self.errors
                .push(FieldError::too_many(self.path, fields.len(), limit));
        }
        for name in &self.schema.required {
            if !fields.contains_key(name) {
                let field = field_path(self.path, name);
                self.errors.push(FieldError::required(&field, ""));
            }
        }
    }

    fn validate_combinations(&mut self) {
        let (schema, value, path) = (self.schema, self.value, self.path);
        let validate_part = |part: &Schema| {
            let mut errors = Vec::new();
            validate_value(part, value, path, &mut errors);
            errors
        };
        let is_valid = |part: &Schema| validate_part(part).is_empty();
        for part in &schema.all_of {
            self.errors.extend(validate_part(part));
        }
        if !schema.any_of.is_empty() && !schema.any_of.iter().any(is_valid) {
            self.report_invalid("must validate at least one schema (anyOf)");
        }
        if !schema.one_of.is_empty() {
            match schema.one_of.iter().filter(|part| is_valid(part)).count() {
                0 => self.report_invalid("must validate one and only one schema (oneOf). Found none valid"),
                1 => {}
                _ => self.report_invalid(
                    "must validate one and only one schema (oneOf). Found more than one valid",
                ),
            }
        }
        if schema.not.as_deref().is_some_and(is_valid) {
            self.report_invalid("must not validate the schema (not)");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn validate(declared: &Value, value: Value) -> Vec<String> {
        let errors = Schema::parse(declared).unwrap().validate(&value);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn violated_rules_are_named_as_by_kubernetes() {
        let declared = json!({"type": "object", "properties": {"spec": {
            "type": "object", "required": ["url"],
            "properties": {
                "url": {"type": "string", "pattern": "^https?://"},
                "n": {"type": "integer", "minimum": 1},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "port": {"x-kubernetes-int-or-string": true},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            },
        }}});
        assert_eq!(
            validate(&declared, json!({"spec": {}})),
            ["spec.url: Required value"]
        );
        assert_eq!(
            validate(
                &declared,
                json!({"spec": {"url": "x", "n": 0, "mode": "c", "port": true, "set": ["a", "a"]}})
            ),
            [
                "spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\"",
                "spec.n: Invalid value: 0: spec.n in body should be greater than or equal to 1",
                "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
                "spec.set[1]: Duplicate value: \"a\"",
                "spec.url: Invalid value: \"x\": spec.url in body should match '^https?://'",
            ]
        );
        assert_eq!(
            validate(&declared, json!({"spec": {"url": 3}})),
            ["spec.url: Invalid value: \"integer\": spec.url in body must be of type string: \"integer\""]
        );
        assert_eq!(
            validate(
                &declared,
                json!({"spec": {"url": "http://x", "n": 1.0, "port": "http"}})
            ),
            [""; 0]
        );
    }

    #[test]
    fn combined_schemas_must_agree() {
        let port = json!({"type": "object", "properties": {"port": {}}, "required": ["port"]});
        let socket = json!({"type": "object", "properties": {"socket": {}}, "required": ["socket"]});
        let declared = json!({"type": "object", "oneOf": [port, socket]});
        let invalid = "Invalid value: {}:  in body must validate one and only one schema (oneOf)";
        assert_eq!(
            validate(&declared, json!({})),
            [format!(": {invalid}. Found none valid")]
        );
        assert_eq!(validate(&declared, json!({"port": 1})), [""; 0]);
        assert_eq!(validate(&declared, json!({"port": 1, "socket": 2})).len(), 1);
        let declared = json!({"type": "object", "not": port});
        assert_eq!(validate(&declared, json!({"port": 1})).len(), 1);
        assert_eq!(validate(&declared, json!({"socket": 1})), [""; 0]);
    }
}
