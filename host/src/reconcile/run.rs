//! One reconcile of an object by the build that serves it, from its classification to the component's call.

use std::{sync::Arc, time::Duration};

use super::{
    Controller, ReconcileOutcome,
    action::{Action, Candidate, classify},
    decision::{Deletion, Intervals},
    rights::RightsProtection,
};
use crate::{
    kube::{key::ObjectRef, object::KubeObject, scope::Projection},
    observe::metrics::PluginMetrics,
    plugin::Plugin,
    schedule::{dispatcher::Cause, queue::Work},
};

/// Delay until an object is reconciled again whose plugin is about to be held for its hooks.
const HOLD_RECHECK: Duration = Duration::from_millis(20);
/// Precision of `metadata.deletionTimestamp`.
const TIMESTAMP_PRECISION: Duration = Duration::from_secs(1);

/// One reconcile of an object by the build that serves it.
pub(super) struct ReconcileRun<'a> {
    pub controller: &'a Controller,
    /// The work that was popped from the queue.
    pub work: &'a Work<ObjectRef, Cause>,
    /// The build.
    pub plugin: &'a Arc<Plugin>,
    /// The newest version of the object: writes of its metadata replace it.
    pub object: Arc<KubeObject>,
    /// The finalizer that is removed after the cleanup; none if the object is not being deleted.
    pub cleanup: Option<Box<str>>,
}

impl Controller {
    /// Reconciles an object of a plugin. Returns none when it is gone.
    pub(super) async fn reconcile_for_plugin(
        &self,
        work: &Work<ObjectRef, Cause>,
    ) -> Option<ReconcileOutcome> {
        let (key, store) = (&work.key, &self.services.cache.store);
        let mut object = store.get(key, Projection::Full);
        if object.is_none() && !key.is_home() {
            match Box::pin(self.read_home_object(key)).await {
                Ok(found) => object = found,
                Err(end) => return Some(end),
            }
        }
        let plugin = match &object {
            Some(object) => self.registry.find_for_object(&key.gvk, object),
            None => self.registry.find_by_kind(&key.gvk),
        };
        let Some(plugin) = plugin.filter(|p| *p.home_cluster() == key.cluster) else {
            if key.is_home() {
                return Some(Box::pin(self.reconcile_unowned(key)).await);
            }
            return Box::pin(self.forget_object(key)).await;
        };
        if let Err(end) = self.check_connection(key) {
            return Some(end);
        }
        let action = classify(&Candidate {
            object: object.as_deref(),
            is_cached: object.is_some() || store.get(key, Projection::Metadata).is_some(),
            namespace: &key.namespace,
            kind: plugin.kind(&key.gvk),
            is_initialized: self.hooks.is_initialized(&plugin),
        });
        let object = match (action, object) {
            (Action::AwaitHolders, _) => return Some(Box::pin(self.reconcile_unowned(key)).await),
            (Action::Forget, _) | (_, None) => {
                self.hooks.forget(&plugin, key);
                return Box::pin(self.forget_object(key)).await;
            }
            (Action::AwaitHook, _) => return Some(self.await_hold()),
            (_, Some(object)) => object,
        };
        if let Some(until) = self.throttled_until(work) {
            return Some(ReconcileOutcome::wait(until, Cause::Retry));
        }
        let run = ReconcileRun {
            controller: self,
            work,
            plugin: &plugin,
            object,
            cleanup: None,
        };
        Some(run.perform(action).await)
    }

    /// Reconciles an object again when its plugin is held in the queue, which is about to happen.
    fn await_hold(&self) -> ReconcileOutcome {
        let again = self.services.dispatcher.now() + HOLD_RECHECK;
        ReconcileOutcome::wait(again, Cause::PluginChange)
    }
}

impl ReconcileRun<'_> {
    async fn perform(mut self, action: Action) -> ReconcileOutcome {
        match action {
            Action::CleanUp => return Box::pin(self.clean_up()).await,
            Action::ReportPaused => return Box::pin(self.report_paused()).await,
            Action::ReportUnreadable => return Box::pin(self.report_unreadable()).await,
            Action::AddFinalizer => {
                if let Err(end) = Box::pin(self.add_finalizer()).await {
                    return end;
                }
            }
            Action::Call => {}
            Action::Forget | Action::AwaitHolders | Action::AwaitHook | Action::Skip => {
                return ReconcileOutcome::settled();
            }
        }
        if let Err(end) = self.restore_used().await {
            return end;
        }
        self.call_component().await
    }

    pub fn key(&self) -> &ObjectRef {
        &self.work.key
    }

    pub fn metrics(&self) -> Arc<PluginMetrics> {
        self.controller
            .services
            .metrics
            .plugin_metrics(self.plugin.name())
    }

    pub fn intervals(&self) -> Intervals {
        Intervals::of(self.plugin, &self.controller.settings)
    }

    /// The deletion of the object; none if it is not being deleted.
    pub fn deletion(&self) -> Option<Deletion> {
        self.cleanup.as_ref()?;
        let deadline = self.controller.settings.deletion_deadline;
        let timestamp = self.object.deletion_timestamp();
        let since = timestamp
            .and_then(crate::kube::time::seconds_since)
            .unwrap_or_default();
        // The deletion timestamp has whole seconds: at the deadline exactly, it may seem not to be over.
        let left = deadline.saturating_sub(Duration::from_secs(since));
        Some(Deletion {
            deadline,
            left: if left.is_zero() {
                left
            } else {
                left + TIMESTAMP_PRECISION
            },
        })
    }

    /// Adds the finalizer of its kind to an object for which the component is about to be called for the first time. The error is the
    /// outcome of a reconcile that cannot do so.
    async fn add_finalizer(&mut self) -> Result<(), ReconcileOutcome> {
        let (controller, plugin) = (self.controller, self.plugin);
        let Some(kind) = plugin.kind(&self.key().gvk) else {
            return Ok(());
        };
        if !controller.is_plugin_protected(plugin, kind) {
            return Err(controller.await_hold());
        }
        // An object for which the component is not called has nothing to clean up.
        self.check_access().await?;
        let rights = RightsProtection::new(controller);
        rights.protect(plugin, self.key()).await?;
        let mut finalizers = self.object.finalizers().to_vec();
        finalizers.extend(kind.finalizer.clone());
        let written = controller.set_finalizers(self.key(), &self.object, &finalizers);
        self.object = written.await?;
        Ok(())
    }
}
