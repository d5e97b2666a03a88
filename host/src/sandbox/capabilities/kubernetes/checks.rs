//! Checks of what a component asks for, without I/O: grants, marks, and the Secrets that an object names.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    super::{
        CallTarget,
        context::{CallContext, check_host_reference, check_own_cluster, check_path_segments},
        http::{deny_digest_key, named_secrets},
    },
    is_mark,
    logs::MAX_LOG_LINES,
    names_secrets,
    patch::parse_patch,
};
use crate::{
    cluster::cluster_gvk,
    contract::bindings::{
        kubernetes::LogOptions,
        types::{self, Error, SecretKeyRef, Substitution},
    },
    kube::{
        key::{Gvk, ObjectRef, display_cluster, is_dns_label},
        owned::{add_mark, add_owner_label, check_patched_mark, remove_mark},
        secret_view::check_patched_marks,
    },
    policy::grants::{Access, GrantVerb, SecretDestination},
    upstream::{SecretUses, upstream_gvk},
};

impl CallContext {
    /// Checks the grant of a verb for the kind, namespace and cluster of an object.
    pub fn check_verb(&self, verb: GrantVerb, key: &ObjectRef) -> Result<(), Error> {
        self.check_grant(&Access::Kubernetes {
            verb,
            gvk: &key.gvk,
            namespace: &key.namespace,
            cluster: &key.cluster,
        })
    }

    /// Refuses what a write to another cluster cannot have: an owner without a finalizer, and substitutions, since a grant
    /// for a namespace of the host's own cluster must not let a Secret leave it.
    pub fn check_remote_options(
        &self,
        cluster: &str,
        owned: bool,
        substitutions: &[types::Substitution],
    ) -> Result<(), Error> {
        if owned {
            self.check_remote_owner(cluster)?;
        }
        if !substitutions.is_empty() {
            check_own_cluster("substitutions in an object", cluster)?;
        }
        Ok(())
    }

    /// Refuses an owned object on another cluster where nothing would delete it: without a finalizer, the reconciled object
    /// is gone before the host could do so.
    pub fn check_remote_owner(&self, cluster: &str) -> Result<(), Error> {
        if self.is_target_cluster(cluster) {
            return Ok(());
        }
        if self.is_hook() {
            return Err(Error::Unsupported(
                "owned objects on another cluster than that of their owner, in a life-cycle hook or a message handler: leave \
                 out `owned`"
                    .into(),
            ));
        }
        match &self.target {
            Some(target) if target.is_finalized => Ok(()),
            _ => Err(Error::Invalid(format!(
                "an object that owns others on another cluster, here {}, needs a finalizer, by which they are deleted before it: \
                 name one for its kind in `describe`",
                display_cluster(cluster)
            ))),
        }
    }

    /// An object may carry the mark of an owner on another cluster.
    pub fn may_have_mark(&self, key: &ObjectRef) -> bool {
        !(key.is_home() && self.home_cluster().is_empty())
    }

    /// Parses and checks an object that a component writes, and adds the owner reference of an owned object.
    pub fn prepare_object(
        &self,
        object: Vec<u8>,
        cluster: &Arc<str>,
        owned: bool,
        verb: GrantVerb,
    ) -> Result<(ObjectRef, Value), Error> {
        let mut object: Value =
            serde_json::from_slice(&object).map_err(|e| invalid_object(&e.to_string()))?;
        let named = parse_identity(&object)?.with_cluster(cluster);
        self.check_verb(verb, &named)?;
        let key = self.parse_reference(&self.reference_to(&named))?;
        deny_digest_key(&key.gvk, &key.name)?;
        let Some(target) = &self.target else {
            return Err(Error::Denied("no object to write for".into()));
        };
        if target.key.is_same_object(&key) {
            return Err(invalid_object(
                "the reconciled object itself: its status is returned, its spec belongs to its author",
            ));
        }
        remove_host_fields(&mut object);
        if owned && self.is_target_cluster(&key.cluster) {
            add_owner(&mut object, &key, target)?;
        } else if owned {
            check_owner(target)?;
            add_mark(&mut object, &target.key, &target.object.uid);
        }
        Ok((key, object))
    }

