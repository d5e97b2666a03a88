//! Validation of a value against a schema, with the error texts of the API server.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::{
    AdditionalProperties, FieldError, ListType, ROOT_PATH, Schema, field_path, format::matches_format,
};

/// Largest integer that a floating-point number holds exactly: a larger one without a fraction does not count as an integer.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Numbers of this size and above do not fit 64 bits.
const MAX_INTEGER: f64 = 9_223_372_036_854_775_807.0;

impl Schema {
    /// Everything about a value that violates the schema; empty for a valid value.
    ///
    /// A top-level field `metadata` is skipped: the API server has its own rules for it. CEL rules are evaluated apart,
    /// since they are written for values that already fit the schema.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        let mut errors = self.validate_change(value, None);
        errors.extend(self.validate_list_types(value));
        errors
    }

    /// As [`Schema::validate`], but without what an unchanged part violates, as a schema may have become stricter since that
    /// was written (ratcheting), and without the lists of [`Schema::validate_list_types`]. Items of lists are compared with
    /// those of the same keys.
    pub fn validate_change(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.validate_at(value, old, "")
    }

    /// As [`Schema::validate_change`], for a value at a path.
    pub fn validate_at(&self, value: &Value, old: Option<&Value>, path: &str) -> Vec<FieldError> {
        let mut report = Report::new(path);
        validate_value(self, value, old, path, &mut report);
        report.errors
    }
}

/// The errors of a validation. Those that concern no single field are reported at the root, as by the API server.
struct Report<'a> {
    root: &'a str,
    errors: Vec<FieldError>,
}

impl<'a> Report<'a> {
    fn new(path: &'a str) -> Self {
        Self {
            // How the API server prints the path of a whole object.
            root: if path.is_empty() { ROOT_PATH } else { path },
            errors: Vec::new(),
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Compares types. A number without a fraction is an integer, however it was written.
fn has_type(value: &Value, expected: &str) -> bool {
    let found = type_name(value);
    let is_whole = |number: f64| number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER;
    found == expected
        || (expected == "number" && found == "integer")
        || (expected == "integer" && found == "number" && value.as_f64().is_some_and(is_whole))
}

fn validate_value(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, report: &mut Report<'_>) {
    if old == Some(value) {
        return;
    }
    let is_null = value.is_null();
    if let Some((found, expected)) = find_wrong_type(schema, value).filter(|_| !(is_null && schema.nullable))
    {
        report.errors.push(FieldError::wrong_type(path, found, expected));
    }
    if let Some(supported) = &schema.enum_values
        && !supported.is_empty()
        && !supported.iter().any(|one| is_enum_value(value, one))
    {
        report
            .errors
            .push(FieldError::unsupported(path, value, supported));
    }
    if is_null {
        return;
    }
    let mut constraints = Constraints {
        schema,
        value,
        old,
        path,
        report,
    };
    constraints.validate_combinations();
    match value {
        Value::String(text) => constraints.validate_string(text),
        Value::Number(number) => constraints.validate_number(number),
        Value::Array(items) => constraints.validate_array(items),
        Value::Object(fields) => constraints.validate_object(fields),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Divides integers as such: as floating-point numbers, the largest are multiples of anything.
fn is_multiple(number: &serde_json::Number, factor: f64) -> bool {
    match number.as_i64() {
        Some(number) if factor.fract() == 0.0 => number % factor as i64 == 0,
        _ => {
            let quotient = number.as_f64().unwrap_or_default() / factor;
            quotient.fract() == 0.0 && quotient.abs() <= MAX_EXACT_INTEGER
        }
    }
}

/// Compares a value with one of an enumeration, as which type it is compared: of a fraction, the integer part.
fn is_enum_value(value: &Value, supported: &Value) -> bool {
    let is_fraction = value.is_f64() && supported.is_i64();
    if is_fraction {
        return value.as_f64().map(|number| number as i64) == supported.as_i64();
    }
    value == supported
}

/// The type of a value and the expected one, if they differ. Of a schema without a type, the format is compared instead.
fn find_wrong_type<'a>(schema: &'a Schema, value: &Value) -> Option<(&'static str, &'a str)> {
    let found = type_name(value);
    if schema.int_or_string {
        let fits = value.is_string() || has_type(value, "integer");
        return (!fits).then_some((found, "integer,string"));
    }
    // The API server leaves texts and lists to a format, if there is one.
    let kind = schema.kind.as_deref().filter(|kind| !kind.is_empty());
    let format = schema.format.as_deref().filter(|format| !format.is_empty());
    if format.is_some()
        && !matches!(kind, Some("integer" | "number"))
        && (value.is_array() || value.is_string())
    {
        return None;
    }
    match (kind, format) {
        (Some(expected), _) => (!has_type(value, expected)).then_some((found, expected)),
        (None, Some(format)) if !value.is_null() => {
            let found = number_format(value);
            (found != format).then_some((found, format))
        }
        (None, _) => None,
    }
}

/// The format that the API server takes a value for: none but for numbers.
fn number_format(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        _ => "",
    }
}

/// The old items of a keyed list, by their keys. Items of other lists have no old ones.
pub(crate) struct OldItems<'a> {
    list: &'a Schema,
    by_key: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    pub(crate) fn new(list: &'a Schema, old: Option<&'a Value>) -> Self {
        let is_keyed = list.list_type() == ListType::Map;
        let old = old.and_then(Value::as_array).filter(|_| is_keyed);
        // The first one of a key is taken.
        let items = old.into_iter().flatten().rev();
        Self {
            list,
            by_key: items.map(|item| (list.item_path_element(item), item)).collect(),
        }
    }

    /// The old item of the same key.
    pub(crate) fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&self.list.item_path_element(item)).copied()
    }
}

