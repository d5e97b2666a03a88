use kube::api::{Patch, PatchParams};
use ostler::testing::dispatcher::Cause;
use ostler_test_harness::{
    Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenario,
    simulator::FaultAction,
};
use serde_json::{Value, json};

use crate::kinds::{person::Person, poll, reconciles, requests};

fn job(lab: &Lab, name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["pipelineRef"] = json!({"name": "app"});
    lab.pack_object("Job", name, spec)
}

async fn start_with_chain(mut lab: Lab) -> Lab {
    lab.start_pack().await;
    lab.apply_chain().await;
    lab
}

async fn is_paused(person: &Person, job: &str) -> bool {
    person.get(&format!("/jobs/{job}")).await["paused"] == true
}

#[scenario]
async fn job_waits_for_pipeline_and_is_woken_by_it(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply(job(&lab, "build", json!({}))).await;
    lab.wait_condition(&kind("Job"), "build", "Ready", "False", "PipelineNotReady")
        .await;
    lab.apply_chain().await;
    let ready = lab.wait_ready(&kind("Job"), "build").await;
    let causes = lab.wake_causes(&kind("Job"), "build");
    assert!(
        causes.contains(&Cause::Dependency(lab.key(&kind("Pipeline"), "app"))),
        "{causes:?}"
    );
    let timers = |c: &&Cause| matches!(c, Cause::Poll | Cause::Retry | Cause::Timer);
    assert_eq!(causes.iter().filter(timers).count(), 0, "{causes:?}");
    let status = &ready["status"];
    assert_eq!(status["groups"], json!(["all"]));
    assert_eq!(
        status["inputs"],
        json!([{"name": "source", "resource": "source", "trigger": true, "passed": ["test"]}])
    );
    assert_eq!(status["outputs"], json!([{"name": "image", "resource": "image"}]));
    let page = status["webURL"].as_str().expect("a URL");
    assert!(page.ends_with("/pipelines/app/jobs/build"), "{page}");
    assert_eq!(find_condition(&ready, "LastBuildSucceeded")["reason"], "NoBuild");
}

#[scenario]
async fn drifted_pause_is_restored(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.apply(job(&lab, "test", json!({"paused": true}))).await;
    lab.apply(job(&lab, "build", json!({}))).await;
    let ready = lab.wait_ready(&kind("Job"), "test").await;
    lab.wait_ready(&kind("Job"), "build").await;
    assert_eq!(
        (&ready["status"]["paused"], &ready["status"]["pauseOwned"]),
        (&json!(true), &json!(true))
    );
    let person = Person::log_in(&lab).await;
    assert!(is_paused(&person, "test").await && !is_paused(&person, "build").await);
    person.put("/jobs/test/unpause").await;
    person.put("/jobs/build/pause").await;
    forget_shared_list(&lab);
    poll(&lab, "Job", "test").await;
    poll(&lab, "Job", "build").await;
    assert!(is_paused(&person, "test").await && !is_paused(&person, "build").await);
    lab.patch(&kind("Job"), "test", json!({"spec": {"paused": false}}))
        .await;
    lab.wait_until("it is resumed", async || !is_paused(&person, "test").await)
        .await;
    let resumed = lab.wait_ready(&kind("Job"), "test").await;
    assert_eq!(resumed["status"]["pauseOwned"], Value::Null);
}

/// Drops the list that Jobs share, as if its minute were over.
fn forget_shared_list(lab: &Lab) {
    let clients = &lab.host().services().upstreams.clients;
    clients.drop_idle(std::time::Duration::ZERO);
}

