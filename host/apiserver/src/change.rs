//! The rules that hold for every change of an object: what stays as it is, what is completed, and who owns what.

use ostler_schema::FieldError;
use serde_json::Value;

use crate::apply;
use crate::content::undeterminable_name;
use crate::object::{is_removable, metadata_text, set_field};
use crate::protobuf;
use crate::request::PatchKind;
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::StoredObject;
use crate::strategy::strategy_of;
use crate::write::{Edit, FieldValidation, WriteParameters};

/// Metadata of a deletion, which an object keeps.
pub(crate) const DELETION_FIELDS: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

/// The result of an edit.
pub(crate) enum EditResult {
    Unchanged,
    Stored,
    /// The object was in deletion and has lost its last finalizer.
    Removed,
}

impl RequestHandler {
    /// Applies the rules that hold for every change of an object.
    pub(crate) fn complete_edit(
        &self,
        context: &WriteParameters<'_>,
        live: &StoredObject,
        shown: &Value,
        candidate: &mut Value,
        edit: &Edit,
    ) -> Result<EditResult, StatusError> {
        self.check_escalation(context, candidate, Some(shown))?;
        let name = metadata_text(shown, "name").to_owned();
        let subject = context.kind.subject(&name);
        let uid = metadata_text(candidate, "uid").to_owned();
        let is_other = !uid.is_empty() && uid != live.uid();
        if is_other && matches!(edit, Edit::Replace(_)) {
            // The uid of a replacement is a precondition, that of a patch is a change.
            return Err(StatusError::conflict(
                subject,
                format!(
                    "StorageError: invalid object, Code: 4, Key: /registry/{}/{}/{}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    context.kind.resource.group,
                    context.kind.resource.plural,
                    metadata_text(shown, "namespace"),
                    live.uid()
                ),
            ));
        }
        let revision = metadata_text(candidate, "resourceVersion");
        if !revision.is_empty() && revision != live.revision.to_string() {
            return Err(StatusError::modified(subject));
        }
        let schema = &context.version.schema;
        let is_untyped = schema.find_untyped_update(candidate).is_some();
        let managed = candidate["metadata"].get("managedFields").cloned();
        let is_omitted =
            |field: &&str| candidate["metadata"][*field].is_null() && !shown["metadata"][*field].is_null();
        let omitted: Vec<&str> = DELETION_FIELDS.into_iter().filter(is_omitted).collect();
        self.restore_system_fields(context, shown, candidate);
        if let (Some(managed), Some(metadata)) = (managed, candidate["metadata"].as_object_mut()) {
            metadata.insert("managedFields".into(), managed);
        }
        if is_other {
            candidate["metadata"]["uid"] = uid.into();
        }
        let strategy = strategy_of(context.kind);
        let is_completed = context.subresource.is_empty() || strategy.completes_status;
        if is_completed {
            (strategy.prepare)(candidate, Some(shown));
        }
        // Ownership is that of what the client has sent, not of what the server completes.
        let is_completed_later = strategy.complete_change.is_some() || !omitted.is_empty();
        let mut sent = is_completed_later.then(|| candidate.clone());
        if let Some(sent) = &mut sent {
            for field in omitted {
                set_field(&mut sent["metadata"], field, None);
            }
        }
        if let Some(complete_change) = strategy.complete_change.filter(|_| is_completed) {
            complete_change(candidate, shown);
        }
        let counted = |object| iter_generation_fields(object, context.version.status);
        // Metadata counts, too, where the strategy of the kind compares it.
        let mut counted_metadata = strategy.counted_metadata.iter();
        let is_marked = context.subresource.is_empty()
            && counted_metadata.any(|field| shown["metadata"][field] != candidate["metadata"][field]);
        if context.kind.generations && (is_marked || !counted(shown).eq(counted(candidate))) {
            candidate["metadata"]["generation"] =
                (shown["metadata"]["generation"].as_i64().unwrap_or_default() + 1).into();
        }
        self.validate_object(context, candidate, Some(shown))?;
        self.complete_definition(context, candidate);
        if !matches!(edit, Edit::Apply(..)) {
            if is_untyped {
                // What the client has sent cannot be compared by the schema, though what it cannot change here is restored.
                set_field(&mut candidate["metadata"], "managedFields", None);
            } else {
                self.track_update(context, shown, sent, candidate);
            }
        }
        if live.is_terminating() && is_removable(candidate) {
            return Ok(EditResult::Removed);
        }
        // A link is never stored. That of a dry run is shown, as is that of a write that has let the object go.
        if !context.dry_run {
            set_field(&mut candidate["metadata"], "selfLink", None);
        }
        candidate["metadata"]["resourceVersion"] = shown["metadata"]["resourceVersion"].clone();
        if !context.kind.custom {
            protobuf::write_stored_nulls(candidate);
        }
        Ok(if equals_ignoring_times(candidate, shown) {
            EditResult::Unchanged
        } else {
            EditResult::Stored
        })
    }

