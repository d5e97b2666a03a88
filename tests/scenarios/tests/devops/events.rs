//! Messages on a real RabbitMQ: events that become objects, and the heartbeats of a deployment.

use std::collections::BTreeMap;

use lapin::{BasicProperties, message::Delivery, types::AMQPValue};
use ostler_test_harness::{
    Lab, find_condition,
    rabbitmq::{RABBITMQ_PASSWORD, RABBITMQ_USER, RabbitMq, RabbitMqClient},
    scenario,
};
use serde_json::{Value, json};

use super::{
    argo,
    argo_cd::{self, ArgoCd},
    failures::poll,
    kind, object, secret, start,
};

/// The queues that `deploy/devops-grants.yaml` names.
pub const EVENTS: &str = "devops-events";
pub const HEARTBEATS: &str = "heartbeats";
/// Number of heartbeats among which one is searched for: one per phase, and one each 30 s.
const MAX_HEARTBEATS: usize = 8;

/// Starts a host whose Upstream `rabbitmq` is a broker with the queues of the pack. Deployments of events send heartbeats.
async fn start_with_broker(lab: &mut Lab, rabbitmq: &RabbitMq, components: &[&str]) -> RabbitMqClient {
    let client = prepare_broker(lab, rabbitmq, &rabbitmq.url()).await;
    start(lab, components).await;
    client
}

/// Declares the queues of the pack, and applies the Upstream `rabbitmq` with a URL of the broker.
pub async fn prepare_broker(lab: &mut Lab, rabbitmq: &RabbitMq, url: &str) -> RabbitMqClient {
    let client = rabbitmq.connect().await;
    for queue in [EVENTS, HEARTBEATS] {
        client.declare_queue(queue).await;
    }
    let spec = json!({ "url": url, "auth": { "basic": { "username": RABBITMQ_USER,
        "passwordSecretRef": { "name": "rabbitmq", "key": "value" } } } });
    lab.apply(secret(lab, "rabbitmq", RABBITMQ_PASSWORD)).await;
    lab.apply(json!({ "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": { "name": "rabbitmq", "namespace": lab.namespace }, "spec": spec }))
        .await;
    let config = json!({ "namespace": lab.namespace, "heartbeat": heartbeat() });
    std::fs::write(
        lab.settings.plugins.join("devops-events.yaml"),
        config.to_string(),
    )
    .expect("written");
    client
}

fn heartbeat() -> Value {
    json!({ "upstreamRef": { "name": "rabbitmq" }, "routingKey": HEARTBEATS })
}

/// Publishes an event.
pub async fn publish(client: &RabbitMqClient, event: &str, body: &Value) {
    publish_bytes(client, event, None, body.to_string().as_bytes()).await;
}

async fn publish_bytes(client: &RabbitMqClient, event: &str, version: Option<&str>, body: &[u8]) {
    let mut properties = BasicProperties::default().with_type(event.into());
    if let Some(version) = version {
        let mut headers = lapin::types::FieldTable::default();
        headers.insert("version".into(), AMQPValue::LongString(version.into()));
        properties = properties.with_headers(headers);
    }
    let published = client.publish_with("", EVENTS, properties, body).await;
    published.expect("the broker confirms");
}

fn deployment(id: &str, project: &str) -> Value {
    json!({ "id": id, "project": project, "environment": "alpha", "revision": "v1", "ttl_seconds": 60 })
}

