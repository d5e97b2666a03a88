//! The dispatcher turns changes of objects into work: it wakes the changed object and its dependants.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::{
    cache::store::{ObjectChange, VersionSource},
    kube::{
        key::{Gvk, ObjectRef, own_cluster},
        object::KubeObject,
        protection::differs_by_record_only,
        references,
        scope::{NamespaceScope, Scope},
        uid::Uid,
        well_known::annotation,
    },
    schedule::{
        dependencies::{DependencyGraph, ReadDependency},
        expected_writes::{ChangeId, ExpectedWrites, Fulfilment, WakeUp},
        host_lane::HostLane,
        permits::{PermitPools, PermitRequest, PermitStatus, PoolUsage, TooManyPools},
        queue::{ItemState, ItemStatus, LaneState, Priority, Queue, Requeue, Work},
    },
};

/// Maximum number of dependants that one change wakes before the work that is due at intervals. One that more objects read,
/// such as a configuration, wakes them behind it, so that it does not delay the changes of users.
const MAX_URGENT_DEPENDANTS: usize = 64;

/// Maximum number of causes kept for `explain`: a power of two, since that is what a `VecDeque` allocates.
const MAX_HISTORY: usize = 8 << 10;

/// The reason for a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The object existed when the host started.
    Start,
    /// The object changed.
    Change,
    /// An object or list that its last reconcile read changed.
    Dependency(ObjectRef),
    /// Its poll interval elapsed.
    Poll,
    /// The last attempt failed or waits.
    Retry,
    /// A timer that its reconcile set elapsed.
    Timer,
    /// The annotation [`annotation::RECONCILE_NOW`] was set.
    Manual,
    /// The status of an object of the host's own kinds may have to change: of an Upstream or Cluster after requests to it, of a Plugin
    /// after its calls.
    StatusStale,
    /// Its plugin was replaced by another build.
    PluginChange,
    /// The configuration of its plugin changed.
    ConfigChange,
    /// An event of the named stream, which the object follows.
    Event(Arc<str>),
    /// A permit that it waits for is free.
    Permit,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dependency(on) => write!(f, "dependency {on}"),
            Self::Event(stream) => write!(f, "event of {stream}"),
            other => f.write_str(other.as_str()),
        }
    }
}

impl Cause {
    /// The word that is passed to the component.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Change => "change",
            Self::Dependency(_) => "dependency",
            Self::Poll => "poll",
            Self::Retry => "retry",
            Self::Timer => "timer",
            Self::Manual => "manual",
            Self::StatusStale => "status-stale",
            Self::PluginChange => "plugin-change",
            Self::ConfigChange => "config-change",
            Self::Event(_) => "event",
            Self::Permit => "permit",
        }
    }
}

/// The turn of an object in the queue.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// State in the queue; none when no work is pending.
    pub state: Option<ItemState>,
    /// Failures in a row.
    pub failures: u32,
    /// Time until it is due, if it is delayed.
    pub due_in: Option<Duration>,
    /// The cause of the delayed reconcile.
    pub due_cause: Option<Cause>,
}

/// The scheduling state of an object; see [`Dispatcher::explain`].
#[derive(Clone, Debug)]
pub struct SchedulingState {
    /// Its turn in the queue.
    pub turn: Turn,
    /// Past causes, oldest first; only the most recent of the process are kept.
    pub causes: Vec<Cause>,
    /// Objects and lists that its last reconcile read: their changes wake it.
    pub reads: Vec<ReadDependency>,
    /// Its permits, and those that it waits for.
    pub permits: Vec<PermitStatus>,
}

/// The work queue and the dependency graph behind one lock, and the plugin of each kind.
pub struct Dispatcher {
    started: Instant,
    inner: Mutex<Inner>,
    /// Notified when there is work to pop: one waiting worker for each.
    work: Notify,
    /// Notified when an object is due earlier than the timer waits for.
    deadline: Notify,
    /// Kinds whose status changes wake dependants only on recovery.
    recovery_only: HashSet<Gvk>,
    /// Kinds whose objects are queued when the first object reads them.
    first_read: HashSet<Gvk>,
}

