//! Settings of a host.

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "dev")]
use crate::sandbox::engine::FunctionCache;
use crate::{
    cache::informer,
    contract::limits::PluginLimits,
    kube::{backoff::Backoff, selector::LabelSelector},
    leader::lease,
    policy::{grants::Grants, network::NetworkGrant},
    recording,
    sandbox::engine::{CompileCache, Inspector},
    schedule::queue,
    supply::oci,
};

/// Settings of a host, from the command line.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Directory of components (`NAME.wasm`) and their configurations (`NAME.yaml`).
    pub plugins: PathBuf,
    /// Label selector of the `Plugin` objects that apply to this host; all without.
    pub plugin_selector: Option<LabelSelector>,
    /// Another host serves the cluster: this one loads no `Plugin` object, protects no RoleBinding, and connects only to the Upstreams
    /// and Clusters that its own plugins use.
    pub shares_cluster: bool,
    /// OCI registries (`HOST:PORT`) that are reached over plain HTTP.
    pub plain_http: Vec<String>,
    /// Grants of the plugins in the plugin directory.
    pub grants: Grants,
    /// File that the grants were read from. It is read again when it changes.
    pub grants_file: Option<PathBuf>,
    /// Refuses plugins without a service account of their own.
    pub require_service_account: bool,
    /// Networks that upstreams may be in besides public ones and those of the grants.
    pub network: Vec<ipnet::IpNet>,
    /// Namespace of the host, for the Secret with the key of digests; without it each process has a random key.
    pub own_namespace: Option<String>,
    /// Namespaces that the host is confined to; empty for the whole cluster.
    pub namespaces: Vec<String>,
    /// Number of concurrent reconciles of one plugin.
    pub workers: u32,
    /// Bytes that all running calls may hold together; none for half of the memory that the process may have.
    pub memory_budget: Option<usize>,
    /// Limits of one call into a component.
    pub limits: PluginLimits,
    /// Interval of reconciles whose outcome is `poll` without an interval.
    pub poll_interval: Duration,
    /// Interval in which an object that waits for a change is reconciled without one.
    pub wait_interval: Duration,
    /// Time after which the status of a blocked deletion names the remedies.
    pub deletion_deadline: Duration,
    /// Delays between failing reconciles of an object.
    pub backoff: Backoff,
    /// Backoff of failed lists and watches of the API server.
    pub watch_backoff: Backoff,
    /// Time without an event or bookmark after which the connection of a watch counts as dead.
    pub watch_idle_timeout: Duration,
    /// Time for which a watch is kept after the last reconciler that needed it.
    pub watch_linger: Duration,
    /// Time without a call after which the code of a component is unloaded; zero never unloads it.
    pub unload_after: Duration,
    /// Cache of compiled components, and the process that compiles them; none compiles at each start, in this process.
    pub cache: Option<CompileCache>,
    /// Cache of compiled functions, in the place of `cache`, for the sessions of authors.
    #[cfg(feature = "dev")]
    pub functions: Option<FunctionCache>,
    /// Host and port of the API server, as a metric label.
    pub api_server: String,
    /// Leader election; without it the host always leads.
    pub election: Option<lease::ElectionSettings>,
    /// Selection of the reconciles that are recorded.
    pub record: recording::RecordingSettings,
    /// Callback with the memory of a component after each call, for tests.
    pub inspect: Option<Inspector>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            plugins: PathBuf::from("plugins"),
            plugin_selector: None,
            shares_cluster: false,
            plain_http: Vec::new(),
            grants: Grants::default(),
            grants_file: None,
            require_service_account: false,
            network: Vec::new(),
            own_namespace: None,
            namespaces: Vec::new(),
            workers: 16,
            memory_budget: None,
            limits: PluginLimits::default(),
            poll_interval: Duration::from_secs(300),
            wait_interval: Duration::from_secs(30),
            deletion_deadline: Duration::from_secs(600),
            watch_backoff: informer::RETRY_BACKOFF,
            watch_idle_timeout: informer::IDLE_TIMEOUT,
            backoff: queue::RETRY_BACKOFF,
            watch_linger: Duration::from_secs(60),
            unload_after: Duration::from_secs(600),
            cache: None,
            #[cfg(feature = "dev")]
            functions: None,
            api_server: String::new(),
            election: None,
            record: recording::RecordingSettings::default(),
            inspect: None,
        }
    }
}

impl HostSettings {
    /// The networks that upstreams may be in besides public ones.
    pub(crate) fn allowed_networks(&self, grants: &Grants) -> NetworkGrant {
        let mut grant = grants.network.clone();
        grant.allow.extend(&self.network);
        grant
    }

    /// The client of OCI registries, with its cache of components.
    pub(crate) fn component_store(&self) -> oci::ComponentStore {
        let directory = self.cache.as_ref().map(|c| c.directory.join("components"));
        oci::ComponentStore::new(directory, oci::PullLimits::default())
            .with_plain_http(self.plain_http.clone())
    }
}
