//! Ten clusters of which five are dead: objects of the others are reconciled as if there were only these. The latencies are
//! printed by `cargo test -p ostler-scenarios -- --ignored --nocapture clusters::fleet::latencies`.

use std::time::{Duration, Instant};

use ostler_test_harness::{run_bounded, scenario};

use super::*;

/// Number of clusters that respond, and of those that don't.
const CLUSTER_COUNT: usize = 5;
/// Number of objects that use each dead cluster.
const STUCK_COUNT: usize = 10;
/// Number of changes on each cluster that responds.
const CHANGE_COUNT: usize = 3;
/// Number of measured changes on each of them.
const MEASURED_COUNT: usize = 100;

/// Starts clusters that respond, each with a ConfigMap `c`, and a probe of the cluster's name that reads it.
async fn start_responding(lab: &Lab) -> Vec<(String, SecondCluster)> {
    let mut responding = Vec::new();
    for i in 0..CLUSTER_COUNT {
        let (name, east) = (
            format!("responding-{i}"),
            SecondCluster::start_embedded(lab).await,
        );
        apply_cluster(lab, &name, east.kubeconfig()).await;
        east.apply_config_map(lab, "c", "0").await;
        let read = on_cluster(lab, &name, json!({"do": "get", "kind": "ConfigMap", "name": "c"}));
        lab.apply_probe(&name, json!([read]), json!([])).await;
        responding.push((name, east));
    }
    for (name, _) in &responding {
        lab.wait_seen(name, &[r#"{"v":"0"}"#]).await;
    }
    responding
}

/// Latency of a cluster that accepts requests and does not respond within the largest timeout.
const DEAD_LATENCY: Duration = Duration::from_secs(600);

/// Applies a Cluster with this timeout of its requests, and its Secret.
async fn apply_cluster_with_timeout(lab: &Lab, name: &str, kubeconfig: &str, timeout_seconds: u32) {
    apply_kubeconfig(lab, name, kubeconfig).await;
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"kubeconfigSecretRef": {"name": name}, "timeoutSeconds": timeout_seconds},
    }))
    .await;
}

/// Starts clusters with this latency and timeout, and probes that use them.
async fn start_dead(lab: &Lab, latency: Duration, timeout_seconds: u32) -> Vec<(String, SecondCluster)> {
    let mut dead = Vec::new();
    for i in 0..CLUSTER_COUNT {
        let (name, east) = (format!("dead-{i}"), SecondCluster::start_embedded(lab).await);
        east.embedded().faults().set_latency(latency);
        apply_cluster_with_timeout(lab, &name, east.kubeconfig(), timeout_seconds).await;
        apply_stuck(lab, &name, "1").await;
        dead.push((name, east));
    }
    dead
}

/// Applies the probes that use a dead cluster: half of them read, and half of them write this value.
async fn apply_stuck(lab: &Lab, cluster: &str, value: &str) {
    let read = json!({"do": "get", "kind": "ConfigMap", "name": "c"});
    for n in 0..STUCK_COUNT {
        let name = format!("{cluster}-{n}");
        let step = match n % 2 {
            0 => read.clone(),
            _ => write("apply", &name, value),
        };
        let step = on_cluster(lab, cluster, step);
        lab.apply_probe(&name, json!([step]), json!([])).await;
    }
}

#[scenario(embedded = "it needs several clusters")]
async fn objects_of_other_clusters_do_not_wait_for_five_dead_ones(mut lab: Lab) {
    lab.start_probe().await;
    let dead = start_dead(&lab, DEAD_LATENCY, 60).await;
    lab.wait_until("the dead clusters are being checked", async || {
        lab.host().services().clusters.list().len() == CLUSTER_COUNT
    })
    .await;
    let responding = start_responding(&lab).await;
    for (name, _) in &dead {
        let cluster = lab.get(&cluster_kind(), name).await.expect("a Cluster");
        // Unknown if the host has seen the Cluster before its Secret.
        let connected = find_condition(&cluster, "Connected");
        assert!(
            connected.is_null() || connected["status"] == "Unknown",
            "its first health check still waits for a response: {cluster}"
        );
    }
    let count_failures = |name: &str| {
        let facts = lab.host().stats().object(&lab.key(&kind(), name));
        facts.expect("reconciled").failures
    };
    let before: Vec<u64> = responding.iter().map(|(name, _)| count_failures(name)).collect();
    for change in 1..=CHANGE_COUNT {
        for (_, east) in &responding {
            east.apply_config_map(&lab, "c", &change.to_string()).await;
        }
        for (name, _) in &responding {
            lab.wait_seen(name, &[&json!({"v": change.to_string()}).to_string()])
                .await;
        }
    }
    for ((name, _), before) in responding.iter().zip(before) {
        assert_eq!(
            count_failures(name),
            before,
            "reconciles of {name} that waited or failed"
        );
    }
}

/// Timeout of the requests to a cluster that goes silent. A plugin whose calls all wait for it would do nothing else for so long.
const SILENT_TIMEOUT_SECONDS: u32 = 60;

