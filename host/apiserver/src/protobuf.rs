//! Reading Kubernetes' protobuf, which some clients send for built-in kinds whatever the server prefers.
//!
//! Answers are always JSON, which every client accepts. Field numbers are those of the published
//! `generated.proto` files; of each message, the fields an operator's clients write are listed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

enum Type {
    Text,
    Bytes,
    Integer,
    Boolean,
    /// Map of texts.
    Texts,
    /// Map of bytes.
    Blobs,
    Message(&'static [Field]),
    /// Seconds and nanoseconds, shown with as many digits.
    Time(usize),
}

struct Field {
    number: u64,
    name: &'static str,
    kind: Type,
    repeated: bool,
}

const fn one(number: u64, name: &'static str, kind: Type) -> Field {
    Field {
        number,
        name,
        kind,
        repeated: false,
    }
}

const fn many(number: u64, name: &'static str, kind: Type) -> Field {
    Field {
        number,
        name,
        kind,
        repeated: true,
    }
}

const OWNER: &[Field] = &[
    one(1, "kind", Type::Text),
    one(3, "name", Type::Text),
    one(4, "uid", Type::Text),
    one(5, "apiVersion", Type::Text),
    one(6, "controller", Type::Boolean),
    one(7, "blockOwnerDeletion", Type::Boolean),
];
const META: Field = one(
    1,
    "metadata",
    Type::Message(&[
        one(1, "name", Type::Text),
        one(2, "generateName", Type::Text),
        one(3, "namespace", Type::Text),
        one(5, "uid", Type::Text),
        one(6, "resourceVersion", Type::Text),
        one(11, "labels", Type::Texts),
        one(12, "annotations", Type::Texts),
        many(13, "ownerReferences", Type::Message(OWNER)),
        many(14, "finalizers", Type::Text),
    ]),
);
const REFERENCE: &[Field] = &[
    one(1, "kind", Type::Text),
    one(2, "namespace", Type::Text),
    one(3, "name", Type::Text),
    one(4, "uid", Type::Text),
    one(5, "apiVersion", Type::Text),
    one(6, "resourceVersion", Type::Text),
    one(7, "fieldPath", Type::Text),
];

const MESSAGES: &[(&str, &str, &[Field])] = &[
    ("v1", "Namespace", &[META]),
    (
        "v1",
        "ConfigMap",
        &[
            META,
            one(2, "data", Type::Texts),
            one(3, "binaryData", Type::Blobs),
            one(4, "immutable", Type::Boolean),
        ],
    ),
    (
        "v1",
        "Secret",
        &[
            META,
            one(2, "data", Type::Blobs),
            one(3, "type", Type::Text),
            one(4, "stringData", Type::Texts),
            one(5, "immutable", Type::Boolean),
        ],
    ),
    ("v1", "ServiceAccount", &[META]),
    (
        "v1",
        "Event",
        &[
            META,
            one(2, "involvedObject", Type::Message(REFERENCE)),
            one(3, "reason", Type::Text),
            one(4, "message", Type::Text),
            one(
                5,
                "source",
                Type::Message(&[one(1, "component", Type::Text), one(2, "host", Type::Text)]),
            ),
            one(6, "firstTimestamp", Type::Time(0)),
            one(7, "lastTimestamp", Type::Time(0)),
            one(8, "count", Type::Integer),
            one(9, "type", Type::Text),
            one(10, "eventTime", Type::Time(6)),
            one(12, "action", Type::Text),
            one(14, "reportingComponent", Type::Text),
            one(15, "reportingInstance", Type::Text),
        ],
    ),
    (
        "coordination.k8s.io/v1",
        "Lease",
        &[
            META,
            one(
                2,
                "spec",
                Type::Message(&[
                    one(1, "holderIdentity", Type::Text),
                    one(2, "leaseDurationSeconds", Type::Integer),
                    one(3, "acquireTime", Type::Time(6)),
                    one(4, "renewTime", Type::Time(6)),
                    one(5, "leaseTransitions", Type::Integer),
                ]),
            ),
        ],
    ),
    ("v1", "DeleteOptions", DELETE_OPTIONS),
    ("meta.k8s.io/v1", "DeleteOptions", DELETE_OPTIONS),
];
const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Type::Integer),
    one(
        2,
        "preconditions",
        Type::Message(&[one(1, "uid", Type::Text), one(2, "resourceVersion", Type::Text)]),
    ),
    one(3, "orphanDependents", Type::Boolean),
    one(4, "propagationPolicy", Type::Text),
    many(5, "dryRun", Type::Text),
];

/// Reads an object in Kubernetes' envelope; `None` for what is broken or of a kind not listed.
pub fn read(bytes: &[u8]) -> Option<Value> {
    let envelope = fields(bytes.strip_prefix(b"k8s\0")?)?;
    let raw = |number: u64| {
        envelope
            .iter()
            .find(|(found, _)| *found == number)
            .and_then(|(_, wire)| wire.bytes())
    };
    let kind = decode(
        &[one(1, "apiVersion", Type::Text), one(2, "kind", Type::Text)],
        raw(1)?,
    )?;
    let (.., known) = MESSAGES
        .iter()
        .find(|(version, name, _)| kind["apiVersion"] == *version && kind["kind"] == *name)?;
    let mut object = decode(known, raw(2).unwrap_or_default())?;
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

fn varint(bytes: &mut &[u8]) -> Option<u64> {
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

fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, Wire::Number(varint(&mut bytes)?)));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        found.push((key >> 3, Wire::Bytes(value)));
    }
    Some(found)
}

fn decode(known: &[Field], bytes: &[u8]) -> Option<Value> {
    let mut object = Map::new();
    for (number, wire) in fields(bytes)? {
        let Some(field) = known.iter().find(|field| field.number == number) else {
            continue;
        };
        let value = match (&field.kind, wire) {
            (Type::Text, Wire::Bytes(text)) => std::str::from_utf8(text).ok()?.into(),
            (Type::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
            // Negative numbers travel as their two's complement.
            (Type::Integer, Wire::Number(number)) => (number as i64).into(),
            (Type::Boolean, Wire::Number(number)) => (number != 0).into(),
            (Type::Message(known), Wire::Bytes(bytes)) => decode(known, bytes)?,
            (Type::Time(digits), Wire::Bytes(bytes)) => time(bytes, *digits)?,
            (Type::Texts | Type::Blobs, Wire::Bytes(bytes)) => {
                let value = if matches!(field.kind, Type::Texts) {
                    Type::Text
                } else {
                    Type::Bytes
                };
                let entry = decode(&[one(1, "key", Type::Text), one(2, "value", value)], bytes)?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map[entry["key"].as_str().unwrap_or_default()] =
                    entry["value"].as_str().unwrap_or_default().into();
                continue;
            }
            _ => return None,
        };
        // Go writes an absent text as an empty one.
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

fn time(bytes: &[u8], digits: usize) -> Option<Value> {
    let parts = decode(
        &[one(1, "seconds", Type::Integer), one(2, "nanos", Type::Integer)],
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
    fn a_secret_is_read() {
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
        assert_eq!(read(&bytes), Some(expected));
        for length in 0..bytes.len() - 4 {
            // Whatever is cut off, it is refused or read as less, never a panic.
            let _ = read(&bytes[..length]);
        }
        assert_eq!(read(b"{}"), None);
    }
}
