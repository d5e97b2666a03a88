//! What the host counts: controller-runtime's names and labels, so that dashboards made for it work here,
//! and Ostler's own.
//!
//! What happens is counted here as it happens, through handles that are looked up once per call. What *is*
//! (sizes, depths, who leads) is not kept a second time: `scrape` reads it when it is asked for.

mod scrape;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, RwLock, atomic::AtomicU64},
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

pub use self::scrape::{Format, Scraped};

/// `controller` of controller-runtime is a plugin here: what has a queue, a concurrency and a result.
type Labels = Vec<(&'static str, Arc<str>)>;

/// Seconds a reconcile takes, as controller-runtime's buckets have them.
const RECONCILE: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Seconds something waits in a queue or is worked on.
const WORKQUEUE: [f64; 12] = [
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0,
];
/// Seconds until another server has answered.
const REQUEST: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Seconds a component's call takes: most take microseconds.
const CALL: [f64; 13] = [
    25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 1.0, 10.0, 60.0,
];

/// Upstreams told apart; objects make them, and their number must not fill the memory.
const UPSTREAMS: usize = 500;
/// Series one plugin may have of its own.
const OWN_SERIES: usize = 500;
/// Longest name of such a series.
const OWN_NAME: usize = 100;

/// How a reconcile ended, in controller-runtime's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Done until something changes.
    Success,
    /// Again at a time it has named, or at the latest then.
    RequeueAfter,
    /// Failed; again after the back-off.
    Error,
    /// Failed; a retry would not help.
    TerminalError,
}

impl Ended {
    /// The word of the `result` label.
    pub fn word(self) -> &'static str {
        RESULTS[self.result()]
    }

    fn result(self) -> usize {
        match self {
            Self::Success => 0,
            Self::Error | Self::TerminalError => 1,
            Self::RequeueAfter => 3,
        }
    }
}

const RESULTS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];

/// What ended a component's call before it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// Computed too long.
    Cpu,
    /// Took too long.
    Wall,
    /// Wanted too much memory.
    Memory,
    /// Trapped.
    Other,
}

const TRAPS: [&str; 4] = ["cpu", "wall", "memory", "trap"];

/// A write that was not sent because it would have changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppressed {
    /// A server-side apply.
    Apply,
    /// The status.
    Status,
}

const SUPPRESSED: [&str; 2] = ["apply", "status"];

macro_rules! host_calls {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// What a component can call, to be counted by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum HostCall { $($variant),+ }

        const HOST_CALLS: &[&str] = &[$($name),+];
    };
}

host_calls! {
    KubernetesGet = "kubernetes.get",
    KubernetesList = "kubernetes.list",
    KubernetesRequireReady = "kubernetes.require-ready",
    KubernetesApply = "kubernetes.apply",
    KubernetesCreate = "kubernetes.create",
    KubernetesDelete = "kubernetes.delete",
    ReferencesHold = "references.hold",
    HttpSend = "http.send",
    HttpSecretDigest = "http.secret-digest",
    HttpSubscribe = "http.subscribe",
    MessagingPublish = "messaging.publish",
    StatusCheckpoint = "status.checkpoint",
    EventsEmit = "events.emit",
    LogWrite = "log.write",
    MetricsCounter = "metrics.counter",
    MetricsGauge = "metrics.gauge",
    ClockNow = "clock.now",
    ConfigGet = "config.get",
    MemoGet = "memo.get",
    MemoPut = "memo.put",
    MemoRemove = "memo.remove",
}

/// A family of histograms.
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Everything the host counts.
pub struct Metrics {
    registry: Registry,
    families: Families,
    plugins: RwLock<HashMap<Arc<str>, Arc<PluginMetrics>>>,
    rest: RestClient,
    upstreams: Family<Upstream, Counter>,
    upstream_seconds: Histograms,
    known_upstreams: Mutex<HashSet<Arc<str>>>,
    leads: Family<Labels, Gauge>,
    leaders: Mutex<Vec<(Arc<str>, Gauge)>>,
}

