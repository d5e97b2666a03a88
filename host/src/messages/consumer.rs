//! The consumer of one subscription: it keeps the queue consumed, and hands each message to the handler.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::handler::SubscriptionHandler;
use crate::{
    contract::message_memory::MessageShare,
    kube::{backoff::Backoff, key::ObjectRef, scope::Projection},
    policy::grants::Subscription,
    sandbox::capabilities::http::StoreSecrets,
    upstream::{self, BrokerClient, BrokerConnections, SubscriptionStats, UpstreamObject},
};

/// Delays between attempts to consume a queue.
const CONSUME_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(30)).with_jitter(25);

/// Interval in which the depth of a queue is asked for.
const DEPTH_INTERVAL: Duration = Duration::from_secs(15);

/// The consumer of one subscription, in one leader term.
pub struct Consumer {
    /// The handler of the plugin.
    pub handler: Arc<SubscriptionHandler>,
    /// The subscription.
    pub subscription: Arc<Subscription>,
    /// Its state and counters.
    pub stats: Arc<SubscriptionStats>,
    /// Cancelled when no further message may be taken.
    pub stop: CancellationToken,
    /// The memory of its messages.
    pub memory: Arc<MessageShare>,
    /// The leader term.
    pub term: u64,
}

impl Consumer {
    /// Consumes the queue until it is stopped.
    pub async fn run(&self) {
        let (mut failures, mut connections) = (0, None);
        while !self.stop.is_cancelled() {
            let Err(why) = self.consume(&mut failures, &mut connections).await else {
                return;
            };
            self.stats.update(|state| {
                state.is_consuming = false;
                state.message.clone_from(&why);
            });
            failures += 1;
            debug!(subscription = %self.subscription, error = why, "queue is not consumed");
            tokio::select! {
                () = tokio::time::sleep(CONSUME_BACKOFF.delay(failures)) => {}
                // A broker that is back is consumed at once, however long it was down.
                () = wait_connection(connections.take()) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Consumes the queue until the connection is lost, which is the error, or until it is stopped.
    async fn consume(
        &self,
        failures: &mut u32,
        connections: &mut Option<BrokerConnections>,
    ) -> Result<(), String> {
        let client = self.find_broker()?;
        let queue = &self.subscription.queue;
        let prefetch = self.subscription.prefetch_count();
        let consumer = client.consume(queue, prefetch, &self.memory).await;
        // Without that of this attempt: a broker that closes it each time would be consumed without a pause.
        *connections = Some(client.watch_connections());
        let mut consumer = consumer.map_err(|e| e.to_string())?;
        *failures = 0;
        info!(plugin = &**self.handler.plugin.name(), subscription = %self.subscription, "consuming queue");
        self.stats.update(|state| {
            state.is_consuming = true;
            state.message.clear();
        });
        // Of the handlers, cancelled after the consumer: a message that was returned before would be delivered to it again.
        let handover = CancellationToken::new();
        let mut handling = JoinSet::new();
        let mut depth = tokio::time::interval(DEPTH_INTERVAL);
        let ended = loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break Ok(()),
                Some(ended) = handling.join_next(), if !handling.is_empty() => {
                    // Its message is neither acknowledged nor returned. A new consumer gets it again.
                    if let Err(panic) = ended {
                        error!(plugin = &**self.handler.plugin.name(), error = %panic, "panic in the handling of a message: this is a bug of the host");
                        break Err("the handling of a message has panicked".to_owned());
                    }
                }
                message = consumer.next() => match message {
                    Ok(message) => {
                        let (handler, subscription) = (self.handler.clone(), self.subscription.clone());
                        let (stats, stop, term) = (self.stats.clone(), handover.clone(), self.term);
                        handling.spawn(async move {
                            let fence = handler.controller.services.fence.clone();
                            // Without leadership the message stays unacknowledged, and the next leader gets it.
                            let handling = Box::pin(handler.handle(&subscription, &stats, &stop, message));
                            let _ = fence.run_in_term(term, handling).await;
                        });
                    }
                    Err(e) => break Err(e.to_string()),
                },
                _ = depth.tick() => {
                    let (client, stats, queue) = (client.clone(), self.stats.clone(), queue.clone());
                    // Not awaited here: a broker that is slow to answer must not hold back its messages.
                    tokio::spawn(async move {
                        if let Ok(ready) = client.queue_depth(&queue).await {
                            stats.update(|state| state.depth = Some(ready));
                        }
                    });
                }
            }
        };
        if ended.is_ok() {
            consumer.cancel().await;
        }
        handover.cancel();
        // The broker delivers the messages of a lost connection again. Their handlers end first, so that none runs twice
        // at a time.
        while handling.join_next().await.is_some() {}
        consumer.close().await;
        ended
    }

    fn find_broker(&self) -> Result<Arc<BrokerClient>, String> {
        let name = &self.subscription.upstream;
        let services = &self.handler.controller.services;
        let key = ObjectRef::new(upstream::upstream_gvk(), &name.namespace, &name.name);
        let object = services.cache.store.get(&key, Projection::Full);
        let object =
            object.ok_or_else(|| format!("Upstream {}/{} does not exist", name.namespace, name.name))?;
        let upstream = UpstreamObject::from_object(&object)?;
        let secrets = StoreSecrets(&services.cache.store);
        services
            .upstreams
            .clients
            .broker_for(&upstream, &secrets)
            .map_err(|e| e.to_string())
    }
}

/// Waits for the next connection to the broker, which another subscription, a publish or the health check establishes. Without a
/// broker, or with one that was superseded, the backoff finds the new one.
async fn wait_connection(connections: Option<BrokerConnections>) {
    match connections {
        Some(connections) => connections.wait_open().await,
        None => std::future::pending().await,
    }
}