struct Inner {
    queue: Queue<ObjectRef, Cause>,
    graph: DependencyGraph<ObjectRef>,
    lanes: HashMap<Gvk, Lane>,
    /// Watches of the kinds that each plugin reconciles.
    scopes: HashMap<Arc<str>, Vec<Scope>>,
    /// Number of times that kinds were assigned to each plugin.
    activations: HashMap<Arc<str>, u64>,
    /// Objects and the causes that woke them, newest last.
    history: VecDeque<(ObjectRef, Cause)>,
    /// Writes of reconciles, whose echoes wake nothing.
    writes: ExpectedWrites<Cause>,
    permits: PermitPools,
    /// The deadline that the timer waits for.
    timer: Option<Duration>,
}

/// The reconciler of a kind.
struct Lane {
    plugin: Arc<str>,
    /// The cluster of the objects that it reconciles; empty for the host's own.
    cluster: Arc<str>,
}

/// A guard for an expected write, as controllers keep expectations; see [`Dispatcher::expect_write`].
pub struct WriteExpectation {
    dispatcher: Arc<Dispatcher>,
    object: ObjectRef,
    id: u64,
    fulfilment: Fulfilment,
}

impl WriteExpectation {
    /// Fulfils the expectation: this version was written by us and wakes nothing. Held wake-ups of all other
    /// versions are delivered on drop. If a watch has stored the version before (`is_stored`), its wake-up may also come
    /// later.
    pub fn fulfil(mut self, version: u64, is_stored: bool) {
        self.fulfilment = Fulfilment {
            change: Some(ChangeId::Version(version)),
            is_stored,
        };
    }

    /// Fulfils the expectation of a deletion: this object was deleted by us, which wakes nothing. If a watch has removed it
    /// before (`is_stored`), its wake-up may also come later.
    pub fn fulfil_deletion(mut self, uid: &Uid, is_stored: bool) {
        self.fulfilment = Fulfilment {
            change: Some(ChangeId::Deletion(uid.clone())),
            is_stored,
        };
    }
}

impl Drop for WriteExpectation {
    fn drop(&mut self) {
        let now = self.dispatcher.now();
        let mut inner = self.dispatcher.inner.lock();
        let Some((by, held)) =
            inner
                .writes
                .remove(&self.object, self.id, std::mem::take(&mut self.fulfilment))
        else {
            return;
        };
        for wake_up in held {
            inner.enqueue(&by, wake_up.priority, wake_up.cause, now);
        }
        self.dispatcher.notify(inner);
    }
}

impl Dispatcher {
    /// Creates a dispatcher without plugins.
    pub fn new(queue: Queue<ObjectRef, Cause>, namespaces: NamespaceScope) -> Self {
        Self {
            started: Instant::now(),
            inner: Mutex::new(Inner {
                queue,
                graph: DependencyGraph::new(namespaces),
                lanes: HashMap::new(),
                scopes: HashMap::new(),
                activations: HashMap::new(),
                history: VecDeque::new(),
                writes: ExpectedWrites::new(),
                permits: PermitPools::default(),
                timer: None,
            }),
            work: Notify::new(),
            deadline: Notify::new(),
            recovery_only: HashSet::new(),
            first_read: HashSet::new(),
        }
    }

    /// For objects of this kind, a change of the status alone wakes dependants only when the object becomes Ready
    /// again. Meant for kinds whose status the host writes itself while dependants use them.
    pub fn wake_on_recovery_only(mut self, kind: Gvk) -> Self {
        self.recovery_only.insert(kind);
        self
    }

    /// Queues an object of this kind when the first object reads it. Meant for kinds of which the host reconciles only the
    /// objects that have readers.
    pub fn wake_when_first_read(mut self, kind: Gvk) -> Self {
        self.first_read.insert(kind);
        self
    }

    /// Limits the objects in flight of all plugins together. The host's own lanes have limits besides that: plugins that
    /// wait for their upstreams do not delay them.
    pub fn with_capacity(self, plugins: u32) -> Self {
        let mut inner = self.inner.lock();
        inner.queue.set_shared_limit(plugins as usize);
        for lane in HostLane::ALL {
            let limit = lane.max_concurrent() as usize;
            inner.queue.dedicate_lane(lane.name().into(), limit);
        }
        drop(inner);
        self
    }

    /// Time since the start, the clock of the queue.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes `plugin` the reconciler of exactly these kinds of the host's own cluster, with at most `concurrency` objects
    /// at a time (0: no limit). `scopes` are the watches of these kinds.
    pub fn assign_kinds(&self, plugin: &Arc<str>, kinds: &[Gvk], scopes: Vec<Scope>, concurrency: u32) {
        self.assign_cluster_kinds(plugin, &own_cluster(), kinds, scopes, concurrency);
    }

