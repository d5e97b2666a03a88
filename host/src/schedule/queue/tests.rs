use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn queue() -> Queue<u8, u8> {
    Queue::new(Backoff::new(10 * MS, 80 * MS).with_jitter(50))
}

fn lane(i: u8) -> Arc<str> {
    format!("lane-{i}").into()
}

#[test]
fn high_priority_goes_first_and_low_is_never_starved() {
    let mut q = queue();
    for key in 0..100 {
        q.add(lane(0), key, Priority::Low, 0, MS);
    }
    q.add(lane(0), 200, Priority::High, 0, MS);
    assert_eq!(q.pop(MS).map(|w| w.key), Some(200));
    let mut popped = HashSet::new();
    for i in 0..32 {
        q.add(lane(0), 100 + i, Priority::High, 0, MS);
        popped.insert(q.pop(MS).expect("work").priority);
    }
    assert!(popped.contains(&Priority::Low));
}

#[test]
fn only_parked_objects_are_removed() {
    let mut q = queue();
    for key in 0..3 {
        q.add(lane(0), key, Priority::High, 0, MS);
    }
    for next in [Requeue::Terminal, Requeue::Retry(Duration::ZERO, 0)] {
        let key = q.pop(MS).expect("work").key;
        q.done(&key, next, MS);
    }
    assert!(q.remove_parked(|_| false).is_empty());
    assert_eq!(q.remove_parked(|_| true), [0]);
    assert_eq!(q.item_status(&0), None);
    assert!(q.item_status(&1).is_some() && q.item_status(&2).is_some());
}

#[test]
fn every_priority_is_served_under_load() {
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    // One at a time, so that every other pop finds no room.
    q.set_limit(lane(0), 1);
    for key in 0..1000 {
        q.add(lane(0), 100_000 + key, Priority::Low, 0, MS);
        q.add(lane(0), 200_000 + key, Priority::Normal, 0, MS);
    }
    let mut served = HashMap::new();
    for key in 0..1000 {
        q.add(lane(0), key, Priority::High, 0, MS);
        let work = q.pop(MS).expect("work");
        assert_eq!(q.pop(MS), None);
        *served.entry(work.priority).or_insert(0) += 1;
        q.done(&work.key, Requeue::AwaitChange, MS);
    }
    assert!(
        served[&Priority::Normal] > 20 && served[&Priority::Low] > 20,
        "{served:?}"
    );
}

/// Every change is followed by a timer, as of an object that requeues itself once.
#[test]
fn timers_wait_for_no_burst_of_changes() {
    const PERIOD: Duration = Duration::from_secs(10);
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    let heartbeats = 10_000..10_050;
    for key in heartbeats.clone() {
        q.add(lane(0), key, Priority::High, 0, Duration::ZERO);
        let work = q.pop(Duration::ZERO).expect("work");
        q.done(
            &work.key,
            Requeue::At((key - 10_000) * 200 * MS, 1),
            Duration::ZERO,
        );
    }
    for key in 0..5_000 {
        q.add(lane(0), key, Priority::High, 0, Duration::ZERO);
    }
    let (mut now, mut longest) = (Duration::ZERO, Duration::ZERO);
    while now < Duration::from_secs(120) {
        // One at a time, fifteen per second.
        now += 66 * MS;
        let Some(work) = q.pop(now) else { continue };
        let next = if heartbeats.contains(&work.key) {
            longest = longest.max(work.waited);
            Requeue::At(now + PERIOD, 1)
        } else if work.priority == Priority::High {
            Requeue::At(now + MS, 2)
        } else {
            Requeue::AwaitChange
        };
        q.done(&work.key, next, now);
    }
    assert!(longest < Duration::from_secs(3), "{longest:?}");
}

#[test]
fn changes_are_served_beside_overdue_timers() {
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    for key in 0..1000 {
        q.add(lane(0), key, Priority::Normal, 0, MS);
        q.add(lane(0), 100_000 + key, Priority::High, 0, MS);
    }
    let now = MS + MAX_TIMER_WAIT;
    let served = (0..400).filter_map(|_| q.pop(now));
    let changes = served.filter(|work| work.priority == Priority::High).count();
    // A quarter, and some of the pops that start at the lowest priority, which has none here.
    assert!((100..=125).contains(&changes), "{changes}");
}

