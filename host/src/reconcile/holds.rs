//! Held objects: release of those that are no longer held, and the wait of a deleted object for its holders.

use std::{collections::BTreeSet, sync::Arc};

use tracing::info;

use super::{Controller, GuestResult, ReconcileOutcome};
use crate::{
    client::api::{ApiError, warn_api_error},
    contract::bindings::reconciler,
    effect::events::{EventDraft, EventType},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        references::{self, Holder, list_held, list_holders},
        scope::Projection,
        uid::Uid,
        well_known::{annotation::FORCE_DELETE, condition_type, event_reason, object_reason},
    },
    plugin::Plugin,
    policy::grants::{Access, GrantVerb},
    reconcile::conditions,
    schedule::dispatcher::Cause,
};

/// The objects that an object holds by its annotation, as far as its plugin may hold them.
fn list_allowed_holds(plugin: &Plugin, key: &ObjectRef, object: &KubeObject) -> BTreeSet<ObjectRef> {
    let mut held = list_held(object, plugin.policy.limits.holds);
    held.retain(|held| {
        let access = Access::Kubernetes {
            verb: GrantVerb::Hold,
            gvk: &held.gvk,
            namespace: &held.namespace,
            cluster: "",
        };
        plugin.policy.grants.check_access(&access, &key.namespace).is_ok()
    });
    held
}

impl Controller {
    /// Makes an object hold exactly these objects, and releases the others.
    pub(super) async fn update_holds(
        &self,
        key: &ObjectRef,
        object: &KubeObject,
        held: &BTreeSet<ObjectRef>,
    ) -> Result<(), ReconcileOutcome> {
        // An object of another cluster holds nothing.
        if !key.is_home() {
            return Ok(());
        }
        let newest = self.services.cache.store.get(key, Projection::Metadata);
        let newest = newest
            .as_deref()
            .filter(|o| o.uid == object.uid)
            .unwrap_or(object);
        // Whoever may edit the holder may write into the annotation: what its plugin cannot have held costs no request.
        let plugin = self.registry.find_by_kind(&key.gvk);
        let annotated: BTreeSet<ObjectRef> = plugin
            .iter()
            .flat_map(|p| list_allowed_holds(p, key, newest))
            .collect();
        let before = &annotated | &self.known_holds(key, &object.uid);
        if before.is_empty() && held.is_empty() {
            return Ok(());
        }
        let known = (object.uid.clone(), &before | held);
        self.update_state(key, |state| state.held_objects = Some(Box::new(known)));
        if annotated == *held && before == *held {
            return Ok(());
        }
        let stale: BTreeSet<_> = before.difference(held).cloned().collect();
        Box::pin(self.remove_hold_marks(key, &object.uid, &stale)).await?;
        let written = self.services.api.writer.set_holds(key, &object.uid, held).await;
        self.stats.add_counts(key, super::count_writes(1));
        match written {
            Ok(()) => {
                let known = (!held.is_empty()).then(|| Box::new((object.uid.clone(), held.clone())));
                self.update_state(key, |state| state.held_objects = known);
                Ok(())
            }
            Err(e) if e.code() == 404 => Ok(()),
            Err(e) => {
                warn_api_error!(e, object = %key, error = %e, "recording held objects failed");
                Err(self.retry_request(&e))
            }
        }
    }

    /// The objects that an object holds as far as this process has seen.
    fn known_holds(&self, key: &ObjectRef, uid: &Uid) -> BTreeSet<ObjectRef> {
        let states = self.states.lock();
        let known = states.get(key).and_then(|s| s.held_objects.as_deref());
        known
            .filter(|known| known.0 == *uid)
            .map(|known| known.1.clone())
            .unwrap_or_default()
    }

    /// Releases what an object held that is gone.
    pub(super) async fn release_held(&self, key: &ObjectRef) -> Result<(), ReconcileOutcome> {
        let known = {
            let states = self.states.lock();
            states.get(key).and_then(|s| s.held_objects.clone())
        };
        match known {
            Some(known) => self.remove_hold_marks(key, &known.0, &known.1).await,
            None => Ok(()),
        }
    }

