//! Validation of a schema itself: the rules that make it structural, and the keywords that a kind may use.
//!
//! Both follow the API server: [`check_definition`] is everything that it says about the schema of a kind. The rules are
//! those of its packages `apiserver/schema` and `apis/apiextensions/validation`.

use serde_json::{Value, json};

use crate::field_path::join_path;
use crate::{FieldError, Schema, keywords};

/// Keywords at the root of a kind with a status subresource, whose schema is taken apart.
const ROOT_KEYWORDS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Violations of the rules for the schema of a kind, at paths below `path`. `status` says that the kind has a status
/// subresource.
pub fn check_definition(declared: &Value, path: &str, status: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if status {
        errors.extend(check_root_keywords(declared, path));
    }
    if declared["nullable"] == true {
        let field = format!("{path}.nullable");
        errors.push(FieldError::forbidden(
            &field,
            "nullable cannot be true at the root",
        ));
    }
    let mut structural = check_structural(declared, path);
    // Defaults and rules are compared with the schema, which must be sound first.
    let is_sound = structural.is_empty();
    if is_sound {
        structural.extend(check_defaults(declared, path));
    }
    let evaluates_rules = is_sound && structural.is_empty();
    errors.extend(structural);
    errors.extend(keywords::check_keywords(declared, path, evaluates_rules));
    errors
}

fn check_root_keywords(declared: &Value, path: &str) -> Option<FieldError> {
    let kind = declared["type"].as_str().unwrap_or_default();
    if !kind.is_empty() && kind != "object" {
        let rule = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(FieldError::invalid(
            &format!("{path}.type"),
            &declared["type"],
            rule,
        ));
    }
    let is_empty = |value: &Value| value.is_null() || *value == false || *value == "" || *value == 0;
    let mut keywords = declared.as_object().into_iter().flatten();
    keywords.find(|(keyword, value)| {
        let is_set = !is_empty(value) || (*keyword == "additionalProperties" && !value.is_null());
        is_set && !ROOT_KEYWORDS.contains(&keyword.as_str())
    })?;
    let rule = format!(
        "only {ROOT_KEYWORDS:?} fields are allowed at the root of the schema if the status subresource is enabled"
    );
    Some(FieldError::invalid(path, declared, rule))
}

/// The place of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Violations of the rules for structural schemas, at paths below `path`: each field and item has a type, and alternatives
/// (`anyOf`, `not`, …) only restrict what is declared outside of them.
pub fn check_structural(declared: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_invariants(declared, Level::Root, path, &mut errors);
    check_completeness(declared, declared, path, path, &mut errors);
    errors
}

fn check_invariants(declared: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    if declared["type"] == "array" && !declared["items"].is_object() {
        errors.push(FieldError::required(
            &format!("{path}.items"),
            "must be specified",
        ));
    }
    if declared["items"].is_object() {
        check_invariants(&declared["items"], Level::Item, &format!("{path}.items"), errors);
    }
    for (name, property) in keywords::properties(declared) {
        let field = format!("{path}.properties[{name}]");
        check_invariants(property, Level::Field, &field, errors);
    }
    let map_value = &declared["additionalProperties"];
    if !map_value.is_null() {
        let field = format!("{path}.additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&field, "must not be used at the root"));
        }
        if map_value.is_object() {
            check_invariants(map_value, Level::Field, &field, errors);
        }
    }
    check_extensions(declared, path, errors);
    check_alternatives(declared, path, errors);
    check_pattern(declared, path, errors);
    check_type(declared, level, path, errors);
    check_object_fields(declared, level, path, errors);
}

fn check_extensions(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if declared["x-kubernetes-int-or-string"] != true {
        return;
    }
    for keyword in [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ] {
        if declared[keyword] == true {
            let rule = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(
                &format!("{path}.{keyword}"),
                &true.into(),
                rule,
            ));
        }
    }
}

fn check_pattern(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(pattern) = declared["pattern"].as_str()
        && let Err(error) = regex::Regex::new(pattern)
    {
        let rule = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(
            &format!("{path}.pattern"),
            &declared["pattern"],
            rule,
        ));
    }
}

