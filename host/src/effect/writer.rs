//! Writes to the API server: each suppressed when it would change nothing, and readable at once.

mod write_responses;

use crate::kube::hash::hash_to_u64;
use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use self::write_responses::Answers;
use crate::{
    cache::store::Store,
    client::api::{ApiError, As, Cluster, Patch, Resource, parse},
    contract::bindings::kubernetes::{Preconditions, Propagation},
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        references::{self, HOLDS},
        scope::Form,
        selector::Selector,
    },
    policy::grants::ServiceAccount,
    schedule::dispatcher::Router,
};

/// Who writes: the plugin's field manager, and the object whose reconcile it is.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// Field manager at the API server.
    pub manager: &'a str,
    /// The object being reconciled: its own write does not wake it.
    pub by: &'a ObjectRef,
    /// A digest of what the component said, where that decides what is written.
    pub said: u64,
    /// Whom it is written as; none for the host itself.
    pub account: Option<&'a ServiceAccount>,
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
    answers: Answers,
    /// What the reconciles of each object applied last.
    applied: Mutex<HashMap<ObjectRef, Vec<(ObjectRef, Applied)>>>,
}

/// What was applied, and what the server made of it; as digests.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Applied {
    /// Of what the component said, and the version of the live object that was found to have it all: where both
    /// are the same, there is nothing to look at.
    said: u64,
    version: u64,
    /// Of the fields sent: fields that are no longer named must go.
    sent: u64,
    /// Of the same fields as they were after it, defaulted and normalized by the server.
    live: u64,
}

impl Effects {
    /// Writes through this cluster into this store.
    pub fn new(cluster: Cluster, store: Arc<Store>, router: Arc<Router>) -> Self {
        Self {
            cluster,
            store: store.clone(),
            answers: Answers::new(store, router),
            applied: Mutex::default(),
        }
    }

