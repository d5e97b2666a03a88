//! Lists, pages, tables and watches.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::target::{ConformanceTarget, Place};

/// A watch, event by event.
pub struct WatchEvents {
    response: Response,
    buffer: Vec<u8>,
}

impl WatchEvents {
    pub async fn open(target: &ConformanceTarget, path: &str) -> Self {
        let response = target
            .request(Method::GET, path)
            .send()
            .await
            .expect("the watch opens");
        assert_eq!(response.status(), 200);
        Self {
            response,
            buffer: Vec::new(),
        }
    }

    /// The next event; `None` when the stream ended.
    pub async fn next(&mut self) -> Option<Value> {
        let reading = async {
            loop {
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.buffer.drain(..=end).collect();
                    return Some(serde_json::from_slice(&line).expect("an event is JSON"));
                }
                match self.response.chunk().await {
                    Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                    Ok(None) | Err(_) => return None,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("an event in time")
    }

    /// The next event that isn't a bookmark, as (type, name).
    pub async fn change(&mut self) -> (String, String) {
        loop {
            let event = self.next().await.expect("the stream goes on");
            if event["type"] != "BOOKMARK" {
                return (
                    event["type"].as_str().unwrap().into(),
                    event["object"]["metadata"]["name"]
                        .as_str()
                        .unwrap_or_default()
                        .into(),
                );
            }
        }
    }
}

fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.into(), name.into())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

async fn labelled(target: &ConformanceTarget, place: &Place, name: &str, label: &str) {
    let mut thing = place.thing(name, json!({"mode": if name == "a" { "fast" } else { "slow" }}));
    thing["metadata"]["labels"] = json!({"l": label});
    target.post(&place.things(), &thing).await.expect(201);
}

pub async fn selectors_filter_lists(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    for (name, label) in [("a", "1"), ("b", "2"), ("c", "3")] {
        labelled(target, &place, name, label).await;
    }
    for (query, expected) in [
        ("labelSelector=l%3D1", vec!["a"]),
        ("labelSelector=l!%3D1", vec!["b", "c"]),
        ("labelSelector=l%20in%20(1,2)", vec!["a", "b"]),
        ("labelSelector=l%20notin%20(1,2)", vec!["c"]),
        ("labelSelector=l", vec!["a", "b", "c"]),
        ("labelSelector=!l", vec![]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("fieldSelector=metadata.name!%3Db", vec!["a", "c"]),
        ("fieldSelector=spec.mode%3Dfast", vec!["a"]),
    ] {
        let list = target
            .get(&format!("{}?{query}", place.things()))
            .await
            .expect(200);
        assert_eq!(names(&list), expected, "{query}");
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("ThingList"), &json!(place.version()))
        );
    }
    assert_eq!(
        target
            .get(&format!("{}?labelSelector=l%20within%20(1)", place.things()))
            .await
            .code,
        400
    );
    let everywhere = target
        .get(&format!("/apis/{}/v1/things", place.group))
        .await
        .expect(200);
    assert_eq!(names(&everywhere), ["a", "b", "c"]);
    let request = target.request(Method::GET, &place.things()).header(
        "accept",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    );
    let partial = target.send(request).await.expect(200);
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!(
        (&partial["items"][0]["kind"], partial["items"][0].get("spec")),
        (&json!("PartialObjectMetadata"), None)
    );
}

