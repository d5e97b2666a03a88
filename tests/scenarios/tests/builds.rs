//! Builds: triggered exactly once, followed by their events, aborted and deleted on request.

use std::{collections::BTreeSet, time::Duration};

use kube::api::DeleteParams;
use ostler::testing::{key::Gvk, upstream::StreamState};
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{PACK_COMPONENTS, kind},
    find_condition, scenario,
    simulator::FaultAction,
};
use serde_json::{Value, json};

const JOBS: &str = "jobs:
- {name: quick, plan: [{task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}]}
- {name: slow, plan: [{task: t, config: {platform: linux, run: {path: sleep, args: ['100000']}}}]}
- name: bad
  plan:
  - {task: t, config: {platform: linux, run: {path: sh, args: [-c, echo one; echo two; echo three; exit 3]}}}
- name: long
  plan:
";

fn build_config() -> String {
    let task = "  - {task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}\n";
    [JOBS, &task.repeat(12)].concat()
}

fn build_kind() -> Gvk {
    kind("Build")
}

/// Starts the pack with a chain whose jobs are `quick`, `slow`, `bad` and `long`.
async fn start_with_jobs(lab: &mut Lab) {
    std::fs::write(
        lab.settings.plugins.join("concourse-build.yaml"),
        "settle: 200ms\n",
    )
    .expect("written");
    lab.start_pack().await;
    apply_chain_with_jobs(lab).await;
}

async fn apply_chain_with_jobs(lab: &Lab) {
    let of = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": spec})
    };
    for object in [
        lab.password_secret(lab.concourse.password()),
        lab.instance_object(),
        lab.team_object(),
    ] {
        lab.apply(object).await;
    }
    let spec = json!({"teamRef": {"name": "platform"}, "config": {"inline": build_config()}});
    lab.apply(of("Pipeline", "app", spec)).await;
    for job in ["quick", "slow", "bad", "long"] {
        // The history limits must not delete Builds that a test reads.
        let spec = json!({"pipelineRef": {"name": "app"}, "successfulBuildsHistoryLimit": 10_000,
            "failedBuildsHistoryLimit": 10_000});
        lab.apply(of("Job", job, spec)).await;
        lab.wait_ready(&kind("Job"), job).await;
    }
    lab.wait_idle().await;
}

async fn apply_build(lab: &Lab, name: &str, job: &str, more: Value) {
    let mut spec = json!({"jobRef": {"name": job}});
    let more = more.as_object().expect("an object").clone();
    spec.as_object_mut().expect("an object").extend(more);
    lab.apply(json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": "Build",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": spec}))
        .await;
}

async fn wait_complete(lab: &Lab, name: &str, reason: &str) -> Value {
    lab.wait_condition(&build_kind(), name, "Complete", "True", reason)
        .await
}

async fn wait_status(lab: &Lab, name: &str, status: &str) -> Value {
    lab.wait_until(&format!("{name} is {status}"), async || {
        let build = lab.get(&build_kind(), name).await.unwrap_or_default();
        build["status"]["concourseStatus"] == status
    })
    .await;
    lab.get(&build_kind(), name).await.expect("it was there")
}

/// Number of orders that are tried; in the last one the namespace is deleted as well.
const DELETION_ORDERS: usize = 3;

