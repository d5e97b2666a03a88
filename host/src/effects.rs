//! Writes to the API server: each suppressed when it would change nothing, and readable at once.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::{
    cluster::{ApiError, Cluster, Patch, Resource, parse},
    key::{Gvk, ObjectRef},
    object::Object,
    router::{Router, Writing},
    scope::Form,
    store::{Put, Store},
    watch::Origin,
};

/// Who writes: the plugin's field manager, and the object whose reconcile it is.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// Field manager at the API server.
    pub manager: &'a str,
    /// The object being reconciled: its own write does not wake it.
    pub by: &'a ObjectRef,
}

/// What a write did.
pub struct Written {
    /// The object as it is now.
    pub object: Arc<Object>,
    /// False when nothing had to be sent.
    pub sent: bool,
}

/// All writes of the host.
pub struct Effects {
    cluster: Cluster,
    store: Arc<Store>,
    router: Arc<Router>,
    /// What each manager applied last, as a digest: fields it no longer names must go.
    applied: Mutex<HashMap<(String, ObjectRef), Applied>>,
}

struct Applied {
    digest: u64,
    by: ObjectRef,
}

impl Effects {
    /// Writes through this cluster into this store.
    pub fn new(cluster: Cluster, store: Arc<Store>, router: Arc<Router>) -> Self {
        Self {
            cluster,
            store,
            router,
            applied: Mutex::default(),
        }
    }

    /// Server-side apply. Not sent when this manager applied just this before and the live object still has it all.
    pub async fn apply(
        &self,
        writer: Writer<'_>,
        key: &ObjectRef,
        object: &Value,
        force: bool,
    ) -> Result<Written, ApiError> {
        let digest = digest(object);
        let slot = (writer.manager.to_owned(), key.clone());
        let applied_before = self
            .applied
            .lock()
            .expect("lock")
            .get(&slot)
            .is_some_and(|a| a.digest == digest);
        if applied_before
            && let Some(live) = self.store.get(key, Form::Whole)
            && contains(&live.value(), object)
        {
            return Ok(Written {
                object: live,
                sent: false,
            });
        }
        let path = format!(
            "{}?fieldManager={}&force={force}",
            self.cluster.resource(&key.gvk).await?.object(key),
            writer.manager
        );
        let body = serde_json::to_vec(object).map_err(|e| ApiError::Garbage(e.to_string()))?;
        let writing = self.router.writing(key, writer.by);
        let answer = self.cluster.patch(&path, Patch::Apply, body).await?;
        self.applied.lock().expect("lock").insert(
            slot,
            Applied {
                digest,
                by: writer.by.clone(),
            },
        );
        Ok(Written {
            object: self.keep(&key.gvk, &answer, writer.by, true, writing)?,
            sent: true,
        })
    }

    /// An object is gone: what its reconciles applied need not be remembered.
    pub fn forget(&self, by: &ObjectRef) {
        self.applied
            .lock()
            .expect("lock")
            .retain(|_, applied| applied.by != *by);
    }

    /// Creates an object.
    pub async fn create(
        &self,
        writer: Writer<'_>,
        key: &ObjectRef,
        object: &Value,
    ) -> Result<Written, ApiError> {
        let resource = self.cluster.resource(&key.gvk).await?;
        let path = format!(
            "{}?fieldManager={}",
            resource.collection(&key.namespace),
            writer.manager
        );
        let body = serde_json::to_vec(object).map_err(|e| ApiError::Garbage(e.to_string()))?;
        let writing = self.router.writing(key, writer.by);
        let answer = self.cluster.create(&path, body).await?;
        Ok(Written {
            object: self.keep(&key.gvk, &answer, writer.by, true, writing)?,
            sent: true,
        })
    }

