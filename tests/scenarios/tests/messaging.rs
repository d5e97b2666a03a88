//! Messages to and from a real RabbitMQ.

mod broker;
mod consume;
mod dead_letters;
mod failures;
mod initialize;
mod memory;
mod observe;
mod publish;
mod rate;

use std::sync::Arc;

use ostler::testing::{
    engine::Engine,
    grants::Grants,
    inspection,
    key::Gvk,
    limits::PluginLimits,
    recording::format::Recording,
    replay::{Replayed, replay},
    upstream::SubscriptionStats,
};
use ostler_test_harness::{
    Lab,
    probe::config_map,
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq, RabbitMqClient},
    read_component,
};
use serde_json::{Value, json};

fn upstreams() -> Gvk {
    ostler::testing::upstream::upstream_gvk()
}

/// An Upstream `broker` with this URL, whose password is in the Secret `broker`.
pub(crate) fn broker(lab: &Lab, url: &str, tls: Option<Value>) -> Value {
    let mut spec = json!({"url": url, "auth": {"basic": {"username": RABBITMQ_USER,
        "passwordSecretRef": {"name": "broker", "key": "password"}}}});
    if let Some(tls) = tls {
        spec["tls"] = tls;
    }
    json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "broker", "namespace": lab.namespace}, "spec": spec})
}

pub(crate) fn secret(lab: &Lab, key: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "broker", "namespace": lab.namespace},
        "stringData": {key: value}})
}

/// The queue that the probe is subscribed to.
pub(crate) const QUEUE: &str = "orders";

/// Grants of the probe, with a subscription to [`QUEUE`] that has these further settings.
fn grants(lab: &Lab, verbs: &str, settings: &str) -> String {
    let namespace = &lab.namespace;
    let retry = match settings.contains("retry:") {
        true => "",
        false => ", retry: {initialDelay: 1s, maxDelay: 2s}",
    };
    format!(
        "plugins:
  probe:
    reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}]
    kubernetes: [{{kinds: [ConfigMap], verbs: {verbs}, namespaces: ['*']}}]
    messages: [{{exchanges: [events], routingKeys: [order.*]}}]
    subscriptions:
    - {{upstream: {{namespace: {namespace}, name: broker}}, queue: {QUEUE}{retry}{settings}}}
"
    )
}

/// Starts a host with the probe, which is subscribed to a queue of the broker.
async fn start_subscribed(lab: &mut Lab, rabbitmq: &RabbitMq, settings: &str) -> RabbitMqClient {
    start_granted(lab, rabbitmq, "[apply, create]", settings).await
}

/// The same with these verbs for ConfigMaps.
async fn start_granted(lab: &mut Lab, rabbitmq: &RabbitMq, verbs: &str, settings: &str) -> RabbitMqClient {
    let client = rabbitmq.connect().await;
    client.declare_queue(QUEUE).await;
    let text = grants(lab, verbs, settings);
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("grants");
    lab.apply(secret(lab, "password", RABBITMQ_PASSWORD)).await;
    lab.apply(broker(lab, &rabbitmq.url(), None)).await;
    lab.start_probe().await;
    client
}

fn steps(steps: &Value) -> Vec<u8> {
    json!({ "steps": steps }).to_string().into_bytes()
}

fn serialize_config_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
        .to_string()
}

async fn wait_config_map(lab: &Lab, name: &str) -> Value {
    lab.wait_until(&format!("ConfigMap {name} exists"), async || {
        lab.get(&config_map(), name).await.is_some()
    })
    .await;
    lab.get(&config_map(), name).await.expect("it exists")
}

/// State and counters of the subscription.
fn subscription_stats(lab: &Lab) -> Arc<SubscriptionStats> {
    let subscriptions = lab.host().services().upstreams.subscriptions.list();
    let [(_, stats)] = &subscriptions[..] else {
        return Arc::default();
    };
    stats.clone()
}

/// Runs the probe against a recording, in an engine of its own without access to cluster and broker.
async fn replay_probe(recording: Recording) -> Replayed {
    let wasm = read_component("tests/probe");
    let inspection = inspection::inspect(&wasm).expect("a component");
    let engine = Engine::new(2, PluginLimits::default().memory, None, None).expect("an engine");
    let compiled = engine.compile(&wasm, inspection.wasi).expect("it compiles");
    let replayed = replay(&engine, &compiled, Arc::new(recording)).await;
    replayed.expect("it replays")
}

/// Waits until no message is in any of the queues, ready or unacknowledged.
async fn wait_drained(lab: &Lab, rabbitmq: &RabbitMq) {
    lab.wait_until("all queues are empty", async || rabbitmq.is_drained().await)
        .await;
}

/// Declares the exchange `events`, and the queue `created`, which gets its messages with the key `order.created`.
async fn declare_created(client: &RabbitMqClient) {
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    client.declare_queue("created").await;
    client.bind_queue("created", "events", "order.created").await;
}

/// Waits for the only dead letter of the subscription.
async fn wait_dead_letter(lab: &Lab, client: &RabbitMqClient) -> lapin::message::Delivery {
    let dead_letters = format!("{QUEUE}.dead-letter");
    lab.wait_until("there is a dead letter", async || {
        client.queue_depth(&dead_letters).await == Some(1)
    })
    .await;
    client.wait_message(&dead_letters).await
}

/// A step of a Probe that publishes to the exchange `events`.
fn publish_step(routing_key: &str) -> Value {
    json!({"do": "publish", "name": "broker", "exchange": "events", "routingKey": routing_key, "body": "b"})
}
