//! A host in this process to test a plugin in, with an embedded API server unless a cluster is given.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{
    project::{Document, Project},
    simulated_upstream::SimulatedUpstream,
};
use crate::{
    admin::Admin,
    client::api::{ApiClient, ApiError, PatchType},
    host::{Host, HostSettings},
    kube::{
        hash::encode_hex,
        key::{Gvk, ObjectRef},
    },
    plugin::{LoadState, Plugin, SlotReport},
    policy::network::loopback_networks,
    sandbox::engine::FunctionCache,
    schedule::{dispatcher::Cause, queue::Priority},
};

/// Time for the API server to serve the kind of a new CRD.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an API server to take over the schema of a CRD that was changed.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a build to serve: compiling 20 MB takes minutes on a slow machine.
const SERVE_TIMEOUT: Duration = Duration::from_secs(300);
/// Polling interval of conditions.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Polling interval of rollbacks, which the registry does not announce.
const ROLLBACK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of concurrent reconciles.
const WORKERS: u32 = 4;
/// The field manager of applied objects.
const FIELD_MANAGER: &str = "ostler-plugin";

/// The test environment of a plugin.
pub struct PluginStage {
    // Declared first: dropped before the API server it uses.
    host: Option<Host>,
    server: Option<ostler_apiserver::EmbeddedServer>,
    config: kube::Config,
    cluster: ApiClient,
    directory: TempDir,
    upstreams: Vec<SimulatedUpstream>,
}

impl PluginStage {
    /// The admin server of the running host.
    pub fn admin(&self) -> anyhow::Result<Admin> {
        Ok(Admin::new(self.host()?, WORKERS, self.cluster.clone()))
    }

    /// Connects to a cluster, or starts an embedded API server.
    pub async fn prepare(kubeconfig: Option<PathBuf>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("a temporary directory")?;
        std::fs::create_dir(directory.path().join("plugins"))?;
        let mut server = None;
        let config = match kubeconfig {
            Some(path) => crate::cli::kubeconfig::load_kubeconfig(Some(path)).await?,
            None => {
                let options = ostler_apiserver::ServerOptions {
                    controllers: true,
                    ..ostler_apiserver::ServerOptions::default()
                };
                let started = ostler_apiserver::EmbeddedServer::start(options).await?;
                let path = directory.path().join("kubeconfig");
                std::fs::write(&path, started.kubeconfig())?;
                server = Some(started);
                crate::cli::kubeconfig::load_kubeconfig(Some(path)).await?
            }
        };
        let cluster = ApiClient::new(kube::Client::try_from(config.clone())?);
        Ok(Self {
            host: None,
            server,
            config,
            cluster,
            directory,
            upstreams: Vec::new(),
        })
    }

    /// Serves the simulated upstreams of a project, and applies an Upstream of each in the namespaces of the samples. One whose file
    /// has changed gets another port, by which the host forgets what it knows of the former server, such as an open circuit.
    pub async fn serve_upstreams(&mut self, project: &Project) -> anyhow::Result<()> {
        let of_samples = project
            .samples
            .iter()
            .map(|sample| sample.text("/metadata/namespace"));
        let mut namespaces: BTreeSet<&str> = of_samples.collect();
        namespaces.insert("");
        for file in &project.upstreams {
            if self.upstreams.iter().any(|served| served.file() == file) {
                continue;
            }
            let served = SimulatedUpstream::start(file).await?;
            for namespace in &namespaces {
                let mut object = served.build_object();
                if !namespace.is_empty() {
                    object["metadata"]["namespace"] = (*namespace).into();
                }
                let file = file.path.clone();
                self.apply(&Document { file, object }).await?;
            }
            self.upstreams.retain(|other| other.file().name != file.name);
            self.upstreams.push(served);
        }
        Ok(())
    }

    /// Queues every object that was reconciled, for what no watch reports.
    pub fn reconcile_all(&self) -> anyhow::Result<()> {
        let host = self.host()?;
        for key in host.stats().keys() {
            let dispatcher = &host.services().dispatcher;
            dispatcher.enqueue(&key, Priority::High, Cause::Manual);
        }
        Ok(())
    }

