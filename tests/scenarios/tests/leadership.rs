//! Leader election of two hosts: handover, crash, SIGSTOP, failing renewals. At no time do both write.
//!
//! The writes themselves name their writer: each host configures the plugin `lifecycle` with its own name, which each
//! reconcile puts into a ConfigMap.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    api::{DynamicObject, WatchParams},
    core::WatchEvent,
};
use ostler::testing::key::Gvk;
use ostler_test_harness::{
    Lab, find_condition, probe,
    process::{HostProcess, ProcessOptions, Signal, host_binary},
    proxy::Proxy,
    read_component, scenario,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle};

/// Successful reconciles of Probes.
const RECONCILED_PROBES: &str = "controller_runtime_reconcile_total{controller=\"probe\",result=\"success\"}";

const SHORT_TIMING: [&str; 3] = ["--lease-duration=3", "--renew-deadline=2", "--retry-period=0.5"];
/// A lease that does not expire during a test.
const LONG_TIMING: [&str; 3] = [
    "--lease-duration=600",
    "--renew-deadline=500",
    "--retry-period=0.5",
];

fn beats() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Beat")
}

fn beat(lab: &Lab, name: &str, behaviour: &str) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"behaviour": behaviour, "interval": 200}})
}

/// Starts a candidate whose writes have its name, and whose log is JSON.
async fn start_candidate(lab: &Lab, name: &str, timing: [&str; 3]) -> HostProcess {
    start_candidate_with(lab, name, timing, &["--log-format=json"]).await
}

async fn start_candidate_with(lab: &Lab, name: &str, timing: [&str; 3], more: &[&str]) -> HostProcess {
    let plugins = lab.path().join(name);
    std::fs::create_dir_all(&plugins).expect("a directory");
    std::fs::write(plugins.join("lifecycle.wasm"), read_component("tests/lifecycle")).expect("written");
    std::fs::write(plugins.join("lifecycle.yaml"), format!("writer: {name}\n")).expect("written");
    std::fs::write(plugins.join("hostile.wasm"), read_component("hostile/hostile")).expect("written");
    let mut arguments = vec!["--identity", name, "--lease-namespace", &lab.namespace];
    arguments.extend(timing.iter().chain(more));
    let process = HostProcess::start(lab, name, &arguments);
    process.wait_started(lab).await;
    process
}

/// History of the objects of one kind, in the order of the API server's watch events.
struct History<T> {
    seen: Arc<Mutex<Vec<T>>>,
    task: AbortHandle,
}

impl<T: Clone + Send + 'static> History<T> {
    fn follow(lab: &Lab, gvk: Gvk, fact: fn(&Value) -> Option<T>) -> Self {
        let api = lab.api(&gvk, &lab.namespace);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        let task = tokio::spawn(async move {
            let parameters = WatchParams::default().timeout(290);
            let mut events = api.watch(&parameters, "0").await.expect("a watch").boxed();
            while let Some(event) = events.try_next().await.expect("events") {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                    let object: DynamicObject = object;
                    let object = serde_json::to_value(object).expect("JSON");
                    into.lock().expect("lock").extend(fact(&object));
                }
            }
        });
        Self {
            seen,
            task: task.abort_handle(),
        }
    }

    fn all(&self) -> Vec<T> {
        self.seen.lock().expect("lock").clone()
    }
}

impl<T> Drop for History<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The history of writers.
fn writers(lab: &Lab) -> History<String> {
    History::follow(lab, Gvk::new("", "v1", "ConfigMap"), |object| {
        Some(object["data"]["writer"].as_str()?.to_owned())
    })
}

/// The specs of the Lease.
fn leases(lab: &Lab) -> History<Value> {
    History::follow(lab, lease_kind(), |lease| Some(lease["spec"].clone()))
}

fn lease_kind() -> Gvk {
    Gvk::new("coordination.k8s.io", "v1", "Lease")
}

async fn wait_lease_holder(lab: &Lab, name: &str) {
    lab.wait_until(&format!("{name} holds the lease"), async || {
        let lease = lab.get(&lease_kind(), "ostler").await.unwrap_or_default();
        lease["spec"]["holderIdentity"] == name
    })
    .await;
}

async fn wait_writes(lab: &Lab, writers: &History<String>, name: &str, more: usize) {
    let count = || writers.all().iter().filter(|w| *w == name).count();
    let before = count();
    lab.wait_until(&format!("{name} writes"), async || count() >= before + more)
        .await;
}

/// The sequence of writers without repetitions.
fn distinct_writers(writers: &History<String>) -> Vec<String> {
    let mut all = writers.all();
    all.dedup();
    all
}

