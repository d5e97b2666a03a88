//! Status writes: the status of an object is written once per result, and only when it differs.

use std::{hash::Hash, sync::Arc};

use serde_json::Value;
use tracing::warn;

use super::{Controller, GuestResult, ObjectState, ReconcileOutcome, count_writes, run::ReconcileRun};
use crate::{
    client::api::{ApiError, warn_api_error},
    contract::{
        bindings::reconciler,
        limits::{Limit, PluginLimits},
    },
    kube::{
        hash::hash_to_u64,
        key::ObjectRef,
        object::KubeObject,
        well_known::{condition_type, error_reason, object_reason},
    },
    observe::metrics::Suppressed,
    reconcile::conditions::{self, StatusContext},
    schedule::queue::Requeue,
};

/// Maximum number of writes of one status: a further one where the first shows that the CRD has gained or lost the status
/// subresource.
const MAX_STATUS_WRITES: u32 = 2;

/// Writes of the status of one object.
pub(super) struct StatusWriter<'a> {
    controller: &'a Controller,
    /// The field manager: the plugin, or the lane of the host's own kind.
    by: &'a Arc<str>,
    key: &'a ObjectRef,
}

impl Controller {
    /// Returns the writer of the status of an object.
    pub(super) fn status_of<'a>(&'a self, by: &'a Arc<str>, key: &'a ObjectRef) -> StatusWriter<'a> {
        StatusWriter {
            controller: self,
            by,
            key,
        }
    }

    /// Changes what is remembered of an object between its reconciles.
    pub(super) fn update_state(&self, key: &ObjectRef, change: impl FnOnce(&mut ObjectState)) {
        change(self.states.lock().entry(key.clone()).or_default());
    }
}