fn check_type(declared: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let kind = declared["type"].as_str().unwrap_or_default();
    let field = format!("{path}.type");
    let is_embedded = declared["x-kubernetes-embedded-resource"] == true;
    let may_omit = declared["x-kubernetes-int-or-string"] == true
        || declared["x-kubernetes-preserve-unknown-fields"] == true;
    if is_embedded && kind != "object" {
        let rule = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(&field, rule),
            kind => FieldError::invalid(&field, &kind.into(), rule),
        });
    } else if kind.is_empty() && !may_omit {
        let rule = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&field, rule));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            &field,
            &kind.into(),
            "must be object at the root",
        ));
    }
    if is_embedded && !declared["additionalProperties"].is_null() {
        let field = format!("{path}.additionalProperties");
        let rule = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(&field, rule));
    }
}

/// Checks the properties that an object has in any case.
fn check_object_fields(declared: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let is_embedded = declared["x-kubernetes-embedded-resource"] == true;
    let is_object = level == Level::Root || is_embedded;
    let properties = &declared["properties"];
    for name in ["kind", "apiVersion"] {
        if is_object && properties[name].is_object() && properties[name]["type"] != "string" {
            let field = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(
                &field,
                &properties[name]["type"],
                "must be string",
            ));
        }
    }
    if let Some(metadata) = properties.get("metadata") {
        let field = format!("{path}.properties[metadata]");
        if is_object && metadata["type"] != "object" {
            errors.push(FieldError::invalid(
                &format!("{field}.type"),
                &metadata["type"],
                "must be object",
            ));
        }
        if level == Level::Root && restricts_metadata(metadata) {
            let rule = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(&field, rule));
        }
    }
    let has_properties = keywords::properties(declared).next().is_some();
    if is_embedded && declared["x-kubernetes-preserve-unknown-fields"] != true && !has_properties {
        let rule = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&format!("{path}.properties"), rule));
    }
}

/// Returns true if the schema of an object's own metadata says more than which names are allowed.
fn restricts_metadata(metadata: &Value) -> bool {
    let mut names = keywords::properties(metadata).map(|(name, _)| name.as_str());
    let restricts_others = names.any(|name| name != "name" && name != "generateName");
    let mut others = metadata.as_object().into_iter().flatten();
    restricts_others
        || others.any(|(keyword, _)| !matches!(keyword.as_str(), "type" | "properties" | "default"))
}

fn is_int_or_string(parts: &Value) -> bool {
    *parts == json!([{"type": "integer"}, {"type": "string"}])
}

/// Checks the alternatives of a schema, except the ones by which an integer or a string is usually declared.
fn check_alternatives(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (keyword, index, part) in keywords::alternatives(declared) {
        if keyword == "anyOf" && is_int_or_string(&declared["anyOf"]) {
            continue;
        }
        let field = keywords::alternative_path(path, keyword, index);
        let is_first_of_all = keyword == "allOf" && index == Some(0) && is_int_or_string(&part["anyOf"]);
        check_alternative(part, is_first_of_all, &field, errors);
    }
}

fn check_alternative(part: &Value, skips_any_of: bool, path: &str, errors: &mut Vec<FieldError>) {
    if !skips_any_of {
        check_alternatives(part, path, errors);
    }
    check_pattern(part, path, errors);
    if part["items"].is_object() {
        check_alternative(&part["items"], false, &format!("{path}.items"), errors);
    }
    for (name, property) in keywords::properties(part) {
        check_alternative(property, false, &format!("{path}.properties[{name}]"), errors);
    }
    let is_set = |value: &Value| !value.is_null() && *value != false && *value != "" && *value != json!([]);
    for (keyword, rule) in [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let is_set = match keyword {
            "additionalProperties" | "default" => !part[keyword].is_null(),
            _ => is_set(&part[keyword]),
        };
        if is_set {
            errors.push(FieldError::forbidden(&format!("{path}.{keyword}"), rule));
        }
    }
    if !part["properties"]["metadata"].is_null() {
        let field = format!("{path}.properties[metadata]");
        errors.push(FieldError::forbidden(
            &field,
            "must not be specified in a nested context",
        ));
    }
}

