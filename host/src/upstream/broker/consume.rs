//! Consuming: the messages of a queue, their acknowledgement, their way through a delay queue, and dead letters.

use std::{hash::Hash, sync::Arc, time::Duration};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions,
        BasicQosOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};

use super::{
    client::BrokerClient,
    link::{CLOSE_SUCCESS, Link},
    metered::AnnouncedMessages,
    properties::{decode_properties, redact_properties, short_string},
    relay::{DEAD_LETTER_PLUGIN, DEAD_LETTER_QUEUE, DEAD_LETTER_REASON, History, delay_bucket},
};
use crate::{
    contract::{
        bindings::types::MessageProperties,
        message_memory::{MessageCharge, MessageShare},
    },
    kube::hash::hash_to_u64,
    upstream::{SendError, redact::Redactor},
};

/// Limit of the wait for the end of the deliveries.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The consumer of a queue. Messages that are not acknowledged are delivered again once it is closed or dropped.
pub struct QueueConsumer {
    client: Arc<BrokerClient>,
    queue: String,
    channel: Channel,
    consumer: lapin::Consumer,
    link: Arc<Link>,
    announced: AnnouncedMessages,
}

/// A message that was delivered and is not acknowledged yet.
pub struct QueuedMessage {
    client: Arc<BrokerClient>,
    queue: String,
    delivery: Delivery,
    history: History,
    link: Arc<Link>,
    /// Keeps the channel open until the message is acknowledged.
    _channel: Channel,
    _memory: Option<MessageCharge>,
}

/// The parts of a message that its handler gets.
#[derive(Clone, Debug, PartialEq)]
pub struct IncomingMessage {
    /// Exchange that the message was published to.
    pub exchange: String,
    /// Routing key that it was published with.
    pub routing_key: String,
    /// Properties as its publisher has set them.
    pub properties: MessageProperties,
    /// Body.
    pub body: Vec<u8>,
    /// Number of earlier deliveries.
    pub delivery_count: u32,
}

/// Exchange and routing key of dead letters, and the plugin that they are for.
#[derive(Clone, Copy, Debug)]
pub struct DeadLetter<'a> {
    /// Exchange and routing key; none for the queue that the host declares.
    pub target: Option<(&'a str, &'a str)>,
    /// The plugin.
    pub plugin: &'a str,
    /// The reason.
    pub reason: &'a str,
}

impl IncomingMessage {
    /// The message with `***` in place of secrets, in all that its publisher has written.
    async fn redact(self, redactor: &Redactor) -> Self {
        Self {
            exchange: redactor.redact_text(&self.exchange),
            routing_key: redactor.redact_text(&self.routing_key),
            properties: redact_properties(self.properties, redactor),
            body: redactor.redact_body(self.body).await,
            delivery_count: self.delivery_count,
        }
    }
}

impl BrokerClient {
    /// Begins to consume a queue, which must exist. The broker sends as many messages ahead as `prefetch`, and no more than
    /// `memory` has room for.
    pub async fn consume(
        self: &Arc<Self>,
        queue: &str,
        prefetch: u16,
        memory: &Arc<MessageShare>,
    ) -> Result<QueueConsumer, SendError> {
        let name = short_string("queue", queue)?;
        let (link, announced) = self.open_consumer_link(memory.clone()).await?;
        let consuming = async {
            let channel = link.connection().create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            // An empty tag: the broker chooses one that is unique.
            let options = BasicConsumeOptions::default();
            let consumer = channel
                .basic_consume(name, "".into(), options, FieldTable::default())
                .await?;
            Ok::<_, lapin::Error>((channel, consumer))
        };
        let (channel, consumer) = self
            .limit_time(consuming)
            .await
            .inspect_err(|_| link.clone().close())?;
        Ok(QueueConsumer {
            client: self.clone(),
            queue: queue.to_owned(),
            channel,
            consumer,
            link,
            announced,
        })
    }

