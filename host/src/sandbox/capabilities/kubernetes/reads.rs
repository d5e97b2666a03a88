//! Reads of one object: by the watch of its kind, or by that of the owned objects of its kind.
//!
//! The host labels what it writes as owned, so that one watch with a label selector reports the children of all objects and
//! nothing else. A reconciler reads a child by its name without saying that it is one. Of a child that exists the cache
//! knows it by the label; one that is not cached is looked up at the API server, since an object without the label may have
//! the name.

use std::sync::Arc;

use super::PluginCall;
use crate::{
    cache::informer::SyncError,
    contract::bindings::types::Error,
    kube::{
        key::ObjectRef,
        object::KubeObject,
        owned::is_owned,
        scope::{Projection, Scope},
    },
    policy::grants::{Access, GrantVerb},
    sandbox::services::{ClusterAccess, Services},
    schedule::dependencies::ReadDependency,
};

impl PluginCall {
    /// Reads one object and records the dependency: of an owned object on the watch of owned objects, else on that of its kind.
    pub(super) async fn read_object(
        &mut self,
        services: &Services,
        access: &ClusterAccess,
        key: &ObjectRef,
        projection: Projection,
    ) -> Result<Option<Arc<KubeObject>>, Error> {
        if self.is_known_as_owned(access, key) {
            return self.read_owned(services, key, projection).await;
        }
        let wide = access.cache.namespaces.object_scope(key, projection);
        if !self.may_create(key) || access.cache.informers.serves(&wide) {
            return self.get_cached(services, key, projection).await;
        }
        let by = self.context.target_key().cloned().unwrap_or_else(|| key.clone());
        let account = self.context.service_account_on(access);
        match access.api.writer.read_uncached(account, key, &by).await {
            Ok(Some(live)) if is_owned(&live) => self.read_owned(services, key, projection).await,
            // Another client has written it, or a host that did not label owned objects.
            Ok(Some(_)) => self.get_cached(services, key, projection).await,
            Ok(None) => {
                self.record_absent(access, key, projection)?;
                Ok(None)
            }
            // The host may list the kind and not get its objects.
            Err(e) if e.code() == 403 => self.get_cached(services, key, projection).await,
            Err(e) => Err(self.map_api_error(access, e)),
        }
    }

    /// Reads an object that is owned, or will be by this call, from the watch of owned objects.
    pub(super) async fn read_owned(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        projection: Projection,
    ) -> Result<Option<Arc<KubeObject>>, Error> {
        let dependency = ReadDependency::Owned(key.clone(), projection);
        self.get_by_dependency(services, key, projection, dependency)
            .await
    }

    /// The dependency on an object that is read or written, without a request.
    pub(super) fn dependency_on(
        &self,
        access: &ClusterAccess,
        key: &ObjectRef,
        projection: Projection,
    ) -> ReadDependency {
        match self.is_known_as_owned(access, key) {
            true => ReadDependency::Owned(key.clone(), projection),
            false => ReadDependency::Object(key.clone(), projection),
        }
    }

    /// Watches the kinds of the objects that the call has read, and which neither exist nor were created since: somebody else
    /// may create them. It is done after the call, because until then the call may do so itself.
    pub fn watch_absent_objects(&mut self) {
        for (scope, keys) in std::mem::take(&mut self.effects.absent) {
            for key in keys {
                let dependency = ReadDependency::Object(key, scope.projection);
                // Other calls of the plugin may have taken its watches meanwhile. What is a dependency is watched soon.
                if self.record_read(dependency.clone()).is_err() {
                    self.effects.reads.push(dependency);
                }
            }
        }
    }

    /// Drops the reads of an object by the watch of its kind, and those that found it absent: the call writes it as owned, and
    /// from then on the watch of owned objects reports it.
    pub(super) fn drop_wide_reads(&mut self, key: &ObjectRef) {
        self.effects.absent.retain(|_, keys| {
            keys.remove(key);
            !keys.is_empty()
        });
        let is_wide =
            |read: &ReadDependency| matches!(read, ReadDependency::Object(object, _) if object == key);
        self.effects.reads.retain(|read| !is_wide(read));
    }

    fn record_absent(
        &mut self,
        access: &ClusterAccess,
        key: &ObjectRef,
        projection: Projection,
    ) -> Result<(), Error> {
        let informers = &access.cache.informers;
        let owned = access.cache.namespaces.widen(Scope::of_owned(key, projection));
        if informers.serves(&owned) {
            // It may appear before the call ends.
            self.record_read(ReadDependency::Owned(key.clone(), projection))?;
        }
        let wide = access.cache.namespaces.object_scope(key, projection);
        self.effects.absent.entry(wide).or_default().insert(key.clone());
        let reader = self.reader();
        let pending = u32::try_from(self.effects.absent.len()).unwrap_or(u32::MAX);
        informers
            .check_limit(reader, pending)
            .map_err(|e| self.map_sync_error(SyncError::from(e)))
    }

    /// Returns whether an object is known to have the label of owned objects: the call has written it as such, or it is cached
    /// with it.
    fn is_known_as_owned(&self, access: &ClusterAccess, key: &ObjectRef) -> bool {
        let is_recorded =
            |read: &ReadDependency| matches!(read, ReadDependency::Owned(owned, _) if owned == key);
        let cached = access.cache.store.get(key, Projection::Metadata);
        match cached {
            Some(cached) => is_owned(&cached),
            None => {
                let is_absent = self.effects.absent.values().any(|keys| keys.contains(key));
                !is_absent && self.effects.reads.iter().any(is_recorded)
            }
        }
    }

    /// Returns whether the plugin may have created an object of this kind and place.
    fn may_create(&self, key: &ObjectRef) -> bool {
        [GrantVerb::Apply, GrantVerb::Create].into_iter().any(|verb| {
            let access = Access::Kubernetes {
                verb,
                gvk: &key.gvk,
                namespace: &key.namespace,
                cluster: &key.cluster,
            };
            self.context
                .policy
                .grants
                .allows(&access, self.context.own_namespace())
        })
    }
}
