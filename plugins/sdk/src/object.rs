//! Kubernetes objects as a plugin sees them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

use crate::{Gvk, ObjectRef};

/// The spec of a kind; [`macro@crate::resource`] implements it.
pub trait Resource: DeserializeOwned + Serialize {
    /// API group; empty for the core group.
    const GROUP: &'static str;
    /// API version.
    const VERSION: &'static str;
    /// Kind.
    const KIND: &'static str;
    /// Lives in a namespace.
    const NAMESPACED: bool;
    /// The status fields the plugin itself writes.
    type Status: DeserializeOwned + Serialize + Default;

    /// Group, version and kind together.
    fn gvk() -> Gvk {
        gvk(Self::GROUP, Self::VERSION, Self::KIND)
    }

    /// Names one object of this kind.
    fn reference(namespace: &str, name: &str) -> ObjectRef {
        Self::gvk().named(namespace, name)
    }
}

/// A kind; the core group is the empty string.
#[must_use]
pub fn gvk(group: &str, version: &str, kind: &str) -> Gvk {
    Gvk {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
    }
}

impl Gvk {
    /// Names one object of this kind; an empty namespace for cluster scope.
    #[must_use]
    pub fn named(self, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef {
            gvk: self,
            cluster: None,
            namespace: (!namespace.is_empty()).then(|| namespace.into()),
            name: name.into(),
        }
    }

    /// `group/version`, as `apiVersion` has it.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => [group, "/", &self.version].concat(),
        }
    }
}

/// An object of a kind whose spec is `S`.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "S: Resource")]
pub struct Object<S: Resource> {
    /// Name, namespace and so on.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: S,
    /// What was found last time.
    #[serde(default)]
    pub status: S::Status,
}

impl<S: Resource> Object<S> {
    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The object's namespace; empty for cluster scope.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    /// Names this object.
    #[must_use]
    pub fn reference(&self) -> ObjectRef {
        S::reference(self.namespace(), self.name())
    }
}

/// The metadata a plugin has a use for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name.
    pub name: String,
    /// Namespace; empty for cluster scope.
    pub namespace: String,
    /// Identity, different for a later object of the same name.
    pub uid: String,
    /// Rises with every change of the spec.
    pub generation: i64,
    /// Changes with every write.
    pub resource_version: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Set when the object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owner_references: Vec<OwnerReference>,
}

/// An owner of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// `group/version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
    /// The one that manages it.
    pub controller: bool,
}

/// What was found last.
#[crate::api]
#[derive(Default)]
pub struct NoStatus {}