/// Objects of a lane fail, take long, and are retried. Meanwhile another lane has three short changes for each of their calls.
#[test]
fn changes_of_a_slow_lane_are_served_beside_its_retries_and_changes_of_others() {
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    q.set_limit(lane(0), 1);
    for key in 0..100 {
        q.add(lane(0), key, Priority::Normal, 0, MS);
        q.add(lane(0), 100 + key, Priority::High, 0, MS);
        q.add(lane(1), 1000 + key, Priority::High, 0, MS);
    }
    let now = MS + MAX_TIMER_WAIT;
    // Serves one object, and returns it if it is one of the slow lane.
    let serve = |q: &mut Queue<u32, u8>| {
        let work = q.pop(now).expect("work");
        if work.lane == lane(0) {
            return Some(work);
        }
        q.done(&work.key, Requeue::AwaitChange, now);
        q.add(lane(1), work.key, Priority::High, 0, now);
        None
    };
    for shift in 0..4 {
        let mut changes = 0;
        for _ in 0..shift {
            if let Some(slow) = serve(&mut q) {
                q.done(&slow.key, Requeue::At(now, 0), now);
            }
        }
        for _ in 0..16 {
            let served: Vec<_> = (0..4).filter_map(|_| serve(&mut q)).collect();
            let [slow] = &served[..] else {
                panic!("the slow lane is served once: {served:?}");
            };
            changes += u32::from(slow.priority == Priority::High);
            q.done(&slow.key, Requeue::At(now, 0), now);
        }
        assert!((3..=6).contains(&changes), "{changes} of 16, shifted by {shift}");
    }
}

#[test]
fn large_lane_does_not_delay_a_small_one() {
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    for key in 0..10_000 {
        q.add(lane(0), key, Priority::Normal, 0, MS);
    }
    for key in 20_000..20_003 {
        q.add(lane(1), key, Priority::Normal, 0, MS);
    }
    let first: Vec<_> = (0..7)
        .filter_map(|_| q.pop(MS))
        .filter(|w| w.lane == lane(1))
        .collect();
    assert_eq!(first.len(), 3);
}

#[test]
fn lanes_whose_work_never_ends_leave_room_for_others() {
    let mut q: Queue<u32, u8> = Queue::new(Backoff::new(MS, MS));
    q.set_shared_limit(32);
    q.dedicate_lane(lane(9), 2);
    for slow in 0..2 {
        q.set_limit(lane(slow), 16);
        for key in 0..40 {
            q.add(
                lane(slow),
                1000 * (u32::from(slow) + 1) + key,
                Priority::High,
                0,
                MS,
            );
        }
    }
    let running = std::iter::from_fn(|| q.pop(MS)).count();
    assert_eq!(running, 24, "a quarter is left to idle lanes");
    for key in 0..5 {
        q.add(lane(2), key, Priority::Low, 0, MS);
        q.add(lane(9), 100 + key, Priority::Low, 0, MS);
    }
    let mut popped: Vec<_> = std::iter::from_fn(|| q.pop(MS)).collect();
    popped.sort_by(|a, b| a.lane.cmp(&b.lane));
    let lanes: Vec<_> = popped.iter().map(|work| work.lane.clone()).collect();
    assert_eq!(lanes, [lane(2), lane(9), lane(9)]);
    // The others of the lane follow one by one, also while the slow ones keep all they have.
    for _ in 0..4 {
        q.done(&popped[0].key, Requeue::AwaitChange, MS);
        popped[0] = q.pop(MS).expect("room for one of the idle lane");
        assert_eq!((&popped[0].lane, q.pop(MS)), (&lane(2), None));
    }
}

#[test]
fn many_causes_of_one_variant_leave_room_for_others() {
    let mut q: Queue<u8, Result<u8, u8>> = Queue::new(Backoff::new(MS, MS));
    for cause in (0..20).map(Ok).chain([Err(0)]).chain((0..20).map(Ok)) {
        q.add(lane(0), 1, Priority::High, cause, MS);
    }
    let causes = q.pop(MS).expect("work").causes;
    assert_eq!(causes.len(), MAX_CAUSES + 1);
    assert_eq!(causes.last(), Some(&Err(0)));
}

#[test]
fn failures_back_off_and_success_resets_them() {
    for pause in [Duration::ZERO, 100 * MS] {
        let mut q = queue();
        q.add(lane(0), 1, Priority::High, 0, MS);
        let mut now = MS;
        for failures in 0..6u32 {
            let work = q.pop(now).expect("due");
            assert_eq!(work.attempt, failures);
            q.done(&1, Requeue::Retry(now + pause, 9), now);
            assert_eq!(q.pop(now), None);
            let wait = q.next_deadline().expect("delayed") - now;
            let full = (10 * MS * (1 << failures)).min(80 * MS);
            assert!(
                wait >= pause + full / 2 && wait <= pause + full,
                "{wait:?} of {full:?}"
            );
            now += wait;
        }
        q.pop(now);
        q.done(&1, Requeue::AwaitChange, now);
        q.add(lane(0), 1, Priority::High, 0, now);
        assert_eq!(q.pop(now).map(|w| w.attempt), Some(0));
    }
}