    /// Makes `plugin` the reconciler of exactly these kinds of a cluster, as [`Dispatcher::assign_kinds`] does.
    pub fn assign_cluster_kinds(
        &self,
        plugin: &Arc<str>,
        cluster: &Arc<str>,
        kinds: &[Gvk],
        scopes: Vec<Scope>,
        concurrency: u32,
    ) {
        let mut inner = self.inner.lock();
        inner.queue.set_limit(plugin.clone(), concurrency as usize);
        let before = inner.lanes.extract_if(|_, lane| lane.plugin == *plugin);
        let dropped: HashSet<Gvk> = before
            .map(|(gvk, _)| gvk)
            .filter(|gvk| !kinds.contains(gvk))
            .collect();
        // No change wakes their objects any more. What is due ends by its last reconcile.
        if !dropped.is_empty() {
            for key in inner.queue.remove_parked(|key| dropped.contains(&key.gvk)) {
                inner.graph.remove_dependant(&key);
            }
        }
        if kinds.is_empty() {
            inner.permits.remove_plugin(plugin);
        }
        inner.scopes.insert(plugin.clone(), scopes);
        *inner.activations.entry(plugin.clone()).or_default() += 1;
        for gvk in kinds {
            let lane = Lane {
                plugin: plugin.clone(),
                cluster: cluster.clone(),
            };
            inner.lanes.insert(gvk.clone(), lane);
        }
    }

