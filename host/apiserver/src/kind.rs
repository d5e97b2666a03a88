//! Kinds: resource names, versions with their schemas, and printer columns.

use ostler_schema::{FieldError, Rules, Schema, TypeMeta};
use serde_json::Value;

use crate::object::GroupResource;
use crate::status::ErrorSubject;

/// A printer column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `date`, …
    pub kind: String,
    /// Format hint, such as `name`.
    pub format: String,
    /// Description for `kubectl describe` and OpenAPI.
    pub description: String,
    /// Columns of a priority above 0 are shown with `-o wide` only.
    pub priority: i64,
    /// JSONPath of the value.
    pub path: String,
}

/// One served version of a kind.
#[derive(Debug)]
pub struct ServedVersion {
    /// Name, such as `v1alpha1`.
    pub name: String,
    /// True if the version is served.
    pub served: bool,
    /// The parsed schema.
    pub schema: Schema,
    /// The schema as declared, for OpenAPI.
    pub openapi: Value,
    /// The CEL rules, if there are any.
    pub rules: Option<Rules>,
    /// True with a status subresource.
    pub status: bool,
    /// Printer columns; `None` for the default ones.
    pub columns: Option<Vec<Column>>,
    /// Field selector paths beside name and namespace.
    pub selectable: Vec<String>,
}

/// A kind, with everything that requests on it need.
#[derive(Debug)]
pub struct ServedKind {
    /// Group and plural.
    pub resource: GroupResource,
    /// Kind.
    pub kind: String,
    /// Kind of a list.
    pub list_kind: String,
    /// Singular name.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// True for namespaced objects.
    pub namespaced: bool,
    /// True if a CustomResourceDefinition defines the kind.
    pub custom: bool,
    /// True if an update must contain the resource version that it is based on.
    pub conditional_update: bool,
    /// True if `generation` counts changes of the spec.
    pub generations: bool,
    /// Version in which objects are stored.
    pub storage_version: String,
    /// Versions, preferred first.
    pub versions: Vec<ServedVersion>,
}

impl ServedKind {
    /// A served version.
    pub fn version(&self, name: &str) -> Option<&ServedVersion> {
        self.versions
            .iter()
            .find(|version| version.served && version.name == name)
    }

    /// `GROUP/VERSION`, or the version alone for core.
    pub fn api_version(&self, version: &str) -> String {
        match self.resource.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// The subject of an error about an object of this kind.
    pub fn subject<'a>(&'a self, name: &'a str) -> ErrorSubject<'a> {
        ErrorSubject {
            group: &self.resource.group,
            resource: &self.resource.plural,
            kind: &self.kind,
            name,
        }
    }

    /// Everything about an object of a custom kind that violates the schema or the CEL rules of a version.
    pub fn validate(&self, version: &ServedVersion, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let errors = version.schema.validate(object);
        // Rules are written for values that fit the schema.
        match &version.rules {
            Some(rules) if errors.is_empty() => {
                let meta = TypeMeta {
                    group: self.resource.group.clone(),
                    api_version: self.api_version(&version.name),
                    kind: self.kind.clone(),
                };
                rules.validate(object, old, meta)
            }
            _ => errors,
        }
    }
}
