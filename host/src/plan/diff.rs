//! Changes for display: YAML diffs without server-managed fields and without secrets.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use similar::TextDiff;

use crate::kube::well_known::bookkeeping;

/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Minimum length of a redacted secret: a shorter one is too likely to be a common word.
const MIN_SECRET_LENGTH: usize = 6;

/// Replacement of a secret.
const REDACTED_VALUE: &str = "***";

/// Metadata that only the API server manages, without information about a change.
const SERVER_FIELDS: [&str; 5] = [
    "creationTimestamp",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Annotation in which `kubectl apply` stores the whole object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Redacts secrets, and the UIDs and timestamps that exist in the plan only, from displayed values.
#[derive(Clone, Debug)]
pub struct DisplayFilter {
    /// Secrets in all their encodings, the longest first, so that a secret that contains another is redacted whole.
    secrets: Vec<String>,
    /// UIDs of objects that exist in the plan only.
    uids: Vec<String>,
    /// Start of the plan: later timestamps were produced by it.
    since: Timestamp,
}

impl DisplayFilter {
    /// Creates a filter that redacts `secrets` and their base64 encodings, and replaces `uids` and timestamps since
    /// `since`.
    pub fn new(secrets: impl IntoIterator<Item = Vec<u8>>, uids: Vec<String>, since: Timestamp) -> Self {
        use base64::{
            Engine,
            engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
        };
        let long = secrets.into_iter().filter(|s| s.len() >= MIN_SECRET_LENGTH);
        let mut secrets: Vec<String> = long
            .flat_map(|secret| {
                // A plugin may have trimmed the secret, encoded it in base64, or put it into a JSON string.
                let trimmed = secret.trim_ascii().to_vec();
                let encoded = [&secret, &trimmed].map(|s| {
                    [
                        STANDARD.encode(s),
                        STANDARD_NO_PAD.encode(s),
                        URL_SAFE_NO_PAD.encode(s),
                    ]
                });
                let plain = [secret, trimmed].map(|s| String::from_utf8(s).ok());
                let quoted = plain.clone().map(|s| s.map(|s| Value::from(s).to_string()));
                let quoted = quoted.map(|s| s.map(|s| s.trim_matches('"').to_owned()));
                let plain = plain.into_iter().chain(quoted).flatten();
                plain.chain(encoded.into_iter().flatten()).collect::<Vec<_>>()
            })
            .filter(|secret| secret.len() >= MIN_SECRET_LENGTH)
            .collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets, uids, since }
    }

    /// Redacts a text.
    pub fn redact_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, REDACTED_VALUE);
            }
        }
        for uid in self.uids.iter().filter(|uid| !uid.is_empty()) {
            if text.contains(uid) {
                text = text.replace(uid, "<uid>");
            }
        }
        text
    }

    /// Redacts a JSON value, including field names and numbers.
    pub fn redact_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.redact_text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(fields) => {
                let field =
                    |(name, value): (&String, &Value)| (self.redact_text(name), self.redact_value(value));
                Value::Object(fields.iter().map(field).collect())
            }
            Value::Number(number) => {
                let (plain, number) = (number.to_string(), value);
                match self.redact_text(&plain) {
                    redacted if redacted == plain => number.clone(),
                    redacted => redacted.into(),
                }
            }
            other => other.clone(),
        }
    }

    /// Replaces timestamps produced during this plan by `<now>`, so that diffs are stable. A value equal to the live one
    /// is kept.
    fn with_stable_timestamps(&self, value: &Value, live: Option<&Value>) -> Value {
        match value {
            Value::String(text) if live != Some(value) => match text.parse::<Timestamp>() {
                Ok(at) if (self.since..=Timestamp::now()).contains(&at) => "<now>".into(),
                _ => value.clone(),
            },
            Value::Array(items) => {
                let items = items.iter().enumerate();
                items
                    .map(|(at, item)| self.with_stable_timestamps(item, live.and_then(|l| l.get(at))))
                    .collect()
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    (
                        name.clone(),
                        self.with_stable_timestamps(value, live.and_then(|l| l.get(name))),
                    )
                };
                Value::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    /// Both states of an object, redacted. Of a Secret's values only the fact that they differ remains.
    pub fn display_states(
        &self,
        live: Option<&Value>,
        planned: Option<&Value>,
    ) -> (Option<Value>, Option<Value>) {
        let planned = planned.map(|planned| self.with_stable_timestamps(planned, live));
        let mut both = [live, planned.as_ref()].map(|state| state.map(strip_server_fields));
        let secret = both
            .iter()
            .flatten()
            .any(|o| o["kind"] == "Secret" && o["apiVersion"] == "v1");
        if secret {
            let [live, planned] = &mut both;
            mask_secret_data(live.as_mut(), planned.as_mut());
        }
        let [live, planned] = both.map(|state| state.map(|state| self.redact_value(&state)));
        (live, planned)
    }
}

fn strip_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| *name != LAST_APPLIED && !name.starts_with(bookkeeping::APPLIED));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    object
}

