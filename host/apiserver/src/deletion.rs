//! Deletion, immediate or deferred by finalizers, and changes by the server itself.

use std::sync::Arc;

use ostler_schema::FieldError;
use serde_json::Value;

use crate::builtin;
use crate::crd;
use crate::kind::ServedKind;
use crate::object::{has_finalizers, is_removable, set_field, time_after};
use crate::pod::grace_seconds;
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::{GroupResource, StoredKey, StoredObject};

/// `DeleteOptions` of a request.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    /// Precondition on the uid.
    pub uid: Option<String>,
    /// Precondition on the resource version.
    pub revision: Option<String>,
    /// Grace period of a pod.
    pub grace_seconds: Option<i64>,
    /// Responds without deleting.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Parses the request's body, or the query if there is no body.
    pub fn parse(body: &Value, query: &crate::request::QueryParameters) -> Result<Self, StatusError> {
        let to_text = |value: &Value| value.as_str().map(str::to_owned);
        let orphan = body["orphanDependents"]
            .as_bool()
            .map(|orphan| if orphan { "Orphan" } else { "Background" });
        let propagation = match body {
            Value::Null => query.get("propagationPolicy").map(str::to_owned),
            _ => to_text(&body["propagationPolicy"]).or_else(|| orphan.map(str::to_owned)),
        };
        let refuse = |cause| Err(StatusError::invalid_options("DeleteOptions", cause));
        if orphan.is_some() && !body["propagationPolicy"].is_null() {
            let rule = "orphanDependents and deletionPropagation cannot be both set";
            return refuse(FieldError::invalid(
                "propagationPolicy",
                &body["propagationPolicy"],
                rule,
            ));
        }
        if let Some(other) = propagation
            .as_deref()
            .filter(|policy| !matches!(*policy, "Background" | "Foreground" | "Orphan"))
        {
            let supported = ["Foreground", "Background", "Orphan", "nil"].map(Value::from);
            return refuse(FieldError::unsupported(
                "propagationPolicy",
                &other.into(),
                &supported,
            ));
        }
        let stages = body["dryRun"].as_array().into_iter().flatten();
        if let Some(other) = stages.into_iter().find(|stage| **stage != "All") {
            return refuse(FieldError::unsupported("dryRun", other, &["All".into()]));
        }
        Ok(Self {
            propagation,
            uid: to_text(&body["preconditions"]["uid"]),
            revision: to_text(&body["preconditions"]["resourceVersion"]),
            grace_seconds: match body {
                Value::Null => query.get("gracePeriodSeconds").and_then(|text| text.parse().ok()),
                _ => body["gracePeriodSeconds"].as_i64(),
            },
            dry_run: (body.is_null() && query.is_dry_run()?)
                || body["dryRun"]
                    .as_array()
                    .is_some_and(|stages| stages.iter().any(|stage| stage == "All")),
        })
    }
}

/// The result of a deletion.
#[derive(Debug)]
pub enum Deleted {
    /// The object is deleted; this is its last state.
    Gone(Arc<StoredObject>),
    /// The object waits for its finalizers.
    Waiting(Arc<StoredObject>),
}

impl RequestHandler {
    /// Deletes an object, or marks it for its finalizers.
    pub fn delete_object(
        &self,
        kind: &ServedKind,
        key: &StoredKey,
        options: &DeleteOptions,
    ) -> Result<Deleted, StatusError> {
        let subject = kind.subject(&key.name);
        loop {
            let live = self
                .storage
                .get(&kind.resource, key)
                .ok_or_else(|| StatusError::not_found(subject))?;
            let record = crate::status::ErrorSubject {
                resource: &kind.kind,
                ..subject
            };
            if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != live.uid()) {
                let why = format!(
                    "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                    live.uid()
                );
                return Err(StatusError::conflict(record, why));
            }
            let current = live.revision.to_string();
            if let Some(revision) = options
                .revision
                .as_deref()
                .filter(|revision| *revision != current)
            {
                let why = format!(
                    "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({current}). The object might have been modified"
                );
                return Err(StatusError::conflict(record, why));
            }
            let marked = mark_for_deletion(kind, &live.value, options);
            let result = match marked {
                Some(marked) if options.dry_run => {
                    return Ok(Deleted::Waiting(Arc::new(StoredObject::preview(
                        marked,
                        live.revision,
                    ))));
                }
                None if options.dry_run => return Ok(Deleted::Gone(live)),
                Some(marked) if marked == live.value => return Ok(Deleted::Waiting(live)),
                Some(marked) => self
                    .storage
                    .update(&kind.resource, &live, marked)
                    .map(Deleted::Waiting),
                None => self.storage.remove(&kind.resource, &live).map(Deleted::Gone),
            };
            if let Ok(deleted) = result {
                self.update_registry(&kind.resource, &key.name);
                return Ok(deleted);
            }
        }
    }

    /// Changes an object on behalf of the server itself, and retries when another write comes first. An object in deletion
    /// without finalizers is removed.
    pub fn adjust_object(&self, resource: &GroupResource, key: &StoredKey, change: impl Fn(&mut Value)) {
        while let Some(live) = self.storage.get(resource, key) {
            let mut value = live.value.clone();
            change(&mut value);
            if value == live.value {
                return;
            }
            let result = if live.is_terminating() && is_removable(&value) {
                self.storage.remove_with_state(resource, &live, value)
            } else {
                self.storage.update(resource, &live, value)
            };
            if result.is_ok() {
                return self.update_registry(resource, &key.name);
            }
        }
    }
}

