//! Collection and encoding of metrics on each scrape.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::status::find_watch_state;
use crate::{
    contract::limits::Limit,
    observe::{
        metrics::{
            MAX_UPSTREAMS, MetricLabels, Metrics, definitions,
            plugin::{Own, PluginMetrics},
        },
        telemetry::DroppedLines,
    },
    plugin::{self, LoadState, PluginRegistry},
    reconcile::stats::ReconcileStats,
    sandbox::services::Services,
    schedule::queue::{LaneState, Priority},
    upstream::{CircuitState, ClientPool, EventStreams, HandleResult, Subscriptions},
};

/// Text formats of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4, which every scraper supports.
    Prometheus,
}

impl Format {
    /// The format that a request's `Accept` header prefers.
    pub fn negotiated(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Sources of the gauges that are read on each scrape.
pub struct Scraped<'a> {
    /// Store, watches, queue, events.
    pub services: &'a Services,
    /// Plugins and their builds.
    pub registry: &'a plugin::PluginRegistry,
    /// Objects and their readiness.
    pub stats: &'a ReconcileStats,
    /// The name of the Lease that this process is a candidate for; none without leader election.
    pub lease: Option<&'a Arc<str>>,
    /// Maximum number of concurrent reconciles of one plugin.
    pub workers: u32,
}

type Gauges<N = i64, A = std::sync::atomic::AtomicI64> = Family<MetricLabels, Gauge<N, A>>;
type Seconds = Gauges<f64, std::sync::atomic::AtomicU64>;

impl Metrics {
    /// All metrics as text.
    pub fn text(&self, format: Format, scraped: &Scraped<'_>) -> Result<String, std::fmt::Error> {
        let plugins: Vec<_> = self.plugins.load().values().cloned().collect();
        let mut now = Registry::default();
        register_queue(&mut now, scraped, &plugins);
        register_state(&mut now, scraped);
        register_plugin_metrics(&mut now, &plugins);
        let mut out = String::new();
        text::encode_registry(&mut out, &self.registry)?;
        text::encode_registry(&mut out, &now)?;
        match format {
            Format::OpenMetrics => {
                text::encode_eof(&mut out)?;
                Ok(out)
            }
            Format::Prometheus => Ok(convert_to_prometheus(&out)),
        }
    }
}

/// In the older format a counter's type and help name its sample, `_total` included.
fn convert_to_prometheus(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len() + 1024);
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        let kind = |line: &str| {
            line.strip_prefix("# TYPE ")
                .is_some_and(|l| l.ends_with(" counter"))
        };
        let (what, rest) = if kind(line) {
            ("# TYPE ", line.strip_prefix("# TYPE "))
        } else if lines.peek().is_some_and(|next| kind(next)) {
            ("# HELP ", line.strip_prefix("# HELP "))
        } else {
            ("", None)
        };
        let written = match rest.and_then(|rest| rest.split_once(' ')) {
            Some((name, rest)) => writeln!(out, "{what}{name}_total {rest}"),
            None => writeln!(out, "{line}"),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    out
}

/// The queue and worker metrics of controller-runtime.
fn register_queue(registry: &mut Registry, scraped: &Scraped<'_>, plugins: &[Arc<PluginMetrics>]) {
    let r = registry;
    let depth = definitions::QUEUE_DEPTH.register(r, Gauges::<i64>::default());
    let adds = definitions::QUEUE_ADDS.register(r, Family::<MetricLabels, Counter>::default());
    let delayed = definitions::DELAYED_OBJECTS.register(r, Gauge::<i64>::default());
    let unfinished = definitions::UNFINISHED_SECONDS.register(r, Seconds::default());
    let longest = definitions::LONGEST_RUNNING_SECONDS.register(r, Seconds::default());
    let active = definitions::ACTIVE_WORKERS.register(r, Gauges::<i64>::default());
    let most = definitions::MAX_CONCURRENT_RECONCILES.register(r, Gauges::<i64>::default());
    let (lanes, later) = scraped.services.dispatcher.lanes();
    delayed.set(to_signed(later));
    for LaneState {
        name,
        due,
        in_flight,
        limit,
        adds: added,
    } in lanes
    {
        for (priority, waiting) in due {
            let values = [name.clone(), name.clone(), priority_number(priority).into()];
            let labels = definitions::QUEUE_DEPTH.with_values(values);
            depth.get_or_create(&labels).set(to_signed(waiting));
        }
        adds.get_or_create(&definitions::QUEUE_ADDS.with_values([name.clone(), name.clone()]))
            .inc_by(added);
        let controller = definitions::ACTIVE_WORKERS.with_values([name.clone()]);
        active.get_or_create(&controller).set(to_signed(in_flight));
        let workers = scraped.workers as usize;
        let limit = if limit == 0 { workers } else { limit.min(workers) };
        let controller = definitions::MAX_CONCURRENT_RECONCILES.with_values([name]);
        most.get_or_create(&controller).set(to_signed(limit));
    }
    register_permits(r, scraped);
    let now = Instant::now();
    for plugin in plugins {
        let name = || [plugin.name.clone(), plugin.name.clone()];
        let running = plugin.running.lock();
        let seconds = running
            .iter()
            .map(|since| now.saturating_duration_since(*since).as_secs_f64());
        unfinished
            .get_or_create(&definitions::UNFINISHED_SECONDS.with_values(name()))
            .set(seconds.clone().fold(0.0, std::ops::Add::add));
        longest
            .get_or_create(&definitions::LONGEST_RUNNING_SECONDS.with_values(name()))
            .set(seconds.fold(0.0, f64::max));
    }
}

/// The pools of permits of plugins.
fn register_permits(registry: &mut Registry, scraped: &Scraped<'_>) {
    let used = definitions::PERMITS.register(registry, Gauges::<i64>::default());
    let limits = definitions::PERMIT_LIMIT.register(registry, Gauges::<i64>::default());
    let waiting = definitions::PERMIT_WAITERS.register(registry, Gauges::<i64>::default());
    for pool in scraped.services.dispatcher.pool_usage() {
        let values = || [pool.plugin.clone(), pool.pool.clone()];
        used.get_or_create(&definitions::PERMITS.with_values(values()))
            .set(to_signed(pool.used));
        limits
            .get_or_create(&definitions::PERMIT_LIMIT.with_values(values()))
            .set(pool.limit.into());
        waiting
            .get_or_create(&definitions::PERMIT_WAITERS.with_values(values()))
            .set(to_signed(pool.waiting));
    }
}

/// controller-runtime's priorities are numbers: 0 is a change, -100 a start-up list. A person's change is more.
fn priority_number(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "100",
        Priority::Normal => "0",
        Priority::Low => "-100",
    }
}

