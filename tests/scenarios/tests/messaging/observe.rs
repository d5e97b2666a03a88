//! What is shown of messages: metrics, and the explanation of the broker's Upstream.

use futures::StreamExt;
use ostler::testing::{
    admin::question::Question,
    metrics::{Format, Scraped},
    recording::trace::TraceLine,
};
use ostler_test_harness::scenario;

use super::*;

/// Sums the samples of a metric that have all of these labels; none without such a sample.
fn read_samples(lab: &Lab, metric: &str, labels: &[&str]) -> Option<f64> {
    let host = lab.host();
    let scraped = Scraped {
        services: host.services(),
        registry: host.registry(),
        stats: host.stats(),
        lease: host.lease(),
        workers: lab.settings.workers,
    };
    let text = host.services().metrics.text(Format::Prometheus, &scraped);
    let text = text.expect("metrics");
    let samples = text.lines().filter_map(|line| {
        let (found, value) = line.strip_prefix(metric)?.strip_prefix('{')?.rsplit_once("} ")?;
        let has_all = labels.iter().all(|label| found.contains(label));
        has_all.then(|| value.parse::<f64>().expect("a number"))
    });
    samples.reduce(|sum, value| sum + value)
}

#[scenario]
async fn messages_are_counted_and_explained(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    declare_created(&client).await;
    for message in [
        json!([publish_step("order.created"), {"do": "ensure", "object": serialize_config_map("created")}]),
        json!([{"do": "retry", "milliseconds": 10, "times": 2}, {"do": "record", "name": "retried"}]),
        json!([{"do": "reject", "body": "no such project"}]),
    ] {
        client.publish(QUEUE, &steps(&message)).await;
    }
    wait_config_map(&lab, "created").await;
    wait_config_map(&lab, "retried").await;
    wait_dead_letter(&lab, &client).await;
    client.wait_message("created").await;
    wait_drained(&lab, &rabbitmq).await;

    let handled = |result: &str| {
        let labels = [
            "plugin=\"probe\"",
            "queue=\"orders\"",
            &format!("result=\"{result}\""),
        ];
        read_samples(&lab, "ostler_messages_handled_total", &labels)
    };
    let of_queue = |metric: &str| read_samples(&lab, metric, &["queue=\"orders\""]);
    // The broker has the acknowledgement a moment before it is counted.
    lab.wait_until("both acknowledgements are counted", async || {
        handled("acknowledged") == Some(2.0) && of_queue("ostler_messages_in_flight") == Some(0.0)
    })
    .await;
    assert_eq!(
        ["retried", "dead_lettered", "requeued"].map(handled),
        [Some(2.0), Some(1.0), Some(0.0)]
    );
    assert_eq!(of_queue("ostler_messages_redelivered_total"), Some(2.0));
    assert_eq!(of_queue("ostler_subscription_consuming"), Some(1.0));
    lab.wait_until("the length of the queue has been read", async || {
        of_queue("ostler_queue_messages") == Some(0.0)
    })
    .await;
    let confirmed = ["/broker\"", "result=\"confirmed\""];
    let published = read_samples(&lab, "ostler_messages_published_total", &confirmed);
    assert_eq!(published, Some(1.0));

    // One is the test's, one is for what is published, and one for the subscription.
    assert_eq!(rabbitmq.count_connections().await, 3);

    let question = Question {
        kind: "upstream".into(),
        namespace: Some(lab.namespace.clone()),
        name: "broker".into(),
    };
    let explained = lab.admin().explain(&question).expect("explained");
    let [subscription] = &explained.subscriptions[..] else {
        panic!("{:?}", explained.subscriptions)
    };
    assert_eq!(
        (&*subscription.plugin, &*subscription.queue, &*subscription.state),
        ("probe", QUEUE, "consuming")
    );
    assert_eq!(
        (
            subscription.acknowledged,
            subscription.retried,
            subscription.dead_lettered
        ),
        (2, 2, 1)
    );
}

/// The plugin is one of the plugin directory, without an object.
#[scenario]
async fn calls_of_a_message_handler_are_traced_by_its_plugin(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_subscribed(&mut lab, &rabbitmq, "").await;
    let address = lab
        .admin()
        .serve_local("127.0.0.1:0".parse().expect("an address"))
        .await;
    let url = format!(
        "http://{}/trace?kind=plugin&name=probe",
        address.expect("it binds")
    );
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let response = http.get(url).send().await.expect("a response");
    assert!(response.status().is_success(), "{}", response.status());
    // The trace is subscribed before the response head is sent, so this message is not missed.
    let message = steps(&json!([{"do": "ensure", "object": serialize_config_map("traced")}]));
    client.publish(QUEUE, &message).await;
    let mut body = response.bytes_stream();
    let mut text = String::new();
    let lines = loop {
        let chunk = body.next().await.expect("more").expect("bytes");
        text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        // The last line may be incomplete.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = complete.lines().filter(|line| !line.is_empty());
        let lines: Vec<TraceLine> = lines
            .map(|line| serde_json::from_str(line).expect("a line"))
            .collect();
        if matches!(lines.last(), Some(TraceLine::End { .. })) {
            break lines;
        }
    };
    let starts = lines.iter().filter_map(|line| match line {
        TraceLine::Start {
            object,
            plugin,
            function,
            ..
        } => Some((&**object, &**plugin, &**function)),
        _ => None,
    });
    assert_eq!(starts.collect::<Vec<_>>(), [("Plugin/probe", "probe", "handle")]);
    let creates = |line: &TraceLine| matches!(line, TraceLine::Call { function, result, .. } if function == "kubernetes.create" && result.starts_with("ConfigMap/"));
    assert!(lines.iter().any(creates), "{lines:#?}");
}
