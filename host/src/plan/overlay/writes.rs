//! What becomes of each kind of write.

use std::{collections::BTreeSet, sync::Weak};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Entry, Overlay, PLANNED, key, missing, status};
use crate::{
    cache::store::{Put, Query, Source},
    client::api::{ApiClient, ApiError, Interceptor, Target, WriteRequest, parse_response},
    kube::{key::ObjectRef, object::Object, scope::Projection},
    plan::merge::{bare, deleting, delta, follow, held, merge, patched, same, set},
};

/// The server's answer to a dry run, or why it can't give one.
type Tried = Result<Value, String>;

impl Overlay {
    /// Takes a write and answers as the server would have.
    pub(super) async fn take(&self, cluster: &ApiClient, write: WriteRequest<'_>) -> Result<Bytes, ApiError> {
        let nowhere = || ApiError::InvalidResponse(format!("{} names no object", write.path));
        let target = Target::parse(write.path).ok_or_else(nowhere)?;
        let body: Value = parse_response(write.body)?;
        self.observe_response(write.path, write.body);
        if target.is_event() {
            return Ok(self.event(body));
        }
        let done = match (write.method, write.content_type) {
            ("POST", _) => self.create(cluster, &target, &write, &body).await,
            ("DELETE", _) => self.delete(cluster, &target, &write, body).await,
            ("PATCH", kind) if kind.contains("apply") => self.apply(cluster, &target, &write, &body).await,
            _ => self.patch(cluster, &target, &write, body).await,
        };
        if done.as_ref().is_err_and(|e| e.code() == 409) {
            self.with(|state| state.run.ran.conflict = true);
        }
        done
    }

