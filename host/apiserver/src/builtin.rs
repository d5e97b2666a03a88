//! The built-in kinds, as far as an operator's world needs them.
//!
//! Their schemas tell server-side apply how lists and maps merge; unknown fields are kept, and only what
//! an operator can get wrong in practice is checked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_schema::FieldError;
use ostler_schema::Schema;
use serde_json::{Value, json};

use crate::crd;
use crate::kind::{Column, Kind, Version};
use crate::storage::Resource;

/// Group of CustomResourceDefinitions.
pub const EXTENSIONS: &str = "apiextensions.k8s.io";
/// Plural of CustomResourceDefinitions.
pub const CRDS: &str = "customresourcedefinitions";

struct Builtin {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    status: bool,
    generations: bool,
    schema: Value,
    columns: Option<Vec<Column>>,
}

/// Every built-in kind.
pub fn kinds() -> Vec<Kind> {
    let rbac = "rbac.authorization.k8s.io";
    vec![
        core("Namespace", "namespaces", &["ns"]).cluster().status().columns(&[("Status", "string", ".status.phase"), AGE]),
        core("Secret", "secrets", &[]).schema(json!({"data": map(), "stringData": map()})).columns(&[
            ("Type", "string", ".type"),
            ("Data", "integer", "count(.data)"),
            AGE,
        ]),
        core("ConfigMap", "configmaps", &["cm"])
            .schema(json!({"data": map(), "binaryData": map()}))
            .columns(&[("Data", "integer", "count(.data,.binaryData)"), AGE]),
        core("Event", "events", &["ev"]).columns(&[
            ("Last Seen", "date", ".lastTimestamp|.series.lastObservedTime|.eventTime|.metadata.creationTimestamp"),
            ("Type", "string", ".type"),
            ("Reason", "string", ".reason"),
            ("Object", "string", "join(.involvedObject.kind,.involvedObject.name)"),
            ("Message", "string", ".message"),
        ]),
        core("ServiceAccount", "serviceaccounts", &["sa"])
            .schema(json!({"secrets": keyed(&["name"]), "imagePullSecrets": keyed(&["name"])}))
            .columns(&[("Secrets", "integer", "count(.secrets)"), AGE]),
        core("Pod", "pods", &["po"]).status().schema(json!({
            "spec": object(json!({
                "containers": keyed(&["name"]), "initContainers": keyed(&["name"]), "volumes": keyed(&["name"]),
                "imagePullSecrets": keyed(&["name"]),
            })),
            "status": object(json!({"conditions": keyed(&["type"])})),
        })).columns(&[("Status", "string", ".status.phase"), AGE]),
        core("Service", "services", &["svc"]).status().schema(json!({
            "spec": object(json!({"ports": keyed(&["port", "protocol"]), "selector": atomic_map()})),
            "status": object(json!({"conditions": keyed(&["type"])})),
        })),
        core("PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"]).status(),
        core("Endpoints", "endpoints", &["ep"]),
        core("Node", "nodes", &["no"]).cluster().status(),
        grouped("events.k8s.io", "v1", "Event", "events", &["ev"]),
        grouped("coordination.k8s.io", "v1", "Lease", "leases", &[])
            .columns(&[("Holder", "string", ".spec.holderIdentity"), AGE]),
        grouped(EXTENSIONS, "v1", "CustomResourceDefinition", CRDS, &["crd", "crds"])
            .cluster()
            .status()
            .generations()
            .schema(json!({"status": object(json!({"conditions": keyed(&["type"])}))}))
            .columns(&[("Created At", "date-text", ".metadata.creationTimestamp")]),
        grouped(rbac, "v1", "Role", "roles", &[]),
        grouped(rbac, "v1", "RoleBinding", "rolebindings", &[]),
        grouped(rbac, "v1", "ClusterRole", "clusterroles", &[]).cluster(),
        grouped(rbac, "v1", "ClusterRoleBinding", "clusterrolebindings", &[]).cluster(),
        workload("Deployment", "deployments", &["deploy"]),
        workload("StatefulSet", "statefulsets", &["sts"]),
        workload("DaemonSet", "daemonsets", &["ds"]),
        workload("ReplicaSet", "replicasets", &["rs"]),
        grouped("batch", "v1", "Job", "jobs", &[]).status().generations(),
        grouped("networking.k8s.io", "v1", "Ingress", "ingresses", &["ing"]).status().generations(),
        grouped("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", &["netpol"]).generations(),
        grouped("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"]).status().generations(),
    ]
    .into_iter()
    .map(Builtin::build)
    .collect()
}

const AGE: (&str, &str, &str) = ("Age", "date", ".metadata.creationTimestamp");

fn core(kind: &'static str, plural: &'static str, short: &'static [&'static str]) -> Builtin {
    grouped("", "v1", kind, plural, short)
}

