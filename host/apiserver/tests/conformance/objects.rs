//! Discovery, the life of an object, errors.

use reqwest::Method;
use serde_json::json;

use crate::target::{ConformanceTarget, Place, unique, usual_version};

pub async fn discovery_lists_kinds(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let version = target.get("/version").await.expect(200);
    assert_eq!(version["major"], "1");
    assert_eq!(target.get("/readyz").await.code, 200);
    let groups = target.get("/apis").await.expect(200);
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .any(|group| group["name"] == place.group.as_str())
    );
    let resources = target.get(&format!("/apis/{}/v1", place.group)).await.expect(200);
    assert_eq!(resources["groupVersion"], place.version());
    let things = resources["resources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "things")
        .unwrap();
    assert_eq!(
        (
            &things["kind"],
            &things["namespaced"],
            &things["shortNames"],
            &things["singularName"]
        ),
        (&json!("Thing"), &json!(true), &json!(["th"]), &json!("thing"))
    );
    assert!(
        resources["resources"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "things/status")
    );
    let core = target.get("/api/v1").await.expect(200);
    assert!(
        core["resources"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "secrets" && one["kind"] == "Secret")
    );
    let index = target.get("/openapi/v3").await.expect(200);
    assert!(index["paths"]["api/v1"]["serverRelativeURL"].is_string());
    target.get("/apis/nobody.example.org/v1/things").await.expect(404);
}

pub async fn object_is_created_read_updated_and_deleted(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let created = place.create(target, "a", json!({"url": "http://x"})).await;
    let metadata = &created["metadata"];
    assert_eq!(metadata["namespace"], place.namespace.as_str());
    assert!(metadata["uid"].as_str().is_some_and(|uid| uid.len() == 36));
    assert!(metadata["creationTimestamp"].is_string() && metadata["resourceVersion"].is_string());
    assert_eq!(target.get(&place.path("a")).await.expect(200), created);

    let mut changed = created.clone();
    changed["spec"]["url"] = "http://y".into();
    let updated = target.put(&place.path("a"), &changed).await.expect(200);
    assert_ne!(
        updated["metadata"]["resourceVersion"],
        metadata["resourceVersion"]
    );
    assert_eq!(updated["metadata"]["uid"], metadata["uid"]);

    // The first state is no longer the latest.
    changed["spec"]["url"] = "http://z".into();
    let conflict = target.put(&place.path("a"), &changed).await.expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert_eq!(
        conflict["message"],
        format!(
            "Operation cannot be fulfilled on things.{} \"a\": the object has been modified; please apply your changes to the latest version and try again",
            place.group
        )
    );
    assert_eq!(
        conflict["details"],
        json!({"name": "a", "group": place.group, "kind": "things"})
    );

    let generated = json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"generateName": "g-"}, "spec": {}});
    let generated = target.post(&place.things(), &generated).await.expect(201);
    let name = generated["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("g-") && name.len() == 7, "{name}");

    let gone = target.delete(&place.path("a"), &json!({})).await.expect(200);
    assert_eq!(
        (&gone["kind"], &gone["status"]),
        (&json!("Status"), &json!("Success"))
    );
    assert_eq!(gone["details"]["uid"], metadata["uid"]);
    target.get(&place.path("a")).await.expect(404);
}

