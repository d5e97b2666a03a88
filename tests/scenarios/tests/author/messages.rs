//! The message handler of a new project, which also publishes, on a host and a real RabbitMQ.

use std::path::{Path, PathBuf};

use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{
    Lab,
    rabbitmq::{RabbitMq, RabbitMqClient},
    scenario, workspace_root,
};
use serde_json::{Value, json};

/// Password of that user.
const HANDLER_PASSWORD: &str = "handlers-pass-0003";

/// A project that is built.
pub struct BuiltProject {
    /// Name of the plugin.
    pub name: String,
    /// Its kind, in `v1` of the group `example.dev`.
    pub kind: String,
    /// Folder of the project.
    pub folder: PathBuf,
    /// Path of the component.
    pub component: PathBuf,
    /// True if it has the life-cycle hooks.
    pub has_hooks: bool,
}

/// The exchange that the handlers publish to, and its only queue. The routing key is the name of the project.
const ANSWERS: &str = "answers";
/// The message-id of what they publish.
const ANSWER_ID: &str = "answer-1";
/// Number of times that each message is sent to a handler.
const DELIVERIES: usize = 2;

/// Has the handler of a new project publish each message that it acknowledges, by the call that docs/languages.md shows.
pub fn add_publish(folder: &Path, language: &str) {
    let (file, acknowledges, publishes) = match language {
        "rust" => (
            "src/lib.rs",
            "Ok(_) | Err(Error::Conflict(_)) => Ok(Disposition::Ack),",
            "Ok(_) | Err(Error::Conflict(_)) => {
            let message = ostler_sdk::Message::new(\"answers\", \"in-rust\", delivery.body.clone()).id(\"answer-1\");
            ctx.publish(&ostler_sdk::UpstreamRef::new(\"rabbitmq\"), &message)?;
            Ok(Disposition::Ack)
        }",
        ),
        "go" => (
            "main.go",
            "\treturn messages.Ack(), nil",
            "\tid := \"answer-1\"
\tmessage := ostler.NewMessage(\"answers\", \"in-go\", delivery.Body)
\tmessage.Properties.MessageId = &id
\tif err := (ostler.Upstream{Name: \"rabbitmq\"}).Publish(message); err != nil {
\t\treturn messages.Disposition{}, err
\t}
\treturn messages.Ack(), nil",
        ),
        "js" => (
            "index.js",
            "  return ack();",
            "  const answer = { exchange: \"answers\", routingKey: \"in-js\", body: delivery.body, messageId: \"answer-1\" };
  host.upstream(\"rabbitmq\").publish(answer);
  return ack();",
        ),
        "python" => (
            "main.py",
            "    return ack()",
            "    answer = {\"exchange\": \"answers\", \"message_id\": \"answer-1\"}
    host.upstream(\"rabbitmq\").publish(\"in-python\", delivery.body, **answer)
    return ack()",
        ),
        other => panic!("no project is written in {other}"),
    };
    replace_once(&folder.join(file), acknowledges, publishes);
    replace_once(
        &folder.join("plugin.yaml"),
        "  kubernetes:\n",
        "  messages:\n  - {exchanges: [answers], routingKeys: ['*']}\n  kubernetes:\n",
    );
}

/// Adds life-cycle hooks to a new project, with which stored objects get the label `upgraded`, and the namespace of the
/// configuration a ConfigMap `initialized`.
pub fn add_hooks(folder: &Path, language: &str) {
    let (file, hooks) = match language {
        // A plugin for the scenarios of hooks is written in Rust.
        "rust" => return,
        "go" => (
            "hooks.go",
            r#"package main

import (
	"fmt"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/lifecycle"
)

func init() {
	lifecycle.Export(lifecycle.Hooks{
		Initialize: func() error {
			var config struct {
				Namespace string
				Big       any
			}
			if err := ostler.Config(&config); err != nil {
				return err
			}
			metadata := map[string]string{"name": "initialized", "namespace": config.Namespace}
			data := map[string]string{"big": fmt.Sprint(config.Big)}
			return ostler.Apply(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}, false)
		},
		Upgrade: func(object map[string]any) (map[string]any, error) {
			object["metadata"].(map[string]any)["labels"] = map[string]string{"upgraded": "yes"}
			return object, nil
		},
	})
}
"#,
        ),
        "js" => (
            "index.js",
            r#"
import { lifecycleHooks } from "ostler";

export const lifecycle = lifecycleHooks({
  initialize(host) {
    const { namespace, big } = host.config();
    const data = { big: `${big}` };
    host.apply({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "initialized", namespace }, data });
  },
  upgrade: (object) => ({ ...object, metadata: { ...object.metadata, labels: { upgraded: "yes" } } }),
});
"#,
        ),
        "python" => (
            "main.py",
            r#"

from ostler import lifecycle_hooks  # noqa: E402


def initialize(host):
    config = host.config()
    metadata = {"name": "initialized", "namespace": config["namespace"]}
    host.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"big": str(config["big"])}})


def upgrade(object, host):
    return {**object, "metadata": {**object["metadata"], "labels": {"upgraded": "yes"}}}


Lifecycle = lifecycle_hooks(initialize, upgrade)
"#,
        ),
        other => panic!("no project is written in {other}"),
    };
    let path = folder.join(file);
    let source = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(path, source + hooks).expect("saved");
    replace_once(
        &folder.join("plugin.yaml"),
        "  kubernetes:\n",
        "  kubernetes:\n  - {kinds: [ConfigMap], verbs: [apply], namespaces: ['*']}\n",
    );
}

/// Replaces a text that a file has once.
pub fn replace_once(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).expect("a source");
    assert_eq!(text.matches(from).count(), 1, "{from} in {}", path.display());
    std::fs::write(path, text.replace(from, to)).expect("saved");
}