    async fn create(
        &self,
        cluster: &ApiClient,
        target: &Target,
        write: &WriteRequest<'_>,
        body: &Value,
    ) -> Result<Bytes, ApiError> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let mut entry = match name {
            "" => Entry::new(target, None),
            name => self.entry(cluster, &target.collection(), name).await?.0,
        };
        if entry.planned.is_some() && self.knows(&entry.target) {
            return Err(status(
                409,
                "AlreadyExists",
                format!("{} {name:?} already exists", target.plural),
            ));
        }
        let new = match self.asked_anew(cluster, target, &entry, *write).await? {
            Ok(answer) => answer,
            Err(why) => {
                entry.unchecked.insert(why);
                self.fresh(body)
            }
        };
        entry.target.name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        entry.planned = None;
        Ok(self.settle(entry, new))
    }

    async fn apply(
        &self,
        cluster: &ApiClient,
        target: &Target,
        write: &WriteRequest<'_>,
        body: &Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self.entry(cluster, &target.collection(), &target.name).await?;
        let manager = target.parameter("fieldManager").unwrap_or_default().to_owned();
        let answer = self.asked_anew(cluster, target, &entry, *write).await?;
        let new = match (answer, entry.planned.clone()) {
            (Ok(answer), Some(before)) if touched => {
                // The server has answered about the object as it is live: what this manager's word changes there,
                // since its last, it changes here.
                let from = entry.applied.get(&manager).or(entry.live.as_ref());
                if from.is_none() {
                    let why = "whether field managers are in conflict, while the object is only planned";
                    entry.unchecked.insert(why.into());
                }
                let new = patched(&before, &delta(from.unwrap_or(&json!({})), &answer));
                entry.applied.insert(manager, answer);
                new
            }
            (Ok(answer), _) => {
                entry.applied.insert(manager, answer.clone());
                answer
            }
            (Err(why), before) => {
                entry.unchecked.insert(why);
                match before {
                    Some(before) => patched(&before, body),
                    None => self.fresh(body),
                }
            }
        };
        Ok(self.settle(entry, new))
    }

    async fn patch(
        &self,
        cluster: &ApiClient,
        target: &Target,
        write: &WriteRequest<'_>,
        mut body: Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self.entry(cluster, &target.collection(), &target.name).await?;
        let Some(before) = entry.planned.clone() else {
            return Err(missing(target));
        };
        if !touched {
            let new = match self.asked(cluster, target, *write).await? {
                Ok(answer) => answer,
                Err(why) => {
                    entry.unchecked.insert(why);
                    patched(&before, &body)
                }
            };
            return Ok(self.settle_and_sweep(cluster, entry, new).await);
        }
        preconditions(target, &before, &mut body)?;
        let mut wanted = before.clone();
        merge(&mut wanted, &body);
        let tried = match (&entry.live, &*target.subresource) {
            (Some(live), subresource) => {
                let patch = match subresource {
                    "status" => json!({"status": delta(&live["status"], &wanted["status"])}),
                    _ => delta(live, &wanted),
                };
                let patch = patch.to_string();
                let patch = WriteRequest {
                    body: patch.as_bytes(),
                    ..*write
                };
                self.asked(cluster, target, patch).await?
            }
            (None, "status") => Err("the status of what is only planned".into()),
            (None, _) => {
                let path = target.collection();
                let object = bare(&wanted).to_string();
                let create = WriteRequest {
                    method: "POST",
                    path: &path,
                    content_type: "application/json",
                    body: object.as_bytes(),
                };
                self.asked(cluster, target, create).await?
            }
        };
        let mut new = wanted;
        match tried {
            Ok(answer) if target.subresource == "status" => {
                set(&mut new, "status", answer.get("status").cloned());
            }
            Ok(mut answer) => {
                // Through this door no status is written, but where it has none of its own.
                if body.get("status").is_none() || answer.get("status").is_none() {
                    set(&mut answer, "status", new.get("status").cloned());
                }
                new = answer;
            }
            Err(why) => drop(entry.unchecked.insert(why)),
        }
        follow(&before, &mut new);
        Ok(self.settle_and_sweep(cluster, entry, new).await)
    }

    async fn delete(
        &self,
        cluster: &ApiClient,
        target: &Target,
        write: &WriteRequest<'_>,
        mut options: Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self.entry(cluster, &target.collection(), &target.name).await?;
        let Some(before) = entry.planned.clone() else {
            return Err(missing(target));
        };
        if touched {
            let uid = options["preconditions"]["uid"].as_str();
            if let Some(uid) = uid.filter(|uid| before["metadata"]["uid"] != **uid) {
                let why = format!("the UID in the precondition ({uid}) does not match the UID in record");
                return Err(status(409, "Conflict", why));
            }
        } else {
            options["dryRun"] = json!(["All"]);
            let body = options.to_string();
            let delete = WriteRequest {
                body: body.as_bytes(),
                ..*write
            };
            if let Err(why) = self.asked(cluster, target, delete).await? {
                entry.unchecked.insert(why);
            }
        }
        let orphans = options["propagationPolicy"] == "Orphan";
        let new = doomed(&before);
        let (object, gone) = (new.clone(), !held(&new));
        let answer = self.settle(entry, new);
        if gone && !orphans {
            self.sweep(cluster, &object).await?;
        }
        Ok(answer)
    }

    /// Keeps a new state; what it owned goes with an object that goes.
    async fn settle_and_sweep(&self, cluster: &ApiClient, entry: Entry, new: Value) -> Bytes {
        let gone = deleting(&new) && !held(&new);
        let object = new.clone();
        let answer = self.settle(entry, new);
        if gone && let Err(e) = self.sweep(cluster, &object).await {
            tracing::warn!(error = %e, "planning garbage collection failed");
        }
        answer
    }

    /// What the garbage collector would take with an object, as far as the plan has seen it.
    async fn sweep(&self, cluster: &ApiClient, owner: &Value) -> Result<(), ApiError> {
        let mut owners = vec![owner.clone()];
        while let Some(owner) = owners.pop() {
            let uid = owner["metadata"]["uid"].as_str().unwrap_or_default();
            for owned in self.owned(uid) {
                let resource = cluster.discover_resource(&owned.gvk).await?;
                let (mut entry, _) = self
                    .entry(cluster, &resource.collection(&owned.namespace), &owned.name)
                    .await?;
                let Some(before) = &entry.planned else { continue };
                let new = doomed(before);
                if !held(&new) {
                    owners.push(new.clone());
                }
                entry.by.insert("the garbage collector".into());
                self.settle(entry, new);
            }
        }
        Ok(())
    }

    /// The objects that nobody but this one owns.
    fn owned(&self, uid: &str) -> Vec<ObjectRef> {
        let Some(world) = self.world.get().and_then(Weak::upgrade) else {
            return Vec::new();
        };
        let mut owned = BTreeSet::new();
        for (scope, _) in world.cache.informers.scopes() {
            for (key, object) in world.cache.store.list(&scope, &Query::default()) {
                let object = object.to_value();
                let owners = object["metadata"]["ownerReferences"].as_array();
                let mut owners = owners.into_iter().flatten().peekable();
                if owners.peek().is_some() && owners.all(|owner| owner["uid"] == uid) {
                    owned.insert(key);
                }
            }
        }
        owned.into_iter().collect()
    }

    /// An object as it would be, and whether it is here already; else as the server has it now.
    async fn entry(
        &self,
        cluster: &ApiClient,
        collection: &str,
        name: &str,
    ) -> Result<(Entry, bool), ApiError> {
        let path = format!("{collection}/{name}");
        if let Some(entry) = self.with(|state| state.entries.get(&path).cloned()) {
            return Ok((entry, true));
        }
        let live = match cluster.get_uncached(&path).await {
            Ok(bytes) => Some(parse_response(&bytes)?),
            Err(e) if e.code() == 404 => None,
            Err(e) => return Err(e),
        };
        let target = Target::parse(&path)
            .ok_or_else(|| ApiError::InvalidResponse(format!("{path} names no object")))?;
        Ok((Entry::new(&target, live), false))
    }

    /// The same, but where an object that would be gone by now is in the way: the server has it still.
    async fn asked_anew(
        &self,
        cluster: &ApiClient,
        target: &Target,
        entry: &Entry,
        write: WriteRequest<'_>,
    ) -> Result<Tried, ApiError> {
        if entry.live.is_some() && entry.planned.is_none() {
            return Ok(Err(
                "the object of this name that would be gone is there still".into()
            ));
        }
        self.asked(cluster, target, write).await
    }

    /// Asks the server by a dry run. What it says but that it can't is the answer that the write would get.
    async fn asked(
        &self,
        cluster: &ApiClient,
        target: &Target,
        write: WriteRequest<'_>,
    ) -> Result<Tried, ApiError> {
        let namespace = || Target::parse(&format!("/api/v1/namespaces/{}", target.namespace));
        match cluster.dry_run(write).await {
            Ok(bytes) => parse_response(&bytes).map(Ok),
            Err(ApiError::Status { message, .. }) if message.contains("does not support dry run") => {
                Ok(Err(message))
            }
            Err(e) if e.code() == 404 && namespace().is_some_and(|n| self.knows(&n)) => {
                Ok(Err(format!("its namespace {} is only planned", target.namespace)))
            }
            Err(e) => Err(e),
        }
    }

    fn knows(&self, target: &Target) -> bool {
        let path = target.object(&target.name);
        self.with(|state| state.entries.contains_key(&path))
    }

    /// A new object, as far as that can be known without the server.
    fn fresh(&self, object: &Value) -> Value {
        let mut new = bare(object);
        let version = self.with(|state| {
            state.version += 1;
            state.version
        });
        new["metadata"]["uid"] = format!("planned-{version}").into();
        new["metadata"]["creationTimestamp"] = crate::kube::time::now_rfc3339().into();
        new["metadata"]["generation"] = 1.into();
        new
    }

    /// Keeps a new state, tells who reads it, and gives the answer.
    fn settle(&self, mut entry: Entry, mut new: Value) -> Bytes {
        set(&mut new["metadata"], "managedFields", None);
        if let Some(live) = &mut entry.live {
            set(&mut live["metadata"], "managedFields", None);
        }
        let path = entry.target.object(&entry.target.name);
        let gone = deleting(&new) && !held(&new);
        let by = self.with(|state| {
            if !gone
                && !state.entries.contains_key(&path)
                && entry.live.as_ref().is_some_and(|l| same(l, &new))
            {
                return None;
            }
            state.version += 1;
            new["metadata"]["resourceVersion"] = (PLANNED + state.version).to_string().into();
            entry.planned = (!gone).then(|| new.clone());
            entry.by.insert(state.run.by.clone());
            if state.run.ran.guess {
                entry.guess = true;
                state.guessed.insert(key(&new));
            }
            state.run.written.insert(path.clone());
            state.entries.insert(path, entry);
            Some(state.run.subject.clone())
        });
        let answer: Bytes = new.to_string().into();
        if let Some(by) = by {
            self.changed(&new, &answer, gone, by.as_ref());
        }
        answer
    }

    /// Makes known what no watch will tell of.
    fn changed(&self, new: &Value, json: &[u8], gone: bool, by: Option<&ObjectRef>) {
        let Some(world) = self.world.get().and_then(Weak::upgrade) else {
            return;
        };
        let key = key(new);
        let Ok((_, object)) = Object::parse(&key.gvk, json) else {
            return;
        };
        if gone {
            let scopes = world.cache.informers.scopes().into_iter();
            for (scope, _) in scopes.filter(|(scope, _)| scope.gvk == key.gvk) {
                if let Some(change) = world.cache.store.remove(&scope, &key, &object.uid, u64::MAX) {
                    world.dispatcher.on_change(&change, Source::WriteResponse, None);
                }
            }
            return;
        }
        // What is written comes into the store by its answer, but for metadata, and for deletions.
        let form = match object.is_deleting() {
            true => Projection::Full,
            false => Projection::Metadata,
        };
        if let Put::Changed(change) = world.cache.store.put(&key, object, form, Source::WriteResponse) {
            world.dispatcher.on_change(&change, Source::WriteResponse, by);
        }
    }
}

