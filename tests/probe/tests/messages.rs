//! The message handler on a mock of the host.

use ostler_sdk::{Delivery, Disposition, Error, Gvk, ObjectRef, UpstreamRef, mock::MockHost, prelude::*};
use probe::MessageProber;

fn delivery(body: &ostler_sdk::serde_json::Value, delivery_count: u32) -> Delivery {
    let mut delivery = Delivery::new("events", body.to_string().into_bytes());
    delivery.broker = UpstreamRef::new("rabbit").in_namespace("team");
    delivery.delivery_count = delivery_count;
    delivery.properties.message_id = Some("m1".into());
    delivery
}

fn config_map(name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
        },
        cluster: None,
        namespace: Some("team".into()),
        name: name.into(),
    }
}

#[test]
fn redelivered_message_creates_its_object_once() {
    let host = MockHost::new();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    let steps = json!({"steps": [
        {"do": "ensure", "object": object}, {"do": "record", "name": "seen"},
        {"do": "publish", "routingKey": "out", "body": "done", "messageId": "m1-done"},
    ]});
    for count in 0..2 {
        let disposition = host.handle(&MessageProber, &delivery(&steps, count));
        assert_eq!(disposition, Ok(Disposition::Ack));
    }
    assert!(host.object(&config_map("a")).is_some());
    let seen = host.object(&config_map("seen")).expect("recorded");
    assert_eq!(seen["data"]["messageId"], "m1");
    assert_eq!(seen["data"]["deliveryCount"], "1");
    let published = host.messages();
    let ids = published.iter().map(|(broker, m)| {
        let id = m.properties.message_id.clone().unwrap_or_default();
        (broker.as_str(), m.routing_key.as_str(), id)
    });
    let expected = ("rabbit", "out", "m1-done".to_owned());
    assert_eq!(ids.collect::<Vec<_>>(), [expected.clone(), expected]);
    let create = json!({"steps": [{"do": "create", "object": object}]});
    let conflict = host.handle(&MessageProber, &delivery(&create, 0));
    assert!(matches!(conflict, Err(Error::Conflict(_))), "{conflict:?}");
}

#[test]
fn step_ends_the_handler_with_its_disposition_until_its_times_are_over() {
    let host = MockHost::new();
    let handle = |step: ostler_sdk::serde_json::Value, count| {
        host.handle(&MessageProber, &delivery(&json!({ "steps": [step] }), count))
    };
    let retry = json!({"do": "retry", "milliseconds": 50, "times": 2});
    assert_eq!(handle(retry.clone(), 1), Ok(Disposition::RetryAfter(50)));
    assert_eq!(handle(retry, 2), Ok(Disposition::Ack));
    let reject = json!({"do": "reject", "body": "unknown project"});
    assert_eq!(
        handle(reject, 0),
        Ok(Disposition::Reject("unknown project".into()))
    );
    let unavailable = handle(json!({"do": "fail"}), 0);
    assert!(
        matches!(unavailable, Err(Error::Unavailable(_))),
        "{unavailable:?}"
    );
    let garbage = host.handle(&MessageProber, &Delivery::new("events", b"{".to_vec()));
    assert!(matches!(garbage, Ok(Disposition::Reject(_))), "{garbage:?}");
}
