//! Pipelines beyond the plain one: instance vars, renames, archival, and values from Kubernetes. Also the status of an
//! Instance.

use std::collections::BTreeMap;

use ostler::testing::{dispatcher::Cause, queue::Priority};
use ostler_test_harness::{
    Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenario, workspace_root,
};
use serde_json::{Value, json};

const PLAIN: &str =
    "jobs:\n- name: hello\n  plan:\n  - task: say\n    config: {platform: linux, run: {path: echo}}\n";

/// Starts the pack with the chain down to the Team.
async fn start_with_team(lab: &mut Lab) {
    lab.start_pack().await;
    for object in [
        lab.password_secret(lab.concourse.password()),
        lab.instance_object(),
        lab.team_object(),
    ] {
        lab.apply(object).await;
    }
    lab.wait_ready(&kind("Team"), "platform").await;
}

/// A Pipeline with more fields in its spec than the config.
fn pipeline_object(lab: &Lab, name: &str, config: &str, more: Value) -> Value {
    let mut spec = json!({"teamRef": {"name": "platform"}, "config": {"inline": config}});
    spec.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    lab.pack_object("Pipeline", name, spec)
}

/// Ends the poll interval of an object now, and waits until the queue is empty.
async fn poll(lab: &Lab, kind_name: &str, name: &str) {
    let key = lab.key(&kind(kind_name), name);
    lab.host()
        .services()
        .dispatcher
        .enqueue(&key, Priority::Normal, Cause::Poll);
    lab.wait_idle().await;
}

fn find_pipeline_id(lab: &Lab, name: &str) -> Option<u64> {
    lab.concourse.pipeline("platform", name).map(|p| p.id)
}

#[scenario]
async fn instanced_pipelines_of_one_name_are_independent(mut lab: Lab) {
    start_with_team(&mut lab).await;
    let config = format!("{PLAIN}display: {{background_image: 'https://x/((branch))/((size.x))'}}\n");
    for (name, branch, paused) in [("one", "main", false), ("two", "dev/a.b", true)] {
        let vars = json!({"branch": branch, "size": {"x": 2}});
        let more = json!({"pipelineName": "app", "instanceVars": vars, "paused": paused});
        lab.apply(pipeline_object(&lab, name, &config, more)).await;
    }
    for name in ["one", "two"] {
        lab.wait_ready(&kind("Pipeline"), name).await;
    }
    let one = |lab: &Lab| {
        lab.concourse
            .instanced_pipeline("platform", "app", "vars.branch=\"main\"&vars.size={\"x\":2}")
    };
    let two = |lab: &Lab| {
        lab.concourse
            .instanced_pipeline("platform", "app", "vars.branch=\"dev/a.b\"&vars.size={\"x\":2}")
    };
    let found = one(&lab).expect("one");
    assert!(!found.paused);
    assert_eq!(found.config["display"]["background_image"], "https://x/main/2");
    assert!(two(&lab).expect("two").paused);
    assert!(
        lab.concourse.pipeline("platform", "app").is_none(),
        "there is no pipeline without vars"
    );

    lab.patch(
        &kind("Pipeline"),
        "one",
        json!({"spec": {"archived": true, "exposed": true}}),
    )
    .await;
    lab.wait_until("one is archived", async || {
        one(&lab).is_some_and(|p| p.archived && p.public)
    })
    .await;
    let other = two(&lab).expect("two");
    assert!(
        !other.archived && !other.public,
        "the other instance is unchanged"
    );
    lab.delete(&kind("Pipeline"), "two").await;
    lab.wait_gone(&kind("Pipeline"), "two").await;
    assert!(two(&lab).is_none() && one(&lab).is_some());

    lab.patch(
        &kind("Pipeline"),
        "one",
        json!({"spec": {"instanceVars": {"branch": "x"}}}),
    )
    .await;
    lab.wait_condition(&kind("Pipeline"), "one", "Ready", "False", "InvalidSpec")
        .await;
    lab.delete(&kind("Pipeline"), "one").await;
    lab.wait_gone(&kind("Pipeline"), "one").await;
    assert!(one(&lab).is_none(), "the created instance is deleted");
}

