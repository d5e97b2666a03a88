//! The writing verbs: create, update, patch and apply. Deletion is in [`crate::deletion`].

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::apply::{self, FieldWriter};
use crate::builtin;
use crate::builtin_changes;
use crate::builtin_validation;
use crate::change::{DELETION_FIELDS, EditResult, check_patched_type, require_revision};
use crate::content::{check_applied_base, decode_applied, undeterminable_name};
use crate::crd;
use crate::escalation;
use crate::kind::{ServedKind, ServedVersion};
use crate::limits;
use crate::object::{current_time, metadata_text, set_field};
use crate::patch;
use crate::protobuf;
use crate::rbac;
use crate::registry::KindRegistry;
use crate::state::RequestHandler;
use crate::status::StatusError;
use crate::storage::{GroupResource, Storage, StoredKey, StoredObject, WriteRefused};
use crate::strategy::strategy_of;
use crate::write::{Edit, FieldValidation, WriteOutcome, WriteParameters};

fn new_uid() -> String {
    let bits = fastrand::u128(..);
    let hex = format!(
        "{:032x}",
        (bits & !(0xf << 76) & !(0b11 << 62)) | (0x4 << 76) | (0b10 << 62)
    );
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn random_suffix() -> String {
    const NAME_SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5)
        .map(|_| char::from(NAME_SUFFIX_LETTERS[fastrand::usize(..NAME_SUFFIX_LETTERS.len())]))
        .collect()
}

impl RequestHandler {
    /// Starts with the namespaces, roles and bindings that every cluster has.
    pub fn new(storage: Storage) -> Self {
        let api = Self {
            storage,
            registry: KindRegistry::new(),
            allocated: AtomicU32::new(0),
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create_initial("", "namespaces", namespace);
        }
        let (roles, bindings) = rbac::default_roles();
        for (plural, objects) in [("clusterroles", roles), ("clusterrolebindings", bindings)] {
            for object in objects {
                api.create_initial(rbac::RBAC_GROUP, plural, object);
            }
        }
        for _ in 0..rbac::DEFAULT_ROLE_LEVELS {
            rbac::aggregate_roles(&api, &[]);
        }
        api
    }

    /// Creates an object that every cluster has.
    fn create_initial(&self, group: &str, plural: &str, object: Value) {
        let Some(kind) = self.registry.get(group, plural) else {
            return;
        };
        let Some(version) = kind.version("v1") else {
            return;
        };
        let context = WriteParameters {
            kind: &kind,
            version,
            subresource: "",
            manager: "ostler-apiserver",
            validation: FieldValidation::Ignore,
            dry_run: false,
            requester: None,
        };
        // The storage is empty, so that no error is possible.
        let _ = self.create_object(&context, None, object);
    }

    /// Converts an object to a version, which differs in `apiVersion` and defaults only.
    pub fn convert_to_version(kind: &ServedKind, version: &ServedVersion, object: &StoredObject) -> Value {
        let mut value = object.value.clone();
        let wanted = kind.api_version(&version.name);
        if value["apiVersion"] != wanted.as_str() {
            value["apiVersion"] = wanted.into();
            version.complete_object(&mut value);
        }
        value
    }

