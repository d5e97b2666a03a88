//! A reconcile as a person follows it: one line for each host call, values in short.

use serde::{Deserialize, Serialize};

use super::value::RecordedValue;

/// In place of arguments that are not shown.
pub const WITHHELD: &str = "(withheld: the plugin may read Secrets)";

/// Characters of a text that are shown.
const TEXT: usize = 100;

/// What is told to those who follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Line {
    /// A reconcile begins.
    Start {
        /// Its id, as in logs.
        reconcile: String,
        /// The object.
        object: String,
        /// Who reconciles.
        plugin: String,
        /// In which version.
        version: String,
        /// SHA-256 of the component.
        digest: String,
        /// `reconcile` or `cleanup`.
        function: String,
        /// Failures in a row before.
        attempt: u32,
        /// What woke it.
        causes: Vec<String>,
        /// When.
        at: String,
    },
    /// A host call has come back.
    Call {
        /// Of which reconcile.
        reconcile: String,
        /// Its number, from 1.
        number: u32,
        /// `kubernetes.get`.
        function: String,
        /// When, from the beginning.
        at_microseconds: u64,
        /// How long.
        took_microseconds: u64,
        /// In short.
        arguments: String,
        /// In short.
        result: String,
    },
    /// The component's call has ended.
    End {
        /// Of which reconcile.
        reconcile: String,
        /// What it came to, and what is next.
        ended: String,
        /// How long it took.
        took_microseconds: u64,
        /// How long the component computed.
        cpu_microseconds: u64,
        /// Host calls.
        calls: u32,
    },
    /// Whoever follows was too slow.
    Lost {
        /// So many lines are missing here.
        lines: u64,
    },
}

/// Arguments in short: whom it is about, sizes, and options that are not the default.
pub fn arguments(arguments: &RecordedValue) -> String {
    let RecordedValue::Record(named) = arguments else {
        return String::new();
    };
    let parts = named.iter().map(|(name, value)| match (&**name, value) {
        ("options", RecordedValue::Record(options)) => {
            let set = options.iter().filter(|(_, value)| !nothing(value));
            set.map(|(name, value)| named_value(name, value))
                .collect::<Vec<_>>()
                .join(" ")
        }
        _ => short(value),
    });
    parts
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A result in short: how it went, and how much came.
pub fn result(result: &RecordedValue) -> String {
    match result {
        RecordedValue::Null => String::new(),
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, value)] if word == "ok" => match value {
                RecordedValue::Null => "ok".into(),
                value => short(value),
            },
            [(word, value)] if word == "error" => format!("error: {}", error(value)),
            _ => short(result),
        },
        other => short(other),
    }
}

fn error(error: &RecordedValue) -> String {
    match error {
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, RecordedValue::Text(why))] => format!("{word}: {}", cut(why)),
            [(word, value)] => format!("{word}: {}", short(value)),
            _ => short(error),
        },
        other => short(other),
    }
}

/// Whether an option says nothing.
fn nothing(value: &RecordedValue) -> bool {
    match value {
        RecordedValue::Null | RecordedValue::Bool(false) => true,
        RecordedValue::Number(n) => n.as_u64() == Some(0),
        RecordedValue::Text(text) => text.is_empty(),
        RecordedValue::Bytes(bytes) => bytes.is_empty(),
        RecordedValue::List(items) => items.is_empty(),
        RecordedValue::Bool(true) | RecordedValue::Record(_) => false,
    }
}

fn named_value(name: &str, value: &RecordedValue) -> String {
    match value {
        RecordedValue::Bool(true) => name.to_owned(),
        RecordedValue::List(items) if items.iter().all(|i| i.text().is_some()) => {
            let texts: Vec<_> = items.iter().filter_map(RecordedValue::text).collect();
            format!("{name}={}", cut(&texts.join(",")))
        }
        RecordedValue::Text(text) => format!("{name}={}", cut(text)),
        other => format!("{name}={}", short(other)),
    }
}