impl StatusWriter<'_> {
    /// Writes the status that follows from a result for this version of an object. Returns true if a request was sent.
    pub async fn write(
        &self,
        object: &Arc<KubeObject>,
        result: &GuestResult,
    ) -> Result<bool, ReconcileOutcome> {
        self.write_of(object.generation, object, result).await
    }

    /// Writes the status that follows from a result for a generation, over the status of `object`. The object is newer
    /// than that generation when its spec was edited between the start of the reconcile and a checkpoint.
    pub async fn write_of(
        &self,
        generation: i64,
        object: &Arc<KubeObject>,
        result: &GuestResult,
    ) -> Result<bool, ReconcileOutcome> {
        let (key, stats) = (self.key, &self.controller.stats);
        let result_hash = hash_to_u64(|hasher| result.hash(hasher));
        let hash_version = |o: &KubeObject, generation: i64| {
            hash_to_u64(|hasher| (result_hash, &o.uid, o.resource_version, generation).hash(hasher))
        };
        if self.written_hash() == Some(hash_version(object, generation)) {
            self.count_suppressed();
            return Ok(false);
        }
        let now = crate::kube::time::now_rfc3339();
        let (mut generation, mut object, mut was_sent) = (generation, object.clone(), false);
        for _ in 0..MAX_STATUS_WRITES {
            let old = object.status();
            let old = old.as_ref();
            let compose = |generation| {
                let context = StatusContext {
                    generation,
                    now: &now,
                };
                self.compose(&object, result, old, context)
            };
            let mut new = compose(generation);
            if old == Some(&new) || self.was_dropped_before(old, &new) {
                stats.observe_status(key, &object);
                let written = hash_version(&object, generation);
                self.controller.update_state(key, |state| state.written = written);
                if !was_sent {
                    self.count_suppressed();
                }
                break;
            }
            // The status is about the generation that this write leaves behind.
            let mut observed = generation;
            if Box::pin(self.raises_generation()).await {
                observed += 1;
                new = compose(observed);
            }
            let patch = conditions::merge_patch(old, &new).unwrap_or_default();
            match Box::pin(self.send(&object, &patch)).await {
                Ok(patched) => {
                    was_sent = true;
                    stats.observe_status(key, &patched);
                    // The object in the store may be newer than the one whose status was written.
                    let is_whole = self.is_stored_completely(&patched, &new);
                    let is_current = patched.generation == observed;
                    let written = match is_whole && is_current {
                        true => hash_version(&patched, observed),
                        false => 0,
                    };
                    self.controller.update_state(key, |state| state.written = written);
                    if is_current || patched.intent != object.intent {
                        break;
                    }
                    // The CRD has gained or lost the status subresource meanwhile.
                    (generation, object) = (patched.generation, patched);
                }
                Err(e) if e.code() == 422 && !e.is_uid_mismatch() => {
                    let context = StatusContext {
                        generation: observed,
                        now: &now,
                    };
                    let why = e.to_string();
                    return Err(Box::pin(self.report_refused(&object, old, context, &why)).await);
                }
                Err(e) => return Err(self.explain_unwritten(&e)),
            }
        }
        Ok(was_sent)
    }

    /// Returns true if a write of the status raises `metadata.generation`, as it does for a kind without the status subresource: the
    /// API server tells no status from a spec then.
    async fn raises_generation(&self) -> bool {
        let Ok(api) = self.controller.find_api(self.key) else {
            return false;
        };
        let resource = api.writer.discover_resource(&self.key.gvk).await;
        resource.is_ok_and(|resource| !resource.has_status())
    }

    /// Patches the status of an object, and counts the write.
    async fn send(&self, object: &KubeObject, patch: &Value) -> Result<Arc<KubeObject>, ApiError> {
        let patched = match self.controller.find_api(self.key) {
            Ok(api) => api.writer.patch_status(self.key, &object.uid, patch).await,
            Err(e) => Err(e),
        };
        self.controller.stats.add_counts(self.key, count_writes(1));
        patched
    }

    fn count_suppressed(&self) {
        let metrics = &self.controller.services.metrics;
        metrics
            .plugin_metrics(self.by)
            .record_suppressed(Suppressed::Status);
    }

    /// The new status of an object: conditions, fields of the component, and the phase where the kind has one.
    fn compose(
        &self,
        object: &KubeObject,
        result: &GuestResult,
        old: Option<&Value>,
        context: StatusContext,
    ) -> Value {
        let key = self.key;
        let new = match result {
            GuestResult::Outcome(outcome) => parse_fields(&outcome.status)
                .map(|f| conditions::status_after_outcome(old, outcome, f.as_ref(), context)),
            GuestResult::Failure(failure) => parse_fields(&failure.status)
                .map(|f| conditions::status_after_failure(old, failure, f.as_ref(), context)),
        };
        let mut new = new.unwrap_or_else(|why| {
            let failure = invalid_status(&why);
            warn!(object = %key, plugin = &**self.by, error = failure.message, "invalid status");
            self.controller
                .stats
                .record_error(key, &failure.reason, &failure.message);
            conditions::status_after_failure(old, &failure, None, context)
        });
        let plugin = self.controller.registry.find_by_kind(&key.gvk);
        let has_phase = plugin.is_some_and(|p| p.kind(&key.gvk).is_some_and(|kind| kind.phase));
        if has_phase {
            new["phase"] = conditions::compute_phase(&new, object.is_deleting()).into();
        }
        new
    }

    /// Writes a status that says that the API server has refused (HTTP 422) the component's. It would refuse that one
    /// the next time, too, so the object is not requeued.
    async fn report_refused(
        &self,
        object: &KubeObject,
        old: Option<&Value>,
        context: StatusContext<'_>,
        message: &str,
    ) -> ReconcileOutcome {
        let (key, stats) = (self.key, &self.controller.stats);
        warn!(object = %key, plugin = &**self.by, error = %message, "API server refused status");
        let failure = invalid_status(message);
        stats.record_error(key, &failure.reason, &failure.message);
        let status = conditions::status_after_failure(old, &failure, None, context);
        if let Some(patch) = conditions::merge_patch(old, &status) {
            let patched = self.send(object, &patch).await;
            if let Ok(object) = patched {
                stats.observe_status(key, &object);
            }
        }
        ReconcileOutcome::of(Requeue::Terminal)
    }

    /// The outcome of a reconcile whose status could not be written.
    fn explain_unwritten(&self, e: &ApiError) -> ReconcileOutcome {
        let (controller, key) = (self.controller, self.key);
        match e {
            e if e.code() == 404 => controller.wait_for_watch(),
            ApiError::NotLeader(_) => ReconcileOutcome::retry(),
            // Another object has taken its name: the status was not for that one, which is reconciled on its own. An
            // HTTP 409 is a conflict with other writers, which the next attempt resolves.
            e if e.is_uid_mismatch() || e.code() == 409 => ReconcileOutcome::retry(),
            e => {
                warn_api_error!(e, object = %key, plugin = &**self.by, error = %e, "writing status failed");
                controller
                    .stats
                    .record_error(key, error_reason::STATUS_UPDATE_FAILED, &e.to_string());
                controller.retry_request(e)
            }
        }
    }

    /// True when this status was written over that one before, and the server dropped fields of it.
    fn was_dropped_before(&self, old: Option<&Value>, new: &Value) -> bool {
        let states = self.controller.states.lock();
        let before = states.get(self.key).and_then(|s| s.dropped.as_deref());
        before.is_some_and(|(wanted, kept)| wanted == new && Some(kept) == old)
    }

    /// See [`ObjectState::written`].
    fn written_hash(&self) -> Option<u64> {
        self.controller.states.lock().get(self.key).map(|s| s.written)
    }

    /// True when the server has stored all of a status. It drops fields that the CRD does not have, so that writing them
    /// again each time would never end.
    fn is_stored_completely(&self, object: &KubeObject, wanted: &Value) -> bool {
        let kept = object.status().unwrap_or_default();
        let missing = conditions::merge_patch(Some(&kept), wanted);
        let dropped = missing.as_ref().and_then(Value::as_object).map(|missing| {
            let fields: Vec<&str> = missing.keys().map(String::as_str).collect();
            warn!(object = %self.key, fields = fields.join(","), "status fields pruned by the API server, missing in the CRD");
            Box::new((wanted.clone(), kept))
        });
        let whole = dropped.is_none();
        self.controller
            .update_state(self.key, |state| state.dropped = dropped);
        whole
    }
}