    /// The kubeconfig of the embedded API server.
    pub fn kubeconfig(&self) -> Option<String> {
        self.server
            .as_ref()
            .map(ostler_apiserver::EmbeddedServer::kubeconfig)
    }

    /// Applies an object and returns its reference.
    pub async fn apply(&self, document: &Document) -> anyhow::Result<ObjectRef> {
        let file = document.file.display();
        let gvk = document.gvk();
        let began = Instant::now();
        let resource = loop {
            match self.cluster.discover_resource(&gvk).await {
                Ok(resource) => break resource,
                // A new kind is served a moment after its CRD was applied.
                Err(ApiError::UnknownKind(..)) if began.elapsed() < self.wait_limit(&gvk) => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Err(e) => return Err(e).with_context(|| format!("{file}: {gvk}")),
            }
        };
        let mut object = document.object.clone();
        let mut namespace = "";
        if resource.namespaced {
            namespace = match document.text("/metadata/namespace") {
                // As with kubectl, that of the kubeconfig's context.
                "" => &*self.config.default_namespace,
                namespace => namespace,
            };
            object["metadata"]["namespace"] = namespace.into();
            if self.server.is_some() && namespace != "default" {
                self.patch(
                    &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
                    "",
                )
                .await
                .with_context(|| format!("{file}: its namespace {namespace}"))?;
            }
        }
        self.patch(&object, namespace)
            .await
            .with_context(|| format!("{file}: {gvk} {} is refused", document.text("/metadata/name")))?;
        Ok(ObjectRef::new(gvk, namespace, document.text("/metadata/name")))
    }

    /// Time to wait for a kind: none for kinds that no CRD of this run can define.
    fn wait_limit(&self, gvk: &Gvk) -> Duration {
        if gvk.group.contains('.') {
            ESTABLISH_TIMEOUT
        } else {
            Duration::ZERO
        }
    }

    async fn patch(&self, object: &Value, namespace: &str) -> Result<(), ApiError> {
        let text = |pointer| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let gvk = Gvk::from_api_version(text("/apiVersion"), text("/kind"));
        let key = ObjectRef::new(gvk, namespace, text("/metadata/name"));
        let path = self.cluster.discover_resource(&key.gvk).await?.object(&key);
        // Without `Strict` a field that the schema lacks is dropped.
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=true&fieldValidation=Strict");
        self.cluster
            .patch(&path, PatchType::Apply, object.to_string().into_bytes())
            .await?;
        Ok(())
    }

    /// Applies CRDs and waits until their kinds are served with their schemas.
    pub async fn install_crds(&self, crds: &[Document]) -> anyhow::Result<()> {
        for crd in crds {
            let Some(watch) = self.watch_defined_kind(crd).await else {
                self.apply(crd).await?;
                continue;
            };
            let key = ObjectRef::new(crd.gvk(), "", crd.text("/metadata/name"));
            let before = self.generation(&key).await?;
            self.apply(crd).await?;
            if self.generation(&key).await? != before {
                wait_closed(watch).await;
            }
        }
        for gvk in crds.iter().flat_map(Document::defined_kinds) {
            let served = async || self.cluster.discover_resource(&gvk).await.is_ok();
            if !wait_until(ESTABLISH_TIMEOUT, served).await {
                bail!("{gvk} is not served {ESTABLISH_TIMEOUT:?} after its CRD was applied");
            }
        }
        Ok(())
    }

    /// The generation of an object; `None` if it does not exist.
    async fn generation(&self, key: &ObjectRef) -> anyhow::Result<Option<Value>> {
        let object = self.get(key).await?;
        Ok(object.map(|object| object["metadata"]["generation"].clone()))
    }

    /// A watch of a kind that a CRD defines; `None` for a new kind, and with the embedded API server, whose schemas change at once.
    async fn watch_defined_kind(&self, crd: &Document) -> Option<Body> {
        let kind = crd.defined_kinds().into_iter().next()?;
        if self.server.is_some() {
            return None;
        }
        let path = self.cluster.discover_resource(&kind).await.ok()?.collection("");
        self.cluster
            .watch(&format!("{path}?watch=true&resourceVersion=0"), None)
            .await
            .ok()
    }