pub async fn pages_show_one_snapshot(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    for name in ["a", "b", "c", "d", "e"] {
        labelled(target, &place, name, "1").await;
    }
    let first = target
        .get(&format!("{}?limit=2", place.things()))
        .await
        .expect(200);
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a", "b"], &json!(3))
    );
    target.delete(&place.path("d"), &json!({})).await.expect(200);
    labelled(target, &place, "cc", "1").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = target
        .get(&format!("{}?limit=2&continue={token}", place.things()))
        .await
        .expect(200);
    assert_eq!(
        names(&second),
        ["c", "d"],
        "as it was when the first page was made"
    );
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = target
        .get(&format!("{}?limit=2&continue={token}", place.things()))
        .await
        .expect(200);
    assert_eq!(
        (names(&third), &third["metadata"]["continue"]),
        (vec!["e"], &json!(""))
    );
    assert_eq!(
        third["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    assert_eq!(
        target
            .get(&format!("{}?limit=2&continue=nonsense", place.things()))
            .await
            .code,
        400
    );

    let then = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = target
        .get(&format!(
            "{}?resourceVersion={then}&resourceVersionMatch=Exact",
            place.things()
        ))
        .await
        .expect(200);
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    let newer = target
        .get(&format!(
            "{}?resourceVersion={then}&resourceVersionMatch=NotOlderThan",
            place.things()
        ))
        .await
        .expect(200);
    assert!(
        newer["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= then.parse().unwrap()
    );
    let future = target
        .get(&format!(
            "{}?resourceVersion=99999999&resourceVersionMatch=NotOlderThan",
            place.things()
        ))
        .await
        .expect(504);
    assert_eq!(
        future["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(
        target
            .get(&format!("{}?resourceVersion=x", place.things()))
            .await
            .code,
        400
    );
}

pub async fn table_has_columns_of_the_definition(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    place.create(target, "a", json!({"url": "http://x"})).await;
    let table = |path: String| async move { target.get_table(&path).await.expect(200) };
    let before = table(place.things()).await;
    let headings: Vec<&str> = before["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        (&before["kind"], headings),
        (&json!("Table"), vec!["Name", "URL", "Ready", "Age"])
    );
    let cells = &before["rows"][0]["cells"];
    assert_eq!(
        (&cells[0], &cells[1], &cells[2]),
        (&json!("a"), &json!("http://x"), &Value::Null)
    );
    assert!(cells[3].as_str().unwrap().ends_with('s'), "{cells}");
    assert_eq!(before["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let conditions = json!({"status": {"conditions": [{"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]}});
    target
        .patch("merge", &format!("{}/status", place.path("a")), &conditions)
        .await
        .expect(200);
    assert_eq!(table(place.path("a")).await["rows"][0]["cells"][2], "True");
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    target.post(&place.core("secrets"), &secret).await.expect(201);
    let secrets = table(place.core("secrets")).await;
    let cells = secrets["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["cells"][0] == "s")
        .unwrap()["cells"]
        .clone();
    assert_eq!((&cells[1], &cells[2]), (&json!("Opaque"), &json!(1)));
}

/// Objects of built-in kinds whose status no controller changes, each with its status and the cells of its row. `AGE` stands for an age.
fn list_built_in_rows(place: &Place) -> Vec<(String, Value, Value, Value)> {
    let in_group =
        |group: &str, plural: &str| format!("/apis/{group}/namespaces/{}/{plural}", place.namespace);
    let labels = json!({"matchLabels": {"app": "a"}, "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "zone", "operator": "DoesNotExist"}]});
    let template = json!({"metadata": {"labels": {"app": "a", "tier": "a"}}, "spec": {"containers": [
        {"name": "one", "image": "i/one:1"}, {"name": "two", "image": "i/two"}]}});
    let selected = "app=a,tier in (a,b),!zone";
    let ended =
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2020-01-01T00:00:00Z"}});
    let container = |name: &str, ready: bool, restarts: i64, state: Value| {
        json!({"name": name, "image": "i", "imageID": "", "ready": ready, "started": ready,
            "restartCount": restarts, "state": state, "lastState": {}})
    };
    let running = json!({"running": {"startedAt": "2020-01-01T00:00:00Z"}});
    let pod = json!({"spec": {"containers": [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}],
        "initContainers": [{"name": "first", "image": "i"}, {"name": "beside", "image": "i", "restartPolicy": "Always"}],
        "readinessGates": [{"conditionType": "a.example/ready"}]}});
    let is_true = |kind: &str| json!({"type": kind, "status": "True"});
    vec![
        (
            place.core("configmaps"),
            json!({"metadata": {"name": "data"}, "data": {"a": "b"}, "binaryData": {"c": "ZA=="}}),
            Value::Null,
            json!(["data", 2, "AGE"]),
        ),
        (
            place.core("services"),
            json!({"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "selector": {"b": "2", "a": "1"},
                "externalIPs": ["192.0.2.7"], "ports": [{"name": "t", "port": 80}, {"name": "u", "port": 53, "protocol": "UDP"}]}}),
            Value::Null,
            json!([
                "headless",
                "ClusterIP",
                "None",
                "192.0.2.7",
                "80/TCP,53/UDP",
                "AGE",
                "a=1,b=2"
            ]),
        ),
        (
            place.core("services"),
            json!({"metadata": {"name": "balanced"}, "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.77",
                "ports": [{"port": 80, "nodePort": 30077}]}}),
            json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"hostname": "a.example"}]}}),
            json!([
                "balanced",
                "LoadBalancer",
                "10.0.0.77",
                "192.0.2.9,a.example",
                "80:30077/TCP",
                "AGE",
                "<none>"
            ]),
        ),
        (
            place.core("services"),
            json!({"metadata": {"name": "named"}, "spec": {"type": "ExternalName", "externalName": "b.example"}}),
            Value::Null,
            json!([
                "named",
                "ExternalName",
                "<none>",
                "b.example",
                "<none>",
                "AGE",
                "<none>"
            ]),
        ),
        (
            place.core("pods"),
            merge(&pod, json!({"metadata": {"name": "pending"}})),
            Value::Null,
            json!([
                "pending", "0/3", "Pending", "0", "AGE", "<none>", "<none>", "<none>", "0/1"
            ]),
        ),
        (
            place.core("pods"),
            merge(&pod, json!({"metadata": {"name": "initializing"}})),
            json!({"phase": "Pending", "initContainerStatuses": [
                container("first", false, 2, json!({"waiting": {"reason": "CrashLoopBackOff"}}))]}),
            json!([
                "initializing",
                "0/3",
                "Init:CrashLoopBackOff",
                "2",
                "AGE",
                "<none>",
                "<none>",
                "<none>",
                "0/1"
            ]),
        ),
        (
            place.core("pods"),
            merge(&pod, json!({"metadata": {"name": "running"}})),
            json!({"phase": "Running", "podIP": "192.0.2.3", "podIPs": [{"ip": "192.0.2.3"}], "conditions": [
                is_true("Initialized"), is_true("Ready"), is_true("a.example/ready")],
                "initContainerStatuses": [container("first", false, 1, ended.clone()), container("beside", true, 1, running.clone())],
                "containerStatuses": [container("one", false, 0, ended), container("two", true, 3, running)]}),
            json!([
                "running",
                "2/3",
                "Running",
                "4",
                "AGE",
                "192.0.2.3",
                "<none>",
                "<none>",
                "1/1"
            ]),
        ),
        (
            place.core("persistentvolumeclaims"),
            json!({"metadata": {"name": "claim"}, "spec": {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "volumeName": "v",
                "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"]}),
            json!([
                "claim",
                "Bound",
                "v",
                "2Gi",
                "RWO,RWX",
                "fast",
                "<unset>",
                "AGE",
                "Filesystem"
            ]),
        ),
        (
            place.core("events"),
            json!({"metadata": {"name": "event"}, "involvedObject": {"kind": "ConfigMap", "namespace": place.namespace,
                "name": "data", "fieldPath": "data.a"}, "reason": "Seen", "message": " a text\n", "type": "Normal",
                "source": {"component": "me", "host": "here"}, "lastTimestamp": "2020-01-01T00:00:00Z", "count": 3}),
            Value::Null,
            json!([
                "AGE",
                "Normal",
                "Seen",
                "configmap/data",
                "data.a",
                "me, here",
                "a text",
                "<unknown>",
                3,
                "event"
            ]),
        ),
        (
            in_group("apps/v1", "deployments"),
            json!({"metadata": {"name": "deployed"}, "spec": {"replicas": 0, "selector": labels, "template": template}}),
            Value::Null,
            json!([
                "deployed",
                "0/0",
                0,
                0,
                "AGE",
                "one,two",
                "i/one:1,i/two",
                selected
            ]),
        ),
        (
            in_group("apps/v1", "statefulsets"),
            json!({"metadata": {"name": "stateful"}, "spec": {"replicas": 0, "serviceName": "s", "selector": labels, "template": template}}),
            Value::Null,
            json!(["stateful", "0/0", "AGE", "one,two", "i/one:1,i/two"]),
        ),
        (
            in_group("apps/v1", "replicasets"),
            json!({"metadata": {"name": "replicated"}, "spec": {"replicas": 0, "selector": labels, "template": template}}),
            Value::Null,
            json!(["replicated", 0, 0, 0, "AGE", "one,two", "i/one:1,i/two", selected]),
        ),
        (
            in_group("batch/v1", "jobs"),
            json!({"metadata": {"name": "job"}, "spec": {"suspend": true, "completions": 4, "manualSelector": true, "selector": labels,
                "template": merge(&template, json!({"spec": {"restartPolicy": "Never"}}))}}),
            Value::Null,
            json!([
                "job",
                "ANY",
                "0/4",
                "",
                "AGE",
                "one,two",
                "i/one:1,i/two",
                selected
            ]),
        ),
        (
            in_group("networking.k8s.io/v1", "ingresses"),
            json!({"metadata": {"name": "ingress"}, "spec": {"ingressClassName": "nginx", "tls": [{"hosts": ["a.example"]}],
                "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}},
                "rules": [{"host": "a.example"}, {"host": "b.example"}, {"host": "c.example"}, {"host": "d.example"}]}}),
            json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.5"}]}}),
            json!([
                "ingress",
                "nginx",
                "a.example,b.example,c.example + 1 more...",
                "192.0.2.5",
                "80, 443",
                "AGE"
            ]),
        ),
        (
            in_group("networking.k8s.io/v1", "networkpolicies"),
            json!({"metadata": {"name": "policy"}, "spec": {"podSelector": {}}}),
            Value::Null,
            json!(["policy", "<none>", "AGE"]),
        ),
        (
            in_group("policy/v1", "poddisruptionbudgets"),
            json!({"metadata": {"name": "budget"}, "spec": {"maxUnavailable": "50%", "selector": labels}}),
            Value::Null,
            json!(["budget", "N/A", "50%", 0, "AGE"]),
        ),
        (
            in_group("rbac.authorization.k8s.io/v1", "rolebindings"),
            json!({"metadata": {"name": "binding"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u"},
                    {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "g"},
                    {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "h"},
                    {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            Value::Null,
            json!(["binding", "ClusterRole/view", "AGE", "u", "g, h", "n/s"]),
        ),
        (
            in_group("discovery.k8s.io/v1", "endpointslices"),
            json!({"metadata": {"name": "slice"}, "addressType": "IPv4", "ports": [{"port": 80}, {"name": "all"}],
                "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.3"]}, {"addresses": ["192.0.2.4"]}]}),
            Value::Null,
            json!([
                "slice",
                "IPv4",
                "80,all",
                "192.0.2.1,192.0.2.2,192.0.2.3 + 1 more...",
                "AGE"
            ]),
        ),
    ]
}

