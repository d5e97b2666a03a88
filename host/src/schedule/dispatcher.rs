//! Turns changes into work: who is woken by what.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{
    cache::store::{Change, Origin},
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        references,
        scope::{Reach, Scope},
    },
    schedule::{
        dependencies::{Dependency, Graph},
        queue::{LaneState, Next, Place, Priority, Queue, Work},
    },
    upstream,
};

/// Asks for a reconcile: each new value of this annotation is one.
pub const RECONCILE_NOW: &str = "ostler.dev/reconcile-now";

/// The lane of what the host itself does for objects.
const OWN_LANE: &str = "ostler";

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
    /// A person asked for it, by annotation.
    Manual,
    /// Requests to it told something new.
    Traffic,
    /// Its plugin was replaced.
    PluginChange,
    /// Its plugin is configured otherwise.
    ConfigChange,
    /// An event of a stream it follows; says which stream.
    Event(Arc<str>),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dependency(on) => write!(f, "dependency {on}"),
            Self::Event(stream) => write!(f, "event of {stream}"),
            other => f.write_str(other.word()),
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
            Self::Manual => "manual",
            Self::Traffic => "traffic",
            Self::PluginChange => "plugin-change",
            Self::ConfigChange => "config-change",
            Self::Event(_) => "event",
        }
    }
}

/// What the router knows of an object; see [`Router::explain`].
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Where it is in the queue; none when nothing is to be done for it.
    pub place: Option<Place>,
    /// Failures in a row.
    pub failures: u32,
    /// How long until it is due, when that is later.
    pub due_in: Option<Duration>,
    /// Why it will be due then.
    pub then: Option<Cause>,
    /// What woke it so far, oldest first; long ago is forgotten.
    pub causes: Vec<Cause>,
    /// What it read: what wakes it when it changes.
    pub reads: Vec<Dependency>,
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
    /// The watches of what each plugin reconciles.
    scopes: HashMap<Arc<str>, Vec<Scope>>,
    /// What woke whom, newest last, for people who ask why.
    history: VecDeque<(ObjectRef, Cause)>,
    /// Writes on their way, by the object that is written.
    writes: HashMap<ObjectRef, Vec<Write>>,
    tickets: u64,
}

/// A write whose answer is not there yet.
struct Write {
    ticket: u64,
    by: ObjectRef,
    /// What would have woken `by`, with the version that did; none where that says not enough.
    held: Vec<(Option<u64>, Priority, Cause)>,
}

/// A write on its way; see [`Router::writing`].
pub struct Writing {
    router: Arc<Router>,
    object: ObjectRef,
    ticket: u64,
    version: Option<u64>,
}

impl Writing {
    /// The answer is there: this version was ours, and wakes nobody. Any other does, when this is dropped.
    pub fn done(mut self, version: u64) {
        self.version = Some(version);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let now = self.router.now();
        let mut inner = self.router.inner.lock().expect("lock");
        let Some(writes) = inner.writes.get_mut(&self.object) else {
            return;
        };
        let Some(at) = writes.iter().position(|w| w.ticket == self.ticket) else {
            return;
        };
        let write = writes.swap_remove(at);
        if writes.is_empty() {
            inner.writes.remove(&self.object);
        }
        for (version, priority, cause) in write.held {
            if version.is_none() || version != self.version {
                inner.add(&write.by, priority, cause, now);
            }
        }
        drop(inner);
        self.router.work.notify_one();
    }
}

impl Router {
    /// An empty queue and no plugins.
    pub fn new(queue: Queue<ObjectRef, Cause>, reach: Reach) -> Self {
        Self {
            started: Instant::now(),
            inner: Mutex::new(Inner {
                queue,
                graph: Graph::new(reach),
                lanes: HashMap::new(),
                scopes: HashMap::new(),
                history: VecDeque::new(),
                writes: HashMap::new(),
                tickets: 0,
            }),
            work: Notify::new(),
        }
    }

    /// Time as the queue counts it.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// From now on `plugin` reconciles exactly these kinds, so many objects at the same time (0: no limit).
    /// `scopes` are the watches of these kinds.
    pub fn assign(&self, plugin: &Arc<str>, kinds: &[Gvk], scopes: Vec<Scope>, concurrency: u32) {
        let mut inner = self.inner.lock().expect("lock");
        inner.queue.limit(plugin.clone(), concurrency as usize);
        inner.lanes.retain(|_, lane| lane != plugin);
        inner.scopes.insert(plugin.clone(), scopes);
        for gvk in kinds {
            inner.lanes.insert(gvk.clone(), plugin.clone());
        }
    }