    /// The number of messages in a queue that are ready to be delivered.
    pub async fn queue_depth(self: &Arc<Self>, queue: &str) -> Result<u32, SendError> {
        let name = short_string("queue", queue)?;
        let link = self.link().await?;
        let asking = async {
            let channel = link.connection().create_channel().await?;
            let options = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let queue = channel
                .queue_declare(name, options, FieldTable::default())
                .await?;
            Ok::<_, lapin::Error>(queue.message_count())
        };
        self.limit_time(asking).await
    }

    /// Declares a durable queue, and publishes a message that must reach a queue and be confirmed.
    async fn relay(
        self: &Arc<Self>,
        declare: Option<(&str, FieldTable)>,
        (exchange, routing_key): (&str, &str),
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), SendError> {
        let (exchange, key) = (
            short_string("exchange", exchange)?,
            short_string("routing key", routing_key)?,
        );
        let declare =
            declare.map(|(name, arguments)| Ok::<_, SendError>((short_string("queue", name)?, arguments)));
        let declare = declare.transpose()?;
        let link = self.link().await?;
        self.check_fence()?;
        let relaying = async {
            let channel = link.take_publisher().await?;
            if let Some((name, arguments)) = declare {
                channel
                    .queue_declare(name, QueueDeclareOptions::durable(), arguments)
                    .await?;
            }
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let confirm = channel
                .basic_publish(exchange, key, options, body, properties)
                .await?;
            let confirmation = confirm.await?;
            link.return_publisher(channel);
            Ok::<_, lapin::Error>(confirmation)
        };
        match self.limit_time(relaying).await? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(SendError::NotFound(format!(
                "no queue is bound for routing key `{routing_key}`"
            ))),
            _ => Err(SendError::Unavailable(
                "the broker has not taken the message".into(),
            )),
        }
    }
}

impl QueueConsumer {
    /// The next message. The error says why there are no more.
    pub async fn next(&mut self) -> Result<QueuedMessage, SendError> {
        let delivered = tokio::select! {
            delivered = self.consumer.next() => delivered,
            () = self.link.wait_lost() => None,
        };
        let delivery = match delivered {
            Some(Ok(delivery)) => delivery,
            Some(Err(e)) => return Err(self.client.classify_error(&e)),
            None if self.link.is_open() => {
                return Err(SendError::NotFound(format!(
                    "the queue `{}` was deleted",
                    self.queue
                )));
            }
            None => {
                let why = self.link.describe_loss().await;
                return Err(SendError::Unavailable(why.to_owned()));
            }
        };
        let memory = self.announced.take_next();
        let (exchange, key) = (delivery.exchange.as_str(), delivery.routing_key.as_str());
        Ok(QueuedMessage {
            client: self.client.clone(),
            queue: self.queue.clone(),
            history: History::read(
                &delivery.properties,
                delivery.redelivered,
                (exchange, key),
                self.client.username(),
            ),
            delivery,
            link: self.link.clone(),
            _channel: self.channel.clone(),
            _memory: memory,
        })
    }

    /// Stops the deliveries (`basic.cancel`). Messages that were delivered can still be acknowledged and returned, and none
    /// that is returned from now on comes back here.
    pub async fn cancel(&self) {
        let cancelling = self
            .channel
            .basic_cancel(self.consumer.tag(), BasicCancelOptions::default());
        // Without an answer the close ends the consumer, or the loss of the connection has. There is none before there is
        // room for the messages that were sent ahead.
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await;
    }

    /// Closes the connection, and waits until the broker has: by then each message that was not acknowledged has its place in
    /// the queue again. Another consumer that began earlier would get the messages behind them first.
    pub async fn close(self) {
        let closing = self.channel.close(CLOSE_SUCCESS, "closed".into());
        let _ = self.client.limit_time(closing).await;
        self.link.clone().close();
        let ending = async {
            self.link.wait_end().await;
            Ok(())
        };
        let _ = self.client.limit_time(ending).await;
    }
}

impl QueuedMessage {
    /// The message as its handler gets it, without the password of the broker. The message itself keeps it: a delayed or
    /// dead-lettered one is as its publisher has sent it.
    pub async fn to_incoming(&self) -> IncomingMessage {
        let properties = self.history.restore_properties(&self.delivery.properties);
        let message = IncomingMessage {
            exchange: self.history.exchange.clone(),
            routing_key: self.history.routing_key.clone(),
            properties: decode_properties(&properties),
            body: self.delivery.data.clone(),
            delivery_count: self.history.deliveries,
        };
        message.redact(self.client.message_redactor()).await
    }

