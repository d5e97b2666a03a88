//! The recordings that a host stores, within limits of number and bytes.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use super::{
    CallMode,
    buffer::RecordingBuffer,
    follow::{FollowKind, FollowStream, Followers},
    recorder::{CallInfo, ProgressBudget, RecordedCall, Recorder},
};
use crate::kube::key::ObjectRef;

/// The reconciles whose recordings are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Retention {
    /// Reconciles that fail: retried, terminal, denied or trapped.
    #[default]
    Failures,
    /// All reconciles.
    All,
    /// No reconciles. A recording that is requested is made all the same.
    None,
}

/// Limits of the stored recordings.
#[derive(Clone, Debug)]
pub struct RecordingSettings {
    /// The reconciles whose recordings are stored.
    pub retention: Retention,
    /// Maximum number of recordings.
    pub max_count: usize,
    /// Maximum bytes of all recordings together. One recording may have an eighth.
    pub max_bytes: usize,
}

impl Default for RecordingSettings {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            max_count: 200,
            max_bytes: 32 << 20,
        }
    }
}

/// Maximum number of stored failures of one object, so that an object that keeps failing does not evict all others.
const MAX_FAILURES_PER_OBJECT: usize = 4;

/// Maximum number of recent successes stored per plugin, for the preflight of a new build.
const MAX_RECENT_PER_PLUGIN: usize = 16;
/// Maximum bytes of the recent successes stored per plugin.
const MAX_RECENT_BYTES: usize = 1 << 20;

/// The recordings of a host, and the clients that follow its reconciles.
pub struct RecordingStore {
    /// Bytes of the recordings in progress, as many as may be stored.
    in_progress: ProgressBudget,
    settings: RecordingSettings,
    stored: Mutex<RecordingBuffer>,
    /// The last successes of each plugin, with which the preflight of a new build is replayed.
    recent: Mutex<HashMap<Arc<str>, RecordingBuffer>>,
    followers: Arc<Followers>,
}

impl Default for RecordingStore {
    fn default() -> Self {
        Self::new(RecordingSettings::default())
    }
}

impl RecordingStore {
    /// An empty store.
    pub fn new(settings: RecordingSettings) -> Self {
        let max_per_object = match settings.retention {
            Retention::All => settings.max_count,
            Retention::Failures | Retention::None => MAX_FAILURES_PER_OBJECT,
        };
        let stored = RecordingBuffer::new(settings.max_count, settings.max_bytes, max_per_object);
        Self {
            in_progress: ProgressBudget::new(settings.max_bytes),
            settings,
            stored: Mutex::new(stored),
            recent: Mutex::default(),
            followers: Arc::default(),
        }
    }

    /// Chooses the mode of a reconcile that begins. `info` is called only if the reconcile is recorded.
    pub fn begin_call(&self, key: &ObjectRef, info: impl FnOnce() -> CallInfo) -> CallMode {
        let followers = self.followers.list_followers(key);
        if self.settings.retention == Retention::None && followers.is_empty() {
            return CallMode::Live;
        }
        let info = info();
        let max_bytes = self.settings.max_bytes / 8;
        // A recording without its message could not be replayed.
        if info.input_bytes() > max_bytes && info.function() == "handle" {
            return CallMode::Live;
        }
        let withheld = info.key.gvk.is_secret() || info.policy.grants.can_read_secrets();
        CallMode::Record(Box::new(Recorder::new(
            info,
            max_bytes,
            self.in_progress.clone(),
            withheld,
            followers,
        )))
    }

    /// Sends the recording of a reconcile that has ended to its followers, and stores it if the settings say so.
    pub fn store_call(&self, recorded: RecordedCall, failed: bool) {
        let recorded = recorded.send_to_followers();
        let stores = match self.settings.retention {
            Retention::None => return,
            Retention::All => true,
            Retention::Failures => failed,
        };
        if stores {
            let evicted = self.stored.lock().push(recorded.clone());
            drop(evicted);
        }
        if !failed && recorded.is_replayable() {
            let evicted = self.push_recent(recorded);
            drop(evicted);
        }
    }

    /// Adds a success to those of its plugin. Returns those that were evicted.
    fn push_recent(&self, recorded: Arc<RecordedCall>) -> Vec<Arc<RecordedCall>> {
        let mut recent = self.recent.lock();
        if let Some(buffer) = recent.get_mut(recorded.plugin()) {
            return buffer.push(recorded);
        }
        let plugin = recorded.plugin().clone();
        let new = RecordingBuffer::new(MAX_RECENT_PER_PLUGIN, MAX_RECENT_BYTES, 1);
        recent.entry(plugin).or_insert(new).push(recorded)
    }

    /// Drops the recent successes of a plugin that was unloaded. Its failures stay for those who look for the reason.
    pub fn forget_plugin(&self, plugin: &str) {
        self.recent.lock().remove(plugin);
    }

    /// The stored recordings, newest first.
    pub fn list(&self) -> Vec<Arc<RecordedCall>> {
        self.stored.lock().recordings().rev().cloned().collect()
    }

    /// The last recording of an object: a stored one, or a recent success.
    pub fn last(&self, key: &ObjectRef) -> Option<Arc<RecordedCall>> {
        let is_of_object = |recorded: &&Arc<RecordedCall>| recorded.key() == key;
        let stored = self.stored.lock().recordings().rev().find(is_of_object).cloned();
        let recent = self.recent.lock();
        let successes = recent.values().flat_map(RecordingBuffer::recordings);
        let successes = successes.filter(is_of_object).cloned();
        successes
            .chain(stored)
            .max_by_key(|recorded| recorded.started_at())
    }

    /// The recordings for the preflight of a new build of a plugin: its last successes, then its failures.
    pub fn list_replayable(&self, plugin: &str) -> Vec<Arc<RecordedCall>> {
        let mut found: Vec<_> = match self.recent.lock().get(plugin) {
            Some(buffer) => buffer.recordings().rev().cloned().collect(),
            None => Vec::new(),
        };
        let stored = self.stored.lock();
        let is_usable = |r: &&Arc<RecordedCall>| **r.plugin() == *plugin && r.is_replayable();
        let others = stored
            .recordings()
            .rev()
            .filter(is_usable)
            .take(MAX_RECENT_PER_PLUGIN);
        for recorded in others {
            if !found.iter().any(|other| Arc::ptr_eq(other, recorded)) {
                found.push(recorded.clone());
            }
        }
        found
    }

    /// True while a client follows any object.
    pub fn is_followed(&self) -> bool {
        !self.followers.is_empty()
    }

    /// The number of stored recordings and their bytes, without the recent successes.
    pub fn size(&self) -> (usize, usize) {
        self.stored.lock().size()
    }

    /// Follows an object from its next reconcile on.
    pub fn follow(&self, key: &ObjectRef, kind: FollowKind) -> FollowStream {
        self.followers.follow(key, kind)
    }
}