impl ReconcileRun<'_> {
    /// Replaces a result that exceeds a limit by a failure, so that its text reaches neither a log nor a status.
    pub(super) fn enforce_limits(&self, answer: GuestResult) -> GuestResult {
        let (key, plugin) = (self.key(), self.plugin);
        if let Some(reserved) = find_reserved_condition(&answer) {
            let failure = invalid_status(&format!(
                "the condition type {reserved} is the host's own: choose another one, such as Worker{reserved}"
            ));
            warn!(object = %key, plugin = &**plugin.name(), error = failure.message, "status has a reserved condition");
            return GuestResult::Failure(failure);
        }
        if let Err(why) = check_types(&answer) {
            let failure = invalid_status(&why);
            warn!(object = %key, plugin = &**plugin.name(), error = failure.message, "status has an invalid condition");
            return GuestResult::Failure(failure);
        }
        let limits = &plugin.policy.limits;
        let Some((limit, found)) = find_excess(&answer, limits) else {
            return answer;
        };
        let name = limit.name();
        let failure = invalid_status(&format!(
            "{name} are {found}, {} at most",
            limits.format_limit(limit)
        ));
        warn!(object = %key, plugin = &**plugin.name(), error = failure.message, "status exceeds a limit");
        self.metrics().record_exceeded(limit);
        GuestResult::Failure(failure)
    }
}

