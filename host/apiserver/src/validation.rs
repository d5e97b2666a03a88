//! Checking an object against its schema and its CEL rules, in the real server's words.

use std::collections::HashSet;

use kube_cel::{RootContext, Validator};
use serde_json::{Value, json};

use crate::fields::item_element;
use crate::registry::{Kind, Version};
use crate::schema::{ListType, Schema};
use crate::status::Cause;

/// Everything wrong with an object of a custom kind.
pub fn check(kind: &Kind, version: &Version, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    schema(&version.schema, object, "", &mut causes);
    // Rules are written for values that fit the schema.
    if causes.is_empty()
        && let Some(rules) = &version.rules
    {
        let context = RootContext {
            api_version: kind.api_version(&version.name),
            api_group: kind.resource.group.clone(),
            kind: kind.kind.clone(),
        };
        let result = Validator::new().validate_compiled_with_context(rules, object, old, Some(&context));
        for error in result
            .err()
            .map(kube_cel::ValidationErrors::into_vec)
            .unwrap_or_default()
        {
            let value = lookup(object, &error.field_path);
            let field = if error.field_path.is_empty() {
                "<nil>"
            } else {
                &error.field_path
            };
            causes.push(match error.reason.as_deref() {
                Some("FieldValueForbidden") => Cause::forbidden(field, &error.message),
                Some("FieldValueRequired") => Cause::required(field, &error.message),
                Some("FieldValueDuplicate") => Cause::duplicate(field, value),
                _ => Cause {
                    field: field.into(),
                    reason: "FieldValueInvalid",
                    message: format!("Invalid value: {}", error.message),
                },
            });
        }
    }
    causes
}

/// Gives a value, which is called `name`, its defaults by a structural schema, and everything that is wrong with it
/// (unknown fields included) as `FIELD: WHAT`. The error says why it is no schema.
pub fn check_value(name: &str, value: Value, declared: &Value) -> Result<(Value, Vec<String>), String> {
    let root = json!({"type": "object", "properties": {name: declared}});
    let root = Schema::parse(&root).map_err(|e| e.to_string())?;
    let mut whole = json!({name: value});
    let mut unknown = Vec::new();
    root.prune(&mut whole, "", &mut unknown);
    root.fill(&mut whole);
    let mut causes = Vec::new();
    schema(&root, &whole, "", &mut causes);
    let unknown = unknown.iter().map(|field| format!("{field}: unknown field"));
    let wrong = causes.iter().map(|c| format!("{}: {}", c.field, c.message));
    let problems = unknown.chain(wrong).collect();
    Ok((whole[name].take(), problems))
}

fn lookup<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .fold(object, |value, part| match value {
            Value::Array(items) => part
                .parse()
                .ok()
                .and_then(|index: usize| items.get(index))
                .unwrap_or(&Value::Null),
            other => &other[part.trim_matches('"')],
        })
}

fn type_of(value: &Value) -> &'static str {
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

fn fits(expected: &str, value: &Value) -> bool {
    let found = type_of(value);
    // A number without a fraction is an integer, however it was written.
    found == expected
        || (expected == "number" && found == "integer")
        || (expected == "integer" && value.as_f64().is_some_and(|number| number.fract() == 0.0))
}