/// An object with the fields of another one in addition.
fn merge(object: &Value, fields: Value) -> Value {
    let mut merged = object.clone();
    for (name, value) in fields.as_object().into_iter().flatten() {
        merged[name] = match merged[name].is_object() {
            true => merge(&merged[name], value.clone()),
            false => value.clone(),
        };
    }
    merged
}

pub async fn tables_of_built_in_kinds_have_the_same_cells(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    for (collection, object, status, expected) in list_built_in_rows(&place) {
        target.post(&collection, &object).await.expect(201);
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
        if !status.is_null() {
            let patch = json!({"status": status});
            target
                .patch("merge", &format!("{path}/status"), &patch)
                .await
                .expect(200);
        }
        let table = target.get_table(&path).await.expect(200);
        let cells = table["rows"][0]["cells"].as_array().expect("cells");
        let expected = expected.as_array().expect("cells");
        assert_eq!(cells.len(), expected.len(), "{path}: {cells:?}");
        for (found, wanted) in cells.iter().zip(expected) {
            let age = || {
                found
                    .as_str()
                    .is_some_and(|age| age.ends_with(['s', 'm', 'h', 'd']))
            };
            let alike = found == wanted || wanted == "ANY" || (wanted == "AGE" && age());
            assert!(alike, "{path}: {found} in place of {wanted} in {cells:?}");
        }
    }
}

