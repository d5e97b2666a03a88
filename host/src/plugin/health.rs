//! Health of a build, compared with the previous build, or with the primary build beside a canary. No I/O: the time is an
//! argument of each call.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::kube::{hash::hash_to_u64, uid::Uid};

/// Duration of the trial of a new build, from its first call.
pub const TRIAL_DURATION: Duration = Duration::from_secs(60);
/// Number of affected objects from which the build is at fault, not the objects.
pub const MIN_AFFECTED_OBJECTS: usize = 3;
/// Number of traps in a row from which the build is at fault, where there are fewer objects.
pub const MAX_TRAPS_IN_A_ROW: u32 = 5;
/// Number of failures in a row from which a canary is at fault.
pub const MAX_FAILURES_IN_A_ROW: u32 = 10;
/// Limit of the objects that are remembered per build.
const MAX_TRACKED_OBJECTS: usize = 1 << 16;

/// Result of a call, as far as it says something about the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// It succeeded, or waits for something, which is no failure.
    Succeeded,
    /// The component returned a failure; or it exceeded its time, for which a slow upstream is as likely the cause.
    Failed,
    /// It trapped.
    Trapped,
}

/// Subject of a call, which is at fault where other builds trap on it, too.
#[derive(Clone, Copy, Debug)]
pub enum CallSubject<'a> {
    /// The object with this uid.
    Object(&'a Uid),
    /// The message with this identity. A canary gets none, so they do not count in the comparison with it.
    Message(&'a str),
}

impl CallSubject<'_> {
    fn hash(self) -> u64 {
        hash_to_u64(|hasher| match self {
            Self::Object(uid) => uid.hash(hasher),
            Self::Message(name) => name.hash(hasher),
        })
    }
}

/// State of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    /// The trial continues.
    Open,
    /// The build did no worse than the one before it.
    Passed,
    /// The build has to be rolled back, for this reason.
    Failed(String),
}

/// Effect of a call's result on the health of its build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthChange {
    /// True when the build is compared with another one: it may have to be rolled back.
    pub compared: bool,
    /// True when the build begins to trap, or has stopped trapping.
    pub trapping_changed: bool,
}

/// Results of the calls of one build. Unless it is compared with another build only the objects that trap are kept, so
/// that a successful call costs one read of a flag.
#[derive(Default)]
pub struct BuildHealth {
    is_tracked: AtomicBool,
    results: Mutex<CallResults>,
}

#[derive(Default)]
struct CallResults {
    /// Objects whose last call trapped.
    trapping: HashSet<u64>,
    /// Message of the last trap.
    trap: String,
    trial: Option<Trial>,
    objects: Option<ObjectResults>,
}

impl CallResults {
    fn is_compared(&self) -> bool {
        self.trial.is_some() || self.objects.is_some()
    }
}

/// Trial of a build that has replaced another.
#[derive(Default)]
struct Trial {
    began: Option<Instant>,
    /// Objects that trapped with the previous build, and do not count against this one.
    excused: HashSet<u64>,
    trapped: HashSet<u64>,
    traps_in_a_row: u32,
}

impl Trial {
    fn record_call(&mut self, object: u64, result: CallResult, now: Instant) {
        let began = *self.began.get_or_insert(now);
        if now - began > TRIAL_DURATION || self.excused.contains(&object) {
            return;
        }
        if result == CallResult::Trapped {
            self.traps_in_a_row += 1;
            self.trapped.insert(object);
        } else {
            self.traps_in_a_row = 0;
        }
    }

    fn verdict(&self, trap: &str, now: Instant) -> TrialVerdict {
        if self.trapped.len() >= MIN_AFFECTED_OBJECTS {
            TrialVerdict::Failed(format!(
                "{} objects or messages trapped that did not trap with the previous build: {trap}",
                self.trapped.len(),
            ))
        } else if self.traps_in_a_row >= MAX_TRAPS_IN_A_ROW {
            TrialVerdict::Failed(format!(
                "{} consecutive calls trapped for objects or messages that did not trap with the previous build: {trap}",
                self.traps_in_a_row
            ))
        } else if self.began.is_some_and(|began| now - began > TRIAL_DURATION) {
            TrialVerdict::Passed
        } else {
            TrialVerdict::Open
        }
    }
}

/// Results per object, of a canary or of the build beside one.
#[derive(Clone, Default)]
struct ObjectResults {
    /// Result of the last call about each object.
    last: HashMap<u64, CallResult>,
    traps_in_a_row: u32,
    failures_in_a_row: u32,
}

