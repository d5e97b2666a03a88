//! The state that all requests share.

use std::net::SocketAddr;
use std::time::Duration;

use crate::api::Api;
use crate::faults::{Counters, Faults};
use crate::tls::Tls;

/// What requests share.
#[derive(Debug)]
pub struct State {
    /// Objects and kinds.
    pub api: Api,
    /// Faults on demand.
    pub faults: Faults,
    /// What was asked.
    pub counters: Counters,
    /// See [`crate::Options::bookmark_interval`].
    pub bookmark_interval: Duration,
    /// Where the server listens.
    pub address: SocketAddr,
    /// How it shows who it is, where it speaks HTTPS.
    pub tls: Option<Tls>,
}
