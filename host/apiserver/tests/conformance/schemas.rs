//! Schemas of custom kinds: checking, pruning, defaults, rules, versions.

use serde_json::{Value, json};

use crate::target::{ConformanceTarget, Place, usual_version};

pub async fn invalid_object_is_refused_with_field_paths(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    for (spec, message) in [
        (
            json!({"url": "ftp://x"}),
            "spec.url: Invalid value: \"ftp://x\": spec.url in body should match '^https?://'",
        ),
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 11}),
            "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            json!({"size": "two"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": 1.5}),
            "spec.size: Invalid value: \"number\": spec.size in body must be of type integer: \"number\"",
        ),
        (
            json!({"mode": "odd"}),
            "spec.mode: Unsupported value: \"odd\": supported values: \"slow\", \"fast\"",
        ),
        (json!({"nested": {}}), "spec.nested.key: Required value"),
        (
            json!({"nested": {"key": "k", "when": "noon"}}),
            "spec.nested.when: Invalid value: \"noon\": spec.nested.when in body must be of type date-time: \"noon\"",
        ),
        (
            json!({"port": true}),
            "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"labels": {"a": 1}}),
            "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type string: \"integer\"",
        ),
        (
            json!({"tags": ["a", "a"]}),
            "spec.tags[1]: Duplicate value: \"a\"",
        ),
        (
            json!({"items": [{"name": "a"}, {"name": "a"}]}),
            "spec.items[1]: Duplicate value: {\"name\":\"a\"}",
        ),
        (
            json!({"items": [{"value": 1}]}),
            "spec.items[0].name: Required value",
        ),
    ] {
        let refused = target
            .post(&place.things(), &place.thing("a", spec.clone()))
            .await
            .expect(422);
        assert_eq!(refused["reason"], "Invalid");
        // The real server may go on after the first thing that is wrong.
        let said = refused["message"].as_str().unwrap();
        let prefix = format!("Thing.{} \"a\" is invalid: ", place.group);
        assert!(said.starts_with(&prefix) && said.contains(message), "{said}");
        let cause = &refused["details"]["causes"][0];
        assert!(
            message.starts_with(&format!("{}: ", cause["field"].as_str().unwrap())),
            "{cause}"
        );
        assert_eq!(refused["details"]["kind"], "Thing");
    }
    place
        .create(
            target,
            "a",
            json!({"port": "http", "maybe": null, "labels": {"a": "b"}, "size": 1.0}),
        )
        .await;
    place.create(target, "b", json!({"port": 80})).await;
}

pub async fn unknown_fields_follow_field_validation(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    let thing = place.thing("a", json!({"typo": 1, "free": {"any": {"thing": 1}}}));
    let strict = target
        .post(&format!("{}?fieldValidation=Strict", place.things()), &thing)
        .await
        .expect(400);
    assert_eq!(
        strict["message"],
        "Thing in version \"v1\" cannot be handled as a Thing: strict decoding error: unknown field \"spec.typo\""
    );
    let warned = target
        .post(&format!("{}?fieldValidation=Warn", place.things()), &thing)
        .await;
    assert!(
        warned
            .warnings
            .iter()
            .any(|warning| warning.contains("unknown field \\\"spec.typo\\\"")),
        "{:?}",
        warned.warnings
    );
    let created = warned.expect(201);
    assert_eq!(
        created["spec"],
        json!({"free": {"any": {"thing": 1}}, "mode": "slow"})
    );
    let ignored = target
        .post(
            &format!("{}?fieldValidation=Ignore", place.things()),
            &place.thing("b", json!({"typo": 1})),
        )
        .await;
    assert!(ignored.warnings.is_empty(), "{:?}", ignored.warnings);
    assert_eq!(ignored.expect(201)["spec"].get("typo"), None);
    let patched = target
        .patch(
            "merge",
            &format!("{}?fieldValidation=Strict", place.path("a")),
            &json!({"spec": {"typo": 1}}),
        )
        .await
        .expect(422);
    assert!(
        patched["message"]
            .as_str()
            .unwrap()
            .contains("strict decoding error: unknown field \"spec.typo\""),
        "{patched}"
    );
}

pub async fn defaults_are_applied(target: &ConformanceTarget) {
    let place = Place::new(target).await;
    assert_eq!(
        place.create(target, "a", json!({})).await["spec"],
        json!({"mode": "slow"})
    );
    assert_eq!(
        place.create(target, "b", json!({"mode": null})).await["spec"],
        json!({"mode": "slow"})
    );
    assert_eq!(
        place.create(target, "c", json!({"mode": "fast"})).await["spec"],
        json!({"mode": "fast"})
    );
}

