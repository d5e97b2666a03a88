//! Message brokers (AMQP 0-9-1). One client exists per `Upstream` object, version of its spec and values of its Secrets, with
//! a connection to publish and one for each consumer.
//!
//! A message passes these layers on its way out:
//!
//! ```text
//!  message
//!     │  dry run            ClientPool        `ostler plan`: it is shown, and not sent
//!     │  size, properties   properties        AMQP's limits; headers that would route past the grants
//!     │  rate limit         rate_limit        rate and burst
//!     │  in-flight          client            bounded concurrency, timeout
//!     │  connection         link_state        one attempt at a time, with backoff; calls fail at once in between
//!     │  channel            link              one publish at a time on each, so that an error concerns one message
//!     │  write fence        client::fence     only while leading: before the publish, and at each write to the stream
//!     ▼  TLS, addresses     connect           policy::network allows each address
//!  broker ── confirm, or the returned message (mandatory)
//! ```

mod client;
mod connect;
mod consume;
mod link;
mod link_state;
mod metered;
mod properties;
mod relay;
mod subscriptions;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

pub(crate) use self::client::BrokerClient;
use self::client::BrokerContext;
pub use self::{
    consume::{DeadLetter, IncomingMessage, QueuedMessage},
    subscriptions::{HandleResult, SubscriptionKey, SubscriptionState, SubscriptionStats, Subscriptions},
};
use super::{
    ClientPool, ClientVersion, RateLimitScope, SecretStore, SendError, UpstreamObject,
    rate_limit::RateLimiter,
};
use crate::contract::bindings::types::MessageProperties;

/// The connections to a broker that are established from now on.
pub(crate) type BrokerConnections = link_state::LinkChanges<Arc<link::Link>>;

/// A message to publish.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The exchange; empty for the default exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// The properties.
    pub properties: MessageProperties,
    /// The body.
    pub body: Vec<u8>,
    /// The message must reach a queue.
    pub mandatory: bool,
}

/// The clients of all brokers, by namespace and name of the Upstream.
#[derive(Default)]
pub(super) struct BrokerClients(Mutex<HashMap<(String, String), BrokerEntry>>);

struct BrokerEntry {
    version: ClientVersion,
    /// Kept over versions of the client: a rotated secret does not lift the limit.
    rate_limiter: (RateLimitScope, Arc<Mutex<RateLimiter>>),
    client: Result<Arc<BrokerClient>, SendError>,
}

impl BrokerClients {
    /// Drops the client of a deleted Upstream, with its connection.
    pub(super) fn remove(&self, namespace: &str, name: &str) {
        let removed = self.0.lock().remove(&(namespace.to_owned(), name.to_owned()));
        if let Some(Ok(client)) = removed.map(|entry| entry.client) {
            client.retire();
        }
    }

    /// All clients, with namespace and name of their Upstreams.
    pub(super) fn list(&self) -> Vec<(String, Arc<BrokerClient>)> {
        let clients = self.0.lock();
        let working = clients.iter().filter_map(|((namespace, name), entry)| {
            let client = entry.client.as_ref().ok()?;
            Some((format!("{namespace}/{name}"), client.clone()))
        });
        working.collect()
    }
}

impl ClientPool {
    /// Publishes a message with the broker's credentials, and waits until the broker confirms it.
    pub async fn publish(
        &self,
        upstream: &UpstreamObject,
        message: &OutgoingMessage,
        secrets: &dyn SecretStore,
        timeout: Duration,
    ) -> Result<(), SendError> {
        let client = self.broker_for(upstream, secrets)?;
        if let Some(dry_run) = &self.dry_run {
            client.check_message(message)?;
            dry_run.record_message(upstream, message);
            return Ok(());
        }
        client.publish(message, timeout).await
    }

    /// Checks the health of a broker: connects unless there is a connection. A plan assumes it.
    pub(crate) async fn check_broker(&self, client: &Arc<BrokerClient>) {
        match &self.dry_run {
            Some(_) => client.assume_health(),
            None => client.check_health().await,
        }
    }

    /// The client for the current version of a broker's Upstream and its Secrets. The connection of a superseded one is
    /// closed: what was not confirmed or acknowledged on it is sent again.
    pub(crate) fn broker_for(
        &self,
        upstream: &UpstreamObject,
        secrets: &dyn SecretStore,
    ) -> Result<Arc<BrokerClient>, SendError> {
        let resolved = ClientVersion::resolve(upstream, secrets, self.network.version());
        let version = resolved.inspect_err(|_| {
            // What was consumed with the credentials of before ends with them.
            self.close_broker(&upstream.namespace, &upstream.name);
        })?;
        let scope = RateLimitScope::of(upstream);
        let mut clients = self.brokers.0.lock();
        let key = (upstream.namespace.clone(), upstream.name.clone());
        let known = clients.remove(&key);
        let entry = match known {
            Some(entry) if entry.version == version => entry,
            superseded => {
                let rate_limiter = match superseded {
                    Some(entry) => {
                        if let Ok(client) = &entry.client {
                            client.retire();
                        }
                        Some(entry.rate_limiter).filter(|(known, _)| *known == scope)
                    }
                    None => None,
                };
                let rate_limiter = rate_limiter.unwrap_or_else(|| {
                    let limiter = RateLimiter::new(scope.requests_per_second, scope.burst);
                    (scope, Arc::new(Mutex::new(limiter)))
                });
                let (listener, (namespace, name)) = (self.on_status_change.clone(), key.clone());
                let context = BrokerContext {
                    network: self.network.clone(),
                    fence: self.fence.clone(),
                    secrets: version.secrets.clone(),
                    rate_limiter: rate_limiter.1.clone(),
                    on_status_change: Arc::new(move || listener(&namespace, &name)),
                };
                BrokerEntry {
                    version,
                    rate_limiter,
                    client: BrokerClient::new(upstream, context).map(Arc::new),
                }
            }
        };
        let client = entry.client.clone();
        clients.insert(key, entry);
        client
    }

    /// Closes the connections to a broker whose Upstream is none any more, or has no valid spec.
    pub fn close_broker(&self, namespace: &str, name: &str) {
        self.brokers.remove(namespace, name);
    }

    /// Closes the connections to all brokers: this host no longer leads.
    pub fn close_brokers(&self) {
        for (_, client) in self.brokers.list() {
            client.close();
        }
    }
}