fn schema(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if schema.int_or_string {
        if !value.is_string() && !fits("integer", value) {
            causes.push(Cause::wrong_type(path, type_of(value), "integer,string"));
            return;
        }
    } else if let Some(expected) = &schema.kind
        && !fits(expected, value)
    {
        causes.push(Cause::wrong_type(path, type_of(value), expected));
        return;
    }
    constraints(schema, value, path, causes);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                // The registry's own checks cover these.
                if path.is_empty() && name == "metadata" {
                    continue;
                }
                if let Some(below) = schema.field(name) {
                    self::schema(below, value, &at, causes);
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    self::schema(below, item, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn constraints(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(allowed) = &schema.allowed
        && !allowed.contains(value)
    {
        causes.push(Cause::unsupported(path, value, allowed));
    }
    let mut invalid = |why: String| {
        causes.push(Cause::invalid(
            path,
            value,
            format!("{path} in body should {why}"),
        ))
    };
    match value {
        Value::String(text) => {
            let length = text.chars().count();
            if let Some(least) = schema.min_length.filter(|least| length < *least) {
                invalid(format!("be at least {least} chars long"));
            }
            if let Some(most) = schema.max_length.filter(|most| length > *most) {
                causes.push(Cause {
                    field: path.into(),
                    reason: "FieldValueTooLong",
                    message: format!("Too long: may not be more than {most} bytes"),
                });
                return;
            }
            if let Some(pattern) = &schema.pattern
                && !pattern.regex.as_ref().is_some_and(|regex| regex.is_match(text))
            {
                invalid(format!("match '{}'", pattern.source));
            }
            if let Some(format) = schema
                .format
                .as_deref()
                .filter(|format| !has_format(format, text))
            {
                causes.push(Cause::invalid(
                    path,
                    value,
                    format!("{path} in body must be of type {format}: {value}"),
                ));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            if let Some(least) = schema.minimum {
                if schema.exclusive_minimum && number <= least {
                    invalid(format!("be greater than {least}"));
                } else if number < least {
                    invalid(format!("be greater than or equal to {least}"));
                }
            }
            if let Some(most) = schema.maximum {
                if schema.exclusive_maximum && number >= most {
                    invalid(format!("be less than {most}"));
                } else if number > most {
                    invalid(format!("be less than or equal to {most}"));
                }
            }
            if let Some(factor) = schema
                .multiple_of
                .filter(|factor| *factor > 0.0 && (number / factor).fract() != 0.0)
            {
                invalid(format!("be a multiple of {factor}"));
            }
        }
        Value::Array(items) => {
            if let Some(least) = schema.min_items.filter(|least| items.len() < *least) {
                invalid(format!("have at least {least} items"));
            }
            if let Some(most) = schema.max_items.filter(|most| items.len() > *most) {
                causes.push(Cause {
                    field: path.into(),
                    reason: "FieldValueTooMany",
                    message: format!("Too many: {}: must have at most {most} items", items.len()),
                });
            }
            unique(schema, items, path, causes);
        }
        Value::Object(fields) => {
            if let Some(least) = schema.min_properties.filter(|least| fields.len() < *least) {
                invalid(format!("have at least {least} properties"));
            }
            if let Some(most) = schema.max_properties.filter(|most| fields.len() > *most) {
                causes.push(Cause {
                    field: path.into(),
                    reason: "FieldValueTooMany",
                    message: format!("Too many: {}: must have at most {most} items", fields.len()),
                });
            }
            for name in schema.required.iter().filter(|name| !fields.contains_key(*name)) {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                causes.push(Cause::required(&at, ""));
            }
        }
        _ => {}
    }
    junctors(schema, value, path, causes);
}

fn unique(schema: &Schema, items: &[Value], path: &str, causes: &mut Vec<Cause>) {
    if schema.list() == ListType::Atomic {
        return;
    }
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(item_element(schema, item)) {
            let shown = match schema.list() {
                ListType::Map => schema
                    .list_keys
                    .iter()
                    .filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
                    .collect(),
                _ => item.clone(),
            };
            causes.push(Cause::duplicate(&format!("{path}[{index}]"), &shown));
        }
    }
}

fn junctors(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let failures = |candidate: &Schema| {
        let mut found = Vec::new();
        self::schema(candidate, value, path, &mut found);
        found
    };
    for part in &schema.all_of {
        causes.extend(failures(part));
    }
    let mut must = |what: &str| {
        causes.push(Cause::invalid(
            path,
            value,
            format!("{path} in body must validate {what}"),
        ))
    };
    // int-or-string carries its own anyOf of the two types, checked already.
    if !schema.any_of.is_empty() && !schema.any_of.iter().any(|part| failures(part).is_empty()) {
        must("at least one schema (anyOf)");
    }
    if !schema.one_of.is_empty() {
        let valid = schema
            .one_of
            .iter()
            .filter(|part| failures(part).is_empty())
            .count();
        if valid != 1 {
            must(&format!(
                "one and only one schema (oneOf). {}",
                if valid == 0 {
                    "Found none valid"
                } else {
                    "Found more than one valid"
                }
            ));
        }
    }
    if schema.not.as_ref().is_some_and(|part| failures(part).is_empty()) {
        causes.push(Cause::invalid(
            path,
            value,
            format!("{path} in body must not validate the schema (not)"),
        ));
    }
}

/// Formats the real server checks; it ignores the ones it doesn't know.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(address, bits)| {
            let most = match address.parse() {
                Ok(std::net::IpAddr::V4(_)) => 32,
                Ok(std::net::IpAddr::V6(_)) => 128,
                Err(_) => return false,
            };
            bits.parse::<u8>().is_ok_and(|bits| bits <= most)
        }),
        "uri" => text
            .parse::<http::Uri>()
            .is_ok_and(|uri| uri.scheme().is_some() || uri.path().starts_with('/')),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        "uuid" | "uuid3" | "uuid4" | "uuid5" => {
            let hex: String = text.chars().filter(|character| *character != '-').collect();
            hex.len() == 32 && hex.chars().all(|character| character.is_ascii_hexdigit())
        }
        "hostname" => {
            !text.is_empty()
                && text.len() <= 255
                && text.split('.').all(|label| {
                    !label.is_empty()
                        && label.len() <= 63
                        && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                        && !label.starts_with('-')
                        && !label.ends_with('-')
                })
        }
        "email" => text
            .split_once('@')
            .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@')),
        _ => true,
    }
}

/// Go's durations: `1h30m`, `1.5s`, `-2ms`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let Some(tail) = ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"]
            .iter()
            .find_map(|unit| {
                let tail = tail.strip_prefix(unit)?;
                tail.chars()
                    .next()
                    .is_none_or(|c| c.is_ascii_digit() || c == '.')
                    .then_some(tail)
            })
        else {
            return false;
        };
        if number.parse::<f64>().is_err() {
            return false;
        }
        rest = tail;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(declared: Value, value: Value) -> Vec<String> {
        let mut causes = Vec::new();
        schema(&Schema::parse(&declared).unwrap(), &value, "", &mut causes);
        causes
            .into_iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect()
    }

    #[test]
    fn mistakes_are_named_as_the_real_server_does() {
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
            said(declared.clone(), json!({"spec": {}})),
            ["spec.url: Required value"]
        );
        assert_eq!(
            said(
                declared.clone(),
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
            said(declared.clone(), json!({"spec": {"url": 3}})),
            ["spec.url: Invalid value: \"integer\": spec.url in body must be of type string: \"integer\""]
        );
        assert_eq!(
            said(
                declared,
                json!({"spec": {"url": "http://x", "n": 1.0, "port": "http"}})
            ),
            [""; 0]
        );
    }

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("date-time", "2026-01-01T00:00:00Z", "yesterday"),
            ("duration", "1h30m", "1 hour"),
            ("duration", "1.5ms", "ms"),
            ("ipv4", "1.2.3.4", "1.2.3"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uri", "https://a/b", "not a uri"),
            ("byte", "YQ==", "?"),
            ("hostname", "a.b-c", "-a"),
        ] {
            assert!(has_format(format, good), "{format} {good}");
            assert!(!has_format(format, bad), "{format} {bad}");
        }
    }
}