/// Masks the values of a Secret, as `kubectl diff` does.
fn mask_secret_data(mut live: Option<&mut Value>, mut planned: Option<&mut Value>) {
    for path in ["/data", "/stringData"] {
        let of = |object: Option<&Value>| -> Map<String, Value> {
            let fields = object.and_then(|o| o.pointer(path)).and_then(Value::as_object);
            fields.cloned().unwrap_or_default()
        };
        let (before, after) = (of(live.as_deref()), of(planned.as_deref()));
        let hide = |object: Option<&mut Value>, other: &Map<String, Value>, word: &str| {
            let fields = object
                .and_then(|o| o.pointer_mut(path))
                .and_then(Value::as_object_mut);
            for (name, value) in fields.into_iter().flatten() {
                *value = match other.get(name) {
                    Some(theirs) if theirs != value => format!("{REDACTED_VALUE} ({word})").into(),
                    _ => REDACTED_VALUE.into(),
                };
            }
        };
        hide(live.as_deref_mut(), &after, "before");
        hide(planned.as_deref_mut(), &before, "after");
    }
}

/// Formats the unified diff of two states under a name; empty if they do not differ.
pub fn unified_diff(name: &str, live: Option<&Value>, planned: Option<&Value>) -> String {
    let yaml = |state: Option<&Value>| match state {
        Some(state) => serde_saphyr::to_string(state).unwrap_or_else(|_| state.to_string()),
        None => String::new(),
    };
    let (before, after) = (yaml(live), yaml(planned));
    let file = |exists: bool, side: &str| {
        if exists {
            format!("{side}/{name}")
        } else {
            "/dev/null".into()
        }
    };
    let diff = TextDiff::from_lines(&before, &after);
    diff.unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(&file(live.is_some(), "live"), &file(planned.is_some(), "planned"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn create_filter(secrets: &[&str], uids: &[&str]) -> DisplayFilter {
        let secrets = secrets.iter().map(|s| s.as_bytes().to_vec());
        let uids = uids.iter().map(ToString::to_string).collect();
        DisplayFilter::new(secrets, uids, "2026-01-01T00:00:00Z".parse().expect("a time"))
    }

    #[test]
    fn diff_of_objects_is_yaml() {
        let before = json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"x": 1, "text": "one\ntwo\n"}});
        let mut after = before.clone();
        after["spec"]["x"] = 2.into();
        assert_eq!(
            unified_diff("A/a", Some(&before), Some(&after)),
            "--- live/A/a\n+++ planned/A/a\n@@ -5,4 +5,4 @@\n   text: |\n     one\n     two\n-  x: 1\n+  x: 2\n"
        );
        assert_eq!(unified_diff("A/a", Some(&before), Some(&before)), "");
        let created = unified_diff("A/a", None, Some(&json!({"kind": "A"})));
        assert_eq!(
            created,
            "--- /dev/null\n+++ planned/A/a\n@@ -0,0 +1 @@\n+kind: A\n"
        );
    }

    #[test]
    fn secret_in_number_or_field_name_is_redacted() {
        let filter = create_filter(&["12345678"], &[]);
        let value = json!({"pin": 12_345_678, "port": 8080, "name-12345678": true});
        let hidden = json!({"pin": REDACTED_VALUE, "port": 8080, format!("name-{REDACTED_VALUE}"): true});
        assert_eq!(filter.redact_value(&value), hidden);
        let (live, planned) =
            filter.display_states(None, Some(&json!({"kind": "A", "spec": {"pin": 12_345_678}})));
        assert!(live.is_none());
        assert_eq!(planned.expect("a state")["spec"]["pin"], REDACTED_VALUE);
    }

    #[test]
    fn secret_values_are_masked_and_marked_as_different() {
        let secret = |a: &str, b: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "data": {"same": "c2FtZQ==", a: b},
                "metadata": {"name": "s", "uid": "1", "annotations": {"note": "kept",
                    "kubectl.kubernetes.io/last-applied-configuration": "all of it"}}})
        };
        let (live, planned) = create_filter(&[], &[])
            .display_states(Some(&secret("key", "b25lb25l")), Some(&secret("key", "dHdvdHdv")));
        let (live, planned) = (live.expect("live"), planned.expect("planned"));
        assert_eq!(live["data"], json!({"same": "***", "key": "*** (before)"}));
        assert_eq!(planned["data"], json!({"same": "***", "key": "*** (after)"}));
        assert_eq!(
            live["metadata"],
            json!({"name": "s", "annotations": {"note": "kept"}})
        );
        let (_, created) = create_filter(&[], &[]).display_states(None, Some(&secret("key", "dHdvdHdv")));
        assert_eq!(
            created.expect("created")["data"],
            json!({"same": "***", "key": "***"})
        );
    }

    #[test]
    fn secrets_uids_and_timestamps_of_the_plan_are_replaced_everywhere() {
        let filter = create_filter(&["hunter2-hunter2", "tiny"], &["0-1"]);
        let value = json!({"a": ["x hunter2-hunter2 y", "aHVudGVyMi1odW50ZXIy", "tiny"],
            "hold-0-1": "2026-02-01T00:00:00Z", "b": "2025-02-01T00:00:00Z", "n": 1});
        let (_, new) = filter.display_states(None, Some(&value));
        assert_eq!(
            new.expect("planned"),
            json!({"a": ["x *** y", "***", "tiny"], "hold-<uid>": "<now>", "b": "2025-02-01T00:00:00Z", "n": 1})
        );
        // A timestamp that equals the live one was not produced by the plan, however recent it is.
        let (live, planned) = filter.display_states(Some(&value), Some(&value));
        assert_eq!(live, planned);
        assert_eq!(live.expect("live")["hold-<uid>"], "2026-02-01T00:00:00Z");
    }
}