pub async fn transition_rules_compare_with_old_object(target: &ConformanceTarget) {
    let mut version = usual_version();
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = json!([
        {"rule": "!has(self.size) || self.size != 5", "message": "not five"},
        {"rule": "!has(oldSelf.url) || (has(self.url) && self.url == oldSelf.url)", "message": "url is immutable"},
    ]);
    let place = Place::with_versions(target, json!([version])).await;
    let refused = target
        .post(&place.things(), &place.thing("a", json!({"size": 5})))
        .await
        .expect(422);
    assert_eq!(
        refused["message"],
        format!(
            "Thing.{} \"a\" is invalid: spec: Invalid value: not five",
            place.group
        )
    );
    assert_eq!(refused["details"]["causes"][0]["field"], "spec");
    place.create(target, "a", json!({"url": "http://x"})).await;
    let moved = target
        .patch("merge", &place.path("a"), &json!({"spec": {"url": "http://y"}}))
        .await
        .expect(422);
    assert!(
        moved["message"].as_str().unwrap().ends_with("url is immutable"),
        "{moved}"
    );
    target
        .patch("merge", &place.path("a"), &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
}

pub async fn transition_rules_compare_items_of_the_same_key(target: &ConformanceTarget) {
    let mut version = usual_version();
    let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([
        {"rule": "!has(self.size) || self.size != 7 || self.items == oldSelf.items", "message": "items are fixed"},
        {"rule": "!has(oldSelf.items) || oldSelf.items.all(item, has(item.name))", "message": "items have names"},
    ]);
    let item = &mut spec["properties"]["items"]["items"];
    item["x-kubernetes-validations"] =
        json!([{"rule": "self.value >= oldSelf.value", "message": "may not shrink"}]);
    item["properties"]["level"] = json!({
        "type": "integer", "nullable": true,
        "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "level may not shrink"}],
    });
    let place = Place::with_versions(target, json!([version])).await;
    let items = |items: Value| json!({"spec": {"items": items}});
    place
        .create(
            target,
            "a",
            json!({"items": [{"name": "a", "value": 1}, {"name": "b", "value": 3, "level": null}]}),
        )
        .await;
    let change = async |change: &Value| target.patch("merge", &place.path("a"), change).await;
    // Another order, and a new item before the others.
    change(&items(json!([
        {"name": "c", "value": 0, "level": 9}, {"name": "b", "value": 3, "level": 2}, {"name": "a", "value": 1, "level": 1},
    ])))
    .await
    .expect(200);
    let shrunk = change(&items(json!([
        {"name": "d", "value": 0}, {"name": "a", "value": 1, "level": 0}, {"name": "b", "value": 2},
    ])))
    .await
    .expect(422);
    let causes = shrunk["details"]["causes"].as_array().unwrap().iter();
    let mut found: Vec<_> = causes.map(|cause| [&cause["field"], &cause["message"]]).collect();
    found.sort_by_key(|cause| cause[0].to_string());
    assert_eq!(
        json!(found),
        json!([
            ["spec.items[1].level", "Invalid value: 0: level may not shrink"],
            ["spec.items[2]", "Invalid value: may not shrink"],
        ])
    );
    // Items without an old counterpart, or in another order.
    let reordered = json!([
        {"name": "a", "value": 1, "level": 1}, {"name": "b", "value": 3, "level": 2}, {"name": "c", "value": 0, "level": 9},
    ]);
    change(&json!({"spec": {"size": 7, "items": reordered}}))
        .await
        .expect(200);
    let fewer = change(&items(json!([{"name": "b", "value": 3, "level": 2}])))
        .await
        .expect(422);
    assert_eq!(
        fewer["details"]["causes"][0]["message"],
        "Invalid value: items are fixed"
    );
}

pub async fn null_fields_are_missing_in_rules(target: &ConformanceTarget) {
    let mut version = usual_version();
    let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([{"rule": "!has(self.maybe)", "message": "maybe is there"}]);
    spec["properties"]["labels"]["additionalProperties"] = json!({"type": "string", "nullable": true});
    spec["properties"]["labels"]["x-kubernetes-validations"] =
        json!([{"rule": "size(self) == 1 && 'a' in self", "message": "a is missing"}]);
    let place = Place::with_versions(target, json!([version])).await;
    place
        .create(target, "a", json!({"maybe": null, "labels": {"a": null}}))
        .await;
    let refused = target
        .post(&place.things(), &place.thing("b", json!({"maybe": "there"})))
        .await
        .expect(422);
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "Invalid value: maybe is there"
    );
}

pub async fn all_served_versions_show_an_object(target: &ConformanceTarget) {
    let mut older = usual_version();
    older["name"] = "v1beta1".into();
    older["storage"] = false.into();
    let place = Place::with_versions(target, json!([older, usual_version()])).await;
    place.create(target, "a", json!({"size": 1})).await;
    let path = place.path("a").replace("/v1/", "/v1beta1/");
    let seen = target.until(&path, |answer| answer.code == 200).await.body;
    assert_eq!(seen["apiVersion"], format!("{}/v1beta1", place.group));
    let patched = target
        .patch("merge", &path, &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!(patched["apiVersion"], format!("{}/v1beta1", place.group));
    assert_eq!(
        target.get(&place.path("a")).await.expect(200)["apiVersion"],
        place.version()
    );
    let wrong = target
        .post(
            &place.things().replace("/v1/", "/v1beta1/"),
            &place.thing("b", json!({})),
        )
        .await;
    assert_eq!(wrong.code, 400, "{}", wrong.body);
    let group = target.get(&format!("/apis/{}", place.group)).await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");
}
