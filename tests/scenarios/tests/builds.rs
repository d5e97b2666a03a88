//! Builds: begun once whatever happens, followed by their events, ended as somebody asks.

use std::{collections::BTreeSet, time::Duration};

use ostler::testing::upstream::StreamState;
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{PACK_COMPONENTS, kind},
    find_condition, scenarios,
    simulator::Answer,
};
use serde_json::{Value, json};

scenarios!(
    followed_by_events_and_not_polled,
    a_failure_shows_its_log,
    canceled,
    run_again,
    adopted_and_one_stream_for_both,
    begun_anew_when_it_vanishes,
    gone_when_its_time_is_over,
    a_stream_that_breaks_goes_on_where_it_was,
    no_stream_outlives_what_it_is_for,
    what_cannot_be_told_is_said,
    the_sample,
);

/// Random crashes.
mod crashes {
    use super::{crashed_two_hundred_times, scenarios};
    scenarios!(hostile: crashed_two_hundred_times);
}

const JOBS: &str = "jobs:
- {name: quick, plan: [{task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}]}
- {name: slow, plan: [{task: t, config: {platform: linux, run: {path: sleep, args: ['100000']}}}]}
- name: bad
  plan:
  - {task: t, config: {platform: linux, run: {path: sh, args: [-c, echo one; echo two; echo three; exit 3]}}}
- name: long
  plan:
";

fn config() -> String {
    let task = "  - {task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}\n";
    [JOBS, &task.repeat(12)].concat()
}

fn builds() -> ostler::testing::key::Gvk {
    kind("Build")
}

/// A chain whose jobs are `quick`, `slow`, `bad` and `long`.
async fn start(lab: &mut Lab) {
    std::fs::write(
        lab.settings.plugins.join("concourse-build.yaml"),
        "settle: 200ms\n",
    )
    .expect("written");
    lab.start_pack().await;
    let of = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": spec})
    };
    for object in [
        lab.password_secret(ADMIN_PASSWORD),
        lab.instance_object(),
        lab.team_object(),
    ] {
        lab.apply(object).await;
    }
    let spec = json!({"teamRef": {"name": "platform"}, "config": {"inline": config()}});
    lab.apply(of("Pipeline", "app", spec)).await;
    for job in ["quick", "slow", "bad", "long"] {
        // History must not take away what a test looks at.
        let spec = json!({"pipelineRef": {"name": "app"}, "successfulBuildsHistoryLimit": 10_000,
            "failedBuildsHistoryLimit": 10_000});
        lab.apply(of("Job", job, spec)).await;
        lab.wait_ready(&kind("Job"), job).await;
    }
    lab.wait_idle().await;
}

