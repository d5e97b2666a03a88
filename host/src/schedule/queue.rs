//! The work queue: never two reconciles of one object at a time, deduplicated, prioritised, fair between plugins.
//!
//! Pure: time is a `Duration` since some start and comes in with each call, so tests need no clock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use rustc_hash::FxBuildHasher;

use crate::kube::backoff::Backoff;

/// Priority of queued work, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Changes, and awaited dependencies.
    High,
    /// Retries, polls, timers.
    Normal,
    /// Initial lists, all objects of a plugin after it was replaced, and changes that many objects have read.
    Low,
}

const ALL_PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// Interval, in pops, at which a lower priority goes first, each in turn. So low priorities are slow under load and
/// never starved.
const AGING_INTERVAL: u64 = 16;

/// Wait after which timers go before changes. A burst of changes takes minutes where writes are slow, and timers of other
/// objects, such as heartbeats, must not wait for its end.
const MAX_TIMER_WAIT: Duration = Duration::from_secs(1);

/// Interval, in pops of a lane, at which changes still go before timers that are overdue, so that too many timers do not stop them.
const CHANGE_INTERVAL: u64 = 4;

/// Part of the shared limit (a quarter) that is left to lanes without any object in flight.
const RESERVED_SHARE: usize = 4;

/// Failures after a wake-up by others that do not lengthen the backoff. Each later one counts as one of the object's own
/// retries, so that an object which fails and is woken all the time backs off as well.
const MAX_UNCOUNTED_FAILURES: u8 = 8;

/// Maximum causes kept per item; beyond it only the first of each variant is added.
const MAX_CAUSES: usize = 8;

/// Capacity above which the item map is shrunk when most of it is unused.
const SHRINK_ABOVE: usize = 1024;

/// Backoff of failing reconciles of one object.
pub const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_secs(1000)).with_jitter(50);

/// A work item that was popped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work<K, C> {
    /// The object.
    pub key: K,
    /// The plugin that it belongs to.
    pub lane: Arc<str>,
    /// Causes, oldest first.
    pub causes: Vec<C>,
    /// Failures in a row before this attempt that count for the backoff.
    pub attempt: u32,
    /// Priority that it was queued with.
    pub priority: Priority,
    /// Time between becoming due and being popped.
    pub waited: Duration,
}

/// The next reconcile of an object whose work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requeue<C> {
    /// Succeeded: not before it is added again.
    AwaitChange,
    /// Succeeded: at this time, for this cause.
    At(Duration, C),
    /// Failed: after the backoff, which begins at this time if that is not over, for this cause.
    Retry(Duration, C),
    /// Waiting, which is neither success nor failure: at this time at the latest, for this cause.
    Wait(Duration, C),
    /// Failed in a way that retries do not cure: not before it is added again.
    Terminal,
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// Due, and not popped.
    Queued(Priority),
    /// Due at this time.
    Delayed(Duration),
    /// Being worked on.
    InFlight {
        /// True if it was added meanwhile, so that it is due again right after.
        requeue: bool,
    },
    /// Not due before it is added again.
    Parked,
}

/// The state and failure count of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemStatus {
    /// State in the queue.
    pub state: ItemState,
    /// Failures in a row that count for the backoff.
    pub failures: u32,
}

#[derive(Clone)]
struct Item<C> {
    lane: Arc<str>,
    state: ItemState,
    causes: Vec<C>,
    /// Priority to be queued with when it becomes due.
    priority: Priority,
    /// Failures in a row that count for the backoff: the first one, and those of retries.
    failures: u32,
    /// Failures since the last retry, after wake-ups by others.
    uncounted_failures: u8,
    /// True from when its delay was over until its work ends: the attempt is its own, not caused by a change elsewhere.
    is_own_attempt: bool,
    /// Position in its lane if queued, or in `delayed` if delayed.
    sequence: u64,
    enqueued_at: Duration,
    /// Cause of the delayed reconcile. It joins `causes` only when the delay is over, because an earlier wake-up
    /// makes it moot.
    due_cause: Option<C>,
}