    /// Creates an object.
    pub fn create_object(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        mut object: Value,
    ) -> Result<WriteOutcome, StatusError> {
        let warnings = self.prepare_content(context, &mut object, true)?;
        self.set_identity(context, namespace, None, &mut object)?;
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            set_field(&mut object["metadata"], field, None);
        }
        if !metadata_text(&object, "resourceVersion").is_empty() {
            // kube-apiserver also responds with 500 here.
            return Err(StatusError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated = metadata_text(&object, "name").is_empty();
        for attempt in 0.. {
            let mut candidate = object.clone();
            if generated {
                let prefix = metadata_text(&object, "generateName")
                    .chars()
                    .take(58)
                    .collect::<String>();
                candidate["metadata"]["name"] = if prefix.is_empty() {
                    "".into()
                } else {
                    (prefix + &random_suffix()).into()
                };
            }
            self.complete_new_object(context, &mut candidate)?;
            let writer = self.field_writer(context);
            apply::track_update(&context.version.schema, None, &mut candidate, &writer);
            let key = StoredKey::new(
                metadata_text(&candidate, "namespace"),
                metadata_text(&candidate, "name"),
            );
            match self.insert_object(context, key, candidate) {
                Err(error) if generated && error.reason == "AlreadyExists" && attempt < 8 => {}
                result => {
                    return Ok(WriteOutcome {
                        object: result?,
                        created: true,
                        warnings,
                    });
                }
            }
        }
        Err(StatusError::internal("no free name was found"))
    }

    /// Changes an existing object, or applies a new one.
    pub fn edit_object(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        edit: &Edit,
    ) -> Result<WriteOutcome, StatusError> {
        let key = StoredKey::new(namespace.unwrap_or_default(), name);
        let subject = context.kind.subject(name);
        loop {
            let Some(live) = self.storage.get(&context.kind.resource, &key) else {
                let created = match edit {
                    Edit::Apply(config, _) if context.subresource.is_empty() => {
                        self.create_applied(context, namespace, name, config)
                    }
                    Edit::Replace(object) if context.subresource.is_empty() => {
                        self.create_replaced(context, namespace, name, object)
                    }
                    Edit::Replace(object) => {
                        self.prepare_content(context, &mut object.clone(), true)?;
                        self.require_identity(namespace, name, object)?;
                        Err(StatusError::not_found(subject))
                    }
                    _ => Err(StatusError::not_found(subject)),
                };
                match created {
                    Err(error) if error.reason == "AlreadyExists" => continue,
                    result => return result,
                }
            };
            let shown = Self::convert_to_version(context.kind, context.version, &live);
            let (mut candidate, warnings) = self.build_candidate(context, namespace, name, &shown, edit)?;
            match self.complete_edit(context, &live, &shown, &mut candidate, edit)? {
                EditResult::Unchanged => {
                    return Ok(WriteOutcome {
                        object: live,
                        created: false,
                        warnings,
                    });
                }
                _ if context.dry_run => {
                    self.complete_stored(context, &mut candidate);
                    let object = Arc::new(StoredObject::preview(candidate, live.revision));
                    return Ok(WriteOutcome {
                        object,
                        created: false,
                        warnings,
                    });
                }
                ending => {
                    self.complete_stored(context, &mut candidate);
                    limits::check_stored(&candidate)?;
                    let stored = match ending {
                        EditResult::Removed => {
                            // The writer sees the version of the last stored state, watchers that of the removal.
                            let shown = StoredObject::preview(candidate.clone(), live.revision);
                            self.storage
                                .remove_with_state(&context.kind.resource, &live, candidate)
                                .map(|_| Arc::new(shown))
                        }
                        _ => self.storage.update(&context.kind.resource, &live, candidate),
                    };
                    match stored {
                        Ok(object) => {
                            self.update_registry(&context.kind.resource, name);
                            return Ok(WriteOutcome {
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

    /// The object with the edit applied, before the rules of the server. Also returns warnings.
    fn build_candidate(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        shown: &Value,
        edit: &Edit,
    ) -> Result<(Value, Vec<String>), StatusError> {
        Ok(match edit {
            Edit::Replace(object) => {
                let mut object = object.clone();
                let warnings = self.prepare_content(context, &mut object, true)?;
                if metadata_text(&object, "name").is_empty() {
                    return Err(undeterminable_name(name));
                }
                self.set_identity(context, namespace, Some(name), &mut object)?;
                let uid = metadata_text(&object, "uid");
                let is_other = !uid.is_empty() && uid != metadata_text(shown, "uid");
                // Another uid is a conflict, whatever the version is.
                if !is_other {
                    require_revision(context, name, &object)?;
                }
                (object, warnings)
            }
            Edit::Patch(kind, body) if context.subresource == "scale" => {
                // The object is not decoded again, so that nothing of it gets a default.
                let object = patch::apply_patch(*kind, &context.version.schema, shown, body)?;
                (object, Vec::new())
            }
            Edit::Patch(kind, body) => {
                let mut object = patch::apply_patch(*kind, &context.version.schema, shown, body)?;
                if !context.kind.custom {
                    check_patched_type(context, *kind, name, shown, &mut object)?;
                }
                let warnings = self.prepare_patched(context, namespace, name, &mut object, body)?;
                require_revision(context, name, &object)?;
                (object, warnings)
            }
            Edit::Apply(config, force) => {
                let config = self.check_applied_config(context, namespace, config)?;
                check_applied_base(context, shown)?;
                let writer = self.field_writer(context);
                let mut object =
                    apply::apply_config(&context.version.schema, Some(shown), &config, &writer, *force)?;
                decode_applied(context, &mut object)?;
                self.require_identity(namespace, name, &object)?;
                self.complete_applied(context, &mut object);
                (object, Vec::new())
            }
        })
    }

    /// Creates the object of a PUT on a name that there is not, for the kinds that allow it.
    fn create_replaced(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<WriteOutcome, StatusError> {
        let mut object = object.clone();
        let warnings = self.prepare_content(context, &mut object, true)?;
        if metadata_text(&object, "name").is_empty() {
            return Err(undeterminable_name(name));
        }
        self.set_identity(context, namespace, Some(name), &mut object)?;
        if !builtin::allows_create_on_update(context.kind) {
            return Err(StatusError::not_found(context.kind.subject(name)));
        }
        let uid = metadata_text(&object, "uid");
        if !uid.is_empty() {
            let key = [&context.kind.resource.plural, namespace.unwrap_or_default(), name].join("/");
            let message = format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: "
            );
            return Err(StatusError::conflict(context.kind.subject(name), message));
        }
        self.complete_new_object(context, &mut object)?;
        let writer = self.field_writer(context);
        apply::track_update(&context.version.schema, None, &mut object, &writer);
        let key = StoredKey::new(namespace.unwrap_or_default(), name);
        Ok(WriteOutcome {
            object: self.insert_object(context, key, object)?,
            created: true,
            warnings,
        })
    }

    fn create_applied(
        &self,
        context: &WriteParameters<'_>,
        namespace: Option<&str>,
        name: &str,
        config: &Value,
    ) -> Result<WriteOutcome, StatusError> {
        let config = self.check_applied_config(context, namespace, config)?;
        if !metadata_text(&config, "uid").is_empty() {
            let message = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                metadata_text(&config, "uid")
            );
            return Err(StatusError::conflict(context.kind.subject(name), message));
        }
        if !metadata_text(&config, "resourceVersion").is_empty() {
            return Err(StatusError::not_found(context.kind.subject(name)));
        }
        let writer = self.field_writer(context);
        let mut object = apply::apply_config(&context.version.schema, None, &config, &writer, true)?;
        decode_applied(context, &mut object)?;
        self.require_identity(namespace, name, &object)?;
        self.complete_applied(context, &mut object);
        self.complete_new_object(context, &mut object)?;
        let key = StoredKey::new(namespace.unwrap_or_default(), name);
        Ok(WriteOutcome {
            object: self.insert_object(context, key, object)?,
            created: true,
            warnings: Vec::new(),
        })
    }

    fn complete_new_object(
        &self,
        context: &WriteParameters<'_>,
        object: &mut Value,
    ) -> Result<(), StatusError> {
        self.check_escalation(context, object, None)?;
        let time = current_time();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            if !context.dry_run {
                metadata.remove("resourceVersion");
            }
            metadata.insert("uid".into(), new_uid().into());
            metadata.insert("creationTimestamp".into(), time.as_str().into());
            if context.kind.generations {
                metadata.insert("generation".into(), 1.into());
            }
        }
        if context.version.status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        (strategy_of(context.kind).prepare)(object, None);
        self.validate_object(context, object, None)?;
        self.complete_definition(context, object);
        Ok(())
    }

    pub(crate) fn check_escalation(
        &self,
        context: &WriteParameters<'_>,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        match &context.requester {
            Some(user) => escalation::check_escalation(self, user, context.kind, object, old),
            None => Ok(()),
        }
    }

    pub(crate) fn validate_object(
        &self,
        context: &WriteParameters<'_>,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), StatusError> {
        if context.kind.custom && object["kind"] != context.kind.kind.as_str() {
            return Err(self.refuse_other_kind(context, object, old));
        }
        let mut errors = crate::metadata::validate_metadata(context.kind, object);
        if let Some(old) = old.filter(|old| old["metadata"]["deletionTimestamp"].is_string()) {
            errors.extend(crate::metadata::forbid_new_finalizers(object, old));
        }
        for field in ["uid"].into_iter().chain(DELETION_FIELDS) {
            let new = &object["metadata"][field];
            if old.is_some_and(|old| old["metadata"][field] != *new) {
                let path = format!("metadata.{field}");
                errors.push(FieldError::invalid(&path, new, "field is immutable"));
            }
        }
        if context.kind.custom {
            let is_status = context.subresource == "status";
            let kind = context.kind;
            errors.extend(kind.validate(context.version, object, old, is_status, &errors));
        } else {
            errors.extend(builtin_validation::validate_object(context.kind, object, old));
            if let Some(old) = old {
                let subresource = context.subresource;
                errors.extend(builtin_changes::validate_change(
                    context.kind,
                    subresource,
                    object,
                    old,
                ));
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(StatusError::invalid(
                context.kind.subject(metadata_text(object, "name")),
                errors,
            ))
        }
    }

    /// Refuses an object of another kind than the custom one of the path. Of its own rules those are checked that need no type.
    fn refuse_other_kind(
        &self,
        context: &WriteParameters<'_>,
        object: &Value,
        old: Option<&Value>,
    ) -> StatusError {
        let kind = context.kind;
        let rule = format!("must be {}", kind.kind);
        let mut errors = vec![FieldError::invalid("kind", &object["kind"], rule)];
        errors.extend(kind.validate_structure(context.version, object, old, &errors));
        let subject = crate::status::ErrorSubject {
            kind: object["kind"].as_str().unwrap_or_default(),
            ..kind.subject(metadata_text(object, "name"))
        };
        StatusError::invalid(subject, errors)
    }

    /// Brings an object into the version in which it is stored, as a read would find it: a status that a write has dropped may
    /// have a default.
    fn complete_stored(&self, context: &WriteParameters<'_>, object: &mut Value) {
        let kind = context.kind;
        object["apiVersion"] = kind.api_version(&kind.storage_version).into();
        if kind.custom {
            if let Some(version) = kind.stored_version() {
                version.complete_object(object);
            }
        } else {
            (strategy_of(kind).allocate)(object, &self.allocated);
            self.complete_content(context, object);
            protobuf::write_stored_nulls(object);
        }
    }

    /// Drops what Go leaves out of a definition. Other kinds have been decoded that way; of a definition, empty lists are a part of
    /// what is validated.
    pub(crate) fn complete_definition(&self, context: &WriteParameters<'_>, object: &mut Value) {
        if context.kind.is_definition() {
            protobuf::drop_zero_values(object);
        }
    }

    fn insert_object(
        &self,
        context: &WriteParameters<'_>,
        key: StoredKey,
        mut object: Value,
    ) -> Result<Arc<StoredObject>, StatusError> {
        self.complete_stored(context, &mut object);
        (strategy_of(context.kind).begin)(&mut object);
        let name = key.name.clone();
        let namespace = key.namespace.clone();
        let result = if context.dry_run {
            self.storage.check_create(&context.kind.resource, &key).map(|()| {
                let revision = metadata_text(&object, "resourceVersion")
                    .parse()
                    .unwrap_or_default();
                Arc::new(StoredObject::preview(object, revision))
            })
        } else {
            set_field(&mut object["metadata"], "selfLink", None);
            limits::check_stored(&object)?;
            self.storage.create(&context.kind.resource, key, object)
        };
        let subject = context.kind.subject(&name);
        let stored = result.map_err(|refused| match refused {
            WriteRefused::NoNamespace => StatusError::not_found(crate::status::ErrorSubject { group: "", resource: "namespaces", kind: "Namespace", name: &namespace }),
            WriteRefused::NamespaceTerminating => {
                let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
                let mut error = StatusError::forbidden(subject, why);
                if let Some(details) = &mut error.details {
                    details["causes"] = json!([{"reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"}]);
                }
                error
            }
            WriteRefused::Exists | WriteRefused::Changed => StatusError::already_exists(subject),
        })?;
        if !context.dry_run {
            self.update_registry(&context.kind.resource, &name);
        }
        Ok(stored)
    }

    pub(crate) fn field_writer<'a>(&self, context: &WriteParameters<'a>) -> FieldWriter<'a> {
        FieldWriter {
            manager: context.manager,
            api_version: context.kind.api_version(&context.version.name),
            subresource: context.subresource,
            has_status_subresource: context.version.status,
            writes_metadata_with_status: context.kind.writes_metadata_with_status(),
            replicas: context.version.scale.as_ref().map(|scale| scale.spec.as_str()),
            now: current_time(),
        }
    }

    /// Completes the stored objects of a custom kind by a schema that may have changed, as a read does.
    fn complete_objects(&self, kind: &ServedKind) {
        let known = self.registry.get_by_resource(&kind.resource);
        let Some(version) = kind.stored_version().filter(|version| {
            known.is_some_and(|known| {
                let before = known.versions.iter().find(|one| one.name == version.name);
                before.is_none_or(|before| before.openapi != version.openapi)
            })
        }) else {
            return;
        };
        self.storage
            .rewrite_objects(&kind.resource, |object| version.complete_object(object));
    }

    /// Registers or removes the kind of a definition that was written or deleted.
    pub(crate) fn update_registry(&self, resource: &GroupResource, name: &str) {
        if resource.plural != builtin::CRD_PLURAL || resource.group != builtin::EXTENSIONS_GROUP {
            return;
        }
        match self.storage.get(resource, &StoredKey::new("", name)) {
            Some(definition) => {
                if let Some(kind) = crd::parse_kind(&definition.value) {
                    self.complete_objects(&kind);
                    let resource = kind.resource.clone();
                    self.registry.put_kind(kind);
                    self.storage.wake_receivers(&resource);
                }
            }
            None => {
                if let Some((plural, group)) = name.split_once('.') {
                    let resource = GroupResource::new(group, plural);
                    self.registry.remove_kind(&resource);
                    self.storage.wake_receivers(&resource);
                }
            }
        }
    }
}
