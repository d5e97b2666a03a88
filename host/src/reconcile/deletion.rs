//! Deletion of an object: its cleanup, the annotations that skip it, and the status until it is gone.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tracing::info;

use super::{Controller, GuestResult, ReconcileOutcome};
use crate::{
    client::api::warn_api_error,
    contract::bindings::reconciler,
    effect::events::EventType,
    kube::{
        key::ObjectRef,
        object::Object,
        references,
        scope::Projection,
        well_known::{
            annotation::{DELETION_POLICY, FORCE_DELETE},
            condition_type, error_reason, event_reason, object_reason,
        },
    },
    plugin::{Kind, Plugin, is_plugin_finalizer},
    reconcile::conditions,
    schedule::{
        dispatcher::Cause,
        queue::{Requeue, Work},
    },
};

/// Precision of `metadata.deletionTimestamp`.
const TIMESTAMP_PRECISION: Duration = Duration::from_secs(1);

impl Controller {
    /// Reconciles an object that is being deleted: waits for its holders, and cleans it up if it has a finalizer of the plugin. One
    /// that has left the selection is cleaned up, too.
    pub(super) async fn reconcile_deleted(
        &self,
        work: &Work<ObjectRef, Cause>,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        kind: &Kind,
    ) -> ReconcileOutcome {
        let key = &work.key;
        let current = kind.finalizer.clone().filter(|f| object.has_finalizer(f));
        let finalizer = match current {
            Some(current) => Some(current),
            None => match self.find_former_finalizer(key, object).await {
                Ok(former) => former,
                Err(end) => return end,
            },
        };
        if finalizer.is_none() && !kind.selects(object) {
            return ReconcileOutcome::settled();
        }
        if references::is_held(object)
            && let Some(end) = self.wait_for_holders(key, object, Some(plugin)).await
        {
            return end;
        }
        match finalizer {
            Some(finalizer) => self.delete_object(work, plugin, object, &finalizer).await,
            None => ReconcileOutcome::settled(),
        }
    }

    /// Finds a finalizer of a deleted object that a former build of its plugin had and the one of now has not: the host has added
    /// it, and nothing else would remove it.
    async fn find_former_finalizer(
        &self,
        key: &ObjectRef,
        object: &Object,
    ) -> Result<Option<Box<str>>, ReconcileOutcome> {
        let mut candidates = object.finalizers.to_vec();
        candidates.retain(|f| is_plugin_finalizer(f, &key.gvk.group));
        if candidates.is_empty() {
            return Ok(None);
        }
        let listed = match self.find_api(key) {
            Ok(api) => api.writer.list_own_finalizers(key).await,
            Err(e) => Err(e),
        };
        match listed {
            Ok(own) => Ok(candidates.into_iter().find(|f| own.contains(&**f))),
            Err(e) => {
                warn_api_error!(e, object = %key, error = %e, "reading the managers of finalizers failed");
                self.stats
                    .record_error(key, error_reason::FINALIZER_UPDATE_FAILED, &e.to_string());
                Err(self.retry_request(&e))
            }
        }
    }

    /// Calls the component's cleanup, or removes the finalizer without it where an annotation says so.
    async fn delete_object(
        &self,
        work: &Work<ObjectRef, Cause>,
        plugin: &Arc<Plugin>,
        object: &Arc<Object>,
        finalizer: &str,
    ) -> ReconcileOutcome {
        let key = &work.key;
        let forced = object.annotation(FORCE_DELETE) == Some("true");
        let orphaned = object.annotation(DELETION_POLICY) == Some("Orphan");
        if !forced && !orphaned {
            if let Some(problem) = &object.unreadable {
                return self.report_unreadable(plugin, key, object, problem).await;
            }
            return self.call_component(work, plugin, object, Some(finalizer)).await;
        }
        let (event_type, reason, note) = if forced {
            (
                EventType::Warning,
                event_reason::FORCE_DELETED,
                format!("Finalizer removed without cleanup, because of {FORCE_DELETE}"),
            )
        } else {
            (
                EventType::Normal,
                event_reason::ORPHANED,
                format!("Finalizer removed without cleanup, because of {DELETION_POLICY}=Orphan"),
            )
        };
        self.record_event(plugin, key, object, event_type, reason, &note)
            .await;
        self.remove_finalizer(key, object, finalizer).await
    }

