//! Deletion: finalizers, owners, namespaces, preconditions.

use serde_json::{Value, json};

use crate::target::{ConformanceTarget, Place, unique};

pub async fn finalizer_defers_deletion(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let mut held = place.thing("a", json!({}));
    held["metadata"]["finalizers"] = json!(["ostler.dev/hold"]);
    target.post(&place.things(), &held).await.expect(201);
    let waiting = target.delete(&place.path("a"), &json!({})).await.expect(200);
    assert!(waiting["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        (
            &waiting["metadata"]["deletionGracePeriodSeconds"],
            &waiting["metadata"]["generation"]
        ),
        (&json!(0), &json!(2))
    );
    let again = target.delete(&place.path("a"), &json!({})).await.expect(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        waiting["metadata"]["resourceVersion"]
    );
    let late = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"finalizers": ["ostler.dev/hold", "ostler.dev/late"]}}),
        )
        .await
        .expect(422);
    assert!(
        late["message"].as_str().unwrap().contains(
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted"
        ),
        "{late}"
    );
    let edited = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"spec": {"size": 3}, "metadata": {"deletionTimestamp": null}}),
        )
        .await
        .expect(200);
    assert_eq!(
        edited["metadata"]["deletionTimestamp"],
        waiting["metadata"]["deletionTimestamp"]
    );
    target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .expect(200);
    target.get(&place.path("a")).await.expect(404);
}

fn owned_by(mut object: Value, owner: &Value, blocks: bool) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks, "controller": true,
    }]);
    object
}

