//! The capabilities of a component: the host functions of the contract, one file per WIT interface.
//!
//! Each function has the same shape: it charges the budget, checks the grant, does its work, and records the effect.

mod budget;
mod cache;
mod clock;
mod config;
mod context;
mod dispatch;
mod effects;
mod events;
mod freshness;
pub(crate) mod http;
mod kubernetes;
mod log;
mod messaging;
mod metrics;
mod permits;
mod protection;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

use self::protection::{ConnectionUsage, UsedConnection};
pub use self::{
    budget::{Budget, TransferredBytes},
    context::{CallContext, CallTarget},
    dispatch::HostCalls,
    effects::{EffectCounts, Effects},
};
use crate::{
    cache::informer::{InformerReader, SYNC_TIMEOUT, SyncError},
    client::{
        access_review::{AccessError, ObjectAccess, ReviewSubject},
        api::ApiError,
    },
    cluster::{ClusterAccess, ClusterObject, Connection, CurrentWait, cluster_gvk},
    contract::{
        bindings::types::{self, Error},
        limits::{Limit, PluginLimits},
        memory_budget::MemoryLease,
        trap::PanicReport,
    },
    kube::{
        key::ObjectRef,
        object::KubeObject,
        scope::{NamespaceScope, Projection, Scope},
        well_known::{condition_type, upstream_reason},
    },
    observe::{log_ring::LogLevel, metrics::HostCall},
    policy::plugin_policy::PluginPolicy,
    recording::CallMode,
    sandbox::services::{ApiAccess, Services, SharedCache},
    schedule::dependencies::ReadDependency,
};

/// Longest such wait for an informer of another cluster.
const CLUSTER_SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// Formats a reference of the contract for spans: `ConfigMap/demo/settings`.
struct ReferenceDisplay<'a>(&'a types::ObjectRef);

impl fmt::Display for ReferenceDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(f, "{}/", r.gvk.kind)?;
        for (part, end) in [(&r.cluster, ':'), (&r.namespace, '/')] {
            if let Some(part) = part {
                write!(f, "{part}{end}")?;
            }
        }
        f.write_str(&r.name)
    }
}

/// One call into a component, as its capabilities see it. It is made in a box, since it moves into the store of the call and back.
pub struct PluginCall {
    /// The plugin, object and services that the call is for.
    pub context: CallContext,
    /// The use of the limits.
    pub budget: Budget,
    /// The effects, which the reconcile evaluates after the call.
    pub effects: Effects,
    /// The mode: host calls are executed, executed and recorded, or answered from a recording.
    pub mode: CallMode,
    /// The memory that the call holds, in its instance and in responses. The engine sets it.
    pub memory: Arc<MemoryLease>,
    /// The other cluster that the current host call waits for.
    cluster_wait: CurrentWait,
    /// The panic that the component has reported in its last host call.
    panic_report: Option<Box<PanicReport>>,
    /// True after that report: what the runtime of the language prints about the same panic is not logged.
    is_output_muted: Arc<AtomicBool>,
    /// Bytes of the last responses, which count until the next host call: the instance has copied them by then.
    response_bytes: usize,
}

impl PluginCall {
    /// A call for an object. Without a target every capability is denied.
    pub fn new(policy: Arc<PluginPolicy>, target: Option<CallTarget>) -> Box<Self> {
        Self::with_context(CallContext::reconcile(policy, target))
    }

    /// A call of a life-cycle hook, for an object or the plugin itself.
    pub fn hook(policy: Arc<PluginPolicy>, target: CallTarget) -> Box<Self> {
        Self::with_context(CallContext::hook(policy, target))
    }

    /// A call of the message handler, for the plugin itself. `broker_namespace` is that of the Upstream.
    pub fn message(policy: Arc<PluginPolicy>, target: CallTarget, broker_namespace: Arc<str>) -> Box<Self> {
        Self::with_context(CallContext::message(policy, target, broker_namespace))
    }

    fn with_context(context: CallContext) -> Box<Self> {
        Box::new(Self {
            context,
            budget: Budget::default(),
            effects: Effects::default(),
            mode: CallMode::default(),
            memory: MemoryLease::unlimited(),
            cluster_wait: CurrentWait::default(),
            panic_report: None,
            is_output_muted: Arc::default(),
            response_bytes: 0,
        })
    }

    /// The limits of the plugin.
    pub fn limits(&self) -> &PluginLimits {
        self.context.limits()
    }

