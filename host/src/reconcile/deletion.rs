//! Deletion of an object: its cleanup, the annotations that skip it, and the removal of its finalizer.

use std::{collections::BTreeSet, sync::Arc};

use tracing::info;

use super::{Controller, ReconcileOutcome, run::ReconcileRun};
use crate::{
    client::api::warn_api_error,
    effect::events::EventType,
    kube::{
        key::ObjectRef,
        object::KubeObject,
        references,
        scope::Projection,
        well_known::{
            annotation::{DELETION_POLICY, FORCE_DELETE},
            error_reason, event_reason,
        },
    },
    plugin::is_plugin_finalizer,
};

impl ReconcileRun<'_> {
    /// Reconciles an object that is being deleted: waits for its holders, and cleans it up if it has a finalizer of the plugin. One
    /// that has left the selection is cleaned up, too.
    pub(super) async fn clean_up(&mut self) -> ReconcileOutcome {
        let (controller, plugin) = (self.controller, self.plugin);
        let kind = plugin.kind(&self.key().gvk);
        let current = kind.and_then(|kind| kind.finalizer.clone());
        let finalizer = match current.filter(|finalizer| self.object.has_finalizer(finalizer)) {
            Some(current) => Some(current),
            None => match self.find_former_finalizer().await {
                Ok(former) => former,
                Err(end) => return end,
            },
        };
        if finalizer.is_none() && !kind.is_some_and(|kind| kind.selects(&self.object)) {
            return ReconcileOutcome::settled();
        }
        if references::is_held(&self.object) {
            let waits = controller.wait_for_holders(self.key(), &self.object, Some(plugin));
            if let Some(end) = waits.await {
                return end;
            }
        }
        let Some(finalizer) = finalizer else {
            return ReconcileOutcome::settled();
        };
        let Some((event_type, reason, note)) = self.find_exemption() else {
            self.cleanup = Some(finalizer);
            if self.object.unreadable().is_some() {
                return self.report_unreadable().await;
            }
            return self.call_component().await;
        };
        self.record_event(&self.object, event_type, reason, &note).await;
        controller
            .remove_finalizer(self.key(), &self.object, &finalizer)
            .await
    }

    /// Finds a finalizer of a deleted object that a former build of its plugin had and the one of now has not: the host has added
    /// it, and nothing else would remove it.
    async fn find_former_finalizer(&self) -> Result<Option<Box<str>>, ReconcileOutcome> {
        let (controller, key) = (self.controller, self.key());
        let mut candidates = self.object.finalizers().to_vec();
        candidates.retain(|f| is_plugin_finalizer(f, &key.gvk.group));
        if candidates.is_empty() {
            return Ok(None);
        }
        let listed = match controller.find_api(key) {
            Ok(api) => api.writer.list_own_finalizers(key).await,
            Err(e) => Err(e),
        };
        match listed {
            Ok(own) => Ok(candidates.into_iter().find(|f| own.contains(&**f))),
            Err(e) => {
                warn_api_error!(e, object = %key, error = %e, "reading the managers of finalizers failed");
                controller
                    .stats
                    .record_error(key, error_reason::FINALIZER_UPDATE_FAILED, &e.to_string());
                Err(controller.retry_request(&e))
            }
        }
    }

    /// The Event about an object that is let go without its cleanup, because of an annotation; none without one.
    fn find_exemption(&self) -> Option<(EventType, &'static str, String)> {
        if self.object.annotation(FORCE_DELETE) == Some("true") {
            let note = format!("Finalizer removed without cleanup, because of {FORCE_DELETE}");
            return Some((EventType::Warning, event_reason::FORCE_DELETED, note));
        }
        (self.object.annotation(DELETION_POLICY) == Some("Orphan")).then(|| {
            let note = format!("Finalizer removed without cleanup, because of {DELETION_POLICY}=Orphan");
            (EventType::Normal, event_reason::ORPHANED, note)
        })
    }
}

impl Controller {
    /// Releases the objects that an object holds, and removes the plugin's finalizer, so that it can be deleted.
    pub(super) async fn remove_finalizer(
        &self,
        key: &ObjectRef,
        object: &Arc<KubeObject>,
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
            .finalizers()
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
}
