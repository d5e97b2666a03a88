//! Comparison of recorded values, which reports differences by path.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::value::RecordedValue;

/// A difference between a recorded and a replayed value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueChange {
    /// The path: `object.data.greeting`, `options.fields[0]`.
    pub path: String,
    /// The recorded value; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// The value of the replay; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Value>,
}

/// Maximum number of changes reported for one pair of values.
const MAX_CHANGES: usize = 20;

/// Maximum number of characters shown of a changed value.
const MAX_VALUE_CHARS: usize = 400;

/// Lists the differences between two values. Bytes that are JSON on both sides are compared as JSON.
pub fn list_changes(recorded: &RecordedValue, replayed: &RecordedValue) -> Vec<ValueChange> {
    let mut found = Vec::new();
    compare("", Some(recorded), Some(replayed), &mut found);
    found
}

fn compare(
    path: &str,
    old: Option<&RecordedValue>,
    new: Option<&RecordedValue>,
    found: &mut Vec<ValueChange>,
) {
    if old == new || found.len() >= MAX_CHANGES {
        return;
    }
    match (old, new) {
        (Some(RecordedValue::Record(a)), Some(RecordedValue::Record(b))) => {
            for name in merge_names(a.iter().map(|(n, _)| n), b.iter().map(|(n, _)| n)) {
                let (old, new) = (old.and_then(|o| o.get(name)), new.and_then(|n| n.get(name)));
                compare(&join_path(path, name), old, new, found);
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
                _ => found.push(ValueChange::between(path, old, new)),
            }
        }
        _ => found.push(ValueChange::between(path, old, new)),
    }
}

fn compare_json(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<ValueChange>) {
    if old == new || found.len() >= MAX_CHANGES {
        return;
    }
    match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for name in merge_names(a.keys(), b.keys()) {
                compare_json(&join_path(path, name), a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for i in 0..a.len().max(b.len()) {
                compare_json(&format!("{path}[{i}]"), a.get(i), b.get(i), found);
            }
        }
        _ => found.push(ValueChange {
            path: path.to_owned(),
            recorded: old.map(shorten_value),
            replayed: new.map(shorten_value),
        }),
    }
}

/// The names of both sides, sorted and without duplicates.
fn merge_names<'a>(
    old: impl Iterator<Item = &'a String>,
    new: impl Iterator<Item = &'a String>,
) -> BTreeSet<&'a String> {
    old.chain(new).collect()
}

/// Appends a field to a path.
fn join_path(path: &str, name: &str) -> String {
    // A name with a dot in it, as labels have, would look like two fields.
    match (path.is_empty(), name.contains('.')) {
        (_, true) => format!("{path}[{name:?}]"),
        (true, false) => name.to_owned(),
        (false, false) => format!("{path}.{name}"),
    }
}

impl ValueChange {
    /// A change between two values. If both look alike (the text `on` and the JSON `"on"`), they are shown as in a
    /// recording file.
    fn between(path: &str, old: Option<&RecordedValue>, new: Option<&RecordedValue>) -> Self {
        let read = [old, new].map(|side| side.map(RecordedValue::to_json));
        let [recorded, replayed] = if read[0] == read[1] {
            [old, new].map(|side| side.and_then(|s| serde_json::to_value(s).ok()))
        } else {
            read
        };
        Self {
            path: path.to_owned(),
            recorded: recorded.as_ref().map(shorten_value),
            replayed: replayed.as_ref().map(shorten_value),
        }
    }
}

/// Returns the value, or the beginning of its text if it is long.
fn shorten_value(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        None => value.clone(),
        Some((end, _)) => Value::String(format!("{}… ({} bytes)", &text[..end], text.len())),
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::recording::value::tests::any_value;

    /// Compares types and contents; bytes that are JSON are compared as JSON.
    fn is_equal(old: &RecordedValue, new: &RecordedValue) -> bool {
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        match (old, new) {
            (RecordedValue::Bytes(a), RecordedValue::Bytes(b)) => {
                a == b || (json(a).is_some() && json(a) == json(b))
            }
            (RecordedValue::List(a), RecordedValue::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
            }
            (RecordedValue::Record(a), RecordedValue::Record(b)) => {
                let has = |one: &[(String, RecordedValue)], other: &RecordedValue| {
                    one.iter().all(|(name, _)| other.get(name).is_some())
                };
                has(a, new)
                    && has(b, old)
                    && a.iter().all(|(name, _)| match (old.get(name), new.get(name)) {
                        (Some(a), Some(b)) => is_equal(a, b),
                        _ => false,
                    })
            }
            _ => old == new,
        }
    }

    proptest! {
        #[test]
        fn values_without_changes_are_equal(old in any_value(), new in any_value()) {
            prop_assert_eq!(list_changes(&old, &old), []);
            prop_assert_eq!(list_changes(&old, &new).is_empty(), is_equal(&old, &new));
        }

        /// Different values with the same text are shown differently.
        #[test]
        fn change_shows_different_values(text in "[a-z0-9\"]{0,4}") {
            let encoded = BASE64_STANDARD.encode(&text);
            let ways = [
                RecordedValue::Text(text.clone()),
                RecordedValue::Bytes(text.clone().into()),
                RecordedValue::Bytes(Value::String(text.clone()).to_string().into()),
                RecordedValue::Text(format!("base64:{encoded}")),
            ];
            for (i, old) in ways.iter().enumerate() {
                for new in &ways[i + 1..] {
                    let found = list_changes(old, new);
                    prop_assert_eq!(found.len(), 1, "{:?} {:?}", old, new);
                    prop_assert_ne!(&found[0].recorded, &found[0].replayed);
                }
            }
        }
    }

    #[test]
    fn changes_are_reported_by_path() {
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
        let reported: Vec<_> = list_changes(&old, &new)
            .into_iter()
            .map(|c| (c.path, c.recorded, c.replayed))
            .collect();
        assert_eq!(
            reported,
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
        // The order of JSON keys is irrelevant.
        let [one, other] =
            [r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#].map(|t| RecordedValue::Bytes(t.into()));
        assert_eq!(list_changes(&one, &other), []);
    }

    #[test]
    fn values_that_look_alike_are_different() {
        let bytes = |text: &[u8]| RecordedValue::Bytes(text.to_vec());
        let text = |text: &str| RecordedValue::Text(text.into());
        for (old, new, recorded, replayed) in [
            // A body that is not JSON, and one that is.
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
            // Values that look different are shown as they look.
            (bytes(b"on"), bytes(b"\"off\""), json!("on"), json!("off")),
            (bytes(b"{\"a\":1}"), bytes(b"{"), json!({"a": 1}), json!("{")),
        ] {
            let record = |value: &RecordedValue| RecordedValue::Record(vec![("body".into(), value.clone())]);
            let change = ValueChange {
                path: "body".into(),
                recorded: Some(recorded),
                replayed: Some(replayed),
            };
            assert_eq!(list_changes(&record(&old), &record(&new)), [change]);
        }
    }
}