    /// A stream that logs the lines that a component with WASI prints.
    pub fn output(&self, level: LogLevel) -> impl StdoutStream + 'static {
        let muted = self.is_output_muted.clone();
        log::OutputLog::new(self.line_limiter(), self.line_writer(), level, muted)
    }

    /// Counts a host call, and returns the target of the call and its services. Fails in `describe`, which has no target,
    /// and beyond the limit of host calls.
    fn begin_host_call(&mut self, call: HostCall) -> Result<(&CallTarget, Arc<Services>), Error> {
        self.log_panic_report();
        self.cluster_wait.end();
        let Self {
            context,
            budget,
            memory,
            response_bytes,
            ..
        } = self;
        memory.release(std::mem::take(response_bytes));
        if let Some(metrics) = &context.metrics {
            metrics.host_call(call);
        }
        let Some(target) = &context.target else {
            return Err(Error::Denied(
                "`describe` is pure: no capability may be used in it".into(),
            ));
        };
        context.check_call(call)?;
        let charged = budget.charge_host_call(context.limits());
        charged.map_err(|e| context.report_exceeded(e))?;
        Ok((target, target.services.clone()))
    }

    /// Charges bytes that the component passes to the host.
    fn charge_bytes_to_host(&mut self, bytes: usize) -> Result<(), Error> {
        let charged = self.budget.charge_bytes_to_host(bytes, self.context.limits());
        charged.map_err(|e| self.context.report_exceeded(e))
    }

    /// Charges bytes that the host returns to the component.
    fn charge_bytes_from_host(&mut self, bytes: usize) -> Result<(), Error> {
        let charged = self.budget.charge_bytes_from_host(bytes, self.context.limits());
        charged.map_err(|e| self.context.report_exceeded(e))
    }

    /// Charges a result and returns it.
    fn return_bytes(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.charge_bytes_from_host(bytes.len()).map(|()| bytes)
    }

    /// Counts and returns the error of a limit on one object, for which the call keeps no count.
    fn limit_exceeded(&self, limit: Limit, resource: &'static str) -> Error {
        self.context.report_exceeded(budget::Exceeded { limit, resource })
    }

    fn line_limiter(&self) -> log::LineLimiter {
        log::LineLimiter {
            plugin: self.context.policy.plugin.clone(),
            metrics: self.context.metrics.clone(),
            written: self.budget.log_lines().clone(),
            max: self.limits().log_lines,
            max_per_minute: self.limits().log_lines_per_minute,
        }
    }

    fn line_writer(&self) -> log::LineWriter {
        log::LineWriter {
            source: self.context.log_source(),
            ring: self
                .context
                .target
                .as_ref()
                .map(|target| target.services.logs.clone()),
            is_withheld: self.context.policy.grants.can_read_secrets(),
        }
    }

    /// Counts a log line and returns true if it may be written.
    fn may_log_line(&self) -> bool {
        self.line_limiter().allow_line()
    }

    /// Checks that the service account of the plugin may read from the shared cache what the API server would let it
    /// read.
    async fn check_rbac(&mut self, access: &ClusterAccess, reads: &[ObjectAccess<'_>]) -> Result<(), Error> {
        let Some(account) = self.context.service_account_on(access) else {
            return Ok(());
        };
        for read in reads {
            // In a box: most plugins have no account, and their calls are as large as the largest future within.
            let reviewer = &access.api.reviewer;
            match Box::pin(reviewer.check_access(ReviewSubject::Account(account), *read)).await {
                Ok(()) => {}
                Err(AccessError::Forbidden(why)) => {
                    self.effects.forbidden = true;
                    return Err(Error::Denied(why));
                }
                Err(AccessError::Unavailable(e)) => return Err(Error::Unavailable(e.to_string())),
            }
        }
        Ok(())
    }

    /// Converts the error of a request that was made as the plugin. HTTP 403 is RBAC, of its service account where it has
    /// one, or admission: a quota, Pod Security, a webhook.
    fn map_api_error(&mut self, access: &ClusterAccess, e: ApiError) -> Error {
        if e.code() != 403 {
            return e.into();
        }
        self.effects.forbidden = true;
        let cluster = &*access.api.cluster;
        Error::Denied(match self.context.service_account_on(access) {
            _ if !e.is_authorization_refusal() => format!("admission: {e}"),
            Some(account) => format!("RBAC: service account {account}: {e}"),
            None if !cluster.is_empty() => format!("RBAC of cluster {cluster}: {e}"),
            None => format!("RBAC of the host: {e}"),
        })
    }

    /// Records a read: from now on an informer watches the object or list, and a change of it wakes the reconciled
    /// object. Fails if that takes more watches than the plugin may have.
    fn record_read(&mut self, dependency: ReadDependency) -> Result<(), Error> {
        let Some(target) = &self.context.target else {
            return Ok(());
        };
        if self.effects.reads.contains(&dependency) {
            return Ok(());
        }
        let services = &target.services;
        let remote = find_remote(services, dependency.cluster())?;
        let cache = remote.as_ref().map_or(&services.cache, |c| &c.access.cache);
        let scope = dependency.scope(&cache.namespaces);
        let informer = cache.informers.ensure_served(&scope, self.reader());
        informer.map_err(|e| self.map_sync_error(e.into()))?;
        if !self.context.is_hook() {
            services.dispatcher.record_read(&target.key, dependency.clone());
        }
        self.effects.reads.push(dependency);
        Ok(())
    }

    /// The plugin as a reader of the shared cache.
    fn reader(&self) -> InformerReader<'_> {
        InformerReader {
            plugin: &self.context.policy.plugin,
            max_watches: self.limits().watches,
        }
    }

    /// Converts the error of a read whose informer is not synced.
    fn map_sync_error(&self, error: SyncError) -> Error {
        match error {
            SyncError::TooManyWatches(_) => self.limit_exceeded(Limit::Watches, "watches of one plugin"),
            SyncError::NotSynced(why) => Error::Unavailable(why),
        }
    }

    /// Waits for the first list of the watch that serves a read, and returns its scope. If RBAC refuses the list of all
    /// namespaces, the watch of the namespace serves the read.
    async fn wait_synced(
        &self,
        cache: &SharedCache,
        cluster: &str,
        scope_of: impl Fn(&NamespaceScope) -> Scope,
    ) -> Result<Scope, Error> {
        let timeout = self.sync_timeout(cluster);
        let (informers, scope) = (&cache.informers, scope_of(&cache.namespaces));
        let mut synced = informers.wait_synced_for(&scope, self.reader(), timeout).await;
        if synced.is_err() {
            let now = scope_of(&cache.namespaces);
            if now != scope {
                synced = informers.wait_synced_for(&now, self.reader(), timeout).await;
            }
        }
        synced.map_err(|e| self.map_sync_error(e))
    }

    /// Reads one object from the shared cache and records the dependency.
    async fn get_cached(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        projection: Projection,
    ) -> Result<Option<Arc<KubeObject>>, Error> {
        let dependency = ReadDependency::Object(key.clone(), projection);
        self.get_by_dependency(services, key, projection, dependency)
            .await
    }

    /// The error of a denied access. Where the API server does not serve the kind, its name or its CRD is what is missing, and no
    /// permission.
    async fn explain_denial(&mut self, why: String) -> Error {
        let denied = self.context.take_denied_kind();
        let services = self.context.target.as_ref().map(|target| target.services.clone());
        let Some((kind, services)) = denied.zip(services) else {
            return Error::Denied(why);
        };
        match services.api.writer.discover_resource(&kind).await {
            Err(unknown @ ApiError::UnknownKind(..)) => Error::Denied(unknown.to_string()),
            _ => Error::Denied(why),
        }
    }

    /// Reads one object from the shared cache by the watch of a dependency on it, which is recorded.
    async fn get_by_dependency(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        projection: Projection,
        dependency: ReadDependency,
    ) -> Result<Option<Arc<KubeObject>>, Error> {
        // The edge comes first: an informer that is needed is not stopped meanwhile.
        self.record_read(dependency.clone())?;
        let remote = find_remote(services, &key.cluster)?;
        let cache = remote.as_ref().map_or(&services.cache, |c| &c.access.cache);
        let scope_of = |namespaces: &NamespaceScope| dependency.scope(namespaces);
        self.wait_synced(cache, &key.cluster, scope_of).await?;
        Ok(services.cache.store.get(key, projection))
    }

    /// Access to a cluster whose use is granted. The `Cluster` becomes a dependency, so that the reconciled object is woken
    /// when there is a connection again.
    async fn access_cluster(
        &mut self,
        services: &Services,
        cluster: &Arc<str>,
        usage: ConnectionUsage,
    ) -> Result<ClusterAccess, Error> {
        match cluster.split_once('/') {
            Some((namespace, name)) => {
                let key = ObjectRef::new(cluster_gvk(), namespace, name);
                Box::pin(self.access_other_cluster(services, cluster, key, usage)).await
            }
            None => Ok(services.home()),
        }
    }

    async fn access_other_cluster(
        &mut self,
        services: &Services,
        cluster: &Arc<str>,
        key: ObjectRef,
        usage: ConnectionUsage,
    ) -> Result<ClusterAccess, Error> {
        let Some(object) = self.get_cached(services, &key, Projection::Full).await? else {
            return Err(Error::NotFound(format!("Cluster {cluster} does not exist")));
        };
        let described = ClusterObject::from_object(&object).map_err(Error::Invalid)?;
        let own = self.context.host_namespace();
        if *cluster != *self.context.home_cluster() && !described.allows_namespace(own) {
            return Err(Error::Denied(format!(
                "Cluster {cluster} may not be used from namespace {own}: its spec.allowedNamespaces doesn't list it"
            )));
        }
        let not_ready = |reason: &str, message: String| {
            Error::NotReady(types::NotReady {
                ref_: self.context.reference_to(&key),
                condition: condition_type::READY.into(),
                status: types::ConditionStatus::True,
                exists: true,
                reason: reason.into(),
                message,
            })
        };
        let connection = services.clusters.find(cluster);
        let Some(connection) = connection.filter(|connection| connection.is_verified()) else {
            let state = object.readiness();
            return Err(match state.ready || state.reason.is_empty() {
                true => not_ready(
                    upstream_reason::NOT_CHECKED,
                    "the host is about to connect".into(),
                ),
                false => not_ready(&state.reason, state.message),
            });
        };
        if let Some(why) = connection.outage() {
            return Err(not_ready(upstream_reason::CIRCUIT_OPEN, why));
        }
        // Its own home cluster is kept for the plugin as a whole.
        if *cluster != *self.context.home_cluster() {
            Box::pin(self.record_use(&UsedConnection::cluster(&described), usage)).await?;
        }
        let plugin = &self.context.policy.plugin;
        let concurrency = services.dispatcher.concurrency(plugin);
        let wait = services.slow_calls.begin_wait(plugin, cluster, concurrency);
        self.cluster_wait
            .begin(wait.map_err(|e| Error::Unavailable(e.to_string()))?);
        Ok(connection.access.clone())
    }

    /// The API server of the cluster of the reconciled object, which the host writes to for it.
    fn target_api(&self, services: &Services) -> Result<Arc<ApiAccess>, Error> {
        let cluster = self.context.target_key().map_or("", |key| &key.cluster);
        let closed = || Error::Unavailable(format!("the connection to cluster {cluster} was closed"));
        services.find_api(cluster).ok_or_else(closed)
    }

    /// Time to wait for the first list of an informer. A cluster that is slow must not keep calls from others.
    fn sync_timeout(&self, cluster: &str) -> Duration {
        let timeout = match cluster {
            "" => SYNC_TIMEOUT,
            _ => CLUSTER_SYNC_TIMEOUT,
        };
        self.remaining_time().min(timeout)
    }

    /// Wall-clock time until the timeout of the call.
    fn remaining_time(&self) -> Duration {
        self.budget.remaining_time(self.limits())
    }
}

