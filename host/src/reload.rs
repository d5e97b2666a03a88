//! Brings components to serve: those of a directory, and those that `Plugin` objects name.
//!
//! The directory is watched, not the files: builds rename them into place. What counts is the content, so a file that
//! is touched or rebuilt alike changes nothing. A file that a `Plugin` object names is that object's, and a plugin
//! that one governs is loaded from nowhere else.

mod objects;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use tracing::{info, warn};

pub use self::objects::Objects;
use self::objects::Wanted;
use crate::{
    engine::{Engine, Limits, hex},
    grants::Grants,
    plugin::{Plugin, Refusal, Registry, Served, choice::Choice, governed, load, of_object, spec::Source},
    replay,
    tape::Tapes,
};

/// A save is several events; this long after the last of them it is looked at.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// What could not be pulled is tried again after so long at first, and at last.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// A start waits so long for the API server to say which `Plugin` objects there are. Nothing serves before that.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a new build may be probed with recordings: a swap is to take 300 ms at most.
const PROBING: Duration = Duration::from_millis(100);

/// Told when a build begins to serve (with the one before it), or when a plugin is gone.
pub type OnSwap = Box<dyn Fn(Option<&Arc<Plugin>>, Option<&Arc<Plugin>>) + Send + Sync>;

/// Told of the grants when they have changed.
pub type OnGrants = Box<dyn Fn(&Grants) + Send + Sync>;

/// Keeps a registry as its directory and the `Plugin` objects are.
pub struct Reloader {
    directory: PathBuf,
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    grants: Grants,
    grants_file: Option<PathBuf>,
    limits: Limits,
    on_swap: OnSwap,
    on_grants: OnGrants,
    tapes: Arc<Tapes>,
    objects: Option<Arc<Objects>>,
    /// What is being loaded for `Plugin` objects, or will be tried again.
    loading: HashMap<Slot, Loading>,
    tasks: JoinSet<Loaded>,
    again: JoinSet<Slot>,
}

/// Which build of which `Plugin` object.
type Slot = (String, Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Stable,
    Canary,
}

struct Loading {
    revision: String,
    wanted: Arc<Wanted>,
    failures: u32,
    task: Option<AbortHandle>,
}

/// A build of a `Plugin` object, ready or not.
struct Loaded {
    slot: Slot,
    revision: String,
    since: Instant,
    result: Result<Plugin, Refusal>,
}

impl Reloader {
    /// Nothing is loaded before [`Reloader::run`]. `grants` are as `grants_file`, which is followed too, has them.
    pub fn new(
        directory: PathBuf,
        engine: Arc<Engine>,
        registry: Arc<Registry>,
        grants: Grants,
        grants_file: Option<PathBuf>,
        limits: Limits,
        on_swap: OnSwap,
    ) -> Self {
        Self {
            directory,
            engine,
            registry,
            grants,
            grants_file,
            limits,
            on_swap,
            on_grants: Box::new(|_| {}),
            tapes: Arc::default(),
            objects: None,
            loading: HashMap::new(),
            tasks: JoinSet::new(),
            again: JoinSet::new(),
        }
    }

    /// The same, telling when the grants have changed.
    pub fn telling(self, on_grants: OnGrants) -> Self {
        Self { on_grants, ..self }
    }

    /// The same, probing new builds with these recordings.
    pub fn probing(self, tapes: Arc<Tapes>) -> Self {
        Self { tapes, ..self }
    }

    /// The same, with these objects besides the directory.
    pub fn following(self, objects: Arc<Objects>) -> Self {
        Self {
            objects: Some(objects),
            ..self
        }
    }

