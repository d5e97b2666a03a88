//! Tests of the message handler against the in-memory host of the SDK.

use devops_events::EventHandler;
use ostler_sdk::mock::MockHost;
use ostler_sdk::serde_json::{Value, json, to_vec};
use ostler_sdk::{
    Delivery, Disposition, Error, HeaderValue, MessageHeader, MessageProperties, UpstreamRef, gvk,
};

fn delivery(kind: &str, body: &Value) -> Delivery {
    Delivery {
        broker: UpstreamRef::new("rabbit"),
        queue: "devops".into(),
        exchange: "devops".into(),
        routing_key: kind.into(),
        properties: MessageProperties {
            type_: Some(kind.into()),
            ..MessageProperties::default()
        },
        body: to_vec(body).expect("JSON"),
        delivery_count: 0,
    }
}

fn deployment() -> Value {
    json!({ "id": "d-1", "project": "shop", "namespace": "teams", "environment": "alpha", "pipeline": "build",
        "revision": "v1", "parameters": { "TAG": "1" }, "ttl_seconds": 60, "a_later_field": true })
}

fn project() -> Value {
    json!({ "id": "p-1", "project": "shop", "namespace": "teams", "spec": {
        "git": { "url": "https://git.example.com/shop.git" },
        "registry": { "url": "https://registry.example.com" },
        "argo": {},
        "environments": [{ "name": "alpha", "destination": { "namespace": "alpha" }, "path": "deploy" }],
    }})
}

fn object(host: &MockHost, kind: &str, name: &str) -> Option<Value> {
    host.object(&gvk("devops.ostler.dev", "v1alpha1", kind).named("teams", name))
}

