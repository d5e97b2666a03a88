//! Changes of objects of built-in kinds that the API server refuses, whatever the new object looks like by itself.

use std::cmp::Ordering;

use ostler_schema::FieldError;
use serde_json::Value;

use crate::conditions::validate_conditions;
use crate::kind::ServedKind;
use crate::quantity::compare_quantities;
use crate::service;

/// Fields of a StatefulSet's spec that may change.
const MUTABLE_STATEFUL_SET_FIELDS: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];
/// Fields of a Job's spec that never change. Of a suspended Job, those of the template that decide where its pods run do.
const IMMUTABLE_JOB_FIELDS: [&str; 4] = ["completions", "selector", "completionMode", "podFailurePolicy"];
/// Fields of a pod's spec that may change.
const MUTABLE_POD_FIELDS: [&str; 3] = [
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
];

/// Validates the change of an object through its kind (`subresource` is empty) or through a subresource.
pub fn validate_change(kind: &ServedKind, subresource: &str, object: &Value, old: &Value) -> Vec<FieldError> {
    let (new, old_spec) = (&object["spec"], &old["spec"]);
    match (kind.resource.group.as_str(), kind.kind.as_str()) {
        ("apps", "StatefulSet") => validate_stateful_set(new, old_spec),
        ("apps", _) => validate_immutable(new, old_spec, &["selector"]),
        ("batch", "Job") => validate_job(new, old_spec),
        ("", "Pod") if subresource.is_empty() => validate_pod(new, old_spec),
        ("", "Service") if subresource.is_empty() => service::validate_change(new, old_spec),
        ("policy", "PodDisruptionBudget") if subresource == "status" => {
            validate_conditions(&object["status"]["conditions"], "status.conditions")
        }
        ("discovery.k8s.io", "EndpointSlice") => validate_address_type(object, old),
        ("", "PersistentVolumeClaim") => validate_claim(object, old),
        _ => Vec::new(),
    }
}

fn validate_immutable(new: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    fields
        .iter()
        .filter(|field| new[**field] != old[**field])
        .map(|field| FieldError::invalid(&format!("spec.{field}"), &new[*field], "field is immutable"))
        .collect()
}

fn validate_address_type(slice: &Value, old: &Value) -> Vec<FieldError> {
    let new = &slice["addressType"];
    let error = || FieldError::invalid("addressType", new, "field is immutable");
    (*new != old["addressType"]).then(error).into_iter().collect()
}

/// Forbids another spec, but for what `fixed` leaves out of it.
fn forbid_other_spec(
    new: &Value,
    old: &Value,
    fixed: impl Fn(&Value) -> Value,
    rule: &str,
) -> Vec<FieldError> {
    if fixed(new) == fixed(old) {
        Vec::new()
    } else {
        vec![FieldError::forbidden("spec", rule)]
    }
}

/// A copy of an object without these fields.
fn without_fields(object: &Value, fields: &[&str]) -> Value {
    let mut copy = object.clone();
    if let Some(members) = copy.as_object_mut() {
        members.retain(|name, _| !fields.contains(&name.as_str()));
    }
    copy
}

fn validate_stateful_set(new: &Value, old: &Value) -> Vec<FieldError> {
    let fixed = |spec: &Value| without_fields(spec, &MUTABLE_STATEFUL_SET_FIELDS);
    let rule = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    forbid_other_spec(new, old, fixed, rule)
}

fn validate_job(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate_immutable(new, old, &IMMUTABLE_JOB_FIELDS);
    if new["completionMode"] == "Indexed" && new["completions"] == new["parallelism"] {
        // An indexed Job is scaled by both.
        errors.retain(|error| error.field != "spec.completions");
    }
    let may_move = old["suspend"] == true;
    let fixed = |spec: &Value| {
        let mut template = spec["template"].clone();
        if may_move {
            let directives = ["nodeSelector", "affinity", "tolerations", "schedulingGates"];
            template["spec"] = without_fields(&template["spec"], &directives);
            template["metadata"] = Value::Null;
        }
        template
    };
    if fixed(new) != fixed(old) {
        let (field, shown) = if may_move {
            ("spec.template.spec", &new["template"]["spec"])
        } else {
            ("spec.template", &new["template"])
        };
        errors.push(FieldError::invalid(field, shown, "field is immutable"));
    }
    errors
}

