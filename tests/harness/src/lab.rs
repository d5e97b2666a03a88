//! One test's world.

mod objects;
mod wait;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use kube::Client;
use ostler::testing::{
    admin::Admin,
    dispatcher::Cause,
    engine::Cache,
    grants::Grants,
    key::{Gvk, ObjectRef},
    selector::Selector,
};
use ostler::{Host, Settings};
use serde_json::json;
use tempfile::TempDir;

pub use self::wait::condition;
use crate::{component::workspace, logs, server::Concourse};

/// The grants the tests run with: what deploy/grants.yaml gives the packs, and the examples'.
pub const GRANTS: &str = include_str!("../../../deploy/grants.yaml");

/// What the probe may do, below `plugins:`.
const PROBE_GRANTS: &str = "
  probe:
    kubernetes:
    - {kinds: [ConfigMap, Secret], verbs: [get, list, apply, create, delete, hold]}
    - {group: tests.ostler.dev, kinds: [Probe], verbs: [get, list, hold]}
    secretsAreReadable: true
    events: true
";

/// One test's world: its own namespace, simulator and plugin directory.
pub struct Lab {
    /// Set where the API server is the embedded one.
    pub embedded: Option<ostler_apiserver::Server>,
    /// A client of the API server.
    pub client: Client,
    /// Path of its kubeconfig.
    pub kubeconfig: PathBuf,
    /// The namespace of this test.
    pub namespace: String,
    /// Concourse.
    pub concourse: Concourse,
    /// The host, while one runs in this process.
    pub host: Option<Host>,
    /// How the next host runs.
    pub settings: Settings,
    directory: TempDir,
}

impl Lab {
    /// A lab on an embedded API server of its own.
    pub async fn embedded() -> Self {
        Self::embedded_with(ostler_apiserver::Options::default()).await
    }

    /// The same with an API server started otherwise.
    pub async fn embedded_with(options: ostler_apiserver::Options) -> Self {
        let server = ostler_apiserver::Server::start(options)
            .await
            .expect("the embedded API server starts");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).expect("kubeconfig written");
        Self::on(Some(server), kubeconfig, directory).await
    }

    /// A lab on the real control plane that `cargo xtask test real` started.
    pub async fn real() -> Self {
        let kubeconfig = std::env::var("OSTLER_TEST_KUBECONFIG")
            .expect("OSTLER_TEST_KUBECONFIG names no kubeconfig: run `cargo xtask test real`");
        Self::on(
            None,
            kubeconfig.into(),
            tempfile::tempdir().expect("a temporary directory"),
        )
        .await
    }

    async fn on(embedded: Option<ostler_apiserver::Server>, kubeconfig: PathBuf, directory: TempDir) -> Self {
        logs::capture();
        let client = ostler::testing::cli::client(Some(kubeconfig.clone()))
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
        let settings = Settings {
            plugins,
            grants: Grants::parse(&[GRANTS, PROBE_GRANTS].concat(), "grants.yaml")
                .expect("the tests' grants parse"),
            // The simulator runs here.
            network: vec![ostler::testing::network::network("127.0.0.1").expect("an address")],
            namespaces: vec![namespace.clone()],
            // The cluster may be shared.
            plugin_selector: Some(Selector::parse(&format!("lab={namespace}")).expect("a selector")),
            workers: 8,
            cache: Some(Cache {
                directory: workspace().join("target/compiled"),
                compiler: None,
            }),
            ..Settings::default()
        };
        let lab = Self {
            embedded,
            client,
            kubeconfig,
            namespace,
            concourse,
            host: None,
            settings,
            directory,
        };
        let crds = std::fs::read_dir(workspace().join("crds")).expect("crds/");
        let crds = crds.map(|entry| entry.expect("an entry").path());
        let ours = ["hostile", "lifecycle", "probe"];
        for path in crds.chain(ours.map(|test| workspace().join(format!("tests/{test}/crd.yaml")))) {
            lab.apply_text(&std::fs::read_to_string(&path).expect("a CRD"))
                .await;
        }
        lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lab.namespace}}))
            .await;
        lab.established().await;
        lab
    }

    /// The directory of this test; gone with it.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a host in this process.
    pub async fn start_host(&mut self) -> &Host {
        self.start_host_with(self.client.clone()).await
    }

    /// Starts a host in this process that reaches the API server by this client.
    pub async fn start_host_with(&mut self, client: Client) -> &Host {
        let host = Host::start(client, self.settings.clone())
            .await
            .expect("the host starts");
        self.host.insert(host)
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig");
        let (_, rest) = text.split_once("://").expect("a server");
        let address: String = rest
            .chars()
            .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
            .collect();
        address.parse().expect("an address")
    }

    /// A client that reaches the API server by another address.
    pub async fn client_at(&self, address: SocketAddr) -> Client {
        let path = self.kubeconfig_at("elsewhere", address);
        ostler::testing::cli::client(Some(path)).await.expect("a client")
    }

    /// Writes `NAME.kubeconfig`, which reaches the API server by another address.
    pub fn kubeconfig_at(&self, name: &str, address: SocketAddr) -> PathBuf {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig");
        let path = self.path().join(format!("{name}.kubeconfig"));
        let elsewhere = text.replace(&self.address().to_string(), &address.to_string());
        std::fs::write(&path, elsewhere).expect("written");
        path
    }

    /// The running host.
    pub fn host(&self) -> &Host {
        self.host.as_ref().expect("a host runs")
    }

    /// What answers people about the running host.
    pub fn admin(&self) -> Admin {
        let host = self.host();
        Admin {
            services: host.services().clone(),
            registry: host.registry().clone(),
            ledger: host.ledger().clone(),
            workers: self.settings.workers,
        }
    }

    /// Names an object of this test's namespace.
    pub fn key(&self, gvk: &Gvk, name: &str) -> ObjectRef {
        ObjectRef::new(gvk.clone(), &self.namespace, name)
    }

    /// What woke an object so far.
    pub fn causes(&self, gvk: &Gvk, name: &str) -> Vec<Cause> {
        self.host().causes(&self.key(gvk, name))
    }

    /// All writes the host has sent to the API server so far.
    pub fn api_writes(&self) -> u64 {
        self.host().ledger().all().iter().map(|f| f.api_writes).sum()
    }
}
