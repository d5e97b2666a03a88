//! The tape: what passes the door between component and host, kept for those who want to see it again.
//!
//! While a reconcile runs values are only copied; they are made readable when somebody reads them. Of plugins
//! that may read Secrets no value is kept at all, for what a component made of a secret can't be recognised.

mod buffer;
pub mod codec;
mod difference;
pub mod format;
pub mod recorder;
mod replayer;
pub mod trace;
pub mod value;
pub mod wasi;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc;

use self::{
    buffer::Ring,
    recorder::{About, Answer, Finished, Rolling},
    trace::Line,
    wasi::Surroundings,
};
pub use self::{
    difference::Difference,
    replayer::{Player, Stop},
};
use crate::kube::key::ObjectRef;

/// Which reconciles are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Keep {
    /// Those that fail: retried, parked, denied or trapped.
    #[default]
    Failures,
    /// All.
    All,
    /// None; one that is asked for is recorded all the same.
    None,
}

/// What is kept, and how much of it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which reconciles.
    pub keep: Keep,
    /// How many recordings.
    pub count: usize,
    /// Bytes of all of them together; one may have an eighth.
    pub bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            keep: Keep::default(),
            count: 200,
            bytes: 32 << 20,
        }
    }
}

/// Failures of one object, so that who fails again and again leaves place for others.
const EACH: usize = 4;

/// Of each plugin, the last reconciles that went well: a new build is probed with them.
const RECENT: usize = 16;
const RECENT_BYTES: usize = 1 << 20;

/// Lines that wait for a reader who is slow; and recordings, which are large.
const WAITING: usize = 1024;
const WAITING_RECORDINGS: usize = 8;

/// What a call does with what passes the door.
#[derive(Default)]
pub enum Tape {
    /// Nothing.
    #[default]
    Off,
    /// Records it.
    Rolling(Box<Rolling>),
    /// Answers from a recording; nothing is called.
    Playing(Player),
}

impl Tape {
    /// Whether it is a replay.
    pub fn plays(&self) -> bool {
        matches!(self, Self::Playing(_))
    }

    /// What a component with WASI is to see; none for the world as it is.
    pub fn surroundings(&mut self) -> Option<Surroundings> {
        match self {
            Self::Off => None,
            Self::Rolling(rolling) => Some(rolling.surroundings()),
            Self::Playing(player) => Some(player.surroundings()),
        }
    }

    /// The component's call has ended; gives what was recorded of it.
    pub fn finish(self, answer: &Answer, cpu: Duration) -> Option<Finished> {
        match self {
            Self::Rolling(rolling) => Some(rolling.finish(answer, cpu)),
            Self::Off | Self::Playing(_) => None,
        }
    }
}

/// Recordings of a host, and who follows what happens.
pub struct Tapes {
    settings: Settings,
    kept: Mutex<Ring>,
    recent: Mutex<HashMap<Arc<str>, Ring>>,
    following: AtomicUsize,
    followers: Mutex<Vec<(ObjectRef, Sink)>>,
    next: AtomicU64,
}

impl Default for Tapes {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

/// What is told to who follows an object.
pub enum News {
    /// A line of the trace.
    Line(Line),
    /// A reconcile, from beginning to end.
    Recording(Arc<Finished>),
}

/// What somebody wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Each host call as it happens.
    Lines,
    /// Each reconcile when it has ended.
    Recordings,
}

/// Where news go.
#[derive(Clone)]
pub struct Sink {
    id: u64,
    wanted: Wanted,
    sender: mpsc::Sender<News>,
    lost: Arc<AtomicU64>,
}

impl Sink {
    fn lines(&self) -> bool {
        self.wanted == Wanted::Lines
    }

    /// Never waits: a reconcile is not held up by who looks at it.
    fn line(&self, line: &Line) {
        if self.lines()
            && let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(News::Line(line.clone()))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A recording for which there is no place is none of those that were asked for: the next one is.
    fn recording(&self, finished: &Arc<Finished>) {
        if !self.lines() {
            let _ = self.sender.try_send(News::Recording(finished.clone()));
        }
    }
}

/// Follows an object until it is dropped.
pub struct Following {
    tapes: Arc<Tapes>,
    id: u64,
    news: mpsc::Receiver<News>,
    lost: Arc<AtomicU64>,
}

impl Following {
    /// What happens next.
    pub async fn next(&mut self) -> Option<News> {
        match self.lost.swap(0, Ordering::Relaxed) {
            0 => self.news.recv().await,
            lines => Some(News::Line(Line::Lost { lines })),
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followers = self.tapes.followers.lock().expect("lock");
        followers.retain(|(_, sink)| sink.id != self.id);
        self.tapes.following.store(followers.len(), Ordering::Relaxed);
    }
}

impl Tapes {
    /// Nothing is kept yet.
    pub fn new(settings: Settings) -> Self {
        let each = match settings.keep {
            Keep::All => settings.count,
            Keep::Failures | Keep::None => EACH,
        };
        Self {
            kept: Mutex::new(Ring::new(settings.count, settings.bytes, each)),
            recent: Mutex::default(),
            following: AtomicUsize::new(0),
            followers: Mutex::default(),
            next: AtomicU64::new(0),
            settings,
        }
    }

