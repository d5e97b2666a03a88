//! What a component can ask of the host. One file per WIT interface, each of the same shape:
//! enter (budget), grant check, the call, the record.

mod cache;
mod clock;
mod config;
mod dispatch;
mod events;
pub(crate) mod http;
mod kubernetes;
mod log;
mod messaging;
mod metrics;
mod references;
mod status;
#[cfg(test)]
mod tests;

use crate::contract::limits::Limits;
use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::{Arc, atomic::AtomicU32},
    time::{Duration, Instant},
};

pub use dispatch::HostCalls;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

use crate::{
    cache::{informer::Informers, store::Store},
    client::{
        access_review::{AccessError, AccessReviewer, ReadAccess},
        api::ApiError,
        fence::WriteFence,
    },
    contract::{
        bindings::types::{self, Error},
        limits::Limit,
    },
    effect::{
        events::EventRecorder,
        writer::{ApiWriter, WriteContext},
    },
    kube::{
        key::{Gvk, ObjectRef},
        object::Object,
        scope::{NamespaceScope, Projection},
    },
    observe::{
        metrics::{HostCall, Metrics, PluginMetrics},
        telemetry::ReconcileId,
    },
    policy::{grants::Access, plugin_policy::PluginPolicy},
    recording::{Tape, Tapes},
    sandbox::object_cache::ObjectCache,
    schedule::{dependencies::Dependency, dispatcher::Dispatcher},
    upstream::{ClientPool, EventStreams, StreamKey},
};

/// Counts of one reconcile, added to those of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes sent to the API server, events included.
    pub api_writes: u64,
    /// Requests to upstreams that only read (GET, HEAD).
    pub upstream_reads: u64,
    /// All other requests to upstreams; logins are the host's own and not counted.
    pub upstream_writes: u64,
}

/// Everything the capabilities work with: shared by all calls.
pub struct Services {
    /// The objects.
    pub store: Arc<Store>,
    /// Who wakes whom.
    pub dispatcher: Arc<Dispatcher>,
    /// What keeps the store current.
    pub informers: Arc<Informers>,
    /// Writes to the API server.
    pub writer: Arc<ApiWriter>,
    /// Whether plugins' service accounts may read what the store has.
    pub reviewer: AccessReviewer,
    /// Kubernetes Events.
    pub recorder: EventRecorder,
    /// Clients of upstreams.
    pub upstreams: ClientPool,
    /// Event streams that are kept open.
    pub streams: Arc<EventStreams>,
    /// The caches of the objects.
    pub object_cache: ObjectCache,
    /// Recordings, and who follows.
    pub tapes: Arc<Tapes>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether it may write.
    pub fence: WriteFence,
    /// Name of the Lease that this process is a candidate for; none leads without one.
    pub lease: Option<Arc<str>>,
    /// How far the host may look.
    pub namespaces: NamespaceScope,
}

/// What a call is about. `describe` has none: it is sealed.
pub struct Subject {
    /// The object being reconciled.
    pub key: ObjectRef,
    /// As it was given to the component.
    pub object: Arc<Object>,
    /// The services it may use.
    pub services: Arc<Services>,
}

/// A reference as people write it, for spans.
struct Named<'a>(&'a types::ObjectRef);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        match &r.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", r.gvk.kind, r.name),
            None => write!(f, "{}/{}", r.gvk.kind, r.name),
        }
    }
}

/// One call into a component, seen from its capabilities.
pub struct Call {
    terms: Arc<PluginPolicy>,
    subject: Option<Subject>,
    /// What is counted of the plugin; `describe` is not counted.
    pub metrics: Option<Arc<PluginMetrics>>,
    /// For its log lines.
    pub id: ReconcileId,
    /// What passes the door is recorded by it, or answered.
    pub tape: Tape,
    /// A life-cycle hook: no reconcile, so that nothing it reads wakes anybody.
    hook: bool,
    started: Instant,
    host_calls: u32,
    /// Bytes handed to the host, and given by it.
    bytes: (usize, usize),
    /// Objects that lists gave.
    listed: usize,
    /// Lines logged; shared with what prints.
    lines: Arc<AtomicU32>,
    /// Whether RBAC refused something: nobody tells when that changes.
    pub forbidden: bool,
    /// Most linear memory it had.
    pub memory: usize,
    /// How long the component has computed.
    pub cpu: Duration,
    /// What it cost.
    pub counts: Counts,
    /// What it read.
    pub reads: Vec<Dependency>,
    /// What it wrote to the API server.
    pub wrote: BTreeSet<ObjectRef>,
    /// What it holds.
    pub holds: BTreeSet<ObjectRef>,
    /// The event streams it follows.
    pub follows: HashSet<StreamKey>,
    /// The status it has checkpointed, if it has.
    pub checkpointed: Option<Arc<Object>>,
}

