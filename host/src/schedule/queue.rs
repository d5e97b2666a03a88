//! The work queue: per object never two at the same time, deduplicated, prioritised, fair between plugins.
//!
//! Pure: time is a `Duration` since some start and comes in with each call, so tests need no clock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A person's change, or what was waited for.
    High,
    /// Retries, polls, timers.
    Normal,
    /// Start-up lists, and everything at once after a plugin's change.
    Low,
}

const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// One pop in so many begins with a lower priority, each in turn, so that it is slow under load but never starved.
const AGING: u64 = 16;

/// Causes kept per object; more tell nothing new, but for the first of its sort.
const CAUSES: usize = 8;

/// Room for so many items is not worth giving back.
const ROOM: usize = 1024;

/// How the queue behaves.
#[derive(Clone, Debug)]
pub struct Config {
    base: Duration,
    longest: Duration,
    seed: u64,
}

impl Config {
    /// Back-off from `base` doubling up to `longest`; `seed` is for the jitter.
    pub fn new(base: Duration, longest: Duration, seed: u64) -> Self {
        let seed = seed | 1;
        Self { base, longest, seed }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work<K, C> {
    /// The object.
    pub key: K,
    /// The plugin whose turn it is.
    pub lane: Arc<str>,
    /// Why, oldest first.
    pub causes: Vec<C>,
    /// Failures in a row before this.
    pub attempt: u32,
    /// As which it was queued.
    pub priority: Priority,
    /// How long it was due.
    pub waited: Duration,
}

/// How work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<C> {
    /// Done until it is added again.
    Settled,
    /// Again at this time, because of this.
    At(Duration, C),
    /// Failed: again after the back-off, because of this.
    Retry(C),
    /// Waiting, no failure and no success: again at this time at the latest, because of this.
    Yield(Duration, C),
    /// Won't get better by itself: until it is added again.
    Park,
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Due, and not begun.
    Queued(Priority),
    /// Due at this time.
    Delayed(Duration),
    /// Being worked on; `true` when it will be due again right after.
    InFlight(bool),
    /// Until somebody adds it.
    Parked,
}

#[derive(Clone)]
struct Item<C> {
    lane: Arc<str>,
    place: Place,
    causes: Vec<C>,
    /// Priority to be queued with when it becomes due.
    priority: Priority,
    failures: u32,
    /// Position in its lane, or in `delayed`.
    sequence: u64,
    since: Duration,
    /// Why it will be due when it is delayed: told only when that time has come.
    then: Option<C>,
}

#[derive(Clone, Default)]
struct Lane<K> {
    ready: [BTreeMap<u64, K>; 3],
    in_flight: usize,
    limit: usize,
    adds: u64,
    held: bool,
}

/// A lane as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The plugin.
    pub name: Arc<str>,
    /// Due objects, by priority.
    pub due: [(Priority, usize); 3],
    /// Objects being worked on.
    pub in_flight: usize,
    /// So many at the same time; 0 for no limit of its own.
    pub limit: usize,
    /// Times an object became due.
    pub adds: u64,
}

/// The queue. `K` names objects, `C` says why.
#[derive(Clone)]
pub struct Queue<K, C> {
    config: Config,
    items: HashMap<K, Item<C>>,
    lanes: BTreeMap<Arc<str>, Lane<K>>,
    delayed: BTreeSet<(Duration, u64)>,
    delayed_keys: HashMap<u64, K>,
    sequence: u64,
    pops: u64,
    /// The lane served last, per priority: the next one after it goes first.
    served: [Option<Arc<str>>; 3],
}

