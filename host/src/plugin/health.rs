//! Whether a build does worse than the one before it, or the one beside it. No I/O: time comes in with each call.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A new build is on trial for this long from its first call.
pub const TRIAL: Duration = Duration::from_secs(60);
/// When so many objects are affected it is the build, not they.
pub const OBJECTS: usize = 3;
/// Where there are fewer: so many traps in a row,
pub const TRAPS: u32 = 5;
/// or, for a canary, so many failures in a row.
pub const FAILURES: u32 = 10;
/// Objects remembered of one build.
const REMEMBERED: usize = 1 << 16;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should. Waiting is no failure.
    Fine,
    /// The component says it failed; or it took longer than it may, which is as likely the world's fault.
    Failed,
    /// It trapped.
    Trapped,
}

/// What became of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too early to say.
    Open,
    /// It did no worse than the one before.
    Passed,
    /// It has to go back; says why.
    Failed(String),
}

/// What a call's ending meant to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Somebody compares: there may be a verdict.
    pub compared: bool,
    /// It traps now and did not before, or the other way round.
    pub news: bool,
}

/// How the calls of one build ended. Of a build that nobody watches only the objects that trap are kept, so that a call
/// that is fine costs one look at a flag.
#[derive(Default)]
pub struct Record {
    busy: AtomicBool,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    /// Objects whose last call trapped.
    trapping: HashSet<u64>,
    /// The last trap.
    trap: String,
    trial: Option<Trial>,
    census: Option<Census>,
}

/// A build that came after another.
#[derive(Default)]
struct Trial {
    began: Option<Instant>,
    /// Objects that trapped under the build before, too.
    excused: HashSet<u64>,
    trapped: HashSet<u64>,
    in_a_row: u32,
}

/// A build beside another.
#[derive(Clone, Default)]
struct Census {
    /// How the last call of each object ended.
    objects: HashMap<u64, Ending>,
    traps_in_a_row: u32,
    failures_in_a_row: u32,
}

impl Census {
    fn bad(&self) -> usize {
        self.objects.values().filter(|e| **e != Ending::Fine).count()
    }
}

impl Record {
    /// A call about an object has ended; `trap` says how where it trapped. None when that is of no interest.
    pub fn ended(&self, uid: &str, ending: Ending, trap: &str, now: Instant) -> Noted {
        if ending != Ending::Trapped && !self.busy.load(Ordering::Relaxed) {
            return Noted::default();
        }
        let object = crate::kube::hash::hash_to_u64(|hasher| std::hash::Hash::hash(uid, hasher));
        let mut tally = self.tally.lock().expect("lock");
        let trapped = tally.trapping.is_empty();
        if ending == Ending::Trapped {
            trap.clone_into(&mut tally.trap);
            if tally.trapping.len() < REMEMBERED {
                tally.trapping.insert(object);
            }
        } else {
            tally.trapping.remove(&object);
        }
        if let Some(trial) = &mut tally.trial {
            let began = *trial.began.get_or_insert(now);
            if now - began <= TRIAL && !trial.excused.contains(&object) {
                match ending {
                    Ending::Trapped => {
                        trial.in_a_row += 1;
                        trial.trapped.insert(object);
                    }
                    _ => trial.in_a_row = 0,
                }
            }
        }
        if let Some(census) = &mut tally.census {
            let count = |row: &mut u32, counts: bool| *row = if counts { *row + 1 } else { 0 };
            count(&mut census.traps_in_a_row, ending == Ending::Trapped);
            count(&mut census.failures_in_a_row, ending != Ending::Fine);
            if census.objects.len() < REMEMBERED || census.objects.contains_key(&object) {
                census.objects.insert(object, ending);
            }
        }
        let noted = Noted {
            compared: tally.trial.is_some() || tally.census.is_some(),
            news: trapped != tally.trapping.is_empty(),
        };
        self.settle(&tally);
        noted
    }

    fn settle(&self, tally: &Tally) {
        let busy = tally.trial.is_some() || tally.census.is_some() || !tally.trapping.is_empty();
        self.busy.store(busy, Ordering::Relaxed);
    }

    fn change(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.lock().expect("lock");
        change(&mut tally);
        self.settle(&tally);
    }

    /// From its next call on it is on trial, as the one that came after this.
    pub fn follow(&self, before: &Self) {
        let excused = before.tally.lock().expect("lock").trapping.clone();
        self.change(|tally| {
            tally.trial = Some(Trial {
                excused,
                ..Trial::default()
            });
        });
    }

