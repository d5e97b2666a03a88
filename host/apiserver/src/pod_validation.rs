//! Validation of the spec of pods, which templates of workloads have, too.

use std::collections::HashSet;

use ostler_schema::FieldError;
use serde_json::Value;

use crate::checks::{check_not_negative, check_port, check_port_number, check_supported, is_port_name, text};
use crate::metadata::{check_requirement, validate_labels};
use crate::names::{
    LABEL_RULE, LABEL_VALUE_RULE, QUALIFIED_NAME_RULE, SUBDOMAIN_RULE, is_dns_label, is_dns_subdomain,
    is_label_value, is_qualified_name,
};
use crate::quantity::compare_quantities;

/// Rule for the key of a ConfigMap or Secret.
pub const CONFIG_KEY_RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
/// Sources of the value of an environment variable.
const VALUE_SOURCES: [&str; 5] = [
    "fieldRef",
    "resourceFieldRef",
    "configMapKeyRef",
    "secretKeyRef",
    "fileKeyRef",
];
/// Sources of a volume, in the order in which more than one are refused.
const VOLUME_SOURCES: [&str; 29] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "flocker",
    "downwardAPI",
    "fc",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
    "projected",
    "csi",
    "ephemeral",
    "image",
];
/// Resources of Kubernetes that containers have, beside huge pages.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources of Kubernetes that only a quota limits.
const QUOTA_RESOURCES: [&str; 17] = [
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "requests.storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "storage",
    "pods",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
];
/// Handlers of a probe.
const PROBE_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
/// Effects of a taint.
const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Returns true for the key of a ConfigMap or Secret.
pub fn is_config_key(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 253 && name.chars().all(is_valid) && !matches!(name, "." | "..")
}

/// Validates the spec of a pod at a path.
pub fn validate_pod_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut check = PodCheck { errors: Vec::new() };
    check.check_spec(spec, path);
    check.errors
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The errors found so far.
struct PodCheck {
    errors: Vec<FieldError>,
}

impl PodCheck {
    fn require(&mut self, field: String) {
        self.errors.push(FieldError::required(&field, ""));
    }

    fn refuse(&mut self, field: &str, value: &str, rule: &str) {
        self.errors.push(FieldError::invalid(field, &value.into(), rule));
    }

    fn check_supported<const N: usize>(&mut self, value: &Value, field: &str, supported: [&str; N]) {
        self.errors.extend(check_supported(value, field, supported));
    }