    /// Releases the objects that an object holds, and removes the plugin's finalizer, so that it can be deleted.
    pub(super) async fn remove_finalizer(
        &self,
        key: &ObjectRef,
        object: &Arc<Object>,
        finalizer: &str,
    ) -> ReconcileOutcome {
        if let Err(end) = self.update_holds(key, object, &BTreeSet::new()).await {
            return end;
        }
        // The release may have written to the object.
        let newest = self.services.cache.store.get(key, Projection::Full);
        let object = &newest
            .filter(|o| o.uid == object.uid)
            .unwrap_or_else(|| object.clone());
        let left: Vec<_> = object
            .finalizers
            .iter()
            .filter(|f| ***f != *finalizer)
            .cloned()
            .collect();
        match self.set_finalizers(key, object, &left).await {
            Ok(_) => {
                info!(object = %key, "cleanup finished");
                ReconcileOutcome::settled()
            }
            Err(end) => end,
        }
    }

    /// The requeue of a deletion that is not complete: at its deadline at the latest, because its status has to name the
    /// remedies then, also where nothing else would wake the object. A retry by backoff comes by itself.
    pub(super) fn requeue_by_deadline(&self, object: &Object, next: Requeue<Cause>) -> Requeue<Cause> {
        let Some(left) = self.time_to_deadline(object).filter(|left| !left.is_zero()) else {
            return next;
        };
        let deadline = self.services.dispatcher.now() + left;
        match next {
            Requeue::Terminal | Requeue::AwaitChange => Requeue::Wait(deadline, Cause::Timer),
            Requeue::At(at, _) if at > deadline => Requeue::At(deadline, Cause::Timer),
            Requeue::Wait(at, _) if at > deadline => Requeue::Wait(deadline, Cause::Timer),
            next => next,
        }
    }

    /// Time until the deadline of a deletion; zero from then on. None if the object is not deleted.
    fn time_to_deadline(&self, object: &Object) -> Option<Duration> {
        let since = crate::kube::time::seconds_since(object.deletion_timestamp.as_deref()?)?;
        let deadline = self.settings.deletion_deadline;
        // The deletion timestamp has whole seconds: at the deadline exactly, it may seem not to be over.
        let left = deadline.saturating_sub(Duration::from_secs(since));
        Some(if left.is_zero() {
            left
        } else {
            left + TIMESTAMP_PRECISION
        })
    }

    /// The failure that describes a deletion in progress: its reason, and the remedies after the deadline.
    pub(super) fn describe_deletion(&self, object: &Object, result: GuestResult) -> GuestResult {
        let (mut failure, next) = match result {
            GuestResult::Failure(failure) => (failure, None),
            GuestResult::Outcome(outcome) => {
                let failure = reconciler::Failure {
                    resolution: reconciler::Resolution::Wait,
                    reason: object_reason::TERMINATING.into(),
                    message: "Cleanup in progress".into(),
                    conditions: outcome.conditions,
                    status: outcome.status,
                };
                (failure, Some(outcome.next))
            }
        };
        if let Some(reconciler::Next::After(ms)) = next {
            failure.resolution = reconciler::Resolution::Throttled(ms);
        }
        let deadline = self.settings.deletion_deadline;
        if self.time_to_deadline(object).is_some_and(|left| left.is_zero()) {
            failure.message = format!(
                "{}. Not deleted after {deadline:?}: remove what stands in the way, or annotate it \
                 {DELETION_POLICY}=Orphan (or {FORCE_DELETE}=true) to let it go without cleanup",
                failure.message
            );
            let blocked = conditions::condition(
                condition_type::DELETION_BLOCKED,
                true,
                &failure.reason,
                &failure.message,
            );
            failure.conditions.push(blocked);
        }
        GuestResult::Failure(failure)
    }
}