/// Checks that the Plugin in docs/messaging.md has the fields of the CRD, which the API server prunes and validates.
#[scenario(real = "CRDs: changes and validation")]
async fn documented_subscription_is_accepted_by_the_api_server(lab: Lab) {
    let page = std::fs::read_to_string(workspace_root().join("docs/messaging.md")).expect("the page");
    let (_, rest) = page.split_once("```yaml\n").expect("a YAML block");
    let (yaml, _) = rest.split_once("```").expect("its end");
    let mut documented: Value = serde_saphyr::from_str(yaml).expect("YAML");
    documented["metadata"]["name"] = lab.namespace.clone().into();
    let stored = lab.apply(documented.clone()).await;
    let subscriptions = &stored["spec"]["subscriptions"];
    assert_eq!(subscriptions[0]["queue"], "build-requests");
    assert_eq!(*subscriptions, documented["spec"]["subscriptions"]);
    lab.delete_plugin(&lab.namespace).await;
}

/// Checks that a project creates one object of a message that is published twice, reconciles it, publishes the message, and
/// rejects garbage.
pub async fn check_handler(project: &BuiltProject) {
    let (mut lab, broker) = tokio::join!(Lab::embedded(), RabbitMq::shared());
    let client = broker.connect().await;
    client.declare_exchange(ANSWERS, lapin::ExchangeKind::Topic).await;
    client.declare_queue(ANSWERS).await;
    client.bind_queue(ANSWERS, ANSWERS, "#").await;
    // Only what docs/messaging.md says that a handler needs, and its exchange.
    let permissions = [
        r"^in-\w+\.(retry|dead-letter)",
        r"^(amq\.default|answers)$",
        r"^in-",
    ];
    // The tests share a node, and with it its users.
    let user = format!("handler-{}", project.name);
    broker.create_user(&user, HANDLER_PASSWORD, permissions).await;
    let (name, queue) = (&project.name, &project.name);
    let wasm = std::fs::read(&project.component).expect("the component");
    lab.install_bytes(name, &wasm);
    for crd in std::fs::read_dir(project.folder.join("crds")).expect("CRDs") {
        let text = std::fs::read_to_string(crd.expect("an entry").path()).expect("a CRD");
        lab.apply_yaml(&text).await;
    }
    let grants = format!(
        "plugins:\n  {name}:\n    reconciles: [{{group: example.dev, kinds: ['*']}}]\n    kubernetes:\n    \
         - {{kinds: [ConfigMap], verbs: [apply], namespaces: ['*']}}\n    - {{group: example.dev, kinds: ['*'], verbs: [create]}}\n    \
         messages: [{{exchanges: [{ANSWERS}], routingKeys: [{name}]}}]\n    \
         subscriptions:\n    - {{upstream: {{namespace: {}, name: rabbitmq}}, queue: {queue}}}\n",
        lab.namespace
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    // No float has this value.
    let config = json!({"namespace": lab.namespace, "big": (1_u64 << 53) + 1}).to_string();
    std::fs::write(lab.settings.plugins.join(format!("{name}.yaml")), config).expect("written");
    // It is there before the plugin, which upgrades it.
    let stored = json!({"apiVersion": "example.dev/v1", "kind": project.kind,
        "metadata": {"name": "stored", "namespace": lab.namespace}, "spec": {"message": "Hello"}});
    lab.apply(stored).await;
    client.declare_queue(queue).await;
    let message = json!({"name": "asked-for", "message": format!("Grüße in {name}")}).to_string();
    for _ in 0..DELIVERIES {
        client.publish(queue, message.as_bytes()).await;
    }
    client.publish(queue, b"{").await;
    lab.apply(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace}, "stringData": {"password": HANDLER_PASSWORD}}))
        .await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "rabbitmq", "namespace": lab.namespace},
        "spec": {"url": broker.url(), "auth": {"basic": {"username": user,
            "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}}}}))
        .await;
    lab.start_host().await;
    let kind = Gvk::new("example.dev", "v1", &project.kind);
    let object = lab.wait_ready(&kind, "asked-for").await;
    assert_eq!(
        object["spec"]["message"],
        format!("Grüße in {name}"),
        "{object:#}"
    );
    let stored = lab.wait_ready(&kind, "stored").await;
    if project.has_hooks {
        assert_eq!(stored["metadata"]["labels"]["upgraded"], "yes", "{stored:#}");
        let initialized = lab.get(&Gvk::new("", "v1", "ConfigMap"), "initialized").await;
        assert_eq!(initialized.expect(name)["data"]["big"], "9007199254740993");
    }
    let letter = client.wait_message(&format!("{queue}.dead-letter")).await;
    assert_eq!(letter.data, b"{", "{name}");
    let depth = async || client.queue_depth(queue).await == Some(0);
    lab.wait_until("the queue is empty", depth).await;
    check_answers(&client, name).await;
    let logs = ostler_test_harness::captured_logs();
    assert!(!logs.contains(HANDLER_PASSWORD), "a password in the log");
}

/// Checks that a project has published what it was sent, persistent and with its message-id.
async fn check_answers(client: &RabbitMqClient, name: &str) {
    for _ in 0..DELIVERIES {
        let answer = client.wait_message(ANSWERS).await;
        assert_eq!(answer.routing_key.to_string(), name);
        let body: Value = serde_json::from_slice(&answer.data).expect("JSON");
        assert_eq!(
            body,
            json!({"name": "asked-for", "message": format!("Grüße in {name}")})
        );
        let id = answer.properties.message_id().as_ref().map(ToString::to_string);
        assert_eq!(id.as_deref(), Some(ANSWER_ID));
        assert_eq!(*answer.properties.delivery_mode(), Some(2));
    }
}