/// Each run has a seed, which is printed; `DELETION_SEED=N` repeats that run.
#[scenario(simulated)]
async fn objects_deleted_in_any_order_leave_nothing_in_concourse(mut lab: Lab) {
    let seed = match std::env::var("DELETION_SEED") {
        Ok(seed) => seed.parse().expect("DELETION_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("repeat this run with DELETION_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    start_with_jobs(&mut lab).await;
    let mut objects = vec![
        (Gvk::new("", "v1", "Secret"), "ci-admin"),
        (Gvk::new("ostler.dev", "v1alpha1", "Upstream"), "ci"),
        (kind("Instance"), "ci"),
        (kind("Team"), "platform"),
        (kind("Pipeline"), "app"),
        (build_kind(), "finished"),
        (build_kind(), "running"),
    ];
    objects.extend(["quick", "slow", "bad", "long"].map(|job| (kind("Job"), job)));
    for round in 1..=DELETION_ORDERS {
        if round > 1 {
            apply_chain_with_jobs(&lab).await;
        }
        apply_build(&lab, "finished", "quick", json!({})).await;
        apply_build(&lab, "running", "slow", json!({})).await;
        wait_complete(&lab, "finished", "Succeeded").await;
        wait_status(&lab, "running", "started").await;
        let mut order = objects.clone();
        if round == DELETION_ORDERS {
            order.push((Gvk::new("", "v1", "Namespace"), &*lab.namespace));
        }
        random.shuffle(&mut order);
        println!("{order:?}");
        for (gvk, name) in &order {
            delete_if_there(&lab, gvk, name).await;
        }
        for (gvk, name) in &objects {
            lab.wait_gone(gvk, name).await;
        }
        assert!(
            lab.concourse.pipeline("platform", "app").is_none(),
            "the pipeline is gone"
        );
        assert!(lab.concourse.team("platform").is_none(), "the team is gone");
    }
}

/// Deletes an object, unless the deletion of another one has taken it along.
async fn delete_if_there(lab: &Lab, gvk: &Gvk, name: &str) {
    let is_namespace = *gvk.kind == *"Namespace";
    let namespace = if is_namespace { "" } else { &*lab.namespace };
    let api = lab.api(gvk, namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => drop(deleted.expect("deletion is accepted")),
    }
}

/// Waits until the stream of a build is open and the queue is empty.
async fn wait_followed(lab: &Lab, name: &str) {
    let key = lab.key(&build_kind(), name);
    lab.wait_until(&format!("{name} is followed"), async || {
        let follows = lab.host().services().upstreams.streams.streams_of(&key);
        follows.iter().any(|f| f.state == StreamState::Open)
    })
    .await;
    lab.wait_idle().await;
}

fn count_requests(lab: &Lab, route: &str) -> u64 {
    lab.concourse
        .counters()
        .routes
        .get(route)
        .copied()
        .unwrap_or_default()
}

const READ: &str = "GET /api/v1/builds/{build}";
const EVENTS: &str = "GET /api/v1/builds/{build}/events";

#[scenario(simulated)]
async fn running_build_is_followed_by_events_without_polling(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "long", json!({"comment": "first"})).await;
    wait_status(&lab, "b", "started").await;
    wait_followed(&lab, "b").await;
    assert_eq!(lab.concourse.counters().triggers, 1);
    lab.concourse.reset_counters();
    let done = wait_complete(&lab, "b", "Succeeded").await;
    lab.wait_idle().await;
    let counters = lab.concourse.counters();
    assert!(counters.event_frames > 20, "{} events", counters.event_frames);
    assert_eq!(
        (count_requests(&lab, READ), count_requests(&lab, EVENTS)),
        (1, 0),
        "read once, at its end, over {} events",
        counters.event_frames
    );
    println!(
        "{} events, {} bytes, 1 read while it ran",
        counters.event_frames, counters.event_bytes
    );
    assert_eq!(done["status"]["comment"], "first");
    assert!(done["status"]["duration"].is_string(), "{done}");
    let causes = lab.wake_causes(&build_kind(), "b");
    assert!(
        causes.iter().any(|c| c.to_string().starts_with("event of ")),
        "{causes:?}"
    );
    lab.wait_until(
        "the stream is closed, although the server would keep it open",
        async || lab.concourse.open_streams() == 0,
    )
    .await;
}

#[scenario]
async fn failed_build_shows_log_tail(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "bad", json!({"logTailLines": 2})).await;
    let failed = wait_complete(&lab, "b", "Failed").await;
    assert_eq!(failed["status"]["logTail"], "two\nthree");
    assert_eq!(
        find_condition(&failed, "Ready")["status"],
        "True",
        "Ready does not depend on the result"
    );
}