/// The condition of a result that kstatus reserves for the state of the object itself, which the host sets. With the
/// plugin's meaning, `kubectl wait` and others would misread the object. An outcome may say that the object is stalled,
/// though the plugin comes back at some time: a job that has failed is cleaned up later.
fn find_reserved_condition(answer: &GuestResult) -> Option<&str> {
    let (conditions, reserved) = match answer {
        GuestResult::Outcome(outcome) => (&outcome.conditions, &[condition_type::RECONCILING][..]),
        GuestResult::Failure(failure) => (
            &failure.conditions,
            &[condition_type::STALLED, condition_type::RECONCILING][..],
        ),
    };
    let mut kinds = conditions.iter().map(|c| &*c.type_);
    kinds.find(|kind| reserved.contains(kind))
}

/// Checks the types of a result's conditions. Other reasons than Kubernetes allows are replaced when the status is made.
fn check_types(answer: &GuestResult) -> Result<(), String> {
    let conditions = match answer {
        GuestResult::Outcome(outcome) => &outcome.conditions,
        GuestResult::Failure(failure) => &failure.conditions,
    };
    let mut types = conditions.iter().map(|condition| &*condition.type_);
    types.try_for_each(conditions::check_condition_type)
}

/// The limit that a result exceeds, and the value of it.
fn find_excess(answer: &GuestResult, limits: &PluginLimits) -> Option<(Limit, usize)> {
    let (conditions, status, own) = match answer {
        GuestResult::Outcome(outcome) => (&outcome.conditions, &outcome.status, 0),
        GuestResult::Failure(failure) => {
            let denied = match &failure.resolution {
                reconciler::Resolution::Denied(why) => why.len(),
                _ => 0,
            };
            let own = failure.reason.len() + failure.message.len() + denied;
            (&failure.conditions, &failure.status, own)
        }
    };
    let texts = conditions
        .iter()
        .map(|c| c.type_.len() + c.reason.len() + c.message.len());
    let found = [
        (Limit::Conditions, conditions.len(), limits.conditions as usize),
        (
            Limit::ConditionBytes,
            own + texts.sum::<usize>(),
            limits.condition_bytes,
        ),
        (
            Limit::StatusBytes,
            status.as_ref().map_or(0, Vec::len),
            limits.status_bytes,
        ),
    ];
    let over = found.into_iter().find(|(_, found, most)| found > most);
    over.map(|(limit, found, _)| (limit, found))
}

/// Parses the status fields of a component.
fn parse_fields(json: &Option<Vec<u8>>) -> Result<Option<Value>, String> {
    let Some(json) = json else { return Ok(None) };
    match serde_json::from_slice(json) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err("the status is not a JSON object".into()),
        Err(e) => Err(format!("the status is not JSON: {e}")),
    }
}

/// The failure that stands for a status that can't be written.
fn invalid_status(why: &str) -> reconciler::Failure {
    reconciler::Failure {
        resolution: reconciler::Resolution::Terminal,
        reason: object_reason::INVALID_STATUS.into(),
        message: format!("The plugin's status can't be written: {why}"),
        conditions: Vec::new(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_kstatus_reserves_are_found_in_outcomes_and_failures() {
        let conditions = |kind: &str| vec![conditions::condition(kind, true, "Reason", "")];
        for (kind, in_outcome, in_failure) in [
            ("Stalled", false, true),
            ("Reconciling", true, true),
            ("Ready", false, false),
            ("WorkerStalled", false, false),
        ] {
            let outcome = GuestResult::Outcome(reconciler::Outcome {
                next: reconciler::Next::AwaitChange,
                conditions: conditions(kind),
                status: None,
            });
            let mut failure = invalid_status("");
            failure.conditions = conditions(kind);
            for (answer, is_reserved) in [(outcome, in_outcome), (GuestResult::Failure(failure), in_failure)]
            {
                assert_eq!(find_reserved_condition(&answer), is_reserved.then_some(kind));
            }
        }
    }
}
