//! Metrics of a plugin: its reconciles, its calls, and the series that it counts itself.

use crate::contract::trap::TrapKind;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{Histograms, Labels};
use crate::contract::{host_calls::HostCall, limits::Limit};

/// Buckets for the seconds of a reconcile, equal to controller-runtime's.
const RECONCILE_SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];
/// Buckets for the seconds that an object waits in the queue or is reconciled, equal to client-go's.
const WORKQUEUE_SECONDS: [f64; 12] = [
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0,
];
/// Buckets for the seconds of a call: most take microseconds.
const CALL_SECONDS: [f64; 13] = [
    25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 1.0, 10.0, 60.0,
];

/// Buckets for the bytes of linear memory: powers of four from 64 KiB.
const MEMORY_BYTES: [f64; 8] = [
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
];
/// Names of the host's own series, which a plugin can't use.
const RESERVED_NAMES: [&str; 3] = ["limit", "limit_exceeded", "reads_secrets"];
/// Limit of the length of the name of a plugin's own series.
const MAX_NAME_BYTES: usize = 100;

/// Result of a reconcile, as controller-runtime classifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Succeeded, and waits for a change.
    Success,
    /// Is requeued at a certain time, or by a change before that.
    RequeueAfter,
    /// Failed, and is retried after the backoff.
    Error,
    /// Failed, and is not retried.
    TerminalError,
}

impl ReconcileResult {
    /// The value of the `result` label.
    pub fn label(self) -> &'static str {
        RESULT_LABELS[self.result()]
    }

    fn result(self) -> usize {
        match self {
            Self::Success => 0,
            Self::Error | Self::TerminalError => 1,
            Self::RequeueAfter => 3,
        }
    }
}

const RESULT_LABELS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];

const TRAP_LABELS: [&str; 4] = ["cpu_time", "timeout", "memory", "trap"];

/// A write that was not sent because it would have changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppressed {
    /// A server-side apply.
    Apply,
    /// The status.
    Status,
}

const SUPPRESSED_LABELS: [&str; 2] = ["apply", "status"];

/// Defines the metric families in which every plugin has series, and their registration.
macro_rules! families {
    ($($field:ident: $type:ty = $name:literal, $help:literal, $family:expr;)+) => {
        /// Metric families in which every plugin has series.
        pub(super) struct Families { $($field: $type),+ }

        impl Families {
            pub(super) fn register(registry: &mut Registry) -> Self {
                $(
                    let $field: $type = $family;
                    registry.register($name, $help, $field.clone());
                )+
                Self { $($field),+ }
            }
        }
    };
}