/// The constraints of one schema on one value.
struct Constraints<'a, 'r> {
    schema: &'a Schema,
    value: &'a Value,
    old: Option<&'a Value>,
    path: &'a str,
    report: &'a mut Report<'r>,
}

impl Constraints<'_, '_> {
    fn report_should(&mut self, rule: impl fmt::Display) {
        self.report_invalid(format_args!("should {rule}"));
    }

    fn report_invalid(&mut self, rule: impl fmt::Display) {
        let explanation = format!("{} in body {rule}", self.path);
        self.report
            .errors
            .push(FieldError::invalid(self.path, self.value, explanation));
    }

    /// Reports an error that concerns the object as a whole.
    fn report_root(&mut self, explanation: impl fmt::Display) {
        let error = FieldError::invalid(self.report.root, &"".into(), explanation);
        self.report.errors.push(error);
    }

    /// Of length and pattern, the first that is violated is reported.
    fn validate_string(&mut self, text: &str) {
        let schema = self.schema;
        let length = text.chars().count();
        if let Some(limit) = schema.max_length.filter(|limit| length as i64 > *limit) {
            self.report.errors.push(FieldError::too_long(self.path, limit));
        } else if let Some(limit) = schema.min_length.filter(|limit| (length as i64) < *limit) {
            self.report_should(format_args!("be at least {limit} chars long"));
        } else if let Some(pattern) = &schema.pattern
            && !pattern.regex.as_ref().is_some_and(|regex| regex.is_match(text))
        {
            self.report_should(format_args!("match '{}'", pattern.source));
        }
        if let Some(format) = schema.format.as_deref()
            && !matches_format(format, text)
        {
            let value = self.value;
            let explanation = format!("{} in body must be of type {format}: {value}", self.path);
            self.report.errors.push(FieldError {
                reason: "FieldValueTypeInvalid",
                ..FieldError::invalid(self.path, value, explanation)
            });
        }
    }

    fn validate_number(&mut self, number: &serde_json::Number) {
        let schema = self.schema;
        let value = number.as_f64().unwrap_or_default();
        self.validate_range(number);
        if let Some(factor) = schema.multiple_of.filter(|factor| *factor > 0.0)
            && !is_multiple(number, factor)
        {
            self.report_should(format_args!("be a multiple of {factor}"));
        }
        // An integer is compared with the integer part of a bound.
        let bound_of = |bound: f64| {
            if number.is_f64() {
                bound
            } else {
                bound.trunc() + 0.0
            }
        };
        if let Some(bound) = schema.maximum.map(bound_of) {
            if schema.exclusive_maximum && value >= bound {
                self.report_should(format_args!("be less than {bound}"));
            } else if value > bound {
                self.report_should(format_args!("be less than or equal to {bound}"));
            }
        }
        if let Some(bound) = schema.minimum.map(bound_of) {
            if schema.exclusive_minimum && value <= bound {
                self.report_should(format_args!("be greater than {bound}"));
            } else if value < bound {
                self.report_should(format_args!("be greater than or equal to {bound}"));
            }
        }
    }

