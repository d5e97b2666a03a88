//! What the scenario tests share: an API server (embedded or real), a Concourse
//! simulator, a host with real components, and waiting for conditions.

use std::{
    future::Future,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use kube::{
    Client,
    api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use ostler::{
    engine::Cache,
    grants::Grants,
    host::{Host, Settings},
    key::{Gvk, ObjectRef},
    router::Cause,
    selector::Selector,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub mod concourse;
mod logs;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod registry;
mod server;

pub use concourse_simulator as simulator;
pub use logs::logs;
pub use ostler;
pub use server::Concourse;

/// The password of the simulator's only user; scanned for where it must not be.
pub const PASSWORD: &str = "correct-horse-battery-staple";

/// What every wait in a test has at most. Generous: a slow machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a scenario has at most, all its waits together.
const SCENARIO: Duration = Duration::from_mins(10);

/// Fails a scenario that never ends: what hangs holds up all that come after it, and says nothing.
pub async fn bounded(scenario: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(SCENARIO, scenario).await;
    ended.unwrap_or_else(|_| panic!("it has not ended after {SCENARIO:?}"));
}

/// Generates an embedded and a real test for each scenario; `hostile:` puts them into the hostile tier,
/// and those that are `simulated:` need a Concourse that does as the test says.
#[macro_export]
macro_rules! scenarios {
    (hostile: $($name:ident),+ $(,)?) => {
        mod hostile {
            $(use super::$name;)+
            $crate::scenarios!($($name),+);
        }
    };
    (simulated: $($name:ident),+ $(,)?) => {
        mod simulated {
            $(pub async fn $name(lab: $crate::Lab) {
                if lab.concourse.simulated("faults, or what is counted") {
                    super::$name(lab).await;
                }
            })+
            $crate::scenarios!($($name),+);
        }
    };
    ($($name:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::bounded(async { super::$name($crate::Lab::embedded().await).await }).await;
            })+
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs the real control plane: cargo xtask test real"]
            async fn $name() {
                $crate::bounded(async { super::$name($crate::Lab::real().await).await }).await;
            })+
        }
    };
}

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
        let client = ostler::cli::client(Some(kubeconfig.clone()))
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
            network: vec![ostler::upstream::network("127.0.0.1").expect("an address")],
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

    /// A new CRD is served a moment after it was applied.
    async fn established(&self) {
        let crds = self.api(
            &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "",
        );
        self.until("the CRDs are established", async || {
            let list = crds.list(&ListParams::default()).await.expect("CRDs");
            list.items.iter().all(|crd| {
                let conditions = crd.data["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                conditions
                    .iter()
                    .any(|c| c["type"] == "Established" && c["status"] == "True")
            })
        })
        .await;
    }

    /// The directory of this test; gone with it.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Puts built components into the plugin directory, as a build would: whole, and renamed into place.
    pub fn install(&self, components: &[&str]) {
        for component in components {
            let wasm = component_bytes(component);
            self.install_bytes(component.rsplit('/').next().unwrap_or(component), &wasm);
        }
    }

    /// Puts these bytes into the plugin directory as `NAME.wasm`.
    pub fn install_bytes(&self, name: &str, wasm: &[u8]) {
        let mut partial = tempfile::NamedTempFile::new_in(&self.settings.plugins).expect("a temporary file");
        partial.write_all(wasm).expect("written");
        partial
            .persist(self.settings.plugins.join(format!("{name}.wasm")))
            .expect("renamed");
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
        let text = std::fs::read_to_string(&self.kubeconfig).expect("a kubeconfig");
        let path = self.path().join("kubeconfig-elsewhere");
        let elsewhere = text.replace(&self.address().to_string(), &address.to_string());
        std::fs::write(&path, elsewhere).expect("written");
        ostler::cli::client(Some(path)).await.expect("a client")
    }

    /// The running host.
    pub fn host(&self) -> &Host {
        self.host.as_ref().expect("a host runs")
    }

    /// An API of a kind; an empty namespace is for cluster-scoped kinds.
    pub fn api(&self, gvk: &Gvk, namespace: &str) -> Api<DynamicObject> {
        let kube_gvk = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        let resource = ApiResource::from_gvk(&kube_gvk);
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    fn api_of(&self, object: &Value) -> (Api<DynamicObject>, String) {
        let text = |p: &str| object.pointer(p).and_then(Value::as_str).unwrap_or("");
        let gvk = Gvk::from_api_version(text("/apiVersion"), text("/kind"));
        (
            self.api(&gvk, text("/metadata/namespace")),
            text("/metadata/name").to_owned(),
        )
    }

    /// Applies an object, as `kubectl apply --server-side` does.
    pub async fn apply(&self, object: Value) -> Value {
        self.try_apply(object).await.expect("applied")
    }

    /// The same, with the server's refusal as the error.
    pub async fn try_apply(&self, object: Value) -> Result<Value, kube::Error> {
        let (api, name) = self.api_of(&object);
        let parameters = PatchParams::apply("test").force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(&object)).await?;
        Ok(serde_json::to_value(applied).expect("JSON"))
    }

    /// Applies all documents of a YAML text.
    pub async fn apply_text(&self, yaml: &str) {
        for document in yaml.split("\n---") {
            if document
                .lines()
                .all(|l| l.trim().is_empty() || l.starts_with('#'))
            {
                continue;
            }
            self.apply(serde_saphyr::from_str(document).expect("YAML")).await;
        }
    }

    /// One object of this test's namespace; none when there is none.
    pub async fn get(&self, gvk: &Gvk, name: &str) -> Option<Value> {
        let found = self
            .api(gvk, &self.namespace)
            .get_opt(name)
            .await
            .expect("an answer");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    /// All objects of a kind in this test's namespace.
    pub async fn list(&self, gvk: &Gvk) -> Vec<Value> {
        let list = self
            .api(gvk, &self.namespace)
            .list(&ListParams::default())
            .await
            .expect("a list");
        list.items
            .into_iter()
            .map(|o| serde_json::to_value(o).expect("JSON"))
            .collect()
    }

    /// Asks for an object's deletion.
    pub async fn delete(&self, gvk: &Gvk, name: &str) {
        let api = self.api(gvk, &self.namespace);
        api.delete(name, &DeleteParams::default())
            .await
            .expect("deletion is accepted");
    }

    /// Merge-patches an object.
    pub async fn patch(&self, gvk: &Gvk, name: &str, patch: Value) -> Value {
        let api = self.api(gvk, &self.namespace);
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("patched");
        serde_json::to_value(patched).expect("JSON")
    }

    /// Waits until something holds; fails, saying what, when it doesn't within [`PATIENCE`].
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, mut holds: impl FnMut() -> F) {
        let waiting = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let facts = self.host.as_ref().map(|h| h.ledger().all());
            panic!("after {PATIENCE:?} it is still not so that {what}\n{facts:#?}");
        }
    }

    /// Waits until an object has a condition with this status and reason; gives the object.
    pub async fn condition(
        &self,
        gvk: &Gvk,
        name: &str,
        condition: &str,
        status: &str,
        reason: &str,
    ) -> Value {
        let what = format!("{}/{name} has {condition}={status} ({reason})", gvk.kind);
        self.until(&what, async || {
            let object = self.get(gvk, name).await.unwrap_or_default();
            let found = self::condition(&object, condition);
            found["status"] == status && found["reason"] == reason && observed(&object, &found)
        })
        .await;
        self.get(gvk, name).await.expect("it was there")
    }

    /// Waits until an object is Ready for its current generation; gives it.
    pub async fn ready(&self, gvk: &Gvk, name: &str) -> Value {
        self.until(&format!("{}/{name} is Ready", gvk.kind), async || {
            let object = self.get(gvk, name).await.unwrap_or_default();
            let found = self::condition(&object, "Ready");
            found["status"] == "True" && observed(&object, &found)
        })
        .await;
        self.get(gvk, name).await.expect("it was there")
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, gvk: &Gvk, name: &str) {
        self.until(&format!("{}/{name} is gone", gvk.kind), async || {
            self.get(gvk, name).await.is_none()
        })
        .await;
    }

    /// Waits until the host has nothing to do now.
    pub async fn idle(&self) {
        let router = &self.host().services().router;
        self.until("the host is idle", async || router.idle()).await;
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

fn observed(object: &Value, condition: &Value) -> bool {
    condition["observedGeneration"] == object["metadata"]["generation"]
}

/// A condition of an object; null when it has none of that type.
pub fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    found.cloned().unwrap_or_default()
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A built component, by `PACK/NAME`.
pub fn component_bytes(component: &str) -> Vec<u8> {
    let root = std::env::var_os("OSTLER_COMPONENTS")
        .map_or_else(|| workspace().join("target/components"), PathBuf::from);
    let path = root.join(format!("{component}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; build it with `cargo xtask components`", path.display()))
}

/// The same component with other bytes: a custom section more, as another build would have.
pub fn rebuilt(wasm: &[u8], note: &str) -> Vec<u8> {
    let name = b"note";
    let mut section = vec![u8::try_from(name.len()).expect("short")];
    section.extend_from_slice(name);
    section.extend_from_slice(note.as_bytes());
    let mut out = wasm.to_vec();
    out.push(0);
    out.push(
        u8::try_from(section.len())
            .ok()
            .filter(|n| *n < 128)
            .expect("a short note"),
    );
    out.extend_from_slice(&section);
    out
}

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