    /// Maximum number of objects of a plugin that are reconciled at a time; 0 for no limit.
    pub fn concurrency(&self, plugin: &str) -> u32 {
        self.inner
            .lock()
            .queue
            .limit(plugin)
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Pauses or resumes the objects of a plugin. Paused objects stay queued.
    pub fn set_paused(&self, plugin: &Arc<str>, paused: bool) {
        let mut inner = self.inner.lock();
        inner.queue.set_paused(plugin.clone(), paused);
        self.notify(inner);
    }

    /// The number of the plugin's last activation: work for an earlier one is obsolete.
    pub fn activation(&self, plugin: &str) -> u64 {
        self.inner.lock().activations.get(plugin).copied().unwrap_or(0)
    }

    /// Replaces the watches of the kinds that a plugin reconciles, and keeps the others that were added. Returns true if
    /// that changes anything.
    pub fn replace_scopes(&self, plugin: &Arc<str>, scopes: Vec<Scope>) -> bool {
        let mut inner = self.inner.lock();
        let of_plugin = inner.scopes.entry(plugin.clone()).or_default();
        let is_other = |old: &&Scope| {
            scopes
                .iter()
                .all(|new| new.gvk != old.gvk || new.projection != old.projection)
        };
        let mut now: Vec<Scope> = of_plugin.iter().filter(is_other).cloned().collect();
        now.extend(scopes);
        let changed = now.len() != of_plugin.len() || !now.iter().all(|scope| of_plugin.contains(scope));
        *of_plugin = now;
        changed
    }

    /// The watches of a kind that a plugin reconciles.
    pub fn kind_scopes(&self, plugin: &str, gvk: &Gvk) -> Vec<Scope> {
        let inner = self.inner.lock();
        let of_plugin = inner.scopes.get(plugin).into_iter().flatten();
        of_plugin.filter(|scope| scope.gvk == *gvk).cloned().collect()
    }

    /// Adds a watch that a plugin needs.
    pub fn add_scope(&self, plugin: &Arc<str>, scope: Scope) {
        let mut inner = self.inner.lock();
        inner.scopes.entry(plugin.clone()).or_default().push(scope);
    }

    /// Returns true if a plugin reconciles this kind.
    pub fn has_reconciler(&self, gvk: &Gvk) -> bool {
        self.inner.lock().lanes.contains_key(gvk)
    }

    /// Returns true if a plugin reconciles objects of the kind and cluster of this one.
    pub fn is_reconciled(&self, key: &ObjectRef) -> bool {
        self.inner.lock().find_lane(key).is_some()
    }

    /// Wakes the changed object and its dependants. The object `by`, whose reconcile made the change, is not woken.
    pub fn on_change(&self, change: &ObjectChange, source: VersionSource, by: Option<&ObjectRef>) {
        let now = self.now();
        let mut inner = self.inner.lock();
        // No version after a relist (it may fold our write and an earlier foreign one together) or a replacement
        // (another watch may still owe the predecessor's deletion): a held wake-up is then always delivered.
        let version = change.new.as_ref().map(|o| o.resource_version);
        let version = version.filter(|_| !source.skips_versions() && !change.is_replacement());
        let deleted = change.old.as_ref().filter(|_| change.new.is_none());
        let id = match deleted {
            Some(old) => Some(ChangeId::Deletion(old.uid.clone())),
            None => version.map(ChangeId::Version),
        };
        let intent_changed = match (&change.old, &change.new) {
            (Some(old), Some(new)) => old.intent != new.intent,
            _ => true,
        };
        if intent_changed && by != Some(&change.key) {
            let (priority, cause) = match source {
                VersionSource::InitialList => (Priority::Low, Cause::Start),
                _ if requests_reconcile(change) => (Priority::High, Cause::Manual),
                _ => (Priority::High, Cause::Change),
            };
            let wake_up = WakeUp {
                change: id.clone(),
                priority,
                cause,
            };
            inner.wake(&change.key, &change.key, wake_up, now);
        }
        // A deleted object without a reconciler may wait for its holders, which the host asks.
        if let Some(object) = &change.new
            && change.key.is_home()
            && object.is_deleting()
            && references::is_held(object)
            && inner.find_lane(&change.key).is_none()
        {
            let (lane, key) = (HostLane::Unowned.name().into(), change.key.clone());
            inner.queue.add(lane, key, Priority::High, Cause::Change, now);
        }
        let is_record = match (&change.old, &change.new) {
            (Some(old), Some(new)) => intent_changed && differs_by_record_only(old, new),
            _ => false,
        };
        let is_noticed =
            intent_changed || !self.recovery_only.contains(&change.key.gvk) || is_recovery(change);
        if is_noticed && !is_record {
            let (old, new) = (change.old.as_deref(), change.new.as_deref());
            let dependants = inner.graph.find_dependants(&change.key, old, new);
            let priority = if dependants.len() > MAX_URGENT_DEPENDANTS {
                Priority::Low
            } else {
                Priority::High
            };
            for dependant in dependants {
                if Some(&dependant) != by && dependant != change.key {
                    let wake_up = WakeUp {
                        change: id.clone(),
                        priority,
                        cause: Cause::Dependency(change.key.clone()),
                    };
                    inner.wake(&dependant, &change.key, wake_up, now);
                }
            }
        }
        self.notify(inner);
    }

    /// Announces a write of `object` by the reconcile of `by`. The watch may deliver it before the response arrives,
    /// so wake-ups of `by` are held until the expectation is fulfilled or dropped.
    pub fn expect_write(self: &Arc<Self>, object: &ObjectRef, by: &ObjectRef) -> WriteExpectation {
        let id = self.inner.lock().writes.add(object, by);
        WriteExpectation {
            dispatcher: self.clone(),
            object: object.clone(),
            id,
            fulfilment: Fulfilment::default(),
        }
    }

    /// Queues an object for a reason other than a change.
    pub fn enqueue(&self, key: &ObjectRef, priority: Priority, cause: Cause) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.enqueue(key, priority, cause, now);
        self.notify(inner);
    }

    /// Queues the objects that read an object, as if it had changed.
    pub fn wake_readers(&self, key: &ObjectRef, priority: Priority) {
        let now = self.now();
        let mut inner = self.inner.lock();
        for reader in inner.graph.find_dependants(key, None, None) {
            inner.enqueue(&reader, priority, Cause::Dependency(key.clone()), now);
        }
        self.notify(inner);
    }

