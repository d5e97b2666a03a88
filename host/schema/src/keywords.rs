//! Validation of a schema's keywords: which ones a kind may use, with which values and beside which others.

use std::collections::HashSet;

use serde_json::Value;

use crate::FieldError;
use crate::field_path::find_declared_field;
#[cfg(feature = "cel")]
use crate::{
    Rules, TypeMeta,
    rule_types::{ExpectedResult, check_expression},
};

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
/// Reasons that a CEL rule may give.
const RULE_REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// Iterates over the properties of a schema.
pub(crate) fn properties(declared: &Value) -> impl Iterator<Item = (&String, &Value)> {
    declared["properties"].as_object().into_iter().flatten()
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
}

/// Violations of the rules for keywords, at paths below `path`.
pub(crate) fn check_keywords(declared: &Value, path: &str, evaluates_rules: bool) -> Vec<FieldError> {
    let around = Surroundings {
        is_root: true,
        inside_metadata: false,
        forbids_defaults: None,
        uncorrelatable: None,
        evaluates_rules,
    };
    let (mut errors, rules) = check_schema(declared, path, around);
    errors.extend(rules);
    errors
}

/// Returns the errors of keywords, and those of CEL rules, which are checked where there are none of the former.
fn check_schema(
    declared: &Value,
    path: &str,
    around: Surroundings<'_>,
) -> (Vec<FieldError>, Vec<FieldError>) {
    if !declared.is_object() {
        return (Vec::new(), Vec::new());
    }
    let mut errors = check_supported(declared, path, around);
    let mut rule_errors = Vec::new();
    let inner = Surroundings {
        is_root: false,
        ..around
    };
    let mut descend = |schema: &Value, path: &str, around: Surroundings<'_>, errors: &mut Vec<FieldError>| {
        let (found, rules) = check_schema(schema, path, around);
        errors.extend(found);
        rule_errors.extend(rules);
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
        rule_errors.extend(check_rules(declared, path, around.is_root, around.uncorrelatable));
    }
    (errors, rule_errors)
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

/// Checks the fields of CEL rules beside their expressions.
fn check_rule_fields(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let has_line_break = |text: &str| text.contains(['\n', '\r']);
    for (index, rule) in rules(declared).enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        let text = |field: &str| rule[field].as_str().unwrap_or_default();
        let (expression, message) = (text("rule").trim(), text("message"));
        if expression.is_empty() {
            errors.push(FieldError::required(
                &format!("{at}.rule"),
                "rule is not specified",
            ));
        } else if !message.is_empty() && message.trim().is_empty() {
            let why = "must be non-empty if specified";
            errors.push(FieldError::invalid(
                &format!("{at}.message"),
                &message.into(),
                why,
            ));
        } else if has_line_break(message.trim()) {
            let why = "must not contain line breaks";
            errors.push(FieldError::invalid(
                &format!("{at}.message"),
                &message.into(),
                why,
            ));
        } else if has_line_break(expression) && message.trim().is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&format!("{at}.message"), why));
        }
        if !text("messageExpression").is_empty() && text("messageExpression").trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(&format!("{at}.messageExpression"), why));
        }
        if !rule["reason"].is_null() && !RULE_REASONS.contains(&text("reason")) {
            let supported: Vec<Value> = RULE_REASONS.into_iter().map(Value::from).collect();
            errors.push(FieldError::unsupported(
                &format!("{at}.reason"),
                &rule["reason"],
                &supported,
            ));
        }
        check_rule_path(declared, text("fieldPath"), &format!("{at}.fieldPath"), errors);
    }
}

fn check_rule_path(declared: &Value, path: &str, field: &str, errors: &mut Vec<FieldError>) {
    if path.is_empty() {
        return;
    }
    let mut report = |why: &str| errors.push(FieldError::invalid(field, &path.into(), why));
    if path.trim().is_empty() {
        report("must be non-empty if specified");
    }
    if path.contains(['\n', '\r']) {
        report("must not contain line breaks");
    }
    if find_declared_field(declared, path).is_err() {
        report("must be a valid path");
    }
}

