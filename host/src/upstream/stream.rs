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
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use self::pattern::{EventEffect, ParsedEvent};
pub use self::{
    follow::{EventTail, TailQuery, read_tail},
    pattern::{EventPattern, StreamSubscription},
};
use super::{
    SecretSnapshot, SendError, UpstreamClient, UpstreamObject, UpstreamSecretKey, sse::ServerSentEvent,
};
use crate::{
    client::fence::WriteFence,
    kube::{
        key::{ObjectMap, ObjectRef},
        object::KubeObject,
    },
};

/// Maximum number of streams per upstream: each is a connection.
const MAX_STREAMS: usize = 1000;

/// Limit of the bytes of incomplete events of all streams together.
const MAX_BUFFERED_BYTES: usize = 32 << 20;
/// Size up to which an event is received whatever the others have.
const SMALL_EVENT_BYTES: usize = 16 << 10;

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
pub struct StreamSource {
    client: Arc<UpstreamClient>,
    uid: String,
    generation: i64,
}

impl StreamSource {
    /// The source that uses this client.
    pub(super) fn new(upstream: &UpstreamObject, client: Arc<UpstreamClient>) -> Self {
        Self {
            client,
            uid: upstream.uid.clone(),
            generation: upstream.generation,
        }
    }

    /// The secrets and the network version that the client was built from.
    fn client_inputs(&self) -> (&SecretSnapshot, u64) {
        let context = &self.client.context;
        (&context.secrets, context.network_version)
    }

    /// The network policy has not changed since the client was built.
    fn is_allowed(&self) -> bool {
        let context = &self.client.context;
        context.network_version == context.network.version()
    }

    /// Both sources are the same Upstream and generation; credentials may differ.
    fn is_same_server(&self, other: &Self) -> bool {
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
    pub fn as_str(&self) -> &'static str {
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
pub struct StreamStatus {
    /// The stream.
    pub key: StreamKey,
    /// Its state.
    pub state: StreamState,
    /// Number of events received.
    pub events: u64,
    /// Number of reconnections.
    pub reconnects: u64,
    /// Number of subscribed objects.
    pub subscribers: usize,
}

/// Counters over all streams.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Connections opened.
    pub opened: AtomicU64,
    /// Reconnections.
    pub reconnects: AtomicU64,
    /// Events received.
    pub events: AtomicU64,
    /// Objects woken.
    pub wakes: AtomicU64,
    /// Bytes of events that are not complete yet.
    buffered: Arc<AtomicUsize>,
}

/// The bytes of incomplete events of one connection. Dropping it returns them.
struct BufferedBytes {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl BufferedBytes {
    fn new(counters: &StreamCounters) -> Self {
        Self {
            all: counters.buffered.clone(),
            own: 0,
        }
    }

