//! Reconciler of `Cluster` objects: it connects to the cluster, and its status shows whether the cluster can be used.
//!
//! It is the only place that connects, on the leader. What reads the cluster waits for the `Cluster` meanwhile, and is woken
//! when there is a connection.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use super::{Controller, GuestResult, ReconcileOutcome, protection::RELEASE_INTERVAL};
use crate::{
    client::api::ApiError,
    cluster::{ClusterObject, ConnectError, Connection},
    kube::{
        backoff::Backoff,
        key::ObjectRef,
        object::Object,
        scope::Projection,
        well_known::{bookkeeping::CLUSTER_PROTECTION, upstream_reason},
    },
    schedule::{
        dependencies::Dependency,
        dispatcher::Cause,
        host_lane::HostLane,
        queue::{Priority, Requeue},
    },
    upstream::{HealthFact, HealthReport},
};

/// Backoff between health checks of a cluster that does not work.
const UNHEALTHY_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
/// Interval of health checks of a cluster that works. An outage in between is found by the requests to it.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(300);
/// Limit of the time for the list of Secrets.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a check of a cluster.
#[derive(Default)]
struct ClusterCheck {
    report: HealthReport,
    version: Option<String>,
    /// Delay until the next check; none if only a change helps.
    again: Option<Duration>,
    reads: Vec<Dependency>,
}

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
            let released = self.release_connection(key, &object).await;
            let connection = self
                .services
                .clusters
                .find(&format!("{}/{}", key.namespace, key.name));
            let is_working =
                connection.is_some_and(|c| c.is_verified() && c.failures() == 0 && c.outage().is_none());
            let is_needed =
                object.has_finalizer(CLUSTER_PROTECTION) && !matches!(released.next, Requeue::AwaitChange);
            // What needs it for its cleanup waits for a connection, which is made again after a restart.
            if is_working || !is_needed {
                return Some(released);
            }
        }
        let by: Arc<str> = HostLane::Clusters.name().into();
        let started = Instant::now();
        self.stats.begin_reconcile(key, &by, "");
        let was_ready = object.readiness().ready;
        let check = self.check_cluster(key, &object).await;
        let answer = match check.report.to_outcome() {
            Ok(outcome) => {
                let status = json!({"version": check.version});
                GuestResult::Outcome(crate::contract::bindings::reconciler::Outcome {
                    status: Some(status.to_string().into_bytes()),
                    ..outcome
                })
            }
            Err(failure) => {
                info!(object = %key, reason = failure.reason, error = failure.message, "cluster is not ready");
                self.stats.record_error(key, &failure.reason, &failure.message);
                GuestResult::Failure(failure)
            }
        };
        let failed = matches!(answer, GuestResult::Failure(_));
        let written = self.write_status(&by, key, &object, &answer).await;
        if !failed && !was_ready {
            self.services.dispatcher.wake_readers(key, Priority::Low);
        }
        self.update_plugins_at_home(key);
        self.stats.end_reconcile(key, failed, started.elapsed());
        Some(match written {
            Ok(_) => {
                let again = match object.is_deleting() {
                    true if check.version.is_some() => Some(RELEASE_INTERVAL),
                    true => Some(check.again.unwrap_or(SYNC_TIMEOUT)),
                    false => check.again,
                };
                let next = again.map(|wait| Requeue::At(self.time_after(wait), Cause::Poll));
                ReconcileOutcome {
                    reads: Some(check.reads),
                    ..ReconcileOutcome::of(next.unwrap_or(Requeue::AwaitChange))
                }
            }
            Err(end) => ReconcileOutcome {
                reads: Some(check.reads),
                ..end
            },
        })
    }

    /// Connects to a cluster and checks it.
    async fn check_cluster(&self, key: &ObjectRef, object: &Object) -> ClusterCheck {
        let services = &self.services;
        let cluster = match ClusterObject::from_object(object) {
            Ok(cluster) => cluster,
            Err(why) => return ClusterCheck::unusable(&ConnectError::Invalid(why), Vec::new()),
        };
        let secret = cluster.kubeconfig_secret();
        let read = Dependency::Object(secret.clone(), Projection::Full);
        let scope = read.scope(&services.cache.namespaces);
        // The dependency is recorded before the read, so that no change is missed and the watch stays.
        services.dispatcher.record_read(key, read.clone());
        let reads = vec![read];
        if let Err(why) = services.cache.informers.wait_synced(&scope, SYNC_TIMEOUT).await {
            let why = format!("Secret {}/{} can't be read: {why}", secret.namespace, secret.name);
            return ClusterCheck {
                again: Some(UNHEALTHY_BACKOFF.max_delay(1)),
                ..ClusterCheck::unusable(&ConnectError::SecretNotFound(why), reads)
            };
        }
        self.protect_connection(key, object).await;
        let stored = services.cache.store.get(&secret, Projection::Full);
        let connection = match services.clusters.connect(&cluster, stored.as_deref()) {
            Ok(connection) => connection,
            Err(e) => return ClusterCheck::unusable(&e, reads),
        };
        // A new connection has no watches of the kinds that are reconciled there. Those of reads come with the reads.
        services
            .clusters
            .start_watches(&connection.cluster, &services.dispatcher.scopes());
        let was_verified = connection.is_verified();
        let check = ClusterCheck::of_connection(&connection, reads).await;
        // What was read through a former connection is not watched any more. The first one after a start or a change of
        // leader may find the status Ready already.
        if !was_verified && connection.is_verified() {
            services.dispatcher.wake_readers(key, Priority::Low);
        }
        check
    }
}

impl ClusterCheck {
    /// A cluster without a connection.
    fn unusable(error: &ConnectError, reads: Vec<Dependency>) -> Self {
        let fact = |reason| Some(HealthFact::new(false, reason, error.to_string()));
        let (connected, authenticated, is_stalled) = match error {
            ConnectError::Invalid(_) => (fact(upstream_reason::INVALID_SPEC), None, true),
            ConnectError::AddressNotAllowed(_) => (fact(upstream_reason::ADDRESS_NOT_ALLOWED), None, true),
            ConnectError::SecretNotFound(_) => (None, fact(upstream_reason::SECRET_NOT_FOUND), false),
            ConnectError::OriginNotAllowed(_) => (None, fact(upstream_reason::ORIGIN_NOT_ALLOWED), true),
        };
        Self {
            report: HealthReport {
                connected,
                authenticated,
                is_stalled,
            },
            reads,
            ..Self::default()
        }
    }

    /// A cluster that was asked.
    async fn of_connection(connection: &Connection, reads: Vec<Dependency>) -> Self {
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
        Self {
            report,
            version: answer.ok(),
            again: Some(again),
            reads,
        }
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
