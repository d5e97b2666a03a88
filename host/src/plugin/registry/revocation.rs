//! Revocation: builds that were accepted, and violate the host's policy now.

use std::sync::Arc;

use super::{Registry, Slot};
use crate::plugin::{LoadError, Plugin, SlotId};

/// The builds that [`Registry::stop_builds`] has stopped.
#[derive(Default)]
pub struct StoppedBuilds {
    /// The build that serves, with its new suspension and before it.
    pub serving: Option<(Arc<Plugin>, Arc<Plugin>)>,
    /// All stopped builds, with the violation of each.
    pub violations: Vec<(Arc<Plugin>, LoadError)>,
}

impl Registry {
    /// Stops the builds of a slot for which `judge` returns an error. The build that serves is suspended, so that its objects
    /// wait, until a build is accepted; a canary ends; and a build to roll back to is forgotten.
    pub fn stop_builds(&self, id: &SlotId, judge: impl Fn(&Plugin) -> Option<LoadError>) -> StoppedBuilds {
        let mut slots = self.slots.write();
        let mut stopped = StoppedBuilds::default();
        let Some(slot) = slots.get_mut(id) else {
            return stopped;
        };
        if let Some(good) = slot.last_good.take_if(|good| judge(good).is_some())
            && let Some(violation) = judge(&good)
        {
            stopped.violations.push((good, violation));
        }
        slot.stop_canary(&judge, &mut stopped);
        let Some(serving) = slot.serving.clone() else {
            return stopped;
        };
        let Some(violation) = judge(&serving) else {
            return stopped;
        };
        if slot.violation.as_ref() != Some(&violation) {
            stopped.violations.push((serving.clone(), violation.clone()));
            // Also if the policy is reverted before it was loaded anew, the build is judged again.
            slot.revision.clear();
        }
        slot.violation = Some(violation);
        if !serving.suspended {
            let now = Arc::new(serving.suspend());
            slot.serving = Some(now.clone());
            stopped.serving = Some((now, serving));
        }
        stopped
    }

    /// The sources of the builds of a slot that serve, or may again.
    pub fn kept_sources(&self, id: &SlotId) -> Vec<String> {
        let slots = self.slots.read();
        let kept = slots.get(id).into_iter().flat_map(|slot| {
            [
                slot.serving.as_ref(),
                slot.last_good.as_ref(),
                slot.serving_canary(),
            ]
        });
        let mut sources: Vec<_> = kept.flatten().map(|build| build.source.clone()).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

impl Slot {
    fn stop_canary(&mut self, judge: &impl Fn(&Plugin) -> Option<LoadError>, stopped: &mut StoppedBuilds) {
        let Some(canary) = &mut self.canary else { return };
        let Some(build) = canary.serving.take_if(|build| judge(build).is_some()) else {
            return;
        };
        canary.refusal = judge(&build);
        stopped
            .violations
            .extend(canary.refusal.clone().map(|violation| (build, violation)));
        self.stop_comparison();
    }
}