pub async fn failed_request_gives_status_with_code_and_reason(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let missing = target.get(&place.path("nobody")).await.expect(404);
    assert_eq!(
        missing["message"],
        format!("things.{} \"nobody\" not found", place.group)
    );
    assert_eq!(
        (&missing["reason"], &missing["status"]),
        (&json!("NotFound"), &json!("Failure"))
    );
    assert_eq!(
        missing["details"],
        json!({"name": "nobody", "group": place.group, "kind": "things"})
    );

    place.create(target, "a", json!({})).await;
    let exists = target
        .post(&place.things(), &place.thing("a", json!({})))
        .await
        .expect(409);
    assert_eq!(exists["reason"], "AlreadyExists");
    assert_eq!(
        exists["message"],
        format!("things.{} \"a\" already exists", place.group)
    );

    let nowhere = target
        .post(
            &format!("/apis/{}/v1/namespaces/{}/things", place.group, unique("no-")),
            &place.thing("a", json!({})),
        )
        .await
        .expect(404);
    assert!(
        nowhere["message"]
            .as_str()
            .unwrap()
            .starts_with("namespaces \"no-"),
        "{nowhere}"
    );

    let elsewhere = json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"name": "b", "namespace": "other"}});
    let elsewhere = target.post(&place.things(), &elsewhere).await.expect(400);
    assert_eq!(
        elsewhere["message"],
        "the namespace of the provided object does not match the namespace sent on the request"
    );

    let badly_named = target
        .post(&place.things(), &place.thing("Not_Good", json!({})))
        .await
        .expect(422);
    assert_eq!(badly_named["details"]["causes"][0]["field"], "metadata.name");

    let mut other = place.thing("a", json!({}));
    other["metadata"]["resourceVersion"] = "1".into();
    let other = target.post(&place.things(), &other).await.expect(500);
    assert_eq!(
        other["message"],
        "resourceVersion should not be set on objects to be created"
    );

    let unconditional = target
        .put(&place.path("a"), &place.thing("a", json!({})))
        .await
        .expect(422);
    assert_eq!(
        unconditional["message"],
        format!(
            "things.{} \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
            place.group
        )
    );

    let renamed = target
        .put(&place.path("a"), &place.thing("b", json!({})))
        .await
        .expect(400);
    assert_eq!(
        renamed["message"],
        "the name of the object (b) does not match the name on the URL (a)"
    );

    let identity = json!({"metadata": {"uid": "other"}});
    let identity = target
        .patch("merge", &place.path("a"), &identity)
        .await
        .expect(422);
    assert_eq!(
        identity["message"],
        format!(
            "Thing.{} \"a\" is invalid: metadata.uid: Invalid value: \"other\": field is immutable",
            place.group
        )
    );
    let mut other = target.get(&place.path("a")).await.expect(200);
    other["metadata"]["uid"] = "other".into();
    let other = target.put(&place.path("a"), &other).await.expect(409);
    let said = other["message"].as_str().unwrap();
    assert!(
        said.contains("Precondition failed: UID in precondition: other, UID in object meta: "),
        "{said}"
    );

    let nothing = target
        .send(
            target
                .request(Method::POST, &place.things())
                .header("content-type", "application/json")
                .body("{"),
        )
        .await;
    assert_eq!(nothing.code, 400);
    let unknown_patch = target.patch("unheard-of", &place.path("a"), &json!({})).await;
    assert_eq!(unknown_patch.code, 415);
    let selector = target
        .get(&format!("{}?fieldSelector=spec.url=x", place.things()))
        .await
        .expect(400);
    assert!(
        selector["message"]
            .as_str()
            .unwrap()
            .contains("field label not supported: spec.url"),
        "{selector}"
    );
}

pub async fn generation_counts_status_changes_without_the_subresource(target: &ConformanceTarget) {
    let mut version = usual_version();
    version.as_object_mut().unwrap().remove("subresources");
    let place = Place::with_versions(target, json!([version])).await;
    place.create(target, "a", json!({"size": 1})).await;
    for (patch, generation) in [
        (json!({"status": {"phase": "Ready"}}), 2),
        (json!({"status": {"phase": "Ready"}}), 2),
        (json!({"metadata": {"labels": {"x": "y"}}}), 2),
        (json!({"spec": {"size": 2}, "status": {"phase": "Gone"}}), 3),
    ] {
        let patched = target.patch("merge", &place.path("a"), &patch).await.expect(200);
        assert_eq!(patched["metadata"]["generation"], generation, "{patch}");
    }
}

pub async fn generation_counts_spec_changes(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let mut born = place.thing("a", json!({}));
    born["status"] = json!({"phase": "Invented"});
    let created = target.post(&place.things(), &born).await.expect(201);
    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(created.get("status"), None, "status is not set at creation");

    let labelled = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Invented"}}),
        )
        .await
        .expect(200);
    assert_eq!(
        (&labelled["metadata"]["generation"], labelled.get("status")),
        (&json!(1), None)
    );

    let changed = target
        .patch("merge", &place.path("a"), &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);

    let status = format!("{}/status", place.path("a"));
    let reported = target
        .patch("merge", &status, &json!({"spec": {"size": 3}, "metadata": {"labels": {"no": "way"}}, "status": {"phase": "Ready"}}))
        .await
        .expect(200);
    assert_eq!(reported["metadata"]["generation"], 2);
    assert_eq!(
        (&reported["spec"]["size"], &reported["status"]["phase"]),
        (&json!(2), &json!("Ready"))
    );
    assert_eq!(target.get(&status).await.expect(200), reported);

    let mut replaced = reported.clone();
    replaced["status"] = json!({"phase": "Gone"});
    replaced["spec"]["size"] = 7.into();
    let replaced = target.put(&status, &replaced).await.expect(200);
    assert_eq!(
        (&replaced["spec"]["size"], &replaced["status"]["phase"]),
        (&json!(2), &json!("Gone"))
    );
}

