//! Figures of the image in pods: memory with and without plugins, the time of commands, and the start to leading.

use std::time::{Duration, Instant};

use axum::http::Request;
use jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab, component_path, greeting_kind,
    process::{ProcessUsage, Signal, read_usage, send_signal},
    scenario, wait_for,
};
use serde_json::{Value, json};

use super::{
    find_leader,
    operations::{Installed, find_host, greeting},
    pods,
};

/// Plugins of the pack that the image is measured with.
const PLUGINS: [&str; 7] = [
    "concourse-build",
    "concourse-instance",
    "concourse-job",
    "concourse-pipeline",
    "concourse-resource",
    "concourse-team",
    "concourse-worker",
];
/// Number of starts of each kind, whose median is printed.
const STARTS: usize = 3;
/// Memory that the chart requests for a pod.
const REQUESTED_MEMORY: u64 = 64 << 20;

/// Times from the start of a process until it led, and until it had loaded its plugins.
#[derive(Clone, Copy, Debug)]
struct StartTimes {
    leading: SignedDuration,
    loaded: SignedDuration,
}

/// Returns the time at which a process was started, to 10 ms.
fn read_start(process: u32) -> Timestamp {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux");
    let now: f64 = uptime
        .split_ascii_whitespace()
        .next()
        .and_then(|seconds| seconds.parse().ok())
        .expect("an uptime");
    let age = now - read_usage(process).started.as_secs_f64();
    Timestamp::now() - SignedDuration::from_secs_f64(age)
}

/// Finds the time of a message in the log of a host.
fn find_logged(log: &str, message: &str) -> Option<Timestamp> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = lines.filter(|line| line["message"] == message);
    found.next()?["timestamp"].as_str()?.parse().ok()
}

impl Installed {
    /// Runs a command of `ostler`, and returns how long it took.
    async fn time(&self, arguments: &[&str]) -> Duration {
        let began = Instant::now();
        self.run(arguments).await;
        began.elapsed()
    }

    async fn read_log(&self, pod: &str) -> Option<String> {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/log", self.namespace);
        let request = Request::get(path).body(Vec::new()).expect("a request");
        self.lab.client.request_text(request).await.ok()
    }

    /// Waits until the only replica runs another process than that before, which leads and has loaded its plugins.
    async fn wait_started(&self, before: u32) -> (u32, StartTimes) {
        let started = async || {
            let pods = self.list_pods().await;
            let [pod] = &pods[..] else { return None };
            let name = pod.metadata.name.as_deref()?;
            let process = find_host(name).filter(|process| *process != before)?;
            let log = self.read_log(name).await?;
            let (led, loaded) = (find_logged(&log, "became leader")?, find_logged(&log, "started")?);
            let start = read_start(process);
            // The log of the process before.
            (led > start).then_some((
                process,
                StartTimes {
                    leading: led.duration_since(start),
                    loaded: loaded.duration_since(start),
                },
            ))
        };
        wait_for(started, || "the replica leads".to_owned()).await
    }

    /// Returns the memory of all replicas, that of the leader first.
    async fn read_memory(&self) -> Vec<ProcessUsage> {
        let leader = find_leader(&self.lab, &self.namespace).await.expect("a leader");
        let pods = self.list_pods().await;
        let mut names: Vec<_> = pods
            .iter()
            .filter_map(|pod| pod.metadata.name.as_deref())
            .collect();
        names.sort_by_key(|name| *name != leader);
        let process = |name: &str| find_host(name).expect("its process");
        names.into_iter().map(|name| read_usage(process(name))).collect()
    }

    async fn print_memory(&self, plugins: usize) {
        for (role, memory) in ["leader", "standby"].into_iter().zip(self.read_memory().await) {
            println!(
                "{plugins} plugins, {role}: {:.1} MiB, of which {:.1} MiB are pages of files",
                to_mib(memory.anonymous_bytes + memory.file_bytes),
                to_mib(memory.file_bytes)
            );
            assert!(
                memory.anonymous_bytes < REQUESTED_MEMORY,
                "more than the chart requests"
            );
        }
    }
}