    /// Lets the objects of a plugin wait, or go on.
    pub fn hold(&self, plugin: &Arc<str>, held: bool) {
        self.inner.lock().expect("lock").queue.hold(plugin.clone(), held);
        self.work.notify_one();
    }

    /// A plugin needs this watch, too.
    pub fn also(&self, plugin: &Arc<str>, scope: Scope) {
        let mut inner = self.inner.lock().expect("lock");
        inner.scopes.entry(plugin.clone()).or_default().push(scope);
    }

    /// Whether some plugin reconciles a kind.
    pub fn reconciles(&self, gvk: &Gvk) -> bool {
        self.inner.lock().expect("lock").lanes.contains_key(gvk)
    }

    /// Wakes whom a change concerns. `by` is who made it: its own write does not wake it.
    pub fn changed(&self, change: &Change, origin: Origin, by: Option<&ObjectRef>) {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        // A list may show an own write and somebody else's before it as one.
        let version = change.new.as_ref().map(|o| o.resource_version);
        // And where one watch shows what was made anew, another may have to tell that the one before was deleted.
        let version = version.filter(|_| !origin.skips() && !change.replaced());
        let intended = match (&change.old, &change.new) {
            (Some(old), Some(new)) => old.intent != new.intent,
            _ => true,
        };
        if intended && by != Some(&change.key) {
            let (priority, cause) = match origin {
                Origin::Initial => (Priority::Low, Cause::Start),
                _ if asked_for(change) => (Priority::High, Cause::Manual),
                _ => (Priority::High, Cause::Change),
            };
            inner.wake(&change.key, &change.key, version, priority, cause, now);
        }
        // An object that nobody reconciles may wait for those who hold it.
        if let Some(object) = &change.new
            && object.deleting()
            && references::held(object)
            && !inner.lanes.contains_key(&change.key.gvk)
        {
            let cause = Cause::Change;
            inner
                .queue
                .add(OWN_LANE.into(), change.key.clone(), Priority::High, cause, now);
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        // What the host says of an Upstream is no news to who uses it, but that it is back.
        let told = intended || change.key.gvk != upstream::upstream_gvk() || recovered(change);
        let dependants = match told {
            true => inner.graph.dependants(&change.key, old, new),
            false => Vec::new(),
        };
        for dependant in dependants {
            if Some(&dependant) != by && dependant != change.key {
                let cause = Cause::Dependency(change.key.clone());
                inner.wake(&dependant, &change.key, version, Priority::High, cause, now);
            }
        }
        drop(inner);
        self.work.notify_one();
    }

    /// Announces a write of `object` on behalf of `by`. The watch may tell of it before the answer does:
    /// until the guard is done, what would wake `by` is held back.
    pub fn writing(self: &Arc<Self>, object: &ObjectRef, by: &ObjectRef) -> Writing {
        let mut inner = self.inner.lock().expect("lock");
        inner.tickets += 1;
        let ticket = inner.tickets;
        inner.writes.entry(object.clone()).or_default().push(Write {
            ticket,
            by: by.clone(),
            held: Vec::new(),
        });
        Writing {
            router: self.clone(),
            object: object.clone(),
            ticket,
            version: None,
        }
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
    /// None where it read nothing because it did not come to that.
    pub fn done(&self, key: &ObjectRef, next: Next<Cause>, reads: Option<Vec<Dependency>>) {
        let now = self.now();
        let mut inner = self.inner.lock().expect("lock");
        if let Some(reads) = reads {
            inner.graph.replace(key, reads);
        }
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

    /// The watches that are needed: of what is reconciled, and of what was read.
    pub fn scopes(&self) -> Vec<Scope> {
        let inner = self.inner.lock().expect("lock");
        let reconciled = inner.scopes.values().flatten();
        reconciled.chain(inner.graph.scopes()).cloned().collect()
    }

    /// Everything that woke an object, oldest first.
    pub fn causes(&self, key: &ObjectRef) -> Vec<Cause> {
        let inner = self.inner.lock().expect("lock");
        let of_key = inner.history.iter().filter(|(k, _)| k == key);
        of_key.map(|(_, cause)| cause.clone()).collect()
    }

    /// All that is known of an object's turn: where it is in the queue, when it runs next, what wakes it.
    pub fn explain(&self, key: &ObjectRef) -> Explanation {
        let causes = self.causes(key);
        let now = self.now();
        let inner = self.inner.lock().expect("lock");
        let turn = inner.queue.explain(key);
        Explanation {
            place: turn.map(|(place, _)| place),
            failures: turn.map_or(0, |(_, failures)| failures),
            due_in: match turn {
                Some((Place::Delayed(at), _)) => Some(at.saturating_sub(now)),
                _ => None,
            },
            then: inner.queue.then(key).cloned(),
            causes,
            reads: inner.graph.reads(key).cloned().collect(),
        }
    }

    /// Each plugin's part of the queue, and how many objects are due later.
    pub fn lanes(&self) -> (Vec<LaneState>, usize) {
        let inner = self.inner.lock().expect("lock");
        (inner.queue.lanes().collect(), inner.queue.delayed())
    }

    /// Whether nothing is queued for now and nothing runs; delayed work may remain.
    pub fn idle(&self) -> bool {
        let now = self.now();
        self.inner.lock().expect("lock").queue.idle(now)
    }
}

impl Inner {
    /// Queues an object because of a version of another (or of itself), unless a write of its own may have made it.
    fn wake(
        &mut self,
        key: &ObjectRef,
        changed: &ObjectRef,
        version: Option<u64>,
        priority: Priority,
        cause: Cause,
        now: Duration,
    ) {
        let write = self
            .writes
            .get_mut(changed)
            .and_then(|ws| ws.iter_mut().find(|w| w.by == *key));
        match write {
            Some(write) => write.held.push((version, priority, cause)),
            None => self.add(key, priority, cause, now),
        }
    }

    fn add(&mut self, key: &ObjectRef, priority: Priority, cause: Cause, now: Duration) {
        if let Some(lane) = self.lanes.get(&key.gvk) {
            self.queue.add(lane.clone(), key.clone(), priority, cause, now);
        }
    }
}

/// Whether a person asked for a reconcile and changed nothing else that counts.
fn asked_for(change: &Change) -> bool {
    let asked = |object: &Option<Arc<Object>>| object.as_ref()?.annotation(RECONCILE_NOW).map(str::to_owned);
    asked(&change.new).is_some() && asked(&change.old) != asked(&change.new)
}

/// Whether it was said not to be Ready, and is now.
fn recovered(change: &Change) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return false;
    };
    let before = old.ready();
    !before.ready && !before.reason.is_empty() && new.ready().ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kube::scope::Form, schedule::queue::Config};

