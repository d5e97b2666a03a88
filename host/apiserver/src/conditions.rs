//! Conditions in the status of objects that controllers write.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::object::current_time;
use crate::storage::{GroupResource, StoredObject};

/// Creates a condition without times.
pub fn condition(kind: &str, is_true: bool, reason: &str, message: &str) -> Value {
    let status = if is_true { "True" } else { "False" };
    json!({ "type": kind, "status": status, "reason": reason, "message": message })
}

/// Returns the conditions with the times of their last transition, and those of other types that the object has.
pub fn with_times(object: &Value, conditions: &[Value]) -> Value {
    let known = object["status"]["conditions"].as_array();
    let known = || known.into_iter().flatten();
    let mut all: Vec<Value> = known()
        .filter(|k| conditions.iter().all(|new| new["type"] != k["type"]))
        .cloned()
        .collect();
    for new in conditions {
        let same = known().find(|k| k["type"] == new["type"] && k["status"] == new["status"]);
        let mut timed = new.clone();
        for time in ["lastTransitionTime", "lastUpdateTime", "lastProbeTime"] {
            // Conditions of Deployments and Jobs have two times, of different names.
            let is_of_kind = match time {
                "lastUpdateTime" => object["kind"] == "Deployment",
                "lastProbeTime" => object["kind"] == "Job",
                _ => true,
            };
            if is_of_kind {
                timed[time] = same.map_or_else(|| current_time().into(), |k| k[time].clone());
            }
        }
        all.push(timed);
    }
    all.into()
}

/// Returns the conditions of a namespace in deletion that still has contents.
pub fn describe_remaining(remaining: &[(GroupResource, Arc<StoredObject>)]) -> [Value; 5] {
    let mut resources: BTreeMap<String, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for (resource, object) in remaining {
        *resources
            .entry(format!("{}.{}", resource.plural, resource.group))
            .or_default() += 1;
        let names = object.value["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten();
        for name in names.filter_map(Value::as_str) {
            *finalizers.entry(name).or_default() += 1;
        }
    }
    let resources = resources
        .iter()
        .map(|(name, count)| format!("{name} has {count} resource instances"));
    let names = finalizers
        .iter()
        .map(|(name, count)| format!("{name} in {count} resource instances"));
    let (resources, names): (Vec<_>, Vec<_>) = (resources.collect(), names.collect());
    let finalizers = if names.is_empty() {
        condition(
            "NamespaceFinalizersRemaining",
            false,
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        )
    } else {
        let message = format!(
            "Some content in the namespace has finalizers remaining: {}",
            names.join(", ")
        );
        condition(
            "NamespaceFinalizersRemaining",
            true,
            "SomeFinalizersRemain",
            &message,
        )
    };
    [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        condition(
            "NamespaceDeletionContentFailure",
            false,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        condition(
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            &format!("Some resources are remaining: {}", resources.join(", ")),
        ),
        finalizers,
    ]
}