fn to_mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn print_starts(how: &str, mut times: Vec<StartTimes>) {
    times.sort_by_key(|times| times.loaded);
    let median = times[times.len() / 2];
    println!(
        "{how} start with {} plugins: leading after {:.2} s, all plugins loaded after {:.2} s",
        PLUGINS.len(),
        median.leading.as_secs_f64(),
        median.loaded.as_secs_f64()
    );
}

/// Commands of users and administrators about a running host.
const COMMANDS: [&[&str]; 4] = [
    &["status"],
    &["get", "--all-namespaces"],
    // Rates of two seconds.
    &["top"],
    &["explain", "greeting/hello"],
];

/// With `--release` the figures are those of the shipped image.
#[scenario(
    node_only = "processes in containers",
    alone,
    campaign = "its figures are those of the shipped image with --release only"
)]
async fn host_in_a_pod_requests_the_memory_it_needs_and_starts_faster_with_its_cache(lab: Lab) {
    for name in PLUGINS.iter().chain(&["greeting"]) {
        lab.delete_plugin(name).await;
    }
    let installed = Installed::new(lab);
    let began = Instant::now();
    installed.install_host("0.1.0").await;
    println!("ostler install: {:.2} s", began.elapsed().as_secs_f64());
    installed.print_memory(0).await;

    let mut times = Vec::new();
    for name in PLUGINS {
        let component = component_path(&format!("concourse/{name}")).display().to_string();
        let reference = installed.push_plugin(name, "0.1.0", &component).await;
        let began = Instant::now();
        // Their manifests leave open where passwords may be sent.
        installed
            .install_pushed(&reference, &["--origin", "https://ci.example.com"])
            .await;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!(
        "ostler plugin install, median of {}: {:.2} s",
        times.len(),
        times[times.len() / 2].as_secs_f64()
    );
    installed.print_memory(PLUGINS.len()).await;

    let component = component_path("examples/greeting").display().to_string();
    installed.install_plugin("greeting", "0.1.0", &component).await;
    let lab = &installed.lab;
    lab.apply(greeting(lab, "hello", "World")).await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    let place = [
        "--namespace",
        &lab.namespace,
        "--host-namespace",
        &installed.namespace,
    ];
    for command in COMMANDS {
        let place = if command[0] == "explain" {
            &place[..]
        } else {
            &place[2..]
        };
        let time = installed.time(&[command, place].concat()).await;
        println!("ostler {}: {:.2} s", command.join(" "), time.as_secs_f64());
    }
    let time = installed
        .time(&["check", "--namespace", &installed.namespace])
        .await;
    println!("ostler check: {:.2} s", time.as_secs_f64());
    lab.delete(&greeting_kind(), "hello").await;
    installed.run(&["plugin", "uninstall", "greeting"]).await;

    measure_starts(&installed).await;

    for name in PLUGINS {
        installed.run(&["plugin", "uninstall", name]).await;
    }
    let time = installed
        .time(&["uninstall", "--namespace", &installed.namespace])
        .await;
    println!("ostler uninstall: {:.2} s", time.as_secs_f64());
}

/// Starts a single replica again and again: with an empty cache in a new pod, and with that of the process before in the same pod.
async fn measure_starts(installed: &Installed) {
    let deployments = installed
        .lab
        .api(&Gvk::new("apps", "v1", "Deployment"), &installed.namespace);
    let scale = async |replicas: usize| {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments
            .patch("ostler", &PatchParams::default(), &patch)
            .await
            .expect("scaled");
    };
    let pods = installed.lab.api(&pods(), &installed.namespace);
    let mut process = 0;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        scale(0).await;
        installed
            .lab
            .wait_until("no pod is left", async || {
                let pods = pods.list(&ListParams::default()).await.expect("pods");
                pods.items.is_empty()
            })
            .await;
        scale(1).await;
        let times;
        (process, times) = installed.wait_started(process).await;
        cold.push(times);
        // The process ends in order, and the kubelet starts its container again.
        send_signal(process, Signal::TERM);
        let times;
        (process, times) = installed.wait_started(process).await;
        warm.push(times);
    }
    let loaded = |times: &[StartTimes]| times.iter().map(|times| times.loaded).min().expect("starts");
    assert!(loaded(&warm) < loaded(&cold), "{warm:?} {cold:?}");
    print_starts("cold", cold);
    print_starts("warm", warm);
}
