//! Writes of metadata: finalizers, holds, labels and annotations. Each is conditional on the version that was read.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

use super::{ApiWriter, write_responses::Authorship};
use crate::{
    client::api::{ApiError, PatchType},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        protection::may_need_any,
        references,
        uid::Uid,
        well_known::{HOST_FIELD_MANAGER, bookkeeping},
    },
    policy::grants::ServiceAccount,
};

/// Maximum attempts of a metadata update that conflicts with other writers.
const MAX_UPDATE_ATTEMPTS: u32 = 5;

impl ApiWriter {
    /// Sets the finalizers of an object that was read; conflicts if it changed since. With the finalizer goes the list of what
    /// the object needed for its cleanup.
    pub async fn set_finalizers(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        finalizers: &[Box<str>],
    ) -> Result<Arc<KubeObject>, ApiError> {
        let mut patch = json!({"metadata": {
            "uid": object.uid,
            "resourceVersion": object.resource_version.to_string(),
            "finalizers": finalizers,
        }});
        let is_released = finalizers.len() < object.finalizers().len();
        if is_released && may_need_any(object) {
            patch["metadata"]["annotations"] =
                json!({bookkeeping::USED_CONNECTIONS: null, bookkeeping::OWNED_OBJECTS: null});
        }
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        self.merge_patch(None, key, &path, &patch, key, Authorship::Own)
            .await
    }

    /// Writes the annotation that lists the objects held by exactly this object; an empty set removes it.
    pub async fn set_holds(
        &self,
        holder: &ObjectRef,
        uid: &Uid,
        held: &BTreeSet<ObjectRef>,
    ) -> Result<(), ApiError> {
        let text = references::format_holds(held);
        let change = |object: &KubeObject| {
            let same =
                object.uid != *uid || object.annotation(bookkeeping::HOLDS).unwrap_or_default() == text;
            let text = Some(&text).filter(|text| !text.is_empty());
            (!same).then(|| json!({"annotations": {bookkeeping::HOLDS: text}}))
        };
        self.update_metadata(holder, holder, change).await.map(drop)
    }

    /// Adds or removes the finalizer and annotation of a holder on an object. Returns true if a write was needed;
    /// removal from an object that no longer exists needs none.
    pub async fn set_hold_finalizer(
        &self,
        key: &ObjectRef,
        holder: &ObjectRef,
        uid: &Uid,
        on: bool,
    ) -> Result<bool, ApiError> {
        let finalizer = references::holder_finalizer(uid);
        let change = |object: &KubeObject| {
            if references::is_held_by(object, uid) == on {
                return None;
            }
            let mut finalizers: Vec<&str> = object.finalizers().iter().map(|f| &**f).collect();
            finalizers.retain(|f| *f != finalizer);
            if on {
                finalizers.push(&finalizer);
            }
            let text = on.then(|| references::format_reference(holder));
            Some(json!({"finalizers": finalizers, "annotations": {&finalizer: text}}))
        };
        match self.update_metadata(key, holder, change).await {
            Err(e) if e.code() == 404 && !on => Ok(false),
            result => result,
        }
    }

    /// Adds or removes a finalizer of an object. Returns true if a write was needed; removal from an object that no longer
    /// exists needs none.
    pub async fn set_finalizer(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        finalizer: &str,
        on: bool,
    ) -> Result<bool, ApiError> {
        let change = |object: &KubeObject| {
            if is_finalizer_settled(object, finalizer, on) {
                return None;
            }
            let mut finalizers: Vec<&str> = object.finalizers().iter().map(|f| &**f).collect();
            finalizers.retain(|f| *f != finalizer);
            if on {
                finalizers.push(finalizer);
            }
            Some(json!({"finalizers": finalizers}))
        };
        match self.update_metadata(key, by, change).await {
            Err(e) if e.code() == 404 => Ok(false),
            result => result,
        }
    }

    /// Adds or removes a finalizer of a Role or RoleBinding, as [`Self::set_finalizer`] does, without a condition on the version.
    ///
    /// The API server refuses a change of rights that the host does not have itself, and lets through one of finalizers alone. It
    /// compares versions after that check: a patch with a version that was overtaken would be HTTP 403 in place of 409.
    pub async fn set_rights_finalizer(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        finalizer: &str,
        on: bool,
    ) -> Result<bool, ApiError> {
        let field = if on {
            "finalizers"
        } else {
            "$deleteFromPrimitiveList/finalizers"
        };
        let prepare = |object: &KubeObject| {
            let is_needed = !is_finalizer_settled(object, finalizer, on);
            is_needed.then(|| (PatchType::Strategic, json!({"metadata": {field: [finalizer]}})))
        };
        match self.update_object(key, by, prepare).await {
            Err(e) if e.code() == 404 => Ok(false),
            result => result,
        }
    }

    /// Adds a finalizer to an object as read from the API server. Returns true if a write was needed, and none if the object
    /// is gone, or being deleted without the finalizer: it takes no new one.
    pub async fn add_finalizer(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        finalizer: &str,
    ) -> Result<Option<bool>, ApiError> {
        self.update_finalized(key, by, finalizer, |_| None).await
    }

