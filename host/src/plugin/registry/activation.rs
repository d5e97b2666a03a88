//! Activation of a new build: whether and how it takes the place of the one that serves.

use std::time::Duration;

use super::{
    PluginRegistry, Slots,
    slot::{Slot, SlotBuild, SlotChange, refuse_recorded_build},
};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{HookState, LoadError, Plugin, SlotId},
};

impl PluginRegistry {
    /// Accepts a build as the newest one of a slot. It serves, unless it was rolled back and there is a build before it.
    /// Calls in flight end on the previous build. The build of a `Plugin` object takes the place of one that a file has
    /// brought.
    ///
    /// Fails if the host's policy does not allow the build, if its name or one of its kinds is taken, and for one that
    /// another process has rolled back if there is no previous one.
    pub fn serve(
        &self,
        id: &SlotId,
        revision: &str,
        plugin: Plugin,
        took: Option<Duration>,
    ) -> Result<SlotChange, LoadError> {
        let mut slots = self.slots.write();
        let replaced_file = self.check_build(&slots, id, &plugin)?;
        if let Some(slot) = slots.get(id) {
            let is_first = slot.serving().is_none();
            if is_first || slot.previous.is_none() && slot.is_newest(&plugin) {
                slot.check_record(&plugin)?;
            }
        }
        let slot = take_over(&mut slots, id, replaced_file);
        slot.revision = revision.into();
        slot.refusal = None;
        Ok(self.settle(&mut slots, id, |slot| slot.accept(plugin, took)))
    }

    /// Makes the previous build serve, in a process that has none, before [`PluginRegistry::serve`] gets the one that was rolled
    /// back. Fails as that does, and if it is the recorded build.
    pub fn restore_previous(&self, id: &SlotId, previous: Plugin) -> Result<SlotChange, LoadError> {
        let mut slots = self.slots.write();
        let replaced_file = self.check_build(&slots, id, &previous)?;
        if let Some(slot) = slots.get(id) {
            slot.check_record(&previous)?;
        }
        take_over(&mut slots, id, replaced_file);
        Ok(self.settle(&mut slots, id, |slot| {
            slot.reset_hooks(&previous);
            slot.count_served(None);
            slot.previous = Some(SlotBuild::new(previous));
        }))
    }

    /// Checks that a build may serve in a slot. Returns the file whose build it replaces.
    fn check_build(&self, slots: &Slots, id: &SlotId, plugin: &Plugin) -> Result<Option<SlotId>, LoadError> {
        self.check_service_account(plugin)?;
        self.policy
            .read()
            .check_component(&plugin.digest, &plugin.source)?;
        check_conflicts(slots, id, plugin)
    }
}

/// Refuses a build whose name or kind is taken by another slot. Returns the file whose build it replaces, if it comes
/// from the `Plugin` object of the same name.
fn check_conflicts(slots: &Slots, id: &SlotId, plugin: &Plugin) -> Result<Option<SlotId>, LoadError> {
    let object = SlotId::object(&**plugin.name());
    let from_object = *id == object;
    if !from_object && slots.contains_key(&object) {
        return Err(LoadError::new(
            plugin_reason::MANAGED_BY_PLUGIN_OBJECT,
            format!(
                "the Plugin object {} configures the plugin of that name with another source",
                plugin.name()
            ),
        ));
    }
    let mut replaced_file = None;
    for (other, slot) in slots.iter().filter(|(other, _)| *other != id) {
        let Some(theirs) = slot.serving() else { continue };
        if theirs.name() == plugin.name() {
            if from_object {
                replaced_file = Some(other.clone());
                continue;
            }
            return Err(LoadError::new(
                plugin_reason::NAME_CONFLICT,
                format!("the plugin name {} is taken by {other}", plugin.name()),
            ));
        }
        if let Some(kind) = plugin.kinds.iter().find(|k| theirs.kind(&k.gvk).is_some()) {
            return Err(LoadError::new(
                plugin_reason::KIND_CONFLICT,
                format!(
                    "{} is reconciled by {} ({other}) already",
                    kind.gvk,
                    theirs.name()
                ),
            ));
        }
    }
    Ok(replaced_file)
}

/// The slot of a build, with the history of the file that it replaces: that is rolled back to as well.
fn take_over<'a>(slots: &'a mut Slots, id: &SlotId, replaced_file: Option<SlotId>) -> &'a mut Slot {
    let replaced = replaced_file.and_then(|file| slots.remove(&file));
    let slot = slots.entry(id.clone()).or_default();
    if let Some(replaced) = replaced {
        slot.newest = replaced.newest;
        slot.previous = replaced.previous;
        slot.choice = replaced.choice;
        slot.served = replaced.served;
    }
    slot
}

impl Slot {
    pub(super) fn is_newest(&self, plugin: &Plugin) -> bool {
        let newest = self.newest.as_ref();
        newest.is_some_and(|newest| newest.plugin.same_build(plugin))
    }

    /// Refuses a build that another process has rolled back.
    fn check_record(&self, plugin: &Plugin) -> Result<(), LoadError> {
        match &self.record {
            Some(record) if record.names_build(plugin) => Err(refuse_recorded_build(record)),
            _ => Ok(()),
        }
    }

    /// Makes a build the newest one. The same component and configuration with another policy keeps its health, trial and
    /// rollback.
    fn accept(&mut self, mut plugin: Plugin, took: Option<Duration>) {
        let is_previous = |previous: &mut SlotBuild| previous.plugin.same_build(&plugin);
        let rolled_back = match &self.newest {
            Some(newest) if newest.plugin.same_build(&plugin) => {
                plugin.health = newest.plugin.health.clone();
                newest.rolled_back.clone()
            }
            // The author has gone back to it: it has passed its trial.
            _ if let Some(previous) = self.previous.take_if(is_previous) => {
                plugin.health = previous.plugin.health.clone();
                if self.serving().is_none_or(|serving| !serving.same_build(&plugin)) {
                    self.reset_hooks(&plugin);
                    self.count_served(took);
                }
                None
            }
            _ => {
                self.keep_newest();
                if self.check_record(&plugin).is_ok() {
                    if let Some(previous) = &self.previous {
                        plugin.health.begin_trial(&previous.plugin.health);
                    }
                    self.reset_hooks(&plugin);
                    self.count_served(took);
                }
                None
            }
        };
        if let Some(previous) = &mut self.previous {
            previous.bind(|previous| previous.with_policy_of(&plugin));
        }
        self.newest = Some(SlotBuild {
            rolled_back,
            ..SlotBuild::new(plugin)
        });
    }

    /// Keeps the newest build as the one to roll back to. One that was rolled back or stopped, or that has new traps during
    /// its trial, is none.
    fn keep_newest(&mut self) {
        let Some(newest) = self.newest.take() else { return };
        let is_good = newest.rolled_back.is_none() && newest.violation.is_none();
        if is_good && (self.previous.is_none() || !newest.plugin.health.has_new_traps()) {
            // There is none before it to fail a trial against.
            newest.plugin.health.end_trial();
            self.previous = Some(newest);
        }
        self.previous.take_if(|previous| previous.violation.is_some());
    }

    /// Hooks belong to a component: with another configuration or policy it has had them.
    fn reset_hooks(&mut self, plugin: &Plugin) {
        if self
            .serving()
            .is_some_and(|serving| serving.digest == plugin.digest)
        {
            return;
        }
        self.hooks = if plugin.lifecycle {
            HookState::Pending
        } else {
            HookState::None
        };
    }

    fn count_served(&mut self, took: Option<Duration>) {
        self.served += 1;
        self.replaced_after = took;
    }
}
