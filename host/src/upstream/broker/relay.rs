//! The delivery history of a message, and the properties with which it is published again: to wait for its next
//! delivery, or as a dead letter. Pure.
//!
//! A classic queue counts no deliveries, and a message that was published again has another exchange and routing key.
//! Headers with the prefix `x-ostler-` keep what was; the plugin does not see them. Anybody could write them, so they are
//! believed only in a message whose property `user-id` is the user as which the host logs in: the broker refuses it from
//! others (RabbitMQ's validated user-id).

use std::{collections::BTreeMap, time::Duration};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::properties::as_integer;

/// Prefix of the host's own headers.
pub const OWN_PREFIX: &str = "x-ostler-";
/// Number of deliveries before the message was published again.
const DELIVERIES: &str = "x-ostler-deliveries";
/// Number of those that count towards `maxDeliveries`.
const ATTEMPTS: &str = "x-ostler-attempts";
/// Exchange and routing key of the publisher.
const EXCHANGE: &str = "x-ostler-exchange";
const ROUTING_KEY: &str = "x-ostler-routing-key";
/// The user of the publisher. The property `user-id` is the host's own then.
const USER_ID: &str = "x-ostler-user-id";
/// Further routing keys of the publisher. In the header `CC` the message would be routed to them again.
const FURTHER_KEYS: &str = "x-ostler-cc";

/// Reason, queue and plugin of a dead letter.
pub const DEAD_LETTER_REASON: &str = "x-ostler-dead-letter-reason";
pub const DEAD_LETTER_QUEUE: &str = "x-ostler-dead-letter-queue";
pub const DEAD_LETTER_PLUGIN: &str = "x-ostler-dead-letter-plugin";

/// Headers with which a queue counts deliveries. They are the queue's, and those of the next one would be added.
const QUEUE_COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// Headers of an automatic dead-lettering, which the expiry in a delay queue is.
const DEATH_HEADERS: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// Longest reason in a header of a dead letter.
const MAX_REASON_BYTES: usize = 1024;

/// Shortest and longest delay of a delay queue, in seconds: powers of two.
const MIN_DELAY_SECONDS: u64 = 1;
const MAX_DELAY_SECONDS: u64 = 1 << 17;

/// The history of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// Number of earlier deliveries.
    pub deliveries: u32,
    /// Number of those that count towards `maxDeliveries`.
    pub attempts: u32,
    /// Exchange that the message was published to.
    pub exchange: String,
    /// Routing key that it was published with.
    pub routing_key: String,
    user_id: Option<String>,
    further_keys: Option<AMQPValue>,
    /// The host has published the message again.
    is_relayed: bool,
}

impl History {
    /// Reads the history of a delivery, by the exchange and the routing key of its last publish. The host logs in as `user`.
    pub fn read(
        properties: &BasicProperties,
        is_redelivered: bool,
        (exchange, routing_key): (&str, &str),
        user: &str,
    ) -> Self {
        let empty = BTreeMap::new();
        let headers = properties.headers().as_ref().map_or(&empty, FieldTable::inner);
        let published_by = properties.user_id().as_ref().map(ShortString::as_str);
        let is_relayed = published_by == Some(user) && headers.contains_key(DELIVERIES);
        let own = |name: &str| headers.get(name).filter(|_| is_relayed);
        let to_number = |value: &AMQPValue| as_integer(value).and_then(|n| u32::try_from(n).ok());
        let number = |name: &str| own(name).and_then(to_number);
        let text = |name: &str| match own(name) {
            Some(AMQPValue::LongString(text)) => Some(text.to_string()),
            _ => None,
        };
        let publisher = || published_by.filter(|_| !is_relayed).map(str::to_owned);
        // A quorum queue counts its deliveries; a classic one only tells that there was one.
        let in_queue = headers
            .get(QUEUE_COUNTERS[0])
            .and_then(to_number)
            .unwrap_or_default()
            .max(is_redelivered.into());
        Self {
            deliveries: number(DELIVERIES).unwrap_or_default().saturating_add(in_queue),
            attempts: number(ATTEMPTS).unwrap_or_default(),
            exchange: text(EXCHANGE).unwrap_or_else(|| exchange.to_owned()),
            routing_key: text(ROUTING_KEY).unwrap_or_else(|| routing_key.to_owned()),
            user_id: text(USER_ID).or_else(publisher),
            further_keys: own(FURTHER_KEYS).or_else(|| headers.get("CC")).cloned(),
            is_relayed,
        }
    }

    /// The properties as the publisher has set them, for the plugin.
    pub fn restore_properties(&self, properties: &BasicProperties) -> BasicProperties {
        let mut headers = self.keep_headers(properties);
        if let Some(keys) = &self.further_keys {
            headers.insert("CC".into(), keys.clone());
        }
        let restored = with_headers(properties, headers);
        match self
            .user_id
            .as_deref()
            .and_then(|user| ShortString::try_new(user).ok())
        {
            Some(user) => restored.with_user_id(user),
            None => restored,
        }
    }