    /// Sets the bytes of this connection. Returns false if those of all connections exceed their limit and it is not one
    /// of the small ones.
    fn set(&mut self, bytes: usize) -> bool {
        let before = self.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.all.fetch_sub(self.own, Ordering::Relaxed);
        let all = before.saturating_sub(self.own);
        self.own = bytes;
        bytes <= SMALL_EVENT_BYTES || all <= MAX_BUFFERED_BYTES
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

struct Subscriber {
    subscription: StreamSubscription,
    /// The last event of the subscription has been received.
    done: bool,
}

struct StreamEntry {
    source: Arc<StreamSource>,
    followers: ObjectMap<Subscriber>,
    /// The number of the current task. Reports of earlier tasks are ignored.
    epoch: u64,
    task: Option<AbortHandle>,
    state: StreamState,
    last_id: Option<String>,
    events: u64,
    reconnects: u64,
}

impl StreamEntry {
    fn is_wanted(&self) -> bool {
        self.followers.values().any(|f| !f.done)
    }

    fn close_with(&mut self, state: StreamState) {
        self.epoch += 1;
        self.state = state;
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    fn pending_subscribers(&self) -> Vec<ObjectRef> {
        let waiting = self.followers.iter().filter(|(_, f)| !f.done);
        waiting.map(|(object, _)| object.clone()).collect()
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.close_with(StreamState::Ended);
    }
}

#[derive(Default)]
struct StreamTable {
    streams: HashMap<StreamKey, StreamEntry>,
    /// The streams of each object.
    by_object: ObjectMap<HashSet<StreamKey>>,
}

/// Wakes an object because of an event of a stream.
type WakeHandler = Box<dyn Fn(&ObjectRef, &StreamKey) + Send + Sync>;

/// All event streams of the host.
pub struct EventStreams {
    inner: Mutex<StreamTable>,
    fence: WriteFence,
    /// In a plan no stream is opened: nothing waits for its events.
    is_disabled: bool,
    wake: WakeHandler,
    /// Counters over all streams.
    pub counters: StreamCounters,
    me: Weak<Self>,
}

impl EventStreams {
    /// An empty set. Streams are open only while the fence is open.
    pub fn new(
        fence: WriteFence,
        wake: impl Fn(&ObjectRef, &StreamKey) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::build_streams(fence, false, Box::new(wake))
    }

    /// A set for plans: subscriptions succeed, and no stream is opened.
    pub fn disabled() -> Arc<Self> {
        Self::build_streams(WriteFence::closed(), true, Box::new(|_, _| {}))
    }

    fn build_streams(fence: WriteFence, closed: bool, wake: WakeHandler) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            inner: Mutex::default(),
            fence,
            is_disabled: closed,
            wake,
            counters: StreamCounters::default(),
            me: me.clone(),
        })
    }

    /// Subscribes an object to a stream, which is opened unless it is open already.
    pub fn subscribe(
        &self,
        object: &ObjectRef,
        key: &StreamKey,
        interest: StreamSubscription,
        source: StreamSource,
    ) -> Result<(), SendError> {
        if self.is_disabled {
            return Ok(());
        }
        let source = Arc::new(source);
        let inner = &mut *self.inner.lock();
        // Checked behind the lock, so that `close_all` finds each stream that passes.
        self.fence.check_open()?;
        if !source.is_allowed() {
            let why = "which addresses are allowed has just changed";
            return Err(SendError::Unavailable(why.into()));
        }
        if !inner.streams.contains_key(key) {
            let of_upstream = inner.streams.keys().filter(|k| k.upstream == key.upstream);
            if of_upstream.count() >= MAX_STREAMS {
                return Err(SendError::Unavailable(format!(
                    "{} has {MAX_STREAMS} event streams already",
                    key.upstream
                )));
            }
        }
        let entry = inner.streams.entry(key.clone()).or_insert_with(|| StreamEntry {
            source: source.clone(),
            followers: ObjectMap::default(),
            epoch: 0,
            task: None,
            state: StreamState::Outdated,
            last_id: None,
            events: 0,
            reconnects: 0,
        });
        if !entry.source.is_same_server(&source) {
            entry.last_id = None;
        }
        if !entry.source.is_same_server(&source) || entry.source.client_inputs() != source.client_inputs() {
            entry.close_with(StreamState::Outdated);
            entry.source = source;
        }
        match entry.followers.get_mut(object) {
            Some(follower) if follower.subscription == interest => {}
            _ => {
                let follower = Subscriber {
                    subscription: interest,
                    done: false,
                };
                entry.followers.insert(object.clone(), follower);
                inner
                    .by_object
                    .entry(object.clone())
                    .or_default()
                    .insert(key.clone());
            }
        }
        if entry.task.is_none() && entry.is_wanted() {
            if entry.state == StreamState::Ended {
                // A new subscriber, which has seen no event of it.
                entry.last_id = None;
            }
            entry.epoch += 1;
            entry.state = StreamState::Connecting;
            let following = follow::StreamTask {
                streams: self.me.clone(),
                key: key.clone(),
                epoch: entry.epoch,
                source: entry.source.clone(),
                last_id: entry.last_id.clone(),
            };
            entry.task = Some(tokio::spawn(following.run_until_done()).abort_handle());
        }
        Ok(())
    }

