//! Rollout of components: those of the plugin directory, and those that `Plugin` objects name.
//!
//! A new build is loaded ([`crate::plugin::load`]), tried with recordings ([`preflight`]), and handed to
//! [`PluginRegistry::serve`], which decides whether it replaces the build that serves.
//!
//! The directory is watched, not the files: builds rename them into place. Revisions are digests of the content, so
//! that a file that is touched or rebuilt with the same content changes nothing. A file that a `Plugin` object names
//! belongs to that object, and a plugin that is governed by an object is loaded from nowhere else.

mod file_builds;
mod object_builds;
mod plugin_objects;
mod preflight;

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
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{error, info, warn};

pub use self::plugin_objects::PluginObjects;
use self::{
    file_builds::FileBuilds,
    object_builds::{BuildKey, FinishedLoad, PendingLoad},
};
use crate::{
    cache::informer::SYNC_TIMEOUT,
    contract::limits::PluginLimits,
    plugin::{LoadError, Plugin, PluginRegistry, SlotChange, SlotId},
    policy::grants::Grants,
    recording::RecordingStore,
    sandbox::{allocator::release_free_memory, engine::Engine},
};

/// Pause after the last event of a save, which causes several, until the directory is scanned.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(50);

/// Callback for a build that begins to serve (with the one before it), or a plugin that is unloaded.
pub type OnActivate = Box<dyn Fn(Option<&Arc<Plugin>>, Option<&Arc<Plugin>>) + Send + Sync>;

/// Callback for changed grants.
pub type OnGrants = Box<dyn Fn(&Grants) + Send + Sync>;

/// Keeps the registry equal to the plugin directory and the `Plugin` objects.
pub struct Reloader {
    directory: PathBuf,
    engine: Arc<Engine>,
    registry: Arc<PluginRegistry>,
    grants: Grants,
    /// Number of changes of the grants.
    grants_version: u64,
    grants_file: Option<PathBuf>,
    limits: PluginLimits,
    on_activate: OnActivate,
    on_grants: OnGrants,
    recordings: Arc<RecordingStore>,
    objects: Option<Arc<PluginObjects>>,
    /// Builds of `Plugin` objects that are being loaded, or will be retried.
    loading: HashMap<BuildKey, PendingLoad>,
    tasks: JoinSet<FinishedLoad>,
    /// Files of the directory that are being loaded.
    files: FileBuilds,
    retries: JoinSet<BuildKey>,
}

impl Reloader {
    /// Creates a reloader, which loads nothing before [`Reloader::run`]. `grants` is the content of `grants_file`, which
    /// is watched as well.
    pub fn new(
        directory: PathBuf,
        engine: Arc<Engine>,
        registry: Arc<PluginRegistry>,
        grants: Grants,
        grants_file: Option<PathBuf>,
        limits: PluginLimits,
        on_activate: OnActivate,
    ) -> Self {
        Self {
            directory,
            engine,
            registry,
            grants,
            grants_version: 0,
            grants_file,
            limits,
            on_activate,
            on_grants: Box::new(|_| {}),
            recordings: Arc::default(),
            objects: None,
            loading: HashMap::new(),
            tasks: JoinSet::new(),
            files: FileBuilds::default(),
            retries: JoinSet::new(),
        }
    }

    /// Adds a callback for changed grants.
    pub fn on_grants(self, on_grants: OnGrants) -> Self {
        Self { on_grants, ..self }
    }

    /// Adds recordings, which new builds are tried with.
    pub fn with_recordings(self, recordings: Arc<RecordingStore>) -> Self {
        Self { recordings, ..self }
    }

    /// Adds `Plugin` objects to the directory.
    pub fn with_objects(self, objects: Arc<PluginObjects>) -> Self {
        Self {
            objects: Some(objects),
            ..self
        }
    }