pub async fn watch_delivers_changes_in_order(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let created = place.create(target, "a", json!({})).await;
    let since = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = WatchEvents::open(
        target,
        &format!(
            "{}?watch=true&resourceVersion={since}&allowWatchBookmarks=true&timeoutSeconds=3",
            place.things()
        ),
    )
    .await;
    place.create(target, "b", json!({})).await;
    assert_eq!(events.change().await, pair("ADDED", "b"));
    target
        .patch("merge", &place.path("a"), &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    target
        .patch("merge", &place.path("a"), &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!(events.change().await, pair("MODIFIED", "a"));
    target.delete(&place.path("a"), &json!({})).await.expect(200);
    let last = loop {
        let event = events.next().await.expect("the stream goes on");
        if event["type"] != "BOOKMARK" {
            break event;
        }
    };
    assert_eq!(
        (&last["type"], &last["object"]["spec"]["size"]),
        (&json!("DELETED"), &json!(2))
    );
    let revision = |object: &Value| {
        object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(
        revision(&last["object"]) > revision(&created),
        "a deletion has a revision of its own"
    );
    let mut bookmarks = 0;
    while let Some(event) = events.next().await {
        assert_eq!(event["type"], "BOOKMARK", "{event}");
        assert!(revision(&event["object"]) >= revision(&last["object"]));
        assert_eq!(event["object"]["kind"], "Thing");
        bookmarks += 1;
    }
    assert!(bookmarks > 0, "time is up only after a bookmark");

    let mut from_now = WatchEvents::open(target, &format!("{}?watch=true", place.things())).await;
    assert_eq!(
        from_now.change().await,
        pair("ADDED", "b"),
        "without a revision the present comes first"
    );
}

pub async fn watch_with_selector_reports_entering_and_leaving_objects(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    labelled(target, &place, "a", "no").await;
    let mut events = WatchEvents::open(
        target,
        &format!("{}?watch=true&labelSelector=l%3Dyes", place.things()),
    )
    .await;
    let label = |value: &str| json!({"metadata": {"labels": {"l": value}}});
    target
        .patch("merge", &place.path("a"), &label("yes"))
        .await
        .expect(200);
    assert_eq!(events.change().await, pair("ADDED", "a"));
    target
        .patch("merge", &place.path("a"), &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!(events.change().await, pair("MODIFIED", "a"));
    target
        .patch("merge", &place.path("a"), &label("no"))
        .await
        .expect(200);
    assert_eq!(events.change().await, pair("DELETED", "a"));
    target.delete(&place.path("a"), &json!({})).await.expect(200);
    labelled(target, &place, "b", "yes").await;
    assert_eq!(
        events.change().await,
        pair("ADDED", "b"),
        "what was outside goes unseen"
    );
}

pub async fn initial_events_end_with_bookmark(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    place.create(target, "a", json!({})).await;
    let query =
        "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut events = WatchEvents::open(target, &format!("{}?{query}", place.things())).await;
    assert_eq!(events.change().await, pair("ADDED", "a"));
    let bookmark = loop {
        let event = events.next().await.expect("the stream goes on");
        if event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
            break event;
        }
    };
    assert_eq!(bookmark["type"], "BOOKMARK");
    place.create(target, "b", json!({})).await;
    assert_eq!(events.change().await, pair("ADDED", "b"));
    let senseless = target
        .get(&format!("{}?watch=true&sendInitialEvents=true", place.things()))
        .await;
    assert_eq!(senseless.code, 422, "{}", senseless.body);
}