impl Call {
    /// A call on behalf of an object; without a subject every capability says denied.
    pub fn new(terms: Arc<PluginPolicy>, subject: Option<Subject>) -> Self {
        Self {
            metrics: subject
                .as_ref()
                .map(|s| s.services.metrics.plugin_metrics(&terms.plugin)),
            terms,
            subject,
            id: ReconcileId::next(),
            tape: Tape::Off,
            hook: false,
            started: Instant::now(),
            host_calls: 0,
            bytes: (0, 0),
            listed: 0,
            lines: Arc::default(),
            forbidden: false,
            memory: 0,
            cpu: Duration::ZERO,
            counts: Counts::default(),
            reads: Vec::new(),
            wrote: BTreeSet::new(),
            holds: BTreeSet::new(),
            follows: HashSet::new(),
            checkpointed: None,
        }
    }

    /// A call of a life-cycle hook, about an object or the plugin itself.
    pub fn hook(terms: Arc<PluginPolicy>, subject: Subject) -> Self {
        Self {
            hook: true,
            ..Self::new(terms, Some(subject))
        }
    }

    /// What it may use.
    pub fn limits(&self) -> &Limits {
        &self.terms.limits
    }

    /// Where what the component prints goes: line by line to the log.
    pub fn output(&self, level: tracing::Level) -> impl StdoutStream + 'static {
        log::Printed::new(
            log::Lines {
                plugin: self.terms.plugin.clone(),
                metrics: self.metrics.clone(),
                written: self.lines.clone(),
                most: self.terms.limits.log_lines,
            },
            level,
        )
    }

    fn left(&self) -> Duration {
        self.terms.limits.timeout.saturating_sub(self.started.elapsed())
    }

    /// Counts a host call and gives what it works with.
    fn enter(&mut self, call: HostCall) -> Result<(&Subject, Arc<Services>), Error> {
        if let Some(metrics) = &self.metrics {
            metrics.host_call(call);
        }
        let Some(subject) = &self.subject else {
            return Err(Error::Denied(
                "`describe` is pure: no capability may be used in it".into(),
            ));
        };
        self.host_calls += 1;
        if self.host_calls > self.terms.limits.host_calls {
            return Err(self.exceeded(Limit::HostCalls, "host calls in one reconcile"));
        }
        Ok((subject, subject.services.clone()))
    }

    /// A limit is exceeded: counted, and told.
    fn exceeded(&self, limit: Limit, what: &str) -> Error {
        if let Some(metrics) = &self.metrics {
            metrics.record_exceeded(limit);
        }
        let most = self.terms.limits.shown(limit);
        Error::LimitExceeded(format!("more than {most} {what} (limit {})", limit.name()))
    }

    /// Counts bytes the component hands over.
    fn takes(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes.0 = self.bytes.0.saturating_add(bytes);
        match self.bytes.0 > self.terms.limits.bytes_to_host {
            true => Err(self.exceeded(Limit::BytesToHost, "bytes handed to the host in one reconcile")),
            false => Ok(()),
        }
    }

    /// Counts bytes that are given to the component.
    fn gives(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes.1 = self.bytes.1.saturating_add(bytes);
        match self.bytes.1 > self.terms.limits.bytes_from_host {
            true => Err(self.exceeded(Limit::BytesFromHost, "bytes given by the host in one reconcile")),
            false => Ok(()),
        }
    }

    /// What a component is given, counted.
    fn given(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.gives(bytes.len()).map(|()| bytes)
    }

    /// Whether one more log line may be written. The first that may not says so.
    fn line(&self) -> bool {
        let most = self.terms.limits.log_lines;
        log::Lines::one_more(&self.lines, most, &self.terms.plugin, self.metrics.as_deref())
    }

    /// Bytes handed over, and given.
    pub fn bytes(&self) -> (usize, usize) {
        self.bytes
    }

    /// RBAC's part of what may be read from the shared cache.
    async fn permitted(&mut self, services: &Services, reads: &[ReadAccess<'_>]) -> Result<(), Error> {
        let Some(account) = self.terms.grants.service_account() else {
            return Ok(());
        };
        for read in reads {
            match services.reviewer.check_access(account, *read).await {
                Ok(()) => {}
                Err(AccessError::Forbidden(why)) => {
                    self.forbidden = true;
                    return Err(Error::Denied(why));
                }
                Err(AccessError::Unavailable(e)) => return Err(Error::Unavailable(e.to_string())),
            }
        }
        Ok(())
    }

    /// What the API server said to a request that was made as the plugin.
    fn refused(&mut self, e: ApiError) -> Error {
        match self.terms.grants.service_account() {
            Some(account) if e.code() == 403 => {
                let why = format!("RBAC: service account {account}: {e}");
                self.forbidden = true;
                Error::Denied(why)
            }
            _ => e.into(),
        }
    }

    /// What belongs to a reconcile is not for hooks.
    fn reconciling(&self, what: &str) -> Result<(), Error> {
        match self.hook {
            true => Err(Error::Denied(format!("{what}: not in a life-cycle hook"))),
            false => Ok(()),
        }
    }

    /// The one door: every capability asks here.
    fn allow(&self, access: &Access<'_>) -> Result<(), Error> {
        self.terms
            .grants
            .check_access(access)
            .map_err(|e| Error::Denied(e.to_string()))
    }

    fn subject(&self) -> Option<&ObjectRef> {
        self.subject.as_ref().map(|s| &s.key)
    }

    fn writer<'a>(&'a self, by: &'a ObjectRef) -> WriteContext<'a> {
        WriteContext {
            manager: &self.terms.plugin,
            by,
            request_digest: 0,
            account: self.terms.grants.service_account(),
        }
    }

    /// Remembers a read: from this moment it is watched, and a change of it wakes the object.
    fn read(&mut self, dependency: Dependency) {
        if let Some(subject) = &self.subject
            && !self.reads.contains(&dependency)
        {
            let services = &subject.services;
            if !self.hook {
                services.dispatcher.record_read(&subject.key, dependency.clone());
            }
            services
                .informers
                .ensure_informer(&dependency.scope(&services.namespaces));
            self.reads.push(dependency);
        }
    }

    /// One object from the shared cache, remembered as read.
    async fn cached(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        form: Projection,
    ) -> Result<Option<Arc<Object>>, Error> {
        // First the edge: a watch that is needed is not let go.
        self.read(Dependency::Object(key.clone(), form));
        let scope = services.namespaces.object_scope(key, form);
        let patience = self.left().min(Duration::from_secs(10));
        let synced = services.informers.wait_synced(&scope, patience);
        synced.await.map_err(Error::Unavailable)?;
        Ok(services.store.get(key, form))
    }

    /// A reference as the contract has it, as the host has it.
    fn key(&self, r: &types::ObjectRef) -> Result<ObjectRef, Error> {
        check_cluster(r.cluster.as_deref())?;
        let gvk = kind(&r.gvk)?;
        if r.name.is_empty() {
            return Err(Error::Invalid("name of the object reference is empty".into()));
        }
        for (field, value) in [("name", Some(&r.name)), ("namespace", r.namespace.as_ref())] {
            if let Some(value) = value.filter(|v| !segment(v)) {
                return Err(Error::Invalid(format!(
                    "{field} `{value}` of the object reference is not a name"
                )));
            }
        }
        let key = ObjectRef::new(gvk, r.namespace.as_deref().unwrap_or(""), &r.name);
        Ok(match &self.subject {
            Some(subject) => subject.services.store.share_key(key),
            None => key,
        })
    }
}

