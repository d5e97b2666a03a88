//! The subresource `scale`: the number of replicas of an object, wherever its kind has it.

use std::sync::Arc;

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::object::{metadata_text, set_field};
use crate::patch;
use crate::state::RequestHandler;
use crate::status::{ErrorSubject, StatusError};
use crate::storage::{StoredKey, StoredObject};
use crate::write::{Edit, WriteParameters};

/// Places of the replicas in objects of a kind, as JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Wanted replicas.
    pub spec: String,
    /// Current replicas.
    pub status: String,
    /// Selector of the pods, if the kind has one: a text or a label selector.
    pub selector: Option<String>,
}

impl ScalePaths {
    /// Parses `subresources.scale` of a version of a definition.
    pub fn parse(declared: &Value) -> Option<Self> {
        let pointer = |field: &str| declared[field].as_str().map(|path| path.replace('.', "/"));
        Some(Self {
            spec: pointer("specReplicasPath")?,
            status: pointer("statusReplicasPath")?,
            selector: pointer("labelSelectorPath"),
        })
    }

    /// Validates the numbers of replicas in an object.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for pointer in [&self.spec, &self.status] {
            let field = pointer.replace('/', ".");
            let replicas = object.pointer(pointer);
            let unreadable = match (find_obstacle(object, pointer), replicas) {
                (Some(other), _) => Some(format!("{other} is not an object")),
                (None, Some(other)) if !other.is_i64() => Some(format!("{other} is not an integer")),
                _ => None,
            };
            let count = replicas.and_then(Value::as_i64).unwrap_or_default();
            let rule = match (unreadable, count) {
                (Some(why), _) => format!("{field} accessor error: {why}"),
                (None, ..0) => "should be a non-negative integer".into(),
                (None, count) if count > i64::from(i32::MAX) => {
                    format!("should be less than or equal to {}", i32::MAX)
                }
                (None, _) => continue,
            };
            errors.push(FieldError::invalid(&field, &count.into(), rule));
        }
        errors
    }

    /// Returns the `Scale` of an object, without replicas if it has none.
    pub fn build_scale(&self, object: &Value) -> Value {
        let count = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
        let mut metadata = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            set_field(&mut metadata, field, object["metadata"].get(field).cloned());
        }
        let mut scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {},
            "status": {"replicas": count(&self.status).unwrap_or_default()},
        });
        // A count of zero is the default of its field.
        set_field(
            &mut scale["spec"],
            "replicas",
            count(&self.spec).filter(|count| *count != 0).map(Value::from),
        );
        let selector = self
            .selector
            .as_deref()
            .and_then(|pointer| object.pointer(pointer));
        let selector = match selector {
            Some(Value::String(text)) => Some(text.clone()),
            Some(selector) if selector.is_object() => Some(format_selector(selector)),
            _ => None,
        };
        set_field(
            &mut scale["status"],
            "selector",
            selector.filter(|text| !text.is_empty()).map(Value::from),
        );
        scale
    }
}

/// The value on the way to a JSON pointer that is no object, if there is one.
fn find_obstacle<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let (parents, _) = pointer.trim_start_matches('/').rsplit_once('/')?;
    let mut place = object;
    for name in parents.split('/') {
        place = place.get(name).filter(|value| !value.is_null())?;
        if !place.is_object() {
            return Some(place);
        }
    }
    None
}

/// Formats a label selector as `key=value,key in (a,b)`.
pub fn format_selector(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<String> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values = expression["values"].as_array().into_iter().flatten();
        let values: Vec<&str> = values.filter_map(Value::as_str).collect();
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort();
    parts.join(",")
}

impl RequestHandler {
    /// Reads the scale of an object.
    pub fn read_scale(
        &self,
        context: &WriteParameters<'_>,
        paths: &ScalePaths,
        key: &StoredKey,
    ) -> Result<Value, StatusError> {
        let live = self.find_scaled(context, key)?;
        let has_replicas = live.value.pointer(&paths.spec).is_some();
        if context.kind.custom && !has_replicas {
            let path = paths.spec.replace('/', ".");
            let message = format!("the spec replicas field {path:?} does not exist");
            return Err(StatusError::internal(message));
        }
        Ok(paths.build_scale(&live.value))
    }

