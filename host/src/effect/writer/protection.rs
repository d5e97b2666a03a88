//! Writes of the protection of Upstreams and Clusters: what they and their users record in their metadata.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::ApiWriter;
use crate::{
    client::api::ApiError,
    kube::{
        key::ObjectRef,
        object::KubeObject,
        protection::{MAX_USED_CONNECTIONS, Protection, format_used, list_used},
        uid::Uid,
        well_known::bookkeeping::USED_CONNECTIONS,
    },
};

impl ApiWriter {
    /// Changes the record of an Upstream or a Cluster, in its current version, and adds its finalizer. Returns true if a write was
    /// needed, and none if it is gone, or being deleted without the finalizer: it takes no new one.
    pub async fn change_protection(
        &self,
        connection: &ObjectRef,
        by: &ObjectRef,
        finalizer: &str,
        change: impl Fn(&mut Protection),
    ) -> Result<Option<bool>, ApiError> {
        let record = |object: &KubeObject| {
            let before = Protection::of(object, finalizer);
            let mut after = before.clone();
            change(&mut after);
            (!object.has_finalizer(finalizer) || after != before).then(|| after.to_annotations())
        };
        self.update_finalized(connection, by, finalizer, record).await
    }

    /// Adds an Upstream or a Cluster to the annotation of exactly this object, in its current version. Returns false if the
    /// object was replaced by another one of its name, or lists too many.
    pub async fn add_used(
        &self,
        user: &ObjectRef,
        uid: &Uid,
        connection: &ObjectRef,
    ) -> Result<bool, ApiError> {
        let is_listed = AtomicBool::new(false);
        let update = |object: &KubeObject| {
            let mut listed = list_used(object);
            let is_new = listed.insert(connection.clone());
            let has_room = object.uid == *uid && listed.len() <= MAX_USED_CONNECTIONS;
            is_listed.store(has_room, Ordering::Relaxed);
            (has_room && is_new).then(|| json!({"annotations": {USED_CONNECTIONS: format_used(&listed)}}))
        };
        self.update_metadata(user, user, update).await?;
        Ok(is_listed.load(Ordering::Relaxed))
    }
}