    /// The current state of an object; `None` if it does not exist.
    pub async fn get(&self, key: &ObjectRef) -> anyhow::Result<Option<Value>> {
        let path = self.cluster.discover_resource(&key.gvk).await?.object(key);
        match self.cluster.get(&path).await {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(e) if e.code() == 404 => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// All objects of a kind.
    pub async fn list(&self, gvk: &Gvk) -> anyhow::Result<Vec<Value>> {
        let path = self.cluster.discover_resource(gvk).await?.collection("");
        let list: Value = serde_json::from_slice(&self.cluster.get(&path).await?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The Plugins of a cluster that reconcile one of these kinds, in whichever version, and are not suspended. None with an API server
    /// of its own, and where Plugins cannot be listed.
    pub async fn find_installed(&self, kinds: &[Gvk]) -> Vec<(String, Gvk)> {
        if self.server.is_some() {
            return Vec::new();
        }
        let objects = self.list(&crate::plugin::kind()).await.unwrap_or_default();
        let active = objects.iter().filter(|object| object["spec"]["suspend"] != true);
        let found = active.filter_map(|object| {
            let reconciled = object["status"]["kinds"].as_array()?.iter();
            let mut reconciled = reconciled.filter_map(|kind| Gvk::parse(kind.as_str()?));
            let shared = reconciled.find(|kind| kinds.iter().any(|ours| ours.is_same_kind(kind)))?;
            Some((object["metadata"]["name"].as_str()?.to_owned(), shared))
        });
        found.collect()
    }

    /// The preferred version of a group, for a kind.
    pub async fn discover_preferred(&self, group: &str, kind: &str) -> anyhow::Result<Gvk> {
        Ok(self.cluster.discover_preferred(group, kind).await?)
    }

    /// Deletes an object; an object that does not exist is no error.
    pub async fn delete(&self, key: &ObjectRef) -> anyhow::Result<()> {
        let path = self.cluster.discover_resource(&key.gvk).await?.object(key);
        match self.cluster.delete(&path, b"{}".to_vec()).await {
            Err(e) if e.code() != 404 => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Grants a plugin all permissions that the project requests, also in a running host. Returns whether that changed.
    pub fn write_grants(&self, project: &Project, plugin: &str) -> anyhow::Result<bool> {
        project.build_grants(plugin)?;
        let text = json!({ "plugins": { plugin: project.asks } }).to_string();
        ostler_builder::replace_file(&self.grants_file(), text.as_bytes())
    }

    /// Directory of the component and its configuration.
    pub fn plugin_dir(&self) -> PathBuf {
        self.directory.path().join("plugins")
    }

    /// File with the permissions of the plugin.
    pub fn grants_file(&self) -> PathBuf {
        self.directory.path().join("grants.yaml")
    }

    /// Configures the plugin by a file. Returns whether that changed.
    fn write_config(&self, plugin: &str, config: &Path) -> anyhow::Result<bool> {
        let text = std::fs::read(config).with_context(|| format!("reading {}", config.display()))?;
        ostler_builder::replace_file(&self.plugin_file(plugin, "yaml"), &text)
    }

    fn plugin_file(&self, plugin: &str, extension: &str) -> PathBuf {
        self.plugin_dir().join(format!("{plugin}.{extension}"))
    }

    /// Applies the CRDs of the host's own kinds, which samples may need.
    async fn install_host_kinds(&self) -> anyhow::Result<()> {
        let crds = [
            crate::upstream::crd_yaml(),
            crate::cluster::spec::crd_yaml(),
            crate::plugin::spec::crd_yaml(),
        ];
        let parse = |yaml: &String| {
            let object = serde_saphyr::from_str(yaml).context("a CRD of the host")?;
            let file = PathBuf::from("crds");
            anyhow::Ok(Document { file, object })
        };
        let crds = crds.iter().map(parse).collect::<anyhow::Result<Vec<_>>>()?;
        self.install_crds(&crds).await
    }

    /// Starts the host with the granted permissions.
    pub async fn start_host(&mut self) -> anyhow::Result<()> {
        // A cluster has those of the host that is installed there.
        if self.server.is_some() {
            self.install_host_kinds().await?;
        }
        let grants = match std::fs::read_to_string(self.grants_file()) {
            Ok(text) => crate::policy::grants::Grants::parse(&text, "plugin.yaml")
                .map_err(|e| anyhow::anyhow!("{e}"))?,
            Err(_) => {
                // The host follows the file, and a missing one is an error.
                ostler_builder::replace_file(&self.grants_file(), b"{}")?;
                crate::policy::grants::Grants::default()
            }
        };
        let settings = HostSettings {
            plugins: self.plugin_dir(),
            grants,
            grants_file: Some(self.grants_file()),
            // Upstreams under development run on this machine.
            network: loopback_networks().to_vec(),
            // A cluster's Plugins, and the Upstreams of others, are the concern of the host that is installed there.
            shares_cluster: self.server.is_none(),
            // Digests of secrets are the same after a restart, so that no object of the cluster changes.
            own_namespace: Some(self.config.default_namespace.clone()),
            workers: WORKERS,
            functions: Some(FunctionCache::default()),
            ..HostSettings::default()
        };
        let client = kube::Client::try_from(self.config.clone())?;
        self.host
            .insert(Host::start(client, settings)?)
            .wait_loaded()
            .await
    }

    /// The host.
    pub fn host(&self) -> anyhow::Result<&Host> {
        self.host.as_ref().context("no host runs")
    }

    /// Drains and stops the host.
    pub async fn shut_down(mut self, grace: Duration) {
        if let Some(host) = self.host.take() {
            host.drain(grace).await;
        }
    }

    /// Installs a build with its configuration and all requested permissions, and waits until it serves. The error has
    /// the reason if it does not.
    pub async fn offer_build(
        &self,
        project: &Project,
        plugin: &str,
        config: Option<&Path>,
        wasm: &[u8],
    ) -> anyhow::Result<SlotReport> {
        let file = format!("{plugin}.wasm");
        let report = || -> anyhow::Result<Option<SlotReport>> {
            let reports = self.host()?.registry().reports();
            Ok(reports.into_iter().find(|r| r.file == file))
        };
        let refused = report()?.map_or(0, |r| r.refused);
        // The component first: grants and configuration are written before the host has read it.
        let mut changed = ostler_builder::replace_file(&self.plugin_file(plugin, "wasm"), wasm)?;
        changed |= self.write_grants(project, plugin)?;
        if let Some(config) = config {
            changed |= self.write_config(plugin, config)?;
        }
        let digest = encode_hex(&Sha256::digest(wasm));
        let began = Instant::now();
        loop {
            match report()?.and_then(|report| decide_result(report, &digest, refused, changed)) {
                Some(verdict) => return verdict.map_err(|why| anyhow::anyhow!(why)),
                None if began.elapsed() > SERVE_TIMEOUT => {
                    bail!("the new build does not serve after {SERVE_TIMEOUT:?}")
                }
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Waits until more builds than these were rolled back, and returns the report of the plugin.
    pub async fn wait_rolled_back(&self, known: u64) -> anyhow::Result<SlotReport> {
        loop {
            let mut reports = self.host()?.registry().reports().into_iter();
            if let Some(report) = reports.find(|report| report.rolled_back > known) {
                return Ok(report);
            }
            tokio::time::sleep(ROLLBACK_POLL_INTERVAL).await;
        }
    }

    /// The report of the serving build.
    pub fn serving_plugin(&self) -> anyhow::Result<std::sync::Arc<Plugin>> {
        let serving = self.host()?.registry().serving();
        serving.into_iter().next().context("no plugin serves")
    }

    /// The kinds of the serving build.
    pub fn serving_kinds(&self) -> anyhow::Result<Vec<Gvk>> {
        let plugin = self.serving_plugin()?;
        Ok(plugin.kinds.iter().map(|kind| kind.gvk.clone()).collect())
    }

    /// Returns true while the host reconciles nothing and nothing is due.
    pub fn is_idle(&self) -> bool {
        self.host
            .as_ref()
            .is_some_and(|host| host.services().dispatcher.is_idle())
    }

    /// Waits until the host is idle; returns false after the timeout.
    pub async fn wait_idle(&self, limit: Duration) -> anyhow::Result<bool> {
        let router = self.host()?.services().dispatcher.clone();
        Ok(wait_until(limit, async || router.is_idle()).await)
    }
}

/// The result of the build with this digest; `None` while the host has not decided. `refused` is the number of refusals
/// before the build. If no file `changed`, the host does not load again, so an earlier refusal is the result.
fn decide_result(
    report: SlotReport,
    digest: &str,
    refused: u64,
    changed: bool,
) -> Option<Result<SlotReport, String>> {
    match report.state {
        LoadState::Serving if report.digest == digest => Some(Ok(report)),
        LoadState::RolledBack if report.bad == digest => Some(Err(report.message)),
        LoadState::Failed | LoadState::Refused if report.refused > refused || !changed => {
            Some(Err(report.message))
        }
        _ => None,
    }
}

/// Waits until an API server ends a watch of a kind whose CRD has changed. Until then it may still validate objects by the former
/// schema, and show them by it in watches, without their new fields. A watch that begins later shows the whole objects.
async fn wait_closed(mut watch: Body) {
    let closed = async { while let Some(Ok(_)) = watch.frame().await {} };
    // A server that goes on with the watch has no such moment.
    let _ = tokio::time::timeout(SCHEMA_TIMEOUT, closed).await;
}

/// Waits until a condition holds; returns false after the timeout.
pub async fn wait_until(limit: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let began = Instant::now();
    while !holds().await {
        if began.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}

/// Readiness of an object at its current generation, with the message of the condition.
pub fn check_ready(object: &Value) -> (bool, String) {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let Some(ready) = conditions.into_iter().find(|c| c["type"] == "Ready") else {
        return (false, "no Ready condition yet".into());
    };
    let text = |field: &str| ready[field].as_str().unwrap_or_default();
    let current = ready["observedGeneration"].is_null()
        || ready["observedGeneration"] == object["metadata"]["generation"];
    let reason = crate::cli::table::join_reason(text("reason"), text("message"));
    (text("status") == "True" && current, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_result_is_reported_when_its_build_is_known() {
        let of = |state: LoadState, digest: &str, refused: u64, changed: bool| {
            let report = SlotReport {
                state,
                digest: digest.into(),
                bad: "b".into(),
                message: "why".into(),
                refused,
                ..SlotReport::default()
            };
            decide_result(report, "b", 1, changed).map(|verdict| verdict.map(|report| report.digest))
        };
        let refused = Some(Err("why".to_owned()));
        for (state, digest, count, changed, expected) in [
            (LoadState::Serving, "b", 1, true, Some(Ok("b".to_owned()))),
            (LoadState::Serving, "a", 1, true, None),
            (LoadState::Loading, "", 1, true, None),
            // Refused before, and not loaded again yet.
            (LoadState::Refused, "a", 1, true, None),
            (LoadState::Refused, "a", 2, true, refused.clone()),
            (LoadState::Failed, "", 2, true, refused.clone()),
            // Nothing changed, so the earlier refusal holds.
            (LoadState::Refused, "a", 1, false, refused.clone()),
            (LoadState::Failed, "", 1, false, refused.clone()),
            // It served, and was rolled back for its traps.
            (LoadState::RolledBack, "a", 1, false, refused.clone()),
        ] {
            assert_eq!(
                of(state, digest, count, changed),
                expected,
                "{state} {digest} {count} {changed}"
            );
        }
    }

    #[tokio::test]
    async fn refused_build_is_reported_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        std::fs::write(folder.path().join("plugin.yaml"), "permissions: {}").unwrap();
        let project = Project::read_folder(folder.path()).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut stage = PluginStage::prepare(None).await.unwrap();
        stage.start_host().await.unwrap();
        for _ in 0..2 {
            let offered = stage.offer_build(&project, "mine", None, b"no such thing");
            let offered = tokio::time::timeout(Duration::from_secs(60), offered).await;
            let why = offered.expect("a result").expect_err("refused").to_string();
            assert!(why.contains("WebAssembly"), "{why}");
        }
        stage.shut_down(Duration::from_secs(5)).await;
    }
}