    /// Keeps these subscriptions of an object and cancels all others.
    pub fn retain_subscriptions(&self, object: &ObjectRef, keys: &HashSet<StreamKey>) {
        let inner = &mut *self.inner.lock();
        let Some(of) = inner.by_object.get_mut(object) else {
            return;
        };
        let gone: Vec<StreamKey> = of.difference(keys).cloned().collect();
        of.retain(|key| keys.contains(key));
        if of.is_empty() {
            inner.by_object.remove(object);
        }
        for key in gone {
            let Some(entry) = inner.streams.get_mut(&key) else {
                continue;
            };
            entry.followers.remove(object);
            if entry.followers.is_empty() {
                inner.streams.remove(&key);
            } else if !entry.is_wanted() {
                entry.close_with(StreamState::Ended);
            }
        }
    }

    /// Closes all streams.
    pub fn close_all(&self) {
        *self.inner.lock() = StreamTable::default();
    }

    /// Handles a change of an Upstream or a Secret: streams opened with the old spec or with other values are closed at
    /// once, and their subscribers woken.
    pub fn on_object_change(&self, changed: &ObjectRef, now: Option<&KubeObject>) {
        let upstream = &*changed.gvk.group == "ostler.dev" && &*changed.gvk.kind == "Upstream";
        let secret = changed.gvk.group.is_empty() && &*changed.gvk.kind == "Secret";
        if !upstream && !secret {
            return;
        }
        let named = |k: &UpstreamSecretKey| *k.namespace == *changed.namespace && *k.name == *changed.name;
        let mut values: HashMap<String, Option<Vec<u8>>> = HashMap::new();
        self.close_outdated(|key, source| {
            if upstream {
                key.upstream == *changed
                    && now.is_none_or(|o| o.uid != *source.uid || o.generation != source.generation)
            } else {
                source.client_inputs().0.0.iter().any(|(k, v)| {
                    named(k) && {
                        // Decoded once for all streams.
                        let read = || now.and_then(|o| o.data_value(&k.key));
                        let value = values.entry(k.key.clone()).or_insert_with(read);
                        value.as_deref() != Some(v.expose())
                    }
                })
            }
        });
    }

    /// Handles a change of the network policy: streams opened before are closed at once, and their subscribers woken.
    pub fn on_network_change(&self) {
        self.close_outdated(|_, source| !source.is_allowed());
    }

    fn close_outdated(&self, mut outdated: impl FnMut(&StreamKey, &StreamSource) -> bool) {
        let mut woken = Vec::new();
        for (key, entry) in &mut self.inner.lock().streams {
            if entry.task.is_some() && outdated(key, &entry.source) {
                entry.close_with(StreamState::Outdated);
                woken.extend(
                    entry
                        .pending_subscribers()
                        .into_iter()
                        .map(|object| (object, key.clone())),
                );
            }
        }
        self.wake_objects(woken);
    }

    /// The streams of an object, sorted.
    pub fn streams_of(&self, object: &ObjectRef) -> Vec<StreamStatus> {
        let inner = self.inner.lock();
        let keys = inner.by_object.get(object).into_iter().flatten();
        let mut facts: Vec<_> = keys
            .filter_map(|key| Some(stream_status(key, inner.streams.get(key)?)))
            .collect();
        facts.sort_by(|a, b| a.key.cmp(&b.key));
        facts
    }

    /// All streams, in no order.
    pub fn all_streams(&self) -> Vec<StreamStatus> {
        let inner = self.inner.lock();
        inner
            .streams
            .iter()
            .map(|(key, entry)| stream_status(key, entry))
            .collect()
    }

    fn wake_objects(&self, woken: Vec<(ObjectRef, StreamKey)>) {
        self.counters
            .wakes
            .fetch_add(woken.len() as u64, Ordering::Relaxed);
        for (object, key) in woken {
            (self.wake)(&object, &key);
        }
    }

    /// Applies a report of a stream's task to its entry and wakes the returned objects. `None` if the task has been
    /// replaced and must end.
    fn update_from_task<T>(
        &self,
        key: &StreamKey,
        epoch: u64,
        act: impl FnOnce(&mut StreamEntry) -> (T, Vec<ObjectRef>),
    ) -> Option<T> {
        let (result, woken) = {
            let mut inner = self.inner.lock();
            let entry = inner.streams.get_mut(key).filter(|e| e.epoch == epoch)?;
            act(entry)
        };
        self.wake_objects(woken.into_iter().map(|object| (object, key.clone())).collect());
        Some(result)
    }

