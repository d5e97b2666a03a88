//! Status and Events of an object whose component is not called, and the check whether it may be.

use tracing::warn;

use super::{
    GuestResult, ReconcileOutcome, count_writes,
    decision::{describe_deletion, needs_event},
    run::ReconcileRun,
};
use crate::{
    client::{
        access_review::{AccessError, ObjectAccess, ReviewSubject},
        api::warn_api_error,
    },
    contract::bindings::reconciler::{Failure, Resolution},
    effect::events::{EventDraft, EventType},
    kube::{
        object::KubeObject,
        well_known::{annotation, condition_type, error_reason, event_reason, object_reason},
    },
    policy::grants::Access,
    reconcile::conditions,
};

impl ReconcileRun<'_> {
    /// Checks that the plugin's service account may read the object. If it may not, the status says so.
    pub(super) async fn check_access(&self) -> Result<(), ReconcileOutcome> {
        let (controller, key, plugin) = (self.controller, self.key(), self.plugin);
        let grants = &plugin.policy.grants;
        // It was granted when the build was loaded, and may have been revoked since.
        let reconcile = Access::Reconcile { gvk: &key.gvk };
        if let Err(e) = grants.check_access(&reconcile, &key.namespace) {
            return Err(Box::pin(self.report_denied(e.to_string())).await);
        }
        if key.gvk.is_secret() && !grants.can_read_secrets() {
            let message = "it may not read Secrets: `readSecrets` is missing".into();
            return Err(Box::pin(self.report_denied(message)).await);
        }
        if let Err(e) = controller.registry.check_service_account(plugin) {
            return Err(Box::pin(self.report_denied(e.message)).await);
        }
        let Some(account) = grants.service_account() else {
            return Ok(());
        };
        let read = ObjectAccess::to_object("get", key);
        let Ok(api) = controller.find_api(key) else {
            return Err(ReconcileOutcome::retry());
        };
        if !api.acts_as_plugins {
            return Ok(());
        }
        match api
            .reviewer
            .check_access(ReviewSubject::Account(account), read)
            .await
        {
            Ok(()) => Ok(()),
            Err(AccessError::Unavailable(e)) => {
                warn_api_error!(e, object = %key, plugin = &**plugin.name(), error = %e, "access review failed");
                controller
                    .stats
                    .record_error(key, error_reason::ACCESS_REVIEW_FAILED, &e.to_string());
                Err(controller.retry_request(&e))
            }
            Err(AccessError::Forbidden(message)) => Err(Box::pin(self.report_denied(message)).await),
        }
    }

    /// Writes a status that says that the plugin may not read the object, and requeues it: RBAC may change.
    async fn report_denied(&self, message: String) -> ReconcileOutcome {
        let failure = Failure {
            resolution: Resolution::Denied(message.clone()),
            ..describe_uncalled(object_reason::PERMISSION_DENIED, message)
        };
        let stats = &self.controller.stats;
        stats.record_error(self.key(), &failure.reason, &failure.message);
        let now = self.controller.services.dispatcher.now();
        let next = self.intervals().requeue_waiting(now);
        self.report_uncalled(failure, ReconcileOutcome::of(next)).await
    }

    /// Writes the status of an object for which the hook `upgrade` has failed, and retries it with backoff. The build does
    /// not reconcile it before.
    pub(super) async fn report_failed_upgrade(&self, why: &str) -> ReconcileOutcome {
        let (controller, key, plugin) = (self.controller, self.key(), self.plugin);
        let message = format!("The hook `upgrade` of its plugin has failed, and is retried: {why}");
        warn!(object = %key, plugin = &**plugin.name(), digest = &plugin.digest[..12], error = why, "upgrade failed");
        controller
            .stats
            .record_error(key, object_reason::UPGRADE_FAILED, &message);
        let failure = describe_uncalled(object_reason::UPGRADE_FAILED, message);
        let mut result = GuestResult::Failure(failure);
        if let Some(deletion) = self.deletion() {
            result = describe_deletion(result, &deletion);
        }
        match self.write_status(&result, &self.object).await {
            Ok(_) => ReconcileOutcome::retry(),
            Err(end) => end,
        }
    }

    /// Writes a status that says that an annotation pauses the object.
    pub(super) async fn report_paused(&self) -> ReconcileOutcome {
        let note = format!(
            "Not reconciled while annotated {}=true; deletion still cleans up",
            annotation::PAUSED
        );
        let paused = conditions::condition(
            condition_type::PAUSED,
            true,
            object_reason::PAUSED_BY_ANNOTATION,
            &note,
        );
        let failure = Failure {
            resolution: Resolution::Wait,
            conditions: vec![paused],
            ..describe_uncalled(object_reason::PAUSED, note)
        };
        self.report_uncalled(failure, ReconcileOutcome::settled()).await
    }

    /// Reports an object whose fields cannot be parsed.
    pub(super) async fn report_unreadable(&self) -> ReconcileOutcome {
        let problem = self.object.unreadable().unwrap_or_default();
        let mut failure = Failure {
            resolution: Resolution::Terminal,
            ..describe_uncalled(object_reason::NESTED_TOO_DEEPLY, problem.to_owned())
        };
        if self.object.is_deleting() {
            failure.message = format!(
                "Not cleaned up: {problem}, or annotate it {}=true to delete it without cleanup",
                annotation::FORCE_DELETE
            );
            let blocked = conditions::condition(
                condition_type::DELETION_BLOCKED,
                true,
                object_reason::NESTED_TOO_DEEPLY,
                &failure.message,
            );
            failure.conditions.push(blocked);
        }
        self.record_event(
            &self.object,
            EventType::Warning,
            event_reason::NESTED_TOO_DEEPLY,
            &failure.message,
        )
        .await;
        self.report_uncalled(failure, ReconcileOutcome::settled()).await
    }

    /// Writes the status of an object whose component was not called. Returns this outcome, unless that fails.
    async fn report_uncalled(&self, failure: Failure, outcome: ReconcileOutcome) -> ReconcileOutcome {
        let result = GuestResult::Failure(failure);
        let writer = self.controller.status_of(self.plugin.name(), self.key());
        match writer.write(&self.object, &result).await {
            Ok(_) => outcome,
            Err(end) => end,
        }
    }

    /// Records an Event where a failure is worth one. `before` is the object with the status of before.
    pub(super) async fn record_failure_event(&self, before: &KubeObject, failure: &Failure) {
        if needs_event(failure, &before.readiness().reason) {
            self.record_event(before, EventType::Warning, &failure.reason, &failure.message)
                .await;
        }
    }

    /// Records an Event about the object.
    pub(super) async fn record_event(
        &self,
        object: &KubeObject,
        event_type: EventType,
        reason: &str,
        note: &str,
    ) {
        let draft = EventDraft {
            component: self.plugin.name(),
            event_type,
            reason,
            note,
        };
        let (controller, key) = (self.controller, self.key());
        let Ok(api) = controller.find_api(key) else { return };
        let sent = api.recorder.record(&api.writer, key, object, draft, None);
        if sent.await {
            controller.stats.add_counts(key, count_writes(1));
        }
    }
}

/// The failure of an object whose component was not called, which is retried.
fn describe_uncalled(reason: &str, message: String) -> Failure {
    Failure {
        resolution: Resolution::Retry,
        reason: reason.into(),
        message,
        conditions: Vec::new(),
        status: None,
    }
}
