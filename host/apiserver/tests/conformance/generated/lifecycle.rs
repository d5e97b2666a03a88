//! Sequences of deletions: finalizers, owners across scopes, and namespaces.

use fastrand::Rng;
use serde_json::{Value, json};

use super::choice::Choose as _;
use super::objects::generate_delete_options;
use super::sequence::{MERGE_PATCH, RequestStep, Step};

const CONFIG_MAPS: &str = "/api/v1/namespaces/§namespace/configmaps";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const NAMESPACES: &str = "/api/v1/namespaces";

/// Generates a deletion with dependents, or that of a namespace.
pub fn generate_steps(rng: &mut Rng) -> Vec<Step> {
    match rng.u32(0..10) {
        0 => delete_namespace(rng),
        1 | 2 => own_across_scopes(rng),
        _ => delete_owner(rng),
    }
}

fn create_config_map(name: &str, metadata: Value) -> Step {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    object["metadata"]["name"] = format!("{name}-§id").into();
    RequestStep::post(CONFIG_MAPS, object).into()
}

fn owner_reference(kind: &str, name: &str, path: &str) -> Value {
    let api_version = if kind == "ClusterRole" {
        "rbac.authorization.k8s.io/v1"
    } else {
        "v1"
    };
    json!({"apiVersion": api_version, "kind": kind, "name": format!("{name}-§id"), "uid": format!("§uid({path}/{name}-§id)")})
}

/// A dependent of an owner that never existed: once it is gone, the collector has seen what was created before it.
fn await_collector(steps: &mut Vec<Step>) {
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent-§id", "uid": "00000000-0000-0000-0000-00000000000§id"});
    steps.push(create_config_map("canary", json!({"ownerReferences": [absent]})));
    steps.push(RequestStep::settle(format!("{CONFIG_MAPS}/canary-§id")));
}

/// Returns a deletion, perhaps with a policy for dependents.
fn generate_deletion(rng: &mut Rng, path: &str) -> Step {
    let options = if rng.percent(60) {
        json!({"propagationPolicy": rng.choose(&["Foreground", "Orphan", "Background"])})
    } else {
        generate_delete_options(rng, path)
    };
    RequestStep::delete(path, options).into()
}

fn delete_owner(rng: &mut Rng) -> Vec<Step> {
    let mut owner = json!({});
    if rng.percent(30) {
        owner["finalizers"] = json!(["a.example/one"]);
    }
    let mut steps = vec![
        create_config_map("owner", owner),
        create_config_map("other", json!({})),
    ];
    let mut reference = owner_reference("ConfigMap", "owner", CONFIG_MAPS);
    if rng.bool() {
        reference["blockOwnerDeletion"] = true.into();
    }
    let mut owners = vec![reference];
    if rng.percent(30) {
        owners.push(owner_reference("ConfigMap", "other", CONFIG_MAPS));
    }
    let mut dependent = json!({"ownerReferences": owners});
    if rng.percent(30) {
        dependent["finalizers"] = json!(["a.example/two"]);
    }
    steps.push(create_config_map("child", dependent));
    if rng.percent(40) {
        let below = owner_reference("ConfigMap", "child", CONFIG_MAPS);
        steps.push(create_config_map(
            "grandchild",
            json!({"ownerReferences": [below]}),
        ));
    }
    let path = format!("{CONFIG_MAPS}/owner-§id");
    steps.push(generate_deletion(rng, &path));
    for name in ["owner", "child", "grandchild"] {
        steps.push(RequestStep::settle(format!("{CONFIG_MAPS}/{name}-§id")));
    }
    if rng.percent(60) {
        for name in ["child", "owner"] {
            let path = format!("{CONFIG_MAPS}/{name}-§id");
            let patch = json!({"metadata": {"finalizers": null}});
            steps.push(RequestStep::patch(path, MERGE_PATCH, patch).into());
        }
        for name in ["owner", "child", "grandchild"] {
            steps.push(RequestStep::settle(format!("{CONFIG_MAPS}/{name}-§id")));
        }
    }
    steps
}

/// Owners whose scope does not allow it: the collector must neither follow them nor collect their dependents.
fn own_across_scopes(rng: &mut Rng) -> Vec<Step> {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "owner-§id"}, "rules": []});
    let mut steps = vec![
        RequestStep::post(CLUSTER_ROLES, role).into(),
        create_config_map("owner", json!({})),
    ];
    if rng.bool() {
        // A namespaced object of a cluster-scoped owner.
        let reference = owner_reference("ClusterRole", "owner", CLUSTER_ROLES);
        steps.push(create_config_map(
            "child",
            json!({"ownerReferences": [reference]}),
        ));
        await_collector(&mut steps);
        steps.push(RequestStep::delete(format!("{CLUSTER_ROLES}/owner-§id"), Value::Null).into());
        steps.push(RequestStep::settle(format!("{CONFIG_MAPS}/child-§id")));
    } else {
        // A cluster-scoped object of a namespaced owner.
        let reference = owner_reference("ConfigMap", "owner", CONFIG_MAPS);
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "child-§id", "ownerReferences": [reference]}});
        steps.push(RequestStep::post(CLUSTER_ROLES, role).into());
        await_collector(&mut steps);
        steps.push(RequestStep::get(format!("{CLUSTER_ROLES}/child-§id")).into());
        steps.push(RequestStep::delete(format!("{CONFIG_MAPS}/owner-§id"), Value::Null).into());
        await_collector_again(&mut steps);
        steps.push(RequestStep::get(format!("{CLUSTER_ROLES}/child-§id")).into());
        steps.push(RequestStep::delete(format!("{CLUSTER_ROLES}/child-§id"), Value::Null).into());
    }
    steps.push(RequestStep::delete(format!("{CLUSTER_ROLES}/owner-§id"), Value::Null).into());
    steps
}

fn await_collector_again(steps: &mut Vec<Step>) {
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent-§id", "uid": "00000000-0000-0000-0000-00000000001§id"});
    steps.push(create_config_map("second", json!({"ownerReferences": [absent]})));
    steps.push(RequestStep::settle(format!("{CONFIG_MAPS}/second-§id")));
}

fn delete_namespace(rng: &mut Rng) -> Vec<Step> {
    let path = format!("{NAMESPACES}/n-§id");
    let mut metadata = json!({"name": "n-§id"});
    let is_held = rng.percent(30);
    if is_held {
        metadata["finalizers"] = json!(["a.example/one"]);
    }
    let mut held = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    // A namespace that nothing holds goes at once, or seconds later.
    if !is_held || rng.bool() {
        held["metadata"]["finalizers"] = json!(["a.example/two"]);
    }
    let mut steps: Vec<Step> = vec![
        RequestStep::post(
            NAMESPACES,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        )
        .into(),
        RequestStep::post(format!("{path}/configmaps"), held).into(),
        generate_deletion(rng, &path),
        RequestStep::post(
            format!("{path}/configmaps"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}),
        )
        .into(),
        RequestStep::settle(format!("{path}/configmaps/a")),
        RequestStep::settle(path.clone()),
    ];
    let release = |path: &str| {
        let patch = json!({"metadata": {"finalizers": null}});
        RequestStep::patch(path, MERGE_PATCH, patch).into()
    };
    steps.push(release(&format!("{path}/configmaps/a")));
    if is_held {
        // Its content goes sooner or later.
        steps.push(RequestStep::settle(path.clone()));
        steps.push(release(&path));
    }
    steps.push(RequestStep::settle(path));
    steps
}
