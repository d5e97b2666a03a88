use ostler_test_harness::{ADMIN_PASSWORD, Lab, concourse::kind, find_condition, scenario};
use serde_json::{Value, json};

use crate::kinds::{poll, reconciles, requests};

async fn start_with_workers(mut lab: Lab, lifecycle: &str, names: &[&str]) -> Lab {
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

fn find_worker_state(lab: &Lab, name: &str) -> Option<Value> {
    let state = lab.concourse.state();
    let workers = state["workers"].as_array().expect("workers");
    let found = workers.iter().find(|w| w["name"] == name);
    found.map(|w| w["state"].clone())
}

#[scenario(simulated)]
async fn workers_share_one_list(lab: Lab) {
    let names: Vec<String> = (0..20).map(|number| format!("worker-{number}")).collect();
    for name in &names {
        lab.concourse.set_worker(name, "running");
    }
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let lab = start_with_workers(lab, "Running", &borrowed).await;
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
    // A list is shared for two minutes. The duration of this test is unknown, so it may be read once more.
    assert!(lists.len() <= 2, "{} lists", lists.len());
}

#[scenario(simulated)]
async fn draining_workers_land_once(lab: Lab) {
    lab.concourse.set_worker_team("w2", "main");
    let lab = start_with_workers(lab, "Draining", &["w1", "w2"]).await;
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

#[scenario(simulated)]
async fn removed_worker_retires_once(lab: Lab) {
    let lab = start_with_workers(lab, "Running", &["w1"]).await;
    lab.wait_ready(&kind("Worker"), "w1").await;
    lab.patch(&kind("Worker"), "w1", json!({"spec": {"lifecycle": "Removed"}}))
        .await;
    let gone = lab
        .wait_condition(&kind("Worker"), "w1", "Ready", "True", "Removed")
        .await;
    assert_eq!(gone["status"]["phase"], "missing");
    assert_eq!(find_worker_state(&lab, "w1"), None);
    poll(&lab, "Worker", "w1").await;
    assert_eq!(
        requests(&lab, "/workers/w1/"),
        ["PUT /api/v1/workers/w1/retire"],
        "a running one is not pruned"
    );
}

#[scenario(simulated)]
async fn stalled_worker_is_reported_and_pruned(lab: Lab) {
    lab.concourse.set_worker("w1", "stalled");
    let lab = start_with_workers(lab, "Running", &["w1"]).await;
    let stalled = lab
        .wait_condition(&kind("Worker"), "w1", "WorkerStalled", "True", "WorkerStalled")
        .await;
    assert_eq!(stalled["status"]["phase"], "stalled");
    lab.patch(&kind("Worker"), "w1", json!({"spec": {"lifecycle": "Removed"}}))
        .await;
    lab.wait_condition(&kind("Worker"), "w1", "Ready", "True", "Removed")
        .await;
    assert_eq!(find_worker_state(&lab, "w1"), None);
    assert_eq!(requests(&lab, "/workers/w1/"), ["PUT /api/v1/workers/w1/prune"]);
}

#[scenario(simulated)]
async fn missing_worker_is_reported_until_it_registers(lab: Lab) {
    let lab = start_with_workers(lab, "Running", &["w9"]).await;
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

#[scenario(simulated)]
async fn deletion_leaves_worker_running(lab: Lab) {
    let lab = start_with_workers(lab, "Running", &["w1"]).await;
    lab.wait_ready(&kind("Worker"), "w1").await;
    lab.delete(&kind("Worker"), "w1").await;
    lab.wait_gone(&kind("Worker"), "w1").await;
    lab.wait_idle().await;
    assert_eq!(find_worker_state(&lab, "w1"), Some("running".into()));
    assert!(requests(&lab, "/workers/w1/").is_empty());
}
