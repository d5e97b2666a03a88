//! Validation of a value that is not a Kubernetes object, such as a plugin's configuration.

use serde_json::{Value, json};

use crate::keywords::subschemas;
use crate::{FieldError, Schema};

/// A value with its defaults, and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    /// The value: defaults are filled in, unknown fields are pruned.
    pub value: Value,
    /// Unknown fields first, then violated rules.
    pub errors: Vec<FieldError>,
}

/// A declaration that cannot be used as a schema.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSchema {
    /// A keyword has a value of the wrong type.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// CEL rules, which are evaluated for CustomResourceDefinitions only.
    #[error(
        "{0}.x-kubernetes-validations: CEL rules are not evaluated here; use `pattern`, `enum`, `minimum` or `oneOf`"
    )]
    Rules(String),
}

/// Prunes, completes and validates a value by a structural schema.
///
/// Field paths in the errors start with `name`. Unknown fields are errors, since a misspelt field would otherwise be
/// dropped without a trace.
pub fn complete_value(name: &str, value: Value, declared: &Value) -> Result<Completed, InvalidSchema> {
    if let Some(path) = find_rules(declared, name) {
        return Err(InvalidSchema::Rules(path));
    }
    // Wrapped in an object, so that the value's own default applies and that paths start with its name.
    let root = Schema::parse(&json!({"type": "object", "properties": {name: declared}}))?;
    let mut wrapped = json!({name: value});
    let unknown_fields = root.prune(&mut wrapped);
    root.apply_defaults(&mut wrapped);
    let mut errors: Vec<FieldError> = unknown_fields
        .iter()
        .map(|field| FieldError::new(field, "FieldValueInvalid", "unknown field".to_owned()))
        .collect();
    errors.extend(root.validate(&wrapped));
    Ok(Completed {
        value: wrapped[name].take(),
        errors,
    })
}

/// The path of the first schema that has CEL rules. Ignoring them would accept values that their author forbids.
fn find_rules(declared: &Value, path: &str) -> Option<String> {
    if !declared.is_object() {
        return None;
    }
    if !declared["x-kubernetes-validations"].is_null() {
        return Some(path.to_owned());
    }
    subschemas(declared).find_map(|(name, schema)| find_rules(schema, &crate::field_path(path, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_value_with_default_is_completed() {
        let declared = json!({"type": "object", "default": {}, "properties": {
            "times": {"type": "integer", "default": 3},
        }});
        let completed = complete_value("retry", json!({}), &declared).unwrap();
        assert_eq!(completed.value, json!({"times": 3}));
        assert_eq!(completed.errors, []);
    }

    #[test]
    fn unknown_field_is_an_error_with_its_path() {
        let declared = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let completed = complete_value("config", json!({"a": "x", "b": 1}), &declared).unwrap();
        let errors: Vec<String> = completed.errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors[0], "config.b: unknown field");
        assert!(errors[1].starts_with("config.a: Invalid value"), "{errors:?}");
    }

    #[test]
    fn schema_with_cel_rules_is_refused() {
        let declared = json!({"type": "object", "properties": {"list": {"type": "array", "items": {
            "type": "object", "x-kubernetes-validations": [{"rule": "self.a > 1"}],
        }}}});
        let error = complete_value("config", json!({}), &declared).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("config.list.items.x-kubernetes-validations:"),
            "{error}"
        );
    }

    #[test]
    fn malformed_schema_is_refused() {
        let error = complete_value("config", json!({}), &json!({"type": 7})).unwrap_err();
        assert!(matches!(error, InvalidSchema::Malformed(_)), "{error}");
    }
}
