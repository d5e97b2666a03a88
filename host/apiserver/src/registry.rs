//! Which kinds there are: the built-in ones and those of CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube_cel::CompiledSchema;
use serde_json::Value;

use crate::schema::Schema;
use crate::storage::Resource;

/// A printer column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `date`, …
    pub kind: String,
    /// Format hint, such as `name`.
    pub format: String,
    /// Words about it.
    pub description: String,
    /// 0 shows always, more only with `-o wide`.
    pub priority: i64,
    /// Where the value is.
    pub path: String,
}

/// One served version of a kind.
#[derive(Debug)]
pub struct Version {
    /// Name, such as `v1alpha1`.
    pub name: String,
    /// Whether requests for it are answered.
    pub served: bool,
    /// Its schema.
    pub schema: Schema,
    /// The schema as it was written, for OpenAPI.
    pub openapi: Value,
    /// Its CEL rules, if it has any.
    pub rules: Option<CompiledSchema>,
    /// Whether it has a status subresource.
    pub status: bool,
    /// Printer columns; `None` for the default ones.
    pub columns: Option<Vec<Column>>,
    /// Field selector paths beside name and namespace.
    pub selectable: Vec<String>,
}

/// A kind and everything that follows from it.
#[derive(Debug)]
pub struct Kind {
    /// Group and plural.
    pub resource: Resource,
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
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether a CustomResourceDefinition made it.
    pub custom: bool,
    /// Whether an update must name the resource version it is based on.
    pub conditional_update: bool,
    /// Whether `generation` counts changes of the spec.
    pub generations: bool,
    /// Version objects are stored in.
    pub storage_version: String,
    /// Versions, preferred first.
    pub versions: Vec<Version>,
}

impl Kind {
    /// A served version.
    pub fn version(&self, name: &str) -> Option<&Version> {
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

    /// What an error about an object of this kind is about.
    pub fn subject<'a>(&'a self, name: &'a str) -> crate::status::Subject<'a> {
        crate::status::Subject {
            group: &self.resource.group,
            resource: &self.resource.plural,
            kind: &self.kind,
            name,
        }
    }
}

/// All kinds.
#[derive(Debug)]
pub struct Registry {
    kinds: RwLock<BTreeMap<Resource, Arc<Kind>>>,
}

impl Registry {
    /// The built-in kinds.
    pub fn new() -> Self {
        let kinds = crate::builtin::kinds()
            .into_iter()
            .map(|kind| (kind.resource.clone(), Arc::new(kind)))
            .collect();
        Self {
            kinds: RwLock::new(kinds),
        }
    }

    /// A kind by group and plural.
    pub fn get(&self, group: &str, plural: &str) -> Option<Arc<Kind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&Resource::new(group, plural))
            .cloned()
    }

    /// A kind by resource.
    pub fn of(&self, resource: &Resource) -> Option<Arc<Kind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(resource)
            .cloned()
    }

    /// Every kind, by group and plural.
    pub fn all(&self) -> Vec<Arc<Kind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Adds or replaces a custom kind.
    pub fn put(&self, kind: Kind) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind.resource.clone(), Arc::new(kind));
    }

    /// Removes a custom kind.
    pub fn remove(&self, resource: &Resource) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(resource);
    }
}