/// Checks that what the alternatives of `part` restrict is declared in `outer`, the schema that they belong to.
fn check_completeness(
    part: &Value,
    outer: &Value,
    path: &str,
    part_path: &str,
    errors: &mut Vec<FieldError>,
) {
    for (keyword, index, alternative) in keywords::alternatives(part) {
        let field = keywords::alternative_path(part_path, keyword, index);
        check_declared(alternative, outer, path, &field, errors);
    }
}

fn check_declared(part: &Value, outer: &Value, path: &str, part_path: &str, errors: &mut Vec<FieldError>) {
    let missing =
        |field: &str, part: &str| FieldError::required(field, &format!("because it is defined in {part}"));
    check_completeness(part, outer, path, part_path, errors);
    if part["items"].is_object() {
        let (field, below) = (format!("{path}.items"), format!("{part_path}.items"));
        if outer["items"].is_object() {
            check_declared(&part["items"], &outer["items"], &field, &below, errors);
        } else {
            errors.push(missing(&field, &below));
        }
    }
    for (name, property) in keywords::properties(part) {
        let field = format!("{path}.properties[{name}]");
        let below = format!("{part_path}.properties[{name}]");
        match outer["properties"].get(name) {
            Some(declared) => check_declared(property, declared, &field, &below, errors),
            None => errors.push(missing(&field, &below)),
        }
    }
}

/// Violations of the schema by its own defaults. A default must be complete: unknown fields in it are errors.
fn check_defaults(declared: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !declared["default"].is_null()
        && let Ok(mut schema) = Schema::parse(&without_int_or_string(declared))
    {
        // The default of a kind is a whole object.
        schema.embedded_resource |= path.ends_with("openAPIV3Schema");
        errors.extend(check_default(declared, &schema, &format!("{path}.default")));
    }
    if declared["items"].is_object() {
        errors.extend(check_defaults(&declared["items"], &format!("{path}.items")));
    }
    for (name, property) in keywords::properties(declared) {
        // The metadata of a kind's own objects has no defaults.
        if path.ends_with("openAPIV3Schema") && matches!(name.as_str(), "metadata" | "apiVersion" | "kind") {
            continue;
        }
        errors.extend(check_defaults(property, &format!("{path}.properties[{name}]")));
    }
    errors
}

/// Violations of a schema by its default. Of what an embedded object needs, the schema and its rules, each is checked when there is no
/// violation of those before.
fn check_default(declared: &Value, schema: &Schema, field: &str) -> Vec<FieldError> {
    let default = &declared["default"];
    let mut errors = Vec::new();
    if !schema.prune(&mut default.clone()).is_empty() {
        errors.push(FieldError::invalid(
            field,
            default,
            "must not have unknown fields",
        ));
    }
    let untyped = schema.validate_embedded(default, &|_, _| Vec::new());
    if !untyped.is_empty() {
        errors.extend(untyped.into_iter().map(|error| FieldError {
            field: join_path(field, &error.field),
            ..error
        }));
        return errors;
    }
    let invalid = schema.validate_at(default, None, field);
    if invalid.is_empty() {
        errors.extend(crate::rule::check_rules_of_value(declared, default, field));
        return errors;
    }
    errors.extend(invalid.into_iter().map(|error| {
        // The API server joins an item's index to the path as it joins a field.
        match error.field.strip_prefix(field) {
            Some(item) if item.starts_with('[') => FieldError {
                field: format!("{field}.{item}"),
                ..error
            },
            _ => error,
        }
    }));
    errors
}

