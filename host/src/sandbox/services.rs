//! Services that calls and controllers share, grouped by the stage that provides them.

use std::{sync::Arc, time::Duration};

pub use crate::cluster::{ApiAccess, ClusterAccess, SharedCache};
use crate::{
    cache::informer::SyncState,
    client::{access_review::AccessReviewer, fence::WriteFence},
    cluster::{ClusterPool, SlowCalls},
    contract::memory_budget::MemoryBudget,
    effect::{events::EventRecorder, writer::ApiWriter},
    kube::{
        key::{Gvk, own_cluster},
        scope::{Projection, Scope},
    },
    observe::{log_ring::LogRing, metrics::Metrics},
    recording::RecordingStore,
    sandbox::object_cache::ObjectCache,
    schedule::{connection_users::ConnectionUsers, dispatcher::Dispatcher},
    upstream::{ClientPool, EventStreams, Subscriptions},
};

/// The services of one host. A function that needs one group takes the group, not all of them.
pub struct Services {
    /// The objects of the API server, as the informers have them.
    pub cache: Arc<SharedCache>,
    /// The work queue and the dependency graph.
    pub dispatcher: Arc<Dispatcher>,
    /// Requests to the API server.
    pub api: Arc<ApiAccess>,
    /// Connections to other clusters.
    pub clusters: ClusterPool,
    /// The objects that need Upstreams and Clusters for their cleanup.
    pub connection_users: Arc<ConnectionUsers>,
    /// Calls of plugins that have been waiting for other clusters for a while.
    pub slow_calls: Arc<SlowCalls>,
    /// Requests to upstreams.
    pub upstreams: UpstreamAccess,
    /// The cache that plugins use for each object.
    pub object_cache: ObjectCache,
    /// The memory of all calls together.
    pub memory: Arc<MemoryBudget>,
    /// Recordings of calls, and the clients that follow them.
    pub recordings: Arc<RecordingStore>,
    /// The recent log lines of plugins.
    pub logs: Arc<LogRing>,
    /// Counters of the host and of its plugins.
    pub metrics: Arc<Metrics>,
    /// The write fence, which is open while this process is the leader.
    pub fence: WriteFence,
}

/// What [`Services`] need to be made; the rest of them is empty at first.
pub struct ServiceParts {
    /// The objects of the host's own cluster.
    pub cache: SharedCache,
    /// Writes to it.
    pub writer: ApiWriter,
    /// Access reviews of it.
    pub reviewer: AccessReviewer,
    /// The work queue and the dependency graph.
    pub dispatcher: Arc<Dispatcher>,
    /// Connections to other clusters.
    pub clusters: ClusterPool,
    /// Requests to upstreams.
    pub upstreams: UpstreamAccess,
    /// The memory of all calls together.
    pub memory: Arc<MemoryBudget>,
    /// The write fence.
    pub fence: WriteFence,
}

impl Services {
    /// Services without metrics, recordings, log lines and users of connections so far.
    pub fn new(parts: ServiceParts) -> Self {
        Self {
            cache: Arc::new(parts.cache),
            api: Arc::new(ApiAccess {
                cluster: Arc::default(),
                acts_as_plugins: true,
                reviewer: parts.reviewer,
                writer: Arc::new(parts.writer),
                recorder: EventRecorder::default(),
            }),
            dispatcher: parts.dispatcher,
            clusters: parts.clusters,
            upstreams: parts.upstreams,
            memory: parts.memory,
            fence: parts.fence,
            connection_users: Arc::default(),
            slow_calls: Arc::default(),
            object_cache: ObjectCache::default(),
            recordings: Arc::default(),
            logs: Arc::default(),
            metrics: Arc::default(),
        }
    }

    /// Access to the host's own cluster.
    pub fn home(&self) -> ClusterAccess {
        ClusterAccess {
            cache: self.cache.clone(),
            api: self.api.clone(),
        }
    }

    /// Access to a cluster, if there is a connection to it.
    pub fn find_access(&self, cluster: &str) -> Option<ClusterAccess> {
        match cluster {
            "" => Some(self.home()),
            cluster => Some(self.clusters.find(cluster)?.access.clone()),
        }
    }

    /// The API server of a cluster, if there is a connection to it.
    pub fn find_api(&self, cluster: &str) -> Option<Arc<ApiAccess>> {
        match cluster {
            "" => Some(self.api.clone()),
            cluster => Some(self.clusters.find(cluster)?.access.api.clone()),
        }
    }

    /// The cache of a cluster, if there is a connection to it.
    pub fn find_cache(&self, cluster: &str) -> Option<Arc<SharedCache>> {
        match cluster {
            "" => Some(self.cache.clone()),
            cluster => Some(self.clusters.find(cluster)?.access.cache.clone()),
        }
    }

    /// Waits for the first list of a scope, and returns the scope that serves it.
    ///
    /// # Errors
    /// The list fails or takes longer, or there is no connection to the cluster.
    pub async fn wait_synced(&self, scope: &Scope, timeout: Duration) -> Result<Scope, String> {
        let Some(cache) = self.find_cache(&scope.cluster) else {
            return Err(format!("Cluster {} is not connected", scope.cluster));
        };
        cache.informers.wait_synced(scope, timeout).await
    }

    /// Waits for the first list of a kind of the host's own cluster in a namespace (empty: all), and returns the scope that serves
    /// it.
    ///
    /// # Errors
    /// The list fails or takes longer.
    pub async fn wait_kind_synced(
        &self,
        gvk: &Gvk,
        namespace: &str,
        timeout: Duration,
    ) -> Result<Scope, String> {
        let namespaces = &self.cache.namespaces;
        let scope = namespaces.list_scope(gvk, &own_cluster(), namespace, None, Projection::Full);
        self.wait_synced(&scope, timeout).await
    }

    /// The watched scopes of all clusters, each with the progress of its first list.
    pub fn list_watches(&self) -> Vec<(Scope, SyncState)> {
        let mut watches = self.cache.informers.scopes();
        for connection in self.clusters.list() {
            watches.extend(connection.access.cache.informers.scopes());
        }
        watches
    }

    /// The writers to all clusters.
    pub fn writers(&self) -> impl Iterator<Item = Arc<ApiWriter>> {
        let others = self.clusters.list().into_iter();
        std::iter::once(self.api.writer.clone()).chain(others.map(|c| c.access.api.writer.clone()))
    }
}

/// Access to upstreams.
pub struct UpstreamAccess {
    /// HTTP clients, one for each version of an Upstream and its Secrets.
    pub clients: ClientPool,
    /// Event streams that are kept open for the objects that subscribe to them.
    pub streams: Arc<EventStreams>,
    /// The queues that the host consumes for plugins.
    pub subscriptions: Arc<Subscriptions>,
}