/// An event of `deploy/examples`, with values in place of its variables.
fn read_sample(text: &str) -> Value {
    let mut text = text.to_owned();
    for (name, value) in [
        ("DNS_ZONE", "example.com"),
        ("GIT_URL", "https://git.example.com/shop.git"),
        ("GIT_USER", "fetcher"),
        ("JENKINS_URL", "https://jenkins.example.com"),
        ("JENKINS_USER", "ops"),
        ("REGISTRY_URL", "https://registry.example.com"),
        ("REGISTRY_USER", "robot"),
    ] {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    serde_json::from_str(&text).expect("JSON")
}

async fn wait_object(lab: &Lab, kind_name: &str, name: &str) -> Value {
    lab.wait_until(&format!("{kind_name} {name} exists"), async || {
        lab.get(&kind(kind_name), name).await.is_some()
    })
    .await;
    lab.get(&kind(kind_name), name).await.expect("it exists")
}

#[scenario(argocd)]
async fn events_become_objects_and_what_is_wrong_is_dead_lettered(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let client = start_with_broker(&mut lab, &rabbitmq, &["devops/devops-events"]).await;
    let good = read_sample(include_str!("../../../../deploy/examples/devops-initialize.json"));
    publish(&client, "DevOpsInitialize", &good).await;
    let mut event = read_sample(include_str!("../../../../deploy/examples/devops-reconcile.json"));
    event["revision"] = "v1".into();
    publish(&client, "DevOpsReconcile", &event).await;
    let created = wait_object(&lab, "DevOpsProject", "shop").await;
    assert_eq!(created["spec"]["environments"][0]["name"], "alpha");
    let record = wait_object(&lab, "DeploymentRecord", "d-1").await;
    assert_eq!(record["metadata"]["labels"]["devops.ostler.dev/event-id"], "d-1");
    assert_eq!(
        record["spec"]["sync"],
        json!({ "settingRef": { "name": "shop" }, "application": "shop-alpha", "revision": "v1", "keepRemoved": false })
    );
    assert_eq!(record["spec"]["heartbeat"]["routingKey"], HEARTBEATS);
    assert_eq!(record["spec"]["ingress"]["template"]["host"], "d-1.example.com");

    // A duplicate, and another event with the ID.
    publish(&client, "DevOpsInitialize", &good).await;
    let mut other = deployment("d-1", "shop");
    other["environment"] = "beta".into();
    publish(&client, "DevOpsReconcile", &other).await;
    let other = deployment("d-9", "shop").to_string();
    publish_bytes(&client, "DevOpsReconcile", None, b"\xff{").await;
    publish_bytes(&client, "DevOpsReconcile", Some("v9"), other.as_bytes()).await;
    publish_bytes(&client, "DevOpsReconcile", None, &vec![b' '; (256 << 10) + 1]).await;
    publish_bytes(&client, "SomethingElse", None, other.as_bytes()).await;
    publish(&client, "DevOpsReconcile", &deployment("../etc", "shop")).await;
    let mut refused = good.clone();
    refused["project"] = "empty".into();
    refused["spec"]["environments"] = json!([]);
    publish(&client, "DevOpsInitialize", &refused).await;

    let mut reasons = BTreeMap::new();
    for _ in 0..6 {
        let letter = client.wait_message("devops-events.dead-letter").await;
        let headers = letter.properties.headers().clone().expect("headers");
        let Some(AMQPValue::LongString(reason)) = headers.inner().get("x-ostler-dead-letter-reason") else {
            panic!("{headers:?}")
        };
        reasons.insert(reason.to_string(), letter.data);
    }
    for part in [
        "rejected: the body",
        "\"v9\"",
        "262145 bytes",
        "\"SomethingElse\"",
        "\"../etc\"",
        "environments",
    ] {
        let found = reasons.keys().filter(|reason| reason.contains(part));
        assert_eq!(found.count(), 1, "{part}: {reasons:?}", reasons = reasons.keys());
    }
    lab.wait_until("all messages are handled", async || rabbitmq.is_drained().await)
        .await;
    let unchanged = lab.get(&kind("DeploymentRecord"), "d-1").await.expect("it stays");
    assert_eq!(
        unchanged["metadata"]["resourceVersion"],
        record["metadata"]["resourceVersion"]
    );
    assert_eq!(lab.list(&kind("DeploymentRecord")).await.len(), 1);
    assert_eq!(lab.list(&kind("DevOpsProject")).await.len(), 1);
}

/// Waits for the heartbeat with this result, and returns it.
pub async fn wait_heartbeat(client: &RabbitMqClient, id: &str, status: &str) -> Value {
    for _ in 0..MAX_HEARTBEATS {
        let (_, body) = read_heartbeat(client.wait_message(HEARTBEATS).await, id);
        if body["status"] == status {
            return body;
        }
    }
    panic!("{MAX_HEARTBEATS} heartbeats of {id}, and none with the status {status}")
}

/// Takes the heartbeats that have been published, each with its message-id.
pub async fn take_heartbeats(client: &RabbitMqClient, id: &str) -> Vec<(String, Value)> {
    let mut taken = Vec::new();
    while let Some(message) = client.take(HEARTBEATS).await {
        taken.push(read_heartbeat(message, id));
    }
    taken
}

/// The message-id and the body of a heartbeat. All have exactly the fields of the original.
fn read_heartbeat(message: Delivery, id: &str) -> (String, Value) {
    let properties = &message.properties;
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    assert_eq!(
        text(properties.kind()).as_deref(),
        Some("DevOpsReconcileJobHeartbeat")
    );
    assert_eq!(text(properties.correlation_id()).as_deref(), Some(id));
    let message_id = text(properties.message_id()).expect("a message-id");
    let body: Value = serde_json::from_slice(&message.data).expect("JSON");
    let mut fields: Vec<&String> = body.as_object().expect("fields").keys().collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["id", "operation", "phase", "phase_message", "status", "url"]
    );
    assert_eq!(
        (&body["operation"], &body["id"]),
        (&json!("heartbeat"), &json!(id))
    );
    (message_id, body)
}

