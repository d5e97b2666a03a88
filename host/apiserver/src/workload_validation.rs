//! Validation of workloads and Jobs: the pods they make, how they select and replace them.

use std::collections::BTreeSet;

use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::builtin_validation::{check_count_or_percentage, validate_claim_spec};
use crate::checks::{check_not_negative, check_supported, is_empty_list};
use crate::metadata::{validate_label_selector, validate_labels};
use crate::names::{LABEL_RULE, is_dns_label};
use crate::pod_validation::validate_pod_spec;

/// Validates a workload: the pods it makes, and that it selects them.
pub fn validate_workload(kind: &str, object: &Value, is_new: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let selector = &spec["selector"];
    let is_unset =
        |value: &Value| value.is_null() || value.as_object().is_some_and(|fields| fields.is_empty());
    let template = &spec["template"];
    errors.extend(validate_label_selector(selector, "spec.selector"));
    let has_valid_selector = errors.is_empty();
    if selector.is_null() {
        if kind != "DaemonSet" {
            errors.push(FieldError::required("spec.selector", ""));
        }
    } else if is_unset(&selector["matchLabels"]) && is_empty_list(&selector["matchExpressions"]) {
        let rule = format!("empty selector is invalid for {}", kind.to_lowercase());
        errors.push(FieldError::invalid("spec.selector", selector, rule));
    }
    // Only a DaemonSet's template is validated beside an invalid selector.
    let validates_template = has_valid_selector || kind == "DaemonSet";
    let labels = &template["metadata"]["labels"];
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    if !validates_template {
        errors.push(FieldError::invalid(
            "spec.selector",
            selector,
            "invalid label selector",
        ));
    } else if has_valid_selector
        && (selector.is_null() || wanted.any(|(key, value)| labels.get(key) != Some(value)))
    {
        // A selector that is missing selects nothing.
        errors.push(unselected_labels(template));
    }
    errors.extend(check_not_negative(&spec["replicas"], "spec.replicas"));
    errors.extend(validate_strategy(kind, spec));
    if kind == "StatefulSet" && is_new {
        let name = spec["serviceName"].as_str().unwrap_or_default();
        if !name.is_empty() && !is_dns_label(name) {
            errors.push(FieldError::invalid("spec.serviceName", &name.into(), LABEL_RULE));
        }
    }
    let mut pod = template["spec"].clone();
    let claims = spec["volumeClaimTemplates"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if is_new {
        // They cannot change.
        for (index, claim) in claims.iter().enumerate() {
            let at = format!("spec.volumeClaimTemplates[{index}].spec");
            errors.extend(validate_claim_spec(&claim["spec"], &at));
        }
    }
    if validates_template {
        validate_labels(labels, "spec.template.labels", &mut errors);
        mount_claims(&mut pod, claims);
        errors.extend(validate_pod_spec(&pod, "spec.template.spec"));
    }
    if validates_template || kind == "StatefulSet" {
        let field = "spec.template.spec.restartPolicy";
        errors.extend(check_supported(&pod["restartPolicy"], field, ["Always"]));
    }
    errors
}

/// Validates how a workload replaces its pods.
fn validate_strategy(kind: &str, spec: &Value) -> Vec<FieldError> {
    let (field, types) = match kind {
        "Deployment" => ("strategy", ["Recreate", "RollingUpdate"]),
        "DaemonSet" => ("updateStrategy", ["RollingUpdate", "OnDelete"]),
        "StatefulSet" => ("updateStrategy", ["RollingUpdate", "OnDelete"]),
        _ => return Vec::new(),
    };
    let (strategy, at) = (&spec[field], format!("spec.{field}"));
    // One that is missing has a default.
    let is_known = strategy["type"].is_null() || types.iter().any(|known| strategy["type"] == *known);
    let mut errors = Vec::new();
    if !is_known && kind == "StatefulSet" {
        errors.push(FieldError::invalid(
            &at,
            strategy,
            "must be 'RollingUpdate' or 'OnDelete'",
        ));
    } else if !is_known {
        errors.push(FieldError::unsupported(&at, strategy, &types.map(Value::from)));
    }
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        let rule = "may not be specified when strategy `type` is 'Recreate'";
        errors.push(FieldError::forbidden(&format!("{at}.rollingUpdate"), rule));
    }
    for field in ["maxSurge", "maxUnavailable"] {
        let at = format!("{at}.rollingUpdate.{field}");
        let is_limited = field == "maxUnavailable";
        check_count_or_percentage(&strategy["rollingUpdate"][field], &at, is_limited, &mut errors);
    }
    errors
}

