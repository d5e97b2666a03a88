//! Types that the specs of several kinds share.

use std::{fmt, ops::Deref};

use ostler_sdk::{Object, ObjectRef, Resource, api};

/// A reference to another object, in the same namespace unless the reference names one.
#[api]
pub struct Reference {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Namespace of the object; defaults to the namespace of the referring object.
    #[schemars(length(min = 1))]
    pub namespace: Option<String>,
}

impl Reference {
    /// The namespace of the referenced object, given the namespace of the referring one.
    #[must_use]
    pub fn namespace_or<'a>(&'a self, own_namespace: &'a str) -> &'a str {
        let namespace = self
            .namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty());
        namespace.unwrap_or(own_namespace)
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

/// Namespace and name of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacedName<'a> {
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

impl<'a> NamespacedName<'a> {
    /// Namespace and name of this object.
    #[must_use]
    pub fn of<S: Resource>(object: &'a Object<S>) -> Self {
        Self {
            namespace: object.namespace(),
            name: object.name(),
        }
    }

    /// The object of kind `S` that has this namespace and name.
    #[must_use]
    pub fn object_ref<S: Resource>(self) -> ObjectRef {
        S::reference(self.namespace, self.name)
    }
}

impl fmt::Display for NamespacedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A name in Concourse.
#[api]
#[serde(transparent)]
#[schemars(extend(
    "minLength" = 1,
    "maxLength" = 100,
    "pattern" = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
))]
pub struct ConcourseName(pub String);

impl Deref for ConcourseName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A spec whose object stands for something that has a name in Concourse.
pub trait NamedSpec: Resource {
    /// The name that the spec sets; none if the object's own name is used.
    fn name_override(&self) -> Option<&str>;
}

/// The name in Concourse of what an object stands for: the one its spec sets, or else the object's own.
#[must_use]
pub fn concourse_name<S: NamedSpec>(object: &Object<S>) -> &str {
    let name = object.spec.name_override();
    name.filter(|name| !name.is_empty()).unwrap_or(object.name())
}

/// A key of a Secret in the object's own namespace.
#[api]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// A key of a ConfigMap in the object's own namespace.
#[api]
pub struct ConfigMapKey {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the ConfigMap.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Decides what happens to the counterpart in Concourse when an object is deleted.
#[api]
#[derive(Copy, Default)]
pub enum ReclaimPolicy {
    /// The counterpart in Concourse is deleted, too.
    #[default]
    Delete,
    /// The counterpart stays in Concourse.
    Orphan,
}

/// A container image.
#[api]
pub struct ContainerImage {
    /// Repository of the image, without the tag.
    #[schemars(length(min = 1))]
    pub repository: String,
    /// Tag of the image; defaults to `latest`.
    pub tag: Option<String>,
}
