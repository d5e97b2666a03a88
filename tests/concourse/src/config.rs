//! Pipeline configs: read, normalised as Concourse's own types would write them, and validated.

mod schema;
mod steps;
mod validate;

use serde::Serialize;
use serde_json::Value;

pub use steps::{each_step, resource_of};
pub use validate::validate;

/// Something Concourse accepts but speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What it says.
    pub message: String,
}

/// Reads YAML (or JSON, which is YAML) and gives the config as `GET config` shows it.
pub fn parse(text: &str) -> Result<Value, String> {
    let value =
        yaml(text).map_err(|e| format!("malformed config: error converting YAML to JSON: yaml: {e}"))?;
    schema::config(value)
        .map_err(|e| format!("malformed config: error unmarshaling JSON: while decoding JSON: {e}"))
}

fn yaml(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map_or(1, |l| l.line());
        format!("line {line}: did not find expected node content")
    })
}

/// The warning about a name that is no identifier; an error for an empty one.
pub fn identifier(name: &str, context: &str) -> Result<Option<Warning>, String> {
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