struct Families {
    results: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
    terminal: Family<Labels, Counter>,
    panics: Family<Labels, Counter>,
    timeouts: Family<Labels, Counter>,
    seconds: Histograms,
    queued: Histograms,
    worked: Histograms,
    retries: Family<Labels, Counter>,
    calls: Histograms,
    cpu: Family<Labels, Counter<f64, AtomicU64>>,
    traps: Family<Labels, Counter>,
    host_calls: Family<Labels, Counter>,
    suppressed: Family<Labels, Counter>,
    hot_loops: Family<Labels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Upstream {
    upstream: Arc<str>,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    code: Code,
    method: &'static str,
    host: Arc<str>,
}

/// The status code of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Code(Option<u16>);

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        match self.0 {
            Some(code) => code.encode(encoder),
            // client-go's word for no answer.
            None => "<error>".encode(encoder),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
    host: Arc<str>,
}

/// Counts requests to the API server.
#[derive(Clone)]
pub struct RestClient {
    requests: Family<Request, Counter>,
    seconds: Family<Verb, Histogram, fn() -> Histogram>,
}

impl RestClient {
    /// A request was answered with this status, or not at all.
    pub fn answered(&self, method: &str, code: Option<u16>, host: &Arc<str>, took: Duration) {
        let verb = match method {
            "GET" => "GET",
            "POST" => "POST",
            "PATCH" => "PATCH",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            _ => "OTHER",
        };
        let host = host.clone();
        self.seconds
            .get_or_create(&Verb {
                verb,
                host: host.clone(),
            })
            .observe(took.as_secs_f64());
        self.requests
            .get_or_create(&Request {
                code: Code(code),
                method: verb,
                host,
            })
            .inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let rest = RestClient {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(REQUEST)),
        };
        registry.register(
            "rest_client_requests",
            "HTTP requests to the API server, by status code, method and host",
            rest.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Seconds until the API server answered, by verb and host",
            rest.seconds.clone(),
        );
        let upstreams = Family::default();
        registry.register(
            "ostler_upstream_requests",
            "Requests of components to upstreams, by upstream and status code; code 0 for no answer",
            upstreams.clone(),
        );
        let upstream_seconds: Histograms = Family::new_with_constructor(|| Histogram::new(REQUEST));
        registry.register(
            "ostler_upstream_request_duration_seconds",
            "Seconds until an upstream answered",
            upstream_seconds.clone(),
        );
        let leads = Family::default();
        registry.register(
            "leader_election_master_status",
            "1 while this process holds the lease, 0 while it does not",
            leads.clone(),
        );
        Self {
            registry,
            families,
            plugins: RwLock::default(),
            rest,
            upstreams,
            upstream_seconds,
            known_upstreams: Mutex::default(),
            leads,
            leaders: Mutex::default(),
        }
    }
}

impl Families {
    fn register(registry: &mut Registry) -> Self {
        fn counter<C: prometheus_client::registry::Metric + Clone>(
            registry: &mut Registry,
            name: &str,
            help: &str,
            family: C,
        ) -> C {
            registry.register(name, help, family.clone());
            family
        }
        fn histogram(
            registry: &mut Registry,
            name: &str,
            help: &str,
            constructor: fn() -> Histogram,
        ) -> Histograms {
            counter(registry, name, help, Family::new_with_constructor(constructor))
        }
        let r = registry;
        Self {
            results: counter(
                r,
                "controller_runtime_reconcile",
                "Reconciles, by controller and result",
                Family::default(),
            ),
            errors: counter(
                r,
                "controller_runtime_reconcile_errors",
                "Reconciles that failed",
                Family::default(),
            ),
            terminal: counter(
                r,
                "controller_runtime_terminal_reconcile_errors",
                "Reconciles that failed and are not retried",
                Family::default(),
            ),
            panics: counter(
                r,
                "controller_runtime_reconcile_panics",
                "Reconciles that ended in a trap",
                Family::default(),
            ),
            timeouts: counter(
                r,
                "controller_runtime_reconcile_timeouts",
                "Reconciles that computed or took too long",
                Family::default(),
            ),
            seconds: histogram(
                r,
                "controller_runtime_reconcile_time_seconds",
                "Seconds a reconcile takes",
                || Histogram::new(RECONCILE),
            ),
            queued: histogram(
                r,
                "workqueue_queue_duration_seconds",
                "Seconds an object was due before it was begun",
                || Histogram::new(WORKQUEUE),
            ),
            worked: histogram(
                r,
                "workqueue_work_duration_seconds",
                "Seconds an object was worked on",
                || Histogram::new(WORKQUEUE),
            ),
            retries: counter(
                r,
                "workqueue_retries",
                "Times an object was queued to be looked at again later",
                Family::default(),
            ),
            calls: histogram(
                r,
                "ostler_wasm_call_duration_seconds",
                "Seconds a call into a component takes, its host calls included",
                || Histogram::new(CALL),
            ),
            cpu: counter(
                r,
                "ostler_wasm_cpu_seconds",
                "Seconds components have computed",
                Family::default(),
            ),
            traps: counter(
                r,
                "ostler_wasm_traps",
                "Calls into a component that did not return, by what ended them",
                Family::default(),
            ),
            host_calls: counter(
                r,
                "ostler_host_calls",
                "Calls of components into the host",
                Family::default(),
            ),
            suppressed: counter(
                r,
                "ostler_writes_suppressed",
                "Writes not sent because they would have changed nothing",
                Family::default(),
            ),
            hot_loops: counter(
                r,
                "ostler_hot_loops",
                "Times an object was slowed down because its reconciles keep changing what they read",
                Family::default(),
            ),
        }
    }
}