    /// Loads what is there, then follows it until dropped. `ready` is told after the first look.
    pub async fn run(mut self, ready: impl FnOnce()) -> anyhow::Result<()> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watcher = watcher(sender)?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
        if let Some(file) = &self.grants_file {
            // The folder: an editor, or a mounted ConfigMap, puts another file in its place.
            let folder = file.parent().filter(|f| !f.as_os_str().is_empty());
            watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        }
        let mut ready = Some(ready);
        if let Some(objects) = self.objects.clone()
            && tokio::time::timeout(PATIENCE, objects.known()).await.is_err()
        {
            // What an object keeps from serving must not serve meanwhile.
            warn!("nothing is loaded before the API server tells which Plugins there are");
            ready.take().into_iter().for_each(|ready| ready());
            objects.known().await;
        }
        self.scan(None).await;
        while let Some(loaded) = self.tasks.join_next().await {
            self.loaded(loaded).await;
        }
        ready.take().into_iter().for_each(|ready| ready());
        let registry = self.registry.clone();
        loop {
            tokio::select! {
                event = events.recv() => {
                    let since = Instant::now();
                    match event {
                        None => return Ok(()),
                        Some(Err(e)) => warn!("watching {}: {e}", self.directory.display()),
                        Some(Ok(_)) => {}
                    }
                    // Until nothing has happened for a moment.
                    while let Ok(Some(_)) = tokio::time::timeout(DEBOUNCE, events.recv()).await {}
                    self.regrant();
                    self.scan(Some(since)).await;
                }
                () = registry.changed() => self.scan(Some(Instant::now())).await,
                Some(loaded) = self.tasks.join_next() => self.loaded(loaded).await,
                Some(Ok(slot)) = self.again.join_next() => self.retry(slot),
            }
        }
    }

    /// Reads the grants again. A file that can't be read or parsed changes nothing.
    fn regrant(&mut self) {
        let Some(file) = &self.grants_file else { return };
        let name = file.display().to_string();
        let read = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"));
        match read.and_then(|text| Grants::parse(&text, &name)) {
            Ok(grants) if grants == self.grants => {}
            Ok(grants) => {
                info!("{name} has changed: plugins with other grants are loaded anew");
                (self.on_grants)(&grants);
                self.grants = grants;
            }
            Err(e) => warn!("the grants stay as they are: {e}"),
        }
    }

    /// Looks at every object and every file once; `since` is when the first of them changed.
    async fn scan(&mut self, since: Option<Instant>) {
        let files = match component_files(&self.directory) {
            Ok(files) => files,
            Err(e) => {
                warn!(
                    "the plugin directory {} can't be read: {e}",
                    self.directory.display()
                );
                return;
            }
        };
        // First what is gone: something else may take its place.
        let ids = self.registry.slots().into_iter().filter(|id| !id.contains('/'));
        for gone in ids.filter(|f| !files.contains(f)) {
            self.unload(&gone);
        }
        let claimed = self.look_at_objects(since.unwrap_or_else(Instant::now));
        for file in &files {
            if !claimed.contains(file) {
                self.look_at(file, since).await;
            } else if self.registry.serves(file).is_none() {
                self.registry.remove(file);
            }
        }
    }

    fn unload(&self, id: &str) {
        if let Some(plugin) = self.registry.remove(id) {
            info!(plugin = &**plugin.name(), "{id} is gone: unloaded");
            (self.on_swap)(None, Some(&plugin));
        }
    }

    async fn look_at(&self, file: &str, since: Option<Instant>) {
        let path = self.directory.join(file);
        let Ok(wasm) = std::fs::read(&path) else { return };
        let config_path = path.with_extension("yaml");
        let config = match std::fs::read_to_string(&config_path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => {
                let why = format!("its configuration {} can't be read: {e}", config_path.display());
                return self.refuse(file, "", Refusal::new("ConfigInvalid", why));
            }
        };
        let mut content = Sha256::new();
        content.update(&wasm);
        content.update(config.as_deref().unwrap_or("").as_bytes());
        content.update(format!("{:?}", self.grants));
        let digest = hex(&content.finalize());
        if self.registry.knows(file, &digest) {
            return;
        }
        let config = Some(config.as_deref().unwrap_or("{}"));
        self.agree(file, &self.grants, false);
        let compiled = self.registry.compiled(&hex(&Sha256::digest(&wasm)));
        let loaded = match compiled {
            Some(build) => build.agreed(config, &self.grants, &self.limits),
            None => load(&self.engine, wasm, config, &self.grants, &self.limits).await,
        };
        let loaded = match loaded {
            Ok(plugin) => probe(&self.engine, &self.tapes, &self.registry, file, plugin).await,
            Err(refusal) => Err(refusal),
        };
        match loaded {
            Ok(plugin) => {
                let plugin = Plugin {
                    source: file.into(),
                    ..plugin
                };
                self.serve(file, &digest, plugin, since);
            }
            Err(refusal) => self.refuse(file, &digest, refusal),
        }
    }

    /// What is agreed counts at once, and whatever becomes of the newest build.
    fn agree(&self, id: &str, grants: &Grants, suspended: bool) {
        if let Some((now, before)) = self.registry.agree(id, grants, &self.limits, suspended) {
            (self.on_swap)(Some(&now), Some(&before));
        }
    }

    /// Swaps a build in.
    fn serve(&self, id: &str, digest: &str, plugin: Plugin, since: Option<Instant>) {
        let took = since.map(|since| since.elapsed());
        let Served { now, before } = match self.registry.serve(id, digest, plugin, took) {
            Ok(served) => served,
            Err(refusal) => return self.refuse(id, digest, refusal),
        };
        // Somebody else's grants have changed.
        if before.as_ref().is_some_and(|before| before.same(&now)) {
            return;
        }
        let (name, short) = (&**now.name(), &now.digest[..12]);
        let done = if before.is_some() { "swapped in" } else { "loaded" };
        info!(
            plugin = name,
            version = now.version,
            digest = short,
            "{done} {id}"
        );
        (self.on_swap)(Some(&now), before.as_ref());
    }

    fn refuse(&self, id: &str, digest: &str, refusal: Refusal) {
        warn!("{id} is not loaded: {refusal}");
        self.registry.refuse(id, digest, refusal);
    }
}