#[scenario(simulated)]
async fn canceled_build_is_aborted_or_never_triggered(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "slow", json!({})).await;
    wait_status(&lab, "b", "started").await;
    lab.patch(&build_kind(), "b", json!({"spec": {"canceled": true}}))
        .await;
    wait_complete(&lab, "b", "Aborted").await;
    apply_build(&lab, "never", "slow", json!({"canceled": true})).await;
    wait_complete(&lab, "never", "Aborted").await;
    assert_eq!(lab.concourse.counters().triggers, 1);
    // A running build is aborted by the deletion only with abortOnDelete.
    apply_build(&lab, "kept", "slow", json!({})).await;
    wait_status(&lab, "kept", "started").await;
    apply_build(&lab, "ended", "slow", json!({"abortOnDelete": true})).await;
    for name in ["kept", "ended"] {
        wait_status(&lab, name, "started").await;
        lab.delete(&build_kind(), name).await;
        lab.wait_gone(&build_kind(), name).await;
    }
    lab.wait_until("one is aborted", async || {
        build_statuses(&lab) == ["aborted", "started", "aborted"]
    })
    .await;
}

/// States of all builds in Concourse, in the order of their creation.
fn build_statuses(lab: &Lab) -> Vec<String> {
    let state = lab.concourse.state();
    let builds = state["builds"].as_array().expect("builds").iter();
    builds
        .map(|b| b["status"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[scenario]
async fn rerun_of_repeats_build_with_same_inputs(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "first", "quick", json!({})).await;
    wait_complete(&lab, "first", "Succeeded").await;
    apply_build(&lab, "again", "quick", json!({"rerunOf": "1"})).await;
    let again = wait_complete(&lab, "again", "Succeeded").await;
    assert_eq!(
        (&again["status"]["buildName"], &again["status"]["rerunOf"]),
        (&json!("1.1"), &json!("1"))
    );
    let refused = lab
        .try_apply(json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": "Build",
            "metadata": {"name": "both", "namespace": lab.namespace},
            "spec": {"jobRef": {"name": "quick"}, "rerunOf": "1", "buildID": 1}}))
        .await
        .expect_err("refused");
    assert!(refused.to_string().contains("mutually exclusive"), "{refused}");
}

#[scenario(simulated)]
async fn adopted_build_shares_event_stream(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "a", "slow", json!({})).await;
    let a = wait_status(&lab, "a", "started").await;
    wait_followed(&lab, "a").await;
    apply_build(&lab, "b", "slow", json!({"buildID": a["status"]["buildID"]})).await;
    wait_status(&lab, "b", "started").await;
    wait_followed(&lab, "b").await;
    assert_eq!(
        (count_requests(&lab, EVENTS), lab.concourse.open_streams()),
        (1, 1)
    );
    lab.patch(&build_kind(), "a", json!({"spec": {"canceled": true}}))
        .await;
    for name in ["a", "b"] {
        wait_complete(&lab, name, "Aborted").await;
    }
    assert_eq!(
        (lab.concourse.counters().triggers, count_requests(&lab, EVENTS)),
        (1, 1)
    );
}

#[scenario(simulated)]
async fn vanished_build_is_triggered_again(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "slow", json!({})).await;
    let id = |b: &Value| b["status"]["buildID"].as_u64().expect("an id");
    let first = id(&wait_status(&lab, "b", "started").await);
    wait_followed(&lab, "b").await;
    lab.concourse.forget_build(first);
    lab.wait_until("another build is triggered", async || {
        let build = lab.get(&build_kind(), "b").await.unwrap_or_default();
        build["status"]["buildID"]
            .as_u64()
            .is_some_and(|now| now != first)
    })
    .await;
    assert_eq!(lab.concourse.counters().triggers, 2);
    let events = Gvk::new("", "v1", "Event");
    lab.wait_until("an Event reports it", async || {
        let all = lab.list(&events).await;
        all.iter().any(|e| e["reason"] == "BuildVanished")
    })
    .await;
}

#[scenario(simulated)]
async fn finished_build_object_is_deleted_after_ttl(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "quick", json!({"ttlSecondsAfterFinished": 1})).await;
    lab.wait_gone(&build_kind(), "b").await;
    assert_eq!(
        (lab.concourse.counters().triggers, build_statuses(&lab)),
        (1, vec!["succeeded".into()])
    );
}

