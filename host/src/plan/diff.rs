//! How a change is shown: as YAML, without what tells nothing, and without secrets.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use similar::TextDiff;

/// Lines around a change.
const CONTEXT: usize = 3;

/// A secret that is shorter is too likely to be a common word.
const SHORTEST: usize = 6;

/// In place of a secret.
const MASK: &str = "***";

/// The server's bookkeeping that says nothing about a change.
const UNSEEN: [&str; 5] = [
    "creationTimestamp",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The whole object once more, as `kubectl apply` leaves it.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Makes values fit to be shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Never shown; the longest first.
    secrets: Vec<String>,
    /// Uids that exist in the plan alone.
    uids: Vec<String>,
    /// Times from here on are those of the plan.
    since: Timestamp,
}

impl Shown {
    /// `secrets` and their base64 are never shown; `uids` and times not before `since` are of the plan alone.
    pub fn new(secrets: impl IntoIterator<Item = Vec<u8>>, uids: Vec<String>, since: Timestamp) -> Self {
        use base64::{
            Engine,
            engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
        };
        let long = secrets.into_iter().filter(|s| s.len() >= SHORTEST);
        let mut secrets: Vec<String> = long
            .flat_map(|secret| {
                // As a plugin may have put it: without the line's end, encoded, within a JSON text.
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
            .filter(|secret| secret.len() >= SHORTEST)
            .collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self { secrets, uids, since }
    }

    /// A text as it may be shown.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, MASK);
            }
        }
        for uid in self.uids.iter().filter(|uid| !uid.is_empty()) {
            if text.contains(uid) {
                text = text.replace(uid, "<uid>");
            }
        }
        text
    }

    /// Any JSON as it may be shown.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| (self.text(name), self.value(value));
                Value::Object(fields.iter().map(field).collect())
            }
            Value::Number(number) => {
                let (plain, number) = (number.to_string(), value);
                match self.text(&plain) {
                    shown if shown == plain => number.clone(),
                    shown => shown.into(),
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

    /// Both states of an object as they may be shown: of a Secret's data only that it differs.
    pub fn states(&self, live: Option<&Value>, planned: Option<&Value>) -> (Option<Value>, Option<Value>) {
        let planned = planned.map(|planned| self.with_stable_timestamps(planned, live));
        let mut both = [live, planned.as_ref()].map(|state| state.map(seen));
        let secret = both
            .iter()
            .flatten()
            .any(|o| o["kind"] == "Secret" && o["apiVersion"] == "v1");
        if secret {
            let [live, planned] = &mut both;
            mask(live.as_mut(), planned.as_mut());
        }
        let [live, planned] = both.map(|state| state.map(|state| self.value(&state)));
        (live, planned)
    }
}

fn seen(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in UNSEEN {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    object
}

/// Masks the values of a Secret, as `kubectl diff` does.
fn mask(mut live: Option<&mut Value>, mut planned: Option<&mut Value>) {
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
                    Some(theirs) if theirs != value => format!("{MASK} ({word})").into(),
                    _ => MASK.into(),
                };
            }
        };
        hide(live.as_deref_mut(), &after, "before");
        hide(planned.as_deref_mut(), &before, "after");
    }
}

/// The unified diff of two states under a name; empty when they look the same.
pub fn unified(name: &str, live: Option<&Value>, planned: Option<&Value>) -> String {
    let yaml = |state: Option<&Value>| match state {
        Some(state) => serde_saphyr::to_string(state).unwrap_or_else(|_| state.to_string()),
        None => String::new(),
    };
    let (before, after) = (yaml(live), yaml(planned));
    let file = |there: bool, side: &str| match there {
        true => format!("{side}/{name}"),
        false => "/dev/null".into(),
    };
    let diff = TextDiff::from_lines(&before, &after);
    diff.unified_diff()
        .context_radius(CONTEXT)
        .header(&file(live.is_some(), "live"), &file(planned.is_some(), "planned"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(secrets: &[&str], uids: &[&str]) -> Shown {
        let secrets = secrets.iter().map(|s| s.as_bytes().to_vec());
        let uids = uids.iter().map(ToString::to_string).collect();
        Shown::new(secrets, uids, "2026-01-01T00:00:00Z".parse().expect("a time"))
    }

    #[test]
    fn a_change_is_shown_as_yaml() {
        let before = json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"x": 1, "text": "one\ntwo\n"}});
        let mut after = before.clone();
        after["spec"]["x"] = 2.into();
        assert_eq!(
            unified("A/a", Some(&before), Some(&after)),
            "--- live/A/a\n+++ planned/A/a\n@@ -5,4 +5,4 @@\n   text: |\n     one\n     two\n-  x: 1\n+  x: 2\n"
        );
        assert_eq!(unified("A/a", Some(&before), Some(&before)), "");
        let created = unified("A/a", None, Some(&json!({"kind": "A"})));
        assert_eq!(
            created,
            "--- /dev/null\n+++ planned/A/a\n@@ -0,0 +1 @@\n+kind: A\n"
        );
    }

    #[test]
    fn a_number_may_be_a_secret() {
        let shown = shown(&["12345678"], &[]);
        let value = json!({"pin": 12_345_678, "port": 8080, "name-12345678": true});
        let hidden = json!({"pin": MASK, "port": 8080, format!("name-{MASK}"): true});
        assert_eq!(shown.value(&value), hidden);
        let (live, planned) = shown.states(None, Some(&json!({"kind": "A", "spec": {"pin": 12_345_678}})));
        assert!(live.is_none());
        assert_eq!(planned.expect("a state")["spec"]["pin"], MASK);
    }

    #[test]
    fn of_a_secret_only_that_it_differs() {
        let secret = |a: &str, b: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "data": {"same": "c2FtZQ==", a: b},
                "metadata": {"name": "s", "uid": "1", "annotations": {"note": "kept",
                    "kubectl.kubernetes.io/last-applied-configuration": "all of it"}}})
        };
        let (live, planned) =
            shown(&[], &[]).states(Some(&secret("key", "b25lb25l")), Some(&secret("key", "dHdvdHdv")));
        let (live, planned) = (live.expect("live"), planned.expect("planned"));
        assert_eq!(live["data"], json!({"same": "***", "key": "*** (before)"}));
        assert_eq!(planned["data"], json!({"same": "***", "key": "*** (after)"}));
        assert_eq!(
            live["metadata"],
            json!({"name": "s", "annotations": {"note": "kept"}})
        );
        let (_, created) = shown(&[], &[]).states(None, Some(&secret("key", "dHdvdHdv")));
        assert_eq!(
            created.expect("created")["data"],
            json!({"same": "***", "key": "***"})
        );
    }

    #[test]
    fn secrets_uids_and_times_of_the_plan_are_not_shown_anywhere() {
        let shown = shown(&["hunter2-hunter2", "tiny"], &["0-1"]);
        let value = json!({"a": ["x hunter2-hunter2 y", "aHVudGVyMi1odW50ZXIy", "tiny"],
            "hold-0-1": "2026-02-01T00:00:00Z", "b": "2025-02-01T00:00:00Z", "n": 1});
        let (_, new) = shown.states(None, Some(&value));
        assert_eq!(
            new.expect("planned"),
            json!({"a": ["x *** y", "***", "tiny"], "hold-<uid>": "<now>", "b": "2025-02-01T00:00:00Z", "n": 1})
        );
        // A time that is there already is none of the plan's, however new it is.
        let (live, planned) = shown.states(Some(&value), Some(&value));
        assert_eq!(live, planned);
        assert_eq!(live.expect("live")["hold-<uid>"], "2026-02-01T00:00:00Z");
    }
}
