//! The environment of one test.

mod crds;
mod objects;
mod wait;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use kube::Client;
use ostler::testing::{
    admin::Admin,
    api::ApiClient,
    dispatcher::Cause,
    engine::CompileCache,
    grants::Grants,
    key::{Gvk, ObjectRef},
    selector::LabelSelector,
};
use ostler::{Host, HostSettings};
use serde_json::json;
use tempfile::TempDir;

pub use self::wait::find_condition;
use crate::{component::compiled_dir, logs, rights::HostAccount, server::Concourse};

/// Grants the tests run with: those of deploy/grants.yaml for the packs and the examples, with servers on loopback and the
/// identity of the host.
pub const PACK_GRANTS: &str = include_str!("../../grants.yaml");

/// Grants of the test plugins, below `plugins:`.
const TEST_GRANTS: &str = "
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes:
    - {kinds: [ConfigMap, Secret], verbs: [get, list, apply, create, patch, delete, hold], namespaces: ['*']}
    - {kinds: [ConfigMap], verbs: [get, list, apply, create, patch, delete], namespaces: ['*'], clusters: ['Same/*']}
    - {group: apps, kinds: [Deployment], verbs: [get]}
    - {group: tests.ostler.dev, kinds: [Probe, SelectedProbe], verbs: [get, list, hold], namespaces: ['*']}
    upstreams: [{namespaces: ['*']}]
    readSecrets: true
    events: true
  hostile:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
";

/// The environment of one test: its own namespace, Concourse and plugin directory on an API server that it owns or
/// shares.
pub struct Lab {
    /// The embedded API server, unless the test runs on the real control plane.
    pub embedded: Option<ostler_apiserver::EmbeddedServer>,
    /// A client of the API server.
    pub client: Client,
    /// Path of a kubeconfig for the API server.
    pub kubeconfig: PathBuf,
    /// Namespace of this test.
    pub namespace: String,
    /// Concourse of this test.
    pub concourse: Concourse,
    /// The host, while one runs in this process.
    pub host: Option<Host>,
    /// Settings of the next host to be started.
    pub settings: HostSettings,
    /// The service account of the host, if it has one.
    pub(crate) account: Option<HostAccount>,
    directory: TempDir,
    /// True once the test has locked the Plugin objects of a shared server.
    pub(crate) has_plugin_lock: AtomicBool,
}

impl Lab {
    /// Starts a lab on an embedded API server of its own.
    pub async fn embedded() -> Self {
        Self::embedded_with(ostler_apiserver::ServerOptions::default()).await
    }

