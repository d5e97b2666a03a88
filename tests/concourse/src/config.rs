//! Pipeline configs: parsing, normalization to the JSON of Concourse's own types, and validation.

mod schema;
mod steps;
mod validate;

use serde::Serialize;
use serde_json::Value;

pub use steps::{step_resource, visit_steps};
pub use validate::validate_config;

/// A warning about something that Concourse accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Type of the warning.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Text of the warning.
    pub message: String,
}

/// Parses YAML (or JSON) into the config that `GET config` shows.
pub fn parse_config(text: &str) -> Result<Value, String> {
    let value = parse_yaml(text)
        .map_err(|e| format!("malformed config: error converting YAML to JSON: yaml: {e}"))?;
    schema::read_config(value)
        .map_err(|e| format!("malformed config: error unmarshaling JSON: while decoding JSON: {e}"))
}

fn parse_yaml(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map_or(1, |l| l.line());
        format!("line {line}: did not find expected node content")
    })
}

/// Returns a warning for a name that is not a valid identifier, and an error for an empty one.
pub fn check_identifier(name: &str, context: &str) -> Result<Option<Warning>, String> {
    let fits = |c: char| c.is_numeric() || c.is_alphabetic() && !c.is_uppercase();
    let Some(first) = name.chars().next() else {
        return Err(format!("{context}: identifier cannot be an empty string"));
    };
    let reason = if !fits(first) {
        "must start with a lowercase letter or a number".to_owned()
    } else if let Some(bad) = name.chars().find(|c| !fits(*c) && !"-_.".contains(*c)) {
        format!("illegal character '{bad}'")
    } else {
        return Ok(None);
    };
    Ok(Some(Warning {
        kind: "invalid_identifier",
        message: format!("{context}: '{name}' is not a valid identifier: {reason}"),
    }))
}

#[cfg(test)]
mod tests;