    /// Parses a merge patch of an object, and checks what it may change.
    pub fn check_merge_patch(&self, by: &ObjectRef, key: &ObjectRef, patch: &[u8]) -> Result<Value, Error> {
        deny_digest_key(&key.gvk, &key.name)?;
        let patch = parse_patch(patch)?;
        check_patched_marks(&key.gvk, &patch).map_err(|e| Error::Invalid(format!("patch: {e}")))?;
        if self.may_have_mark(key) {
            check_patched_mark(&patch).map_err(|e| Error::Invalid(format!("patch: {e}")))?;
        }
        if names_secrets(&key.gvk) && patch.get("spec").is_some() {
            return Err(Error::Denied(format!(
                "patch: the spec of {} is applied or created, not patched, so that its Secrets can be checked",
                key.gvk.kind
            )));
        }
        if by.is_same_object(key) {
            return Err(Error::Invalid(
                "patch: the reconciled object itself: its status is returned, its spec belongs to its author"
                    .into(),
            ));
        }
        Ok(patch)
    }

    /// Checks that the plugin may name each Secret of an Upstream or a Cluster that it writes. `live` is the object before.
    pub fn check_named_secrets(
        &self,
        key: &ObjectRef,
        object: &Value,
        live: Option<&Value>,
    ) -> Result<(), Error> {
        if key.gvk.is_same_kind(&upstream_gvk()) {
            return self.check_upstream_secrets(key, object, live);
        }
        if !key.gvk.is_same_kind(&cluster_gvk()) {
            return Ok(());
        }
        // The kubeconfig in the Secret has the destination, which nobody knows before.
        let pointer = "/spec/kubeconfigSecretRef/name";
        let written = [Some(object), live].into_iter().flatten();
        let named = written.filter_map(|object| object.pointer(pointer)?.as_str());
        for name in named {
            let access = Access::Secret {
                namespace: &key.namespace,
                name,
                destination: None,
            };
            let own = self.own_namespace();
            let checked = self.policy.grants.check_access(&access, own);
            checked.map_err(|e| {
                Error::Denied(format!("spec.kubeconfigSecretRef of Cluster {}: {e}", key.name))
            })?;
        }
        Ok(())
    }

    /// Checks that the plugin may name each Secret of an Upstream that it writes, for the origins of its URLs: it is the
    /// host that sends them. `live` is the object before.
    pub fn check_upstream_secrets(
        &self,
        key: &ObjectRef,
        object: &Value,
        live: Option<&Value>,
    ) -> Result<(), Error> {
        let uses =
            SecretUses::of_apply(object, live).map_err(|e| Error::Invalid(format!("Upstream: {e}")))?;
        for (field, name) in &uses.secrets {
            for origin in &uses.origins {
                let access = Access::Secret {
                    namespace: &key.namespace,
                    name,
                    destination: Some(SecretDestination::Origin(origin)),
                };
                let checked = self.policy.grants.check_access(&access, self.own_namespace());
                checked.map_err(|e| Error::Denied(format!("{field} of Upstream {}: {e}", key.name)))?;
            }
        }
        Ok(())
    }

    /// Checks that the secrets of substitutions may be written into an object, before anything is read.
    pub fn check_insertion(&self, key: &ObjectRef, substitutions: &[Substitution]) -> Result<(), Error> {
        if substitutions.is_empty() {
            return Ok(());
        }
        if !key.gvk.is_secret() {
            return Err(Error::Invalid(format!(
                "substitutions: {} is no Secret: the host inserts secrets into `data` and `stringData` of a Secret only",
                key.gvk.kind
            )));
        }
        let destination = SecretDestination::Object {
            namespace: &key.namespace,
        };
        for secret in substitutions.iter().flat_map(named_secrets) {
            if self.check_secret(secret, Some(destination))? == *key {
                return Err(Error::Invalid(format!(
                    "substitutions: Secret {} is the written object itself",
                    secret.name
                )));
            }
        }
        Ok(())
    }

