//! Guarantees and limits of a plan: no secret is shown, no write is sent, unchecked changes are marked.

use ostler::testing::{
    api::{ApiClient, ApiError, PatchType},
    fence::WriteFence,
    grants::Grants,
    plan::{PlanRequest, Verdict, plan},
};
use ostler_test_harness::{Lab, probe::write, scenarios};
use serde_json::json;

use super::{plan_request, planned, planned_with, probe, refused_with, settings, snapshot};
scenarios!(
    secret_values_are_redacted_in_plan,
    missing_grant_is_reported_by_plan,
    rejected_object_fails_plan_or_its_reconcile,
    closed_fence_allows_dry_runs_only,
    unchecked_change_is_marked,
);

async fn secret_values_are_redacted_in_plan(lab: Lab) {
    const WORD: &str = "plan-secret-0001";
    lab.install(&["tests/probe"]);
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": lab.namespace},
            "stringData": {"word": value, "same": "unchanged-0000"}})
    };
    lab.apply(secret("plan-secret-0000")).await;
    // A guest that may read Secrets copies one into its status and into a ConfigMap.
    let leak =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "leak"}, "data": {"v": WORD}});
    let steps = json!([{"do": "get", "kind": "Secret", "name": "s"}, {"do": "apply", "object": leak.to_string()},
        {"do": "force", "object": secret(WORD).to_string()}]);
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    let text = report.text() + &serde_json::to_string(&report).expect("JSON");
    let namespace = &lab.namespace;
    assert!(
        text.contains(&format!("Secret/{namespace}/s is changed")),
        "{text}"
    );
    assert!(
        text.contains("-  word: \"*** (before)\"\n+  word: \"*** (after)\""),
        "{text}"
    );
    assert!(text.contains("+  v: \"***\""), "{text}");
    for secret in ["plan-secret-000", "unchanged-0000"] {
        assert!(!text.contains(secret), "{text}");
    }
    // The common prefix of both values in base64.
    assert!(!text.contains("cGxhbi1zZWNyZXQtMDAw"), "{text}");
    // The error of an API server that rejects a Secret may quote its values.
    let mut wrong = secret(WORD);
    wrong["data"] = json!({"other": "no base64!"});
    let why = refused_with(&lab, wrong).await;
    assert!(why.contains("file.yaml"), "{why}");
    for secret in [
        "plan-secret-000",
        "unchanged-0000",
        "cGxhbi1zZWNyZXQtMDAw",
        "no base64!",
    ] {
        assert!(!why.contains(secret), "{why}");
    }
}

async fn missing_grant_is_reported_by_plan(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}}",
        "grants.yaml",
    )
    .expect("grants");
    let object = probe(&lab, "p", json!([write("apply", "child", "1")]), json!([]));
    let report = planned_with(&lab, object).await;
    assert_eq!(
        report.changes.len(),
        1,
        "only the status written by the host: {}",
        report.text()
    );
    assert_eq!(report.objects[0].verdict, Verdict::Parked);
    let text = report.text();
    assert!(
        text.contains("/p fails and is not retried until a change: PermissionDenied: "),
        "{text}"
    );
    assert!(text.contains("verbs: [apply]"), "{text}");
}

async fn rejected_object_fails_plan_or_its_reconcile(lab: Lab) {
    lab.install(&["tests/probe"]);
    // An invalid object of a file fails the plan.
    let mut wrong = probe(&lab, "p", json!([]), json!([]));
    wrong["spec"]["steps"] = json!("none");
    let why = refused_with(&lab, wrong).await;
    assert!(why.contains("file.yaml") && why.contains("spec.steps"), "{why}");
    // An invalid object of a plugin fails its reconcile.
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_A_Name"}, "data": {}});
    let steps = json!([{"do": "apply", "object": config.to_string()}]);
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    assert_eq!(report.objects[0].verdict, Verdict::Parked, "{}", report.text());
    assert!(report.text().contains("RFC 1123"), "{}", report.text());
    let missing = PlanRequest {
        objects: vec!["probe/none".into()],
        ..plan_request(&lab)
    };
    let missing = plan(lab.client.clone(), settings(&lab), &missing).await;
    assert!(format!("{:#}", missing.expect_err("it is not there")).contains("does not exist"));
}

/// The client of a plan refuses every write that is not a dry run, regardless of the layers above it.
async fn closed_fence_allows_dry_runs_only(lab: Lab) {
    lab.apply_config_map("there", "x", "1").await;
    let before = snapshot(&lab).await;
    let cluster = ApiClient::new(lab.client.clone()).with_fence(WriteFence::closed());
    let maps = format!("/api/v1/namespaces/{}/configmaps", lab.namespace);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}).to_string();
    let there = format!("{maps}/there");
    let patch = json!({"data": {"v": "2"}}).to_string().into_bytes();
    let refused =
        |result: Result<_, ApiError>| assert!(matches!(result, Err(ApiError::NotLeader(_))), "{result:?}");
    refused(cluster.create(&maps, object.clone().into_bytes()).await);
    refused(
        cluster
            .create(&format!("{maps}?dryRun=None"), object.clone().into_bytes())
            .await,
    );
    refused(cluster.patch(&there, PatchType::Merge, patch.clone()).await);
    refused(cluster.delete(&there, b"{}".to_vec()).await);
    // The server ignores the query of a DELETE with a body, so this would not be a dry run.
    refused(
        cluster
            .delete(&format!("{there}?dryRun=All"), b"{}".to_vec())
            .await,
    );
    let tried = cluster
        .patch(&format!("{there}?dryRun=All"), PatchType::Merge, patch)
        .await;
    assert!(tried.is_ok(), "{tried:?}");
    let options = json!({"dryRun": ["All"]}).to_string().into_bytes();
    let tried = cluster.delete(&there, options).await;
    assert!(tried.is_ok(), "{tried:?}");
    assert_eq!(snapshot(&lab).await, before);
}

/// The server cannot dry-run a write in a namespace that exists in the plan only, so the change is marked as unchecked.
async fn unchecked_change_is_marked(lab: Lab) {
    lab.install(&["tests/probe"]);
    let new = format!("{}-new", lab.namespace);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new}});
    let mut object = probe(&lab, "p", json!([write("apply", "child", "1")]), json!([]));
    object["metadata"]["namespace"] = json!(new);
    let files = [namespace, object]
        .map(|object| ("file.yaml".to_owned(), object))
        .to_vec();
    let plan_request = PlanRequest {
        namespace: Some(new.clone()),
        files,
        ..plan_request(&lab)
    };
    let report = planned(&lab, plan_request).await;
    let text = report.text();
    let why = format!("#   not checked by the API server: its namespace {new} exists in the plan only");
    assert_eq!(text.matches(&why).count(), 2, "{text}");
    assert!(
        report.objects.iter().all(|o| o.verdict == Verdict::Done),
        "{text}"
    );
    // The namespace itself is checked.
    let namespace = report.changes.iter().find(|c| c.object.starts_with("Namespace/"));
    assert!(namespace.is_some_and(|c| c.unchecked.is_empty()), "{text}");
}
