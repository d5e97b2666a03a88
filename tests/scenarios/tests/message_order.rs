//! Ordered subscriptions: a message that waits for its next attempt holds back those behind it, and nothing else. A leader
//! that hands over hands over each message.

use ostler_test_harness::{
    Lab,
    probe::{config_map, write},
    process::{HostProcess, ProcessOptions, Signal},
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq, RabbitMqClient},
    scenario,
};
use serde_json::{Value, json};

/// Installs the probe, and applies the Upstream of the broker that the tests share, which has these queues.
async fn prepare(lab: &Lab, queues: &[&str]) -> (RabbitMq, RabbitMqClient) {
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
    (broker, client)
}

/// Starts a host with the probe, subscribed to these queues in order, whose retries are an hour away.
async fn start(lab: &mut Lab, queues: &[&str], kinds: &[&str]) -> (RabbitMq, RabbitMqClient) {
    let prepared = prepare(lab, queues).await;
    apply_plugin(lab, queues, kinds, Suspension::Runs).await;
    lab.start_host().await;
    prepared
}

/// The field `suspend` of the Plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspension {
    Runs,
    Suspended,
}

/// The broker is shared by tests.
fn queue_name(lab: &Lab, queue: &str) -> String {
    format!("{}-{queue}", lab.namespace)
}

async fn apply_plugin(lab: &Lab, queues: &[&str], kinds: &[&str], suspension: Suspension) {
    let subscriptions: Vec<Value> = queues
        .iter()
        .map(|queue| {
            json!({"upstream": {"namespace": lab.namespace, "name": "rabbitmq"}, "queue": queue_name(lab, queue),
                "ordered": true, "retry": {"initialDelay": "1h", "maxDelay": "1h"}})
        })
        .collect();
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
    "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
    "spec": {"source": {"file": "probe.wasm"}, "subscriptions": subscriptions,
        "suspend": suspension == Suspension::Suspended, "grants": {
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

/// Publishes two messages, of which the first is denied, and waits until it is.
async fn publish_denied(lab: &Lab, client: &RabbitMqClient, queue: &str) {
    for name in ["first", "second"] {
        publish_steps(client, queue, json!([write("ensure", name, "v")])).await;
    }
    wait_retried(lab).await;
    assert_eq!(lab.get(&config_map(), "second").await, None, "it overtook");
}

/// Waits until both messages are handled, and checks that it was in the order of the queue.
async fn check_order(lab: &Lab, client: &RabbitMqClient, queue: &str) {
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
        client.queue_depth(queue).await == Some(0)
    })
    .await;
}

/// The new grants replace the consumer that waits, although its message is not due for an hour.
#[scenario]
async fn denied_message_is_handled_in_its_place_once_it_is_granted(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    let (_broker, client) = start(&mut lab, &["orders"], &["Secret"]).await;
    let queue = queue_name(&lab, "orders");
    publish_denied(&lab, &client, &queue).await;
    apply_plugin(&lab, &["orders"], &["ConfigMap"], Suspension::Runs).await;
    check_order(&lab, &client, &queue).await;
}

#[scenario]
async fn suspended_plugin_handles_its_message_in_its_place_when_it_resumes(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    let (_broker, client) = start(&mut lab, &["orders"], &["Secret"]).await;
    let queue = queue_name(&lab, "orders");
    publish_denied(&lab, &client, &queue).await;
    apply_plugin(&lab, &["orders"], &["ConfigMap"], Suspension::Suspended).await;
    lab.wait_until("both messages are in the queue", async || {
        client.queue_depth(&queue).await == Some(2)
    })
    .await;
    assert_eq!(lab.get(&config_map(), "first").await, None, "it is suspended");
    apply_plugin(&lab, &["orders"], &["ConfigMap"], Suspension::Runs).await;
    check_order(&lab, &client, &queue).await;
}

/// With one worker the message of another queue is handled while one waits.
#[scenario]
async fn waiting_message_occupies_no_worker(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
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

/// Number of messages of which some are in flight when the leader changes.
const MESSAGE_COUNT: usize = 24;

/// Starts a candidate for the lead.
fn start_candidate(lab: &Lab, name: &str) -> HostProcess {
    let mut arguments = vec!["--identity", name, "--lease-namespace", &lab.namespace];
    arguments.extend(["--lease-duration=3", "--renew-deadline=2", "--retry-period=0.5"]);
    let options = ProcessOptions {
        grants: Some("plugins: {}\n"),
        ..ProcessOptions::default()
    };
    HostProcess::start_with(lab, name, &arguments, options)
}

/// The leader that ends lets the handlers of its messages end, and the next one gets the others. Each message has an effect
/// that is counted, a message of its own, so that one handled twice shows.
#[scenario]
async fn orderly_leader_change_loses_and_doubles_no_message(lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    let (_broker, client) = prepare(&lab, &["orders", "effects"]).await;
    let (orders, effects) = (queue_name(&lab, "orders"), queue_name(&lab, "effects"));
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    client.bind_queue(&effects, "events", "order.done").await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
    "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
    "spec": {"source": {"file": "probe.wasm"},
        "subscriptions": [{"upstream": {"namespace": lab.namespace, "name": "rabbitmq"}, "queue": orders, "prefetch": 4}],
        "grants": {
            "reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"]}],
            "messages": [{"exchanges": ["events"], "routingKeys": ["order.*"]}],
        }}}))
    .await;
    for n in 0..MESSAGE_COUNT {
        let steps = json!([
            {"do": "spin", "milliseconds": 100},
            {"do": "publish", "exchange": "events", "routingKey": "order.done", "body": n.to_string()},
            {"do": "spin", "milliseconds": 100},
        ]);
        publish_steps(&client, &orders, steps).await;
    }
    let wait_effects = async |count: usize| {
        lab.wait_until(&format!("{count} messages have their effects"), async || {
            client.queue_depth(&effects).await >= u32::try_from(count).ok()
        })
        .await;
    };
    let mut leader = start_candidate(&lab, "a");
    wait_effects(MESSAGE_COUNT / 6).await;
    for name in ["b", "c"] {
        let successor = start_candidate(&lab, name);
        successor.wait_started(&lab).await;
        let handled = client.queue_depth(&effects).await.unwrap_or_default();
        leader.send_signal(Signal::TERM);
        leader.wait_exit(&lab).await;
        leader = successor;
        wait_effects((handled as usize + MESSAGE_COUNT / 6).min(MESSAGE_COUNT)).await;
    }
    wait_effects(MESSAGE_COUNT).await;
    // The last leader, too, ends what it has taken.
    leader.send_signal(Signal::TERM);
    leader.wait_exit(&lab).await;
    assert_eq!(client.queue_depth(&orders).await, Some(0), "lost or returned");
    let mut seen = Vec::new();
    while let Some(effect) = client.take(&effects).await {
        let text = String::from_utf8_lossy(&effect.data).into_owned();
        seen.push(text.parse::<usize>().expect("a number"));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..MESSAGE_COUNT).collect::<Vec<_>>());
}