    /// The identity of the message over its deliveries: of its id, or of its body if the publisher has set none.
    pub fn identity(&self) -> String {
        match self.delivery.properties.message_id() {
            Some(id) => format!("{}/id/{id}", self.queue),
            None => {
                let body = hash_to_u64(|hasher| self.delivery.data.hash(hasher));
                format!("{}/body/{body:x}", self.queue)
            }
        }
    }

    /// The size of the body.
    pub fn body_bytes(&self) -> usize {
        self.delivery.data.len()
    }

    /// Number of earlier deliveries.
    pub fn deliveries(&self) -> u32 {
        self.history.deliveries
    }

    /// Number of earlier deliveries that count towards the limit.
    pub fn attempts(&self) -> u32 {
        self.history.attempts
    }

    /// Counts a delivery that was handled again without leaving the queue.
    pub fn count_delivery(&mut self, counts: bool) {
        self.history.deliveries = self.history.deliveries.saturating_add(1);
        self.history.attempts = self.history.attempts.saturating_add(counts.into());
    }

    /// Waits until the connection is lost. From then on the message is another delivery's.
    pub async fn wait_lost(&self) {
        self.link.wait_lost().await;
    }

    /// Acknowledges the message.
    pub async fn acknowledge(&self) -> Result<(), SendError> {
        let acknowledging = self.delivery.acker.ack(BasicAckOptions::default());
        let acknowledged = self.link.await_until_lost(acknowledging).await;
        match acknowledged.map_err(|e| self.client.classify_error(&e))? {
            true => Ok(()),
            false => Err(SendError::Unavailable("the connection was lost".into())),
        }
    }

    /// Returns the message to its place in the queue.
    pub async fn requeue(&self) {
        let options = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        // Without a connection the broker does it itself.
        let _ = self
            .link
            .await_until_lost(self.delivery.acker.nack(options))
            .await;
    }

    /// Moves the message to a queue from which it returns after a delay.
    pub async fn delay(&self, delay: Duration, counts: bool) -> Result<(), SendError> {
        let seconds = delay_bucket(delay);
        let waiting = format!("{}.retry.{seconds}s", self.queue);
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-message-ttl".into(),
            AMQPValue::LongLongInt((seconds * 1000).cast_signed()),
        );
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        arguments.insert(
            "x-dead-letter-routing-key".into(),
            AMQPValue::LongString(self.queue.as_str().into()),
        );
        let properties =
            self.history
                .relay_properties(&self.delivery.properties, counts, &[], self.client.username());
        self.client
            .relay(
                Some((&waiting, arguments)),
                ("", &waiting),
                properties,
                &self.delivery.data,
            )
            .await?;
        self.acknowledge().await
    }

    /// Moves the message to its dead-letter target, with the reason in a header.
    pub async fn dead_letter(&self, letter: DeadLetter<'_>) -> Result<(), SendError> {
        let own_queue = format!("{}.dead-letter", self.queue);
        let (declare, target) = match letter.target {
            Some(target) => (None, target),
            None => (
                Some((own_queue.as_str(), FieldTable::default())),
                ("", own_queue.as_str()),
            ),
        };
        let facts = [
            (DEAD_LETTER_REASON, letter.reason),
            (DEAD_LETTER_QUEUE, &self.queue),
            (DEAD_LETTER_PLUGIN, letter.plugin),
        ];
        let properties =
            self.history
                .relay_properties(&self.delivery.properties, true, &facts, self.client.username());
        let is_declared = declare.is_some();
        let relay = async |declare| {
            let (client, properties) = (&self.client, properties.clone());
            client
                .relay(declare, target, properties, &self.delivery.data)
                .await
        };
        match relay(declare).await {
            // Its own queue exists with other arguments, and takes it as well (406).
            Err(SendError::Invalid(_)) if is_declared => relay(None).await?,
            relayed => relayed?,
        }
        // Confirmed before it is acknowledged: a crash in between leaves two, and never none.
        self.acknowledge().await
    }
}
