//! Event streams the host keeps open on behalf of objects: one per upstream and path, however many follow it.
//!
//! An object says in each reconcile what it follows. Who follows what is kept behind one lock; beside it each
//! stream has a task that connects, reads and connects again.

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
    client::fence::WriteFence,
    kube::{key::ObjectRef, object::Object},
};

/// Streams of one upstream at most: each is a connection.
const STREAMS: usize = 1000;

/// Names a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// The Upstream.
    pub upstream: ObjectRef,
    /// Path and query.
    pub path: Arc<str>,
}

impl fmt::Display for StreamKey {
    /// Without the query, which may be anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{}{path}", self.upstream)
    }
}

/// Where a stream comes from.
pub struct Source {
    client: Arc<Client>,
    uid: String,
    generation: i64,
}

impl Source {
    /// The source by this client.
    pub(super) fn new(upstream: &UpstreamObject, client: Arc<Client>) -> Self {
        Self {
            client,
            uid: upstream.uid.clone(),
            generation: upstream.generation,
        }
    }

    /// What the client was made of, and was allowed then.
    fn made_of(&self) -> (&[(SecretKey, String)], u64) {
        let around = &self.client.around;
        (&around.secrets, around.network_version)
    }

    /// Whether what was allowed then is what is allowed now.
    fn allowed(&self) -> bool {
        let around = &self.client.around;
        around.network_version == around.network.version()
    }

    /// Whether it is the same place; it may be reached with other credentials.
    fn same_place(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }
}

/// How a stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// On its way.
    Connecting,
    /// Events come.
    Open,
    /// Tried again after a while; says why.
    Waiting(String),
    /// What everybody waited for has come, or the server has no more.
    Ended,
    /// Its Upstream, a Secret or what is allowed changed: opened again by the next reconcile.
    Outdated,
}

impl StreamState {
    /// One word, for metrics.
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

/// What there is to say of a stream.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Which one.
    pub key: StreamKey,
    /// How it is.
    pub state: StreamState,
    /// Events so far.
    pub events: u64,
    /// Times it was opened again.
    pub reconnects: u64,
    /// Objects that follow it.
    pub followers: usize,
}

/// Counts over all streams so far.
#[derive(Debug, Default)]
pub struct Totals {
    /// Connections opened.
    pub opened: AtomicU64,
    /// Connections opened again.
    pub reconnects: AtomicU64,
    /// Events read.
    pub events: AtomicU64,
    /// Objects woken.
    pub wakes: AtomicU64,
}

struct Follower {
    interest: Interest,
    /// What it waited for has come.
    done: bool,
}

struct Entry {
    source: Arc<Source>,
    followers: HashMap<ObjectRef, Follower>,
    /// Whose word counts: that of the task started last.
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
    /// What each object follows.
    of: HashMap<ObjectRef, HashSet<StreamKey>>,
}

/// Wakes an object because of a stream.
type Wake = Box<dyn Fn(&ObjectRef, &StreamKey) + Send + Sync>;

/// All streams of a host.
pub struct Streams {
    inner: Mutex<Inner>,
    gate: WriteFence,
    /// In a plan none is opened: nothing waits for what they would bring.
    closed: bool,
    wake: Wake,
    /// What is counted.
    pub totals: Totals,
    me: Weak<Self>,
}

impl Streams {
    /// None yet. They are open only while the gate is.
    pub fn new(gate: WriteFence, wake: impl Fn(&ObjectRef, &StreamKey) + Send + Sync + 'static) -> Arc<Self> {
        Self::made(gate, false, Box::new(wake))
    }

    /// For a plan: whoever subscribes is let in, and no stream is opened.
    pub fn closed() -> Arc<Self> {
        Self::made(WriteFence::closed(), true, Box::new(|_, _| {}))
    }

    fn made(gate: WriteFence, closed: bool, wake: Wake) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            inner: Mutex::default(),
            gate,
            closed,
            wake,
            totals: Totals::default(),
            me: me.clone(),
        })
    }

    /// From now on an object follows a stream, which is opened unless it is open already.
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
        // Behind the lock: what is let in here is found by `clear`.
        self.gate.check_open()?;
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
                // Somebody new, who has seen nothing of it.
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

    /// An object follows these and no others.
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

    /// Closes all.
    pub fn clear(&self) {
        *self.inner.lock().expect("lock") = Inner::default();
    }

    /// An Upstream or a Secret has changed: what was opened with it is closed at once, and its followers look again.
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

    /// Which addresses are allowed has changed: what was opened before is closed at once, and its followers look again.
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

    /// What an object follows, in order.
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

    /// What a stream's task does to its entry, unless another has taken its place; then there is nothing to go on
    /// with. Whom it gives is woken.
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

    /// It is open. Unless it goes on after the last event, something may have been missed.
    fn opened(&self, key: &StreamKey, epoch: u64, resumed: bool) -> Option<()> {
        self.totals.opened.fetch_add(1, Ordering::Relaxed);
        self.by_task(key, epoch, |entry| {
            entry.state = StreamState::Open;
            ((), if resumed { Vec::new() } else { entry.waiting() })
        })
    }

    /// An event has come; says whether more are waited for.
    fn came(&self, key: &StreamKey, epoch: u64, event: &Event) -> Option<bool> {
        self.totals.events.fetch_add(1, Ordering::Relaxed);
        let mut body = Body::new(event);
        // What has to be read is read outside the lock: it is that of all streams.
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

    /// The server has no more to say, for ever.
    fn ended(&self, key: &StreamKey, epoch: u64) {
        self.by_task(key, epoch, |entry| {
            let waiting = entry.waiting();
            entry.followers.values_mut().for_each(|f| f.done = true);
            entry.state = StreamState::Ended;
            entry.task = None;
            ((), waiting)
        });
    }

    /// It is not open; `telling`, when who follows it should look why.
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