pub async fn secret_string_data_becomes_data(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}});
    let created = target.post(&place.core("secrets"), &secret).await.expect(201);
    assert_eq!(
        (&created["data"], &created["type"], created.get("stringData")),
        (&json!({"a": "Yg==", "c": "ZA=="}), &json!("Opaque"), None)
    );
    let patched = target
        .patch(
            "merge",
            &format!("{}/s", place.core("secrets")),
            &json!({"stringData": {"a": "c"}}),
        )
        .await
        .expect(200);
    assert_eq!(patched["data"]["a"], "Yw==");
    // Built-in kinds may be replaced without naming the state they are based on.
    let replaced = json!({"metadata": {"name": "s"}, "data": {"e": "Zg=="}, "type": "Opaque"});
    let replaced = target
        .put(&format!("{}/s", place.core("secrets")), &replaced)
        .await
        .expect(200);
    assert_eq!(replaced["data"], json!({"e": "Zg=="}));
    let bad = target
        .post(
            &place.core("configmaps"),
            &json!({"metadata": {"name": "c"}, "data": {"a/b": "x"}}),
        )
        .await
        .expect(422);
    assert_eq!(bad["details"]["causes"][0]["field"], "data[a/b]");
}

pub async fn patch_types_change_objects(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    place
        .create(target, "a", json!({"size": 1, "url": "http://x", "tags": ["a"]}))
        .await;
    let merged = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"spec": {"size": null, "tags": ["b"]}}),
        )
        .await
        .expect(200);
    assert_eq!(
        merged["spec"],
        json!({"url": "http://x", "tags": ["b"], "mode": "slow"})
    );
    let steps = json!([
        {"op": "test", "path": "/spec/url", "value": "http://x"},
        {"op": "add", "path": "/spec/tags/-", "value": "c"},
        {"op": "remove", "path": "/spec/url"},
    ]);
    let stepped = target.patch("json", &place.path("a"), &steps).await.expect(200);
    assert_eq!(stepped["spec"], json!({"tags": ["b", "c"], "mode": "slow"}));
    let failed = target
        .patch(
            "json",
            &place.path("a"),
            &json!([{"op": "test", "path": "/spec/mode", "value": "fast"}]),
        )
        .await;
    assert_eq!(failed.code, 422, "{}", failed.body);
    let stale = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 4}}),
        )
        .await
        .expect(409);
    assert_eq!(stale["reason"], "Conflict");
    target
        .patch("merge", &place.path("nobody"), &json!({}))
        .await
        .expect(404);
    target
        .patch("strategic-merge", &place.path("a"), &json!({"spec": {"size": 4}}))
        .await
        .expect(415);
    target
        .post(
            &place.core("configmaps"),
            &json!({"metadata": {"name": "c"}, "data": {"a": "1", "b": "2"}}),
        )
        .await
        .expect(201);
    let strategic = target
        .patch(
            "strategic-merge",
            &format!("{}/c", place.core("configmaps")),
            &json!({"data": {"a": null, "c": "3"}}),
        )
        .await
        .expect(200);
    assert_eq!(strategic["data"], json!({"b": "2", "c": "3"}));
}

pub async fn unchanged_update_keeps_resource_version(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let created = place.create(target, "a", json!({"size": 1})).await;
    assert_eq!(target.put(&place.path("a"), &created).await.expect(200), created);
    assert_eq!(
        target
            .patch("merge", &place.path("a"), &json!({"spec": {"size": 1}}))
            .await
            .expect(200),
        created
    );
    let status = format!("{}/status", place.path("a"));
    let reported = target
        .patch("merge", &status, &json!({"status": {"ok": true}}))
        .await
        .expect(200);
    assert_eq!(
        target
            .patch("merge", &status, &json!({"status": {"ok": true}}))
            .await
            .expect(200),
        reported
    );
}

