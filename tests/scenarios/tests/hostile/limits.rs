//! Every limit, and the behaviour that exceeds it.

use std::time::Duration;

use ostler::testing::{
    limits::Limit,
    metrics::{Format, Scraped},
};
use ostler_test_harness::{Lab, greeting_kind, scenario};

use super::{Mirror, apply_attack, greeting, hostile, object, set_grants};

/// The behaviour that exceeds each limit. Table growth is covered by a test of the engine, since Rust cannot grow tables.
const EXCEEDED_BY: [(Limit, &str); 19] = [
    (Limit::Memory, "grow"),
    (Limit::CpuTime, "loop"),
    (Limit::Timeout, "ask"),
    (Limit::HostCalls, "call"),
    (Limit::CallBytes, "bulk"),
    (Limit::BytesToHost, "bulks"),
    (Limit::BytesFromHost, "list"),
    (Limit::ListedObjects, "list"),
    (Limit::LogLines, "chatter"),
    (Limit::LogLinesPerMinute, "chatter"),
    (Limit::Watches, "watch"),
    (Limit::EventsPerMinute, "announce"),
    (Limit::MetricSeries, "series"),
    (Limit::Conditions, "conditions"),
    (Limit::ConditionBytes, "words"),
    (Limit::StatusBytes, "status"),
    (Limit::Holds, "hold"),
    (Limit::Subscriptions, "subscribe"),
    (Limit::CacheBytes, "hoard"),
];

const CONFIG_MAP_COUNT: usize = 30;

/// A sample of the host's metrics; 0 if it does not exist yet.
fn read_sample(lab: &Lab, name: &str, limit: Limit) -> f64 {
    let host = lab.host();
    let scraped = Scraped {
        services: host.services(),
        registry: host.registry(),
        stats: host.stats(),
        lease: host.lease(),
        workers: lab.settings.workers,
    };
    let text = host
        .services()
        .metrics
        .text(Format::Prometheus, &scraped)
        .expect("metrics");
    let start = format!("{name}{{plugin=\"hostile\",limit=\"{}\"}} ", limit.name());
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.parse().ok());
    value.unwrap_or(0.0)
}

#[scenario(hostile)]
pub async fn every_limit_is_enforced_and_counted(mut lab: Lab) {
    for limit in Limit::ALL {
        let known = EXCEEDED_BY.iter().any(|(l, _)| l == limit) || *limit == Limit::TableElements;
        assert!(known, "no behaviour exceeds {}", limit.name());
    }
    set_grants(
        &mut lab,
        "    kubernetes: [{kinds: [ConfigMap], verbs: [list, apply, hold]}]
    upstreams: [{}]
    events: true
    limits: {memory: 48Mi, cpuTime: 200ms, timeout: 3s, hostCalls: 300, callBytes: 1Mi, bytesToHost: 2Mi, bytesFromHost: 8Ki,
      listedObjects: 100, logLines: 50, logLinesPerMinute: 40, watches: 7, eventsPerMinute: 10, metricSeries: 100, conditions: 20, conditionBytes: 4Ki,
      statusBytes: 64Ki, holds: 10, subscriptions: 5, cacheBytes: 64Ki}
",
    );
    let slow = Mirror::start(Some(Duration::from_secs(600))).await;
    lab.apply(slow.upstream(&lab, "slow")).await;
    for i in 0..CONFIG_MAP_COUNT {
        lab.apply_config_map(&format!("map-{i:02}"), "x", "1").await;
    }
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    assert_eq!(
        read_sample(&lab, "ostler_plugin_limit", Limit::Memory),
        48.0 * 1024.0 * 1024.0
    );
    assert_eq!(read_sample(&lab, "ostler_plugin_limit", Limit::Timeout), 3.0);
    assert_eq!(read_sample(&lab, "ostler_plugin_limit", Limit::HostCalls), 300.0);
    let exceeded = "ostler_plugin_limit_exceeded_total";
    for (limit, _) in EXCEEDED_BY {
        assert_eq!(read_sample(&lab, exceeded, limit), 0.0, "{}", limit.name());
    }
    // All behaviours run at once, so that each is also a neighbour of the others.
    let mut behaviours: Vec<_> = EXCEEDED_BY.iter().map(|(_, behaviour)| *behaviour).collect();
    behaviours.dedup();
    for behaviour in behaviours {
        apply_attack(&lab, behaviour, "slow").await;
    }
    for (limit, behaviour) in EXCEEDED_BY {
        let what = format!("{behaviour} exceeds the limit {}", limit.name());
        lab.wait_until(&what, async || read_sample(&lab, exceeded, limit) >= 1.0)
            .await;
    }
    lab.apply(object(&lab, "good", "behave")).await;
    lab.wait_ready(&hostile(), "good").await;
    lab.apply(greeting(&lab, "neighbour")).await;
    lab.wait_ready(&greeting_kind(), "neighbour").await;
    let held = lab.list(&super::config_map()).await;
    let finalizers = |o: &&serde_json::Value| o["metadata"]["finalizers"].is_array();
    assert_eq!(
        held.iter().filter(finalizers).count(),
        10,
        "holds up to the limit"
    );
}