/// An object whose deletion is asked for.
fn doomed(before: &Value) -> Value {
    let mut new = before.clone();
    if let Some(finalizers) = new["metadata"]["finalizers"].as_array_mut() {
        // The garbage collector's own: it is played here.
        finalizers.retain(|f| f != "orphan" && f != "foregroundDeletion");
    }
    if !deleting(&new) {
        new["metadata"]["deletionTimestamp"] = crate::kube::time::now_rfc3339().into();
        new["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = new["metadata"]["generation"].as_i64() {
            new["metadata"]["generation"] = (generation + 1).into();
        }
    }
    new
}

/// Checks what a patch asks of the object's bookkeeping, and takes it out.
fn preconditions(target: &Target, before: &Value, patch: &mut Value) -> Result<(), ApiError> {
    let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    if let Some(uid) = metadata.remove("uid")
        && uid != before["metadata"]["uid"]
    {
        let why = format!(
            "{} {:?} is invalid: metadata.uid: field is immutable",
            target.plural, target.name
        );
        return Err(status(422, "Invalid", why));
    }
    if let Some(version) = metadata.remove("resourceVersion")
        && version != before["metadata"]["resourceVersion"]
    {
        let why = format!(
            "Operation cannot be fulfilled on {} {:?}: the object has been modified",
            target.plural, target.name
        );
        return Err(status(409, "Conflict", why));
    }
    Ok(())
}