#[derive(Clone, Default)]
struct Lane<K> {
    ready: [BTreeMap<u64, K>; 3],
    in_flight: usize,
    limit: usize,
    adds: u64,
    /// Number of objects that were popped from it.
    pops: u64,
    paused: bool,
    /// It has only its own limit: it does not count against the shared one.
    dedicated: bool,
}

/// A snapshot of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The plugin.
    pub name: Arc<str>,
    /// Number of due objects, by priority.
    pub due: [(Priority, usize); 3],
    /// Number of objects being worked on.
    pub in_flight: usize,
    /// Maximum number of objects in flight; 0 for no limit of its own.
    pub limit: usize,
    /// Number of times an object became due.
    pub adds: u64,
}

/// The work queue. `K` names objects, `C` is a cause.
///
/// Invariant: an item is in exactly one place, and `Item::state` says which. `Queued` items are in `ready` of their
/// lane under `Item::sequence`; `Delayed` items are in `delayed` and, under the same sequence, in `delayed_keys`.
#[derive(Clone)]
pub struct Queue<K, C> {
    backoff: Backoff,
    rng: fastrand::Rng,
    items: HashMap<K, Item<C>, FxBuildHasher>,
    lanes: BTreeMap<Arc<str>, Lane<K>>,
    delayed: BTreeSet<(Duration, u64)>,
    delayed_keys: HashMap<u64, K>,
    sequence: u64,
    pops: u64,
    /// Maximum number of objects in flight of all lanes that share it; 0 for no limit.
    shared_limit: usize,
    shared_in_flight: usize,
    /// The lane served last, per priority: the next one after it goes first.
    last_served: [Option<Arc<str>>; 3],
}

