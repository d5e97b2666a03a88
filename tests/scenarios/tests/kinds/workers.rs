use ostler_test_harness::{ADMIN_PASSWORD, Lab, concourse::kind, find_condition, scenarios};
use serde_json::{Value, json};

use crate::{poll, reconciles, requests};

scenarios!(
    simulated: one_list_serves_all,
    it_drains,
    it_is_removed,
    a_stalled_one_is_told_and_pruned,
    a_missing_one_is_told,
    deletion_does_nothing_to_it,
);

async fn with_workers(mut lab: Lab, lifecycle: &str, names: &[&str]) -> Lab {
    lab.start_pack().await;
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.apply(lab.instance_object()).await;
    lab.wait_ready(&kind("Instance"), "ci").await;
    for name in names {
        let spec = json!({"instanceRef": {"name": "ci"}, "lifecycle": lifecycle});
        lab.apply(lab.pack_object("Worker", name, spec)).await;
    }
    lab
}

fn state(lab: &Lab, name: &str) -> Option<Value> {
    let state = lab.concourse.state();
    let workers = state["workers"].as_array().expect("workers");
    let found = workers.iter().find(|w| w["name"] == name);
    found.map(|w| w["state"].clone())
}

async fn one_list_serves_all(lab: Lab) {
    let names: Vec<String> = (0..20).map(|number| format!("worker-{number}")).collect();
    for name in &names {
        lab.concourse.set_worker(name, "running");
    }
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let lab = with_workers(lab, "Running", &borrowed).await;
    for name in &names {
        lab.wait_ready(&kind("Worker"), name).await;
    }
    lab.wait_idle().await;
    lab.concourse.reset_counters();
    let sum = || {
        names
            .iter()
            .map(|name| reconciles(&lab, "Worker", name))
            .sum::<u64>()
    };
    let before = sum();
    for _ in 0..3 {
        for name in &names {
            poll(&lab, "Worker", name).await;
        }
    }
    assert!(sum() - before >= 60, "each poll is a reconcile");
    let lists = requests(&lab, "/api/v1/workers");
    // It was listed before, and one that is two minutes old will do; how long this test takes is not known.
    assert!(lists.len() <= 2, "{} lists", lists.len());
}

async fn it_drains(lab: Lab) {
    lab.concourse.set_worker_team("w2", "main");
    let lab = with_workers(lab, "Draining", &["w1", "w2"]).await;
    for name in ["w1", "w2"] {
        let ready = lab.wait_ready(&kind("Worker"), name).await;
        assert_eq!(ready["status"]["phase"], "landed");
        assert_eq!(
            find_condition(&ready, "StateTransitioning")["reason"],
            "Converged"
        );
        poll(&lab, "Worker", name).await;
        let asked = requests(&lab, &format!("/workers/{name}/"));
        assert_eq!(asked, [format!("PUT /api/v1/workers/{name}/land")], "once");
    }
    let team = lab.get(&kind("Worker"), "w2").await.expect("there")["status"]["team"].clone();
    assert_eq!(team, "main");
    lab.patch(&kind("Worker"), "w1", json!({"spec": {"lifecycle": "Running"}}))
        .await;
    lab.wait_condition(&kind("Worker"), "w1", "Ready", "False", "NotRunning")
        .await;
}

async fn it_is_removed(lab: Lab) {
    let lab = with_workers(lab, "Running", &["w1"]).await;
    lab.wait_ready(&kind("Worker"), "w1").await;
    lab.patch(&kind("Worker"), "w1", json!({"spec": {"lifecycle": "Removed"}}))
        .await;
    let gone = lab
        .wait_condition(&kind("Worker"), "w1", "Ready", "True", "Removed")
        .await;
    assert_eq!(gone["status"]["phase"], "missing");
    assert_eq!(state(&lab, "w1"), None);
    poll(&lab, "Worker", "w1").await;
    assert_eq!(
        requests(&lab, "/workers/w1/"),
        ["PUT /api/v1/workers/w1/retire"],
        "a running one is not pruned"
    );
}

async fn a_stalled_one_is_told_and_pruned(lab: Lab) {
    lab.concourse.set_worker("w1", "stalled");
    let lab = with_workers(lab, "Running", &["w1"]).await;
    let stalled = lab
        .wait_condition(&kind("Worker"), "w1", "Stalled", "True", "Stalled")
        .await;
    assert_eq!(stalled["status"]["phase"], "stalled");
    lab.patch(&kind("Worker"), "w1", json!({"spec": {"lifecycle": "Removed"}}))
        .await;
    lab.wait_condition(&kind("Worker"), "w1", "Ready", "True", "Removed")
        .await;
    assert_eq!(state(&lab, "w1"), None);
    assert_eq!(requests(&lab, "/workers/w1/"), ["PUT /api/v1/workers/w1/prune"]);
}

async fn a_missing_one_is_told(lab: Lab) {
    let lab = with_workers(lab, "Running", &["w9"]).await;
    let missing = lab
        .wait_condition(&kind("Worker"), "w9", "Ready", "False", "WorkerNotFound")
        .await;
    assert_eq!(missing["status"]["phase"], "missing");
    lab.concourse.set_worker("w9", "running");
    lab.wait_until("it is found", async || {
        poll(&lab, "Worker", "w9").await;
        let worker = lab.get(&kind("Worker"), "w9").await.expect("there");
        worker["status"]["phase"] == "running"
    })
    .await;
    lab.wait_ready(&kind("Worker"), "w9").await;
}

async fn deletion_does_nothing_to_it(lab: Lab) {
    let lab = with_workers(lab, "Running", &["w1"]).await;
    lab.wait_ready(&kind("Worker"), "w1").await;
    lab.delete(&kind("Worker"), "w1").await;
    lab.wait_gone(&kind("Worker"), "w1").await;
    lab.wait_idle().await;
    assert_eq!(state(&lab, "w1"), Some("running".into()));
    assert!(requests(&lab, "/workers/w1/").is_empty());
}
