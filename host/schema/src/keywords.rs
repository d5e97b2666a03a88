//! Validation of a schema's keywords: which ones a kind may use, with which values and beside which others.

use std::collections::HashSet;

use serde_json::Value;

use crate::FieldError;
use crate::rule::{RuleFindings, check_rule_fields, check_rules, check_total_cost};

/// Types of OpenAPI.
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Keywords of JSON schema that the API server does not support.
const UNSUPPORTED_KEYWORDS: [&str; 6] = [
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
];
/// Iterates over the properties of a schema.
pub(crate) fn properties(declared: &Value) -> impl Iterator<Item = (&String, &Value)> {
    declared["properties"].as_object().into_iter().flatten()
}

/// Iterates over the schemas of fields, items and map values below a schema, with the name of the field or the keyword.
pub(crate) fn subschemas(declared: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let below = ["items", "additionalProperties"].map(|keyword| (keyword, &declared[keyword]));
    properties(declared)
        .map(|(name, schema)| (name.as_str(), schema))
        .chain(below)
        .filter(|(_, schema)| schema.is_object())
}

/// Iterates over the alternatives of a schema: the keyword, the index where it has several, and the schema.
pub(crate) fn alternatives(declared: &Value) -> impl Iterator<Item = (&'static str, Option<usize>, &Value)> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(move |keyword| {
        let parts = declared[keyword].as_array().into_iter().flatten();
        parts
            .enumerate()
            .map(move |(index, part)| (keyword, Some(index), part))
    });
    let not = declared["not"]
        .is_object()
        .then_some(("not", None, &declared["not"]));
    lists.chain(not)
}

/// The path of an alternative.
pub(crate) fn alternative_path(path: &str, keyword: &str, index: Option<usize>) -> String {
    match index {
        Some(index) => format!("{path}.{keyword}[{index}]"),
        None => format!("{path}.{keyword}"),
    }
}

/// What depends on the schemas around one.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    is_root: bool,
    /// It is the metadata of an object, or belongs to it.
    inside_metadata: bool,
    /// The reason why there must be no default.
    forbids_defaults: Option<&'static str>,
    /// The innermost list or map whose items have no counterpart in the old object.
    uncorrelatable: Option<&'a str>,
    /// CEL rules are compiled, too.
    evaluates_rules: bool,
    /// How many values of the schema an object has at most; `None` if a list or map around them is unbounded.
    cardinality: Option<u64>,
}

/// Violations of the rules for keywords, at paths below `path`.
pub(crate) fn check_keywords(declared: &Value, path: &str, evaluates_rules: bool) -> Vec<FieldError> {
    let around = Surroundings {
        is_root: true,
        inside_metadata: false,
        forbids_defaults: None,
        uncorrelatable: None,
        evaluates_rules,
        cardinality: Some(1),
    };
    let (mut errors, rules) = check_schema(declared, path, around);
    errors.extend(rules.errors);
    errors.extend(check_total_cost(rules.costs, path));
    errors
}

