//! The properties of messages between the contract and AMQP 0-9-1. Pure.

use std::collections::BTreeMap;

use lapin::{
    BasicProperties,
    types::{AMQPValue, ByteArray, FieldArray, FieldTable, LongString, ShortString},
};
use serde_json::Value;

use super::relay::OWN_PREFIX;
use crate::{
    contract::bindings::types::{HeaderValue, MessageHeader, MessageProperties},
    upstream::{SendError, redact::Redactor},
};

/// Largest priority of AMQP 0-9-1.
const MAX_PRIORITY: u8 = 9;

/// Largest size of all properties of a message. They are sent in one frame, which is never split.
const MAX_PROPERTIES_BYTES: usize = 64 << 10;

/// Largest depth of a structured header.
const MAX_HEADER_DEPTH: usize = 16;

/// Headers with which RabbitMQ routes a message to further keys (sender-selected distribution). They would pass by the
/// grants, which are for the routing key.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// `delivery-mode` of a message that survives a restart of the broker, and of one that does not.
pub const PERSISTENT: u8 = 2;
const TRANSIENT: u8 = 1;

/// Converts the properties of a message to publish. The error names the property.
pub fn encode_properties(properties: &MessageProperties) -> Result<BasicProperties, SendError> {
    let MessageProperties {
        content_type,
        content_encoding,
        headers,
        persistent,
        priority,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        timestamp,
        type_,
        user_id,
        app_id,
    } = properties;
    let mut encoded =
        BasicProperties::default().with_delivery_mode(if *persistent { PERSISTENT } else { TRANSIENT });
    type Set = fn(BasicProperties, ShortString) -> BasicProperties;
    let texts: [(&str, &Option<String>, Set); 8] = [
        ("content-type", content_type, BasicProperties::with_content_type),
        (
            "content-encoding",
            content_encoding,
            BasicProperties::with_content_encoding,
        ),
        (
            "correlation-id",
            correlation_id,
            BasicProperties::with_correlation_id,
        ),
        ("reply-to", reply_to, BasicProperties::with_reply_to),
        ("message-id", message_id, BasicProperties::with_message_id),
        ("type", type_, BasicProperties::with_type),
        ("user-id", user_id, BasicProperties::with_user_id),
        ("app-id", app_id, BasicProperties::with_app_id),
    ];
    for (name, text, set) in texts {
        if let Some(text) = text {
            encoded = set(encoded, short_string(name, text)?);
        }
    }
    if let Some(priority) = *priority {
        if priority > MAX_PRIORITY {
            return Err(SendError::Invalid(format!(
                "property priority is {priority}: {MAX_PRIORITY} is the highest"
            )));
        }
        encoded = encoded.with_priority(priority);
    }
    if let Some(expiration) = expiration {
        encoded = encoded.with_expiration(short_string("expiration", &expiration.to_string())?);
    }
    if let Some(timestamp) = timestamp {
        encoded = encoded.with_timestamp(timestamp / 1000);
    }
    if !headers.is_empty() {
        encoded = encoded.with_headers(encode_headers(headers)?);
    }
    Ok(encoded)
}

/// Converts the headers of a message to publish. The error names the header.
fn encode_headers(headers: &[MessageHeader]) -> Result<FieldTable, SendError> {
    let mut table = FieldTable::default();
    let mut size = 0;
    for MessageHeader { name, value } in headers {
        if ROUTING_HEADERS.contains(&name.as_str()) {
            return Err(SendError::Invalid(format!(
                "header {name} routes the message to further keys, which no grant covers: publish it once for each key"
            )));
        }
        if name.to_ascii_lowercase().starts_with(OWN_PREFIX) {
            return Err(SendError::Invalid(format!(
                "header {name} is one of the host's own, which begin with {OWN_PREFIX}"
            )));
        }
        if table.contains_key(name) {
            return Err(SendError::Invalid(format!("header {name} is there twice")));
        }
        let value = encode_header(name, value)?;
        size += name.len() + measure_value(&value);
        table.insert(short_string("headers", name)?, value);
    }
    if size > MAX_PROPERTIES_BYTES {
        return Err(SendError::TooLarge(format!(
            "the headers of the message have {size} bytes: {MAX_PROPERTIES_BYTES} is the limit"
        )));
    }
    Ok(table)
}

