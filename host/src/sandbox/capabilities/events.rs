//! `events`: Kubernetes Events about the reconciled object.

use tracing::instrument;

use super::{PluginCall, log::sanitize_line};
use crate::{
    contract::bindings::events::{EventType, Host},
    effect::events::{self, EventDraft, RateLimit},
    observe::metrics::HostCall,
    policy::grants::Access,
};

impl Host for PluginCall {
    #[instrument(name = "events.emit", target = "spans", level = "trace", skip_all, fields(reason = reason))]
    async fn emit(&mut self, kind: EventType, reason: String, note: String) {
        let Ok((target, services)) = self.begin_host_call(HostCall::EventsEmit) else {
            return;
        };
        let (key, object) = (target.key.clone(), target.object.clone());
        if self.charge_bytes_to_host(reason.len() + note.len()).is_err() {
            return;
        }
        if let Err(e) = self.context.check_grant(&Access::Events) {
            tracing::warn!(object = %key, plugin = &*self.context.policy.plugin, reason, error = %e, "dropping event");
            return;
        }
        if object.uid.is_empty() {
            // The hook `initialize` has no object, so its Events go to the log.
            if self.may_log_line() {
                let (reason, note) = (sanitize_line(&reason), sanitize_line(&note));
                tracing::info!(
                    plugin = &*self.context.policy.plugin,
                    reason = &*reason,
                    note = &*note,
                    "event without object"
                );
            }
            return;
        }
        let draft = EventDraft {
            component: &self.context.policy.plugin,
            event_type: match kind {
                EventType::Normal => events::EventType::Normal,
                EventType::Warning => events::EventType::Warning,
            },
            reason: &reason,
            note: &note,
        };
        let limit = RateLimit {
            per_minute: self.limits().events_per_minute,
            metrics: self.context.metrics.as_deref(),
        };
        let Some(api) = services.find_api(&key.cluster) else {
            tracing::warn!(object = %key, plugin = &*self.context.policy.plugin, reason, "dropping event: its cluster is not connected");
            return;
        };
        let sent = api
            .recorder
            .record(&api.writer, &key, &object, draft, Some(limit));
        if sent.await {
            self.effects.counts.api_writes += 1;
        }
    }
}