impl<K: Clone + Eq + Hash, C: Clone + PartialEq> Queue<K, C> {
    /// Creates an empty queue with this backoff of retries.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            rng: fastrand::Rng::new(),
            items: HashMap::default(),
            lanes: BTreeMap::new(),
            delayed: BTreeSet::new(),
            delayed_keys: HashMap::new(),
            sequence: 0,
            pops: 0,
            shared_limit: 0,
            shared_in_flight: 0,
            last_served: [None, None, None],
        }
    }

    /// Limits the number of objects of a lane in flight; 0 for no limit of its own.
    pub fn set_limit(&mut self, lane: Arc<str>, limit: usize) {
        self.lanes.entry(lane).or_insert_with(Lane::new).limit = limit;
    }

    /// Maximum number of objects of a lane in flight; 0 for no limit of its own.
    pub fn limit(&self, lane: &str) -> usize {
        self.lanes.get(lane).map_or(0, |lane| lane.limit)
    }

    /// Limits the number of objects in flight of all lanes together, except dedicated ones; 0 for no limit.
    pub fn set_shared_limit(&mut self, limit: usize) {
        self.shared_limit = limit;
    }

    /// Gives a lane a limit of its own, outside the shared one. It is called before the lane has work.
    pub fn dedicate_lane(&mut self, lane: Arc<str>, limit: usize) {
        let lane = self.lanes.entry(lane).or_insert_with(Lane::new);
        (lane.dedicated, lane.limit) = (true, limit);
    }

    /// Pauses or resumes a lane. Paused objects stay queued.
    pub fn set_paused(&mut self, lane: Arc<str>, paused: bool) {
        self.lanes.entry(lane).or_insert_with(Lane::new).paused = paused;
    }

    /// Makes an object due now. An object that is due already takes the higher priority and the cause; one in
    /// flight is due again when its work ends.
    pub fn add(&mut self, lane: Arc<str>, key: K, priority: Priority, cause: C, now: Duration) {
        let item = self
            .items
            .entry(key.clone())
            .or_insert_with(|| Item::new(lane.clone(), now));
        item.add_cause(cause);
        match item.state {
            ItemState::InFlight { requeue } => {
                item.priority = if requeue {
                    item.priority.min(priority)
                } else {
                    priority
                };
                item.state = ItemState::InFlight { requeue: true };
            }
            ItemState::Queued(current) if current <= priority && item.lane == lane => {}
            _ => {
                let enqueued_at = if matches!(item.state, ItemState::Queued(_)) {
                    item.enqueued_at
                } else {
                    now
                };
                self.unlink(&key);
                self.enqueue(&key, lane, priority, enqueued_at);
            }
        }
    }

    /// Takes the next object that is due.
    pub fn pop(&mut self, now: Duration) -> Option<Work<K, C>> {
        self.promote_due(now);
        let (priority, name) = self.find_next(now)?;
        self.pops += 1;
        let lane = self.lanes.get_mut(&name)?;
        let (_, key) = lane.ready[priority as usize].pop_first()?;
        lane.in_flight += 1;
        lane.pops += 1;
        self.shared_in_flight += usize::from(!lane.dedicated);
        let item = self.items.get_mut(&key)?;
        item.state = ItemState::InFlight { requeue: false };
        Some(Work {
            key,
            lane: name,
            causes: std::mem::take(&mut item.causes),
            attempt: item.failures,
            priority,
            waited: now.saturating_sub(item.enqueued_at),
        })
    }

    /// Returns true if an object is due and may run, so that [`Queue::pop`] would return it. Delayed objects become due by
    /// [`Queue::promote_due`].
    pub fn has_work(&self) -> bool {
        let mut lanes = self.lanes.values();
        lanes.any(|lane| self.has_room(lane) && lane.ready.iter().any(|ready| !ready.is_empty()))
    }

    /// Returns true if one more object of the lane may be in flight.
    fn has_room(&self, lane: &Lane<K>) -> bool {
        !lane.paused
            && (lane.limit == 0 || lane.in_flight < lane.limit)
            && (lane.dedicated || self.has_shared_room(lane))
    }

    /// The lane to serve next, and the priority of its object. Lanes with work of the highest priority take turns; an overdue timer counts
    /// as such.
    fn find_next(&mut self, now: Duration) -> Option<(Priority, Arc<str>)> {
        let mut ranks = ALL_PRIORITIES;
        let is_aging_turn = (self.pops + 1).is_multiple_of(AGING_INTERVAL);
        if is_aging_turn {
            let low_in_turn = (self.pops / AGING_INTERVAL) % 2;
            ranks.rotate_left(if low_in_turn == 0 { 1 } else { 2 });
        }
        for rank in ranks {
            let find_front = |lane: &Lane<K>| {
                let front = match is_aging_turn {
                    true => rank,
                    false => self.choose_front(lane, rank, now),
                };
                (!lane.ready[front as usize].is_empty() && self.has_room(lane)).then_some(front)
            };
            // The lanes after the one served last, and then those up to it.
            let last = self.last_served[rank as usize].as_deref();
            let after = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let before = (
                Bound::Unbounded,
                last.map_or(Bound::Excluded(""), Bound::Included),
            );
            let (after, before) = (
                self.lanes.range::<str, _>(after),
                self.lanes.range::<str, _>(before),
            );
            let mut lanes = after.chain(before);
            let found = lanes.find_map(|(name, lane)| Some((find_front(lane)?, name.clone())));
            if let Some((front, name)) = found {
                self.last_served[rank as usize] = Some(name.clone());
                return Some((front, name));
            }
        }
        None
    }

    /// The priority of the object that a lane offers for a rank. The turns of changes and overdue timers are those of the lane: a slow one
    /// would else find the same turn of all lanes each time that it has room.
    fn choose_front(&self, lane: &Lane<K>, rank: Priority, now: Duration) -> Priority {
        let is_timer_first = rank == Priority::High
            && !lane.pops.is_multiple_of(CHANGE_INTERVAL)
            && self.has_overdue_timer(lane, now);
        if is_timer_first { Priority::Normal } else { rank }
    }

    /// True if the first timer of a lane has waited too long.
    fn has_overdue_timer(&self, lane: &Lane<K>, now: Duration) -> bool {
        let first = lane.ready[Priority::Normal as usize].values().next();
        let item = first.and_then(|key| self.items.get(key));
        item.is_some_and(|item| item.enqueued_at + MAX_TIMER_WAIT <= now)
    }

    /// True if the shared limit has room for the lane. The last part of it is left to lanes that have nothing in flight,
    /// so that lanes whose work takes long cannot stop the others.
    fn has_shared_room(&self, lane: &Lane<K>) -> bool {
        let reserved = match lane.in_flight {
            0 => 0,
            _ => self.shared_limit / RESERVED_SHARE,
        };
        self.shared_limit == 0 || self.shared_in_flight + reserved < self.shared_limit
    }

    /// The objects of a lane that are due or in flight.
    pub fn active_keys(&self, lane: &str) -> impl Iterator<Item = &K> {
        let items = self.items.iter().filter(move |(_, item)| *item.lane == *lane);
        items
            .filter(|(_, item)| matches!(item.state, ItemState::Queued(_) | ItemState::InFlight { .. }))
            .map(|(key, _)| key)
    }

    /// Ends work on an object.
    pub fn done(&mut self, key: &K, next: Requeue<C>, now: Duration) {
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let ItemState::InFlight { requeue } = item.state else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&item.lane) {
            lane.in_flight -= 1;
            self.shared_in_flight -= usize::from(!lane.dedicated);
        }
        let is_own_attempt = std::mem::take(&mut item.is_own_attempt);
        match &next {
            Requeue::AwaitChange | Requeue::At(..) => (item.failures, item.uncounted_failures) = (0, 0),
            Requeue::Retry(..) => item.count_failure(is_own_attempt),
            Requeue::Wait(..) | Requeue::Terminal => {}
        }
        let (lane, priority, failures) = (item.lane.clone(), item.priority, item.failures);
        if requeue {
            return self.enqueue(key, lane, priority, now);
        }
        match next {
            Requeue::AwaitChange => self.remove_item(key),
            Requeue::Terminal => item.state = ItemState::Parked,
            Requeue::At(at, cause) | Requeue::Wait(at, cause) => self.enqueue_at(key, cause, at),
            Requeue::Retry(from, cause) => {
                let delay = self.backoff.delay_with(failures, &mut self.rng);
                self.enqueue_at(key, cause, from.max(now) + delay);
            }
        }
    }

    /// Removes an object that is not in flight.
    pub fn remove(&mut self, key: &K) {
        if self
            .items
            .get(key)
            .is_some_and(|i| !matches!(i.state, ItemState::InFlight { .. }))
        {
            self.unlink(key);
            self.remove_item(key);
        }
    }

    /// Removes the objects that only a change would make due, and returns them.
    pub fn remove_parked(&mut self, is_removed: impl Fn(&K) -> bool) -> Vec<K> {
        let parked = self
            .items
            .iter()
            .filter(|(key, item)| item.state == ItemState::Parked && is_removed(key));
        let removed: Vec<K> = parked.map(|(key, _)| key.clone()).collect();
        for key in &removed {
            self.remove_item(key);
        }
        removed
    }

    /// Removes an item, and returns memory that a burst (such as an initial list) has left unused.
    fn remove_item(&mut self, key: &K) {
        self.items.remove(key);
        if self.items.capacity() > SHRINK_ABOVE.max(4 * self.items.len()) {
            self.items.shrink_to(2 * self.items.len());
        }
    }

    /// The time at which the next delayed object is due; in the past if only a pop is missing.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Returns true if nothing is due and nothing is in flight.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.delayed.first().is_none_or(|(at, _)| *at > now)
            && self
                .lanes
                .values()
                .all(|l| l.in_flight == 0 && l.ready.iter().all(BTreeMap::is_empty))
    }

    /// Snapshots of all lanes, in order of their names.
    pub fn lanes(&self) -> impl Iterator<Item = LaneState> {
        self.lanes.iter().map(|(name, lane)| LaneState {
            name: name.clone(),
            due: ALL_PRIORITIES.map(|p| (p, lane.ready[p as usize].len())),
            in_flight: lane.in_flight,
            limit: lane.limit,
            adds: lane.adds,
        })
    }

    /// Number of delayed objects.
    pub fn delayed_len(&self) -> usize {
        self.delayed.len()
    }

    /// The cause for which a delayed object will be due.
    pub fn due_cause(&self, key: &K) -> Option<&C> {
        self.items.get(key).and_then(|i| i.due_cause.as_ref())
    }

    /// The state of an object; none if no work is pending for it.
    pub fn item_status(&self, key: &K) -> Option<ItemStatus> {
        self.items.get(key).map(|i| ItemStatus {
            state: i.state,
            failures: i.failures,
        })
    }

    /// Makes delayed objects due whose time has come.
    pub fn promote_due(&mut self, now: Duration) {
        while let Some(&(at, sequence)) = self.delayed.first()
            && at <= now
        {
            self.delayed.pop_first();
            let Some(key) = self.delayed_keys.remove(&sequence) else {
                continue;
            };
            let Some(item) = self.items.get_mut(&key) else {
                continue;
            };
            if let Some(cause) = item.due_cause.take() {
                item.add_cause(cause);
            }
            item.is_own_attempt = true;
            let lane = item.lane.clone();
            self.enqueue(&key, lane, Priority::Normal, at);
        }
    }

    fn enqueue(&mut self, key: &K, lane: Arc<str>, priority: Priority, enqueued_at: Duration) {
        self.sequence += 1;
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let was_queued = matches!(item.state, ItemState::Queued(_));
        item.state = ItemState::Queued(priority);
        item.due_cause = None;
        item.priority = priority;
        item.sequence = self.sequence;
        item.enqueued_at = enqueued_at;
        item.lane = lane.clone();
        let lane = self.lanes.entry(lane).or_insert_with(Lane::new);
        lane.ready[priority as usize].insert(self.sequence, key.clone());
        lane.adds += u64::from(!was_queued);
    }

    fn enqueue_at(&mut self, key: &K, cause: C, at: Duration) {
        self.sequence += 1;
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        item.state = ItemState::Delayed(at);
        item.due_cause = Some(cause);
        item.sequence = self.sequence;
        self.delayed.insert((at, self.sequence));
        self.delayed_keys.insert(self.sequence, key.clone());
    }

    /// Takes an item out of its lane or out of the delayed ones.
    fn unlink(&mut self, key: &K) {
        let Some(item) = self.items.get(key) else { return };
        match item.state {
            ItemState::Queued(priority) => {
                if let Some(lane) = self.lanes.get_mut(&item.lane) {
                    lane.ready[priority as usize].remove(&item.sequence);
                }
            }
            ItemState::Delayed(at) => {
                self.delayed.remove(&(at, item.sequence));
                self.delayed_keys.remove(&item.sequence);
            }
            ItemState::InFlight { .. } | ItemState::Parked => {}
        }
    }
}

