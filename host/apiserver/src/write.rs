//! A write: what it does, its parameters and its result.

use std::sync::Arc;

use serde_json::Value;

use crate::kind::{ServedKind, ServedVersion};
use crate::rbac::RequestUser;
use crate::request::PatchKind;
use crate::storage::StoredObject;

/// The handling of unknown fields (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped.
    Ignore,
    /// Dropped with a warning.
    Warn,
    /// WriteRefused.
    Strict,
}

/// The parameters of a write: kind, version, subresource and options.
#[derive(Debug, Clone)]
pub struct WriteParameters<'a> {
    /// The kind.
    pub kind: &'a ServedKind,
    /// The version.
    pub version: &'a ServedVersion,
    /// Subresource, empty for none.
    pub subresource: &'a str,
    /// `fieldManager`.
    pub manager: &'a str,
    /// `fieldValidation`.
    pub validation: FieldValidation,
    /// Responds without storing.
    pub dry_run: bool,
    /// Whoever sends the request; `None` for the administrator.
    pub requester: Option<RequestUser>,
}

/// A change of an existing object.
#[derive(Debug)]
pub enum Edit {
    /// Replace it.
    Replace(Value),
    /// Patch it.
    Patch(PatchKind, Value),
    /// Apply a configuration, perhaps by force.
    Apply(Value, bool),
}

/// The result of a write.
#[derive(Debug)]
pub struct WriteOutcome {
    /// The object, in the stored version.
    pub object: Arc<StoredObject>,
    /// True if the object is new.
    pub created: bool,
    /// Warnings for the response.
    pub warnings: Vec<String>,
}