pub async fn deleted_owner_deletes_dependents(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let gone = |answer: &crate::target::ObservedResponse| answer.code == 404;

    let parent = place.create(target, "parent", json!({})).await;
    target
        .post(
            &place.things(),
            &owned_by(place.thing("child", json!({})), &parent, false),
        )
        .await
        .expect(201);
    target.delete(&place.path("parent"), &json!({})).await.expect(200);
    target.until(&place.path("child"), gone).await;

    let parent = place.create(target, "orphaned", json!({})).await;
    target
        .post(
            &place.things(),
            &owned_by(place.thing("survivor", json!({})), &parent, false),
        )
        .await
        .expect(201);
    target
        .delete(&place.path("orphaned"), &json!({"propagationPolicy": "Orphan"}))
        .await
        .expect(200);
    target.until(&place.path("orphaned"), gone).await;
    let survivor = target.get(&place.path("survivor")).await.expect(200);
    assert_eq!(survivor["metadata"].get("ownerReferences"), None);

    let parent = place.create(target, "patient", json!({})).await;
    let mut child = owned_by(place.thing("slow", json!({})), &parent, true);
    child["metadata"]["finalizers"] = json!(["ostler.dev/hold"]);
    target.post(&place.things(), &child).await.expect(201);
    let waiting = target
        .delete(
            &place.path("patient"),
            &json!({"propagationPolicy": "Foreground"}),
        )
        .await
        .expect(200);
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    target
        .until(&place.path("slow"), |answer| {
            answer.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    target.get(&place.path("patient")).await.expect(200);
    target
        .patch(
            "merge",
            &place.path("slow"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .expect(200);
    target.until(&place.path("patient"), gone).await;

    let nobody = json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"name": "never", "uid": "00000000-0000-4000-8000-000000000000"}});
    target
        .post(
            &place.things(),
            &owned_by(place.thing("foundling", json!({})), &nobody, false),
        )
        .await
        .expect(201);
    target.until(&place.path("foundling"), gone).await;
}

pub async fn deleted_namespace_deletes_its_contents(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let mut held = place.thing("a", json!({}));
    held["metadata"]["finalizers"] = json!(["ostler.dev/hold"]);
    target.post(&place.things(), &held).await.expect(201);
    target
        .post(&place.core("configmaps"), &json!({"metadata": {"name": "c"}}))
        .await
        .expect(201);
    let path = format!("/api/v1/namespaces/{}", place.namespace);
    let namespace = target.get(&path).await.expect(200);
    assert_eq!(
        (&namespace["spec"]["finalizers"], &namespace["status"]["phase"]),
        (&json!(["kubernetes"]), &json!("Active"))
    );
    assert_eq!(
        namespace["metadata"]["labels"]["kubernetes.io/metadata.name"],
        place.namespace.as_str()
    );
    // No policy keeps what a namespace contains.
    let policy = json!({"propagationPolicy": "Orphan"});
    let going = target.delete(&path, &policy).await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = target
        .post(&place.core("configmaps"), &json!({"metadata": {"name": "late"}}))
        .await
        .expect(403);
    assert_eq!(
        refused["message"],
        format!(
            "configmaps \"late\" is forbidden: unable to create new content in namespace {0} because it is being terminated",
            place.namespace
        )
    );
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    target
        .until(&format!("{}/c", place.core("configmaps")), |answer| {
            answer.code == 404
        })
        .await;
    target
        .until(&place.path("a"), |answer| {
            answer.body["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    target
        .until(&path, |answer| {
            answer.code == 200 && answer.body["metadata"].get("finalizers").is_none()
        })
        .await;
    target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .expect(200);
    target.until(&path, |answer| answer.code == 404).await;
}

pub async fn deletion_checks_preconditions(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let created = place.create(target, "a", json!({})).await;
    let other = target
        .delete(&place.path("a"), &json!({"preconditions": {"uid": unique("x")}}))
        .await
        .expect(409);
    assert!(
        other["message"]
            .as_str()
            .unwrap()
            .contains("the UID in the precondition (x"),
        "{other}"
    );
    let stale = target
        .delete(
            &place.path("a"),
            &json!({"preconditions": {"resourceVersion": "1"}}),
        )
        .await
        .expect(409);
    assert!(
        stale["message"].as_str().unwrap().contains(
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("
        ),
        "{stale}"
    );
    let exact = json!({"preconditions": {"uid": created["metadata"]["uid"], "resourceVersion": created["metadata"]["resourceVersion"]}});
    target.delete(&place.path("a"), &exact).await.expect(200);
    target.delete(&place.path("a"), &json!({})).await.expect(404);

    for name in ["x", "y", "z"] {
        let mut thing = place.thing(name, json!({}));
        thing["metadata"]["labels"] = json!({"keep": (name == "z").to_string()});
        target.post(&place.things(), &thing).await.expect(201);
    }
    target
        .delete(
            &format!("{}?labelSelector=keep%3Dfalse", place.things()),
            &json!({}),
        )
        .await
        .expect(200);
    let left = target.get(&place.things()).await.expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1);

    let crd = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
        place.crd_name()
    );
    target.delete(&crd, &json!({})).await.expect(200);
    target.until(&crd, |answer| answer.code == 404).await;
    target.until(&place.things(), |answer| answer.code == 404).await;
}

/// A pod that names nothing but its container.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 20, "containers": [{"name": "main", "image": "example.com/main:1"}]}})
}

/// Creates a pod and binds it to a node, which need not exist.
async fn create_bound_pod(target: &ConformanceTarget, pods: &str, name: &str) {
    target.post(pods, &pod(name)).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}});
    let path = format!("{pods}/{name}/binding");
    target.post(&path, &binding).await.expect(201);
    let bound = target.get(&format!("{pods}/{name}")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "node-1");
    let conditions = bound["status"]["conditions"].as_array().expect("conditions");
    let is_scheduled = |c: &Value| c["type"] == "PodScheduled" && c["status"] == "True";
    assert!(conditions.iter().any(is_scheduled), "{bound}");
    target.post(&path, &binding).await.expect(409);
}

