//! What reconciling would change, without changing it.
//!
//! A plan is the host itself, with an overlay between it and the API server and a door that no write gets through:
//! the same queue, the same reconciles, until nothing is woken any more by what is planned.
//!
//! ```text
//! objects → queue → reconcile → effects → overlay (dry run) → store → who reads it → queue
//! ```

mod diff;
mod merge;
mod overlay;
mod report;
mod target;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, bail};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use self::{
    diff::{LAST_APPLIED, Shown},
    merge::{set, three_way},
};
pub use self::{
    overlay::{News, Overlay, Request, Write},
    report::{Action, Change, Looked, Report, Verdict},
    target::dry,
};
use crate::{
    capabilities::Services,
    cluster::{ApiError, Cluster, Patch, Resource, parse},
    effects::Effects,
    engine::Engine,
    events::Recorder,
    facts::Ledger,
    gate::Gate,
    host::Settings,
    key::{Gvk, ObjectRef},
    lifecycle::Hooks,
    memo::Memo,
    metrics::Metrics,
    plugin::{Kind, Plugin, Registry, load},
    queue::{Config as QueueConfig, Priority, Queue, Work},
    reconcile::{self, Controller, step::Step},
    router::{Cause, Router},
    scope::{Form, Reach},
    store::{Query, Store},
    upstream::{self, Clients, Network, Streams},
    watch::Informers,
};

/// Reconciles of one object at most: what goes round in circles does so in a plan, too.
const ROUNDS: u32 = 10;

/// Attempts when others are faster.
const ATTEMPTS: u32 = 3;

/// How long a list may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be planned.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// `KIND/NAME`; all objects of the plugins where nothing else is said.
    pub objects: Vec<String>,
    /// The namespace of these, or the only one to look at.
    pub namespace: Option<String>,
    /// Where objects are that name no namespace.
    pub default_namespace: String,
    /// Objects as they would be, each with the file it is from.
    pub files: Vec<(String, Value)>,
    /// Builds in place of those of the same name.
    pub builds: Vec<PathBuf>,
    /// Whether the objects are to be deleted.
    pub delete: bool,
}

/// Makes a plan. Nothing is written by it, neither to the API server nor to an upstream.
pub async fn plan(client: kube::Client, settings: Settings, wish: &Wish) -> anyhow::Result<Report> {
    let since = now();
    let world = World::new(client, settings);
    let world = world.await?;
    world.load(&wish.builds).await?;
    let intended = world.intend(wish).await?;
    let mut report = Report::default();
    world.watch(&mut report.notes).await?;
    let chosen = world.choose(wish, &intended, &mut report.notes).await?;
    world.hooks(&chosen, &mut report.notes).await;
    for key in &chosen {
        world.services.router.add(key, Priority::Normal, Cause::Start);
    }
    report.objects = world.run(&mut report.notes).await;
    world.finish(report, since)
}

/// Now, as the times it writes: to the second.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The host that a plan is made with.
struct World {
    settings: Arc<Settings>,
    cluster: Cluster,
    overlay: Arc<Overlay>,
    services: Arc<Services>,
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    hooks: Arc<Hooks>,
    controller: Controller,
}

impl World {
    async fn new(client: kube::Client, settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let overlay = Arc::new(Overlay::default());
        // Never opened: no write gets out, whatever is wrong before it.
        let sealed = Gate::shut();
        let cluster = Cluster::new(client)
            .gated(sealed.clone())
            .planning(overlay.clone());
        let store = Arc::new(Store::default());
        let (first, longest) = settings.backoff;
        let reach = Reach::new(&settings.namespaces);
        let queue = Queue::new(QueueConfig::new(first, longest, 1));
        let router = Arc::new(Router::new(queue, reach.clone()));
        let ledger = Arc::new(Ledger::new(store.clone()));
        // What was there before wakes nobody: it is what the plan begins with.
        let informers = Informers::new(cluster.clone(), store.clone(), Arc::new(|_, _| {}));
        let network = Network::default();
        network.allow(settings.allowed(&settings.grants));
        let noting = overlay.clone();
        let services = Arc::new(Services {
            store: store.clone(),
            router: router.clone(),
            informers: Arc::new(informers),
            effects: Arc::new(Effects::new(cluster.clone(), store, router)),
            recorder: Recorder::default(),
            upstreams: Clients::default()
                .gated(sealed)
                .within(network)
                .planning(move |upstream, request| noting.request(upstream, request)),
            streams: Streams::closed(),
            memo: Memo::default(),
            metrics: Arc::new(Metrics::default()),
            gate: Gate::default(),
            reach,
        });
        overlay.tell(&services);
        let engine = Engine::new(
            settings.workers * 2,
            settings.limits.memory,
            settings.cache.clone(),
            None,
        );
        let engine = Arc::new(
            engine
                .map_err(|e| anyhow::anyhow!("{e:#}"))
                .context("the WebAssembly engine")?,
        );
        let registry = Arc::new(Registry::default());
        let hooks = Arc::new(Hooks::new(
            services.clone(),
            registry.clone(),
            engine.clone(),
            settings.backoff,
        ));
        let controller = Controller {
            services: services.clone(),
            registry: registry.clone(),
            engine: engine.clone(),
            ledger: ledger.clone(),
            hooks: hooks.clone(),
            settings: settings.clone(),
            loops: Mutex::default(),
            notes: Mutex::default(),
        };
        Ok(Self {
            settings,
            cluster,
            overlay,
            services,
            engine,
            registry,
            ledger,
            hooks,
            controller,
        })
    }