/// Converts the properties of a message that was delivered.
pub fn decode_properties(properties: &BasicProperties) -> MessageProperties {
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let headers = properties.headers().iter().flat_map(|table| {
        table.into_iter().map(|(name, value)| MessageHeader {
            name: name.to_string(),
            value: decode_header(value),
        })
    });
    MessageProperties {
        content_type: text(properties.content_type()),
        content_encoding: text(properties.content_encoding()),
        headers: headers.collect(),
        persistent: *properties.delivery_mode() == Some(PERSISTENT),
        priority: *properties.priority(),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        expiration: properties
            .expiration()
            .as_ref()
            .and_then(|e| e.as_str().parse().ok()),
        message_id: text(properties.message_id()),
        timestamp: properties.timestamp().map(|seconds| seconds.saturating_mul(1000)),
        type_: text(properties.kind()),
        user_id: text(properties.user_id()),
        app_id: text(properties.app_id()),
    }
}

/// The properties with `***` in place of secrets, in every text and header.
pub fn redact_properties(properties: MessageProperties, redactor: &Redactor) -> MessageProperties {
    let redact = |text: String| redactor.redact_text(&text);
    let headers = properties.headers.into_iter().map(|header| MessageHeader {
        name: redact(header.name),
        value: match header.value {
            HeaderValue::String(text) => HeaderValue::String(redact(text)),
            HeaderValue::Bytes(bytes) => HeaderValue::Bytes(redactor.redact_bytes(&bytes)),
            HeaderValue::Structure(json) => HeaderValue::Structure(redactor.redact_bytes(&json)),
            value @ (HeaderValue::Boolean(_)
            | HeaderValue::Integer(_)
            | HeaderValue::Float(_)
            | HeaderValue::Timestamp(_)
            | HeaderValue::Empty) => value,
        },
    });
    MessageProperties {
        headers: headers.collect(),
        content_type: properties.content_type.map(redact),
        content_encoding: properties.content_encoding.map(redact),
        correlation_id: properties.correlation_id.map(redact),
        reply_to: properties.reply_to.map(redact),
        message_id: properties.message_id.map(redact),
        type_: properties.type_.map(redact),
        user_id: properties.user_id.map(redact),
        app_id: properties.app_id.map(redact),
        persistent: properties.persistent,
        priority: properties.priority,
        expiration: properties.expiration,
        timestamp: properties.timestamp,
    }
}

/// A text of at most 255 bytes, as AMQP has them outside of headers and bodies.
pub fn short_string(field: &str, text: &str) -> Result<ShortString, SendError> {
    ShortString::try_new(text)
        .map_err(|_| SendError::Invalid(format!("{field} has {} bytes: AMQP allows 255", text.len())))
}

fn encode_header(name: &str, value: &HeaderValue) -> Result<AMQPValue, SendError> {
    Ok(match value {
        HeaderValue::String(text) => AMQPValue::LongString(text.as_str().into()),
        HeaderValue::Bytes(bytes) => AMQPValue::ByteArray(ByteArray::from(bytes.clone())),
        HeaderValue::Boolean(value) => AMQPValue::Boolean(*value),
        HeaderValue::Integer(value) => AMQPValue::LongLongInt(*value),
        HeaderValue::Float(value) => AMQPValue::Double(*value),
        HeaderValue::Timestamp(milliseconds) => AMQPValue::Timestamp(milliseconds / 1000),
        HeaderValue::Structure(json) => {
            let value = serde_json::from_slice(json)
                .map_err(|e| SendError::Invalid(format!("header {name} is not JSON: {e}")))?;
            if !matches!(value, Value::Object(_) | Value::Array(_)) {
                return Err(SendError::Invalid(format!(
                    "header {name}: a structure is a JSON object or array"
                )));
            }
            encode_json(name, &value, MAX_HEADER_DEPTH)?
        }
        HeaderValue::Empty => AMQPValue::Void,
    })
}

