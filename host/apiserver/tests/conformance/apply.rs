//! Server-side apply and the bookkeeping of managers.

use serde_json::{Value, json};

use crate::target::{ConformanceTarget, Place};

fn manager<'a>(object: &'a Value, name: &str, operation: &str) -> &'a Value {
    let all = object["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields");
    all.iter()
        .find(|entry| entry["manager"] == name && entry["operation"] == operation)
        .unwrap_or_else(|| panic!("no {name} in {all:?}"))
}

pub async fn applied_field_is_owned_shared_and_released(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let path = place.path("a");
    let created = target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"url": "http://x", "size": 2, "labels": {"k": "v"}})),
        )
        .await
        .expect(201);
    assert_eq!(created["spec"]["mode"], "slow");
    assert_eq!(
        manager(&created, "one", "Apply")["fieldsV1"],
        json!({"f:spec": {"f:url": {}, "f:size": {}, "f:labels": {"f:k": {}}}})
    );
    let again = target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"url": "http://x", "size": 2, "labels": {"k": "v"}})),
        )
        .await
        .expect(200);
    assert_eq!(again, created, "the same again is no write");

    let shared = target
        .apply(
            &path,
            "fieldManager=two",
            &place.thing("a", json!({"size": 2, "labels": {"l": "w"}})),
        )
        .await
        .expect(200);
    assert_eq!(shared["spec"]["labels"], json!({"k": "v", "l": "w"}));
    let less = target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"labels": {"k": "v"}})),
        )
        .await
        .expect(200);
    assert_eq!(
        less["spec"],
        json!({"size": 2, "mode": "slow", "labels": {"k": "v", "l": "w"}}),
        "url was one's alone, size is two's too"
    );
    let none = target
        .apply(&path, "fieldManager=one", &place.thing("a", json!({})))
        .await
        .expect(200);
    assert_eq!(
        none["spec"],
        json!({"size": 2, "mode": "slow", "labels": {"l": "w"}})
    );

    let nested = place.thing("n", json!({"nested": {"key": "k"}}));
    target
        .apply(&place.path("n"), "fieldManager=one", &nested)
        .await
        .expect(201);
    let emptied = place.thing("n", json!({}));
    let emptied = target
        .apply(&place.path("n"), "fieldManager=one", &emptied)
        .await
        .expect(200);
    assert_eq!(
        emptied["spec"],
        json!({"mode": "slow"}),
        "a container goes with the last of its fields"
    );

    let nameless = target.apply(&path, "", &place.thing("a", json!({}))).await;
    assert_eq!(nameless.code, 422, "{}", nameless.body);
    let managed = json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"name": "a", "managedFields": created["metadata"]["managedFields"]}});
    let managed = target
        .apply(&path, "fieldManager=one", &managed)
        .await
        .expect(400);
    assert_eq!(managed["message"], "metadata.managedFields must be nil");
    // No value of `fieldValidation` lets an unknown field pass, which a PUT or a merge patch drops with a warning.
    for validation in ["", "&fieldValidation=Warn", "&fieldValidation=Ignore"] {
        let query = format!("fieldManager=one{validation}");
        let unknown = target
            .apply(&path, &query, &place.thing("a", json!({"typo": 1})))
            .await;
        assert!(unknown.code >= 400, "{validation}: {}", unknown.body);
        let message = unknown.body["message"].as_str().unwrap_or_default();
        assert!(
            message.contains(".spec.typo: field not declared in schema"),
            "{validation}: {message}"
        );
    }
    let invalid = target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"url": "ftp://x"})),
        )
        .await;
    assert_eq!(invalid.code, 422, "{}", invalid.body);
}

pub async fn apply_conflict_is_reported_and_can_be_forced(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let path = place.path("a");
    target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"size": 1, "url": "http://x"})),
        )
        .await
        .expect(201);
    let conflict = target
        .apply(&path, "fieldManager=two", &place.thing("a", json!({"size": 2})))
        .await
        .expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .spec.size"
    );
    assert_eq!(
        conflict["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".spec.size"}])
    );
    let both = target
        .apply(
            &path,
            "fieldManager=two",
            &place.thing("a", json!({"size": 2, "url": "http://y"})),
        )
        .await
        .expect(409);
    assert_eq!(
        both["message"],
        "Apply failed with 2 conflicts: conflicts with \"one\":\n- .spec.size\n- .spec.url"
    );
    let forced = target
        .apply(
            &path,
            "fieldManager=two&force=true",
            &place.thing("a", json!({"size": 2})),
        )
        .await
        .expect(200);
    assert_eq!(forced["spec"]["size"], 2);
    assert_eq!(
        manager(&forced, "one", "Apply")["fieldsV1"],
        json!({"f:spec": {"f:url": {}}})
    );
    assert_eq!(
        manager(&forced, "two", "Apply")["fieldsV1"],
        json!({"f:spec": {"f:size": {}}})
    );
}