    /// Takes the next object to reconcile; none if nothing is due, or may run beside what is in flight.
    pub fn pop(&self) -> Option<Work<ObjectRef, Cause>> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let work = inner.queue.pop(now)?;
        for cause in &work.causes {
            if inner.history.len() == MAX_HISTORY {
                inner.history.pop_front();
            }
            inner.history.push_back((work.key.clone(), cause.clone()));
        }
        // One notification may stand for many objects, so it is passed on to the next worker.
        self.notify(inner);
        Some(work)
    }

    /// Waits until there may be work to pop.
    pub async fn wait_work(&self) {
        self.work.notified().await;
    }

    /// Makes delayed objects due in time. It is one timer for all workers: with one each they would all wake for an object.
    pub async fn run_timer(&self) {
        loop {
            let wait = self.promote_due();
            let wait = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.deadline.notified() => {}
            }
        }
    }

    /// Makes delayed objects due whose time has come. Returns the time until the next one is.
    fn promote_due(&self) -> Option<Duration> {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.queue.promote_due(now);
        inner.timer = inner.queue.next_deadline();
        let wait = inner.timer.map(|at| at.saturating_sub(now));
        self.notify(inner);
        wait
    }

    /// Wakes a worker if there is work for it, and the timer if an object is due before it would wake.
    fn notify(&self, inner: MutexGuard<'_, Inner>) {
        let has_work = inner.queue.has_work();
        let is_earlier = match (inner.queue.next_deadline(), inner.timer) {
            (Some(next), Some(timer)) => next < timer,
            (next, None) => next.is_some(),
            (None, Some(_)) => false,
        };
        drop(inner);
        if has_work {
            // The one that waits for the shortest time: what it touches is likely to be in the processor's cache.
            self.work.notify_last();
        }
        if is_earlier {
            self.deadline.notify_one();
        }
    }

    /// Requests a permit for an object. Returns false if it waits for one: it is queued when it gets it.
    ///
    /// # Errors
    /// The plugin would have too many pools.
    pub fn acquire_permit(&self, request: &PermitRequest<'_>) -> Result<bool, TooManyPools> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let Inner { permits, queue, .. } = &mut *inner;
        let (is_granted, offered) =
            permits.acquire(request, || queue.active_keys(request.plugin).cloned().collect())?;
        inner.queue_offered(&offered, now);
        self.notify(inner);
        Ok(is_granted)
    }

    /// Releases a permit, or ends the wait for one.
    pub fn release_permit(&self, plugin: &str, pool: &str, key: &ObjectRef) {
        let now = self.now();
        let mut inner = self.inner.lock();
        let offered = inner.permits.release(plugin, pool, key);
        inner.queue_offered(&offered, now);
        self.notify(inner);
    }

    /// The use of the pools of permits, in order of their plugins and names.
    pub fn pool_usage(&self) -> Vec<PoolUsage> {
        self.inner.lock().permits.list_usage()
    }

    /// Ends the reconcile of an object. `reads` replaces its dependencies; none keeps them, for a reconcile that
    /// ended before it could read. `pools` are those of which it has requested a permit; none keeps the permits that it holds.
    pub fn done(
        &self,
        key: &ObjectRef,
        next: Requeue<Cause>,
        reads: Option<Vec<ReadDependency>>,
        pools: Option<&BTreeSet<Box<str>>>,
    ) {
        let now = self.now();
        let mut inner = self.inner.lock();
        if let Some(reads) = reads {
            inner.graph.replace_edges(key, reads);
        }
        inner.queue.done(key, next, now);
        inner.end_permits(key, pools, now);
        self.notify(inner);
    }

    /// Ends the reconcile of an object that no longer exists.
    pub fn forget(&self, key: &ObjectRef) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.graph.remove_dependant(key);
        inner.queue.done(key, Requeue::AwaitChange, now);
        inner.end_permits(key, Some(&BTreeSet::new()), now);
        self.notify(inner);
    }

    /// Drops the queued work and the dependencies of an object that was deleted while this host does not lead: nothing is
    /// popped then, so they would add up with each name there ever was.
    pub fn drop_deleted(&self, key: &ObjectRef) {
        let now = self.now();
        let mut inner = self.inner.lock();
        let is_running = |item: ItemStatus| matches!(item.state, ItemState::InFlight { .. });
        if !inner.queue.item_status(key).is_some_and(is_running) {
            inner.queue.remove(key);
            inner.graph.remove_dependant(key);
            inner.end_permits(key, Some(&BTreeSet::new()), now);
        }
    }

    /// Records a read before it happens, so that a change during the reconcile is not missed.
    pub fn record_read(&self, key: &ObjectRef, dependency: ReadDependency) {
        let now = self.now();
        let mut inner = self.inner.lock();
        let unread = dependency
            .object()
            .filter(|read| self.first_read.contains(&read.gvk) && !inner.graph.has_readers(read))
            .cloned();
        inner.graph.add_edge(key, &dependency);
        if let Some(read) = unread {
            inner.enqueue(&read, Priority::Normal, Cause::StatusStale, now);
            self.notify(inner);
        }
    }

    /// Returns true if an object was read by the last reconcile of another.
    pub fn has_readers(&self, key: &ObjectRef) -> bool {
        self.inner.lock().graph.has_readers(key)
    }

    /// The dependencies of an object.
    pub fn reads(&self, key: &ObjectRef) -> Vec<ReadDependency> {
        self.inner.lock().graph.reads(key).cloned().collect()
    }

    /// The watches that are needed: of reconciled kinds and of dependencies.
    pub fn scopes(&self) -> Vec<Scope> {
        let inner = self.inner.lock();
        let reconciled = inner.scopes.values().flatten().cloned();
        reconciled.chain(inner.graph.scopes()).collect()
    }

    /// Past causes of an object, oldest first.
    pub fn causes(&self, key: &ObjectRef) -> Vec<Cause> {
        let inner = self.inner.lock();
        let of_key = inner.history.iter().filter(|(k, _)| k == key);
        of_key.map(|(_, cause)| cause.clone()).collect()
    }

    /// The turn of an object.
    pub fn find_turn(&self, key: &ObjectRef) -> Turn {
        let now = self.now();
        self.inner.lock().find_turn(key, now)
    }

    /// Explains the scheduling of an object: its turn in the queue and its dependencies.
    pub fn explain(&self, key: &ObjectRef) -> SchedulingState {
        let causes = self.causes(key);
        let now = self.now();
        let inner = self.inner.lock();
        SchedulingState {
            turn: inner.find_turn(key, now),
            causes,
            reads: inner.graph.reads(key).cloned().collect(),
            permits: inner
                .find_lane(key)
                .map(|plugin| inner.permits.list_states(plugin, key))
                .unwrap_or_default(),
        }
    }

    /// The lane of each plugin, and the number of delayed objects.
    pub fn lanes(&self) -> (Vec<LaneState>, usize) {
        let inner = self.inner.lock();
        (inner.queue.lanes().collect(), inner.queue.delayed_len())
    }

    /// Returns true if nothing is due and nothing is in flight; delayed work may remain.
    pub fn is_idle(&self) -> bool {
        let now = self.now();
        self.inner.lock().queue.is_idle(now)
    }
}

