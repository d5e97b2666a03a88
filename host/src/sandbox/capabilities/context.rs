//! The context of a call: the plugin, object and services that it is for. It does not change during the call.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    cluster::ClusterAccess,
    contract::{
        bindings::types::{self, Error},
        limits::PluginLimits,
    },
    effect::writer::WriteContext,
    kube::{
        key::{Gvk, IN_CLUSTER, ObjectRef, cluster_name, is_path_segment, own_cluster},
        object::KubeObject,
    },
    observe::{
        log_ring::{LogLevel, LogSource},
        metrics::{HostCall, PluginMetrics},
        telemetry::ReconcileId,
    },
    policy::{
        grants::{Access, ServiceAccount},
        plugin_policy::PluginPolicy,
    },
    sandbox::{
        capabilities::{budget::Exceeded, log::sanitize_line},
        services::Services,
    },
};

/// The object that a call is for, and the services that the call uses.
pub struct CallTarget {
    /// The object that is reconciled, or the plugin itself in the hook `initialize`.
    pub key: ObjectRef,
    /// The version of the object that the component gets.
    pub object: Arc<KubeObject>,
    /// Leader term in which an earlier reconcile has found the object to be the API server's newest version.
    pub fresh_term: Option<u64>,
    /// The object has the plugin's finalizer: it stays until the host has deleted what it owns on other clusters.
    pub is_finalized: bool,
    /// The services that the capabilities use.
    pub services: Arc<Services>,
}

/// The exported function that is called, as far as its capabilities differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    /// `reconcile`, `cleanup` or `describe`.
    Reconcile,
    /// A life-cycle hook. It is no reconcile, so its reads wake nothing.
    Hook,
    /// A message handler. State belongs into objects, so it may only write objects and messages.
    Message,
}

/// The host functions that a message handler may call.
const MESSAGE_HANDLER_CALLS: [HostCall; 10] = [
    HostCall::KubernetesApply,
    HostCall::KubernetesCreate,
    HostCall::MessagingPublish,
    HostCall::EventsEmit,
    HostCall::LogWrite,
    HostCall::MetricsCounter,
    HostCall::MetricsGauge,
    HostCall::ClockNow,
    HostCall::ClockRemaining,
    HostCall::ConfigGet,
];

/// The context of a call.
pub struct CallContext {
    pub(super) policy: Arc<PluginPolicy>,
    /// None for `describe`, which may not use any capability.
    pub(super) target: Option<CallTarget>,
    /// Metrics of the plugin; none for `describe`, which is not counted.
    pub metrics: Option<Arc<PluginMetrics>>,
    /// The id of the reconcile in logs and traces.
    pub id: ReconcileId,
    kind: CallKind,
    /// The namespace of the Upstream that delivered the message, in a message handler.
    broker_namespace: Option<Arc<str>>,
    /// The kind that was last denied, which may not even exist.
    denied_kind: Mutex<Option<Box<Gvk>>>,
}

impl CallContext {
    pub(super) fn reconcile(policy: Arc<PluginPolicy>, target: Option<CallTarget>) -> Self {
        Self::new(policy, target, CallKind::Reconcile)
    }

    pub(super) fn hook(policy: Arc<PluginPolicy>, target: CallTarget) -> Self {
        Self::new(policy, Some(target), CallKind::Hook)
    }

    pub(super) fn message(policy: Arc<PluginPolicy>, target: CallTarget, broker_namespace: Arc<str>) -> Self {
        Self {
            broker_namespace: Some(broker_namespace),
            ..Self::new(policy, Some(target), CallKind::Message)
        }
    }

    fn new(policy: Arc<PluginPolicy>, target: Option<CallTarget>, kind: CallKind) -> Self {
        Self {
            metrics: target
                .as_ref()
                .map(|t| t.services.metrics.plugin_metrics(&policy.plugin)),
            policy,
            target,
            id: ReconcileId::next(),
            kind,
            broker_namespace: None,
            denied_kind: Mutex::default(),
        }
    }

    /// The limits of the plugin.
    pub fn limits(&self) -> &PluginLimits {
        &self.policy.limits
    }

    /// The key of the target.
    pub(super) fn target_key(&self) -> Option<&ObjectRef> {
        self.target.as_ref().map(|target| &target.key)
    }

