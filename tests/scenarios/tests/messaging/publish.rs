//! Publishing: confirmed, as granted, behind the fence, and not in a plan.

use std::time::{Duration, Instant};

use ostler::testing::{
    plan::{PlanRequest, plan},
    recording::Retention,
    upstream::HandleResult,
};
use ostler_test_harness::{find_condition, probe, scenario};

use super::*;

#[scenario]
async fn message_is_published_as_granted(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    declare_created(&client).await;
    let publish = |exchange: &str, key: &str, body: &str| {
        json!([{"do": "publish", "name": "broker", "exchange": exchange, "routingKey": key, "body": body,
            "messageId": "m7"}])
    };
    let probes = Gvk::new("tests.ostler.dev", "v1alpha1", "Probe");
    lab.apply_probe("good", publish("events", "order.created", "seven"), json!([]))
        .await;
    lab.wait_ready(&probes, "good").await;
    let message = client.wait_message("created").await;
    assert_eq!(message.data, b"seven");
    assert_eq!(
        message.properties.message_id().as_ref().map(ToString::to_string),
        Some("m7".into())
    );
    assert_eq!(*message.properties.delivery_mode(), Some(2), "persistent");
    lab.apply_probe("denied", publish("events", "stock.changed", "denied"), json!([]))
        .await;
    let denied = lab
        .wait_condition(&probes, "denied", "Ready", "False", "PermissionDenied")
        .await;
    let message = find_condition(&denied, "Ready")["message"].to_string();
    assert!(message.contains("routingKeys"), "{message}");
    // The default exchange reaches any queue, so no pattern covers it.
    lab.apply_probe("default", publish("", "created", "denied"), json!([]))
        .await;
    lab.wait_condition(&probes, "default", "Ready", "False", "PermissionDenied")
        .await;
    // A reconcile that runs again publishes again, by the same id.
    while let Some(message) = client.take("created").await {
        assert_eq!(message.data, b"seven");
    }
    rabbitmq.kill();
    let started = Instant::now();
    lab.wait_condition(&upstreams(), "broker", "Ready", "False", "ConnectionFailed")
        .await;
    lab.apply_probe("down", publish("events", "order.created", "late"), json!([]))
        .await;
    lab.wait_until("the publish has failed", async || {
        let probe = lab.get(&probes, "down").await.unwrap_or_default();
        find_condition(&probe, "Ready")["status"] == "False"
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(60));
    rabbitmq.restart().await;
    lab.wait_ready(&probes, "down").await;
    let client = rabbitmq.connect().await;
    while client.wait_message("created").await.data != b"late" {}
}

#[scenario]
async fn unroutable_message_fails_its_reconcile_until_a_queue_is_bound(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    lab.apply_probe("lost", json!([publish_step("order.lost")]), json!([]))
        .await;
    lab.wait_until("the reconcile fails for it", async || {
        let probe = lab.get(&probe::kind(), "lost").await.unwrap_or_default();
        let ready = find_condition(&probe, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False"
            && message.contains("no queue is bound to exchange `events` for routing key `order.lost`")
    })
    .await;
    client.declare_queue("lost").await;
    client.bind_queue("lost", "events", "order.lost").await;
    lab.wait_ready(&probe::kind(), "lost").await;
    assert_eq!(client.wait_message("lost").await.data, b"b");
}

#[scenario]
async fn planned_message_is_shown_and_not_sent(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    declare_created(&client).await;
    lab.wait_ready(&upstreams(), "broker").await;
    drop(lab.host.take());
    let object = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": "planned", "namespace": lab.namespace},
        "spec": {"steps": [publish_step("order.created")], "cleanup": []}});
    let request = PlanRequest {
        namespace: Some(lab.namespace.clone()),
        default_namespace: lab.namespace.clone(),
        files: vec![("file.yaml".into(), object)],
        ..PlanRequest::default()
    };
    let settings = ostler::HostSettings {
        namespaces: Vec::new(),
        ..lab.settings.clone()
    };
    let report = plan(lab.client.clone(), settings, &request)
        .await
        .expect("a plan");
    let text = format!("{:?}", report.requests);
    let [shown] = &report.requests[..] else {
        panic!("{text}")
    };
    assert_eq!(
        (&*shown.method, &*shown.path),
        ("PUBLISH", "events order.created")
    );
    assert_eq!(client.queue_depth("created").await, Some(0), "it was sent");
    assert_eq!(rabbitmq.count_connections().await, 1, "only that of the test");
}

