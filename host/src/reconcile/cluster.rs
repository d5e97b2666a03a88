//! Reconciler of `Cluster` objects: it connects to the cluster, and its status shows whether the cluster can be used.
//!
//! It is the only place that connects, on the leader. What reads the cluster waits for the `Cluster` meanwhile, and is woken
//! when there is a connection.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{
    Controller, ReconcileOutcome,
    connection::{HealthCheck, SYNC_TIMEOUT, UNHEALTHY_BACKOFF},
    protection::RELEASE_INTERVAL,
};
use crate::{
    client::api::ApiError,
    cluster::{ClusterConnectError, ClusterObject, Connection},
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::Projection,
        well_known::{bookkeeping::CLUSTER_PROTECTION, upstream_reason},
    },
    schedule::{
        dependencies::ReadDependency,
        host_lane::HostLane,
        queue::{Priority, Requeue},
    },
    upstream::{HealthFact, HealthReport},
};

/// Interval of health checks of a cluster that works. An outage in between is found by the requests to it.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(300);
impl Controller {
    /// Reconciles a `Cluster` object. Returns none when it is gone.
    pub(super) async fn reconcile_cluster(&self, key: &ObjectRef) -> Option<ReconcileOutcome> {
        let Some(object) = self.services.cache.store.get(key, Projection::Full) else {
            self.services
                .clusters
                .disconnect(&format!("{}/{}", key.namespace, key.name));
            self.update_plugins_at_home(key);
            return self.forget_object(key).await;
        };
        if object.is_deleting() {
            let released = self.protection_of(key, &object).release().await;
            let connection = self
                .services
                .clusters
                .find(&format!("{}/{}", key.namespace, key.name));
            let is_working =
                connection.is_some_and(|c| c.is_verified() && c.failures() == 0 && c.outage().is_none());
            let is_needed =
                object.has_finalizer(CLUSTER_PROTECTION) && !matches!(released.next, Requeue::AwaitChange);
            // What needs it for its cleanup waits for a connection, which is made again after a restart.
            if is_working || !is_needed || !self.is_checked_here(key) {
                return Some(released);
            }
        } else if !self.is_checked_here(key) {
            return Some(ReconcileOutcome::leave_unread());
        }
        let was_ready = object.readiness().ready;
        let check = Box::pin(async {
            let check = self.check_cluster(key, &object).await;
            let again = match (&check.fields, object.is_deleting()) {
                (_, false) => check.again,
                (Some(_), true) => Some(RELEASE_INTERVAL),
                (None, true) => Some(check.again.unwrap_or(SYNC_TIMEOUT)),
            };
            HealthCheck { again, ..check }
        });
        let (outcome, works) = self.report_health(HostLane::Clusters, key, &object, check).await;
        if works && !was_ready {
            self.services.dispatcher.wake_readers(key, Priority::Low);
        }
        self.update_plugins_at_home(key);
        Some(outcome)
    }

    /// Connects to a cluster and checks it.
    async fn check_cluster(&self, key: &ObjectRef, object: &Arc<KubeObject>) -> HealthCheck {
        let services = &self.services;
        let cluster = match ClusterObject::from_object(object) {
            Ok(cluster) => cluster,
            Err(why) => return unusable_cluster(&ClusterConnectError::Invalid(why), Vec::new()),
        };
        let (secret, mut reads) = (cluster.kubeconfig_secret(), Vec::new());
        if let Err(why) = self.await_secret(key, &secret, &mut reads).await {
            return HealthCheck {
                again: Some(UNHEALTHY_BACKOFF.max_delay(1)),
                ..unusable_cluster(&ClusterConnectError::SecretNotFound(why), reads)
            };
        }
        self.protection_of(key, object).protect().await;
        let stored = services.cache.store.get(&secret, Projection::Full);
        let connection = match services.clusters.connect(&cluster, stored.as_deref()) {
            Ok(connection) => connection,
            Err(e) => return unusable_cluster(&e, reads),
        };
        // A new connection has no watches of the kinds that are reconciled there. Those of reads come with the reads.
        services
            .clusters
            .start_watches(&connection.cluster, &services.dispatcher.scopes());
        let was_verified = connection.is_verified();
        let check = check_connected(&connection, reads).await;
        // What was read through a former connection is not watched any more. The first one after a start or a change of
        // leader may find the status Ready already.
        if !was_verified && connection.is_verified() {
            services.dispatcher.wake_readers(key, Priority::Low);
        }
        check
    }
}

/// A cluster without a connection.
fn unusable_cluster(error: &ClusterConnectError, reads: Vec<ReadDependency>) -> HealthCheck {
    let fact = |reason| Some(HealthFact::new(false, reason, error.to_string()));
    let (connected, authenticated, is_stalled) = match error {
        ClusterConnectError::Invalid(_) => (fact(upstream_reason::INVALID_SPEC), None, true),
        ClusterConnectError::AddressNotAllowed(_) => (fact(upstream_reason::ADDRESS_NOT_ALLOWED), None, true),
        ClusterConnectError::SecretNotFound(_) => (None, fact(upstream_reason::SECRET_NOT_FOUND), false),
        ClusterConnectError::OriginNotAllowed(_) => (None, fact(upstream_reason::ORIGIN_NOT_ALLOWED), true),
    };
    HealthCheck {
        report: HealthReport {
            connected,
            authenticated,
            is_stalled,
        },
        reads,
        ..HealthCheck::default()
    }
}

/// A cluster that was asked.
async fn check_connected(connection: &Connection, reads: Vec<ReadDependency>) -> HealthCheck {
    let answer = connection.check_health().await;
    let connected = Some(HealthFact::new(true, upstream_reason::CONNECTED, ""));
    let (report, again) = match &answer {
        Ok(_) => (
            HealthReport {
                connected,
                authenticated: Some(HealthFact::new(true, upstream_reason::ACCEPTED, "")),
                is_stalled: false,
            },
            HEALTH_CHECK_INTERVAL,
        ),
        Err(error) => (
            report_failure(connection, error, connected),
            UNHEALTHY_BACKOFF.max_delay(connection.failures()),
        ),
    };
    HealthCheck {
        report,
        fields: answer.ok().map(|version| json!({"version": version})),
        again: Some(again),
        reads,
    }
}

/// The report of a failed health check.
fn report_failure(connection: &Connection, error: &ApiError, connected: Option<HealthFact>) -> HealthReport {
    if matches!(error.code(), 401 | 403) {
        let why = format!(
            "The cluster does not accept the credentials (HTTP {}): {error}",
            error.code()
        );
        return HealthReport {
            connected,
            authenticated: Some(HealthFact::new(
                false,
                upstream_reason::AUTHENTICATION_FAILED,
                why,
            )),
            is_stalled: false,
        };
    }
    let reason = match connection.outage() {
        Some(_) => upstream_reason::CIRCUIT_OPEN,
        None => upstream_reason::CONNECTION_FAILED,
    };
    HealthReport {
        connected: Some(HealthFact::new(false, reason, error.to_string())),
        ..HealthReport::default()
    }
}
