//! Defaults of built-in kinds that depend on other fields. Constants are in `openapi/defaults.yaml`.

use serde_json::{Map, Value, json};

use crate::image_reference::find_image_tag;
use crate::kind::ServedKind;
use crate::object::items_mut;
use crate::rbac::RBAC_GROUP;

/// Completes an object of a built-in kind, whose fields have their constant defaults.
pub fn apply_dependent_defaults(kind: &ServedKind, object: &mut Value) {
    match (kind.resource.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => {
            complete_pod_spec(&mut object["spec"]);
            complete_pod(&mut object["spec"]);
        }
        ("", "Service") => complete_service(&mut object["spec"]),
        ("apps", "Deployment") => {
            complete_template(object);
            complete_rolling_update(
                &mut object["spec"]["strategy"],
                &[("maxSurge", json!("25%")), ("maxUnavailable", json!("25%"))],
            );
        }
        ("apps", "DaemonSet") => {
            complete_template(object);
            complete_rolling_update(
                &mut object["spec"]["updateStrategy"],
                &[("maxSurge", json!(0)), ("maxUnavailable", json!(1))],
            );
        }
        ("apps", "StatefulSet") => complete_stateful_set(object),
        ("apps", "ReplicaSet") => complete_template(object),
        ("batch", "Job") => complete_job(object),
        ("networking.k8s.io", "NetworkPolicy") => complete_network_policy(&mut object["spec"]),
        (RBAC_GROUP, "RoleBinding" | "ClusterRoleBinding") => complete_binding(object),
        _ => {}
    }
}

/// Sets a field that is missing.
fn fill(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object {
        fields.entry(field).or_insert_with(|| value.into());
    }
}

fn complete_template(object: &mut Value) {
    complete_pod_spec(&mut object["spec"]["template"]["spec"]);
}

fn complete_pod_spec(spec: &mut Value) {
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items_mut(spec, field) {
            let policy = default_pull_policy(container["image"].as_str().unwrap_or_default());
            fill(container, "imagePullPolicy", policy);
        }
    }
    for volume in items_mut(spec, "volumes") {
        if volume
            .as_object()
            .is_some_and(|fields| fields.keys().all(|name| name == "name"))
        {
            volume["emptyDir"] = json!({});
        }
    }
    // The former name of the field is served beside it.
    let account = &spec["serviceAccountName"];
    let account = if account.is_string() {
        account
    } else {
        &spec["serviceAccount"]
    };
    if let Some(name) = account.as_str().map(str::to_owned) {
        spec["serviceAccountName"] = name.as_str().into();
        spec["serviceAccount"] = name.into();
    }
}

/// The pull policy of an image: the tag `latest` names another one tomorrow.
fn default_pull_policy(image: &str) -> &'static str {
    match find_image_tag(image).as_deref() {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

fn complete_pod(spec: &mut Value) {
    fill(spec, "enableServiceLinks", true);
    let uses_host = spec["hostNetwork"] == true;
    for field in ["containers", "initContainers"] {
        for container in items_mut(spec, field) {
            if let Some(limits) = container["resources"]["limits"].as_object().cloned() {
                fill(&mut container["resources"], "requests", Map::new());
                for (name, limit) in limits {
                    fill(&mut container["resources"]["requests"], &name, limit);
                }
            }
            for port in items_mut(container, "ports").filter(|_| uses_host) {
                let number = port["containerPort"].clone();
                fill(port, "hostPort", number);
            }
        }
    }
}

fn complete_service(spec: &mut Value) {
    for port in items_mut(spec, "ports") {
        let target = &port["targetPort"];
        if target.is_null() || *target == 0 || *target == "" {
            port["targetPort"] = port["port"].clone();
        }
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    if kind != "ExternalName" {
        fill(spec, "internalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    if spec["sessionAffinity"] == "ClientIP" {
        fill(
            spec,
            "sessionAffinityConfig",
            json!({"clientIP": {"timeoutSeconds": 10800}}),
        );
    }
}

fn complete_rolling_update(strategy: &mut Value, defaults: &[(&str, Value)]) {
    if strategy["type"] != "RollingUpdate" {
        return;
    }
    fill(strategy, "rollingUpdate", json!({}));
    for (field, value) in defaults {
        fill(&mut strategy["rollingUpdate"], field, value.clone());
    }
}

fn complete_stateful_set(object: &mut Value) {
    complete_template(object);
    let strategy = &mut object["spec"]["updateStrategy"];
    if strategy["type"].is_null() && strategy.is_object() {
        strategy["type"] = "RollingUpdate".into();
        fill(strategy, "rollingUpdate", json!({}));
    }
    if strategy["type"] == "RollingUpdate" && strategy["rollingUpdate"].is_object() {
        fill(&mut strategy["rollingUpdate"], "partition", 0);
    }
    for claim in items_mut(&mut object["spec"], "volumeClaimTemplates") {
        claim["apiVersion"] = "v1".into();
        claim["kind"] = "PersistentVolumeClaim".into();
    }
}

fn complete_job(object: &mut Value) {
    complete_template(object);
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let has_labels = object["metadata"]["labels"]
        .as_object()
        .is_some_and(|labels| !labels.is_empty());
    if labels.is_object() && !has_labels {
        object["metadata"]["labels"] = labels;
    }
    let spec = &mut object["spec"];
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        fill(spec, "completions", 1);
    }
    fill(spec, "parallelism", 1);
    let limit = if spec["backoffLimitPerIndex"].is_null() {
        6
    } else {
        i32::MAX
    };
    fill(spec, "backoffLimit", limit);
    let policy = if spec["podFailurePolicy"].is_null() {
        "TerminatingOrFailed"
    } else {
        "Failed"
    };
    fill(spec, "podReplacementPolicy", policy);
}

fn complete_network_policy(spec: &mut Value) {
    let mut types = vec!["Ingress"];
    if spec["egress"].as_array().is_some_and(|rules| !rules.is_empty()) {
        types.push("Egress");
    }
    fill(spec, "policyTypes", types);
}

fn complete_binding(object: &mut Value) {
    if object["roleRef"].is_null() {
        object["roleRef"] = json!({});
    }
    fill(&mut object["roleRef"], "apiGroup", RBAC_GROUP);
    for subject in items_mut(object, "subjects") {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) {
            fill(subject, "apiGroup", RBAC_GROUP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_gets_target_ports_and_policies_of_its_type() {
        let mut spec =
            json!({"type": "LoadBalancer", "ports": [{"port": 80}, {"port": 81, "targetPort": "web"}]});
        complete_service(&mut spec);
        assert_eq!(
            spec["ports"],
            json!([{"port": 80, "targetPort": 80}, {"port": 81, "targetPort": "web"}])
        );
        assert_eq!(spec["externalTrafficPolicy"], "Cluster");
        assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    }
}
