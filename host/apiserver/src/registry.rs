//! The registry of kinds: the built-in ones and those of CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::kind::Kind;
use crate::object::Resource;

/// All kinds.
#[derive(Debug)]
pub struct Registry {
    kinds: RwLock<BTreeMap<Resource, Arc<Kind>>>,
}

impl Registry {
    /// The built-in kinds.
    pub fn new() -> Self {
        let kinds = crate::builtin::builtin_kinds()
            .into_iter()
            .map(|kind| (kind.resource.clone(), Arc::new(kind)))
            .collect();
        Self {
            kinds: RwLock::new(kinds),
        }
    }

    /// Takes the kinds of another registry in place of its own.
    pub fn restore(&self, other: &Self) {
        let kinds = other.kinds.read().unwrap_or_else(PoisonError::into_inner);
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&kinds);
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
    pub fn get_by_resource(&self, resource: &Resource) -> Option<Arc<Kind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(resource)
            .cloned()
    }

    /// Every kind, by group and plural.
    pub fn list_kinds(&self) -> Vec<Arc<Kind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Adds or replaces a custom kind.
    pub fn put_kind(&self, kind: Kind) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind.resource.clone(), Arc::new(kind));
    }

    /// Removes a custom kind.
    pub fn remove_kind(&self, resource: &Resource) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(resource);
    }
}
