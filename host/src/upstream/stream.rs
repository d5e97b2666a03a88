//! Event streams that the host keeps open for objects: one per upstream and path, shared by all subscribers.
//!
//! An object subscribes again in each reconcile. One lock guards the table of subscriptions; each stream has a task
//! that connects, reads and reconnects.

mod follow;
mod pattern;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::AbortHandle;

use self::pattern::{Body, Verdict};
pub use self::{
    follow::{Query, Tail, tail},
    pattern::{Interest, Pattern},
};
use super::{Client, SecretKey, SendError, UpstreamObject, sse::Event};
use crate::{
    client::fence::Gate,
    kube::{key::ObjectRef, object::Object},
};

/// Maximum number of streams per upstream: each is a connection.
const STREAMS: usize = 1000;

/// The key of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// The Upstream.
    pub upstream: ObjectRef,
    /// Path and query.
    pub path: Arc<str>,
}

impl fmt::Display for StreamKey {
    /// Without the query, which may contain anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{}{path}", self.upstream)
    }
}

/// The client of a stream, and the version of its Upstream.
pub struct Source {
    client: Arc<Client>,
    uid: String,
    generation: i64,
}

impl Source {
    /// The source that uses this client.
    pub(super) fn new(upstream: &UpstreamObject, client: Arc<Client>) -> Self {
        Self {
            client,
            uid: upstream.uid.clone(),
            generation: upstream.generation,
        }
    }

    /// The Secret versions and the network version that the client was built from.
    fn made_of(&self) -> (&[(SecretKey, String)], u64) {
        let around = &self.client.around;
        (&around.secrets, around.network_version)
    }

    /// The network policy has not changed since the client was built.
    fn allowed(&self) -> bool {
        let around = &self.client.around;
        around.network_version == around.network.version()
    }

    /// Both sources are the same Upstream and generation; credentials may differ.
    fn same_place(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }
}

/// The state of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// The connection is being opened.
    Connecting,
    /// Events are being received.
    Open,
    /// The connection is closed and will be opened again after a delay; with the reason.
    Waiting(String),
    /// All subscribers have received their last event, or the server has closed the stream for good.
    Ended,
    /// The Upstream, a Secret or the network policy changed; the next reconcile opens the stream again.
    Outdated,
}

impl StreamState {
    /// The state as a label of metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Open => "open",
            Self::Waiting(_) => "waiting",
            Self::Ended => "ended",
            Self::Outdated => "outdated",
        }
    }
}

/// The status of a stream, for metrics and the status page.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// The stream.
    pub key: StreamKey,
    /// Its state.
    pub state: StreamState,
    /// Number of events received.
    pub events: u64,
    /// Number of reconnections.
    pub reconnects: u64,
    /// Number of subscribed objects.
    pub followers: usize,
}

/// Counters over all streams.
#[derive(Debug, Default)]
pub struct Totals {
    /// Connections opened.
    pub opened: AtomicU64,
    /// Reconnections.
    pub reconnects: AtomicU64,
    /// Events received.
    pub events: AtomicU64,
    /// Objects woken.
    pub wakes: AtomicU64,
}

struct Follower {
    interest: Interest,
    /// The last event of the subscription has been received.
    done: bool,
}

struct Entry {
    source: Arc<Source>,
    followers: HashMap<ObjectRef, Follower>,
    /// The number of the current task. Reports of earlier tasks are ignored.
    epoch: u64,
    task: Option<AbortHandle>,
    state: StreamState,
    last_id: Option<String>,
    events: u64,
    reconnects: u64,
}

impl Entry {
    fn wanted(&self) -> bool {
        self.followers.values().any(|f| !f.done)
    }

    fn close(&mut self, state: StreamState) {
        self.epoch += 1;
        self.state = state;
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    fn waiting(&self) -> Vec<ObjectRef> {
        let waiting = self.followers.iter().filter(|(_, f)| !f.done);
        waiting.map(|(object, _)| object.clone()).collect()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.close(StreamState::Ended);
    }
}

#[derive(Default)]
struct Inner {
    streams: HashMap<StreamKey, Entry>,
    /// The streams of each object.
    of: HashMap<ObjectRef, HashSet<StreamKey>>,
}

/// Wakes an object because of an event of a stream.
type Wake = Box<dyn Fn(&ObjectRef, &StreamKey) + Send + Sync>;

/// All event streams of the host.
pub struct Streams {
    inner: Mutex<Inner>,
    gate: Gate,
    /// In a plan no stream is opened: nothing waits for its events.
    closed: bool,
    wake: Wake,
    /// Counters over all streams.
    pub totals: Totals,
    me: Weak<Self>,
}

impl Streams {
    /// An empty set. Streams are open only while the fence is open.
    pub fn new(gate: Gate, wake: impl Fn(&ObjectRef, &StreamKey) + Send + Sync + 'static) -> Arc<Self> {
        Self::made(gate, false, Box::new(wake))
    }

