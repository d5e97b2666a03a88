//! Builds of the plugin directory: found by a scan, and loaded in the background one after the other.
//!
//! A scan only reads what has changed and applies grants at once, so that a component that takes minutes to compile does
//! not delay a revoked grant. Loads keep the order of the scan: of two files with the same plugin the first one serves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Instant, SystemTime},
};

use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tracing::warn;

use super::{Reloader, object_builds::LOAD_BACKOFF, preflight::preflight_replay};
use crate::{
    kube::{hash::encode_hex, well_known::plugin_reason},
    plugin::{LoadError, Plugin, SlotId, load},
    policy::grants::Grants,
};

/// Component files of the directory: their known digests, and what is to be loaded.
#[derive(Default)]
pub(super) struct FileBuilds {
    known: HashMap<String, KnownFile>,
    /// Files whose newest revision is not loaded yet, in the order of their names.
    waiting: BTreeMap<String, FileBuild>,
    /// The file that is being loaded.
    running: Option<String>,
    tasks: JoinSet<FinishedFile>,
}

/// The digest of a file, and the metadata by which a change of it is noticed.
struct KnownFile {
    version: FileVersion,
    digest: String,
}

/// Metadata that differs after each write of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

/// A revision of a file that is to be loaded.
#[derive(Clone)]
struct FileBuild {
    revision: String,
    digest: String,
    config: String,
    grants: Grants,
    since: Option<Instant>,
}

/// Result of the load of a file.
pub(super) struct FinishedFile {
    file: String,
    build: FileBuild,
    result: Result<Plugin, LoadError>,
}

impl FileBuilds {
    /// True while nothing is loaded and nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Waits for the next file to be loaded; none while there is none.
    pub(super) async fn next_finished(&mut self) -> Option<Result<FinishedFile, tokio::task::JoinError>> {
        self.tasks.join_next().await
    }

    /// Drops what is known of files that are gone, or belong to `Plugin` objects now.
    pub(super) fn retain(&mut self, files: &BTreeSet<String>, claimed: &BTreeSet<String>) {
        self.known.retain(|file, _| files.contains(file));
        self.waiting
            .retain(|file, _| files.contains(file) && !claimed.contains(file));
    }

    /// The digest of a file, which is read only if its metadata differs from when it was last read. None if it is gone.
    pub(super) async fn find_digest(&mut self, file: &str, path: PathBuf) -> Option<String> {
        let version = std::fs::metadata(&path).ok().and_then(|metadata| {
            Some(FileVersion {
                modified: metadata.modified().ok()?,
                bytes: metadata.len(),
                inode: metadata.ino(),
            })
        })?;
        if let Some(known) = self.known.get(file).filter(|known| known.version == version) {
            return Some(known.digest.clone());
        }
        let hashed = tokio::task::spawn_blocking(move || hash_file(path)).await;
        let digest = hashed.ok()?.ok()?;
        let known = KnownFile {
            version,
            digest: digest.clone(),
        };
        self.known.insert(file.to_owned(), known);
        Some(digest)
    }
}

fn hash_file(path: PathBuf) -> std::io::Result<String> {
    Ok(encode_hex(&Sha256::digest(std::fs::read(path)?)))
}

impl Reloader {
    /// Applies the grants to a component file, and has it loaded if its content, its configuration or the grants have
    /// changed.
    pub(super) async fn scan_file(&mut self, file: &str, since: Option<Instant>) {
        let (id, path) = (SlotId::file(file), self.directory.join(file));
        self.rebind(&id, &self.grants, false);
        let Some(digest) = self.files.find_digest(file, path.clone()).await else {
            return;
        };
        let config_path = path.with_extension("yaml");
        let config = match std::fs::read_to_string(&config_path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => {
                self.files.waiting.remove(file);
                let why = format!("its configuration {} can't be read: {e}", config_path.display());
                return self.refuse(&id, "", LoadError::new(plugin_reason::INVALID_CONFIG, why));
            }
        };
        let mut content = Sha256::new();
        content.update(&digest);
        content.update(config.as_deref().unwrap_or("").as_bytes());
        content.update(self.grants_version.to_le_bytes());
        let revision = encode_hex(&content.finalize());
        if self.registry.is_current(&id, &revision) {
            self.files.waiting.remove(file);
            return;
        }
        let build = FileBuild {
            revision,
            digest,
            config: config.unwrap_or_else(|| "{}".into()),
            grants: self.grants.clone(),
            since,
        };
        self.files.waiting.insert(file.to_owned(), build);
    }