fn rules(declared: &Value) -> impl Iterator<Item = &Value> {
    declared["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
}

#[cfg(not(feature = "cel"))]
pub(crate) fn check_rules_of_value(_declared: &Value, _value: &Value, _path: &str) -> Vec<FieldError> {
    Vec::new()
}

/// Checks the CEL rules that apply to a default: they must compile, and hold.
#[cfg(feature = "cel")]
pub(crate) fn check_rules_of_value(declared: &Value, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    collect_rule_errors(declared, value, path, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let rules = Rules::compile(declared);
    let meta = TypeMeta {
        group: String::new(),
        api_version: String::new(),
        kind: String::new(),
    };
    let broken = rules.map_or_else(Vec::new, |rules| rules.validate(value, Some(value), meta));
    let broken = broken.into_iter().map(|error| FieldError {
        field: match error.field.as_str() {
            "<nil>" => path.to_owned(),
            field if field.starts_with('[') => format!("{path}{field}"),
            field => format!("{path}.{field}"),
        },
        ..error
    });
    broken.collect()
}

#[cfg(feature = "cel")]
fn collect_rule_errors(declared: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for rule in rules(declared) {
        let expression = rule["rule"].as_str().unwrap_or_default();
        if expression.trim().is_empty() {
            continue;
        }
        if let Err(why) = check_expression(expression, declared, false, ExpectedResult::Bool) {
            let why = format!("rule compile error: {why}");
            errors.push(FieldError::invalid(path, value, why));
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let (schema, field) = match declared["properties"].get(name) {
                    Some(property) => (property, format!("{path}.{name}")),
                    None => (&declared["additionalProperties"], format!("{path}[{name}]")),
                };
                collect_rule_errors(schema, value, &field, errors);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_rule_errors(&declared["items"], item, &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

#[cfg(not(feature = "cel"))]
fn check_rules(
    _declared: &Value,
    _path: &str,
    _is_root: bool,
    _uncorrelatable: Option<&str>,
) -> Vec<FieldError> {
    Vec::new()
}

/// Compiles CEL rules, and checks that the old object can be found where they ask for it.
#[cfg(feature = "cel")]
fn check_rules(declared: &Value, path: &str, is_root: bool, uncorrelatable: Option<&str>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let is_untyped = declared["type"].as_str().unwrap_or_default().is_empty()
        && declared["x-kubernetes-int-or-string"] != true;
    if is_untyped && rules(declared).next().is_some() {
        return vec![FieldError::new(
            &format!("{path}.x-kubernetes-validations"),
            "InternalError",
            "Internal error: failed to construct type information for x-kubernetes-validations rules: the schema has no type".into(),
        )];
    }
    for (index, rule) in rules(declared).enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        for (keyword, expected) in [
            ("rule", ExpectedResult::Bool),
            ("messageExpression", ExpectedResult::Text),
        ] {
            let Some(expression) = rule[keyword].as_str().filter(|text| !text.trim().is_empty()) else {
                continue;
            };
            // An old value that may be missing is optional, and has functions of its own.
            let old_is_optional = rule["optionalOldSelf"] == true && uses_identifier(expression, "oldSelf");
            let checked = if old_is_optional {
                kube_cel::cel::Program::compile(expression)
                    .map(|_| ())
                    .map_err(|error| error.to_string())
            } else {
                check_expression(expression, declared, is_root, expected)
            };
            if let Err(why) = checked {
                errors.push(FieldError::invalid(
                    &format!("{at}.{keyword}"),
                    rule,
                    format!("compilation failed: {why}"),
                ));
                break;
            }
        }
        let uses_old = uses_identifier(rule["rule"].as_str().unwrap_or_default(), "oldSelf");
        if let Some(list) = uncorrelatable.filter(|_| uses_old) {
            errors.push(FieldError::invalid(
                &format!("{at}.rule"),
                &rule["rule"],
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"),
            ));
        }
        if !uses_old && !rule["optionalOldSelf"].is_null() {
            errors.push(FieldError::invalid(
                &format!("{at}.optionalOldSelf"),
                &rule["optionalOldSelf"],
                "may not be set if oldSelf is not used in rule",
            ));
        }
    }
    errors
}

#[cfg(feature = "cel")]
fn uses_identifier(expression: &str, identifier: &str) -> bool {
    let words = expression.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.into_iter().any(|word| word == identifier)
}