/// Adds the volumes of claims to a pod, which may mount what is claimed for it. They replace volumes of the same names.
fn mount_claims(pod: &mut Value, claims: &[Value]) {
    if claims.is_empty() {
        return;
    }
    // Several of one name are one.
    let names: BTreeSet<_> = claims
        .iter()
        .map(|claim| claim["metadata"]["name"].as_str())
        .collect();
    let mut volumes: Vec<Value> = names
        .into_iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    let others = pod["volumes"].as_array().into_iter().flatten();
    let others = others.filter(|volume| {
        claims
            .iter()
            .all(|claim| claim["metadata"]["name"] != volume["name"])
    });
    volumes.extend(others.cloned().collect::<Vec<_>>());
    pod["volumes"] = volumes.into();
}

/// The error of labels that the selector of their workload does not match.
fn unselected_labels(template: &Value) -> FieldError {
    let rule = "`selector` does not match template `labels`";
    FieldError::invalid(
        "spec.template.metadata.labels",
        &template["metadata"]["labels"],
        rule,
    )
}

/// Validates a Job. The selector of a new one is made by the server.
pub fn validate_job(object: &Value, is_new: bool) -> Vec<FieldError> {
    let pod = &object["spec"]["template"]["spec"];
    let mut errors = Vec::new();
    for field in [
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ] {
        errors.extend(check_not_negative(
            &object["spec"][field],
            &format!("spec.{field}"),
        ));
    }
    errors.extend(validate_pod_spec(pod, "spec.template.spec"));
    let field = "spec.template.spec.restartPolicy";
    match pod["restartPolicy"].as_str() {
        Some("OnFailure" | "Never") => {}
        None | Some("" | "Always") => {
            let rule = "valid values: \"OnFailure\", \"Never\"";
            errors.push(FieldError::required(field, rule));
        }
        Some(_) => {
            let supported = ["OnFailure", "Never"].map(Value::from);
            errors.push(FieldError::unsupported(field, &pod["restartPolicy"], &supported));
        }
    }
    let selector = &object["spec"]["selector"];
    let template = &object["spec"]["template"];
    if is_new {
        return errors;
    }
    if selector.is_null() {
        errors.push(FieldError::required("spec.selector", ""));
        errors.push(unselected_labels(template));
    } else if object["spec"]["manualSelector"] != true {
        errors.extend(validate_generated_labels(object));
    }
    errors
}

/// Validates the labels by which a Job selects its pods, which an update must keep.
fn validate_generated_labels(job: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let template = &job["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    for prefix in ["", "batch.kubernetes.io/"] {
        for (name, expected) in [
            ("controller-uid", &job["metadata"]["uid"]),
            ("job-name", &job["metadata"]["name"]),
        ] {
            let key = format!("{prefix}{name}");
            let field = format!("spec.template.metadata.labels[{key}]");
            let rule = format!("must be '{}'", expected.as_str().unwrap_or_default());
            match labels.get(&key) {
                None => errors.push(FieldError::required(&field, &rule)),
                Some(label) if label != expected => errors.push(FieldError::invalid(&field, label, rule)),
                Some(_) => {}
            }
        }
    }
    let wanted = job["spec"]["selector"]["matchLabels"].as_object();
    let mut wanted = wanted.into_iter().flatten();
    if wanted.any(|(key, value)| labels.get(key) != Some(value)) {
        errors.push(unselected_labels(template));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin_validation::tests::failing_fields;

    #[test]
    fn workload_must_select_the_pods_that_it_makes() {
        let pod = json!({"containers": [{"name": "a"}]});
        let object = json!({"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": {"labels": {"app": "b"}}, "spec": pod}}});
        assert_eq!(
            failing_fields(validate_workload("Deployment", &object, true)),
            [
                "spec.template.metadata.labels",
                "spec.template.spec.containers[0].image"
            ]
        );
        assert_eq!(
            failing_fields(validate_workload("Deployment", &json!({"spec": {}}), true)),
            [
                "spec.selector",
                "spec.template.metadata.labels",
                "spec.template.spec.containers"
            ]
        );
    }
}