/// Returns the errors of keywords, and what is found of CEL rules, which are checked where there are none of the former.
fn check_schema(declared: &Value, path: &str, around: Surroundings<'_>) -> (Vec<FieldError>, RuleFindings) {
    let mut rules = RuleFindings::default();
    if !declared.is_object() {
        return (Vec::new(), rules);
    }
    let mut errors = check_supported(declared, path, around);
    let inner = Surroundings {
        is_root: false,
        cardinality: multiply_cardinality(around.cardinality, declared),
        ..around
    };
    let mut descend = |schema: &Value, path: &str, around: Surroundings<'_>, errors: &mut Vec<FieldError>| {
        let (found, inner) = check_schema(schema, path, around);
        errors.extend(found);
        rules.errors.extend(inner.errors);
        rules.costs.extend(inner.costs);
    };
    let map_value = &declared["additionalProperties"];
    if !map_value.is_null() {
        let field = format!("{path}.additionalProperties");
        if properties(declared).next().is_some() && *map_value != true {
            let rule = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(&field, rule));
        }
        let around = Surroundings {
            forbids_defaults: if around.inside_metadata {
                Some(" inside additionalProperties applying to object metadata")
            } else {
                around.forbids_defaults
            },
            ..inner
        };
        descend(map_value, &field, around, &mut errors);
    }
    for (name, property) in properties(declared) {
        let is_meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        let is_root = around.is_root;
        let is_object = is_root || declared["x-kubernetes-embedded-resource"] == true;
        let mut around = inner;
        if is_object && is_meta {
            around.inside_metadata = true;
            if is_root {
                around.forbids_defaults = Some(" in top-level metadata");
            }
        }
        descend(
            property,
            &format!("{path}.properties[{name}]"),
            around,
            &mut errors,
        );
    }
    for (keyword, index, part) in alternatives(declared) {
        let around = Surroundings {
            evaluates_rules: false,
            ..inner
        };
        descend(part, &alternative_path(path, keyword, index), around, &mut errors);
    }
    let mut around_items = inner;
    if declared["x-kubernetes-list-type"] != "map" {
        around_items.uncorrelatable = around_items.uncorrelatable.or(Some(path));
    }
    descend(
        &declared["items"],
        &format!("{path}.items"),
        around_items,
        &mut errors,
    );
    check_lists_and_maps(declared, path, &mut errors);
    check_rule_fields(declared, path, &mut errors);
    if errors.is_empty() && around.evaluates_rules {
        let is_object = around.is_root || declared["x-kubernetes-embedded-resource"] == true;
        let found = check_rules(
            declared,
            path,
            is_object,
            around.uncorrelatable,
            around.cardinality,
        );
        rules.errors.extend(found.errors);
        rules.costs.extend(found.costs);
    }
    (errors, rules)
}

/// Returns how many values of its inner schemas an object has at most, from how many it has of the outer one.
fn multiply_cardinality(cardinality: Option<u64>, declared: &Value) -> Option<u64> {
    let limit = match declared["type"].as_str() {
        Some("array") => "maxItems",
        Some("object") if !declared["additionalProperties"].is_null() => "maxProperties",
        _ => return cardinality,
    };
    let most = u64::try_from(declared[limit].as_i64()?).unwrap_or(0);
    Some(cardinality?.saturating_mul(most))
}

fn check_supported(declared: &Value, path: &str, around: Surroundings<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = declared["type"].as_str().unwrap_or_default();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        let supported: Vec<Value> = TYPES.into_iter().map(Value::from).collect();
        errors.push(FieldError::unsupported(
            &format!("{path}.type"),
            &declared["type"],
            &supported,
        ));
    }
    if let Some(why) = around.forbids_defaults.filter(|_| !declared["default"].is_null()) {
        errors.push(FieldError::forbidden(
            &format!("{path}.default"),
            format!("must not be set{why}"),
        ));
    }
    for keyword in UNSUPPORTED_KEYWORDS {
        if !declared[keyword].is_null() {
            let field = format!("{path}.{keyword}");
            errors.push(FieldError::forbidden(
                &field,
                format!("{keyword} is not supported"),
            ));
        }
    }
    if declared["items"].is_array() {
        let rule = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(&format!("{path}.items"), rule));
    }
    if around.inside_metadata && declared["x-kubernetes-embedded-resource"] == true {
        let field = format!("{path}.x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(
            &field,
            "must not be used inside of resource meta",
        ));
    }
    if declared["uniqueItems"] == true {
        let rule = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(&format!("{path}.uniqueItems"), rule));
    }
    if declared["x-kubernetes-preserve-unknown-fields"] == false {
        let field = format!("{path}.x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            &field,
            &false.into(),
            "must be true or undefined",
        ));
    }
    errors
}

