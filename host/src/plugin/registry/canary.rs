//! Canary of a slot: a second build that reconciles a part of the objects.

use std::sync::Arc;

use super::{Registry, RolledBackBuild, Slot};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{LoadError, Plugin, SlotId, canary_selector::CanarySelector},
};

pub(super) struct Canary {
    pub(super) serving: Option<Arc<Plugin>>,
    /// Revision of the newest spec of it; empty to have it loaded again.
    pub(super) revision: String,
    pub(super) refusal: Option<LoadError>,
    pub(super) bad: Option<RolledBackBuild>,
    pub(super) selector: CanarySelector,
}

impl Slot {
    /// Ends a canary that may no longer serve beside the stable build, and has one that was refused for that reason
    /// loaded again, since the stable build is another now. Returns true if there is one to load.
    pub(super) fn recheck_canary(&mut self) -> bool {
        let (Some(stable), Some(canary)) = (&self.serving, &mut self.canary) else {
            return false;
        };
        let find_difference = |c: &Arc<Plugin>| stable.find_canary_difference(c);
        if let Some(difference) = canary.serving.as_ref().and_then(find_difference) {
            canary.serving = None;
            canary.refusal = Some(LoadError::new(plugin_reason::INCOMPATIBLE_CANARY, difference));
        }
        let refused = canary.refusal.as_ref();
        let differs = refused.is_some_and(|e| e.reason == plugin_reason::INCOMPATIBLE_CANARY);
        if differs {
            canary.revision.clear();
        }
        differs
    }

    /// Begins to count the objects of the build that serves and those of its canary, if it has one: they are
    /// compared.
    pub(super) fn restart_comparison(&mut self) {
        let canary = self.serving_canary();
        if let Some(serving) = &self.serving {
            serving.health.count_results(canary.is_some());
        }
        if let Some(canary) = canary {
            canary.health.count_results(true);
        }
    }

    /// Stops counting the objects of the build that serves: there is no canary to compare it with.
    pub(super) fn stop_comparison(&mut self) {
        if let Some(serving) = &self.serving {
            serving.health.count_results(false);
        }
    }
}

impl Registry {
    /// True when this revision of a canary has been processed, whether it serves or was refused.
    pub fn is_canary_current(&self, id: &SlotId, revision: &str) -> bool {
        let slots = self.slots.read();
        let canary = slots.get(id).and_then(|s| s.canary.as_ref());
        canary.is_some_and(|c| c.revision == revision)
    }

    /// Makes a build reconcile a part of a plugin's objects. Returns the build that reconciles the others. Fails if
    /// there is none, or if the two differ in more than a canary may.
    pub fn serve_canary(
        &self,
        id: &SlotId,
        revision: &str,
        plugin: Plugin,
        selector: CanarySelector,
    ) -> Result<Arc<Plugin>, LoadError> {
        let mut slots = self.slots.write();
        let slot = slots.entry(id.clone()).or_default();
        let Some(stable) = &slot.serving else {
            return Err(LoadError::new(
                plugin_reason::PRIMARY_NOT_LOADED,
                "there is no primary build".into(),
            ));
        };
        if let Some(difference) = stable.find_canary_difference(&plugin) {
            return Err(LoadError::new(plugin_reason::INCOMPATIBLE_CANARY, difference));
        }
        let bad = slot.canary.take().and_then(|c| c.bad);
        let bad = bad.filter(|b| b.plugin.same_build(&plugin));
        let serving = bad.is_none().then(|| {
            plugin.health.count_results(true);
            stable.health.count_results(true);
            Arc::new(plugin)
        });
        let stable = stable.clone();
        slot.canary = Some(Canary {
            serving,
            revision: revision.into(),
            refusal: None,
            bad,
            selector,
        });
        Ok(stable)
    }

    /// Records that a canary can't serve, or not yet (without a `refusal`).
    pub fn refuse_canary(
        &self,
        id: &SlotId,
        revision: &str,
        selector: CanarySelector,
        refusal: Option<LoadError>,
    ) {
        let mut slots = self.slots.write();
        let slot = slots.entry(id.clone()).or_default();
        let bad = slot.canary.take().and_then(|c| c.bad);
        slot.stop_comparison();
        slot.canary = Some(Canary {
            serving: None,
            revision: revision.into(),
            refusal,
            bad,
            selector,
        });
    }

    /// Changes the objects of a canary. Returns true if it serves and the selector differs.
    pub fn select_canary_objects(&self, id: &SlotId, selector: &CanarySelector) -> bool {
        let mut slots = self.slots.write();
        let Some(canary) = slots.get_mut(id).and_then(|s| s.canary.as_mut()) else {
            return false;
        };
        let differs = canary.selector != *selector;
        canary.selector = selector.clone();
        differs && canary.serving.is_some()
    }

    /// Removes the canary. Returns true if it served.
    pub fn remove_canary(&self, id: &SlotId) -> bool {
        let mut slots = self.slots.write();
        let Some(slot) = slots.get_mut(id) else {
            return false;
        };
        let canary = slot.canary.take();
        slot.stop_comparison();
        canary.is_some_and(|c| c.serving.is_some())
    }
}
