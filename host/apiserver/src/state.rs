//! The state that all requests share.

use std::net::SocketAddr;
use std::time::Duration;

use crate::api::RequestHandler;
use crate::faults::{FaultInjector, VerbCounters};
use crate::tls::ServerTls;

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
