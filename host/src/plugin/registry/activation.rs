//! Activation of a new build: whether and how it takes the place of the one that serves.

use std::{sync::Arc, time::Duration};

use super::{Registry, RolledBackBuild, Slot, Slots};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{HookState, LoadError, Plugin, SlotId},
};

/// Result of [`Registry::serve`].
pub struct Activated {
    /// The build that serves now. It is not the given one if that was rolled back before.
    pub now: Arc<Plugin>,
    /// The build that served until then.
    pub before: Option<Arc<Plugin>>,
}

/// Place of a new build beside the one that serves.
pub(super) enum Decision {
    /// Nothing has served in the slot: the build serves.
    First,
    /// Another component or configuration: the build replaces the previous one, on trial.
    Replace(Arc<Plugin>),
    /// The same component and configuration with another policy: the build keeps serving, with its health and trial.
    Rebind(Arc<Plugin>),
}

impl Registry {
    /// Makes a build serve. Calls in flight end on the previous build. The build of a `Plugin` object takes the place
    /// of one that a file has brought. Fails if its name or one of its kinds is taken, and for a build that another process
    /// has rolled back if there is no previous one.
    pub fn serve(
        &self,
        id: &SlotId,
        revision: &str,
        plugin: Plugin,
        took: Option<Duration>,
    ) -> Result<Activated, LoadError> {
        self.check_service_account(&plugin)?;
        let mut slots = self.slots.write();
        let replaced_file = check_conflicts(&slots, id, &plugin)?;
        let slot = take_over(&mut slots, id, replaced_file, revision);
        let before = slot.serving.clone();
        let recorded = slot.check_record(&plugin);
        if let Some(previous) = &before
            && (slot.was_rolled_back(&plugin) || recorded.is_err() && !previous.same_build(&plugin))
        {
            if let (None, Some(record)) = (&slot.bad, &slot.record) {
                slot.bad = Some(RolledBackBuild {
                    why: record.message.clone(),
                    plugin: Arc::new(plugin.with_policy_of(&plugin)),
                });
            }
            // The previous build keeps serving, with the policy of the new one.
            let mut now = previous.with_policy_of(&plugin);
            now.suspended |= slot.violation.is_some();
            let now = Arc::new(now);
            slot.serving = Some(now.clone());
            return Ok(Activated { now, before });
        }
        recorded?;
        let decision = decide(before.clone(), &plugin);
        let now = slot.activate(&decision, plugin, took);
        if slot.recheck_canary() {
            self.request_rescan();
        }
        if !matches!(decision, Decision::Rebind(_)) {
            slot.restart_comparison();
        }
        if before.as_ref().is_some_and(|b| b.has_more_than(&now)) {
            self.retry_conflicting(&mut slots);
        }
        Ok(Activated { now, before })
    }
}

/// Refuses a build whose name or kind is taken by another slot. Returns the file whose build it replaces, if it comes
/// from the `Plugin` object of the same name.
pub(super) fn check_conflicts(
    slots: &Slots,
    id: &SlotId,
    plugin: &Plugin,
) -> Result<Option<SlotId>, LoadError> {
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
        let Some(theirs) = &slot.serving else { continue };
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
pub(super) fn take_over<'a>(
    slots: &'a mut Slots,
    id: &SlotId,
    replaced_file: Option<SlotId>,
    revision: &str,
) -> &'a mut Slot {
    let replaced = replaced_file.and_then(|file| slots.remove(&file));
    let slot = slots.entry(id.clone()).or_default();
    if let Some(replaced) = replaced {
        slot.serving = replaced.serving;
        slot.served = replaced.served;
        slot.last_good = replaced.last_good;
        slot.bad = replaced.bad;
    }
    slot.revision = revision.into();
    slot.refusal = None;
    slot
}

/// Compares a build with the previous one of its slot.
pub(super) fn decide(previous: Option<Arc<Plugin>>, new: &Plugin) -> Decision {
    match previous {
        None => Decision::First,
        Some(previous) if previous.same_build(new) => Decision::Rebind(previous),
        Some(previous) => Decision::Replace(previous),
    }
}

impl Slot {
    fn was_rolled_back(&self, build: &Plugin) -> bool {
        self.bad.as_ref().is_some_and(|bad| bad.plugin.same_build(build))
    }

    /// Makes a build serve as decided.
    pub(super) fn activate(
        &mut self,
        decision: &Decision,
        mut plugin: Plugin,
        took: Option<Duration>,
    ) -> Arc<Plugin> {
        let previous_digest = match decision {
            Decision::First => None,
            Decision::Replace(previous) | Decision::Rebind(previous) => Some(&previous.digest),
        };
        // Hooks belong to a component: with another configuration or policy it has had them.
        if previous_digest != Some(&plugin.digest) {
            self.hooks = if plugin.lifecycle {
                HookState::Pending
            } else {
                HookState::None
            };
        }
        let was_stopped = self.violation.take().is_some();
        self.record = None;
        match decision {
            Decision::Rebind(previous) => {
                plugin.health = previous.health.clone();
                // The newest revision is the build that serves: the author has undone what was rolled back.
                self.bad = None;
            }
            Decision::Replace(previous) => {
                // A build with new traps during its trial is nothing to roll back to, nor is one that was stopped.
                if !was_stopped && (self.last_good.is_none() || !previous.health.has_new_traps()) {
                    self.last_good = Some(previous.clone());
                }
                if let Some(good) = &self.last_good {
                    plugin.health.begin_trial(&good.health);
                }
                self.bad = None;
                self.count_served(took);
            }
            Decision::First => self.count_served(took),
        }
        let now = Arc::new(plugin);
        self.serving = Some(now.clone());
        now
    }

    fn count_served(&mut self, took: Option<Duration>) {
        self.served += 1;
        self.replaced_after = took;
    }
}