/// Starts A, which leads and writes, and B, which stands by.
async fn start_two(lab: &Lab, timing: [&str; 3], writers: &History<String>) -> (HostProcess, HostProcess) {
    let a = start_candidate(lab, "a", timing).await;
    wait_lease_holder(lab, "a").await;
    for name in ["x", "y", "z"] {
        lab.apply(beat(lab, name, "beat")).await;
    }
    wait_writes(lab, writers, "a", 6).await;
    let b = start_candidate(lab, "b", timing).await;
    b.wait_logged(lab, "standing by").await;
    (a, b)
}

#[scenario(real = "leases")]
async fn terminated_leader_hands_over_without_waiting_for_expiry(lab: Lab) {
    let (writers, leases) = (writers(&lab), leases(&lab));
    let (mut a, _b) = start_two(&lab, LONG_TIMING, &writers).await;
    let begun = Instant::now();
    a.send_signal(Signal::TERM);
    wait_writes(&lab, &writers, "b", 1).await;
    println!("b wrote {:?} after the signal", begun.elapsed());
    assert!(a.wait_exit(&lab).await.success(), "a drained leader exits with 0");
    wait_writes(&lab, &writers, "b", 6).await;
    assert!(
        begun.elapsed() < Duration::from_secs(300),
        "long before the lease would have expired"
    );
    assert_eq!(distinct_writers(&writers), ["a", "b"]);
    let mut holders: Vec<_> = leases.all();
    holders.dedup_by(|a, b| a["holderIdentity"] == b["holderIdentity"]);
    let of = |field: &str| holders.iter().map(|l| l[field].clone()).collect::<Vec<_>>();
    assert_eq!(
        of("holderIdentity"),
        ["a", "", "b"],
        "it was released, and then taken"
    );
    assert_eq!(of("leaseDurationSeconds"), [600, 1, 600]);
    assert_eq!(of("leaseTransitions"), [0, 0, 1]);
}

#[scenario(real = "leases")]
async fn standby_takes_over_when_the_lease_of_a_crashed_leader_expires(lab: Lab) {
    let (writers, leases) = (writers(&lab), leases(&lab));
    let (mut a, _b) = start_two(&lab, SHORT_TIMING, &writers).await;
    let begun = Instant::now();
    a.send_signal(Signal::KILL);
    assert!(!a.wait_exit(&lab).await.success());
    wait_writes(&lab, &writers, "b", 1).await;
    println!(
        "b wrote {:?} after the crash, with leases of 3 s",
        begun.elapsed()
    );
    wait_writes(&lab, &writers, "b", 6).await;
    assert_eq!(distinct_writers(&writers), ["a", "b"]);
    let leases = leases.all();
    let of = |name: &'static str| leases.iter().filter(move |l| l["holderIdentity"] == name);
    let (last, first) = (of("a").next_back().expect("a's"), of("b").next().expect("b's"));
    assert_eq!(first["leaseTransitions"], 1);
    let seconds = ostler::testing::time::seconds_since(last["renewTime"].as_str().expect("a time"))
        .expect("a time")
        - ostler::testing::time::seconds_since(first["acquireTime"].as_str().expect("a time"))
            .expect("a time");
    assert!(
        seconds >= 2,
        "b waited until the lease had expired: {seconds} whole seconds"
    );
}

/// Checks that A has written nothing since B took over, and that A takes over again in the same process.
async fn check_standby_takes_over(lab: &Lab, writers: &History<String>, mut b: HostProcess) {
    assert_eq!(
        distinct_writers(writers),
        ["a", "b"],
        "no write of a after the first of b"
    );
    b.send_signal(Signal::TERM);
    assert!(b.wait_exit(lab).await.success());
    wait_writes(lab, writers, "a", 6).await;
    assert_eq!(distinct_writers(writers), ["a", "b", "a"]);
}

#[scenario(real = "leases")]
async fn leader_resumed_after_a_stop_writes_nothing(lab: Lab) {
    let writers = writers(&lab);
    let (a, b) = start_two(&lab, SHORT_TIMING, &writers).await;
    a.send_signal(Signal::STOP);
    wait_lease_holder(&lab, "b").await;
    wait_writes(&lab, &writers, "b", 6).await;
    a.send_signal(Signal::CONT);
    a.wait_logged(&lab, "lost leadership").await;
    wait_writes(&lab, &writers, "b", 30).await;
    check_standby_takes_over(&lab, &writers, b).await;
}

