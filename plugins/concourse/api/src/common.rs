//! Types that the specs of several kinds share.

use std::ops::Deref;

use ostler_sdk::{KindSpec, Object, api};

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
pub trait NamedSpec: KindSpec {
    /// The name that the spec sets; none if the object's own name is used.
    fn name_override(&self) -> Option<&str>;
}

/// The name in Concourse of what an object stands for: the one its spec sets, or else the object's own.
#[must_use]
pub fn concourse_name<S: NamedSpec>(object: &Object<S>) -> &str {
    let name = object.spec.name_override();
    name.filter(|name| !name.is_empty()).unwrap_or(object.name())
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
