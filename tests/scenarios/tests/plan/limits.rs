//! Guarantees and limits of a plan: no secret is shown, no write is sent, unchecked changes are marked.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ostler::testing::{
    api::{ApiClient, ApiError, PatchType},
    fence::WriteFence,
    grants::Grants,
    key::Gvk,
    plan::{PlanRequest, PlannedObject, Verdict, plan},
};
use ostler_test_harness::{Lab, probe::write, scenario};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{plan_request, planned, planned_with, probe, refused_with, settings, snapshot};

#[scenario]
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

#[scenario]
async fn inserted_secret_is_not_shown_in_plan(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [Secret], verbs: \
         [apply]}], secrets: [{names: [source], targetNamespaces: [Same]}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "source", "namespace": lab.namespace},
        "stringData": {"key": "an-inserted-value-0001"}}),
    )
    .await;
    let copy = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "copy"},
        "stringData": {"config": "password=(inserted-secret);"}});
    let steps = json!([{"do": "insert", "name": "source", "body": "key", "object": copy.to_string()}]);
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    let text = report.text() + &serde_json::to_string(&report).expect("JSON");
    let created = format!("Secret/{}/copy", lab.namespace);
    assert!(
        text.contains(&created) && text.contains("config: \"***\""),
        "{text}"
    );
    for leak in ["an-inserted-value", "aW5zZXJ0ZWQtdmFsdWU"] {
        assert!(!text.contains(leak), "{leak} in {text}");
    }
    assert_eq!(lab.get(&Gvk::new("", "v1", "Secret"), "copy").await, None);
}

#[scenario]
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

#[scenario(real = "dry run")]
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
#[scenario(real = "dry run")]
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
#[scenario]
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

/// A server whose response is a token for every request, and the number of connections to it.
async fn token_server() -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let (mut request, body) = ([0; 4096], r#"{"token": "t"}"#);
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let response = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, connections)
}

/// A plan of files connects only to Upstreams that exist live with this url, tls and auth: the author of the files would
/// choose where the live password is sent to.
#[scenario]
async fn changed_upstream_receives_nothing_from_plan(lab: Lab) {
    lab.install(&["tests/probe"]);
    let ((live, live_connections), (other, other_connections)) = (token_server().await, token_server().await);
    let connections = || [&live_connections, &other_connections].map(|c| c.load(Ordering::Relaxed));
    let upstream = |name: &str, url: &str, path: &str| {
        let login = json!({"login": {"path": path, "username": "robot", "tokenJsonPath": ".token",
            "passwordSecretRef": {"name": "ci-admin", "key": "password"}}});
        json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"url": url, "auth": login}})
    };
    lab.apply(lab.password_secret("live-password")).await;
    lab.apply(upstream("ci", &live, "/login")).await;
    let request = |changed: Value, trust_files: bool| {
        let name = changed["metadata"]["name"].clone();
        let steps = json!([{"do": "http", "name": name, "path": "/read"}]);
        let files =
            [changed, probe(&lab, "p", steps, json!([]))].map(|object| ("pr.yaml".to_owned(), object));
        PlanRequest {
            files: files.to_vec(),
            trust_files,
            ..plan_request(&lab)
        }
    };
    for changed in [
        upstream("ci", &other, "/login"),
        upstream("ci", &live, "/elsewhere"),
        upstream("new", &other, "/login"),
    ] {
        let name = changed["metadata"]["name"].as_str().expect("a name").to_owned();
        let report = planned(&lab, request(changed, false)).await;
        let text = report.text();
        assert_eq!(connections(), [0, 0], "{text}");
        assert!(
            report
                .notes
                .iter()
                .any(|n| n.contains(&format!("{}/{name} is not connected to", lab.namespace))),
            "{text}"
        );
        let get = report.requests.iter().find(|r| r.path == "/read");
        assert!(get.is_some_and(|r| r.method == "GET" && r.guess), "{text}");
        let guessed =
            |o: &PlannedObject| o.object.starts_with("Probe/") && o.guess && o.verdict == Verdict::Done;
        assert!(report.objects.iter().any(guessed), "{text}");
    }
    // The live one is used, also if another field of it changes.
    let mut slower = upstream("ci", &live, "/login");
    slower["spec"]["timeoutSeconds"] = json!(7);
    let report = planned(&lab, request(slower, false)).await;
    assert!(report.objects.iter().all(|o| !o.guess), "{}", report.text());
    let [before, 0] = connections() else {
        panic!("{}", report.text())
    };
    assert!(before > 0, "{}", report.text());
    let report = planned(&lab, request(upstream("ci", &other, "/login"), true)).await;
    assert!(report.objects.iter().all(|o| !o.guess), "{}", report.text());
    assert!(connections()[1] > 0, "{}", report.text());
}