    /// Loads the plugins there are, calls `ready`, and then follows changes until it is dropped.
    pub async fn run(mut self, ready: impl FnOnce()) -> anyhow::Result<()> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watcher = create_watcher(sender)?;
        watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
        if let Some(file) = &self.grants_file {
            // The folder is watched: an editor, or a mounted ConfigMap, replaces the file.
            let folder = file.parent().filter(|f| !f.as_os_str().is_empty());
            watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        }
        self.apply_component_policy();
        let mut ready = Some(ready);
        if let Some(objects) = self.objects.clone()
            // No plugin serves before there is a list of `Plugin` objects.
            && tokio::time::timeout(SYNC_TIMEOUT, objects.wait_listed())
                .await
                .is_err()
        {
            // An object may suspend a plugin or narrow its grants: its file must not serve meanwhile.
            warn!("waiting for the list of Plugin objects before loading plugins");
            ready.take().into_iter().for_each(|ready| ready());
            objects.wait_listed().await;
        }
        self.scan(None).await;
        let registry = self.registry.clone();
        let mut has_loaded = false;
        loop {
            self.load_next_file();
            if self.tasks.is_empty() && self.files.is_idle() {
                self.registry.complete_first_load();
                ready.take().into_iter().for_each(|ready| ready());
                if std::mem::take(&mut has_loaded) {
                    tokio::task::spawn_blocking(release_free_memory);
                }
            }
            // Also before all plugins are loaded, which may take minutes: a revoked grant applies at once.
            tokio::select! {
                event = events.recv() => {
                    let since = Instant::now();
                    match event {
                        None => return Ok(()),
                        Some(Err(e)) => warn!(directory = %self.directory.display(), error = %e, "watching plugin directory failed"),
                        Some(Ok(_)) => {}
                    }
                    while let Ok(Some(_)) = tokio::time::timeout(DEBOUNCE_INTERVAL, events.recv()).await {}
                    self.reload_grants();
                    self.scan(Some(since)).await;
                }
                () = registry.rescan_requested() => self.scan(Some(Instant::now())).await,
                Some(loaded) = self.tasks.join_next() => {
                    has_loaded = true;
                    self.finish_load(loaded).await;
                }
                Some(loaded) = self.files.next_finished() => {
                    has_loaded = true;
                    self.finish_file(loaded);
                }
                Some(Ok(key)) = self.retries.join_next() => self.retry_load(key),
            }
        }
    }

    /// Reads the grants file again. If it can't be read or parsed the previous grants stay: without any, a typing error would
    /// stop all plugins. It is shown in the log, in a metric and in the status.
    fn reload_grants(&mut self) {
        let Some(file) = &self.grants_file else { return };
        let name = file.display().to_string();
        let read = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"));
        match read.and_then(|text| Grants::parse(&text, &name)) {
            Ok(grants) if grants == self.grants => self.registry.set_grants_error(None),
            Ok(grants) => {
                self.registry.set_grants_error(None);
                info!(file = name, "grants changed");
                (self.on_grants)(&grants);
                self.grants = grants;
                self.grants_version += 1;
                // A revocation must not wait for the builds that take the place of the revoked ones.
                self.apply_component_policy();
            }
            Err(e) => {
                error!(error = %e, "grants file is invalid, the previous grants still apply");
                self.registry.set_grants_error(Some(e));
            }
        }
    }

    /// Scans every object and every file once; `since` is when the first of them changed.
    async fn scan(&mut self, since: Option<Instant>) {
        let files = match list_components(&self.directory) {
            Ok(files) => files,
            Err(e) => {
                warn!(directory = %self.directory.display(), error = %e, "reading plugin directory failed");
                return;
            }
        };
        // Removals come first: another build may take the freed name or kind.
        for id in self.registry.slot_ids() {
            if matches!(&id, SlotId::File(file) if !files.contains(file)) {
                self.unload(&id);
            }
        }
        let claimed = self.scan_objects(since.unwrap_or_else(Instant::now));
        self.files.retain(&files, &claimed);
        for file in &files {
            let id = SlotId::file(file);
            if !claimed.contains(file) {
                self.scan_file(file, since).await;
            } else if self.registry.serving_in(&id).is_none() {
                self.registry.remove(&id);
            }
        }
    }

    fn unload(&self, id: &SlotId) {
        if let Some(plugin) = self.registry.remove(id) {
            info!(plugin = &**plugin.name(), source = %id, "plugin unloaded");
            (self.on_activate)(None, Some(&plugin));
        }
    }

    fn apply_component_policy(&self) {
        for (id, change) in self.registry.set_component_policy(&self.grants.components) {
            self.apply_change(&id, &change);
        }
    }

    /// Applies grants, limits and suspension to the build that serves at once, even if the newest build is refused.
    fn rebind(&self, id: &SlotId, grants: &Grants, suspended: bool) {
        let change = self.registry.rebind(id, grants, &self.limits, suspended);
        self.apply_change(id, &change);
    }

    /// Has objects reconciled by the builds that serve since a change, and logs the builds that it has stopped.
    fn apply_change(&self, id: &SlotId, change: &SlotChange) {
        for (build, violation) in &change.stopped {
            warn!(source = %id, digest = build.digest, reason = violation.reason, error = %violation.message, "build stopped");
        }
        if change.requires_reconcile() {
            (self.on_activate)(change.now.as_ref(), change.before.as_ref());
        }
    }

    /// Hands a build to the registry, and activates it if that makes it serve.
    fn serve(&self, id: &SlotId, revision: &str, plugin: Plugin, since: Option<Instant>) {
        let took = since.map(|since| since.elapsed());
        let change = match self.registry.serve(id, revision, plugin, took) {
            Ok(change) => change,
            Err(refusal) => return self.refuse(id, revision, refusal),
        };
        self.log_loaded(id, &change, "plugin loaded");
        self.apply_change(id, &change);
    }

    /// Logs the build that serves since a change. Where nothing changed, the change was in the grants of another plugin.
    fn log_loaded(&self, id: &SlotId, change: &SlotChange, message: &str) {
        let Some(now) = change.now.as_ref().filter(|_| change.requires_reconcile()) else {
            return;
        };
        let replaces = change.before.as_ref().map(|before| &before.digest[..12]);
        info!(
            plugin = &**now.name(),
            version = now.version,
            digest = &now.digest[..12],
            source = %id,
            replaces,
            "{message}"
        );
    }

    fn refuse(&self, id: &SlotId, revision: &str, refusal: LoadError) {
        warn!(source = %id, reason = refusal.reason, error = %refusal.message, "loading plugin failed");
        self.registry.record_refusal(id, revision, refusal);
    }
}

