//! Costs of clusters and of a change that concerns all objects, measured on a host process. They are printed by
//! `cargo test -p ostler-scenarios -- --ignored --nocapture clusters::figures::`.

use ostler_test_harness::{
    process::{HostProcess, ProcessOptions, ProcessUsage},
    run_bounded,
};

use super::*;

/// Number of clusters, over which the figures of one are averaged.
const CLUSTER_COUNT: usize = 20;
/// Number of objects of a cluster.
const OBJECT_COUNT: usize = 1_000;
/// Interval over which the requests of an idle host are counted.
const IDLE_INTERVAL: Duration = Duration::from_secs(120);
/// Number of objects that read one configuration.
const READER_COUNT: usize = 10_000;
/// Time for all of them to be reconciled.
const READERS_TIMEOUT: Duration = Duration::from_secs(900);

const GRANTS: &str = "plugins:
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, list]}
    - {kinds: [ConfigMap], verbs: [get, list], namespaces: ['*'], clusters: ['Same/*']}
";

async fn start_process(lab: &Lab) -> HostProcess {
    lab.install(&["tests/probe"]);
    let options = ProcessOptions {
        grants: Some(GRANTS),
        ..ProcessOptions::default()
    };
    let process = HostProcess::start_with(lab, "host", &["--leader-elect=false"], options);
    process.wait_started(lab).await;
    process
}

/// Waits until the host uses less than a twentieth of a core, and returns what it has used.
async fn wait_quiet(process: &HostProcess) -> ProcessUsage {
    loop {
        let before = process.read_usage();
        // The rate is measured over this interval.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = process.read_usage();
        if now.cpu_time - before.cpu_time < Duration::from_millis(50) {
            return now;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_clusters_is_printed() {
    run_bounded(async { measure_clusters(Lab::embedded().await).await }).await;
}

async fn measure_clusters(lab: Lab) {
    let east = SecondCluster::start_embedded(&lab).await;
    for n in 0..OBJECT_COUNT {
        east.apply_config_map(&lab, &format!("c-{n}"), &"x".repeat(500))
            .await;
    }
    let names: Vec<String> = (0..CLUSTER_COUNT).map(|n| format!("east-{n}")).collect();
    let process = start_process(&lab).await;
    let none = wait_quiet(&process).await;

    let server = lab.embedded.as_ref().expect("embedded");
    for name in &names {
        apply_cluster(&lab, name, east.kubeconfig()).await;
        // It is connected while something reads it, and this reads one object that does not exist.
        let read = on_cluster(
            &lab,
            name,
            json!({"do": "get", "kind": "ConfigMap", "name": "none"}),
        );
        lab.apply_probe(name, json!([read]), json!([])).await;
    }
    for name in &names {
        lab.wait_ready(&cluster_kind(), name).await;
        lab.wait_ready(&kind(), name).await;
    }
    let connected = wait_quiet(&process).await;

    for counters in [server.counters(), east.embedded().counters()] {
        counters.reset();
    }
    // The interval is what is measured.
    tokio::time::sleep(IDLE_INTERVAL).await;
    let hours = IDLE_INTERVAL.as_secs_f64() / 3600.0;
    let idle = [east.embedded().counters(), server.counters()].map(|counters| counters.all());

    for name in &names {
        let list = on_cluster(&lab, name, json!({"do": "list", "kind": "ConfigMap"}));
        lab.apply_probe(name, json!([list]), json!([])).await;
    }
    for name in &names {
        lab.wait_until("the cluster's objects are listed", async || {
            let probe = lab.get(&kind(), name).await.unwrap_or_default();
            probe["status"]["seen"][0]
                .as_str()
                .is_some_and(|seen| seen.contains("c-999"))
        })
        .await;
    }
    let full = wait_quiet(&process).await;

    let per_cluster = |from: ProcessUsage, to: ProcessUsage| {
        to.anonymous_bytes.saturating_sub(from.anonymous_bytes) / CLUSTER_COUNT as u64 / 1024
    };
    println!("{} KiB without clusters", none.anonymous_bytes / 1024);
    println!("{} KiB per connected cluster", per_cluster(none, connected));
    println!(
        "{} KiB more per cluster with {OBJECT_COUNT} ConfigMaps of 500 bytes",
        per_cluster(connected, full)
    );
    for (title, counts) in ["a cluster", "the host's own cluster"].into_iter().zip(idle) {
        let share = if title == "a cluster" { CLUSTER_COUNT } else { 1 };
        let total: u64 = counts.values().sum();
        println!(
            "{:.0} requests per idle hour to {title}: {counts:?} in {IDLE_INTERVAL:?}",
            total as f64 / share as f64 / hours
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_a_config_change_is_printed() {
    measure_config_change(Lab::embedded().await).await;
}

async fn measure_config_change(lab: Lab) {
    lab.apply_config_map("config", "c", "0").await;
    let process = start_process(&lab).await;
    for n in 0..READER_COUNT {
        let read = json!({"do": "get", "kind": "ConfigMap", "name": "config"});
        lab.apply_probe(&format!("p-{n}"), json!([read]), json!([])).await;
    }
    let settle = async |value: &str| {
        let started = Instant::now();
        let seen = json!([json!({"v": value}).to_string()]);
        loop {
            let probes = lab.list(&kind()).await;
            if probes.len() == READER_COUNT && probes.iter().all(|probe| probe["status"]["seen"] == seen) {
                return;
            }
            assert!(
                started.elapsed() < READERS_TIMEOUT,
                "not all objects are reconciled"
            );
            // Each look lists everything, which takes the server from what is measured.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    settle("0").await;
    let before = wait_quiet(&process).await;
    let server = lab.embedded.as_ref().expect("embedded");
    server.counters().reset();
    let started = Instant::now();
    lab.apply_config_map("config", "c", "1").await;
    settle("1").await;
    let elapsed = started.elapsed();
    let after = wait_quiet(&process).await;
    println!(
        "a change that {READER_COUNT} objects read: {elapsed:.0?} (looked every 5 s), CPU {:.1?}, {} KiB more, requests {:?}",
        after.cpu_time - before.cpu_time,
        after.anonymous_bytes.saturating_sub(before.anonymous_bytes) / 1024,
        server.counters().all()
    );
}
