//! Values of the contract as a tree that is written to recording files and read from them.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::{Number, Value, value::RawValue};

/// A value of the contract. Bytes stay bytes, so that a value is read back exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RecordedValue {
    /// The absent value of an option.
    #[default]
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// Bytes: in a file `{"json": …}` where they are JSON, `{"text": …}` where they are UTF-8, or `{"base64": …}`.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<RecordedValue>),
    /// A record, with its fields in the order of the type.
    Record(Vec<(String, RecordedValue)>),
}

/// The keys that mark bytes in a file. No record of the contract has one single field with such a name, and no variant a
/// case with a value.
pub(super) const BYTES_KEYS: [&str; 3] = ["json", "text", "base64"];

impl RecordedValue {
    /// The field of a record.
    pub fn get(&self, name: &str) -> Option<&RecordedValue> {
        match self {
            Self::Record(fields) => fields.iter().find(|(n, _)| n == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Converts to JSON for people. Bytes become the JSON or text that they contain, so the result can neither be compared
    /// nor read back.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Number(n) => Value::Number(n.clone()),
            Self::Text(text) => Value::String(text.clone()),
            Self::Bytes(bytes) => {
                serde_json::from_slice(bytes).unwrap_or_else(|_| match std::str::from_utf8(bytes) {
                    Ok(text) => Value::String(text.to_owned()),
                    Err(_) => Value::String(format!("base64:{}", BASE64_STANDARD.encode(bytes))),
                })
            }
            Self::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Self::Record(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(n, value)| (n.clone(), value.to_json()))
                    .collect(),
            ),
        }
    }
}

/// Returns JSON for verbatim output; none if the bytes are not JSON or would not be read back to the byte.
fn as_verbatim_json(bytes: &[u8]) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let raw = RawValue::from_string(text.to_owned()).ok()?;
    // The admin server sends one recording per line.
    (raw.get().len() == text.len() && !text.contains(['\n', '\r'])).then_some(raw)
}

impl Serialize for RecordedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [json, text, base64] = BYTES_KEYS;
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(b) => serializer.serialize_bool(*b),
            Self::Number(n) => n.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Record(fields) => serializer.collect_map(fields.iter().map(|(n, value)| (n, value))),
            Self::Bytes(bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                match (as_verbatim_json(bytes), std::str::from_utf8(bytes)) {
                    (Some(raw), _) => map.serialize_entry(json, &raw)?,
                    (None, Ok(utf8)) => map.serialize_entry(text, utf8)?,
                    (None, Err(_)) => map.serialize_entry(base64, &BASE64_STANDARD.encode(bytes))?,
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RecordedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = RecordedValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Null)
            }
            fn visit_bool<E>(self, b: bool) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Bool(b))
            }
            fn visit_u64<E>(self, n: u64) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Number(n.into()))
            }
            fn visit_i64<E>(self, n: i64) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Number(n.into()))
            }
            fn visit_f64<E>(self, n: f64) -> Result<RecordedValue, E> {
                Ok(Number::from_f64(n).map_or(RecordedValue::Null, RecordedValue::Number))
            }
            fn visit_str<E>(self, text: &str) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<RecordedValue, E> {
                Ok(RecordedValue::Text(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RecordedValue, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(RecordedValue::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RecordedValue, A::Error> {
                let [json, text, base64] = BYTES_KEYS;
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if fields.is_empty() && BYTES_KEYS.contains(&&*name) {
                        let bytes = if name == json {
                            map.next_value::<Box<RawValue>>()?.get().as_bytes().to_vec()
                        } else if name == text {
                            map.next_value::<String>()?.into_bytes()
                        } else {
                            let encoded = map.next_value::<String>()?;
                            let decoded = BASE64_STANDARD.decode(encoded);
                            decoded.map_err(|e| A::Error::custom(format!("{base64}: {e}")))?
                        };
                        return match map.next_key::<String>()? {
                            None => Ok(RecordedValue::Bytes(bytes)),
                            Some(other) => Err(A::Error::custom(format!("`{other}` beside `{name}`"))),
                        };
                    }
                    fields.push((name, map.next_value()?));
                }
                Ok(RecordedValue::Record(fields))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any value that a recording can have.
    pub fn any_value() -> impl Strategy<Value = RecordedValue> {
        let leaf = prop_oneof![
            Just(RecordedValue::Null),
            any::<bool>().prop_map(RecordedValue::Bool),
            any::<i64>().prop_map(|n| RecordedValue::Number(n.into())),
            any::<u64>().prop_map(|n| RecordedValue::Number(n.into())),
            ".*".prop_map(RecordedValue::Text),
            any::<Vec<u8>>().prop_map(RecordedValue::Bytes),
            ".*".prop_map(|text| RecordedValue::Bytes(text.into())),
            // JSON as servers write it: in their own order, with spaces, with numbers as they like.
            r#"( ?\{"z": ?[0-9]{1,30}\.[0-9]0,"a":\["[a-z"]*"\]\}|null|[0-9]+|"\\u00e9")"#
                .prop_map(|json| RecordedValue::Bytes(json.into())),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(RecordedValue::List),
                prop::collection::vec(("[a-z]{1,8}", inner), 0..4)
                    .prop_filter("not a name of bytes", |fields| {
                        fields.first().is_none_or(|(n, _)| !BYTES_KEYS.contains(&&**n))
                    })
                    .prop_map(RecordedValue::Record),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_value_is_read_back_to_the_byte(value in any_value()) {
            for text in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
                prop_assert_eq!(&serde_json::from_str::<RecordedValue>(&text).unwrap(), &value);
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*") {
            let _ = serde_json::from_str::<RecordedValue>(&text);
        }
    }

    #[test]
    fn bytes_are_written_as_json_text_or_base64() {
        for (bytes, text) in [
            (&br#"{"b":1,"a":2}"#[..], r#"{"json":{"b":1,"a":2}}"#),
            (b"hello", r#"{"text":"hello"}"#),
            (b" {}", r#"{"text":" {}"}"#),
            (b"\xff", r#"{"base64":"/w=="}"#),
            (b"", r#"{"text":""}"#),
        ] {
            assert_eq!(
                serde_json::to_string(&RecordedValue::Bytes(bytes.into())).unwrap(),
                text
            );
        }
        for bad in [r#"{"base64":"/w"}"#, r#"{"text":"a","b":1}"#, r#"{"text":1}"#] {
            assert!(serde_json::from_str::<RecordedValue>(bad).is_err(), "{bad}");
        }
    }
}
