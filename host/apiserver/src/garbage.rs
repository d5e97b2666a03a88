//! Garbage collection: dependents of deleted owners, contents of namespaces, objects of definitions.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::allocation::CLAIM_FINALIZER;
use crate::apply::{FieldWriter, track_update};
use crate::builtin::{CRD_PLURAL, EXTENSIONS_GROUP};
use crate::conditions::{describe_remaining, with_times};
use crate::controllers::{self, CONTROLLER_MANAGER};
use crate::crd;
use crate::deletion::DeleteOptions;
use crate::object::{current_time, set_field};
use crate::rbac;
use crate::state::RequestHandler;
use crate::state::ServerState;
use crate::storage::{GroupResource, ObjectWrite, StoredKey, StoredObject, WriteNotice};

/// Handles every write until the server ends.
pub async fn run_collector(state: Arc<ServerState>, mut written: mpsc::UnboundedReceiver<WriteNotice>) {
    while let Some((resource, change)) = written.recv().await {
        handle_write(&state.api, &resource, &change);
        if state.controllers {
            controllers::follow_write(&state.api, &resource, &change.object);
        }
        // A burst of writes must not keep the runtime's thread from the clients.
        tokio::task::yield_now().await;
    }
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == name))
}

fn remove_finalizer(api: &RequestHandler, resource: &GroupResource, key: &StoredKey, name: &str) {
    api.adjust_object(resource, key, |object| {
        let metadata = &mut object["metadata"];
        let Some(mut left) = metadata["finalizers"].as_array().cloned() else {
            return;
        };
        left.retain(|one| one != name);
        // A namespace outlives its last finalizer, and metadata has no empty lists.
        set_field(metadata, "finalizers", (!left.is_empty()).then(|| left.into()));
    });
}

/// Changes an object as the controllers of a cluster do, by a write of which the owned fields are tracked.
fn write_as_controller(
    api: &RequestHandler,
    resource: &GroupResource,
    key: &StoredKey,
    subresource: &str,
    change: impl Fn(&mut Value),
) {
    let Some(kind) = api.registry.get_by_resource(resource) else {
        return;
    };
    api.adjust_object(resource, key, |object| {
        let before = object.clone();
        change(object);
        if let Some(version) = kind.stored_version().filter(|_| *object != before) {
            let writer = FieldWriter {
                manager: CONTROLLER_MANAGER,
                api_version: kind.api_version(&version.name),
                subresource,
                writes_metadata_with_status: false,
                has_status_subresource: version.status,
                replicas: None,
                now: current_time(),
            };
            track_update(&version.schema, Some(&before), object, &writer);
        }
    });
}

fn remove_owners(
    api: &RequestHandler,
    resource: &GroupResource,
    key: &StoredKey,
    is_gone: impl Fn(&str) -> bool,
) {
    write_as_controller(api, resource, key, "", |object| {
        if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|owner| !is_gone(owner["uid"].as_str().unwrap_or_default()));
            if owners.is_empty() {
                set_field(&mut object["metadata"], "ownerReferences", None);
            }
        }
    });
}

fn delete_with_policy(
    api: &RequestHandler,
    resource: &GroupResource,
    object: &StoredObject,
    propagation: &str,
) {
    let Some(kind) = api.registry.get_by_resource(resource) else {
        return;
    };
    let options = DeleteOptions {
        propagation: Some(propagation.into()),
        uid: Some(object.uid().into()),
        ..DeleteOptions::default()
    };
    // An error means that the object has been deleted or replaced since: there is nothing left to delete.
    let _ = api.delete_object(&kind, &object.key(), &options);
}

