//! Instance, Team and Pipeline become Ready in any order of creation, and stay Ready without writes.

use ostler::testing::{dispatcher::Cause, key::Gvk, queue::Priority};
use ostler_test_harness::{
    Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenario,
};

/// Waits for the chain and asserts its final state, which is the same for every order.
async fn assert_converged(lab: &Lab) {
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        lab.wait_ready(&kind(kind_name), name).await;
    }
    lab.wait_idle().await;
    let pipeline = lab
        .concourse
        .pipeline("platform", "app")
        .expect("Concourse has the pipeline");
    assert!(!pipeline.paused && !pipeline.public);
    assert_eq!(pipeline.config["resources"][0]["source"]["branch"], "main");
    assert_eq!(
        pipeline.config["resources"][1]["source"]["password"],
        "registry-pass-0001"
    );
    if lab.concourse.is_simulated("logins and saves are counted") {
        assert_eq!(pipeline.saves, 1);
        assert_eq!(lab.concourse.counters().logins, 1, "one login for all objects");
    }
}

#[scenario(real = "server-side apply and conflicts")]
async fn chain_applied_parents_first_becomes_ready(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    assert_converged(&lab).await;
}

#[scenario]
async fn chain_applied_children_first_becomes_ready(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply(lab.pipeline_object()).await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "TeamNotReady")
        .await;
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    for object in [
        lab.instance_object(),
        lab.registry_secret("registry-pass-0001"),
        lab.pipeline_config_map(PIPELINE_YAML),
        lab.password_secret(lab.concourse.password()),
    ] {
        lab.apply(object).await;
    }
    assert_converged(&lab).await;
}

#[scenario]
async fn waiting_child_is_woken_by_its_parent(mut lab: Lab) {
    lab.start_pack().await;
    for object in [
        lab.pipeline_object(),
        lab.team_object(),
        lab.registry_secret("registry-pass-0001"),
        lab.pipeline_config_map(PIPELINE_YAML),
        lab.password_secret(lab.concourse.password()),
    ] {
        lab.apply(object).await;
    }
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.wait_idle().await;
    lab.apply(lab.instance_object()).await;
    assert_converged(&lab).await;
    for (child, name, parent, parent_name) in [
        ("Team", "platform", "Instance", "ci"),
        ("Pipeline", "app", "Team", "platform"),
    ] {
        let causes = lab.wake_causes(&kind(child), name);
        let by_parent = Cause::Dependency(lab.key(&kind(parent), parent_name));
        assert!(causes.contains(&by_parent), "{child} was woken by {causes:?}");
        let timers = causes
            .iter()
            .filter(|c| matches!(c, Cause::Poll | Cause::Retry | Cause::Timer));
        assert_eq!(timers.count(), 0, "{child} was woken by {causes:?}");
    }
}

#[scenario]
async fn unchanged_chain_writes_nothing(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    // The first probe of the Instance preceded the creation of team and pipeline, so its status changes once more.
    poll_all(&lab).await;
    let (api, reconciles) = (lab.api_writes(), reconciles(&lab));
    let pipeline_before = pipeline_reconciles(&lab);
    lab.concourse.reset_counters();
    let versions = versions(&lab).await;
    for _ in 0..10 {
        poll_all(&lab).await;
    }
    assert!(
        self::reconciles(&lab) >= reconciles + 30,
        "each poll is a reconcile"
    );
    assert_eq!(lab.api_writes(), api, "writes to the API server");
    assert_eq!(
        versions,
        self::versions(&lab).await,
        "the objects have not changed"
    );
    if !lab.concourse.is_simulated("requests are counted") {
        return;
    }
    let counters = lab.concourse.counters();
    assert_eq!((counters.writes, counters.logins), (0, 0), "writes to Concourse");
    let requests = lab.concourse.requests();
    let reads = requests
        .iter()
        .filter(|r| r.path.contains("/pipelines/app"))
        .count() as u64;
    let polls = pipeline_reconciles(&lab) - pipeline_before;
    assert!(
        polls >= 10 && reads == 2 * polls,
        "{reads} reads in {polls} polls of the pipeline"
    );
}

/// Asserts the number of saves of the config.
fn assert_saves(lab: &Lab, saves: u64) {
    let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
    if lab.concourse.is_simulated("saves are counted") {
        assert_eq!(pipeline.saves, saves);
    }
}

fn pipeline_reconciles(lab: &Lab) -> u64 {
    let key = lab.key(&kind("Pipeline"), "app");
    lab.host()
        .stats()
        .object(&key)
        .map_or(0, |facts| facts.reconciles)
}

