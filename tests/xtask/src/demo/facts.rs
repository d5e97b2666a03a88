//! Statistics of the host's admin endpoint, and the report of the demo.
//!
//! The types repeat fields of the host's own, because this crate does not depend on the host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An object in the response of `/objects`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct ObjectFacts {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// True when its Ready condition is.
    pub ready: bool,
    /// Reason of its Ready condition.
    pub reason: String,
    /// Message of its Ready condition.
    pub message: String,
    /// Milliseconds from when the host first saw the object until it was first Ready.
    pub ready_ms: Option<f64>,
    /// Number of reconciles.
    pub reconciles: u64,
    /// Number of writes to the API server.
    pub api_writes: u64,
    /// Number of reads from upstreams.
    pub upstream_reads: u64,
    /// Number of writes to upstreams.
    pub upstream_writes: u64,
    /// Plugin that reconciles the object.
    pub plugin: String,
    /// SHA-256 of the build that reconciled it last.
    pub plugin_digest: String,
}

impl ObjectFacts {
    /// Returns the identity of the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A plugin in the response of `/plugins`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct PluginStats {
    /// Name of the object.
    pub name: String,
    /// SHA-256 of the active build.
    pub digest: String,
    /// State of the plugin.
    pub state: String,
    /// Error of the newest build.
    pub message: String,
    /// Milliseconds from the change of the file until the build was active.
    pub swapped_ms: Option<f64>,
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of a manifest.
    pub fn from_manifest(object: &Value) -> Self {
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

/// Kind of the objects that the host reconciles for the rights of plugins.
const RIGHTS_KIND: &str = "RoleBinding";

/// Merges the host's statistics with the objects the demo applied, which include objects the host has not seen yet.
pub fn merge_stats(wanted: &[ObjectKey], seen: Vec<ObjectFacts>) -> Vec<ObjectFacts> {
    // The host keeps RoleBindings of plugins until their objects are cleaned up. They are never Ready.
    let seen = seen.into_iter().filter(|object| object.kind != RIGHTS_KIND);
    let mut seen: BTreeMap<_, _> = seen.map(|object| (object.key(), object)).collect();
    let mut objects: Vec<_> = wanted
        .iter()
        .map(|key| {
            seen.remove(key).unwrap_or_else(|| ObjectFacts {
                kind: key.kind.clone(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                reason: "NotReconciled".into(),
                message: "no plugin has reconciled it yet".into(),
                ..ObjectFacts::default()
            })
        })
        .collect();
    objects.extend(seen.into_values());
    objects
}

/// Returns the reason why an object is not Ready, as one line.
pub fn ready_reason(object: &ObjectFacts) -> String {
    match (object.reason.as_str(), object.message.as_str()) {
        ("", "") => "no Ready condition yet".into(),
        (reason, "") => reason.into(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Builds the report of `-o json`.
pub fn json_report(objects: &[ObjectFacts], swap_ms: Option<f64>, host_rss_bytes: Option<u64>) -> Value {
    #[derive(Serialize)]
    struct ObjectReport<'a> {
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
        .map(|o| ObjectReport {
            kind: &o.kind,
            namespace: &o.namespace,
            name: &o.name,
            // An object that is no longer Ready counts as not Ready.
            ready_ms: o.ready_ms.filter(|_| o.ready),
            reconciles: o.reconciles,
            api_writes: o.api_writes,
            upstream_reads: o.upstream_reads,
            upstream_writes: o.upstream_writes,
            reason: (!o.ready).then(|| ready_reason(o)),
        })
        .collect();
    json!({"objects": lines, "swap_ms": swap_ms, "host_rss_bytes": host_rss_bytes})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(ready: bool) -> ObjectFacts {
        ObjectFacts {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: "a".into(),
            ready,
            reason: "InstanceNotReady".into(),
            message: "waiting".into(),
            ready_ms: Some(12.5),
            reconciles: 3,
            ..ObjectFacts::default()
        }
    }

    #[test]
    fn object_unknown_to_the_host_is_listed_as_not_reconciled() {
        let key = |name: &str| ObjectKey {
            kind: "Team".into(),
            namespace: "ci".into(),
            name: name.into(),
        };
        let objects = merge_stats(&[key("a"), key("b")], vec![team(true)]);
        assert_eq!(objects.len(), 2);
        assert!(objects[0].ready);
        assert_eq!(
            ready_reason(&objects[1]),
            "NotReconciled: no plugin has reconciled it yet"
        );
    }

    #[test]
    fn report_has_a_reason_exactly_for_objects_that_are_not_ready() {
        let report = json_report(&[team(true), team(false)], Some(80.0), Some(1024));
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
