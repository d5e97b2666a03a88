//! Follows a directory of components: what is saved there serves within a moment.
//!
//! The directory is watched, not the files: builds rename them into place. What
//! counts is the content, so a file that is touched or rebuilt alike changes nothing.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{
    engine::{Engine, Limits, hex},
    grants::Grants,
    plugin::{Plugin, Registry, load},
    replay::{self, Probe},
    tape::Tapes,
};

/// A save is several events; this long after the last of them it is looked at.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// How long a new build may be probed with recordings: a swap is to take 300 ms at most.
const PROBING: Duration = Duration::from_millis(100);

/// Told when a build begins to serve (with the one before it), or when a plugin is gone.
pub type OnSwap = Box<dyn Fn(Option<&Arc<Plugin>>, Option<&Arc<Plugin>>) + Send + Sync>;

/// Told of the grants when they have changed.
pub type OnGrants = Box<dyn Fn(&Grants) + Send + Sync>;

/// Keeps a registry as its directory is.
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

    /// What recordings say of a build that is to replace another. The error says why it may not.
    async fn probe(&self, file: &str, plugin: &Plugin) -> Result<Option<Probe>, String> {
        let before = self.registry.of_file(file);
        if before.is_none_or(|before| before.digest == plugin.digest) {
            return Ok(None);
        }
        let recordings = self.tapes.of_plugin(plugin.name());
        if recordings.is_empty() {
            return Ok(None);
        }
        let probe = replay::probe(&self.engine, plugin, &recordings, PROBING).await;
        match probe.trapped.first() {
            Some(trapped) => Err(format!(
                "it traps where the build before did not: {} (recording {}): {}",
                trapped.object, trapped.recording, trapped.what
            )),
            None => Ok(Some(probe)),
        }
    }

    /// Loads what is there, then follows the directory until dropped. `ready` is told after the first scan.
    pub async fn run(mut self, ready: impl FnOnce()) -> anyhow::Result<()> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watcher = watcher(sender)?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
        if let Some(file) = &self.grants_file {
            // The folder: an editor, or a mounted ConfigMap, puts another file in its place.
            let folder = file.parent().filter(|f| !f.as_os_str().is_empty());
            watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        }
        self.scan(None).await;
        ready();
        while let Some(event) = events.recv().await {
            let since = Instant::now();
            if let Err(e) = event {
                warn!("watching {}: {e}", self.directory.display());
            }
            // Until nothing has happened for a moment.
            while let Ok(Some(_)) = tokio::time::timeout(DEBOUNCE, events.recv()).await {}
            self.regrant();
            self.scan(Some(since)).await;
        }
        Ok(())
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

    /// Looks at every file once; `since` is when the first of them changed.
    async fn scan(&self, since: Option<Instant>) {
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
        for file in &files {
            self.look_at(file, since).await;
        }
        for gone in self.registry.files().into_iter().filter(|f| !files.contains(f)) {
            if let Some(plugin) = self.registry.remove(&gone) {
                info!(plugin = &**plugin.name(), "{gone} is gone: unloaded");
                (self.on_swap)(None, Some(&plugin));
            }
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
                return self.refuse(
                    file,
                    "",
                    format!("its configuration {} can't be read: {e}", config_path.display()),
                );
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
        let plugin = match load(&self.engine, wasm, config.as_deref(), &self.grants, &self.limits).await {
            Ok(plugin) => Arc::new(plugin),
            Err(message) => return self.refuse(file, &digest, message),
        };
        let probe = match self.probe(file, &plugin).await {
            Ok(probe) => probe,
            Err(message) => return self.refuse(file, &digest, message),
        };
        let took = since.map(|since| since.elapsed());
        match self.registry.serve(file, &digest, plugin.clone(), took) {
            // Somebody else's grants have changed.
            Ok(Some(before)) if before.digest == plugin.digest && before.terms.same(&plugin.terms) => {}
            Ok(before) => {
                let (name, short) = (&**plugin.name(), &plugin.digest[..12]);
                match &before {
                    Some(_) => info!(
                        plugin = name,
                        version = plugin.version,
                        digest = short,
                        "swapped in {file}"
                    ),
                    None => info!(
                        plugin = name,
                        version = plugin.version,
                        digest = short,
                        "loaded {file}"
                    ),
                }
                if let Some(probe) = probe {
                    match probe.differing.is_empty() {
                        true => info!(plugin = name, digest = short, "{probe}"),
                        false => warn!(
                            plugin = name,
                            digest = short,
                            "other effects than before: {probe}"
                        ),
                    }
                    self.registry.probed(file, probe);
                }
                (self.on_swap)(Some(&plugin), before.as_ref());
            }
            Err(message) => self.refuse(file, &digest, message),
        }
    }

    fn refuse(&self, file: &str, digest: &str, message: String) {
        warn!("{file} is not loaded: {message}");
        self.registry.refuse(file, digest, message);
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