async fn build(lab: &Lab, name: &str, job: &str, more: Value) {
    let mut spec = json!({"jobRef": {"name": job}});
    let more = more.as_object().expect("an object").clone();
    spec.as_object_mut().expect("an object").extend(more);
    lab.apply(json!({"apiVersion": "concourse-ci.org/v1alpha1", "kind": "Build",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": spec}))
        .await;
}

async fn complete(lab: &Lab, name: &str, reason: &str) -> Value {
    lab.wait_condition(&builds(), name, "Complete", "True", reason)
        .await
}

async fn in_status(lab: &Lab, name: &str, status: &str) -> Value {
    lab.wait_until(&format!("{name} is {status}"), async || {
        let build = lab.get(&builds(), name).await.unwrap_or_default();
        build["status"]["concourseStatus"] == status
    })
    .await;
    lab.get(&builds(), name).await.expect("it was there")
}

/// Waits until a build's stream is open, and nothing is to be done.
async fn followed(lab: &Lab, name: &str) {
    let key = lab.key(&builds(), name);
    lab.wait_until(&format!("{name} is followed"), async || {
        let follows = lab.host().services().streams.streams_of(&key);
        follows.iter().any(|f| f.state == StreamState::Open)
    })
    .await;
    lab.wait_idle().await;
}

fn count(lab: &Lab, route: &str) -> u64 {
    lab.concourse
        .counters()
        .routes
        .get(route)
        .copied()
        .unwrap_or_default()
}

const READ: &str = "GET /api/v1/builds/{build}";
const EVENTS: &str = "GET /api/v1/builds/{build}/events";

async fn followed_by_events_and_not_polled(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "long", json!({"comment": "first"})).await;
    in_status(&lab, "b", "started").await;
    followed(&lab, "b").await;
    assert_eq!(lab.concourse.counters().triggers, 1);
    lab.concourse.reset_counters();
    let done = complete(&lab, "b", "Succeeded").await;
    lab.wait_idle().await;
    let counters = lab.concourse.counters();
    assert!(counters.event_frames > 20, "{} events", counters.event_frames);
    assert_eq!(
        (count(&lab, READ), count(&lab, EVENTS)),
        (1, 0),
        "read once, when it had ended, over {} events",
        counters.event_frames
    );
    println!(
        "{} events, {} bytes, 1 read while it ran",
        counters.event_frames, counters.event_bytes
    );
    assert_eq!(done["status"]["comment"], "first");
    assert!(done["status"]["duration"].is_string(), "{done}");
    let causes = lab.wake_causes(&builds(), "b");
    assert!(
        causes.iter().any(|c| c.to_string().starts_with("event of ")),
        "{causes:?}"
    );
    lab.wait_until(
        "the stream is closed, which the server would have kept",
        async || lab.concourse.open_streams() == 0,
    )
    .await;
}

async fn a_failure_shows_its_log(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "bad", json!({"logTailLines": 2})).await;
    let failed = complete(&lab, "b", "Failed").await;
    assert_eq!(failed["status"]["logTail"], "two\nthree");
    assert_eq!(
        find_condition(&failed, "Ready")["status"],
        "True",
        "it is as it is"
    );
}

async fn canceled(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "slow", json!({})).await;
    in_status(&lab, "b", "started").await;
    lab.patch(&builds(), "b", json!({"spec": {"canceled": true}}))
        .await;
    complete(&lab, "b", "Aborted").await;
    build(&lab, "never", "slow", json!({"canceled": true})).await;
    complete(&lab, "never", "Aborted").await;
    assert_eq!(lab.concourse.counters().triggers, 1);
    // Deleted while it runs: aborted if asked.
    build(&lab, "kept", "slow", json!({})).await;
    in_status(&lab, "kept", "started").await;
    build(&lab, "ended", "slow", json!({"abortOnDelete": true})).await;
    for name in ["kept", "ended"] {
        in_status(&lab, name, "started").await;
        lab.delete(&builds(), name).await;
        lab.wait_gone(&builds(), name).await;
    }
    lab.wait_until("one is aborted", async || {
        statuses(&lab) == ["aborted", "started", "aborted"]
    })
    .await;
}

/// Statuses of all builds in Concourse, in the order they were begun.
fn statuses(lab: &Lab) -> Vec<String> {
    let state = lab.concourse.state();
    let builds = state["builds"].as_array().expect("builds").iter();
    builds
        .map(|b| b["status"].as_str().unwrap_or_default().to_owned())
        .collect()
}

async fn run_again(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "first", "quick", json!({})).await;
    complete(&lab, "first", "Succeeded").await;
    build(&lab, "again", "quick", json!({"rerunOf": "1"})).await;
    let again = complete(&lab, "again", "Succeeded").await;
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

async fn adopted_and_one_stream_for_both(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "a", "slow", json!({})).await;
    let a = in_status(&lab, "a", "started").await;
    followed(&lab, "a").await;
    build(&lab, "b", "slow", json!({"buildID": a["status"]["buildID"]})).await;
    in_status(&lab, "b", "started").await;
    followed(&lab, "b").await;
    assert_eq!((count(&lab, EVENTS), lab.concourse.open_streams()), (1, 1));
    lab.patch(&builds(), "a", json!({"spec": {"canceled": true}}))
        .await;
    for name in ["a", "b"] {
        complete(&lab, name, "Aborted").await;
    }
    assert_eq!((lab.concourse.counters().triggers, count(&lab, EVENTS)), (1, 1));
}