    /// Checks the grant to name a Secret and to have its value written to a destination, and returns its key.
    pub fn check_secret(
        &self,
        secret: &SecretKeyRef,
        destination: Option<SecretDestination<'_>>,
    ) -> Result<ObjectRef, Error> {
        check_host_reference("a Secret to insert", secret.cluster.as_deref())?;
        let (namespace, name) = (secret.namespace.as_deref(), secret.name.as_str());
        let namespace = namespace.unwrap_or(self.host_namespace());
        check_path_segments(namespace, name, "secret")?;
        deny_digest_key(&Gvk::secret(), name)?;
        self.check_grant(&Access::Secret {
            namespace,
            name,
            destination,
        })?;
        Ok(ObjectRef::new(Gvk::secret(), namespace, name))
    }

    /// Checks a request for a log: the permission, the kind and the options.
    pub fn check_log_request(&self, key: &ObjectRef, options: &LogOptions) -> Result<(), Error> {
        self.check_grant(&Access::Subresource {
            verb: GrantVerb::Get,
            gvk: &key.gvk,
            subresource: "log",
            namespace: &key.namespace,
            cluster: &key.cluster,
        })?;
        if !(key.gvk.group.is_empty() && *key.gvk.kind == *"Pod") {
            return Err(Error::Invalid(format!(
                "{} has no log: a Pod of v1 has",
                key.gvk.kind
            )));
        }
        if options.tail_lines == 0 || options.tail_lines > MAX_LOG_LINES {
            return Err(Error::Invalid(format!(
                "tail-lines is {}: 1 to {MAX_LOG_LINES} lines can be read",
                options.tail_lines
            )));
        }
        match options.container.as_deref() {
            Some(container) if !is_dns_label(container) => Err(Error::Invalid(format!(
                "container `{container}` is not a name of a-z, 0-9 and -"
            ))),
            _ => Ok(()),
        }
    }
}

fn invalid_object(what: &str) -> Error {
    Error::Invalid(format!("object: {what}"))
}

/// Kind, namespace and name of an object that a component writes.
fn parse_identity(object: &Value) -> Result<ObjectRef, Error> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    for (field, value) in [
        ("apiVersion", api_version),
        ("kind", kind),
        ("metadata.name", name),
    ] {
        if value.is_empty() {
            return Err(invalid_object(&format!("{field} is missing")));
        }
    }
    Ok(ObjectRef::new(
        Gvk::from_api_version(api_version, kind),
        namespace,
        name,
    ))
}

/// Removes the fields of an object that the API server or the host sets.
fn remove_host_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for managed in ["managedFields", "resourceVersion", "ownerReferences"] {
            metadata.remove(managed);
        }
        // Without the key nothing can be read from it as the removal of all annotations.
        if metadata.get("annotations").is_some_and(Value::is_null) {
            metadata.remove("annotations");
        }
    }
    // The marks are the host's: a component that writes what it read would change them each time, and without the marks of
    // inserted secrets it could read them.
    if let Some(annotations) = object.pointer_mut("/metadata/annotations")
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.retain(|name, _| !is_mark(name));
    }
    remove_mark(object);
}

/// Refuses an owned object of a life-cycle hook.
fn check_owner(target: &CallTarget) -> Result<(), Error> {
    match target.object.uid.is_empty() {
        true => Err(invalid_object(
            "nothing to be owned by: `initialize` is about no object",
        )),
        false => Ok(()),
    }
}

/// Makes the reconciled object the owner of an object on its cluster.
fn add_owner(object: &mut Value, key: &ObjectRef, target: &CallTarget) -> Result<(), Error> {
    check_owner(target)?;
    let owner = &target.key;
    if !owner.namespace.is_empty() && owner.namespace != key.namespace {
        return Err(invalid_object(&format!(
            "owned objects live in the owner's namespace `{}`",
            owner.namespace
        )));
    }
    add_owner_label(object, &target.object.uid);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner.gvk.api_version(),
        "kind": &*owner.gvk.kind,
        "name": &*owner.name,
        "uid": target.object.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
    Ok(())
}
