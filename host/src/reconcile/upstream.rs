//! Reconciler of `Upstream` objects: their status shows whether the upstream works.
//!
//! Requests of components show most of it. For an upstream without recent ones (new, changed, down or idle) the host
//! makes a health check: it connects, and logs in where a login is configured.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, info};

use super::{Controller, GuestResult, ReconcileOutcome};
use crate::{
    kube::{
        backoff::Backoff,
        key::{Gvk, ObjectRef},
        object::Object,
        scope::Projection,
    },
    sandbox::capabilities::http::StoreSecrets,
    schedule::{dependencies::Dependency, dispatcher::Cause, host_lane::HostLane, queue::Requeue},
    upstream::{HealthReport, SendError, UpstreamObject},
};

/// Backoff between health checks of an upstream that does not work.
const UNHEALTHY_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
/// Time without requests after which an upstream is checked.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Number of health checks that run concurrently; the lane of Upstreams has more slots.
pub(super) const MAX_CONCURRENT_CHECKS: usize = HostLane::Upstreams.max_concurrent() as usize - 8;
/// Delay of a health check while as many run.
const CHECK_DELAY: Duration = Duration::from_secs(1);
/// Limit of the time for the list of Secrets.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

impl Controller {
    /// Reconciles an `Upstream` object. Returns none when it is gone.
    pub(super) async fn reconcile_upstream(&self, key: &ObjectRef) -> Option<ReconcileOutcome> {
        let Some(object) = self.services.cache.store.get(key, Projection::Full) else {
            self.services
                .upstreams
                .clients
                .remove_client(&key.namespace, &key.name);
            return self.forget_object(key).await;
        };
        if object.is_deleting() {
            return Some(self.release_connection(key, &object).await);
        }
        let by: Arc<str> = HostLane::Upstreams.name().into();
        let started = Instant::now();
        self.stats.begin_reconcile(key, &by, "");
        debug!(object = %key, "checking upstream");
        let (report, again, reads) = self.check_upstream(key, &object).await;
        let answer = match report.to_outcome() {
            Ok(outcome) => GuestResult::Outcome(outcome),
            Err(failure) => {
                info!(object = %key, reason = failure.reason, error = failure.message, "upstream is not ready");
                self.stats.record_error(key, &failure.reason, &failure.message);
                GuestResult::Failure(failure)
            }
        };
        let failed = matches!(answer, GuestResult::Failure(_));
        let written = self.write_status(&by, key, &object, &answer).await;
        self.stats.end_reconcile(key, failed, started.elapsed());
        Some(match written {
            Ok(_) => ReconcileOutcome {
                reads: Some(reads),
                ..ReconcileOutcome::of(again.map_or(Requeue::AwaitChange, |wait| {
                    Requeue::At(self.time_after(wait), Cause::Poll)
                }))
            },
            Err(end) => ReconcileOutcome {
                reads: Some(reads),
                ..end
            },
        })
    }

    /// Checks an upstream. Returns its health, the delay until the next check, and the objects that were read.
    async fn check_upstream(
        &self,
        key: &ObjectRef,
        object: &Object,
    ) -> (HealthReport, Option<Duration>, Vec<Dependency>) {
        let services = &self.services;
        let clients = &services.upstreams.clients;
        let mut reads = Vec::new();
        let upstream = match UpstreamObject::from_object(object) {
            Ok(upstream) => upstream,
            Err(e) => {
                clients.close_broker(&key.namespace, &key.name);
                return (HealthReport::from_error(&SendError::Invalid(e)), None, reads);
            }
        };
        for name in upstream.secret_names() {
            let secret = ObjectRef::new(Gvk::secret(), &key.namespace, &name);
            let read = Dependency::Object(secret, Projection::Full);
            let scope = read.scope(&services.cache.namespaces);
            // The dependency is recorded before the read, so that no change is missed and the watch stays.
            services.dispatcher.record_read(key, read.clone());
            reads.push(read);
            if let Err(why) = services.cache.informers.wait_synced(&scope, SYNC_TIMEOUT).await {
                let error =
                    SendError::NotFound(format!("Secret {}/{name} can't be read: {why}", key.namespace));
                return (
                    HealthReport::from_error(&error),
                    Some(UNHEALTHY_BACKOFF.max_delay(1)),
                    reads,
                );
            }
        }
        self.protect_connection(key, object).await;
        if !upstream.is_http() {
            let (report, again) = self.check_broker(&upstream).await;
            return (report, again, reads);
        }
        clients.close_broker(&key.namespace, &key.name);
        let client = match clients.client_for(&upstream, &StoreSecrets(&services.cache.store)) {
            Ok(client) => client,
            Err(e) => return (HealthReport::from_error(&e), None, reads),
        };
        if client.needs_health_check(IDLE_TIMEOUT) {
            let Ok(_permit) = self.health_checks.try_acquire() else {
                return (client.health_report(), Some(CHECK_DELAY), reads);
            };
            clients.check_health(&upstream, &client).await;
        }
        let again = client.next_health_check(UNHEALTHY_BACKOFF, IDLE_TIMEOUT);
        (client.health_report(), Some(again), reads)
    }

    /// Checks a message broker: the host keeps a connection to it while it leads.
    async fn check_broker(&self, upstream: &UpstreamObject) -> (HealthReport, Option<Duration>) {
        let clients = &self.services.upstreams.clients;
        let client = match clients.broker_for(upstream, &StoreSecrets(&self.services.cache.store)) {
            Ok(client) => client,
            Err(e) => return (HealthReport::from_error(&e), None),
        };
        if client.needs_health_check() {
            let Ok(_permit) = self.health_checks.try_acquire() else {
                return (client.health_report(), Some(CHECK_DELAY));
            };
            clients.check_broker(&client).await;
        }
        let again = client.next_health_check(UNHEALTHY_BACKOFF.max_delay(1), IDLE_TIMEOUT);
        (client.health_report(), Some(again))
    }
}
