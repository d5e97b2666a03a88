//! Upstreams, which the host itself reconciles: their status says how it is with them.
//!
//! Requests tell most of it; where they don't (a new Upstream, a changed one, one that is down or that nobody has
//! used for long) it is connected to, and logged in to where there is a log-in.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, info};

use super::{Controller, GuestResult, JITTER_PERCENT, ReconcileOutcome, add_jitter};
use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::Projection,
    },
    sandbox::capabilities::http::Secrets,
    schedule::{dependencies::Dependency, dispatcher::Cause, queue::Requeue},
    upstream::{HealthReport, SendError, UpstreamObject},
};

/// The lane of Upstreams, and the name they are reconciled under.
pub const LANE_NAME: &str = "upstreams";

/// Upstreams looked at at the same time: who waits for one that is down keeps no plugin waiting.
pub const MAX_CONCURRENT: u32 = 4;

/// One that is not as it should be is looked at again after this long at first, and at last.
const UNHEALTHY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// One of which nothing was heard for this long is looked at.
const IDLE: Duration = Duration::from_secs(1800);
/// How long the Secrets may take to be listed.
const PATIENCE: Duration = Duration::from_secs(10);

impl Controller {
    /// Reconciles an Upstream. None when it is gone.
    pub(super) async fn reconcile_upstream(&self, key: &ObjectRef) -> Option<ReconcileOutcome> {
        let Some(object) = self.services.store.get(key, Projection::Full) else {
            self.services.upstreams.remove_client(&key.namespace, &key.name);
            return self.forget_object(key).await;
        };
        if object.is_deleting() {
            return Some(self.reconcile_unowned(key).await);
        }
        let by: Arc<str> = LANE_NAME.into();
        let started = Instant::now();
        self.stats.begin_reconcile(key, &by, "");
        debug!(object = %key, "how it is with the upstream");
        let (report, again, reads) = self.check_upstream(key, &object).await;
        let answer = match report.to_outcome() {
            Ok(outcome) => GuestResult::Outcome(outcome),
            Err(failure) => {
                info!(object = %key, "{}: {}", failure.reason, failure.message);
                self.stats.record_error(key, &failure.reason, &failure.message);
                GuestResult::Failure(failure)
            }
        };
        let failed = matches!(answer, GuestResult::Failure(_));
        let written = self.write_status(&by, key, &object, &answer).await;
        self.stats.end_reconcile(key, failed, started.elapsed());
        Some(match written {
            Ok(_) => {
                let at = |wait| self.services.dispatcher.now() + add_jitter(wait, JITTER_PERCENT);
                ReconcileOutcome {
                    next: again.map_or(Requeue::AwaitChange, |wait| Requeue::At(at(wait), Cause::Poll)),
                    reads: Some(reads),
                    follows: None,
                }
            }
            Err(end) => ReconcileOutcome {
                reads: Some(reads),
                ..end
            },
        })
    }

    /// How it is with an Upstream, when to look again, and what that depends on.
    async fn check_upstream(
        &self,
        key: &ObjectRef,
        object: &Object,
    ) -> (HealthReport, Option<Duration>, Vec<Dependency>) {
        let services = &self.services;
        let mut reads = Vec::new();
        let upstream = match UpstreamObject::from_object(object) {
            Ok(upstream) => upstream,
            Err(e) => return (HealthReport::from_error(&SendError::Invalid(e)), None, reads),
        };
        for name in upstream.secret_names() {
            let secret = ObjectRef::new(Gvk::new("", "v1", "Secret"), &key.namespace, &name);
            let read = Dependency::Object(secret, Projection::Full);
            let scope = read.scope(&services.namespaces);
            // First the edge: a watch that is needed is not let go.
            services.dispatcher.record_read(key, read.clone());
            reads.push(read);
            if let Err(why) = services.informers.wait_synced(&scope, PATIENCE).await {
                let error =
                    SendError::NotFound(format!("Secret {}/{name} can't be read: {why}", key.namespace));
                return (HealthReport::from_error(&error), Some(UNHEALTHY.0), reads);
            }
        }
        if !upstream.is_http() {
            // Nothing here keeps a connection of that kind: no condition claims one.
            return (HealthReport::default(), None, reads);
        }
        let client = match services.upstreams.client_for(&upstream, &Secrets(services)) {
            Ok(client) => client,
            Err(e) => return (HealthReport::from_error(&e), None, reads),
        };
        if client.needs_health_check(IDLE) {
            client.check_health().await;
        }
        let again = client.next_health_check((UNHEALTHY.0, UNHEALTHY.1, IDLE));
        (client.health_report(), Some(again), reads)
    }
}
