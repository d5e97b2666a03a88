//! Detects hot loops: a reconciler that keeps rewriting what another writer reverts, or that requeues itself at once
//! and writes each time. The object is throttled, and the caller sets the condition `HotLoop`.
//!
//! Pure: time comes in with each call.

use std::{collections::BTreeSet, time::Duration};

use crate::kube::{
    backoff::Backoff,
    key::{ObjectMap, ObjectRef},
};

/// Number of rounds that are taken for chance.
const TOLERATED_ROUNDS: u32 = 10;
/// Time without a round after which an episode is over.
const RESET_AFTER: Duration = Duration::from_secs(60);
/// Pause of an object in a loop: doubles with each further round.
const LOOP_PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// First delay of an object that requeues itself at once; doubles with each further time.
const MIN_REQUEUE: Duration = Duration::from_millis(10);
/// Maximum delay of a tight loop that writes. A requeue after this time or later is not a tight loop.
const WRITE_CEILING: Duration = Duration::from_secs(1);
/// Maximum delay of a tight loop that only reads.
const READ_CEILING: Duration = Duration::from_millis(100);

/// The hot-loop detector of all objects.
#[derive(Default)]
pub struct LoopDetector {
    /// Objects with recent writes.
    histories: ObjectMap<WriteHistory>,
    /// Next delay of each object that requeued itself at once.
    requeue_delays: ObjectMap<Duration>,
    /// Time at which old histories were last dropped.
    swept_at: Duration,
}

#[derive(Default)]
struct WriteHistory {
    /// Objects written by the last reconcile that wrote anything.
    wrote: Box<[ObjectRef]>,
    /// Time of that reconcile.
    at: Duration,
    /// The current episode; most objects never have one.
    episode: Option<Box<Episode>>,
}

/// A sequence of rounds in which an object rewrote the object that had woken it.
#[derive(Default)]
struct Episode {
    /// The written object whose change caused the current wake-up.
    woken_by: Option<ObjectRef>,
    /// Number of rounds so far.
    rounds: u32,
    /// Time of the last round.
    last_round: Duration,
    /// Time until which the object is paused.
    paused_until: Duration,
}

/// The delay of a requeue; see [`LoopDetector::throttle_requeue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottledRequeue {
    /// Delay until the next reconcile.
    pub delay: Duration,
    /// True when the object has just been slowed down to the maximum.
    pub reached_maximum: bool,
}

