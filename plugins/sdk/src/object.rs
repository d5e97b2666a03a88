//! Kubernetes objects as a plugin sees them.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{Error, Gvk, ObjectRef, slim, slim::Error as Invalid};

/// The spec of a kind; [`macro@crate::resource`] implements it.
pub trait KindSpec: DeserializeOwned + Serialize {
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

    /// Reads the spec and the status (null when there is none) of an object. A status field that is not of its type
    /// counts as missing: another version of the plugin has written it, and the next reconcile writes it anew.
    #[doc(hidden)]
    fn read(spec: Value, status: Value) -> Result<(Self, Self::Status), Invalid> {
        let spec = slim::from_value(&spec).map_err(|error| error.within("spec"))?;
        Ok((spec, read_status(status)))
    }

    /// Group, version and kind together.
    fn gvk() -> Gvk {
        gvk(Self::GROUP, Self::VERSION, Self::KIND)
    }

    /// Names one object of this kind.
    fn reference(namespace: &str, name: &str) -> ObjectRef {
        Self::gvk().named(namespace, name)
    }
}

/// The name of the host's own cluster in references, lists and writes. It is another one than that of the reconciled object
/// where the plugin has a home cluster (`spec.cluster` of its `Plugin`), and the same otherwise.
pub const IN_CLUSTER: &str = "in-cluster";

/// Label of an owned object, with the UID of its owner. The host sets it on what is applied or created as owned, and watches
/// owned objects by it: a list that selects it reads children without a watch of their whole kind.
pub const OWNER_UID_LABEL: &str = "ostler.dev/owner-uid";

impl ObjectRef {
    /// Names the object on another cluster: `namespace/name` of its `Cluster`, `name` in the namespace of the reconciled
    /// object, or [`IN_CLUSTER`].
    #[must_use]
    pub fn on_cluster(self, cluster: &str) -> Self {
        Self {
            cluster: Some(cluster.into()),
            ..self
        }
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
#[derive(Clone, Debug)]
pub struct Object<S: KindSpec> {
    /// Name, namespace and so on.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: S,
    /// Observed state at the last reconcile.
    pub status: S::Status,
}

impl<S: KindSpec> Object<S> {
    /// Reads an object, field by field: serde's code for all of it is larger.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut object = slim::value(bytes)?;
        let mut part = |name| object.get_mut(name).map(Value::take).unwrap_or_default();
        let (spec, status) = S::read(part("spec"), part("status"))?;
        Ok(Self {
            metadata: ObjectMeta::read(part("metadata")),
            spec,
            status,
        })
    }

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
#[derive(Clone, Debug, Default)]
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
    pub labels: Map<String, Value>,
    /// Annotations.
    pub annotations: Map<String, Value>,
    /// Creation of the object (RFC 3339).
    pub creation_timestamp: Option<String>,
    /// Set when the object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owner_references: Vec<OwnerReference>,
}

impl ObjectMeta {
    fn read(mut metadata: Value) -> Self {
        let map = |value: Option<&mut Value>| match value.map(Value::take) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        Self {
            labels: map(metadata.get_mut("labels")),
            annotations: map(metadata.get_mut("annotations")),
            name: text_field(&metadata, "name"),
            namespace: text_field(&metadata, "namespace"),
            uid: text_field(&metadata, "uid"),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            resource_version: text_field(&metadata, "resourceVersion"),
            creation_timestamp: metadata["creationTimestamp"].as_str().map(Into::into),
            deletion_timestamp: metadata["deletionTimestamp"].as_str().map(Into::into),
            finalizers: array_items(&metadata, "finalizers")
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            owner_references: array_items(&metadata, "ownerReferences")
                .map(OwnerReference::read)
                .collect(),
        }
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)?.as_str()
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name)?.as_str()
    }
}

/// An owner of an object.
#[derive(Clone, Debug, Default)]
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

impl OwnerReference {
    fn read(owner: &Value) -> Self {
        Self {
            api_version: text_field(owner, "apiVersion"),
            kind: text_field(owner, "kind"),
            name: text_field(owner, "name"),
            uid: text_field(owner, "uid"),
            controller: owner["controller"].as_bool().unwrap_or_default(),
        }
    }
}