impl Inner {
    fn find_turn(&self, key: &ObjectRef, now: Duration) -> Turn {
        let item = self.queue.item_status(key);
        Turn {
            state: item.map(|item| item.state),
            failures: item.map_or(0, |item| item.failures),
            due_in: match item.map(|item| item.state) {
                Some(ItemState::Delayed(at)) => Some(at.saturating_sub(now)),
                _ => None,
            },
            due_cause: self.queue.due_cause(key).cloned(),
        }
    }

    /// Queues an object because `changed` changed, or holds the wake-up while a write by the object itself is pending
    /// that may be the cause.
    fn wake(&mut self, key: &ObjectRef, changed: &ObjectRef, wake_up: WakeUp<Cause>, now: Duration) {
        if let Some(wake_up) = self.writes.admit(key, changed, wake_up) {
            self.enqueue(key, wake_up.priority, wake_up.cause, now);
        }
    }

    /// The lane of an object. Objects of other clusters than that of its reconciler are dependencies only: their kinds may
    /// be the same, and another host may reconcile them there.
    fn find_lane(&self, key: &ObjectRef) -> Option<&Arc<str>> {
        let lane = self.lanes.get(&key.gvk)?;
        (lane.cluster == key.cluster).then_some(&lane.plugin)
    }

    /// Settles the permits of an object after its reconcile, which has requested some of these pools; none keeps what it holds.
    fn end_permits(&mut self, key: &ObjectRef, pools: Option<&BTreeSet<Box<str>>>, now: Duration) {
        let Some(plugin) = self
            .find_lane(key)
            .filter(|plugin| self.permits.has_pools(plugin))
            .cloned()
        else {
            return;
        };
        let state = self.queue.item_status(key).map(|item| item.state);
        let is_due = matches!(state, Some(ItemState::Queued(_)));
        let offered = self.permits.end_reconcile(&plugin, key, pools, is_due);
        self.queue_offered(&offered, now);
    }

    /// Queues the objects that permits are offered to.
    fn queue_offered(&mut self, offered: &[ObjectRef], now: Duration) {
        for key in offered {
            self.enqueue(key, Priority::High, Cause::Permit, now);
        }
    }

    /// Queues an object that a plugin reconciles.
    fn enqueue(&mut self, key: &ObjectRef, priority: Priority, cause: Cause, now: Duration) {
        if let Some(lane) = self.find_lane(key).cloned() {
            self.queue.add(lane, key.clone(), priority, cause, now);
        }
    }
}