fn encode_json(name: &str, value: &Value, depth: usize) -> Result<AMQPValue, SendError> {
    if depth == 0 {
        return Err(SendError::Invalid(format!(
            "header {name} is nested more than {MAX_HEADER_DEPTH} levels deep"
        )));
    }
    Ok(match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => AMQPValue::LongLongInt(integer),
            None => AMQPValue::Double(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(items) => {
            let items: Result<Vec<_>, _> = items
                .iter()
                .map(|item| encode_json(name, item, depth - 1))
                .collect();
            AMQPValue::FieldArray(FieldArray::from(items?))
        }
        Value::Object(fields) => {
            let mut table = BTreeMap::new();
            for (field, value) in fields {
                table.insert(short_string(name, field)?, encode_json(name, value, depth - 1)?);
            }
            AMQPValue::FieldTable(FieldTable::from(table))
        }
    })
}

fn decode_header(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Boolean(value) => HeaderValue::Boolean(*value),
        AMQPValue::Float(value) => HeaderValue::Float((*value).into()),
        AMQPValue::Double(value) => HeaderValue::Float(*value),
        AMQPValue::DecimalValue(value) => {
            HeaderValue::Float(f64::from(value.value) / 10_f64.powi(value.scale.into()))
        }
        AMQPValue::ShortString(text) => HeaderValue::String(text.to_string()),
        AMQPValue::LongString(text) => decode_text(text),
        AMQPValue::ByteArray(bytes) => HeaderValue::Bytes(bytes.as_slice().to_vec()),
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(seconds.saturating_mul(1000)),
        AMQPValue::Void => HeaderValue::Empty,
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => {
            HeaderValue::Structure(decode_json(value).to_string().into_bytes())
        }
        integer => HeaderValue::Integer(as_integer(integer).unwrap_or_default()),
    }
}

/// A string of AMQP is bytes, and by convention UTF-8.
fn decode_text(text: &LongString) -> HeaderValue {
    match std::str::from_utf8(text.as_bytes()) {
        Ok(text) => HeaderValue::String(text.to_owned()),
        Err(_) => HeaderValue::Bytes(text.as_bytes().to_vec()),
    }
}

/// The value of a header of any integer type.
pub fn as_integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(n) => (*n).into(),
        AMQPValue::ShortShortUInt(n) => (*n).into(),
        AMQPValue::ShortInt(n) => (*n).into(),
        AMQPValue::ShortUInt(n) => (*n).into(),
        AMQPValue::LongInt(n) => (*n).into(),
        AMQPValue::LongUInt(n) => (*n).into(),
        AMQPValue::LongLongInt(n) => *n,
        _ => return None,
    })
}

fn decode_json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(decode_json).collect(),
        AMQPValue::FieldTable(table) => {
            let fields = table
                .into_iter()
                .map(|(name, value)| (name.to_string(), decode_json(value)));
            Value::Object(fields.collect())
        }
        other => match decode_header(other) {
            HeaderValue::String(text) => text.into(),
            HeaderValue::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
            HeaderValue::Boolean(value) => value.into(),
            HeaderValue::Integer(value) => value.into(),
            HeaderValue::Float(value) => value.into(),
            HeaderValue::Timestamp(value) => value.into(),
            HeaderValue::Structure(_) | HeaderValue::Empty => Value::Null,
        },
    }
}

