//! The Ostler operator host: reconcilers as WebAssembly components.
//!
//! The modules follow the way of the data:
//!
//! ```text
//! API server → watch → store → router (dependencies, queue) → reconcile → effects → API server
//!                                                               │
//!                                          engine → component → capabilities → upstreams
//! ```
//!
//! `dependencies`, `queue`, `selector`, `conditions` and `grants` are pure;
//! `cluster`, `watch`, `effects`, `upstream` and `reload` do the I/O.

pub mod key;
pub mod object;
pub mod scope;
pub mod selector;

pub mod cluster;
pub mod store;
pub mod watch;

pub mod dependencies;
pub mod few;
pub mod hotloop;
pub mod queue;
pub mod router;

pub mod bindings;
pub mod capabilities;
pub mod contract;
pub mod engine;
pub mod grants;
pub mod oci;
pub mod plugin;
pub mod rbac;
pub mod reload;
pub mod replay;
pub mod signature;
pub mod tape;
pub mod upstream;

pub mod conditions;
pub mod crd;
pub mod effects;
pub mod events;
pub mod reconcile;
pub mod references;

pub mod election;
pub mod gate;
pub mod lease;
pub mod lifecycle;
pub mod limits;
pub mod manifest;

pub mod admin;
pub mod cli;
pub mod facts;
#[cfg(test)]
mod fuzz;
pub mod host;
pub mod memo;
pub mod metrics;
pub mod plan;
pub mod settings;
pub mod telemetry;
pub mod time;
