//! Definitions of the metric families: name, type, labels and help.
//!
//! `docs/api.md` is generated from this table. The labels of a series are built from its definition, so that they cannot
//! differ from it.

use std::sync::Arc;

use prometheus_client::registry::{Metric, Registry};

use super::MetricLabels;

/// The definition of a metric family with `N` labels.
pub struct MetricDefinition<const N: usize> {
    /// Name, without the suffix `_total` of counters.
    pub name: &'static str,
    /// Type: `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of the labels.
    pub labels: [&'static str; N],
    /// Help text.
    pub help: &'static str,
}

impl<const N: usize> MetricDefinition<N> {
    /// Registers a metric as this family, and returns it.
    pub fn register<M: Metric + Clone>(&self, registry: &mut Registry, metric: M) -> M {
        debug_assert_eq!(metric.metric_type().as_str(), self.kind, "{}", self.name);
        registry.register(self.name, self.help, metric.clone());
        metric
    }

    /// The labels of a series with these values.
    pub fn with_values(&self, values: [Arc<str>; N]) -> MetricLabels {
        self.labels.into_iter().zip(values).collect()
    }
}

/// The name, type, labels and help text of a family.
#[cfg(test)]
pub type Family = (&'static str, &'static str, &'static [&'static str], &'static str);

const fn count_labels(labels: &[&str]) -> usize {
    labels.len()
}

macro_rules! definitions {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $constant: MetricDefinition<{ count_labels(&[$($label),*]) }> = MetricDefinition {
                name: $name,
                kind: stringify!($kind),
                labels: [$($label),*],
                help: $help,
            };
        )+

        /// All families, in the order of the API reference.
        #[cfg(test)]
        pub const ALL: &[Family] = &[$(($name, stringify!($kind), &[$($label),*], $help)),+];
    };
}