/// Approximate size of a value in a frame.
fn measure_value(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => text.len() + 5,
        AMQPValue::ByteArray(bytes) => bytes.as_slice().len() + 5,
        AMQPValue::FieldArray(items) => 5 + items.as_slice().iter().map(measure_value).sum::<usize>(),
        AMQPValue::FieldTable(table) => {
            5 + table
                .into_iter()
                .map(|(name, value)| name.as_str().len() + 1 + measure_value(value))
                .sum::<usize>()
        }
        _ => 9,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn empty() -> MessageProperties {
        MessageProperties {
            content_type: None,
            content_encoding: None,
            headers: vec![],
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

    fn header(name: &str, value: HeaderValue) -> MessageHeader {
        MessageHeader {
            name: name.into(),
            value,
        }
    }

    #[test]
    fn secret_in_any_text_or_header_is_redacted() {
        let mut redactor = Redactor::default();
        redactor.add_secret(b"rabbit\"pass");
        let properties = MessageProperties {
            headers: vec![
                header("text", HeaderValue::String("login rabbit\"pass".into())),
                header("bytes", HeaderValue::Bytes(b"\xffrabbit\"pass\xfe".to_vec())),
                header(
                    "structure",
                    HeaderValue::Structure(br#"[{"password":"rabbit\"pass"}]"#.to_vec()),
                ),
                header("number", HeaderValue::Integer(7)),
            ],
            correlation_id: Some("rabbit\"pass".into()),
            message_id: Some("m-1".into()),
            priority: Some(3),
            ..empty()
        };
        let expected = MessageProperties {
            headers: vec![
                header("text", HeaderValue::String("login ***".into())),
                header("bytes", HeaderValue::Bytes(b"\xff***\xfe".to_vec())),
                header(
                    "structure",
                    HeaderValue::Structure(br#"[{"password":"***"}]"#.to_vec()),
                ),
                header("number", HeaderValue::Integer(7)),
            ],
            correlation_id: Some("***".into()),
            ..properties.clone()
        };
        assert_eq!(redact_properties(properties, &redactor), expected);
    }

    fn value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            "\\PC{0,40}".prop_map(HeaderValue::String),
            any::<bool>().prop_map(HeaderValue::Boolean),
            any::<i64>().prop_map(HeaderValue::Integer),
            prop::num::f64::NORMAL.prop_map(HeaderValue::Float),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(HeaderValue::Bytes),
            (0..u64::from(u32::MAX)).prop_map(|s| HeaderValue::Timestamp(s * 1000)),
            Just(HeaderValue::Empty),
            Just(HeaderValue::Structure(br#"[{"count":2,"queue":"q"}]"#.to_vec())),
        ]
    }

    proptest! {
        #[test]
        fn properties_survive_encoding_and_decoding(
            headers in prop::collection::btree_map("[a-z-]{1,20}", value(), 0..6),
            persistent: bool,
            priority in prop::option::of(0..=MAX_PRIORITY),
            text in prop::option::of("\\PC{0,60}"),
            time in prop::option::of(0..u64::from(u32::MAX)),
        ) {
            let properties = MessageProperties {
                headers: headers.iter().map(|(name, value)| header(name, value.clone())).collect(),
                persistent,
                priority,
                content_type: text.clone(),
                content_encoding: text.clone(),
                correlation_id: text.clone(),
                reply_to: text.clone(),
                message_id: text.clone(),
                type_: text.clone(),
                user_id: text.clone(),
                app_id: text,
                expiration: time,
                timestamp: time.map(|s| s * 1000),
            };
            let encoded = encode_properties(&properties).expect("valid");
            prop_assert_eq!(decode_properties(&encoded), properties);
        }
    }

    #[test]
    fn invalid_property_is_refused_by_its_name() {
        let deep = format!("{}{}", "[".repeat(40), "]".repeat(40)).into_bytes();
        for (properties, word) in [
            (
                MessageProperties {
                    priority: Some(10),
                    ..empty()
                },
                "priority",
            ),
            (
                MessageProperties {
                    message_id: Some("x".repeat(256)),
                    ..empty()
                },
                "message-id",
            ),
            (
                MessageProperties {
                    headers: vec![header("CC", HeaderValue::Empty)],
                    ..empty()
                },
                "CC",
            ),
            (
                MessageProperties {
                    headers: vec![header("BCC", HeaderValue::Structure(b"[\"q\"]".to_vec()))],
                    ..empty()
                },
                "BCC",
            ),
            (
                MessageProperties {
                    headers: vec![header("a", HeaderValue::Empty), header("a", HeaderValue::Empty)],
                    ..empty()
                },
                "twice",
            ),
            (
                MessageProperties {
                    headers: vec![header("a", HeaderValue::Structure(b"{".to_vec()))],
                    ..empty()
                },
                "not JSON",
            ),
            (
                MessageProperties {
                    headers: vec![header("a", HeaderValue::Structure(b"1".to_vec()))],
                    ..empty()
                },
                "object or array",
            ),
            (
                MessageProperties {
                    headers: vec![header("a", HeaderValue::Structure(deep))],
                    ..empty()
                },
                "nested",
            ),
            (
                MessageProperties {
                    headers: vec![header("a", HeaderValue::String("x".repeat(MAX_PROPERTIES_BYTES)))],
                    ..empty()
                },
                "limit",
            ),
        ] {
            let error = encode_properties(&properties).expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
