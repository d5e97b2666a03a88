//! Home clusters of plugins other than the host's own: whether the objects there can be reconciled, and where they are
//! written.
//!
//! The host reconciles them while it is connected to the cluster. Without a connection they wait, which is no error, and only
//! the `Plugin` can show it: their status is on the cluster that does not respond.

use std::{sync::Arc, time::Duration};

use tracing::debug;

use super::{Controller, ReconcileOutcome};
use crate::{
    client::api::ApiError,
    cluster::cluster_object,
    kube::{
        key::{ObjectRef, cluster_name},
        object::KubeObject,
        scope::Projection,
        well_known::plugin_reason,
    },
    plugin::{self as plugins, Plugin},
    sandbox::services::ApiAccess,
    schedule::{dependencies::ReadDependency, dispatcher::Cause, queue::Priority},
};

/// Limit of the time for the first list of a kind of a home cluster.
const SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// The reason for which a home cluster cannot be used, for a condition.
pub(super) struct ClusterProblem {
    pub reason: &'static str,
    pub message: String,
}

impl Controller {
    /// The API server of the cluster of an object. The error is that of a request which found no connection.
    pub(super) fn find_api(&self, key: &ObjectRef) -> Result<Arc<ApiAccess>, ApiError> {
        let api = self.services.find_api(&key.cluster);
        api.ok_or_else(|| ApiError::Unreachable(format!("Cluster {} is not connected", key.cluster)))
    }

    /// The connection to a cluster works, as far as its last requests show. The host's own always counts as working.
    fn is_reachable(&self, cluster: &str) -> bool {
        if cluster.is_empty() {
            return true;
        }
        let connection = self.services.clusters.find(cluster);
        connection.is_some_and(|c| c.is_verified() && c.outage().is_none())
    }

    /// Checks that the cluster of an object can be used. The error is the outcome of a reconcile that waits for it: the
    /// recovery of the `Cluster` wakes the object.
    pub(super) fn check_connection(&self, key: &ObjectRef) -> Result<(), ReconcileOutcome> {
        if self.is_reachable(&key.cluster) {
            return Ok(());
        }
        let Some(cluster) = cluster_object(&key.cluster) else {
            return Ok(());
        };
        // The dependency is recorded before the second look, so that no recovery is missed.
        let dispatcher = &self.services.dispatcher;
        dispatcher.record_read(key, ReadDependency::Object(cluster, Projection::Full));
        if self.is_reachable(&key.cluster) {
            return Ok(());
        }
        let again = self.time_after(self.settings.wait_interval);
        Err(ReconcileOutcome::wait(again, Cause::Retry))
    }

    /// Reads an object of another home cluster that is not cached. It is gone only if its kind has been listed through the
    /// connection of now: that of another term, or another server, took its cache along.
    pub(super) async fn read_home_object(
        &self,
        key: &ObjectRef,
    ) -> Result<Option<Arc<KubeObject>>, ReconcileOutcome> {
        let services = &self.services;
        self.check_connection(key)?;
        if let Some(plugin) = self.registry.find_by_kind(&key.gvk)
            && let Some(kind) = plugin
                .kind(&key.gvk)
                .filter(|kind| kind.is_of_cluster(&key.cluster))
        {
            for scope in kind.scopes(&services.cache.namespaces) {
                if let Err(why) = services.wait_synced(&scope, SYNC_TIMEOUT).await {
                    debug!(object = %key, error = why, "the kind is not listed yet");
                    let again = self.time_after(SYNC_TIMEOUT);
                    return Err(ReconcileOutcome::wait(again, Cause::Retry));
                }
            }
        }
        Ok(services.cache.store.get(key, Projection::Full))
    }

    /// The problem of the home cluster of a plugin; none while its objects are reconciled.
    pub(super) fn find_cluster_problem(&self, plugin: &Plugin) -> Option<ClusterProblem> {
        let cluster = plugin.home_cluster();
        let key = cluster_object(cluster)?;
        let Some(object) = self.services.cache.store.get(&key, Projection::Full) else {
            return Some(ClusterProblem {
                reason: plugin_reason::CLUSTER_NOT_FOUND,
                message: format!(
                    "Cluster {cluster} of spec.cluster does not exist, so that its objects wait: create it, with the \
                     kubeconfig of the cluster in a Secret"
                ),
            });
        };
        let state = object.readiness();
        if self.is_reachable(cluster) && state.ready {
            return None;
        }
        let outage = self.services.clusters.find(cluster).and_then(|c| c.outage());
        let why = match outage {
            Some(why) => why,
            None if state.ready || state.message.is_empty() => "the host is about to connect".to_owned(),
            None => format!("{}: {}", state.reason, state.message),
        };
        Some(ClusterProblem {
            reason: plugin_reason::CLUSTER_NOT_READY,
            message: format!(
                "Cluster {cluster} of spec.cluster is not ready, so that its objects wait: {why}. They are reconciled when the \
                 conditions of the Cluster say Ready=True"
            ),
        })
    }

    /// Queues the `Plugin` objects that show the state of a `Cluster`.
    pub(super) fn update_plugins_at_home(&self, cluster: &ObjectRef) {
        let name = cluster_name(&cluster.namespace, &cluster.name);
        let mut serving = self.registry.serving();
        serving.retain(|plugin| *plugin.home_cluster() == name);
        for plugin in serving {
            let key = ObjectRef::new(plugins::kind(), "", plugin.name());
            let dispatcher = &self.services.dispatcher;
            dispatcher.enqueue(&key, Priority::Normal, Cause::StatusStale);
        }
    }
}
