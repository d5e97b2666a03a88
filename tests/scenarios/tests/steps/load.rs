//! The cost of many Steps.

use ostler::testing::scope::Scope;
use ostler_test_harness::{Lab, scenario};

use crate::steps::{StepsLab, pods, steps};

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