/// Returns a schema in which values that may be integers or texts may be anything: the API server does not check their types
/// in defaults.
fn without_int_or_string(declared: &Value) -> Value {
    match declared {
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter(|(keyword, _)| *keyword != "x-kubernetes-int-or-string");
            kept.map(|(keyword, value)| (keyword.clone(), without_int_or_string(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_int_or_string).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing_fields(declared: &Value) -> Vec<String> {
        let errors = check_definition(declared, "schema", false);
        let mut fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
        fields.sort();
        fields.dedup();
        fields
    }

    #[test]
    fn schema_without_type_keys_or_items_is_refused() {
        let declared = json!({"type": "object", "properties": {
            "a": {},
            "b": {"type": "array"},
            "c": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
            "d": {"type": "string", "pattern": "("},
            "e": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        assert_eq!(
            failing_fields(&declared),
            [
                "schema.properties[a].type",
                "schema.properties[b].items",
                "schema.properties[c].x-kubernetes-list-map-keys",
                "schema.properties[d].pattern",
            ]
        );
    }

    #[test]
    fn default_of_a_whole_schema_is_checked_for_its_fields_once_it_has_a_type() {
        let declared = |default: Value| {
            json!({"type": "object", "required": ["absent"], "default": default,
            "properties": {"absent": {"type": "string"}}})
        };
        let fields = |default: Value| {
            let mut fields: Vec<_> = check_defaults(&declared(default), "openAPIV3Schema")
                .into_iter()
                .map(|error| error.field)
                .collect();
            fields.sort();
            fields
        };
        let at = |name: &str| format!("openAPIV3Schema.default.{name}");
        assert_eq!(fields(json!({})), [at("apiVersion"), at("kind")]);
        assert_eq!(
            fields(json!({"apiVersion": "a.dev/v1", "kind": "Thing"})),
            [at("absent")]
        );
    }

    #[test]
    fn each_mistake_is_named_by_its_keyword() {
        let spec = |spec: Value| json!({"type": "object", "properties": {"spec": spec}});
        for (declared, field) in [
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                "additionalProperties",
            ),
            (json!({"type": "string"}), "type"),
            (spec(json!({"type": "strin"})), "properties[spec].type"),
            (
                spec(json!({"type": "integer", "default": "a"})),
                "properties[spec].default",
            ),
            (
                spec(json!({"type": "object", "default": {"a": 1}, "properties": {"b": {"type": "string"}}})),
                "properties[spec].default",
            ),
            (
                spec(json!({"type": "object", "default": {"a": 1}, "properties": {"a": {"type": "string"}}})),
                "properties[spec].default.a",
            ),
            (
                spec(json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}})),
                "properties[spec].uniqueItems",
            ),
            (
                spec(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false})),
                "properties[spec].x-kubernetes-preserve-unknown-fields",
            ),
            (
                spec(json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {"type": "string"}})),
                "properties[spec].x-kubernetes-list-type",
            ),
            (
                spec(
                    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"], "items": {
                        "type": "object", "properties": {"a": {"type": "string"}},
                    }}),
                ),
                "properties[spec].items.properties[a].default",
            ),
            (
                spec(json!({"type": "object", "anyOf": [{"type": "object"}]})),
                "properties[spec].anyOf[0].type",
            ),
            (
                json!({"type": "object", "not": {"properties": {"a": {"minLength": 1}}}}),
                "properties[a]",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
                "properties[metadata]",
            ),
        ] {
            assert_eq!(
                failing_fields(&declared),
                [format!("schema.{field}")],
                "{declared}"
            );
        }
    }

    #[test]
    fn usual_declarations_are_accepted() {
        let declared = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}},
            "spec": {
                "type": "object", "required": ["port"], "oneOf": [{"required": ["port"]}, {"required": ["mode"]}],
                // Only those of the root must be declared.
                "not": {"properties": {"undeclared": {"minLength": 1}}},
                "properties": {
                    "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                    "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"], "items": {
                        "type": "object", "required": ["a"], "properties": {"a": {"type": "string"}},
                    }},
                    "object": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
                },
            },
        }});
        assert_eq!(check_definition(&declared, "schema", true), []);
    }

    #[cfg(feature = "cel")]
    #[test]
    fn rule_that_does_not_compile_is_refused() {
        let declared = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a >"}]});
        assert_eq!(
            failing_fields(&declared),
            ["schema.x-kubernetes-validations[0].rule"]
        );
    }
}
