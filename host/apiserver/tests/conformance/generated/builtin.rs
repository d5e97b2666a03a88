//! Sequences of writes to objects of built-in kinds.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::Choose as _;
use super::objects::{WrittenResource, generate_steps as generate_object_steps};
use super::sequence::Step;
use super::value::add_mistake;

/// A built-in kind, and contents of its objects.
struct BuiltinKind {
    api: &'static str,
    plural: &'static str,
    kind: &'static str,
    status: bool,
    scale: bool,
    contents: Vec<Value>,
}

/// Generates writes to one object of a built-in kind.
pub fn generate_steps(rng: &mut Rng) -> Vec<Step> {
    let kinds = builtin_kinds();
    let chosen = &kinds[rng.usize(..kinds.len())];
    let root = if chosen.api.contains('/') { "apis" } else { "api" };
    let resource = WrittenResource {
        collection: format!("/{root}/{}/namespaces/§namespace/{}", chosen.api, chosen.plural),
        api_version: chosen.api.into(),
        kind: chosen.kind.into(),
        status: chosen.status,
        scale: chosen.scale,
    };
    let content = |rng: &mut Rng| {
        let mut content = rng.choose(&chosen.contents);
        if rng.percent(40) {
            add_mistake(rng, &mut content);
        }
        content
    };
    generate_object_steps(rng, &resource, &content)
}

fn builtin_kinds() -> Vec<BuiltinKind> {
    let kind = |api, plural, kind, contents| BuiltinKind {
        api,
        plural,
        kind,
        status: false,
        scale: false,
        contents,
    };
    let with_status = |builtin| BuiltinKind {
        status: true,
        ..builtin
    };
    let with_scale = |builtin| BuiltinKind {
        status: true,
        scale: true,
        ..builtin
    };
    vec![
        kind("v1", "configmaps", "ConfigMap", configmap_contents()),
        kind("v1", "secrets", "Secret", secret_contents()),
        with_status(kind("v1", "services", "Service", service_contents())),
        kind(
            "v1",
            "serviceaccounts",
            "ServiceAccount",
            service_account_contents(),
        ),
        with_status(kind("v1", "pods", "Pod", pod_contents())),
        with_status(kind(
            "v1",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            claim_contents(),
        )),
        with_scale(kind(
            "apps/v1",
            "deployments",
            "Deployment",
            deployment_contents(),
        )),
        with_scale(kind(
            "apps/v1",
            "statefulsets",
            "StatefulSet",
            stateful_set_contents(),
        )),
        with_status(kind("apps/v1", "daemonsets", "DaemonSet", daemon_set_contents())),
        with_status(kind("batch/v1", "jobs", "Job", job_contents())),
        with_status(kind(
            "networking.k8s.io/v1",
            "ingresses",
            "Ingress",
            ingress_contents(),
        )),
        kind(
            "networking.k8s.io/v1",
            "networkpolicies",
            "NetworkPolicy",
            network_policy_contents(),
        ),
        with_status(kind(
            "policy/v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            disruption_budget_contents(),
        )),
        kind("coordination.k8s.io/v1", "leases", "Lease", lease_contents()),
        kind(
            "discovery.k8s.io/v1",
            "endpointslices",
            "EndpointSlice",
            endpoint_slice_contents(),
        ),
        kind("rbac.authorization.k8s.io/v1", "roles", "Role", role_contents()),
        kind(
            "rbac.authorization.k8s.io/v1",
            "rolebindings",
            "RoleBinding",
            role_binding_contents(),
        ),
    ]
}

fn configmap_contents() -> Vec<Value> {
    vec![
        json!({"data": {"a": "b", "c.d": ""}}),
        json!({"data": {"a": "b"}, "binaryData": {"e": "YWJj"}}),
        json!({"data": {"a": "b"}, "immutable": true}),
        json!({"data": {"a": "x".repeat(1 << 20)}}),
        json!({}),
    ]
}

fn secret_contents() -> Vec<Value> {
    vec![
        json!({"data": {"a": "YWJj"}}),
        json!({"stringData": {"a": "abc"}, "data": {"b": "YWJj"}}),
        json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": "", "tls.key": ""}}),
        json!({"type": "kubernetes.io/basic-auth", "stringData": {"username": "a"}}),
        json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}),
        json!({"type": "kubernetes.io/ssh-auth", "stringData": {"ssh-privatekey": "a"}}),
        json!({"type": "a.example/own", "immutable": true, "data": {"a": "YWJj"}}),
    ]
}

