//! Ordered subscriptions: a message that waits for its next attempt holds back those behind it, and nothing else.

use std::sync::Arc;

use ostler_test_harness::{
    Lab,
    probe::{config_map, write},
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq, RabbitMqClient},
};
use serde_json::{Value, json};

mod embedded {
    use ostler_test_harness::{Lab, run_bounded};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn denied_message_is_handled_in_its_place_once_it_is_granted() {
        run_bounded(super::denied_message_is_handled_in_its_place_once_it_is_granted(
            Lab::embedded().await,
        ))
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiting_message_occupies_no_worker() {
        run_bounded(super::waiting_message_occupies_no_worker(Lab::embedded().await)).await;
    }
}

/// Starts a host with the probe, subscribed to these queues in order, whose retries are an hour away.
async fn start(lab: &mut Lab, queues: &[&str], kinds: &[&str]) -> (Arc<RabbitMq>, RabbitMqClient) {
    let broker = RabbitMq::shared().await;
    let client = broker.connect().await;
    for queue in queues {
        client.declare_queue(&queue_name(lab, queue)).await;
    }
    lab.install(&["tests/probe"]);
    lab.apply(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace}, "stringData": {"password": RABBITMQ_PASSWORD}}))
        .await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace},
        "spec": {"url": broker.url(), "auth": {"basic": {"username": RABBITMQ_USER,
            "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}}}}))
        .await;
    apply_plugin(lab, queues, kinds).await;
    lab.start_host().await;
    (broker, client)
}

/// The broker is shared by tests.
fn queue_name(lab: &Lab, queue: &str) -> String {
    format!("{}-{queue}", lab.namespace)
}

async fn apply_plugin(lab: &Lab, queues: &[&str], kinds: &[&str]) {
    let subscriptions: Vec<Value> = queues
        .iter()
        .map(|queue| {
            json!({"upstream": {"namespace": lab.namespace, "name": "rabbitmq"}, "queue": queue_name(lab, queue),
                "ordered": true, "retry": {"initialDelay": "1h", "maxDelay": "1h"}})
        })
        .collect();
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
    "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
    "spec": {"source": {"file": "probe.wasm"}, "subscriptions": subscriptions, "grants": {
        "reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"]}],
        "kubernetes": [{"kinds": kinds, "verbs": ["create"]}],
    }}}))
    .await;
}

async fn publish_steps(client: &RabbitMqClient, queue: &str, steps: Value) {
    let body = json!({ "steps": steps }).to_string();
    client.publish(queue, body.as_bytes()).await;
}

/// Waits until a message was not handled, which its subscription then reports.
async fn wait_retried(lab: &Lab) {
    lab.wait_until("a message waits for its next attempt", async || {
        let subscriptions = lab.host().services().upstreams.subscriptions.list();
        subscriptions.iter().any(|(_, stats)| {
            let state = stats.state();
            state.is_consuming && !state.message.is_empty()
        })
    })
    .await;
}

/// The new grants replace the consumer that waits, although its message is not due for an hour.
async fn denied_message_is_handled_in_its_place_once_it_is_granted(mut lab: Lab) {
    let (_broker, client) = start(&mut lab, &["orders"], &["Secret"]).await;
    let queue = queue_name(&lab, "orders");
    for name in ["first", "second"] {
        publish_steps(&client, &queue, json!([write("ensure", name, "v")])).await;
    }
    wait_retried(&lab).await;
    assert_eq!(lab.get(&config_map(), "second").await, None, "it overtook");
    apply_plugin(&lab, &["orders"], &["ConfigMap"]).await;
    lab.wait_until("both are handled", async || {
        lab.get(&config_map(), "second").await.is_some()
    })
    .await;
    let version = async |name: &str| {
        let object = lab.get(&config_map(), name).await.expect("it is there");
        let version = object["metadata"]["resourceVersion"]
            .as_str()
            .map(str::parse::<u64>);
        version.expect("a version").expect("a number")
    };
    assert!(version("first").await < version("second").await, "out of order");
    lab.wait_until("the queue is empty", async || {
        client.queue_depth(&queue).await == Some(0)
    })
    .await;
}

/// With one worker the message of another queue is handled while one waits.
async fn waiting_message_occupies_no_worker(mut lab: Lab) {
    lab.settings.workers = 1;
    let (_broker, client) = start(&mut lab, &["waiting", "quick"], &["ConfigMap"]).await;
    publish_steps(&client, &queue_name(&lab, "waiting"), json!([{"do": "fail"}])).await;
    wait_retried(&lab).await;
    let quick = json!([write("ensure", "quick", "v")]);
    publish_steps(&client, &queue_name(&lab, "quick"), quick).await;
    lab.wait_until("the other queue is handled", async || {
        lab.get(&config_map(), "quick").await.is_some()
    })
    .await;
}