pub async fn applied_lists_merge_by_key(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let path = place.path("a");
    target
        .apply(
            &path,
            "fieldManager=one",
            &place.thing("a", json!({"items": [{"name": "a", "value": 1}], "tags": ["x"]})),
        )
        .await
        .expect(201);
    let merged = target
        .apply(
            &path,
            "fieldManager=two",
            &place.thing("a", json!({"items": [{"name": "b", "value": 2}], "tags": ["y"]})),
        )
        .await
        .expect(200);
    assert_eq!(
        merged["spec"]["items"],
        json!([{"name": "a", "value": 1}, {"name": "b", "value": 2}])
    );
    assert_eq!(merged["spec"]["tags"], json!(["x", "y"]));
    assert_eq!(
        manager(&merged, "two", "Apply")["fieldsV1"]["f:spec"]["f:items"],
        json!({"k:{\"name\":\"b\"}": {".": {}, "f:name": {}, "f:value": {}}})
    );
    assert_eq!(
        manager(&merged, "two", "Apply")["fieldsV1"]["f:spec"]["f:tags"],
        json!({"v:\"y\"": {}})
    );
    let conflict = target
        .apply(
            &path,
            "fieldManager=two",
            &place.thing("a", json!({"items": [{"name": "a", "value": 9}]})),
        )
        .await
        .expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .spec.items[name=\"a\"].value"
    );
    let less = target
        .apply(&path, "fieldManager=one", &place.thing("a", json!({})))
        .await
        .expect(200);
    assert_eq!(
        (&less["spec"]["items"], &less["spec"]["tags"]),
        (&json!([{"name": "b", "value": 2}]), &json!(["y"]))
    );

    let mut meta = place.thing("m", json!({}));
    meta["metadata"]["finalizers"] = json!(["ostler.dev/one"]);
    meta["metadata"]["labels"] = json!({"a": "b"});
    let mut owned = meta.clone();
    owned["metadata"]["annotations"] = json!({"x": "y"});
    let made = target
        .apply(&place.path("m"), "fieldManager=one", &owned)
        .await
        .expect(201);
    assert_eq!(
        manager(&made, "one", "Apply")["fieldsV1"]["f:metadata"],
        json!({"f:annotations": {"f:x": {}}, "f:finalizers": {"v:\"ostler.dev/one\"": {}}, "f:labels": {"f:a": {}}})
    );
    let without = target
        .apply(&place.path("m"), "fieldManager=one", &meta)
        .await
        .expect(200);
    assert_eq!(without["metadata"].get("annotations"), None);
    target
        .patch(
            "merge",
            &place.path("m"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .expect(200);
}

pub async fn status_is_applied_by_its_subresource_only(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    place.create(target, "a", json!({"size": 1})).await;
    let status = format!("{}/status", place.path("a"));
    let body = json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let applied = target
        .apply(&status, "fieldManager=host", &body)
        .await
        .expect(200);
    assert_eq!(applied["status"]["conditions"][0]["status"], "True");
    let entry = manager(&applied, "host", "Apply");
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:conditions": {}}}))
    );
    assert_eq!(
        target
            .apply(&status, "fieldManager=host", &body)
            .await
            .expect(200),
        applied
    );
    // A write to the main resource ignores the status.
    let mut main = body.clone();
    main["status"] = json!({"conditions": []});
    let through_main = target
        .apply(&place.path("a"), "fieldManager=other", &main)
        .await
        .expect(200);
    assert_eq!(through_main["status"], applied["status"]);
    target
        .apply(
            &format!("{}/status", place.path("nobody")),
            "fieldManager=host",
            &json!({"apiVersion": place.version(), "kind": "Thing", "metadata": {"name": "nobody"}}),
        )
        .await
        .expect(404);
}

pub async fn update_takes_over_field_ownership(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let created = place.create(target, "a", json!({"size": 1})).await;
    let entry = manager(&created, "conformance", "Update");
    assert_eq!(
        (&entry["apiVersion"], &entry["fieldsType"]),
        (&json!(place.version()), &json!("FieldsV1"))
    );
    assert_eq!(
        entry["fieldsV1"],
        json!({"f:spec": {".": {}, "f:mode": {}, "f:size": {}}})
    );
    let patched = target
        .patch(
            "merge",
            &format!("{}?fieldManager=editor", place.path("a")),
            &json!({"spec": {"size": 2}, "metadata": {"labels": {"x": "y"}}}),
        )
        .await
        .expect(200);
    assert_eq!(
        manager(&patched, "conformance", "Update")["fieldsV1"],
        json!({"f:spec": {".": {}, "f:mode": {}}})
    );
    assert_eq!(
        manager(&patched, "editor", "Update")["fieldsV1"],
        json!({"f:metadata": {"f:labels": {".": {}, "f:x": {}}}, "f:spec": {"f:size": {}}})
    );
    let conflict = target
        .apply(
            &place.path("a"),
            "fieldManager=one",
            &place.thing("a", json!({"size": 3})),
        )
        .await
        .expect(409);
    assert_eq!(
        conflict["message"],
        format!(
            "Apply failed with 1 conflict: conflict with \"editor\" using {}: .spec.size",
            place.version()
        )
    );
    let reset = target
        .patch(
            "merge",
            &place.path("a"),
            &json!({"metadata": {"managedFields": [{}]}}),
        )
        .await
        .expect(200);
    assert_eq!(reset["metadata"].get("managedFields"), None);
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": "dg=="}});
    let secret = target.post(&place.core("secrets"), &secret).await.expect(201);
    assert_eq!(
        manager(&secret, "conformance", "Update")["fieldsV1"],
        json!({"f:data": {".": {}, "f:k": {}}, "f:type": {}})
    );
}
