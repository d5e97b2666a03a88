//! What passed the door, as a tree that is written to files and read from them.

use std::{collections::BTreeSet, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::{Number, Value, value::RawValue};

/// A value of the contract. Bytes stay bytes, so that what is read is what was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RecordedValue {
    /// Nothing.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// Bytes: in a file `{"json": …}` where they are JSON, `{"text": …}` where they are UTF-8, or `{"base64": …}`.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<RecordedValue>),
    /// Named values, in order.
    Record(Vec<(String, RecordedValue)>),
}

/// The names of bytes in a file. No record of the contract has one field of such a name.
const BYTES: [&str; 3] = ["json", "text", "base64"];

impl RecordedValue {
    /// A field of a record.
    pub fn get(&self, name: &str) -> Option<&RecordedValue> {
        match self {
            Self::Record(fields) => fields.iter().find(|(n, _)| n == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As JSON in which bytes are what they say: to be shown, neither compared nor read back.
    pub fn value(&self) -> Value {
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
            Self::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Self::Record(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(n, value)| (n.clone(), value.value()))
                    .collect(),
            ),
        }
    }
}

/// JSON exactly as it is; none where it is none, or would not be read back to the byte.
fn verbatim(bytes: &[u8]) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let raw = RawValue::from_string(text.to_owned()).ok()?;
    // A recording has a line of its own in the admin server's answers.
    (raw.get().len() == text.len() && !text.contains(['\n', '\r'])).then_some(raw)
}

impl Serialize for RecordedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [json, text, base64] = BYTES;
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(b) => serializer.serialize_bool(*b),
            Self::Number(n) => n.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Record(fields) => serializer.collect_map(fields.iter().map(|(n, value)| (n, value))),
            Self::Bytes(bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                match (verbatim(bytes), std::str::from_utf8(bytes)) {
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
                let [json, text, base64] = BYTES;
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if fields.is_empty() && BYTES.contains(&&*name) {
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

/// Where two values differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Where: `object.data.greeting`, `options.fields[0]`.
    pub path: String,
    /// What was recorded; absent where there was nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// What came in its place; absent where there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Value>,
}

/// Changes told of one pair of values at most: who differs more differs altogether.
const CHANGES: usize = 20;

/// Characters of a changed value that are shown.
const SHOWN: usize = 400;

/// Where two values differ, by path. Bytes that are JSON on both sides are compared by what they say.
pub fn changes(recorded: &RecordedValue, replayed: &RecordedValue) -> Vec<Change> {
    let mut found = Vec::new();
    compare("", Some(recorded), Some(replayed), &mut found);
    found
}

fn compare(path: &str, old: Option<&RecordedValue>, new: Option<&RecordedValue>, found: &mut Vec<Change>) {
    if old == new || found.len() >= CHANGES {
        return;
    }
    match (old, new) {
        (Some(RecordedValue::Record(a)), Some(RecordedValue::Record(b))) => {
            for name in names(a.iter().map(|(n, _)| n), b.iter().map(|(n, _)| n)) {
                let (old, new) = (old.and_then(|o| o.get(name)), new.and_then(|n| n.get(name)));
                compare(&field(path, name), old, new, found);
            }
        }
        (Some(RecordedValue::List(a)), Some(RecordedValue::List(b))) => {
            for i in 0..a.len().max(b.len()) {
                compare(&format!("{path}[{i}]"), a.get(i), b.get(i), found);
            }
        }
        (Some(RecordedValue::Bytes(a)), Some(RecordedValue::Bytes(b))) => {
            match (serde_json::from_slice(a), serde_json::from_slice(b)) {
                (Ok(a), Ok(b)) => compare_json(path, Some(&a), Some(&b), found),
                _ => found.push(Change::of(path, old, new)),
            }
        }
        _ => found.push(Change::of(path, old, new)),
    }
}

fn compare_json(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
    if old == new || found.len() >= CHANGES {
        return;
    }
    match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for name in names(a.keys(), b.keys()) {
                compare_json(&field(path, name), a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for i in 0..a.len().max(b.len()) {
                compare_json(&format!("{path}[{i}]"), a.get(i), b.get(i), found);
            }
        }
        _ => found.push(Change {
            path: path.to_owned(),
            recorded: old.map(shortened),
            replayed: new.map(shortened),
        }),
    }
}

/// All names of two sides, in order, each once.
fn names<'a>(
    old: impl Iterator<Item = &'a String>,
    new: impl Iterator<Item = &'a String>,
) -> BTreeSet<&'a String> {
    old.chain(new).collect()
}

/// The path of a field.
fn field(path: &str, name: &str) -> String {
    // A name with a dot in it, as labels have, would read like two.
    match (path.is_empty(), name.contains('.')) {
        (_, true) => format!("{path}[{name:?}]"),
        (true, false) => name.to_owned(),
        (false, false) => format!("{path}.{name}"),
    }
}

impl Change {
    /// Two values that differ. Where they read alike (the text `on`, and the JSON `"on"`) they are told as a file has
    /// them.
    fn of(path: &str, old: Option<&RecordedValue>, new: Option<&RecordedValue>) -> Self {
        let read = [old, new].map(|side| side.map(RecordedValue::value));
        let [recorded, replayed] = match read[0] == read[1] {
            true => [old, new].map(|side| side.and_then(|s| serde_json::to_value(s).ok())),
            false => read,
        };
        Self {
            path: path.to_owned(),
            recorded: recorded.as_ref().map(shortened),
            replayed: replayed.as_ref().map(shortened),
        }
    }
}