/// The leader's renewals are lost without an error: it stops by its own clock, before another candidate may start.
#[scenario(real = "leases")]
async fn disconnected_leader_stops_before_the_standby_starts(lab: Lab) {
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    lab.write_kubeconfig("a", proxy.address());
    let (writers, leases) = (writers(&lab), leases(&lab));
    let (a, b) = start_two(&lab, SHORT_TIMING, &writers).await;
    proxy.set_silent(true);
    a.wait_logged(&lab, "lost leadership").await;
    wait_writes(&lab, &writers, "b", 6).await;
    let log = a.log();
    let stopped = log.lines().find(|l| l.contains("lost leadership"));
    let stopped: Value = serde_json::from_str(stopped.expect("the log line")).expect("JSON");
    let taken = leases
        .all()
        .into_iter()
        .find(|lease| lease["holderIdentity"] == "b");
    let (stopped, taken) = (&stopped["timestamp"], &taken.expect("b's lease")["acquireTime"]);
    assert!(
        stopped.as_str() < taken.as_str() && stopped.is_string(),
        "{stopped} {taken}"
    );
    proxy.set_silent(false);
    wait_writes(&lab, &writers, "b", 20).await;
    check_standby_takes_over(&lab, &writers, b).await;
}

#[scenario(embedded = "it injects faults into the API server")]
async fn leader_that_cannot_renew_stops_writing(lab: Lab) {
    let (writers, leases) = (writers(&lab), leases(&lab));
    let (a, _b) = start_two(&lab, SHORT_TIMING, &writers).await;
    let faults = lab.embedded.as_ref().expect("the embedded API server").faults();
    // Renewals are executed too late; all other requests succeed.
    let slow = json!({"match": {"resource": "leases", "method": "PATCH"}, "effect": {"delay": 20_000}});
    faults
        .add(serde_json::from_value(slow).expect("a fault"))
        .expect("a pattern");
    a.wait_logged(&lab, "lost leadership").await;
    let (written, renewed) = (writers.all().len(), leases.all().len());
    // B cannot acquire the Lease either and retries: for a while there is no leader and no write.
    lab.wait_until("b tries", async || {
        read_log(&lab, "b").contains("lease request timed out")
    })
    .await;
    lab.wait_until("b tries again", async || {
        read_log(&lab, "b").matches("lease request timed out").count() > 1
    })
    .await;
    assert_eq!(
        writers.all().len(),
        written,
        "nothing was written without the lease"
    );
    assert_eq!(leases.all().len(), renewed);
    faults.clear();
    wait_single_writer(&lab, &writers).await;
}

/// A plugin puts the digest of a Secret into an object and into its status: neither changes with the process, and a plan
/// shows no change.
#[scenario]
async fn restart_and_failover_keep_digests_of_secrets(lab: Lab) {
    const GRANTS: &str = "plugins:
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes: [{kinds: [ConfigMap], verbs: [apply]}]
    secrets: [{names: [tls], origins: ['*']}]
";
    lab.install(&["tests/probe"]);
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": lab.namespace},
        "stringData": {"key": "tls-key-0001"}}),
    )
    .await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rolled"}, "data": {"v": "(digest)"}});
    let steps = json!([{"do": "digest", "name": "tls", "body": "key", "object": map.to_string()}]);
    lab.apply_probe("p", steps, json!([])).await;
    let start = async |name: &str| {
        let options = ProcessOptions {
            grants: Some(GRANTS),
            ..ProcessOptions::default()
        };
        let arguments = ["--identity", name, "--lease-namespace", &lab.namespace];
        let arguments = [&arguments[..], &LONG_TIMING].concat();
        let process = HostProcess::start_with(&lab, name, &arguments, options);
        process.wait_started(&lab).await;
        process
    };
    let reconciled = async |process: &HostProcess| {
        lab.wait_until("the Probe is reconciled", async || {
            process.fetch_metric(RECONCILED_PROBES).await > 0.0
        })
        .await;
    };
    let versions = async || {
        let probe = lab.get(&probe::kind(), "p").await.expect("the Probe");
        let map = lab
            .get(&probe::config_map(), "rolled")
            .await
            .expect("the ConfigMap");
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        (version(&probe), version(&map), map["data"]["v"].to_string())
    };
    let mut a = start("a").await;
    lab.wait_ready(&probe::kind(), "p").await;
    let before = versions().await;
    assert_eq!(before.2.len(), 34, "a digest of 16 bytes: {before:?}");
    let mut b = start("b").await;
    a.send_signal(Signal::TERM);
    reconciled(&b).await;
    assert_eq!(versions().await, before, "after a failover");
    a.wait_exit(&lab).await;
    b.send_signal(Signal::TERM);
    b.wait_exit(&lab).await;
    let _c = start("c").await;
    reconciled(&_c).await;
    assert_eq!(versions().await, before, "after a restart");
    let planned = Command::new(host_binary())
        .args([
            "plan",
            "probe/p",
            "--namespace",
            &lab.namespace,
            "--host-namespace",
            &lab.namespace,
        ])
        .arg("--kubeconfig")
        .arg(&lab.kubeconfig)
        .arg("--plugin-dir")
        .arg(&lab.settings.plugins)
        .arg("--grants")
        .arg(lab.path().join("c.grants.yaml"))
        .arg("--plugin-selector")
        .arg(format!("lab={}", lab.namespace))
        .output()
        .expect("ostler runs");
    let output = [planned.stdout, planned.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert_eq!(planned.status.code(), Some(0), "nothing would change:\n{output}");
}