async fn begun_anew_when_it_vanishes(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "slow", json!({})).await;
    let id = |b: &Value| b["status"]["buildID"].as_u64().expect("an id");
    let first = id(&in_status(&lab, "b", "started").await);
    followed(&lab, "b").await;
    lab.concourse.forget_build(first);
    lab.wait_until("another is begun", async || {
        let build = lab.get(&builds(), "b").await.unwrap_or_default();
        build["status"]["buildID"]
            .as_u64()
            .is_some_and(|now| now != first)
    })
    .await;
    assert_eq!(lab.concourse.counters().triggers, 2);
    let events = ostler::testing::key::Gvk::new("", "v1", "Event");
    lab.wait_until("an Event says so", async || {
        let all = lab.list(&events).await;
        all.iter().any(|e| e["reason"] == "BuildVanished")
    })
    .await;
}

async fn gone_when_its_time_is_over(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "quick", json!({"ttlSecondsAfterFinished": 1})).await;
    lab.wait_gone(&builds(), "b").await;
    assert_eq!(
        (lab.concourse.counters().triggers, statuses(&lab)),
        (1, vec!["succeeded".into()])
    );
}

async fn a_stream_that_breaks_goes_on_where_it_was(mut lab: Lab) {
    start(&mut lab).await;
    build(&lab, "b", "long", json!({})).await;
    in_status(&lab, "b", "started").await;
    followed(&lab, "b").await;
    let streams = lab.host().services().streams.clone();
    lab.wait_until("events have come", async || streams.all_streams()[0].events > 10)
        .await;
    lab.concourse.faults().outage(true);
    lab.wait_until("it is noticed", async || {
        !matches!(streams.all_streams()[0].state, StreamState::Open)
    })
    .await;
    lab.concourse.faults().outage(false);
    complete(&lab, "b", "Succeeded").await;
    let state = lab.concourse.state();
    let total = state["builds"][0]["events"].as_u64().expect("a number") + 1;
    let sent = lab.concourse.counters().event_frames;
    // What was on its way when it broke may come again, and no more.
    assert!(
        sent >= total && sent < total + 10,
        "{sent} frames sent of {total}"
    );
    assert_eq!(count(&lab, EVENTS), 2, "opened twice");
}

async fn no_stream_outlives_what_it_is_for(mut lab: Lab) {
    start(&mut lab).await;
    for name in ["a", "b", "c"] {
        build(&lab, name, "slow", json!({})).await;
    }
    for name in ["a", "b", "c"] {
        in_status(&lab, name, "started").await;
        followed(&lab, name).await;
    }
    assert_eq!(lab.concourse.open_streams(), 3);
    lab.delete(&builds(), "a").await;
    lab.wait_until("deleted, it is followed no more", async || {
        lab.concourse.open_streams() == 2
    })
    .await;
    lab.patch(
        &builds(),
        "b",
        json!({"metadata": {"annotations": {"ostler.dev/paused": "true"}}}),
    )
    .await;
    lab.wait_until("paused, it is followed no more", async || {
        lab.concourse.open_streams() == 1
    })
    .await;
    lab.host
        .take()
        .expect("it runs")
        .drain(Duration::from_secs(5))
        .await;
    lab.wait_until("without a host nothing is followed", async || {
        lab.concourse.open_streams() == 0
    })
    .await;
}