fn short(value: &RecordedValue) -> String {
    let text = |record: &RecordedValue, name: &str| {
        record
            .get(name)
            .and_then(RecordedValue::text)
            .unwrap_or_default()
            .to_owned()
    };
    match value {
        RecordedValue::Null => "none".into(),
        RecordedValue::Bool(b) => b.to_string(),
        RecordedValue::Number(n) => n.to_string(),
        RecordedValue::Text(text) => cut(text),
        RecordedValue::Bytes(bytes) => object(bytes),
        RecordedValue::List(items) => match items.as_slice() {
            [] => String::new(),
            [one] => short(one),
            many => format!("{} of them", many.len()),
        },
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, _)] if word == "ok" || word == "error" => result(value),
            _ if value.get("gvk").is_some() => {
                let kind = value.get("gvk").map(|gvk| text(gvk, "kind")).unwrap_or_default();
                place(&kind, &text(value, "namespace"), &text(value, "name"))
            }
            _ if value.get("version").is_some() => text(value, "kind"),
            _ if value.get("upstream").is_some() => {
                let upstream = value.get("upstream").map(|u| text(u, "name")).unwrap_or_default();
                let mut parts = vec![
                    text(value, "method").to_uppercase(),
                    upstream,
                    cut(&text(value, "pathAndQuery")),
                ];
                if let Some(RecordedValue::Bytes(body)) = value.get("body") {
                    parts.push(size(body.len()));
                }
                parts.retain(|part| !part.is_empty());
                parts.join(" ")
            }
            _ => match (value.get("status"), value.get("items"), value.get("events")) {
                (Some(RecordedValue::Number(status)), ..) => {
                    let body = value.get("body").map(weight).unwrap_or_default();
                    format!("HTTP {status}, {}", size(body))
                }
                (_, Some(RecordedValue::List(items)), _) => {
                    let bytes: usize = items.iter().map(weight).sum();
                    let more = if value.get("continueToken").is_some_and(|t| !nothing(t)) {
                        ", more"
                    } else {
                        ""
                    };
                    format!("{} objects, {}{more}", items.len(), size(bytes))
                }
                (_, _, Some(RecordedValue::List(events))) => format!("{} events", events.len()),
                _ => {
                    let set = fields.iter().filter(|(_, value)| !nothing(value));
                    let set: Vec<_> = set.map(|(name, value)| named_value(name, value)).collect();
                    cut(&set.join(" "))
                }
            },
        },
    }
}

fn weight(value: &RecordedValue) -> usize {
    match value {
        RecordedValue::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Bytes: the object that they are, if they are one, and how many.
fn object(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Named {
        kind: String,
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        namespace: String,
        name: String,
    }
    match serde_json::from_slice::<Named>(bytes) {
        Ok(Named { kind, metadata }) => {
            format!(
                "{} {}",
                place(&kind, &metadata.namespace, &metadata.name),
                size(bytes.len())
            )
        }
        Err(_) => size(bytes.len()),
    }
}

fn place(kind: &str, namespace: &str, name: &str) -> String {
    match namespace {
        "" => format!("{kind}/{name}"),
        namespace => format!("{kind}/{namespace}/{name}"),
    }
}

/// Bytes for people.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// One line, not too long.
fn cut(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match line.char_indices().nth(TEXT) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str) -> RecordedValue {
        serde_json::from_str(json).expect("a tree")
    }

    #[test]
    fn arguments_and_results_are_told_in_short() {
        let secret_looking = "x".repeat(300);
        for (json, told) in [
            (
                r#"{"ref": {"gvk": {"group": "", "version": "v1", "kind": "ConfigMap"}, "cluster": null, "namespace": "n", "name": "a"},
                    "options": {"live": true, "fields": ["spec", "metadata.labels"]}}"#
                    .to_owned(),
                "ConfigMap/n/a live fields=spec,metadata.labels".to_owned(),
            ),
            (
                r#"{"gvk": {"group": "a", "version": "v1", "kind": "Team"}, "options": {"namespace": "n", "labelSelector": "a=b", "limit": 0, "fields": []}}"#.into(),
                "Team namespace=n labelSelector=a=b".into(),
            ),
            (
                r#"{"object": {"json": {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}}, "options": {"owned": true, "force": false}}"#.into(),
                "ConfigMap/n/a 66 B owned".into(),
            ),
            (
                r#"{"request": {"upstream": {"namespace": null, "name": "ci"}, "method": "PUT", "pathAndQuery": "/a?b", "headers": [], "body": {"text": "abc"}, "timeout": 0}}"#.into(),
                "PUT ci /a?b 3 B".into(),
            ),
            (format!(r#"{{"key": "{secret_looking}"}}"#), format!("{}…", "x".repeat(100))),
            (r#"{"level": "info", "message": "two\nlines", "fields": []}"#.into(), "info two lines".into()),
        ] {
            assert_eq!(arguments(&shown(&json)), told);
        }
        for (json, told) in [
            ("null", ""),
            (r#"{"ok": null}"#, "ok"),
            (r#"{"ok": {"text": "12345"}}"#, "5 B"),
            (
                r#"{"ok": {"status": 404, "headers": [], "body": {"text": "gone"}}}"#,
                "HTTP 404, 4 B",
            ),
            (
                r#"{"ok": {"items": [{"text": "a"}, {"text": "bc"}], "continueToken": "n/b"}}"#,
                "2 objects, 3 B, more",
            ),
            (r#"{"error": {"denied": "grant it"}}"#, "error: denied: grant it"),
            (r#"{"error": {"throttled": 5}}"#, "error: throttled: 5"),
            ("1700000000000", "1700000000000"),
        ] {
            assert_eq!(result(&shown(json)), told, "{json}");
        }
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(
            [size(1023), size(1536), size(3 << 20)],
            ["1023 B", "1.5 KiB", "3.0 MiB"]
        );
    }
}
