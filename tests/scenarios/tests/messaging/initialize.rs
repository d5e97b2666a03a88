//! A plugin whose `initialize` fails: its queues are not consumed until it has succeeded.

use ostler::testing::plugin::HookState;
use ostler_test_harness::{process::LIFECYCLE_GRANTS, scenario};

use super::*;

/// The queue of the plugin `lifecycle`.
const HELD_QUEUE: &str = "held";

fn configure(lab: &Lab, config: &Value) {
    std::fs::write(lab.settings.plugins.join("lifecycle.yaml"), config.to_string()).expect("written");
}

/// The state of the hooks of the plugin `lifecycle`.
fn read_hooks(lab: &Lab) -> HookState {
    let reports = lab.host().registry().reports();
    let report = reports.into_iter().find(|report| report.name == "lifecycle");
    report.expect("it is loaded").hooks
}

fn read_version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|text| text.parse().ok()).expect("a number")
}

#[scenario]
async fn message_waits_in_its_queue_until_initialize_has_succeeded(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = rabbitmq.connect().await;
    for queue in [QUEUE, HELD_QUEUE] {
        client.declare_queue(queue).await;
    }
    let text = format!(
        "{}{LIFECYCLE_GRANTS}    subscriptions:\n    - {{upstream: {{namespace: {}, name: broker}}, queue: {HELD_QUEUE}}}\n",
        grants(&lab, "[create]", ""),
        lab.namespace
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("grants");
    configure(&lab, &json!({"failure": "the migration is not finished"}));
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    lab.install(&["tests/lifecycle", "tests/probe"]);
    lab.start_host().await;
    lab.wait_until("initialize fails", async || {
        matches!(read_hooks(&lab), HookState::Failed(why) if why.contains("the migration is not finished"))
    })
    .await;
    client.publish(HELD_QUEUE, b"held-until-then").await;
    // The queue of another plugin is consumed meanwhile, from the same broker.
    let ensure = json!([{"do": "ensure", "object": serialize_config_map("neighbour")}]);
    client.publish(QUEUE, &steps(&ensure)).await;
    wait_config_map(&lab, "neighbour").await;
    wait_hooks_run_again(&lab).await;
    assert_eq!(client.queue_depth(HELD_QUEUE).await, Some(1));
    assert_eq!(lab.get(&config_map(), "held-until-then").await, None);
    let subscriptions = lab.host().services().upstreams.subscriptions.list();
    let plugins: Vec<&str> = subscriptions.iter().map(|(key, _)| &*key.plugin).collect();
    assert_eq!(plugins, ["probe"]);

    configure(&lab, &json!({"namespace": lab.namespace}));
    let handled = wait_config_map(&lab, "held-until-then").await;
    assert_eq!(handled["data"]["queue"], HELD_QUEUE);
    let initialized = lab
        .get(&config_map(), "initialized")
        .await
        .expect("it has succeeded");
    assert_eq!(initialized["data"]["times"], "1");
    assert!(
        read_version(&initialized) < read_version(&handled),
        "it was handled before: {handled:#}"
    );
    assert_eq!(read_hooks(&lab), HookState::Done);
    wait_drained(&lab, &rabbitmq).await;
}

/// Waits until `initialize` has failed once more, by another configuration.
async fn wait_hooks_run_again(lab: &Lab) {
    configure(lab, &json!({"failure": "the migration is still not finished"}));
    lab.wait_until(
        "initialize fails again",
        async || matches!(read_hooks(lab), HookState::Failed(why) if why.contains("still not finished")),
    )
    .await;
}