async fn what_cannot_be_told_is_said(mut lab: Lab) {
    start(&mut lab).await;
    let faults = lab.concourse.faults();
    faults.fail_next(1, "POST", "/builds$", Answer::DropAnswer);
    // Nobody can look for the lost one until somebody else has begun one in the same account.
    faults.fail_next(
        usize::MAX,
        "GET",
        "/api/v1/user$",
        Answer::Status(500, "later".into()),
    );
    build(&lab, "b", "slow", json!({})).await;
    lab.wait_until("the answer is lost", async || !statuses(&lab).is_empty())
        .await;
    let foreign = lab.concourse.trigger("platform", "app", "slow", "test");
    lab.concourse.faults().clear();
    let told = lab
        .wait_condition(&builds(), "b", "Ready", "False", "TriggerAmbiguous")
        .await;
    assert_eq!(told["status"]["trigger"]["state"], "Ambiguous");
    assert_eq!(statuses(&lab).len(), 2, "none was begun besides");
    // A new one of the same job need not wait for that.
    build(&lab, "c", "slow", json!({})).await;
    in_status(&lab, "c", "started").await;
    let foreign = foreign.expect("a build");
    lab.patch(&builds(), "b", json!({"spec": {"buildID": foreign - 1}}))
        .await;
    let build = in_status(&lab, "b", "started").await;
    assert!(build["status"]["trigger"].is_null() && build["status"]["buildID"] == foreign - 1);
}

async fn the_sample(mut lab: Lab) {
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
    let build = lab.wait_ready(&builds(), "unit-release-7").await;
    assert_eq!(build["spec"]["ttlSecondsAfterFinished"], 3600);
    lab.wait_until("it is begun, with its comment", async || {
        let state = lab.concourse.state();
        state["builds"][0]["comment"] == "Release 7"
    })
    .await;
}

/// Hosts are dropped at random points, answers lost at random: each object has one build, and each build an object.
async fn crashed_two_hundred_times(mut lab: Lab) {
    const CRASHES: usize = 200;
    start(&mut lab).await;
    lab.install(&PACK_COMPONENTS);
    let seed =
        std::env::var("CRASH_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().expect("a number"));
    println!("to see it again: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut made, mut interrupted, mut looked_for) = (0, 0, 0);
    for round in 0..CRASHES {
        let faults = lab.concourse.faults();
        let fault = match random.u8(0..5) {
            0 => Some(Answer::DropAnswer),
            1 => Some(Answer::Drop),
            2 => Some(Answer::Status(502, "bad gateway".into())),
            _ => None,
        };
        if let Some(fault) = fault {
            faults.fail_next(random.usize(1..3), "POST", "/builds$", fault);
        }
        faults.latency(Duration::from_millis(random.u64(0..4)));
        for _ in 0..random.usize(1..4) {
            let job = if random.bool() { "slow" } else { "quick" };
            build(&lab, &format!("b{made}"), job, json!({})).await;
            made += 1;
        }
        // The point is that it is any moment.
        tokio::time::sleep(Duration::from_micros(random.u64(0..40_000))).await;
        let host = lab.host.take();
        drop(host);
        for object in lab.list(&builds()).await {
            let status = &object["status"];
            interrupted += usize::from(status["buildID"].is_null());
            looked_for += usize::from(!status["trigger"].is_null());
        }
        lab.concourse.faults().clear();
        lab.start_host().await;
        if round % 10 == 9 {
            settled(&lab, made).await;
        }
    }
    settled(&lab, made).await;
    println!(
        "{CRASHES} crashes, {made} builds; {interrupted} times one was not begun yet, {looked_for} times that was not known"
    );
    assert!(
        looked_for > 10,
        "crashes in the midst of beginning a build: {looked_for}"
    );
}

/// Every object has a build, each another, and Concourse has no others.
async fn settled(lab: &Lab, made: usize) {
    let ids = async || -> Vec<u64> {
        let all = lab.list(&builds()).await;
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
    assert_eq!(ours.len(), made, "each has its own");
    assert!(doubled.is_empty(), "begun twice: {doubled:?}");
    assert_eq!(theirs.len(), made, "none is lost");
}
