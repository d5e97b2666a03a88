//! The status of an object, from what was said of it: written once, and only when it differs.

use std::{hash::Hash, sync::Arc};

use serde_json::Value;
use tracing::warn;

use super::{Answer, Controller, End, Notes, api_writes};
use crate::{
    client::api::{ApiError, complain},
    contract::{
        bindings::reconciler,
        limits::{Limit, Limits},
    },
    kube::{hash::hash_to_u64, key::ObjectRef, object::Object},
    observe::metrics::Suppressed,
    plugin::Plugin,
    reconcile::conditions::{self, Moment},
    schedule::queue::Next,
};

impl Controller {
    /// Writes what was said of an object. Gives whether something had to be sent.
    pub(super) async fn write_status(
        &self,
        by: &Arc<str>,
        key: &ObjectRef,
        object: &Arc<Object>,
        result: &Answer,
    ) -> Result<bool, End> {
        let said = hash_to_u64(|hasher| result.hash(hasher));
        let version =
            |o: &Object| hash_to_u64(|hasher| (said, &o.uid, o.resource_version, o.generation).hash(hasher));
        let suppressed = || {
            let metrics = self.services.metrics.plugin(by);
            metrics.suppressed(Suppressed::Status);
        };
        if self.said(key) == Some(version(object)) {
            suppressed();
            return Ok(false);
        }
        let whole = object.value();
        let old = whole.get("status");
        let now = crate::kube::time::now_rfc3339();
        let moment = Moment {
            generation: object.generation,
            now: &now,
        };
        let new =
            match result {
                Answer::Outcome(outcome) => fields(&outcome.status)
                    .map(|f| conditions::after_outcome(old, outcome, f.as_ref(), moment)),
                Answer::Failure(failure) => fields(&failure.status)
                    .map(|f| conditions::after_failure(old, failure, f.as_ref(), moment)),
            };
        let mut new = new.unwrap_or_else(|why| {
            let failure = nonsense(&why);
            warn!(object = %key, plugin = &**by, "{}", failure.message);
            self.ledger.failed(key, &failure.reason, &failure.message);
            conditions::after_failure(old, &failure, None, moment)
        });
        let plugin = self.registry.of_kind(&key.gvk);
        let phased = plugin.is_some_and(|p| p.kind(&key.gvk).is_some_and(|kind| kind.phase));
        if phased {
            new["phase"] = conditions::phase(&new, object.deleting()).into();
        }
        let patch = conditions::merge_patch(old, &new);
        let Some(patch) = patch.filter(|_| !self.dropped_before(key, old, &new)) else {
            self.ledger.looked(key, object);
            self.note(key, |notes| notes.said = version(object));
            suppressed();
            return Ok(false);
        };
        let patched = self.services.effects.patch_status(key, &object.uid, &patch).await;
        self.ledger.count(key, api_writes(1));
        match patched {
            Ok(object) => {
                self.ledger.looked(key, &object);
                // What is in the store may be newer than what was written.
                let ours = self.kept_whole(key, &object, &new) && object.generation == moment.generation;
                self.note(key, |notes| notes.said = if ours { version(&object) } else { 0 });
                Ok(true)
            }
            Err(e) if e.code() == 404 => Err(self.missing()),
            Err(ApiError::Deposed(_)) => Err(End::retry()),
            // Another object has taken its name: the status was not for that one, and its turn comes.
            Err(ApiError::Status {
                code: 409 | 422,
                message,
                ..
            }) if message.contains("uid") => Err(End::retry()),
            Err(ApiError::Status {
                code: 422, message, ..
            }) => {
                // What the server won't take now it won't take the next time. That much is said in a
                // status that it does take.
                warn!(object = %key, plugin = &**by, "status refused: {message}");
                let failure = nonsense(&message);
                self.ledger.failed(key, &failure.reason, &failure.message);
                let said = conditions::after_failure(old, &failure, None, moment);
                if let Some(patch) = conditions::merge_patch(old, &said) {
                    let patched = self.services.effects.patch_status(key, &object.uid, &patch).await;
                    self.ledger.count(key, api_writes(1));
                    if let Ok(object) = patched {
                        self.ledger.looked(key, &object);
                    }
                }
                Err(End {
                    next: Next::Park,
                    reads: None,
                    follows: None,
                })
            }
            Err(e) => {
                complain!(e, object = %key, plugin = &**by, "status not written: {e}");
                self.ledger.failed(key, "StatusNotWritten", &e.to_string());
                Err(End::retry())
            }
        }
    }