fn handle_write(api: &RequestHandler, resource: &GroupResource, change: &ObjectWrite) {
    let object = &change.object;
    if resource.group == rbac::RBAC_GROUP && resource.plural == "clusterroles" {
        let states = change.previous.iter().chain([object]);
        rbac::aggregate_roles(api, &states.map(Arc::as_ref).collect::<Vec<_>>());
    }
    if change.deleted {
        for (resource, dependent) in api.storage.list_dependents(object.uid()) {
            collect_if_unowned(api, &resource, &dependent);
        }
        // An owner in foreground deletion may have waited for this object.
        for owner in owner_references(&object.value) {
            if let Some((resource, owner)) =
                api.storage.find_by_uid(owner["uid"].as_str().unwrap_or_default())
            {
                finish_deletion(api, &resource, &owner);
            }
        }
        let key = object.key();
        if !key.namespace.is_empty() {
            let namespaces = GroupResource::new("", "namespaces");
            if let Some(namespace) = api.storage.get(&namespaces, &StoredKey::new("", &key.namespace)) {
                finish_deletion(api, &namespaces, &namespace);
            }
        }
        if resource.group.is_empty() && resource.plural == "pods" {
            // A claim may have waited for it.
            let claims = GroupResource::new("", "persistentvolumeclaims");
            for claim in api.storage.list(&claims, Some(&key.namespace)).0 {
                finish_deletion(api, &claims, &claim);
            }
        }
        let definitions = GroupResource::new(EXTENSIONS_GROUP, CRD_PLURAL);
        let name = format!("{}.{}", resource.plural, resource.group);
        if let Some(definition) = api.storage.get(&definitions, &StoredKey::new("", &name)) {
            finish_deletion(api, &definitions, &definition);
        }
        return;
    }
    // The change may be outdated by now; only the current state counts.
    let Some(object) = api.storage.get(resource, &object.key()) else {
        return;
    };
    finish_deletion(api, resource, &object);
    collect_if_unowned(api, resource, &object);
    if resource.group == EXTENSIONS_GROUP && resource.plural == CRD_PLURAL && !object.is_terminating() {
        api.adjust_object(resource, &object.key(), crd::set_established);
    }
}

fn owner_references(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
}

/// Returns true if an owner cannot be looked up: its kind is not served, or it is namespaced and the object is not.
fn has_unresolved_owner(api: &RequestHandler, object: &Value) -> bool {
    let is_cluster_scoped = object["metadata"]["namespace"].is_null();
    owner_references(object).any(|owner| {
        let api_version = owner["apiVersion"].as_str().unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kinds = api.registry.list_kinds();
        let kind = kinds
            .iter()
            .find(|kind| kind.resource.group == group && owner["kind"] == kind.kind.as_str());
        kind.is_none_or(|kind| is_cluster_scoped && kind.namespaced)
    })
}

/// Deletes an object if each of its owners is deleted, or is in foreground deletion and waits for its dependents.
fn collect_if_unowned(api: &RequestHandler, resource: &GroupResource, object: &Arc<StoredObject>) {
    if has_unresolved_owner(api, &object.value) {
        return;
    }
    let (mut solid, mut waiting, mut absent) = (0, Vec::new(), Vec::new());
    for owner in owner_references(&object.value) {
        let uid = owner["uid"].as_str().unwrap_or_default();
        // Owner references across namespaces are invalid.
        let found = api.storage.find_by_uid(uid).filter(|(_, found)| {
            let namespace = &found.value["metadata"]["namespace"];
            namespace.is_null() || *namespace == object.value["metadata"]["namespace"]
        });
        match found {
            None => absent.push(uid.to_owned()),
            Some((_, owner))
                if owner.is_terminating() && has_finalizer(&owner.value, "foregroundDeletion") =>
            {
                waiting.push(uid.to_owned());
            }
            Some(_) => solid += 1,
        }
    }
    if solid > 0 {
        // Those that are deleted in the foreground need not wait for it, either.
        let released: Vec<_> = absent.into_iter().chain(waiting).collect();
        if !released.is_empty() {
            remove_owners(api, resource, &object.key(), |uid| {
                released.iter().any(|one| one == uid)
            });
        }
        return;
    }
    if !waiting.is_empty() && !object.is_terminating() {
        let has_dependents = !api.storage.list_dependents(object.uid()).is_empty();
        delete_with_policy(
            api,
            resource,
            object,
            if has_dependents {
                "Foreground"
            } else {
                "Background"
            },
        );
    } else if waiting.is_empty() && !absent.is_empty() && !object.is_terminating() {
        let propagation = if has_finalizer(&object.value, "orphan") {
            "Orphan"
        } else {
            "Background"
        };
        delete_with_policy(api, resource, object, propagation);
    }
}

