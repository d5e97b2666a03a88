//! Consuming: effects before the acknowledgement, retries, restarts, recordings.

use std::sync::Mutex;

use lapin::types::{AMQPValue, FieldTable};
use ostler::testing::{engine::Inspector, plugin::LoadState, recording::Retention};
use ostler_test_harness::{read_component, scenario, with_note};

use super::*;

#[scenario]
async fn message_is_acknowledged_after_its_effects(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    for n in 0..20 {
        let name = format!("order-{n}");
        client
            .publish(
                QUEUE,
                &steps(&json!([{"do": "ensure", "object": serialize_config_map(&name)}])),
            )
            .await;
    }
    client
        .publish(QUEUE, &steps(&json!([{"do": "record", "name": "seen"}])))
        .await;
    for n in 0..20 {
        wait_config_map(&lab, &format!("order-{n}")).await;
    }
    let seen = wait_config_map(&lab, "seen").await;
    assert_eq!(
        (&seen["data"]["queue"], &seen["data"]["deliveryCount"]),
        (&json!(QUEUE), &json!("0"))
    );
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn message_is_delivered_again_after_its_delay(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    client.bind_queue(QUEUE, "events", "order.#").await;
    let body =
        steps(&json!([{"do": "retry", "milliseconds": 100, "times": 2}, {"do": "record", "name": "seen"}]));
    let properties = lapin::BasicProperties::default().with_message_id("m1".into());
    client
        .publish_with("events", "order.created", properties, &body)
        .await
        .expect("published");
    let seen = wait_config_map(&lab, "seen").await;
    let data = &seen["data"];
    assert_eq!(data["deliveryCount"], "2", "{data}");
    // It came back by a delay queue, and still has what its publisher gave it.
    assert_eq!(
        (&data["exchange"], &data["routingKey"]),
        (&json!("events"), &json!("order.created")),
        "{data}"
    );
    assert_eq!(data["messageId"], "m1");
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn ordered_subscription_keeps_the_order_of_retried_messages(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, ", ordered: true").await;
    client
        .publish(
            QUEUE,
            &steps(
                &json!([{"do": "retry", "milliseconds": 500, "times": 2}, {"do": "record", "name": "first"}]),
            ),
        )
        .await;
    client
        .publish(QUEUE, &steps(&json!([{"do": "record", "name": "second"}])))
        .await;
    wait_config_map(&lab, "second").await;
    let first = lab
        .get(&config_map(), "first")
        .await
        .expect("it was handled before");
    assert_eq!(first["data"]["deliveryCount"], "2");
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn messages_survive_restarts_of_broker_and_host(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, ", prefetch: 4").await;
    let order = |n: usize| {
        steps(
            &json!([{"do": "spin", "milliseconds": 20}, {"do": "ensure", "object": serialize_config_map(&format!("order-{n}"))}]),
        )
    };
    for n in 0..20 {
        client.publish(QUEUE, &order(n)).await;
    }
    wait_config_map(&lab, "order-0").await;
    rabbitmq.kill();
    rabbitmq.restart().await;
    let client = rabbitmq.connect().await;
    for n in 20..30 {
        client.publish(QUEUE, &order(n)).await;
    }
    wait_config_map(&lab, "order-20").await;
    lab.host = None;
    for n in 30..40 {
        client.publish(QUEUE, &order(n)).await;
    }
    lab.start_host().await;
    for n in 0..40 {
        wait_config_map(&lab, &format!("order-{n}")).await;
    }
    wait_drained(&lab, &rabbitmq).await;
}

#[scenario]
async fn message_is_recorded_and_replays(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.record.retention = Retention::All;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .publish(
            QUEUE,
            &steps(&json!([{"do": "ensure", "object": serialize_config_map("recorded")}])),
        )
        .await;
    wait_config_map(&lab, "recorded").await;
    let recordings = lab.host().services().recordings.clone();
    lab.wait_until("the call is recorded", async || {
        recordings.list().iter().any(|r| r.summary().function == "handle")
    })
    .await;
    let recorded = recordings.list();
    let recorded = recorded
        .iter()
        .find(|r| r.summary().function == "handle")
        .expect("it is there");
    assert_eq!(recorded.summary().ended, "acknowledged");
    let replayed = replay_probe(recorded.to_recording()).await;
    assert!(replayed.same && replayed.calls > 0, "{replayed:?}");
}

/// The publisher has put it into the body, a property and a header. The handler writes the body into an object.
#[scenario]
async fn password_of_the_broker_is_redacted_in_messages(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let found = Arc::new(Mutex::new((0_u32, 0_u32)));
    let counts = found.clone();
    lab.settings.record.retention = Retention::All;
    lab.settings.inspect = Some(Inspector::new(move |memory: &[u8]| {
        let mut counts = counts.lock().expect("lock");
        counts.0 += 1;
        counts.1 += u32::from(memchr::memmem::find(memory, RABBITMQ_PASSWORD.as_bytes()).is_some());
    }));
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "redacted"},
        "data": {"login": format!("ostler:{RABBITMQ_PASSWORD}@broker")}});
    let body = steps(
        &json!([{"do": "apply", "object": object.to_string()}, {"do": "record", "name": "seen"},
        {"do": "reject", "body": "it is seen"}]),
    );
    let mut headers = FieldTable::default();
    headers.insert(
        "note".into(),
        AMQPValue::LongString(format!("login with {RABBITMQ_PASSWORD}").as_str().into()),
    );
    let properties = lapin::BasicProperties::default()
        .with_type(RABBITMQ_PASSWORD.into())
        .with_headers(headers);
    let published = client.publish_with("", QUEUE, properties, &body).await;
    published.expect("the broker confirms");
    let letter = wait_dead_letter(&lab, &client).await;
    assert_eq!(letter.data, body, "the message itself is not changed");
    let redacted = wait_config_map(&lab, "redacted").await;
    assert_eq!(redacted["data"]["login"], "ostler:***@broker");
    assert_eq!(wait_config_map(&lab, "seen").await["data"]["type"], "***");
    let (calls, leaks) = *found.lock().expect("lock");
    assert!(
        calls > 0 && leaks == 0,
        "it is in the memory of {leaks} of {calls} calls"
    );
    let recordings = lab.host().services().recordings.clone();
    lab.wait_until("the call is recorded", async || {
        recordings.list().iter().any(|r| r.summary().function == "handle")
    })
    .await;
    let recorded = recordings.list();
    let mut texts = recorded.iter().map(|r| r.to_recording().to_text());
    assert!(
        texts.all(|text| !text.contains(RABBITMQ_PASSWORD)),
        "in a recording"
    );
}