/// The connection to another cluster; none for the host's own. Fails if it has just been closed.
fn find_remote(services: &Services, cluster: &str) -> Result<Option<Arc<Connection>>, Error> {
    if cluster.is_empty() {
        return Ok(None);
    }
    let closed = || Error::Unavailable(format!("the connection to cluster {cluster} was closed"));
    services.clusters.find(cluster).map(Some).ok_or_else(closed)
}

impl types::Host for PluginCall {}

/// The reference to the reconciled object: no cluster stands for its own.
pub fn target_reference(key: &ObjectRef) -> types::ObjectRef {
    types::ObjectRef {
        cluster: None,
        ..key.into()
    }
}

impl From<&ObjectRef> for types::ObjectRef {
    fn from(key: &ObjectRef) -> Self {
        let optional = |s: &Arc<str>| Some(s.to_string()).filter(|s| !s.is_empty());
        Self {
            gvk: types::Gvk {
                group: key.gvk.group.to_string(),
                version: key.gvk.version.to_string(),
                kind: key.gvk.kind.to_string(),
            },
            cluster: optional(&key.cluster),
            namespace: optional(&key.namespace),
            name: key.name.to_string(),
        }
    }
}

impl From<ApiError> for Error {
    /// Maps the HTTP code to the error that tells a reconciler whether to wait, to try again or to give up.
    fn from(e: ApiError) -> Self {
        let text = e.to_string();
        match e {
            ApiError::Status {
                code, retry_after, ..
            } => match code {
                403 => Self::Denied(text),
                404 => Self::NotFound(text),
                409 => Self::Conflict(text),
                429 => Self::Throttled(retry_after.unwrap_or(1000)),
                400 | 405 | 406 | 415 | 422 => Self::Invalid(text),
                _ => Self::Unavailable(text),
            },
            ApiError::UnknownKind(..) => Self::Unavailable(text),
            ApiError::Unreachable(_)
            | ApiError::InvalidResponse(_)
            | ApiError::TooLarge(_)
            | ApiError::NotLeader(_) => Self::Unavailable(text),
        }
    }
}

/// The output of a component goes to the log, never to a terminal.
impl IsTerminal for log::OutputLog {
    fn is_terminal(&self) -> bool {
        false
    }
}
