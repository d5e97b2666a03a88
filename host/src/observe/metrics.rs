//! Metrics of the host: controller-runtime's names and labels, so that dashboards made for it work here, and Ostler's
//! own.
//!
//! Counters and histograms are updated when something happens, through handles that are looked up once per call. Gauges
//! (sizes, depths, the leader) are read from the source at scrape time: see `admin/scrape.rs`.

pub(crate) mod definitions;
mod log_rate;
pub mod plugin;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use self::plugin::Families;
pub use self::{
    log_rate::LineVerdict,
    plugin::{PluginMetrics, ReconcileResult, RunningReconcile, Suppressed},
};
pub use crate::contract::host_calls::HostCall;
use crate::kube::key::Gvk;

/// Labels of a series. The `controller` of controller-runtime is a plugin here.
pub type MetricLabels = Vec<(&'static str, Arc<str>)>;

/// Buckets for the seconds until another server has answered.
const REQUEST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Limit of the upstreams with series of their own: objects create upstreams, and their number is unbounded.
pub const MAX_UPSTREAMS: usize = 500;

/// A family of histograms.
type Histograms = Family<MetricLabels, Histogram, fn() -> Histogram>;

/// The metrics of the host.
pub struct Metrics {
    pub(crate) registry: Registry,
    families: Families,
    /// Read without a lock, whose word all processors would write to in each reconcile.
    pub(crate) plugins: ArcSwap<HashMap<Arc<str>, Arc<PluginMetrics>>>,
    rest: RestClient,
    upstreams: Family<Upstream, Counter>,
    upstream_seconds: Histograms,
    published: Family<MetricLabels, Counter>,
    known_upstreams: Mutex<HashSet<Arc<str>>>,
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

/// Status code of a response; none without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Code(Option<u16>);

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        match self.0 {
            Some(code) => code.encode(encoder),
            // client-go's value for requests without a response.
            None => "<error>".encode(encoder),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
    host: Arc<str>,
}

/// The result of publishing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishResult {
    /// The broker has confirmed it.
    Confirmed,
    /// The exchange does not exist or routes it to no queue.
    Unroutable,
    /// It was refused, or not confirmed.
    Failed,
}

/// Counts requests to the API server, and the events of its watches.
#[derive(Clone)]
pub struct RestClient {
    requests: Family<Request, Counter>,
    seconds: Family<Verb, Histogram, fn() -> Histogram>,
    watch_events: Family<MetricLabels, Counter>,
}

impl RestClient {
    /// Records the status of a response, or that there was none.
    pub fn record_response(&self, method: &str, code: Option<u16>, host: &Arc<str>, took: Duration) {
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

    /// The counter of the events of watches of a kind.
    pub fn watch_events(&self, gvk: &Gvk, host: &Arc<str>) -> Counter {
        let values = [gvk.to_string().into(), host.clone()];
        self.watch_events
            .get_or_create_owned(&definitions::WATCH_EVENTS.with_values(values))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let rest = RestClient {
            requests: definitions::API_REQUESTS.register(&mut registry, Family::default()),
            seconds: definitions::API_REQUEST_SECONDS.register(
                &mut registry,
                Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS)),
            ),
            watch_events: definitions::WATCH_EVENTS.register(&mut registry, Family::default()),
        };
        let upstreams = definitions::UPSTREAM_REQUESTS.register(&mut registry, Family::default());
        let upstream_seconds: Histograms = definitions::UPSTREAM_REQUEST_SECONDS.register(
            &mut registry,
            Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS)),
        );
        let published = definitions::MESSAGES_PUBLISHED.register(&mut registry, Family::default());
        Self {
            registry,
            families,
            plugins: ArcSwap::default(),
            rest,
            upstreams,
            upstream_seconds,
            published,
            known_upstreams: Mutex::default(),
        }
    }
}

impl Metrics {
    /// The handles of a plugin. They are looked up once per call.
    pub fn plugin_metrics(&self, name: &Arc<str>) -> Arc<PluginMetrics> {
        if let Some(known) = self.plugins.load().get(name) {
            return known.clone();
        }
        // Two calls that add it at once get the same handles.
        let new = Arc::new(PluginMetrics::new(&self.families, name));
        self.plugins.rcu(|plugins| {
            let mut plugins = HashMap::clone(plugins);
            plugins.entry(name.clone()).or_insert_with(|| new.clone());
            plugins
        });
        self.plugins.load()[name].clone()
    }

    /// The metrics of requests to the API server.
    pub fn rest_client(&self) -> RestClient {
        self.rest.clone()
    }

    /// Records the status of an upstream's response; 0 without one.
    pub fn record_upstream(&self, namespace: &str, name: &str, code: u16, took: Duration) {
        let upstream = self.upstream_label(namespace, name);
        self.upstream_seconds
            .get_or_create(&definitions::UPSTREAM_REQUEST_SECONDS.with_values([upstream.clone()]))
            .observe(took.as_secs_f64());
        self.upstreams.get_or_create(&Upstream { upstream, code }).inc();
    }

    /// Records the result of a message that a component published.
    pub fn record_publish(&self, namespace: &str, name: &str, result: PublishResult) {
        let result = match result {
            PublishResult::Confirmed => "confirmed",
            PublishResult::Unroutable => "unroutable",
            PublishResult::Failed => "failed",
        };
        let values = [self.upstream_label(namespace, name), result.into()];
        self.published
            .get_or_create(&definitions::MESSAGES_PUBLISHED.with_values(values))
            .inc();
    }

    /// The label of an upstream: its name, or `others` beyond the limit.
    fn upstream_label(&self, namespace: &str, name: &str) -> Arc<str> {
        let upstream: Arc<str> = format!("{namespace}/{name}").into();
        let mut known = self.known_upstreams.lock();
        if known.len() < MAX_UPSTREAMS {
            known.insert(upstream.clone());
        } else if !known.contains(&upstream) {
            return "others".into();
        }
        upstream
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::encoding::text;

    use super::*;

    #[test]
    fn labels_of_series_equal_their_definitions() {
        let metrics = Metrics::default();
        metrics.plugin_metrics(&"p".into());
        metrics
            .rest_client()
            .record_response("GET", Some(200), &"h".into(), Duration::ZERO);
        metrics.record_upstream("n", "u", 200, Duration::ZERO);
        metrics.record_publish("n", "u", PublishResult::Confirmed);
        let mut out = String::new();
        text::encode_registry(&mut out, &metrics.registry).expect("encodes");
        let mut checked = BTreeSet::new();
        for (series, _) in out.lines().filter_map(|line| line.split_once("} ")) {
            let (sample, labels) = series.split_once('{').expect("labels");
            let suffixes = ["_total", "_bucket", "_sum", "_count"];
            let name = suffixes
                .iter()
                .find_map(|s| sample.strip_suffix(s))
                .unwrap_or(sample);
            let definition = definitions::ALL.iter().find(|d| d.0 == name).expect(name);
            let found: Vec<_> = labels
                .split(',')
                .filter_map(|label| label.split_once('=').map(|(name, _)| name))
                .filter(|name| *name != "le")
                .collect();
            assert_eq!(found, definition.2, "{name}");
            checked.insert(name);
        }
        assert_eq!(checked.len(), 23, "{checked:?}");
    }
}
