//! Registry of plugins: the build that serves in each slot, the one to roll back to, and the canary beside it.
//!
//! A slot belongs to a component file or to a `Plugin` object. What happens to it changes what is known of its builds, and
//! one function chooses those that serve ([`slot::choose`]):
//! - a new build is loaded, and recordings were replayed with it ([`PluginRegistry::serve`] in `registry/activation.rs`, called by
//!   `rollout`), or the canary beside it (`registry/canary.rs`);
//! - the host's policy, the keys of a spec or the grants of a plugin change (`registry/policy.rs`);
//! - calls of a build fail more often than those of the build before or beside it, or another process has found that
//!   (`registry/rollback.rs`).

mod activation;
mod canary;
mod policy;
mod report;
mod rollback;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::RwLock;
use tokio::sync::Notify;

use self::slot::Slot;
pub use self::{
    report::{CanaryReport, PreflightDifference, PreflightReport, SlotReport},
    rollback::Rollback,
    slot::SlotChange,
};
use super::{HookState, LoadError, LoadState, Plugin, SlotId, health::CallSubject};
use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        uid::Uid,
        well_known::plugin_reason,
    },
    policy::components::ComponentPolicy,
};

type Slots = BTreeMap<SlotId, Slot>;

/// Registry of the plugins of this host.
#[derive(Default)]
pub struct PluginRegistry {
    slots: RwLock<Slots>,
    /// The host's policy of components.
    policy: RwLock<ComponentPolicy>,
    /// Notified when a file or object may have to be loaded again.
    rescan: Notify,
    /// The plugins that were there at the start have been loaded, or refused.
    is_first_load_complete: AtomicBool,
    /// Error of the grants file, while the grants before it apply.
    grants_error: RwLock<Option<String>>,
    /// Objects that builds depend on: a change may require to load them again.
    followed: RwLock<BTreeSet<ObjectRef>>,
    /// Refuses plugins without a service account of their own, which would act as the host.
    require_service_account: bool,
}

impl PluginRegistry {
    /// Sets whether plugins need a service account of their own.
    pub fn require_service_account(self, require_service_account: bool) -> Self {
        Self {
            require_service_account,
            ..self
        }
    }

    /// Checks that the plugin acts as its own service account, if that is required.
    pub fn check_service_account(&self, plugin: &Plugin) -> Result<(), LoadError> {
        if !self.require_service_account || plugin.policy.grants.service_account().is_some() {
            return Ok(());
        }
        let why =
            "its grants name no `serviceAccount`, which `--require-service-account` of the host demands";
        Err(LoadError::new(
            plugin_reason::SERVICE_ACCOUNT_REQUIRED,
            why.into(),
        ))
    }

    /// The plugin that reconciles a kind, in the build that serves now; not its canary.
    pub fn find_by_kind(&self, gvk: &Gvk) -> Option<Arc<Plugin>> {
        let slots = self.slots.read();
        let mut serving = slots.values().filter_map(Slot::serving);
        serving.find(|p| p.kind(gvk).is_some()).cloned()
    }

    /// The build that reconciles an object: a canary where its selector matches.
    pub fn find_for_object(&self, gvk: &Gvk, object: &KubeObject) -> Option<Arc<Plugin>> {
        let slots = self.slots.read();
        let (slot, serving) = slots.values().find_map(|slot| {
            let serving = slot.serving().filter(|p| p.kind(gvk).is_some())?;
            Some((slot, serving))
        })?;
        let selects = slot.canary.as_ref().is_some_and(|c| c.selector.matches(object));
        let canary = slot.choice.canary.as_ref().filter(|_| selects);
        Some(canary.unwrap_or(serving).clone())
    }

    /// Forgets an object that is gone in the health of all builds of its plugin. Returns the plugin if one of them has stopped trapping
    /// by that.
    pub fn forget_object(&self, gvk: &Gvk, uid: &Uid) -> Option<Arc<str>> {
        let slots = self.slots.read();
        let builds = slots.values().flat_map(Slot::builds).map(|build| &build.plugin);
        let mut stopped = None;
        for plugin in builds.filter(|plugin| plugin.kind(gvk).is_some()) {
            if plugin.health.forget_subject(CallSubject::Object(uid)) {
                stopped = Some(plugin.name().clone());
            }
        }
        stopped
    }

    /// The builds that serve now, without canaries.
    pub fn serving(&self) -> Vec<Arc<Plugin>> {
        let slots = self.slots.read();
        slots.values().filter_map(Slot::serving).cloned().collect()
    }

    /// Returns true if a build of this plugin serves now.
    pub fn is_serving(&self, plugin: &str) -> bool {
        let slots = self.slots.read();
        let mut serving = slots.values().filter_map(Slot::serving);
        serving.any(|p| **p.name() == *plugin)
    }

    /// The build that serves in a slot.
    pub fn serving_in(&self, id: &SlotId) -> Option<Arc<Plugin>> {
        let slots = self.slots.read();
        slots.get(id).and_then(Slot::serving).cloned()
    }

    /// A build of the component with this digest. It need not be compiled a second time.
    pub fn find_compiled(&self, digest: &str) -> Option<Arc<Plugin>> {
        let slots = self.slots.read();
        let mut builds = slots.values().flat_map(Slot::builds).map(|build| &build.plugin);
        builds.find(|plugin| plugin.digest == digest).cloned()
    }

    /// True when this revision of a slot has been processed, whether it serves or was refused.
    pub fn is_current(&self, id: &SlotId, revision: &str) -> bool {
        let slots = self.slots.read();
        slots.get(id).is_some_and(|s| s.revision == revision)
    }