    /// The properties with which the host, as `user`, publishes the message again after this delivery.
    pub fn relay_properties(
        &self,
        properties: &BasicProperties,
        counts: bool,
        more: &[(&'static str, &str)],
        user: &str,
    ) -> BasicProperties {
        let mut headers = self.keep_headers(properties);
        let deliveries = self.deliveries.saturating_add(1);
        let attempts = self.attempts.saturating_add(counts.into());
        headers.insert(DELIVERIES.into(), AMQPValue::LongLongInt(deliveries.into()));
        headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(attempts.into()));
        let user_id = self.user_id.as_deref().map(|user| (USER_ID, user));
        let kept = [
            (EXCHANGE, self.exchange.as_str()),
            (ROUTING_KEY, self.routing_key.as_str()),
        ];
        for (name, text) in kept.into_iter().chain(user_id).chain(more.iter().copied()) {
            headers.insert(name.into(), AMQPValue::LongString(truncate(text).into()));
        }
        if let Some(keys) = &self.further_keys {
            headers.insert(FURTHER_KEYS.into(), keys.clone());
        }
        // Persistent, whatever it was: until its next delivery the message is in no other place.
        let relayed = with_headers(properties, headers).with_delivery_mode(super::properties::PERSISTENT);
        // A longer name can't be a user's: it would not have logged in.
        match ShortString::try_new(user) {
            Ok(user) => relayed.with_user_id(user),
            Err(_) => relayed,
        }
    }

    /// The headers that are the publisher's.
    fn keep_headers(&self, properties: &BasicProperties) -> BTreeMap<ShortString, AMQPValue> {
        let empty = BTreeMap::new();
        let headers = properties.headers().as_ref().map_or(&empty, FieldTable::inner);
        let added_on_the_way = |name: &str| {
            name.starts_with(OWN_PREFIX)
                || QUEUE_COUNTERS.contains(&name)
                || matches!(name, "CC" | "BCC")
                || (self.is_relayed && DEATH_HEADERS.contains(&name))
        };
        let kept = headers
            .iter()
            .filter(|(name, _)| !added_on_the_way(name.as_str()));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// The properties with other headers, and without what must not be published again: the user, which the broker
/// verifies, and the lifetime, which has passed in part.
fn with_headers(properties: &BasicProperties, headers: BTreeMap<ShortString, AMQPValue>) -> BasicProperties {
    type Set = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&Option<ShortString>, Set); 7] = [
        (properties.content_type(), BasicProperties::with_content_type),
        (
            properties.content_encoding(),
            BasicProperties::with_content_encoding,
        ),
        (properties.correlation_id(), BasicProperties::with_correlation_id),
        (properties.reply_to(), BasicProperties::with_reply_to),
        (properties.message_id(), BasicProperties::with_message_id),
        (properties.kind(), BasicProperties::with_type),
        (properties.app_id(), BasicProperties::with_app_id),
    ];
    let mut out = BasicProperties::default().with_headers(FieldTable::from(headers));
    for (text, set) in texts {
        if let Some(text) = text {
            out = set(out, text.clone());
        }
    }
    if let Some(mode) = *properties.delivery_mode() {
        out = out.with_delivery_mode(mode);
    }
    if let Some(priority) = *properties.priority() {
        out = out.with_priority(priority);
    }
    if let Some(timestamp) = *properties.timestamp() {
        out = out.with_timestamp(timestamp);
    }
    out
}

/// A text of bounded length for a header.
fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON_BYTES)]
}