/// What `Plugin` objects want.
impl Reloader {
    /// Looks at every object; gives the files that are theirs.
    fn look_at_objects(&mut self, since: Instant) -> BTreeSet<String> {
        let Some(objects) = self.objects.clone() else {
            return BTreeSet::new();
        };
        let Some(list) = objects.list() else {
            return BTreeSet::new();
        };
        let names: BTreeSet<String> = list.iter().map(|(key, _)| of_object(&key.name)).collect();
        let slots = self.registry.slots();
        for gone in slots.iter().filter(|id| id.contains('/') && !names.contains(*id)) {
            self.loading.retain(|(name, _), loading| {
                let other = of_object(name) != *gone;
                if !other && let Some(task) = &loading.task {
                    task.abort();
                }
                other
            });
            self.unload(gone);
        }
        let mut claimed = BTreeSet::new();
        for (key, object) in list {
            self.registry.govern(&key.name);
            match Wanted::parse(&key, &object) {
                Ok(wanted) => {
                    claimed.extend(wanted.spec.files().map(str::to_owned));
                    self.want(&Arc::new(wanted), since);
                }
                Err(refusal) => {
                    let id = of_object(&key.name);
                    let revision = format!("generation {}", object.generation);
                    if !self.registry.knows(&id, &revision) {
                        self.refuse(&id, &revision, refusal);
                    }
                    self.registry.observed(&id, object.generation);
                    objects.news(&key.name);
                }
            }
        }
        claimed
    }

    fn want(&mut self, wanted: &Arc<Wanted>, since: Instant) {
        let id = of_object(&wanted.name);
        self.want_part(wanted, Part::Stable, &wanted.spec.source, since);
        let stable = self.loading.contains_key(&(wanted.name.clone(), Part::Stable));
        // What becomes of the canary shows when it is known what is beside it: one that is promoted serves on until
        // then.
        if !stable {
            match &wanted.spec.canary {
                Some(canary) => match Choice::new(&canary.objects) {
                    Ok(choice) => {
                        if self.registry.choose(&id, &choice) {
                            info!(plugin = wanted.name, "the canary reconciles {choice}");
                            self.look_again(&id);
                        }
                        self.want_part(wanted, Part::Canary, &canary.source, since);
                    }
                    Err(why) => self.registry.refuse_canary(
                        &id,
                        "",
                        Choice::Share(0),
                        Some(Refusal::new("SpecInvalid", why)),
                    ),
                },
                None => {
                    self.loading.remove(&(wanted.name.clone(), Part::Canary));
                    if self.registry.drop_canary(&id) {
                        info!(plugin = wanted.name, "there is no canary any more");
                        self.look_again(&id);
                    }
                }
            }
        }
        self.dealt(wanted);
    }

    /// The objects of a plugin are reconciled again: another build may do it.
    fn look_again(&self, id: &str) {
        if let Some(serving) = self.registry.serves(id) {
            (self.on_swap)(Some(&serving), Some(&serving));
        }
    }

    /// Tells the status, when everything has been dealt with as far as it can be.
    fn dealt(&self, wanted: &Wanted) {
        let pending = |part| {
            let loading = self.loading.get(&(wanted.name.clone(), part));
            loading.is_some_and(|l| l.task.is_some() && l.failures == 0)
        };
        if !pending(Part::Stable) && !pending(Part::Canary) {
            self.registry
                .observed(&of_object(&wanted.name), wanted.generation);
            self.news(&wanted.name);
        }
    }

    fn news(&self, plugin: &str) {
        if let Some(objects) = &self.objects {
            objects.news(plugin);
        }
    }

