//! Failures that are not the message's: none loses it, and none dead-letters it.

use std::time::Duration;

use lapin::types::AMQPValue;
use ostler::testing::upstream::HandleResult;
use ostler_test_harness::scenario;

use super::*;

#[scenario]
async fn missing_grant_loses_no_message(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let file = lab.path().join("grants.yaml");
    std::fs::write(&file, grants(&lab, "[get]", "")).expect("written");
    let client = rabbitmq.connect().await;
    client.declare_queue(QUEUE).await;
    lab.settings.grants = Grants::parse(&grants(&lab, "[get]", ""), "grants.yaml").expect("grants");
    lab.settings.grants_file = Some(file.clone());
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    lab.start_probe().await;
    client
        .publish(
            QUEUE,
            &steps(&json!([{"do": "ensure", "object": serialize_config_map("late")}])),
        )
        .await;
    let subscriptions = lab.host().services().upstreams.subscriptions.clone();
    lab.wait_until("the denial is reported", async || {
        let all = subscriptions.list();
        all.iter()
            .any(|(_, stats)| stats.state().message.contains("denied"))
    })
    .await;
    assert!(lab.get(&config_map(), "late").await.is_none());
    std::fs::write(&file, grants(&lab, "[create]", "")).expect("written");
    wait_config_map(&lab, "late").await;
    wait_drained(&lab, &rabbitmq).await;
}

/// Each delivery that counted would dead-letter the message.
const ONE_DELIVERY: &str = ", retry: {initialDelay: 1s, maxDelay: 1s, maxDeliveries: 1}";

/// Waits until a message was not handled twice for a reason, and checks that it is no dead letter.
async fn wait_retried_twice(lab: &Lab, client: &RabbitMqClient, reason: &str) {
    lab.wait_until(&format!("two deliveries end with {reason:?}"), async || {
        let stats = subscription_stats(lab);
        stats.total(HandleResult::Retried) >= 2 && stats.state().message.contains(reason)
    })
    .await;
    let dead_letters = format!("{QUEUE}.dead-letter");
    assert_eq!(
        client.queue_depth(&dead_letters).await,
        None,
        "it was dead-lettered"
    );
}

#[scenario(real = "server-side apply and conflicts")]
async fn write_conflict_loses_no_message(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.apply(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "another one's"},
        "metadata": {"name": "taken", "namespace": lab.namespace}}),
    )
    .await;
    let client = start_subscribed(&mut lab, &rabbitmq, ONE_DELIVERY).await;
    // Its handler does not take the conflict for an earlier delivery.
    let create = json!([{"do": "create", "object": serialize_config_map("taken")}]);
    client.publish(QUEUE, &steps(&create)).await;
    wait_retried_twice(&lab, &client, "conflict").await;
    lab.delete(&config_map(), "taken").await;
    lab.wait_until("the message is handled", async || {
        let object = lab.get(&config_map(), "taken").await.unwrap_or_default();
        object["data"]["a"] == "1"
    })
    .await;
    wait_drained(&lab, &rabbitmq).await;
}

/// Bytes of a message that the free part of its call has no room for.
const LARGE_BODY_BYTES: usize = 3 << 20;

#[scenario]
async fn full_memory_budget_loses_no_message(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.memory_budget = Some(64 << 20);
    lab.settings.limits.timeout = Duration::from_secs(2);
    let client = start_subscribed(&mut lab, &rabbitmq, ONE_DELIVERY).await;
    let lease = lab.host().services().memory.lease();
    // Pool and overdraft, until nothing is left.
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(1), lease.charge(1 << 20)).await {}
    let padding = "x".repeat(LARGE_BODY_BYTES);
    let large = json!([{"do": "ensure", "object": serialize_config_map("large"), "body": padding}]);
    client.publish(QUEUE, &steps(&large)).await;
    // A small one needs no more than what is free for each call.
    let small = json!([{"do": "ensure", "object": serialize_config_map("small")}]);
    client.publish(QUEUE, &steps(&small)).await;
    wait_config_map(&lab, "small").await;
    wait_retried_twice(&lab, &client, "--memory-budget").await;
    assert_eq!(lab.get(&config_map(), "large").await, None);
    drop(lease);
    wait_config_map(&lab, "large").await;
    wait_drained(&lab, &rabbitmq).await;
}

/// Queues of these names exist with other arguments, so that the host cannot declare them.
async fn declare_otherwise(client: &RabbitMqClient, queues: &[&str]) {
    for queue in queues {
        let mut arguments = lapin::types::FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        client
            .declare_queue_with(&format!("{QUEUE}.{queue}"), arguments)
            .await;
    }
}

/// The message waits in its own queue.
#[scenario]
async fn unusable_delay_queue_loses_no_message(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = rabbitmq.connect().await;
    declare_otherwise(&client, &["retry.1s"]).await;
    let retry = ", retry: {initialDelay: 1s, maxDelay: 1s}";
    start_subscribed(&mut lab, &rabbitmq, retry).await;
    let body = json!([{"do": "retry", "milliseconds": 100, "times": 1}, {"do": "record", "name": "seen"}]);
    client.publish(QUEUE, &steps(&body)).await;
    let seen = wait_config_map(&lab, "seen").await;
    assert_eq!(seen["data"]["deliveryCount"], "1");
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn message_is_dead_lettered_although_its_queues_have_another_type(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = rabbitmq.connect().await;
    declare_otherwise(&client, &["retry.1s", "dead-letter"]).await;
    let retry = ", retry: {initialDelay: 1s, maxDelay: 1s, maxDeliveries: 3}";
    start_subscribed(&mut lab, &rabbitmq, retry).await;
    let body = steps(&json!([{"do": "retry", "milliseconds": 10}]));
    client.publish(QUEUE, &body).await;
    let letter = wait_dead_letter(&lab, &client).await;
    assert_eq!(letter.data, body);
    wait_drained(&lab, &rabbitmq).await;
}