    /// How its trial stands; none when it is on none. One that is over ends here.
    pub fn verdict(&self, now: Instant) -> Option<Verdict> {
        let mut verdict = None;
        self.change(|tally| {
            let Some(trial) = &tally.trial else { return };
            let over = trial.began.is_some_and(|began| now - began > TRIAL);
            verdict = Some(if trial.trapped.len() >= OBJECTS {
                Verdict::Failed(format!(
                    "{} objects trapped that did not under the build before: {}",
                    trial.trapped.len(),
                    tally.trap
                ))
            } else if trial.in_a_row >= TRAPS {
                Verdict::Failed(format!(
                    "{} calls in a row trapped, about objects that did not under the build before: {}",
                    trial.in_a_row, tally.trap
                ))
            } else if over {
                Verdict::Passed
            } else {
                Verdict::Open
            });
            if verdict == Some(Verdict::Passed) {
                tally.trial = None;
            }
        });
        verdict
    }

    /// Whether it is on trial and something has trapped that did not before.
    pub fn doubtful(&self) -> bool {
        let tally = self.tally.lock().expect("lock");
        tally
            .trial
            .as_ref()
            .is_some_and(|trial| !trial.trapped.is_empty())
    }

    /// Whether it is on trial.
    pub fn on_trial(&self) -> bool {
        self.tally.lock().expect("lock").trial.is_some()
    }

    /// From now on its objects are counted, or no more.
    pub fn counts(&self, counted: bool) {
        self.change(|tally| tally.census = counted.then(Census::default));
    }

    /// Objects counted, and those of them whose last call failed or trapped.
    pub fn counted(&self) -> (usize, usize) {
        let tally = self.tally.lock().expect("lock");
        let census = tally.census.as_ref();
        census.map_or((0, 0), |c| (c.objects.len(), c.bad()))
    }

    /// Objects whose last call trapped, and the last trap.
    pub fn trapping(&self) -> (usize, String) {
        let tally = self.tally.lock().expect("lock");
        (tally.trapping.len(), tally.trap.clone())
    }