    /// The home cluster of the plugin, as keys name it: empty for the host's own.
    pub(super) fn home_cluster(&self) -> &Arc<str> {
        self.policy.grants.home_cluster()
    }

    /// An object in this cluster is in the cluster of the target, so that it can have an owner reference to it.
    pub(super) fn is_target_cluster(&self, cluster: &str) -> bool {
        *self.target_key().map_or("", |key| &key.cluster) == *cluster
    }

    /// The namespace of the host's own cluster from which Upstreams, Clusters and Secrets are used: that of the target, or
    /// of the `Cluster` where the plugin has another home cluster.
    pub(super) fn host_namespace(&self) -> &str {
        let home = self.policy.grants.home_namespace();
        home.unwrap_or_else(|| self.own_namespace())
    }

    /// The plugin, object and id in the log lines of the call.
    pub(super) fn log_source(&self) -> LogSource {
        LogSource {
            plugin: self.policy.plugin.clone(),
            object: self.target_key().cloned(),
            reconcile: self.id,
        }
    }

    /// Keeps a line that the host has logged about the call, such as its failure, among the recent lines of the plugin.
    pub fn keep_log_line(&self, level: LogLevel, message: &str, stack: Option<&str>) {
        if let Some(target) = &self.target {
            let stack = stack.unwrap_or_default();
            // The same text is in the status of the object.
            let is_withheld = false;
            let (line, logs) = (sanitize_line(message), &target.services.logs);
            logs.append(&self.log_source(), level, &line, stack, is_withheld);
        }
    }

    /// The namespace of the target; empty for a cluster-scoped one, and in `initialize`. For a message it is that of the
    /// broker.
    pub(super) fn own_namespace(&self) -> &str {
        if let Some(namespace) = &self.broker_namespace {
            return namespace;
        }
        self.target_key().map_or("", |key| &key.namespace)
    }

    /// True in a life-cycle hook and in a message handler: there is no reconciled object.
    pub(super) fn is_hook(&self) -> bool {
        self.kind != CallKind::Reconcile
    }

    /// Denies what a message handler may not call.
    pub(super) fn check_call(&self, call: HostCall) -> Result<(), Error> {
        if self.kind == CallKind::Message && !MESSAGE_HANDLER_CALLS.contains(&call) {
            return Err(Error::Denied(format!(
                "{}: not in a message handler, which creates and applies objects and publishes messages: the work belongs \
                 into `reconcile`",
                call.name()
            )));
        }
        Ok(())
    }

    /// The service account of the plugin, if the administrator has given it one.
    pub(super) fn service_account(&self) -> Option<&ServiceAccount> {
        self.policy.grants.service_account()
    }

    /// Checks that the plugin asks for an access and that the administrator has granted it.
    pub(super) fn check_grant(&self, access: &Access<'_>) -> Result<(), Error> {
        let checked = self.policy.grants.check_access(access, self.own_namespace());
        checked.map_err(|e| {
            if let Access::Kubernetes { gvk, cluster: "", .. } = *access {
                *self.denied_kind.lock() = Some(gvk.clone().into());
            }
            Error::Denied(e.to_string())
        })
    }

    /// Takes the kind of the host's own cluster that was last denied.
    pub(super) fn take_denied_kind(&self) -> Option<Box<Gvk>> {
        self.denied_kind.lock().take()
    }

    /// Denies a function in life-cycle hooks, because it is about one reconcile.
    pub(super) fn deny_in_hook(&self, function: &str) -> Result<(), Error> {
        if self.is_hook() {
            return Err(Error::Denied(format!("{function}: not in a life-cycle hook")));
        }
        Ok(())
    }

    /// The field manager, object and service account of a write.
    pub(super) fn write_context<'a>(&'a self, access: &ClusterAccess, by: &'a ObjectRef) -> WriteContext<'a> {
        WriteContext {
            manager: &self.policy.plugin,
            by,
            request_digest: 0,
            sent_digest: None,
            live_version: None,
            account: self.service_account_on(access),
        }
    }

    /// The service account that the plugin acts as on a cluster; none where it acts as the user of its credentials.
    pub(super) fn service_account_on(&self, access: &ClusterAccess) -> Option<&ServiceAccount> {
        self.service_account().filter(|_| access.api.acts_as_plugins)
    }

