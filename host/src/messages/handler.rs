//! One message: the call of the handler, and what becomes of the message.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, trace_span, warn};

use super::decision::{HandleEnd, Settlement, decide, rate_build};
use crate::{
    contract::{
        bindings::{messages::Delivery, types::UpstreamRef},
        trap::Trap,
    },
    kube::key::ObjectRef,
    observe::telemetry::SPANS,
    plugin::{self, CallSubject, Plugin},
    policy::grants::Subscription,
    reconcile::{Controller, lifecycle::plugin_target},
    recording::recorder::{CallInfo, CallInput},
    sandbox::capabilities::PluginCall,
    upstream::{DeadLetter, HandleResult, IncomingMessage, QueuedMessage, SubscriptionStats},
};

/// Longest text about a message in the state of its subscription.
const MAX_PROBLEM_BYTES: usize = 512;

/// The message handler of one build.
pub struct SubscriptionHandler {
    /// Services that calls use, the registry, and the engine.
    pub controller: Arc<Controller>,
    /// The build.
    pub plugin: Arc<Plugin>,
    /// Concurrent calls of all handlers.
    pub slots: Arc<Semaphore>,
    /// Concurrent calls of this one.
    pub workers: Semaphore,
}

impl SubscriptionHandler {
    /// Handles a message to its end: acknowledged, delayed, dead-lettered, or back in its queue. Once `stop` is cancelled, it
    /// is not handled again.
    pub async fn handle(
        &self,
        subscription: &Subscription,
        stats: &Arc<SubscriptionStats>,
        stop: &CancellationToken,
        mut message: QueuedMessage,
    ) {
        let _in_flight = stats.begin(message.deliveries() > 0);
        loop {
            let decision = match self.check_size(&message) {
                Ok(()) => {
                    let end = self.call_in_turn(subscription, message.to_incoming().await).await;
                    self.record_result(&message, &end);
                    let (deliveries, attempts) = (message.deliveries(), message.attempts());
                    let max = subscription.max_deliveries();
                    decide(&end, deliveries, attempts, max, subscription.backoff())
                }
                Err(too_large) => Settlement::DeadLetter(too_large),
            };
            match decision {
                // In order: the message keeps its place, and those behind it wait.
                Settlement::Retry { delay, counts, why } if subscription.ordered => {
                    self.report_problem(stats, &message, &why);
                    stats.count(HandleResult::Retried);
                    message.count_delivery(counts);
                    if !self.pause(delay, stop, &message).await {
                        return message.requeue().await;
                    }
                }
                decision => {
                    let settled = self.settle(subscription, stats, &message, &decision).await;
                    let Err(delay) = settled else { return };
                    let goes_on = self.pause(delay, stop, &message).await;
                    match decision {
                        // Its delay queue can't be used. The message keeps its place as in an ordered subscription: a
                        // classic queue would not count that it was delivered.
                        Settlement::Retry { counts, .. } if goes_on => {
                            stats.count(HandleResult::Retried);
                            message.count_delivery(counts);
                        }
                        _ => {
                            message.requeue().await;
                            return stats.count(HandleResult::Requeued);
                        }
                    }
                }
            }
        }
    }

    /// Waits before a message is handled again. Returns false if that is left to another consumer: this one is stopped, or
    /// its connection is lost.
    async fn pause(&self, delay: Duration, stop: &CancellationToken, message: &QueuedMessage) -> bool {
        tokio::select! {
            () = tokio::time::sleep(delay) => true,
            () = stop.cancelled() => false,
            () = message.wait_lost() => false,
            () = self.controller.services.fence.wait_drain() => false,
        }
    }

    /// Carries a decision out. If that fails, nothing is lost: the error is the delay after which the message returns to its
    /// queue, so that this does not spin.
    async fn settle(
        &self,
        subscription: &Subscription,
        stats: &SubscriptionStats,
        message: &QueuedMessage,
        decision: &Settlement,
    ) -> Result<(), Duration> {
        let (settled, result) = match decision {
            Settlement::Acknowledge => (message.acknowledge().await, HandleResult::Acknowledged),
            Settlement::Retry { delay, counts, why } => {
                self.report_problem(stats, message, why);
                (message.delay(*delay, *counts).await, HandleResult::Retried)
            }
            Settlement::DeadLetter(reason) => {
                self.report_problem(stats, message, reason);
                let target = subscription.dead_letter.as_ref();
                let letter = DeadLetter {
                    target: target.map(|target| (target.exchange.as_str(), target.routing_key.as_str())),
                    plugin: self.plugin.name(),
                    reason,
                };
                (message.dead_letter(letter).await, HandleResult::DeadLettered)
            }
        };
        let Err(e) = settled else {
            stats.count(result);
            if result == HandleResult::DeadLettered {
                self.controller
                    .forget_subject(&self.plugin, CallSubject::Message(&message.identity()));
            }
            return Ok(());
        };
        let why = format!("{}: {e}", result.as_str());
        warn!(plugin = &**self.plugin.name(), subscription = %subscription, error = why, "message stays in its queue");
        self.report_problem(stats, message, &why);
        Err(subscription
            .backoff()
            .delay(message.deliveries().saturating_add(1)))
    }

