//! Fields of CEL rules beside their expressions.

use serde_json::Value;

use super::rules;
use crate::FieldError;
use crate::field_path::find_declared_field;

/// Reasons that a CEL rule may give.
const RULE_REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// Checks the fields of CEL rules beside their expressions.
pub(crate) fn check_rule_fields(declared: &Value, path: &str, errors: &mut Vec<FieldError>) {
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