    /// Adds a finalizer to an object and changes its annotations, as read from the API server. Returns as
    /// [`Self::add_finalizer`] does.
    pub(super) async fn update_finalized(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        finalizer: &str,
        change: impl Fn(&KubeObject) -> Option<Value>,
    ) -> Result<Option<bool>, ApiError> {
        let is_leaving = AtomicBool::new(false);
        let update = |object: &KubeObject| {
            let is_finalized = object.has_finalizer(finalizer);
            is_leaving.store(object.is_deleting() && !is_finalized, Ordering::Relaxed);
            if is_leaving.load(Ordering::Relaxed) {
                return None;
            }
            let mut metadata = json!({});
            if !is_finalized {
                let finalizers = object.finalizers().iter().map(|f| &**f);
                metadata["finalizers"] = finalizers.chain([finalizer]).collect();
            }
            if let Some(annotations) = change(object) {
                metadata["annotations"] = annotations;
            }
            (metadata != json!({})).then_some(metadata)
        };
        match self.update_metadata(key, by, update).await {
            Err(e) if e.code() == 404 => Ok(None),
            Ok(_) if is_leaving.load(Ordering::Relaxed) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Updates the metadata of an object as read from the API server, retrying on conflicts. Returns true if there was
    /// something to change.
    pub(super) async fn update_metadata(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        change: impl Fn(&KubeObject) -> Option<Value>,
    ) -> Result<bool, ApiError> {
        let prepare = |object: &KubeObject| {
            let mut metadata = change(object)?;
            metadata["uid"] = json!(object.uid);
            metadata["resourceVersion"] = object.resource_version.to_string().into();
            Some((PatchType::Merge, json!({"metadata": metadata})))
        };
        self.update_object(key, by, prepare).await
    }

    /// Patches an object as read from the API server, retrying on conflicts. Returns true if there was something to change.
    async fn update_object(
        &self,
        key: &ObjectRef,
        by: &ObjectRef,
        prepare: impl Fn(&KubeObject) -> Option<(PatchType, Value)>,
    ) -> Result<bool, ApiError> {
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let mut attempts = 0;
        loop {
            let bytes = self.client.get(&path).await?;
            let (_, object) =
                KubeObject::parse(&key.gvk, &bytes).map_err(|e| ApiError::InvalidResponse(e.to_string()))?;
            let Some((kind, patch)) = prepare(&object) else {
                return Ok(false);
            };
            // The read may show a foreign change that the watch has not delivered. It is stored first, because the
            // patch below is at most conditional on this version.
            self.responses.store_read(key, &bytes)?;
            attempts += 1;
            let written = self
                .send_patch(&self.client, key, &path, (kind, &patch), by, Authorship::Own)
                .await;
            match written {
                Err(e) if e.code() == 409 && attempts < MAX_UPDATE_ATTEMPTS => {}
                result => return result.map(|_| true),
            }
        }
    }

    /// Lists the finalizers of an object that the host has added, by the `managedFields` that the API server keeps. Those that
    /// others have added are not among them. None of an object that is gone.
    pub async fn list_own_finalizers(&self, key: &ObjectRef) -> Result<BTreeSet<String>, ApiError> {
        let parse = |item: &str| {
            let object = serde_json::from_str(item).ok()?;
            Some(parse_own_finalizers(&object))
        };
        Ok(self.read_listed(key, parse).await?.unwrap_or_default())
    }

    /// Patches labels and annotations of an object that was read; conflicts if it changed since.
    pub async fn patch_metadata(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
        object: &KubeObject,
        mut metadata: Value,
    ) -> Result<Arc<KubeObject>, ApiError> {
        metadata["uid"] = json!(object.uid);
        metadata["resourceVersion"] = object.resource_version.to_string().into();
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let patch = json!({ "metadata": metadata });
        self.merge_patch(account, key, &path, &patch, key, Authorship::Own)
            .await
    }
}

/// Returns whether an object has a finalizer or not, as wanted. One that is being deleted takes no new one.
fn is_finalizer_settled(object: &KubeObject, finalizer: &str, on: bool) -> bool {
    object.has_finalizer(finalizer) == on || (on && object.is_deleting())
}

/// The finalizers in the host's entry of `managedFields`. An item of a set is a field `v:` with its value as JSON (`FieldsV1`).
fn parse_own_finalizers(object: &Value) -> BTreeSet<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let own = entries
        .into_iter()
        .flatten()
        .filter(|entry| entry["manager"] == HOST_FIELD_MANAGER)
        .filter_map(|entry| entry["fieldsV1"]["f:metadata"]["f:finalizers"].as_object());
    own.flat_map(|items| items.keys())
        .filter_map(|item| serde_json::from_str(item.strip_prefix("v:")?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_finalizers_are_those_that_the_host_manages() {
        let entry = |manager: &str, finalizers: Value| {
            json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:finalizers": finalizers}, "f:spec": {}}})
        };
        let object = json!({"metadata": {"managedFields": [
            entry("ostler", json!({".": {}, "v:\"a.org/b\"": {}})),
            entry("ostler-plugin", json!({"v:\"c.org/d\"": {}})),
            {"manager": "ostler", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        ]}});
        assert_eq!(
            parse_own_finalizers(&object),
            BTreeSet::from(["a.org/b".to_owned()])
        );
        assert_eq!(parse_own_finalizers(&json!({"metadata": {}})), BTreeSet::new());
    }
}
