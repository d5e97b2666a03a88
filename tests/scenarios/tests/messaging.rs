//! Messages to and from a real RabbitMQ.

use std::time::Duration;

use ostler::testing::{
    engine::Engine,
    grants::Grants,
    inspection,
    key::Gvk,
    limits::Limits,
    plan::{PlanRequest, plan},
    plugin::LoadState,
    recording::Retention,
    replay::replay,
};
use ostler_test_harness::{
    Lab, captured_logs, find_condition, probe,
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq, RabbitMqClient},
    read_component, scenarios, with_note,
};
use serde_json::{Value, json};

scenarios!(
    message_is_published_as_granted,
    message_is_acknowledged_after_its_effects,
    message_is_delivered_again_after_its_delay,
    rejected_message_is_dead_lettered_with_its_reason,
    garbage_is_dead_lettered_to_its_target,
    message_beyond_max_deliveries_is_dead_lettered_with_its_reason,
    unroutable_message_fails_its_reconcile_until_a_queue_is_bound,
    planned_message_is_shown_and_not_sent,
    build_that_traps_on_messages_is_rolled_back,
    missing_grant_loses_no_message,
    messages_survive_restarts_of_broker_and_host,
    ordered_subscription_keeps_the_order_of_retried_messages,
    message_is_recorded_and_replays,
    broker_becomes_ready_and_recovers_from_restart,
    rotated_password_of_broker_is_used_at_once,
    broker_with_own_authority_is_verified,
);

fn upstreams() -> Gvk {
    ostler::testing::upstream::upstream_gvk()
}

/// An Upstream `broker` with this URL, whose password is in the Secret `broker`.
fn broker(lab: &Lab, url: &str, tls: Option<Value>) -> Value {
    let mut spec = json!({"url": url, "auth": {"basic": {"username": RABBITMQ_USER,
        "passwordSecretRef": {"name": "broker", "key": "password"}}}});
    if let Some(tls) = tls {
        spec["tls"] = tls;
    }
    json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "broker", "namespace": lab.namespace}, "spec": spec})
}

fn secret(lab: &Lab, key: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "broker", "namespace": lab.namespace},
        "stringData": {key: value}})
}

fn condition_text(object: &Value, kind: &str) -> String {
    let found = find_condition(object, kind);
    let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
    format!("{} ({})", text("status"), text("reason"))
}

/// The queue that the probe is subscribed to.
const QUEUE: &str = "orders";

fn config_maps() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

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
    let client = rabbitmq.connect().await;
    client.declare_queue(QUEUE).await;
    let text = grants(lab, "[apply, create]", settings);
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("grants");
    lab.apply(secret(lab, "password", RABBITMQ_PASSWORD)).await;
    lab.apply(broker(lab, &rabbitmq.url(), None)).await;
    lab.start_probe().await;
    client
}

fn steps(steps: &Value) -> Vec<u8> {
    json!({ "steps": steps }).to_string().into_bytes()
}

fn config_map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
        .to_string()
}

async fn wait_config_map(lab: &Lab, name: &str) -> Value {
    lab.wait_until(&format!("ConfigMap {name} exists"), async || {
        lab.get(&config_maps(), name).await.is_some()
    })
    .await;
    lab.get(&config_maps(), name).await.expect("it exists")
}

/// Waits until no message is in any of the queues, ready or unacknowledged.
async fn wait_drained(lab: &Lab, rabbitmq: &RabbitMq) {
    lab.wait_until("all queues are empty", async || {
        let queues = rabbitmq
            .control(&[
                "list_queues",
                "--vhost",
                "tests",
                "--no-table-headers",
                "messages",
            ])
            .await;
        queues.split_whitespace().all(|messages| messages == "0")
    })
    .await;
}

