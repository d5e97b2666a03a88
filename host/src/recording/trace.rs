//! The lines of `ostler trace`: one for each host call, with summarized values.

use serde::{Deserialize, Serialize};

use super::value::RecordedValue;

/// The text in place of arguments that are withheld.
pub const WITHHELD: &str = "(withheld: the plugin may read Secrets)";

/// Maximum number of characters shown of a text.
const MAX_TEXT_CHARS: usize = 100;

/// A line that a follower receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TraceLine {
    /// A reconcile begins.
    Start {
        /// The id of the reconcile, as in logs.
        reconcile: String,
        /// The object.
        object: String,
        /// The plugin.
        plugin: String,
        /// The version of the plugin.
        version: String,
        /// SHA-256 of the component.
        digest: String,
        /// `reconcile`, `cleanup` or `handle`.
        function: String,
        /// Number of consecutive failures before.
        attempt: u32,
        /// The causes for which the object was queued.
        causes: Vec<String>,
        /// The time.
        at: String,
    },
    /// A host call has returned.
    Call {
        /// The id of the reconcile.
        reconcile: String,
        /// Its number, from 1.
        number: u32,
        /// `kubernetes.get`.
        function: String,
        /// The time of the call since the beginning of the reconcile.
        at_microseconds: u64,
        /// The duration of the host call.
        took_microseconds: u64,
        /// The summarized arguments.
        arguments: String,
        /// The summarized result.
        result: String,
    },
    /// The call of the component has ended.
    End {
        /// The id of the reconcile.
        reconcile: String,
        /// A summary of the outcome and of the next reconcile.
        ended: String,
        /// The duration of the call.
        took_microseconds: u64,
        /// The CPU time of the component.
        cpu_microseconds: u64,
        /// The number of host calls.
        calls: u32,
    },
    /// Lines were dropped because the follower was too slow.
    Lost {
        /// The number of dropped lines.
        lines: u64,
    },
}

/// Summarizes arguments: the object, sizes, and the options that are not the default.
pub fn summarize_arguments(arguments: &RecordedValue) -> String {
    let RecordedValue::Record(named) = arguments else {
        return String::new();
    };
    let parts = named.iter().map(|(name, value)| match (&**name, value) {
        ("options", RecordedValue::Record(options)) => {
            let set = options.iter().filter(|(_, value)| !is_default(value));
            set.map(|(name, value)| summarize_named(name, value))
                .collect::<Vec<_>>()
                .join(" ")
        }
        _ => summarize_value(value),
    });
    parts
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Summarizes a result: success or error, and sizes.
pub fn summarize_result(result: &RecordedValue) -> String {
    match result {
        RecordedValue::Null => String::new(),
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, value)] if word == "ok" => match value {
                RecordedValue::Null => "ok".into(),
                value => summarize_value(value),
            },
            [(word, value)] if word == "error" => format!("error: {}", summarize_error(value)),
            _ => summarize_value(result),
        },
        other => summarize_value(other),
    }
}

/// Summarizes an error: its case and its message.
fn summarize_error(error: &RecordedValue) -> String {
    match error {
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, RecordedValue::Text(why))] => format!("{word}: {}", shorten_text(why)),
            [(word, value)] => format!("{word}: {}", summarize_value(value)),
            _ => summarize_value(error),
        },
        other => summarize_value(other),
    }
}

/// Returns true for the default of an option: false, zero or empty.
fn is_default(value: &RecordedValue) -> bool {
    match value {
        RecordedValue::Null | RecordedValue::Bool(false) => true,
        RecordedValue::Number(n) => n.as_u64() == Some(0),
        RecordedValue::Text(text) => text.is_empty(),
        RecordedValue::Bytes(bytes) => bytes.is_empty(),
        RecordedValue::List(items) => items.is_empty(),
        RecordedValue::Bool(true) | RecordedValue::Record(_) => false,
    }
}

/// Summarizes a value with its name.
fn summarize_named(name: &str, value: &RecordedValue) -> String {
    match value {
        RecordedValue::Bool(true) => name.to_owned(),
        RecordedValue::List(items) if items.iter().all(|i| i.text().is_some()) => {
            let texts: Vec<_> = items.iter().filter_map(RecordedValue::text).collect();
            format!("{name}={}", shorten_text(&texts.join(",")))
        }
        RecordedValue::Text(text) => format!("{name}={}", shorten_text(text)),
        other => format!("{name}={}", summarize_value(other)),
    }
}

