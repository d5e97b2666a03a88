//! Messages: the subscriptions of plugins to queues, and the calls of their message handlers.
//!
//! ```text
//! queue → consumer → handler → component (`messages.handle`) → objects, messages
//!   ▲                  │
//!   │                  ├─ ack          after the effects of the call: each was confirmed when its host call returned
//!   └── delay queue ◀──┼─ retry        a durable queue per delay, from which the message returns by its time to live
//!                      └─ dead letter  after a rejection, or too many attempts; confirmed before the message is removed
//! ```
//!
//! A subscription is served by the leader, after the hooks of its plugin have run, and not while the plugin is suspended.

mod consumer;
mod decision;
mod handler;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{consumer::Consumer, handler::SubscriptionHandler};
use crate::{plugin::Plugin, policy::grants::Subscription, reconcile::Controller, upstream::SubscriptionKey};

/// Interval in which the subscriptions are compared with the plugins that serve. Changes are mostly announced; the hooks
/// of a plugin that end are not.
const COMPARE_INTERVAL: Duration = Duration::from_millis(500);

/// Serves the subscriptions of all plugins.
pub struct MessageRunner {
    controller: Arc<Controller>,
    /// Concurrent calls of all handlers together.
    slots: Arc<Semaphore>,
    /// Concurrent calls of one plugin's handler.
    workers: u32,
}

/// A subscription that is served.
struct Running {
    plugin: Arc<Plugin>,
    subscription: Subscription,
    stop: CancellationToken,
    /// Aborted when the runner is dropped, as in a crash.
    task: AbortOnDropHandle<()>,
}

impl Running {
    /// True unless it was stopped, or is for another build, policy or version of the subscription.
    fn serves(&self, plugin: &Arc<Plugin>, subscription: &Subscription) -> bool {
        Arc::ptr_eq(&self.plugin, plugin) && self.subscription == *subscription && !self.stop.is_cancelled()
    }
}

impl MessageRunner {
    /// A runner with this many concurrent calls, and this many of one plugin.
    pub fn new(controller: Arc<Controller>, (slots, workers): (u32, u32)) -> Self {
        Self {
            controller,
            slots: Arc::new(Semaphore::new(slots.max(1) as usize)),
            workers: workers.max(1),
        }
    }

    /// Serves subscriptions while this host leads, until it is drained.
    pub async fn run(self: Arc<Self>) {
        let fence = self.controller.services.fence.clone();
        while let Some(term) = fence.wait_open().await {
            let mut running: HashMap<SubscriptionKey, Running> = HashMap::new();
            let is_drained = loop {
                self.adjust(term, &mut running);
                tokio::select! {
                    () = tokio::time::sleep(COMPARE_INTERVAL) => {}
                    () = fence.wait_term_end(term) => break false,
                    () = fence.wait_drain() => break true,
                }
            };
            // All before any is awaited: none takes further messages meanwhile.
            running.values().for_each(|one| one.stop.cancel());
            for (key, one) in running {
                if is_drained {
                    // Messages that are being handled get the grace period of the drain.
                    let _ = one.task.await;
                } else {
                    one.task.abort();
                }
                self.controller.services.upstreams.subscriptions.remove(&key);
            }
        }
    }

    /// Starts and stops subscriptions, so that those of the serving builds run.
    fn adjust(self: &Arc<Self>, term: u64, running: &mut HashMap<SubscriptionKey, Running>) {
        let mut wanted = HashSet::new();
        for plugin in self.controller.registry.serving() {
            if plugin.suspended || !plugin.messages || !self.controller.hooks.is_initialized(&plugin) {
                continue;
            }
            let limit = match plugin.max_concurrent {
                0 => self.workers,
                max => max.min(self.workers),
            };
            let mut handler = None;
            for subscription in plugin.policy.grants.subscriptions() {
                let key = subscription_key(&plugin, subscription);
                wanted.insert(key.clone());
                let known = running.get(&key);
                if known.is_some_and(|r| r.serves(&plugin, subscription)) {
                    continue;
                }
                let handler = handler.get_or_insert_with(|| {
                    Arc::new(SubscriptionHandler {
                        controller: self.controller.clone(),
                        plugin: plugin.clone(),
                        slots: self.slots.clone(),
                        workers: Semaphore::new(limit as usize),
                    })
                });
                let before = running.remove(&key).map(|superseded| {
                    superseded.stop.cancel();
                    superseded.task
                });
                let stop = CancellationToken::new();
                let consumer = Consumer {
                    handler: handler.clone(),
                    subscription: Arc::new(subscription.clone()),
                    stats: self.controller.services.upstreams.subscriptions.entry(&key),
                    stop: stop.clone(),
                    memory: self.controller.services.memory.messages().share(),
                    term,
                };
                let task = AbortOnDropHandle::new(tokio::spawn(async move {
                    // The consumer before has handled or returned its last message: an ordered queue stays in order.
                    if let Some(before) = before {
                        let _ = before.await;
                    }
                    consumer.run().await;
                }));
                running.insert(
                    key,
                    Running {
                        plugin: plugin.clone(),
                        subscription: subscription.clone(),
                        stop,
                        task,
                    },
                );
            }
        }
        running.retain(|key, one| {
            if wanted.contains(key) {
                return true;
            }
            if !one.stop.is_cancelled() {
                one.stop.cancel();
                self.controller.services.upstreams.subscriptions.remove(key);
            }
            // Until it has returned its messages: the subscription may be wanted again before.
            !one.task.is_finished()
        });
    }
}

fn subscription_key(plugin: &Plugin, subscription: &Subscription) -> SubscriptionKey {
    let upstream = &subscription.upstream;
    SubscriptionKey {
        plugin: plugin.name().clone(),
        upstream: format!("{}/{}", upstream.namespace, upstream.name).into(),
        queue: subscription.queue.as_str().into(),
    }
}
