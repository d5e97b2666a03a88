//! Messages per second through the host, beside a client that does the same with neither plugin nor host:
//! `cargo test -p ostler-scenarios -- --ignored --nocapture messaging::rate::`.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{DynamicObject, PostParams};
use lapin::{
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use ostler::testing::upstream::HandleResult;
use ostler_test_harness::{probe, run_bounded};

use super::*;

/// Messages that are consumed.
const CONSUMED_COUNT: usize = 1000;
/// Messages in flight, and publishers.
const CONCURRENT_COUNT: usize = 8;
/// Messages of each publisher.
const PUBLISHED_COUNT: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, for docs/messaging.md"]
async fn messages_per_second_are_printed() {
    run_bounded(measure(Lab::embedded().await)).await;
}

async fn measure(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = rabbitmq.connect().await;
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    for queue in [QUEUE, "direct", "created", "created-directly"] {
        client.declare_queue(queue).await;
    }
    client.bind_queue("created", "events", "order.created").await;
    for n in 0..CONSUMED_COUNT {
        let create = json!([{"do": "ensure", "object": serialize_config_map(&format!("order-{n}"))}]);
        client.publish(QUEUE, &steps(&create)).await;
        let object = serialize_config_map(&format!("direct-{n}"));
        client.publish("direct", object.as_bytes()).await;
    }
    let by_client = consume_directly(&lab, &client).await;
    start_subscribed(&mut lab, &rabbitmq, "").await;
    let by_host = measure_consumed(&lab).await;
    print_rates("consume, create an object, acknowledge", by_host, by_client);
    let by_client = publish_directly(&rabbitmq).await;
    let by_host = measure_published(&lab, &client).await;
    print_rates("publish and wait for the confirmation", by_host, by_client);
}

fn print_rates(task: &str, by_host: f64, by_client: f64) {
    println!(
        "{task}: {by_host:.0}/s by the host, {by_client:.0}/s by a client, ratio {:.2}",
        by_host / by_client
    );
}

fn rate(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

/// Consumes as many messages at a time as the host does, with the clients that the host uses.
async fn consume_directly(lab: &Lab, client: &RabbitMqClient) -> f64 {
    let channel = client.channel();
    let prefetch = u16::try_from(CONCURRENT_COUNT).expect("a small number");
    let limited = channel.basic_qos(prefetch, BasicQosOptions::default());
    limited.await.expect("a channel");
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume("direct".into(), "".into(), options, FieldTable::default());
    let consumer = consumer.await.expect("a consumer");
    let api = lab.api(&config_map(), &lab.namespace);
    let started = Instant::now();
    let handled = consumer.take(CONSUMED_COUNT);
    let handle = async |delivery: lapin::Result<lapin::message::Delivery>| {
        let delivery = delivery.expect("a message");
        let object: DynamicObject = serde_json::from_slice(&delivery.data).expect("an object");
        let parameters = PostParams::default();
        api.create(&parameters, &object).await.expect("created");
        let acknowledged = delivery.ack(BasicAckOptions::default());
        acknowledged.await.expect("acknowledged");
    };
    handled.for_each_concurrent(CONCURRENT_COUNT, handle).await;
    rate(CONSUMED_COUNT, started)
}

/// The rate from the first acknowledgement on, without the start of the host.
async fn measure_consumed(lab: &Lab) -> f64 {
    let wait_acknowledged = async |count: u64| {
        loop {
            let total = subscription_stats(lab).total(HandleResult::Acknowledged);
            if total >= count {
                return total as usize;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let before = wait_acknowledged(1).await;
    let started = Instant::now();
    let all = wait_acknowledged(CONSUMED_COUNT as u64).await;
    rate(all - before, started)
}

async fn publish_directly(rabbitmq: &RabbitMq) -> f64 {
    let clients = (0..CONCURRENT_COUNT).map(|_| rabbitmq.connect());
    let clients = futures::future::join_all(clients).await;
    let started = Instant::now();
    let publishing = clients.iter().map(async |client| {
        for _ in 0..PUBLISHED_COUNT {
            client.publish("created-directly", b"b").await;
        }
    });
    futures::future::join_all(publishing).await;
    rate(CONCURRENT_COUNT * PUBLISHED_COUNT, started)
}

/// The rate of Probes that publish one message after the other.
async fn measure_published(lab: &Lab, client: &RabbitMqClient) -> f64 {
    let publish = json!(vec![publish_step("order.created"); PUBLISHED_COUNT]);
    let started = Instant::now();
    for n in 0..CONCURRENT_COUNT {
        lab.apply_probe(&format!("publisher-{n}"), publish.clone(), json!([]))
            .await;
    }
    for n in 0..CONCURRENT_COUNT {
        lab.wait_ready(&probe::kind(), &format!("publisher-{n}")).await;
    }
    let published = client.queue_depth("created").await.expect("a queue");
    rate(published as usize, started)
}