#[scenario(simulated)]
async fn interrupted_stream_resumes_at_last_event(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    apply_build(&lab, "b", "long", json!({})).await;
    wait_status(&lab, "b", "started").await;
    wait_followed(&lab, "b").await;
    let streams = lab.host().services().upstreams.streams.clone();
    lab.wait_until("events have come", async || streams.all_streams()[0].events > 10)
        .await;
    lab.concourse.faults().set_outage(true);
    lab.wait_until("it is noticed", async || {
        !matches!(streams.all_streams()[0].state, StreamState::Open)
    })
    .await;
    lab.concourse.faults().set_outage(false);
    wait_complete(&lab, "b", "Succeeded").await;
    let state = lab.concourse.state();
    let total = state["builds"][0]["events"].as_u64().expect("a number") + 1;
    let sent = lab.concourse.counters().event_frames;
    // Only events in transit at the interruption may be sent again.
    assert!(
        sent >= total && sent < total + 10,
        "{sent} frames sent of {total}"
    );
    assert_eq!(count_requests(&lab, EVENTS), 2, "opened twice");
}

#[scenario(simulated)]
async fn stream_closes_when_object_is_deleted_paused_or_host_stops(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    for name in ["a", "b", "c"] {
        apply_build(&lab, name, "slow", json!({})).await;
    }
    for name in ["a", "b", "c"] {
        wait_status(&lab, name, "started").await;
        wait_followed(&lab, name).await;
    }
    assert_eq!(lab.concourse.open_streams(), 3);
    lab.delete(&build_kind(), "a").await;
    lab.wait_until("the stream of the deleted Build is closed", async || {
        lab.concourse.open_streams() == 2
    })
    .await;
    lab.patch(
        &build_kind(),
        "b",
        json!({"metadata": {"annotations": {"ostler.dev/paused": "true"}}}),
    )
    .await;
    lab.wait_until("the stream of the paused Build is closed", async || {
        lab.concourse.open_streams() == 1
    })
    .await;
    lab.host
        .take()
        .expect("it runs")
        .drain(Duration::from_secs(5))
        .await;
    lab.wait_until("all streams are closed without a host", async || {
        lab.concourse.open_streams() == 0
    })
    .await;
}

#[scenario(simulated)]
async fn ambiguous_trigger_reports_candidates_and_accepts_build_id(mut lab: Lab) {
    start_with_jobs(&mut lab).await;
    let faults = lab.concourse.faults();
    faults.fail_next(1, "POST", "/builds$", FaultAction::DropAnswer);
    // The search fails until another client of the same account has triggered a build.
    faults.fail_next(
        usize::MAX,
        "GET",
        "/api/v1/user$",
        FaultAction::Status(500, "later".into()),
    );
    apply_build(&lab, "b", "slow", json!({})).await;
    lab.wait_until("the response is lost", async || !build_statuses(&lab).is_empty())
        .await;
    let foreign = lab.concourse.trigger("platform", "app", "slow", "test");
    lab.concourse.faults().clear();
    let build = lab
        .wait_condition(&build_kind(), "b", "Ready", "False", "TriggerAmbiguous")
        .await;
    assert_eq!(build["status"]["trigger"]["state"], "Ambiguous");
    assert_eq!(build_statuses(&lab).len(), 2, "no other build was triggered");
    // A new Build of the same job does not wait for the ambiguous one.
    apply_build(&lab, "c", "slow", json!({})).await;
    wait_status(&lab, "c", "started").await;
    let foreign = foreign.expect("a build");
    lab.patch(&build_kind(), "b", json!({"spec": {"buildID": foreign - 1}}))
        .await;
    let build = wait_status(&lab, "b", "started").await;
    assert!(build["status"]["trigger"].is_null() && build["status"]["buildID"] == foreign - 1);
}