/// Returns true if the answer to the deletion of an object of a kind is the object, and not a `Status`.
pub fn returns_deleted(kind: &ServedKind) -> bool {
    let plural = kind.resource.plural.as_str();
    let kinds = ["pods", "services", "serviceaccounts", "persistentvolumeclaims"];
    kind.resource.group.is_empty() && kinds.contains(&plural)
}

/// The last state of an object that is gone: a pod has had a grace period of no time.
pub fn mark_deleted(kind: &ServedKind, object: &Arc<StoredObject>) -> Arc<StoredObject> {
    if kind.resource.plural != "pods" || object.is_terminating() {
        return object.clone();
    }
    let mut value = object.value.clone();
    set_grace_period(&mut value["metadata"], 0);
    count_generation(&mut value["metadata"]);
    Arc::new(StoredObject::preview(value, object.revision))
}

/// Sets the time at which an object will be gone.
fn set_grace_period(metadata: &mut Value, grace: i64) {
    metadata["deletionTimestamp"] = time_after(grace).into();
    metadata["deletionGracePeriodSeconds"] = grace.into();
}

/// Counts the request of a deletion as a generation, for kinds that have them.
fn count_generation(metadata: &mut Value) {
    if let Some(generation) = metadata["generation"].as_i64().filter(|number| *number > 0) {
        metadata["generation"] = (generation + 1).into();
    }
}

/// The object with its deletion timestamp; `None` if it has neither finalizers nor a grace period, and can be removed at once.
fn mark_for_deletion(kind: &ServedKind, live: &Value, options: &DeleteOptions) -> Option<Value> {
    let mut marked = live.clone();
    let mut finalizers = live["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let is_decided = finalizers
        .iter()
        .any(|one| one == "orphan" || one == "foregroundDeletion");
    // Pods of a Job stay unless the request says otherwise: clients of its first version relied on it.
    let orphans = kind.resource.group == "batch" && kind.resource.plural == "jobs" && !is_decided;
    let wanted = match options.propagation.as_deref() {
        None if orphans => Some("orphan"),
        Some("Orphan") => Some("orphan"),
        Some("Foreground") => Some("foregroundDeletion"),
        Some(_) => Some(""),
        None => None,
    };
    if let Some(wanted) = wanted {
        finalizers.retain(|one| one != "orphan" && one != "foregroundDeletion");
        if !wanted.is_empty() {
            finalizers.push(wanted.into());
        }
    }
    let begun = live["metadata"]["deletionTimestamp"].is_string();
    let definition =
        kind.resource.group == builtin::EXTENSIONS_GROUP && kind.resource.plural == builtin::CRD_PLURAL;
    if definition && !begun && !finalizers.iter().any(|one| one == crd::CLEANUP_FINALIZER) {
        finalizers.push(crd::CLEANUP_FINALIZER.into());
    }
    let finalizers = if finalizers.is_empty() {
        None
    } else {
        Some(Value::Array(finalizers))
    };
    set_field(&mut marked["metadata"], "finalizers", finalizers);
    let grace = grace_seconds(kind, live, options.grace_seconds);
    if !has_finalizers(&marked) && grace == 0 {
        return None;
    }
    let namespace = kind.kind == "Namespace" && !kind.custom;
    if namespace || definition {
        // What they contain goes first, for which there is no period of grace.
        if !begun {
            marked["metadata"]["deletionTimestamp"] = time_after(0).into();
        }
        if namespace {
            marked["status"]["phase"] = "Terminating".into();
        }
        return Some(marked);
    }
    let shortened = begun && live["metadata"]["deletionGracePeriodSeconds"] != grace;
    if !begun || shortened {
        set_grace_period(&mut marked["metadata"], grace);
    }
    if !begun {
        count_generation(&mut marked["metadata"]);
    }
    Some(marked)
}
