//! Deletion of what an object owns on other clusters: it is gone before the finalizer of its owner is removed.
//!
//! The inventory says what to look for, and the mark on each object whether to delete it. A cluster that cannot be reached
//! keeps its objects' owners: only an annotation of the `Cluster`, or of the owner, lets them go without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
};

use futures::{StreamExt, stream};
use tracing::{info, warn};

use super::{name_objects, run::ReconcileRun};
use crate::{
    client::api::ApiError,
    cluster::{ClusterAccess, ClusterObject, CurrentWait, cluster_object},
    contract::bindings::{
        kubernetes::{Preconditions, Propagation},
        reconciler,
    },
    effect::{events::EventType, writer::WriteContext},
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        owned::{ReleaseStep, list_owned, next_release_step},
        scope::Projection,
        well_known::{annotation::DELETION_POLICY, event_reason, object_reason},
    },
    plugin::Plugin,
    policy::grants::{Access, GrantVerb},
    sandbox::capabilities::Effects,
    schedule::dependencies::ReadDependency,
};

/// Number of owned objects of one owner that are deleted concurrently.
const MAX_CONCURRENT_RELEASES: usize = 8;
/// Maximum number of remaining objects that a message names.
const MAX_NAMED_OBJECTS: usize = 5;

/// The use of a cluster for the deletion of what an object owns there.
enum OwnedCluster {
    /// Its objects are deleted.
    Connected(ClusterAccess),
    /// Its objects are let go: an annotation of the `Cluster` says so.
    Orphaned,
    /// Nothing can be deleted at present, for this reason.
    Blocked(String),
}

