//! The API writer: all writes of the host. A write that would change nothing is suppressed, and the result of one is
//! readable in the cache at once.

mod applied;
mod applied_mark;
mod metadata;
mod owned;
mod protection;
mod write_responses;

use std::{hash::Hash, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::{
    applied::{Applied, AppliedObjects},
    applied_mark::{AppliedMark, fingerprint_fields},
    write_responses::{Authorship, WriteResponses},
};
pub use self::{owned::InventoryRefusal, write_responses::ChangeObserver};
use crate::{
    cache::store::Store,
    client::api::{ApiClient, ApiError, MetadataForm, PatchType, ServedResource, parse_response},
    contract::bindings::kubernetes::{Preconditions, Propagation},
    kube::{
        hash::hash_to_u64,
        key::{Gvk, ObjectMap, ObjectRef},
        object::KubeObject,
        scope::Projection,
        selector::LabelSelector,
        uid::Uid,
        well_known::HOST_FIELD_MANAGER,
    },
    policy::grants::ServiceAccount,
    schedule::dispatcher::Dispatcher,
};

/// Maximum number of writes of one status while its CRD changes between with and without the status subresource.
const MAX_STATUS_DISCOVERIES: u32 = 3;

/// Number of objects requested per page of a list of metadata.
const METADATA_PAGE_SIZE: usize = 500;

/// Validation of the fields of an apply. By default (`Warn`) an API server parses the patch as YAML a second time, for warnings of
/// duplicate keys, which serialized JSON has none of: a tenth of what the apply costs it. Unknown fields are refused either way.
const APPLY_VALIDATION: &str = "fieldValidation=Ignore";

/// Prefix of the field managers of plugins. A component chooses its name, which must not be that of another client.
const FIELD_MANAGER_PREFIX: &str = "ostler-";

/// The context of a write: the plugin's field manager, and the reconcile that writes.
#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    /// Name of the plugin, of which the field manager at the API server is made.
    pub manager: &'a str,
    /// The reconciled object, which its own write does not wake.
    pub by: &'a ObjectRef,
    /// Digest of the component's request, by which an unchanged apply is recognized before it is parsed.
    pub request_digest: u64,
    /// Digest of what is sent, if the host has inserted secrets into it: the mark of an apply is readable, so that a digest
    /// of the object itself would allow to guess them.
    pub sent_digest: Option<u64>,
    /// Version of the live object that an apply requires: it conflicts (HTTP 409) if the object has changed since.
    pub live_version: Option<u64>,
    /// Service account to impersonate; none for the host itself.
    pub account: Option<&'a ServiceAccount>,
}

/// The result of a write.
pub struct Written {
    /// The current object.
    pub object: Arc<KubeObject>,
    /// False if the write was suppressed because it would change nothing.
    pub sent: bool,
}

/// One page of a list: its objects, and the token of the next page (empty after the last).
type ObjectPage = (Vec<(ObjectRef, Arc<KubeObject>)>, String);

/// All writes of the host.
pub struct ApiWriter {
    client: ApiClient,
    /// The cluster; empty for the host's own.
    cluster: Arc<str>,
    store: Arc<Store>,
    responses: WriteResponses,
    /// The last applies of each reconciled object.
    applied: Mutex<ObjectMap<AppliedObjects>>,
}

impl ApiWriter {
    /// Creates a writer that sends through this client and stores responses in this store.
    pub fn new(client: ApiClient, store: Arc<Store>, dispatcher: Arc<Dispatcher>) -> Self {
        Self {
            client,
            cluster: "".into(),
            store: store.clone(),
            responses: WriteResponses::new(store, dispatcher),
            applied: Mutex::default(),
        }
    }

    /// Writes to another cluster, with this name in the keys of its objects.
    pub fn in_cluster(self, cluster: &Arc<str>) -> Self {
        Self {
            cluster: cluster.clone(),
            ..self
        }
    }

    /// Sets a callback for the changes that responses show.
    pub fn with_observer(mut self, observer: ChangeObserver) -> Self {
        self.responses.set_observer(observer);
        self
    }