    /// Server-side apply. Not sent when the same reconciled object applied just this before and the fields are
    /// live as they were left then.
    pub async fn apply(
        &self,
        writer: Writer<'_>,
        key: &ObjectRef,
        object: &Value,
        force: bool,
    ) -> Result<Written, ApiError> {
        let body = serde_json::to_vec(object).map_err(|e| ApiError::Garbage(e.to_string()))?;
        let sent = hash_to_u64(|hasher| body.hash(hasher));
        let before = {
            let applied = self.applied.lock().expect("lock");
            let of = applied.get(writer.by).into_iter().flatten();
            let mut of_key = of.filter(|(k, _)| k == key);
            of_key.next().map(|(_, before)| *before)
        };
        let live = self.store.get(key, Form::Whole);
        let was = live.as_ref().map(|live| fingerprint(&live.value(), object));
        if let (Some(before), Some(live)) = (before, live)
            && before.sent == sent
            && was == Some(before.live)
        {
            let (said, version) = (writer.said, live.resource_version);
            self.remember(
                writer.by,
                key,
                Applied {
                    said,
                    version,
                    ..before
                },
            );
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
        let awaiting = self.answers.awaiting(key, writer.by);
        let cluster = self.cluster.acting(writer.account);
        let answer = cluster.patch(&path, Patch::Apply, body).await?;
        let answered: Value = parse(&answer)?;
        let live = fingerprint(&answered, object);
        // Where all of it was there before, what has changed meanwhile was somebody else.
        let ours = was != Some(live);
        let object_now = awaiting.keep(&answer, ours)?;
        // Of the answer: what is in the store may be somebody else's by now.
        let version = answered["metadata"]["resourceVersion"].as_str();
        let (said, version) = (writer.said, version.and_then(|v| v.parse().ok()).unwrap_or(0));
        let applied = Applied {
            said,
            version,
            sent,
            live,
        };
        self.remember(writer.by, key, applied);
        Ok(Written {
            object: object_now,
            sent: true,
        })
    }

    fn remember(&self, by: &ObjectRef, key: &ObjectRef, what: Applied) {
        let mut applied = self.applied.lock().expect("lock");
        let of = applied.entry(by.clone()).or_default();
        match of.iter_mut().find(|(k, _)| k == key) {
            Some((_, before)) => *before = what,
            None => {
                // Most have one child: room for just these.
                of.reserve_exact(1);
                of.push((key.clone(), what));
            }
        }
    }

    /// What an object's reconcile applied by just these words before, if it is live as it was left then.
    pub fn as_before(&self, by: &ObjectRef, said: u64) -> Option<(ObjectRef, Arc<Object>)> {
        let (key, version) = {
            let applied = self.applied.lock().expect("lock");
            let (key, before) = applied.get(by)?.iter().find(|(_, a)| a.said == said)?;
            (key.clone(), before.version)
        };
        let live = self.store.get(&key, Form::Whole)?;
        (live.resource_version == version).then_some((key, live))
    }

    /// An object is gone: what its reconciles applied need not be remembered.
    pub fn forget(&self, by: &ObjectRef) {
        self.applied.lock().expect("lock").remove(by);
    }

    /// Others have written meanwhile: nothing is remembered as applied.
    pub fn forget_all(&self) {
        self.applied.lock().expect("lock").clear();
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
        let awaiting = self.answers.awaiting(key, writer.by);
        let answer = self.cluster.acting(writer.account).create(&path, body).await?;
        Ok(Written {
            object: awaiting.keep(&answer, true)?,
            sent: true,
        })
    }

    /// Applies a merge patch to an object. The API server checks the preconditions by the identity in the patch: it
    /// answers 409 if the uid or the resourceVersion differs.
    pub async fn merge_patch(
        &self,
        writer: Writer<'_>,
        key: &ObjectRef,
        patch: &Value,
        preconditions: &Preconditions,
    ) -> Result<Written, ApiError> {
        let path = format!(
            "{}?fieldManager={}",
            self.cluster.resource(&key.gvk).await?.object(key),
            writer.manager
        );
        let mut body = patch.clone();
        let required = [
            ("uid", &preconditions.uid),
            ("resourceVersion", &preconditions.resource_version),
        ];
        for (field, value) in required {
            if let Some(value) = value {
                body["metadata"][field] = value.as_str().into();
            }
        }
        let before = self.store.get(key, Form::Whole);
        let before = before.map(|live| fingerprint(&live.value(), patch));
        let awaiting = self.answers.awaiting(key, writer.by);
        let cluster = self.cluster.acting(writer.account);
        let answer = cluster
            .patch(&path, Patch::Merge, body.to_string().into_bytes())
            .await?;
        // If the patched fields did not change, another client's change came with the answer.
        let ours = before != Some(fingerprint(&parse(&answer)?, patch));
        Ok(Written {
            object: awaiting.keep(&answer, ours)?,
            sent: true,
        })
    }

    /// Deletes an object. Gives whether there was one.
    pub async fn delete(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        propagation: Propagation,
        preconditions: &Preconditions,
    ) -> Result<bool, ApiError> {
        let policy = match propagation {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        };
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
        let required = [
            ("uid", &preconditions.uid),
            ("resourceVersion", &preconditions.resource_version),
        ];
        for (field, value) in required {
            if let Some(value) = value {
                options["preconditions"][field] = value.as_str().into();
            }
        }
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        match self
            .cluster
            .acting(account)
            .delete(&path, options.to_string().into_bytes())
            .await
        {
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
        self.merge(None, key, &path, &patch, key, true).await
    }

    /// Writes into an annotation of exactly this object what it holds; none takes the annotation away.
    pub async fn set_holds(
        &self,
        holder: &ObjectRef,
        uid: &str,
        held: &BTreeSet<ObjectRef>,
    ) -> Result<(), ApiError> {
        let text = references::names(held);
        let change = |object: &Object| {
            let same = *object.uid != *uid || object.annotation(HOLDS).unwrap_or_default() == text;
            let text = Some(&text).filter(|text| !text.is_empty());
            (!same).then(|| json!({"annotations": {HOLDS: text}}))
        };
        self.amend(holder, holder, change).await.map(drop)
    }

    /// Puts a holder's mark on an object or takes it off. Gives whether something had to be sent; an object
    /// that is gone needs nothing taken off.
    pub async fn mark(
        &self,
        key: &ObjectRef,
        holder: &ObjectRef,
        uid: &str,
        on: bool,
    ) -> Result<bool, ApiError> {
        let mark = references::mark(uid);
        let change = |object: &Object| {
            if references::marked(object, uid) == on {
                return None;
            }
            let mut finalizers: Vec<&str> = object.finalizers.iter().map(|f| &**f).collect();
            finalizers.retain(|f| *f != mark);
            if on {
                finalizers.push(&mark);
            }
            let text = on.then(|| references::name(holder));
            Some(json!({"finalizers": finalizers, "annotations": {&mark: text}}))
        };
        match self.amend(key, holder, change).await {
            Err(e) if e.code() == 404 && !on => Ok(false),
            done => done,
        }
    }

    /// Changes the metadata of an object as it is at the API server, again when somebody else was faster. Gives
    /// whether there was something to change.
    async fn amend(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        change: impl Fn(&Object) -> Option<Value>,
    ) -> Result<bool, ApiError> {
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        let mut attempts = 0;
        loop {
            let bytes = self.cluster.get(&path).await?;
            let (_, object) =
                Object::parse(&key.gvk, &bytes).map_err(|e| ApiError::Garbage(e.to_string()))?;
            let Some(mut metadata) = change(&object) else {
                return Ok(false);
            };
            // What was read is what is changed: nobody's edit in between goes unseen. One before may be news already.
            self.answers.learn(key, &bytes)?;
            metadata["uid"] = (*object.uid).into();
            metadata["resourceVersion"] = object.resource_version.to_string().into();
            attempts += 1;
            let patch = json!({"metadata": metadata});
            match self.merge(None, key, &path, &patch, by, true).await {
                Err(e) if e.code() == 409 && attempts < 5 => {}
                done => return done.map(|_| true),
            }
        }
    }

    /// An object as the API server has it, which the store does not keep.
    pub async fn bytes(&self, key: &ObjectRef) -> Result<bytes::Bytes, ApiError> {
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        self.cluster.get(&path).await
    }

    /// Whether exactly this object exists.
    pub async fn exists(&self, key: &ObjectRef, uid: &str) -> Result<bool, ApiError> {
        let path = match self.cluster.resource(&key.gvk).await {
            Ok(resource) => resource.object(key),
            // Its CRD is gone, and with it every object of the kind.
            Err(ApiError::UnknownKind(_)) => return Ok(false),
            Err(e) => return Err(e),
        };
        match self.cluster.get_as(&path, Some(As::Object)).await {
            Ok(bytes) => Ok(Object::parse(&key.gvk, &bytes).is_ok_and(|(_, o)| *o.uid == *uid)),
            Err(e) if e.code() == 404 => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// A page of a list from the API server itself: the objects, and the token of the next page (empty after
    /// the last).
    pub async fn page(
        &self,
        account: Option<&ServiceAccount>,
        gvk: &Gvk,
        namespace: &str,
        labels: Option<&Selector>,
        limit: usize,
        token: &str,
    ) -> Result<(Vec<(ObjectRef, Arc<Object>)>, String), ApiError> {
        let query = self.cluster.query(gvk, namespace, labels).await?;
        let mut objects = Vec::new();
        let cluster = self.cluster.acting(account);
        let page = cluster.page(&query, limit, token, None, |item| {
            objects.extend(Object::parse(gvk, item.as_bytes()).ok());
        });
        let (_, next) = page.await?;
        let objects = objects.into_iter().map(|(key, object)| (key, Arc::new(object)));
        Ok((objects.collect(), next))
    }

    /// Patches labels and annotations of an object, as it was read: a conflict when somebody changed it since.
    pub async fn patch_metadata(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        object: &Object,
        mut metadata: Value,
    ) -> Result<Arc<Object>, ApiError> {
        metadata["uid"] = (*object.uid).into();
        metadata["resourceVersion"] = object.resource_version.to_string().into();
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        let patch = json!({ "metadata": metadata });
        self.merge(account, key, &path, &patch, key, true).await
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
        // It changes nobody's intent: if that differs, somebody else's edit came with the answer.
        self.merge(None, key, &path, &patch, key, false).await
    }

    /// `ours`: who asks knows all that was there before, so that what the answer has besides is its own.
    async fn merge(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        path: &str,
        patch: &Value,
        by: &ObjectRef,
        ours: bool,
    ) -> Result<Arc<Object>, ApiError> {
        let path = format!("{path}?fieldManager=ostler");
        let awaiting = self.answers.awaiting(key, by);
        let cluster = self.cluster.acting(account);
        let answer = cluster
            .patch(&path, Patch::Merge, patch.to_string().into_bytes())
            .await?;
        awaiting.keep(&answer, ours)
    }

    /// Reads one object from the API server itself; the store has it from then on.
    pub async fn read(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        by: &ObjectRef,
    ) -> Result<Option<Arc<Object>>, ApiError> {
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        let awaiting = self.answers.awaiting(key, by);
        match self.cluster.acting(account).get(&path).await {
            // Who reads another object is given what it is; of its own another reconcile has to know.
            Ok(bytes) => awaiting.keep(&bytes, key != by).map(Some),
            Err(ApiError::Status { code: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The version of a kind that the server prefers.
    pub async fn preferred(&self, group: &str, kind: &str) -> Result<Gvk, ApiError> {
        self.cluster.preferred(group, kind).await
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

/// A digest of those fields of `live` that `applied` names. In a list that the server made longer or shorter
/// nothing can be told apart, so all of it counts.
fn fingerprint(live: &Value, applied: &Value) -> u64 {
    fn walk(live: Option<&Value>, applied: &Value, hasher: &mut DefaultHasher) {
        match (live, applied) {
            (Some(Value::Object(live)), Value::Object(applied)) => {
                for (key, value) in applied {
                    key.hash(hasher);
                    walk(live.get(key), value, hasher);
                }
            }
            (Some(Value::Array(live)), Value::Array(applied)) if live.len() == applied.len() => {
                for (live, applied) in live.iter().zip(applied) {
                    walk(Some(live), applied, hasher);
                }
            }
            (live, _) => live.hash(hasher),
        }
    }
    hash_to_u64(|hasher| walk(Some(live), applied, hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_defaults_or_normalizes_makes_no_difference_and_every_change_of_it_does() {
        let applied = json!({"spec": {"a": "1000m", "l": [{"n": "x"}], "injected": [1]}});
        let live =
            json!({"spec": {"a": "1", "defaulted": true, "l": [{"n": "x", "d": 1}], "injected": [1, 2]}});
        let left = fingerprint(&live, &applied);
        let changed = |path: &str, value: Value| {
            let mut other = live.clone();
            *other.pointer_mut(path).expect("a field") = value;
            fingerprint(&other, &applied) != left
        };
        assert!(!changed("/spec/defaulted", json!(false)), "not ours");
        assert!(!changed("/spec/l/0/d", json!(2)), "not ours");
        assert!(changed("/spec/a", json!("2")));
        assert!(changed("/spec/l/0/n", json!("y")));
        assert!(changed("/spec/l", json!([])));
        assert!(changed("/spec/injected/1", json!(3)));
        assert!(changed("/spec", json!({})));
    }
}
