//! The state that all requests share.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::faults::{FaultInjector, VerbCounters};
use crate::registry::KindRegistry;
use crate::storage::Storage;
use crate::tls::ServerTls;

/// Objects and kinds, and the verbs on them.
#[derive(Debug)]
pub struct RequestHandler {
    /// Objects.
    pub storage: Storage,
    /// Kinds.
    pub registry: KindRegistry,
    /// Number of addresses that were allocated.
    pub allocated: AtomicU32,
}

/// The state that all requests share.
#[derive(Debug)]
pub struct ServerState {
    /// Objects and kinds.
    pub api: RequestHandler,
    /// Injected faults.
    pub faults: FaultInjector,
    /// Counters of requests.
    pub counters: VerbCounters,
    /// See [`crate::ServerOptions::bookmark_interval`].
    pub bookmark_interval: Duration,
    /// See [`crate::ServerOptions::controllers`].
    pub controllers: bool,
    /// Address of the listener.
    pub address: SocketAddr,
    /// Certificate and handshake, if the server speaks HTTPS.
    pub tls: Option<ServerTls>,
}
