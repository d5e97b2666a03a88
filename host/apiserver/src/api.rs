//! What the writing verbs mean: create, update, patch and apply. Deletion is in [`crate::deletion`].

use std::sync::Arc;

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::apply::{self, Writer};
use crate::builtin;
use crate::crd;
use crate::kind::{Kind, Version};
use crate::object::{is_held, now, set, text};
use crate::patch;
use crate::registry::Registry;
use crate::request::PatchKind;
use crate::status::ApiError;
use crate::storage::{Key, Refused, Resource, Storage, Stored};

/// The state behind all requests.
#[derive(Debug)]
pub struct Api {
    /// Objects.
    pub storage: Storage,
    /// Kinds.
    pub registry: Registry,
}

/// How unknown fields are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    /// Dropped.
    Ignore,
    /// Dropped with a warning.
    Warn,
    /// Refused.
    Strict,
}

/// A write on one kind in one version through one door.
#[derive(Debug, Clone)]
pub struct Door<'a> {
    /// The kind.
    pub kind: &'a Kind,
    /// The version.
    pub version: &'a Version,
    /// Subresource, empty for none.
    pub subresource: &'a str,
    /// `fieldManager`.
    pub manager: &'a str,
    /// `fieldValidation`.
    pub validation: FieldValidation,
    /// Answer without storing.
    pub dry_run: bool,
}

/// What a request wants of an existing object.
#[derive(Debug)]
pub enum Edit {
    /// Replace it.
    Replace(Value),
    /// Patch it.
    Patch(PatchKind, Value),
    /// Apply a configuration, perhaps by force.
    Apply(Value, bool),
}

/// What a write left behind.
#[derive(Debug)]
pub struct Wrote {
    /// The object, in the stored version.
    pub object: Arc<Stored>,
    /// Whether it is new.
    pub created: bool,
    /// What to warn about.
    pub warnings: Vec<String>,
}

fn new_uid() -> String {
    let bits = fastrand::u128(..);
    let hex = format!(
        "{:032x}",
        (bits & !(0xf << 76) & !(0b11 << 62)) | (0x4 << 76) | (0b10 << 62)
    );
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5)
        .map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())]))
        .collect()
}

/// Everything but the fields that don't make a generation.
fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
}

impl Api {
    /// Starts with the namespaces every cluster has.
    pub fn new(storage: Storage) -> Self {
        let api = Self {
            storage,
            registry: Registry::new(),
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let Some(kind) = api.registry.get("", "namespaces") else {
                continue;
            };
            let Some(version) = kind.version("v1") else {
                continue;
            };
            let door = Door {
                kind: &kind,
                version,
                subresource: "",
                manager: "ostler-apiserver",
                validation: FieldValidation::Ignore,
                dry_run: false,
            };
            // The storage is empty, so nothing can be in the way.
            let _ = api.create(&door, None, namespace);
        }
        api
    }

    /// An object as a version shows it.
    pub fn present(kind: &Kind, version: &Version, object: &Stored) -> Value {
        let mut value = object.value.clone();
        let wanted = kind.api_version(&version.name);
        if value["apiVersion"] != wanted.as_str() {
            value["apiVersion"] = wanted.into();
            version.schema.apply_defaults(&mut value);
        }
        value
    }