/// Fails for a reference to another cluster, which this host does not support yet.
fn check_cluster(cluster: Option<&str>) -> Result<(), Error> {
    match cluster {
        None => Ok(()),
        Some(cluster) => Err(Error::Unsupported(format!(
            "references to other clusters yet: leave out the cluster `{cluster}`"
        ))),
    }
}

/// A kind as the contract has it, if it is one.
fn kind(gvk: &types::Gvk) -> Result<Gvk, Error> {
    let gvk = Gvk::new(&gvk.group, &gvk.version, &gvk.kind);
    match gvk.validate() {
        Ok(()) => Ok(gvk),
        Err(e) => Err(Error::Invalid(format!("gvk.{e}"))),
    }
}

/// Whether a text is one segment of a path, and nothing else.
fn segment(text: &str) -> bool {
    let other = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '\\' | '?' | '#' | '%');
    !text.contains(other) && text != "." && text != ".."
}

impl types::Host for Call {}

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
    /// As controller authors think of them: what to wait for, what to give up on.
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
            ApiError::UnknownKind(_) => Self::Unavailable(text),
            ApiError::Unreachable(_) | ApiError::InvalidResponse(_) | ApiError::NotLeader(_) => {
                Self::Unavailable(text)
            }
        }
    }
}

/// Nothing a component prints goes to a terminal.
impl IsTerminal for log::Printed {
    fn is_terminal(&self) -> bool {
        false
    }
}
