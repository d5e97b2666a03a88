//! The broker as an Upstream: its health, its password and its TLS.

use ostler_test_harness::{captured_logs, find_condition, scenario};

use super::*;

fn condition_text(object: &Value, kind: &str) -> String {
    let found = find_condition(object, kind);
    let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
    format!("{} ({})", text("status"), text("reason"))
}

#[scenario]
async fn broker_becomes_ready_and_recovers_from_restart(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    lab.apply(secret(&lab, "password", RABBITMQ_PASSWORD)).await;
    lab.start_host().await;
    lab.apply(broker(&lab, &rabbitmq.url(), None)).await;
    let object = lab.wait_ready(&upstreams(), "broker").await;
    assert_eq!(condition_text(&object, "Connected"), "True (Connected)");
    assert_eq!(condition_text(&object, "Authenticated"), "True (LoggedIn)");
    assert_eq!(rabbitmq.count_connections().await, 1);
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
        rabbitmq.count_connections().await == 0
    })
    .await;
}

#[scenario]
async fn rotated_password_of_broker_is_used_at_once(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
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

#[scenario]
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

/// Waits until the subscription of the probe is consumed, or is not.
async fn wait_consuming(lab: &Lab, expected: bool) {
    lab.wait_until(&format!("is_consuming is {expected}"), async || {
        subscription_stats(lab).state().is_consuming == expected
    })
    .await;
}

#[scenario]
async fn consumer_ends_with_the_credentials_and_the_address_of_its_upstream(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let upstream = broker(&lab, &rabbitmq.url(), None);
    let mut elsewhere = upstream.clone();
    elsewhere["spec"]["url"] = "http://127.0.0.1:1".into();
    let mut without_password = secret(&lab, "password", RABBITMQ_PASSWORD);
    without_password["stringData"] = json!({"another": "key"});
    let replace_secret = async |secret: &Value| {
        // Server-side apply keeps a key that is left out of `stringData`.
        lab.apply(secret.clone()).await;
        if secret["stringData"].get("password").is_none() {
            let remove = json!({"data": {"password": null}});
            lab.patch(&Gvk::new("", "v1", "Secret"), "broker", remove).await;
        }
    };
    for change in ["secret", "url"] {
        wait_consuming(&lab, true).await;
        match change {
            "secret" => replace_secret(&without_password).await,
            _ => drop(lab.apply(elsewhere.clone()).await),
        }
        lab.wait_until(
            &format!("no connection is left after a change of the {change}"),
            async || {
                // That of the test.
                rabbitmq.count_connections().await == 1
            },
        )
        .await;
        wait_consuming(&lab, false).await;
        replace_secret(&secret(&lab, "password", RABBITMQ_PASSWORD)).await;
        lab.apply(upstream.clone()).await;
    }
    let body = json!([{"do": "ensure", "object": serialize_config_map("after")}]);
    client.publish(QUEUE, &steps(&body)).await;
    wait_config_map(&lab, "after").await;
    wait_drained(&lab, &rabbitmq).await;
}