#[scenario(argocd)]
async fn deployment_of_an_unknown_project_fails_with_a_final_heartbeat(mut lab: Lab) {
    let rabbitmq = RabbitMq::shared().await;
    let components = ["devops/devops-events", "devops/devops-deployment"];
    let client = start_with_broker(&mut lab, &rabbitmq, &components).await;
    argo_cd::apply_crds(&lab).await;
    publish(&client, "DevOpsReconcile", &deployment("d-1", "nowhere")).await;
    let running = wait_heartbeat(&client, "d-1", "running").await;
    assert_eq!(
        (&running["phase"], &running["phase_message"]),
        (
            &json!("initializing"),
            &json!("ArgoSetting nowhere does not exist.")
        )
    );
    let record = kind("DeploymentRecord");
    lab.wait_condition(&record, "d-1", "Ready", "False", "ArgoSettingNotReady")
        .await;
    lab.patch(
        &record,
        "d-1",
        json!({ "spec": { "timeouts": { "initializeSeconds": 1 } } }),
    )
    .await;
    let failed = wait_heartbeat(&client, "d-1", "failed").await;
    let message = failed["phase_message"].as_str().unwrap_or_default();
    assert!(
        message.contains("within 1 s. ArgoSetting nowhere does not exist."),
        "{message}"
    );
    lab.wait_condition(&record, "d-1", "Ready", "False", "Failed")
        .await;
}

#[scenario(argocd)]
async fn final_heartbeat_is_published_until_it_is_confirmed(mut lab: Lab) {
    let rabbitmq = RabbitMq::start().await;
    let argo_cd = ArgoCd::start(&lab).await;
    argo_cd.hold_sync();
    let client = start_with_broker(&mut lab, &rabbitmq, &argo::COMPONENTS).await;
    lab.apply(argo::setting(&lab, &argo_cd, "Permanent")).await;
    let mut spec = argo::deployment();
    spec["heartbeat"] = heartbeat();
    lab.apply(object(&lab, "DeploymentRecord", "d-1", spec)).await;
    let uid = wait_object(&lab, "DeploymentRecord", "d-1").await["metadata"]["uid"].clone();
    let id = uid.as_str().expect("a UID");
    let record = kind("DeploymentRecord");
    lab.wait_condition(&record, "d-1", "Ready", "False", "SyncRunning")
        .await;
    let deploying = wait_heartbeat(&client, id, "running").await;
    assert_eq!(deploying["url"], Value::Null);

    rabbitmq.kill();
    argo_cd.release_sync(&lab).await;
    // It is live all the same, and its time to live is counted.
    let unconfirmed = lab
        .wait_condition(&record, "d-1", "HeartbeatConfirmed", "False", "HeartbeatFailed")
        .await;
    assert_eq!(unconfirmed["status"]["state"], "success");
    assert_eq!(find_condition(&unconfirmed, "Ready")["reason"], "Live");
    assert_eq!(unconfirmed["status"]["heartbeat"], Value::Null);
    assert_eq!(unconfirmed["status"]["ttl"]["phase"], "Monitoring");
    rabbitmq.restart().await;
    let client = rabbitmq.connect().await;
    let last = tokio::select! {
        last = wait_heartbeat(&client, id, "success") => last,
        never = poll(&lab, "d-1") => match never {},
    };
    let confirmed = lab
        .wait_condition(&record, "d-1", "HeartbeatConfirmed", "True", "HeartbeatConfirmed")
        .await;
    assert_eq!(confirmed["status"]["heartbeat"]["finalConfirmed"], true);
    assert_eq!(
        last,
        json!({ "operation": "heartbeat", "id": id, "status": "success", "phase": "verifying",
            "phase_message": "The deployment is live.", "url": null })
    );
}
