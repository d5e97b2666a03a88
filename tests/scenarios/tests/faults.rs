//! Faults of Concourse: the object reports them in understandable messages, and recovers.

use std::time::Duration;

use ostler_test_harness::{
    ADMIN_PASSWORD, Lab,
    concourse::{PIPELINE_YAML, kind},
    find_condition, scenario,
    simulator::FaultAction,
};

/// Starts the pack and applies everything but the Team, so that its first request hits the fault.
async fn start_without_team(lab: &mut Lab) {
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

/// Asserts that the Team reports this reason, with a message that contains these words, and recovers when the fault ends.
async fn assert_reported_and_recovered(lab: &Lab, reason: &str, words: &str) {
    lab.apply(lab.team_object()).await;
    let team = lab
        .wait_condition(&kind("Team"), "platform", "Ready", "False", reason)
        .await;
    let message = find_condition(&team, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(message.contains(words), "{message:?} should contain {words:?}");
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

#[scenario(simulated)]
async fn server_error_is_reported_and_retried(mut lab: Lab) {
    start_without_team(&mut lab).await;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "*",
        "/api/v1/teams/platform",
        FaultAction::Status(500, "boom".into()),
    );
    assert_reported_and_recovered(&lab, "CreateOrUpdateFailed", "500").await;
}

#[scenario(simulated)]
async fn refused_login_is_reported_and_renewed(mut lab: Lab) {
    start_without_team(&mut lab).await;
    let before = lab.concourse.counters().logins;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "*",
        "/api/v1/teams/platform",
        FaultAction::Status(401, "not authorized".into()),
    );
    assert_reported_and_recovered(&lab, "CreateOrUpdateFailed", "401").await;
    assert!(
        lab.concourse.counters().logins > before,
        "a new login was attempted"
    );
}

#[scenario(simulated)]
async fn hanging_request_ends_at_reconcile_timeout(mut lab: Lab) {
    lab.settings.limits.timeout = Duration::from_secs(2);
    start_without_team(&mut lab).await;
    lab.concourse
        .faults()
        .fail_next(usize::MAX, "*", "/api/v1/teams/platform", FaultAction::Hang);
    lab.apply(lab.team_object()).await;
    let team = lab
        .wait_condition(&kind("Team"), "platform", "Ready", "False", "PluginTimeout")
        .await;
    let message = find_condition(&team, "Ready")["message"].to_string();
    assert!(message.contains("longer than 2s"), "{message}");
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

#[scenario(simulated)]
async fn invalid_response_is_reported_and_retried(mut lab: Lab) {
    start_without_team(&mut lab).await;
    lab.concourse.faults().fail_next(
        usize::MAX,
        "GET",
        "/api/v1/teams/platform",
        FaultAction::Status(200, "<html>a proxy's page</html>".into()),
    );
    lab.apply(lab.team_object()).await;
    lab.wait_until("the Team reports the invalid response", async || {
        let team = lab.get(&kind("Team"), "platform").await.unwrap_or_default();
        find_condition(&team, "Ready")["status"] == "False"
    })
    .await;
    lab.concourse.faults().clear();
    lab.wait_ready(&kind("Team"), "platform").await;
}

#[scenario(simulated)]
async fn unreachable_concourse_is_retried_with_backoff(mut lab: Lab) {
    start_without_team(&mut lab).await;
    lab.concourse.faults().set_outage(true);
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
    lab.concourse.faults().set_outage(false);
    lab.wait_ready(&kind("Team"), "platform").await;
}

#[scenario(simulated)]
async fn wrong_password_fails_authentication_until_corrected(mut lab: Lab) {
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

#[scenario(simulated)]
async fn unavailable_responses_are_retried(mut lab: Lab) {
    start_without_team(&mut lab).await;
    lab.concourse.faults().fail_next(
        3,
        "*",
        "/api/v1/teams/platform",
        FaultAction::Status(503, "busy".into()),
    );
    lab.apply(lab.team_object()).await;
    lab.wait_ready(&kind("Team"), "platform").await;
}