families! {
    results: Family<Labels, Counter> =
        "controller_runtime_reconcile",
        "Total number of reconciles, by controller and result",
        Family::default();
    errors: Family<Labels, Counter> =
        "controller_runtime_reconcile_errors",
        "Total number of reconciles that failed",
        Family::default();
    terminal: Family<Labels, Counter> =
        "controller_runtime_terminal_reconcile_errors",
        "Total number of reconciles that failed with a terminal error, which is not retried",
        Family::default();
    panics: Family<Labels, Counter> =
        "controller_runtime_reconcile_panics",
        "Total number of reconciles that ended in a trap of the component, or in a panic of the host",
        Family::default();
    timeouts: Family<Labels, Counter> =
        "controller_runtime_reconcile_timeouts",
        "Total number of reconciles that exceeded their CPU time or timeout",
        Family::default();
    seconds: Histograms =
        "controller_runtime_reconcile_time_seconds",
        "Duration of a reconcile in seconds",
        Family::new_with_constructor(|| Histogram::new(RECONCILE_SECONDS));
    queued: Histograms =
        "workqueue_queue_duration_seconds",
        "Seconds that an object waited in the queue before its reconcile started",
        Family::new_with_constructor(|| Histogram::new(WORKQUEUE_SECONDS));
    worked: Histograms =
        "workqueue_work_duration_seconds",
        "Seconds that the reconcile of an object took",
        Family::new_with_constructor(|| Histogram::new(WORKQUEUE_SECONDS));
    retries: Family<Labels, Counter> =
        "workqueue_retries",
        "Total number of times an object was requeued with a delay",
        Family::default();
    calls: Histograms =
        "ostler_wasm_call_duration_seconds",
        "Duration of a call into a component in seconds, host calls included",
        Family::new_with_constructor(|| Histogram::new(CALL_SECONDS));
    cpu: Family<Labels, Counter<f64, AtomicU64>> =
        "ostler_wasm_cpu_seconds",
        "Total CPU time used by components in seconds",
        Family::default();
    traps: Family<Labels, Counter> =
        "ostler_wasm_traps",
        "Total number of calls into a component that did not return, by reason",
        Family::default();
    host_calls: Family<Labels, Counter> =
        "ostler_host_calls",
        "Total number of host calls made by components",
        Family::default();
    suppressed: Family<Labels, Counter> =
        "ostler_writes_suppressed",
        "Total number of writes that were not sent because they would not have changed the object",
        Family::default();
    hot_loops: Family<Labels, Counter> =
        "ostler_hot_loops",
        "Times an object was throttled: another writer reverts its writes, or it writes and requeues itself at once",
        Family::default();
    exceeded: Family<Labels, Counter> =
        "ostler_plugin_limit_exceeded",
        "Total number of times a component exceeded a limit",
        Family::default();
    bytes: Family<Labels, Counter> =
        "ostler_host_call_bytes",
        "Total number of bytes passed in host calls, by direction: to_host or from_host",
        Family::default();
    memory: Histograms =
        "ostler_wasm_memory_bytes",
        "Linear memory of the instance in bytes at the end of a call into a component",
        Family::new_with_constructor(|| Histogram::new(MEMORY_BYTES));
}

/// Metric handles of one plugin.
pub struct PluginMetrics {
    pub(crate) name: Arc<str>,
    results: [Counter; RESULT_LABELS.len()],
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
    traps: [Counter; TRAP_LABELS.len()],
    host_calls: Vec<Counter>,
    suppressed: [Counter; SUPPRESSED_LABELS.len()],
    hot_loops: Counter,
    exceeded: Vec<Counter>,
    bytes: [Counter; 2],
    memory: Histogram,
    /// Start times of the running reconciles.
    pub(crate) running: Mutex<Vec<Instant>>,
    pub(crate) own: Mutex<HashMap<Box<str>, Own>>,
}

/// A series of the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Own {
    Counter(u64),
    Gauge(f64),
}