fn validate_pod(new: &Value, old: &Value) -> Vec<FieldError> {
    let lists = ["containers", "initContainers"];
    let count = |spec: &Value, list: &str| spec[list].as_array().map_or(0, Vec::len);
    if let Some(list) = lists.iter().find(|list| count(new, list) != count(old, list)) {
        let rule = "pod updates may not add or remove containers";
        return vec![FieldError::forbidden(&format!("spec.{list}"), rule)];
    }
    let fixed = |spec: &Value| {
        let mut spec = without_fields(spec, &MUTABLE_POD_FIELDS);
        for list in lists {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                *container = without_fields(container, &["image"]);
            }
        }
        spec
    };
    let mut errors = validate_tolerations(new, old);
    let rule = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    errors.extend(forbid_other_spec(new, old, fixed, rule));
    errors
}

/// Tolerations may be added, and change the time for which they hold.
fn validate_tolerations(new: &Value, old: &Value) -> Vec<FieldError> {
    let list = |spec: &Value| {
        let tolerations = spec["tolerations"].as_array().into_iter().flatten();
        let without_time = |toleration| without_fields(toleration, &["tolerationSeconds"]);
        tolerations.map(without_time).collect::<Vec<_>>()
    };
    let kept = list(new);
    let gone = list(old)
        .into_iter()
        .filter(|toleration| !kept.contains(toleration));
    let rule = "existing toleration can not be modified except its tolerationSeconds";
    gone.map(|_| FieldError::forbidden("spec.tolerations", rule))
        .collect()
}

fn validate_claim(new: &Value, old: &Value) -> Vec<FieldError> {
    let is_bound = old["status"]["phase"] == "Bound";
    let has_volume = old["spec"]["volumeName"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    let fixed = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        if is_bound {
            spec["resources"]["requests"] = Value::Null;
            spec = without_fields(&spec, &["volumeAttributesClassName"]);
        }
        if !has_volume {
            spec = without_fields(&spec, &["volumeName"]);
        }
        spec
    };
    let rule = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    let mut errors = forbid_other_spec(new, old, fixed, rule);
    let size = |claim: &Value| {
        claim["spec"]["resources"]["requests"]["storage"]
            .as_str()
            .unwrap_or("0")
            .to_owned()
    };
    let capacity = old["status"]["capacity"]["storage"].as_str().unwrap_or("0");
    let is_less = |other: &str| compare_quantities(&size(new), other);
    // A claim that failed to grow may shrink, but not to what it has.
    if is_less(&size(old)).is_some_and(Ordering::is_lt) && is_less(capacity).is_some_and(Ordering::is_le) {
        let field = "spec.resources.requests.storage";
        errors.push(FieldError::forbidden(
            field,
            "field can not be less than status.capacity",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin_validation::tests::failing_fields;

    #[test]
    fn job_that_is_not_suspended_keeps_its_template() {
        let old =
            json!({"completions": 1, "template": {"spec": {"nodeSelector": {}, "restartPolicy": "Never"}}});
        let mut new = old.clone();
        new["template"]["spec"]["nodeSelector"]["zone"] = "a".into();
        assert_eq!(failing_fields(validate_job(&new, &old)), ["spec.template"]);
        let mut suspended = old.clone();
        suspended["suspend"] = true.into();
        assert_eq!(failing_fields(validate_job(&new, &suspended)), [""; 0]);
        new["completions"] = 2.into();
        new["template"]["spec"]["restartPolicy"] = "OnFailure".into();
        assert_eq!(
            failing_fields(validate_job(&new, &suspended)),
            ["spec.completions", "spec.template.spec"]
        );
    }

    #[test]
    fn pod_changes_its_images_only() {
        let old = json!({"nodeName": "n", "containers": [{"name": "a", "image": "x:1"}]});
        let mut new = old.clone();
        new["containers"][0]["image"] = "x:2".into();
        assert_eq!(failing_fields(validate_pod(&new, &old)), [""; 0]);
        new["containers"][0]["command"] = json!(["sh"]);
        assert_eq!(failing_fields(validate_pod(&new, &old)), ["spec"]);
        new["containers"] = json!([]);
        assert_eq!(failing_fields(validate_pod(&new, &old)), ["spec.containers"]);
    }
}