/// The component files of a directory. Hidden ones are saves in progress.
fn list_components(directory: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".wasm") && !name.starts_with('.') {
            files.insert(name);
        }
    }
    Ok(files)
}

/// Creates a watcher that sends changes of the watched folders. Opening a file is not sent: a scan opens the files, and
/// would cause the next one forever.
fn create_watcher(
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

    #[test]
    fn retries_of_hosts_that_failed_together_are_spread() {
        for backoff in [object_builds::LOAD_BACKOFF, plugin_objects::DISCOVERY_BACKOFF] {
            let delays: BTreeSet<Duration> = (0..100).map(|_| backoff.delay(5)).collect();
            assert!(delays.len() > 50, "{delays:?}");
        }
    }

    #[tokio::test]
    async fn watcher_ignores_files_that_are_only_read() {
        let folder = tempfile::tempdir().unwrap();
        let [seen, changed] = ["seen.wasm", "changed.wasm"].map(|f| folder.path().join(f));
        std::fs::write(&seen, "").unwrap();
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut watcher = create_watcher(sender).unwrap();
        watcher.watch(folder.path(), RecursiveMode::NonRecursive).unwrap();
        std::fs::read(&seen).unwrap();
        std::fs::write(&changed, "new").unwrap();
        // Events are sent in the order in which they happened.
        let first = events.recv().await.unwrap().unwrap();
        assert_eq!(first.paths, [changed], "{first:?}");
    }
}
