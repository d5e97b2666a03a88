//! References to objects, for the fields of specs.

use std::fmt;

use crate::{KindSpec, Object, ObjectRef, api};

/// A reference to another object, in the same namespace unless the reference names one.
#[api]
pub struct Reference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the object; defaults to the namespace of the referring object.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// A reference to another object in the same namespace.
#[api]
pub struct LocalReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A key of a Secret in the object's own namespace.
#[api]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Namespace and name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacedName<'a> {
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

impl Reference {
    /// The namespace of the referenced object, given the namespace of the referring one.
    #[must_use]
    pub fn namespace_or<'a>(&'a self, own_namespace: &'a str) -> &'a str {
        let namespace = self.namespace.as_deref();
        namespace
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or(own_namespace)
    }

    /// The referenced object's namespace and name, given the namespace of the referring one.
    #[must_use]
    pub fn resolve<'a>(&'a self, own_namespace: &'a str) -> NamespacedName<'a> {
        NamespacedName {
            namespace: self.namespace_or(own_namespace),
            name: &self.name,
        }
    }
}

impl<'a> NamespacedName<'a> {
    /// Namespace and name of this object.
    #[must_use]
    pub fn of<S: KindSpec>(object: &'a Object<S>) -> Self {
        Self {
            namespace: object.namespace(),
            name: object.name(),
        }
    }

    /// The object of kind `S` that has this namespace and name.
    #[must_use]
    pub fn object_ref<S: KindSpec>(self) -> ObjectRef {
        S::reference(self.namespace, self.name)
    }
}

impl fmt::Display for NamespacedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
