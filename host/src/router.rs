//! Turns changes into work: who is woken by what.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    dependencies::{Dependency, Graph},
    key::{Gvk, ObjectRef},
    queue::{Next, Priority, Queue, Work},
    store::Change,
    watch::Origin,
};

/// Why an object is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was there when the host started.
    Start,
    /// Somebody changed it.
    Change,
    /// Something it read changed.
    Dependency(ObjectRef),
    /// Its interval is over.
    Poll,
    /// The last attempt failed, or waits.
    Retry,
    /// Its own timer.
    Timer,
    /// Its plugin was replaced.
    PluginChange,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Change => f.write_str("change"),
            Self::Dependency(on) => write!(f, "dependency {on}"),
            Self::Poll => f.write_str("poll"),
            Self::Retry => f.write_str("retry"),
            Self::Timer => f.write_str("timer"),
            Self::PluginChange => f.write_str("plugin-change"),
        }
    }
}

impl Cause {
    /// The word a guest is told.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Change => "change",
            Self::Dependency(_) => "dependency",
            Self::Poll => "poll",
            Self::Retry => "retry",
            Self::Timer => "timer",
            Self::PluginChange => "plugin-change",
        }
    }
}

/// The queue and the dependency graph behind one lock, and who reconciles which kind.
pub struct Router {
    started: Instant,
    inner: Mutex<Inner>,
    /// Told when there may be work to pop.
    pub work: Notify,
}

struct Inner {
    queue: Queue<ObjectRef, Cause>,
    graph: Graph<ObjectRef>,
    lanes: HashMap<Gvk, Arc<str>>,
    /// What woke whom, newest last, for people who ask why.
    history: VecDeque<(ObjectRef, Cause)>,
}

impl Router {
    /// An empty queue and no plugins.
    pub fn new(queue: Queue<ObjectRef, Cause>) -> Self {
        Self {
            started: Instant::now(),
            inner: Mutex::new(Inner {
                queue,
                graph: Graph::default(),
                lanes: HashMap::new(),
                history: VecDeque::new(),
            }),
            work: Notify::new(),
        }
    }

    /// Time as the queue counts it.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// From now on `plugin` reconciles exactly these kinds, so many objects at the same time (0: no limit).
    pub fn assign(&self, plugin: &Arc<str>, kinds: &[Gvk], concurrency: u32) {
        let mut inner = self.inner.lock().expect("lock");
        inner.queue.limit(plugin.clone(), concurrency as usize);
        inner.lanes.retain(|_, lane| lane != plugin);
        for gvk in kinds {
            inner.lanes.insert(gvk.clone(), plugin.clone());
        }
    }

    /// Whether some plugin reconciles a kind.
    pub fn reconciles(&self, gvk: &Gvk) -> bool {
        self.inner.lock().expect("lock").lanes.contains_key(gvk)
    }

    /// Wakes whom a change concerns. `by` is who made it: its own write does not wake it.
    pub fn changed(&self, change: &Change, origin: Origin, by: Option<&ObjectRef>) {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        let intended = match (&change.old, &change.new) {
            (Some(old), Some(new)) => old.intent != new.intent,
            _ => true,
        };
        if intended && by != Some(&change.key) {
            let (priority, cause) = match origin {
                Origin::Initial => (Priority::Low, Cause::Start),
                Origin::Watched => (Priority::High, Cause::Change),
            };
            inner.add(&change.key, priority, cause, now);
        }
        let old = change.old.as_ref().map(|o| &o.labels);
        let new = change.new.as_ref().map(|o| &o.labels);
        let dependants = inner.graph.dependants(&change.key, old, new);
        for dependant in dependants {
            if Some(&dependant) != by && dependant != change.key {
                inner.add(
                    &dependant,
                    Priority::High,
                    Cause::Dependency(change.key.clone()),
                    now,
                );
            }
        }
        drop(inner);
        self.work.notify_one();
    }

    /// Queues an object for a reason other than a change.
    pub fn add(&self, key: &ObjectRef, priority: Priority, cause: Cause) {
        let now = self.now();
        self.inner.lock().expect("lock").add(key, priority, cause, now);
        self.work.notify_one();
    }

    /// The next object to reconcile, or when to look again.
    pub fn pop(&self) -> Result<Work<ObjectRef, Cause>, Option<Duration>> {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        match inner.queue.pop(now) {
            Some(work) => {
                for cause in &work.causes {
                    let entry = (work.key.clone(), cause.clone());
                    inner.history.push_back(entry);
                }
                while inner.history.len() > 10_000 {
                    inner.history.pop_front();
                }
                drop(inner);
                // One wake-up may stand for many objects: the next worker looks for itself.
                self.work.notify_one();
                Ok(work)
            }
            None => Err(inner.queue.next_deadline().map(|at| at.saturating_sub(now))),
        }
    }

    /// Ends the reconcile of an object: what it read is what wakes it from now on.
    pub fn done(&self, key: &ObjectRef, next: Next<Cause>, reads: impl IntoIterator<Item = Dependency>) {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        inner.graph.replace(key, reads);
        inner.queue.done(key, next, now);
        drop(inner);
        self.work.notify_one();
    }

    /// Ends the reconcile of an object that is gone.
    pub fn forget(&self, key: &ObjectRef) {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        inner.graph.drop(key);
        inner.queue.done(key, Next::Settled, now);
        drop(inner);
        self.work.notify_one();
    }

    /// Records a read at once, so that a change during the reconcile is not missed.
    pub fn reads(&self, key: &ObjectRef, dependency: Dependency) {
        self.inner.lock().expect("lock").graph.add(key, dependency);
    }

    /// Everything that woke an object, oldest first.
    pub fn causes(&self, key: &ObjectRef) -> Vec<Cause> {
        let inner = self.inner.lock().expect("lock");
        let of_key = inner.history.iter().filter(|(k, _)| k == key);
        of_key.map(|(_, cause)| cause.clone()).collect()
    }

    /// Whether nothing is queued for now and nothing runs; delayed work may remain.
    pub fn idle(&self) -> bool {
        let now = self.now();
        self.inner.lock().expect("lock").queue.idle(now)
    }
}

impl Inner {
    fn add(&mut self, key: &ObjectRef, priority: Priority, cause: Cause, now: Duration) {
        if let Some(lane) = self.lanes.get(&key.gvk) {
            self.queue.add(lane.clone(), key.clone(), priority, cause, now);
        }
    }
}
