//! Decoding of Kubernetes' protobuf, which some clients send for built-in kinds in any case.
//!
//! Responses are always JSON, which every client accepts. Field numbers are those of the published
//! `generated.proto` files; of each message, the fields an operator's clients write are listed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

enum Type {
    Text,
    Bytes,
    Integer,
    Boolean,
    /// Map with string values.
    TextMap,
    /// Map with byte values.
    BytesMap,
    Message(&'static [Field]),
    /// Seconds and nanoseconds, printed with this number of fractional digits.
    Time(usize),
}

struct Field {
    number: u64,
    name: &'static str,
    kind: Type,
    repeated: bool,
}

const fn single_field(number: u64, name: &'static str, kind: Type) -> Field {
    Field {
        number,
        name,
        kind,
        repeated: false,
    }
}

const fn repeated_field(number: u64, name: &'static str, kind: Type) -> Field {
    Field {
        number,
        name,
        kind,
        repeated: true,
    }
}

const OWNER_FIELDS: &[Field] = &[
    single_field(1, "kind", Type::Text),
    single_field(3, "name", Type::Text),
    single_field(4, "uid", Type::Text),
    single_field(5, "apiVersion", Type::Text),
    single_field(6, "controller", Type::Boolean),
    single_field(7, "blockOwnerDeletion", Type::Boolean),
];
const METADATA_FIELD: Field = single_field(
    1,
    "metadata",
    Type::Message(&[
        single_field(1, "name", Type::Text),
        single_field(2, "generateName", Type::Text),
        single_field(3, "namespace", Type::Text),
        single_field(5, "uid", Type::Text),
        single_field(6, "resourceVersion", Type::Text),
        single_field(11, "labels", Type::TextMap),
        single_field(12, "annotations", Type::TextMap),
        repeated_field(13, "ownerReferences", Type::Message(OWNER_FIELDS)),
        repeated_field(14, "finalizers", Type::Text),
    ]),
);
const REFERENCE_FIELDS: &[Field] = &[
    single_field(1, "kind", Type::Text),
    single_field(2, "namespace", Type::Text),
    single_field(3, "name", Type::Text),
    single_field(4, "uid", Type::Text),
    single_field(5, "apiVersion", Type::Text),
    single_field(6, "resourceVersion", Type::Text),
    single_field(7, "fieldPath", Type::Text),
];

const KNOWN_MESSAGES: &[(&str, &str, &[Field])] = &[
    ("v1", "Namespace", &[METADATA_FIELD]),
    (
        "v1",
        "ConfigMap",
        &[
            METADATA_FIELD,
            single_field(2, "data", Type::TextMap),
            single_field(3, "binaryData", Type::BytesMap),
            single_field(4, "immutable", Type::Boolean),
        ],
    ),
    (
        "v1",
        "Secret",
        &[
            METADATA_FIELD,
            single_field(2, "data", Type::BytesMap),
            single_field(3, "type", Type::Text),
            single_field(4, "stringData", Type::TextMap),
            single_field(5, "immutable", Type::Boolean),
        ],
    ),
    ("v1", "ServiceAccount", &[METADATA_FIELD]),
    (
        "v1",
        "Event",
        &[
            METADATA_FIELD,
            single_field(2, "involvedObject", Type::Message(REFERENCE_FIELDS)),
            single_field(3, "reason", Type::Text),
            single_field(4, "message", Type::Text),
            single_field(
                5,
                "source",
                Type::Message(&[
                    single_field(1, "component", Type::Text),
                    single_field(2, "host", Type::Text),
                ]),
            ),
            single_field(6, "firstTimestamp", Type::Time(0)),
            single_field(7, "lastTimestamp", Type::Time(0)),
            single_field(8, "count", Type::Integer),
            single_field(9, "type", Type::Text),
            single_field(10, "eventTime", Type::Time(6)),
            single_field(12, "action", Type::Text),
            single_field(14, "reportingComponent", Type::Text),
            single_field(15, "reportingInstance", Type::Text),
        ],
    ),
    (
        "coordination.k8s.io/v1",
        "Lease",
        &[
            METADATA_FIELD,
            single_field(
                2,
                "spec",
                Type::Message(&[
                    single_field(1, "holderIdentity", Type::Text),
                    single_field(2, "leaseDurationSeconds", Type::Integer),
                    single_field(3, "acquireTime", Type::Time(6)),
                    single_field(4, "renewTime", Type::Time(6)),
                    single_field(5, "leaseTransitions", Type::Integer),
                ]),
            ),
        ],
    ),
    ("v1", "DeleteOptions", DELETE_OPTIONS),
    ("meta.k8s.io/v1", "DeleteOptions", DELETE_OPTIONS),
];
const DELETE_OPTIONS: &[Field] = &[
    single_field(1, "gracePeriodSeconds", Type::Integer),
    single_field(
        2,
        "preconditions",
        Type::Message(&[
            single_field(1, "uid", Type::Text),
            single_field(2, "resourceVersion", Type::Text),
        ]),
    ),
    single_field(3, "orphanDependents", Type::Boolean),
    single_field(4, "propagationPolicy", Type::Text),
    repeated_field(5, "dryRun", Type::Text),
];

/// Decodes an object in Kubernetes' envelope; `None` for a malformed message or an unlisted kind.
pub fn decode_object(bytes: &[u8]) -> Option<Value> {
    let envelope = split_fields(bytes.strip_prefix(b"k8s\0")?)?;
    let raw = |number: u64| {
        envelope
            .iter()
            .find(|(found, _)| *found == number)
            .and_then(|(_, wire)| wire.bytes())
    };
    let kind = decode_message(
        &[
            single_field(1, "apiVersion", Type::Text),
            single_field(2, "kind", Type::Text),
        ],
        raw(1)?,
    )?;
    let (.., known) = KNOWN_MESSAGES
        .iter()
        .find(|(version, name, _)| kind["apiVersion"] == *version && kind["kind"] == *name)?;
    let mut object = decode_message(known, raw(2).unwrap_or_default())?;
    object["apiVersion"] = kind["apiVersion"].clone();
    object["kind"] = kind["kind"].clone();
    Some(object)
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn split_fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, Wire::Number(read_varint(&mut bytes)?)));
                continue;
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        found.push((key >> 3, Wire::Bytes(value)));
    }
    Some(found)
}

