//! Access to clusters: the host's own, and others that `Cluster` objects describe.
//!
//! ```text
//! Cluster, Secret ──▶ kubeconfig ──▶ connection: client (gate, network policy), informers, writer, access reviews
//!                                         │
//!                                   the one store and the one dependency graph, whose keys name the cluster
//! ```
//!
//! The host connects to a cluster on the leader, when it reconciles the `Cluster`. Calls use the connection that is there,
//! and wait for the `Cluster` to become Ready without one.

mod kubeconfig;
mod object;
mod pool;
pub mod spec;
mod waits;

use std::sync::Arc;

pub use self::{
    object::ClusterObject,
    pool::{ClusterConnectError, ClusterPool, Connection, ConnectionParts},
    waits::{CurrentWait, SlowCalls},
};
pub use crate::kube::key::{cluster_gvk, cluster_object};
use crate::{
    cache::{informer::Informers, store::Store},
    client::access_review::AccessReviewer,
    effect::{events::EventRecorder, writer::ApiWriter},
    kube::scope::NamespaceScope,
};

/// Access to one cluster.
#[derive(Clone)]
pub struct ClusterAccess {
    /// Its part of the shared cache.
    pub cache: Arc<SharedCache>,
    /// Its API server.
    pub api: Arc<ApiAccess>,
}

/// The shared cache: objects of one cluster that informers keep current.
pub struct SharedCache {
    /// The objects of all clusters.
    pub store: Arc<Store>,
    /// The informers that keep the store current.
    pub informers: Arc<Informers>,
    /// The namespaces that this host may read.
    pub namespaces: NamespaceScope,
}

/// Access to the API server beyond the shared cache: writes, uncached reads, access reviews and Events.
pub struct ApiAccess {
    /// The cluster; empty for the host's own.
    pub cluster: Arc<str>,
    /// Writes and uncached reads.
    pub writer: Arc<ApiWriter>,
    /// Access reviews: they decide which cached objects the service account of a plugin may read.
    pub reviewer: AccessReviewer,
    /// Kubernetes Events.
    pub recorder: EventRecorder,
    /// Plugins act as their service accounts. False for another cluster where all of them act as one user.
    pub acts_as_plugins: bool,
}
