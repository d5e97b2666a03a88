//! States and counters of subscriptions, for metrics and explanations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

/// All subscriptions that this host serves, by plugin, Upstream and queue.
#[derive(Default)]
pub struct Subscriptions(Mutex<BTreeMap<SubscriptionKey, Arc<SubscriptionStats>>>);

/// The name of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionKey {
    /// The plugin.
    pub plugin: Arc<str>,
    /// Namespace and name of the Upstream: `messaging/broker`.
    pub upstream: Arc<str>,
    /// The queue.
    pub queue: Arc<str>,
}

/// The result of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleResult {
    /// It is acknowledged.
    Acknowledged,
    /// It is delivered again after a delay.
    Retried,
    /// It is dead-lettered.
    DeadLettered,
    /// It was returned to the queue, since the dead-letter target did not take it.
    Requeued,
}

impl HandleResult {
    /// All results, in the order of their discriminants.
    pub const ALL: [Self; 4] = [
        Self::Acknowledged,
        Self::Retried,
        Self::DeadLettered,
        Self::Requeued,
    ];

    /// The label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Retried => "retried",
            Self::DeadLettered => "dead_lettered",
            Self::Requeued => "requeued",
        }
    }
}

/// State and counters of one subscription.
#[derive(Debug, Default)]
pub struct SubscriptionStats {
    state: Mutex<SubscriptionState>,
    results: [AtomicU64; HandleResult::ALL.len()],
    redelivered: AtomicU64,
    in_flight: AtomicU64,
}

/// The state of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionState {
    /// The host consumes the queue.
    pub is_consuming: bool,
    /// The reason why not, or the last problem with a message.
    pub message: String,
    /// Number of messages that are ready in the queue, when it was last asked for.
    pub depth: Option<u32>,
}

impl Subscriptions {
    /// The entry of a subscription.
    pub fn entry(&self, key: &SubscriptionKey) -> Arc<SubscriptionStats> {
        self.0.lock().entry(key.clone()).or_default().clone()
    }

    /// Removes a subscription that ended.
    pub fn remove(&self, key: &SubscriptionKey) {
        self.0.lock().remove(key);
    }

    /// All subscriptions.
    pub fn list(&self) -> Vec<(SubscriptionKey, Arc<SubscriptionStats>)> {
        let all = self.0.lock();
        all.iter()
            .map(|(key, stats)| (key.clone(), stats.clone()))
            .collect()
    }
}

impl SubscriptionStats {
    /// The state.
    pub fn state(&self) -> SubscriptionState {
        self.state.lock().clone()
    }

    /// Changes the state.
    pub fn update(&self, change: impl FnOnce(&mut SubscriptionState)) {
        change(&mut self.state.lock());
    }

    /// Counts a message as in flight until the guard is dropped.
    pub fn begin(self: &Arc<Self>, is_redelivered: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if is_redelivered {
            self.redelivered.fetch_add(1, Ordering::Relaxed);
        }
        InFlight(self.clone())
    }

    /// Counts a result.
    pub fn count(&self, result: HandleResult) {
        self.results[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of messages with this result.
    pub fn total(&self, result: HandleResult) -> u64 {
        self.results[result as usize].load(Ordering::Relaxed)
    }

    /// Number of messages that had been delivered before.
    pub fn redelivered(&self) -> u64 {
        self.redelivered.load(Ordering::Relaxed)
    }

    /// Number of messages that are handled now.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }
}

/// A message that is handled.
pub struct InFlight(Arc<SubscriptionStats>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