    /// Integers must fit their format, which is `int64` by default.
    fn validate_range(&mut self, number: &serde_json::Number) {
        if self.schema.kind.as_deref() != Some("integer") {
            return;
        }
        let format = self.schema.format.as_deref();
        let fits = match (format, number.as_i64()) {
            (Some("int32"), Some(number)) => i32::try_from(number).is_ok(),
            (Some("uint32"), Some(number)) => u32::try_from(number).is_ok(),
            (Some("uint64"), Some(number)) => number >= 0,
            (_, Some(_)) => true,
            (_, None) => number
                .as_f64()
                .is_some_and(|number| number.fract() == 0.0 && number.abs() < MAX_INTEGER),
        };
        if !fits {
            let format = format.map_or("(default format)".to_owned(), |format| {
                format!("with format {format}")
            });
            let explanation = format!("Checked value must be of type integer {format} in {}", self.path);
            self.report_root(explanation);
        }
    }

    fn validate_array(&mut self, items: &[Value]) {
        if let Some(item_schema) = self.schema.items.as_deref() {
            let old_items = OldItems::new(self.schema, self.old);
            for (index, item) in items.iter().enumerate() {
                validate_value(
                    item_schema,
                    item,
                    old_items.find(item),
                    &format!("{}[{index}]", self.path),
                    self.report,
                );
            }
        }
        let length = items.len() as i64;
        if let Some(limit) = self.schema.min_items.filter(|limit| length < *limit) {
            self.report_should(format_args!("have at least {limit} items"));
        }
        if let Some(limit) = self.schema.max_items.filter(|limit| length > *limit) {
            self.report
                .errors
                .push(FieldError::too_many(self.path, items.len(), limit));
        }
    }

    fn validate_object(&mut self, fields: &Map<String, Value>) {
        let count = fields.len() as i64;
        if let Some(limit) = self.schema.min_properties.filter(|limit| count < *limit) {
            self.report_should(format_args!("have at least {limit} properties"));
        }
        if let Some(limit) = self.schema.max_properties.filter(|limit| count > *limit) {
            self.report
                .errors
                .push(FieldError::too_many(self.path, fields.len(), limit));
        }
        for (name, value) in fields {
            if self.path.is_empty() && name == "metadata" {
                continue;
            }
            if let Some(field_schema) = self.schema.field(name) {
                let old = self.old.and_then(|old| old.get(name));
                validate_value(
                    field_schema,
                    value,
                    old,
                    &field_path(self.path, name),
                    self.report,
                );
            }
        }
        if matches!(self.schema.additional_properties, AdditionalProperties::Forbidden) {
            for name in fields
                .keys()
                .filter(|name| !self.schema.properties.contains_key(*name))
            {
                let field = field_path(self.path, name);
                let explanation = format!("{field} in body is a forbidden property");
                self.report
                    .errors
                    .push(FieldError::invalid(self.path, &name.as_str().into(), explanation));
            }
        }
        for name in &self.schema.required {
            if !fields.contains_key(name) {
                let field = field_path(self.path, name);
                self.report.errors.push(FieldError::required(&field, ""));
            }
        }
    }