impl ReconcileRun<'_> {
    /// Remembers what an object owns on other clusters, in case that its inventory is overwritten.
    pub(super) fn remember_owned(&self, effects: &Effects) {
        if effects.owned.is_empty() && effects.disowned.is_empty() {
            return;
        }
        let mut known = &self.known_owned() | &effects.owned;
        known.retain(|owned| !effects.disowned.contains(owned));
        let known = (!known.is_empty()).then(|| Box::new((self.object.uid.clone(), known)));
        self.controller
            .update_state(self.key(), |state| state.owned_objects = known);
    }

    /// What the object owns on other clusters as far as this process has seen.
    fn known_owned(&self) -> BTreeSet<ObjectRef> {
        let states = self.controller.states.lock();
        let known = states.get(self.key()).and_then(|s| s.owned_objects.as_deref());
        let known = known.filter(|known| known.0 == self.object.uid);
        known.map(|known| known.1.clone()).unwrap_or_default()
    }

    /// Deletes what a deleted object owns on other clusters. Returns the failure that its status shows while something is
    /// left. What it waits for is added to the dependencies.
    pub(super) async fn release_owned(
        &self,
        object: &Arc<KubeObject>,
        reads: &mut Vec<ReadDependency>,
    ) -> Option<reconciler::Failure> {
        let store = &self.controller.services.cache.store;
        let newest = store.get(self.key(), Projection::Metadata);
        let newest = newest
            .filter(|o| o.uid == object.uid)
            .unwrap_or_else(|| object.clone());
        let owned = &list_owned(&newest) | &self.known_owned();
        if owned.is_empty() {
            return None;
        }
        let mut by_cluster: BTreeMap<Arc<str>, Vec<ObjectRef>> = BTreeMap::new();
        for object in owned {
            by_cluster.entry(object.cluster.clone()).or_default().push(object);
        }
        let (mut left, mut orphaned, mut causes) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (cluster, objects) in by_cluster {
            match self.find_owned_cluster(&cluster, reads) {
                OwnedCluster::Orphaned => orphaned.extend(objects),
                OwnedCluster::Blocked(cause) => {
                    causes.insert(cause);
                    left.extend(objects);
                }
                OwnedCluster::Connected(access) => {
                    for (object, cause) in self.release_on_cluster(&access, objects).await {
                        causes.insert(cause);
                        let dependency = ReadDependency::Object(object.clone(), Projection::Metadata);
                        let scope = dependency.scope(&access.cache.namespaces);
                        access.cache.informers.ensure_informer(&scope);
                        reads.push(dependency);
                        left.push(object);
                    }
                }
            }
        }
        if left.is_empty() {
            self.report_orphaned(object, &orphaned).await;
            return None;
        }
        let causes: Vec<String> = causes.into_iter().take(MAX_NAMED_OBJECTS).collect();
        Some(reconciler::Failure {
            resolution: reconciler::Resolution::Wait,
            reason: object_reason::OWNED_OBJECTS_REMAIN.into(),
            message: format!(
                "Waits for the deletion of {}: {}",
                name_objects(left.iter(), MAX_NAMED_OBJECTS),
                causes.join("; ")
            ),
            conditions: Vec::new(),
            status: None,
        })
    }

    /// Finds out whether the objects of a cluster can be deleted. The `Cluster` becomes a dependency.
    fn find_owned_cluster(&self, cluster: &str, reads: &mut Vec<ReadDependency>) -> OwnedCluster {
        let (services, owner) = (&self.controller.services, self.key());
        let Some(key) = cluster_object(cluster) else {
            return OwnedCluster::Connected(services.home());
        };
        let read = ReadDependency::Object(key.clone(), Projection::Full);
        // The dependency is recorded before the read, so that no change is missed.
        services.dispatcher.record_read(owner, read.clone());
        reads.push(read);
        let Some(object) = services.cache.store.get(&key, Projection::Full) else {
            return OwnedCluster::Blocked(format!(
                "Cluster {cluster} does not exist. Create it again, with the annotation {DELETION_POLICY}=Orphan if the \
                 cluster is gone for good"
            ));
        };
        if object.annotation(DELETION_POLICY) == Some("Orphan") {
            return OwnedCluster::Orphaned;
        }
        let own = self
            .plugin
            .policy
            .grants
            .home_namespace()
            .unwrap_or(&owner.namespace);
        match ClusterObject::from_object(&object) {
            Ok(described) if !described.allows_namespace(own) => {
                return OwnedCluster::Blocked(format!(
                    "Cluster {cluster} may not be used from namespace {own}: its spec.allowedNamespaces doesn't list it"
                ));
            }
            Ok(_) => {}
            Err(why) => return OwnedCluster::Blocked(why),
        }
        let connection = services.clusters.find(cluster);
        let Some(connection) = connection.filter(|connection| connection.is_verified()) else {
            let state = object.readiness();
            return OwnedCluster::Blocked(format!("Cluster {cluster} is not connected. {}", state.message));
        };
        match connection.outage() {
            None => OwnedCluster::Connected(connection.access.clone()),
            Some(why) => OwnedCluster::Blocked(format!("Cluster {cluster} does not respond: {why}")),
        }
    }

    /// Deletes what an object owns on one cluster, as a call of its plugin that waits for the cluster. Returns what is left,
    /// each with the cause.
    async fn release_on_cluster(
        &self,
        access: &ClusterAccess,
        objects: Vec<ObjectRef>,
    ) -> Vec<(ObjectRef, String)> {
        let (services, name) = (&self.controller.services, self.plugin.name());
        if access.api.cluster.is_empty() {
            let current = CurrentWait::default();
            return self.delete_owned(access, &objects, &current).await;
        }
        let concurrency = services.dispatcher.concurrency(name);
        let wait = services
            .slow_calls
            .begin_wait(name, &access.api.cluster, concurrency);
        let deleted = match wait {
            Ok(wait) => {
                let current = CurrentWait::default();
                current.begin(wait);
                let deletion = self.delete_owned(access, &objects, &current);
                current.run(pin!(deletion)).await
            }
            Err(slow) => Err(slow),
        };
        deleted.unwrap_or_else(|slow| {
            let left = objects.into_iter();
            left.map(|object| (object, slow.to_string())).collect()
        })
    }

    /// Deletes what an object owns on one cluster. Returns what is left, each with the cause. Each deletion restarts the wait
    /// for the cluster.
    async fn delete_owned(
        &self,
        access: &ClusterAccess,
        objects: &[ObjectRef],
        wait: &CurrentWait,
    ) -> Vec<(ObjectRef, String)> {
        let writer = &access.api.writer;
        let mut served: BTreeMap<Gvk, Result<Option<Gvk>, String>> = BTreeMap::new();
        for object in objects {
            if !served.contains_key(&object.gvk) {
                let found = writer.find_served(&object.gvk).await;
                wait.restart();
                served.insert(object.gvk.clone(), found.map_err(|e| e.to_string()));
            }
        }
        let release = async |object: ObjectRef| {
            let current = match served.get(&object.gvk) {
                Some(Ok(Some(gvk))) => {
                    let named = ObjectRef::new(gvk.clone(), &object.namespace, &object.name);
                    named.with_cluster(&object.cluster)
                }
                // The kind was removed, and all its objects with it.
                Some(Ok(None)) | None => return None,
                Some(Err(why)) => return Some((object, why.clone())),
            };
            if let Err(why) = check_release(self.plugin, self.key(), &object) {
                return Some((object, why));
            }
            let deleted = self.delete_one(access, &current).await;
            wait.restart();
            match deleted {
                Ok(ReleaseStep::Release) => None,
                Ok(_) => Some((object, "it is being deleted".to_owned())),
                Err(e) => {
                    warn!(object = %object, owner = %self.key(), error = %e, "deleting owned object failed");
                    Some((object, e.to_string()))
                }
            }
        };
        let releases = stream::iter(objects.to_vec())
            .map(release)
            .buffer_unordered(MAX_CONCURRENT_RELEASES);
        let mut left: Vec<_> = releases.filter_map(async |left| left).collect().await;
        left.sort();
        left
    }

    /// Deletes one object, if its mark says that the owner has taken it over, and returns the next step.
    async fn delete_one(&self, access: &ClusterAccess, key: &ObjectRef) -> Result<ReleaseStep, ApiError> {
        let (writer, owner, uid) = (&access.api.writer, self.key(), &self.object.uid);
        let account = self.plugin.policy.grants.service_account();
        let account = account.filter(|_| access.api.acts_as_plugins);
        let live = writer.read_metadata(account, key).await?;
        let step = next_release_step(live.as_ref(), uid);
        let (ReleaseStep::Delete, Some(live)) = (step, live) else {
            return Ok(step);
        };
        let context = WriteContext {
            manager: self.plugin.name(),
            by: owner,
            request_digest: 0,
            sent_digest: None,
            live_version: None,
            account,
        };
        // It may have lost the mark meanwhile, or be another object of that name.
        let preconditions = Preconditions {
            uid: Some(live.uid.to_string()),
            resource_version: Some(live.resource_version.to_string()),
        };
        writer
            .delete(context, key, Propagation::Background, &preconditions)
            .await?;
        info!(object = %key, owner = %owner, "owned object deleted");
        self.controller.stats.add_counts(owner, super::count_writes(1));
        let live = writer.read_metadata(account, key).await?;
        Ok(next_release_step(live.as_ref(), uid))
    }

    /// Records an Event that names the objects that stay on clusters without their owner.
    async fn report_orphaned(&self, object: &KubeObject, orphaned: &[ObjectRef]) {
        if orphaned.is_empty() {
            return;
        }
        let note = format!(
            "Let go without deletion, because of {DELETION_POLICY}=Orphan of their Cluster: {}",
            name_objects(orphaned.iter(), MAX_NAMED_OBJECTS)
        );
        self.record_event(object, EventType::Warning, event_reason::ORPHANED, &note)
            .await;
    }
}

/// Checks that a plugin may still write an owned object: whoever may edit the owner may write into the inventory.
fn check_release(plugin: &Plugin, owner: &ObjectRef, owned: &ObjectRef) -> Result<(), String> {
    let mut denied = String::new();
    for verb in [GrantVerb::Create, GrantVerb::Delete, GrantVerb::Apply] {
        let access = Access::Kubernetes {
            verb,
            gvk: &owned.gvk,
            namespace: &owned.namespace,
            cluster: &owned.cluster,
        };
        match plugin.policy.grants.check_access(&access, &owner.namespace) {
            Ok(()) => return Ok(()),
            Err(e) => denied = e.to_string(),
        }
    }
    Err(denied)
}