    /// Loads the next file that waits, unless one is being loaded.
    pub(super) fn load_next_file(&mut self) {
        if self.files.running.is_some() {
            return;
        }
        let Some((file, build)) = self.files.waiting.first_key_value() else {
            return;
        };
        let (file, build) = (file.clone(), build.clone());
        let (engine, registry) = (self.engine.clone(), self.registry.clone());
        let (recordings, limits) = (self.recordings.clone(), self.limits.clone());
        let path = self.directory.join(&file);
        self.files.running = Some(file.clone());
        self.files.tasks.spawn(async move {
            let config = Some(build.config.as_str());
            let loaded = match registry.find_compiled(&build.digest) {
                Some(compiled) => compiled.reconfigure(config, &build.grants, &limits),
                None => match tokio::task::spawn_blocking(move || std::fs::read(path)).await {
                    Ok(Ok(wasm)) => load(&engine, wasm, config, &build.grants, &limits).await,
                    Ok(Err(e)) => Err(unreadable(&e)),
                    Err(e) => Err(unreadable(&e)),
                },
            };
            let id = SlotId::file(&file);
            let result = match loaded {
                Ok(plugin) => match build.grants.components.check_component(&plugin.digest, &file) {
                    Ok(()) => preflight_replay(&engine, &recordings, &registry, &id, plugin).await,
                    Err(violation) => Err(violation.into()),
                },
                Err(refusal) => Err(refusal),
            };
            FinishedFile { file, build, result }
        });
    }

    /// Has a loaded file serve, unless it has changed meanwhile.
    pub(super) fn finish_file(&mut self, finished: Result<FinishedFile, tokio::task::JoinError>) {
        let running = self.files.running.take();
        let FinishedFile { file, build, result } = match finished {
            Ok(finished) => finished,
            Err(e) => {
                // Without it the same file would be loaded again for ever.
                running.and_then(|file| self.files.waiting.remove(&file));
                return warn!(error = %e, "load task panicked");
            }
        };
        let Some(wanted) = self.files.waiting.get(&file).cloned() else {
            return;
        };
        // Replaced while it was compiled: the new content waits already.
        if wanted.digest != build.digest {
            return;
        }
        // Replaced after the scan and before it was read: the next scan reads its new digest.
        if result.as_ref().is_ok_and(|plugin| plugin.digest != wanted.digest) {
            self.files.waiting.remove(&file);
            self.files.known.remove(&file);
            return self.registry.request_rescan();
        }
        // Grants that were changed or revoked meanwhile must not serve.
        let result = match result {
            Ok(plugin) if wanted.revision != build.revision => {
                plugin.reconfigure(Some(&wanted.config), &wanted.grants, &self.limits)
            }
            Err(_) if wanted.revision != build.revision => return,
            result => result,
        };
        self.files.waiting.remove(&file);
        let id = SlotId::file(&file);
        let result = result.and_then(|plugin| {
            // A file of a plugin that has a Plugin object is refused for that reason.
            if !self.registry.is_reserved(plugin.name()) {
                plugin.check_file_name(&file)?;
            }
            Ok(plugin)
        });
        match result {
            Ok(plugin) => {
                let source = file;
                self.serve(&id, &wanted.revision, Plugin { source, ..plugin }, wanted.since);
            }
            Err(refusal) if refusal.passing => {
                // Without a revision the next scan loads it again.
                self.refuse(&id, "", refusal);
                let registry = self.registry.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LOAD_BACKOFF.delay(1)).await;
                    registry.request_rescan();
                });
            }
            Err(refusal) => self.refuse(&id, &wanted.revision, refusal),
        }
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> LoadError {
    LoadError::new(
        plugin_reason::FILE_NOT_FOUND,
        format!("the component can't be read: {error}"),
    )
}