#[scenario(simulated)]
async fn unchanged_jobs_of_a_pipeline_share_one_read(lab: Lab) {
    const JOBS: u64 = 25;
    let lab = start_with_chain(lab).await;
    let names: Vec<String> = (0..JOBS).map(|number| format!("j{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let of = if number % 2 == 0 { "test" } else { "build" };
        lab.apply(job(&lab, name, json!({"jobName": of}))).await;
    }
    for name in &names {
        lab.wait_ready(&kind("Job"), name).await;
    }
    lab.wait_idle().await;
    let polls = || {
        names
            .iter()
            .map(|name| reconciles(&lab, "Job", name))
            .sum::<u64>()
    };
    lab.concourse.reset_counters();
    let (before, writes) = (polls(), lab.api_writes());
    forget_shared_list(&lab);
    for name in &names {
        poll(&lab, "Job", name).await;
    }
    assert!(polls() - before >= JOBS);
    let asked = requests(&lab, "/pipelines/app/jobs");
    assert!(
        asked.len() <= 2,
        "one list for all of them, one of the Pipeline: {asked:?}"
    );
    let counters = lab.concourse.counters();
    assert_eq!(counters.writes, 0, "writes to Concourse");
    assert_eq!(lab.api_writes(), writes, "writes to the API server");
}

#[scenario]
async fn job_missing_from_config_is_waited_for(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.apply(job(&lab, "deploy", json!({"paused": true}))).await;
    lab.wait_condition(&kind("Job"), "deploy", "Ready", "False", "JobNotFound")
        .await;
    let more = PIPELINE_YAML
        .replace(
            "groups:",
            "- name: deploy\n  plan:\n  - {get: source, passed: [build]}\ngroups:",
        )
        .replace("[test, build]", "[test, build, deploy]");
    lab.apply(lab.pipeline_config_map(&more)).await;
    lab.wait_ready(&kind("Job"), "deploy").await;
    assert!(is_paused(&Person::log_in(&lab).await, "deploy").await);
}

#[scenario(simulated)]
async fn job_in_archived_pipeline_waits_without_requests(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.apply(job(&lab, "test", json!({}))).await;
    lab.wait_ready(&kind("Job"), "test").await;
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": true}}))
        .await;
    lab.wait_condition(&kind("Job"), "test", "Ready", "False", "PipelineArchived")
        .await;
    lab.wait_idle().await;
    lab.concourse.reset_counters();
    for _ in 0..10 {
        poll(&lab, "Job", "test").await;
    }
    assert!(
        requests(&lab, "/pipelines/app/jobs").is_empty(),
        "no request is sent to Concourse"
    );
    lab.patch(&kind("Pipeline"), "app", json!({"spec": {"archived": false}}))
        .await;
    lab.wait_ready(&kind("Job"), "test").await;
}

#[scenario]
async fn builds_beyond_history_limits_are_deleted(mut lab: Lab) {
    // Without the reconciler of Builds, so that the test can set their status.
    lab.install(&[
        "concourse/concourse-instance",
        "concourse/concourse-team",
        "concourse/concourse-pipeline",
        "concourse/concourse-job",
    ]);
    lab.start_host().await;
    lab.apply_chain().await;
    lab.apply(job(&lab, "test", json!({}))).await;
    lab.wait_ready(&kind("Job"), "test").await;
    let builds = lab.api(&kind("Build"), &lab.namespace);
    let add = async |name: String, of: &str, status: &str, end: String| {
        lab.apply(lab.pack_object("Build", &name, json!({"jobRef": {"name": of}})))
            .await;
        let patch = Patch::Merge(json!({"status": {"concourseStatus": status, "endTime": end}}));
        builds
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
            .expect("patched");
    };
    for number in 0..6 {
        let end = format!("2026-01-01T00:0{number}:00Z");
        add(format!("good-{number}"), "test", "succeeded", end.clone()).await;
        let how = ["failed", "errored", "aborted"][number % 3];
        add(format!("bad-{number}"), "test", how, end.clone()).await;
        add(format!("other-{number}"), "build", "succeeded", end.clone()).await;
        add(format!("running-{number}"), "test", "started", end).await;
    }
    let names = async || -> Vec<String> {
        let all = lab.list(&kind("Build")).await;
        let names = all.iter().filter_map(|b| b["metadata"]["name"].as_str());
        names.map(ToOwned::to_owned).collect()
    };
    lab.wait_until("three of each are left", async || names().await.len() == 18)
        .await;
    lab.wait_idle().await;
    let left = names().await;
    for name in [
        "good-3",
        "good-4",
        "good-5",
        "bad-3",
        "bad-4",
        "bad-5",
        "running-0",
        "other-0",
    ] {
        assert!(left.iter().any(|n| n == name), "{name} is missing from {left:?}");
    }
    assert_eq!(left.len(), 18);
    lab.patch(
        &kind("Job"),
        "test",
        json!({"spec": {"successfulBuildsHistoryLimit": 0, "failedBuildsHistoryLimit": 1}}),
    )
    .await;
    lab.wait_until("fewer are left", async || names().await.len() == 13)
        .await;
    assert!(names().await.iter().any(|n| n == "bad-5"));
}

#[scenario]
async fn deletion_unpauses_owned_pause(lab: Lab) {
    let lab = start_with_chain(lab).await;
    let person = Person::log_in(&lab).await;
    for name in ["test", "build"] {
        lab.apply(job(&lab, name, json!({"paused": true}))).await;
        lab.wait_ready(&kind("Job"), name).await;
    }
    // One of them is deleted while it is suspended.
    lab.patch(&kind("Job"), "build", json!({"spec": {"suspend": true}}))
        .await;
    lab.wait_condition(&kind("Job"), "build", "Ready", "False", "Suspended")
        .await;
    for name in ["test", "build"] {
        lab.delete(&kind("Job"), name).await;
        lab.wait_gone(&kind("Job"), name).await;
        assert!(!is_paused(&person, name).await, "{name} is resumed");
    }
}

#[scenario(simulated)]
async fn pause_with_lost_response_stays_owned(lab: Lab) {
    let lab = start_with_chain(lab).await;
    let path = "/jobs/test/pause";
    lab.concourse
        .faults()
        .fail_next(1, "PUT", path, FaultAction::DropAnswer);
    lab.apply(job(&lab, "test", json!({"paused": true}))).await;
    lab.wait_ready(&kind("Job"), "test").await;
    assert_eq!(requests(&lab, path).len(), 1, "the first request set the pause");
    lab.delete(&kind("Job"), "test").await;
    lab.wait_gone(&kind("Job"), "test").await;
    assert!(
        !is_paused(&Person::log_in(&lab).await, "test").await,
        "the owner of the pause is known"
    );
}

#[scenario]
async fn deletion_keeps_pause_of_another_user(lab: Lab) {
    let lab = start_with_chain(lab).await;
    let person = Person::log_in(&lab).await;
    person.put("/jobs/test/pause").await;
    lab.apply(job(&lab, "test", json!({"paused": true}))).await;
    lab.wait_ready(&kind("Job"), "test").await;
    lab.delete(&kind("Job"), "test").await;
    lab.wait_gone(&kind("Job"), "test").await;
    assert!(is_paused(&person, "test").await);
}

#[scenario(real = "finalizers and garbage collection")]
async fn chain_with_job_deleted_at_once_is_gone(lab: Lab) {
    let lab = start_with_chain(lab).await;
    lab.apply(job(&lab, "test", json!({"paused": true}))).await;
    lab.wait_ready(&kind("Job"), "test").await;
    let all = [
        ("Instance", "ci"),
        ("Team", "platform"),
        ("Pipeline", "app"),
        ("Job", "test"),
    ];
    // The clean-up of the Pipeline may have ended that of its Job before the last request.
    for (kind_name, name) in all {
        lab.delete_if_present(&kind(kind_name), name).await;
    }
    for (kind_name, name) in all {
        lab.wait_gone(&kind(kind_name), name).await;
    }
    assert!(lab.concourse.team("platform").is_none());
}

#[scenario(real = "CRDs: changes and validation")]
async fn job_name_and_pipeline_ref_are_immutable(lab: Lab) {
    let mut wrong = job(&lab, "test", json!({"jobName": "-x"}));
    lab.try_apply(wrong.clone())
        .await
        .expect_err("no name of Concourse");
    wrong["spec"]["jobName"] = "unit".into();
    lab.apply(wrong.clone()).await;
    for (field, value) in [
        ("jobName", json!("other")),
        ("pipelineRef", json!({"name": "other"})),
    ] {
        let mut changed = wrong.clone();
        changed["spec"][field] = value;
        let refused = lab.try_apply(changed).await.expect_err("it stays").to_string();
        assert!(refused.contains(&format!("{field} is immutable")), "{refused}");
    }
}