impl LoopDetector {
    /// Records the changed objects that woke an object. `manual` is true when the object itself was changed by hand,
    /// which ends the episode. Returns the time until which the object is paused, if it is.
    pub fn on_wake<'a>(
        &mut self,
        key: &ObjectRef,
        changed: impl IntoIterator<Item = &'a ObjectRef>,
        manual: bool,
        now: Duration,
    ) -> Option<Duration> {
        if manual {
            self.histories.remove(key);
        }
        let history = self.histories.get_mut(key)?;
        let woken_by = changed
            .into_iter()
            .find(|changed| history.wrote.contains(changed))
            .cloned();
        if woken_by.is_some() || history.episode.is_some() {
            history.episode.get_or_insert_default().woken_by = woken_by;
        }
        let episode = history.episode.as_ref()?;
        Some(episode.paused_until).filter(|until| *until > now)
    }

    /// Records the objects that a reconcile wrote. Returns the object that it is in a loop with, if it is.
    pub fn on_reconciled(
        &mut self,
        key: &ObjectRef,
        wrote: &BTreeSet<ObjectRef>,
        now: Duration,
    ) -> Option<ObjectRef> {
        self.drop_old_histories(now);
        // Nothing written: this time the other writer was overtaken, or the loop is over.
        if wrote.is_empty() {
            return None;
        }
        let history = self.histories.entry(key.clone()).or_default();
        history.wrote = wrote.iter().cloned().collect();
        history.at = now;
        let episode = history.episode.as_mut()?;
        let other = episode
            .woken_by
            .take()
            .filter(|other| history.wrote.contains(other))?;
        let pause = episode.paused_until.saturating_sub(episode.last_round);
        let is_over = now.saturating_sub(episode.last_round) > RESET_AFTER + pause;
        episode.rounds = if is_over { 1 } else { episode.rounds + 1 };
        episode.last_round = now;
        let beyond = episode.rounds.checked_sub(TOLERATED_ROUNDS)?;
        episode.paused_until = now + LOOP_PAUSE.max_delay(beyond + 1);
        Some(other)
    }

    fn drop_old_histories(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) <= RESET_AFTER {
            return;
        }
        self.swept_at = now;
        let relevant_until = |history: &WriteHistory| {
            let episode = history.episode.as_ref();
            episode.map_or(history.at, |e| e.paused_until.max(history.at))
        };
        self.histories
            .retain(|_, history| relevant_until(history) + RESET_AFTER > now);
    }

    /// Throttles an object that requests its next reconcile after a delay, or none to await a change. A tight loop
    /// gets a longer delay than it requested, above all when the reconcile `wrote`.
    pub fn throttle_requeue(
        &mut self,
        key: &ObjectRef,
        requested: Option<Duration>,
        wrote: bool,
    ) -> ThrottledRequeue {
        let requested = match requested {
            Some(requested) if requested < WRITE_CEILING => requested,
            unthrottled => {
                self.requeue_delays.remove(key);
                return ThrottledRequeue {
                    delay: unthrottled.unwrap_or_default(),
                    reached_maximum: false,
                };
            }
        };
        let ceiling = if wrote { WRITE_CEILING } else { READ_CEILING };
        let next = self.requeue_delays.entry(key.clone()).or_insert(MIN_REQUEUE);
        let current = *next;
        // The delay never shrinks, so that writing every other time does not evade the throttle.
        *next = current.max((current * 2).min(ceiling));
        ThrottledRequeue {
            delay: requested.max(current.min(ceiling)),
            reached_maximum: current < WRITE_CEILING && *next == WRITE_CEILING,
        }
    }

    /// Returns true if an object that requests its next reconcile after this delay has been slowed down to the
    /// maximum.
    pub fn is_tight_loop(&self, key: &ObjectRef, requested: Duration) -> bool {
        requested < WRITE_CEILING && self.requeue_delays.get(key) == Some(&WRITE_CEILING)
    }

    /// Forgets an object that no longer exists.
    pub fn forget(&mut self, key: &ObjectRef) {
        self.histories.remove(key);
        self.requeue_delays.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::key::Gvk;

    fn object(name: &str) -> ObjectRef {
        ObjectRef::new(Gvk::new("", "v1", "ConfigMap"), "n", name)
    }

    #[test]
    fn rewriting_loop_is_slowed_down_and_other_reconciles_are_not() {
        let (key, child, other) = (object("key"), object("child"), object("other"));
        let mut loops = LoopDetector::default();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        assert_eq!(loops.on_reconciled(&key, &[child.clone()].into(), now), None);
        for _ in 0..TOLERATED_ROUNDS + 3 {
            if let Some(until) = loops.on_wake(&key, [&child], false, now) {
                pauses.push((until - now).as_secs());
                now = until;
                assert_eq!(loops.on_wake(&key, [&child], false, now), None);
            }
            // Every other time it is faster than the conflicting writer.
            assert_eq!(loops.on_reconciled(&key, &[].into(), now), None);
            assert_eq!(loops.on_wake(&key, [&child], false, now), None);
            loops.on_reconciled(&key, &[child.clone()].into(), now);
        }
        assert_eq!(pauses, [1, 2, 4], "each pause is longer");
        assert!(loops.on_wake(&key, [&child], false, now).is_some());
        assert_eq!(
            loops.on_wake(&key, [&child], true, now),
            None,
            "a manual change is not delayed"
        );
        loops.on_reconciled(&key, &[child.clone()].into(), now);
        for _ in 0..100 {
            // No loop: being woken by something else, being woken and writing nothing, and writing again after a
            // long time.
            assert_eq!(loops.on_wake(&key, [&other], false, now), None);
            assert_eq!(loops.on_reconciled(&key, &[child.clone()].into(), now), None);
            assert_eq!(loops.on_wake(&key, [&child], false, now), None);
            assert_eq!(loops.on_reconciled(&key, &[].into(), now), None);
            now += RESET_AFTER * 2;
            assert_eq!(loops.on_wake(&key, [&child], false, now), None);
            assert_eq!(loops.on_reconciled(&key, &[child.clone()].into(), now), None);
        }
    }

    #[test]
    fn tight_loop_waits_longer_each_time_up_to_the_ceiling() {
        let (key, mut loops) = (object("key"), LoopDetector::default());
        let ms = Duration::from_millis;
        let waits = |loops: &mut LoopDetector, times, wrote| -> Vec<u128> {
            let requeue = |_| {
                let throttled = loops.throttle_requeue(&key, Some(ms(30)), wrote);
                assert_eq!(throttled.reached_maximum, throttled.delay == ms(800));
                throttled.delay.as_millis()
            };
            (0..times).map(requeue).collect()
        };
        assert_eq!(waits(&mut loops, 6, false), [30, 30, 40, 80, 100, 100]);
        assert!(!loops.is_tight_loop(&key, ms(30)));
        assert_eq!(waits(&mut loops, 6, true), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits(&mut loops, 2, false), [100, 100], "it only read");
        assert_eq!(
            waits(&mut loops, 1, true),
            [1000],
            "reads do not shorten the delay"
        );
        assert!(loops.is_tight_loop(&key, ms(30)) && !loops.is_tight_loop(&key, WRITE_CEILING));
        let unthrottled = ThrottledRequeue {
            delay: WRITE_CEILING,
            reached_maximum: false,
        };
        assert_eq!(
            loops.throttle_requeue(&key, Some(WRITE_CEILING), true),
            unthrottled
        );
        assert!(!loops.is_tight_loop(&key, ms(30)));
        let restarted = loops.throttle_requeue(&key, Some(ms(30)), true);
        assert_eq!(restarted.delay, ms(30), "the delay starts over");
        loops.throttle_requeue(&key, None, true);
        assert!(loops.requeue_delays.is_empty(), "it awaits a change");
    }
}
