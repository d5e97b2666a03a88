//! Collection and encoding of metrics on each scrape.

use std::{
    fmt::Write,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

use crate::{
    cache::informer::SyncState,
    contract::limits::Limit,
    observe::metrics::{
        Labels, MAX_UPSTREAMS, Metrics,
        plugin::{Own, PluginMetrics},
    },
    plugin::{self, LoadState},
    reconcile::stats::ReconcileStats,
    sandbox::services::Services,
    schedule::queue::{LaneState, Priority},
    upstream::{CircuitState, ClientPool, EventStreams},
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
    pub registry: &'a plugin::Registry,
    /// Objects and their readiness.
    pub stats: &'a ReconcileStats,
    /// The name of the Lease that this process is a candidate for; none without leader election.
    pub lease: Option<&'a Arc<str>>,
    /// Maximum number of concurrent reconciles of all plugins.
    pub workers: u32,
}

type Gauges<N = i64, A = std::sync::atomic::AtomicI64> = Family<Labels, Gauge<N, A>>;
type Seconds = Gauges<f64, std::sync::atomic::AtomicU64>;

impl Metrics {
    /// All metrics as text.
    pub fn text(&self, format: Format, scraped: &Scraped<'_>) -> Result<String, std::fmt::Error> {
        let plugins: Vec<_> = self.plugins.read().values().cloned().collect();
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

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// The queue and worker metrics of controller-runtime.
fn register_queue(registry: &mut Registry, scraped: &Scraped<'_>, plugins: &[Arc<PluginMetrics>]) {
    let r = registry;
    let depth = register(
        r,
        "workqueue_depth",
        "Current number of objects that are due to be reconciled",
        Gauges::<i64>::default(),
    );
    let adds = register(
        r,
        "workqueue_adds",
        "Total number of objects that became due",
        Family::<Labels, Counter>::default(),
    );
    let delayed = register(
        r,
        "ostler_workqueue_delayed",
        "Current number of objects that are scheduled to be reconciled later",
        Gauge::<i64>::default(),
    );
    let unfinished = register(
        r,
        "workqueue_unfinished_work_seconds",
        "Sum of the seconds that unfinished reconciles have been in progress",
        Seconds::default(),
    );
    let longest = register(
        r,
        "workqueue_longest_running_processor_seconds",
        "Seconds that the longest unfinished reconcile has been in progress",
        Seconds::default(),
    );
    let active = register(
        r,
        "controller_runtime_active_workers",
        "Current number of concurrent reconciles",
        Gauges::<i64>::default(),
    );
    let most = register(
        r,
        "controller_runtime_max_concurrent_reconciles",
        "Maximum number of concurrent reconciles",
        Gauges::<i64>::default(),
    );
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
        let queue = vec![("name", name.clone()), ("controller", name.clone())];
        for (priority, waiting) in due {
            let mut labels = queue.clone();
            labels.push(("priority", priority_number(priority).into()));
            depth.get_or_create(&labels).set(to_signed(waiting));
        }
        adds.get_or_create(&queue).inc_by(added);
        let controller = vec![("controller", name)];
        active.get_or_create(&controller).set(to_signed(in_flight));
        let workers = scraped.workers as usize;
        let limit = if limit == 0 { workers } else { limit.min(workers) };
        most.get_or_create(&controller).set(to_signed(limit));
    }
    let now = Instant::now();
    for plugin in plugins {
        let queue = vec![("name", plugin.name.clone()), ("controller", plugin.name.clone())];
        let running = plugin.running.lock();
        let seconds = running
            .iter()
            .map(|since| now.saturating_duration_since(*since).as_secs_f64());
        unfinished
            .get_or_create(&queue)
            .set(seconds.clone().fold(0.0, std::ops::Add::add));
        longest.get_or_create(&queue).set(seconds.fold(0.0, f64::max));
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
    let open = register(
        r,
        "ostler_event_streams",
        "Current number of event streams, by state",
        Gauges::<i64>::default(),
    );
    for state in ["connecting", "open", "waiting", "ended", "outdated"] {
        open.get_or_create(&vec![("state", state.into())]).set(0);
    }
    for facts in streams.all_streams() {
        open.get_or_create(&vec![("state", facts.state.as_str().into())])
            .inc();
    }
    let totals = &streams.counters;
    for (name, help, total) in [
        (
            "ostler_event_stream_opens",
            "Total number of connections opened for event streams",
            &totals.opened,
        ),
        (
            "ostler_event_stream_reconnects",
            "Total number of times an event stream was reopened",
            &totals.reconnects,
        ),
        (
            "ostler_event_stream_events",
            "Total number of events received over event streams",
            &totals.events,
        ),
        (
            "ostler_event_stream_wakes",
            "Total number of objects enqueued because of an event on a stream",
            &totals.wakes,
        ),
    ] {
        register(r, name, help, Counter::<u64>::default()).inc_by(total.load(Ordering::Relaxed));
    }
}

/// Limits of plugins, and their access to Secrets.
fn register_limits(r: &mut Registry, registry: &plugin::Registry) {
    let limits = register(
        r,
        "ostler_plugin_limit",
        "Resource limits of a plugin, in bytes, seconds or as a number",
        Seconds::default(),
    );
    let secrets = register(
        r,
        "ostler_plugin_reads_secrets",
        "1 if the plugin is granted to read the contents of Secrets, otherwise 0",
        Gauges::<i64>::default(),
    );
    for plugin in registry.serving() {
        let name = plugin.name();
        for limit in Limit::ALL {
            let labels = vec![("plugin", name.clone()), ("limit", limit.name().into())];
            limits
                .get_or_create(&labels)
                .set(plugin.terms.limits.measure(*limit));
        }
        let reads = i64::from(plugin.terms.grants.can_read_secrets());
        secrets.get_or_create(&vec![("plugin", name.clone())]).set(reads);
    }
}

/// Metrics of the host itself.
fn register_state(registry: &mut Registry, scraped: &Scraped<'_>) {
    let r = registry;
    let services = scraped.services;
    let leads = register(
        r,
        "leader_election_master_status",
        "1 if this process is the leader, otherwise 0",
        Gauges::<i64>::default(),
    );
    let rereads = register(
        r,
        "leader_election_slowpath",
        "Total number of renewals for which the leader had to read the Lease again because another process had changed it",
        Family::<Labels, Counter>::default(),
    );
    if let Some(name) = scraped.lease {
        let fence = &services.fence;
        let labels = vec![("name", name.clone())];
        leads
            .get_or_create(&labels)
            .set(i64::from(fence.term().is_some()));
        rereads.get_or_create(&labels).inc_by(fence.rereads());
    }
    let size = services.cache.store.size();
    register(
        r,
        "ostler_cache_objects",
        "Current number of objects in the cache",
        Gauge::<i64>::default(),
    )
    .set(to_signed(size.objects));
    register(
        r,
        "ostler_cache_bytes",
        "Size of the JSON of all cached objects in bytes",
        Gauge::<i64>::default(),
    )
    .set(to_signed(size.bytes));
    register_streams(r, &services.upstreams.streams);
    register_limits(r, scraped.registry);
    let watches = register(
        r,
        "ostler_watches",
        "Current number of watches, by state",
        Gauges::<i64>::default(),
    );
    for state in ["synced", "listing", "failing"] {
        watches.get_or_create(&vec![("state", state.into())]).set(0);
    }
    for (_, synced) in services.cache.informers.scopes() {
        let state = match synced {
            SyncState::Synced => "synced",
            SyncState::Pending => "listing",
            SyncState::Failed(_) => "failing",
        };
        watches.get_or_create(&vec![("state", state.into())]).inc();
    }
    let by_kind = register(
        r,
        "ostler_objects",
        "Current number of reconciled objects, by kind and readiness",
        Gauges::<i64>::default(),
    );
    for (gvk, counts) in scraped.stats.count_by_kind() {
        let kind: Arc<str> = gvk.to_string().into();
        for (ready, n) in [("true", counts.ready), ("false", counts.total - counts.ready)] {
            let labels = vec![("kind", kind.clone()), ("ready", ready.into())];
            by_kind.get_or_create(&labels).set(to_signed(n));
        }
    }
    register_upstreams(r, &services.upstreams.clients);
    let dropped = register(
        r,
        "ostler_events_dropped",
        "Total number of Kubernetes Events that were not written, by reason",
        Family::<Labels, Counter>::default(),
    );
    for (why, n) in services.api.recorder.dropped() {
        dropped.get_or_create(&vec![("reason", why.into())]).inc_by(n);
    }
    let loads = register(
        r,
        "ostler_component_loads",
        "Total number of attempts to load a component, by result",
        Family::<Labels, Counter>::default(),
    );
    let info = register(
        r,
        "ostler_component_info",
        "Builds that reconcile objects, canaries included; the value is always 1",
        Gauges::<i64>::default(),
    );
    let taken_back = register(
        r,
        "ostler_component_rollbacks",
        "Total number of builds that were rolled back, canaries included",
        Family::<Labels, Counter>::default(),
    );
    for report in scraped.registry.reports() {
        let plugin: Arc<str> = report.name.into();
        taken_back
            .get_or_create(&vec![("plugin", plugin.clone())])
            .inc_by(report.rolled_back);
        if let Some(canary) = report.canary.filter(|c| c.state == LoadState::Serving) {
            let labels = vec![
                ("plugin", plugin.clone()),
                ("version", canary.version.into()),
                ("digest", canary.digest.into()),
            ];
            info.get_or_create(&labels).set(1);
        }
        for (result, n) in [("served", report.served), ("refused", report.refused)] {
            let labels = vec![("plugin", plugin.clone()), ("result", result.into())];
            loads.get_or_create(&labels).inc_by(n);
        }
        if !report.digest.is_empty() {
            let labels = vec![
                ("plugin", plugin),
                ("version", report.version.into()),
                ("digest", report.digest.into()),
            ];
            info.get_or_create(&labels).set(1);
        }
    }
}

/// Clients of upstreams; those that are dropped count from nothing when they are there again.
fn register_upstreams(r: &mut Registry, clients: &ClientPool) {
    let circuit = register(
        r,
        "ostler_upstream_circuit_state",
        "State of the circuit breaker of an upstream: 1 for its current state, 0 for the others",
        Gauges::<i64>::default(),
    );
    let retries = register(
        r,
        "ostler_upstream_retries",
        "Total number of requests to upstreams that were retried because the connection failed",
        Family::<Labels, Counter>::default(),
    );
    let confirmed = register(
        r,
        "ostler_upstream_not_modified",
        "Total number of responses served from the cache because the upstream answered 304 Not Modified",
        Family::<Labels, Counter>::default(),
    );
    for traffic in clients.collect_stats().into_iter().take(MAX_UPSTREAMS) {
        let name: Arc<str> = traffic.upstream.into();
        for state in [CircuitState::Closed, CircuitState::Open, CircuitState::HalfOpen] {
            let labels = vec![("upstream", name.clone()), ("state", state.as_str().into())];
            circuit
                .get_or_create(&labels)
                .set(i64::from(state == traffic.circuit));
        }
        let labels = vec![("upstream", name)];
        retries.get_or_create(&labels).inc_by(traffic.retries);
        confirmed.get_or_create(&labels).inc_by(traffic.confirmed);
    }
}

/// The plugins' own: one family per name, whoever has it. Where two plugins disagree on what a name is, the
/// first in order of their names is right.
fn register_plugin_metrics(registry: &mut Registry, plugins: &[Arc<PluginMetrics>]) {
    let mut plugins: Vec<_> = plugins.iter().collect();
    plugins.sort_by(|a, b| a.name.cmp(&b.name));
    let mut counters = std::collections::BTreeMap::<Box<str>, Family<Labels, Counter>>::new();
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
        let family = Family::<Labels, Counter>::default();
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
        let (a, b) = (metrics.plugin(&"a".into()), metrics.plugin(&"b".into()));
        a.add("builds_total", 2, OWN_SERIES);
        a.add("builds", 1, OWN_SERIES);
        b.add("builds", 5, OWN_SERIES);
        b.set("lag_seconds", 0.5, OWN_SERIES);
        a.add("lag_seconds", 1, OWN_SERIES);
        a.add("Not-a-name", 1, OWN_SERIES);
        a.set("fake_total", 1.0, OWN_SERIES);
        for i in 0..2 * OWN_SERIES {
            b.add(&format!("n{i}"), 1, OWN_SERIES);
        }
        b.set("limit", 1e9, OWN_SERIES + 1);
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
