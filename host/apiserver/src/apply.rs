//! Field ownership (`managedFields`): server-side apply, and the tracking of other writes.

use ostler_schema::Schema;
use serde_json::{Map, Value, json};

use crate::fields::{self, FieldSet};
use crate::object::set_field;
use crate::status::StatusError;

/// The field manager of a write, and the subresource it writes to.
#[derive(Debug, Clone)]
pub struct FieldWriter<'a> {
    /// `fieldManager`.
    pub manager: &'a str,
    /// API version of the request.
    pub api_version: String,
    /// Subresource of the request, empty for none.
    pub subresource: &'a str,
    /// True if writes to the main resource do not change the status.
    pub has_status_subresource: bool,
    /// True if writes to the status change the metadata, too.
    pub writes_metadata_with_status: bool,
    /// JSON pointer to the replicas, if the kind has the subresource `scale`.
    pub replicas: Option<&'a str>,
    /// Time of the write.
    pub now: String,
}

impl FieldWriter<'_> {
    /// Returns true if the write can change a top-level field.
    fn can_write(&self, field: &str) -> bool {
        match self.subresource {
            "status" => field == "status" || (self.writes_metadata_with_status && field == "metadata"),
            _ => !(self.has_status_subresource && field == "status"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct FieldManager {
    name: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

impl FieldManager {
    fn from_entry(entry: &Value) -> Self {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("manager"),
            operation: text("operation"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: FieldSet::from_json(&entry["fieldsV1"]),
        }
    }

    fn to_entry(&self) -> Value {
        let mut entry = json!({
            "operation": self.operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": self.fields.to_json(),
        });
        if !self.name.is_empty() {
            entry["manager"] = self.name.as_str().into();
        }
        if !self.time.is_empty() {
            entry["time"] = self.time.as_str().into();
        }
        if !self.subresource.is_empty() {
            entry["subresource"] = self.subresource.as_str().into();
        }
        entry
    }

    /// Compares an entry with a writer. Apply entries are shared by all versions of a kind, update entries are not.
    fn is_writer(&self, operation: &str, writer: &FieldWriter<'_>) -> bool {
        self.operation == operation
            && self.name == writer.manager
            && self.subresource == writer.subresource
            && (operation == "Apply" || self.api_version == writer.api_version)
    }

    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == "Update" {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

fn read_managers(object: &Value) -> Vec<FieldManager> {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(FieldManager::from_entry)
        .collect()
}

fn store_managers(object: &mut Value, mut managers: Vec<FieldManager>) {
    managers.retain(|manager| !manager.fields.is_empty());
    managers.sort_by(|a, b| {
        (&a.operation, &a.time, &a.name, &a.api_version, &a.subresource).cmp(&(
            &b.operation,
            &b.time,
            &b.name,
            &b.api_version,
            &b.subresource,
        ))
    });
    if managers.is_empty() {
        object["metadata"]
            .as_object_mut()
            .map(|metadata| metadata.remove("managedFields"));
    } else {
        object["metadata"]["managedFields"] = managers.iter().map(FieldManager::to_entry).collect();
    }
}

/// Tracks a create, update or patch: the writer becomes the only owner of the changed fields. An object that cannot be compared by
/// the schema has no owners.
pub fn track_update(schema: &Schema, live: Option<&Value>, new: &mut Value, writer: &FieldWriter<'_>) {
    if schema.find_untyped_update(new).is_some() {
        return set_field(&mut new["metadata"], "managedFields", None);
    }
    let given = new["metadata"]["managedFields"].as_array();
    // A single empty entry resets ownership.
    let is_reset = given.is_some_and(|entries| entries.len() == 1 && entries[0] == json!({}));
    let reset = is_reset && live.is_some() && writer.subresource.is_empty();
    let given = given.map(|_| read_managers(new)).unwrap_or_default();
    let mut managers = if reset || (is_reset && live.is_none()) {
        Vec::new()
    } else if given.iter().any(|manager| !manager.fields.is_empty()) {
        given
    } else {
        // Entries without fields count as none.
        live.map(read_managers).unwrap_or_default()
    };
    // What no manager owns stays without owners until it is applied.
    let is_untracked = live.is_some() && managers.is_empty();
    if reset || is_untracked {
        return store_managers(new, managers);
    }
    let nothing = schema.unset_value();
    let mut difference = fields::compare_values(schema, live.unwrap_or(&nothing), new);
    for set in [&mut difference.changed, &mut difference.removed] {
        set.strip_system();
        set.retain_fields(|field| writer.can_write(field));
    }
    let touched = difference.changed.clone().union(&difference.removed);
    if writer.subresource == "scale" {
        track_scale(&mut managers, &touched, new, writer);
    } else if !touched.is_empty() {
        let mine = managers
            .iter()
            .position(|manager| manager.is_writer("Update", writer));
        for (index, manager) in managers.iter_mut().enumerate() {
            if Some(index) != mine {
                manager.fields = manager.fields.difference(&touched);
            }
        }
        let held = mine.map(|index| managers.remove(index));
        let before = held.as_ref().map(|held| held.fields.clone()).unwrap_or_default();
        let fields = before
            .clone()
            .union(&difference.changed)
            .difference(&difference.removed);
        let time = held
            .filter(|_| fields == before)
            .map_or_else(|| writer.now.clone(), |held| held.time);
        managers.push(FieldManager {
            name: writer.manager.into(),
            operation: "Update".into(),
            api_version: writer.api_version.clone(),
            subresource: writer.subresource.into(),
            time,
            fields,
        });
    }
    store_managers(new, managers);
}

/// Tracks a write of the replicas, which are owned by it only if they were owned before, and without a time. A `Scale` omits a zero,
/// which is owned by none. Replicas in an atomic object have no owner of their own.
fn track_scale(managers: &mut Vec<FieldManager>, touched: &FieldSet, new: &Value, writer: &FieldWriter<'_>) {
    let Some(pointer) = writer.replicas else { return };
    let replicas = FieldSet::of_pointer(pointer).intersection(touched);
    let mut was_owned = false;
    for manager in managers.iter_mut() {
        was_owned |= !manager.fields.intersection(&replicas).is_empty();
        manager.fields = manager.fields.difference(&replicas);
    }
    let count = new.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
    if was_owned && count != 0 {
        managers.push(FieldManager {
            name: writer.manager.into(),
            operation: "Update".into(),
            api_version: writer.api_version.clone(),
            subresource: writer.subresource.into(),
            time: String::new(),
            fields: replicas,
        });
    }
}

/// Applies a configuration: merges it, removes fields that its manager no longer applies and no other manager owns, and
/// refuses to change fields of other managers unless forced.
pub fn apply_config(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    writer: &FieldWriter<'_>,
    force: bool,
) -> Result<Value, StatusError> {
    let nothing = json!({});
    let before = live.unwrap_or(&nothing);
    let mut managers = read_managers(before);
    if live.is_some() && managers.is_empty() {
        // What was set by somebody: not what is written in any case, nor what this resource does not write.
        let mut fields = fields::compare_values(schema, &schema.unset_value(), before).changed;
        fields.strip_system();
        fields.retain_fields(|field| writer.can_write(field));
        managers.push(FieldManager {
            name: "before-first-apply".into(),
            operation: "Update".into(),
            api_version: writer.api_version.clone(),
            subresource: writer.subresource.into(),
            time: writer.now.clone(),
            fields,
        });
    }
    let mut config = applied.clone();
    let mut ignored = Map::new();
    if let Some(config) = config.as_object_mut() {
        let is_written = |(field, _): &(String, Value)| {
            matches!(field.as_str(), "apiVersion" | "kind" | "metadata") || writer.can_write(field)
        };
        (*config, ignored) = std::mem::take(config).into_iter().partition(is_written);
        if writer.subresource == "status" && !writer.writes_metadata_with_status {
            config.remove("metadata");
        }
    }
    let mut wanted = fields::owned_fields(schema, &config);
    wanted.strip_system();
    let mine = managers
        .iter()
        .position(|manager| manager.is_writer("Apply", writer))
        .map(|index| managers.remove(index));

    let mut after = fields::merge_values(schema, before, &config);
    if let Some(mine) = &mine {
        // The identity is in the metadata, though nobody owns it.
        let kept = wanted.clone().union(&FieldSet::of_pointer("/metadata"));
        let kept = managers
            .iter()
            .fold(kept, |kept, manager| kept.union(&manager.fields));
        let gone = mine.fields.difference(&kept);
        fields::remove_fields(schema, &mut after, &gone, &kept);
    }

    let mut difference = fields::compare_values(schema, before, &after);
    difference.changed.strip_system();
    let mut conflicts = Vec::new();
    for manager in &mut managers {
        let conflict = manager.fields.intersection(&difference.changed);
        if !conflict.is_empty() {
            conflicts.push((manager.describe(), conflict.list_paths()));
            manager.fields = manager.fields.difference(&conflict);
        }
        manager.fields = manager.fields.difference(&difference.removed);
    }
    if !conflicts.is_empty() && !force {
        return Err(conflict_error(conflicts));
    }
    // An apply that changes nothing leaves the time of its entry, and gives a new entry none. It changes something also where this
    // resource does not write it.
    let is_unchanged = before == &after && fields::merge_values(schema, before, &ignored.into()) == *before;
    let time = if live.is_some() && is_unchanged {
        mine.as_ref().map(|mine| mine.time.clone()).unwrap_or_default()
    } else {
        writer.now.clone()
    };
    managers.push(FieldManager {
        name: writer.manager.into(),
        operation: "Apply".into(),
        api_version: writer.api_version.clone(),
        subresource: writer.subresource.into(),
        time,
        fields: wanted,
    });
    store_managers(&mut after, managers);
    Ok(after)
}

fn conflict_error(mut conflicts: Vec<(String, Vec<String>)>) -> StatusError {
    conflicts.sort();
    let count: usize = conflicts.iter().map(|(_, paths)| paths.len()).sum();
    let message = match conflicts.as_slice() {
        [(manager, paths)] if count == 1 => format!(
            "Apply failed with 1 conflict: conflict with {manager}: {}",
            paths.concat()
        ),
        _ => {
            let lines = conflicts.iter().flat_map(|(manager, paths)| {
                std::iter::once(format!("conflicts with {manager}:"))
                    .chain(paths.iter().map(|path| format!("- {path}")))
            });
            format!(
                "Apply failed with {count} conflicts: {}",
                lines.collect::<Vec<_>>().join("\n")
            )
        }
    };
    let causes: Vec<Value> = conflicts
        .iter()
        .flat_map(|(manager, paths)| {
            paths.iter().map(move |path| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": path})
            })
        })
        .collect();
    StatusError {
        details: Some(json!({"causes": causes})),
        ..StatusError::new(409, "Conflict", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::parse_root(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
        }}))
        .unwrap()
    }

    fn writer(manager: &'static str) -> FieldWriter<'static> {
        FieldWriter {
            writes_metadata_with_status: false,
            manager,
            api_version: "g/v1".into(),
            subresource: "",
            has_status_subresource: true,
            replicas: None,
            now: "2026-01-01T00:00:00Z".into(),
        }
    }

    fn config(spec: Value) -> Value {
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": spec})
    }

    #[test]
    fn applied_field_is_shared_taken_over_and_given_up() {
        let schema = schema();
        let one = apply_config(
            &schema,
            None,
            &config(json!({"a": 1, "b": 1})),
            &writer("one"),
            false,
        )
        .unwrap();
        let same = apply_config(
            &schema,
            Some(&one),
            &config(json!({"a": 1, "b": 1})),
            &writer("one"),
            false,
        )
        .unwrap();
        assert_eq!(same, one, "applying the same again changes nothing");

        let shared = apply_config(
            &schema,
            Some(&one),
            &config(json!({"a": 1})),
            &writer("two"),
            false,
        )
        .unwrap();
        let error = apply_config(
            &schema,
            Some(&shared),
            &config(json!({"a": 2})),
            &writer("two"),
            false,
        )
        .unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"one\": .spec.a"
        );
        assert_eq!(error.code, 409);
        let forced = apply_config(
            &schema,
            Some(&shared),
            &config(json!({"a": 2})),
            &writer("two"),
            true,
        )
        .unwrap();
        assert_eq!(forced["spec"], json!({"a": 2, "b": 1}));

        let without =
            apply_config(&schema, Some(&forced), &config(json!({})), &writer("one"), false).unwrap();
        assert_eq!(
            without["spec"],
            json!({"a": 2}),
            "b was one's alone and goes, a is two's and stays"
        );
    }

    #[test]
    fn update_takes_over_changed_fields() {
        let schema = schema();
        let one = apply_config(
            &schema,
            None,
            &config(json!({"a": 1, "b": 1})),
            &writer("one"),
            false,
        )
        .unwrap();
        let mut edited = one.clone();
        edited["spec"]["a"] = 5.into();
        track_update(&schema, Some(&one), &mut edited, &writer("editor"));
        let managers = read_managers(&edited);
        assert_eq!(managers[0].fields.to_json(), json!({"f:spec": {"f:b": {}}}));
        assert_eq!(managers[1].fields.to_json(), json!({"f:spec": {"f:a": {}}}));
        let error = apply_config(
            &schema,
            Some(&edited),
            &config(json!({"a": 1, "b": 1})),
            &writer("one"),
            false,
        )
        .unwrap_err();
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"editor\" using g/v1: .spec.a"
        );
        let mut same = edited.clone();
        track_update(&schema, Some(&edited), &mut same, &writer("editor"));
        assert_eq!(same, edited);
    }

    #[test]
    fn empty_managed_fields_entry_resets_ownership() {
        let schema = schema();
        let one = apply_config(&schema, None, &config(json!({"a": 1})), &writer("one"), false).unwrap();
        let mut reset = one.clone();
        reset["metadata"]["managedFields"] = json!([{}]);
        track_update(&schema, Some(&one), &mut reset, &writer("editor"));
        assert_eq!(reset["metadata"].get("managedFields"), None);
        let mut silent = one.clone();
        silent["metadata"]["managedFields"] = json!([]);
        track_update(&schema, Some(&one), &mut silent, &writer("editor"));
        assert_eq!(silent, one);
    }
}
