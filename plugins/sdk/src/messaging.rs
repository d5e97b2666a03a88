//! Messages that are published, and messages that are handled.

use serde::{Serialize, de::DeserializeOwned};

use crate::outcome::to_json_bytes;
use crate::{
    Context, Delivery, Disposition, Error, HeaderValue, Message, MessageHeader, MessageProperties,
    UpstreamRef,
};

/// Handles messages, exported with `plugin!(…; messages = …)` or `#[reconciler(messages = …)]`. A function with this
/// signature is a handler, too.
///
/// A handler may create and apply objects and publish messages; state belongs into objects, and work into
/// [`Reconciler::reconcile`](crate::Reconciler::reconcile).
pub trait MessageHandler {
    /// Handles one message. A message may be delivered more than once.
    ///
    /// # Errors
    /// An error never dead-letters the message: it is delivered again with backoff. A message that can never be
    /// handled is a [`Disposition::Reject`].
    fn handle(&self, ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error>;
}

impl<F> MessageHandler for F
where
    F: Fn(&Context, &Delivery) -> Result<Disposition, Error>,
{
    fn handle(&self, ctx: &Context, delivery: &Delivery) -> Result<Disposition, Error> {
        self(ctx, delivery)
    }
}

impl UpstreamRef {
    /// An `Upstream` in the namespace of the reconciled object.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            cluster: None,
            namespace: None,
            name: name.into(),
        }
    }

    /// The `Upstream` of this name in another namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

impl Default for MessageProperties {
    fn default() -> Self {
        Self {
            content_type: None,
            content_encoding: None,
            headers: Vec::new(),
            persistent: true,
            priority: None,
            correlation_id: None,
            reply_to: None,
            expiration: None,
            message_id: None,
            timestamp: None,
            type_: None,
            user_id: None,
            app_id: None,
        }
    }
}

impl Message {
    /// A persistent message that must reach a queue.
    #[must_use]
    pub fn new(exchange: &str, routing_key: &str, body: Vec<u8>) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            properties: MessageProperties::default(),
            body,
            mandatory: true,
        }
    }

    /// A persistent message with a JSON body that must reach a queue.
    #[must_use]
    pub fn with_json(exchange: &str, routing_key: &str, body: &impl Serialize) -> Self {
        let mut message = Self::new(exchange, routing_key, to_json_bytes(body));
        message.properties.content_type = Some("application/json".into());
        message
    }

    /// Sets the id by which consumers recognize a duplicate.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.properties.message_id = Some(id.into());
        self
    }

    /// Adds a text header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.properties.headers.push(MessageHeader {
            name: name.into(),
            value: HeaderValue::String(value.into()),
        });
        self
    }
}

impl MessageProperties {
    /// Returns the text of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|header| header.name == name)
            .and_then(|header| match &header.value {
                HeaderValue::String(text) => Some(text.as_str()),
                _ => None,
            })
    }
}

impl Delivery {
    /// The first delivery of a message from a queue by the default exchange, for tests. Its fields can be set.
    #[must_use]
    pub fn new(queue: &str, body: Vec<u8>) -> Self {
        Self {
            broker: UpstreamRef::new("broker"),
            queue: queue.into(),
            exchange: String::new(),
            routing_key: queue.into(),
            properties: MessageProperties::default(),
            body,
            delivery_count: 0,
        }
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// `invalid` if the body is not of the type; a handler usually rejects such a message.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        crate::slim::from_slice(&self.body)
            .map_err(|error| Error::Invalid(error.within("the body").to_string()))
    }
}