    fn want_part(&mut self, wanted: &Arc<Wanted>, part: Part, source: &Source, since: Instant) {
        let content = match &source.file {
            None => None,
            // A mistake of a person that shows at once: the schema allows no path.
            Some(file) if file.contains('/') => return,
            Some(file) => Some(std::fs::read(self.directory.join(file)).map_err(|e| {
                let why = format!("{file} in the host's plugin directory can't be read: {e}");
                Refusal::new("FileMissing", why)
            })),
        };
        let spec = &wanted.spec;
        let mut revision = Sha256::new();
        revision.update(match &content {
            Some(Ok(wasm)) => hex(&Sha256::digest(wasm)),
            Some(Err(refusal)) => refusal.message.clone(),
            None => String::new(),
        });
        let agreed = json!([source, spec.verify, spec.config, spec.grant(), spec.suspended]);
        revision.update(agreed.to_string());
        let revision = hex(&revision.finalize());
        let id = of_object(&wanted.name);
        let known = match part {
            Part::Stable => self.registry.knows(&id, &revision),
            Part::Canary => self.registry.knows_canary(&id, &revision),
        };
        let slot = (wanted.name.clone(), part);
        // What is agreed counts at once, also where a change that was being loaded is taken back.
        if part == Part::Stable {
            self.agree(
                &id,
                &Grants::of_object(&wanted.name, spec.grant()),
                spec.suspended,
            );
        }
        if let Some(loading) = self.loading.get_mut(&slot).filter(|l| l.revision == revision) {
            loading.wanted = wanted.clone();
            return;
        }
        if let Some(Loading { task: Some(task), .. }) = self.loading.remove(&slot) {
            task.abort();
        }
        if known {
            return;
        }
        if part == Part::Canary
            && let Some(canary) = &spec.canary
            && let Ok(choice) = Choice::new(&canary.objects)
        {
            self.registry.refuse_canary(&id, "", choice, None);
        }
        self.loading.insert(
            slot.clone(),
            Loading {
                revision,
                wanted: wanted.clone(),
                failures: 0,
                task: None,
            },
        );
        self.begin(&slot, content, since);
    }

    /// Loads a build beside everything else.
    fn begin(&mut self, slot: &Slot, content: Option<Result<Vec<u8>, Refusal>>, since: Instant) {
        let (Some(loading), Some(objects)) = (self.loading.get_mut(slot), self.objects.clone()) else {
            return;
        };
        let (engine, registry, limits) = (self.engine.clone(), self.registry.clone(), self.limits.clone());
        let tapes = self.tapes.clone();
        let (slot, revision, wanted) = (slot.clone(), loading.revision.clone(), loading.wanted.clone());
        let twice = self.grants.name(&wanted.name);
        let task = async move {
            let built = build(&engine, &registry, &objects, &wanted, slot.1, content, &limits).await;
            let built = match built {
                Ok(plugin) => probe(&engine, &tapes, &registry, &of_object(&wanted.name), plugin).await,
                Err(refusal) => Err(refusal),
            };
            Loaded {
                slot,
                revision,
                since,
                result: built.map(|mut plugin| {
                    if twice {
                        plugin.notes.push(
                            "the host's grants file has an entry for it, too: this object counts".into(),
                        );
                    }
                    plugin
                }),
            }
        };
        loading.task = Some(self.tasks.spawn(task));
    }

    fn retry(&mut self, slot: Slot) {
        if self.loading.get(&slot).is_some_and(|l| l.task.is_none()) {
            self.begin(&slot, None, Instant::now());
        }
    }

    async fn loaded(&mut self, loaded: Result<Loaded, tokio::task::JoinError>) {
        let Loaded {
            slot,
            revision,
            since,
            result,
        } = match loaded {
            Ok(loaded) => loaded,
            Err(e) if e.is_cancelled() => return,
            Err(e) => return warn!("loading ended: {e}"),
        };
        let Some(loading) = self.loading.get_mut(&slot).filter(|l| l.revision == revision) else {
            return;
        };
        let wanted = loading.wanted.clone();
        loading.task = None;
        match &result {
            Err(refusal) if refusal.passing => {
                let wait = (AGAIN.0 * 2u32.saturating_pow(loading.failures)).min(AGAIN.1);
                loading.failures = (loading.failures + 1).min(16);
                let slot = slot.clone();
                self.again.spawn(async move {
                    tokio::time::sleep(wait).await;
                    slot
                });
            }
            _ => drop(self.loading.remove(&slot)),
        }
        let id = of_object(&wanted.name);
        match (slot.1, result) {
            (Part::Stable, Ok(plugin)) => self.serve(&id, &revision, plugin, Some(since)),
            (Part::Stable, Err(refusal)) => self.refuse(&id, &revision, refusal),
            (Part::Canary, result) => self.serve_canary(&wanted, &revision, result),
        }
        match slot.1 {
            // The canary comes after what is beside it, and files may be free now.
            Part::Stable => self.scan(Some(since)).await,
            Part::Canary => self.dealt(&wanted),
        }
        self.news(&wanted.name);
    }