pub async fn resize_of_a_pod_takes_resources_alone(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let pods = format!("/api/v1/namespaces/{}/pods", place.namespace);
    let mut created = pod("a");
    let other =
        json!({"name": "other", "image": "example.com/other:1", "resources": {"requests": {"cpu": "10m"}}});
    created["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    created["spec"]["containers"]
        .as_array_mut()
        .expect("containers")
        .push(other);
    target.post(&pods, &created).await.expect(201);
    let discovered = target.get("/api/v1").await.expect(200);
    let resources = discovered["resources"].as_array().expect("resources");
    let resize = resources
        .iter()
        .find(|resource| resource["name"] == "pods/resize");
    assert_eq!(resize.expect("is served")["kind"], "Pod");
    let patch = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"terminationGracePeriodSeconds": 7, "containers": [
        {"name": "main", "resources": {"requests": {"cpu": "0", "memory": "0"}}},
        {"name": "other", "resources": {"requests": {"cpu": "10m"}}}]}});
    let path = format!("{pods}/a");
    let resized = target
        .patch("merge", &format!("{path}/resize"), &patch)
        .await
        .expect(200);
    let stored = target.get(&path).await.expect(200);
    assert_eq!(resized["spec"], stored["spec"]);
    let containers = &stored["spec"]["containers"];
    assert_eq!(
        containers[0]["resources"],
        json!({"requests": {"cpu": "0", "memory": "0"}})
    );
    assert_eq!(containers[1]["resources"], json!({"requests": {"cpu": "10m"}}));
    assert_eq!(containers[0]["image"], "example.com/main:1");
    assert_eq!(stored["spec"]["terminationGracePeriodSeconds"], 20);
    assert_eq!(stored["metadata"].get("labels"), None);
    target
        .patch("merge", &format!("{pods}/absent/resize"), &patch)
        .await
        .expect(404);
}

pub async fn log_of_a_pod_without_a_node_is_empty(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let pods = format!("/api/v1/namespaces/{}/pods", place.namespace);
    let mut created = pod("a");
    created["spec"]["initContainers"] = json!([{"name": "init", "image": "example.com/init:1"}]);
    target.post(&pods, &created).await.expect(201);
    let log = format!("{pods}/a/log");
    target.get(&format!("{log}?tailLines=3")).await.expect(204);
    target.get(&format!("{log}?container=init")).await.expect(204);
    let unknown = target.get(&format!("{log}?container=other")).await.expect(400);
    assert_eq!(unknown["message"], "container other is not valid for pod a");
    created["metadata"]["name"] = "b".into();
    let other = json!({"name": "other", "image": "example.com/other:1"});
    created["spec"]["containers"]
        .as_array_mut()
        .expect("containers")
        .push(other);
    target.post(&pods, &created).await.expect(201);
    let unnamed = target.get(&format!("{pods}/b/log")).await.expect(400);
    assert_eq!(
        unnamed["message"],
        "a container name must be specified for pod b, choose one of: [init main other]"
    );
    target.get(&format!("{pods}/absent/log")).await.expect(404);
}