/// Event streams.
fn register_streams(r: &mut Registry, streams: &EventStreams) {
    let open = definitions::EVENT_STREAMS.register(r, Gauges::<i64>::default());
    for state in ["connecting", "open", "waiting", "ended", "outdated"] {
        open.get_or_create(&definitions::EVENT_STREAMS.with_values([state.into()]))
            .set(0);
    }
    for facts in streams.all_streams() {
        open.get_or_create(&definitions::EVENT_STREAMS.with_values([facts.state.as_str().into()]))
            .inc();
    }
    let totals = &streams.counters;
    for (definition, total) in [
        (definitions::EVENT_STREAM_OPENS, &totals.opened),
        (definitions::EVENT_STREAM_RECONNECTS, &totals.reconnects),
        (definitions::EVENT_STREAM_EVENTS, &totals.events),
        (definitions::EVENT_STREAM_WAKES, &totals.wakes),
    ] {
        definition
            .register(r, Counter::<u64>::default())
            .inc_by(total.load(Ordering::Relaxed));
    }
}

/// Subscriptions to queues.
fn register_subscriptions(r: &mut Registry, subscriptions: &Subscriptions) {
    let handled = definitions::MESSAGES_HANDLED.register(r, Family::<MetricLabels, Counter>::default());
    let redelivered =
        definitions::MESSAGES_REDELIVERED.register(r, Family::<MetricLabels, Counter>::default());
    let in_flight = definitions::MESSAGES_IN_FLIGHT.register(r, Gauges::<i64>::default());
    let depth = definitions::QUEUE_MESSAGES.register(r, Gauges::<i64>::default());
    let consuming = definitions::SUBSCRIPTION_CONSUMING.register(r, Gauges::<i64>::default());
    for (key, stats) in subscriptions.list() {
        let name = || [key.plugin.clone(), key.upstream.clone(), key.queue.clone()];
        for result in HandleResult::ALL {
            let [plugin, upstream, queue] = name();
            let labels =
                definitions::MESSAGES_HANDLED.with_values([plugin, upstream, queue, result.as_str().into()]);
            handled.get_or_create(&labels).inc_by(stats.total(result));
        }
        redelivered
            .get_or_create(&definitions::MESSAGES_REDELIVERED.with_values(name()))
            .inc_by(stats.redelivered());
        in_flight
            .get_or_create(&definitions::MESSAGES_IN_FLIGHT.with_values(name()))
            .set(i64::try_from(stats.in_flight()).unwrap_or(i64::MAX));
        let state = stats.state();
        if let Some(ready) = state.depth {
            depth
                .get_or_create(&definitions::QUEUE_MESSAGES.with_values(name()))
                .set(ready.into());
        }
        consuming
            .get_or_create(&definitions::SUBSCRIPTION_CONSUMING.with_values(name()))
            .set(state.is_consuming.into());
    }
}

