//! Validation of objects of built-in kinds: the rules that authors break most often. The real server has more of them.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_schema::FieldError;
use serde_json::{Map, Value};

use crate::builtin::EXTENSIONS_GROUP;
use crate::checks::{check_not_negative, is_empty_list};
use crate::crd_validation;
use crate::kind::ServedKind;
use crate::metadata::validate_label_selector;
use crate::names::{PATH_SEGMENT_RULE, SUBDOMAIN_RULE, is_dns_subdomain, is_path_segment};
use crate::network_validation;
use crate::pod_validation::{CONFIG_KEY_RULE, is_config_key, validate_pod_spec};
use crate::quantity::compare_quantities;
use crate::rbac::RBAC_GROUP;
use crate::workload_validation;

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
        ("apps", _) => workload_validation::validate_workload(&kind.kind, object, old.is_none()),
        ("batch", "Job") => workload_validation::validate_job(object, old.is_none()),
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

fn is_blank(value: &Value) -> bool {
    value.as_str().is_none_or(str::is_empty)
}

fn validate_rules(role: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, rule) in role["rules"].as_array().into_iter().flatten().enumerate() {
        let mut require = |field: &str, rule: &str| {
            errors.push(FieldError::required(&format!("rules[{index}].{field}"), rule));
        };
        if is_empty_list(&rule["verbs"]) {
            require("verbs", "verbs must contain at least one value");
        }
        if !is_empty_list(&rule["nonResourceURLs"]) {
            continue;
        }
        if is_empty_list(&rule["apiGroups"]) {
            require("apiGroups", "resource rules must supply at least one api group");
        }
        if is_empty_list(&rule["resources"]) {
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
    } else if !role["name"].as_str().is_some_and(is_path_segment) {
        errors.push(FieldError::invalid(
            "roleRef.name",
            &role["name"],
            PATH_SEGMENT_RULE,
        ));
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
pub fn check_count_or_percentage(value: &Value, field: &str, is_limited: bool, errors: &mut Vec<FieldError>) {
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
                    if let Err(error) = serde_json::from_slice::<Option<Map<String, Value>>>(&bytes) {
                        let hidden = "<secret contents redacted>".into();
                        // The text of an error of types shows the content.
                        let why = if error.is_data() {
                            "not a JSON object".to_owned()
                        } else {
                            error.to_string()
                        };
                        errors.push(FieldError::invalid(&at, &hidden, why));
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

fn validate_claim(object: &Value) -> Vec<FieldError> {
    validate_claim_spec(&object["spec"], "spec")
}

/// Validates what a claim asks for.
pub fn validate_claim_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let modes = format!("{path}.accessModes");
    if is_empty_list(&spec["accessModes"]) {
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

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn failing_fields(errors: Vec<FieldError>) -> Vec<String> {
        errors.into_iter().map(|error| error.field).collect()
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