pub async fn token_of_a_service_account_is_reviewed_with_its_rights(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let accounts = place.core("serviceaccounts");
    let account = target
        .post(&accounts, &json!({"metadata": {"name": "reader"}}))
        .await
        .expect(201);
    target
        .post(&format!("{accounts}/absent/token"), &json!({}))
        .await
        .expect(404);
    let issued = target
        .post(&format!("{accounts}/reader/token"), &json!({}))
        .await
        .expect(201);
    assert_eq!(
        (&issued["kind"], &issued["apiVersion"]),
        (&json!("TokenRequest"), &json!("authentication.k8s.io/v1"))
    );
    assert!(issued["status"]["expirationTimestamp"].is_string());
    let review = async |token: &Value| {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let reviewed = target
            .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
            .await;
        reviewed.expect(201)["status"].clone()
    };
    let known = review(&issued["status"]["token"]).await;
    let (user, namespace) = (&known["user"], &place.namespace);
    assert_eq!(known["authenticated"], true);
    assert_eq!(
        user["username"],
        format!("system:serviceaccount:{namespace}:reader")
    );
    assert_eq!(user["uid"], account["metadata"]["uid"]);
    let own = format!("system:serviceaccounts:{namespace}");
    assert_eq!(
        user["groups"],
        json!(["system:serviceaccounts", own, "system:authenticated"])
    );
    let unknown = review(&json!("nobody")).await;
    assert_eq!(
        (&unknown["authenticated"], &unknown["user"]),
        (&Value::Null, &json!({}))
    );
    assert!(unknown["error"].is_string());

    let may_get = async |path: &str| {
        let spec = json!({"user": user["username"], "groups": user["groups"],
            "nonResourceAttributes": {"verb": "get", "path": path}});
        let review =
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let reviewed = target
            .post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review)
            .await;
        reviewed.expect(201)["status"]["allowed"] == true
    };
    assert!(!may_get("/metrics").await);
    let role = json!({"metadata": {"name": namespace},
        "rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics", "/debug/*"]}]});
    let binding = json!({"metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    target
        .post(&format!("{rbac}/clusterroles"), &role)
        .await
        .expect(201);
    target
        .post(&format!("{rbac}/clusterrolebindings"), &binding)
        .await
        .expect(201);
    // The real server's authorizer learns of the binding by a watch.
    let began = std::time::Instant::now();
    while !may_get("/metrics").await {
        assert!(
            began.elapsed() < std::time::Duration::from_secs(30),
            "the binding has no effect"
        );
    }
    assert!(may_get("/debug/pprof").await);
    assert!(!may_get("/metricsx").await);
    for kind in ["clusterrolebindings", "clusterroles"] {
        target
            .delete(&format!("{rbac}/{kind}/{namespace}"), &json!({}))
            .await
            .expect(200);
    }
}

pub async fn pod_on_a_node_stays_until_its_kubelet_removes_it(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let pods = format!("/api/v1/namespaces/{}/pods", place.namespace);
    create_bound_pod(target, &pods, "a").await;
    let path = format!("{pods}/a");
    let deleted = target.delete(&path, &json!({})).await.expect(200);
    assert_eq!(deleted["metadata"]["deletionGracePeriodSeconds"], 20);
    let again = target.delete(&path, &json!({})).await.expect(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        deleted["metadata"]["resourceVersion"]
    );
    // It can be shortened, not prolonged.
    for (requested, expected) in [(5, 5), (60, 5)] {
        let options = json!({"gracePeriodSeconds": requested});
        let shortened = target.delete(&path, &options).await.expect(200);
        assert_eq!(
            shortened["metadata"]["deletionGracePeriodSeconds"], expected,
            "{requested}"
        );
    }
    // The kubelet reports the end of the containers, which removes nothing, and deletes the pod.
    let status = json!({"status": {"phase": "Failed"}});
    target
        .patch("merge", &format!("{path}/status"), &status)
        .await
        .expect(200);
    target.get(&path).await.expect(200);
    target
        .delete(&path, &json!({"gracePeriodSeconds": 0}))
        .await
        .expect(200);
    target.get(&path).await.expect(404);

    // A finalizer keeps it beyond that.
    create_bound_pod(target, &pods, "b").await;
    let path = format!("{pods}/b");
    let held = json!({"metadata": {"finalizers": ["ostler.dev/hold"]}});
    target.patch("merge", &path, &held).await.expect(200);
    target.delete(&path, &json!({})).await.expect(200);
    let released = json!({"metadata": {"finalizers": null}});
    target.patch("merge", &path, &released).await.expect(200);
    target.get(&path).await.expect(200);
    target
        .delete(&path, &json!({"gracePeriodSeconds": 0}))
        .await
        .expect(200);
    target.get(&path).await.expect(404);
}

pub async fn pod_without_a_node_is_removed_at_once(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let pods = format!("/api/v1/namespaces/{}/pods", place.namespace);
    target.post(&pods, &pod("a")).await.expect(201);
    target.delete(&format!("{pods}/a"), &json!({})).await.expect(200);
    target.get(&format!("{pods}/a")).await.expect(404);
    // And one on a node whose containers have ended.
    create_bound_pod(target, &pods, "b").await;
    let status = json!({"status": {"phase": "Succeeded"}});
    target
        .patch("merge", &format!("{pods}/b/status"), &status)
        .await
        .expect(200);
    target.delete(&format!("{pods}/b"), &json!({})).await.expect(200);
    target.get(&format!("{pods}/b")).await.expect(404);
}
