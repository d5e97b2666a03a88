//! Reconciles of Upstreams and Clusters, which the host checks itself: what both have in common.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use super::{Controller, GuestResult, ReconcileOutcome};
use crate::{
    contract::bindings::reconciler::Outcome,
    kube::{
        backoff::Backoff,
        key::{ObjectRef, cluster_name},
        object::KubeObject,
        scope::Projection,
    },
    schedule::{dependencies::ReadDependency, dispatcher::Cause, host_lane::HostLane, queue::Requeue},
    upstream::{HealthReport, upstream_gvk},
};

/// Backoff between health checks of a server that does not work.
pub(super) const UNHEALTHY_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
/// Limit of the time for the list of Secrets.
pub(super) const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a health check of an Upstream or a Cluster.
#[derive(Default)]
pub(super) struct HealthCheck {
    /// What the conditions say.
    pub report: HealthReport,
    /// Fields of the status of one that works.
    pub fields: Option<Value>,
    /// Delay until the next check; none if only a change helps.
    pub again: Option<Duration>,
    /// The objects that were read.
    pub reads: Vec<ReadDependency>,
}

impl Controller {
    /// Returns true if this host connects to an Upstream or a Cluster to check it. One that shares the cluster with another host does
    /// not log in to what its own plugins do not use.
    pub(super) fn is_checked_here(&self, key: &ObjectRef) -> bool {
        if !self.settings.shares_cluster || self.services.dispatcher.has_readers(key) {
            return true;
        }
        let name = cluster_name(&key.namespace, &key.name);
        let subscriptions = self.services.upstreams.subscriptions.list();
        key.gvk == upstream_gvk() && subscriptions.iter().any(|(key, _)| *key.upstream == *name)
    }

    /// Checks an Upstream or a Cluster, and writes its status. Returns true with the outcome if it works.
    pub(super) async fn report_health(
        &self,
        lane: HostLane,
        key: &ObjectRef,
        object: &Arc<KubeObject>,
        check: impl Future<Output = HealthCheck>,
    ) -> (ReconcileOutcome, bool) {
        let by: Arc<str> = lane.name().into();
        let started = Instant::now();
        self.stats.begin_reconcile(key, &by, "");
        let check = check.await;
        let result = match check.report.to_outcome() {
            Ok(outcome) => GuestResult::Outcome(Outcome {
                status: check.fields.map(|fields| fields.to_string().into_bytes()),
                ..outcome
            }),
            Err(failure) => {
                info!(object = %key, reason = failure.reason, error = failure.message, "not ready");
                self.stats.record_error(key, &failure.reason, &failure.message);
                GuestResult::Failure(failure)
            }
        };
        let works = !result.is_failure();
        let written = self.status_of(&by, key).write(object, &result).await;
        self.stats.end_reconcile(key, !works, started.elapsed());
        let end = written.err().unwrap_or_else(|| {
            let again = check
                .again
                .map(|wait| Requeue::At(self.time_after(wait), Cause::Poll));
            ReconcileOutcome::of(again.unwrap_or(Requeue::AwaitChange))
        });
        let outcome = ReconcileOutcome {
            reads: Some(check.reads),
            ..end
        };
        (outcome, works)
    }

    /// Waits until a Secret that an Upstream or a Cluster names is in the cache, if it exists. It becomes a dependency.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) async fn await_secret(
        &self,
        key: &ObjectRef,
        secret: &ObjectRef,
        reads: &mut Vec<ReadDependency>,
    ) -> Result<(), String> {
        let services = &self.services;
        let read = ReadDependency::Object(secret.clone(), Projection::Full);
        let scope = read.scope(&services.cache.namespaces);
        // The dependency is recorded before the read, so that no change is missed and the watch stays.
        services.dispatcher.record_read(key, read.clone());
        reads.push(read);
        let synced = services.cache.informers.wait_synced(&scope, SYNC_TIMEOUT).await;
        match synced {
            Ok(_) => Ok(()),
            Err(why) => Err(format!(
                "Secret {}/{} can't be read: {why}",
                secret.namespace, secret.name
            )),
        }
    }
}