fn decode_message(known: &[Field], bytes: &[u8]) -> Option<Value> {
    let mut object = Map::new();
    for (number, wire) in split_fields(bytes)? {
        let Some(field) = known.iter().find(|field| field.number == number) else {
            continue;
        };
        let value = match (&field.kind, wire) {
            (Type::Text, Wire::Bytes(text)) => std::str::from_utf8(text).ok()?.into(),
            (Type::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
            // Negative numbers are encoded in two's complement.
            (Type::Integer, Wire::Number(number)) => (number as i64).into(),
            (Type::Boolean, Wire::Number(number)) => (number != 0).into(),
            (Type::Message(known), Wire::Bytes(bytes)) => decode_message(known, bytes)?,
            (Type::Time(digits), Wire::Bytes(bytes)) => decode_time(bytes, *digits)?,
            (Type::TextMap | Type::BytesMap, Wire::Bytes(bytes)) => {
                let value = if matches!(field.kind, Type::TextMap) {
                    Type::Text
                } else {
                    Type::Bytes
                };
                let entry = decode_message(
                    &[
                        single_field(1, "key", Type::Text),
                        single_field(2, "value", value),
                    ],
                    bytes,
                )?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map[entry["key"].as_str().unwrap_or_default()] =
                    entry["value"].as_str().unwrap_or_default().into();
                continue;
            }
            _ => return None,
        };
        // Go encodes an absent string as an empty one.
        if value == "" {
            continue;
        }
        if field.repeated {
            object
                .entry(field.name)
                .or_insert_with(|| json!([]))
                .as_array_mut()?
                .push(value);
        } else {
            object.insert(field.name.to_owned(), value);
        }
    }
    Some(Value::Object(object))
}

fn decode_time(bytes: &[u8], digits: usize) -> Option<Value> {
    let parts = decode_message(
        &[
            single_field(1, "seconds", Type::Integer),
            single_field(2, "nanos", Type::Integer),
        ],
        bytes,
    )?;
    let nanos = i32::try_from(parts["nanos"].as_i64().unwrap_or_default()).ok()?;
    // An absent time is an empty message.
    let Some(seconds) = parts["seconds"].as_i64() else {
        return Some(Value::Null);
    };
    let time = jiff::Timestamp::new(seconds, nanos).ok()?;
    Some(
        if digits == 0 {
            time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
        } else {
            time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
        }
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, content.len() as u8], content].concat()
    }

    #[test]
    fn secret_is_decoded_and_truncation_is_refused() {
        let meta = [
            field(1, b"s"),
            field(2, b""),
            field(11, &[field(1, b"l"), field(2, b"v")].concat()),
        ]
        .concat();
        let secret = [
            field(1, &meta),
            field(2, &[field(1, b"k"), field(2, b"b")].concat()),
            field(3, b"Opaque"),
        ]
        .concat();
        let kind = [field(1, b"v1"), field(2, b"Secret")].concat();
        let bytes = [
            b"k8s\0".as_slice(),
            &field(1, &kind),
            &field(2, &secret),
            &field(3, b""),
        ]
        .concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"k": "Yg=="}, "metadata": {"name": "s", "labels": {"l": "v"}},
        });
        assert_eq!(decode_object(&bytes), Some(expected));
        for length in 0..bytes.len() - 4 {
            // A truncated message is refused or decoded in part; it never panics.
            let _ = decode_object(&bytes[..length]);
        }
        assert_eq!(decode_object(b"{}"), None);
    }
}