    /// A set for plans: subscriptions succeed, and no stream is opened.
    pub fn closed() -> Arc<Self> {
        Self::made(Gate::shut(), true, Box::new(|_, _| {}))
    }

    fn made(gate: Gate, closed: bool, wake: Wake) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            inner: Mutex::default(),
            gate,
            closed,
            wake,
            totals: Totals::default(),
            me: me.clone(),
        })
    }

    /// Subscribes an object to a stream, which is opened unless it is open already.
    pub fn subscribe(
        &self,
        object: &ObjectRef,
        key: &StreamKey,
        interest: Interest,
        source: Source,
    ) -> Result<(), SendError> {
        if self.closed {
            return Ok(());
        }
        let source = Arc::new(source);
        let inner = &mut *self.inner.lock().expect("lock");
        // Checked behind the lock, so that `close_all` finds each stream that passes.
        self.gate.check()?;
        if !source.allowed() {
            let why = "which addresses are allowed has just changed";
            return Err(SendError::Unavailable(why.into()));
        }
        if !inner.streams.contains_key(key) {
            let of_upstream = inner.streams.keys().filter(|k| k.upstream == key.upstream);
            if of_upstream.count() >= STREAMS {
                return Err(SendError::Unavailable(format!(
                    "{} has {STREAMS} event streams already",
                    key.upstream
                )));
            }
        }
        let entry = inner.streams.entry(key.clone()).or_insert_with(|| Entry {
            source: source.clone(),
            followers: HashMap::new(),
            epoch: 0,
            task: None,
            state: StreamState::Outdated,
            last_id: None,
            events: 0,
            reconnects: 0,
        });
        if !entry.source.same_place(&source) {
            entry.last_id = None;
        }
        if !entry.source.same_place(&source) || entry.source.made_of() != source.made_of() {
            entry.close(StreamState::Outdated);
            entry.source = source;
        }
        match entry.followers.get_mut(object) {
            Some(follower) if follower.interest == interest => {}
            _ => {
                let follower = Follower {
                    interest,
                    done: false,
                };
                entry.followers.insert(object.clone(), follower);
                inner.of.entry(object.clone()).or_default().insert(key.clone());
            }
        }
        if entry.task.is_none() && entry.wanted() {
            if entry.state == StreamState::Ended {
                // A new subscriber, which has seen no event of it.
                entry.last_id = None;
            }
            entry.epoch += 1;
            entry.state = StreamState::Connecting;
            let following = follow::Following {
                streams: self.me.clone(),
                key: key.clone(),
                epoch: entry.epoch,
                source: entry.source.clone(),
                last_id: entry.last_id.clone(),
            };
            entry.task = Some(tokio::spawn(following.run()).abort_handle());
        }
        Ok(())
    }

    /// Keeps these subscriptions of an object and cancels all others.
    pub fn retain(&self, object: &ObjectRef, keys: &HashSet<StreamKey>) {
        let inner = &mut *self.inner.lock().expect("lock");
        let Some(of) = inner.of.get_mut(object) else {
            return;
        };
        let gone: Vec<StreamKey> = of.difference(keys).cloned().collect();
        of.retain(|key| keys.contains(key));
        if of.is_empty() {
            inner.of.remove(object);
        }
        for key in gone {
            let Some(entry) = inner.streams.get_mut(&key) else {
                continue;
            };
            entry.followers.remove(object);
            if entry.followers.is_empty() {
                inner.streams.remove(&key);
            } else if !entry.wanted() {
                entry.close(StreamState::Ended);
            }
        }
    }

    /// Closes all streams.
    pub fn clear(&self) {
        *self.inner.lock().expect("lock") = Inner::default();
    }

    /// Handles a change of an Upstream or a Secret: streams opened with the old version are closed at once, and their
    /// subscribers woken.
    pub fn changed(&self, changed: &ObjectRef, now: Option<&Object>) {
        let upstream = &*changed.gvk.group == "ostler.dev" && &*changed.gvk.kind == "Upstream";
        let secret = changed.gvk.group.is_empty() && &*changed.gvk.kind == "Secret";
        if !upstream && !secret {
            return;
        }
        let named = |k: &SecretKey| *k.namespace == *changed.namespace && *k.name == *changed.name;
        self.outdate(|key, source| match upstream {
            true => {
                key.upstream == *changed
                    && now.is_none_or(|o| *o.uid != *source.uid || o.generation != source.generation)
            }
            false => source
                .made_of()
                .0
                .iter()
                .any(|(k, v)| named(k) && now.is_none_or(|o| o.resource_version.to_string() != *v)),
        });
    }

    /// Handles a change of the network policy: streams opened before are closed at once, and their subscribers woken.
    pub fn network_changed(&self) {
        self.outdate(|_, source| !source.allowed());
    }

    fn outdate(&self, outdated: impl Fn(&StreamKey, &Source) -> bool) {
        let mut woken = Vec::new();
        for (key, entry) in &mut self.inner.lock().expect("lock").streams {
            if entry.task.is_some() && outdated(key, &entry.source) {
                entry.close(StreamState::Outdated);
                woken.extend(entry.waiting().into_iter().map(|object| (object, key.clone())));
            }
        }
        self.tell(woken);
    }

    /// The streams of an object, sorted.
    pub fn of(&self, object: &ObjectRef) -> Vec<StreamFacts> {
        let inner = self.inner.lock().expect("lock");
        let keys = inner.of.get(object).into_iter().flatten();
        let mut facts: Vec<_> = keys
            .filter_map(|key| Some(facts(key, inner.streams.get(key)?)))
            .collect();
        facts.sort_by(|a, b| a.key.cmp(&b.key));
        facts
    }

    /// All streams, in no order.
    pub fn all(&self) -> Vec<StreamFacts> {
        let inner = self.inner.lock().expect("lock");
        inner
            .streams
            .iter()
            .map(|(key, entry)| facts(key, entry))
            .collect()
    }

    fn tell(&self, woken: Vec<(ObjectRef, StreamKey)>) {
        self.totals.wakes.fetch_add(woken.len() as u64, Ordering::Relaxed);
        for (object, key) in woken {
            (self.wake)(&object, &key);
        }
    }

    /// Applies a report of a stream's task to its entry and wakes the returned objects. `None` if the task has been
    /// replaced and must end.
    fn by_task<T>(
        &self,
        key: &StreamKey,
        epoch: u64,
        act: impl FnOnce(&mut Entry) -> (T, Vec<ObjectRef>),
    ) -> Option<T> {
        let (result, woken) = {
            let mut inner = self.inner.lock().expect("lock");
            let entry = inner.streams.get_mut(key).filter(|e| e.epoch == epoch)?;
            act(entry)
        };
        self.tell(woken.into_iter().map(|object| (object, key.clone())).collect());
        Some(result)
    }

    /// The connection is open. Unless it resumes after the last event, events may have been missed and subscribers are
    /// woken.
    fn opened(&self, key: &StreamKey, epoch: u64, resumed: bool) -> Option<()> {
        self.totals.opened.fetch_add(1, Ordering::Relaxed);
        self.by_task(key, epoch, |entry| {
            entry.state = StreamState::Open;
            ((), if resumed { Vec::new() } else { entry.waiting() })
        })
    }

    /// An event was received. Returns true if subscribers wait for more.
    fn came(&self, key: &StreamKey, epoch: u64, event: &Event) -> Option<bool> {
        self.totals.events.fetch_add(1, Ordering::Relaxed);
        let mut body = Body::new(event);
        // Parsed outside the lock, which guards all streams.
        let reads = |entry: &Entry| {
            entry
                .followers
                .values()
                .any(|f| !f.done && f.interest.reads(event))
        };
        if self
            .inner
            .lock()
            .expect("lock")
            .streams
            .get(key)
            .is_some_and(reads)
        {
            body.read();
        }
        self.by_task(key, epoch, |entry| {
            entry.events += 1;
            entry.last_id.clone_from(&event.id);
            let mut woken = Vec::new();
            for (object, follower) in entry.followers.iter_mut().filter(|(_, f)| !f.done) {
                let verdict = follower.interest.verdict(&mut body);
                follower.done = verdict == Verdict::End;
                if verdict != Verdict::Nothing {
                    woken.push(object.clone());
                }
            }
            let more = entry.wanted();
            if !more {
                entry.state = StreamState::Ended;
                entry.task = None;
            }
            (more, woken)
        })
    }

    /// The server has closed the stream for good (HTTP 204).
    fn ended(&self, key: &StreamKey, epoch: u64) {
        self.by_task(key, epoch, |entry| {
            let waiting = entry.waiting();
            entry.followers.values_mut().for_each(|f| f.done = true);
            entry.state = StreamState::Ended;
            entry.task = None;
            ((), waiting)
        });
    }

    /// The connection is closed; with `wakes_subscribers`, they are woken to see the reason.
    fn broken(&self, key: &StreamKey, epoch: u64, why: String, telling: bool) -> Option<()> {
        self.by_task(key, epoch, |entry| {
            entry.state = StreamState::Waiting(why);
            ((), if telling { entry.waiting() } else { Vec::new() })
        })
    }

    fn again(&self, key: &StreamKey, epoch: u64) -> Option<()> {
        self.totals.reconnects.fetch_add(1, Ordering::Relaxed);
        self.by_task(key, epoch, |entry| {
            entry.reconnects += 1;
            entry.state = StreamState::Connecting;
            ((), Vec::new())
        })
    }
}

fn facts(key: &StreamKey, entry: &Entry) -> StreamFacts {
    StreamFacts {
        key: key.clone(),
        state: entry.state.clone(),
        events: entry.events,
        reconnects: entry.reconnects,
        followers: entry.followers.len(),
    }
}
