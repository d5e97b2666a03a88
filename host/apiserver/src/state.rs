//! The state that all requests share.

use std::net::SocketAddr;
use std::time::Duration;

use crate::api::Api;
use crate::faults::{Counters, Faults};
use crate::tls::Tls;

/// The state that all requests share.
#[derive(Debug)]
pub struct State {
    /// Objects and kinds.
    pub api: Api,
    /// Injected faults.
    pub faults: Faults,
    /// Counters of requests.
    pub counters: Counters,
    /// See [`crate::Options::bookmark_interval`].
    pub bookmark_interval: Duration,
    /// See [`crate::Options::controllers`].
    pub controllers: bool,
    /// Address of the listener.
    pub address: SocketAddr,
    /// Certificate and handshake, if the server speaks HTTPS.
    pub tls: Option<Tls>,
}