fn rejection(host: &MockHost, delivery: &Delivery) -> String {
    match host.handle(&EventHandler, delivery) {
        Ok(Disposition::Reject(reason)) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn reconcile_event_becomes_the_deployment_of_its_id() {
    let host = MockHost::new();
    let heartbeat =
        json!({ "upstreamRef": { "name": "rabbit" }, "exchange": "", "routingKey": "heartbeats" });
    host.set_config(json!({ "heartbeat": heartbeat }));
    let handled = host.handle(&EventHandler, &delivery("DevOpsReconcile", &deployment()));
    assert!(matches!(handled, Ok(Disposition::Ack)), "{handled:?}");
    let record = object(&host, "DeploymentRecord", "d-1").expect("created");
    assert_eq!(record["metadata"]["labels"]["devops.ostler.dev/event-id"], "d-1");
    let spec = &record["spec"];
    assert_eq!(
        (&spec["deploymentID"], &spec["environment"]),
        (&json!("d-1"), &json!("alpha"))
    );
    assert_eq!(
        spec["build"],
        json!({ "settingRef": { "name": "shop" }, "pipeline": "build", "parameters": { "TAG": "1" } })
    );
    assert_eq!(spec["sync"]["settingRef"]["name"], "shop");
    assert_eq!(
        (&spec["sync"]["application"], &spec["sync"]["revision"]),
        (&json!("shop-alpha"), &json!("v1"))
    );
    assert_eq!(
        (&spec["ttlSeconds"], &spec["heartbeat"]["routingKey"]),
        (&json!(60), &json!("heartbeats"))
    );
    assert_eq!(host.writes(), ["create DeploymentRecord d-1"]);
}

#[test]
fn initialize_event_becomes_a_project() {
    let host = MockHost::new();
    host.set_config(json!({ "namespace": "teams" }));
    let mut event = project();
    event.as_object_mut().expect("an event").remove("namespace");
    let handled = host.handle(&EventHandler, &delivery("DevOpsInitialize", &event));
    assert!(matches!(handled, Ok(Disposition::Ack)), "{handled:?}");
    let created = object(&host, "DevOpsProject", "shop").expect("created");
    assert_eq!(created["spec"]["git"]["url"], "https://git.example.com/shop.git");
}

#[test]
fn redelivered_deployment_changes_nothing() {
    let host = MockHost::new();
    let first = delivery("DevOpsReconcile", &deployment());
    host.handle(&EventHandler, &first).expect("is handled");
    let mut changed = deployment();
    changed["environment"] = "beta".into();
    host.forget();
    for again in [first, delivery("DevOpsReconcile", &changed)] {
        let handled = host.handle(&EventHandler, &again);
        assert!(matches!(handled, Ok(Disposition::Ack)), "{handled:?}");
    }
    assert!(host.writes().is_empty());
    assert_eq!(
        object(&host, "DeploymentRecord", "d-1").expect("kept")["spec"]["environment"],
        "alpha"
    );
}

#[test]
fn initialize_event_with_another_spec_updates_the_project() {
    let host = MockHost::new();
    let mut event = project();
    for (id, url) in [
        ("p-1", "https://git.example.com/shop.git"),
        ("p-2", "https://git.example.com/new.git"),
    ] {
        event["id"] = id.into();
        event["spec"]["git"]["url"] = url.into();
        let handled = host.handle(&EventHandler, &delivery("DevOpsInitialize", &event));
        assert!(matches!(handled, Ok(Disposition::Ack)), "{handled:?}");
        let project = object(&host, "DevOpsProject", "shop").expect("applied");
        assert_eq!(project["spec"]["git"]["url"], url);
        assert_eq!(project["metadata"]["labels"]["devops.ostler.dev/event-id"], id);
    }
    host.fail(
        "kubernetes.apply",
        Error::Conflict("conflict with \"kubectl\"".into()),
    );
    let reason = rejection(&host, &delivery("DevOpsInitialize", &event));
    assert!(
        reason.contains("DevOpsProject teams/shop")
            && reason.contains("kubectl")
            && reason.contains("edit it there"),
        "{reason}"
    );
}

#[test]
fn events_that_can_never_be_handled_are_rejected_with_the_reason() {
    let host = MockHost::new();
    let change = |field: &str, value: Value| {
        let mut event = deployment();
        event[field] = value;
        delivery("DevOpsReconcile", &event)
    };
    let mut garbage = delivery("DevOpsReconcile", &deployment());
    garbage.body = b"\xff{".to_vec();
    let mut huge = delivery("DevOpsReconcile", &deployment());
    huge.body = vec![b' '; (256 << 10) + 1];
    let mut untyped = delivery("DevOpsReconcile", &deployment());
    untyped.properties.type_ = None;
    let mut newer = delivery("DevOpsReconcile", &deployment());
    newer.properties.headers.push(MessageHeader {
        name: "version".into(),
        value: HeaderValue::String("v9".into()),
    });
    for (delivery, cause) in [
        (garbage, ""),
        (huge, "262145 bytes"),
        (untyped, "no type"),
        (newer, "\"v9\""),
        (delivery("SomethingElse", &deployment()), "SomethingElse"),
        (delivery("DevOpsReconcile", &json!([])), ""),
        (delivery("DevOpsReconcile", &json!({ "id": "d-1" })), "project"),
        (change("id", json!("../../etc")), "id"),
        (change("id", json!("D-1")), "id"),
        (change("id", json!("")), "id"),
        (change("id", json!("x".repeat(64))), "id"),
        (change("project", json!("a.b")), "project"),
        (change("namespace", Value::Null), "namespace"),
        (change("ttl_seconds", json!("soon")), "ttl_seconds"),
    ] {
        let reason = rejection(&host, &delivery);
        assert!(reason.contains(cause), "{reason}");
    }
    assert!(host.writes().is_empty());
}

#[test]
fn missing_permission_and_configuration_lose_no_event() {
    let host = MockHost::new();
    host.deny("kubernetes.create");
    let denied = host.handle(&EventHandler, &delivery("DevOpsReconcile", &deployment()));
    assert!(matches!(denied, Err(Error::Denied(_))), "{denied:?}");
    let host = MockHost::new();
    host.set_config(json!({ "namespace": 5 }));
    let invalid = host.handle(&EventHandler, &delivery("DevOpsReconcile", &deployment()));
    assert!(matches!(invalid, Err(Error::Invalid(_))), "{invalid:?}");
}