    async fn remove_hold_marks(
        &self,
        holder: &ObjectRef,
        uid: &Uid,
        held: &BTreeSet<ObjectRef>,
    ) -> Result<(), ReconcileOutcome> {
        for object in held {
            match self
                .services
                .api
                .writer
                .set_hold_finalizer(object, holder, uid, false)
                .await
            {
                Ok(sent) => {
                    self.stats
                        .add_counts(holder, super::count_writes(u64::from(sent)));
                    info!(object = %object, holder = %holder, "hold released");
                }
                Err(e) => {
                    warn_api_error!(e, object = %object, holder = %holder, error = %e, "releasing hold failed");
                    return Err(self.retry_request(&e));
                }
            }
        }
        Ok(())
    }

    /// Reconciles an object of a kind without a plugin: it is queued because it is held and being deleted.
    pub(super) async fn reconcile_unowned(&self, key: &ObjectRef) -> ReconcileOutcome {
        let Some(object) = self.services.cache.store.get(key, Projection::Metadata) else {
            return ReconcileOutcome::settled();
        };
        if !key.is_home() || !object.is_deleting() || !references::is_held(&object) {
            return ReconcileOutcome::settled();
        }
        self.wait_for_holders(key, &object, None)
            .await
            .unwrap_or_else(ReconcileOutcome::settled)
    }

    /// Removes the holders of a deleted object that are gone, or all where that is forced, and reports the others.
    /// Returns none when there are no others.
    pub(super) async fn wait_for_holders(
        &self,
        key: &ObjectRef,
        object: &Arc<KubeObject>,
        plugin: Option<&Arc<Plugin>>,
    ) -> Option<ReconcileOutcome> {
        let forced = object.annotation(FORCE_DELETE) == Some("true");
        let mut left: Vec<Holder> = Vec::new();
        for holder in list_holders(object) {
            // On another cluster, the host of the holder removes it.
            if !key.is_home() {
                left.extend((!forced).then_some(holder));
                continue;
            }
            match self.remove_stale_hold(key, &holder, forced).await {
                Ok(true) => {}
                Ok(false) => left.push(holder),
                Err(e) => {
                    warn_api_error!(e, object = %key, holder = %holder, error = %e, "reading holder failed");
                    return Some(self.retry_request(&e));
                }
            }
        }
        if left.is_empty() {
            return None;
        }
        let names: Vec<String> = left.iter().map(ToString::to_string).collect();
        let note = format!(
            "Held by {}: it is deleted when they release it; annotate it {FORCE_DELETE}=true to delete it at once",
            names.join(", ")
        );
        match plugin {
            Some(plugin) => {
                let failure = reconciler::Failure {
                    resolution: reconciler::Resolution::Wait,
                    reason: object_reason::HELD.into(),
                    message: note.clone(),
                    conditions: vec![conditions::condition(
                        condition_type::DELETION_BLOCKED,
                        true,
                        object_reason::HELD,
                        &note,
                    )],
                    status: None,
                };
                let writer = self.status_of(plugin.name(), key);
                if let Err(end) = writer.write(object, &GuestResult::Failure(failure)).await {
                    return Some(end);
                }
            }
            None => {
                let services = &self.services;
                let draft = EventDraft {
                    component: "ostler",
                    event_type: EventType::Warning,
                    reason: event_reason::DELETION_BLOCKED,
                    note: &note,
                };
                let api = &services.api;
                api.recorder.record(&api.writer, key, object, draft, None).await;
            }
        }
        let again = self.time_after(self.settings.wait_interval);
        Some(ReconcileOutcome::wait(again, Cause::Retry))
    }

    /// Removes the finalizer of a holder that is gone. Returns true if it has been removed.
    async fn remove_stale_hold(
        &self,
        key: &ObjectRef,
        holder: &Holder,
        forced: bool,
    ) -> Result<bool, ApiError> {
        let effects = &self.services.api.writer;
        if !forced {
            let there = match &holder.object {
                // The holder of this finalizer is unknown: only force removes it.
                None => true,
                Some(object) => effects.object_exists(object, &holder.uid).await?,
            };
            if there {
                return Ok(false);
            }
        }
        let by = holder.object.as_ref().unwrap_or(key);
        effects.set_hold_finalizer(key, by, &holder.uid, false).await?;
        info!(object = %key, holder = %holder, forced, "hold released");
        Ok(true)
    }
}