    /// Server-side apply. Suppressed if the same reconciled object's last apply was the same and its fields are still
    /// live as that apply left them, or if an annotation shows that a former leader applied the same and its fields are
    /// live as applied.
    pub async fn apply(
        &self,
        context: WriteContext<'_>,
        key: &ObjectRef,
        object: &Value,
        force: bool,
    ) -> Result<Written, ApiError> {
        let body = format_body(object);
        let sent = context
            .sent_digest
            .unwrap_or_else(|| hash_to_u64(|hasher| body.hash(hasher)));
        let mark = AppliedMark::new(context.manager, force, sent);
        let live = self.store.get(key, Projection::Full);
        let live_json = live.as_ref().map(|live| live.json.text());
        let live_before = live_json.as_ref().map(|live| fingerprint_fields(live, object));
        let last = self.last_applied(context.by, key);
        let last = last.or_else(|| mark.recognize(live_json.as_ref()?, live_before?, object, &body, sent));
        if let (Some(last), Some(live)) = (last, live)
            && last.sent == sent
            && live_before == Some(last.live)
        {
            let applied = Applied {
                request_digest: context.request_digest,
                version: live.resource_version,
                ..last
            };
            self.record_applied(context.by, key, applied);
            return Ok(Written {
                object: live,
                sent: false,
            });
        }
        let mut marked = mark.add_to(object);
        if let Some(version) = context.live_version {
            marked["metadata"]["resourceVersion"] = version.to_string().into();
        }
        let body = format_body(&marked);
        let path = format!(
            "{}?fieldManager={FIELD_MANAGER_PREFIX}{}&force={force}&{APPLY_VALIDATION}",
            self.client.discover_resource(&key.gvk).await?.object(key),
            context.manager
        );
        let pending = self.responses.expect_response(key, context.by);
        let client = self.client.acting_as(context.account);
        let response = client.patch(&path, PatchType::Apply, body).await?;
        // Of the response, because the store may hold a newer, foreign version by now.
        let (mut version, mut live) = (0, 0);
        let object = pending.store_response_of(&response, |returned| {
            version = returned.resource_version;
            live = fingerprint_fields(&returned.json.text(), object);
            // If the cached object had all applied fields already, a difference is the change of another client.
            Authorship::own_if(live_before != Some(live))
        })?;
        let applied = Applied {
            request_digest: context.request_digest,
            version,
            sent,
            live,
        };
        self.record_applied(context.by, key, applied);
        Ok(Written { object, sent: true })
    }

    fn last_applied(&self, by: &ObjectRef, key: &ObjectRef) -> Option<Applied> {
        self.applied.lock().get(by)?.get(key)
    }

    fn record_applied(&self, by: &ObjectRef, key: &ObjectRef, new: Applied) {
        // Its next lookups in the cache compare addresses.
        let key = &self.store.share_key(key.clone());
        let mut applied = self.applied.lock();
        applied.entry(by.clone()).or_default().record(key, new);
    }

    /// Drops what the reconciles of an object have not applied since the last call. It is called after a reconcile that
    /// succeeded and wrote something: without a write no apply was added.
    pub fn drop_unused_applies(&self, by: &ObjectRef) {
        if let Some(of_object) = self.applied.lock().get_mut(by) {
            of_object.drop_unused();
        }
    }

    /// Returns the object that a reconcile last applied with the same request, if it is unchanged since.
    pub fn unchanged_since_last_apply(
        &self,
        by: &ObjectRef,
        request_digest: u64,
    ) -> Option<(ObjectRef, Arc<KubeObject>)> {
        let (key, version) = {
            let mut applied = self.applied.lock();
            let (key, last) = applied.get_mut(by)?.repeat_request(request_digest)?;
            (key.clone(), last.version)
        };
        let live = self.store.get(&key, Projection::Full)?;
        (live.resource_version == version).then_some((key, live))
    }

    /// Returns true if the cache has this version of an object.
    pub fn is_cached_version(&self, key: &ObjectRef, version: u64) -> bool {
        let live = self.store.get(key, Projection::Full);
        live.is_some_and(|live| live.resource_version == version)
    }

    /// Forgets the applies of an object that no longer exists.
    pub fn forget(&self, by: &ObjectRef) {
        self.applied.lock().remove(by);
    }

    /// Forgets all applies, because another host has led meanwhile.
    pub fn forget_all(&self) {
        self.applied.lock().clear();
    }

