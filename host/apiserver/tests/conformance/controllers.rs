//! The stand-ins for the controllers of workloads and Services.

use ostler_apiserver::{EmbeddedServer, ServerOptions};
use serde_json::{Value, json};

use crate::lists::WatchEvents;
use crate::target::{ConformanceTarget, Place, embedded_with};

async fn start() -> (EmbeddedServer, ConformanceTarget, Place) {
    let (server, target) = embedded_with(ServerOptions {
        controllers: true,
        ..ServerOptions::default()
    })
    .await;
    let place = Place::new(&target).await;
    (server, target, place)
}

/// Paths of the built-in kinds in a namespace.
struct Paths<'a>(&'a Place);

impl Paths<'_> {
    fn core(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.0.namespace)
    }

    fn group(&self, group: &str, plural: &str) -> String {
        format!("/apis/{group}/v1/namespaces/{}/{plural}", self.0.namespace)
    }
}

/// Follows an object until a condition holds, and returns it.
async fn wait_until(
    target: &ConformanceTarget,
    collection: &str,
    name: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let path = format!("{collection}?watch=true&fieldSelector=metadata.name={name}");
    let mut events = WatchEvents::open(target, &path).await;
    loop {
        let event = events.next().await.expect("an event");
        if holds(&event["object"]) {
            return event["object"].clone();
        }
    }
}

fn workload(kind: &str, spec: &Value) -> Value {
    let mut object = json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": "web" }, "spec": {
        "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "web", "image": "web" }] } },
    } });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

fn condition(object: &Value, kind: &str) -> (String, String) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    let text = |field: &str| {
        let text = found.and_then(|c| c[field].as_str());
        text.unwrap_or_default().to_owned()
    };
    (text("status"), text("reason"))
}

