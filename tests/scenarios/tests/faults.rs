//! Concourse misbehaves: the object says what a person understands, and recovers.

use std::time::Duration;

use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenarios,
    simulator::Answer,
};

scenarios!(
    simulated:
    answers_500,
    answers_401,
    does_not_answer,
    answers_garbage,
    is_down,
    wrong_password,
    throttles
);

/// Everything applied but the Team, so that its first request meets the fault.
async fn prepared(lab: &mut Lab) {
    lab.start_pack().await;
    for object in [
        lab.password_secret(ADMIN_PASSWORD),
        lab.registry_secret("registry-pass-0001"),
        lab.pipeline_config_map(PIPELINE_YAML),
        lab.instance_object(),
    ] {
        lab.apply(object).await;
    }
    lab.wait_ready(&kind("Instance"), "ci").await;
    lab.wait_idle().await;
}

/// The Team says this reason with a message a person understands, fails some more, and recovers when the fault ends.
async fn says_and_recovers(lab: &Lab, reason: &str, words: &str) {
    lab.apply(lab.team_object()).await;
    let team = lab
        .wait_condition(&kind("Team"), "platform", "Ready", "False", reason)
        .await;
    let message = find_condition(&team, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(message.contains(words), "{message:?} should speak of {words:?}");
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

async fn answers_500(mut lab: Lab) {
    prepared(&mut lab).await;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "*",
        "/api/v1/teams/platform",
        Answer::Status(500, "boom".into()),
    );
    says_and_recovers(&lab, "CreateOrUpdateFailed", "500").await;
}

async fn answers_401(mut lab: Lab) {
    prepared(&mut lab).await;
    let before = lab.concourse.counters().logins;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "*",
        "/api/v1/teams/platform",
        Answer::Status(401, "not authorized".into()),
    );
    says_and_recovers(&lab, "CreateOrUpdateFailed", "401").await;
    assert!(lab.concourse.counters().logins > before, "it tried a fresh login");
}

async fn does_not_answer(mut lab: Lab) {
    lab.settings.limits.timeout = Duration::from_secs(2);
    prepared(&mut lab).await;
    lab.concourse
        .faults()
        .fail_next(usize::MAX, "*", "/api/v1/teams/platform", Answer::Hang);
    lab.apply(lab.team_object()).await;
    let team = lab
        .wait_condition(&kind("Team"), "platform", "Ready", "False", "PluginTimeout")
        .await;
    let message = find_condition(&team, "Ready")["message"].to_string();
    assert!(message.contains("longer than 2s"), "{message}");
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

async fn answers_garbage(mut lab: Lab) {
    prepared(&mut lab).await;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "GET",
        "/api/v1/teams/platform",
        Answer::Status(200, "<html>a proxy's page</html>".into()),
    );
    lab.apply(lab.team_object()).await;
    lab.wait_until("the Team says that the answer makes no sense", async || {
        let team = lab.get(&kind("Team"), "platform").await.unwrap_or_default();
        find_condition(&team, "Ready")["status"] == "False"
    })
    .await;
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

async fn is_down(mut lab: Lab) {
    prepared(&mut lab).await;
    lab.concourse.faults().outage(true);
    lab.apply(lab.team_object()).await;
    lab.wait_condition(
        &kind("Team"),
        "platform",
        "Ready",
        "False",
        "CreateOrUpdateFailed",
    )
    .await;
    lab.wait_until("it backs off", async || {
        let key = lab.key(&kind("Team"), "platform");
        lab.host().stats().object(&key).is_some_and(|f| f.reconciles > 3)
    })
    .await;
    lab.concourse.faults().outage(false);
    lab.wait_ready(&kind("Team"), "platform").await;
}

async fn wrong_password(mut lab: Lab) {
    lab.start_pack().await;
    lab.apply(lab.password_secret("not-the-right-password")).await;
    lab.apply(lab.instance_object()).await;
    let instance = lab
        .wait_condition(
            &kind("Instance"),
            "ci",
            "Authenticated",
            "False",
            "AuthenticationFailed",
        )
        .await;
    let message = find_condition(&instance, "Authenticated")["message"].to_string();
    assert!(message.contains("Invalid username or password"), "{message}");
    lab.apply(lab.password_secret(ADMIN_PASSWORD)).await;
    lab.wait_ready(&kind("Instance"), "ci").await;
}

async fn throttles(mut lab: Lab) {
    prepared(&mut lab).await;
    lab.concourse.faults().fail_next(
        3,
        "*",
        "/api/v1/teams/platform",
        Answer::Status(503, "busy".into()),
    );
    lab.apply(lab.team_object()).await;
    lab.wait_ready(&kind("Team"), "platform").await;
}