definitions! {
    RECONCILES = counter "controller_runtime_reconcile" ["controller", "result"]
        "Total number of reconciles, by controller and result";
    RECONCILE_ERRORS = counter "controller_runtime_reconcile_errors" ["controller"]
        "Total number of reconciles that failed";
    TERMINAL_ERRORS = counter "controller_runtime_terminal_reconcile_errors" ["controller"]
        "Total number of reconciles that failed with a terminal error, which is not retried";
    RECONCILE_PANICS = counter "controller_runtime_reconcile_panics" ["controller"]
        "Total number of reconciles that ended in a trap of the component, or in a panic of the host";
    RECONCILE_TIMEOUTS = counter "controller_runtime_reconcile_timeouts" ["controller"]
        "Total number of reconciles that exceeded their CPU time or timeout";
    RECONCILE_SECONDS = histogram "controller_runtime_reconcile_time_seconds" ["controller"]
        "Duration of a reconcile in seconds";
    ACTIVE_WORKERS = gauge "controller_runtime_active_workers" ["controller"]
        "Current number of concurrent reconciles";
    MAX_CONCURRENT_RECONCILES = gauge "controller_runtime_max_concurrent_reconciles" ["controller"]
        "Maximum number of concurrent reconciles";
    QUEUE_DEPTH = gauge "workqueue_depth" ["name", "controller", "priority"]
        "Current number of objects that are due to be reconciled";
    QUEUE_ADDS = counter "workqueue_adds" ["name", "controller"]
        "Total number of objects that became due";
    QUEUE_RETRIES = counter "workqueue_retries" ["name", "controller"]
        "Total number of times an object was requeued with a delay";
    QUEUE_SECONDS = histogram "workqueue_queue_duration_seconds" ["name", "controller"]
        "Seconds that an object waited in the queue before its reconcile started";
    WORK_SECONDS = histogram "workqueue_work_duration_seconds" ["name", "controller"]
        "Seconds that the reconcile of an object took";
    UNFINISHED_SECONDS = gauge "workqueue_unfinished_work_seconds" ["name", "controller"]
        "Sum of the seconds that unfinished reconciles have been in progress";
    LONGEST_RUNNING_SECONDS = gauge "workqueue_longest_running_processor_seconds" ["name", "controller"]
        "Seconds that the longest unfinished reconcile has been in progress";
    MEMORY_BUDGET_BYTES = gauge "ostler_memory_budget_bytes" []
        "Bytes that running calls may hold together";
    MEMORY_BUDGET_USED = gauge "ostler_memory_budget_used_bytes" []
        "Bytes of the memory budget that running calls hold beyond their free parts";
    MEMORY_BUDGET_WAITING = gauge "ostler_memory_budget_waiting_calls" []
        "Current number of calls that wait for memory of the budget";
    PERMITS = gauge "ostler_permits" ["plugin", "pool"]
        "Number of permits that objects have";
    PERMIT_LIMIT = gauge "ostler_permits_limit" ["plugin", "pool"]
        "Maximum number of permits of a pool, as last requested";
    PERMIT_WAITERS = gauge "ostler_permits_waiting" ["plugin", "pool"]
        "Number of objects that wait for a permit";
    DELAYED_OBJECTS = gauge "ostler_workqueue_delayed" []
        "Current number of objects that are scheduled to be reconciled later";
    LEADER_STATUS = gauge "leader_election_master_status" ["name"]
        "1 if this process is the leader, otherwise 0";
    LEASE_REREADS = counter "leader_election_slowpath" ["name"]
        "Total number of renewals for which the leader had to read the Lease again because another process had changed it";
    API_REQUESTS = counter "rest_client_requests" ["code", "method", "host"]
        "Total number of HTTP requests to the API server, by status code, method and host";
    API_REQUEST_SECONDS = histogram "rest_client_request_duration_seconds" ["verb", "host"]
        "Latency of requests to the API server in seconds, by verb and host";
    RECONCILED_OBJECTS = gauge "ostler_objects" ["kind", "ready"]
        "Current number of reconciled objects, by kind and readiness";
    CACHE_OBJECTS = gauge "ostler_cache_objects" []
        "Current number of objects in the cache";
    CACHE_BYTES = gauge "ostler_cache_bytes" []
        "Size of the JSON of all cached objects in bytes";
    CACHE_INDEXES = gauge "ostler_cache_indexes" []
        "Current number of indexes by label or field in the cache";
    WATCHES = gauge "ostler_watches" ["state"]
        "Current number of watches, by state: synced, listing, failing, or narrowed to namespaces by RBAC";
    WATCH_EVENTS = counter "ostler_watch_events" ["kind", "host"]
        "Total number of watch events of objects received, by kind and host";
    CALL_SECONDS = histogram "ostler_wasm_call_duration_seconds" ["plugin"]
        "Duration of a call into a component in seconds, host calls included";
    CPU_SECONDS = counter "ostler_wasm_cpu_seconds" ["plugin"]
        "Total CPU time used by components in seconds";
    MEMORY_BYTES = histogram "ostler_wasm_memory_bytes" ["plugin"]
        "Linear memory of the instance in bytes at the end of a call into a component";
    TRAPS = counter "ostler_wasm_traps" ["plugin", "reason"]
        "Total number of calls into a component that did not return, by reason: cpu_time, timeout, memory, host or trap";
    HOST_CALLS = counter "ostler_host_calls" ["plugin", "call"]
        "Total number of host calls made by components";
    HOST_CALL_BYTES = counter "ostler_host_call_bytes" ["plugin", "direction"]
        "Total number of bytes passed in host calls, by direction: to_host or from_host";
    SUPPRESSED_WRITES = counter "ostler_writes_suppressed" ["plugin", "operation"]
        "Total number of writes that were not sent because they would not have changed the object";
    HOT_LOOPS = counter "ostler_hot_loops" ["plugin"]
        "Times an object was throttled: another writer reverts its writes, or it writes and requeues itself at once";
    PLUGIN_LIMIT = gauge "ostler_plugin_limit" ["plugin", "limit"]
        "Resource limits of a plugin, in bytes, seconds or as a number";
    LIMIT_EXCEEDED = counter "ostler_plugin_limit_exceeded" ["plugin", "limit"]
        "Total number of times a component exceeded a limit";
    READS_SECRETS = gauge "ostler_plugin_reads_secrets" ["plugin"]
        "1 if the plugin is granted to read the contents of Secrets, otherwise 0";
    CODE_LOADED = gauge "ostler_plugin_code_loaded" ["plugin"]
        "1 if the compiled code of the plugin is in memory, 0 while it is unloaded because nothing called the plugin";
    COMPONENT_LOADS = counter "ostler_component_loads" ["plugin", "result"]
        "Total number of attempts to load a component, by result: served or refused";
    COMPONENT_ROLLBACKS = counter "ostler_component_rollbacks" ["plugin"]
        "Total number of builds that were rolled back, canaries included";
    COMPONENT_INFO = gauge "ostler_component_info" ["plugin", "version", "digest"]
        "Builds that reconcile objects, canaries included; the value is always 1";
    UPSTREAM_REQUESTS = counter "ostler_upstream_requests" ["upstream", "code"]
        "Total number of requests of components to upstreams, by upstream and status code; code 0 means no response";
    UPSTREAM_REQUEST_SECONDS = histogram "ostler_upstream_request_duration_seconds" ["upstream"]
        "Latency of requests to upstreams in seconds";
    UPSTREAM_CIRCUIT_STATE = gauge "ostler_upstream_circuit_state" ["upstream", "state"]
        "State of the circuit breaker of an upstream: 1 for its current state (closed, open or half-open), 0 for the others";
    UPSTREAM_RETRIES = counter "ostler_upstream_retries" ["upstream"]
        "Total number of requests to upstreams that were retried because the connection failed";
    UPSTREAM_NOT_MODIFIED = counter "ostler_upstream_not_modified" ["upstream"]
        "Total number of responses served from the cache because the upstream answered 304 Not Modified";
    MESSAGES_PUBLISHED = counter "ostler_messages_published" ["upstream", "result"]
        "Total number of messages that components published, by upstream and result: confirmed, unroutable or failed";
    MESSAGES_HANDLED = counter "ostler_messages_handled" ["plugin", "upstream", "queue", "result"]
        "Total number of deliveries to message handlers, by result: acknowledged, retried, dead_lettered or requeued";
    MESSAGES_REDELIVERED = counter "ostler_messages_redelivered" ["plugin", "upstream", "queue"]
        "Total number of deliveries of messages that had been delivered before";
    MESSAGES_IN_FLIGHT = gauge "ostler_messages_in_flight" ["plugin", "upstream", "queue"]
        "Current number of messages that are being handled";
    QUEUE_MESSAGES = gauge "ostler_queue_messages" ["plugin", "upstream", "queue"]
        "Number of messages that are ready in a queue, when the host last asked for it";
    SUBSCRIPTION_CONSUMING = gauge "ostler_subscription_consuming" ["plugin", "upstream", "queue"]
        "1 while the host consumes the queue of a subscription, otherwise 0";
    EVENT_STREAMS = gauge "ostler_event_streams" ["state"]
        "Current number of event streams, by state: connecting, open, waiting, ended or outdated";
    EVENT_STREAM_OPENS = counter "ostler_event_stream_opens" []
        "Total number of connections opened for event streams";
    EVENT_STREAM_RECONNECTS = counter "ostler_event_stream_reconnects" []
        "Total number of times an event stream was reopened";
    EVENT_STREAM_EVENTS = counter "ostler_event_stream_events" []
        "Total number of events received over event streams";
    EVENT_STREAM_WAKES = counter "ostler_event_stream_wakes" []
        "Total number of objects enqueued because of an event on a stream";
    EVENTS_DROPPED = counter "ostler_events_dropped" ["reason"]
        "Total number of Kubernetes Events that were not written, by reason: rate_limited or refused";
    GRANTS_FILE_INVALID = gauge "ostler_grants_file_invalid" []
        "1 while the grants file can't be read or parsed and the previous grants apply, else 0";
    LOG_LINES_DROPPED = counter "ostler_log_lines_dropped" ["source"]
        "Total number of log lines dropped because standard error did not accept them, by source: host or plugin";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALERTS: &str = include_str!("../../../../deploy/alerts.yaml");
    const RUNBOOK: &str = include_str!("../../../../docs/alerts.md");

    #[test]
    fn alerts_use_metrics_of_the_host_and_have_a_section_each() {
        let is_name = |word: &&str| {
            let prefixes = ["ostler_", "controller_runtime_", "workqueue_", "leader_election_"];
            prefixes.iter().any(|prefix| word.starts_with(prefix))
        };
        let words = ALERTS.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: BTreeSet<&str> = words.filter(is_name).collect();
        assert!(used.len() > 10, "{used:?}");
        for name in used {
            let base = ["_total", "_bucket"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix));
            let base = base.unwrap_or(name);
            assert!(ALL.iter().any(|family| family.0 == base), "{name} is no metric");
        }
        let alerts = ALERTS
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- alert: "));
        let sections = RUNBOOK.lines().filter_map(|line| line.strip_prefix("## "));
        assert_eq!(alerts.collect::<Vec<_>>(), sections.collect::<Vec<_>>());
    }
}