#[scenario]
async fn instanced_pipelines_are_renamed_together(mut lab: Lab) {
    start_with_team(&mut lab).await;
    for name in ["one", "two"] {
        let more = json!({"pipelineName": "app", "instanceVars": {"n": name}});
        lab.apply(pipeline_object(&lab, name, PLAIN, more)).await;
    }
    for name in ["one", "two"] {
        lab.wait_ready(&kind("Pipeline"), name).await;
    }
    let at = |name: &str, n: &str| {
        let found = lab
            .concourse
            .instanced_pipeline("platform", name, &format!("vars.n=\"{n}\""));
        found.map(|p| p.id)
    };
    let before = [at("app", "one"), at("app", "two")];
    lab.patch(&kind("Pipeline"), "one", json!({"spec": {"pipelineName": "new"}}))
        .await;
    let waits = lab
        .wait_condition(&kind("Pipeline"), "one", "Ready", "False", "RenameFailed")
        .await;
    let message = find_condition(&waits, "Ready")["message"].to_string();
    assert!(message.contains("two"), "{message}");
    assert_eq!([at("app", "one"), at("app", "two")], before);
    lab.patch(&kind("Pipeline"), "two", json!({"spec": {"pipelineName": "new"}}))
        .await;
    for name in ["one", "two"] {
        lab.wait_ready(&kind("Pipeline"), name).await;
    }
    assert_eq!([at("new", "one"), at("new", "two")], before);
    assert_eq!([at("app", "one"), at("app", "two")], [None, None]);
}

#[scenario]
async fn new_name_renames_pipeline_and_refuses_taken_one(mut lab: Lab) {
    start_with_team(&mut lab).await;
    lab.apply(pipeline_object(&lab, "app", PLAIN, json!({}))).await;
    lab.wait_ready(&kind("Pipeline"), "app").await;
    let before = find_pipeline_id(&lab, "app");
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"spec": {"pipelineName": "shop"}}),
    )
    .await;
    let renamed = lab.wait_ready(&kind("Pipeline"), "app").await;
    assert_eq!(
        (find_pipeline_id(&lab, "shop"), find_pipeline_id(&lab, "app")),
        (before, None)
    );
    assert_eq!(renamed["status"]["resolvedName"], "shop");
    // A name that another pipeline has is refused.
    lab.apply(pipeline_object(&lab, "other", PLAIN, json!({}))).await;
    lab.wait_ready(&kind("Pipeline"), "other").await;
    lab.patch(
        &kind("Pipeline"),
        "app",
        json!({"spec": {"pipelineName": "other"}}),
    )
    .await;
    lab.wait_condition(&kind("Pipeline"), "app", "Ready", "False", "RenameFailed")
        .await;
    // The deletion removes the pipeline under its old name.
    lab.delete(&kind("Pipeline"), "app").await;
    lab.wait_gone(&kind("Pipeline"), "app").await;
    assert!(find_pipeline_id(&lab, "shop").is_none() && find_pipeline_id(&lab, "other").is_some());
}

#[scenario]
async fn archived_pipeline_costs_no_write_and_is_restored(mut lab: Lab) {
    start_with_team(&mut lab).await;
    lab.apply(pipeline_object(&lab, "app", PLAIN, json!({}))).await;
    lab.wait_ready(&kind("Pipeline"), "app").await;
    let before = find_pipeline_id(&lab, "app");
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": true}}))
        .await;
    let archived = lab.wait_ready(&kind("Pipeline"), "app").await;
    assert_eq!(find_condition(&archived, "ConfigSynced")["reason"], "Archived");
    let status = &archived["status"];
    assert_eq!(
        (&status["archived"], &status["paused"]),
        (&json!(true), &json!(true))
    );
    lab.wait_idle().await;
    if lab.concourse.is_simulated("requests are counted") {
        lab.concourse.reset_counters();
        for _ in 0..3 {
            poll(&lab, "Pipeline", "app").await;
        }
        let counters = lab.concourse.counters();
        assert_eq!(counters.writes, 0, "an archived pipeline costs no write");
        let refused = lab
            .concourse
            .requests()
            .into_iter()
            .filter(|r| r.status == Some(409));
        assert_eq!(refused.count(), 0);
    }
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": false}}))
        .await;
    let back = lab.wait_ready(&kind("Pipeline"), "app").await;
    assert_eq!(find_condition(&back, "ConfigSynced")["status"], "True");
    let found = lab.concourse.pipeline("platform", "app").expect("there");
    assert!(!found.archived && !found.paused && Some(found.id) == before);
    assert_eq!(found.config["jobs"][0]["name"], "hello");
}

#[scenario]
async fn given_vars_are_interpolated_and_others_kept(mut lab: Lab) {
    start_with_team(&mut lab).await;
    lab.apply(lab.registry_secret("registry-pass-0001")).await;
    lab.apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "urls", "namespace": lab.namespace}, "data": {"git": "https://git.example/a.git"}}))
        .await;
    let config = "\
resources:
- name: src
  type: git
  source:
    uri: ((url))
    branch: release-((version))
    password: ((password))
    key: ((vault:team/key.private))
    other: ((other.field))
