//! Brings components to serve: those of a directory, and those that `Plugin` objects name.
//!
//! The directory is watched, not the files: builds rename them into place. What counts is the content, so a file that
//! is touched or rebuilt alike changes nothing. A file that a `Plugin` object names is that object's, and a plugin
//! that one governs is loaded from nowhere else.

mod plugin_objects;
mod preflight;
mod wanted;

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
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{info, warn};

pub use self::plugin_objects::Objects;
use self::{
    preflight::probe,
    wanted::{Loaded, Loading, Slot},
};
use crate::{
    contract::limits::Limits,
    kube::hash::encode_hex,
    plugin::{Plugin, Refusal, Registry, Served, load},
    policy::grants::Grants,
    recording::Tapes,
    sandbox::engine::Engine,
};

/// A save is several events; this long after the last of them it is looked at.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A start waits so long for the API server to say which `Plugin` objects there are. Nothing serves before that.
const PATIENCE: Duration = Duration::from_secs(10);

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
        let digest = encode_hex(&content.finalize());
        if self.registry.knows(file, &digest) {
            return;
        }
        let config = Some(config.as_deref().unwrap_or("{}"));
        self.agree(file, &self.grants, false);
        let compiled = self.registry.compiled(&encode_hex(&Sha256::digest(&wasm)));
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
