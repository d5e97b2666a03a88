//! Slot of the registry: the builds of one component file or one `Plugin` object, and the choice among them.
//!
//! Every event — a build is loaded, the host's policy or the keys of a spec change, a call traps, another process records a
//! rollback — changes what is known about builds. [`Slot::settle`] then judges all of them and lets [`choose`] say which
//! ones serve, so that there is one place where a build may begin to serve, and none that forgets a rule.

use std::{sync::Arc, time::Duration};

use super::canary::CanaryBuild;
use crate::{
    kube::well_known::plugin_reason,
    plugin::{HookState, LoadError, Plugin, SlotId, spec::RolledBack},
    policy::components::ComponentPolicy,
};

/// Builds of one component file or one `Plugin` object.
#[derive(Default)]
pub(super) struct Slot {
    /// The build of the newest revision that was accepted, which serves unless it was rolled back.
    pub(super) newest: Option<SlotBuild>,
    /// The build to roll back to during the trial of the newest one, and after a rollback.
    pub(super) previous: Option<SlotBuild>,
    pub(super) canary: Option<CanaryBuild>,
    /// The rollback that the status of the `Plugin` object records, as it was last read.
    pub(super) record: Option<RolledBack>,
    /// The builds that serve, and what keeps others from it.
    pub(super) choice: Choice,
    /// Revision (a digest of content and policy) of the newest file or spec, whether it serves or was refused. Empty
    /// to have it loaded again.
    pub(super) revision: String,
    /// Error that kept the newest revision from being accepted.
    pub(super) refusal: Option<LoadError>,
    /// Error that kept the signatures of a build from being checked by the keys of now.
    pub(super) unverified: Option<LoadError>,
    /// Time from the change to serving, at the last replacement.
    pub(super) replaced_after: Option<Duration>,
    pub(super) served: u64,
    pub(super) refused: u64,
    pub(super) rolled_back: u64,
    pub(super) hooks: HookState,
    /// Generation of the `Plugin` object that was processed last.
    pub(super) generation: i64,
}

/// A build, and what has been found out about it.
#[derive(Clone)]
pub(super) struct SlotBuild {
    /// The build, with the grants, limits and suspension of its slot.
    pub(super) plugin: Arc<Plugin>,
    /// Why this process has rolled it back.
    pub(super) rolled_back: Option<String>,
    /// Violation of the signatures that the keys of now require.
    pub(super) unsigned: Option<LoadError>,
    /// Violation for which it must not run, as judged last: of the host's policy, or of signatures.
    pub(super) violation: Option<LoadError>,
}

/// The builds of a slot that serve.
#[derive(Clone, Default)]
pub(super) struct Choice {
    /// The build that serves. It is suspended, so that its objects wait, if it must not run and there is none to run instead.
    pub(super) stable: Option<Arc<Plugin>>,
    /// Error for which the stable build is suspended.
    pub(super) stopped: Option<LoadError>,
    /// Why the newest build was rolled back and the previous one serves.
    pub(super) rolled_back: Option<String>,
    /// The build that serves a part of the objects.
    pub(super) canary: Option<Arc<Plugin>>,
    /// Error that keeps the canary from serving.
    pub(super) canary_refusal: Option<LoadError>,
}

/// Change of the builds that serve in a slot.
#[derive(Default)]
pub struct SlotChange {
    /// The stable build before.
    pub before: Option<Arc<Plugin>>,
    /// The stable build now.
    pub now: Option<Arc<Plugin>>,
    /// True when a canary has begun to serve or has ended: objects have another build now.
    pub is_canary_changed: bool,
    /// Builds that were stopped by this change, with the violation of each.
    pub stopped: Vec<(Arc<Plugin>, LoadError)>,
}

impl SlotChange {
    /// True when objects may be reconciled by another build, or by one with another policy.
    pub fn requires_reconcile(&self) -> bool {
        self.is_canary_changed
            || match (&self.before, &self.now) {
                (Some(before), Some(now)) => !before.is_same(now),
                (None, None) => false,
                _ => true,
            }
    }

    /// True when a kind or name is free for other plugins now.
    pub(super) fn frees_kind_or_name(&self) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| self.now.as_ref().is_none_or(|now| before.has_more_than(now)))
    }
}

impl SlotBuild {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self {
            plugin: Arc::new(plugin),
            rolled_back: None,
            unsigned: None,
            violation: None,
        }
    }

    /// Gives the build the grants, limits and suspension that `bind` gives a copy of it.
    pub(super) fn bind(&mut self, bind: impl Fn(&Plugin) -> Plugin) {
        let bound = bind(&self.plugin);
        if !bound.is_same(&self.plugin) {
            self.plugin = Arc::new(bound);
        }
    }

    /// Judges the build by the policy. Returns the violation if it is a new one.
    fn judge(&mut self, policy: &ComponentPolicy) -> Option<(Arc<Plugin>, LoadError)> {
        let checked = policy.check_component(&self.plugin.digest, &self.plugin.source);
        let violation = checked
            .err()
            .map(LoadError::from)
            .or_else(|| self.unsigned.clone());
        if self.violation == violation {
            return None;
        }
        self.violation.clone_from(&violation);
        violation.map(|violation| (self.plugin.clone(), violation))
    }
}