impl ObjectResults {
    fn record_call(&mut self, object: u64, result: CallResult) {
        let count = |row: &mut u32, counts: bool| *row = if counts { *row + 1 } else { 0 };
        count(&mut self.traps_in_a_row, result == CallResult::Trapped);
        count(&mut self.failures_in_a_row, result != CallResult::Succeeded);
        if self.last.len() < MAX_TRACKED_OBJECTS || self.last.contains_key(&object) {
            self.last.insert(object, result);
        }
    }

    fn count_failing(&self) -> usize {
        let failing = |r: &&CallResult| **r != CallResult::Succeeded;
        self.last.values().filter(failing).count()
    }

    /// True when so much fails that the build, not its objects, may be at fault.
    fn is_suspicious(&self) -> bool {
        self.count_failing() >= MIN_AFFECTED_OBJECTS
            || self.traps_in_a_row >= MAX_TRAPS_IN_A_ROW
            || self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW
    }
}

impl BuildHealth {
    /// Records the result of a call; `trap` is the message where it trapped.
    pub fn record_call(
        &self,
        subject: CallSubject<'_>,
        result: CallResult,
        trap: &str,
        now: Instant,
    ) -> HealthChange {
        if result != CallResult::Trapped && !self.is_tracked.load(Ordering::Relaxed) {
            return HealthChange::default();
        }
        let object = subject.hash();
        let mut results = self.results.lock();
        let had_no_traps = results.trapping.is_empty();
        if result == CallResult::Trapped {
            trap.clone_into(&mut results.trap);
            if results.trapping.len() < MAX_TRACKED_OBJECTS {
                results.trapping.insert(object);
            }
        } else {
            results.trapping.remove(&object);
        }
        if let Some(trial) = &mut results.trial {
            trial.record_call(object, result, now);
        }
        if let (Some(objects), CallSubject::Object(_)) = (&mut results.objects, subject) {
            objects.record_call(object, result);
        }
        self.update_flag(&results);
        HealthChange {
            compared: results.is_compared(),
            trapping_changed: had_no_traps != results.trapping.is_empty(),
        }
    }

    /// Forgets an object that is gone, or a message that is not handled again. Returns true if the build has stopped trapping by that.
    pub fn forget_subject(&self, subject: CallSubject<'_>) -> bool {
        if !self.is_tracked.load(Ordering::Relaxed) {
            return false;
        }
        let mut results = self.results.lock();
        let was_trapping = results.trapping.remove(&subject.hash());
        if let (Some(objects), CallSubject::Object(_)) = (&mut results.objects, subject) {
            objects.last.remove(&subject.hash());
        }
        self.update_flag(&results);
        was_trapping && results.trapping.is_empty()
    }

    fn update_flag(&self, results: &CallResults) {
        let is_tracked = results.is_compared() || !results.trapping.is_empty();
        self.is_tracked.store(is_tracked, Ordering::Relaxed);
    }

    fn update_results(&self, change: impl FnOnce(&mut CallResults)) {
        let mut results = self.results.lock();
        change(&mut results);
        self.update_flag(&results);
    }

    /// Begins a trial with the next call, compared with the previous build.
    pub fn begin_trial(&self, before: &Self) {
        let excused = before.results.lock().trapping.clone();
        self.update_results(|results| {
            results.trial = Some(Trial {
                excused,
                ..Trial::default()
            });
        });
    }

    /// Ends its trial, if it is on one, without a verdict.
    pub fn end_trial(&self) {
        self.update_results(|results| results.trial = None);
    }

    /// The state of its trial, if it is on one. A trial that it has passed ends here.
    pub fn trial_verdict(&self, now: Instant) -> Option<TrialVerdict> {
        let mut verdict = None;
        self.update_results(|results| {
            let Some(trial) = &results.trial else { return };
            verdict = Some(trial.verdict(&results.trap, now));
            if verdict == Some(TrialVerdict::Passed) {
                results.trial = None;
            }
        });
        verdict
    }

    /// True when it is on trial and objects trap that did not with the previous build.
    pub fn has_new_traps(&self) -> bool {
        let results = self.results.lock();
        results.trial.as_ref().is_some_and(|t| !t.trapped.is_empty())
    }

    /// True when it is on trial.
    pub fn is_on_trial(&self) -> bool {
        self.results.lock().trial.is_some()
    }

    /// Begins to count results per object, from zero, or stops that.
    pub fn count_results(&self, enabled: bool) {
        self.update_results(|results| results.objects = enabled.then(ObjectResults::default));
    }

    /// Number of objects counted, and number of those whose last call failed or trapped.
    pub fn count_objects(&self) -> (usize, usize) {
        let results = self.results.lock();
        let objects = results.objects.as_ref();
        objects.map_or((0, 0), |o| (o.last.len(), o.count_failing()))
    }

    /// Number of objects whose last call trapped, and the message of the last trap.
    pub fn trapping(&self) -> (usize, String) {
        let results = self.results.lock();
        (results.trapping.len(), results.trap.clone())
    }

