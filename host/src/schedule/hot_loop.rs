//! Notices who goes round in circles, slows that object down and lets it say so: a reconciler that keeps changing
//! what it reads (it writes, somebody changes it back, that wakes it, and it writes again), and one that wants to be
//! called again at once, each time.
//!
//! Pure: time comes in with each call.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::kube::key::ObjectRef;

/// So often is chance.
const CHANCE: u32 = 10;
/// After so long without a turn it is over.
const CALM: Duration = Duration::from_secs(60);
/// First pause; each further turn doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// First pause of an object that hurries; each further time doubles it.
const BREATH: Duration = Duration::from_millis(10);
/// The longest pause of one that hurries and writes; who wants to be called again no sooner does not hurry.
const UNHURRIED: Duration = Duration::from_secs(1);
/// The longest pause of one that only looks.
const LOOKING: Duration = Duration::from_millis(100);

/// The objects that wrote something lately.
#[derive(Default)]
pub struct Loops {
    objects: HashMap<ObjectRef, Turns>,
    /// How long those wait the next time that wanted to be called again at once.
    hurried: HashMap<ObjectRef, Duration>,
    /// When those that have been calm were last forgotten.
    swept: Duration,
}

#[derive(Default)]
struct Turns {
    /// What the last reconcile that wrote anything wrote, and when.
    wrote: Box<[ObjectRef]>,
    at: Duration,
    /// Most objects never go round.
    round: Option<Box<Round>>,
}

#[derive(Default)]
struct Round {
    /// Which of what it wrote has woken it.
    with: Option<ObjectRef>,
    /// How often it has written again what had woken it.
    count: u32,
    /// When it did so last.
    last: Duration,
    until: Duration,
}

