//! The registry of kinds: the built-in ones and those of CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::kind::ServedKind;
use crate::object::GroupResource;

/// All kinds.
#[derive(Debug)]
pub struct KindRegistry {
    kinds: RwLock<BTreeMap<GroupResource, Arc<ServedKind>>>,
}

impl KindRegistry {
    /// The built-in kinds.
    pub fn new() -> Self {
        let kinds = crate::builtin::builtin_kinds()
            .iter()
            .map(|kind| (kind.resource.clone(), kind.clone()))
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
    pub fn get(&self, group: &str, plural: &str) -> Option<Arc<ServedKind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&GroupResource::new(group, plural))
            .cloned()
    }

    /// A kind by resource.
    pub fn get_by_resource(&self, resource: &GroupResource) -> Option<Arc<ServedKind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(resource)
            .cloned()
    }

    /// Every kind, by group and plural.
    pub fn list_kinds(&self) -> Vec<Arc<ServedKind>> {
        self.kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Adds or replaces a custom kind.
    pub fn put_kind(&self, kind: ServedKind) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind.resource.clone(), Arc::new(kind));
    }

    /// Removes a custom kind.
    pub fn remove_kind(&self, resource: &GroupResource) {
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(resource);
    }
}
