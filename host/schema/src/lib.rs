//! Structural OpenAPI schemas, as CustomResourceDefinitions declare them.
//!
//! A value is pruned ([`Schema::prune`]), completed with defaults ([`Schema::apply_defaults`]) and validated
//! ([`Schema::validate`]), in this order and with the error texts of the Kubernetes API server. [`check_definition`]
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
mod embedded;
mod field_error;
mod field_path;
mod format;
mod keywords;
mod list_type;
mod pruning;
mod rule;
mod schema;
mod structural;
mod typing;
mod validation;

pub use complete::{Completed, InvalidSchema, complete_value};
pub use field_error::{FieldError, ROOT_PATH};
pub use field_path::find_declared_field;
pub use format::{is_dns_label, is_dns_subdomain};
#[cfg(feature = "cel")]
pub use rule::{Rules, TypeMeta};
pub use schema::{AdditionalProperties, LazySchema, ListType, Pattern, Schema, SchemaNode};
pub use structural::{check_definition, check_structural};
pub use typing::MICRO_TIME;

use field_path::field_path;