    /// Creates an object.
    pub fn create(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        mut object: Value,
    ) -> Result<Wrote, ApiError> {
        let warnings = self.receive(door, &mut object, true)?;
        self.identify(door, namespace, None, &mut object)?;
        if !text(&object, "resourceVersion").is_empty() {
            // The real server has no better code for it.
            return Err(ApiError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated = text(&object, "name").is_empty();
        for attempt in 0.. {
            let mut candidate = object.clone();
            if generated {
                let prefix = text(&object, "generateName").chars().take(58).collect::<String>();
                candidate["metadata"]["name"] = if prefix.is_empty() {
                    "".into()
                } else {
                    (prefix + &suffix()).into()
                };
            }
            self.finish_create(door, &mut candidate)?;
            let writer = self.writer(door);
            apply::track(&door.version.schema, None, &mut candidate, &writer);
            let key = Key::new(text(&candidate, "namespace"), text(&candidate, "name"));
            match self.insert(door, key, candidate) {
                Err(error) if generated && error.reason == "AlreadyExists" && attempt < 8 => {}
                result => {
                    return Ok(Wrote {
                        object: result?,
                        created: true,
                        warnings,
                    });
                }
            }
        }
        Err(ApiError::new(500, "InternalError", "no free name was found"))
    }

    /// Changes an existing object, or applies a new one.
    pub fn edit(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        name: &str,
        edit: &Edit,
    ) -> Result<Wrote, ApiError> {
        let key = Key::new(namespace.unwrap_or_default(), name);
        let subject = door.kind.subject(name);
        loop {
            let Some(live) = self.storage.get(&door.kind.resource, &key) else {
                return match edit {
                    Edit::Apply(config, _) if door.subresource.is_empty() => {
                        match self.apply_new(door, namespace, name, config) {
                            Err(error) if error.reason == "AlreadyExists" => continue,
                            result => result,
                        }
                    }
                    _ => Err(ApiError::not_found(subject)),
                };
            };
            let shown = Self::present(door.kind, door.version, &live);
            let (mut candidate, warnings) = self.candidate(door, namespace, name, &shown, edit)?;
            match self.finish_edit(door, &live, &shown, &mut candidate, edit)? {
                Ending::Same => {
                    return Ok(Wrote {
                        object: live,
                        created: false,
                        warnings,
                    });
                }
                _ if door.dry_run => {
                    let object = Arc::new(Stored::preview(candidate, live.revision));
                    return Ok(Wrote {
                        object,
                        created: false,
                        warnings,
                    });
                }
                ending => {
                    candidate["apiVersion"] = door.kind.api_version(&door.kind.storage_version).into();
                    let stored = match ending {
                        Ending::Gone => self.storage.remove_as(&door.kind.resource, &live, candidate),
                        _ => self.storage.update(&door.kind.resource, &live, candidate),
                    };
                    match stored {
                        Ok(object) => {
                            self.after_write(&door.kind.resource, name);
                            return Ok(Wrote {
                                object,
                                created: false,
                                warnings,
                            });
                        }
                        Err(_) => continue,
                    }
                }
            }
        }
    }

    /// The object as the edit wants it, before the system's own rules.
    fn candidate(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        name: &str,
        shown: &Value,
        edit: &Edit,
    ) -> Result<(Value, Vec<String>), ApiError> {
        Ok(match edit {
            Edit::Replace(object) => {
                let mut object = object.clone();
                let warnings = self.receive(door, &mut object, true)?;
                self.identify(door, namespace, Some(name), &mut object)?;
                if door.kind.conditional_update && text(&object, "resourceVersion").is_empty() {
                    let cause = FieldError::invalid(
                        "metadata.resourceVersion",
                        &0.into(),
                        "must be specified for an update",
                    );
                    return Err(ApiError::invalid(
                        crate::status::Subject {
                            kind: &door.kind.resource.plural,
                            ..door.kind.subject(name)
                        },
                        vec![cause],
                    ));
                }
                (object, warnings)
            }
            Edit::Patch(kind, body) => {
                let mut object = patch::patch(*kind, &door.version.schema, shown, body)?;
                let warnings = self.receive(door, &mut object, false).map_err(|error| {
                    match error.message.split_once("strict decoding error") {
                        // A patch is blamed as a whole.
                        Some((_, found)) => ApiError::invalid(
                            crate::status::Subject {
                                group: "",
                                resource: "",
                                kind: "",
                                name: "",
                            },
                            vec![FieldError::invalid(
                                "patch",
                                &body.to_string().into(),
                                format!("strict decoding error{found}"),
                            )],
                        ),
                        None => error,
                    }
                })?;
                (object, warnings)
            }
            Edit::Apply(config, force) => {
                let config = self.applied(door, namespace, name, config)?;
                let writer = self.writer(door);
                let mut object = apply::apply(&door.version.schema, Some(shown), &config, &writer, *force)?;
                door.version.schema.apply_defaults(&mut object);
                (object, Vec::new())
            }
        })
    }

    fn apply_new(
        &self,
        door: &Door<'_>,
        namespace: Option<&str>,
        name: &str,
        config: &Value,
    ) -> Result<Wrote, ApiError> {
        let config = self.applied(door, namespace, name, config)?;
        if !text(&config, "uid").is_empty() {
            let message = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                text(&config, "uid")
            );
            return Err(ApiError::conflict(door.kind.subject(name), message));
        }
        if !text(&config, "resourceVersion").is_empty() {
            return Err(ApiError::not_found(door.kind.subject(name)));
        }
        let writer = self.writer(door);
        let mut object = apply::apply(&door.version.schema, None, &config, &writer, true)?;
        door.version.schema.apply_defaults(&mut object);
        self.finish_create(door, &mut object)?;
        let key = Key::new(namespace.unwrap_or_default(), name);
        Ok(Wrote {
            object: self.insert(door, key, object)?,
            created: true,
            warnings: Vec::new(),
        })
    }

    fn finish_create(&self, door: &Door<'_>, object: &mut Value) -> Result<(), ApiError> {
        let time = now();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
                "resourceVersion",
            ] {
                metadata.remove(field);
            }
            metadata.insert("uid".into(), new_uid().into());
            metadata.insert("creationTimestamp".into(), time.as_str().into());
            if door.kind.generations {
                metadata.insert("generation".into(), 1.into());
            } else {
                metadata.remove("generation");
            }
        }
        if door.version.status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        builtin::prepare(door.kind, None, object, &time);
        self.check(door, object, None)
    }

    fn check(&self, door: &Door<'_>, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        let mut causes = crate::metadata::check(door.kind, object);
        if door.kind.custom {
            causes.extend(door.kind.validate(door.version, object, old));
        } else {
            causes.extend(builtin::check(door.kind, object, old));
        }
        if causes.is_empty() {
            Ok(())
        } else {
            Err(ApiError::invalid(door.kind.subject(text(object, "name")), causes))
        }
    }

    fn insert(&self, door: &Door<'_>, key: Key, mut object: Value) -> Result<Arc<Stored>, ApiError> {
        object["apiVersion"] = door.kind.api_version(&door.kind.storage_version).into();
        let name = key.name.clone();
        let namespace = key.namespace.clone();
        let result = if door.dry_run {
            self.storage
                .can_create(&door.kind.resource, &key)
                .map(|()| Arc::new(Stored::preview(object, 0)))
        } else {
            self.storage.create(&door.kind.resource, key, object)
        };
        let subject = door.kind.subject(&name);
        let stored = result.map_err(|refused| match refused {
            Refused::NoNamespace => ApiError::not_found(crate::status::Subject { group: "", resource: "namespaces", kind: "Namespace", name: &namespace }),
            Refused::NamespaceTerminating => {
                let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
                let mut error = ApiError::forbidden(subject, why);
                if let Some(details) = &mut error.details {
                    details["causes"] = json!([{"reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"}]);
                }
                error
            }
            Refused::Exists | Refused::Changed => ApiError::already_exists(subject),
        })?;
        if !door.dry_run {
            self.after_write(&door.kind.resource, &name);
        }
        Ok(stored)
    }

    /// Applies the rules every change of an object obeys, and says how it ends.
    fn finish_edit(
        &self,
        door: &Door<'_>,
        live: &Stored,
        shown: &Value,
        candidate: &mut Value,
        edit: &Edit,
    ) -> Result<Ending, ApiError> {
        let name = text(shown, "name").to_owned();
        let subject = door.kind.subject(&name);
        let uid = text(candidate, "uid");
        if !uid.is_empty() && uid != live.uid() {
            return Err(match edit {
                // A replacement's identity is a precondition, a patch's is a change.
                Edit::Replace(_) => ApiError::conflict(
                    subject,
                    format!(
                        "StorageError: invalid object, Code: 4, Key: /registry/{}/{}/{}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                        door.kind.resource.group,
                        door.kind.resource.plural,
                        text(shown, "namespace"),
                        live.uid()
                    ),
                ),
                _ => ApiError::invalid(
                    subject,
                    vec![FieldError::invalid(
                        "metadata.uid",
                        &uid.into(),
                        "field is immutable",
                    )],
                ),
            });
        }
        let revision = text(candidate, "resourceVersion");
        if !revision.is_empty() && revision != live.revision.to_string() {
            return Err(ApiError::modified(subject));
        }
        let managed = candidate["metadata"].get("managedFields").cloned();
        self.keep_system_fields(door, shown, candidate);
        if let (Some(managed), Some(metadata)) = (managed, candidate["metadata"].as_object_mut()) {
            metadata.insert("managedFields".into(), managed);
        }
        let time = now();
        if door.subresource.is_empty() {
            builtin::prepare(door.kind, Some(shown), candidate, &time);
        }
        if live.terminating() {
            let finalizers = |object: &Value| {
                object["metadata"]["finalizers"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            };
            let old = finalizers(shown);
            let fresh: Vec<String> = finalizers(candidate)
                .iter()
                .filter(|one| !old.contains(one))
                .map(ToString::to_string)
                .collect();
            if !fresh.is_empty() {
                let why = format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    fresh.join(", ")
                );
                return Err(ApiError::invalid(
                    subject,
                    vec![FieldError::forbidden("metadata.finalizers", why)],
                ));
            }
        }
        if door.kind.generations && !content(shown).eq(content(candidate)) {
            candidate["metadata"]["generation"] =
                (shown["metadata"]["generation"].as_i64().unwrap_or_default() + 1).into();
        }
        self.check(door, candidate, Some(shown))?;
        if !matches!(edit, Edit::Apply(..)) {
            let writer = self.writer(door);
            apply::track(&door.version.schema, Some(shown), candidate, &writer);
        }
        if live.terminating() && !is_held(candidate) {
            return Ok(Ending::Gone);
        }
        candidate["metadata"]["resourceVersion"] = shown["metadata"]["resourceVersion"].clone();
        Ok(if same_but_for_times(candidate, shown) {
            Ending::Same
        } else {
            Ending::Stored
        })
    }

    /// What a client cannot change, and what this door doesn't lead to, stays as it is.
    fn keep_system_fields(&self, door: &Door<'_>, shown: &Value, candidate: &mut Value) {
        if door.subresource == "status" {
            let status = candidate.get("status").cloned();
            *candidate = shown.clone();
            set(candidate, "status", status);
            return;
        }
        if door.version.status && door.subresource.is_empty() {
            set(candidate, "status", shown.get("status").cloned());
        }
        for field in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "selfLink",
            "generateName",
        ] {
            let kept = shown["metadata"].get(field).cloned();
            set(&mut candidate["metadata"], field, kept);
        }
    }

    fn writer<'a>(&self, door: &Door<'a>) -> Writer<'a> {
        Writer {
            manager: door.manager,
            api_version: door.kind.api_version(&door.version.name),
            subresource: door.subresource,
            status_apart: door.version.status,
            now: now(),
        }
    }

    /// A definition that came, changed or went changes the kinds that are served.
    pub(crate) fn after_write(&self, resource: &Resource, name: &str) {
        if resource.plural != builtin::CRDS || resource.group != builtin::EXTENSIONS {
            return;
        }
        match self.storage.get(resource, &Key::new("", name)) {
            Some(definition) => {
                if let Some(kind) = crd::kind(&definition.value) {
                    self.registry.put(kind);
                }
            }
            None => {
                if let Some((plural, group)) = name.split_once('.') {
                    self.registry.remove(&Resource::new(group, plural));
                }
            }
        }
    }
}

enum Ending {
    Same,
    Stored,
    Gone,
}

/// Whether two states are one, times of managed fields aside.
fn same_but_for_times(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        for entry in object["metadata"]["managedFields"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            set(entry, "time", None);
        }
        object
    };
    new == old || without(new) == without(old)
}