#[scenario(simulated)]
async fn sample_build_becomes_ready(mut lab: Lab) {
    lab.start_pack().await;
    for sample in ["concourse.yaml", "concourse-build.yaml"] {
        let path = ostler_test_harness::workspace_root()
            .join("deploy/examples")
            .join(sample);
        let text = std::fs::read_to_string(path).expect("a sample");
        let text = text
            .replace("${CONCOURSE_URL}", lab.concourse.url())
            .replace("${CONCOURSE_USER}", "test")
            .replace("${CONCOURSE_PASSWORD}", ADMIN_PASSWORD)
            .replace("namespace: ci", &format!("namespace: {}", lab.namespace))
            .replace("  name: ci\n", &format!("  name: {}\n", lab.namespace));
        lab.apply_yaml(&text).await;
    }
    let build = lab.wait_ready(&build_kind(), "unit-release-7").await;
    assert_eq!(build["spec"]["ttlSecondsAfterFinished"], 3600);
    lab.wait_until("the build is triggered, with its comment", async || {
        let state = lab.concourse.state();
        state["builds"][0]["comment"] == "Release 7"
    })
    .await;
}

/// Hosts are dropped and responses lost at random: each object has one build, and each build has one object.
#[scenario(hostile)]
async fn each_object_has_one_build_after_crashes(lab: Lab) {
    crash_host(lab, 30).await;
}

/// The same, for longer.
#[scenario(embedded = "it is about the host alone", campaign = "takes four minutes")]
async fn each_object_has_one_build_after_200_crashes(lab: Lab) {
    crash_host(lab, 200).await;
}

async fn crash_host(mut lab: Lab, crashes: usize) {
    if !lab.concourse.is_simulated("responses are lost") {
        return;
    }
    start_with_jobs(&mut lab).await;
    lab.install(&PACK_COMPONENTS);
    let seed =
        std::env::var("CRASH_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().expect("a number"));
    println!("to reproduce: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut made, mut interrupted, mut looked_for) = (0, 0, 0);
    for round in 0..crashes {
        let faults = lab.concourse.faults();
        let fault = match random.u8(0..5) {
            0 => Some(FaultAction::DropAnswer),
            1 => Some(FaultAction::Drop),
            2 => Some(FaultAction::Status(502, "bad gateway".into())),
            _ => None,
        };
        if let Some(fault) = fault {
            faults.fail_next(random.usize(1..3), "POST", "/builds$", fault);
        }
        faults.set_latency(Duration::from_millis(random.u64(0..4)));
        for _ in 0..random.usize(1..4) {
            let job = if random.bool() { "slow" } else { "quick" };
            apply_build(&lab, &format!("b{made}"), job, json!({})).await;
            made += 1;
        }
        // The crash has to hit any moment of a reconcile, so there is no condition to wait for.
        tokio::time::sleep(Duration::from_micros(random.u64(0..40_000))).await;
        let host = lab.host.take();
        drop(host);
        for object in lab.list(&build_kind()).await {
            let status = &object["status"];
            interrupted += usize::from(status["buildID"].is_null());
            looked_for += usize::from(!status["trigger"].is_null());
        }
        lab.concourse.faults().clear();
        lab.start_host().await;
        if round % 10 == 9 {
            wait_one_build_each(&lab, made).await;
        }
    }
    wait_one_build_each(&lab, made).await;
    println!(
        "{crashes} crashes, {made} builds; {interrupted} times a build was not triggered yet, {looked_for} times that was unknown"
    );
    assert!(
        looked_for >= crashes / 20,
        "crashes during the trigger of a build: {looked_for}"
    );
}

/// Waits until every object has a build of its own. Concourse has no other builds.
async fn wait_one_build_each(lab: &Lab, made: usize) {
    let ids = async || -> Vec<u64> {
        let all = lab.list(&build_kind()).await;
        all.iter()
            .filter_map(|b| b["status"]["buildID"].as_u64())
            .collect()
    };
    lab.wait_until(&format!("all {made} have a build"), async || {
        ids().await.len() == made
    })
    .await;
    let ours: BTreeSet<u64> = ids().await.into_iter().collect();
    let state = lab.concourse.state();
    let theirs = state["builds"].as_array().expect("builds").iter();
    let theirs: BTreeSet<u64> = theirs.filter_map(|b| b["id"].as_u64()).collect();
    let doubled: Vec<_> = theirs.difference(&ours).collect();
    assert_eq!(ours.len(), made, "each object has its own build");
    assert!(doubled.is_empty(), "triggered twice: {doubled:?}");
    assert_eq!(theirs.len(), made, "no build is lost");
}