fn is_condition(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    condition(object, kind) == (status.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn deployment_becomes_available_hangs_and_fails_as_its_annotation_demands() {
    let (server, target, place) = start().await;
    let deployments = Paths(&place).group("apps", "deployments");
    target
        .post(&deployments, &workload("Deployment", &json!({ "replicas": 3 })))
        .await
        .expect(201);
    let available = wait_until(&target, &deployments, "web", |o| {
        is_condition(o, "Available", "True", "MinimumReplicasAvailable")
    })
    .await;
    assert_eq!(available["status"]["readyReplicas"], 3);
    assert_eq!(available["status"]["observedGeneration"], 1);

    let web = format!("{deployments}/web");
    for (behavior, progressing) in [
        ("Hang", ("True", "ReplicaSetUpdated")),
        ("Fail", ("False", "ProgressDeadlineExceeded")),
    ] {
        let patch = json!({ "metadata": { "annotations": { "apiserver.ostler.dev/simulate": behavior } } });
        target.patch("merge", &web, &patch).await.expect(200);
        let object = wait_until(&target, &deployments, "web", |o| {
            is_condition(o, "Progressing", progressing.0, progressing.1)
        })
        .await;
        assert_eq!(condition(&object, "Available").0, "False", "{behavior}");
        assert_eq!(object["status"]["readyReplicas"], Value::Null, "{behavior}");
        assert_eq!(object["status"]["unavailableReplicas"], 3, "{behavior}");
    }
    let unknown = json!({ "metadata": { "annotations": { "apiserver.ostler.dev/simulate": "Explode" } } });
    let refused = target.patch("merge", &web, &unknown).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains(
            r#"metadata.annotations[apiserver.ostler.dev/simulate]: Invalid value: "Explode": supported values: "Fail", "Hang""#
        ),
        "{message}"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn workloads_of_each_kind_report_the_generation_that_they_observed() {
    let (server, target, place) = start().await;
    for (kind, plural, ready) in [
        ("StatefulSet", "statefulsets", "readyReplicas"),
        ("DaemonSet", "daemonsets", "numberReady"),
        ("ReplicaSet", "replicasets", "readyReplicas"),
    ] {
        let path = Paths(&place).group("apps", plural);
        target.post(&path, &workload(kind, &json!({}))).await.expect(201);
        let is_ready = |o: &Value| o["status"][ready] == 1;
        wait_until(&target, &path, "web", is_ready).await;
        let patch = json!({ "spec": { "template": { "spec": { "nodeName": "other" } } } });
        target
            .patch("merge", &format!("{path}/web"), &patch)
            .await
            .expect(200);
        wait_until(&target, &path, "web", |o| o["status"]["observedGeneration"] == 2).await;
    }
    server.shutdown().await;
}

#[tokio::test]
async fn job_completes_or_fails_and_a_hanging_one_stays_active() {
    let (server, target, place) = start().await;
    let jobs = Paths(&place).group("batch", "jobs");
    let job = |name: &str, behavior: Option<&str>| {
        let mut job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name, "annotations": {} },
            "spec": { "completions": 2, "backoffLimit": 1,
                "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "j", "image": "j" }] } } } });
        if let Some(behavior) = behavior {
            job["metadata"]["annotations"]["apiserver.ostler.dev/simulate"] = behavior.into();
        }
        job
    };
    for (name, behavior) in [("ends", None), ("fails", Some("Fail")), ("hangs", Some("Hang"))] {
        target.post(&jobs, &job(name, behavior)).await.expect(201);
    }
    let ended = wait_until(&target, &jobs, "ends", |o| {
        is_condition(o, "Complete", "True", "CompletionsReached")
    })
    .await;
    assert_eq!(ended["status"]["succeeded"], 2);
    let failed = wait_until(&target, &jobs, "fails", |o| {
        is_condition(o, "Failed", "True", "BackoffLimitExceeded")
    })
    .await;
    assert_eq!(failed["status"]["failed"], 2);
    wait_until(&target, &jobs, "hangs", |o| o["status"]["active"] == 1).await;
    server.shutdown().await;
}

#[tokio::test]
async fn service_has_the_endpoints_of_its_ready_pods() {
    let (server, target, place) = start().await;
    let paths = Paths(&place);
    let (services, slices) = (
        paths.core("services"),
        paths.group("discovery.k8s.io", "endpointslices"),
    );
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": {
        "type": "LoadBalancer", "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] } });
    target.post(&services, &service).await.expect(201);
    let balanced = wait_until(&target, &services, "web", |o| {
        o["status"]["loadBalancer"]["ingress"].is_array()
    })
    .await;
    assert_eq!(
        balanced["status"]["loadBalancer"]["ingress"][0]["ip"],
        "192.0.2.1"
    );
    // Of none, a cluster shows null: an empty list of a built-in kind is stored as none.
    let has_none = |o: &Value| o.get("endpoints").is_some_and(Value::is_null);
    wait_until(&target, &slices, "web-endpoints", has_none).await;

    let deployments = paths.group("apps", "deployments");
    target
        .post(&deployments, &workload("Deployment", &json!({ "replicas": 2 })))
        .await
        .expect(201);
    let slice = wait_until(&target, &slices, "web-endpoints", |o| {
        o["endpoints"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    assert_eq!(slice["ports"][0]["port"], 8080);
    let legacy = wait_until(&target, &paths.core("endpoints"), "web", |o| {
        o["subsets"][0]["addresses"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    assert_eq!(legacy["subsets"][0]["ports"][0]["port"], 8080);

    target
        .delete(&format!("{deployments}/web"), &json!({}))
        .await
        .expect(200);
    wait_until(&target, &slices, "web-endpoints", has_none).await;
    // They are dependents of the Service.
    target
        .delete(&format!("{services}/web"), &json!({}))
        .await
        .expect(200);
    let mut events = WatchEvents::open(&target, &format!("{slices}?watch=true")).await;
    loop {
        let left = target.get(&slices).await.expect(200);
        if left["items"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
        events.next().await.expect("an event");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn claim_is_bound_with_the_capacity_that_it_asks_for() {
    let (server, target, place) = start().await;
    let claims = Paths(&place).core("persistentvolumeclaims");
    let claim = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
    target.post(&claims, &claim).await.expect(201);
    let bound = wait_until(&target, &claims, "data", |o| o["status"]["phase"] == "Bound").await;
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    server.shutdown().await;
}