fn reconciles(lab: &Lab) -> u64 {
    lab.host()
        .stats()
        .all_objects()
        .iter()
        .map(|f| f.reconciles)
        .sum()
}

/// Ends the poll interval of each object now, and waits until the queue is empty.
async fn poll_all(lab: &Lab) {
    for (kind_name, name) in [("Instance", "ci"), ("Team", "platform"), ("Pipeline", "app")] {
        let router = &lab.host().services().dispatcher;
        router.enqueue(&lab.key(&kind(kind_name), name), Priority::Normal, Cause::Poll);
    }
    lab.wait_idle().await;
}

async fn versions(lab: &Lab) -> Vec<String> {
    let mut versions = Vec::new();
    for kind_name in ["Instance", "Team", "Pipeline"] {
        let objects = lab.list(&kind(kind_name)).await;
        versions.extend(
            objects
                .iter()
                .map(|o| o["metadata"]["resourceVersion"].to_string()),
        );
    }
    versions
}

#[scenario]
async fn changed_config_is_saved_once(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    let more = PIPELINE_YAML
        .replace(
            "groups:",
            "- name: deploy\n  plan:\n  - {get: source, passed: [build]}\ngroups:",
        )
        .replace("[test, build]", "[test, build, deploy]");
    lab.apply(lab.pipeline_config_map(&more)).await;
    lab.wait_until("Concourse has the third job", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        pipeline.config["jobs"]
            .as_array()
            .is_some_and(|jobs| jobs.len() == 3)
    })
    .await;
    lab.wait_idle().await;
    assert_saves(&lab, 2);
    let by_config = lab
        .wake_causes(&kind("Pipeline"), "app")
        .into_iter()
        .any(|c| c.to_string().contains("ConfigMap"));
    assert!(by_config, "the ConfigMap wakes it");
    // Concourse refuses an invalid config, the object reports it, and the old config stays.
    lab.apply(lab.pipeline_config_map("jobs:\n- name: x\n  plan:\n  - get: nothing\n"))
        .await;
    let refused = lab
        .wait_condition(&kind("Pipeline"), "app", "Ready", "False", "SetPipelineFailed")
        .await;
    let message = find_condition(&refused, "Ready")["message"].to_string();
    assert!(message.contains("unknown resource 'nothing'"), "{message}");
    assert_eq!(find_condition(&refused, "Stalled")["status"], "True");
    lab.wait_idle().await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    let failures = events
        .iter()
        .filter(|event| event["reason"] == "SetPipelineFailed");
    assert_eq!(failures.count(), 1, "once for the change");
    lab.apply(lab.pipeline_config_map(PIPELINE_YAML)).await;
    lab.wait_ready(&kind("Pipeline"), "app").await;
}

/// The digests of secrets are the same in each process.
#[scenario(real = "server-side apply and conflicts")]
async fn restarted_host_writes_nothing(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    poll_all(&lab).await;
    let versions = versions(&lab).await;
    lab.concourse.reset_counters();
    lab.host = None;
    lab.start_host().await;
    lab.wait_until("the Pipeline is reconciled", async || {
        pipeline_reconciles(&lab) > 0
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(
        versions,
        self::versions(&lab).await,
        "the objects have not changed"
    );
    if lab.concourse.is_simulated("requests are counted") {
        assert_eq!(lab.concourse.counters().writes, 0, "writes to Concourse");
    }
}

#[scenario]
async fn rotated_var_secret_is_saved(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab.apply(lab.registry_secret("registry-pass-0002")).await;
    lab.wait_until("Concourse has the new value", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        pipeline.config["resources"][1]["source"]["password"] == "registry-pass-0002"
    })
    .await;
    lab.wait_idle().await;
    assert_saves(&lab, 2);
    let pipeline = lab
        .get(&kind("Pipeline"), "app")
        .await
        .expect("there")
        .to_string();
    assert!(!pipeline.contains("registry-pass-000"), "no secret in the object");
}

#[scenario]
async fn changed_switches_are_applied_without_save(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        serde_json::json!({"spec": {"paused": true, "exposed": true}}),
    )
    .await;
    lab.wait_until("paused and exposed", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        pipeline.paused && pipeline.public
    })
    .await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        serde_json::json!({"spec": {"paused": false, "exposed": false}}),
    )
    .await;
    lab.wait_until("unpaused and hidden", async || {
        let pipeline = lab.concourse.pipeline("platform", "app").expect("there");
        !pipeline.paused && !pipeline.public
    })
    .await;
    lab.wait_idle().await;
    assert_saves(&lab, 1);
}