#[scenario(embedded = "it needs several clusters")]
async fn objects_of_other_clusters_do_not_wait_for_one_that_goes_silent(mut lab: Lab) {
    lab.start_probe().await;
    let responding = start_responding(&lab).await;
    let silent = SecondCluster::start_embedded(&lab).await;
    apply_cluster_with_timeout(&lab, "silent", silent.kubeconfig(), SILENT_TIMEOUT_SECONDS).await;
    // More than the plugin reconciles at a time.
    let writers: Vec<String> = (0..3 * lab.settings.workers)
        .map(|n| format!("writer-{n}"))
        .collect();
    let apply_writers = async |value: &str| {
        for name in &writers {
            let step = on_cluster(&lab, "silent", write("apply", name, value));
            lab.apply_probe(name, json!([step]), json!([])).await;
        }
    };
    apply_writers("1").await;
    for name in &writers {
        lab.wait_ready(&kind(), name).await;
    }
    silent.embedded().faults().set_latency(DEAD_LATENCY);
    let silenced = Instant::now();
    apply_writers("2").await;
    for change in 1..=CHANGE_COUNT {
        for (_, east) in &responding {
            east.apply_config_map(&lab, "c", &change.to_string()).await;
        }
        for (name, _) in &responding {
            lab.wait_seen(name, &[&json!({"v": change.to_string()}).to_string()])
                .await;
        }
    }
    let elapsed = silenced.elapsed();
    assert!(
        elapsed < Duration::from_secs(u64::from(SILENT_TIMEOUT_SECONDS) / 2),
        "{elapsed:?} for the objects of other clusters"
    );
    let slow = format!("cluster {}/silent is slow", lab.namespace);
    lab.wait_until("refused calls name the cluster", async || {
        let probes = lab.list(&kind()).await;
        let ready = probes.iter().map(|probe| find_condition(probe, "Ready"));
        ready.into_iter().any(|ready| {
            let message = ready["message"].as_str().unwrap_or_default();
            ready["status"] == "False" && message.contains(&slow)
        })
    })
    .await;
    let cluster = lab.get(&cluster_kind(), "silent").await.expect("a Cluster");
    assert_eq!(
        find_condition(&cluster, "Ready")["status"],
        "True",
        "its breaker is closed until requests time out"
    );
    silent.embedded().faults().set_latency(Duration::ZERO);
    silent.embedded().faults().restart();
    for name in &writers {
        lab.wait_ready(&kind(), name).await;
        assert_eq!(silent.config_map(&lab, name).await, Some(json!({"v": "2"})));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn latencies_with_and_without_dead_clusters_are_printed() {
    run_bounded(async { measure(Lab::embedded().await).await }).await;
}

async fn measure(mut lab: Lab) {
    lab.start_probe().await;
    let responding = start_responding(&lab).await;
    let dead = start_dead(&lab, Duration::ZERO, 10).await;
    for (name, _) in &dead {
        for n in 0..STUCK_COUNT {
            lab.wait_ready(&kind(), &format!("{name}-{n}")).await;
        }
    }
    let alone = measure_wakes(&lab, &responding, "a").await;
    let died = Instant::now();
    for (name, east) in &dead {
        east.embedded().faults().set_latency(DEAD_LATENCY);
        apply_stuck(&lab, name, "2").await;
    }
    let meanwhile = measure_wakes(&lab, &responding, "m").await;
    println!(
        "in the first {:.1?} after five clusters went silent: p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        died.elapsed(),
        meanwhile[meanwhile.len() / 2],
        meanwhile[meanwhile.len() * 99 / 100],
        meanwhile[meanwhile.len() - 1],
    );
    for (name, _) in &dead {
        wait_not_ready(&lab, &cluster_kind(), name, "").await;
    }
    println!(
        "five clusters not Ready {:.1?} after the first died",
        died.elapsed()
    );
    let beside = measure_wakes(&lab, &responding, "b").await;
    for (title, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let [alone, beside] = [&alone, &beside]
            .map(|sorted| sorted[(sorted.len() as f64 * quantile) as usize].as_secs_f64() * 1e3);
        println!(
            "change on another cluster to status: {title} {alone:.2} ms, {beside:.2} ms beside five dead clusters, ratio {:.2}",
            beside / alone
        );
    }
}

/// Measures the times from changes on each cluster to the status of the object that reads it. They are sorted.
async fn measure_wakes(lab: &Lab, clusters: &[(String, SecondCluster)], round: &str) -> Vec<Duration> {
    let mut times = Vec::new();
    for change in 0..MEASURED_COUNT {
        for (name, east) in clusters {
            let value = format!("{round}{change}");
            let started = Instant::now();
            east.apply_config_map(lab, "c", &value).await;
            let seen = json!([json!({"v": value}).to_string()]);
            // Without pauses, which would be what is measured.
            while lab.get(&kind(), name).await.expect("a probe")["status"]["seen"] != seen {}
            times.push(started.elapsed());
        }
    }
    times.sort_unstable();
    times
}