    fn validate_combinations(&mut self) {
        let (schema, value, old, path) = (self.schema, self.value, self.old, self.path);
        let root = self.report.root;
        let validate_part = |part: &Schema| {
            let mut report = Report {
                root,
                errors: Vec::new(),
            };
            validate_value(part, value, old, path, &mut report);
            report.errors
        };
        // Of the alternatives that fail, the one that fails least explains the error.
        let best_failure = |parts: &[Schema]| {
            let failures = parts.iter().map(validate_part);
            failures.min_by_key(Vec::len).unwrap_or_default()
        };
        let is_valid = |part: &Schema| validate_part(part).is_empty();
        let shown = format!("\"{path}\" must");
        if !schema.any_of.is_empty() && !schema.any_of.iter().any(is_valid) {
            self.report_root(format_args!("{shown} validate at least one schema (anyOf)"));
            self.report.errors.extend(best_failure(&schema.any_of));
        }
        if !schema.one_of.is_empty() {
            let rule = format!("{shown} validate one and only one schema (oneOf).");
            match schema.one_of.iter().filter(|part| is_valid(part)).count() {
                0 => {
                    self.report_root(format_args!("{rule} Found none valid"));
                    self.report.errors.extend(best_failure(&schema.one_of));
                }
                1 => {}
                count => self.report_root(format_args!("{rule} Found {count} valid alternatives")),
            }
        }
        let failed: Vec<FieldError> = schema.all_of.iter().flat_map(validate_part).collect();
        if !failed.is_empty() {
            self.report_root(format_args!("{shown} validate all the schemas (allOf)"));
            self.report.errors.extend(failed);
        }
        if schema.not.as_deref().is_some_and(is_valid) {
            self.report_root(format_args!("{shown} not validate the schema (not)"));
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
                "spec.url: Invalid value: \"x\": spec.url in body should match '^https?://'",
                "spec.set[1]: Duplicate value: \"a\"",
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
    fn undeclared_field_is_refused_where_additional_properties_are_false() {
        let declared = json!({"type": "object", "properties": {"a": {
            "type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": false,
        }}});
        assert_eq!(validate(&declared, json!({"a": {"b": "x"}})), [""; 0]);
        assert_eq!(
            validate(&declared, json!({"a": {"b": "x", "c": 1}})),
            ["a: Invalid value: \"c\": a.c in body is a forbidden property"]
        );
    }

    #[test]
    fn format_without_a_type_is_compared_with_that_of_the_value() {
        let declared = json!({"type": "object", "properties": {"a": {
            "format": "int64", "x-kubernetes-preserve-unknown-fields": true,
        }}});
        for fitting in [json!(1), json!("text"), json!([1]), json!(null)] {
            assert_eq!(validate(&declared, json!({"a": fitting})), [""; 0]);
        }
        for (other, found) in [(json!({}), ""), (json!(true), ""), (json!(1.5), "float64")] {
            assert_eq!(
                validate(&declared, json!({"a": other})),
                [format!(
                    "a: Invalid value: \"{found}\": a in body must be of type int64: \"{found}\""
                )]
            );
        }
    }

    #[test]
    fn combined_schemas_must_agree() {
        let port = json!({"type": "object", "properties": {"port": {}}, "required": ["port"]});
        let socket = json!({"type": "object", "properties": {"socket": {}}, "required": ["socket"]});
        let declared = json!({"type": "object", "oneOf": [port, socket]});
        assert_eq!(
            validate(&declared, json!({})),
            [
                "<nil>: Invalid value: \"\": \"\" must validate one and only one schema (oneOf). Found none valid",
                "port: Required value",
            ]
        );
        assert_eq!(validate(&declared, json!({"port": 1})), [""; 0]);
        assert_eq!(validate(&declared, json!({"port": 1, "socket": 2})).len(), 1);
        let declared = json!({"type": "object", "not": port});
        assert_eq!(validate(&declared, json!({"port": 1})).len(), 1);
        assert_eq!(validate(&declared, json!({"socket": 1})), [""; 0]);
    }
    #[test]
    fn unchanged_part_that_violates_a_stricter_schema_is_accepted() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "url": {"type": "string", "pattern": "^https"},
            "note": {"type": "string"},
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer", "maximum": 3}},
            }},
        }}))
        .unwrap();
        let old = json!({"url": "ftp://a", "list": [{"name": "a", "size": 5}]});
        let valid = json!({"url": "ftp://a", "note": "b", "list": [{"name": "b", "size": 1}, {"name": "a", "size": 5}]});
        assert_eq!(schema.validate_change(&valid, Some(&old)), []);
        let changed = json!({"url": "ftp://b", "list": [{"name": "a", "size": 6}, {"name": "b", "size": 5}]});
        let fields: Vec<String> = schema
            .validate_change(&changed, Some(&old))
            .into_iter()
            .map(|error| error.field)
            .collect();
        assert_eq!(fields, ["list[0].size", "list[1].size", "url"]);
    }

    #[test]
    fn integer_outside_of_its_format_is_refused() {
        let declared = json!({"type": "object", "properties": {
            "small": {"type": "integer", "format": "int32"}, "large": {"type": "integer"},
        }});
        assert_eq!(
            validate(
                &declared,
                json!({"small": 3_000_000_000_i64, "large": 3_000_000_000_i64})
            ),
            ["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in small"]
        );
        assert_eq!(
            validate(&declared, json!({"large": 9_223_372_036_854_775_808_u64})),
            [
                "large: Invalid value: \"number\": large in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in large",
            ]
        );
    }
}