/// Returns true if a pod that has not ended mounts a claim.
fn is_claim_used(api: &RequestHandler, claim: &StoredKey) -> bool {
    let pods = api
        .storage
        .list(&GroupResource::new("", "pods"), Some(&claim.namespace))
        .0;
    pods.iter().any(|pod| {
        let has_ended = matches!(
            pod.value["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        let mut volumes = pod.value["spec"]["volumes"].as_array().into_iter().flatten();
        !has_ended
            && volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim.name.as_str())
    })
}

/// Carries out the system finalizers of an object in deletion: orphaning, foreground deletion, emptying a namespace or
/// a definition.
fn finish_deletion(api: &RequestHandler, resource: &GroupResource, object: &Arc<StoredObject>) {
    if !object.is_terminating() {
        return;
    }
    let key = object.key();
    if has_finalizer(&object.value, "orphan") {
        for (resource, dependent) in api.storage.list_dependents(object.uid()) {
            remove_owners(api, &resource, &dependent.key(), |uid| uid == object.uid());
        }
        remove_finalizer(api, resource, &key, "orphan");
    }
    if has_finalizer(&object.value, "foregroundDeletion") {
        let dependents = api.storage.list_dependents(object.uid());
        for (resource, dependent) in &dependents {
            collect_if_unowned(api, resource, dependent);
        }
        let blocks = |dependent: &StoredObject| {
            owner_references(&dependent.value)
                .any(|owner| owner["uid"] == object.uid() && owner["blockOwnerDeletion"] == true)
        };
        if !api
            .storage
            .list_dependents(object.uid())
            .iter()
            .any(|(_, dependent)| blocks(dependent))
        {
            remove_finalizer(api, resource, &key, "foregroundDeletion");
        }
    }
    if has_finalizer(&object.value, CLAIM_FINALIZER) && !is_claim_used(api, &key) {
        remove_finalizer(api, resource, &key, CLAIM_FINALIZER);
    }
    if resource.group.is_empty() && resource.plural == "namespaces" {
        empty_namespace(api, resource, &key);
    }
    if has_finalizer(&object.value, crd::CLEANUP_FINALIZER)
        && let Some(kind) = crd::parse_kind(&object.value)
    {
        api.adjust_object(resource, &key, crd::set_terminating);
        for object in api
            .storage
            .list(&kind.resource, None)
            .0
            .iter()
            .filter(|object| !object.is_terminating())
        {
            delete_with_policy(api, &kind.resource, object, "Background");
        }
        if api.storage.list(&kind.resource, None).0.is_empty() {
            remove_finalizer(api, resource, &key, crd::CLEANUP_FINALIZER);
        }
    }
}

/// Deletes what a namespace contains, says what remains of that, and lets the namespace go if it is nothing.
fn empty_namespace(api: &RequestHandler, resource: &GroupResource, key: &StoredKey) {
    let contents = api.storage.list_namespace(&key.name);
    for (resource, object) in contents.iter().filter(|(_, object)| !object.is_terminating()) {
        delete_with_policy(api, resource, object, "Background");
    }
    let remaining = api.storage.list_namespace(&key.name);
    write_as_controller(api, resource, key, "status", |namespace| {
        namespace["status"]["conditions"] = with_times(namespace, &describe_remaining(&remaining));
    });
    if !remaining.is_empty() {
        return;
    }
    api.adjust_object(resource, key, |namespace| {
        let spec = namespace["spec"].as_object_mut();
        if let Some(spec) = spec
            && let Some(finalizers) = spec.get_mut("finalizers").and_then(Value::as_array_mut)
        {
            finalizers.retain(|one| one != "kubernetes");
            if finalizers.is_empty() {
                spec.remove("finalizers");
            }
        }
    });
}