    /// Notes the owners of what an update changes: of `sent`, what the client has sent, where the candidate has been completed since.
    fn track_update(
        &self,
        context: &WriteParameters<'_>,
        shown: &Value,
        mut sent: Option<Value>,
        candidate: &mut Value,
    ) {
        let tracked = sent.as_mut().unwrap_or(candidate);
        let writer = self.field_writer(context);
        apply::track_update(&context.version.schema, Some(shown), tracked, &writer);
        if let Some(sent) = sent {
            let managed = sent["metadata"].get("managedFields").cloned();
            set_field(&mut candidate["metadata"], "managedFields", managed);
        }
    }

    /// Restores the fields that a client cannot change, and those outside of the subresource.
    fn restore_system_fields(&self, context: &WriteParameters<'_>, shown: &Value, candidate: &mut Value) {
        if context.subresource == "status" {
            let status = candidate.get("status").cloned();
            let metadata = candidate["metadata"].take();
            *candidate = shown.clone();
            set_field(candidate, "status", status);
            if !context.kind.writes_metadata_with_status() {
                return;
            }
            candidate["metadata"] = metadata;
            for field in strategy_of(context.kind).metadata_outside_of_status {
                let kept = shown["metadata"].get(*field).cloned();
                set_field(&mut candidate["metadata"], field, kept);
            }
        }
        if context.subresource == "resize" {
            let resized = std::mem::replace(candidate, shown.clone());
            crate::pod::set_container_resources(candidate, &resized);
            return;
        }
        if context.version.status && context.subresource.is_empty() {
            set_field(candidate, "status", shown.get("status").cloned());
        }
        for field in ["name", "namespace", "uid", "creationTimestamp", "generation"] {
            let kept = shown["metadata"].get(field).cloned();
            set_field(&mut candidate["metadata"], field, kept);
        }
        // An object in deletion stays in it. One that is not cannot be sent there by a write, which is an error.
        if let Some(kept) = shown["metadata"].get("deletionTimestamp") {
            candidate["metadata"]["deletionTimestamp"] = kept.clone();
        }
        if candidate["metadata"]["deletionGracePeriodSeconds"].is_null() {
            let kept = shown["metadata"].get("deletionGracePeriodSeconds").cloned();
            set_field(&mut candidate["metadata"], "deletionGracePeriodSeconds", kept);
        }
    }
}

/// The fields that `generation` counts: all but metadata and type, and without the status where that has a subresource.
fn iter_generation_fields(
    object: &Value,
    has_status_subresource: bool,
) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(move |(name, _)| match name.as_str() {
        "metadata" | "apiVersion" | "kind" => false,
        "status" => !has_status_subresource,
        _ => true,
    })
}

/// Checks the type of a patched object of a built-in kind, as far as it is decoded.
pub(crate) fn check_patched_type(
    context: &WriteParameters<'_>,
    kind: PatchKind,
    name: &str,
    shown: &Value,
    object: &mut Value,
) -> Result<(), StatusError> {
    let is_text = |value: &Value| value.is_string() || value.is_null();
    if let Some(field) = ["apiVersion", "kind"]
        .into_iter()
        .find(|field| !is_text(&object[*field]))
    {
        let why = format!("couldn't get version/kind; json parse error: {field} is not a string");
        return Err(StatusError::invalid_patch(object, &why));
    }
    if kind == PatchKind::Strategic {
        // It is merged into a structure, whose type does not change.
        for field in ["apiVersion", "kind"] {
            object[field] = shown[field].clone();
        }
        context.version.schema.cut_integers(object);
    } else if object["apiVersion"].as_str().is_none_or(str::is_empty) {
        // Without a version nothing of the object is decoded.
        let is_known = |field: &String| field == "kind" || field == "apiVersion";
        let has_fields = object
            .as_object()
            .is_some_and(|fields| !fields.keys().all(is_known));
        return Err(if context.validation == FieldValidation::Strict && has_fields {
            StatusError::invalid_patch(object, "strict decoding error: apiVersion is missing")
        } else {
            undeterminable_name(name)
        });
    } else if object["apiVersion"] != shown["apiVersion"] {
        let (kind, version) = (&object["kind"], &object["apiVersion"]);
        let why = format!("no kind {kind} is registered for version {version}");
        return Err(StatusError::invalid_patch(object, &why));
    }
    Ok(())
}

/// Checks that an update names the version that it is based on, where the kind demands it. A patch can remove it.
pub(crate) fn require_revision(
    context: &WriteParameters<'_>,
    name: &str,
    object: &Value,
) -> Result<(), StatusError> {
    if !context.kind.conditional_update || !metadata_text(object, "resourceVersion").is_empty() {
        return Ok(());
    }
    let rule = "must be specified for an update";
    let error = FieldError::invalid("metadata.resourceVersion", &0.into(), rule);
    let subject = crate::status::ErrorSubject {
        kind: &context.kind.resource.plural,
        ..context.kind.subject(name)
    };
    Err(StatusError::invalid(subject, vec![error]))
}

/// Compares two states without the times of managed fields.
fn equals_ignoring_times(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        for entry in object["metadata"]["managedFields"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            set_field(entry, "time", None);
        }
        object
    };
    new == old || without(new) == without(old)
}