impl<C: PartialEq> Item<C> {
    fn new(lane: Arc<str>, enqueued_at: Duration) -> Self {
        Self {
            lane,
            state: ItemState::Parked,
            causes: Vec::new(),
            priority: Priority::Normal,
            failures: 0,
            uncounted_failures: 0,
            is_own_attempt: false,
            sequence: 0,
            enqueued_at,
            due_cause: None,
        }
    }

    /// Counts a failure for the backoff, unless it came before its time, when something changed elsewhere.
    fn count_failure(&mut self, is_own_attempt: bool) {
        if self.failures == 0 || is_own_attempt || self.uncounted_failures >= MAX_UNCOUNTED_FAILURES {
            self.failures = self.failures.saturating_add(1);
            self.uncounted_failures = 0;
        } else {
            self.uncounted_failures += 1;
        }
    }

    fn add_cause(&mut self, cause: C) {
        let variant = std::mem::discriminant(&cause);
        let is_covered =
            |c: &C| *c == cause || self.causes.len() >= MAX_CAUSES && std::mem::discriminant(c) == variant;
        if !self.causes.iter().any(is_covered) {
            self.causes.push(cause);
        }
    }
}

impl<K> Lane<K> {
    fn new() -> Self {
        Self {
            ready: [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()],
            in_flight: 0,
            limit: 0,
            adds: 0,
            pops: 0,
            paused: false,
            dedicated: false,
        }
    }
}

#[cfg(test)]
mod tests;