impl<K: Clone + Eq + Hash, C: Clone + PartialEq> Queue<K, C> {
    /// An empty queue.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            items: HashMap::new(),
            lanes: BTreeMap::new(),
            delayed: BTreeSet::new(),
            delayed_keys: HashMap::new(),
            sequence: 0,
            pops: 0,
            served: [None, None, None],
        }
    }

    /// So many of a lane at the same time; 0 for no limit of its own.
    pub fn limit(&mut self, lane: Arc<str>, limit: usize) {
        self.lanes.entry(lane).or_insert_with(Lane::new).limit = limit;
    }

    /// Lets the objects of a lane wait, or go on.
    pub fn hold(&mut self, lane: Arc<str>, held: bool) {
        self.lanes.entry(lane).or_insert_with(Lane::new).held = held;
    }

    /// Makes an object due now. What is due already takes the higher priority and the cause; what is in
    /// flight is due again when it is done.
    pub fn add(&mut self, lane: Arc<str>, key: K, priority: Priority, cause: C, now: Duration) {
        let item = self
            .items
            .entry(key.clone())
            .or_insert_with(|| Item::new(lane.clone(), now));
        item.take_cause(cause);
        match item.place {
            Place::InFlight(again) => {
                item.priority = if again {
                    item.priority.min(priority)
                } else {
                    priority
                };
                item.place = Place::InFlight(true);
            }
            Place::Queued(current) if current <= priority && item.lane == lane => {}
            _ => {
                let since = if matches!(item.place, Place::Queued(_)) {
                    item.since
                } else {
                    now
                };
                self.unlink(&key);
                self.enqueue(&key, lane, priority, since);
            }
        }
    }

    /// The next object that is due.
    pub fn pop(&mut self, now: Duration) -> Option<Work<K, C>> {
        self.promote(now);
        let mut order = PRIORITIES;
        if (self.pops + 1).is_multiple_of(AGING) {
            let low_in_turn = (self.pops / AGING) % 2;
            order.rotate_left(if low_in_turn == 0 { 1 } else { 2 });
        }
        let (priority, name) = order.into_iter().find_map(|p| Some((p, self.turn(p)?)))?;
        self.pops += 1;
        let lane = self.lanes.get_mut(&name)?;
        let (_, key) = lane.ready[priority as usize].pop_first()?;
        lane.in_flight += 1;
        self.served[priority as usize] = Some(name.clone());
        let item = self.items.get_mut(&key)?;
        item.place = Place::InFlight(false);
        Some(Work {
            key,
            lane: name,
            causes: std::mem::take(&mut item.causes),
            attempt: item.failures,
            priority,
            waited: now.saturating_sub(item.since),
        })
    }

    /// The lane whose turn it is at a priority: the first after the one served last that has work and room.
    fn turn(&self, priority: Priority) -> Option<Arc<str>> {
        let can = |lane: &Lane<K>| {
            !lane.held
                && !lane.ready[priority as usize].is_empty()
                && (lane.limit == 0 || lane.in_flight < lane.limit)
        };
        let last = self.served[priority as usize].as_ref();
        let after = self
            .lanes
            .iter()
            .find(|(name, lane)| last.is_none_or(|l| *name > l) && can(lane));
        let found = after.or_else(|| self.lanes.iter().find(|(_, lane)| can(lane)));
        found.map(|(name, _)| name.clone())
    }

    /// Ends work on an object.
    pub fn done(&mut self, key: &K, next: Next<C>, now: Duration) {
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let Place::InFlight(again) = item.place else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&item.lane) {
            lane.in_flight -= 1;
        }
        let item = self.items.get_mut(key).expect("was there");
        match &next {
            Next::Settled | Next::At(..) => item.failures = 0,
            Next::Retry(_) => item.failures = item.failures.saturating_add(1),
            Next::Yield(..) | Next::Park => {}
        }
        let (lane, priority, failures) = (item.lane.clone(), item.priority, item.failures);
        if again {
            return self.enqueue(key, lane, priority, now);
        }
        match next {
            Next::Settled => self.forget(key),
            Next::Park => item.place = Place::Parked,
            Next::At(at, cause) | Next::Yield(at, cause) => self.delay(key, cause, at),
            Next::Retry(cause) => {
                let wait = self.backoff(failures);
                self.delay(key, cause, now + wait);
            }
        }
    }

    /// Forgets an object that is not in flight.
    pub fn remove(&mut self, key: &K) {
        if self
            .items
            .get(key)
            .is_some_and(|i| !matches!(i.place, Place::InFlight(_)))
        {
            self.unlink(key);
            self.forget(key);
        }
    }

    /// Of the room that everything at once has taken, no more is kept than is needed.
    fn forget(&mut self, key: &K) {
        self.items.remove(key);
        if self.items.capacity() > ROOM.max(4 * self.items.len()) {
            self.items.shrink_to(2 * self.items.len());
        }
    }

    /// When the next delayed object is due; at once when one is due and waits for nothing but a pop.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Whether nothing is due and nothing in flight.
    pub fn idle(&self, now: Duration) -> bool {
        self.delayed.first().is_none_or(|(at, _)| *at > now)
            && self
                .lanes
                .values()
                .all(|l| l.in_flight == 0 && l.ready.iter().all(BTreeMap::is_empty))
    }

    /// All lanes, in order of their names.
    pub fn lanes(&self) -> impl Iterator<Item = LaneState> {
        self.lanes.iter().map(|(name, lane)| LaneState {
            name: name.clone(),
            due: PRIORITIES.map(|p| (p, lane.ready[p as usize].len())),
            in_flight: lane.in_flight,
            limit: lane.limit,
            adds: lane.adds,
        })
    }

    /// Number of objects that are due later.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Why an object that is due later will be.
    pub fn then(&self, key: &K) -> Option<&C> {
        self.items.get(key).and_then(|i| i.then.as_ref())
    }

    /// Where an object is and how often it failed; none when nothing is to be done for it.
    pub fn explain(&self, key: &K) -> Option<(Place, u32)> {
        self.items.get(key).map(|i| (i.place, i.failures))
    }

    fn promote(&mut self, now: Duration) {
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
            if let Some(cause) = item.then.take() {
                item.take_cause(cause);
            }
            let lane = item.lane.clone();
            self.enqueue(&key, lane, Priority::Normal, at);
        }
    }

    fn enqueue(&mut self, key: &K, lane: Arc<str>, priority: Priority, since: Duration) {
        self.sequence += 1;
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        let moved = matches!(item.place, Place::Queued(_));
        item.place = Place::Queued(priority);
        item.then = None;
        item.priority = priority;
        item.sequence = self.sequence;
        item.since = since;
        item.lane = lane.clone();
        let lane = self.lanes.entry(lane).or_insert_with(Lane::new);
        lane.ready[priority as usize].insert(self.sequence, key.clone());
        lane.adds += u64::from(!moved);
    }

    fn delay(&mut self, key: &K, cause: C, at: Duration) {
        self.sequence += 1;
        let Some(item) = self.items.get_mut(key) else {
            return;
        };
        item.place = Place::Delayed(at);
        item.then = Some(cause);
        item.sequence = self.sequence;
        self.delayed.insert((at, self.sequence));
        self.delayed_keys.insert(self.sequence, key.clone());
    }

    /// Takes an object out of wherever it waits.
    fn unlink(&mut self, key: &K) {
        let Some(item) = self.items.get(key) else { return };
        match item.place {
            Place::Queued(priority) => {
                if let Some(lane) = self.lanes.get_mut(&item.lane) {
                    lane.ready[priority as usize].remove(&item.sequence);
                }
            }
            Place::Delayed(at) => {
                self.delayed.remove(&(at, item.sequence));
                self.delayed_keys.remove(&item.sequence);
            }
            Place::InFlight(_) | Place::Parked => {}
        }
    }

    /// `base · 2^(failures-1)`, at most `longest`, of which between half and all is waited.
    fn backoff(&mut self, failures: u32) -> Duration {
        let doubled = self
            .config
            .base
            .saturating_mul(1 << failures.saturating_sub(1).min(30));
        let full = doubled.min(self.config.longest);
        // xorshift64: jitter needs to be spread, not secret.
        let mut x = self.config.seed;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.config.seed = x;
        full / 2 + full / 2 * u32::try_from(x % 1024).unwrap_or(0) / 1024
    }
}

impl<C: PartialEq> Item<C> {
    fn new(lane: Arc<str>, since: Duration) -> Self {
        Self {
            lane,
            place: Place::Parked,
            causes: Vec::new(),
            priority: Priority::Normal,
            failures: 0,
            sequence: 0,
            since,
            then: None,
        }
    }

    fn take_cause(&mut self, cause: C) {
        let sort = std::mem::discriminant(&cause);
        let told = |c: &C| *c == cause || self.causes.len() >= CAUSES && std::mem::discriminant(c) == sort;
        if !self.causes.iter().any(told) {
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
            held: false,
        }
    }
}

#[cfg(test)]
mod tests;