    /// Starts a lab on an embedded API server with these options.
    pub async fn embedded_with(options: ostler_apiserver::ServerOptions) -> Self {
        let server = crds::start_embedded(options).await;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).expect("kubeconfig written");
        Self::with_api_server(Some(server), kubeconfig, directory).await
    }

    /// Starts a lab on the real control plane that `cargo xtask test real` started.
    pub async fn real() -> Self {
        let kubeconfig = std::env::var("OSTLER_TEST_KUBECONFIG")
            .expect("OSTLER_TEST_KUBECONFIG names no kubeconfig: run `cargo xtask test real`");
        Self::with_shared_server(kubeconfig.into()).await
    }

    /// Starts a lab on the cluster with a node that `cargo xtask test node` started.
    pub async fn node() -> Self {
        let kubeconfig = std::env::var("OSTLER_TEST_NODE_KUBECONFIG")
            .expect("OSTLER_TEST_NODE_KUBECONFIG names no kubeconfig: run `cargo xtask test node`");
        Self::with_shared_server(kubeconfig.into()).await
    }

    /// Starts another lab: on an embedded API server of its own, or on the real one of this lab.
    pub async fn another(&self) -> Self {
        if self.embedded.is_some() {
            Self::embedded().await
        } else {
            Self::with_shared_server(self.kubeconfig.clone()).await
        }
    }

    async fn with_shared_server(kubeconfig: PathBuf) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self::with_api_server(None, kubeconfig, directory).await
    }

    async fn with_api_server(
        embedded: Option<ostler_apiserver::EmbeddedServer>,
        kubeconfig: PathBuf,
        directory: TempDir,
    ) -> Self {
        logs::capture_logs();
        let client = ostler::testing::cli::create_client(Some(kubeconfig.clone()))
            .await
            .expect("a client");
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!(
            "t-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let concourse = Concourse::start(&namespace).await;
        let plugins = directory.path().join("plugins");
        std::fs::create_dir(&plugins).expect("plugin directory");
        let settings = HostSettings {
            plugins,
            grants: Grants::parse(&[PACK_GRANTS, TEST_GRANTS].concat(), "grants.yaml")
                .expect("the tests' grants parse"),
            // The Concourse simulator listens on loopback.
            network: vec![ostler::testing::network::parse_network("127.0.0.1").expect("an address")],
            own_namespace: Some(namespace.clone()),
            namespaces: vec![namespace.clone()],
            // Other tests may use the same cluster.
            plugin_selector: Some(LabelSelector::parse(&format!("lab={namespace}")).expect("a selector")),
            workers: 8,
            cache: Some(CompileCache {
                directory: compiled_dir(),
                compiler: None,
            }),
            ..HostSettings::default()
        };
        let lab = Self {
            embedded,
            client,
            kubeconfig,
            namespace,
            concourse,
            host: None,
            settings,
            account: None,
            directory,
            has_plugin_lock: AtomicBool::new(false),
        };
        if lab.embedded.is_none() {
            crds::install_on_real_server(&lab.client).await;
        }
        lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lab.namespace}}))
            .await;
        lab
    }

    /// Applies the kinds of all tests to the API server that they share, after this test has deleted some.
    pub async fn restore_kinds(&self) {
        crds::install_crds(&self.client).await;
    }

    /// Directory of this test, removed when the lab is dropped.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a host in this process.
    pub async fn start_host(&mut self) -> &Host {
        self.start_host_with(self.host_client()).await
    }

    /// Starts a host in this process that uses this client.
    pub async fn start_host_with(&mut self, client: Client) -> &Host {
        let host = Host::start(client, self.settings.clone()).expect("the host starts");
        let host = self.host.insert(host);
        host.wait_loaded().await.expect("the plugins are loaded");
        host
    }

    /// Returns the address the API server listens on.
    pub fn api_address(&self) -> SocketAddr {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig");
        let (_, rest) = text.split_once("://").expect("a server");
        let address: String = rest
            .chars()
            .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
            .collect();
        address.parse().expect("an address")
    }

    /// Creates a client that reaches the API server at another address, such as a proxy's.
    pub async fn client_at(&self, address: SocketAddr) -> Client {
        let path = self.write_kubeconfig("elsewhere", address);
        ostler::testing::cli::create_client(Some(path))
            .await
            .expect("a client")
    }

    /// Writes `NAME.kubeconfig`, which reaches the API server at another address.
    pub fn write_kubeconfig(&self, name: &str, address: SocketAddr) -> PathBuf {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig");
        let path = self.path().join(format!("{name}.kubeconfig"));
        let elsewhere = text.replace(&self.api_address().to_string(), &address.to_string());
        std::fs::write(&path, elsewhere).expect("written");
        path
    }

    /// Returns the running host.
    pub fn host(&self) -> &Host {
        self.host.as_ref().expect("a host runs")
    }

    /// Returns the admin service of the running host.
    pub fn admin(&self) -> Admin {
        let client = ApiClient::new(self.client.clone());
        Admin::new(self.host(), self.settings.workers, client)
    }

    /// Returns the key of an object in this test's namespace.
    pub fn key(&self, gvk: &Gvk, name: &str) -> ObjectRef {
        ObjectRef::new(gvk.clone(), &self.namespace, name)
    }

    /// Returns the causes of all reconciles of an object so far.
    pub fn wake_causes(&self, gvk: &Gvk, name: &str) -> Vec<Cause> {
        self.host().causes(&self.key(gvk, name))
    }

    /// Counts the writes the host has sent to the API server so far.
    pub fn api_writes(&self) -> u64 {
        self.host()
            .stats()
            .all_objects()
            .iter()
            .map(|f| f.api_writes)
            .sum()
    }
}
