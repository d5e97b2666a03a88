//! Subscriptions of plugins to the queues of message brokers: settings of the administrator.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{contract::limits::Time, kube::backoff::Backoff};

/// Number of unacknowledged messages without `prefetch`, and the largest.
const DEFAULT_PREFETCH: u16 = 8;
const MAX_PREFETCH: u16 = 256;

/// Delays without `retry`.
const DEFAULT_INITIAL_DELAY: Duration = Duration::from_secs(1);
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(300);
/// Deliveries without `retry.maxDeliveries`.
const DEFAULT_MAX_DELIVERIES: u32 = 16;

/// Largest length of the name of a queue. The host appends a suffix for its own queues, and AMQP allows 255 bytes.
const MAX_QUEUE_BYTES: usize = 220;

/// A queue whose messages the plugin handles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Subscription {
    /// Upstream with an `amqp` or `amqps` URL.
    pub upstream: UpstreamName,
    /// Name of the queue, which must exist.
    #[schemars(length(min = 1, max = MAX_QUEUE_BYTES))]
    pub queue: String,
    /// Number of messages that are handled concurrently. Defaults to 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_PREFETCH))]
    pub prefetch: Option<u16>,
    /// Handles one message at a time, in the order of the queue. A message that is retried holds back those behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// Delays of messages that are delivered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// Target of messages that are rejected, or delivered too often. Defaults to the queue `QUEUE.dead-letter`, which the
    /// host declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetterTarget>,
}

/// Reference to an Upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamName {
    /// Namespace of the Upstream.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the Upstream.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Delays of messages that are delivered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RetrySettings {
    /// Delay after the first failure, which doubles with each further one. Defaults to `1s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_delay: Option<Time>,
    /// Longest delay. Defaults to `5m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<Time>,
    /// Number of deliveries after which a message is dead-lettered that the plugin has retried, or that trapped it, each
    /// time. Errors, such as a missing grant, do not count. 0 for no limit. Defaults to 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_deliveries: Option<u32>,
}

/// Exchange and routing key of dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeadLetterTarget {
    /// Exchange. Defaults to the default exchange.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exchange: String,
    /// Routing key; for the default exchange the name of a queue. It must lead to a queue.
    #[schemars(length(min = 1, max = 255))]
    pub routing_key: String,
}

impl Subscription {
    /// Checks the values. The error names the field.
    pub fn check(&self) -> Result<(), String> {
        for (field, value) in [
            ("namespace", &self.upstream.namespace),
            ("name", &self.upstream.name),
        ] {
            if value.is_empty() {
                return Err(format!("upstream.{field} is empty"));
            }
        }
        if self.queue.is_empty() || self.queue.len() > MAX_QUEUE_BYTES {
            return Err(format!(
                "queue has {} bytes: 1 to {MAX_QUEUE_BYTES} are needed",
                self.queue.len()
            ));
        }
        if self.prefetch.is_some_and(|n| !(1..=MAX_PREFETCH).contains(&n)) {
            return Err(format!("prefetch must be from 1 to {MAX_PREFETCH}"));
        }
        if self.ordered && self.prefetch.is_some_and(|n| n > 1) {
            return Err("ordered handles one message at a time: leave out prefetch".into());
        }
        let retry = self.retry.unwrap_or_default();
        if let (Some(initial), Some(max)) = (retry.initial_delay, retry.max_delay)
            && initial.0 > max.0
        {
            return Err("retry.initialDelay is longer than retry.maxDelay".into());
        }
        Ok(())
    }

    /// The number of messages that the broker sends ahead.
    pub fn prefetch_count(&self) -> u16 {
        if self.ordered {
            1
        } else {
            self.prefetch.unwrap_or(DEFAULT_PREFETCH)
        }
    }

    /// The schedule of retries.
    pub fn backoff(&self) -> Backoff {
        let retry = self.retry.unwrap_or_default();
        let max = retry.max_delay.map_or(DEFAULT_MAX_DELAY, |time| time.0);
        let initial = retry.initial_delay.map_or(DEFAULT_INITIAL_DELAY, |time| time.0);
        Backoff::new(initial.min(max), max)
    }

    /// The number of deliveries after which a message is dead-lettered; none without a limit.
    pub fn max_deliveries(&self) -> Option<u32> {
        let max = self.retry.and_then(|retry| retry.max_deliveries);
        Some(max.unwrap_or(DEFAULT_MAX_DELIVERIES)).filter(|max| *max > 0)
    }
}

impl std::fmt::Display for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UpstreamName { namespace, name } = &self.upstream;
        write!(f, "{namespace}/{name} queue {}", self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(yaml: &str) -> Subscription {
        serde_saphyr::from_str(yaml).expect("parses")
    }

    #[test]
    fn subscription_has_defaults_and_names_invalid_fields() {
        let plain = parse("{upstream: {namespace: a, name: b}, queue: q}");
        assert_eq!(plain.check(), Ok(()));
        assert_eq!((plain.prefetch_count(), plain.max_deliveries()), (8, Some(16)));
        assert_eq!(plain.backoff().max_delay(1), Duration::from_secs(1));
        assert_eq!(plain.backoff().max_delay(99), Duration::from_secs(300));
        let ordered =
            parse("{upstream: {namespace: a, name: b}, queue: q, ordered: true, retry: {maxDeliveries: 0}}");
        assert_eq!((ordered.prefetch_count(), ordered.max_deliveries()), (1, None));
        for (rest, word) in [
            ("queue: ''", "queue"),
            ("queue: q, prefetch: 0", "prefetch"),
            ("queue: q, prefetch: 257", "prefetch"),
            ("queue: q, prefetch: 4, ordered: true", "ordered"),
            (
                "queue: q, retry: {initialDelay: 2s, maxDelay: 1s}",
                "retry.initialDelay",
            ),
        ] {
            let invalid = parse(&format!("{{upstream: {{namespace: a, name: b}}, {rest}}}"));
            let error = invalid.check().expect_err(word);
            assert!(error.contains(word), "{error}");
        }
    }
}