    /// Has the newest revision of a slot loaded again by the next scan.
    pub fn forget_revision(&self, id: &SlotId) {
        if let Some(slot) = self.slots.write().get_mut(id) {
            slot.revision.clear();
        }
    }

    /// Reserves the name of a plugin for the `Plugin` object of that name: from then on no file brings that plugin.
    pub fn reserve_name(&self, plugin: &str) {
        self.slots.write().entry(SlotId::object(plugin)).or_default();
    }

    /// True when a `Plugin` object has reserved this name.
    pub fn is_reserved(&self, plugin: &str) -> bool {
        self.slots.read().contains_key(&SlotId::object(plugin))
    }

    /// Records that a generation of a `Plugin` object has been processed.
    pub fn set_observed_generation(&self, id: &SlotId, generation: i64) {
        if let Some(slot) = self.slots.write().get_mut(id) {
            slot.generation = generation;
        }
    }

    /// Retries builds that were refused because their name or kind was taken: it may be free now.
    fn retry_conflicting(&self, slots: &mut Slots) {
        for slot in slots.values_mut() {
            if slot.refusal.as_ref().is_some_and(LoadError::is_conflict) {
                slot.revision.clear();
                self.request_rescan();
            }
        }
    }

    /// Records whether the grants file could be read; with an error, the grants before it apply.
    pub fn set_grants_error(&self, error: Option<String>) {
        *self.grants_error.write() = error;
    }

    /// The error of the grants file, while the grants before it apply.
    pub fn grants_error(&self) -> Option<String> {
        self.grants_error.read().clone()
    }

    /// Sets the objects that builds depend on. Returns true if they are others than before.
    pub fn follow_objects(&self, followed: BTreeSet<ObjectRef>) -> bool {
        let mut current = self.followed.write();
        let changed = *current != followed;
        *current = followed;
        changed
    }

    /// Returns true if builds depend on an object.
    pub fn is_followed(&self, key: &ObjectRef) -> bool {
        self.followed.read().contains(key)
    }

    /// Asks for a look at all files and objects: a `Plugin` object has changed, or a name or kind is free again.
    pub fn request_rescan(&self) {
        self.rescan.notify_one();
    }

    /// Waits until [`PluginRegistry::request_rescan`] has been called.
    pub async fn rescan_requested(&self) {
        self.rescan.notified().await;
    }

    /// Applies an event to a slot, if it exists, and lets the builds serve that are the choice then. Builds of other slots
    /// that stood back for one that no longer serves are loaded again.
    fn settle(&self, slots: &mut Slots, id: &SlotId, event: impl FnOnce(&mut Slot)) -> SlotChange {
        let Some(slot) = slots.get_mut(id) else {
            return SlotChange::default();
        };
        event(slot);
        let change = slot.settle(&self.policy.read());
        if change.frees_kind_or_name() {
            self.retry_conflicting(slots);
        }
        change
    }

    /// Records that the newest revision of a slot was refused. The build that serves goes on serving.
    pub fn record_refusal(&self, id: &SlotId, revision: &str, refusal: LoadError) {
        let mut slots = self.slots.write();
        let slot = slots.entry(id.clone()).or_default();
        slot.refused += u64::from(slot.refusal.as_ref() != Some(&refusal) || slot.revision != revision);
        slot.revision = revision.into();
        slot.refusal = Some(refusal);
    }

    /// Records the progress of a plugin's life-cycle hooks.
    pub fn set_hook_state(&self, plugin: &str, hooks: HookState) {
        let mut slots = self.slots.write();
        let of_plugin = |s: &&mut Slot| s.serving().is_some_and(|p| **p.name() == *plugin);
        if let Some(slot) = slots.values_mut().find(of_plugin) {
            slot.hooks = hooks;
        }
    }

    /// Removes a slot and returns the build that served. Builds that conflicted with it are tried again.
    pub fn remove(&self, id: &SlotId) -> Option<Arc<Plugin>> {
        let mut slots = self.slots.write();
        let removed = slots.remove(id)?;
        // A file's build was bound by the object's policy, and is by its own again.
        for slot in slots.values_mut() {
            if slot.object_of_serving().is_some_and(|o| o == *id) {
                slot.revision.clear();
                self.request_rescan();
            }
        }
        self.retry_conflicting(&mut slots);
        removed.serving().cloned()
    }

    /// The files and objects that have a slot.
    pub fn slot_ids(&self) -> Vec<SlotId> {
        self.slots.read().keys().cloned().collect()
    }

    /// The state of a file or object.
    pub fn report(&self, id: &SlotId) -> Option<SlotReport> {
        let slots = self.slots.read();
        slots.get(id).map(|slot| slot.report(id))
    }

    /// Records that the plugins that were there at the start have been loaded, or refused.
    pub fn complete_first_load(&self) {
        self.is_first_load_complete.store(true, Ordering::Release);
    }

    /// True once the plugins that were there at the start have been loaded, or refused.
    pub fn is_first_load_complete(&self) -> bool {
        self.is_first_load_complete.load(Ordering::Acquire)
    }

    /// True while a plugin may be about to serve: it is not known yet, or is being loaded.
    pub fn is_loading(&self) -> bool {
        !self.is_first_load_complete()
            || self
                .reports()
                .iter()
                .any(|report| report.state == LoadState::Loading)
    }

    /// The states of all files and objects.
    pub fn reports(&self) -> Vec<SlotReport> {
        let slots = self.slots.read();
        slots.iter().map(|(id, slot)| slot.report(id)).collect()
    }
}

#[cfg(test)]
mod tests;
