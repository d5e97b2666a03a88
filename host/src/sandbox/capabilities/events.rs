//! `events`: Kubernetes Events about the reconciled object.

use tracing::instrument;

use super::Call;
use crate::{
    contract::bindings::events::{EventType, Host},
    effect::events::{self, EventDraft, RateLimit},
    observe::metrics::HostCall,
    policy::grants::Access,
};

impl Host for Call {
    #[instrument(name = "events.emit", target = "spans", level = "trace", skip_all, fields(reason = reason))]
    async fn emit(&mut self, kind: EventType, reason: String, note: String) {
        let Ok((subject, services)) = self.enter(HostCall::EventsEmit) else {
            return;
        };
        let (key, object) = (subject.key.clone(), subject.object.clone());
        if self.takes(reason.len() + note.len()).is_err() {
            return;
        }
        if let Err(e) = self.allow(&Access::Events) {
            tracing::warn!(object = %key, plugin = &*self.terms.plugin, reason, error = %e, "dropping event");
            return;
        }
        if object.uid.is_empty() {
            // `initialize` is about no object: the log is where such news goes.
            if self.line() {
                let (reason, note) = (super::log::clean(&reason), super::log::clean(&note));
                tracing::info!(
                    plugin = &*self.terms.plugin,
                    reason = &*reason,
                    note = &*note,
                    "event without object"
                );
            }
            return;
        }
        let draft = EventDraft {
            component: &self.terms.plugin,
            event_type: match kind {
                EventType::Normal => events::EventType::Normal,
                EventType::Warning => events::EventType::Warning,
            },
            reason: &reason,
            note: &note,
        };
        let limit = RateLimit {
            per_minute: self.terms.limits.events_per_minute,
            metrics: self.metrics.as_deref(),
        };
        let sent = services
            .recorder
            .record(&services.writer, &key, &object, draft, Some(limit));
        if sent.await {
            self.counts.api_writes += 1;
        }
    }
}