fn workload(kind: &'static str, plural: &'static str, short: &'static [&'static str]) -> Builtin {
    let pod = object(
        json!({"containers": keyed(&["name"]), "initContainers": keyed(&["name"]), "volumes": keyed(&["name"])}),
    );
    grouped("apps", "v1", kind, plural, short).status().generations().schema(json!({
        "spec": object(json!({"template": object(json!({"spec": pod})), "selector": {"type": "object", "x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true}})),
        "status": object(json!({"conditions": keyed(&["type"])})),
    }))
}

fn grouped(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> Builtin {
    Builtin {
        group,
        version,
        kind,
        plural,
        short,
        namespaced: true,
        status: false,
        generations: false,
        schema: json!({}),
        columns: None,
    }
}

fn map() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

fn atomic_map() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"})
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": true})
}

fn keyed(keys: &[&str]) -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": object(json!({}))})
}

impl Builtin {
    fn cluster(self) -> Self {
        Self {
            namespaced: false,
            ..self
        }
    }

    fn status(self) -> Self {
        Self { status: true, ..self }
    }

    fn generations(self) -> Self {
        Self {
            generations: true,
            ..self
        }
    }

    fn schema(self, schema: Value) -> Self {
        Self { schema, ..self }
    }

    fn columns(self, columns: &[(&str, &str, &str)]) -> Self {
        let column = |(name, kind, path): &(&str, &str, &str)| Column {
            name: (*name).into(),
            kind: (*kind).into(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            path: (*path).into(),
        };
        Self {
            columns: Some(columns.iter().map(column).collect()),
            ..self
        }
    }

    fn build(self) -> Kind {
        let mut openapi = object(self.schema);
        let schema = Schema::parse_root(&openapi).unwrap_or_else(|_| Schema::permissive());
        openapi["description"] = format!("{} ({})", self.kind, self.version).into();
        Kind {
            resource: Resource::new(self.group, self.plural),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind),
            singular: self.kind.to_lowercase(),
            short_names: self.short.iter().map(|name| (*name).into()).collect(),
            categories: match self.plural {
                "pods" | "services" | "deployments" | "statefulsets" | "daemonsets" | "replicasets"
                | "jobs" => vec!["all".into()],
                _ => Vec::new(),
            },
            namespaced: self.namespaced,
            custom: false,
            conditional_update: false,
            generations: self.generations,
            storage_version: self.version.into(),
            versions: vec![Version {
                name: self.version.into(),
                served: true,
                schema,
                openapi,
                rules: None,
                status: self.status,
                columns: self.columns,
                selectable: selectable(self.kind),
            }],
        }
    }
}

/// Completes an object of a built-in kind.
pub fn prepare(kind: &Kind, old: Option<&Value>, object: &mut Value, now: &str) {
    match (kind.resource.group.as_str(), kind.kind.as_str()) {
        _ if kind.custom => {}
        ("", "Namespace") => {
            if old.is_none() {
                object["spec"]["finalizers"] = json!(["kubernetes"]);
                object["status"] = json!({"phase": "Active"});
            }
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
        }
        ("", "Secret") => {
            if object["type"].as_str().is_none_or(str::is_empty) {
                object["type"] = "Opaque".into();
            }
            let Some(fields) = object.as_object_mut() else {
                return;
            };
            if let Some(Value::Object(texts)) = fields.remove("stringData") {
                let data = fields.entry("data").or_insert_with(|| json!({}));
                for (name, text) in texts {
                    data[name] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
                }
            }
        }
        (EXTENSIONS, "CustomResourceDefinition") => {
            crd::fill(object);
            crd::establish(object, now);
        }
        _ => {}
    }
}

/// What is wrong with an object of a built-in kind.
pub fn check(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut causes = Vec::new();
    match (kind.resource.group.as_str(), kind.kind.as_str()) {
        ("", "Secret" | "ConfigMap") => {
            for field in ["data", "binaryData", "stringData"] {
                for (name, value) in object[field].as_object().into_iter().flatten() {
                    let at = format!("{field}[{name}]");
                    if name.is_empty()
                        || !name
                            .chars()
                            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
                    {
                        causes.push(FieldError::invalid(
                            &at,
                            &name.as_str().into(),
                            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                        ));
                    }
                    let encoded = kind.kind == "Secret" || field == "binaryData";
                    if encoded && value.as_str().is_none_or(|text| STANDARD.decode(text).is_err()) {
                        causes.push(FieldError::invalid(&at, value, "must be base64"));
                    }
                }
            }
            if let Some(old) = old.filter(|old| old["immutable"] == true) {
                for field in ["immutable", "data", "binaryData"] {
                    if old[field] != object[field] {
                        causes.push(FieldError::forbidden(
                            field,
                            "field is immutable when `immutable` is set",
                        ));
                    }
                }
            }
            if kind.kind == "Secret" && old.is_some_and(|old| old["type"] != object["type"]) {
                causes.push(FieldError::invalid("type", &object["type"], "field is immutable"));
            }
        }
        (EXTENSIONS, "CustomResourceDefinition") => causes.extend(crd::check(object)),
        _ => {}
    }
    causes
}

fn selectable(kind: &str) -> Vec<String> {
    let fields: &[&str] = match kind {
        "Namespace" => &["status.phase"],
        "Secret" => &["type"],
        "Event" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "Pod" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
        _ => &[],
    };
    fields.iter().map(|field| (*field).into()).collect()
}