    /// What a component said, unless it is more than it may say: that goes neither into a log nor a status.
    pub(super) fn bounded(&self, plugin: &Plugin, key: &ObjectRef, answer: Answer) -> Answer {
        let limits = &plugin.terms.limits;
        let Some((limit, found)) = excess(&answer, limits) else {
            return answer;
        };
        let name = limit.name();
        let failure = nonsense(&format!("{name} are {found}, {} at most", limits.shown(limit)));
        warn!(object = %key, plugin = &**plugin.name(), "{}", failure.message);
        self.services.metrics.plugin(plugin.name()).exceeded(limit);
        Answer::Failure(failure)
    }

    /// Whether just this status was written over just that one, and the server did not keep it all.
    fn dropped_before(&self, key: &ObjectRef, old: Option<&Value>, new: &Value) -> bool {
        let notes = self.notes.lock().expect("lock");
        let before = notes.get(key).and_then(|n| n.dropped.as_deref());
        before.is_some_and(|(wanted, kept)| wanted == new && Some(kept) == old)
    }

    /// See [`Notes::said`].
    fn said(&self, key: &ObjectRef) -> Option<u64> {
        self.notes.lock().expect("lock").get(key).map(|n| n.said)
    }

    pub(super) fn note(&self, key: &ObjectRef, change: impl FnOnce(&mut Notes)) {
        change(self.notes.lock().expect("lock").entry(key.clone()).or_default());
    }

    /// Whether the server has kept all of a status. A field that the CRD does not have is dropped: written again
    /// each time, it would never be there.
    fn kept_whole(&self, key: &ObjectRef, object: &Object, wanted: &Value) -> bool {
        let kept = object.value().get("status").cloned().unwrap_or_default();
        let missing = conditions::merge_patch(Some(&kept), wanted);
        let dropped = missing.as_ref().and_then(Value::as_object).map(|missing| {
            let fields: Vec<&str> = missing.keys().map(String::as_str).collect();
            warn!(object = %key, fields = fields.join(","), "status fields are not kept by the API server: does the CRD have them?");
            Box::new((wanted.clone(), kept))
        });
        let whole = dropped.is_none();
        self.note(key, |notes| notes.dropped = dropped);
        whole
    }
}

/// The limit that an answer exceeds, and by how much it would have to be.
fn excess(answer: &Answer, limits: &Limits) -> Option<(Limit, usize)> {
    let (conditions, status, own) = match answer {
        Answer::Outcome(outcome) => (&outcome.conditions, &outcome.status, 0),
        Answer::Failure(failure) => {
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

/// The status fields a component gave, parsed.
fn fields(json: &Option<Vec<u8>>) -> Result<Option<Value>, String> {
    let Some(json) = json else { return Ok(None) };
    match serde_json::from_slice(json) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err("the status is not a JSON object".into()),
        Err(e) => Err(format!("the status is not JSON: {e}")),
    }
}

/// What a component said makes no sense.
fn nonsense(why: &str) -> reconciler::Failure {
    reconciler::Failure {
        resolution: reconciler::Resolution::Parked,
        reason: "PluginStatusInvalid".into(),
        message: format!("The plugin's status can't be written: {why}"),
        conditions: Vec::new(),
        status: None,
    }
}
