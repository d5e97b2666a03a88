//! Validation of objects of built-in kinds: the rules that authors break most often. The real server has more of them.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_schema::FieldError;
use serde_json::{Value, json};

use crate::builtin::EXTENSIONS_GROUP;
use crate::checks::check_not_negative;
use crate::crd_validation;
use crate::kind::ServedKind;
use crate::metadata::{validate_label_selector, validate_labels};
use crate::names::{SUBDOMAIN_RULE, is_dns_subdomain};
use crate::network_validation;
use crate::pod_validation::{CONFIG_KEY_RULE, is_config_key, validate_pod_spec};
use crate::quantity::compare_quantities;
use crate::rbac::RBAC_GROUP;

/// Maximum bytes of the data of a ConfigMap or a Secret.
const MAX_DATA_SIZE: usize = 1 << 20;

/// Validates an object of a built-in kind.
pub fn validate_object(kind: &ServedKind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = validate_finalizers(kind, object);
    errors.extend(match (kind.resource.group.as_str(), kind.kind.as_str()) {
        (RBAC_GROUP, "Role" | "ClusterRole") => validate_rules(object),
        (RBAC_GROUP, "RoleBinding" | "ClusterRoleBinding") => validate_role_reference(kind, object, old),
        ("", "Secret" | "ConfigMap") => validate_data(kind, object, old),
        ("", "Pod") => validate_pod_spec(&object["spec"], "spec"),
        ("", "Service") => network_validation::validate_service(object),
        ("", "PersistentVolumeClaim") => validate_claim(object),
        ("apps", _) => validate_workload(&kind.kind, object, old.is_none()),
        ("batch", "Job") => validate_job(object, old.is_none()),
        ("coordination.k8s.io", "Lease") => validate_lease(&object["spec"]),
        ("discovery.k8s.io", "EndpointSlice") => network_validation::validate_endpoints(object),
        ("networking.k8s.io", "NetworkPolicy") => network_validation::validate_network_policy(object),
        ("networking.k8s.io", "Ingress") => network_validation::validate_ingress(object),
        ("policy", "PodDisruptionBudget") => validate_disruption_budget(object),
        (EXTENSIONS_GROUP, "CustomResourceDefinition") => crd_validation::validate_definition(object, old),
        _ => Vec::new(),
    });
    errors
}

/// Finalizers of built-in kinds have a domain, or are those of the API server.
fn validate_finalizers(kind: &ServedKind, object: &Value) -> Vec<FieldError> {
    if matches!(
        kind.resource.group.as_str(),
        EXTENSIONS_GROUP | "policy" | "coordination.k8s.io"
    ) {
        return Vec::new();
    }
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    let is_known =
        |name: &str| name.contains('/') || matches!(name, "orphan" | "foregroundDeletion" | "kubernetes");
    let unknown = finalizers
        .enumerate()
        .filter(|(_, name)| !name.as_str().is_some_and(is_known));
    unknown
        .map(|(index, name)| {
            let rule = "name is neither a standard finalizer name nor is it fully qualified";
            FieldError::invalid(&format!("metadata.finalizers[{index}]"), name, rule)
        })
        .collect()
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_none_or(str::is_empty)
}

fn validate_rules(role: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, rule) in role["rules"].as_array().into_iter().flatten().enumerate() {
        let mut require = |field: &str, rule: &str| {
            errors.push(FieldError::required(&format!("rules[{index}].{field}"), rule));
        };
        if is_empty(&rule["verbs"]) {
            require("verbs", "verbs must contain at least one value");
        }
        if !is_empty(&rule["nonResourceURLs"]) {
            continue;
        }
        if is_empty(&rule["apiGroups"]) {
            require("apiGroups", "resource rules must supply at least one api group");
        }
        if is_empty(&rule["resources"]) {
            require("resources", "resource rules must supply at least one resource");
        }
    }
    errors
}

fn validate_role_reference(kind: &ServedKind, binding: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let role = &binding["roleRef"];
    if role["apiGroup"] != RBAC_GROUP {
        let supported = [RBAC_GROUP.into()];
        errors.push(FieldError::unsupported(
            "roleRef.apiGroup",
            &role["apiGroup"],
            &supported,
        ));
    }
    let kinds = if kind.namespaced {
        &["Role", "ClusterRole"][..]
    } else {
        &["ClusterRole"][..]
    };
    if !kinds.iter().any(|kind| role["kind"] == *kind) {
        let supported: Vec<Value> = kinds.iter().copied().map(Value::from).collect();
        errors.push(FieldError::unsupported("roleRef.kind", &role["kind"], &supported));
    }
    if is_blank(&role["name"]) {
        errors.push(FieldError::required("roleRef.name", ""));
    }
    if old.is_some_and(|old| old["roleRef"] != *role) {
        errors.push(FieldError::invalid("roleRef", role, "cannot change roleRef"));
    }
    for (index, subject) in binding["subjects"].as_array().into_iter().flatten().enumerate() {
        check_subject(
            subject,
            kind.namespaced,
            &format!("subjects[{index}]"),
            &mut errors,
        );
    }
    errors
}