/// Limits of plugins, their access to Secrets, and whether their code is loaded.
fn register_limits(r: &mut Registry, registry: &plugin::PluginRegistry) {
    let limits = definitions::PLUGIN_LIMIT.register(r, Seconds::default());
    let secrets = definitions::READS_SECRETS.register(r, Gauges::<i64>::default());
    let loaded = definitions::CODE_LOADED.register(r, Gauges::<i64>::default());
    for plugin in registry.serving() {
        let name = plugin.name();
        for limit in Limit::ALL {
            let labels = definitions::PLUGIN_LIMIT.with_values([name.clone(), limit.name().into()]);
            limits
                .get_or_create(&labels)
                .set(plugin.policy.limits.measure(*limit));
        }
        let reads = i64::from(plugin.policy.grants.can_read_secrets());
        secrets
            .get_or_create(&definitions::READS_SECRETS.with_values([name.clone()]))
            .set(reads);
        loaded
            .get_or_create(&definitions::CODE_LOADED.with_values([name.clone()]))
            .set(plugin.compiled.is_loaded().into());
    }
}

/// Metrics of the host itself.
fn register_state(registry: &mut Registry, scraped: &Scraped<'_>) {
    let services = scraped.services;
    register_lease(registry, scraped);
    register_memory(registry, services);
    register_streams(registry, &services.upstreams.streams);
    register_subscriptions(registry, &services.upstreams.subscriptions);
    register_limits(registry, scraped.registry);
    register_watches(registry, scraped);
    register_objects(registry, scraped.stats);
    register_upstreams(registry, &services.upstreams.clients);
    register_dropped(registry, services);
    register_components(registry, scraped.registry);
    let invalid = definitions::GRANTS_FILE_INVALID.register(registry, Gauge::<i64>::default());
    invalid.set(i64::from(scraped.registry.grants_error().is_some()));
}

/// The state of this process in the leader election.
fn register_lease(r: &mut Registry, scraped: &Scraped<'_>) {
    let leads = definitions::LEADER_STATUS.register(r, Gauges::<i64>::default());
    let rereads = definitions::LEASE_REREADS.register(r, Family::<MetricLabels, Counter>::default());
    if let Some(name) = scraped.lease {
        let fence = &scraped.services.fence;
        leads
            .get_or_create(&definitions::LEADER_STATUS.with_values([name.clone()]))
            .set(i64::from(fence.term().is_some()));
        rereads
            .get_or_create(&definitions::LEASE_REREADS.with_values([name.clone()]))
            .inc_by(fence.rereads());
    }
}

/// Sizes of the cache, and the memory of calls.
fn register_memory(r: &mut Registry, services: &Services) {
    let size = services.cache.store.size();
    let budget = &services.memory;
    for (definition, value) in [
        (definitions::CACHE_OBJECTS, size.objects),
        (definitions::CACHE_BYTES, size.bytes),
        (definitions::CACHE_INDEXES, size.indexes),
        (definitions::MEMORY_BUDGET_BYTES, budget.total()),
        (definitions::MEMORY_BUDGET_USED, budget.used()),
        (definitions::MEMORY_BUDGET_WAITING, budget.waiting()),
    ] {
        definition
            .register(r, Gauge::<i64>::default())
            .set(to_signed(value));
    }
}