/// Chooses the builds that serve, from judged ones.
///
/// - The newest build serves, unless it was rolled back and there is a previous one. By another process it was rolled back
///   if the record names it.
/// - A build that must not run is suspended, not replaced: a policy stops builds and never rolls back.
/// - A canary serves beside a stable build that it is compatible with.
pub(super) fn choose(
    newest: Option<&SlotBuild>,
    previous: Option<&SlotBuild>,
    canary: Option<&SlotBuild>,
    record: Option<&RolledBack>,
) -> Choice {
    let record_of = |build: &SlotBuild| record.filter(|record| record.names_build(&build.plugin));
    let rolled_back = newest.and_then(|newest| {
        let recorded = || record_of(newest).map(|record| record.message.clone());
        newest.rolled_back.clone().or_else(recorded)
    });
    let (stable, rolled_back) = match (newest, previous) {
        (Some(_), Some(previous)) if rolled_back.is_some() => (previous, rolled_back),
        (None, Some(previous)) => (previous, None),
        (Some(newest), _) => (newest, None),
        (None, None) => return Choice::default(),
    };
    let stopped = stable
        .violation
        .clone()
        .or_else(|| record_of(stable).map(refuse_recorded_build));
    let canary_refusal = canary.and_then(|canary| {
        let difference = || stable.plugin.find_canary_difference(&canary.plugin);
        let incompatible = || Some(LoadError::new(plugin_reason::INCOMPATIBLE_CANARY, difference()?));
        canary.violation.clone().or_else(incompatible)
    });
    let may_serve = |canary: &&SlotBuild| canary_refusal.is_none() && canary.rolled_back.is_none();
    Choice {
        canary: canary.filter(may_serve).map(|canary| canary.plugin.clone()),
        stable: Some(match &stopped {
            Some(_) if !stable.plugin.suspended => Arc::new(stable.plugin.suspend()),
            _ => stable.plugin.clone(),
        }),
        stopped,
        rolled_back,
        canary_refusal,
    }
}

/// The error of a build that another process has rolled back.
pub(super) fn refuse_recorded_build(record: &RolledBack) -> LoadError {
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

impl Slot {
    /// Judges the builds by the policy of now, and lets the chosen ones serve.
    pub(super) fn settle(&mut self, policy: &ComponentPolicy) -> SlotChange {
        let stopped = self
            .builds_mut()
            .filter_map(|build| build.judge(policy))
            .collect();
        let choice = choose(
            self.newest.as_ref(),
            self.previous.as_ref(),
            self.canary.as_ref().and_then(|canary| canary.build.as_ref()),
            self.record.as_ref(),
        );
        let before = std::mem::replace(&mut self.choice, choice);
        let health = |build: &Option<Arc<Plugin>>| build.as_ref().map(|build| Arc::as_ptr(&build.health));
        let is_canary_changed = health(&before.canary) != health(&self.choice.canary);
        if is_canary_changed || health(&before.stable) != health(&self.choice.stable) {
            self.restart_comparison();
        }
        SlotChange {
            before: before.stable,
            now: self.choice.stable.clone(),
            is_canary_changed,
            stopped,
        }
    }

    /// Counts the objects of the stable build and of the canary from zero, if there is one: they are compared.
    fn restart_comparison(&self) {
        let Choice { stable, canary, .. } = &self.choice;
        for build in [stable, canary].into_iter().flatten() {
            build.health.count_results(canary.is_some());
        }
    }

    pub(super) fn builds_mut(&mut self) -> impl Iterator<Item = &mut SlotBuild> {
        let canary = self.canary.as_mut().and_then(|canary| canary.build.as_mut());
        [self.newest.as_mut(), self.previous.as_mut(), canary]
            .into_iter()
            .flatten()
    }

    /// All builds that are kept, those that were rolled back included.
    pub(super) fn builds(&self) -> impl Iterator<Item = &SlotBuild> {
        let canary = self.canary.as_ref().and_then(|canary| canary.build.as_ref());
        [self.newest.as_ref(), self.previous.as_ref(), canary]
            .into_iter()
            .flatten()
    }

    /// The build that serves; not the canary.
    pub(super) fn serving(&self) -> Option<&Arc<Plugin>> {
        self.choice.stable.as_ref()
    }

    /// The slot of the `Plugin` object that has the name of what serves here.
    pub(super) fn object_of_serving(&self) -> Option<SlotId> {
        self.serving().map(|plugin| SlotId::object(&**plugin.name()))
    }
}