jobs:
- {name: hello, plan: [{get: src}]}
";
    let vars = json!([
        {"name": "url", "configMapRef": {"name": "urls", "key": "git"}},
        {"name": "version", "value": "1.10"},
        {"name": "password", "valueFrom": {"name": "registry", "key": "password"}},
    ]);
    lab.apply(pipeline_object(&lab, "app", config, json!({"vars": vars})))
        .await;
    lab.wait_ready(&kind("Pipeline"), "app").await;
    let source =
        || lab.concourse.pipeline("platform", "app").expect("there").config["resources"][0]["source"].clone();
    assert_eq!(
        source(),
        json!({"uri": "https://git.example/a.git", "branch": "release-1.10", "password": "registry-pass-0001",
            "key": "((vault:team/key.private))", "other": "((other.field))"})
    );
    lab.patch(
        &ostler::testing::key::Gvk::new("", "v1", "ConfigMap"),
        "urls",
        json!({"data": {"git": "https://git.example/b.git"}}),
    )
    .await;
    lab.wait_until("the new value is there", async || {
        source()["uri"] == "https://git.example/b.git"
    })
    .await;
}

#[scenario]
async fn k8s_configs_become_pipeline_resources(mut lab: Lab) {
    start_with_team(&mut lab).await;
    let config = "jobs:\n- {name: deploy, plan: [{get: app-config}, {get: certs}]}\n";
    let configs = json!([
        {"name": "app-config", "configMapRef": {"name": "settings"}, "trigger": true},
        {"name": "certs", "secretRef": {"name": "tls", "namespace": "certs"}},
    ]);
    lab.apply(pipeline_object(
        &lab,
        "app",
        config,
        json!({"k8sConfigs": configs}),
    ))
    .await;
    let ready = lab.wait_ready(&kind("Pipeline"), "app").await;
    assert_eq!(ready["status"]["resourceTypes"][0]["name"], "k8s-config");
    let found = lab.concourse.pipeline("platform", "app").expect("there").config;
    let source = json!({"kind": "ConfigMap", "name": "settings", "namespace": lab.namespace});
    assert_eq!(found["resources"][0]["source"], source);
    assert_eq!(
        found["resources"][1]["source"],
        json!({"kind": "Secret", "name": "tls", "namespace": "certs"})
    );
    let plan = &found["jobs"][0]["plan"];
    assert_eq!(
        (&plan[0]["trigger"], &plan[1]["trigger"]),
        (&json!(true), &Value::Null)
    );
    // The image that the Instance sets applies.
    let image = json!({"repository": "registry.example/k8s-config", "tag": "v1"});
    lab.patch(
        &kind("Instance"),
        "ci",
        json!({"spec": {"defaults": {"k8sConfigImage": image}}}),
    )
    .await;
    lab.wait_until("the image is the Instance's", async || {
        let config = lab.concourse.pipeline("platform", "app").expect("there").config;
        config["resource_types"][0]["source"] == image
    })
    .await;
}

#[scenario]
async fn status_shows_jobs_and_resources_at_two_reads_per_poll(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    let path = format!(
        "/api/v1/teams/{}/pipelines/app/jobs/test",
        lab.concourse.team_name("platform")
    );
    lab.concourse.put_json(&format!("{path}/pause"), &json!({}));
    lab.concourse.reset_counters();
    let start = count_reads_and_reconciles(&lab);
    // Jobs and resources are read in turns, by the clock, and only some seconds after the last change.
    lab.wait_until("the status has the paused job", async || {
        poll(&lab, "Pipeline", "app").await;
        let pipeline = lab.get(&kind("Pipeline"), "app").await.expect("there");
        let jobs = &pipeline["status"]["jobs"];
        jobs[0]["name"] == "test" && (jobs[0]["paused"] == true || shows_resources(&pipeline))
    })
    .await;
    if lab.concourse.is_simulated("requests are counted") {
        let (requests, polls) = count_reads_and_reconciles(&lab);
        let (requests, polls) = (requests - start.0, polls - start.1);
        assert!(
            polls > 0 && requests <= 2 * polls,
            "{requests} reads in {polls} polls"
        );
        assert_eq!(lab.concourse.counters().writes, 0);
    }
}

/// Returns `true` if the poll read the resources instead of the jobs.
fn shows_resources(pipeline: &Value) -> bool {
    pipeline["status"]["resources"][0]["pinned"] == false
}

/// Numbers of read requests for the pipeline, and of its reconciles.
fn count_reads_and_reconciles(lab: &Lab) -> (u64, u64) {
    let requests = lab.concourse.requests().into_iter();
    let reads = requests
        .filter(|r| r.method == "GET" && r.path.contains("/pipelines/app"))
        .count();
    let facts = lab.host().stats().object(&lab.key(&kind("Pipeline"), "app"));
    (reads as u64, facts.map_or(0, |facts| facts.reconciles))
}

