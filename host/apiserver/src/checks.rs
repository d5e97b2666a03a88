//! Checks of single values that the validations of built-in kinds share.

use ostler_schema::FieldError;
use serde_json::Value;

/// Rule for a port.
const PORT_RULE: &str = "must be between 1 and 65535, inclusive";

/// Returns the text of a field, or an empty one.
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Returns true for a list that is missing or has no items.
pub fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

/// Returns what is wrong with a value that must be one of a few; one that is missing is valid.
pub fn check_supported<const N: usize>(
    value: &Value,
    field: &str,
    supported: [&str; N],
) -> Option<FieldError> {
    let is_known = value.is_null() || supported.iter().any(|one| value == one);
    (!is_known).then(|| FieldError::unsupported(field, value, &supported.map(Value::from)))
}

/// Returns what is wrong with a number below zero.
pub fn check_not_negative(value: &Value, field: &str) -> Option<FieldError> {
    let is_negative = value.as_i64().is_some_and(|number| number < 0);
    is_negative.then(|| FieldError::invalid(field, value, "must be greater than or equal to 0"))
}

/// Returns true for the name of a port.
pub fn is_port_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=15).contains(&name.len())
        && name.chars().all(is_valid)
        && name.contains(|c: char| c.is_ascii_lowercase())
        && !name.contains("--")
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Returns what is wrong with a port that is a number or a name.
pub fn check_port(port: &Value, field: &str) -> Option<FieldError> {
    match port {
        Value::String(name) if is_port_name(name) => None,
        Value::String(_) => {
            let rule = "must contain only alphanumeric characters (a-z, 0-9), and hyphens (-)";
            Some(FieldError::invalid(field, port, rule))
        }
        port => check_port_number(port, field),
    }
}

/// Returns what is wrong with the number of a port.
pub fn check_port_number(port: &Value, field: &str) -> Option<FieldError> {
    let number = port.as_i64().unwrap_or_default();
    let is_valid = (1..=i64::from(u16::MAX)).contains(&number);
    (!is_valid).then(|| FieldError::invalid(field, &number.into(), PORT_RULE))
}
