//! Validation of objects of built-in kinds: the rules that authors break most often. The real server has more of them.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_schema::FieldError;
use serde_json::Value;

use crate::builtin::EXTENSIONS_GROUP;
use crate::crd_validation;
use crate::kind::ServedKind;
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
        ("", "Service") => validate_service(object),
        ("", "PersistentVolumeClaim") => validate_claim(object),
        ("apps", _) => validate_workload(object),
        ("batch", "Job") => validate_job(object),
        ("discovery.k8s.io", "EndpointSlice") => validate_endpoints(object),
        ("networking.k8s.io", "NetworkPolicy") => validate_network_policy(object),
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
    errors
}

fn is_config_key(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(is_valid) && !matches!(name, "." | "..")
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
                let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                errors.push(FieldError::invalid(&at, &name.as_str().into(), rule));
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
        let field = if is_secret { "data" } else { "" };
        errors.push(FieldError::too_long(field, MAX_DATA_SIZE as i64));
    }
    if is_secret {
        for key in required_keys(object["type"].as_str().unwrap_or_default()) {
            if object["data"].get(key).is_none() {
                errors.push(FieldError::required(&format!("data[{key}]"), ""));
            }
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

fn validate_pod_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_empty(&spec["containers"]) {
        errors.push(FieldError::required(&format!("{path}.containers"), ""));
    }
    for field in ["containers", "initContainers"] {
        for (index, container) in spec[field].as_array().into_iter().flatten().enumerate() {
            for required in ["name", "image"] {
                if is_blank(&container[required]) {
                    let field = format!("{path}.{field}[{index}].{required}");
                    errors.push(FieldError::required(&field, ""));
                }
            }
        }
    }
    for (index, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        if is_blank(&volume["name"]) {
            errors.push(FieldError::required(&format!("{path}.volumes[{index}].name"), ""));
        }
    }
    errors
}

/// Validates a workload: the pods it makes, and that it selects them.
fn validate_workload(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let selector = &spec["selector"];
    let is_unset =
        |value: &Value| value.is_null() || value.as_object().is_some_and(|fields| fields.is_empty());
    let template = &spec["template"];
    if selector.is_null() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if is_unset(&selector["matchLabels"]) && is_empty(&selector["matchExpressions"]) {
        let rule = "empty selector is invalid for deployment";
        errors.push(FieldError::invalid("spec.selector", selector, rule));
    }
    let labels = &template["metadata"]["labels"];
    let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
    // A selector that is missing selects nothing.
    if selector.is_null() || wanted.any(|(key, value)| labels.get(key) != Some(value)) {
        let rule = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, rule));
    }
    if spec["replicas"].as_i64().is_some_and(|count| count < 0) {
        let rule = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", &spec["replicas"], rule));
    }
    let strategy = &spec["strategy"];
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        let rule = "may not be specified when strategy `type` is 'Recreate'";
        errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", rule));
    }
    errors.extend(validate_pod_spec(&template["spec"], "spec.template.spec"));
    errors
}

fn validate_service(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() && spec["clusterIP"] != "None" && spec["type"] != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut names = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = &port["name"];
        if is_blank(name) && ports.len() > 1 {
            errors.push(FieldError::required(&format!("{field}.name"), ""));
        } else if !is_blank(name) && names.contains(&name) {
            errors.push(FieldError::duplicate(&format!("{field}.name"), name));
        }
        names.push(name);
        let number = port["port"].as_i64().unwrap_or_default();
        if !(1..=i64::from(u16::MAX)).contains(&number) {
            let rule = "must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(
                &format!("{field}.port"),
                &number.into(),
                rule,
            ));
        }
    }
    if spec["type"] == "ExternalName" && is_blank(&spec["externalName"]) {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    errors
}

fn validate_claim(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    if is_empty(&spec["accessModes"]) {
        let rule = "at least 1 access mode is required";
        errors.push(FieldError::required("spec.accessModes", rule));
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
            errors.push(FieldError::unsupported("spec.accessModes", mode, &supported));
        }
    }
    if spec["resources"]["requests"]["storage"].is_null() {
        errors.push(FieldError::required("spec.resources[storage]", ""));
    }
    errors
}

fn validate_endpoints(slice: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kinds = ["FQDN", "IPv4", "IPv6"].map(Value::from);
    let kind = &slice["addressType"];
    if is_blank(kind) {
        errors.push(FieldError::required("addressType", ""));
    } else if !kinds.contains(kind) {
        errors.push(FieldError::unsupported("addressType", kind, &kinds));
    }
    for (index, endpoint) in slice["endpoints"].as_array().into_iter().flatten().enumerate() {
        let field = format!("endpoints[{index}].addresses");
        if is_empty(&endpoint["addresses"]) {
            errors.push(FieldError::required(&field, "must contain at least 1 address"));
        }
        for (index, address) in endpoint["addresses"].as_array().into_iter().flatten().enumerate() {
            let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
            if *kind != "FQDN" && !address.as_str().is_some_and(is_address) {
                let rule = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.push(FieldError::invalid(&format!("{field}[{index}]"), address, rule));
            }
        }
    }
    errors
}

fn validate_network_policy(policy: &Value) -> Vec<FieldError> {
    let supported = ["Egress", "Ingress"].map(Value::from);
    let given = policy["spec"]["policyTypes"].as_array().into_iter().flatten();
    let unknown = given.enumerate().filter(|(_, kind)| !supported.contains(kind));
    unknown
        .map(|(index, kind)| FieldError::unsupported(&format!("spec.policyTypes[{index}]"), kind, &supported))
        .collect()
}

fn validate_job(object: &Value) -> Vec<FieldError> {
    let pod = &object["spec"]["template"]["spec"];
    let mut errors = validate_pod_spec(pod, "spec.template.spec");
    if !matches!(pod["restartPolicy"].as_str(), Some("OnFailure" | "Never")) {
        let rule = "valid values: \"OnFailure\", \"Never\"";
        errors.push(FieldError::required("spec.template.spec.restartPolicy", rule));
    }
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
    fn workload_must_select_the_pods_that_it_makes() {
        let pod = json!({"containers": [{"name": "a"}]});
        let object = json!({"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": {"labels": {"app": "b"}}, "spec": pod}}});
        assert_eq!(
            failing_fields(validate_workload(&object)),
            [
                "spec.template.metadata.labels",
                "spec.template.spec.containers[0].image"
            ]
        );
        assert_eq!(
            failing_fields(validate_workload(&json!({"spec": {}}))),
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
