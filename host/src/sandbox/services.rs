//! Services that calls and controllers share, grouped by the stage that provides them.

use std::sync::Arc;

use crate::{
    cache::{informer::Informers, store::Store},
    client::{access_review::AccessReviewer, fence::WriteFence},
    contract::memory_budget::MemoryBudget,
    effect::{events::EventRecorder, writer::ApiWriter},
    kube::scope::NamespaceScope,
    observe::metrics::Metrics,
    recording::RecordingStore,
    sandbox::object_cache::ObjectCache,
    schedule::dispatcher::Dispatcher,
    upstream::{ClientPool, EventStreams, Subscriptions},
};

/// The services of one host. A function that needs one group takes the group, not all of them.
pub struct Services {
    /// The objects of the API server, as the informers have them.
    pub cache: SharedCache,
    /// The work queue and the dependency graph.
    pub dispatcher: Arc<Dispatcher>,
    /// Requests to the API server.
    pub api: ApiAccess,
    /// Requests to upstreams.
    pub upstreams: UpstreamAccess,
    /// The cache that plugins use for each object.
    pub object_cache: ObjectCache,
    /// The memory of all calls together.
    pub memory: Arc<MemoryBudget>,
    /// Recordings of calls, and the clients that follow them.
    pub recordings: Arc<RecordingStore>,
    /// Counters of the host and of its plugins.
    pub metrics: Arc<Metrics>,
    /// The write fence, which is open while this process is the leader.
    pub fence: WriteFence,
}

/// The shared cache: objects of the API server that informers keep current.
pub struct SharedCache {
    /// The objects.
    pub store: Arc<Store>,
    /// The informers that keep the store current.
    pub informers: Arc<Informers>,
    /// The namespaces that this host may read.
    pub namespaces: NamespaceScope,
}

/// Access to the API server beyond the shared cache: writes, uncached reads, access reviews and Events.
pub struct ApiAccess {
    /// Writes and uncached reads.
    pub writer: Arc<ApiWriter>,
    /// Access reviews: they decide which cached objects the service account of a plugin may read.
    pub reviewer: AccessReviewer,
    /// Kubernetes Events.
    pub recorder: EventRecorder,
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
