//! Followers of an object: `ostler trace` and `ostler record` receive its host calls or its recordings as they happen.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{recorder::RecordedCall, trace::TraceLine};
use crate::kube::key::ObjectRef;

/// Maximum number of lines that wait for a slow follower. Further lines are dropped and counted.
const MAX_PENDING_LINES: usize = 1024;
/// Maximum number of recordings, which are large, that wait for a slow follower.
const MAX_PENDING_RECORDINGS: usize = 8;

/// An event that a follower receives.
pub enum FollowEvent {
    /// A line of the trace.
    Line(TraceLine),
    /// The recording of a whole reconcile.
    Recording(Arc<RecordedCall>),
}

/// The events that a follower receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowKind {
    /// Each host call when it returns.
    Lines,
    /// Each reconcile when it has ended.
    Recordings,
}

/// The sending half of a follower.
#[derive(Clone)]
pub struct Follower {
    id: u64,
    kind: FollowKind,
    sender: mpsc::Sender<FollowEvent>,
    lost_lines: Arc<AtomicU64>,
}

impl Follower {
    /// True if it receives lines.
    pub(super) fn receives_lines(&self) -> bool {
        self.kind == FollowKind::Lines
    }

    /// Sends a line. It never waits, because a slow follower must not delay the reconcile: without room the line is
    /// dropped and counted.
    pub(super) fn send_line(&self, line: &TraceLine) {
        if self.receives_lines()
            && let Err(mpsc::error::TrySendError::Full(_)) =
                self.sender.try_send(FollowEvent::Line(line.clone()))
        {
            self.lost_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a recording. Without room it is dropped, and the next one is delivered in its place.
    pub(super) fn send_recording(&self, recorded: &Arc<RecordedCall>) {
        if self.kind == FollowKind::Recordings {
            let _ = self.sender.try_send(FollowEvent::Recording(recorded.clone()));
        }
    }
}

/// All followers of a host.
#[derive(Default)]
pub struct Followers {
    /// Number of followers, so that a reconcile takes no lock while there are none.
    count: AtomicUsize,
    followers: Mutex<Vec<(ObjectRef, Follower)>>,
    next_id: AtomicU64,
}

impl Followers {
    /// True if there are no followers.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The followers of an object.
    pub(super) fn list_followers(&self, key: &ObjectRef) -> Vec<Follower> {
        if self.is_empty() {
            return Vec::new();
        }
        let followers = self.followers.lock();
        let of_object = followers.iter().filter(|(followed, _)| followed == key);
        of_object.map(|(_, follower)| follower.clone()).collect()
    }

    /// Adds a follower of an object.
    pub(super) fn follow(self: &Arc<Self>, key: &ObjectRef, kind: FollowKind) -> FollowStream {
        let (sender, events) = mpsc::channel(match kind {
            FollowKind::Lines => MAX_PENDING_LINES,
            FollowKind::Recordings => MAX_PENDING_RECORDINGS,
        });
        let lost_lines = Arc::new(AtomicU64::new(0));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let follower = Follower {
            id,
            kind,
            sender,
            lost_lines: lost_lines.clone(),
        };
        let mut followers = self.followers.lock();
        followers.push((key.clone(), follower));
        self.count.store(followers.len(), Ordering::Relaxed);
        drop(followers);
        FollowStream {
            followers: self.clone(),
            id,
            events,
            lost_lines,
        }
    }

    fn remove_follower(&self, id: u64) {
        let mut followers = self.followers.lock();
        followers.retain(|(_, follower)| follower.id != id);
        self.count.store(followers.len(), Ordering::Relaxed);
    }
}

/// The receiving half of a follower, which follows the object until it is dropped.
pub struct FollowStream {
    followers: Arc<Followers>,
    id: u64,
    events: mpsc::Receiver<FollowEvent>,
    lost_lines: Arc<AtomicU64>,
}

impl FollowStream {
    /// Waits for the next event. Lines that were dropped are reported first.
    pub async fn next(&mut self) -> Option<FollowEvent> {
        match self.lost_lines.swap(0, Ordering::Relaxed) {
            0 => self.events.recv().await,
            lines => Some(FollowEvent::Line(TraceLine::Lost { lines })),
        }
    }
}

impl Drop for FollowStream {
    fn drop(&mut self) {
        self.followers.remove_follower(self.id);
    }
}
