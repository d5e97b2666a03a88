//! The broker of the messaging scenarios: what they rely on when it is killed, stopped and cut off.

use std::path::Path;

use ostler_test_harness::{proxy::Proxy, rabbitmq::RabbitMq, scenario};

#[scenario(embedded = "it needs a broker, and no API server")]
async fn confirmed_messages_survive_when_the_broker_is_killed() {
    let broker = RabbitMq::start().await;
    let client = broker.connect().await;
    client.declare_queue("orders").await;
    for n in 0..20 {
        client.publish("orders", format!("order {n}").as_bytes()).await;
    }
    assert_eq!(client.queue_depth("orders").await, Some(20));
    assert_eq!(client.queue_depth("absent").await, None);
    broker.kill();
    let down = broker.try_connect(broker.address()).await;
    assert!(down.is_err(), "a killed broker accepts connections");
    broker.restart().await;
    let client = broker.connect().await;
    for n in 0..10 {
        let message = client.wait_message("orders").await;
        assert_eq!(message.data, format!("order {n}").as_bytes());
    }
    broker.stop().await;
    broker.restart().await;
    let client = broker.connect().await;
    assert_eq!(client.wait_message("orders").await.data, b"order 10");
    assert_eq!(client.queue_depth("orders").await, Some(9));
    let process = format!("/proc/{}/cmdline", broker.node_id());
    drop(broker);
    assert!(!Path::new(&process).exists(), "the broker still runs");
}

#[scenario(embedded = "it needs a broker, and no API server")]
async fn brokers_of_a_shared_node_have_their_own_queues_and_users() {
    let (one, other) = tokio::join!(RabbitMq::shared(), RabbitMq::shared());
    assert_eq!(one.node_id(), other.node_id());
    let client = one.connect().await;
    client.declare_queue("orders").await;
    assert_eq!(client.queue_depth("orders").await, Some(0));
    assert_eq!(other.connect().await.queue_depth("orders").await, None);
    let proxy = Proxy::start(one.address()).await.expect("a proxy");
    let cut = one.try_connect(proxy.address()).await.expect("a connection");
    cut.declare_queue("through-the-proxy").await;
    proxy.cut_connections();
    let lost = cut.publish_with("", "through-the-proxy", Default::default(), b"lost");
    assert!(lost.await.is_err(), "the connection was not cut");
    let again = one.try_connect(proxy.address()).await.expect("a connection");
    again.publish("through-the-proxy", b"arrives").await;
    one.create_user("reader", "reader-pass-0002", ["^$", "^$", ".*"])
        .await;
    let users = one.control(&["list_users"]).await;
    assert!(users.contains("reader"), "{users}");
}
