//! Dead letters: rejections, and messages beyond `maxDeliveries`, with the reason in a header.

use ostler::testing::upstream::HandleResult;
use ostler_test_harness::scenario;

use super::*;

#[scenario]
async fn rejected_message_is_dead_lettered_with_its_reason(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let body = steps(&json!([{"do": "reject", "body": "no such project"}]));
    client.publish(QUEUE, &body).await;
    let letter = wait_dead_letter(&lab, &client).await;
    assert_eq!(letter.data, body);
    let headers = format!("{:?}", letter.properties.headers());
    assert!(headers.contains("x-ostler-dead-letter-reason"), "{headers}");
    let headers = letter.properties.headers().clone().expect("headers");
    let reason = &headers.inner()["x-ostler-dead-letter-reason"];
    let lapin::types::AMQPValue::LongString(reason) = reason else {
        panic!("{reason:?}")
    };
    assert_eq!(reason.to_string(), "rejected: no such project");
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn garbage_is_dead_lettered_to_its_target(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let settings = ", deadLetter: {routingKey: poison}";
    let client = start_subscribed(&mut lab, &rabbitmq, settings).await;
    client.declare_queue("poison").await;
    // One that the handler can handle is not held back.
    client.publish(QUEUE, b"garbage").await;
    client
        .publish(
            QUEUE,
            &steps(&json!([{"do": "ensure", "object": serialize_config_map("good")}])),
        )
        .await;
    wait_config_map(&lab, "good").await;
    let letter = client.wait_message("poison").await;
    assert_eq!(letter.data, b"garbage");
    wait_drained(&lab, &rabbitmq).await;
}

/// The headers of a dead letter that the host has set: its reason, its queue and its plugin.
fn letter_facts(letter: &lapin::message::Delivery) -> [String; 3] {
    let headers = letter.properties.headers().clone().expect("headers");
    ["reason", "queue", "plugin"].map(|fact| {
        let header = &headers.inner()[&*format!("x-ostler-dead-letter-{fact}")];
        let lapin::types::AMQPValue::LongString(text) = header else {
            panic!("{header:?}")
        };
        text.to_string()
    })
}

#[scenario]
async fn message_beyond_max_deliveries_is_dead_lettered_with_its_reason(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let settings = ", retry: {initialDelay: 1s, maxDelay: 1s, maxDeliveries: 2}";
    let client = start_subscribed(&mut lab, &rabbitmq, settings).await;
    let dead_letters = format!("{QUEUE}.dead-letter");
    for (step, reason) in [
        (
            json!({"do": "retry", "milliseconds": 10}),
            "retried 2 times, as often as maxDeliveries allows",
        ),
        (json!({"do": "trap"}), "in each of 2 deliveries that count"),
    ] {
        let body = steps(&json!([step]));
        client.publish(QUEUE, &body).await;
        lab.wait_until("there is a dead letter", async || {
            client.queue_depth(&dead_letters).await == Some(1)
        })
        .await;
        let letter = client.wait_message(&dead_letters).await;
        assert_eq!(letter.data, body);
        let [why, queue, plugin] = letter_facts(&letter);
        assert!(why.ends_with(reason), "{why}");
        assert_eq!((&*queue, &*plugin), (QUEUE, "probe"));
    }
    // A trap is the build's, until its message is gone.
    lab.wait_until("no trap is reported", async || {
        let reports = lab.host().registry().reports();
        let probe = reports.into_iter().find(|report| report.name == "probe");
        probe.expect("it serves").trapping == 0
    })
    .await;
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn message_larger_than_its_limit_is_dead_lettered(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.limits.bytes_from_host = 64 << 10;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let body = vec![b'x'; (64 << 10) + 1];
    client.publish(QUEUE, &body).await;
    let letter = wait_dead_letter(&lab, &client).await;
    assert_eq!(letter.data, body);
    let [why, ..] = letter_facts(&letter);
    assert!(why.contains("limit bytesFromHost"), "{why}");
    wait_drained(&lab, &rabbitmq).await;
}

/// Neither an exchange that does not exist nor one without a queue takes the message.
#[scenario]
async fn dead_letter_without_a_target_stays_in_its_queue(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let settings = ", deadLetter: {exchange: failed, routingKey: poison}";
    let client = start_subscribed(&mut lab, &rabbitmq, settings).await;
    client.publish(QUEUE, b"garbage").await;
    let wait_returned = async |why: &str| {
        let before = subscription_stats(&lab).total(HandleResult::Requeued);
        lab.wait_until(&format!("it is returned for {why:?}"), async || {
            let stats = subscription_stats(&lab);
            stats.total(HandleResult::Requeued) > before && stats.state().message.contains(why)
        })
        .await;
    };
    wait_returned("no exchange 'failed'").await;
    client
        .declare_exchange("failed", lapin::ExchangeKind::Topic)
        .await;
    wait_returned("no queue is bound for routing key `poison`").await;
    client.declare_queue("poison").await;
    client.bind_queue("poison", "failed", "poison").await;
    let letter = client.wait_message("poison").await;
    assert_eq!(letter.data, b"garbage");
    wait_drained(&lab, &rabbitmq).await;
}