    /// The connection is open. Unless it may resume after the last event, events may have been missed and subscribers
    /// are woken.
    fn on_opened(&self, key: &StreamKey, epoch: u64, resumed: bool) -> Option<()> {
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        self.update_from_task(key, epoch, |entry| {
            entry.state = StreamState::Open;
            (
                (),
                if resumed {
                    Vec::new()
                } else {
                    entry.pending_subscribers()
                },
            )
        })
    }

    /// Events may have been missed while the stream was not connected: subscribers are woken.
    fn on_missed(&self, key: &StreamKey, epoch: u64) -> Option<()> {
        self.update_from_task(key, epoch, |entry| ((), entry.pending_subscribers()))
    }

    /// An event was received. Returns true if subscribers wait for more. Patterns are compared with the event as `redact`
    /// returns it: a component must not learn of a secret by comparing it.
    fn on_event(
        &self,
        key: &StreamKey,
        epoch: u64,
        event: &ServerSentEvent,
        redact: &mut (dyn FnMut(&ServerSentEvent) -> ServerSentEvent + Send),
    ) -> Option<bool> {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        let any_follower = |condition: &dyn Fn(&StreamSubscription) -> bool| {
            let streams = self.inner.lock();
            let entry = streams.streams.get(key);
            let mut followers = entry.into_iter().flat_map(|entry| entry.followers.values());
            followers.any(|f| !f.done && condition(&f.subscription))
        };
        // Redacted and parsed outside the lock, which guards all streams.
        let shown = match any_follower(&StreamSubscription::has_patterns) {
            true => redact(event),
            false => event.clone(),
        };
        let mut body = ParsedEvent::new(&shown);
        if any_follower(&|subscription| subscription.needs_data(&shown)) {
            body.parse_data();
        }
        self.update_from_task(key, epoch, |entry| {
            entry.events += 1;
            entry.last_id.clone_from(&event.id);
            let mut woken = Vec::new();
            for (object, follower) in entry.followers.iter_mut().filter(|(_, f)| !f.done) {
                let verdict = follower.subscription.classify_event(&mut body);
                follower.done = verdict == EventEffect::WakeAndEnd;
                if verdict != EventEffect::Ignore {
                    woken.push(object.clone());
                }
            }
            let more = entry.is_wanted();
            if !more {
                entry.state = StreamState::Ended;
                entry.task = None;
            }
            (more, woken)
        })
    }

    /// The server has closed the stream for good (HTTP 204).
    fn on_ended(&self, key: &StreamKey, epoch: u64) {
        self.update_from_task(key, epoch, |entry| {
            let waiting = entry.pending_subscribers();
            entry.followers.values_mut().for_each(|f| f.done = true);
            entry.state = StreamState::Ended;
            entry.task = None;
            ((), waiting)
        });
    }

    /// The connection is closed; with `wakes_subscribers`, they are woken to see the reason.
    fn on_broken(&self, key: &StreamKey, epoch: u64, why: String, wakes_subscribers: bool) -> Option<()> {
        self.update_from_task(key, epoch, |entry| {
            entry.state = StreamState::Waiting(why);
            (
                (),
                if wakes_subscribers {
                    entry.pending_subscribers()
                } else {
                    Vec::new()
                },
            )
        })
    }

    fn on_reconnect(&self, key: &StreamKey, epoch: u64) -> Option<()> {
        self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        self.update_from_task(key, epoch, |entry| {
            entry.reconnects += 1;
            entry.state = StreamState::Connecting;
            ((), Vec::new())
        })
    }
}

fn stream_status(key: &StreamKey, entry: &StreamEntry) -> StreamStatus {
    StreamStatus {
        key: key.clone(),
        state: entry.state.clone(),
        events: entry.events,
        reconnects: entry.reconnects,
        subscribers: entry.followers.len(),
    }
}