#[scenario]
async fn replayed_message_and_patch_are_compared_and_not_sent(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.record.retention = Retention::All;
    let client = start_granted(&mut lab, &rabbitmq, "[patch]", "").await;
    declare_created(&client).await;
    lab.wait_ready(&upstreams(), "broker").await;
    lab.apply_config_map("patched", "a", "1").await;
    let patch = json!({"do": "patch", "kind": "ConfigMap", "name": "patched",
        "object": json!({"data": {"v": "2"}}).to_string()});
    lab.apply_probe(
        "effects",
        json!([patch, publish_step("order.created")]),
        json!([]),
    )
    .await;
    lab.wait_ready(&probe::kind(), "effects").await;
    lab.wait_idle().await;
    assert_eq!(client.wait_message("created").await.data, b"b");
    // A reconcile that ran again has published again.
    while client.take("created").await.is_some() {}
    let patched = lab.get(&config_map(), "patched").await.expect("it is there");
    assert_eq!(patched["data"]["v"], "2");

    let recordings = lab.host().services().recordings.list();
    let mut recordings = recordings.iter().map(|kept| kept.to_recording());
    let recorded = recordings.find(|recording| {
        let has = |function: &str| recording.calls.iter().any(|call| call.function == function);
        has("messaging.publish") && has("kubernetes.patch") && recording.end.get("outcome").is_some()
    });
    let recorded = recorded.expect("the reconcile is recorded");
    let count = recorded.calls.len();
    let replayed = replay_probe(recorded).await;
    assert!(replayed.same, "{replayed:?}");
    assert_eq!(
        (replayed.calls, &*replayed.ended),
        (count, "outcome"),
        "{replayed:?}"
    );
    // The next message of the queue is the test's.
    client.publish("created", b"after the replay").await;
    assert_eq!(client.wait_message("created").await.data, b"after the replay");
    let after = lab.get(&config_map(), "patched").await.expect("it is there");
    assert_eq!(
        after["metadata"]["resourceVersion"],
        patched["metadata"]["resourceVersion"]
    );
}

/// The handler computes when the lead is lost, and would publish afterwards. In the next term the message is delivered
/// again.
#[scenario]
async fn deposed_leader_publishes_nothing(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    declare_created(&client).await;
    let publish = |body: &str| {
        let mut step = publish_step("order.created");
        step["body"] = body.into();
        step
    };
    let body = steps(&json!([{"do": "spin", "milliseconds": 600}, publish("of the message")]));
    client.publish(QUEUE, &body).await;
    lab.wait_until("its handler runs", async || {
        subscription_stats(&lab).in_flight() == 1
    })
    .await;
    let fence = lab.host().services().fence.clone();
    let term = fence.term().expect("it leads");
    fence.close();
    lab.apply_probe("meanwhile", json!([publish("of the Probe")]), json!([]))
        .await;
    lab.wait_until("the message is back in its queue", async || {
        client.queue_depth(QUEUE).await == Some(1)
    })
    .await;
    assert_eq!(client.queue_depth("created").await, Some(0), "it published");
    fence.open_until(term + 1, Instant::now() + Duration::from_secs(3600));
    lab.wait_ready(&probe::kind(), "meanwhile").await;
    lab.wait_until("the message is handled", async || {
        subscription_stats(&lab).total(HandleResult::Acknowledged) == 1
    })
    .await;
    let mut of_message = 0;
    while let Some(message) = client.take("created").await {
        of_message += usize::from(message.data == b"of the message");
    }
    assert_eq!(of_message, 1);
}