fn service_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}}),
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "dns", "port": 53, "protocol": "UDP"}]}}),
        json!({"spec": {"clusterIP": "None", "selector": {"app": "a"}}}),
        json!({"spec": {"type": "ExternalName", "externalName": "a.example"}}),
    ]
}

fn service_account_contents() -> Vec<Value> {
    vec![
        json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
        json!({"automountServiceAccountToken": false, "secrets": [{"name": "a"}]}),
    ]
}

fn pod_spec() -> Value {
    json!({
        "containers": [
            {"name": "a", "image": "a.example/a:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
             "ports": [{"containerPort": 80}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
             "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": 1}},
             "livenessProbe": {"httpGet": {"path": "/", "port": 80}}},
            {"name": "b", "image": "b", "args": ["x"], "securityContext": {"runAsNonRoot": true}},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}],
        "imagePullSecrets": [{"name": "p"}],
    })
}

fn pod_contents() -> Vec<Value> {
    vec![
        json!({"spec": pod_spec()}),
        json!({"spec": {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}}),
        json!({"spec": {
            "containers": [{"name": "a", "image": "a:latest", "command": ["sleep"], "readinessProbe": {"exec": {"command": ["true"]}}}],
            "initContainers": [{"name": "i", "image": "i:2"}], "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
        }}),
    ]
}

fn claim_contents() -> Vec<Value> {
    vec![json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})]
}

fn template(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}, "spec": pod_spec()})
}

fn deployment_contents() -> Vec<Value> {
    let selector = json!({"matchLabels": {"app": "a"}});
    vec![
        json!({"spec": {"selector": selector, "template": template(json!({"app": "a"}))}}),
        json!({"spec": {"replicas": 2, "selector": selector, "template": template(json!({"app": "a", "b": "c"})), "strategy": {"type": "Recreate"}}}),
        json!({"spec": {"replicas": 0, "selector": selector, "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}, "strategy": {"rollingUpdate": {"maxSurge": 1}}}}),
    ]
}

fn stateful_set_contents() -> Vec<Value> {
    vec![json!({"spec": {
        "serviceName": "s", "selector": {"matchLabels": {"app": "a"}}, "template": template(json!({"app": "a"})),
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
    }})]
}

fn daemon_set_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template(json!({"app": "a"}))}}),
        json!({"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template(json!({"app": "a"})), "updateStrategy": {"type": "OnDelete"}}}),
    ]
}

fn job_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}}, "suspend": true}}),
        json!({"spec": {"parallelism": 2, "completions": 4, "backoffLimit": 1, "ttlSecondsAfterFinished": 10, "template": {"spec": {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "OnFailure"}}}}),
    ]
}

fn ingress_contents() -> Vec<Value> {
    let backend = json!({"service": {"name": "a", "port": {"number": 80}}});
    vec![
        json!({"spec": {"rules": [{"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]}}),
        json!({"spec": {"defaultBackend": backend, "tls": [{"hosts": ["a.example"], "secretName": "t"}], "ingressClassName": "nginx"}}),
    ]
}

fn network_policy_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
        json!({"spec": {"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}], "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}}),
    ]
}

fn disruption_budget_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}),
        json!({"spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "a"}}}}),
    ]
}

fn lease_contents() -> Vec<Value> {
    vec![
        json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.123456Z", "leaseTransitions": 0}}),
        json!({"spec": {}}),
    ]
}

fn endpoint_slice_contents() -> Vec<Value> {
    vec![json!({
        "addressType": "IPv4", "ports": [{"name": "http", "port": 80}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
    })]
}

fn role_contents() -> Vec<Value> {
    vec![
        json!({"rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]}),
        json!({"rules": [{"apiGroups": ["a.example"], "resources": ["things"], "resourceNames": ["a"], "verbs": ["*"]}]}),
        json!({"rules": []}),
        json!({"rules": [{"verbs": ["get"]}]}),
        json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": []}]}),
    ]
}

fn role_binding_contents() -> Vec<Value> {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"});
    vec![
        json!({"roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "§namespace"}]}),
        json!({"roleRef": role, "subjects": [{"kind": "User", "name": "u"}, {"kind": "Group", "name": "g", "apiGroup": "rbac.authorization.k8s.io"}]}),
        json!({"roleRef": {"kind": "ClusterRole", "name": "view"}}),
        json!({"roleRef": {"kind": "Odd", "name": "a", "apiGroup": "a.example"}}),
    ]
}
