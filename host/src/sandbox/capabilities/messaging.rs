//! `messaging`: messages to named brokers, with credentials the component never sees.

use std::time::Duration;

use tracing::instrument;

use super::{
    PluginCall,
    http::{ResolvedUpstream, StoreSecrets},
    protection::{ConnectionUsage, UsedConnection},
};
use crate::{
    contract::bindings::{
        messaging::{Host, Message},
        types::{Error, HeaderValue, MessageProperties, UpstreamRef},
    },
    observe::metrics::{HostCall, PublishResult},
    policy::grants::Access,
    upstream::{OutgoingMessage, SendError},
};

/// Time that is left to the component after a publish that is not confirmed, so that it can report it.
const REPORT_TIME: Duration = Duration::from_millis(500);

impl Host for PluginCall {
    #[instrument(
        name = "messaging.publish",
        target = "spans",
        level = "trace",
        skip_all,
        err(Debug, level = "trace")
    )]
    async fn publish(&mut self, broker: UpstreamRef, message: Message) -> Result<(), Error> {
        let (key, services) = self.locate_upstream(HostCall::MessagingPublish, &broker)?;
        self.charge_bytes_to_host(count_bytes(&message))?;
        self.context.check_grant(&Access::Publish {
            namespace: &key.namespace,
            name: &key.name,
            exchange: &message.exchange,
            routing_key: &message.routing_key,
        })?;
        let upstream = self.load_upstream(services.clone(), key).await?;
        let used = UsedConnection::upstream(&upstream.key, &upstream.object);
        self.record_use(&used, ConnectionUsage::Changes).await?;
        self.ensure_fresh_object().await?;
        let ResolvedUpstream { key, object, .. } = upstream;
        self.effects.record_request(false);
        let message = OutgoingMessage {
            exchange: message.exchange,
            routing_key: message.routing_key,
            properties: message.properties,
            body: message.body,
            mandatory: message.mandatory,
        };
        let timeout = self.remaining_time().saturating_sub(REPORT_TIME);
        let clients = &services.upstreams.clients;
        let published = clients
            .publish(&object, &message, &StoreSecrets(&services.cache.store), timeout)
            .await;
        let result = match &published {
            Ok(()) => PublishResult::Confirmed,
            Err(SendError::NotFound(_)) => PublishResult::Unroutable,
            Err(_) => PublishResult::Failed,
        };
        services.metrics.record_publish(&key.namespace, &key.name, result);
        Ok(published.map_err(|e| e.at_server(&object))?)
    }
}

/// Counts the bytes of a message.
fn count_bytes(message: &Message) -> usize {
    let MessageProperties { headers, .. } = &message.properties;
    let headers = headers.iter().map(|header| {
        let value = match &header.value {
            HeaderValue::String(text) => text.len(),
            HeaderValue::Bytes(bytes) | HeaderValue::Structure(bytes) => bytes.len(),
            _ => size_of::<u64>(),
        };
        header.name.len() + value
    });
    message.exchange.len() + message.routing_key.len() + headers.sum::<usize>() + message.body.len()
}