fn register_watches(r: &mut Registry, scraped: &Scraped<'_>) {
    let watches = definitions::WATCHES.register(r, Gauges::<i64>::default());
    let watches_in =
        |state: &'static str| watches.get_or_create_owned(&definitions::WATCHES.with_values([state.into()]));
    for state in ["synced", "listing", "narrowed", "failing"] {
        watches_in(state).set(0);
    }
    for (scope, synced) in scraped.services.list_watches() {
        watches_in(find_watch_state(
            &scope,
            &synced,
            scraped.services,
            scraped.registry,
        ))
        .inc();
    }
}

/// Objects that plugins reconcile.
fn register_objects(r: &mut Registry, stats: &ReconcileStats) {
    let by_kind = definitions::RECONCILED_OBJECTS.register(r, Gauges::<i64>::default());
    for (gvk, counts) in stats.count_by_kind() {
        let kind: Arc<str> = gvk.to_string().into();
        for (ready, n) in [("true", counts.ready), ("false", counts.total - counts.ready)] {
            let labels = definitions::RECONCILED_OBJECTS.with_values([kind.clone(), ready.into()]);
            by_kind.get_or_create(&labels).set(to_signed(n));
        }
    }
}

/// Events and log lines that were dropped.
fn register_dropped(r: &mut Registry, services: &Services) {
    let dropped = definitions::EVENTS_DROPPED.register(r, Family::<MetricLabels, Counter>::default());
    for (why, n) in services.api.recorder.dropped() {
        dropped
            .get_or_create(&definitions::EVENTS_DROPPED.with_values([why.into()]))
            .inc_by(n);
    }
    if let Some(lines) = DroppedLines::of_process() {
        let dropped = definitions::LOG_LINES_DROPPED.register(r, Family::<MetricLabels, Counter>::default());
        for (source, n) in lines.counts() {
            dropped
                .get_or_create(&definitions::LOG_LINES_DROPPED.with_values([source.into()]))
                .inc_by(n);
        }
    }
}

/// Loads, rollbacks and the serving builds of components.
fn register_components(r: &mut Registry, registry: &PluginRegistry) {
    let loads = definitions::COMPONENT_LOADS.register(r, Family::<MetricLabels, Counter>::default());
    let info = definitions::COMPONENT_INFO.register(r, Gauges::<i64>::default());
    let taken_back = definitions::COMPONENT_ROLLBACKS.register(r, Family::<MetricLabels, Counter>::default());
    let serves = |plugin: &Arc<str>, version: String, digest: String| {
        let values = [plugin.clone(), version.into(), digest.into()];
        info.get_or_create(&definitions::COMPONENT_INFO.with_values(values))
            .set(1);
    };
    for report in registry.reports() {
        let plugin: Arc<str> = report.name.into();
        taken_back
            .get_or_create(&definitions::COMPONENT_ROLLBACKS.with_values([plugin.clone()]))
            .inc_by(report.rolled_back);
        if let Some(canary) = report.canary.filter(|c| c.state == LoadState::Serving) {
            serves(&plugin, canary.version, canary.digest);
        }
        for (result, n) in [("served", report.served), ("refused", report.refused)] {
            let labels = definitions::COMPONENT_LOADS.with_values([plugin.clone(), result.into()]);
            loads.get_or_create(&labels).inc_by(n);
        }
        if !report.digest.is_empty() {
            serves(&plugin, report.version, report.digest);
        }
    }
}

/// Clients of upstreams; those that are dropped count from nothing when they are there again.
fn register_upstreams(r: &mut Registry, clients: &ClientPool) {
    let circuit = definitions::UPSTREAM_CIRCUIT_STATE.register(r, Gauges::<i64>::default());
    let retries = definitions::UPSTREAM_RETRIES.register(r, Family::<MetricLabels, Counter>::default());
    let confirmed =
        definitions::UPSTREAM_NOT_MODIFIED.register(r, Family::<MetricLabels, Counter>::default());
    for traffic in clients.collect_stats().into_iter().take(MAX_UPSTREAMS) {
        let name: Arc<str> = traffic.upstream.into();
        for state in [CircuitState::Closed, CircuitState::Open, CircuitState::HalfOpen] {
            let labels =
                definitions::UPSTREAM_CIRCUIT_STATE.with_values([name.clone(), state.as_str().into()]);
            circuit
                .get_or_create(&labels)
                .set(i64::from(state == traffic.circuit));
        }
        retries
            .get_or_create(&definitions::UPSTREAM_RETRIES.with_values([name.clone()]))
            .inc_by(traffic.retries);
        confirmed
            .get_or_create(&definitions::UPSTREAM_NOT_MODIFIED.with_values([name]))
            .inc_by(traffic.confirmed);
    }
}

