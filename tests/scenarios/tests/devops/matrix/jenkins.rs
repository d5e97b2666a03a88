//! Each way in which Jenkins fails, at five steps of a deployment, by the whole pack.

use devops_simulators::{Answer, Faults};
use ostler_test_harness::{Lab, find_condition, scenario};
use serde_json::Value;

use crate::devops::{
    failures::{LONG_TTL_SECONDS, delete, limit_phase, record, wait_polled, wait_reason},
    pack::{PIPELINE, PackLab},
};

/// Ways in which Jenkins fails: with each answer, or without any.
fn list_faults() -> Vec<(&'static str, Option<Answer>)> {
    let page = || "<html>".to_owned();
    vec![
        ("down", None),
        ("reset", Some(Answer::DropAnswer)),
        ("unauthorized", Some(Answer::Status(401, page()))),
        ("forbidden", Some(Answer::Status(403, page()))),
        ("proxy-404", Some(Answer::Proxy(404, page()))),
        ("proxy-502", Some(Answer::Proxy(502, page()))),
        ("garbage", Some(Answer::Proxy(200, page()))),
    ]
}

fn inject(faults: &Faults, answer: Option<Answer>) {
    match answer {
        Some(answer) => faults.fail_next(usize::MAX, "*", ".*", answer),
        None => faults.set_outage(true),
    }
}

/// Publishes deployments whose builds wait in the queue, and lets them run if it is asked for.
async fn publish_queued(pack: &PackLab, ids: &[&str], starts: bool) {
    for id in ids {
        pack.publish_deployment(id, LONG_TTL_SECONDS).await;
        wait_reason(&pack.lab, id, "BuildQueued").await;
    }
    if starts {
        pack.servers.jenkins.start_queued();
        for id in ids {
            wait_reason(&pack.lab, id, "BuildRunning").await;
        }
    }
}

#[scenario]
async fn jenkins_that_fails_in_any_way_neither_ends_nor_doubles_a_deployment(lab: Lab) {
    let mut pack = PackLab::start(lab, false).await;
    pack.start_host().await;
    pack.set_up_project().await;
    let (lab, jenkins) = (&pack.lab, &pack.servers.jenkins);
    let mut all: Vec<String> = Vec::new();
    for (fault, answer) in list_faults() {
        // Five steps at which Jenkins begins to fail.
        let id = |step: &str| format!("d-{fault}-{step}");
        let [new, queued, running, late, deleted] = ["new", "queued", "running", "late", "deleted"].map(id);
        jenkins.hold_builds();
        publish_queued(&pack, &[&running, &late, &deleted], true).await;
        publish_queued(&pack, &[&queued], false).await;
        inject(jenkins.faults(), answer);
        pack.publish_deployment(&new, LONG_TTL_SECONDS).await;
        for id in [&new, &queued, &running] {
            wait_reason(lab, id, "BuildRequestFailed").await;
        }

        // One reaches its time limit meanwhile, and one is deleted.
        limit_phase(lab, &late, "buildSeconds").await;
        lab.delete(&record(), &deleted).await;
        let is_told = |found: &Value, state: &str| {
            found["status"]["state"] == state && found["status"]["heartbeat"]["finalConfirmed"] == true
        };
        let what = format!("{late} and {deleted} have ended");
        wait_polled(lab, &[&late, &deleted], &what, async || {
            let failed = lab.get(&record(), &late).await.unwrap_or_default();
            let terminated = lab.get(&record(), &deleted).await.unwrap_or_default();
            let is_withdrawn = find_condition(&failed, "Withdrawn")["status"] == "True";
            is_told(&failed, "failed") && !is_withdrawn && is_told(&terminated, "terminated")
        })
        .await;

        jenkins.faults().clear();
        let what = format!("the builds of {late} and {deleted} are stopped");
        wait_polled(lab, &[&late, &deleted], &what, async || {
            let failed = lab.get(&record(), &late).await.unwrap_or_default();
            let is_withdrawn = find_condition(&failed, "Withdrawn")["status"] == "True";
            is_withdrawn && lab.get(&record(), &deleted).await.is_none()
        })
        .await;
        jenkins.run_builds("SUCCESS");
        let live = [&new, &queued, &running].map(String::as_str);
        let what = format!("what {fault} has interrupted is live");
        wait_polled(lab, &live, &what, async || {
            for id in live {
                let found = lab.get(&record(), id).await.unwrap_or_default();
                if found["status"]["state"] != "success" {
                    return false;
                }
            }
            true
        })
        .await;
        for id in [&new, &queued, &running, &late, &deleted] {
            assert_eq!(pack.count_builds(id), 1, "builds of {id}");
        }
        for id in live {
            let found = lab.get(&record(), id).await.expect("it stays");
            assert_eq!(pack.count_syncs(&found), 1, "syncs of {id}");
        }
        let aborted = jenkins.builds(PIPELINE).into_iter();
        let aborted = aborted.filter(|build| build.result.as_deref() == Some("ABORTED"));
        all.extend([new, queued, running, late]);
        assert_eq!(aborted.count() * 4, all.len() * 2, "two of {fault} are stopped");
    }
    for id in &all {
        delete(lab, id).await;
    }
}