fn check_subject(subject: &Value, is_namespaced: bool, at: &str, errors: &mut Vec<FieldError>) {
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        errors.push(FieldError::required(&format!("{at}.name"), ""));
    }
    let group = match text("kind") {
        "ServiceAccount" => {
            if !text("name").is_empty() && !is_dns_subdomain(text("name")) {
                let field = format!("{at}.name");
                errors.push(FieldError::invalid(&field, &subject["name"], SUBDOMAIN_RULE));
            }
            if !is_namespaced && text("namespace").is_empty() {
                errors.push(FieldError::required(&format!("{at}.namespace"), ""));
            }
            ""
        }
        "User" | "Group" => RBAC_GROUP,
        kind => {
            let supported = ["ServiceAccount", "User", "Group"].map(Value::from);
            let field = format!("{at}.kind");
            return errors.push(FieldError::unsupported(&field, &kind.into(), &supported));
        }
    };
    if text("apiGroup") != group {
        let field = format!("{at}.apiGroup");
        errors.push(FieldError::unsupported(
            &field,
            &text("apiGroup").into(),
            &[group.into()],
        ));
    }
}

fn validate_disruption_budget(object: &Value) -> Vec<FieldError> {
    let spec = &object["spec"];
    let mut errors = Vec::new();
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        let rule = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", spec, rule));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        check_count_or_percentage(&spec[field], &format!("spec.{field}"), true, &mut errors);
    }
    errors.extend(validate_label_selector(&spec["selector"], "spec.selector"));
    errors
}

/// Checks a number that is not negative, or a percentage, perhaps of at most 100.
fn check_count_or_percentage(value: &Value, field: &str, is_limited: bool, errors: &mut Vec<FieldError>) {
    let rule = match value {
        Value::String(text) => {
            let percentage = text
                .strip_suffix('%')
                .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
            match percentage.map(str::parse::<u64>) {
                Some(Ok(percentage)) if percentage <= 100 || !is_limited => return,
                Some(Ok(_)) => "must not be greater than 100%",
                _ => {
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
                }
            }
        }
        value => return errors.extend(check_not_negative(value, field)),
    };
    errors.push(FieldError::invalid(field, value, rule));
}

/// Returns the keys that the data of a Secret of a type must have.
fn required_keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    }
}

fn validate_data(kind: &ServedKind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let is_secret = kind.kind == "Secret";
    let mut size = 0;
    for field in ["data", "binaryData"] {
        for (name, value) in object[field].as_object().into_iter().flatten() {
            let at = format!("{field}[{name}]");
            if !is_config_key(name) {
                errors.push(FieldError::invalid(&at, &name.as_str().into(), CONFIG_KEY_RULE));
            }
            let text = value.as_str().unwrap_or_default();
            let is_encoded = is_secret || field == "binaryData";
            size += match STANDARD.decode(text) {
                Ok(bytes) if is_encoded => bytes.len(),
                _ => text.len(),
            };
        }
    }
    if size > MAX_DATA_SIZE {
        let field = if is_secret { "data" } else { "[]" };
        errors.push(FieldError::too_long(field, MAX_DATA_SIZE as i64));
    }
    if is_secret {
        for key in required_keys(object["type"].as_str().unwrap_or_default()) {
            let at = format!("data[{key}]");
            match object["data"]
                .get(key)
                .map(|value| STANDARD.decode(value.as_str().unwrap_or_default()))
            {
                None => errors.push(FieldError::required(&at, "")),
                Some(Ok(bytes)) if *key == "ssh-privatekey" && bytes.is_empty() => {
                    errors.push(FieldError::required(&at, ""));
                }
                // The configuration of registries is read by every node.
                Some(Ok(bytes)) if key.starts_with(".docker") => {
                    if let Err(error) = serde_json::from_slice::<Value>(&bytes) {
                        let hidden = "<secret contents redacted>".into();
                        errors.push(FieldError::invalid(&at, &hidden, error));
                    }
                }
                Some(_) => {}
            }
        }
        let keys = ["username", "password"];
        if object["type"] == "kubernetes.io/basic-auth"
            && keys.iter().all(|key| object["data"].get(key).is_none())
        {
            errors.extend(keys.map(|key| FieldError::required(&format!("data[{key}]"), "")));
        }
        if old.is_some_and(|old| old["type"] != object["type"]) {
            errors.push(FieldError::invalid("type", &object["type"], "field is immutable"));
        }
    }
    for field in ["immutable", "data", "binaryData"] {
        if old.is_some_and(|old| old["immutable"] == true && old[field] != object[field]) {
            let rule = "field is immutable when `immutable` is set";
            errors.push(FieldError::forbidden(field, rule));
        }
    }
    errors
}