/// Returns true if the change sets a new value of [`annotation::RECONCILE_NOW`].
fn requests_reconcile(change: &ObjectChange) -> bool {
    let value = |object: &Option<Arc<KubeObject>>| {
        object
            .as_ref()?
            .annotation(annotation::RECONCILE_NOW)
            .map(str::to_owned)
    };
    value(&change.new).is_some() && value(&change.old) != value(&change.new)
}

/// Returns true if an object whose Ready condition was not true became Ready.
fn is_recovery(change: &ObjectChange) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return false;
    };
    let before = old.readiness();
    !before.ready && !before.reason.is_empty() && new.readiness().ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::{backoff::Backoff, scope::Projection};

    fn change(version: u64) -> ObjectChange {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}"}},"data":{{"v":"{version}"}}}}"#
        );
        let (key, object) =
            KubeObject::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        ObjectChange {
            key,
            old: None,
            new: Some(Arc::new(object)),
        }
    }

    #[test]
    fn own_write_seen_first_by_the_watch_wakes_nothing_but_a_foreign_one_does() {
        let owner = Gvk::new("g", "v1", "Owner");
        let by = ObjectRef::new(owner.clone(), "n", "o");
        for (seen, woken) in [(vec![7], false), (vec![6, 7], true), (vec![8], true)] {
            let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
            let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
            dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&owner), Vec::new(), 0);
            let child = change(0).key;
            dispatcher.record_read(&by, ReadDependency::Object(child.clone(), Projection::Full));
            let expectation = dispatcher.expect_write(&child, &by);
            for version in &seen {
                dispatcher.on_change(&change(*version), VersionSource::Watch, None);
            }
            assert!(dispatcher.pop().is_none(), "held until the response arrives");
            expectation.fulfil(7, true);
            assert_eq!(dispatcher.pop().is_some(), woken, "{seen:?}");
        }
    }

    #[test]
    fn own_write_that_the_watch_reports_after_the_response_wakes_nothing() {
        let owner = Gvk::new("g", "v1", "Owner");
        let by = ObjectRef::new(owner.clone(), "n", "o");
        for (is_stored, reported, woken) in [(true, 7, false), (true, 8, true), (false, 7, true)] {
            let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
            let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
            dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&owner), Vec::new(), 0);
            let child = change(0).key;
            dispatcher.record_read(&by, ReadDependency::Object(child.clone(), Projection::Full));
            dispatcher.expect_write(&child, &by).fulfil(7, is_stored);
            // Its next write is pending by then.
            let next = dispatcher.expect_write(&child, &by);
            dispatcher.on_change(&change(reported), VersionSource::Watch, None);
            drop(next);
            assert_eq!(dispatcher.pop().is_some(), woken, "{reported}");
        }
    }

    #[test]
    fn change_of_many_dependants_wakes_them_behind_changes_of_others() {
        let owner = Gvk::new("g", "v1", "Owner");
        for (dependants, is_behind) in [(MAX_URGENT_DEPENDANTS, false), (MAX_URGENT_DEPENDANTS + 1, true)] {
            let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
            let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
            dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&owner), Vec::new(), 0);
            let config = change(0).key;
            for index in 0..dependants {
                let reader = ObjectRef::new(owner.clone(), "n", &format!("reader-{index}"));
                dispatcher.record_read(&reader, ReadDependency::Object(config.clone(), Projection::Full));
            }
            dispatcher.on_change(&change(1), VersionSource::Watch, None);
            let mut edited = change(2);
            edited.key = ObjectRef::new(owner.clone(), "n", "edited");
            dispatcher.on_change(&edited, VersionSource::Watch, None);
            let first = dispatcher.pop().expect("work");
            assert_eq!(first.key == edited.key, is_behind, "{dependants} dependants");
        }
    }

    #[test]
    fn object_of_another_cluster_wakes_its_readers_and_is_not_reconciled() {
        let gvk = change(0).key.gvk.clone();
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        // The kind is reconciled: the same kind may exist in many clusters.
        dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&gvk), Vec::new(), 0);
        let east: Arc<str> = "fleet/east".into();
        let remote = change(7).key.with_cluster(&east);
        let (near, far) = (
            ObjectRef::new(gvk.clone(), "n", "near"),
            ObjectRef::new(gvk, "n", "far"),
        );
        dispatcher.record_read(&near, ReadDependency::Object(change(7).key, Projection::Full));
        dispatcher.record_read(&far, ReadDependency::Object(remote.clone(), Projection::Full));
        let deleting = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"8","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["held-by.ostler.dev/x"]}}"#;
        let (_, deleting) = KubeObject::parse(&remote.gvk, deleting.as_bytes()).expect("an object");
        for object in [change(7).new, Some(Arc::new(deleting))] {
            let change = ObjectChange {
                key: remote.clone(),
                old: None,
                new: object,
            };
            dispatcher.on_change(&change, VersionSource::Watch, None);
            let woken = dispatcher.pop().expect("its reader is woken");
            assert_eq!(woken.key, far);
            assert_eq!(*woken.causes, [Cause::Dependency(remote.clone())]);
            dispatcher.done(&far, Requeue::AwaitChange, None, None);
            assert!(dispatcher.pop().is_none(), "nothing else is woken");
        }
    }

    #[test]
    fn kind_of_another_home_cluster_is_reconciled_there_only() {
        let near = change(7);
        let gvk = near.key.gvk.clone();
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        let (plugin, east): (Arc<str>, Arc<str>) = ("p".into(), "fleet/east".into());
        dispatcher.assign_cluster_kinds(&plugin, &east, std::slice::from_ref(&gvk), Vec::new(), 0);
        let far = ObjectChange {
            key: near.key.clone().with_cluster(&east),
            ..change(7)
        };
        assert!(dispatcher.is_reconciled(&far.key) && !dispatcher.is_reconciled(&near.key));
        for change in [&near, &far] {
            dispatcher.on_change(change, VersionSource::Watch, None);
        }
        let woken = dispatcher.pop().expect("the object of the home cluster");
        assert_eq!((&woken.key, &woken.lane), (&far.key, &plugin));
        dispatcher.done(&far.key, Requeue::AwaitChange, None, None);
        assert!(
            dispatcher.pop().is_none(),
            "that of the host's own cluster is not queued"
        );
    }

    #[test]
    fn own_deletion_seen_first_by_the_watch_wakes_nothing_but_that_of_another_object_does() {
        let owner = Gvk::new("g", "v1", "Owner");
        let by = ObjectRef::new(owner.clone(), "n", "o");
        for (uid, woken) in [("u", false), ("predecessor", true)] {
            let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
            let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
            dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&owner), Vec::new(), 0);
            let ObjectChange { key, new, .. } = change(7);
            dispatcher.record_read(&by, ReadDependency::Object(key.clone(), Projection::Full));
            let expectation = dispatcher.expect_write(&key, &by);
            let deletion = ObjectChange {
                key,
                old: new,
                new: None,
            };
            dispatcher.on_change(&deletion, VersionSource::Watch, None);
            assert!(dispatcher.pop().is_none(), "held until the response arrives");
            expectation.fulfil_deletion(&uid.into(), true);
            assert_eq!(dispatcher.pop().is_some(), woken, "{uid}");
        }
    }

    #[tokio::test]
    async fn change_and_deadline_wake_one_worker_each() {
        const WORKER_COUNT: usize = 8;
        let gvk = Gvk::new("g", "v1", "Kind");
        let queue = Queue::new(Backoff::new(Duration::ZERO, Duration::ZERO));
        let dispatcher = Arc::new(Dispatcher::new(queue, NamespaceScope::default()));
        dispatcher.assign_kinds(&"p".into(), std::slice::from_ref(&gvk), Vec::new(), 0);
        let (sender, mut popped) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WORKER_COUNT {
            let (dispatcher, sender) = (dispatcher.clone(), sender.clone());
            tasks.spawn(async move {
                loop {
                    dispatcher.wait_work().await;
                    let _ = sender.send(dispatcher.pop().map(|work| work.key));
                }
            });
        }
        let timer = dispatcher.clone();
        tasks.spawn(async move { timer.run_timer().await });
        let settle = async || {
            for _ in 0..3 * WORKER_COUNT {
                tokio::task::yield_now().await;
            }
        };
        settle().await;
        let key = ObjectRef::new(gvk, "n", "o");
        dispatcher.enqueue(&key, Priority::High, Cause::Change);
        for _ in 0..3 {
            assert_eq!(popped.recv().await, Some(Some(key.clone())));
            settle().await;
            assert!(popped.is_empty(), "a worker was woken that found nothing");
            let soon = dispatcher.now() + Duration::from_millis(5);
            dispatcher.done(&key, Requeue::At(soon, Cause::Poll), None, None);
        }
    }
}
