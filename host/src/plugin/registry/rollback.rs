//! Rollback of a build that does worse than the one before it, and of a canary that does worse than the one beside it.
//!
//! A build that one process has rolled back is tried by no other: the status of the `Plugin` object records it.

use std::{sync::Arc, time::Instant};

use super::{
    PluginRegistry, Slots,
    slot::{Slot, SlotChange},
};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{
        Plugin, SlotId,
        health::{CallResult, CallSubject, TrialVerdict},
        spec::RolledBack,
    },
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

impl PluginRegistry {
    /// True when this build was rolled back in this slot, as the serving build or as canary.
    pub fn is_rolled_back(&self, id: &SlotId, plugin: &Plugin) -> bool {
        let slots = self.slots.read();
        let mut builds = slots.get(id).into_iter().flat_map(Slot::builds);
        builds.any(|build| build.rolled_back.is_some() && build.plugin.same_build(plugin))
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
        let id = slots.iter().find(|(_, slot)| slot.has_build_of(plugin));
        let id = id.map(|(id, _)| id.clone())?;
        forget_taken_previous(&mut slots, &id);
        let slot = slots.get_mut(&id)?;
        let stable = slot.serving()?.clone();
        let (bad, why) = match slot.find_worse_canary(&stable) {
            Some(worse) => worse,
            None => (stable.clone(), slot.find_failed_trial(&stable, now)?),
        };
        slot.rolled_back += 1;
        let change = self.settle(&mut slots, &id, |slot| {
            for build in slot.builds_mut() {
                if Arc::ptr_eq(&build.plugin.health, &bad.health) {
                    build.rolled_back = Some(why.clone());
                }
            }
        });
        Some(Rollback {
            now: change.now?,
            canary: !Arc::ptr_eq(&bad.health, &stable.health),
            bad,
            why,
        })
    }

    /// Takes note of the rollback that the status of a `Plugin` object records. If the recorded build serves here, as on a
    /// standby that has loaded it like the leader, the previous one takes its place, or it is stopped where there is none.
    ///
    /// If the record has been removed, the build is tried again by the next scan.
    pub fn update_rollback_record(&self, id: &SlotId, record: Option<RolledBack>) -> SlotChange {
        let mut slots = self.slots.write();
        slots.entry(id.clone()).or_default();
        self.set_rollback_record(&mut slots, id, record)
    }

    /// Takes note of the record as [`Self::update_rollback_record`] does, unless the slot does not exist: a `Plugin` object that was
    /// read may have been deleted meanwhile, and a slot that nobody removes would keep its name reserved.
    pub fn refresh_rollback_record(&self, id: &SlotId, record: Option<RolledBack>) -> SlotChange {
        let mut slots = self.slots.write();
        self.set_rollback_record(&mut slots, id, record)
    }

    fn set_rollback_record(&self, slots: &mut Slots, id: &SlotId, record: Option<RolledBack>) -> SlotChange {
        let newest = slots.get(id).and_then(|slot| slot.newest.as_ref());
        let names_newest =
            |record: &RolledBack| newest.is_some_and(|newest| record.names_build(&newest.plugin));
        if record.as_ref().is_some_and(names_newest) {
            forget_taken_previous(slots, id);
        }
        self.settle(slots, id, |slot| {
            let before = std::mem::replace(&mut slot.record, record);
            if let (Some(removed), None) = (before, &slot.record) {
                slot.forget_rollback(&removed);
            }
        })
    }

    /// The registry reference of the build to load in place of one that another process has rolled back; none while a build
    /// serves.
    pub fn previous_source(&self, id: &SlotId, rolled_back: &Plugin) -> Option<String> {
        let slots = self.slots.read();
        let slot = slots.get(id).filter(|slot| slot.serving().is_none())?;
        let record = slot.record.as_ref();
        record
            .filter(|record| record.names_build(rolled_back))?
            .previous_source
            .clone()
    }
}

/// Forgets the build to roll back to if another slot reconciles one of its kinds meanwhile.
fn forget_taken_previous(slots: &mut Slots, id: &SlotId) {
    let is_taken = |previous: &Plugin| {
        let others = slots.iter().filter(|(other, _)| *other != id);
        let mut others = others.filter_map(|(_, slot)| slot.serving());
        others.any(|theirs| previous.kinds.iter().any(|k| theirs.kind(&k.gvk).is_some()))
    };
    let previous = slots.get(id).and_then(|slot| slot.previous.as_ref());
    if previous.is_some_and(|previous| is_taken(&previous.plugin))
        && let Some(slot) = slots.get_mut(id)
    {
        slot.previous = None;
    }
}

impl Slot {
    /// True when a build serves here, or is the canary. Builds that differ in policy only share their health.
    fn has_build_of(&self, plugin: &Plugin) -> bool {
        [&self.choice.stable, &self.choice.canary]
            .into_iter()
            .flatten()
            .any(|build| Arc::ptr_eq(&build.health, &plugin.health))
    }

    /// The canary, and why, if it does worse than the stable build.
    fn find_worse_canary(&self, stable: &Plugin) -> Option<(Arc<Plugin>, String)> {
        let canary = self.choice.canary.as_ref()?;
        Some((canary.clone(), canary.health.worse_than(&stable.health)?))
    }

    /// Why the stable build has failed its trial, if it has and there is a build to roll back to. After a trial that it has
    /// passed there is none.
    fn find_failed_trial(&mut self, stable: &Plugin, now: Instant) -> Option<String> {
        match stable.health.trial_verdict(now)? {
            TrialVerdict::Open => None,
            TrialVerdict::Passed => {
                self.previous = None;
                None
            }
            TrialVerdict::Failed(why) => {
                let previous = self.previous.as_ref();
                previous.filter(|previous| previous.violation.is_none())?;
                Some(why)
            }
        }
    }

    /// The rollback to record in the status: of this process, or the recorded one until another build is accepted.
    pub(super) fn rollback_to_record(&self) -> Option<RolledBack> {
        let own = self.newest.as_ref().and_then(|newest| {
            let why = newest.rolled_back.as_ref()?;
            Some(RolledBack::of_build(
                &newest.plugin,
                why,
                self.serving().map(|s| &**s),
            ))
        });
        let applies = |record: &&RolledBack| {
            let newest = self.newest.as_ref();
            self.refusal.is_some() || newest.is_none_or(|newest| record.names_build(&newest.plugin))
        };
        own.or_else(|| self.record.as_ref().filter(applies).cloned())
    }

    /// Has a build loaded again whose record was removed.
    fn forget_rollback(&mut self, removed: &RolledBack) {
        let newest = self.newest.as_ref();
        let is_known = newest.is_some_and(|newest| removed.names_build(&newest.plugin));
        // Its kinds may have been taken since: it is accepted as if it were new.
        if is_known && self.previous.is_some() {
            self.newest = None;
        }
        let is_refused = self
            .refusal
            .as_ref()
            .is_some_and(|refusal| refusal.reason == plugin_reason::ROLLED_BACK);
        if is_known || is_refused {
            self.revision.clear();
        }
    }
}
