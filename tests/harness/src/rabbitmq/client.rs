//! A client of the broker, for what a test publishes and reads besides the host.

use std::net::SocketAddr;

use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
        QueueBindOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};

use super::{RABBITMQ_PASSWORD, RABBITMQ_USER};
use crate::wait_for;

/// A connection with one channel, on which publishing is confirmed. It ends with the broker; its methods that do not
/// return a `Result` panic then.
pub struct RabbitMqClient {
    connection: Connection,
    channel: Channel,
}

impl RabbitMqClient {
    /// Connects as the administrator, to the broker or to a proxy of it.
    ///
    /// # Errors
    /// The broker is down.
    pub(super) async fn connect(address: SocketAddr, vhost: &str) -> lapin::Result<Self> {
        let url = format!("amqp://{RABBITMQ_USER}:{RABBITMQ_PASSWORD}@{address}/{vhost}");
        let properties = ConnectionProperties::default().with_connection_name("test".into());
        let connection = Connection::connect(&url, properties).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel })
    }

    /// Returns the channel, for what this client has no method for.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Closes the connection.
    pub async fn close(self) {
        // The broker may have closed it already.
        let _ = self.connection.close(200, "done".into()).await;
    }

    /// Declares a durable queue.
    pub async fn declare_queue(&self, name: &str) {
        self.declare_queue_with(name, FieldTable::default()).await;
    }

    /// Declares a durable queue with arguments, such as `x-queue-type`.
    pub async fn declare_queue_with(&self, name: &str, arguments: FieldTable) {
        let declared = self
            .channel
            .queue_declare(name.into(), QueueDeclareOptions::durable(), arguments);
        declared.await.expect("a queue");
    }

    /// Declares a durable exchange.
    pub async fn declare_exchange(&self, name: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let declared = self
            .channel
            .exchange_declare(name.into(), kind, options, FieldTable::default());
        declared.await.expect("an exchange");
    }

    /// Binds a queue to an exchange.
    pub async fn bind_queue(&self, queue: &str, exchange: &str, routing_key: &str) {
        let options = QueueBindOptions::default();
        let bound = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            options,
            FieldTable::default(),
        );
        bound.await.expect("a binding");
    }

    /// Publishes a persistent message to a queue, by the default exchange, and waits for the confirmation.
    pub async fn publish(&self, queue: &str, body: &[u8]) {
        let published = self
            .publish_with("", queue, BasicProperties::default(), body)
            .await;
        published.expect("the broker confirms");
    }

    /// Publishes a persistent message and waits for the confirmation.
    ///
    /// # Errors
    /// The message may have reached the broker, but it has not confirmed it.
    ///
    /// # Panics
    /// The exchange routes the message to no queue.
    pub async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: &[u8],
    ) -> lapin::Result<()> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = properties.with_delivery_mode(2);
        let publishing =
            self.channel
                .basic_publish(exchange.into(), routing_key.into(), options, body, properties);
        let confirmation = publishing.await?.await?;
        assert!(
            matches!(confirmation, Confirmation::Ack(None)),
            "`{exchange}` does not route `{routing_key}`: {confirmation:?}"
        );
        Ok(())
    }

    /// Takes the next message from a queue, and acknowledges it.
    pub async fn take(&self, queue: &str) -> Option<Delivery> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions::default());
        let message = got.await.expect("a queue")?;
        message
            .ack(BasicAckOptions::default())
            .await
            .expect("acknowledged");
        Some(message.delivery)
    }

    /// Waits for the next message of a queue, and acknowledges it. It waits for the queue as well: the host declares that of
    /// dead letters before its first one.
    pub async fn wait_message(&self, queue: &str) -> Delivery {
        let look = async || match self.queue_depth(queue).await {
            Some(_) => self.take(queue).await,
            None => None,
        };
        wait_for(look, || format!("a message in `{queue}`")).await
    }

    /// Returns the number of messages in a queue that are not delivered; `None` without the queue.
    pub async fn queue_depth(&self, queue: &str) -> Option<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        // Its own channel, because the broker closes it if there is no such queue.
        let channel = self.connection.create_channel().await.expect("a channel");
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        let depth = declared.await.ok().map(|queue| queue.message_count());
        let _ = channel.close(200, "done".into()).await;
        depth
    }
}
