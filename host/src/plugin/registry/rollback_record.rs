//! Record of a rollback in the status of a `Plugin` object: a build that one process has rolled back is tried by no other.

use std::sync::Arc;

use super::{
    Activated, Registry, RolledBackBuild, Slot,
    activation::{check_conflicts, decide, take_over},
    rollback::is_last_good_taken,
};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{LoadError, Plugin, SlotId, spec::RolledBack},
};

impl Registry {
    /// Takes note of the rollback that the status of a `Plugin` object records. If the recorded build serves here, as on a
    /// standby that has loaded it like the leader, the previous one takes its place, or it is stopped where there is none.
    /// Returns the build that serves now and the one before it, if that differs.
    ///
    /// If the record has been removed, the build is tried again by the next scan.
    pub fn update_rollback_record(
        &self,
        id: &SlotId,
        record: Option<RolledBack>,
    ) -> Option<(Arc<Plugin>, Arc<Plugin>)> {
        let mut slots = self.slots.write();
        let slot = slots.entry(id.clone()).or_default();
        let before = std::mem::replace(&mut slot.read_record, record.clone());
        let Some(record) = record else {
            slot.forget_rollback(&before?);
            return None;
        };
        let is_known = before.is_some_and(|before| before.is_same_build(&record));
        // Its own rollback, which has just been recorded.
        let is_own = slot
            .bad
            .as_ref()
            .is_some_and(|bad| record.names_build(&bad.plugin));
        if is_known || is_own {
            return None;
        }
        let serving = slot.serving.clone().filter(|serving| record.names_build(serving));
        let message = record.message.clone();
        slot.record = Some(record);
        let serving = serving?;
        if is_last_good_taken(&slots, id) {
            slots.get_mut(id)?.last_good = None;
        }
        let slot = slots.get_mut(id)?;
        let now = match slot.roll_back_serving(serving.clone(), message) {
            Some(rollback) => rollback.now,
            None => slot.stop_recorded_build(&serving),
        };
        if slot.recheck_canary() {
            self.request_rescan();
        }
        Some((now, serving))
    }

    /// The registry reference of the build to load in place of one that another process has rolled back; none while a build
    /// serves.
    pub fn previous_source(&self, id: &SlotId, rolled_back: &Plugin) -> Option<String> {
        let slots = self.slots.read();
        let slot = slots.get(id).filter(|slot| slot.serving.is_none())?;
        let record = slot.record.as_ref();
        record
            .filter(|record| record.names_build(rolled_back))?
            .previous_source
            .clone()
    }

    /// Makes the previous build serve, in a process that has none, before [`Registry::serve`] gets the one that was rolled
    /// back. The record stays. Fails if its name or one of its kinds is taken, or if it is the recorded build.
    pub fn restore_previous(&self, id: &SlotId, previous: Plugin) -> Result<Activated, LoadError> {
        self.check_service_account(&previous)?;
        let mut slots = self.slots.write();
        let replaced_file = check_conflicts(&slots, id, &previous)?;
        let slot = take_over(&mut slots, id, replaced_file, "");
        slot.check_record(&previous)?;
        let record = slot.record.clone();
        let before = slot.serving.clone();
        let now = slot.activate(&decide(before.clone(), &previous), previous, None);
        slot.record = record;
        Ok(Activated { now, before })
    }

    /// Drops a record that no longer applies: the newest revision serves, and is another build.
    pub fn drop_obsolete_record(&self, id: &SlotId) {
        let mut slots = self.slots.write();
        let Some(slot) = slots.get_mut(id) else { return };
        let is_served = slot.bad.is_none() && slot.refusal.is_none() && slot.violation.is_none();
        let is_other = |record: &mut RolledBack| {
            let serving = slot.serving.as_ref();
            serving.is_some_and(|serving| !record.names_build(serving))
        };
        if is_served {
            slot.record.take_if(is_other);
        }
    }
}

impl Slot {
    /// The error of a build that another process has rolled back.
    pub(super) fn check_record(&self, plugin: &Plugin) -> Result<(), LoadError> {
        match &self.record {
            Some(record) if record.names_build(plugin) => Err(refuse_recorded_build(record)),
            _ => Ok(()),
        }
    }

    /// The rollback to record in the status.
    pub(super) fn rollback_to_record(&self) -> Option<RolledBack> {
        let own = self.bad.as_ref();
        own.map(|RolledBackBuild { plugin, why }| RolledBack::of_build(plugin, why, self.serving.as_deref()))
            .or_else(|| self.record.clone())
    }

    /// Suspends the build that serves, which is the recorded one, and returns it.
    fn stop_recorded_build(&mut self, serving: &Plugin) -> Arc<Plugin> {
        self.violation = self.record.as_ref().map(refuse_recorded_build);
        // Its file or spec is judged again by the next scan.
        self.revision.clear();
        let now = Arc::new(serving.suspend());
        self.serving = Some(now.clone());
        now
    }

    /// Has a build loaded again whose record was removed.
    fn forget_rollback(&mut self, removed: &RolledBack) {
        let is_removed = |record: &mut RolledBack| record.is_same_build(removed);
        let recorded = self.record.take_if(is_removed).is_some();
        let own = self.bad.take_if(|bad| removed.names_build(&bad.plugin)).is_some();
        if recorded || own {
            self.revision.clear();
        }
    }
}

fn refuse_recorded_build(record: &RolledBack) -> LoadError {
    let short = record.digest.get(..12).unwrap_or(&record.digest);
    LoadError::new(
        plugin_reason::ROLLED_BACK,
        format!(
            "{short} was rolled back, as status.rolledBack records, and is not tried again: {}. Name another build in \
             spec.source, or remove status.rolledBack",
            record.message
        ),
    )
}
