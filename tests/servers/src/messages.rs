//! Messages on the broker: events that are published, and heartbeats and dead letters that are received. Each is a line on
//! stdout.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use lapin::{BasicProperties, message::Delivery, types::AMQPValue};
use ostler_test_harness::rabbitmq::{RabbitMq, RabbitMqClient};
use serde_json::{Value, json};

/// Queues that `deploy/devops-grants.yaml` names.
const EVENTS_QUEUE: &str = "devops-events";
const HEARTBEATS_QUEUE: &str = "heartbeats";
/// Queue of the events that were rejected, which the host declares.
const DEAD_LETTER_QUEUE: &str = "devops-events.dead-letter";
const REASON_HEADER: &str = "x-ostler-dead-letter-reason";
/// Number of looks between two looks at the dead letters, each of which opens a channel.
const DEAD_LETTER_LOOKS: u32 = 10;

/// The client of the broker, with the messages so far.
pub struct Mailbox {
    client: RabbitMqClient,
    /// Names of the files that were published.
    published: BTreeSet<String>,
    looks: u32,
}

impl Mailbox {
    /// Connects, and declares the queues.
    pub async fn open(rabbitmq: &RabbitMq) -> Self {
        let client = rabbitmq.connect().await;
        for queue in [EVENTS_QUEUE, HEARTBEATS_QUEUE] {
            client.declare_queue(queue).await;
        }
        Self {
            client,
            published: BTreeSet::new(),
            looks: 0,
        }
    }

    /// Publishes the files of a folder that were not yet. The part of a name before its first hyphen or dot is the type of the
    /// message.
    pub async fn publish_new(&mut self, folder: &Path) -> Result<()> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".json") && !self.published.contains(name))
            .collect();
        names.sort_unstable();
        for name in names {
            let bytes = std::fs::read(folder.join(&name)).with_context(|| name.clone())?;
            // A file that is being written is read again.
            let Ok(body) = serde_json::from_slice::<Value>(&bytes) else {
                continue;
            };
            let kind = name.split(['-', '.']).next().unwrap_or(&name);
            let properties = BasicProperties::default().with_type(kind.into());
            let published = self
                .client
                .publish_with("", EVENTS_QUEUE, properties, &bytes)
                .await;
            published.context("publishing an event")?;
            print_message("published", EVENTS_QUEUE, kind, &body);
            self.published.insert(name);
        }
        Ok(())
    }

    /// Takes all heartbeats and dead letters.
    pub async fn receive(&mut self) {
        while let Some(message) = self.client.take(HEARTBEATS_QUEUE).await {
            print_delivery(HEARTBEATS_QUEUE, &message);
        }
        self.looks += 1;
        if self.looks.is_multiple_of(DEAD_LETTER_LOOKS)
            && self
                .client
                .queue_depth(DEAD_LETTER_QUEUE)
                .await
                .is_some_and(|n| n > 0)
            && let Some(message) = self.client.take(DEAD_LETTER_QUEUE).await
        {
            print_delivery(DEAD_LETTER_QUEUE, &message);
        }
    }
}

fn print_delivery(queue: &str, message: &Delivery) {
    let kind = message.properties.kind().as_ref().map(ToString::to_string);
    let mut body = serde_json::from_slice(&message.data).unwrap_or(Value::Null);
    let headers = message.properties.headers().as_ref();
    if let Some(AMQPValue::LongString(reason)) = headers.and_then(|h| h.inner().get(REASON_HEADER)) {
        body = json!({ "reason": reason.to_string() });
    }
    print_message("received", queue, kind.as_deref().unwrap_or_default(), &body);
}

fn print_message(direction: &str, queue: &str, kind: &str, body: &Value) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = json!({ "message": direction, "at_ms": now.as_millis() as u64, "queue": queue, "type": kind, "body": body });
    println!("{line}");
}
