//! Policies that change while builds serve: of the host, of the keys that must have signed a build, and of a plugin.

use std::collections::HashMap;

use super::{
    PluginRegistry,
    slot::{Slot, SlotChange},
};
use crate::{
    contract::limits::PluginLimits,
    plugin::{LoadError, SlotId},
    policy::{components::ComponentPolicy, grants::Grants},
};

impl PluginRegistry {
    /// Sets the host's policy of components, which every build must meet from now on, and judges those that are kept.
    /// Returns what that changes.
    pub fn set_component_policy(&self, policy: &ComponentPolicy) -> Vec<(SlotId, SlotChange)> {
        let mut slots = self.slots.write();
        self.policy.write().clone_from(policy);
        let ids: Vec<SlotId> = slots.keys().cloned().collect();
        let mut changes = Vec::new();
        for id in ids {
            let change = self.settle(&mut slots, &id, |_| {});
            changes.push((id, change));
        }
        changes
    }

    /// Records which builds of a slot are not signed as the keys of now require, by their sources. With an error that kept
    /// some from being checked, the others stay as they were judged before.
    pub fn judge_signatures(
        &self,
        id: &SlotId,
        violations: &HashMap<String, LoadError>,
        unverified: Option<LoadError>,
    ) -> SlotChange {
        let mut slots = self.slots.write();
        self.settle(&mut slots, id, |slot| {
            for build in slot.builds_mut() {
                let violation = violations.get(&build.plugin.source);
                if violation.is_some() || unverified.is_none() {
                    build.unsigned = violation.cloned();
                }
            }
            slot.unverified = unverified;
        })
    }

    /// Applies the current grants, limits and suspension to the builds of a slot, even if the newest one is still being
    /// loaded or was refused.
    pub fn rebind(&self, id: &SlotId, grants: &Grants, limits: &PluginLimits, suspended: bool) -> SlotChange {
        let mut slots = self.slots.write();
        // Until its own build serves, an object binds the build that a file has brought, and the file no longer does.
        let bound = match slots.get(id).and_then(Slot::object_of_serving) {
            Some(object) if object != *id && slots.contains_key(&object) => None,
            Some(_) => Some(id.clone()),
            None => slots
                .iter()
                .find(|(_, slot)| slot.object_of_serving().is_some_and(|object| object == *id))
                .map(|(file, _)| file.clone()),
        };
        let Some(bound) = bound else {
            return SlotChange::default();
        };
        self.settle(&mut slots, &bound, |slot| {
            for build in slot.builds_mut() {
                build.bind(|plugin| plugin.rebind(grants, limits, suspended));
            }
        })
    }

    /// The sources of the builds of a slot that serve, or may again.
    pub fn kept_sources(&self, id: &SlotId) -> Vec<String> {
        let slots = self.slots.read();
        let builds = slots.get(id).into_iter().flat_map(Slot::builds);
        let kept = builds.filter(|build| build.rolled_back.is_none());
        let mut sources: Vec<_> = kept.map(|build| build.plugin.source.clone()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}