    fn change(version: u64) -> Change {
        let json = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n","uid":"u","resourceVersion":"{version}"}},"data":{{"v":"{version}"}}}}"#
        );
        let (key, object) =
            Object::parse(&Gvk::new("", "v1", "ConfigMap"), json.as_bytes()).expect("an object");
        Change {
            key,
            old: None,
            new: Some(Arc::new(object)),
        }
    }

    #[test]
    fn an_own_write_that_the_watch_tells_first_wakes_nobody_but_somebody_elses_does() {
        let owner = Gvk::new("g", "v1", "Owner");
        let by = ObjectRef::new(owner.clone(), "n", "o");
        for (seen, woken) in [(vec![7], false), (vec![6, 7], true), (vec![8], true)] {
            let queue = Queue::new(Config::new(Duration::ZERO, Duration::ZERO, 1));
            let router = Arc::new(Router::new(queue, Reach::default()));
            router.assign(&"p".into(), std::slice::from_ref(&owner), Vec::new(), 0);
            let child = change(0).key;
            router.reads(&by, Dependency::Object(child.clone(), Form::Whole));
            let writing = router.writing(&child, &by);
            for version in &seen {
                router.changed(&change(*version), Origin::Watched, None);
            }
            assert!(router.pop().is_err(), "held until the answer is there");
            writing.done(7);
            assert_eq!(router.pop().is_ok(), woken, "{seen:?}");
        }
    }
}