    /// Reason to roll back this canary, if there is one: enough of its objects fail, and more than twice the share of
    /// those that fail with the stable build.
    pub fn worse_than(&self, stable: &Self) -> Option<String> {
        let copy_objects = |health: &Self| health.results.lock().objects.clone();
        let (canary, stable) = (copy_objects(self)?, copy_objects(stable).unwrap_or_default());
        let [(failing, all), (stable_failing, stable_all)] =
            [&canary, &stable].map(|o| (o.count_failing(), o.last.len()));
        let is_worse = failing * stable_all.max(1) > 2 * stable_failing * all;
        (canary.is_suspicious() && is_worse).then(|| {
            let (_, trap) = self.trapping();
            let trap = if trap.is_empty() {
                String::new()
            } else {
                format!(": {trap}")
            };
            format!(
                "{failing} of its {all} objects fail, and {stable_failing} of {stable_all} of the primary build{trap}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn record_call(health: &BuildHealth, object: usize, result: CallResult, now: Instant) -> HealthChange {
        let uid = object.to_string();
        health.record_call(
            CallSubject::Object(&Uid::from(&*uid)),
            result,
            "trapped: unreachable",
            now,
        )
    }

    fn start_trial() -> BuildHealth {
        let health = BuildHealth::default();
        health.begin_trial(&BuildHealth::default());
        health
    }

    /// Otherwise the build would be said to trap for as long as it serves, and a canary beside it would be compared with objects that
    /// nobody has any more.
    #[test]
    fn deleted_object_counts_no_more() {
        let now = Instant::now();
        let health = BuildHealth::default();
        health.count_results(true);
        for object in 0..2 {
            record_call(&health, object, CallResult::Trapped, now);
        }
        let forget = |uid: &str| health.forget_subject(CallSubject::Object(&uid.into()));
        assert!(!forget("0"), "the other one traps");
        assert_eq!((health.trapping().0, health.count_objects()), (1, (1, 1)));
        assert!(forget("1") && !forget("1"));
        assert_eq!((health.trapping().0, health.count_objects()), (0, (0, 0)));
    }

    #[test]
    fn trial_fails_after_three_objects_or_five_traps_in_a_row() {
        let now = Instant::now();
        let health = start_trial();
        for object in 0..MIN_AFFECTED_OBJECTS {
            assert_eq!(health.trial_verdict(now), Some(TrialVerdict::Open), "{object}");
            record_call(&health, object, CallResult::Trapped, now);
            record_call(&health, 100 + object, CallResult::Succeeded, now);
        }
        let Some(TrialVerdict::Failed(why)) = health.trial_verdict(now) else {
            panic!("it has to be rolled back")
        };
        assert!(why.contains("3 objects") && why.contains("unreachable"), "{why}");

        let health = start_trial();
        for i in 0..MAX_TRAPS_IN_A_ROW {
            assert_eq!(health.trial_verdict(now), Some(TrialVerdict::Open), "{i}");
            record_call(&health, 1, CallResult::Trapped, now);
        }
        assert!(matches!(health.trial_verdict(now), Some(TrialVerdict::Failed(_))));
    }

    #[test]
    fn trial_ignores_objects_that_trapped_before_and_late_traps() {
        let now = Instant::now();
        let before = BuildHealth::default();
        for object in 0..10 {
            record_call(&before, object, CallResult::Trapped, now);
        }
        assert_eq!(before.trapping().0, 10);
        let health = BuildHealth::default();
        health.begin_trial(&before);
        for object in 0..10 {
            record_call(&health, object, CallResult::Trapped, now);
        }
        assert_eq!(health.trial_verdict(now), Some(TrialVerdict::Open));
        let late = now + TRIAL_DURATION + SECOND;
        for object in 20..30 {
            record_call(&health, object, CallResult::Trapped, late);
        }
        assert_eq!(health.trial_verdict(late), Some(TrialVerdict::Passed));
        assert_eq!(health.trial_verdict(late), None, "its trial is over");
    }

    #[test]
    fn trial_begins_with_the_first_call() {
        let now = Instant::now();
        let health = start_trial();
        assert_eq!(
            health.trial_verdict(now + 10 * TRIAL_DURATION),
            Some(TrialVerdict::Open)
        );
        let first = now + 10 * TRIAL_DURATION;
        for object in 0..MIN_AFFECTED_OBJECTS {
            record_call(&health, object, CallResult::Trapped, first);
        }
        assert!(matches!(
            health.trial_verdict(first),
            Some(TrialVerdict::Failed(_))
        ));
    }

    #[test]
    fn canary_with_twice_the_failing_share_is_worse() {
        let now = Instant::now();
        let pair = |bad: usize, all: usize, bad_beside: usize, all_beside: usize| {
            let [canary, stable] = [BuildHealth::default(), BuildHealth::default()];
            for (health, bad, all) in [(&canary, bad, all), (&stable, bad_beside, all_beside)] {
                health.count_results(true);
                for object in 0..all {
                    let result = if object < bad {
                        CallResult::Failed
                    } else {
                        CallResult::Succeeded
                    };
                    record_call(health, object, result, now);
                }
            }
            canary.worse_than(&stable)
        };
        assert_eq!(pair(2, 10, 0, 90), None, "too few objects to compare");
        let why = pair(3, 10, 0, 90).expect("it has to be rolled back");
        assert!(why.contains("3 of its 10") && why.contains("0 of 90"), "{why}");
        assert_eq!(pair(3, 10, 20, 90), None, "hardly worse");
        assert_eq!(pair(10, 10, 90, 90), None, "it is the world");
        assert!(pair(10, 10, 40, 90).is_some());
        assert!(pair(3, 3, 0, 0).is_some(), "nothing beside it");
    }

    #[test]
    fn canary_with_one_repeatedly_failing_object_is_worse() {
        let now = Instant::now();
        for (result, times) in [
            (CallResult::Trapped, MAX_TRAPS_IN_A_ROW),
            (CallResult::Failed, MAX_FAILURES_IN_A_ROW),
        ] {
            let [canary, stable] = [BuildHealth::default(), BuildHealth::default()];
            canary.count_results(true);
            stable.count_results(true);
            record_call(&stable, 2, CallResult::Succeeded, now);
            for _ in 0..times {
                assert_eq!(canary.worse_than(&stable), None);
                record_call(&canary, 1, result, now);
            }
            assert!(canary.worse_than(&stable).is_some());
        }
    }

    #[test]
    fn messages_count_in_a_trial_and_not_beside_a_canary() {
        let now = Instant::now();
        let health = start_trial();
        health.count_results(true);
        for id in ["a", "b", "c"] {
            assert_eq!(health.trial_verdict(now), Some(TrialVerdict::Open), "{id}");
            health.record_call(CallSubject::Message(id), CallResult::Trapped, "trapped", now);
        }
        assert!(matches!(health.trial_verdict(now), Some(TrialVerdict::Failed(_))));
        assert_eq!(health.count_objects(), (0, 0), "a canary gets no messages");
        assert!(
            !health.forget_subject(CallSubject::Message("a"))
                && !health.forget_subject(CallSubject::Message("b"))
        );
        assert!(!health.forget_subject(CallSubject::Message("other")));
        assert!(
            health.forget_subject(CallSubject::Message("c")),
            "none traps any more"
        );
        assert_eq!(health.trapping().0, 0);
    }

    #[test]
    fn recovery_from_traps_is_reported_once() {
        let now = Instant::now();
        let health = BuildHealth::default();
        assert_eq!(
            record_call(&health, 1, CallResult::Succeeded, now),
            HealthChange::default()
        );
        assert!(record_call(&health, 1, CallResult::Trapped, now).trapping_changed);
        assert!(!record_call(&health, 2, CallResult::Trapped, now).trapping_changed);
        assert!(!record_call(&health, 1, CallResult::Succeeded, now).trapping_changed);
        assert!(record_call(&health, 2, CallResult::Succeeded, now).trapping_changed);
        assert!(
            !health.is_tracked.load(Ordering::Relaxed),
            "nothing to look at any more"
        );
    }

    proptest! {
        /// A build with the results of the previous build never fails its trial, and a canary with the results of the
        /// stable build is never worse.
        #[test]
        fn equal_results_are_never_worse(calls in prop::collection::vec((0..20usize, 0..3u8), 0..300)) {
            let now = Instant::now();
            let [before, beside, canary] = std::array::from_fn(|_| BuildHealth::default());
            beside.count_results(true);
            canary.count_results(true);
            let mut trapped = HashSet::new();
            for (object, result) in &calls {
                let result = [CallResult::Succeeded, CallResult::Failed, CallResult::Trapped][usize::from(*result)];
                if result == CallResult::Trapped && trapped.insert(*object) {
                    record_call(&before, *object, result, now);
                }
            }
            let after = BuildHealth::default();
            after.begin_trial(&before);
            for (object, result) in calls {
                let result = [CallResult::Succeeded, CallResult::Failed, CallResult::Trapped][usize::from(result)];
                record_call(&after, object, result, now);
                record_call(&beside, object, result, now);
                record_call(&canary, object, result, now);
                prop_assert_eq!(after.trial_verdict(now), Some(TrialVerdict::Open));
                prop_assert_eq!(canary.worse_than(&beside), None);
            }
        }
    }
}