    /// The name of a cluster in keys: `namespace/name` of its `Cluster`; empty for the host's own. None is the home cluster.
    pub(super) fn parse_cluster(&self, cluster: Option<&str>) -> Result<Arc<str>, Error> {
        let cluster = match cluster {
            None => return Ok(self.home_cluster().clone()),
            Some(IN_CLUSTER) => return Ok(own_cluster()),
            Some(cluster) => cluster,
        };
        let (namespace, name) = cluster
            .split_once('/')
            .unwrap_or((self.host_namespace(), cluster));
        check_path_segments(namespace, name, "cluster")?;
        Ok(cluster_name(namespace, name))
    }

    /// Counts an exceeded limit and returns its error.
    pub(super) fn report_exceeded(&self, Exceeded { limit, resource }: Exceeded) -> Error {
        if let Some(metrics) = &self.metrics {
            metrics.record_exceeded(limit);
        }
        let max = self.limits().format_limit(limit);
        Error::LimitExceeded(format!("more than {max} {resource} (limit {})", limit.name()))
    }

    /// The reference of the contract to an object, which [`Self::parse_reference`] parses.
    pub(super) fn reference_to(&self, key: &ObjectRef) -> types::ObjectRef {
        let cluster = match &*key.cluster {
            cluster if *cluster == **self.home_cluster() => None,
            "" => Some(IN_CLUSTER.to_owned()),
            cluster => Some(cluster.to_owned()),
        };
        types::ObjectRef {
            cluster,
            ..key.into()
        }
    }

    /// Parses a reference of the contract. The key shares its strings with the store.
    pub(super) fn parse_reference(&self, reference: &types::ObjectRef) -> Result<ObjectRef, Error> {
        let cluster = self.parse_cluster(reference.cluster.as_deref())?;
        let gvk = parse_gvk(&reference.gvk)?;
        if reference.name.is_empty() {
            return Err(Error::Invalid("name of the object reference is empty".into()));
        }
        let fields = [
            ("name", Some(&reference.name)),
            ("namespace", reference.namespace.as_ref()),
        ];
        for (field, value) in fields {
            if let Some(value) = value.filter(|v| !is_path_segment(v)) {
                return Err(Error::Invalid(format!(
                    "{field} `{value}` of the object reference is not a name"
                )));
            }
        }
        let namespace = reference.namespace.as_deref().unwrap_or("");
        let key = ObjectRef::new(gvk, namespace, &reference.name).with_cluster(&cluster);
        Ok(match &self.target {
            Some(target) => target.services.cache.store.share_key(key),
            None => key,
        })
    }
}

/// Fails for another cluster, as keys name it, where only the host's own is possible.
pub(super) fn check_own_cluster(subject: &str, cluster: &str) -> Result<(), Error> {
    if cluster.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{subject} on another cluster: only on the host's own, `{IN_CLUSTER}`, and not on `{cluster}`"
    )))
}

/// Fails for a reference to an object that the host itself uses, such as an Upstream, if it names another cluster. None is
/// the host's own cluster, also where the plugin has another home cluster.
pub(super) fn check_host_reference(subject: &str, cluster: Option<&str>) -> Result<(), Error> {
    match cluster {
        None | Some(IN_CLUSTER) => Ok(()),
        Some(cluster) => check_own_cluster(subject, cluster),
    }
}

/// Parses a group, version and kind of the contract.
pub(super) fn parse_gvk(gvk: &types::Gvk) -> Result<Gvk, Error> {
    let gvk = Gvk::new(&gvk.group, &gvk.version, &gvk.kind);
    match gvk.validate() {
        Ok(()) => Ok(gvk),
        Err(e) => Err(Error::Invalid(format!("gvk.{e}"))),
    }
}

/// Checks that a namespace and a name, which are required, are segments of a path. `subject` is the word for the error.
pub(super) fn check_path_segments(namespace: &str, name: &str, subject: &str) -> Result<(), Error> {
    for (field, value) in [("namespace", namespace), ("name", name)] {
        if value.is_empty() || !is_path_segment(value) {
            return Err(Error::Invalid(format!(
                "{field} `{value}` of the {subject} is not a name"
            )));
        }
    }
    Ok(())
}
