//! What a plan never does or shows, and what it says it can't know.

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
    a_secret_is_never_shown,
    a_missing_grant_is_told,
    what_the_server_refuses_is_refused,
    no_write_gets_out,
    what_is_not_checked_is_marked,
);

async fn a_secret_is_never_shown(lab: Lab) {
    const WORD: &str = "tell-nobody-0001";
    lab.install(&["tests/probe"]);
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": lab.namespace},
            "stringData": {"word": value, "same": "unchanged-0000"}})
    };
    lab.apply(secret("tell-nobody-0000")).await;
    // A guest that may read Secrets hands one on: in its status, and in a ConfigMap.
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
    for secret in ["tell-nobody-000", "unchanged-0000"] {
        assert!(!text.contains(secret), "{text}");
    }
    // dGVsbC1ub2JvZHktMDAw is how each of them begins in base64.
    assert!(!text.contains("dGVsbC1ub2JvZHktMDAw"), "{text}");
    // A server that refuses a Secret may quote it.
    let mut wrong = secret(WORD);
    wrong["data"] = json!({"other": "no base64!"});
    let why = refused_with(&lab, wrong).await;
    assert!(why.contains("file.yaml"), "{why}");
    for secret in [
        "tell-nobody-000",
        "unchanged-0000",
        "dGVsbC1ub2JvZHktMDAw",
        "no base64!",
    ] {
        assert!(!why.contains(secret), "{why}");
    }
}

async fn a_missing_grant_is_told(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}}",
        "grants.yaml",
    )
    .expect("grants");
    let object = probe(&lab, "p", json!([write("apply", "child", "1")]), json!([]));
    let report = planned_with(&lab, object).await;
    assert_eq!(
        report.changes.len(),
        1,
        "nothing but what the host says of it: {}",
        report.text()
    );
    assert_eq!(report.objects[0].verdict, Verdict::Parked);
    let text = report.text();
    assert!(
        text.contains("/p fails, until something changes: PermissionDenied: "),
        "{text}"
    );
    assert!(text.contains("verbs: [apply]"), "{text}");
}

async fn what_the_server_refuses_is_refused(lab: Lab) {
    lab.install(&["tests/probe"]);
    // In a file it is the person's mistake.
    let mut wrong = probe(&lab, "p", json!([]), json!([]));
    wrong["spec"]["steps"] = json!("none");
    let why = refused_with(&lab, wrong).await;
    assert!(why.contains("file.yaml") && why.contains("spec.steps"), "{why}");
    // By a plugin it is the plugin's.
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

/// Whatever is wrong before it: the door to the API server lets nothing through but dry runs.
async fn no_write_gets_out(lab: Lab) {
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
    // The server would not look at the query of this one.
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

/// In a namespace that is only planned the server can't be asked, and that is said.
async fn what_is_not_checked_is_marked(lab: Lab) {
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
    let why = format!("#   not checked by the API server: its namespace {new} is only planned");
    assert_eq!(text.matches(&why).count(), 2, "{text}");
    assert!(
        report.objects.iter().all(|o| o.verdict == Verdict::Done),
        "{text}"
    );
    // What can be checked is.
    let namespace = report.changes.iter().find(|c| c.object.starts_with("Namespace/"));
    assert!(namespace.is_some_and(|c| c.unchecked.is_empty()), "{text}");
}
