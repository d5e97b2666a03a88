//! The cost of many Steps.

use kubelet_simulator::Course;
use ostler::testing::scope::Scope;
use ostler_test_harness::{Lab, scenario};
use serde_json::json;

use crate::steps::{StepsLab, ended_with, pods, steps};

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
    steps_lab.kubelet.direct("b-1", ended_with(&["binary"]));
    steps_lab.wait_phase("c", "Running").await;
    steps_lab.lab.wait_idle().await;
    assert_eq!(steps_lab.lab.list(&pods()).await.len(), 3);
    // A pod that its Step is deleted with is counted until it is gone.
    steps_lab.lab.delete(&steps(), "a").await;
    steps_lab.wait_phase("d", "Running").await;
}
