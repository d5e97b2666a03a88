//! Structural OpenAPI schemas, as CustomResourceDefinitions declare them.
//!
//! A value is pruned ([`Schema::prune`]), completed with defaults ([`Schema::apply_defaults`]) and validated
//! ([`Schema::validate`]), in this order and with the error texts of the Kubernetes API server. [`check_structural`]
//! validates a schema itself. CEL rules (`x-kubernetes-validations`) are behind the feature `cel`.
//!
//! ```
//! use ostler_schema::Schema;
//! use serde_json::json;
//!
//! let schema = Schema::parse(&json!({
//!     "type": "object",
//!     "required": ["url"],
//!     "properties": {
//!         "url": {"type": "string", "pattern": "^https://"},
//!         "retries": {"type": "integer", "default": 3},
//!     },
//! }))?;
//! let mut value = json!({"url": "http://a"});
//! schema.apply_defaults(&mut value);
//! assert_eq!(value["retries"], 3);
//! let errors = schema.validate(&value);
//! assert_eq!(errors[0].field, "url");
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

mod complete;
mod defaulting;
mod field_error;
mod format;
mod pruning;
#[cfg(feature = "cel")]
mod rules;
mod schema;
mod structural;
mod validation;

pub use complete::{Completed, InvalidSchema, complete_value};
pub use field_error::FieldError;
#[cfg(feature = "cel")]
pub use rules::{Rules, TypeMeta};
pub use schema::{ListType, Pattern, Schema};
pub use structural::check_structural;

/// The path of a field below `parent`, which is empty at the root.
fn field_path(parent: &str, field: &str) -> String {
    if parent.is_empty() {
        field.to_owned()
    } else {
        format!("{parent}.{field}")
    }
}
