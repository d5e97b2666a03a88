//! How a host runs.

use std::{path::PathBuf, time::Duration};

use crate::{
    contract::limits::Limits,
    kube::selector::Selector,
    leader::lease,
    policy::{grants::Grants, network::NetworkGrant},
    recording,
    sandbox::engine::{Cache, Inspector},
    supply::oci,
};

/// How a host runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of components (`NAME.wasm`) and their configurations (`NAME.yaml`).
    pub plugins: PathBuf,
    /// Which `Plugin` objects are followed: those with these labels, all without.
    pub plugin_selector: Option<Selector>,
    /// Registries (`HOST:PORT`) that are spoken to in plain HTTP.
    pub plain_http: Vec<String>,
    /// What plugins may do.
    pub grants: Grants,
    /// The file they are from: when it changes they do.
    pub grants_file: Option<PathBuf>,
    /// Addresses that upstreams may have besides public ones and those of the grants.
    pub network: Vec<ipnet::IpNet>,
    /// Namespaces to be confined to; empty for the whole cluster.
    pub namespaces: Vec<String>,
    /// Reconciles at the same time.
    pub workers: u32,
    /// What one call may use.
    pub limits: Limits,
    /// Interval of outcomes that poll without saying how often.
    pub poll: Duration,
    /// How often an object that waits looks again by itself.
    pub yield_every: Duration,
    /// After this long a deletion that is stuck says what can be done.
    pub deletion_deadline: Duration,
    /// First and longest delay between failing attempts.
    pub backoff: (Duration, Duration),
    /// How long a watch that nobody needs any more is kept.
    pub linger: Duration,
    /// Where compiled code is kept, and who makes it; none compiles at each start, in this process.
    pub cache: Option<Cache>,
    /// Host and port of the API server, for the metrics.
    pub api_server: String,
    /// Campaigns for leadership; none leads always.
    pub election: Option<lease::Settings>,
    /// Which reconciles are recorded.
    pub record: recording::Settings,
    /// Looks at the memory of components after each call. For tests.
    pub inspect: Option<Inspector>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            plugins: PathBuf::from("plugins"),
            plugin_selector: None,
            plain_http: Vec::new(),
            grants: Grants::default(),
            grants_file: None,
            network: Vec::new(),
            namespaces: Vec::new(),
            workers: 16,
            limits: Limits::default(),
            poll: Duration::from_secs(300),
            yield_every: Duration::from_secs(30),
            deletion_deadline: Duration::from_secs(600),
            backoff: (Duration::from_millis(5), Duration::from_secs(1000)),
            linger: Duration::from_secs(60),
            cache: None,
            api_server: String::new(),
            election: None,
            record: recording::Settings::default(),
            inspect: None,
        }
    }
}

impl Settings {
    /// The addresses that upstreams may have besides public ones.
    pub(crate) fn allowed(&self, grants: &Grants) -> NetworkGrant {
        let mut grant = grants.network.clone();
        grant.allow.extend(&self.network);
        grant
    }

    /// Where components are pulled from, and kept.
    pub(crate) fn registries(&self) -> oci::Store {
        let directory = self.cache.as_ref().map(|c| c.directory.join("components"));
        oci::Store::new(directory, oci::Limits::default()).with_plain_http(self.plain_http.clone())
    }
}
