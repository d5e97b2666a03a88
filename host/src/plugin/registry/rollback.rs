//! Rollback of a build that does worse than the one before it, and of a canary that does worse than the one beside it.

use std::{sync::Arc, time::Instant};

use super::{Registry, RolledBackBuild, Slot, Slots};
use crate::plugin::{
    Plugin, SlotId,
    health::{CallResult, CallSubject, TrialVerdict},
};

/// A rollback that has just happened.
pub struct Rollback {
    /// The build that serves now.
    pub now: Arc<Plugin>,
    /// The build that was rolled back.
    pub bad: Arc<Plugin>,
    /// True when that was a canary.
    pub canary: bool,
    /// Why it was rolled back.
    pub why: String,
}

impl Registry {
    /// True when this build was rolled back in this slot, as the serving build or as canary.
    pub fn is_rolled_back(&self, id: &SlotId, plugin: &Plugin) -> bool {
        let slots = self.slots.read();
        let slot = slots.get(id);
        let canary = slot.and_then(|s| s.canary.as_ref()).and_then(|c| c.bad.as_ref());
        let bad = [slot.and_then(|s| s.bad.as_ref()), canary];
        bad.into_iter().flatten().any(|b| b.plugin.same_build(plugin))
    }

    /// Records the result of a call, and rolls the build back when that was too much. The second
    /// value is true when the plugin begins to trap or has stopped trapping: its status has to be written.
    pub fn record_call(
        &self,
        plugin: &Arc<Plugin>,
        subject: CallSubject<'_>,
        result: CallResult,
        trap: &str,
        now: Instant,
    ) -> (Option<Rollback>, bool) {
        let change = plugin.health.record_call(subject, result, trap, now);
        let rollback = change
            .compared
            .then(|| self.roll_back_if_worse(plugin, now))
            .flatten();
        (rollback, change.trapping_changed)
    }

    fn roll_back_if_worse(&self, plugin: &Plugin, now: Instant) -> Option<Rollback> {
        let mut slots = self.slots.write();
        let id = slots.iter().find(|(_, slot)| slot.has_build(plugin));
        let id = id.map(|(id, _)| id.clone())?;
        if is_last_good_taken(&slots, &id) {
            slots.get_mut(&id)?.last_good = None;
        }
        let slot = slots.get_mut(&id)?;
        let serving = slot.serving.clone()?;
        if let Some(rollback) = slot.roll_back_canary(&serving) {
            return Some(rollback);
        }
        match serving.health.trial_verdict(now)? {
            TrialVerdict::Open => None,
            TrialVerdict::Passed => {
                slot.last_good = None;
                None
            }
            TrialVerdict::Failed(why) => {
                let rollback = slot.roll_back_serving(serving, why)?;
                if slot.recheck_canary() {
                    self.request_rescan();
                }
                rollback.now.health.count_results(slot.serving_canary().is_some());
                if rollback.bad.has_more_than(&rollback.now) {
                    self.retry_conflicting(&mut slots);
                }
                Some(rollback)
            }
        }
    }
}

/// True when another slot reconciles a kind of the build to roll back to: it can't have that back.
pub(super) fn is_last_good_taken(slots: &Slots, id: &SlotId) -> bool {
    slots[id].last_good.as_ref().is_some_and(|good| {
        let others = slots.iter().filter(|(other, _)| *other != id);
        let mut others = others.filter_map(|(_, slot)| slot.serving.as_ref());
        others.any(|theirs| good.kinds.iter().any(|k| theirs.kind(&k.gvk).is_some()))
    })
}

impl Slot {
    /// True when a build serves here, or is the canary. Builds that differ in policy only share their health.
    fn has_build(&self, plugin: &Plugin) -> bool {
        [self.serving.as_ref(), self.serving_canary()]
            .into_iter()
            .flatten()
            .any(|b| Arc::ptr_eq(&b.health, &plugin.health))
    }

    /// Ends the canary if it does worse than the primary build.
    fn roll_back_canary(&mut self, stable: &Arc<Plugin>) -> Option<Rollback> {
        let canary = self.canary.as_mut()?;
        let why = canary.serving.as_ref()?.health.worse_than(&stable.health)?;
        let bad = canary.serving.take()?;
        canary.bad = Some(RolledBackBuild {
            plugin: bad.clone(),
            why: why.clone(),
        });
        self.rolled_back += 1;
        self.stop_comparison();
        Some(Rollback {
            now: stable.clone(),
            bad,
            canary: true,
            why,
        })
    }

    /// Puts the last good build in the place of the one that serves, with that one's policy: policy is an
    /// administrator's decision, and is never rolled back.
    pub(super) fn roll_back_serving(&mut self, serving: Arc<Plugin>, why: String) -> Option<Rollback> {
        let good = self.last_good.take()?;
        let now = Arc::new(good.with_policy_of(&serving));
        self.serving = Some(now.clone());
        self.bad = Some(RolledBackBuild {
            plugin: serving.clone(),
            why: why.clone(),
        });
        self.rolled_back += 1;
        Some(Rollback {
            now,
            bad: serving,
            canary: false,
            why,
        })
    }
}
