//! Canary of a slot: a second build that reconciles a part of the objects.

use super::{
    PluginRegistry,
    slot::{SlotBuild, SlotChange},
};
use crate::{
    kube::well_known::plugin_reason,
    plugin::{LoadError, Plugin, SlotId, canary_selector::CanarySelector},
};

pub(super) struct CanaryBuild {
    /// The build, which may be kept from serving ([`super::slot::choose`]).
    pub(super) build: Option<SlotBuild>,
    /// Revision of the newest spec of it; empty to have it loaded again.
    pub(super) revision: String,
    /// Error that kept the newest revision from being accepted.
    pub(super) refusal: Option<LoadError>,
    pub(super) selector: CanarySelector,
}

impl PluginRegistry {
    /// True when this revision of a canary has been processed, whether it serves or was refused.
    pub fn is_canary_current(&self, id: &SlotId, revision: &str) -> bool {
        let slots = self.slots.read();
        let canary = slots.get(id).and_then(|s| s.canary.as_ref());
        canary.is_some_and(|c| c.revision == revision)
    }

    /// Accepts a build as the canary of a plugin. It serves while the stable build has the same kinds, and until it is
    /// rolled back. Fails if there is no stable build, if the host's policy does not allow it, or if the two differ in more
    /// than a canary may; then it serves as soon as they don't.
    pub fn serve_canary(
        &self,
        id: &SlotId,
        revision: &str,
        plugin: Plugin,
        selector: CanarySelector,
    ) -> Result<SlotChange, LoadError> {
        let mut slots = self.slots.write();
        if slots.get(id).is_none_or(|slot| slot.serving().is_none()) {
            drop(slots);
            let why = "there is no primary build".into();
            let refusal = LoadError::new(plugin_reason::PRIMARY_NOT_LOADED, why);
            self.refuse_canary(id, revision, selector, Some(refusal.clone()));
            return Err(refusal);
        }
        let change = self.settle(&mut slots, id, |slot| {
            let before = slot.canary.take().and_then(|canary| canary.build);
            let before = before.filter(|before| before.plugin.same_build(&plugin));
            slot.canary = Some(CanaryBuild {
                build: Some(SlotBuild {
                    rolled_back: before.and_then(|before| before.rolled_back),
                    ..SlotBuild::new(plugin)
                }),
                revision: revision.into(),
                refusal: None,
                selector,
            });
        });
        let refusal = slots.get(id).and_then(|slot| slot.choice.canary_refusal.clone());
        refusal.map_or(Ok(change), Err)
    }

    /// Records that the newest revision of a canary was refused, or is not loaded yet (without a `refusal`). None serves
    /// until it is.
    pub fn refuse_canary(
        &self,
        id: &SlotId,
        revision: &str,
        selector: CanarySelector,
        refusal: Option<LoadError>,
    ) -> SlotChange {
        let mut slots = self.slots.write();
        slots.entry(id.clone()).or_default();
        self.settle(&mut slots, id, |slot| {
            let before = slot.canary.take().and_then(|canary| canary.build);
            slot.canary = Some(CanaryBuild {
                build: before.filter(|build| build.rolled_back.is_some()),
                revision: revision.into(),
                refusal,
                selector,
            });
        })
    }

    /// Changes the objects of a canary. Returns true if it serves and the selector differs.
    pub fn select_canary_objects(&self, id: &SlotId, selector: &CanarySelector) -> bool {
        let mut slots = self.slots.write();
        let Some(slot) = slots.get_mut(id) else {
            return false;
        };
        let Some(canary) = &mut slot.canary else {
            return false;
        };
        let differs = canary.selector != *selector;
        canary.selector = selector.clone();
        differs && slot.choice.canary.is_some()
    }

    /// Removes the canary. Returns true if it served.
    pub fn remove_canary(&self, id: &SlotId) -> bool {
        let mut slots = self.slots.write();
        let change = self.settle(&mut slots, id, |slot| slot.canary = None);
        change.is_canary_changed
    }
}
