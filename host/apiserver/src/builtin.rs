//! The built-in kinds, as far as operators need them.
//!
//! Their schemas are those that the real server publishes ([`crate::openapi`]): types are checked, unknown fields are
//! pruned, and lists and maps are merged by them.

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::kind::{ServedKind, ServedVersion};
use crate::object::GroupResource;
use crate::openapi;
use crate::rbac::RBAC_GROUP;
use crate::scale::ScalePaths;

/// Group of CustomResourceDefinitions.
pub const EXTENSIONS_GROUP: &str = "apiextensions.k8s.io";
/// Plural of CustomResourceDefinitions.
pub const CRD_PLURAL: &str = "customresourcedefinitions";

/// Returns true if a PUT creates an object of a kind that is not there.
pub fn allows_create_on_update(kind: &ServedKind) -> bool {
    let GroupResource { group, plural } = &kind.resource;
    let is_listed = matches!(
        (group.as_str(), plural.as_str()),
        ("", "services" | "endpoints" | "events")
            | ("events.k8s.io", "events")
            | ("coordination.k8s.io", "leases")
    );
    !kind.custom && (is_listed || group == RBAC_GROUP)
}

struct Builtin {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    status: bool,
    generations: bool,
}

/// All built-in kinds, which the servers of a process share.
pub fn builtin_kinds() -> &'static [Arc<ServedKind>] {
    static KINDS: LazyLock<Vec<Arc<ServedKind>>> = LazyLock::new(|| {
        let kinds = list_builtins().into_iter();
        kinds.map(|builtin| Arc::new(builtin.into_kind())).collect()
    });
    &KINDS
}

fn list_builtins() -> Vec<Builtin> {
    let rbac = RBAC_GROUP;
    vec![
        core_kind("Namespace", "namespaces", &["ns"])
            .cluster_scoped()
            .with_status(),
        core_kind("Secret", "secrets", &[]),
        core_kind("ConfigMap", "configmaps", &["cm"]),
        core_kind("Event", "events", &["ev"]),
        core_kind("ServiceAccount", "serviceaccounts", &["sa"]),
        core_kind("Pod", "pods", &["po"]).with_status().with_generations(),
        core_kind("Service", "services", &["svc"]).with_status(),
        core_kind("PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"]).with_status(),
        core_kind("Endpoints", "endpoints", &["ep"]),
        grouped_kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", &[]).with_generations(),
        core_kind("Node", "nodes", &["no"]).cluster_scoped().with_status(),
        grouped_kind("events.k8s.io", "v1", "Event", "events", &["ev"]),
        grouped_kind("coordination.k8s.io", "v1", "Lease", "leases", &[]),
        grouped_kind(
            EXTENSIONS_GROUP,
            "v1",
            "CustomResourceDefinition",
            CRD_PLURAL,
            &["crd", "crds"],
        )
        .cluster_scoped()
        .with_status()
        .with_generations(),
        grouped_kind(rbac, "v1", "Role", "roles", &[]),
        grouped_kind(rbac, "v1", "RoleBinding", "rolebindings", &[]),
        grouped_kind(rbac, "v1", "ClusterRole", "clusterroles", &[]).cluster_scoped(),
        grouped_kind(rbac, "v1", "ClusterRoleBinding", "clusterrolebindings", &[]).cluster_scoped(),
        workload_kind("Deployment", "deployments", &["deploy"]),
        workload_kind("StatefulSet", "statefulsets", &["sts"]),
        workload_kind("DaemonSet", "daemonsets", &["ds"]),
        workload_kind("ReplicaSet", "replicasets", &["rs"]),
        grouped_kind("batch", "v1", "Job", "jobs", &[])
            .with_status()
            .with_generations(),
        grouped_kind("networking.k8s.io", "v1", "Ingress", "ingresses", &["ing"])
            .with_status()
            .with_generations(),
        grouped_kind(
            "networking.k8s.io",
            "v1",
            "NetworkPolicy",
            "networkpolicies",
            &["netpol"],
        )
        .with_generations(),
        grouped_kind(
            "policy",
            "v1",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            &["pdb"],
        )
        .with_status()
        .with_generations(),
    ]
}

fn core_kind(kind: &'static str, plural: &'static str, short: &'static [&'static str]) -> Builtin {
    grouped_kind("", "v1", kind, plural, short)
}

fn workload_kind(kind: &'static str, plural: &'static str, short: &'static [&'static str]) -> Builtin {
    grouped_kind("apps", "v1", kind, plural, short)
        .with_status()
        .with_generations()
}

fn grouped_kind(
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
    }
}

impl Builtin {
    fn cluster_scoped(self) -> Self {
        Self {
            namespaced: false,
            ..self
        }
    }

    fn with_status(self) -> Self {
        Self { status: true, ..self }
    }

    fn with_generations(self) -> Self {
        Self {
            generations: true,
            ..self
        }
    }

    fn into_kind(self) -> ServedKind {
        ServedKind {
            resource: GroupResource::new(self.group, self.plural),
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
            terminating: false,
            generation: 0,
            conditional_update: matches!(self.plural, "leases" | "poddisruptionbudgets"),
            generations: self.generations,
            storage_version: self.version.into(),
            versions: vec![ServedVersion {
                name: self.version.into(),
                served: true,
                schema: openapi::build_kind_schema(self.group, self.version, self.kind),
                openapi: Value::Null,
                rules: None,
                status: self.status,
                scale: scale_paths(self.plural),
                columns: None,
                selectable: selectable_fields(self.kind),
            }],
        }
    }
}

/// Places of the replicas of a workload.
fn scale_paths(plural: &str) -> Option<ScalePaths> {
    matches!(plural, "deployments" | "statefulsets" | "replicasets").then(|| ScalePaths {
        spec: "/spec/replicas".into(),
        status: "/status/replicas".into(),
        selector: Some("/spec/selector".into()),
    })
}

fn selectable_fields(kind: &str) -> Vec<String> {
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
