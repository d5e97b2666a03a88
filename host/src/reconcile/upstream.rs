//! Reconciler of `Upstream` objects: their status shows whether the upstream works.
//!
//! Requests of components show most of it. For an upstream without recent ones (new, changed, down or idle) the host
//! makes a health check: it connects, and logs in where a login is configured.

use std::{sync::Arc, time::Duration};

use tracing::debug;

use super::{
    Controller, ReconcileOutcome,
    connection::{HealthCheck, UNHEALTHY_BACKOFF},
};
use crate::{
    kube::{
        key::{Gvk, ObjectRef},
        object::KubeObject,
        scope::Projection,
    },
    sandbox::capabilities::http::StoreSecrets,
    schedule::{dependencies::ReadDependency, host_lane::HostLane},
    upstream::{HealthReport, SendError, UpstreamObject},
};

/// Time without requests after which an upstream is checked.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1800);
/// Number of health checks that run concurrently; the lane of Upstreams has more slots.
pub(super) const MAX_CONCURRENT_CHECKS: usize = HostLane::Upstreams.max_concurrent() as usize - 8;
/// Delay of a health check while as many run.
const CHECK_DELAY: Duration = Duration::from_secs(1);

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
            return Some(self.protection_of(key, &object).release().await);
        }
        if !self.is_checked_here(key) {
            return Some(ReconcileOutcome::leave_unread());
        }
        debug!(object = %key, "checking upstream");
        let check = Box::pin(self.check_upstream(key, &object));
        Some(
            self.report_health(HostLane::Upstreams, key, &object, check)
                .await
                .0,
        )
    }

    /// Checks an upstream.
    async fn check_upstream(&self, key: &ObjectRef, object: &Arc<KubeObject>) -> HealthCheck {
        let services = &self.services;
        let clients = &services.upstreams.clients;
        let mut reads = Vec::new();
        let upstream = match UpstreamObject::from_object(object) {
            Ok(upstream) => upstream,
            Err(e) => {
                clients.close_broker(&key.namespace, &key.name);
                return failed_check(&SendError::Invalid(e), reads);
            }
        };
        for name in upstream.secret_names() {
            let secret = ObjectRef::new(Gvk::secret(), &key.namespace, &name);
            if let Err(why) = self.await_secret(key, &secret, &mut reads).await {
                return HealthCheck {
                    again: Some(UNHEALTHY_BACKOFF.max_delay(1)),
                    ..failed_check(&SendError::NotFound(why), reads)
                };
            }
        }
        self.protection_of(key, object).protect().await;
        if !upstream.is_http() {
            let (report, again) = self.check_broker(&upstream).await;
            return HealthCheck {
                report,
                again,
                reads,
                fields: None,
            };
        }
        clients.close_broker(&key.namespace, &key.name);
        let client = match clients.client_for(&upstream, &StoreSecrets(&services.cache.store)) {
            Ok(client) => client,
            Err(e) => return failed_check(&e, reads),
        };
        let mut again = None;
        if client.needs_health_check(IDLE_TIMEOUT) {
            match self.health_checks.try_acquire() {
                Ok(_permit) => clients.check_health(&upstream, &client).await,
                Err(_) => again = Some(CHECK_DELAY),
            }
        }
        HealthCheck {
            report: client.health_report(),
            again: again.or_else(|| Some(client.next_health_check(UNHEALTHY_BACKOFF, IDLE_TIMEOUT))),
            reads,
            fields: None,
        }
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

/// The check of an upstream of which no server could be asked.
fn failed_check(error: &SendError, reads: Vec<ReadDependency>) -> HealthCheck {
    HealthCheck {
        report: HealthReport::from_error(error),
        reads,
        ..HealthCheck::default()
    }
}
