//! What goes when something else goes: dependents of owners, contents of namespaces, objects of definitions.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::api::Api;
use crate::builtin::{CRDS, EXTENSIONS};
use crate::crd;
use crate::deletion::DeleteOptions;
use crate::state::State;
use crate::storage::{Key, Resource, Stored, Written};

/// Collects until the server ends.
pub async fn run(state: Arc<State>, mut written: mpsc::UnboundedReceiver<Written>) {
    while let Some((resource, change)) = written.recv().await {
        react(&state.api, &resource, &change.object, change.deleted);
        // A burst of writes must not keep the runtime's thread from the clients.
        tokio::task::yield_now().await;
    }
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one == name))
}

fn drop_finalizer(api: &Api, resource: &Resource, key: &Key, name: &str) {
    api.adjust(resource, key, |object| {
        if let Some(all) = object["metadata"]["finalizers"].as_array_mut() {
            all.retain(|one| one != name);
        }
    });
}

fn delete(api: &Api, resource: &Resource, object: &Stored, propagation: &str) {
    let Some(kind) = api.registry.of(resource) else {
        return;
    };
    let options = DeleteOptions {
        propagation: Some(propagation.into()),
        uid: Some(object.uid().into()),
        ..DeleteOptions::default()
    };
    // Gone or replaced by now: nothing left to do.
    let _ = api.delete(&kind, &object.key(), &options);
}

fn react(api: &Api, resource: &Resource, object: &Arc<Stored>, deleted: bool) {
    if deleted {
        for (resource, dependent) in api.storage.dependents(object.uid()) {
            check_owners(api, &resource, &dependent);
        }
        // Whoever waited for this one looks again.
        for owner in owners(&object.value) {
            if let Some((resource, owner)) = api.storage.by_uid(owner["uid"].as_str().unwrap_or_default()) {
                finish(api, &resource, &owner);
            }
        }
        let key = object.key();
        if !key.namespace.is_empty() {
            let namespaces = Resource::new("", "namespaces");
            if let Some(namespace) = api.storage.get(&namespaces, &Key::new("", &key.namespace)) {
                finish(api, &namespaces, &namespace);
            }
        }
        let definitions = Resource::new(EXTENSIONS, CRDS);
        let name = format!("{}.{}", resource.plural, resource.group);
        if let Some(definition) = api.storage.get(&definitions, &Key::new("", &name)) {
            finish(api, &definitions, &definition);
        }
        return;
    }
    // The change may be old news; only the present counts.
    let Some(object) = api.storage.get(resource, &object.key()) else {
        return;
    };
    finish(api, resource, &object);
    check_owners(api, resource, &object);
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
}

/// Takes an object along when all its owners are gone, or going and waiting for it.
fn check_owners(api: &Api, resource: &Resource, object: &Arc<Stored>) {
    let (mut solid, mut waiting, mut absent) = (0, 0, Vec::new());
    for owner in owners(&object.value) {
        let uid = owner["uid"].as_str().unwrap_or_default();
        // An owner in another namespace is no owner.
        let found = api.storage.by_uid(uid).filter(|(_, found)| {
            let namespace = &found.value["metadata"]["namespace"];
            namespace.is_null() || *namespace == object.value["metadata"]["namespace"]
        });
        match found {
            None => absent.push(uid.to_owned()),
            Some((_, owner)) if owner.terminating() && has_finalizer(&owner.value, "foregroundDeletion") => {
                waiting += 1
            }
            Some(_) => solid += 1,
        }
    }
    if solid > 0 {
        if !absent.is_empty() {
            api.adjust(resource, &object.key(), |object| {
                if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| !absent.iter().any(|uid| owner["uid"] == uid.as_str()));
                }
            });
        }
        return;
    }
    if waiting > 0 && !object.terminating() {
        let has_dependents = !api.storage.dependents(object.uid()).is_empty();
        delete(
            api,
            resource,
            object,
            if has_dependents {
                "Foreground"
            } else {
                "Background"
            },
        );
    } else if waiting == 0 && !absent.is_empty() && !object.terminating() {
        let propagation = if has_finalizer(&object.value, "orphan") {
            "Orphan"
        } else {
            "Background"
        };
        delete(api, resource, object, propagation);
    }
}

/// Does for an object whose deletion has begun what its system finalizers promise.
fn finish(api: &Api, resource: &Resource, object: &Arc<Stored>) {
    if !object.terminating() {
        return;
    }
    let key = object.key();
    if has_finalizer(&object.value, "orphan") {
        for (resource, dependent) in api.storage.dependents(object.uid()) {
            api.adjust(&resource, &dependent.key(), |dependent| {
                if let Some(owners) = dependent["metadata"]["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| owner["uid"] != object.uid());
                    if owners.is_empty()
                        && let Some(metadata) = dependent["metadata"].as_object_mut()
                    {
                        metadata.remove("ownerReferences");
                    }
                }
            });
        }
        drop_finalizer(api, resource, &key, "orphan");
    }
    if has_finalizer(&object.value, "foregroundDeletion") {
        let dependents = api.storage.dependents(object.uid());
        for (resource, dependent) in &dependents {
            check_owners(api, resource, dependent);
        }
        let blocks = |dependent: &Stored| {
            owners(&dependent.value)
                .any(|owner| owner["uid"] == object.uid() && owner["blockOwnerDeletion"] == true)
        };
        if !api
            .storage
            .dependents(object.uid())
            .iter()
            .any(|(_, dependent)| blocks(dependent))
        {
            drop_finalizer(api, resource, &key, "foregroundDeletion");
        }
    }
    if resource.group.is_empty() && resource.plural == "namespaces" {
        let contents = api.storage.in_namespace(&key.name);
        for (resource, object) in contents.iter().filter(|(_, object)| !object.terminating()) {
            delete(api, resource, object, "Background");
        }
        if api.storage.in_namespace(&key.name).is_empty() {
            api.adjust(resource, &key, |namespace| {
                if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
                    finalizers.retain(|one| one != "kubernetes");
                }
            });
        }
    }
    if has_finalizer(&object.value, crd::CLEANUP)
        && let Some(kind) = crd::kind(&object.value)
    {
        for object in api
            .storage
            .list(&kind.resource, None)
            .0
            .iter()
            .filter(|object| !object.terminating())
        {
            delete(api, &kind.resource, object, "Background");
        }
        if api.storage.list(&kind.resource, None).0.is_empty() {
            drop_finalizer(api, resource, &key, crd::CLEANUP);
        }
    }
}