    /// Deletes an object. Gives whether there was one.
    pub async fn delete(
        &self,
        key: &ObjectRef,
        propagation: Option<&str>,
        uid: Option<&str>,
    ) -> Result<bool, ApiError> {
        let propagation = match propagation.unwrap_or("background") {
            "background" => "Background",
            "foreground" => "Foreground",
            "orphan" => "Orphan",
            other => {
                return Err(ApiError::Status {
                    code: 422,
                    reason: "Invalid".into(),
                    message: format!("propagation is `{other}`; use background, foreground or orphan"),
                    retry_after: None,
                });
            }
        };
        let mut options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation});
        if let Some(uid) = uid {
            options["preconditions"] = json!({ "uid": uid });
        }
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        match self.cluster.delete(&path, options.to_string().into_bytes()).await {
            Ok(_) => Ok(true),
            Err(e) if e.code() == 404 => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sets the finalizers of an object, as it was read: a conflict when somebody changed it since.
    pub async fn set_finalizers(
        &self,
        key: &ObjectRef,
        object: &Object,
        finalizers: &[Box<str>],
    ) -> Result<Arc<Object>, ApiError> {
        let patch = json!({"metadata": {
            "uid": &*object.uid,
            "resourceVersion": object.resource_version.to_string(),
            "finalizers": finalizers,
        }});
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        self.merge(key, &path, &patch, true).await
    }

    /// Patches the status of exactly this object.
    pub async fn patch_status(
        &self,
        key: &ObjectRef,
        uid: &str,
        status: &Value,
    ) -> Result<Arc<Object>, ApiError> {
        let resource: Resource = self.cluster.resource(&key.gvk).await?;
        let path = match resource.status {
            true => format!("{}/status", resource.object(key)),
            false => resource.object(key),
        };
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        self.merge(key, &path, &patch, false).await
    }

    async fn merge(
        &self,
        key: &ObjectRef,
        path: &str,
        patch: &Value,
        own_intent: bool,
    ) -> Result<Arc<Object>, ApiError> {
        let path = format!("{path}?fieldManager=ostler");
        let writing = self.router.writing(key, key);
        let answer = self
            .cluster
            .patch(&path, Patch::Merge, patch.to_string().into_bytes())
            .await?;
        self.keep(&key.gvk, &answer, key, own_intent, writing)
    }

    /// Reads one object from the API server itself; the store has it from then on.
    pub async fn read(&self, key: &ObjectRef, by: &ObjectRef) -> Result<Option<Arc<Object>>, ApiError> {
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        match self.cluster.get(&path).await {
            Ok(bytes) => self
                .keep(&key.gvk, &bytes, by, false, self.router.writing(key, by))
                .map(Some),
            Err(ApiError::Status { code: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Puts an answer into the store; what it says is no news to who asked for it.
    fn keep(
        &self,
        gvk: &Gvk,
        answer: &[u8],
        by: &ObjectRef,
        own_intent: bool,
        writing: Writing,
    ) -> Result<Arc<Object>, ApiError> {
        let garbage = |e: &dyn std::fmt::Display| ApiError::Garbage(e.to_string());
        let (key, object) = Object::parse(gvk, answer).map_err(|e| garbage(&e))?;
        let version = object.resource_version;
        let kept = match self.store.put(&key, object, Form::Whole) {
            Put::News(change) => {
                // A status write changes nobody's intent: if that differs, somebody else's edit came with the
                // answer, and the reconcile has not seen it.
                let foreign = key == *by
                    && !own_intent
                    && change.old.as_ref().map(|o| o.intent) != change.new.as_ref().map(|n| n.intent);
                self.router
                    .changed(&change, Origin::Watched, Some(by).filter(|_| !foreign));
                change.new
            }
            // The watch was faster, or has something newer still.
            Put::Known => self.store.get(&key, Form::Whole),
            Put::Overtaken(newer) => Some(newer),
            Put::Stray(object) => Some(object),
        };
        writing.done(version);
        match kept {
            Some(object) => Ok(object),
            None => Ok(Arc::new(Object::parse(gvk, answer).map_err(|e| garbage(&e))?.1)),
        }
    }

    /// The resource of a kind, for callers that check the scope.
    pub async fn resource(&self, gvk: &Gvk) -> Result<Resource, ApiError> {
        self.cluster.resource(gvk).await
    }

    /// POSTs an Event; whoever calls decides whether it may fail.
    pub async fn event(&self, namespace: &str, event: &Value) -> Result<Value, ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        parse(&self.cluster.create(&path, event.to_string().into_bytes()).await?)
    }

    /// Patches an Event, to count it once more.
    pub async fn event_again(&self, namespace: &str, name: &str, patch: &Value) -> Result<(), ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/events/{name}");
        self.cluster
            .patch(&path, Patch::Merge, patch.to_string().into_bytes())
            .await
            .map(drop)
    }
}

/// Whether `live` has everything `applied` says. Lists must be equal in length, entry by entry:
/// a list the server added to is sent again rather than guessed about.
fn contains(live: &Value, applied: &Value) -> bool {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) => applied
            .iter()
            .all(|(k, v)| live.get(k).is_some_and(|l| contains(l, v))),
        (Value::Array(live), Value::Array(applied)) => {
            live.len() == applied.len() && live.iter().zip(applied).all(|(l, a)| contains(l, a))
        }
        (live, applied) => live == applied,
    }
}

fn digest(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_the_server_do_not_make_a_difference() {
        let live = json!({"spec": {"a": 1, "defaulted": true, "l": [{"n": "x", "d": 1}]}});
        assert!(contains(&live, &json!({"spec": {"a": 1, "l": [{"n": "x"}]}})));
        assert!(!contains(&live, &json!({"spec": {"a": 2}})));
        assert!(!contains(&live, &json!({"spec": {"l": []}})));
        assert!(!contains(&live, &json!({"spec": {"b": null}})));
    }
}