/// Summarizes a value of any type.
fn summarize_value(value: &RecordedValue) -> String {
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
        RecordedValue::Text(text) => shorten_text(text),
        RecordedValue::Bytes(bytes) => summarize_bytes(bytes),
        RecordedValue::List(items) => match items.as_slice() {
            [] => String::new(),
            [one] => summarize_value(one),
            many => format!("{} of them", many.len()),
        },
        RecordedValue::Record(fields) => match fields.as_slice() {
            [(word, _)] if word == "ok" || word == "error" => summarize_result(value),
            _ if value.get("gvk").is_some() => {
                let kind = value.get("gvk").map(|gvk| text(gvk, "kind")).unwrap_or_default();
                let cluster = text(value, "cluster");
                format_reference(&kind, &cluster, &text(value, "namespace"), &text(value, "name"))
            }
            _ if value.get("version").is_some() => text(value, "kind"),
            _ if value.get("upstream").is_some() => {
                let upstream = value.get("upstream").map(|u| text(u, "name")).unwrap_or_default();
                let mut parts = vec![
                    text(value, "method").to_uppercase(),
                    upstream,
                    shorten_text(&text(value, "pathAndQuery")),
                ];
                if let Some(RecordedValue::Bytes(body)) = value.get("body") {
                    parts.push(format_size(body.len()));
                }
                parts.retain(|part| !part.is_empty());
                parts.join(" ")
            }
            _ => match (value.get("status"), value.get("items"), value.get("events")) {
                (Some(RecordedValue::Number(status)), ..) => {
                    let body = value.get("body").map(count_bytes).unwrap_or_default();
                    format!("HTTP {status}, {}", format_size(body))
                }
                (_, Some(RecordedValue::List(items)), _) => {
                    let bytes: usize = items.iter().map(count_bytes).sum();
                    let more = if value.get("continueToken").is_some_and(|t| !is_default(t)) {
                        ", more"
                    } else {
                        ""
                    };
                    format!("{} objects, {}{more}", items.len(), format_size(bytes))
                }
                (_, _, Some(RecordedValue::List(events))) => format!("{} events", events.len()),
                _ => {
                    let set = fields.iter().filter(|(_, value)| !is_default(value));
                    let set: Vec<_> = set.map(|(name, value)| summarize_named(name, value)).collect();
                    shorten_text(&set.join(" "))
                }
            },
        },
    }
}

/// Counts the bytes of a value.
fn count_bytes(value: &RecordedValue) -> usize {
    match value {
        RecordedValue::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Summarizes bytes: their number, and the object if they are one.
fn summarize_bytes(bytes: &[u8]) -> String {
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
                format_reference(&kind, "", &metadata.namespace, &metadata.name),
                format_size(bytes.len())
            )
        }
        Err(_) => format_size(bytes.len()),
    }
}

/// Formats the kind, cluster, namespace and name of an object. The cluster is empty for the host's own.
fn format_reference(kind: &str, cluster: &str, namespace: &str, name: &str) -> String {
    let mut reference = format!("{kind}/");
    for (part, end) in [(cluster, ':'), (namespace, '/')] {
        if !part.is_empty() {
            reference.push_str(part);
            reference.push(end);
        }
    }
    reference + name
}

/// Formats a number of bytes: `1.5 KiB`.
pub fn format_size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// Shortens a text, and replaces control characters, so that it fits into one line.
fn shorten_text(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match line.char_indices().nth(MAX_TEXT_CHARS) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_value(json: &str) -> RecordedValue {
        serde_json::from_str(json).expect("a recorded value")
    }

    #[test]
    fn arguments_and_results_are_summarized() {
        let secret_looking = "x".repeat(300);
        for (json, summary) in [
            (
                r#"{"ref": {"gvk": {"group": "", "version": "v1", "kind": "ConfigMap"}, "cluster": null, "namespace": "n", "name": "a"},
                    "options": {"live": true, "fields": ["spec", "metadata.labels"]}}"#
                    .to_owned(),
                "ConfigMap/n/a live fields=spec,metadata.labels".to_owned(),
            ),
            (
                r#"{"ref": {"gvk": {"group": "", "version": "v1", "kind": "ConfigMap"}, "cluster": "fleet/east", "namespace": "n", "name": "a"},
                    "options": {"live": false}}"#
                    .into(),
                "ConfigMap/fleet/east:n/a".into(),
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
            assert_eq!(summarize_arguments(&parse_value(&json)), summary);
        }
        for (json, summary) in [
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
            assert_eq!(summarize_result(&parse_value(json)), summary, "{json}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(
            [format_size(1023), format_size(1536), format_size(3 << 20)],
            ["1023 B", "1.5 KiB", "3.0 MiB"]
        );
    }
}
