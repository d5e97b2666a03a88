//! The Ostler operator host runs Kubernetes reconcilers as sandboxed WebAssembly components.
//!
//! Folders are stages of the data flow. Each may use only those below it in this list, and a test
//! (`tests/layout.rs`) keeps it so:
//!
//! ```text
//! cli          commands              admin      status, explain, metrics endpoint
//! host         wires all up          plan       dry runs of a reconciler against live state
//! rollout      plugins from files and objects, preflight
//! messages     subscriptions, message handlers
//! reconcile    one reconcile         replay     runs a component against a recording
//! plugin       registry, canary, health
//! sandbox      engine, capabilities
//! cluster      connections to other clusters
//! effect       writes and events
//! schedule     dispatcher, queue, dependency graph
//! cache        informers, store      leader     election     supply     registries, signatures
//! upstream     HTTP, AMQP clients    recording  of host calls
//! client       API client, write fence, access reviews
//! policy       grants, manifest, RBAC      observe    metrics, logs, traces
//! kube         keys, objects, selectors          contract    WIT bindings, limits, traps
//! ```
//!
//! ```text
//! API server → informer → store → dispatcher (dependencies, queue) → reconcile → writer → API server
//!                                                                       │
//!                                                  engine → component → capabilities → upstreams
//! ```

#[cfg(test)]
mod fuzz;

/// Objects of the Kubernetes API as data: keys, objects, selectors, references, CRDs.
mod kube {
    pub mod backoff;
    pub mod crd;
    pub mod hash;
    pub mod key;
    pub mod object;
    pub mod owned;
    pub mod protection;
    pub mod raw_json;
    pub mod references;
    pub mod scope;
    pub mod secret_view;
    pub mod selector;
    pub mod time;
    pub mod uid;
    pub mod well_known;
}

/// The contract between host and component: bindings, inspection of imports and exports, limits.
mod contract {
    pub mod bindings;
    pub mod host_calls;
    pub mod inspection;
    pub mod limits;
    pub mod memory_budget;
    pub mod message_memory;
    pub mod trap;
}

/// The permissions of a plugin: grants, the manifest in its component, RBAC rules, networks.
mod policy {
    pub mod components;
    pub mod grants;
    pub mod manifest;
    pub mod network;
    pub mod origin;
    pub mod plugin_policy;
    pub mod rbac;
}

/// Metrics that the rest of the host counts into, logs and traces, and the recent log lines of plugins.
mod observe {
    pub mod log_ring;
    pub mod metrics;
    pub mod telemetry;
}

/// Access to the API server: requests, the fence of the leader's writes, reviews of access and tokens.
mod client {
    pub mod access_review;
    pub mod api;
    pub mod breaker;
    pub mod circuit;
    pub mod connection;
    pub mod fence;
    pub mod gate;
    pub mod server_verifier;
    pub mod token_review;
}

/// The shared cache: informers fill the store.
mod cache {
    pub mod informer;
    pub mod store;
}

/// Leader election by a Lease.
mod leader {
    pub mod election;
    pub mod endpoint;
    pub mod lease;
}

/// Scheduling of reconciles: the dependency graph, the work queue and the hot-loop detector.
mod schedule {
    pub mod connection_users;
    pub mod dependencies;
    pub mod dispatcher;
    mod expected_writes;
    pub mod host_lane;
    pub mod hot_loop;
    pub mod permits;
    pub mod queue;
    pub mod small_set;
}

/// The supply of components: OCI registries and signatures.
mod supply {
    pub mod oci;
    pub mod signature;
}

/// Effects on the cluster: writes of objects, and Events.
mod effect {
    pub mod events;
    pub mod writer;
}

mod cluster;
mod recording;
mod upstream;

/// The sandbox of a component: the engine that runs it, the capabilities it calls, and the services these use.
mod sandbox {
    pub mod allocator;
    pub mod capabilities;
    pub mod engine;
    pub mod memory_limit;
    pub mod object_cache;
    pub mod services;
}

mod admin;
mod cli;
mod host;
mod messages;
mod plan;
mod plugin;
mod reconcile;
mod replay;
mod rollout;
mod settings;

pub use cli::main as run;
pub use host::Host;
pub use settings::HostSettings;

/// Insides of the host for the test crates of this repository. No stability is promised.
#[doc(hidden)]
pub mod testing {
    pub use crate::{
        cache::store,
        client::{api, fence},
        contract::{bindings, inspection, limits, memory_budget, trap},
        kube::{backoff, key, object, scope, selector, time},
        leader::{election, lease},
        observe::log_ring,
        policy::{grants, manifest, network, plugin_policy, rbac},
        sandbox::{capabilities, engine},
        schedule::{dispatcher, queue},
        supply::{oci, signature},
    };

    macro_rules! reexport {
        ($($module:ident)*) => {
            $(#[allow(missing_docs)] pub mod $module { pub use crate::$module::*; })*
        };
    }

    reexport!(admin cli plan plugin reconcile recording replay upstream);

    /// The annotations that users set.
    pub use crate::kube::well_known::annotation;

    /// Counters, and the text formats they are scraped in.
    pub mod metrics {
        pub use crate::{
            admin::scrape::{Format, Scraped},
            observe::metrics::*,
        };
    }
}