fn text_field(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

fn array_items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// Reads JSON, such as a part of [`Context::get_json`](crate::Context::get_json)'s object, as a type. It takes less code
/// than `serde_json::from_value`.
///
/// # Errors
/// `Error::Invalid` with the path of the field that is not of the type.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    slim::from_value(value).map_err(|error| Error::Invalid(error.to_string()))
}

/// Reads a status without the fields that are not of their type.
fn read_status<T: DeserializeOwned + Default>(mut status: Value) -> T {
    loop {
        let error = match slim::from_value(&status) {
            Ok(read) => return read,
            Err(error) => error,
        };
        if !clear_field(&mut status, &error) {
            return T::default();
        }
    }
}

/// Clears the field that an error names. Returns whether there was one. Null means the same as a missing field, and takes
/// less code than removing one from a map.
#[cold]
fn clear_field(object: &mut Value, error: &Invalid) -> bool {
    let field = object
        .as_object_mut()
        .and_then(|fields| fields.get_mut(error.first_field()));
    field.is_some_and(|field| !std::mem::take(field).is_null())
}

/// Status of a kind without status fields of its own.
#[crate::api]
#[derive(Default)]
pub struct NoStatus {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thing.
    #[crate::resource(group = "g", version = "v1", kind = "Thing", namespaced)]
    struct ThingSpec {
        /// Its name.
        name: String,
    }

    /// Status of a thing.
    #[crate::api]
    #[derive(Default)]
    struct ThingStatus {
        /// A number.
        count: Option<i32>,
        /// Texts.
        names: Vec<String>,
        /// A nested value.
        inner: Option<Box<ThingStatus>>,
    }

    #[test]
    fn status_field_of_another_type_counts_as_missing() {
        let read = |status: Value| read_status::<ThingStatus>(status);
        let full =
            serde_json::json!({ "count": "3", "names": ["a"], "inner": { "names": [{}] }, "other": 1 });
        let expected = ThingStatus {
            names: vec!["a".into()],
            ..ThingStatus::default()
        };
        assert_eq!(read(full), expected);
        for whole in [Value::Null, serde_json::json!("x"), serde_json::json!({})] {
            assert_eq!(read(whole), ThingStatus::default());
        }
    }

    #[test]
    fn object_is_parsed_with_and_without_optional_metadata() {
        let read = |text: &str| Object::<ThingSpec>::read(text.as_bytes());
        let full = read(
            r#"{"metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": 3,
                "resourceVersion": "7", "labels": {"l": "1"}, "annotations": {"x": "2"},
                "creationTimestamp": "2025-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f/f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "i",
                "controller": true}]}, "spec": {"name": "x"}, "status": {}}"#,
        )
        .expect("an object");
        let meta = &full.metadata;
        assert_eq!((full.name(), full.namespace(), &*meta.uid), ("a", "n", "u"));
        assert_eq!((meta.generation, &*meta.resource_version), (3, "7"));
        assert_eq!(meta.label("l"), Some("1"));
        assert_eq!((meta.annotation("x"), meta.annotation("l")), (Some("2"), None));
        assert_eq!(meta.creation_timestamp.as_deref(), Some("2025-01-01T00:00:00Z"));
        assert_eq!(meta.deletion_timestamp.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(meta.finalizers, ["f/f"]);
        assert_eq!(meta.owner_references[0].api_version, "v1");
        assert!(meta.owner_references[0].controller);

        let least = read(r#"{"metadata": {"name": "a"}, "spec": {"name": "x"}}"#);
        assert_eq!(least.expect("an object").namespace(), "");

        let wrong = |text: &str| read(text).expect_err("no object").to_string();
        assert_eq!(wrong(r#"{"spec": {}}"#), "spec: missing field `name`");
        assert_eq!(wrong(r#"{"spec": {"name": 1}}"#), "spec.name: expected a string");
        assert_eq!(wrong("{}"), "spec: expected an object");
        assert!(wrong("{").starts_with("EOF"));
    }
}