    /// Loads the components of the directory, and these in place of those of the same name.
    async fn load(&self, builds: &[PathBuf]) -> anyhow::Result<()> {
        let mut plugins: BTreeMap<Arc<str>, (PathBuf, Plugin)> = BTreeMap::new();
        let directory = &self.settings.plugins;
        let files = match std::fs::read_dir(directory) {
            Ok(entries) => {
                let paths = entries.map(|entry| entry.map(|e| e.path()));
                let mut paths: Vec<_> = paths.collect::<Result<_, _>>()?;
                paths.retain(|p| component(p));
                paths.sort();
                paths
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !builds.is_empty() => Vec::new(),
            Err(e) => bail!(
                "the plugin directory {} can't be read: {e}; say where it is with --plugins",
                directory.display()
            ),
        };
        for path in files {
            let (plugin, _) = self.component(&path).await?;
            plugins.insert(plugin.name().clone(), (path, plugin));
        }
        for path in builds {
            let (mut build, configured) = self.component(path).await?;
            if let Some((_, before)) = plugins.get(build.name())
                && !configured
            {
                build.terms = before.terms.clone();
            }
            plugins.insert(build.name().clone(), (path.clone(), build));
        }
        if plugins.is_empty() {
            bail!(
                "there is no component (*.wasm) in {}: say where they are with --plugins",
                directory.display()
            );
        }
        for (path, plugin) in plugins.into_values() {
            let (file, digest) = (path.display().to_string(), plugin.digest.clone());
            let served = self.registry.serve(&file, &digest, Arc::new(plugin), None);
            served.map_err(|why| anyhow::anyhow!("{file}: {why}"))?;
        }
        Ok(())
    }

    /// A component, and whether there is a configuration beside it.
    async fn component(&self, path: &Path) -> anyhow::Result<(Plugin, bool)> {
        let wasm = std::fs::read(path).with_context(|| format!("the component {}", path.display()))?;
        let config_path = path.with_extension("yaml");
        let config = match std::fs::read_to_string(&config_path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(e).with_context(|| format!("the configuration {}", config_path.display())),
        };
        let Settings { grants, limits, .. } = &*self.settings;
        let plugin = load(&self.engine, wasm, config.as_deref(), grants, limits).await;
        let plugin = plugin.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
        Ok((plugin, config.is_some()))
    }

    /// Puts the objects of the files into the overlay, as the server would take them. Gives which they are.
    async fn intend(&self, wish: &Wish) -> anyhow::Result<Vec<ObjectRef>> {
        let mut intended = Vec::new();
        for (file, object) in &wish.files {
            self.overlay.begin(file, None);
            let key = self.as_in_file(wish, object.clone()).await;
            intended.push(key.with_context(|| file.clone())?);
            self.overlay.end(&[]);
        }
        Ok(intended)
    }

    async fn as_in_file(&self, wish: &Wish, mut object: Value) -> anyhow::Result<ObjectRef> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        for (field, value) in [
            ("apiVersion", api_version),
            ("kind", kind),
            ("metadata.name", name),
        ] {
            if value.is_empty() {
                bail!("{field} is missing: every document must be a Kubernetes object");
            }
        }
        let gvk = Gvk::from_api_version(api_version, kind);
        let resource = self.cluster.resource(&gvk).await?;
        let namespace = match (resource.namespaced, text("/metadata/namespace")) {
            (false, _) => String::new(),
            (true, "") => wish.default_namespace.clone(),
            (true, namespace) => namespace.to_owned(),
        };
        let key = ObjectRef::new(gvk, &namespace, name);
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.into();
        }
        set(&mut object, "status", None);
        for field in [
            "creationTimestamp",
            "generation",
            "managedFields",
            "resourceVersion",
            "uid",
        ] {
            set(&mut object["metadata"], field, None);
        }
        let written = self.write(&key, &resource, &object).await;
        written.with_context(|| key.to_string())?;
        Ok(key)
    }

    /// Writes an object as kubectl would: it is told from the object how that was made.
    async fn write(&self, key: &ObjectRef, resource: &Resource, object: &Value) -> Result<(), ApiError> {
        let path = resource.object(key);
        let body = |value: &Value| value.to_string().into_bytes();
        let live: Value = match self.cluster.get(&path).await {
            Ok(bytes) => parse(&bytes)?,
            Err(e) if e.code() == 404 => {
                let collection = resource.collection(&key.namespace);
                let path = format!("{collection}?fieldManager=kubectl-client-side-apply");
                return self.cluster.create(&path, body(object)).await.map(drop);
            }
            Err(e) => return Err(e),
        };
        let managers = live["metadata"]["managedFields"].as_array();
        let server_side = |m: &Value| m["manager"] == "kubectl" && m["operation"] == "Apply";
        if managers.into_iter().flatten().any(server_side) {
            let path = format!("{path}?fieldManager=kubectl&force=true");
            return self
                .cluster
                .patch(&path, Patch::Apply, body(object))
                .await
                .map(drop);
        }
        let last = &live["metadata"]["annotations"][LAST_APPLIED];
        let last: Option<Value> = last.as_str().and_then(|text| serde_json::from_str(text).ok());
        let mut object = object.clone();
        if object["metadata"]["annotations"].is_null() {
            // kubectl would write one: of the others only those go that the file had.
            object["metadata"]["annotations"] = json!({});
        }
        let patch = three_way(last.as_ref(), &object, &live);
        let path = format!("{path}?fieldManager=kubectl-client-side-apply");
        self.cluster
            .patch(&path, Patch::Merge, body(&patch))
            .await
            .map(drop)
    }

    /// Lists what the plugins reconcile.
    async fn watch(&self, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let Services {
            router,
            informers,
            reach,
            ..
        } = &*self.services;
        for plugin in self.registry.serving() {
            let mut kinds = Vec::new();
            for kind in &plugin.kinds {
                match self.cluster.resource(&kind.gvk).await {
                    Ok(_) => kinds.push(kind),
                    Err(e @ ApiError::UnknownKind(_)) => notes.push(e.to_string()),
                    Err(e) => return Err(e.into()),
                }
            }
            let scopes: Vec<_> = kinds.iter().flat_map(|k| self.services.kind_scopes(k)).collect();
            for scope in &scopes {
                let synced = informers.synced(scope, PATIENCE).await;
                synced.map_err(|why| anyhow::anyhow!("{} can't be listed: {why}", scope.gvk))?;
            }
            let kinds: Vec<Gvk> = kinds.into_iter().map(|k| k.gvk.clone()).collect();
            router.assign(plugin.name(), &kinds, scopes, 1);
        }
        // The host itself reconciles these: those that would be new, or others.
        if self.cluster.resource(&upstream::kind()).await.is_ok() {
            let scopes = reach.everywhere(&upstream::kind(), None, Form::Whole);
            router.assign(&reconcile::upstream::LANE.into(), &[upstream::kind()], scopes, 1);
        }
        Ok(())
    }

    /// The objects to look at.
    async fn choose(
        &self,
        wish: &Wish,
        intended: &[ObjectRef],
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Vec<ObjectRef>> {
        let serving = self.registry.serving();
        let kinds: Vec<&Kind> = serving.iter().flat_map(|p| &p.kinds).collect();
        let ours = |key: &&ObjectRef| kinds.iter().any(|k| k.gvk == key.gvk);
        let mut chosen: Vec<ObjectRef> = intended.iter().filter(ours).cloned().collect();
        let foreign = chosen.len() < intended.len();
        for named in &wish.objects {
            let key = self.named(wish, named, &kinds).await?;
            if wish.delete {
                self.follow_owned(&key, &serving).await;
                self.delete(&key).await?;
            } else if self.services.store.get(&key, Form::Whole).is_none() {
                bail!("{key} does not exist, or its plugin's label selector leaves it out");
            }
            chosen.push(key);
        }
        // Anything may read what no plugin reconciles.
        if wish.objects.is_empty() && (foreign || intended.is_empty()) {
            if foreign {
                notes.push(
                    "files have objects that no plugin reconciles: all that may read them is planned".into(),
                );
            }
            chosen.extend(self.all(wish, &serving).await);
        }
        Ok(chosen)
    }

    /// Everything the plugins reconcile; with other builds, only what these reconcile.
    async fn all(&self, wish: &Wish, serving: &[Arc<Plugin>]) -> Vec<ObjectRef> {
        let reports = self.registry.reports();
        let built = |plugin: &&Arc<Plugin>| {
            let report = reports.iter().find(|r| *r.name == **plugin.name());
            let from = report.map(|r| PathBuf::from(&r.file)).unwrap_or_default();
            wish.builds.is_empty() || wish.builds.contains(&from)
        };
        let mut all = Vec::new();
        for kind in serving.iter().filter(built).flat_map(|p| &p.kinds) {
            for scope in self.services.kind_scopes(kind) {
                let (scope, _) = self.services.informers.ensure(&scope);
                let query = Query {
                    namespace: wish.namespace.as_deref().unwrap_or_default(),
                    labels: kind.selector.as_ref(),
                    ..Query::default()
                };
                let found = self.services.store.list(&scope, &query);
                all.extend(found.into_iter().map(|(key, _)| key));
            }
        }
        all
    }

    /// The object of a `KIND/NAME`.
    async fn named(&self, wish: &Wish, named: &str, kinds: &[&Kind]) -> anyhow::Result<ObjectRef> {
        let Some((kind, name)) = named
            .split_once('/')
            .filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
        else {
            bail!("{named:?}: KIND/NAME is needed, for example team/platform");
        };
        for candidate in kinds {
            let gvk = &candidate.gvk;
            let Ok(resource) = self.cluster.resource(gvk).await else {
                continue;
            };
            let names = [&*gvk.kind, &resource.plural];
            let full = names.map(|name| format!("{name}.{}", gvk.group));
            let mut names = names.into_iter().chain(full.iter().map(|f| &**f));
            if !names.any(|name| name.eq_ignore_ascii_case(kind)) {
                continue;
            }
            let namespace = match resource.namespaced {
                true => &*wish.default_namespace,
                false => "",
            };
            return Ok(ObjectRef::new(gvk.clone(), namespace, name));
        }
        let known: Vec<&str> = kinds.iter().map(|k| &*k.gvk.kind).collect();
        bail!(
            "{named:?}: no plugin here reconciles a kind of this name; they reconcile {}",
            known.join(", ")
        )
    }

    /// Lists what the plugin of an object may have made for it: that goes with it.
    async fn follow_owned(&self, key: &ObjectRef, serving: &[Arc<Plugin>]) {
        let Services { informers, reach, .. } = &*self.services;
        let plugin = serving.iter().find(|p| p.kind(&key.gvk).is_some());
        for (group, kind) in plugin.into_iter().flat_map(|p| p.terms.grants.writable()) {
            let Ok(gvk) = self.cluster.preferred(group, kind).await else {
                continue;
            };
            let scope = reach.of(&gvk, &"".into(), &key.namespace, None, Form::Whole);
            if let Err(why) = informers.synced(&scope, PATIENCE).await {
                tracing::debug!("{gvk} can't be listed: {why}");
            }
        }
    }

    async fn delete(&self, key: &ObjectRef) -> anyhow::Result<()> {
        let path = self.cluster.resource(&key.gvk).await?.object(key);
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.overlay.begin("--delete", None);
        let deleted = self.cluster.delete(&path, options.to_string().into_bytes()).await;
        self.overlay.end(&[]);
        deleted.with_context(|| key.to_string())?;
        Ok(())
    }

    /// Calls the life-cycle hooks as a new leader would, of objects for those that are planned.
    async fn hooks(&self, chosen: &[ObjectRef], notes: &mut Vec<String>) {
        for plugin in self.registry.serving() {
            self.overlay
                .begin(&format!("the hooks of {}", plugin.name()), None);
            if let Err(why) = self.hooks.once(&plugin, |key| chosen.contains(key)).await {
                notes.push(format!("the objects of {} would wait: {why}", plugin.name()));
            }
            self.overlay.end(&[]);
        }
    }

    /// Reconciles until nothing is woken any more.
    async fn run(&self, notes: &mut Vec<String>) -> Vec<Looked> {
        let router = &self.services.router;
        let mut rounds: HashMap<ObjectRef, u32> = HashMap::new();
        let mut looked = BTreeMap::new();
        while let Ok(work) = router.pop() {
            let key = work.key.clone();
            let round = rounds.entry(key.clone()).or_default();
            *round += 1;
            if *round > ROUNDS {
                notes.push(format!(
                    "{key} is woken again and again: given up after {ROUNDS} reconciles"
                ));
                router.forget(&key);
                continue;
            }
            if let Some(one) = self.look(&work, *round).await {
                looked.insert(key, one);
            }
        }
        looked.into_values().collect()
    }

    /// Reconciles one object; none when it is not known how that ends, because it is looked at again.
    async fn look(&self, work: &Work<ObjectRef, Cause>, round: u32) -> Option<Looked> {
        let Services { router, store, .. } = &*self.services;
        let key = &work.key;
        self.overlay.begin(&key.to_string(), Some(key.clone()));
        let (step, reads) = self.controller.step(work).await;
        let ran = self.overlay.end(&reads);
        if step == Step::Fails && ran.conflict && round < ATTEMPTS {
            // Somebody else was faster: it is planned with what that came to.
            if let Err(e) = self.services.effects.read(key, key).await {
                tracing::debug!(object = %key, "not read again: {e}");
            }
            router.add(key, Priority::Normal, Cause::Retry);
            return None;
        }
        let ready = store.get(key, Form::Whole).map(|o| o.ready()).unwrap_or_default();
        let facts = self.ledger.of(key);
        let error = facts.as_ref().and_then(|f| f.errors.last());
        let (reason, message) = match (step, error) {
            (Step::Done | Step::Gone, _) => (String::new(), String::new()),
            (Step::Fails | Step::Parked, Some(error)) if ready.ready || ready.reason.is_empty() => {
                (error.reason.clone(), error.message.clone())
            }
            _ => (ready.reason, ready.message),
        };
        Some(Looked {
            object: key.to_string(),
            plugin: work.lane.to_string(),
            verdict: step.into(),
            reason,
            message,
            guess: ran.guess,
        })
    }

    /// Everything that came of it, fit to be shown.
    fn finish(&self, mut report: Report, since: Timestamp) -> anyhow::Result<Report> {
        let entries = self.overlay.changes();
        let planned = self.overlay.planned();
        let shown = Shown::new(self.secrets(&planned), self.overlay.uids(), since);
        for entry in &entries {
            report.changes.extend(Change::of(entry, &shown));
        }
        (report.requests, report.events) = self.overlay.noted();
        report.hide(&shown);
        report.changes.sort_by(|a, b| a.object.cmp(&b.object));
        Ok(report)
    }

    /// The values of all Secrets that the plan has seen.
    fn secrets(&self, planned: &[Value]) -> Vec<Vec<u8>> {
        let Services { store, informers, .. } = &*self.services;
        let scopes = informers.scopes().into_iter();
        let scopes = scopes.filter(|(s, _)| s.gvk.group.is_empty() && *s.gvk.kind == *"Secret");
        let mut objects: Vec<Value> = scopes
            .flat_map(|(scope, _)| store.list(&scope, &Query::default()))
            .map(|(_, object)| object.value())
            .collect();
        let live = self.overlay.changes().into_iter().filter_map(|e| e.live);
        objects.extend(planned.iter().cloned().chain(live));
        objects.retain(|o| o["kind"] == "Secret" && o["apiVersion"] == "v1");
        let values = objects.iter().flat_map(|o| {
            use base64::{Engine, engine::general_purpose::STANDARD};
            let data = o["data"].as_object().into_iter().flatten();
            let data = data.filter_map(|(_, v)| STANDARD.decode(v.as_str()?).ok());
            let plain = o["stringData"].as_object().into_iter().flatten();
            data.chain(plain.filter_map(|(_, v)| Some(v.as_str()?.as_bytes().to_vec())))
                .collect::<Vec<_>>()
        });
        values.collect()
    }
}

/// Whether a file is a component, and no save that is not done.
fn component(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".wasm") && !name.starts_with('.')
}
