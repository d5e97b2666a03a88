//! The cost of many Steps.

use std::time::Instant;

use kubelet_simulator::{Course, succeed_with};
use ostler::testing::scope::Scope;
use ostler_test_harness::{
    Lab,
    process::{HostProcess, ProcessOptions, ProcessUsage},
    scenario,
};
use serde_json::json;

use crate::{
    observability::count_requests,
    steps::{StepsLab, install_pack, pods, start_kubelet, steps},
};

/// Most requests of the host for a Step without inputs: its finalizer, its pod, statuses and Events.
const MAX_REQUESTS_PER_STEP: u64 = 10;

/// The watches of pods.
fn pod_watches(lab: &Lab) -> Vec<Scope> {
    let scopes = lab.host().services().cache.informers.scopes().into_iter();
    scopes
        .map(|(scope, _)| scope)
        .filter(|scope| *scope.gvk.kind == *"Pod")
        .collect()
}

async fn run_steps(steps_lab: &StepsLab, prefix: &str, count: usize) {
    for i in 0..count {
        steps_lab
            .lab
            .apply(steps_lab.step(&format!("{prefix}-{i}")))
            .await;
    }
    steps_lab
        .lab
        .wait_until("all Steps have succeeded", async || {
            let all = steps_lab.lab.list(&steps()).await;
            all.iter().all(|step| step["status"]["phase"] == "Succeeded")
        })
        .await;
    steps_lab.lab.wait_idle().await;
}

#[scenario(real = "watches and lists")]
async fn pods_are_watched_by_their_label_alone(lab: Lab) {
    let steps_lab = StepsLab::start(lab).await;
    let lab = &steps_lab.lab;
    run_steps(&steps_lab, "first", 5).await;
    lab.delete(&steps(), "first-0").await;
    lab.wait_gone(&steps(), "first-0").await;
    let watches = pod_watches(lab);
    assert_eq!(watches.len(), 1, "{watches:?}");
    let selector = watches[0].selector.as_ref().map(ToString::to_string);
    assert_eq!(selector.as_deref(), Some("ostler.dev/owner-uid"));
    let Some(server) = &lab.embedded else { return };
    for count in [10, 30] {
        server.counters().reset();
        run_steps(&steps_lab, &format!("of-{count}"), count).await;
        let counters = server.counters();
        let of = |verb, resource| counters.of(verb, resource);
        assert_eq!(of("create", "pods"), count as u64);
        for verb in ["get", "list", "delete", "patch", "apply"] {
            assert_eq!(of(verb, "pods"), 0, "{verb}: {:?}", counters.all());
        }
        let own = ["steps", "steps/status"].map(|resource| of("patch", resource));
        let requests = own.iter().sum::<u64>() + of("create", "pods") + of("create", "events");
        assert!(
            requests <= MAX_REQUESTS_PER_STEP * count as u64,
            "{:?}",
            counters.all()
        );
    }
    assert_eq!(pod_watches(lab).len(), 1);
    assert_eq!(lab.list(&pods()).await.len(), 44);
}

#[scenario]
async fn step_beyond_the_limit_of_pods_waits_for_the_end_of_another(lab: Lab) {
    let mut steps_lab = StepsLab::start_with(lab, json!({ "maxPods": 2 })).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        steps_lab.kubelet.direct(&format!("{name}-1"), Course::Running);
    }
    for name in ["a", "b"] {
        steps_lab.lab.apply(steps_lab.producer(name)).await;
        steps_lab.wait_phase(name, "Running").await;
    }
    for name in ["c", "d"] {
        steps_lab.lab.apply(steps_lab.step(name)).await;
        let message = steps_lab.wait_reason(name, "PodLimit").await;
        assert_eq!(
            message,
            "Waiting for one of the pods that Steps may have at a time (maxPods: 2)."
        );
    }
    // The next host finds the pods that run before it creates another.
    steps_lab.restart_host().await;
    steps_lab
        .lab
        .wait_until("all Steps have been reconciled", async || {
            names.iter().all(|name| {
                let key = steps_lab.lab.key(&steps(), name);
                let stats = steps_lab.lab.host().stats().object(&key);
                stats.is_some_and(|stats| stats.reconciles > 0)
            })
        })
        .await;
    steps_lab.lab.wait_idle().await;
    assert_eq!(steps_lab.lab.list(&pods()).await.len(), 2);
    // The pod of a process that has ended stays for its output, and is not counted.
    steps_lab.kubelet.direct("b-1", succeed_with(&["binary"]));
    steps_lab.wait_phase("c", "Running").await;
    steps_lab.lab.wait_idle().await;
    assert_eq!(steps_lab.lab.list(&pods()).await.len(), 3);
    // A pod that its Step is deleted with is counted until it is gone.
    steps_lab.lab.delete(&steps(), "a").await;
    steps_lab.wait_phase("d", "Running").await;
}