fn read_log(lab: &Lab, name: &str) -> String {
    std::fs::read_to_string(lab.path().join(format!("{name}.log"))).unwrap_or_default()
}

async fn wait_single_writer(lab: &Lab, writers: &History<String>) {
    let before = writers.all().len();
    lab.wait_until("a leader writes", async || writers.all().len() > before + 6)
        .await;
    let writing: BTreeSet<_> = writers.all()[before..].iter().cloned().collect();
    assert_eq!(writing.len(), 1, "one of them: {writing:?}");
}

#[scenario]
async fn lease_is_renewed_under_cpu_load(lab: Lab) {
    let (writers, leases) = (writers(&lab), leases(&lab));
    let a = start_candidate_with(&lab, "a", SHORT_TIMING, &["--workers=32"]).await;
    wait_lease_holder(&lab, "a").await;
    // More guests that compute up to their limit than there are threads.
    for i in 0..32 {
        lab.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
            "metadata": {"name": format!("h{i}"), "namespace": lab.namespace}, "spec": {"behaviour": "loop"}}))
            .await;
    }
    lab.apply(beat(&lab, "x", "beat")).await;
    let before = leases.all().len();
    // 18 renewals take about three lease durations.
    lab.wait_until("the lease is renewed", async || leases.all().len() >= before + 18)
        .await;
    wait_writes(&lab, &writers, "a", 1).await;
    let terms: BTreeSet<_> = leases
        .all()
        .iter()
        .map(|l| l["acquireTime"].to_string())
        .collect();
    assert_eq!(terms.len(), 1, "held without interruption");
    assert!(!a.log().contains("lost leadership"));
}

/// An upstream that never responds, for which reconciles wait.
async fn start_silent_upstream(lab: &Lab) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "silent", "namespace": lab.namespace}, "spec": {"url": url}}))
        .await;
    listener
}

/// Starts a host and waits until it runs a reconcile of this behaviour.
async fn start_waiting_host(lab: &Lab, behaviour: &str, grace: &str) -> HostProcess {
    let process = start_candidate_with(lab, "a", LONG_TIMING, &["--grace-period", grace]).await;
    lab.apply(beat(lab, "w", behaviour)).await;
    process.wait_logged(lab, "Until it is asked to end").await;
    process
}

#[scenario]
async fn drain_finishes_running_reconciles_before_release(lab: Lab) {
    let _silent = start_silent_upstream(&lab).await;
    let mut a = start_waiting_host(&lab, "patient", "600").await;
    lab.apply(beat(&lab, "late", "beat")).await;
    a.send_signal(Signal::TERM);
    assert!(a.wait_exit(&lab).await.success());
    let object = lab.get(&beats(), "w").await.expect("it is there");
    assert_eq!(
        find_condition(&object, "Ready")["reason"],
        "Asked",
        "the reconcile finished: {object}"
    );
    let lease = lab.get(&lease_kind(), "ostler").await.expect("a lease");
    assert_eq!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default(), "");
}

#[scenario]
async fn drain_abandons_reconciles_after_the_grace_period(lab: Lab) {
    let _silent = start_silent_upstream(&lab).await;
    let mut a = start_waiting_host(&lab, "stubborn", "1").await;
    a.send_signal(Signal::TERM);
    assert!(a.wait_exit(&lab).await.success());
    assert!(
        a.log().contains("abandoning unfinished reconciles") && a.log().contains("reconciles=1"),
        "{}",
        a.log()
    );
    let lease = lab.get(&lease_kind(), "ostler").await.expect("a lease");
    assert_eq!(lease["spec"]["holderIdentity"].as_str().unwrap_or_default(), "");
    let object = lab.get(&beats(), "w").await.expect("it is there");
    assert!(
        find_condition(&object, "Ready").is_null(),
        "an abandoned reconcile writes no status"
    );
}

#[scenario]
async fn second_signal_exits_without_draining(lab: Lab) {
    let _silent = start_silent_upstream(&lab).await;
    let mut a = start_waiting_host(&lab, "stubborn", "600").await;
    a.send_signal(Signal::TERM);
    a.wait_logged(&lab, "shutting down").await;
    a.send_signal(Signal::INT);
    assert!(
        !a.wait_exit(&lab).await.success(),
        "the exit code reports that it did not drain"
    );
}