    fn serve_canary(&self, wanted: &Wanted, revision: &str, result: Result<Plugin, Refusal>) {
        let id = of_object(&wanted.name);
        let Some(Ok(choice)) = wanted.spec.canary.as_ref().map(|c| Choice::new(&c.objects)) else {
            return;
        };
        let served = result.and_then(|plugin| {
            let (version, short) = (plugin.version.clone(), plugin.digest[..12].to_owned());
            self.registry
                .serve_canary(&id, revision, plugin, choice.clone())?;
            info!(
                plugin = wanted.name,
                version,
                digest = short,
                "canary for {choice}"
            );
            Ok(())
        });
        match served {
            Ok(()) => self.look_again(&id),
            Err(refusal) => {
                warn!("the canary of {id} is not loaded: {refusal}");
                self.registry.refuse_canary(&id, revision, choice, Some(refusal));
            }
        }
    }
}

/// Replays recordings of the build before with a build that is to replace it. One that traps where that did not is
/// refused; other differences are told.
async fn probe(
    engine: &Arc<Engine>,
    tapes: &Tapes,
    registry: &Registry,
    id: &str,
    plugin: Plugin,
) -> Result<Plugin, Refusal> {
    let before = registry.serves(id);
    if before.is_none_or(|before| before.digest == plugin.digest) || registry.taken_back(id, &plugin) {
        return Ok(plugin);
    }
    let recordings = tapes.of_plugin(plugin.name());
    if recordings.is_empty() {
        return Ok(plugin);
    }
    let probe = replay::probe(engine, &plugin, &recordings, PROBING).await;
    if let Some(trapped) = probe.trapped.first() {
        let why = format!(
            "it traps where the build before did not: {} (recording {}): {}",
            trapped.object, trapped.recording, trapped.what
        );
        return Err(Refusal::new("TrapsInReplay", why));
    }
    let (name, digest) = (&**plugin.name(), &plugin.digest[..12]);
    match probe.differing.is_empty() {
        true => info!(plugin = name, digest, "{probe}"),
        false => warn!(plugin = name, digest, "other effects than before: {probe}"),
    }
    Ok(Plugin {
        probe: Some(probe),
        ..plugin
    })
}

/// Gets the component of a `Plugin` object and makes a build of it.
async fn build(
    engine: &Arc<Engine>,
    registry: &Registry,
    objects: &Objects,
    wanted: &Wanted,
    part: Part,
    content: Option<Result<Vec<u8>, Refusal>>,
    limits: &Limits,
) -> Result<Plugin, Refusal> {
    let spec = &wanted.spec;
    let source = match (part, &spec.canary) {
        (Part::Canary, Some(canary)) => &canary.source,
        _ => &spec.source,
    };
    let (wasm, note) = match (content, &source.oci) {
        (Some(content), _) => (content?, None),
        (None, Some(oci)) => objects.pull(oci, spec.verify.as_ref()).await?,
        (None, None) => {
            return Err(Refusal::new(
                "SpecInvalid",
                "spec.source names no component".into(),
            ));
        }
    };
    let plugin = governed(engine, registry, &wanted.name, spec, wasm, limits).await?;
    Ok(Plugin {
        source: source.to_string(),
        notes: note.into_iter().collect(),
        ..plugin
    })
}

fn component_files(directory: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".wasm") && !name.starts_with('.') {
            files.insert(name);
        }
    }
    Ok(files)
}

/// Tells what changes in the folders it watches. That a file was opened is none: looking at the files opens them, and
/// would be followed by another look for ever.
fn watcher(
    sender: mpsc::UnboundedSender<notify::Result<notify::Event>>,
) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let written = AccessKind::Close(AccessMode::Write);
        let read = |kind| matches!(kind, EventKind::Access(how) if how != written);
        if !event.as_ref().is_ok_and(|e| read(e.kind)) {
            let _ = sender.send(event);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_at_the_files_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let [seen, changed] = ["seen.wasm", "changed.wasm"].map(|f| folder.path().join(f));
        std::fs::write(&seen, "").unwrap();
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watcher = watcher(sender).unwrap();
        watcher.watch(folder.path(), RecursiveMode::NonRecursive).unwrap();
        std::fs::read(&seen).unwrap();
        std::fs::write(&changed, "new").unwrap();
        // They come in the order in which they happened.
        let first = events.recv().await.unwrap().unwrap();
        assert_eq!(first.paths, [changed], "{first:?}");
    }
}