/// Steps that are created at once.
const WAVE_STEPS: usize = 250;
/// Waves, of which the last one runs beside all finished Steps of the others, and their pods.
const WAVES: usize = 20;
/// Most requests of a Step in the last wave, as a ratio to the first one.
const MAX_GROWTH: f64 = 1.1;
/// Metric of the Steps that have succeeded.
const SUCCEEDED: &str = "ostler_objects{kind=\"Step.v1alpha1.steps.ostler.dev\",ready=\"true\"}";

/// What a host has used so far.
struct HostUsage {
    requests: f64,
    time: Instant,
    process: ProcessUsage,
}

impl HostUsage {
    async fn read(host: &HostProcess) -> Self {
        Self {
            requests: count_requests(&host.admin_url()).await,
            time: Instant::now(),
            process: host.read_usage(),
        }
    }

    /// Prints the difference to an earlier one for each of the Steps between, and returns the requests of each.
    fn print_each(&self, before: &Self, what: &str, steps: usize) -> f64 {
        let each = |difference: f64| difference / steps as f64;
        let requests = each(self.requests - before.requests);
        let memory = self.process.anonymous_bytes as f64 - before.process.anonymous_bytes as f64;
        let cpu_time = self.process.cpu_time.saturating_sub(before.process.cpu_time);
        println!(
            "{what}: {requests:.2} requests, {:.1} ms, {:.1} ms of CPU time and {:.1} KiB each",
            each((self.time - before.time).as_secs_f64() * 1000.0),
            each(cpu_time.as_secs_f64() * 1000.0),
            each(memory / 1024.0)
        );
        requests
    }
}

/// Requests, time and memory of each of 5,000 Steps, beside a controller that lists all their pods every ten seconds.
#[scenario(real_only = "it measures", campaign = "it measures", alone)]
async fn last_of_five_thousand_steps_costs_as_much_as_the_first(mut lab: Lab) {
    let config = json!({ "shimImage": "registry.example.com/shim:1" });
    let grants = install_pack(&mut lab, config).await;
    let options = ProcessOptions {
        grants: Some(&grants),
        ..ProcessOptions::default()
    };
    let host = HostProcess::start_with(&lab, "host", &["--leader-elect=false"], options);
    host.wait_started(&lab).await;
    let kubelet = start_kubelet(&lab);
    let steps_lab = StepsLab { lab, kubelet };
    let lab = &steps_lab.lab;
    let first = HostUsage::read(&host).await;
    let (mut before, mut requests) = (HostUsage::read(&host).await, Vec::new());
    for wave in 0..WAVES {
        for i in 0..WAVE_STEPS {
            lab.apply(steps_lab.step(&format!("wave-{wave}-{i}"))).await;
        }
        let total = (wave + 1) * WAVE_STEPS;
        lab.wait_until("all Steps have succeeded", async || {
            host.fetch_metric(SUCCEEDED).await >= total as f64
        })
        .await;
        let now = HostUsage::read(&host).await;
        let what = format!("Steps {:>4} to {total:>4}", total - WAVE_STEPS + 1);
        requests.push(now.print_each(&before, &what, WAVE_STEPS));
        before = now;
    }
    let total = WAVES * WAVE_STEPS;
    before.print_each(&first, "all", total);
    let pods = lab.list(&pods()).await;
    assert_eq!(pods.len(), total);
    let listed: usize = pods.iter().map(|pod| pod.to_string().len()).sum();
    println!(
        "a list of all their pods has {:.1} MiB: every ten seconds, {:.1} MiB per second",
        listed as f64 / f64::from(1 << 20),
        listed as f64 / f64::from(10 << 20)
    );
    let (first, last) = (requests[0], requests[WAVES - 1]);
    assert!(
        last <= first * MAX_GROWTH,
        "{first:.2} requests in the first wave, {last:.2} in the last"
    );
}