#[test]
fn failures_after_wake_ups_by_others_lengthen_the_backoff_slowly() {
    let mut q = queue();
    q.add(lane(0), 1, Priority::High, 0, MS);
    // Each time it fails it is woken before its delay is over.
    let attempts: Vec<u32> = (0..20)
        .map(|_| {
            let attempt = q.pop(MS).expect("due").attempt;
            q.done(&1, Requeue::Retry(Duration::ZERO, 9), MS);
            q.add(lane(0), 1, Priority::High, 0, MS);
            attempt
        })
        .collect();
    let (eighth, ninth) = (
        usize::from(MAX_UNCOUNTED_FAILURES) + 1,
        usize::from(MAX_UNCOUNTED_FAILURES) + 2,
    );
    assert_eq!(attempts[0], 0);
    assert!(
        attempts[1..=eighth].iter().all(|attempt| *attempt == 1),
        "{attempts:?}"
    );
    assert_eq!(attempts[ninth], 2, "{attempts:?}");
    assert_eq!(attempts.last(), Some(&3), "{attempts:?}");
}

#[test]
fn retry_that_is_due_counts_also_if_it_is_woken_as_well() {
    let mut q = queue();
    q.add(lane(0), 1, Priority::Low, 0, MS);
    q.pop(MS);
    q.done(&1, Requeue::Retry(Duration::ZERO, 9), MS);
    let due = q.next_deadline().expect("delayed");
    // It waits behind another one when it is woken.
    q.add(lane(0), 2, Priority::High, 0, due);
    assert_eq!(q.pop(due).map(|work| work.key), Some(2));
    q.add(lane(0), 1, Priority::High, 3, due);
    assert_eq!(q.pop(due).map(|work| work.attempt), Some(1));
    q.done(&1, Requeue::Retry(Duration::ZERO, 9), due);
    assert_eq!(q.item_status(&1).map(|item| item.failures), Some(2));
}

#[test]
fn earlier_wake_up_replaces_the_delayed_cause() {
    let mut q = queue();
    q.add(lane(0), 1, Priority::High, 0, MS);
    q.pop(MS);
    q.done(&1, Requeue::Wait(50 * MS, 9), MS);
    q.add(lane(0), 1, Priority::High, 3, 2 * MS);
    assert_eq!(q.pop(2 * MS).map(|w| w.causes), Some(vec![3]));
    q.done(&1, Requeue::At(50 * MS, 9), 2 * MS);
    assert_eq!(q.pop(50 * MS).map(|w| w.causes), Some(vec![9]));
}

