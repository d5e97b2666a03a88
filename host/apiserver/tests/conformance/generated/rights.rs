//! Sequences of roles, bindings and reviews, and of requests as a user with few rights.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::Choose as _;
use super::sequence::{APPLY_PATCH, MERGE_PATCH, RequestStep, Step};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/§namespace/configmaps";
/// A user whose rights a sequence grants.
const USER: &str = "user-§id";

/// Generates a role, a binding to it, and requests of the user.
pub fn generate_steps(rng: &mut Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    let group = json!("rbac.authorization.k8s.io");
    let role_ref = match rng.u32(0..4) {
        0 => {
            let name = rng.choose(&["admin", "edit", "view", "cluster-admin", "absent"]);
            json!({"apiGroup": group, "kind": "ClusterRole", "name": name})
        }
        1 => {
            push_aggregated_role(rng, &mut steps);
            json!({"apiGroup": group, "kind": "ClusterRole", "name": "whole-§id"})
        }
        _ => {
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r-§id"}, "rules": [generate_rule(rng)]});
            steps.push(RequestStep::post(format!("{RBAC}/namespaces/§namespace/roles"), role).into());
            json!({"apiGroup": group, "kind": "Role", "name": "r-§id"})
        }
    };
    steps.push(
        RequestStep::post(
            format!("{RBAC}/namespaces/§namespace/rolebindings"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b-§id"},
                "roleRef": role_ref, "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
            }),
        )
        .into(),
    );
    // The authorizer of a real server follows roles by a watch.
    let mut asked = RequestStep::get(CONFIG_MAPS);
    asked.user = Some(USER);
    steps.push(Step::Settle(asked));
    for _ in 0..rng.usize(2..6) {
        steps.push(generate_request(rng));
    }
    steps
}

fn push_aggregated_role(rng: &mut Rng, steps: &mut Vec<Step>) {
    let rule = json!({"matchLabels": {"part": "§id"}});
    steps.push(
        RequestStep::post(
            format!("{RBAC}/clusterroles"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "whole-§id"},
                "aggregationRule": {"clusterRoleSelectors": [rule]}, "rules": [],
            }),
        )
        .into(),
    );
    steps.push(
        RequestStep::post(
            format!("{RBAC}/clusterroles"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": "part-§id", "labels": {"part": "§id"}}, "rules": [generate_rule(rng)],
            }),
        )
        .into(),
    );
}

fn generate_rule(rng: &mut Rng) -> Value {
    let verbs = rng.choose(&[
        json!(["get"]),
        json!(["get", "list"]),
        json!(["create", "patch"]),
        json!(["*"]),
        json!(["patch"]),
        json!(["delete", "deletecollection"]),
    ]);
    let mut rule = json!({"apiGroups": [rng.choose(&["", "*", "apps"])], "resources": [rng.choose(&["configmaps", "*", "secrets", "configmaps/status"])], "verbs": verbs});
    if rng.percent(20) {
        rule["resourceNames"] = json!(["a-§id"]);
    }
    rule
}

fn generate_request(rng: &mut Rng) -> Step {
    let path = format!("{CONFIG_MAPS}/a-§id");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a-§id"}});
    let review = |attributes: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let mut request = match rng.u32(0..12) {
        10 => {
            let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "other-§id"});
            let (kind, name) = rng.choose(&[("Role", "r-§id"), ("ClusterRole", "view"), ("ClusterRole", "edit"), ("ClusterRole", "absent")]);
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "own-§id"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}, "subjects": [subject],
            });
            RequestStep::post(format!("{RBAC}/namespaces/§namespace/rolebindings"), binding)
        }
        11 => RequestStep::post(
            reviews,
            rng.choose(&[
                json!({"spec": {}}),
                json!({"spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}}),
                json!({"spec": {"nonResourceAttributes": {"path": "/openapi", "verb": "get"}}}),
                json!({"metadata": {"name": "a"}, "spec": {"resourceAttributes": {"verb": "get"}}}),
                review(json!({"verb": "create", "group": "authorization.k8s.io", "resource": "selfsubjectaccessreviews"})),
            ]),
        ),
        0 => RequestStep::get(path),
        1 => RequestStep::get(CONFIG_MAPS),
        2 => RequestStep::post(CONFIG_MAPS, object),
        3 => RequestStep::patch(path, MERGE_PATCH, json!({"data": {"a": "b"}})),
        4 => RequestStep::patch(format!("{path}?fieldManager=m1"), APPLY_PATCH, object),
        5 => RequestStep::delete(path, Value::Null),
        6 => RequestStep::delete(format!("{CONFIG_MAPS}?labelSelector=none%3D§id"), Value::Null),
        7 => {
            // More rights than the user has.
            let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "own-§id"}, "rules": [generate_rule(rng)]});
            RequestStep::post(format!("{RBAC}/namespaces/§namespace/roles"), role)
        }
        8 => RequestStep::post(
            reviews,
            review(
                json!({"namespace": "§namespace", "verb": rng.choose(&["get", "list", "create", "*"]), "resource": rng.choose(&["configmaps", "secrets", "things"])}),
            ),
        ),
        _ => RequestStep::post(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": USER, "resourceAttributes": {"namespace": "§namespace", "verb": "get", "resource": "configmaps"},
            }}),
        ),
    };
    request.user = Some(USER);
    request.into()
}
