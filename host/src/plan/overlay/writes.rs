//! Handling of each kind of write by the overlay.

use std::{collections::BTreeSet, sync::Weak};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Entry, FIRST_PLANNED_VERSION, Overlay, not_found, object_ref, status_error};
use crate::{
    cache::store::{ListQuery, Put, VersionSource},
    client::api::{ApiClient, ApiError, ApiTarget, Interceptor, WriteRequest, parse_response},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::{Projection, Scope},
    },
    plan::merge::{
        apply_patch, carry_bookkeeping, create_patch, has_finalizers, is_deleting, is_same_state, set_field,
        strip_bookkeeping,
    },
    sandbox::services::Services,
};

/// The server's response to a dry run, or the reason why it cannot perform one.
type DryRunResult = Result<Value, String>;

impl Overlay {
    /// Applies a write to the overlay and returns the response that the server would have sent.
    pub(super) async fn apply_write(
        &self,
        cluster: &ApiClient,
        write: WriteRequest<'_>,
    ) -> Result<Bytes, ApiError> {
        let nowhere = || ApiError::InvalidResponse(format!("{} names no object", write.path));
        let target = ApiTarget::parse(write.path).ok_or_else(nowhere)?;
        let body: Value = parse_response(write.body)?;
        self.observe_response(write.path, write.body);
        if target.is_event() {
            return Ok(self.record_event(body));
        }
        let done = match (write.method, write.content_type) {
            ("POST", _) => self.plan_create(cluster, &target, &write, &body).await,
            ("DELETE", _) => self.plan_delete(cluster, &target, &write, body).await,
            ("PATCH", kind) if kind.contains("apply") => {
                self.plan_apply(cluster, &target, &write, &body).await
            }
            _ => self.plan_patch(cluster, &target, &write, body).await,
        };
        if done.as_ref().is_err_and(|e| e.code() == 409) {
            self.with_state(|state| state.run.outcome.conflict = true);
        }
        done
    }

