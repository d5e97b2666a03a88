//! Each way in which Jenkins fails, at five steps of a deployment, by the whole pack.

use ostler_test_harness::{
    Lab, find_condition,
    gateway::{Gateway, ServerFault},
    scenario,
};
use serde_json::{Value, json};

use crate::devops::{
    failures::{LONG_TTL_SECONDS, delete, limit_phase, record, wait_polled, wait_reason},
    pack::{PIPELINE, PackLab},
    secret,
};

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
    interrupt_deployments(lab, &ServerFault::QUICK).await;
}

/// Each request takes its time limit.
#[scenario(campaign = "waits for a server that hangs")]
async fn jenkins_that_hangs_neither_ends_nor_doubles_a_deployment(lab: Lab) {
    interrupt_deployments(lab, &[ServerFault::Hangs]).await;
}

async fn interrupt_deployments(lab: Lab, faults: &[ServerFault]) {
    let mut pack = PackLab::start(lab, false).await;
    pack.start_host().await;
    let (lab, jenkins) = (&pack.lab, &pack.servers.jenkins);
    let gateway = Gateway::start(jenkins.url()).await;
    lab.apply(secret(lab, "jenkins-ca", gateway.authority())).await;
    let authority = json!({ "name": "jenkins-ca", "key": "value" });
    pack.set_up_project_with(&json!({ "jenkins": { "url": gateway.url(), "caRef": authority } }))
        .await;
    let mut all: Vec<String> = Vec::new();
    for fault in faults {
        // Five steps at which Jenkins begins to fail.
        let id = |step: &str| format!("d-{fault:?}-{step}").to_lowercase();
        let [new, queued, running, late, deleted] = ["new", "queued", "running", "late", "deleted"].map(id);
        jenkins.hold_builds();
        publish_queued(&pack, &[&running, &late, &deleted], true).await;
        publish_queued(&pack, &[&queued], false).await;
        gateway.set_fault(Some(*fault));
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

        assert!(gateway.count_failures() > 0, "{fault:?} was not met");
        gateway.set_fault(None);
        let what = format!("the builds of {late} and {deleted} are stopped");
        wait_polled(lab, &[&late, &deleted], &what, async || {
            let failed = lab.get(&record(), &late).await.unwrap_or_default();
            let is_withdrawn = find_condition(&failed, "Withdrawn")["status"] == "True";
            is_withdrawn && lab.get(&record(), &deleted).await.is_none()
        })
        .await;
        jenkins.run_builds("SUCCESS");
        let live = [&new, &queued, &running].map(String::as_str);
        let what = format!("what {fault:?} has interrupted is live");
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
        assert_eq!(aborted.count() * 4, all.len() * 2, "two of {fault:?} are stopped");
    }
    for id in &all {
        delete(lab, id).await;
    }
}