    /// Checks a name in a list, where it must be set, a DNS label and the only one.
    fn check_name<'a>(&mut self, name: &'a str, field: &str, seen: &mut HashSet<&'a str>) {
        if name.is_empty() {
            self.require(field.to_owned());
        } else if !is_dns_label(name) {
            self.refuse(field, name, LABEL_RULE);
        } else if !seen.insert(name) {
            self.errors.push(FieldError::duplicate(field, &name.into()));
        }
    }

    fn check_spec(&mut self, spec: &Value, path: &str) {
        let volumes = self.check_volumes(spec, path);
        if items(spec, "containers").is_empty() {
            self.require(format!("{path}.containers"));
        }
        let mut names = HashSet::new();
        for list in ["containers", "initContainers"] {
            for (index, container) in items(spec, list).iter().enumerate() {
                let at = format!("{path}.{list}[{index}]");
                self.check_name(text(container, "name"), &format!("{at}.name"), &mut names);
                self.check_container(container, &at, &volumes);
            }
        }
        self.check_supported(
            &spec["restartPolicy"],
            &format!("{path}.restartPolicy"),
            ["Always", "OnFailure", "Never"],
        );
        self.check_supported(
            &spec["dnsPolicy"],
            &format!("{path}.dnsPolicy"),
            ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        );
        let field = format!("{path}.terminationGracePeriodSeconds");
        self.errors
            .extend(check_not_negative(&spec["terminationGracePeriodSeconds"], &field));
        let field = format!("{path}.nodeSelector");
        validate_labels(&spec["nodeSelector"], &field, &mut self.errors);
        let account = text(spec, "serviceAccountName");
        if !account.is_empty() && !is_dns_subdomain(account) {
            self.refuse(&format!("{path}.serviceAccountName"), account, SUBDOMAIN_RULE);
        }
        for (index, toleration) in items(spec, "tolerations").iter().enumerate() {
            self.check_toleration(toleration, &format!("{path}.tolerations[{index}]"));
        }
        self.check_node_affinity(
            &spec["affinity"]["nodeAffinity"],
            &format!("{path}.affinity.nodeAffinity"),
        );
    }

    /// Checks the volumes, and returns their names.
    fn check_volumes<'a>(&mut self, spec: &'a Value, path: &str) -> HashSet<&'a str> {
        let mut names = HashSet::new();
        for (index, volume) in items(spec, "volumes").iter().enumerate() {
            let at = format!("{path}.volumes[{index}]");
            self.check_name(text(volume, "name"), &format!("{at}.name"), &mut names);
            for (source, field) in [
                ("configMap", "name"),
                ("secret", "secretName"),
                ("persistentVolumeClaim", "claimName"),
                ("hostPath", "path"),
                ("nfs", "server"),
            ] {
                if volume[source].is_object() && text(&volume[source], field).is_empty() {
                    self.require(format!("{at}.{source}.{field}"));
                }
            }
            for source in ["configMap", "secret"] {
                for (index, item) in items(&volume[source], "items").iter().enumerate() {
                    for field in ["key", "path"] {
                        if text(item, field).is_empty() {
                            self.require(format!("{at}.{source}.items[{index}].{field}"));
                        }
                    }
                }
            }
            let sources = VOLUME_SOURCES
                .iter()
                .filter(|source| volume[**source].is_object());
            for source in sources.skip(1) {
                let why = "may not specify more than 1 volume type";
                self.errors
                    .push(FieldError::forbidden(&format!("{at}.{source}"), why));
            }
        }
        names
    }

    fn check_container(&mut self, container: &Value, at: &str, volumes: &HashSet<&str>) {
        if text(container, "image").is_empty() {
            self.require(format!("{at}.image"));
        }
        self.check_supported(
            &container["imagePullPolicy"],
            &format!("{at}.imagePullPolicy"),
            ["Always", "IfNotPresent", "Never"],
        );
        for (index, port) in items(container, "ports").iter().enumerate() {
            self.check_container_port(port, &format!("{at}.ports[{index}]"));
        }
        for (index, variable) in items(container, "env").iter().enumerate() {
            self.check_variable(variable, &format!("{at}.env[{index}]"));
        }
        for (index, source) in items(container, "envFrom").iter().enumerate() {
            for (reference, field) in [("configMapRef", "name"), ("secretRef", "name")] {
                let name = text(&source[reference], field);
                if source[reference].is_object() && !is_dns_subdomain(name) {
                    self.refuse(
                        &format!("{at}.envFrom[{index}].{reference}.name"),
                        name,
                        SUBDOMAIN_RULE,
                    );
                }
            }
        }
        self.check_mounts(container, at, volumes);
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if container[probe].is_object() {
                self.check_probe(&container[probe], &format!("{at}.{probe}"));
            }
        }
        self.check_resources(&container["resources"], &format!("{at}.resources"));
    }

    fn check_container_port(&mut self, port: &Value, at: &str) {
        let name = text(port, "name");
        if !name.is_empty() && !is_port_name(name) {
            let rule = "must contain only alphanumeric characters (a-z, 0-9), and hyphens (-)";
            self.refuse(&format!("{at}.name"), name, rule);
        }
        if port["containerPort"].as_i64().unwrap_or_default() == 0 {
            self.require(format!("{at}.containerPort"));
        } else {
            self.errors.extend(check_port_number(
                &port["containerPort"],
                &format!("{at}.containerPort"),
            ));
        }
        if port["hostPort"].as_i64().unwrap_or_default() != 0 {
            self.errors
                .extend(check_port_number(&port["hostPort"], &format!("{at}.hostPort")));
        }
        self.check_supported(
            &port["protocol"],
            &format!("{at}.protocol"),
            ["SCTP", "TCP", "UDP"],
        );
    }

    fn check_variable(&mut self, variable: &Value, at: &str) {
        let name = text(variable, "name");
        let is_valid = |c: char| (' '..='~').contains(&c) && c != '=';
        if name.is_empty() {
            self.require(format!("{at}.name"));
        } else if !name.chars().all(is_valid) {
            let rule = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            self.refuse(&format!("{at}.name"), name, rule);
        }
        let source = &variable["valueFrom"];
        if !source.is_object() {
            return;
        }
        let at = format!("{at}.valueFrom");
        let count = VALUE_SOURCES
            .iter()
            .filter(|one| source[**one].is_object())
            .count();
        if count == 0 {
            let rule = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            self.refuse(&at, "", rule);
        } else if !text(variable, "value").is_empty() {
            self.refuse(&at, "", "may not be specified when `value` is not empty");
        } else if count > 1 {
            self.refuse(&at, "", "may not have more than one field specified at a time");
        }
        if source["fieldRef"].is_object() && text(&source["fieldRef"], "fieldPath").is_empty() {
            self.require(format!("{at}.fieldRef.fieldPath"));
        }
        for reference in ["configMapKeyRef", "secretKeyRef"] {
            let selector = &source[reference];
            if !selector.is_object() {
                continue;
            }
            let (name, key) = (text(selector, "name"), text(selector, "key"));
            if !is_dns_subdomain(name) {
                self.refuse(&format!("{at}.{reference}.name"), name, SUBDOMAIN_RULE);
            }
            if key.is_empty() {
                self.require(format!("{at}.{reference}.key"));
            } else if !is_config_key(key) {
                self.refuse(&format!("{at}.{reference}.key"), key, CONFIG_KEY_RULE);
            }
        }
    }

    fn check_mounts(&mut self, container: &Value, at: &str, volumes: &HashSet<&str>) {
        let mut paths = HashSet::new();
        for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
            let at = format!("{at}.volumeMounts[{index}]");
            let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
            if name.is_empty() {
                self.require(format!("{at}.name"));
            }
            if !volumes.contains(name) {
                self.errors
                    .push(FieldError::not_found(&format!("{at}.name"), &name.into()));
            }
            if path.is_empty() {
                self.require(format!("{at}.mountPath"));
            }
            if !paths.insert(path) {
                self.refuse(&format!("{at}.mountPath"), path, "must be unique");
            }
        }
    }

    fn check_probe(&mut self, probe: &Value, at: &str) {
        let mut handlers = PROBE_HANDLERS
            .into_iter()
            .filter(|handler| probe[*handler].is_object());
        if handlers.next().is_none() {
            let why = "must specify a handler type";
            self.errors.push(FieldError::required(at, why));
        }
        for handler in handlers {
            let why = "may not specify more than 1 handler type";
            self.errors
                .push(FieldError::forbidden(&format!("{at}.{handler}"), why));
        }
        for handler in ["httpGet", "tcpSocket"] {
            if probe[handler].is_object() {
                self.errors.extend(check_port(
                    &probe[handler]["port"],
                    &format!("{at}.{handler}.port"),
                ));
            }
        }
        if probe["httpGet"].is_object() {
            let scheme = &probe["httpGet"]["scheme"];
            self.check_supported(scheme, &format!("{at}.httpGet.scheme"), ["HTTP", "HTTPS"]);
        }
        if probe["exec"].is_object() && items(&probe["exec"], "command").is_empty() {
            self.require(format!("{at}.exec.command"));
        }
        if probe["grpc"].is_object() {
            self.errors.extend(check_port_number(
                &probe["grpc"]["port"],
                &format!("{at}.grpc.port"),
            ));
        }
    }

    fn check_resources(&mut self, resources: &Value, at: &str) {
        let limits = &resources["limits"];
        for list in ["limits", "requests"] {
            for (name, amount) in resources[list].as_object().into_iter().flatten() {
                self.check_resource_name(name, &format!("{at}.{list}[{name}]"));
                let given = amount.as_str().unwrap_or_default();
                if compare_quantities(given, "0").is_some_and(std::cmp::Ordering::is_lt) {
                    let rule = "must be greater than or equal to 0";
                    self.refuse(&format!("{at}.{list}[{name}]"), given, rule);
                }
            }
        }
        for (name, request) in resources["requests"].as_object().into_iter().flatten() {
            let Some(limit) = limits[name].as_str() else {
                continue;
            };
            let given = request.as_str().unwrap_or_default();
            if compare_quantities(given, limit).is_some_and(std::cmp::Ordering::is_gt) {
                let rule = format!("must be less than or equal to {name} limit of {limit}");
                self.refuse(&format!("{at}.requests"), given, &rule);
            }
        }
    }

    /// Checks the name of a resource of containers: one of Kubernetes' own, or one with a domain.
    fn check_resource_name(&mut self, name: &str, at: &str) {
        let is_own = CONTAINER_RESOURCES.contains(&name) || name.starts_with("hugepages-");
        if !is_qualified_name(name) {
            self.refuse(at, name, QUALIFIED_NAME_RULE);
        }
        if !name.contains('/') && !is_own {
            if !QUOTA_RESOURCES.contains(&name) {
                self.refuse(at, name, "must be a standard resource type or fully qualified");
            }
            self.refuse(at, name, "must be a standard resource for containers");
        }
    }

    fn check_toleration(&mut self, toleration: &Value, at: &str) {
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if !key.is_empty() && !is_qualified_name(key) {
            self.refuse(&format!("{at}.key"), key, QUALIFIED_NAME_RULE);
        }
        if key.is_empty() && operator != "Exists" {
            let rule =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            self.refuse(&format!("{at}.operator"), operator, rule);
        }
        match operator {
            "" | "Equal" => {
                let value = text(toleration, "value");
                if !value.is_empty() && !is_label_value(value) {
                    self.refuse(&format!("{at}.operator"), value, LABEL_VALUE_RULE);
                }
            }
            "Exists" => {
                if !text(toleration, "value").is_empty() {
                    let rule = "value must be empty when `operator` is 'Exists'";
                    self.errors
                        .push(FieldError::invalid(&format!("{at}.operator"), toleration, rule));
                }
            }
            _ => self.check_supported(
                &toleration["operator"],
                &format!("{at}.operator"),
                ["Equal", "Exists"],
            ),
        }
        let effect = &toleration["effect"];
        if *effect != "" {
            self.check_supported(effect, &format!("{at}.effect"), TAINT_EFFECTS);
        }
    }

    fn check_node_affinity(&mut self, affinity: &Value, at: &str) {
        let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
        if !required.is_object() {
            return;
        }
        let at = format!("{at}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        let terms = items(required, "nodeSelectorTerms");
        if terms.is_empty() {
            let why = "must have at least one node selector term";
            self.errors.push(FieldError::required(&at, why));
        }
        for (index, term) in terms.iter().enumerate() {
            for (number, requirement) in items(term, "matchExpressions").iter().enumerate() {
                let at = format!("{at}[{index}].matchExpressions[{number}]");
                self.errors
                    .extend(check_requirement(requirement, &at, &["Gt", "Lt"]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failing_fields(container: Value) -> Vec<String> {
        let mut container = container;
        container["name"] = "a".into();
        container["image"] = "a".into();
        let spec = json!({"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]});
        let errors = validate_pod_spec(&spec, "spec").into_iter();
        errors
            .map(|error| error.field.replace("spec.containers[0].", ""))
            .collect()
    }

    #[test]
    fn container_is_checked_field_by_field() {
        for (container, fields) in [
            (json!({}), &[][..]),
            (
                json!({"ports": [{"containerPort": 80, "name": "http"}, {}]}),
                &["ports[1].containerPort"],
            ),
            (
                json!({"ports": [{"containerPort": 70000, "protocol": "tcp"}]}),
                &["ports[0].containerPort", "ports[0].protocol"],
            ),
            (
                json!({"env": [{"name": "A", "value": "b"}, {"name": "a=b"}]}),
                &["env[1].name"],
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {}}]}),
                &["env[0].valueFrom"],
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}),
                &["env[0].valueFrom.secretKeyRef.key"],
            ),
            (json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), &[]),
            (
                json!({"volumeMounts": [{"name": "w", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]}),
                &["volumeMounts[0].name", "volumeMounts[1].mountPath"],
            ),
            (
                json!({"livenessProbe": {"httpGet": {"path": "/", "port": 80}}}),
                &[],
            ),
            (
                json!({"livenessProbe": {"httpGet": {"path": "/", "port": 0}}}),
                &["livenessProbe.httpGet.port"],
            ),
            (json!({"readinessProbe": {}}), &["readinessProbe"]),
            (
                json!({"resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "1Gi"}}}),
                &["resources.requests"],
            ),
        ] {
            let text = container.to_string();
            assert_eq!(failing_fields(container), fields, "{text}");
        }
    }
}