impl Metrics {
    /// The handles of a plugin. Looked up once per call.
    pub fn plugin(&self, name: &Arc<str>) -> Arc<PluginMetrics> {
        if let Some(known) = self.plugins.read().expect("lock").get(name) {
            return known.clone();
        }
        let mut plugins = self.plugins.write().expect("lock");
        let new = || Arc::new(PluginMetrics::new(&self.families, name));
        plugins.entry(name.clone()).or_insert_with(new).clone()
    }

    /// What counts requests to the API server.
    pub fn rest(&self) -> RestClient {
        self.rest.clone()
    }

    /// An upstream has answered a component with this status; 0 for no answer.
    pub fn upstream(&self, namespace: &str, name: &str, code: u16, took: Duration) {
        let mut upstream: Arc<str> = format!("{namespace}/{name}").into();
        let mut known = self.known_upstreams.lock().expect("lock");
        if known.len() < UPSTREAMS {
            known.insert(upstream.clone());
        } else if !known.contains(&upstream) {
            upstream = "others".into();
        }
        drop(known);
        self.upstream_seconds
            .get_or_create(&vec![("upstream", upstream.clone())])
            .observe(took.as_secs_f64());
        self.upstreams.get_or_create(&Upstream { upstream, code }).inc();
    }

    /// Whether this process leads, for the lease of this name: told by the elector whenever it changes.
    pub fn leads(&self, lease: &str, yes: bool) {
        let mut leaders = self.leaders.lock().expect("lock");
        let at = leaders.iter().position(|(name, _)| **name == *lease);
        let at = at.unwrap_or_else(|| {
            let name: Arc<str> = lease.into();
            let gauge = self.leads.get_or_create_owned(&vec![("name", name.clone())]);
            leaders.push((name, gauge));
            leaders.len() - 1
        });
        leaders[at].1.set(i64::from(yes));
    }

    /// The leases this process stands for, and whether it holds each.
    pub fn leaders(&self) -> Vec<(Arc<str>, bool)> {
        let leaders = self.leaders.lock().expect("lock");
        leaders
            .iter()
            .map(|(name, gauge)| (name.clone(), gauge.get() == 1))
            .collect()
    }
}

/// What is counted of one plugin.
pub struct PluginMetrics {
    name: Arc<str>,
    results: [Counter; RESULTS.len()],
    errors: Counter,
    terminal: Counter,
    panics: Counter,
    timeouts: Counter,
    seconds: Histogram,
    queued: Histogram,
    worked: Histogram,
    retries: Counter,
    calls: Histogram,
    cpu: Counter<f64, AtomicU64>,
    traps: [Counter; TRAPS.len()],
    host_calls: Vec<Counter>,
    suppressed: [Counter; SUPPRESSED.len()],
    hot_loops: Counter,
    /// When the reconciles that run began.
    running: Mutex<Vec<Instant>>,
    own: Mutex<HashMap<Box<str>, Own>>,
}

/// A series of the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Own {
    Counter(u64),
    Gauge(f64),
}