    async fn plan_create(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        write: &WriteRequest<'_>,
        body: &Value,
    ) -> Result<Bytes, ApiError> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let mut entry = match name {
            "" => Entry::new(target, None),
            name => self.load_entry(cluster, &target.collection(), name).await?.0,
        };
        if entry.planned.is_some() && self.has_entry(&entry.target) {
            return Err(status_error(
                409,
                "AlreadyExists",
                format!("{} {name:?} already exists", target.plural),
            ));
        }
        let new = match self.try_create(cluster, target, &entry, *write).await? {
            Ok(answer) => answer,
            Err(why) => {
                entry.unchecked.insert(why);
                self.new_object(body)
            }
        };
        entry.target.name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        entry.planned = None;
        Ok(self.store_state(entry, new))
    }

    async fn plan_apply(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        write: &WriteRequest<'_>,
        body: &Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self
            .load_entry(cluster, &target.collection(), &target.name)
            .await?;
        let manager = target.parameter("fieldManager").unwrap_or_default().to_owned();
        let answer = self.try_create(cluster, target, &entry, *write).await?;
        let new = match (answer, entry.planned.clone()) {
            (Ok(answer), Some(before)) if touched => {
                // The server applied the configuration to the live object. The difference to its previous response
                // for this field manager is applied to the planned object.
                let from = entry.applied.get(&manager).or(entry.live.as_ref());
                if from.is_none() {
                    let why = "conflicts of field managers, because the object exists in the plan only";
                    entry.unchecked.insert(why.into());
                }
                let new = apply_patch(&before, &create_patch(from.unwrap_or(&json!({})), &answer));
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
                    Some(before) => apply_patch(&before, body),
                    None => self.new_object(body),
                }
            }
        };
        Ok(self.store_state(entry, new))
    }

    async fn plan_patch(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        write: &WriteRequest<'_>,
        mut body: Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self
            .load_entry(cluster, &target.collection(), &target.name)
            .await?;
        let Some(before) = entry.planned.clone() else {
            return Err(not_found(target));
        };
        if !touched {
            let new = match self.try_dry_run(cluster, target, *write).await? {
                Ok(answer) => answer,
                Err(why) => {
                    entry.unchecked.insert(why);
                    apply_patch(&before, &body)
                }
            };
            return Ok(self.store_and_collect(cluster, entry, new).await);
        }
        check_preconditions(target, &before, &mut body)?;
        let mut wanted = before.clone();
        json_patch::merge(&mut wanted, &body);
        let tried = match (&entry.live, &*target.subresource) {
            (Some(live), subresource) => {
                let patch = match subresource {
                    "status" => json!({"status": create_patch(&live["status"], &wanted["status"])}),
                    _ => create_patch(live, &wanted),
                };
                let patch = patch.to_string();
                let patch = WriteRequest {
                    body: patch.as_bytes(),
                    ..*write
                };
                self.try_dry_run(cluster, target, patch).await?
            }
            (None, "status") => Err("the status, because the object exists in the plan only".into()),
            (None, _) => {
                let path = target.collection();
                let object = strip_bookkeeping(&wanted).to_string();
                let create = WriteRequest {
                    method: "POST",
                    path: &path,
                    content_type: "application/json",
                    body: object.as_bytes(),
                };
                self.try_dry_run(cluster, target, create).await?
            }
        };
        let mut new = wanted;
        match tried {
            Ok(answer) if target.subresource == "status" => {
                set_field(&mut new, "status", answer.get("status").cloned());
            }
            Ok(mut answer) => {
                // A write of the main resource ignores the status if the kind has a status subresource.
                if body.get("status").is_none() || answer.get("status").is_none() {
                    set_field(&mut answer, "status", new.get("status").cloned());
                }
                new = answer;
            }
            Err(why) => drop(entry.unchecked.insert(why)),
        }
        carry_bookkeeping(&before, &mut new);
        Ok(self.store_and_collect(cluster, entry, new).await)
    }

    async fn plan_delete(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        write: &WriteRequest<'_>,
        mut options: Value,
    ) -> Result<Bytes, ApiError> {
        let (mut entry, touched) = self
            .load_entry(cluster, &target.collection(), &target.name)
            .await?;
        let Some(before) = entry.planned.clone() else {
            return Err(not_found(target));
        };
        if touched {
            let uid = options["preconditions"]["uid"].as_str();
            if let Some(uid) = uid.filter(|uid| before["metadata"]["uid"] != **uid) {
                let why = format!("the UID in the precondition ({uid}) does not match the UID in record");
                return Err(status_error(409, "Conflict", why));
            }
        } else {
            options["dryRun"] = json!(["All"]);
            let body = options.to_string();
            let delete = WriteRequest {
                body: body.as_bytes(),
                ..*write
            };
            if let Err(why) = self.try_dry_run(cluster, target, delete).await? {
                entry.unchecked.insert(why);
            }
        }
        let orphans = options["propagationPolicy"] == "Orphan";
        let new = mark_deleted(&before);
        let (object, gone) = (new.clone(), !has_finalizers(&new));
        let answer = self.store_state(entry, new);
        if gone && !orphans {
            self.collect_garbage(cluster, &object).await?;
        }
        Ok(answer)
    }

    /// Stores a new state, and deletes the dependents of an object that is deleted by it.
    async fn store_and_collect(&self, cluster: &ApiClient, entry: Entry, new: Value) -> Bytes {
        let gone = is_deleting(&new) && !has_finalizers(&new);
        let object = new.clone();
        let answer = self.store_state(entry, new);
        if gone && let Err(e) = self.collect_garbage(cluster, &object).await {
            tracing::warn!(error = %e, "planning garbage collection failed");
        }
        answer
    }

    /// Deletes the dependents of an object as the garbage collector would, among the kinds that the plan has listed.
    async fn collect_garbage(&self, cluster: &ApiClient, owner: &Value) -> Result<(), ApiError> {
        let mut owners = vec![owner.clone()];
        while let Some(owner) = owners.pop() {
            let uid = owner["metadata"]["uid"].as_str().unwrap_or_default();
            for owned in self.list_owned(uid) {
                let resource = cluster.discover_resource(&owned.gvk).await?;
                let (mut entry, _) = self
                    .load_entry(cluster, &resource.collection(&owned.namespace), &owned.name)
                    .await?;
                let Some(before) = &entry.planned else { continue };
                let new = mark_deleted(before);
                if !has_finalizers(&new) {
                    owners.push(new.clone());
                }
                entry.by.insert("the garbage collector".into());
                self.store_state(entry, new);
            }
        }
        Ok(())
    }

    /// The objects whose owner references all name this UID.
    fn list_owned(&self, uid: &str) -> Vec<ObjectRef> {
        let Some(services) = self.services.get().and_then(Weak::upgrade) else {
            return Vec::new();
        };
        let mut owned = BTreeSet::new();
        for scope in self.list_scopes(&services) {
            for (key, object) in services.cache.store.list(&scope, &ListQuery::default()) {
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

    /// The watched scopes of the cluster.
    fn list_scopes(&self, services: &Services) -> impl Iterator<Item = Scope> {
        let watches = services.list_watches().into_iter().map(|(scope, _)| scope);
        watches.filter(|scope| scope.cluster == self.cluster)
    }

    /// The entry of an object, created from the live object if the plan has not written it yet. The flag is `true` if
    /// the entry existed.
    async fn load_entry(
        &self,
        cluster: &ApiClient,
        collection: &str,
        name: &str,
    ) -> Result<(Entry, bool), ApiError> {
        let path = format!("{collection}/{name}");
        if let Some(entry) = self.with_state(|state| state.entries.get(&path).cloned()) {
            return Ok((entry, true));
        }
        let live = match cluster.get_uncached(&path).await {
            Ok(bytes) => Some(parse_response(&bytes)?),
            Err(e) if e.code() == 404 => None,
            Err(e) => return Err(e),
        };
        let target = ApiTarget::parse(&path)
            .ok_or_else(|| ApiError::InvalidResponse(format!("{path} names no object")))?;
        Ok((Entry::new(&target, live), false))
    }

    /// Sends a create or apply as a dry run, unless the plan deleted a live object of the same name: the server would
    /// still find that one.
    async fn try_create(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        entry: &Entry,
        write: WriteRequest<'_>,
    ) -> Result<DryRunResult, ApiError> {
        if entry.live.is_some() && entry.planned.is_none() {
            return Ok(Err(
                "an object of the same name, which would be deleted first, still exists".into(),
            ));
        }
        self.try_dry_run(cluster, target, write).await
    }

    /// Sends a write as a dry run. An error of the server is that of the write, unless it cannot perform the dry run.
    async fn try_dry_run(
        &self,
        cluster: &ApiClient,
        target: &ApiTarget,
        write: WriteRequest<'_>,
    ) -> Result<DryRunResult, ApiError> {
        let namespace = || ApiTarget::parse(&format!("/api/v1/namespaces/{}", target.namespace));
        match cluster.dry_run(write).await {
            Ok(bytes) => parse_response(&bytes).map(Ok),
            Err(ApiError::Status { message, .. }) if message.contains("does not support dry run") => {
                Ok(Err(message))
            }
            Err(e) if e.code() == 404 && namespace().is_some_and(|n| self.has_entry(&n)) => Ok(Err(format!(
                "its namespace {} exists in the plan only",
                target.namespace
            ))),
            Err(e) => Err(e),
        }
    }

    fn has_entry(&self, target: &ApiTarget) -> bool {
        let path = target.object(&target.name);
        self.with_state(|state| state.entries.contains_key(&path))
    }

    /// A new object with the metadata that the server would set, computed locally.
    fn new_object(&self, object: &Value) -> Value {
        let mut new = strip_bookkeeping(object);
        let version = self.with_state(|state| {
            state.version += 1;
            state.version
        });
        new["metadata"]["uid"] = format!("planned-{version}").into();
        new["metadata"]["creationTimestamp"] = crate::kube::time::now_rfc3339().into();
        new["metadata"]["generation"] = 1.into();
        new
    }

    /// Stores a new state, enqueues its dependants, and returns the response of the write.
    fn store_state(&self, mut entry: Entry, mut new: Value) -> Bytes {
        set_field(&mut new["metadata"], "managedFields", None);
        if let Some(live) = &mut entry.live {
            set_field(&mut live["metadata"], "managedFields", None);
        }
        let path = entry.target.object(&entry.target.name);
        let gone = is_deleting(&new) && !has_finalizers(&new);
        let by = self.with_state(|state| {
            if !gone
                && !state.entries.contains_key(&path)
                && entry.live.as_ref().is_some_and(|l| is_same_state(l, &new))
            {
                return None;
            }
            entry.cluster = self.cluster.clone();
            state.version += 1;
            new["metadata"]["resourceVersion"] = (FIRST_PLANNED_VERSION + state.version).to_string().into();
            entry.planned = (!gone).then(|| new.clone());
            entry.by.insert(state.run.by.clone());
            if state.run.outcome.guess {
                entry.guess = true;
                state.guessed.insert(object_ref(&new).with_cluster(&self.cluster));
            }
            state.run.written.insert(path.clone());
            state.entries.insert(path, entry);
            Some(state.run.subject.clone())
        });
        let answer: Bytes = new.to_string().into();
        if let Some(by) = by {
            self.notify_change(&new, &answer, gone, by.as_ref());
        }
        answer
    }

    /// Passes a planned change to store and dispatcher, since no watch delivers it.
    fn notify_change(&self, new: &Value, json: &[u8], gone: bool, by: Option<&ObjectRef>) {
        let Some(services) = self.services.get().and_then(Weak::upgrade) else {
            return;
        };
        let key = object_ref(new).with_cluster(&self.cluster);
        let Ok((_, object)) = KubeObject::parse(&key.gvk, json) else {
            return;
        };
        if gone {
            for scope in self.list_scopes(&services).filter(|scope| scope.gvk == key.gvk) {
                if let Some(change) = services.cache.store.remove(&scope, &key, &object.uid, u64::MAX) {
                    services
                        .dispatcher
                        .on_change(&change, VersionSource::WriteResponse, None);
                }
            }
            return;
        }
        // The writer stores the response of a write itself, except for metadata-only objects and deletions.
        let projection = if object.is_deleting() {
            Projection::Full
        } else {
            Projection::Metadata
        };
        if let Put::Changed(change) =
            services
                .cache
                .store
                .put(&key, object, projection, VersionSource::WriteResponse)
        {
            services
                .dispatcher
                .on_change(&change, VersionSource::WriteResponse, by);
        }
    }
}

/// An object with a deletion timestamp.
fn mark_deleted(before: &Value) -> Value {
    let mut new = before.clone();
    if let Some(finalizers) = new["metadata"]["finalizers"].as_array_mut() {
        // The finalizers of the garbage collector, whose work `collect_garbage` does.
        finalizers.retain(|f| f != "orphan" && f != "foregroundDeletion");
    }
    if !is_deleting(&new) {
        new["metadata"]["deletionTimestamp"] = crate::kube::time::now_rfc3339().into();
        new["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = new["metadata"]["generation"].as_i64() {
            new["metadata"]["generation"] = (generation + 1).into();
        }
    }
    new
}

/// Checks the preconditions of a patch (UID and resourceVersion) and removes them from it.
fn check_preconditions(target: &ApiTarget, before: &Value, patch: &mut Value) -> Result<(), ApiError> {
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
        return Err(status_error(422, "Invalid", why));
    }
    if let Some(version) = metadata.remove("resourceVersion")
        && version != before["metadata"]["resourceVersion"]
    {
        let why = format!(
            "Operation cannot be fulfilled on {} {:?}: the object has been modified",
            target.plural, target.name
        );
        return Err(status_error(409, "Conflict", why));
    }
    Ok(())
}
