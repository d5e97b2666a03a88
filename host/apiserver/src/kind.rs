//! Kinds: resource names, versions with their schemas, and printer columns.

use ostler_schema::{FieldError, ROOT_PATH, Rules, SchemaNode, TypeMeta};
use serde_json::Value;

use crate::metadata::validate_embedded_metadata;
use crate::object::GroupResource;
use crate::scale::ScalePaths;
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
    pub schema: SchemaNode,
    /// The schema as declared, for OpenAPI; null for a built-in kind.
    pub openapi: Value,
    /// The CEL rules, if there are any.
    pub rules: Option<Rules>,
    /// True with a status subresource.
    pub status: bool,
    /// Places of the replicas, with a scale subresource.
    pub scale: Option<ScalePaths>,
    /// Printer columns; `None` for the default ones, and for a built-in kind, whose columns are in [`crate::builtin_table`].
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
    /// True if the definition is being deleted: nothing new is accepted.
    pub terminating: bool,
    /// Generation of the definition; 0 for a built-in kind.
    pub generation: i64,
    /// True if an update must contain the resource version that it is based on.
    pub conditional_update: bool,
    /// True if `generation` counts changes of the spec.
    pub generations: bool,
    /// Version in which objects are stored.
    pub storage_version: String,
    /// Versions, preferred first.
    pub versions: Vec<ServedVersion>,
}

impl ServedVersion {
    /// Drops unknown fields of an object that was written before the schema or in another version, and applies defaults.
    pub fn complete_object(&self, object: &mut Value) {
        self.schema.prune(object);
        self.schema.apply_defaults(object);
    }
}

impl ServedKind {
    /// A served version.
    pub fn version(&self, name: &str) -> Option<&ServedVersion> {
        self.versions
            .iter()
            .find(|version| version.served && version.name == name)
    }

    /// The version in which objects are stored, which need not be served.
    pub fn stored_version(&self) -> Option<&ServedVersion> {
        self.versions
            .iter()
            .find(|version| version.name == self.storage_version)
    }

    /// Returns true for the built-in kind that defines the others.
    pub fn is_definition(&self) -> bool {
        !self.custom && self.kind == "CustomResourceDefinition"
    }

    /// Returns true if a write to the status changes the metadata, too, as of most built-in kinds.
    pub fn writes_metadata_with_status(&self) -> bool {
        let groups = ["", "apps", "autoscaling", "batch", "networking.k8s.io", "policy"];
        !self.custom && groups.contains(&self.resource.group.as_str())
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

    /// Everything about an object of a custom kind that violates the schema or the CEL rules of a version. What is unchanged
    /// since `old` may violate a schema that has become stricter. `metadata_errors` are those that are known already.
    pub fn validate(
        &self,
        version: &ServedVersion,
        object: &Value,
        old: Option<&Value>,
        is_status: bool,
        metadata_errors: &[FieldError],
    ) -> Vec<FieldError> {
        let schema = &version.schema;
        let mut errors = if is_status {
            // A null in the place of a missing status changes nothing.
            let old = old.map(|old| old.get("status").unwrap_or(&Value::Null));
            let status = object.get("status").zip(schema.field("status"));
            status.map_or_else(Vec::new, |(status, schema)| {
                schema.validate_at(status, old, "status")
            })
        } else {
            schema.validate_change(object, old)
        };
        if let Some(scale) = &version.scale {
            errors.extend(scale.validate(object));
        }
        errors.extend(self.validate_structure(version, object, old, &[metadata_errors, &errors].concat()));
        errors
    }

    /// Everything that embedded objects, keyed lists and CEL rules find wrong with an object. Rules are evaluated unless one of the
    /// `known` errors, or one that is found before, is of a kind that forbids it.
    pub fn validate_structure(
        &self,
        version: &ServedVersion,
        object: &Value,
        old: Option<&Value>,
        known: &[FieldError],
    ) -> Vec<FieldError> {
        let schema = &version.schema;
        let mut errors = schema.validate_embedded(object, &validate_embedded_metadata);
        if old.is_none_or(|old| schema.validate_list_types(old).is_empty()) {
            errors.extend(schema.validate_list_types(object));
        }
        if let Some(rules) = &version.rules {
            if errors.iter().chain(known).any(blocks_rules) {
                let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
                errors.push(FieldError::invalid(ROOT_PATH, &Value::Null, why));
            } else {
                let meta = TypeMeta {
                    group: self.resource.group.clone(),
                    api_version: self.api_version(&version.name),
                    kind: self.kind.clone(),
                };
                errors.extend(rules.validate(object, old, meta));
            }
        }
        errors
    }
}

/// Returns true for an error after which rules, which are written for values that fit the schema, are not evaluated.
fn blocks_rules(error: &FieldError) -> bool {
    matches!(
        error.reason,
        "FieldValueNotSupported"
            | "FieldValueRequired"
            | "FieldValueTooLong"
            | "FieldValueTooMany"
            | "FieldValueTypeInvalid"
    )
}