    /// Records the end of a call for the health of the build: one that traps on new messages is rolled back.
    fn record_result(&self, message: &QueuedMessage, end: &HandleEnd) {
        let Some(result) = rate_build(end) else { return };
        let trap = end.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let identity = message.identity();
        self.controller
            .record_call(&self.plugin, CallSubject::Message(&identity), result, &trap);
    }

    fn report_problem(&self, stats: &SubscriptionStats, message: &QueuedMessage, why: &str) {
        let plugin = &**self.plugin.name();
        info!(
            plugin,
            deliveries = message.deliveries(),
            error = why,
            "message not handled"
        );
        let why = &why[..why.floor_char_boundary(MAX_PROBLEM_BYTES)];
        stats.update(|state| why.clone_into(&mut state.message));
    }

    /// Checks that the host could pass the body to the component.
    fn check_size(&self, message: &QueuedMessage) -> Result<(), String> {
        let (size, max) = (message.body_bytes(), self.plugin.policy.limits.bytes_from_host);
        if size > max {
            return Err(format!(
                "the body has {size} bytes: the limit bytesFromHost of the plugin is {max}"
            ));
        }
        Ok(())
    }

    /// Calls the handler once there is a worker for it.
    async fn call_in_turn(&self, subscription: &Subscription, message: IncomingMessage) -> HandleEnd {
        // Its own before the shared one: a plugin that waits for itself must not hold what others could use.
        let _worker = self.workers.acquire().await;
        let _slot = self.slots.acquire().await;
        self.call(subscription, message).await
    }

    /// Calls the handler in a fresh instance.
    async fn call(&self, subscription: &Subscription, message: IncomingMessage) -> HandleEnd {
        let plugin = &self.plugin;
        if let Err(e) = self.controller.registry.check_service_account(plugin) {
            return Ok(Err(crate::contract::bindings::types::Error::Denied(e.message)));
        }
        let upstream = &subscription.upstream;
        let delivery = Delivery {
            broker: UpstreamRef {
                cluster: None,
                namespace: Some(upstream.namespace.clone()),
                name: upstream.name.clone(),
            },
            queue: subscription.queue.clone(),
            exchange: message.exchange,
            routing_key: message.routing_key,
            properties: message.properties,
            body: message.body,
            delivery_count: message.delivery_count,
        };
        let target = match plugin_target(plugin, self.controller.services.clone()) {
            Ok(target) => target,
            Err(why) => return Err(Trap::Other(why)),
        };
        let mut call = PluginCall::message(plugin.policy.clone(), target, upstream.namespace.as_str().into());
        let id = call.context.id;
        let key = ObjectRef::new(plugin::kind(), "", plugin.name());
        call.mode = self.controller.services.recordings.begin_call(&key, || CallInfo {
            id,
            key: key.clone(),
            input: CallInput::Handle(Arc::new(delivery.clone())),
            policy: plugin.policy.clone(),
            version: plugin.version.clone(),
            digest: plugin.digest.clone(),
        });
        let span = trace_span!(target: SPANS, "handle", plugin = &**plugin.name(), queue = subscription.queue, reconcile = %id);
        let started = Instant::now();
        let calling = self
            .controller
            .engine
            .handle(&plugin.compiled, call, delivery)
            .instrument(span);
        let (end, mut call) = calling.await;
        let recorded = std::mem::take(&mut call.mode).finish(&(&end).into(), call.budget.cpu_time);
        if let Some(metrics) = &call.context.metrics {
            let bytes = call.budget.bytes();
            metrics.record_call(started.elapsed(), call.budget.cpu_time);
            metrics.record_usage((bytes.to_host, bytes.from_host), call.budget.memory);
            if let Err(trap) = &end {
                metrics.record_trap(trap.kind());
                if let Some(limit) = trap.limit() {
                    metrics.record_exceeded(limit);
                }
            }
        }
        if let Some(recorded) = recorded {
            let failed = !matches!(end, Ok(Ok(_)));
            self.controller.services.recordings.store_call(recorded, failed);
            if !self.controller.registry.is_serving(plugin.name()) {
                self.controller.services.recordings.forget_plugin(plugin.name());
            }
        }
        // The next message is about other objects: what this one has applied need not be remembered.
        self.controller.services.api.writer.drop_unused_applies(&key);
        end
    }
}