pub async fn dry_run_stores_nothing(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    target
        .post(
            &format!("{}?dryRun=All", place.things()),
            &place.thing("a", json!({})),
        )
        .await
        .expect(201);
    target.get(&place.path("a")).await.expect(404);
    let created = place.create(target, "a", json!({})).await;
    let tried = target
        .patch(
            "merge",
            &format!("{}?dryRun=All", place.path("a")),
            &json!({"spec": {"size": 3}}),
        )
        .await
        .expect(200);
    assert_eq!(tried["spec"]["size"], 3);
    target
        .delete(&place.path("a"), &json!({"dryRun": ["All"]}))
        .await
        .expect(200);
    assert_eq!(target.get(&place.path("a")).await.expect(200), created);
    let refused = target
        .post(
            &format!("{}?dryRun=All", place.things()),
            &place.thing("b", json!({"size": 99})),
        )
        .await;
    assert_eq!(refused.code, 422);
    // An apply that would create, one that would change, and a status.
    let name = place.path("c");
    let query = "fieldManager=one&dryRun=All";
    let mut wanted = place.thing("c", json!({"size": 2}));
    let tried = target.apply(&name, query, &wanted).await.expect(201);
    assert_eq!(tried["spec"]["size"], 2);
    assert!(tried["metadata"]["uid"].is_string(), "{tried}");
    target.get(&name).await.expect(404);
    let created = target.apply(&name, "fieldManager=one", &wanted).await.expect(201);
    wanted["spec"]["size"] = json!(4);
    wanted["metadata"]["finalizers"] = json!(["tests.ostler.dev/keep"]);
    let tried = target.apply(&name, query, &wanted).await.expect(200);
    assert_eq!(
        (&tried["spec"]["size"], &tried["metadata"]["generation"]),
        (&json!(4), &json!(2))
    );
    assert_eq!(tried["metadata"]["uid"], created["metadata"]["uid"]);
    let status = target
        .patch(
            "merge",
            &format!("{name}/status?dryRun=All"),
            &json!({"status": {"ok": true}, "spec": {"size": 5}}),
        )
        .await
        .expect(200);
    assert_eq!(
        (&status["status"]["ok"], &status["spec"]["size"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(target.get(&name).await.expect(200), created);
    // A stale resource version or uid is a conflict, a malformed one an error.
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 3}});
    let tried = format!("{name}?dryRun=All");
    assert_eq!(target.patch("merge", &tried, &stale).await.code, 409);
    let options = json!({"dryRun": ["All"], "preconditions": {"uid": "another"}});
    assert_eq!(target.delete(&name, &options).await.code, 409);
    let wrong = json!({"spec": {"size": 99}});
    assert_eq!(target.patch("merge", &tried, &wrong).await.code, 422);
    assert_eq!(target.get(&name).await.expect(200), created);
    // Of a deletion with a body the query counts for nothing.
    target
        .delete(&tried, &json!({"propagationPolicy": "Background"}))
        .await
        .expect(200);
    target.get(&name).await.expect(404);
}

/// Requests and objects of the largest sizes are accepted, and larger ones refused.
pub async fn size_beyond_its_limit_is_refused(target: &ConformanceTarget) {
    const MEBIBYTE: usize = 1 << 20;
    let place = Place::new(target).await;
    let config_maps = place.core("configmaps");
    let data =
        |bytes: usize| json!({"metadata": {"name": unique("sized")}, "data": {"a": "x".repeat(bytes)}});
    target.post(&config_maps, &data(MEBIBYTE)).await.expect(201);
    let status = target.post(&config_maps, &data(MEBIBYTE + 1)).await.expect(422);
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueTooLong");
    let status = target.post(&config_maps, &data(3 * MEBIBYTE)).await.expect(413);
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    let annotated = |bytes: usize| {
        let annotations = json!({"a": "x".repeat(bytes - 1)});
        json!({"metadata": {"name": unique("sized"), "annotations": annotations}})
    };
    target
        .post(&config_maps, &annotated(MEBIBYTE / 4))
        .await
        .expect(201);
    target
        .post(&config_maps, &annotated(MEBIBYTE / 4 + 1))
        .await
        .expect(422);
    for (length, code) in [(253, 201), (254, 422)] {
        let named = json!({"metadata": {"name": "a".repeat(length)}});
        target.post(&config_maps, &named).await.expect(code);
    }
    place.create(target, "patched", json!({})).await;
    let operations =
        |count: usize| vec![json!({"op": "add", "path": "/spec/url", "value": "http://a"}); count];
    for (count, code) in [(10_000, 200), (10_001, 413)] {
        let patch = operations(count).into();
        target
            .patch("json", &place.path("patched"), &patch)
            .await
            .expect(code);
    }
    // What etcd does not store, in an object of any size.
    let large = |bytes: usize| place.thing(&unique("sized"), json!({"free": {"text": "x".repeat(bytes)}}));
    target.post(&place.things(), &large(MEBIBYTE)).await.expect(201);
    let status = target
        .post(&place.things(), &large(MEBIBYTE * 8 / 5))
        .await
        .expect(500);
    assert_eq!(status["message"], "etcdserver: request is too large");
}

pub async fn bytes_of_a_secret_are_a_text_or_a_list(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let path = format!("/api/v1/namespaces/{}/secrets", place.namespace);
    let data = json!({"empty": [], "list": [104, 105], "text": "aGk="});
    let stored = target
        .post(&path, &json!({"metadata": {"name": "a"}, "data": data}))
        .await
        .expect(201);
    assert_eq!(
        stored["data"],
        json!({"empty": "", "list": "aGk=", "text": "aGk="})
    );
    target
        .post(
            &path,
            &json!({"metadata": {"name": "b"}, "data": {"list": [256]}}),
        )
        .await
        .expect(400);
    let config = |text: &str| json!({"metadata": {"name": "c"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": text}});
    let refused = target.post(&path, &config("4711")).await.expect(422);
    let said = refused["message"].as_str().unwrap();
    assert!(
        said.contains("data[.dockerconfigjson]") && !said.contains("4711"),
        "{said}"
    );
    target.post(&path, &config("{}")).await.expect(201);
}
