//! Deletion: at once, or marked and waiting for finalizers; and the system's own adjustments.

use std::sync::Arc;

use serde_json::Value;

use crate::api::Api;
use crate::builtin;
use crate::crd;
use crate::kind::Kind;
use crate::object::{is_held, now, set};
use crate::status::ApiError;
use crate::storage::{Key, Resource, Stored};

/// How to delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<String>,
    /// Only this object.
    pub uid: Option<String>,
    /// Only this state of it.
    pub revision: Option<String>,
    /// Answer without deleting.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From the request's body, or from the query when there is no body.
    pub fn read(body: &Value, query: &crate::request::Query) -> Result<Self, ApiError> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let orphan = body["orphanDependents"]
            .as_bool()
            .map(|orphan| if orphan { "Orphan" } else { "Background" });
        let propagation = match body {
            Value::Null => query.get("propagationPolicy").map(str::to_owned),
            _ => text(&body["propagationPolicy"]).or_else(|| orphan.map(str::to_owned)),
        };
        if let Some(other) = propagation
            .as_deref()
            .filter(|policy| !matches!(*policy, "Background" | "Foreground" | "Orphan"))
        {
            return Err(ApiError::new(
                422,
                "Invalid",
                format!(
                    "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"{other}\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                ),
            ));
        }
        Ok(Self {
            propagation,
            uid: text(&body["preconditions"]["uid"]),
            revision: text(&body["preconditions"]["resourceVersion"]),
            dry_run: (body.is_null() && query.dry_run()?)
                || body["dryRun"]
                    .as_array()
                    .is_some_and(|stages| stages.iter().any(|stage| stage == "All")),
        })
    }
}

/// What a deletion left behind.
#[derive(Debug)]
pub enum Deleted {
    /// The object is gone; its last state.
    Gone(Arc<Stored>),
    /// The object waits for its finalizers.
    Waiting(Arc<Stored>),
}

impl Api {
    /// Deletes an object, or marks it for its finalizers.
    pub fn delete(&self, kind: &Kind, key: &Key, options: &DeleteOptions) -> Result<Deleted, ApiError> {
        let subject = kind.subject(&key.name);
        loop {
            let live = self
                .storage
                .get(&kind.resource, key)
                .ok_or_else(|| ApiError::not_found(subject))?;
            let record = crate::status::Subject {
                resource: &kind.kind,
                ..subject
            };
            if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != live.uid()) {
                let why = format!(
                    "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                    live.uid()
                );
                return Err(ApiError::conflict(record, why));
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
                return Err(ApiError::conflict(record, why));
            }
            let marked = mark(kind, &live.value, options);
            let result = match marked {
                Some(marked) if options.dry_run => {
                    return Ok(Deleted::Waiting(Arc::new(Stored::preview(marked, live.revision))));
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
                self.after_write(&kind.resource, &key.name);
                return Ok(deleted);
            }
        }
    }

    /// Changes an object on the system's own behalf; `None` from `change` leaves it.
    pub fn adjust(&self, resource: &Resource, key: &Key, change: impl Fn(&mut Value)) {
        while let Some(live) = self.storage.get(resource, key) {
            let mut value = live.value.clone();
            change(&mut value);
            if value == live.value {
                return;
            }
            let result = if live.terminating() && !is_held(&value) {
                self.storage.remove_as(resource, &live, value)
            } else {
                self.storage.update(resource, &live, value)
            };
            if result.is_ok() {
                return self.after_write(resource, &key.name);
            }
        }
    }
}

/// The object with its deletion begun; `None` if nothing holds it.
fn mark(kind: &Kind, live: &Value, options: &DeleteOptions) -> Option<Value> {
    let mut marked = live.clone();
    let mut finalizers = live["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let wanted = match options.propagation.as_deref() {
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
    let definition = kind.resource.group == builtin::EXTENSIONS && kind.resource.plural == builtin::CRDS;
    if definition && !begun && !finalizers.iter().any(|one| one == crd::CLEANUP) {
        finalizers.push(crd::CLEANUP.into());
    }
    let finalizers = if finalizers.is_empty() {
        None
    } else {
        Some(Value::Array(finalizers))
    };
    set(&mut marked["metadata"], "finalizers", finalizers);
    if !is_held(&marked) {
        return None;
    }
    if !begun {
        marked["metadata"]["deletionTimestamp"] = now().into();
        marked["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = marked["metadata"]["generation"]
            .as_i64()
            .filter(|generation| *generation > 0)
        {
            marked["metadata"]["generation"] = (generation + 1).into();
        }
        if kind.kind == "Namespace" && !kind.custom {
            marked["status"]["phase"] = "Terminating".into();
        }
    }
    Some(marked)
}
