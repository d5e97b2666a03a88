//! Plans with the Concourse pack: requests, and the whole chain from files.

use ostler::testing::plan::{PlanRequest, PlannedAction, PlannedChange, Verdict};
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{self, PIPELINE_YAML},
    scenario,
};
use serde_json::json;

use super::{plan_request, planned, planned_with, snapshot};

/// The plan of an edited team reads from Concourse and writes nothing.
#[scenario(simulated)]
async fn planned_request_is_shown_and_not_sent(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply_chain().await;
    drop(lab.host.take());
    lab.concourse.reset_counters();
    let before = snapshot(&lab).await;
    let mut team = lab.team_object();
    team["spec"]["roles"][0]["users"] = json!(["local:test", "local:new-user"]);
    let report = planned_with(&lab, team).await;
    let [request] = &report.requests[..] else {
        panic!("one request: {}", report.text());
    };
    assert_eq!(
        (&*request.method, &*request.path),
        ("PUT", "/api/v1/teams/platform")
    );
    assert!(request.body.to_string().contains("local:new-user"), "{request:?}");
    assert!(!request.guess);
    let text = report.text();
    assert!(text.contains("+ PUT /api/v1/teams/platform\n"), "{text}");
    assert!(!text.contains(ADMIN_PASSWORD), "{text}");
    let change = report.changes.iter().find(|c| c.object.starts_with("Team/"));
    assert!(
        change.is_some_and(|c| c.guess),
        "its status depends on the assumed response: {text}"
    );
    let counters = lab.concourse.counters();
    assert!(counters.reads > 0, "reads are sent");
    assert_eq!(counters.writes, 0);
    assert_eq!(snapshot(&lab).await, before);
}

/// In an empty cluster the whole chain is planned from files, as far as no response is needed.
#[scenario]
async fn chain_is_planned_from_files(lab: Lab) {
    lab.install(&concourse::PACK_COMPONENTS);
    let before = snapshot(&lab).await;
    let objects = [
        lab.pipeline_object(),
        lab.team_object(),
        lab.instance_object(),
        lab.pipeline_config_map(PIPELINE_YAML),
        lab.registry_secret("registry-pass-0001"),
        lab.password_secret(lab.concourse.password()),
    ];
    let files = objects.map(|object| ("chain.yaml".to_owned(), object)).to_vec();
    let report = planned(
        &lab,
        PlanRequest {
            files,
            // The Upstream of the Instance does not exist yet.
            trust_files: true,
            ..plan_request(&lab)
        },
    )
    .await;
    let text = report.text();
    for kind in ["Instance", "Team", "Pipeline", "Upstream", "Secret", "ConfigMap"] {
        let created = |c: &PlannedChange| {
            c.object.starts_with(&format!("{kind}/")) && c.action == PlannedAction::Create
        };
        assert!(report.changes.iter().any(created), "{kind}: {text}");
    }
    // The first request does not depend on an assumed response; all later ones do.
    let guesses: Vec<bool> = report.requests.iter().map(|r| r.guess).collect();
    assert!(guesses.len() > 1, "{text}");
    assert_eq!(guesses.first(), Some(&false), "{text}");
    assert!(guesses.iter().skip(1).all(|guess| *guess), "{text}");
    // The Instance involves no guess: reads and the login were sent to Concourse.
    let of = |kind: &str| {
        report
            .objects
            .iter()
            .find(|o| o.object.starts_with(kind))
            .expect("a planned object")
    };
    assert_eq!(
        (of("Instance/").verdict, of("Instance/").guess),
        (Verdict::Done, false),
        "{text}"
    );
    // The write of the Team has an assumed response, so everything after it is a guess.
    assert!(
        report
            .requests
            .iter()
            .any(|r| r.method == "PUT" && r.path.starts_with("/api/v1/teams/")),
        "{text}"
    );
    assert!(of("Team/").guess && of("Pipeline/").guess, "{text}");
    for secret in [lab.concourse.password(), "registry-pass-0001"] {
        assert!(!text.contains(secret), "{text}");
    }
    assert_eq!(snapshot(&lab).await, before);
    assert!(lab.concourse.team("platform").is_none());
}