impl PluginMetrics {
    pub(super) fn new(families: &Families, name: &Arc<str>) -> Self {
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
            results: RESULT_LABELS.map(|r| families.results.get_or_create_owned(&by("result", r))),
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
            traps: TRAP_LABELS.map(|t| families.traps.get_or_create_owned(&plugin_by("reason", t))),
            host_calls: HostCall::ALL
                .iter()
                .map(|c| {
                    families
                        .host_calls
                        .get_or_create_owned(&plugin_by("call", c.name()))
                })
                .collect(),
            suppressed: SUPPRESSED_LABELS.map(|w| {
                families
                    .suppressed
                    .get_or_create_owned(&plugin_by("operation", w))
            }),
            hot_loops: families.hot_loops.get_or_create_owned(&plugin),
            exceeded: Limit::ALL
                .iter()
                .map(|l| {
                    families
                        .exceeded
                        .get_or_create_owned(&plugin_by("limit", l.name()))
                })
                .collect(),
            bytes: ["to_host", "from_host"]
                .map(|d| families.bytes.get_or_create_owned(&plugin_by("direction", d))),
            memory: families.memory.get_or_create_owned(&plugin),
            running: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// Begins a reconcile of an object that was due for `waited`.
    pub fn begin_reconcile(self: &Arc<Self>, waited: Duration) -> RunningReconcile {
        self.queued.observe(waited.as_secs_f64());
        let since = Instant::now();
        self.running.lock().push(since);
        RunningReconcile {
            plugin: self.clone(),
            since,
        }
    }

    /// Records the duration of a call into the component, and the CPU time in it.
    pub fn called(&self, took: Duration, cpu: Duration) {
        self.calls.observe(took.as_secs_f64());
        self.cpu.inc_by(cpu.as_secs_f64());
    }

    /// Records the bytes that went out of the component and into it, and its memory.
    pub fn used(&self, (out, in_): (usize, usize), memory: usize) {
        self.bytes[0].inc_by(out as u64);
        self.bytes[1].inc_by(in_ as u64);
        self.memory.observe(memory as f64);
    }

    /// Counts a limit that was exceeded.
    pub fn exceeded(&self, limit: Limit) {
        self.exceeded[limit as usize].inc();
    }

    /// Counts a call into the component that did not return.
    pub fn trapped(&self, kind: TrapKind) {
        self.traps[kind as usize].inc();
        match kind {
            TrapKind::CpuTime | TrapKind::Timeout => self.timeouts.inc(),
            TrapKind::Memory | TrapKind::Other => self.panics.inc(),
        };
    }

    /// Counts a reconcile in which the host panicked.
    pub fn record_panic(&self) {
        self.panics.inc();
    }

    /// Counts a call of the component into the host.
    pub fn host_call(&self, call: HostCall) {
        self.host_calls[call as usize].inc();
    }

    /// Counts a write that was not sent because it would have changed nothing.
    pub fn suppressed(&self, write: Suppressed) {
        self.suppressed[write as usize].inc();
    }

    /// Counts an object that is throttled because its reconciles form a hot loop.
    pub fn hot_loop(&self) {
        self.hot_loops.inc();
    }

    /// Adds to a counter of the plugin's own.
    pub fn add(&self, name: &str, delta: u64, most: u32) {
        self.own(
            name.strip_suffix("_total").unwrap_or(name),
            Own::Counter(0),
            most,
            |own| {
                if let Own::Counter(n) = own {
                    *n = n.saturating_add(delta);
                }
            },
        );
    }

    /// Sets a gauge of the plugin's own.
    pub fn set(&self, name: &str, value: f64, most: u32) {
        // This suffix is reserved for the samples of counters.
        if !name.ends_with("_total") {
            self.own(name, Own::Gauge(value), most, |own| {
                if let Own::Gauge(v) = own {
                    *v = value;
                }
            });
        }
    }

    /// Updates one of the plugin's own series. Names are `[a-z][a-z0-9_]*`; others, and those over the limit, are dropped.
    fn own(&self, name: &str, new: Own, most: u32, change: impl FnOnce(&mut Own)) {
        let mut letters = name.bytes();
        let valid = name.len() <= MAX_NAME_BYTES
            && letters.next().is_some_and(|b| b.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !valid || RESERVED_NAMES.contains(&name) {
            return;
        }
        let mut own = self.own.lock();
        if !own.contains_key(name) {
            if own.len() >= most as usize {
                return self.exceeded(Limit::MetricSeries);
            }
            own.insert(name.into(), new);
        }
        if let Some(known) = own.get_mut(name) {
            change(known);
        }
    }
}

/// A reconcile that is running. One that is dropped without a result is only counted as having run.
pub struct RunningReconcile {
    plugin: Arc<PluginMetrics>,
    since: Instant,
}

impl RunningReconcile {
    /// Records the result.
    pub fn finish(self, how: ReconcileResult) {
        let plugin = &self.plugin;
        let took = self.since.elapsed().as_secs_f64();
        plugin.seconds.observe(took);
        plugin.worked.observe(took);
        plugin.results[how.result()].inc();
        if matches!(how, ReconcileResult::Error | ReconcileResult::TerminalError) {
            plugin.errors.inc();
        }
        if how == ReconcileResult::TerminalError {
            plugin.terminal.inc();
        }
        if matches!(how, ReconcileResult::Error | ReconcileResult::RequeueAfter) {
            plugin.retries.inc();
        }
    }
}

impl Drop for RunningReconcile {
    fn drop(&mut self) {
        let mut running = self.plugin.running.lock();
        if let Some(at) = running.iter().position(|since| *since == self.since) {
            running.swap_remove(at);
        }
    }
}
