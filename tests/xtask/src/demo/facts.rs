//! What the host tells of itself, and what the demo tells of that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An object, as the host's `/objects` tells it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Object {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// The reason of its Ready condition.
    pub reason: String,
    /// The message of its Ready condition.
    pub message: String,
    /// Milliseconds from when the host first saw it to its first Ready.
    pub ready_ms: Option<f64>,
    /// Reconciles so far.
    pub reconciles: u64,
    /// Writes to the API server so far.
    pub api_writes: u64,
    /// Reads from upstreams so far.
    pub upstream_reads: u64,
    /// Writes to upstreams so far.
    pub upstream_writes: u64,
    /// The plugin that reconciles it.
    pub plugin: String,
    /// The build of the plugin that reconciled it last.
    pub plugin_digest: String,
}

/// A plugin, as the host's `/plugins` tells it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the build that serves.
    pub digest: String,
    /// Whether it serves.
    pub state: String,
    /// What is wrong with the newest build.
    pub message: String,
    /// Milliseconds from the file's change to serving.
    pub swapped_ms: Option<f64>,
}

/// Which object is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Of an object's JSON.
    pub fn of(object: &Value) -> Self {
        let text = |pointer| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        }
    }
}

/// What the host says, for the objects the demo applied: also for one it hasn't seen.
pub fn merge(wanted: &[Key], seen: Vec<Object>) -> Vec<Object> {
    let key = |o: &Object| Key {
        kind: o.kind.clone(),
        namespace: o.namespace.clone(),
        name: o.name.clone(),
    };
    let mut seen: BTreeMap<_, _> = seen.into_iter().map(|object| (key(&object), object)).collect();
    let mut objects: Vec<_> = wanted
        .iter()
        .map(|key| {
            seen.remove(key).unwrap_or_else(|| Object {
                kind: key.kind.clone(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                reason: "NotReconciled".into(),
                message: "no plugin has reconciled it yet".into(),
                ..Object::default()
            })
        })
        .collect();
    objects.extend(seen.into_values());
    objects
}

/// Why an object isn't Ready, in a line.
pub fn why(object: &Object) -> String {
    match (object.reason.as_str(), object.message.as_str()) {
        ("", "") => "no Ready condition yet".into(),
        (reason, "") => reason.into(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// What `-o json` prints.
pub fn report(objects: &[Object], swap_ms: Option<f64>, host_rss_bytes: Option<u64>) -> Value {
    #[derive(Serialize)]
    struct Line<'a> {
        kind: &'a str,
        namespace: &'a str,
        name: &'a str,
        ready_ms: Option<f64>,
        reconciles: u64,
        api_writes: u64,
        upstream_reads: u64,
        upstream_writes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    let lines: Vec<_> = objects
        .iter()
        .map(|o| Line {
            kind: &o.kind,
            namespace: &o.namespace,
            name: &o.name,
            // One that was Ready and is no more isn't.
            ready_ms: o.ready_ms.filter(|_| o.ready),
            reconciles: o.reconciles,
            api_writes: o.api_writes,
            upstream_reads: o.upstream_reads,
            upstream_writes: o.upstream_writes,
            reason: (!o.ready).then(|| why(o)),
        })
        .collect();
    json!({"objects": lines, "swap_ms": swap_ms, "host_rss_bytes": host_rss_bytes})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(ready: bool) -> Object {
        Object {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: "a".into(),
            ready,
            reason: "InstanceNotReady".into(),
            message: "waiting".into(),
            ready_ms: Some(12.5),
            reconciles: 3,
            ..Object::default()
        }
    }

    #[test]
    fn an_object_the_host_has_not_seen_is_told() {
        let key = |name: &str| Key {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: name.into(),
        };
        let objects = merge(&[key("a"), key("b")], vec![team(true)]);
        assert_eq!(objects.len(), 2);
        assert!(objects[0].ready);
        assert_eq!(why(&objects[1]), "NotReconciled: no plugin has reconciled it yet");
    }

    #[test]
    fn the_report_has_a_reason_exactly_where_it_is_not_ready() {
        let report = report(&[team(true), team(false)], Some(80.0), Some(1024));
        assert_eq!(report["objects"][0]["ready_ms"], 12.5);
        assert_eq!(report["objects"][0].get("reason"), None);
        assert_eq!(report["objects"][1]["ready_ms"], Value::Null);
        assert_eq!(report["objects"][1]["reason"], "InstanceNotReady: waiting");
        assert_eq!(
            (&report["swap_ms"], &report["host_rss_bytes"]),
            (&json!(80.0), &json!(1024))
        );
    }
}