/// The plugins' own: one family per name, whoever has it. Where two plugins disagree on what a name is, the
/// first in order of their names is right.
fn register_plugin_metrics(registry: &mut Registry, plugins: &[Arc<PluginMetrics>]) {
    let mut plugins: Vec<_> = plugins.iter().collect();
    plugins.sort_by(|a, b| a.name.cmp(&b.name));
    let mut counters = std::collections::BTreeMap::<Box<str>, Family<MetricLabels, Counter>>::new();
    let mut gauges = std::collections::BTreeMap::<Box<str>, Seconds>::new();
    for plugin in plugins {
        let labels = vec![("plugin", plugin.name.clone())];
        for (name, own) in plugin.own.lock().iter() {
            match own {
                Own::Counter(n) if !gauges.contains_key(name) => {
                    let family = counters.entry(name.clone()).or_default();
                    family.get_or_create(&labels).inc_by(*n);
                }
                Own::Gauge(value) if !counters.contains_key(name) => {
                    let family = gauges.entry(name.clone()).or_default();
                    family.get_or_create(&labels).set(*value);
                }
                _ => {}
            }
        }
    }
    for (name, family) in counters {
        registry.register(
            format!("ostler_plugin_{name}"),
            "Counter exported by plugins",
            family,
        );
    }
    for (name, family) in gauges {
        registry.register(
            format!("ostler_plugin_{name}"),
            "Gauge exported by plugins",
            family,
        );
    }
}

fn to_signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_names_follow_each_format() {
        let mut registry = Registry::default();
        let family = Family::<MetricLabels, Counter>::default();
        registry.register("workqueue_adds", "Adds, of type counter", family.clone());
        registry.register("workqueue_depth", "Depth", Gauge::<i64>::default());
        family.get_or_create(&vec![("name", "a\"b".into())]).inc();
        let mut out = String::new();
        text::encode_registry(&mut out, &registry).expect("encodes");
        assert!(out.contains("# TYPE workqueue_adds counter\n"), "{out}");
        let older = convert_to_prometheus(&out);
        for line in [
            "# HELP workqueue_adds_total Adds, of type counter.",
            "# TYPE workqueue_adds_total counter",
            "workqueue_adds_total{name=\"a\\\"b\"} 1",
            "# HELP workqueue_depth Depth.",
            "# TYPE workqueue_depth gauge",
            "workqueue_depth 0",
        ] {
            assert!(older.lines().any(|l| l == line), "{line} in\n{older}");
        }
    }

    #[test]
    fn plugin_metrics_are_merged_by_name_and_bounded() {
        const OWN_SERIES: u32 = 500;
        let metrics = Metrics::default();
        let (a, b) = (
            metrics.plugin_metrics(&"a".into()),
            metrics.plugin_metrics(&"b".into()),
        );
        a.add_own("builds_total", 2, OWN_SERIES);
        a.add_own("builds", 1, OWN_SERIES);
        b.add_own("builds", 5, OWN_SERIES);
        b.set_own("lag_seconds", 0.5, OWN_SERIES);
        a.add_own("lag_seconds", 1, OWN_SERIES);
        a.add_own("Not-a-name", 1, OWN_SERIES);
        a.set_own("fake_total", 1.0, OWN_SERIES);
        for i in 0..2 * OWN_SERIES {
            b.add_own(&format!("n{i}"), 1, OWN_SERIES);
        }
        b.set_own("limit", 1e9, OWN_SERIES + 1);
        let mut registry = Registry::default();
        register_plugin_metrics(&mut registry, &[b.clone(), a]);
        let mut out = String::new();
        text::encode_registry(&mut out, &registry).expect("encodes");
        for line in [
            "ostler_plugin_builds_total{plugin=\"a\"} 3",
            "ostler_plugin_builds_total{plugin=\"b\"} 5",
            "ostler_plugin_lag_seconds_total{plugin=\"a\"} 1",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
        assert!(
            !out.contains("Not-a-name") && !out.contains("fake") && !out.contains("plugin_limit"),
            "{out}"
        );
        assert!(
            !out.contains("ostler_plugin_lag_seconds{"),
            "one type per name: {out}"
        );
        assert_eq!(b.own.lock().len(), OWN_SERIES as usize);
    }
}
