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

use super::{Histograms, MetricLabels, definitions, log_rate::LogRate};
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
    /// True for a failure, whether it is retried or not.
    pub fn is_error(self) -> bool {
        matches!(self, Self::Error | Self::TerminalError)
    }

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

pub(crate) const RESULT_LABELS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];

const TRAP_LABELS: [&str; 5] = ["cpu_time", "timeout", "memory", "host", "trap"];

/// A write that was not sent because it would have changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppressed {
    /// A server-side apply.
    Apply,
    /// The status.
    Status,
}

pub(crate) const SUPPRESSED_LABELS: [&str; 2] = ["apply", "status"];

const DIRECTION_LABELS: [&str; 2] = ["to_host", "from_host"];

/// Defines the metric families in which every plugin has series, and their registration.
macro_rules! families {
    ($($field:ident: $type:ty = $definition:path, $family:expr;)+) => {
        /// Metric families in which every plugin has series.
        pub(super) struct Families { $($field: $type),+ }

        impl Families {
            pub(super) fn register(registry: &mut Registry) -> Self {
                $(let $field: $type = $definition.register(registry, $family);)+
                Self { $($field),+ }
            }
        }
    };
}

families! {
    results: Family<MetricLabels, Counter> =
        definitions::RECONCILES,
        Family::default();
    errors: Family<MetricLabels, Counter> =
        definitions::RECONCILE_ERRORS,
        Family::default();
    terminal: Family<MetricLabels, Counter> =
        definitions::TERMINAL_ERRORS,
        Family::default();
    panics: Family<MetricLabels, Counter> =
        definitions::RECONCILE_PANICS,
        Family::default();
    timeouts: Family<MetricLabels, Counter> =
        definitions::RECONCILE_TIMEOUTS,
        Family::default();
    seconds: Histograms =
        definitions::RECONCILE_SECONDS,
        Family::new_with_constructor(|| Histogram::new(RECONCILE_SECONDS));
    queued: Histograms =
        definitions::QUEUE_SECONDS,
        Family::new_with_constructor(|| Histogram::new(WORKQUEUE_SECONDS));
    worked: Histograms =
        definitions::WORK_SECONDS,
        Family::new_with_constructor(|| Histogram::new(WORKQUEUE_SECONDS));
    retries: Family<MetricLabels, Counter> =
        definitions::QUEUE_RETRIES,
        Family::default();
    calls: Histograms =
        definitions::CALL_SECONDS,
        Family::new_with_constructor(|| Histogram::new(CALL_SECONDS));
    cpu: Family<MetricLabels, Counter<f64, AtomicU64>> =
        definitions::CPU_SECONDS,
        Family::default();
    traps: Family<MetricLabels, Counter> =
        definitions::TRAPS,
        Family::default();
    host_calls: Family<MetricLabels, Counter> =
        definitions::HOST_CALLS,
        Family::default();
    suppressed: Family<MetricLabels, Counter> =
        definitions::SUPPRESSED_WRITES,
        Family::default();
    hot_loops: Family<MetricLabels, Counter> =
        definitions::HOT_LOOPS,
        Family::default();
    exceeded: Family<MetricLabels, Counter> =
        definitions::LIMIT_EXCEEDED,
        Family::default();
    bytes: Family<MetricLabels, Counter> =
        definitions::HOST_CALL_BYTES,
        Family::default();
    memory: Histograms =
        definitions::MEMORY_BYTES,
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
    /// Rate of its log lines.
    pub log_rate: Mutex<LogRate>,
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
        let one = || [name.clone()];
        let two = || [name.clone(), name.clone()];
        let by = |value: &str| [name.clone(), value.into()];
        Self {
            name: name.clone(),
            results: RESULT_LABELS.map(|r| {
                let labels = definitions::RECONCILES.with_values(by(r));
                families.results.get_or_create_owned(&labels)
            }),
            errors: families
                .errors
                .get_or_create_owned(&definitions::RECONCILE_ERRORS.with_values(one())),
            terminal: families
                .terminal
                .get_or_create_owned(&definitions::TERMINAL_ERRORS.with_values(one())),
            panics: families
                .panics
                .get_or_create_owned(&definitions::RECONCILE_PANICS.with_values(one())),
            timeouts: families
                .timeouts
                .get_or_create_owned(&definitions::RECONCILE_TIMEOUTS.with_values(one())),
            seconds: families
                .seconds
                .get_or_create_owned(&definitions::RECONCILE_SECONDS.with_values(one())),
            queued: families
                .queued
                .get_or_create_owned(&definitions::QUEUE_SECONDS.with_values(two())),
            worked: families
                .worked
                .get_or_create_owned(&definitions::WORK_SECONDS.with_values(two())),
            retries: families
                .retries
                .get_or_create_owned(&definitions::QUEUE_RETRIES.with_values(two())),
            calls: families
                .calls
                .get_or_create_owned(&definitions::CALL_SECONDS.with_values(one())),
            cpu: families
                .cpu
                .get_or_create_owned(&definitions::CPU_SECONDS.with_values(one())),
            traps: TRAP_LABELS.map(|t| {
                let labels = definitions::TRAPS.with_values(by(t));
                families.traps.get_or_create_owned(&labels)
            }),
            host_calls: HostCall::ALL
                .iter()
                .map(|c| {
                    let labels = definitions::HOST_CALLS.with_values(by(c.name()));
                    families.host_calls.get_or_create_owned(&labels)
                })
                .collect(),
            suppressed: SUPPRESSED_LABELS.map(|w| {
                let labels = definitions::SUPPRESSED_WRITES.with_values(by(w));
                families.suppressed.get_or_create_owned(&labels)
            }),
            hot_loops: families
                .hot_loops
                .get_or_create_owned(&definitions::HOT_LOOPS.with_values(one())),
            exceeded: Limit::ALL
                .iter()
                .map(|l| {
                    let labels = definitions::LIMIT_EXCEEDED.with_values(by(l.name()));
                    families.exceeded.get_or_create_owned(&labels)
                })
                .collect(),
            bytes: DIRECTION_LABELS.map(|d| {
                let labels = definitions::HOST_CALL_BYTES.with_values(by(d));
                families.bytes.get_or_create_owned(&labels)
            }),
            memory: families
                .memory
                .get_or_create_owned(&definitions::MEMORY_BYTES.with_values(one())),
            log_rate: Mutex::default(),
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
    pub fn record_call(&self, took: Duration, cpu: Duration) {
        self.calls.observe(took.as_secs_f64());
        self.cpu.inc_by(cpu.as_secs_f64());
    }

    /// Records the bytes that went out of the component and into it, and its memory.
    pub fn record_usage(&self, (out, in_): (usize, usize), memory: usize) {
        self.bytes[0].inc_by(out as u64);
        self.bytes[1].inc_by(in_ as u64);
        self.memory.observe(memory as f64);
    }

    /// Counts a limit that was exceeded.
    pub fn record_exceeded(&self, limit: Limit) {
        self.exceeded[limit as usize].inc();
    }

    /// Counts a call into the component that did not return.
    pub fn record_trap(&self, kind: TrapKind) {
        self.traps[kind as usize].inc();
        match kind {
            TrapKind::HostExhausted => 0,
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
    pub fn record_suppressed(&self, write: Suppressed) {
        self.suppressed[write as usize].inc();
    }

    /// Counts an object that is throttled because its reconciles form a hot loop.
    pub fn hot_loop(&self) {
        self.hot_loops.inc();
    }

    /// Adds to a counter of the plugin's own.
    pub fn add_own(&self, name: &str, delta: u64, most: u32) {
        self.update_own(
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
    pub fn set_own(&self, name: &str, value: f64, most: u32) {
        // This suffix is reserved for the samples of counters.
        if !name.ends_with("_total") {
            self.update_own(name, Own::Gauge(value), most, |own| {
                if let Own::Gauge(v) = own {
                    *v = value;
                }
            });
        }
    }

    /// Updates one of the plugin's own series. Names are `[a-z][a-z0-9_]*`; others, and those over the limit, are dropped.
    fn update_own(&self, name: &str, new: Own, most: u32, change: impl FnOnce(&mut Own)) {
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
                return self.record_exceeded(Limit::MetricSeries);
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
