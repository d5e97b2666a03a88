//! Objects as they are kept, their names, and what happens to them.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

/// Group and plural name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// API group, empty for core.
    pub group: String,
    /// Plural resource name.
    pub plural: String,
}

impl GroupResource {
    /// A resource by its names.
    pub fn new(group: &str, plural: &str) -> Self {
        Self {
            group: group.into(),
            plural: plural.into(),
        }
    }
}

/// Namespace (empty for cluster scope) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredKey {
    /// Namespace, empty for cluster scope.
    pub namespace: String,
    /// Object name.
    pub name: String,
}

impl StoredKey {
    /// A key by its names.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// An object as stored.
#[derive(Debug)]
pub struct StoredObject {
    /// The whole object.
    pub value: Value,
    /// Its `resourceVersion`.
    pub revision: u64,
    json: OnceLock<Bytes>,
}

impl StoredObject {
    pub fn new(mut value: Value, revision: u64) -> Arc<Self> {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        Arc::new(Self {
            value,
            revision,
            json: OnceLock::new(),
        })
    }

    /// The object that a dry run would have stored; revision 0 stands for a new object, which has none.
    pub fn preview(mut value: Value, revision: u64) -> Self {
        match value["metadata"].as_object_mut() {
            Some(metadata) if revision == 0 => drop(metadata.remove("resourceVersion")),
            _ => value["metadata"]["resourceVersion"] = revision.to_string().into(),
        }
        Self {
            value,
            revision,
            json: OnceLock::new(),
        }
    }

    /// The object as JSON text in its stored version, made once.
    pub fn json(&self) -> &Bytes {
        self.json.get_or_init(|| Bytes::from(self.value.to_string()))
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }

    /// Returns `true` if the object has a deletion timestamp.
    pub fn is_terminating(&self) -> bool {
        self.value["metadata"]["deletionTimestamp"].is_string()
    }

    /// The object's key.
    pub fn key(&self) -> StoredKey {
        let metadata = &self.value["metadata"];
        StoredKey::new(
            metadata["namespace"].as_str().unwrap_or_default(),
            metadata["name"].as_str().unwrap_or_default(),
        )
    }
}

/// One write.
#[derive(Debug)]
pub struct ObjectWrite {
    /// Revision of the write.
    pub revision: u64,
    /// The object after it; for a deletion, the last state at the deletion's revision.
    pub object: Arc<StoredObject>,
    /// The object before it.
    pub previous: Option<Arc<StoredObject>>,
    /// True for a deletion.
    pub deleted: bool,
}

/// The time as the API writes it.
pub fn current_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn metadata_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Iterates over the items of a list in an object; none if it has no such list.
pub fn items_mut<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = object.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten()
}

pub fn set_field(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    match value {
        Some(value) => fields.insert(field.to_owned(), value),
        None => fields.remove(field),
    };
}

/// Current time after some seconds, or before them if they are negative.
pub fn time_after(seconds: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns `true` if nothing keeps an object in deletion from being removed: neither a finalizer nor the grace period of a
/// pod, at whose end its kubelet deletes it without one.
pub fn is_removable(object: &Value) -> bool {
    let grace = &object["metadata"]["deletionGracePeriodSeconds"];
    !has_finalizers(object) && grace.as_i64().unwrap_or_default() == 0
}

/// Returns `true` if finalizers keep the object from being removed.
pub fn has_finalizers(object: &Value) -> bool {
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let namespace = object["kind"] == "Namespace" && object["apiVersion"] == "v1";
    any(&object["metadata"]["finalizers"]) || (namespace && any(&object["spec"]["finalizers"]))
}
