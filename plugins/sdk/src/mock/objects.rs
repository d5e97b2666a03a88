//! The objects of the simulated clusters: their keys, patches and selectors.

use ostler_selector::{FieldSelector, LabelSelector};
use serde_json::Value;

use super::Key;
use crate::{
    Error, IN_CLUSTER, ObjectRef, Preconditions, Projection,
    bindings::ostler::plugin::kubernetes::ListOptions,
};

/// Writes a reference as `Kind namespace/name`.
pub(super) fn format_reference(reference: &ObjectRef) -> String {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    format!("{} {namespace}/{}", reference.gvk.kind, reference.name)
}

pub(super) fn object_key(reference: &ObjectRef) -> Key {
    (
        reference.gvk.group.clone(),
        reference.gvk.kind.clone(),
        reference.namespace.clone().unwrap_or_default(),
        reference.name.clone(),
        name_cluster(reference.cluster.as_deref()).to_owned(),
    )
}

/// The name of a cluster in keys. The mock's objects are on the host's own cluster.
pub(super) fn name_cluster(cluster: Option<&str>) -> &str {
    cluster
        .filter(|cluster| *cluster != IN_CLUSTER)
        .unwrap_or_default()
}

/// The end of the line of a write to another cluster.
pub(super) fn format_cluster(cluster: &str) -> String {
    match cluster {
        "" => String::new(),
        cluster => format!(" on {cluster}"),
    }
}

pub(super) fn key_of(object: &Value) -> Key {
    key_on(None, object)
}

pub(super) fn key_on(cluster: Option<&str>, object: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let group = api_version
        .rsplit_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    let kind = text(&object["kind"]);
    assert!(!kind.is_empty(), "an object without a kind: {object}");
    let metadata = &object["metadata"];
    (
        group,
        kind,
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        name_cluster(cluster).to_owned(),
    )
}

/// Entry of an inventory, for example `Deployment.v1.apps fleet/east apps/web`.
pub(super) fn format_entry(object: &Value, (group, kind, namespace, name, cluster): &Key) -> String {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let version = api_version
        .rsplit_once('/')
        .map_or(api_version, |(_, version)| version);
    let group = if group.is_empty() {
        String::new()
    } else {
        format!(".{group}")
    };
    format!("{kind}.{version}{group} {cluster} {namespace}/{name}")
}

pub(super) fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = &mut object["metadata"]["finalizers"];
    let mut all = finalizers.as_array().cloned().unwrap_or_default();
    if !all.iter().any(|known| known == finalizer) {
        all.push(finalizer.into());
    }
    *finalizers = all.into();
}

pub(super) fn merge_applied(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_applied(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Raises the resourceVersion of an object that has one, as each write does.
pub(super) fn raise_version(object: &mut Value) {
    let version = object["metadata"]["resourceVersion"].as_str();
    if let Some(version) = version.and_then(|version| version.parse::<u64>().ok()) {
        object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    }
}

/// Applies a JSON merge patch, which removes the fields that are null (RFC 7386).
pub fn merge_patch(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(serde_json::Map::new());
    }
    let Value::Object(into) = into else { return };
    for (key, value) in patch {
        if value.is_null() {
            into.remove(key);
        } else {
            merge_patch(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Sets the resources of containers as the subresource `resize` does: of a patch it takes nothing else.
pub(super) fn resize_containers(pod: &mut Value, patch: &Value) {
    let Some(containers) = pod["spec"]["containers"].as_array_mut() else {
        return;
    };
    for container in containers {
        let mut resized = patch["spec"]["containers"].as_array().into_iter().flatten();
        if let Some(resized) = resized.find(|resized| resized["name"] == container["name"]) {
            container["resources"] = resized["resources"].clone();
        }
    }
}

/// Checks preconditions against an object.
pub(super) fn check_preconditions(object: &Value, preconditions: &Preconditions) -> Result<(), Error> {
    let metadata = &object["metadata"];
    for (field, required) in [
        ("uid", &preconditions.uid),
        ("resourceVersion", &preconditions.resource_version),
    ] {
        if let Some(required) = required
            && metadata[field] != *required.as_str()
        {
            return Err(Error::Conflict(format!(
                "{field} is {}, the precondition requires {required}",
                metadata[field]
            )));
        }
    }
    Ok(())
}

/// Returns the part of an object that a read asks for.
pub(super) fn project_object(object: &Value, projection: &Projection) -> Value {
    let mut part = serde_json::json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"],
    });
    match projection {
        Projection::Full => return object.clone(),
        Projection::Metadata => {}
        Projection::Fields(fields) => {
            for field in fields {
                let path: Vec<_> = field.split('.').collect();
                copy_path(object, &mut part, &path);
            }
        }
    }
    part
}

pub(super) fn copy_path(from: &Value, to: &mut Value, path: &[&str]) {
    let [first, rest @ ..] = path else { return };
    let Some(value) = from.get(first) else { return };
    if rest.is_empty() {
        to[first] = value.clone();
    } else {
        if !to[first].is_object() {
            to[first] = serde_json::json!({});
        }
        copy_path(value, &mut to[first], rest);
    }
}

/// The selectors of a list.
pub(super) struct Selectors {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selectors {
    pub(super) fn parse(options: &ListOptions) -> Result<Self, Error> {
        let labels = LabelSelector::parse(options.label_selector.as_deref().unwrap_or_default());
        let fields = FieldSelector::parse(options.field_selector.as_deref().unwrap_or_default());
        Ok(Self {
            labels: labels.map_err(|e| Error::Invalid(format!("label-selector: {e}")))?,
            fields: fields.map_err(|e| Error::Invalid(format!("field-selector: {e}")))?,
        })
    }

    pub(super) fn select(&self, object: &Value) -> bool {
        self.labels.matches(&object["metadata"]["labels"]) && self.fields.matches_json(object)
    }
}
