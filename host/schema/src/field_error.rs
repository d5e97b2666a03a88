//! Field errors: one violated rule each, in the words of the Kubernetes API server.

use std::fmt;

use serde_json::Value;

use crate::field_path::join_path;

/// A violated rule, as in the causes of a 422 `Invalid` response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Field path, such as `spec.url`.
    pub field: String,
    /// Reason, such as `FieldValueRequired`.
    pub reason: &'static str,
    /// Explanation, without the field path.
    pub message: String,
}

/// Path of the root, as the API server prints it.
pub const ROOT_PATH: &str = "<nil>";

impl FieldError {
    /// The error at the path of its value in another one.
    pub fn below(self, path: &str) -> Self {
        let field = match self.field.as_str() {
            ROOT_PATH => path.to_owned(),
            field => join_path(path, field),
        };
        Self { field, ..self }
    }

    /// `Required value: …`; the explanation may be empty.
    pub fn required(field: &str, explanation: &str) -> Self {
        let message = if explanation.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {explanation}")
        };
        Self::new(field, "FieldValueRequired", message)
    }

    /// `Invalid value: "x": …`.
    pub fn invalid(field: &str, value: &Value, explanation: impl fmt::Display) -> Self {
        let message = format!("Invalid value: {value}: {explanation}");
        Self::new(field, "FieldValueInvalid", message)
    }

    /// `Forbidden: …`.
    pub fn forbidden(field: &str, explanation: impl fmt::Display) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {explanation}"))
    }

    /// `Unsupported value: "x": supported values: "a", "b"`.
    pub fn unsupported(field: &str, value: &Value, supported: &[Value]) -> Self {
        let supported: Vec<String> = supported.iter().map(Value::to_string).collect();
        let message = format!(
            "Unsupported value: {value}: supported values: {}",
            supported.join(", ")
        );
        Self::new(field, "FieldValueNotSupported", message)
    }

    /// `Not found: …`.
    pub fn not_found(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {value}"))
    }

    /// `Duplicate value: …`.
    pub fn duplicate(field: &str, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {value}"))
    }

    /// `Invalid value: "integer": …`: the API server prints the found type in the place of the value.
    pub fn wrong_type(field: &str, found: &str, expected: &str) -> Self {
        let message =
            format!("Invalid value: \"{found}\": {field} in body must be of type {expected}: \"{found}\"");
        Self::new(field, "FieldValueTypeInvalid", message)
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(field: &str, limit: i64) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self::new(field, "FieldValueTooLong", message)
    }

    /// `Too many: N: must have at most M items`.
    pub fn too_many(field: &str, found: usize, limit: i64) -> Self {
        let message = format!("Too many: {found}: must have at most {limit} items");
        Self::new(field, "FieldValueTooMany", message)
    }

    pub(crate) fn new(field: &str, reason: &'static str, message: String) -> Self {
        Self {
            field: field.to_owned(),
            reason,
            message,
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