async fn message_is_published_as_granted(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    client.declare_queue("created").await;
    client.bind_queue("created", "events", "order.created").await;
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
    let started = std::time::Instant::now();
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

async fn message_is_acknowledged_after_its_effects(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    for n in 0..20 {
        let name = format!("order-{n}");
        client
            .publish(
                QUEUE,
                &steps(&json!([{"do": "ensure", "object": config_map(&name)}])),
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

async fn message_is_delivered_again_after_its_delay(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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

async fn rejected_message_is_dead_lettered_with_its_reason(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let body = steps(&json!([{"do": "reject", "body": "no such project"}]));
    client.publish(QUEUE, &body).await;
    let dead_letters = format!("{QUEUE}.dead-letter");
    lab.wait_until("there is a dead letter", async || {
        client.queue_depth(&dead_letters).await == Some(1)
    })
    .await;
    let letter = client.wait_message(&dead_letters).await;
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

async fn garbage_is_dead_lettered_to_its_target(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let settings = ", deadLetter: {routingKey: poison}";
    let client = start_subscribed(&mut lab, &rabbitmq, settings).await;
    client.declare_queue("poison").await;
    // One that the handler can handle is not held back.
    client.publish(QUEUE, b"garbage").await;
    client
        .publish(
            QUEUE,
            &steps(&json!([{"do": "ensure", "object": config_map("good")}])),
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

async fn message_beyond_max_deliveries_is_dead_lettered_with_its_reason(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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

/// A step of a Probe that publishes to the exchange `events`.
fn publish_step(routing_key: &str) -> Value {
    json!({"do": "publish", "name": "broker", "exchange": "events", "routingKey": routing_key, "body": "b"})
}

async fn unroutable_message_fails_its_reconcile_until_a_queue_is_bound(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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

async fn planned_message_is_shown_and_not_sent(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await;
    client.declare_queue("created").await;
    client.bind_queue("created", "events", "order.created").await;
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
    let settings = ostler::Settings {
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
    let connections = rabbitmq
        .control(&["list_connections", "--no-table-headers", "client_properties"])
        .await;
    assert_eq!(connections.lines().count(), 1, "besides the test: {connections}");
}

/// Three messages on which the new build traps are enough. Each traps once.
async fn build_that_traps_on_messages_is_rolled_back(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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

async fn missing_grant_loses_no_message(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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
            &steps(&json!([{"do": "ensure", "object": config_map("late")}])),
        )
        .await;
    let subscriptions = lab.host().services().upstreams.subscriptions.clone();
    lab.wait_until("the denial is reported", async || {
        let all = subscriptions.list();
        all.iter()
            .any(|(_, stats)| stats.state().message.contains("denied"))
    })
    .await;
    assert!(lab.get(&config_maps(), "late").await.is_none());
    std::fs::write(&file, grants(&lab, "[create]", "")).expect("written");
    wait_config_map(&lab, "late").await;
    wait_drained(&lab, &rabbitmq).await;
}

async fn messages_survive_restarts_of_broker_and_host(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let client = start_subscribed(&mut lab, &rabbitmq, ", prefetch: 4").await;
    let order = |n: usize| {
        steps(
            &json!([{"do": "spin", "milliseconds": 20}, {"do": "ensure", "object": config_map(&format!("order-{n}"))}]),
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

async fn ordered_subscription_keeps_the_order_of_retried_messages(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
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
        .get(&config_maps(), "first")
        .await
        .expect("it was handled before");
    assert_eq!(first["data"]["deliveryCount"], "2");
    wait_drained(&lab, &rabbitmq).await;
}

async fn message_is_recorded_and_replays(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    lab.settings.record.retention = Retention::All;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    client
        .publish(
            QUEUE,
            &steps(&json!([{"do": "ensure", "object": config_map("recorded")}])),
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
    let wasm = read_component("tests/probe");
    let inspection = inspection::inspect(&wasm).expect("a component");
    let engine = Engine::new(2, Limits::default().memory, None, None).expect("an engine");
    let compiled = engine.compile(&wasm, inspection.wasi).expect("it compiles");
    let replayed = replay(&engine, &compiled, std::sync::Arc::new(recorded.to_recording()))
        .await
        .expect("it replays");
    assert!(replayed.same && replayed.calls > 0, "{replayed:?}");
}

async fn broker_becomes_ready_and_recovers_from_restart(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.start_host().await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    let object = lab.wait_ready(&upstreams(), "broker").await;
    assert_eq!(condition_text(&object, "Connected"), "True (Connected)");
    assert_eq!(condition_text(&object, "Authenticated"), "True (LoggedIn)");
    let connections = rabbitmq.control(&["list_connections", "user"]).await;
    assert_eq!(connections.matches(RABBITMQ_USER).count(), 1, "{connections}");
    rabbitmq.kill();
    lab.wait_condition(&upstreams(), "broker", "Ready", "False", "ConnectionFailed")
        .await;
    rabbitmq.restart().await;
    lab.wait_ready(&upstreams(), "broker").await;
    // An orderly stop of the broker closes the connection by AMQP, not by the stream.
    rabbitmq.stop().await;
    lab.wait_condition(&upstreams(), "broker", "Ready", "False", "ConnectionFailed")
        .await;
    rabbitmq.restart().await;
    lab.wait_ready(&upstreams(), "broker").await;
    lab.delete(&upstreams(), "broker").await;
    lab.wait_until("its connection is closed", async || {
        !rabbitmq
            .control(&["list_connections", "user"])
            .await
            .contains(RABBITMQ_USER)
    })
    .await;
}

async fn rotated_password_of_broker_is_used_at_once(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    lab.apply(secret(&lab, "password", "not-the-password")).await;
    lab.start_host().await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    let object = lab
        .wait_condition(
            &upstreams(),
            "broker",
            "Authenticated",
            "False",
            "AuthenticationFailed",
        )
        .await;
    assert_eq!(condition_text(&object, "Connected"), "True (Connected)");
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.wait_ready(&upstreams(), "broker").await;
    for password in ["not-the-password", RABBITMQ_PASSWORD] {
        assert!(!captured_logs().contains(password), "a password in the log");
    }
}

async fn broker_with_own_authority_is_verified(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.start_host().await;
    lab.apply(broker(&lab, &rabbitmq.tls_url(), None)).await;
    lab.wait_condition(&upstreams(), "broker", "Ready", "False", "TLSHandshakeFailed")
        .await;
    let mut trusted = secret(&lab, "password", RABBITMQ_PASSWORD);
    trusted["stringData"]["ca.crt"] = rabbitmq.certificate().into();
    lab.apply(trusted).await;
    let tls = json!({"caSecretRef": {"name": "broker", "key": "ca.crt"}});
    lab.apply(broker(&lab, &rabbitmq.tls_url(), Some(tls))).await;
    lab.wait_ready(&upstreams(), "broker").await;
}