    /// Why a canary has to go back, if it has to: enough of its objects fail, and more than twice the part of those
    /// that fail with the build beside it.
    pub fn worse_than(&self, stable: &Self) -> Option<String> {
        let of = |record: &Self| record.tally.lock().expect("lock").census.clone();
        let (canary, stable) = (of(self)?, of(stable).unwrap_or_default());
        let [(bad, all), (bad_beside, all_beside)] = [&canary, &stable].map(|c| (c.bad(), c.objects.len()));
        let enough = bad >= OBJECTS || canary.traps_in_a_row >= TRAPS || canary.failures_in_a_row >= FAILURES;
        let more = bad * all_beside.max(1) > 2 * bad_beside * all;
        (enough && more).then(|| {
            let (_, trap) = self.trapping();
            let trap = if trap.is_empty() {
                String::new()
            } else {
                format!(": {trap}")
            };
            format!(
                "{bad} of its {all} objects fail, and {bad_beside} of {all_beside} with the build beside it{trap}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn call(record: &Record, object: usize, ending: Ending, now: Instant) -> Noted {
        record.ended(&object.to_string(), ending, "trapped: unreachable", now)
    }

    fn on_trial() -> Record {
        let record = Record::default();
        record.follow(&Record::default());
        record
    }

    #[test]
    fn three_objects_or_five_in_a_row_are_too_many() {
        let now = Instant::now();
        let record = on_trial();
        for object in 0..OBJECTS {
            assert_eq!(record.verdict(now), Some(Verdict::Open), "{object}");
            call(&record, object, Ending::Trapped, now);
            call(&record, 100 + object, Ending::Fine, now);
        }
        let Some(Verdict::Failed(why)) = record.verdict(now) else {
            panic!("it has to go back")
        };
        assert!(why.contains("3 objects") && why.contains("unreachable"), "{why}");

        let record = on_trial();
        for i in 0..TRAPS {
            assert_eq!(record.verdict(now), Some(Verdict::Open), "{i}");
            call(&record, 1, Ending::Trapped, now);
        }
        assert!(matches!(record.verdict(now), Some(Verdict::Failed(_))));
    }

    #[test]
    fn what_trapped_before_or_comes_late_does_not_count() {
        let now = Instant::now();
        let before = Record::default();
        for object in 0..10 {
            call(&before, object, Ending::Trapped, now);
        }
        assert_eq!(before.trapping().0, 10);
        let record = Record::default();
        record.follow(&before);
        for object in 0..10 {
            call(&record, object, Ending::Trapped, now);
        }
        assert_eq!(record.verdict(now), Some(Verdict::Open));
        let late = now + TRIAL + SECOND;
        for object in 20..30 {
            call(&record, object, Ending::Trapped, late);
        }
        assert_eq!(record.verdict(late), Some(Verdict::Passed));
        assert_eq!(record.verdict(late), None, "its trial is over");
    }

    #[test]
    fn a_trial_begins_with_the_first_call() {
        let now = Instant::now();
        let record = on_trial();
        assert_eq!(record.verdict(now + 10 * TRIAL), Some(Verdict::Open));
        let first = now + 10 * TRIAL;
        for object in 0..OBJECTS {
            call(&record, object, Ending::Trapped, first);
        }
        assert!(matches!(record.verdict(first), Some(Verdict::Failed(_))));
    }

    #[test]
    fn a_canary_is_compared_with_the_build_beside_it() {
        let now = Instant::now();
        let pair = |bad: usize, all: usize, bad_beside: usize, all_beside: usize| {
            let [canary, stable] = [Record::default(), Record::default()];
            for (record, bad, all) in [(&canary, bad, all), (&stable, bad_beside, all_beside)] {
                record.counts(true);
                for object in 0..all {
                    let ending = if object < bad {
                        Ending::Failed
                    } else {
                        Ending::Fine
                    };
                    call(record, object, ending, now);
                }
            }
            canary.worse_than(&stable)
        };
        assert_eq!(pair(2, 10, 0, 90), None, "too few to tell");
        let why = pair(3, 10, 0, 90).expect("it has to go back");
        assert!(why.contains("3 of its 10") && why.contains("0 of 90"), "{why}");
        assert_eq!(pair(3, 10, 20, 90), None, "hardly worse");
        assert_eq!(pair(10, 10, 90, 90), None, "it is the world");
        assert!(pair(10, 10, 40, 90).is_some());
        assert!(pair(3, 3, 0, 0).is_some(), "nothing beside it");
    }

    #[test]
    fn one_object_that_fails_again_and_again_is_enough_for_a_canary() {
        let now = Instant::now();
        for (ending, times) in [(Ending::Trapped, TRAPS), (Ending::Failed, FAILURES)] {
            let [canary, stable] = [Record::default(), Record::default()];
            canary.counts(true);
            stable.counts(true);
            call(&stable, 2, Ending::Fine, now);
            for _ in 0..times {
                assert_eq!(canary.worse_than(&stable), None);
                call(&canary, 1, ending, now);
            }
            assert!(canary.worse_than(&stable).is_some());
        }
    }

    #[test]
    fn who_recovers_is_told_once() {
        let now = Instant::now();
        let record = Record::default();
        assert_eq!(call(&record, 1, Ending::Fine, now), Noted::default());
        assert!(call(&record, 1, Ending::Trapped, now).news);
        assert!(!call(&record, 2, Ending::Trapped, now).news);
        assert!(!call(&record, 1, Ending::Fine, now).news);
        assert!(call(&record, 2, Ending::Fine, now).news);
        assert!(
            !record.busy.load(Ordering::Relaxed),
            "nothing to look at any more"
        );
    }

    proptest! {
        /// However calls end: a build that does as the one before it did never goes back, and a canary that fails where
        /// the build beside it does neither.
        #[test]
        fn the_same_is_never_worse(calls in prop::collection::vec((0..20usize, 0..3u8), 0..300)) {
            let now = Instant::now();
            let [before, beside, canary] = std::array::from_fn(|_| Record::default());
            beside.counts(true);
            canary.counts(true);
            let mut trapped = HashSet::new();
            for (object, ending) in &calls {
                let ending = [Ending::Fine, Ending::Failed, Ending::Trapped][usize::from(*ending)];
                if ending == Ending::Trapped && trapped.insert(*object) {
                    call(&before, *object, ending, now);
                }
            }
            let after = Record::default();
            after.follow(&before);
            for (object, ending) in calls {
                let ending = [Ending::Fine, Ending::Failed, Ending::Trapped][usize::from(ending)];
                call(&after, object, ending, now);
                call(&beside, object, ending, now);
                call(&canary, object, ending, now);
                prop_assert_eq!(after.verdict(now), Some(Verdict::Open));
                prop_assert_eq!(canary.worse_than(&beside), None);
            }
        }
    }
}
