//! Effects of a call: reads for the dependency graph, writes, holds, subscriptions and counts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    kube::{key::ObjectRef, object::KubeObject, scope::Scope},
    schedule::{connection_users::UseClaim, dependencies::ReadDependency},
    upstream::StreamKey,
};

/// Counts of one reconcile, added to those of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EffectCounts {
    /// Writes sent to the API server, Events included.
    pub api_writes: u64,
    /// Requests to upstreams that only read (GET, HEAD, OPTIONS).
    pub upstream_reads: u64,
    /// All other requests to upstreams. Logins are the host's own and are not counted.
    pub upstream_writes: u64,
}

/// The effects of one call, which the reconcile evaluates after it: dependencies to keep, objects to release, status to
/// write.
#[derive(Default)]
pub struct Effects {
    /// Requests sent.
    pub counts: EffectCounts,
    /// Objects and lists that were read. A change of one of them wakes the object.
    pub reads: Vec<ReadDependency>,
    /// Objects that were read, are absent and were not created since, by the scope of the watch that would report them.
    pub absent: HashMap<Scope, BTreeSet<ObjectRef>>,
    /// Objects that were written to the API server.
    pub writes: BTreeSet<ObjectRef>,
    /// Objects that are held.
    pub holds: BTreeSet<ObjectRef>,
    /// Objects on other clusters that the reconciled object owns.
    pub owned: BTreeSet<ObjectRef>,
    /// Objects on other clusters that the reconciled object does not own any more: they are gone.
    pub disowned: BTreeSet<ObjectRef>,
    /// Event streams that are followed.
    pub streams: HashSet<StreamKey>,
    /// Pools of which a permit was requested.
    pub pools: BTreeSet<Box<str>>,
    /// Upstreams and Clusters that are protected for the object, each with a claim until the call has recorded it.
    pub protected: BTreeMap<ObjectRef, UseClaim>,
    /// Leader term in which the object was found to be the API server's newest version; none if it was not compared.
    pub fresh_term: Option<u64>,
    /// The object after the last write of the call to it, a checkpoint or a list of what it uses, which the API server has
    /// accepted for the version before; none without one.
    pub written: Option<Arc<KubeObject>>,
    /// RBAC or admission has refused a request (HTTP 403). No watch reports when that changes, so the object is requeued by
    /// a timer.
    pub forbidden: bool,
}

impl Effects {
    /// Counts a write to the API server. One that was unnecessary, and therefore not sent, counts as none.
    pub fn record_write(&mut self, key: &ObjectRef, sent: bool) {
        if sent {
            self.counts.api_writes += 1;
            self.writes.insert(key.clone());
        }
    }

    /// Counts a request to an upstream.
    pub fn record_request(&mut self, is_read: bool) {
        if is_read {
            self.counts.upstream_reads += 1;
        } else {
            self.counts.upstream_writes += 1;
        }
    }
}
