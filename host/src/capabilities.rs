//! What a component can ask of the host. One file per WIT interface, each of the same shape:
//! enter (budget), grant check, the call, the record.

mod clock;
mod config;
mod door;
mod events;
pub(crate) mod http;
mod kubernetes;
mod log;
mod memo;
mod messaging;
mod metrics;
mod references;
mod status;

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

pub use door::Door;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

use crate::{
    bindings::types::{self, Error},
    cluster::ApiError,
    dependencies::Dependency,
    effects::{Effects, Writer},
    engine::Limits,
    events::Recorder,
    facts::Counts,
    gate::Gate,
    grants::{Access, PluginGrants},
    key::{Gvk, ObjectRef},
    memo::Memo,
    metrics::{HostCall, Metrics, PluginMetrics},
    object::Object,
    plugin::Kind,
    router::Router,
    scope::{Form, Reach, Scope},
    store::Store,
    tape::{Tape, Tapes},
    telemetry::ReconcileId,
    upstream::{Clients, StreamKey, Streams},
    watch::Informers,
};

/// Everything the capabilities work with: shared by all calls.
pub struct Services {
    /// The objects.
    pub store: Arc<Store>,
    /// Who wakes whom.
    pub router: Arc<Router>,
    /// What keeps the store current.
    pub informers: Arc<Informers>,
    /// Writes to the API server.
    pub effects: Arc<Effects>,
    /// Kubernetes Events.
    pub recorder: Recorder,
    /// Clients of upstreams.
    pub upstreams: Clients,
    /// Event streams that are kept open.
    pub streams: Arc<Streams>,
    /// Scratch of each object.
    pub memo: Memo,
    /// Recordings, and who follows.
    pub tapes: Arc<Tapes>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether it may write.
    pub gate: Gate,
    /// How far the host may look.
    pub reach: Reach,
}

impl Services {
    /// The watches of a kind that is reconciled: one, or one in each namespace of a confined host.
    pub fn kind_scopes(&self, kind: &Kind) -> Vec<Scope> {
        self.reach
            .everywhere(&kind.gvk, kind.selector.as_ref(), Form::Whole)
    }
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

/// What a plugin may do and is told, fixed when it was loaded.
pub struct Terms {
    /// The plugin's name.
    pub plugin: Arc<str>,
    /// What the administrator grants it.
    pub grants: PluginGrants,
    /// Its configuration, a JSON object.
    pub config: Vec<u8>,
    /// What one call may use.
    pub limits: Limits,
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

impl Terms {
    /// Whether nothing was agreed otherwise.
    pub fn same(&self, other: &Self) -> bool {
        self.plugin == other.plugin && self.grants == other.grants && self.config == other.config
    }
}

/// One call into a component, seen from its capabilities.
pub struct Call {
    terms: Arc<Terms>,
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
    pub fn new(terms: Arc<Terms>, subject: Option<Subject>) -> Self {
        Self {
            metrics: subject.as_ref().map(|s| s.services.metrics.plugin(&terms.plugin)),
            terms,
            subject,
            id: ReconcileId::next(),
            tape: Tape::Off,
            hook: false,
            started: Instant::now(),
            host_calls: 0,
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
    pub fn hook(terms: Arc<Terms>, subject: Subject) -> Self {
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
        log::Printed::new(self.terms.plugin.clone(), level)
    }

    fn left(&self) -> Duration {
        self.terms.limits.wall.saturating_sub(self.started.elapsed())
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
            let limit = self.terms.limits.host_calls;
            return Err(Error::Budget(format!(
                "more than {limit} host calls in one reconcile"
            )));
        }
        Ok((subject, subject.services.clone()))
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
            .check(access)
            .map_err(|e| Error::Denied(e.to_string()))
    }

    fn subject(&self) -> Option<&ObjectRef> {
        self.subject.as_ref().map(|s| &s.key)
    }

    fn writer<'a>(&'a self, by: &'a ObjectRef) -> Writer<'a> {
        Writer {
            manager: &self.terms.plugin,
            by,
            said: 0,
        }
    }

    /// Remembers a read: from this moment it is watched, and a change of it wakes the object.
    fn read(&mut self, dependency: Dependency) {
        if let Some(subject) = &self.subject
            && !self.reads.contains(&dependency)
        {
            let services = &subject.services;
            if !self.hook {
                services.router.reads(&subject.key, dependency.clone());
            }
            services.informers.ensure(&dependency.scope(&services.reach));
            self.reads.push(dependency);
        }
    }

    /// One object from the shared cache, remembered as read.
    async fn cached(
        &mut self,
        services: &Services,
        key: &ObjectRef,
        form: Form,
    ) -> Result<Option<Arc<Object>>, Error> {
        // First the edge: a watch that is needed is not let go.
        self.read(Dependency::Object(key.clone(), form));
        let scope = services.reach.object(key, form);
        let patience = self.left().min(Duration::from_secs(10));
        let synced = services.informers.synced(&scope, patience);
        synced.await.map_err(Error::Unavailable)?;
        Ok(services.store.get(key, form))
    }

    /// A reference as the contract has it, as the host has it.
    fn key(&self, r: &types::ObjectRef) -> Result<ObjectRef, Error> {
        if let Some(cluster) = &r.cluster {
            return Err(Error::Denied(format!(
                "cluster `{cluster}` is not granted to plugin {}",
                self.terms.plugin
            )));
        }
        for (field, value) in [
            ("gvk.version", &r.gvk.version),
            ("gvk.kind", &r.gvk.kind),
            ("name", &r.name),
        ] {
            if value.is_empty() {
                return Err(Error::Invalid(format!(
                    "{field} of the object reference is empty"
                )));
            }
        }
        for (field, value) in [
            ("name", Some(&r.name)),
            ("namespace", r.namespace.as_ref()),
            ("gvk.group", Some(&r.gvk.group)),
            ("gvk.version", Some(&r.gvk.version)),
        ] {
            if value.is_some_and(|v| v.contains(['/', '?', '#', '%']) || v == "." || v == "..") {
                return Err(Error::Invalid(format!(
                    "{field} `{}` of the object reference is not a name",
                    value.map_or("", |v| v)
                )));
            }
        }
        let gvk = Gvk::new(&r.gvk.group, &r.gvk.version, &r.gvk.kind);
        Ok(ObjectRef::new(gvk, r.namespace.as_deref().unwrap_or(""), &r.name))
    }
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
            ApiError::Unreachable(_) | ApiError::Garbage(_) | ApiError::Deposed(_) => Self::Unavailable(text),
        }
    }
}

/// Nothing a component prints goes to a terminal.
impl IsTerminal for log::Printed {
    fn is_terminal(&self) -> bool {
        false
    }
}