/// The seconds of the delay queue for a delay: the next power of two, because a queue expires its messages in order and
/// one with different delays would hold back the shorter ones.
pub fn delay_bucket(delay: Duration) -> u64 {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    seconds
        .clamp(MIN_DELAY_SECONDS, MAX_DELAY_SECONDS)
        .next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user as which the host logs in.
    const USER: &str = "ostler";

    fn headers(list: &[(&str, AMQPValue)]) -> BasicProperties {
        let table: BTreeMap<ShortString, AMQPValue> = list
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()))
            .collect();
        BasicProperties::default().with_headers(FieldTable::from(table))
    }

    fn text(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    #[test]
    fn history_survives_relays_and_is_hidden_from_the_plugin() {
        let original = headers(&[
            ("trace", text("t")),
            ("CC", AMQPValue::FieldArray(vec![text("other")].into())),
        ])
        .with_user_id("ada".into())
        .with_message_id("m1".into())
        .with_expiration("60000".into())
        .with_delivery_mode(1);
        let first = History::read(&original, false, ("events", "order.created"), USER);
        assert_eq!((first.deliveries, first.attempts), (0, 0));
        let relayed = first.relay_properties(&original, true, &[], USER);
        assert_eq!(
            relayed.user_id(),
            &Some(USER.into()),
            "the broker would refuse another user"
        );
        assert_eq!(relayed.expiration(), &None);
        assert_eq!(relayed.delivery_mode(), &Some(2));
        assert!(
            !relayed.headers().as_ref().unwrap().contains_key("CC"),
            "it would be routed again"
        );
        // It returns through the delay queue, by the default exchange.
        let second = History::read(&relayed, false, ("", "queue"), USER);
        assert_eq!((second.deliveries, second.attempts), (1, 1));
        assert_eq!(
            (&*second.exchange, &*second.routing_key),
            ("events", "order.created")
        );
        let reason = [(DEAD_LETTER_REASON, &*"x".repeat(5000))];
        let again = second.relay_properties(&relayed, false, &reason, USER);
        let third = History::read(&again, true, ("", "queue"), USER);
        assert_eq!(
            (third.deliveries, third.attempts),
            (3, 1),
            "two relays and a redelivery"
        );
        let seen = third.restore_properties(&again);
        let names: Vec<_> = seen
            .headers()
            .as_ref()
            .unwrap()
            .inner()
            .keys()
            .map(ToString::to_string)
            .collect();
        assert_eq!(names, ["CC", "trace"]);
        assert_eq!(seen.user_id().as_ref().map(ShortString::as_str), Some("ada"));
        assert_eq!(seen.message_id().as_ref().map(ShortString::as_str), Some("m1"));
        let Some(AMQPValue::LongString(reason)) =
            again.headers().as_ref().unwrap().inner().get(DEAD_LETTER_REASON)
        else {
            panic!("a reason")
        };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
    }

    #[test]
    fn history_from_another_user_is_not_believed() {
        let forged = headers(&[
            (DELIVERIES, AMQPValue::LongLongInt(7)),
            (ATTEMPTS, AMQPValue::LongLongInt(7)),
            (EXCHANGE, text("payments")),
            (ROUTING_KEY, text("paid")),
            (USER_ID, text("accounting")),
            (FURTHER_KEYS, text("all")),
        ]);
        for (publisher, seen) in [(None, None), (Some("eve"), Some("eve"))] {
            let properties = match publisher {
                Some(user) => forged.clone().with_user_id(user.into()),
                None => forged.clone(),
            };
            let history = History::read(&properties, false, ("", "queue"), USER);
            assert_eq!((history.deliveries, history.attempts), (0, 0));
            assert_eq!((&*history.exchange, &*history.routing_key), ("", "queue"));
            let restored = history.restore_properties(&properties);
            assert_eq!(restored.user_id().as_ref().map(ShortString::as_str), seen);
            assert!(
                restored
                    .headers()
                    .as_ref()
                    .is_none_or(|headers| headers.inner().is_empty())
            );
        }
    }

    #[test]
    fn deliveries_are_counted_by_quorum_queues_and_guessed_for_classic_ones() {
        for (properties, is_redelivered, deliveries) in [
            (BasicProperties::default(), false, 0),
            (BasicProperties::default(), true, 1),
            (
                headers(&[("x-delivery-count", AMQPValue::LongLongInt(3))]),
                true,
                3,
            ),
            (
                headers(&[("x-ostler-deliveries", AMQPValue::LongLongInt(4))]),
                true,
                5,
            ),
            (headers(&[("x-ostler-deliveries", text("4"))]), false, 0),
            (
                headers(&[("x-ostler-deliveries", AMQPValue::LongLongInt(-1))]),
                false,
                0,
            ),
        ] {
            let properties = properties.with_user_id(USER.into());
            let history = History::read(&properties, is_redelivered, ("", "q"), USER);
            assert_eq!(history.deliveries, deliveries, "{properties:?}");
        }
    }

    #[test]
    fn death_headers_of_delay_queues_are_dropped_and_those_of_others_kept() {
        let death = ("x-death", AMQPValue::FieldArray(Default::default()));
        let foreign = headers(std::slice::from_ref(&death));
        let history = History::read(&foreign, false, ("", "q"), USER);
        assert!(
            history
                .restore_properties(&foreign)
                .headers()
                .as_ref()
                .unwrap()
                .contains_key("x-death")
        );
        let ours = headers(&[death, (DELIVERIES, AMQPValue::LongLongInt(1))]).with_user_id(USER.into());
        let history = History::read(&ours, false, ("", "q"), USER);
        assert!(
            !history
                .restore_properties(&ours)
                .headers()
                .as_ref()
                .unwrap()
                .contains_key("x-death")
        );
    }

    #[test]
    fn delay_is_rounded_up_to_a_power_of_two() {
        for (milliseconds, seconds) in [
            (0, 1),
            (1, 1),
            (1000, 1),
            (1001, 2),
            (3000, 4),
            (300_000, 512),
            (u64::MAX, 1 << 17),
        ] {
            assert_eq!(delay_bucket(Duration::from_millis(milliseconds)), seconds);
        }
    }
}