#[scenario]
async fn save_of_another_user_is_reverted(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    let team = lab.concourse.team_name("platform").to_owned();
    let path = format!("/api/v1/teams/{team}/pipelines/app");
    lab.concourse.put_config(&format!("{path}/config"), PLAIN);
    lab.concourse.put_json(&format!("{path}/expose"), &json!({}));
    poll(&lab, "Pipeline", "app").await;
    let found = lab.concourse.pipeline("platform", "app").expect("there");
    assert!(!found.public, "hidden again");
    assert_eq!(found.config["jobs"].as_array().map(Vec::len), Some(2), "restored");
    assert!(PIPELINE_YAML.contains("name: build"));
}

#[scenario]
async fn instance_status_shows_wall_and_workers(mut lab: Lab) {
    if !lab
        .concourse
        .is_simulated("wall and workers are shared by all tests")
    {
        return;
    }
    start_with_team(&mut lab).await;
    let instance = lab.wait_ready(&kind("Instance"), "ci").await;
    assert_eq!(find_condition(&instance, "WallActive")["reason"], "NoWall");
    assert_eq!(
        find_condition(&instance, "WorkersHealthy")["reason"],
        "AllRunning"
    );
    lab.concourse
        .put_json("/api/v1/wall", &json!({"message": "Down at noon."}));
    lab.concourse.set_worker("w2", "stalled");
    lab.concourse.set_worker("w3", "landing");
    poll(&lab, "Instance", "ci").await;
    let instance = lab.wait_ready(&kind("Instance"), "ci").await;
    let of = |kind: &str| {
        let found = find_condition(&instance, kind);
        (found["status"].clone(), found["reason"].clone())
    };
    assert_eq!(of("WallActive"), (json!("True"), json!("WallSet")));
    assert_eq!(of("WorkersHealthy"), (json!("False"), json!("WorkersStalled")));
    assert_eq!(of("Ready").0, "True", "Ready does not depend on workers");
    let status = &instance["status"];
    assert_eq!(status["wallMessage"], "Down at noon.");
    assert_eq!(status["stalledWorkers"], 1);
    assert_eq!(status["runningWorkers"], 1);
    assert!(status["workerCount"].as_i64() >= Some(2), "{status}");
}

#[scenario]
async fn suspended_chain_can_be_deleted(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    let all = [("Pipeline", "app"), ("Team", "platform"), ("Instance", "ci")];
    for (kind_name, name) in all {
        lab.patch(&kind(kind_name), name, json!({"spec": {"suspend": true}}))
            .await;
        lab.wait_condition(&kind(kind_name), name, "Ready", "False", "Suspended")
            .await;
    }
    for (kind_name, name) in all {
        lab.delete(&kind(kind_name), name).await;
    }
    for (kind_name, name) in all {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert!(
        lab.concourse.team("platform").is_none(),
        "nothing stays in Concourse"
    );
}

#[scenario]
async fn samples_become_ready(mut lab: Lab) {
    lab.start_pack().await;
    let given = BTreeMap::from([
        ("${CONCOURSE_URL}", lab.concourse.url()),
        ("${CONCOURSE_USER}", lab.concourse.user()),
        ("${CONCOURSE_PASSWORD}", lab.concourse.password()),
    ]);
    let sample = |name: &str| {
        let path = workspace_root().join("deploy/examples").join(name);
        std::fs::read_to_string(path).expect("a sample")
    };
    let mut text = [sample("concourse.yaml"), sample("concourse-pipelines.yaml")].join("---\n");
    for (variable, value) in given {
        text = text.replace(variable, value);
    }
    let mut ours = Vec::new();
    for document in text.split("\n---") {
        let mut object: Value = serde_saphyr::from_str(document).expect("YAML");
        if object["kind"] == "Namespace" {
            continue;
        }
        object["metadata"]["namespace"] = lab.namespace.as_str().into();
        if object["kind"] == "Team" {
            object["spec"]["teamName"] = lab.concourse.team_name("platform").into();
        }
        if object["apiVersion"] == "concourse-ci.org/v1alpha1" {
            ours.push((object["kind"].clone(), object["metadata"]["name"].clone()));
        }
        lab.apply(object).await;
    }
    assert!(ours.len() >= 6, "{ours:?}");
    for (kind_name, name) in &ours {
        let (kind_name, name) = (
            kind_name.as_str().expect("a kind"),
            name.as_str().expect("a name"),
        );
        lab.wait_ready(&kind(kind_name), name).await;
    }
}
