//! Owned objects on other clusters: their entry in the inventory of the owner, before they are written.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream};

use super::PluginCall;
use crate::{
    cluster::ClusterAccess,
    contract::bindings::types::Error,
    effect::writer::{ApiWriter, InventoryRefusal},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        owned::{MAX_OWNED_OBJECTS, check_takeover, is_owned_by, list_owned},
        scope::Projection,
    },
    sandbox::{capabilities::CallTarget, services::Services},
};

/// Number of owned objects whose existence is checked concurrently when the inventory is full.
const MAX_CONCURRENT_CHECKS: usize = 8;

impl PluginCall {
    /// Prepares that an object on another cluster becomes owned: no other object owns it, and the inventory of the reconciled
    /// object lists it. Returns the version of the live object that a write requires, so that it fails (HTTP 409) if another
    /// owner is faster; none for an object that does not exist or is owned already.
    pub(super) async fn take_over(
        &mut self,
        services: &Services,
        access: &ClusterAccess,
        key: &ObjectRef,
        cached: Option<&Arc<KubeObject>>,
    ) -> Result<Option<u64>, Error> {
        let Some(target) = &self.context.target else {
            return Err(Error::Denied("no object to write for".into()));
        };
        let (owner, uid) = (target.key.clone(), target.object.uid.clone());
        let live = match cached {
            Some(live) => Some(live.clone()),
            // The cache may lag behind another owner that has just created it.
            None => {
                let account = self.context.service_account_on(access);
                let read = access.api.writer.read_uncached(account, key, &owner).await;
                read.map_err(|e| self.map_api_error(access, e))?
            }
        };
        if let Some(live) = &live {
            let checked = check_takeover(live, &owner, &uid);
            checked.map_err(|why| Error::Conflict(format!("{key}: {why}")))?;
        }
        self.list_as_owned(services, key).await?;
        let required = live.filter(|live| !is_owned_by(live, &uid));
        Ok(required.map(|live| live.resource_version))
    }

    /// Lists an object in the inventory of the reconciled object.
    pub(super) async fn list_as_owned(&mut self, services: &Services, key: &ObjectRef) -> Result<(), Error> {
        let Some(target) = &self.context.target else {
            return Ok(());
        };
        let (owner, uid) = (target.key.clone(), target.object.uid.clone());
        let listed = read_inventory(target, services);
        if !listed.contains(key) {
            let api = self.target_api(services)?;
            let writer = &api.writer;
            let mut changed = writer
                .change_owned(&owner, &uid, Some(key), &BTreeSet::new())
                .await?;
            if changed == Err(InventoryRefusal::Full) {
                let gone = self.find_gone(services, listed).await;
                changed = writer.change_owned(&owner, &uid, Some(key), &gone).await?;
                self.effects.disowned.extend(gone);
            }
            match changed {
                Ok(sent) => self.effects.counts.api_writes += u64::from(sent),
                Err(InventoryRefusal::Full) => {
                    return Err(Error::LimitExceeded(format!(
                        "more than {MAX_OWNED_OBJECTS} objects on other clusters owned by one"
                    )));
                }
                Err(InventoryRefusal::Replaced) => {
                    return Err(Error::Conflict(format!(
                        "{owner} was replaced by another object of its name"
                    )));
                }
            }
        }
        self.effects.disowned.remove(key);
        self.effects.owned.insert(key.clone());
        Ok(())
    }

    /// Removes an object that is gone from the inventory of the reconciled object.
    pub(super) async fn unlist_owned(
        &mut self,
        services: &Services,
        access: &ClusterAccess,
        key: &ObjectRef,
    ) -> Result<(), Error> {
        let Some(target) = self.context.target.as_ref() else {
            return Ok(());
        };
        if self.context.is_target_cluster(&key.cluster) {
            return Ok(());
        }
        let is_listed = read_inventory(target, services).contains(key);
        if is_listed && !is_served(&access.api.writer, key).await {
            return Ok(());
        }
        self.effects.owned.remove(key);
        self.effects.disowned.insert(key.clone());
        if !is_listed {
            return Ok(());
        }
        let (owner, uid) = (target.key.clone(), target.object.uid.clone());
        let gone = BTreeSet::from([key.clone()]);
        let api = self.target_api(services)?;
        let changed = api.writer.change_owned(&owner, &uid, None, &gone).await?;
        self.effects.counts.api_writes += u64::from(changed == Ok(true));
        Ok(())
    }

    /// Those of the owned objects that certainly do not exist any more.
    async fn find_gone(&self, services: &Services, listed: BTreeSet<ObjectRef>) -> BTreeSet<ObjectRef> {
        let context = &self.context;
        let check = async |key: ObjectRef| {
            let access = services.find_access(&key.cluster)?;
            let account = context.service_account_on(&access);
            let writer = &access.api.writer;
            let found = writer.read_metadata(account, &key).await;
            (matches!(found, Ok(None)) && is_served(writer, &key).await).then_some(key)
        };
        let checks = stream::iter(listed)
            .map(check)
            .buffer_unordered(MAX_CONCURRENT_CHECKS);
        checks.filter_map(async |gone| gone).collect().await
    }
}

/// The kind of an object is served in the version that its key names. HTTP 404 means that the object is gone only then: it may
/// be there in another version.
async fn is_served(writer: &ApiWriter, key: &ObjectRef) -> bool {
    matches!(writer.find_served(&key.gvk).await, Ok(Some(gvk)) if gvk == key.gvk)
}

/// The inventory of the reconciled object, as its newest version in the cache has it.
fn read_inventory(target: &CallTarget, services: &Services) -> BTreeSet<ObjectRef> {
    let stored = services.cache.store.get(&target.key, Projection::Metadata);
    let newest = stored.filter(|stored| stored.uid == target.object.uid);
    list_owned(newest.as_ref().unwrap_or(&target.object))
}
