//! The message handlers of new projects, on a host and a real RabbitMQ.

use std::{fmt::Write, path::PathBuf};

use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, rabbitmq::RabbitMq, workspace_root};
use serde_json::{Value, json};

/// User of the broker for the handlers.
const HANDLER_USER: &str = "handlers";
/// Password of that user.
const HANDLER_PASSWORD: &str = "handlers-pass-0003";

/// A project that is built.
pub struct Project {
    /// Name of the plugin.
    pub name: String,
    /// Its kind, in `v1` of the group `example.dev`.
    pub kind: String,
    /// Folder of the project.
    pub folder: PathBuf,
    /// Path of the component.
    pub component: PathBuf,
}

/// Checks that the Plugin in docs/messaging.md has the fields of the CRD, which the API server prunes and validates.
pub async fn check_documented_plugin() {
    let lab = Lab::embedded().await;
    let page = std::fs::read_to_string(workspace_root().join("docs/messaging.md")).expect("the page");
    let (_, rest) = page.split_once("```yaml\n").expect("a YAML block");
    let (yaml, _) = rest.split_once("```").expect("its end");
    let documented: Value = serde_saphyr::from_str(yaml).expect("YAML");
    let stored = lab.apply(documented.clone()).await;
    let subscriptions = &stored["spec"]["subscriptions"];
    assert_eq!(subscriptions[0]["queue"], "build-requests");
    assert_eq!(*subscriptions, documented["spec"]["subscriptions"]);
}

/// Checks that each project creates one object of a message that is published twice, reconciles it, and rejects garbage.
pub async fn check_handlers(projects: &[Project]) {
    let (mut lab, broker) = tokio::join!(Lab::embedded(), RabbitMq::shared());
    let client = broker.connect().await;
    // Only what docs/messaging.md says that a handler needs.
    let permissions = [r"^in-\w+\.(retry|dead-letter)", r"^amq\.default$", r"^in-"];
    broker
        .create_user(HANDLER_USER, HANDLER_PASSWORD, permissions)
        .await;
    let mut grants = "plugins:\n".to_owned();
    for project in projects {
        let (name, queue) = (&project.name, &project.name);
        let wasm = std::fs::read(&project.component).expect("the component");
        lab.install_bytes(name, &wasm);
        for crd in std::fs::read_dir(project.folder.join("crds")).expect("CRDs") {
            let text = std::fs::read_to_string(crd.expect("an entry").path()).expect("a CRD");
            lab.apply_yaml(&text).await;
        }
        write!(
            grants,
            "  {name}:\n    reconciles: [{{group: example.dev, kinds: ['*']}}]\n    kubernetes:\n    \
             - {{kinds: [ConfigMap], verbs: [apply]}}\n    - {{group: example.dev, kinds: ['*'], verbs: [create]}}\n    \
             subscriptions:\n    - {{upstream: {{namespace: {}, name: rabbitmq}}, queue: {queue}}}\n",
            lab.namespace
        )
        .expect("a string");
        client.declare_queue(queue).await;
        let message = json!({"name": "asked-for", "message": format!("Grüße in {name}")}).to_string();
        for _ in 0..2 {
            client.publish(queue, message.as_bytes()).await;
        }
        client.publish(queue, b"{").await;
    }
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.apply(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace}, "stringData": {"password": HANDLER_PASSWORD}}))
        .await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace},
        "spec": {"url": broker.url(), "auth": {"basic": {"username": HANDLER_USER,
            "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}}}}))
        .await;
    lab.start_host().await;
    for project in projects {
        let kind = Gvk::new("example.dev", "v1", &project.kind);
        let object = lab.wait_ready(&kind, "asked-for").await;
        assert_eq!(
            object["spec"]["message"],
            format!("Grüße in {}", project.name),
            "{object:#}"
        );
        let letter = client
            .wait_message(&format!("{}.dead-letter", project.name))
            .await;
        assert_eq!(letter.data, b"{", "{}", project.name);
        let depth = async || client.queue_depth(&project.name).await == Some(0);
        lab.wait_until("the queue is empty", depth).await;
    }
    let logs = ostler_test_harness::captured_logs();
    assert!(!logs.contains(HANDLER_PASSWORD), "a password in the log");
}
