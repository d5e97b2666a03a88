//! Owned objects on other clusters: writes of the inventory, and reads that decide about deletion.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::json;

use super::ApiWriter;
use crate::{
    client::api::{ApiError, MetadataForm},
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        owned::{InventoryFull, change_inventory, format_inventory, list_owned},
        uid::Uid,
        well_known::bookkeeping::OWNED_OBJECTS,
    },
    policy::grants::ServiceAccount,
};

/// The reason why an inventory was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InventoryRefusal {
    /// It has no room.
    Full,
    /// The owner was replaced by another object of its name.
    Replaced,
}

impl ApiWriter {
    /// Removes entries from the inventory of exactly this owner and adds one, in the current version of the owner: what an
    /// earlier leader has written stays. Returns true if a write was needed.
    pub async fn change_owned(
        &self,
        owner: &ObjectRef,
        uid: &Uid,
        added: Option<&ObjectRef>,
        removed: &BTreeSet<ObjectRef>,
    ) -> Result<Result<bool, InventoryRefusal>, ApiError> {
        let refusal = Mutex::new(None);
        let change = |object: &KubeObject| {
            if object.uid != *uid {
                *refusal.lock() = Some(InventoryRefusal::Replaced);
                return None;
            }
            let mut listed = list_owned(object);
            match change_inventory(&mut listed, added, removed) {
                Ok(differs) => {
                    let text = (!listed.is_empty()).then(|| format_inventory(&listed));
                    differs.then(|| json!({"annotations": {OWNED_OBJECTS: text}}))
                }
                Err(InventoryFull) => {
                    *refusal.lock() = Some(InventoryRefusal::Full);
                    None
                }
            }
        };
        let sent = self.update_metadata(owner, owner, change).await?;
        let refusal = *refusal.lock();
        Ok(refusal.map_or(Ok(sent), Err))
    }

    /// Discovers the version in which a kind is served now: the named one, or another one of its group. None if there is
    /// none, so that there are no objects of the kind.
    pub async fn find_served(&self, gvk: &Gvk) -> Result<Option<Gvk>, ApiError> {
        let others = match self.client.rediscover_resource(gvk).await {
            Ok(_) => return Ok(Some(gvk.clone())),
            Err(ApiError::UnknownKind(..)) => self.client.discover_versions(&gvk.group).await?,
            Err(e) => return Err(e),
        };
        for version in others {
            let other = Gvk::new(&gvk.group, &version, &gvk.kind);
            match self.client.discover_resource(&other).await {
                Ok(_) => return Ok(Some(other)),
                Err(ApiError::UnknownKind(..)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// GETs the metadata of an object without storing it. None if it does not exist.
    pub async fn read_metadata(
        &self,
        account: Option<&ServiceAccount>,
        key: &ObjectRef,
    ) -> Result<Option<KubeObject>, ApiError> {
        let path = self.client.discover_resource(&key.gvk).await?.object(key);
        let client = self.client.acting_as(account);
        match client.get_as(&path, Some(MetadataForm::Object)).await {
            Ok(bytes) => {
                let parsed = KubeObject::parse(&key.gvk, &bytes);
                let (_, object) = parsed.map_err(|e| ApiError::InvalidResponse(e.to_string()))?;
                Ok(Some(object))
            }
            Err(e) if e.code() == 404 => Ok(None),
            Err(e) => Err(e),
        }
    }
}