/// Validates a workload: the pods it makes, and that it selects them.
fn validate_workload(kind: &str, object: &Value, is_new: bool) -> Vec<FieldError> {
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
    } else if is_unset(&selector["matchLabels"]) && is_empty(&selector["matchExpressions"]) {
        let rule = format!("empty selector is invalid for {}", kind.to_lowercase());
        errors.push(FieldError::invalid("spec.selector", selector, rule));
    }
    let labels = &template["metadata"]["labels"];
    validate_labels(labels, "spec.template.labels", &mut errors);
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    if !has_valid_selector {
        // That of a DaemonSet is looked at by the rules of selectors only.
        let is_named = kind != "DaemonSet";
        let error = || FieldError::invalid("spec.selector", selector, "invalid label selector");
        errors.extend(is_named.then(error));
    } else if selector.is_null() || wanted.any(|(key, value)| labels.get(key) != Some(value)) {
        // A selector that is missing selects nothing.
        errors.push(unselected_labels(template));
    }
    errors.extend(check_not_negative(&spec["replicas"], "spec.replicas"));
    for field in ["maxSurge", "maxUnavailable"] {
        let at = format!("spec.strategy.rollingUpdate.{field}");
        check_count_or_percentage(&spec["strategy"]["rollingUpdate"][field], &at, false, &mut errors);
    }
    let strategy = &spec["strategy"];
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        let rule = "may not be specified when strategy `type` is 'Recreate'";
        errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", rule));
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
    mount_claims(&mut pod, claims);
    errors.extend(validate_pod_spec(&pod, "spec.template.spec"));
    let policy = &pod["restartPolicy"];
    if policy.as_str().is_some_and(|policy| policy != "Always") {
        let field = "spec.template.spec.restartPolicy";
        errors.push(FieldError::unsupported(field, policy, &["Always".into()]));
    }
    errors
}

/// Adds the volumes of claims to a pod, which may mount what is claimed for it. They replace volumes of the same names.
fn mount_claims(pod: &mut Value, claims: &[Value]) {
    if claims.is_empty() {
        return;
    }
    let mut volumes: Vec<Value> = claims
        .iter()
        .map(|claim| &claim["metadata"]["name"])
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

fn validate_claim(object: &Value) -> Vec<FieldError> {
    validate_claim_spec(&object["spec"], "spec")
}

fn validate_claim_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let modes = format!("{path}.accessModes");
    if is_empty(&spec["accessModes"]) {
        let rule = "at least 1 access mode is required";
        errors.push(FieldError::required(&modes, rule));
    }
    let supported = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ]
    .map(Value::from);
    for mode in spec["accessModes"].as_array().into_iter().flatten() {
        if !supported.contains(mode) {
            errors.push(FieldError::unsupported(&modes, mode, &supported));
        }
    }
    let storage = &spec["resources"]["requests"]["storage"];
    let field = format!("{path}.resources[storage]");
    if storage.is_null() {
        errors.push(FieldError::required(&field, ""));
    } else if compare_quantities(storage.as_str().unwrap_or_default(), "0").is_none_or(Ordering::is_le) {
        errors.push(FieldError::invalid(&field, storage, "must be greater than zero"));
    }
    errors
}

fn validate_lease(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let seconds = &spec["leaseDurationSeconds"];
    if seconds.as_i64().is_some_and(|seconds| seconds <= 0) {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            seconds,
            "must be greater than 0",
        ));
    }
    errors.extend(check_not_negative(
        &spec["leaseTransitions"],
        "spec.leaseTransitions",
    ));
    errors
}

/// Validates a Job. The selector of a new one is made by the server.
fn validate_job(object: &Value, is_new: bool) -> Vec<FieldError> {
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

/// The error of labels that the selector of their workload does not match.
fn unselected_labels(template: &Value) -> FieldError {
    let rule = "`selector` does not match template `labels`";
    FieldError::invalid(
        "spec.template.metadata.labels",
        &template["metadata"]["labels"],
        rule,
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn failing_fields(errors: Vec<FieldError>) -> Vec<String> {
        errors.into_iter().map(|error| error.field).collect()
    }

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

    #[test]
    fn rule_without_verbs_and_resources_is_refused() {
        let role = json!({"rules": [{"verbs": ["get"]}, {"verbs": ["get"], "nonResourceURLs": ["/a"]}, {}]});
        assert_eq!(
            failing_fields(validate_rules(&role)),
            [
                "rules[0].apiGroups",
                "rules[0].resources",
                "rules[2].verbs",
                "rules[2].apiGroups",
                "rules[2].resources"
            ]
        );
    }
}