fn check_lists_and_maps(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (keyword, expected, supported) in [
        ("x-kubernetes-map-type", "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", "array", &["atomic", "set", "map"][..]),
    ] {
        let Some(given) = declared[keyword].as_str() else {
            continue;
        };
        let kind = declared["type"].as_str().unwrap_or_default();
        let rule = format!("must be {expected} if {keyword} is specified");
        let field = format!("{path}.type");
        match kind {
            "" => errors.push(FieldError::required(&field, &rule)),
            kind if kind != expected => errors.push(FieldError::invalid(&field, &kind.into(), rule)),
            _ => {}
        }
        if !supported.contains(&given) {
            let supported: Vec<Value> = supported.iter().copied().map(Value::from).collect();
            errors.push(FieldError::unsupported(
                &format!("{path}.{keyword}"),
                &declared[keyword],
                &supported,
            ));
        }
    }
    let keys = &declared["x-kubernetes-list-map-keys"];
    let list_type = declared["x-kubernetes-list-type"].as_str();
    if keys.as_array().is_some_and(|keys| !keys.is_empty()) && list_type != Some("map") {
        let field = format!("{path}.x-kubernetes-list-type");
        let rule = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            None => FieldError::required(&field, rule),
            Some(given) => FieldError::invalid(&field, &given.into(), rule),
        });
    }
    match list_type {
        Some("map") => check_keyed_list(declared, path, errors),
        Some("set") => check_set(declared, path, errors),
        _ => {}
    }
}

fn check_set(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let items = &declared["items"];
    if declared["type"] != "array" || !items.is_object() {
        return;
    }
    let rule = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let keyword = match items["type"].as_str() {
        Some("array") if matches!(items["x-kubernetes-list-type"].as_str(), Some(kind) if kind != "atomic") => {
            "x-kubernetes-list-type"
        }
        Some("object") if items["x-kubernetes-map-type"] != "atomic" => "x-kubernetes-map-type",
        _ => "",
    };
    if !keyword.is_empty() {
        errors.push(FieldError::invalid(
            &format!("{path}.items.{keyword}"),
            &items[keyword],
            rule,
        ));
    }
    check_nullable_items(declared, path, errors);
}

fn check_nullable_items(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if declared["items"]["nullable"] == true {
        let kind = declared["x-kubernetes-list-type"].as_str().unwrap_or_default();
        errors.push(FieldError::forbidden(
            &format!("{path}.items.nullable"),
            format!("cannot be nullable when x-kubernetes-list-type is {kind}"),
        ));
    }
}

fn check_keyed_list(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys_field = format!("{path}.x-kubernetes-list-map-keys");
    let keys = &declared["x-kubernetes-list-map-keys"];
    let names: Vec<&str> = keys
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if names.is_empty() {
        let rule = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&keys_field, rule));
    }
    let items = &declared["items"];
    if items.is_null() {
        let rule = "must have a schema if x-kubernetes-list-type is map";
        return errors.push(FieldError::required(&format!("{path}.items"), rule));
    }
    if items["type"] != "object" {
        let rule = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(
            &format!("{path}.items.type"),
            &items["type"],
            rule,
        ));
    }
    let mut seen = HashSet::new();
    for name in names {
        let property = items["properties"].get(name);
        let field = format!("{path}.items.properties[{name}]");
        if items["type"] == "object" {
            match property {
                Some(property) if matches!(property["type"].as_str(), Some("array" | "object")) => {
                    let rule = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.push(FieldError::invalid(
                        &format!("{field}.type"),
                        &items["type"],
                        rule,
                    ));
                }
                Some(_) => {}
                None => {
                    let rule = "entries must all be names of item properties";
                    errors.push(FieldError::invalid(&keys_field, keys, rule));
                }
            }
            if !seen.insert(name) {
                errors.push(FieldError::invalid(
                    &keys_field,
                    keys,
                    "must not contain duplicate entries",
                ));
            }
        }
        if let Some(property) = property {
            let required = items["required"].as_array().into_iter().flatten();
            let is_required = required.into_iter().any(|one| one == name);
            if !is_required && property["default"].is_null() {
                let rule = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                errors.push(FieldError::required(&format!("{field}.default"), rule));
            }
            if property["nullable"] == true {
                let rule = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                errors.push(FieldError::forbidden(&format!("{field}.nullable"), rule));
            }
        }
    }
    check_nullable_items(declared, path, errors);
}
