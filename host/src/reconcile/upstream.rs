//! Upstreams, which the host itself reconciles: their status says how it is with them.
//!
//! Requests tell most of it; where they don't (a new Upstream, a changed one, one that is down or that nobody has
//! used for long) it is connected to, and logged in to where there is a log-in.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, info};

use super::{Answer, Controller, End, JITTER, jittered};
use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::Form,
    },
    sandbox::capabilities::http::Secrets,
    schedule::{dependencies::Dependency, dispatcher::Cause, queue::Next},
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
    pub(super) async fn upstream(&self, key: &ObjectRef) -> Option<End> {
        let Some(object) = self.services.store.get(key, Form::Whole) else {
            self.services.upstreams.remove_client(&key.namespace, &key.name);
            return self.gone(key).await;
        };
        if object.deleting() {
            return Some(self.others(key).await);
        }
        let by: Arc<str> = LANE_NAME.into();
        let started = Instant::now();
        self.ledger.reconciled(key, &by, "");
        debug!(object = %key, "how it is with the upstream");
        let (report, again, reads) = self.look(key, &object).await;
        let answer = match report.to_outcome() {
            Ok(outcome) => Answer::Outcome(outcome),
            Err(failure) => {
                info!(object = %key, "{}: {}", failure.reason, failure.message);
                self.ledger.failed(key, &failure.reason, &failure.message);
                Answer::Failure(failure)
            }
        };
        let failed = matches!(answer, Answer::Failure(_));
        let written = self.write_status(&by, key, &object, &answer).await;
        self.ledger.finished(key, failed, started.elapsed());
        Some(match written {
            Ok(_) => {
                let at = |wait| self.services.router.now() + jittered(wait, JITTER);
                End {
                    next: again.map_or(Next::Settled, |wait| Next::At(at(wait), Cause::Poll)),
                    reads: Some(reads),
                    follows: None,
                }
            }
            Err(end) => End {
                reads: Some(reads),
                ..end
            },
        })
    }

    /// How it is with an Upstream, when to look again, and what that depends on.
    async fn look(
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
            let read = Dependency::Object(secret, Form::Whole);
            let scope = read.scope(&services.reach);
            // First the edge: a watch that is needed is not let go.
            services.router.reads(key, read.clone());
            reads.push(read);
            if let Err(why) = services.informers.synced(&scope, PATIENCE).await {
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