#[test]
fn terminal_item_stays_parked_until_added() {
    let mut q = queue();
    q.add(lane(0), 1, Priority::High, 0, MS);
    q.pop(MS);
    q.done(&1, Requeue::Terminal, MS);
    assert_eq!(q.pop(Duration::from_secs(10_000)), None);
    let parked = ItemStatus {
        state: ItemState::Parked,
        failures: 0,
    };
    assert_eq!(q.item_status(&1), Some(parked));
    q.add(lane(0), 1, Priority::High, 0, MS);
    assert!(q.pop(MS).is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, Priority, u8),
    Pop,
    Done(u8, u8),
    Wait(u8),
    Limit(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![Just(Priority::High), Just(Priority::Normal), Just(Priority::Low)];
    prop_oneof![
        2 => (0..6u8, priority, 0..4u8).prop_map(|(k, p, c)| Step::Add(k, p, c)),
        3 => Just(Step::Pop),
        3 => (0..6u8, 0..6u8).prop_map(|(k, n)| Step::Done(k, n)),
        1 => (0..60u8).prop_map(Step::Wait),
        1 => (0..3u8).prop_map(Step::Limit),
    ]
}

/// A queue, and a plain model of what it must do.
#[derive(Clone)]
struct ModelTest {
    q: Queue<u8, u8>,
    now: Duration,
    /// Limit of concurrent items of lane 0; 0 for no limit.
    limit: usize,
    /// Latest time at which each key must be returned.
    wanted: HashMap<u8, Duration>,
    flying: HashSet<u8>,
    /// Causes not returned yet.
    causes: HashMap<u8, HashSet<u8>>,
}

fn lane_of(key: u8) -> Arc<str> {
    lane(key % 2)
}

impl ModelTest {
    fn new(limit: usize) -> Self {
        let mut q = queue();
        q.set_limit(lane(0), limit);
        Self {
            q,
            now: MS,
            limit,
            wanted: HashMap::new(),
            flying: HashSet::new(),
            causes: HashMap::new(),
        }
    }

    /// Performs a step on both. Fails if they differ.
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Add(k, p, c) => {
                self.q.add(lane_of(k), k, p, c, self.now);
                self.wanted.insert(k, self.now);
                self.causes.entry(k).or_default().insert(c);
            }
            Step::Pop => return self.pop(),
            Step::Done(k, next) if self.flying.remove(&k) => return self.done(k, next),
            Step::Done(..) => {}
            Step::Wait(d) => self.now += u32::from(d) * MS,
            // Only ever while nothing flies, as the model does not track overshoot.
            Step::Limit(n) if self.flying.is_empty() => {
                self.limit = n.into();
                self.q.set_limit(lane(0), self.limit);
            }
            Step::Limit(_) => {}
        }
        Ok(())
    }

    fn of_lane(&self, lane: &Arc<str>) -> usize {
        self.flying.iter().filter(|k| lane_of(**k) == *lane).count()
    }

    fn pop(&mut self) -> Result<(), String> {
        let Some(work) = self.q.pop(self.now) else {
            let full = self.limit > 0 && self.of_lane(&lane(0)) >= self.limit;
            let room = |k: &u8| !(full && k.is_multiple_of(2));
            let due = |(k, at): &(&u8, &Duration)| **at <= self.now && !self.flying.contains(*k) && room(k);
            return match self.wanted.iter().find(due) {
                Some(lost) => Err(format!("lost: {lost:?}")),
                None => Ok(()),
            };
        };
        if !self.flying.insert(work.key) {
            return Err(format!("{} twice in flight", work.key));
        }
        if self.wanted.remove(&work.key).is_none_or(|at| at > self.now) {
            return Err(format!("{} was not asked for", work.key));
        }
        let causes = self.causes.remove(&work.key).unwrap_or_default();
        if let Some(lost) = causes.iter().find(|c| !work.causes.contains(c)) {
            return Err(format!("cause {lost} of {} is lost", work.key));
        }
        if work.lane == lane(0) && self.limit > 0 && self.of_lane(&work.lane) > self.limit {
            return Err("over the limit".into());
        }
        Ok(())
    }

    fn done(&mut self, k: u8, next: u8) -> Result<(), String> {
        let again = self.wanted.contains_key(&k);
        let next = match next {
            0 => Requeue::AwaitChange,
            1 => Requeue::Terminal,
            2 => Requeue::At(self.now + 20 * MS, 100),
            3 => Requeue::Wait(self.now + 30 * MS, 100),
            4 => Requeue::Retry(self.now + 30 * MS, 100),
            _ => Requeue::Retry(Duration::ZERO, 100),
        };
        self.q.done(&k, next.clone(), self.now);
        if again {
            return Ok(());
        }
        let at = match next {
            Requeue::AwaitChange | Requeue::Terminal => return Ok(()),
            Requeue::At(at, _) | Requeue::Wait(at, _) => at,
            Requeue::Retry(..) => match self.q.item_status(&k).map(|item| item.state) {
                Some(ItemState::Delayed(at)) => at,
                other => return Err(format!("a failure waits: {other:?}")),
            },
        };
        self.wanted.insert(k, at);
        Ok(())
    }
}

proptest! {
    /// In any sequence of steps no item runs twice concurrently, no limit is exceeded, no added item is lost, no item
    /// runs that was not added, and every cause is returned.
    #[test]
    fn queue_agrees_with_a_plain_model(steps in prop::collection::vec(step(), 0..200)) {
        let mut model = ModelTest::new(0);
        for step in &steps {
            if let Err(e) = model.step(step) {
                prop_assert!(false, "{e}");
            }
        }
    }
}

/// The same of every order of up to six steps there is, of three objects in two lanes.
#[test]
fn queue_agrees_with_a_plain_model_in_every_short_order() {
    fn explore(model: &ModelTest, way: &mut Vec<Step>, left: usize) -> u64 {
        let Some(left) = left.checked_sub(1) else { return 1 };
        let keys = [0, 1, 2];
        let adds = keys.map(|k| [Step::Add(k, Priority::High, 1), Step::Add(k, Priority::Low, 2)]);
        let ends = keys.iter().filter(|k| model.flying.contains(k));
        let ends = ends.flat_map(|k| [0, 3, 5].map(|next| Step::Done(*k, next)));
        let steps = adds
            .into_iter()
            .flatten()
            .chain(ends)
            .chain([Step::Pop, Step::Wait(40)]);
        let mut visited = 1;
        for step in steps {
            let mut next = model.clone();
            let done = next.step(&step);
            way.push(step);
            if let Err(e) = done {
                panic!("{e} after {way:?}");
            }
            visited += explore(&next, way, left);
            way.pop();
        }
        visited
    }
    for limit in [0, 1] {
        let visited = explore(&ModelTest::new(limit), &mut Vec::new(), 6);
        println!("limit {limit}: {visited} states");
        assert!(visited > 100_000);
    }
}