    /// Creates an object.
    pub async fn create(
        &self,
        context: WriteContext<'_>,
        key: &ObjectRef,
        object: &Value,
    ) -> Result<Written, ApiError> {
        let resource = self.client.discover_resource(&key.gvk).await?;
        let path = format!(
            "{}?fieldManager={FIELD_MANAGER_PREFIX}{}",
            resource.collection(&key.namespace),
            context.manager
        );
        let body = format_body(object);
        let pending = self.responses.expect_response(key, context.by);
        let client = self.client.acting_as(context.account);
        let response = client.create(&path, body).await?;
        Ok(Written {
            object: pending.store_response(&response, Authorship::Own)?,
            sent: true,
        })
    }

    /// Applies a merge patch to an object, or to its subresource of this name unless that is empty. The API server checks the
    /// preconditions by the identity in the patch: it answers 409 if the uid or the resourceVersion differs.
    pub async fn patch_with_preconditions(
        &self,
        context: WriteContext<'_>,
        key: &ObjectRef,
        subresource: &str,
        patch: &Value,
        preconditions: &Preconditions,
    ) -> Result<Written, ApiError> {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let path = format!(
            "{}{slash}{subresource}?fieldManager={FIELD_MANAGER_PREFIX}{}",
            self.client.discover_resource(&key.gvk).await?.object(key),
            context.manager
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
        let before = self.store.get(key, Projection::Full);
        let before = before.map(|live| fingerprint_fields(&live.json.text(), patch));
        let pending = self.responses.expect_response(key, context.by);
        let client = self.client.acting_as(context.account);
        let response = client.patch(&path, PatchType::Merge, format_body(&body)).await?;
        let object = pending.store_response_of(&response, |returned| {
            // If the patched fields did not change, another client's change came with the response.
            Authorship::own_if(before != Some(fingerprint_fields(&returned.json.text(), patch)))
        })?;
        Ok(Written { object, sent: true })
    }

    /// Deletes an object and returns true if it existed. The cache shows the deletion at once, and it does not wake the
    /// object whose reconcile made it.
    pub async fn delete(
        &self,
        context: WriteContext<'_>,
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
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let before = self.store.get(key, Projection::Metadata);
        let pending = self.responses.expect_response(key, context.by);
        let client = self.client.acting_as(context.account);
        match client.delete(&path, format_body(&options)).await {
            Ok(response) => {
                pending.store_deletion(&response, before.as_deref());
                self.forget_applied(context.by, key);
                Ok(true)
            }
            Err(e) if e.code() == 404 => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Forgets the apply of an object that was deleted: the next one creates it again.
    fn forget_applied(&self, by: &ObjectRef, key: &ObjectRef) {
        if let Some(applied) = self.applied.lock().get_mut(by) {
            applied.forget(key);
        }
    }

    /// GETs an object from the API server without storing it.
    pub async fn get_bytes(&self, key: &ObjectRef) -> Result<bytes::Bytes, ApiError> {
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        self.client.get(&path).await
    }

    /// Returns true if an object with exactly this uid exists, in whichever version its kind is served now.
    pub async fn object_exists(&self, key: &ObjectRef, uid: &Uid) -> Result<bool, ApiError> {
        let Some(gvk) = self.find_served(&key.gvk).await? else {
            // The CRD was deleted, and with it all objects of the kind.
            return Ok(false);
        };
        let served = ObjectRef::new(gvk, &key.namespace, &key.name);
        let found = self.read_metadata(None, &served).await?;
        Ok(found.is_some_and(|object| object.uid == *uid))
    }

    /// Lists one page from the API server. Returns the objects, and the token of the next page (empty after the last).
    pub async fn list_page(
        &self,
        account: Option<&ServiceAccount>,
        gvk: &Gvk,
        namespace: &str,
        labels: Option<&LabelSelector>,
        limit: usize,
        token: &str,
    ) -> Result<ObjectPage, ApiError> {
        let query = self.client.collection_query(gvk, namespace, labels).await?;
        let client = self.client.acting_as(account);
        self.parse_page(&client, gvk, &query, limit, token, None).await
    }

    /// Lists the metadata of one page of the objects of a kind, as [`ApiWriter::list_page`] lists whole ones.
    pub async fn list_metadata_page(
        &self,
        gvk: &Gvk,
        namespace: &str,
        token: &str,
    ) -> Result<ObjectPage, ApiError> {
        let query = self.client.collection_query(gvk, namespace, None).await?;
        let form = Some(MetadataForm::List);
        self.parse_page(&self.client, gvk, &query, METADATA_PAGE_SIZE, token, form)
            .await
    }

    async fn parse_page(
        &self,
        client: &ApiClient,
        gvk: &Gvk,
        query: &str,
        limit: usize,
        token: &str,
        form: Option<MetadataForm>,
    ) -> Result<ObjectPage, ApiError> {
        let mut objects = Vec::new();
        let page = client.list_page(query, limit, token, form, |item| {
            objects.extend(KubeObject::parse(gvk, item.as_bytes()).ok());
        });
        let next_token = page.await?.next_token;
        let objects = objects
            .into_iter()
            .map(|(key, object)| (key.with_cluster(&self.cluster), Arc::new(object)));
        Ok((objects.collect(), next_token))
    }

    /// Reads the uid and the resourceVersion of an object from the API server; none if it does not exist.
    pub async fn read_listed_version(&self, key: &ObjectRef) -> Result<Option<(String, u64)>, ApiError> {
        let parse = |item: &str| {
            let (_, object) = KubeObject::parse(&key.gvk, item.as_bytes()).ok()?;
            Some((object.uid.to_string(), object.resource_version))
        };
        self.read_listed(key, parse).await
    }

    /// Reads the metadata of an object by a list of its name, which needs no right beyond that of the informer. Returns none if it
    /// does not exist, or cannot be parsed.
    async fn read_listed<T: Send>(
        &self,
        key: &ObjectRef,
        parse: impl Fn(&str) -> Option<T> + Sync,
    ) -> Result<Option<T>, ApiError> {
        let collection = self
            .client
            .collection_query(&key.gvk, &key.namespace, None)
            .await?;
        let query = format!("{collection}fieldSelector=metadata.name%3D{}&", key.name);
        let mut found = None;
        let page = self
            .client
            .list_page(&query, 1, "", Some(MetadataForm::List), |item| {
                found = parse(item);
            });
        page.await?;
        Ok(found)
    }

    /// Patches the status of exactly this object.
    pub async fn patch_status(
        &self,
        key: &ObjectRef,
        uid: &Uid,
        status: &Value,
    ) -> Result<Arc<KubeObject>, ApiError> {
        self.send_status(key, json!({"uid": uid}), status).await
    }

    /// Patches the status of exactly this version of an object.
    ///
    /// # Errors
    /// HTTP 409 if the object has changed since: another leader may have written its status.
    pub async fn patch_status_of(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        status: &Value,
    ) -> Result<Arc<KubeObject>, ApiError> {
        let version = object.resource_version.to_string();
        let preconditions = json!({"uid": object.uid, "resourceVersion": version});
        self.send_status(key, preconditions, status).await
    }

    async fn send_status(
        &self,
        key: &ObjectRef,
        metadata: Value,
        status: &Value,
    ) -> Result<Arc<KubeObject>, ApiError> {
        let patch = json!({"metadata": metadata, "status": status});
        let mut resource = self.client.discover_resource(&key.gvk).await?;
        for _ in 0..MAX_STATUS_DISCOVERIES {
            let object_path = resource.object(key);
            let path = if resource.has_status() {
                format!("{object_path}/status")
            } else {
                object_path
            };
            // A status write does not change the intent; if the intent differs, the response shows a foreign change.
            let written = self
                .merge_patch(None, key, &path, &patch, key, Authorship::Foreign)
                .await;
            // The CRD may have gained the status subresource, beside which the status of the object is ignored, or lost
            // it.
            let is_misplaced = match &written {
                Ok(object) => {
                    !resource.has_status() && !is_partly_stored(status, &object.status().unwrap_or_default())
                }
                Err(e) => resource.has_status() && e.code() == 404,
            };
            if !is_misplaced {
                return written;
            }
            let current = match &written {
                Ok(_) => self.client.rediscover_resource(&key.gvk).await?,
                // The error has made the client forget the resource, if that is old enough to be stale.
                Err(_) => self.client.discover_resource(&key.gvk).await?,
            };
            if current.has_status() == resource.has_status() {
                return written;
            }
            resource = current;
        }
        Err(ApiError::UnknownKind(key.gvk.clone(), None))
    }

    async fn merge_patch(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        path: &str,
        patch: &Value,
        by: &ObjectRef,
        authorship: Authorship,
    ) -> Result<Arc<KubeObject>, ApiError> {
        let client = self.client.acting_as(account);
        self.send_patch(&client, key, path, (PatchType::Merge, patch), by, authorship)
            .await
    }

    async fn send_patch(
        &self,
        client: &ApiClient,
        key: &ObjectRef,
        path: &str,
        (kind, patch): (PatchType, &Value),
        by: &ObjectRef,
        authorship: Authorship,
    ) -> Result<Arc<KubeObject>, ApiError> {
        let path = format!("{path}?fieldManager={HOST_FIELD_MANAGER}");
        let pending = self.responses.expect_response(key, by);
        let response = client.patch(&path, kind, format_body(patch)).await?;
        pending.store_response(&response, authorship)
    }

    /// GETs one object from the API server and stores it.
    pub async fn read_uncached(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        by: &ObjectRef,
    ) -> Result<Option<Arc<KubeObject>>, ApiError> {
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let pending = self.responses.expect_response(key, by);
        match self.client.acting_as(account).get(&path).await {
            // A reader of another object gets its current state returned. A change of the reconciled object itself
            // needs another reconcile.
            Ok(bytes) => pending
                .store_response(&bytes, Authorship::own_if(key != by))
                .map(Some),
            Err(ApiError::Status { code: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads the log of a container of a pod, by the parameters in the query. The log is not larger than `max_bytes`.
    pub async fn read_pod_log(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        query: &str,
        max_bytes: usize,
    ) -> Result<bytes::Bytes, ApiError> {
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let client = self.client.acting_as(account);
        client
            .get_from_kubelet(&format!("{path}/log?{query}"), max_bytes)
            .await
    }

    /// Discovers the version of a kind that the server prefers.
    pub async fn discover_preferred(&self, group: &str, kind: &str) -> Result<Gvk, ApiError> {
        self.client.discover_preferred(group, kind).await
    }

    /// Discovers the resource of a kind, for callers that check if it is namespaced.
    pub async fn discover_resource(&self, gvk: &Gvk) -> Result<ServedResource, ApiError> {
        self.client.discover_resource(gvk).await
    }

    /// POSTs an Event. The caller decides if a failure matters.
    pub async fn create_event(&self, namespace: &str, event: &Value) -> Result<Value, ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        parse_response(&self.client.create(&path, format_body(event)).await?)
    }

    /// Patches the count of an Event.
    pub async fn bump_event(&self, namespace: &str, name: &str, patch: &Value) -> Result<(), ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/events/{name}");
        self.client
            .patch(&path, PatchType::Merge, format_body(patch))
            .await
            .map(drop)
    }
}

/// The body of a request. `to_string` would format it piece by piece, at twice the time.
fn format_body(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value")
}

/// Returns true if an object has at least one of the top-level fields that a status patch sets, or if it sets none.
fn is_partly_stored(patch: &Value, status: &Value) -> bool {
    let fields = patch.as_object().into_iter().flatten();
    let mut set = fields.filter(|(_, value)| !value.is_null()).peekable();
    let is_stored = |(name, value): (&String, &Value)| {
        let Some(stored) = status.get(name) else {
            return false;
        };
        let mut merged = stored.clone();
        json_patch::merge(&mut merged, value);
        merged == *stored
    };
    set.peek().is_none() || set.any(is_stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_that_was_not_stored_at_all_is_known_from_one_that_was_pruned() {
        let patch = json!({"phase": "Ready", "conditions": [{"type": "Ready"}], "gone": null});
        for (status, stored) in [
            (json!(null), false),
            (json!({"phase": "Failed"}), false),
            (json!({"phase": "Ready"}), true),
            (
                json!({"phase": "Failed", "conditions": [{"type": "Ready"}]}),
                true,
            ),
        ] {
            assert_eq!(is_partly_stored(&patch, &status), stored, "{status}");
        }
        assert!(
            is_partly_stored(&json!({"gone": null}), &json!(null)),
            "nothing was to be stored"
        );
    }
}