/// Three messages on which the new build traps are enough. Each traps once.
#[scenario]
async fn build_that_traps_on_messages_is_rolled_back(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.settings.record.retention = Retention::All;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let report = || {
        let reports = lab.host().registry().reports();
        let found = reports.into_iter().find(|report| report.name == "probe");
        found.expect("the probe")
    };
    client
        .publish(QUEUE, &steps(&json!([{"do": "record", "name": "seen"}])))
        .await;
    wait_config_map(&lab, "seen").await;
    let good = report().digest;
    lab.install_bytes("probe", &with_note(&read_component("tests/probe"), "other build"));
    lab.wait_until("the other build serves", async || report().digest != good)
        .await;
    // The consumer of the build before takes messages until it is replaced.
    let recordings = lab.host().services().recordings.clone();
    let is_handled_by_other = || {
        let recorded = recordings.list();
        let mut summaries = recorded.iter().map(|recording| recording.summary());
        summaries.any(|summary| summary.function == "handle" && summary.digest != good)
    };
    for n in 0.. {
        let name = format!("next-{n}");
        client
            .publish(QUEUE, &steps(&json!([{"do": "record", "name": name}])))
            .await;
        wait_config_map(&lab, &name).await;
        if is_handled_by_other() {
            break;
        }
    }
    for n in 0..3 {
        let name = format!("trap-{n}");
        let body = json!([{"do": "trap", "times": 1}, {"do": "record", "name": name}]);
        client.publish(QUEUE, &steps(&body)).await;
    }
    lab.wait_until("it is rolled back", async || {
        let report = report();
        report.state == LoadState::RolledBack && report.digest == good
    })
    .await;
    let why = report().message;
    assert!(why.contains("3 objects or messages trapped"), "{why}");
    for n in 0..3 {
        wait_config_map(&lab, &format!("trap-{n}")).await;
    }
    wait_drained(&lab, &rabbitmq).await;
}

/// A header of the host's own.
fn own_headers(list: &[(&str, AMQPValue)]) -> lapin::BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in list {
        headers.insert((*name).into(), value.clone());
    }
    lapin::BasicProperties::default().with_headers(headers)
}

#[scenario]
async fn history_of_a_message_is_believed_from_the_host_only(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(
        &mut lab,
        &rabbitmq,
        ", retry: {maxDeliveries: 2, initialDelay: 1s}",
    )
    .await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let forged = own_headers(&[
        ("x-ostler-deliveries", AMQPValue::LongLongInt(7)),
        ("x-ostler-attempts", AMQPValue::LongLongInt(7)),
        ("x-ostler-exchange", text("payments")),
        ("x-ostler-routing-key", text("paid")),
        ("x-ostler-user-id", text("accounting")),
    ]);
    // With these attempts the first retry would be a dead letter.
    let body = json!([{"do": "record", "name": "first", "times": 1}, {"do": "retry", "milliseconds": 10, "times": 1},
        {"do": "record", "name": "second"}]);
    let published = client.publish_with("", QUEUE, forged, &steps(&body)).await;
    published.expect("the broker confirms");
    for (name, deliveries) in [("first", "0"), ("second", "1")] {
        let seen = wait_config_map(&lab, name).await;
        let data =
            ["exchange", "routingKey", "deliveryCount"].map(|key| seen["data"][key].as_str().unwrap_or("-"));
        assert_eq!(data, ["", QUEUE, deliveries], "{name}");
        assert!(seen["data"]["userId"].is_null(), "{seen}");
    }
    wait_drained(&lab, &rabbitmq).await;
}