impl Loops {
    /// An object was woken by changes of these; `asked` when a person changed the object itself. Gives until
    /// when it has to wait.
    pub fn woken<'a>(
        &mut self,
        key: &ObjectRef,
        by: impl IntoIterator<Item = &'a ObjectRef>,
        asked: bool,
        now: Duration,
    ) -> Option<Duration> {
        if asked {
            self.objects.remove(key);
        }
        let turns = self.objects.get_mut(key)?;
        let with = by.into_iter().find(|by| turns.wrote.contains(by)).cloned();
        if with.is_some() || turns.round.is_some() {
            turns.round.get_or_insert_default().with = with;
        }
        let round = turns.round.as_ref()?;
        Some(round.until).filter(|until| *until > now)
    }

    /// A reconcile ended that had written these. Gives what it is in a loop with, when it is.
    pub fn ended(
        &mut self,
        key: &ObjectRef,
        wrote: &BTreeSet<ObjectRef>,
        now: Duration,
    ) -> Option<ObjectRef> {
        if now.saturating_sub(self.swept) > CALM {
            self.swept = now;
            let until = |turns: &Turns| turns.round.as_ref().map_or(turns.at, |r| r.until.max(turns.at));
            self.objects.retain(|_, turns| until(turns) + CALM > now);
        }
        // Not this time: whoever else writes has just been overtaken, or it is over.
        if wrote.is_empty() {
            return None;
        }
        let turns = self.objects.entry(key.clone()).or_default();
        turns.wrote = wrote.iter().cloned().collect();
        turns.at = now;
        let round = turns.round.as_mut()?;
        let with = round.with.take().filter(|with| turns.wrote.contains(with))?;
        let pause = round.until.saturating_sub(round.last);
        let calm = now.saturating_sub(round.last) > CALM + pause;
        round.count = if calm { 1 } else { round.count + 1 };
        round.last = now;
        let beyond = round.count.checked_sub(CHANCE)?;
        round.until = now + (FIRST * (1 << beyond.min(9))).min(LONGEST);
        Some(with)
    }

    /// An object wants to be called again after so long, whatever happens; none if only when something happens.
    /// Gives after how long it is, which is longer when it hurries, above all when it `wrote`, and whether it has
    /// just become as long as can be.
    pub fn again(&mut self, key: &ObjectRef, after: Option<Duration>, wrote: bool) -> (Duration, bool) {
        let after = match after {
            Some(after) if after < UNHURRIED => after,
            calm => {
                self.hurried.remove(key);
                return (calm.unwrap_or_default(), false);
            }
        };
        let most = if wrote { UNHURRIED } else { LOOKING };
        let pause = self.hurried.entry(key.clone()).or_insert(BREATH);
        let before = *pause;
        // Writing every other time is no way round it: it does not get shorter.
        *pause = before.max((before * 2).min(most));
        (
            after.max(before.min(most)),
            before < UNHURRIED && *pause == UNHURRIED,
        )
    }

    /// Whether an object that wants to be called again after so long has hurried so often that it waits as long as
    /// one can.
    pub fn hurries(&self, key: &ObjectRef, after: Duration) -> bool {
        after < UNHURRIED && self.hurried.get(key) == Some(&UNHURRIED)
    }

    /// The object is gone.
    pub fn forget(&mut self, key: &ObjectRef) {
        self.objects.remove(key);
        self.hurried.remove(key);
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
    fn slows_down_what_goes_round_and_nothing_else() {
        let (key, child, other) = (object("key"), object("child"), object("other"));
        let mut loops = Loops::default();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        assert_eq!(loops.ended(&key, &[child.clone()].into(), now), None);
        for _ in 0..CHANCE + 3 {
            if let Some(until) = loops.woken(&key, [&child], false, now) {
                pauses.push((until - now).as_secs());
                now = until;
                assert_eq!(loops.woken(&key, [&child], false, now), None);
            }
            // Every other time it has been faster than the one it quarrels with.
            assert_eq!(loops.ended(&key, &[].into(), now), None);
            assert_eq!(loops.woken(&key, [&child], false, now), None);
            loops.ended(&key, &[child.clone()].into(), now);
        }
        assert_eq!(pauses, [1, 2, 4], "longer each time");
        assert!(loops.woken(&key, [&child], false, now).is_some());
        assert_eq!(
            loops.woken(&key, [&child], true, now),
            None,
            "a person need not wait"
        );
        loops.ended(&key, &[child.clone()].into(), now);
        for _ in 0..100 {
            // Woken by something else, however often, is no loop; nor is being woken and writing nothing; nor
            // is writing again after a long time.
            assert_eq!(loops.woken(&key, [&other], false, now), None);
            assert_eq!(loops.ended(&key, &[child.clone()].into(), now), None);
            assert_eq!(loops.woken(&key, [&child], false, now), None);
            assert_eq!(loops.ended(&key, &[].into(), now), None);
            now += CALM * 2;
            assert_eq!(loops.woken(&key, [&child], false, now), None);
            assert_eq!(loops.ended(&key, &[child.clone()].into(), now), None);
        }
    }

    #[test]
    fn who_hurries_takes_longer_breaths() {
        let (key, mut loops) = (object("key"), Loops::default());
        let ms = Duration::from_millis;
        let waits = |loops: &mut Loops, times, wrote| -> Vec<u128> {
            let again = |_| {
                let (wait, news) = loops.again(&key, Some(ms(30)), wrote);
                assert_eq!(news, wait == ms(800));
                wait.as_millis()
            };
            (0..times).map(again).collect()
        };
        assert_eq!(waits(&mut loops, 6, false), [30, 30, 40, 80, 100, 100]);
        assert!(!loops.hurries(&key, ms(30)));
        assert_eq!(waits(&mut loops, 6, true), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits(&mut loops, 2, false), [100, 100], "it only looked");
        assert_eq!(waits(&mut loops, 1, true), [1000], "that makes no difference");
        assert!(loops.hurries(&key, ms(30)) && !loops.hurries(&key, UNHURRIED));
        assert_eq!(loops.again(&key, Some(UNHURRIED), true), (UNHURRIED, false));
        assert!(!loops.hurries(&key, ms(30)));
        assert_eq!(loops.again(&key, Some(ms(30)), true).0, ms(30), "it begins anew");
        loops.again(&key, None, true);
        assert!(loops.hurried.is_empty(), "it waits for something to happen");
    }
}
