//! Conditions in the status of objects that controllers write.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::checks::{check_supported, text};
use crate::names::{QUALIFIED_NAME_RULE, is_qualified_name};
use crate::object::current_time;
use crate::storage::{GroupResource, StoredObject};

/// Rule for the reason of a condition.
const REASON_RULE: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

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

/// Returns what is wrong with conditions of the type that all kinds share (`metav1.Condition`).
pub fn validate_conditions(conditions: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut types = Vec::new();
    for (index, condition) in conditions.as_array().into_iter().flatten().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        let (kind, reason) = (text(condition, "type"), text(condition, "reason"));
        if types.contains(&kind) {
            errors.push(FieldError::duplicate(&at("type"), &kind.into()));
        }
        types.push(kind);
        if !is_qualified_name(kind) {
            errors.push(FieldError::invalid(
                &at("type"),
                &kind.into(),
                QUALIFIED_NAME_RULE,
            ));
        }
        let status = text(condition, "status");
        errors.extend(check_supported(
            &status.into(),
            &at("status"),
            ["False", "True", "Unknown"],
        ));
        if condition["lastTransitionTime"].is_null() {
            errors.push(FieldError::required(&at("lastTransitionTime"), ""));
        }
        if reason.is_empty() {
            errors.push(FieldError::required(&at("reason"), ""));
        } else if !is_reason(reason) {
            errors.push(FieldError::invalid(&at("reason"), &reason.into(), REASON_RULE));
        }
    }
    errors
}

/// Returns true for the reason of a condition.
fn is_reason(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || matches!(c, ',' | ':'))
}

/// Returns the conditions of a namespace in deletion with these contents.
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
    let contents = if resources.is_empty() {
        condition(
            "NamespaceContentRemaining",
            false,
            "ContentRemoved",
            "All content successfully removed",
        )
    } else {
        condition(
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            &format!("Some resources are remaining: {}", resources.join(", ")),
        )
    };
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
        contents,
        finalizers,
    ]
}