impl PluginMetrics {
    fn new(families: &Families, name: &Arc<str>) -> Self {
        let by = |label: &'static str, value: &str| -> Labels {
            vec![("controller", name.clone()), (label, value.into())]
        };
        let controller = vec![("controller", name.clone())];
        let queue = vec![("name", name.clone()), ("controller", name.clone())];
        let plugin = vec![("plugin", name.clone())];
        let plugin_by = |label: &'static str, value: &str| -> Labels {
            vec![("plugin", name.clone()), (label, value.into())]
        };
        Self {
            name: name.clone(),
            results: RESULTS.map(|r| families.results.get_or_create_owned(&by("result", r))),
            errors: families.errors.get_or_create_owned(&controller),
            terminal: families.terminal.get_or_create_owned(&controller),
            panics: families.panics.get_or_create_owned(&controller),
            timeouts: families.timeouts.get_or_create_owned(&controller),
            seconds: families.seconds.get_or_create_owned(&controller),
            queued: families.queued.get_or_create_owned(&queue),
            worked: families.worked.get_or_create_owned(&queue),
            retries: families.retries.get_or_create_owned(&queue),
            calls: families.calls.get_or_create_owned(&plugin),
            cpu: families.cpu.get_or_create_owned(&plugin),
            traps: TRAPS.map(|t| families.traps.get_or_create_owned(&plugin_by("kind", t))),
            host_calls: HOST_CALLS
                .iter()
                .map(|c| families.host_calls.get_or_create_owned(&plugin_by("call", c)))
                .collect(),
            suppressed: SUPPRESSED.map(|w| families.suppressed.get_or_create_owned(&plugin_by("write", w))),
            hot_loops: families.hot_loops.get_or_create_owned(&plugin),
            running: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// A reconcile begins, of an object that was due for so long.
    pub fn begin(self: &Arc<Self>, waited: Duration) -> Running {
        self.queued.observe(waited.as_secs_f64());
        let since = Instant::now();
        self.running.lock().expect("lock").push(since);
        Running {
            plugin: self.clone(),
            since,
        }
    }

    /// A call into the component took so long, of which it computed so long.
    pub fn called(&self, took: Duration, cpu: Duration) {
        self.calls.observe(took.as_secs_f64());
        self.cpu.inc_by(cpu.as_secs_f64());
    }

    /// A call into the component did not return.
    pub fn trapped(&self, kind: TrapKind) {
        self.traps[kind as usize].inc();
        match kind {
            TrapKind::Cpu | TrapKind::Wall => self.timeouts.inc(),
            TrapKind::Memory | TrapKind::Other => self.panics.inc(),
        };
    }

    /// The component calls the host.
    pub fn host_call(&self, call: HostCall) {
        self.host_calls[call as usize].inc();
    }

    /// A write was not sent because it would have changed nothing.
    pub fn suppressed(&self, write: Suppressed) {
        self.suppressed[write as usize].inc();
    }

    /// An object is slowed down because its reconciles keep changing what they read.
    pub fn hot_loop(&self) {
        self.hot_loops.inc();
    }

    /// Adds to a counter of the plugin's own.
    pub fn add(&self, name: &str, delta: u64) {
        self.own(
            name.strip_suffix("_total").unwrap_or(name),
            Own::Counter(0),
            |own| {
                if let Own::Counter(n) = own {
                    *n = n.saturating_add(delta);
                }
            },
        );
    }

    /// Sets a gauge of the plugin's own.
    pub fn set(&self, name: &str, value: f64) {
        // A name with this ending is a counter's sample.
        if !name.ends_with("_total") {
            self.own(name, Own::Gauge(value), |own| {
                if let Own::Gauge(v) = own {
                    *v = value;
                }
            });
        }
    }

    /// Names are `[a-z][a-z0-9_]*`; others, and more than there is room for, are dropped.
    fn own(&self, name: &str, new: Own, change: impl FnOnce(&mut Own)) {
        let mut letters = name.bytes();
        let valid = name.len() <= OWN_NAME
            && letters.next().is_some_and(|b| b.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !valid {
            return;
        }
        let mut own = self.own.lock().expect("lock");
        if !own.contains_key(name) && own.len() < OWN_SERIES {
            own.insert(name.into(), new);
        }
        if let Some(known) = own.get_mut(name) {
            change(known);
        }
    }
}

/// A reconcile that runs. One that is dropped, not ended, counts for nothing but having run.
pub struct Running {
    plugin: Arc<PluginMetrics>,
    since: Instant,
}

impl Running {
    /// It has ended.
    pub fn ended(self, how: Ended) {
        let plugin = &self.plugin;
        let took = self.since.elapsed().as_secs_f64();
        plugin.seconds.observe(took);
        plugin.worked.observe(took);
        plugin.results[how.result()].inc();
        if matches!(how, Ended::Error | Ended::TerminalError) {
            plugin.errors.inc();
        }
        if how == Ended::TerminalError {
            plugin.terminal.inc();
        }
        if matches!(how, Ended::Error | Ended::RequeueAfter) {
            plugin.retries.inc();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.plugin.running.lock().expect("lock");
        if let Some(at) = running.iter().position(|since| *since == self.since) {
            running.swap_remove(at);
        }
    }
}