    /// A tape for a reconcile that begins; `about` is asked only when there is to be one.
    pub fn begin(&self, key: &ObjectRef, about: impl FnOnce() -> About) -> Tape {
        let sinks = match self.following.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => {
                let followers = self.followers.lock().expect("lock");
                let of_this = followers.iter().filter(|(followed, _)| followed == key);
                of_this.map(|(_, sink)| sink.clone()).collect()
            }
        };
        if self.settings.keep == Keep::None && sinks.is_empty() {
            return Tape::Off;
        }
        let about = about();
        let secret = about.key.gvk.is_secret();
        let withheld = secret || about.terms.grants.can_read_secrets();
        Tape::Rolling(Box::new(Rolling::new(
            about,
            self.settings.bytes / 8,
            withheld,
            sinks,
        )))
    }

    /// A reconcile has ended, and failed or not: keeps it where it is to be kept.
    pub fn keep(&self, finished: Finished, failed: bool) {
        let finished = finished.delivered();
        if match self.settings.keep {
            Keep::None => return,
            Keep::All => true,
            Keep::Failures => failed,
        } {
            self.kept.lock().expect("lock").push(finished.clone());
        }
        if !failed && finished.replayable() {
            let mut recent = self.recent.lock().expect("lock");
            if let Some(ring) = recent.get_mut(finished.plugin()) {
                ring.push(finished);
                return;
            }
            let mut ring = Ring::new(RECENT, RECENT_BYTES, 1);
            let plugin = finished.plugin().clone();
            ring.push(finished);
            recent.insert(plugin, ring);
        }
    }

    /// A plugin is gone: no build of it will be probed. What failed stays, for those who look for why.
    pub fn forget(&self, plugin: &str) {
        self.recent.lock().expect("lock").remove(plugin);
    }

    /// What is kept, newest first.
    pub fn kept(&self) -> Vec<Arc<Finished>> {
        self.kept.lock().expect("lock").all().rev().cloned().collect()
    }

    /// The last that is known of an object: a failure that was kept, or a success that is not forgotten yet.
    pub fn last(&self, key: &ObjectRef) -> Option<Arc<Finished>> {
        let of_this = |finished: &&Arc<Finished>| finished.key() == key;
        let kept = self.kept.lock().expect("lock").all().rev().find(of_this).cloned();
        let recent = self.recent.lock().expect("lock");
        let went_well = recent.values().flat_map(Ring::all).filter(of_this).cloned();
        went_well.chain(kept).max_by_key(|f| f.at())
    }

    /// What a new build of a plugin is probed with: its last successes, and its failures.
    pub fn of_plugin(&self, plugin: &str) -> Vec<Arc<Finished>> {
        let mut found: Vec<_> = match self.recent.lock().expect("lock").get(plugin) {
            Some(ring) => ring.all().rev().cloned().collect(),
            None => Vec::new(),
        };
        let kept = self.kept.lock().expect("lock");
        let of_this = |f: &&Arc<Finished>| **f.plugin() == *plugin && f.replayable();
        let others = kept.all().rev().filter(of_this).take(RECENT);
        for finished in others {
            if !found.iter().any(|f| Arc::ptr_eq(f, finished)) {
                found.push(finished.clone());
            }
        }
        found
    }

    /// Whether anybody follows anything.
    pub fn followed(&self) -> bool {
        self.following.load(Ordering::Relaxed) > 0
    }

    /// How many recordings are kept, and their bytes; those for probes are not counted.
    pub fn size(&self) -> (usize, usize) {
        self.kept.lock().expect("lock").size()
    }

    /// Follows an object from its next reconcile on.
    pub fn follow(self: &Arc<Self>, key: &ObjectRef, wanted: Wanted) -> Following {
        let (sender, news) = mpsc::channel(match wanted {
            Wanted::Lines => WAITING,
            Wanted::Recordings => WAITING_RECORDINGS,
        });
        let lost = Arc::new(AtomicU64::new(0));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let sink = Sink {
            id,
            wanted,
            sender,
            lost: lost.clone(),
        };
        let mut followers = self.followers.lock().expect("lock");
        followers.push((key.clone(), sink));
        self.following.store(followers.len(), Ordering::Relaxed);
        drop(followers);
        Following {
            tapes: self.clone(),
            id,
            news,
            lost,
        }
    }
}