    fn find_scaled(
        &self,
        context: &WriteParameters<'_>,
        key: &StoredKey,
    ) -> Result<Arc<StoredObject>, StatusError> {
        let live = self.storage.get(&context.kind.resource, key);
        live.ok_or_else(|| StatusError::not_found(context.kind.subject(&key.name)))
    }

    /// Changes the scale of an object, and returns it.
    pub fn write_scale(
        &self,
        context: &WriteParameters<'_>,
        paths: &ScalePaths,
        key: &StoredKey,
        edit: &Edit,
    ) -> Result<Value, StatusError> {
        let live = self.find_scaled(context, key)?;
        let current = paths.build_scale(&live.value);
        let wanted = match edit {
            Edit::Replace(scale) => scale.clone(),
            Edit::Patch(kind, body) => {
                patch::apply_patch(*kind, &ostler_schema::Schema::permissive(), &current, body)?
            }
            Edit::Apply(scale, _) => {
                let mut merged = current.clone();
                patch::merge_json(&mut merged, scale);
                merged
            }
        };
        let replicas = check_scale(
            &wanted,
            key,
            context.kind.custom,
            !matches!(edit, Edit::Replace(_)),
        )?;
        let mut changed = json!({"spec": {}});
        set_pointer(&mut changed, &paths.spec, replicas.into());
        let revision = metadata_text(&wanted, "resourceVersion");
        if !revision.is_empty() {
            changed["metadata"]["resourceVersion"] = revision.into();
        }
        let edit = Edit::Patch(crate::request::PatchKind::Merge, changed);
        let namespace = Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let outcome = self.edit_object(context, namespace, &key.name, &edit)?;
        Ok(paths.build_scale(&outcome.object.value))
    }
}

/// Returns the replicas of a scale that a client has sent or patched. Of a custom kind, its own validation finds negative ones.
fn check_scale(scale: &Value, key: &StoredKey, custom: bool, is_patch: bool) -> Result<i64, StatusError> {
    let subject = ErrorSubject {
        group: "autoscaling",
        resource: "scales",
        kind: "Scale",
        name: &key.name,
    };
    let is_other = |field: &str, expected: &str| !scale[field].is_null() && scale[field] != expected;
    if is_other("kind", "Scale") || is_other("apiVersion", "autoscaling/v1") {
        return Err(StatusError::bad_request(
            "the object provided is not a Scale of autoscaling/v1",
        ));
    }
    let replicas = &scale["spec"]["replicas"];
    if !replicas.is_null()
        && replicas
            .as_i64()
            .is_none_or(|count| i32::try_from(count).is_err())
    {
        let why = format!("spec.replicas must be an integer: {replicas}");
        return Err(if is_patch {
            StatusError::invalid_patch(scale, &why)
        } else {
            StatusError::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: {why}"
            ))
        });
    }
    let count = replicas.as_i64().unwrap_or_default();
    if count < 0 && !custom {
        let rule = "must be greater than or equal to 0";
        let error = FieldError::invalid("spec.replicas", replicas, rule);
        return Err(StatusError::invalid(subject, vec![error]));
    }
    Ok(count)
}

/// Sets the value at a JSON pointer, and creates the objects on the way.
fn set_pointer(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for name in pointer.trim_start_matches('/').split('/') {
        place = &mut place[name];
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_has_replicas_and_selector_of_its_object() {
        let paths = ScalePaths {
            spec: "/spec/replicas".into(),
            status: "/status/replicas".into(),
            selector: Some("/spec/selector".into()),
        };
        let object = json!({
            "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "c"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}},
            "status": {"replicas": 2},
        });
        let scale = paths.build_scale(&object);
        assert_eq!(scale["metadata"], json!({"name": "a"}));
        assert_eq!(scale["spec"], json!({"replicas": 3}));
        assert_eq!(
            scale["status"],
            json!({"replicas": 2, "selector": "a in (x,y),b=c"})
        );
        let negative = json!({"spec": {"replicas": -1}});
        assert_eq!(paths.validate(&negative)[0].field, ".spec.replicas");
    }
}