/// The value, or the beginning of its text where it is long.
fn shortened(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        None => value.clone(),
        Some((end, _)) => Value::String(format!("{}… ({} bytes)", &text[..end], text.len())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_shown() -> impl Strategy<Value = RecordedValue> {
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
                        fields.first().is_none_or(|(n, _)| !BYTES.contains(&&**n))
                    })
                    .prop_map(RecordedValue::Record),
            ]
        })
    }

    /// The same type with the same in it; JSON by what it says.
    fn same(old: &RecordedValue, new: &RecordedValue) -> bool {
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        match (old, new) {
            (RecordedValue::Bytes(a), RecordedValue::Bytes(b)) => {
                a == b || (json(a).is_some() && json(a) == json(b))
            }
            (RecordedValue::List(a), RecordedValue::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (RecordedValue::Record(a), RecordedValue::Record(b)) => {
                let has = |one: &[(String, RecordedValue)], other: &RecordedValue| {
                    one.iter().all(|(name, _)| other.get(name).is_some())
                };
                has(a, new)
                    && has(b, old)
                    && a.iter().all(|(name, _)| match (old.get(name), new.get(name)) {
                        (Some(a), Some(b)) => same(a, b),
                        _ => false,
                    })
            }
            _ => old == new,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_to_the_byte(shown in any_shown()) {
            for text in [serde_json::to_string(&shown).unwrap(), serde_json::to_string_pretty(&shown).unwrap()] {
                prop_assert_eq!(&serde_json::from_str::<RecordedValue>(&text).unwrap(), &shown);
            }
        }

        #[test]
        fn values_differ_where_they_differ(old in any_shown(), new in any_shown()) {
            prop_assert_eq!(changes(&old, &old), []);
            prop_assert_eq!(changes(&old, &new).is_empty(), same(&old, &new));
        }

        /// Whatever it is, no two ways to write it are told apart by nothing.
        #[test]
        fn what_differs_is_told_so_that_it_can_be_seen(text in "[a-z0-9\"]{0,4}") {
            let encoded = BASE64_STANDARD.encode(&text);
            let ways = [
                RecordedValue::Text(text.clone()),
                RecordedValue::Bytes(text.clone().into()),
                RecordedValue::Bytes(Value::String(text.clone()).to_string().into()),
                RecordedValue::Text(format!("base64:{encoded}")),
            ];
            for (i, old) in ways.iter().enumerate() {
                for new in &ways[i + 1..] {
                    let found = changes(old, new);
                    prop_assert_eq!(found.len(), 1, "{:?} {:?}", old, new);
                    prop_assert_ne!(&found[0].recorded, &found[0].replayed);
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = serde_json::from_str::<RecordedValue>(&text);
        }
    }

    #[test]
    fn a_difference_is_told_by_its_path() {
        let record = |object: Value, fields: &[&str]| {
            RecordedValue::Record(vec![
                ("object".into(), RecordedValue::Bytes(object.to_string().into())),
                (
                    "fields".into(),
                    RecordedValue::List(fields.iter().map(|f| RecordedValue::Text((*f).into())).collect()),
                ),
            ])
        };
        let old = record(
            json!({"data": {"a": "1", "b": "2"}, "labels": {"x.y/z": "1"}}),
            &["spec"],
        );
        let new = record(
            json!({"data": {"a": "1", "c": "3"}, "labels": {"x.y/z": "2"}}),
            &["spec", "status"],
        );
        let told: Vec<_> = changes(&old, &new)
            .into_iter()
            .map(|c| (c.path, c.recorded, c.replayed))
            .collect();
        assert_eq!(
            told,
            [
                ("fields[1]".into(), None, Some(json!("status"))),
                ("object.data.b".into(), Some(json!("2")), None),
                ("object.data.c".into(), None, Some(json!("3"))),
                (
                    "object.labels[\"x.y/z\"]".into(),
                    Some(json!("1")),
                    Some(json!("2"))
                ),
            ]
        );
        // Another order of the same is the same.
        let [one, other] =
            [r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#].map(|t| RecordedValue::Bytes(t.into()));
        assert_eq!(changes(&one, &other), []);
    }

    #[test]
    fn what_reads_alike_is_not_the_same() {
        let bytes = |text: &[u8]| RecordedValue::Bytes(text.to_vec());
        let text = |text: &str| RecordedValue::Text(text.into());
        for (old, new, recorded, replayed) in [
            // A body that is no JSON, and one that is.
            (
                bytes(b"on"),
                bytes(b"\"on\""),
                json!({"text": "on"}),
                json!({"json": "on"}),
            ),
            (
                bytes(b"\xff"),
                bytes(b"base64:/w=="),
                json!({"base64": "/w=="}),
                json!({"text": "base64:/w=="}),
            ),
            (
                RecordedValue::Null,
                bytes(b"null"),
                json!(null),
                json!({"json": null}),
            ),
            (text("on"), bytes(b"on"), json!("on"), json!({"text": "on"})),
            // Told as they read where that tells them apart.
            (bytes(b"on"), bytes(b"\"off\""), json!("on"), json!("off")),
            (bytes(b"{\"a\":1}"), bytes(b"{"), json!({"a": 1}), json!("{")),
        ] {
            let record = |value: &RecordedValue| RecordedValue::Record(vec![("body".into(), value.clone())]);
            let change = Change {
                path: "body".into(),
                recorded: Some(recorded),
                replayed: Some(replayed),
            };
            assert_eq!(changes(&record(&old), &record(&new)), [change]);
        }
    }

    #[test]
    fn bytes_are_readable_where_they_can_be() {
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
