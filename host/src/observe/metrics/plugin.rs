//! What is counted of a plugin: its reconciles, its calls, and what it counts itself.

use crate::contract::trap::TrapKind;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Metric, Registry},
};

use super::{Histograms, Labels};
use crate::contract::{host_calls::HostCall, limits::Limit};

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
/// Seconds a component's call takes: most take microseconds.
const CALL: [f64; 13] = [
    25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 1.0, 10.0, 60.0,
];

/// Bytes of linear memory, powers of four from 64 KiB.
const MEMORY: [f64; 8] = [
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
];
/// Names of the host's own series, which a plugin can't have.
const RESERVED: [&str; 3] = ["limit", "limit_exceeded", "reads_secrets"];
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

/// The families of which every plugin has a series or several.
pub(super) struct Families {
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
    exceeded: Family<Labels, Counter>,
    bytes: Family<Labels, Counter>,
    memory: Histograms,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        fn counter<C: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, family: C) -> C {
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
                "Times an object was slowed down: its reconciles change what they read, or write and hurry",
                Family::default(),
            ),
            exceeded: counter(
                r,
                "ostler_plugin_limit_exceeded",
                "Times a component wanted more than a limit",
                Family::default(),
            ),
            bytes: counter(
                r,
                "ostler_host_call_bytes",
                "Bytes that components hand to the host (out) and are given by it (in)",
                Family::default(),
            ),
            memory: histogram(
                r,
                "ostler_wasm_memory_bytes",
                "Linear memory a call into a component had at its end",
                || Histogram::new(MEMORY),
            ),
        }
    }
}

/// What is counted of one plugin.
pub struct PluginMetrics {
    pub(crate) name: Arc<str>,
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
    exceeded: Vec<Counter>,
    bytes: [Counter; 2],
    memory: Histogram,
    /// When the reconciles that run began.
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
            host_calls: HostCall::ALL
                .iter()
                .map(|c| {
                    families
                        .host_calls
                        .get_or_create_owned(&plugin_by("call", c.name()))
                })
                .collect(),
            suppressed: SUPPRESSED.map(|w| families.suppressed.get_or_create_owned(&plugin_by("write", w))),
            hot_loops: families.hot_loops.get_or_create_owned(&plugin),
            exceeded: Limit::ALL
                .iter()
                .map(|l| {
                    families
                        .exceeded
                        .get_or_create_owned(&plugin_by("limit", l.name()))
                })
                .collect(),
            bytes: ["out", "in"].map(|d| families.bytes.get_or_create_owned(&plugin_by("direction", d))),
            memory: families.memory.get_or_create_owned(&plugin),
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

    /// So many bytes went out of it and into it, and so much memory it had.
    pub fn used(&self, (out, in_): (usize, usize), memory: usize) {
        self.bytes[0].inc_by(out as u64);
        self.bytes[1].inc_by(in_ as u64);
        self.memory.observe(memory as f64);
    }

    /// It wanted more than a limit.
    pub fn exceeded(&self, limit: Limit) {
        self.exceeded[limit as usize].inc();
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
        // A name with this ending is a counter's sample.
        if !name.ends_with("_total") {
            self.own(name, Own::Gauge(value), most, |own| {
                if let Own::Gauge(v) = own {
                    *v = value;
                }
            });
        }
    }

    /// Names are `[a-z][a-z0-9_]*`; others, and more than there is room for, are dropped.
    fn own(&self, name: &str, new: Own, most: u32, change: impl FnOnce(&mut Own)) {
        let mut letters = name.bytes();
        let valid = name.len() <= OWN_NAME
            && letters.next().is_some_and(|b| b.is_ascii_lowercase())
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !valid || RESERVED.contains(&name) {
            return;
        }
        let mut own = self.own.lock().expect("lock");
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
