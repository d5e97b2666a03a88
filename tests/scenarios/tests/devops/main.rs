//! The DevOps pack: the whole host with simulators of Jenkins and of Argo CD's controller, a real git server and a real
//! registry.

mod argo;
mod events;
mod ingress;
mod jenkins;
mod project;
mod registry;

use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::Lab;
use serde_json::{Value, json};

const DEPLOYMENT: &str = include_str!("../../../../deploy/devops.yaml");
const GRANTS: &str = include_str!("../../../../deploy/devops-grants.yaml");

/// A kind of the pack.
fn kind(kind: &str) -> Gvk {
    Gvk::new("devops.ostler.dev", "v1alpha1", kind)
}

/// An object of the pack in the namespace of the test.
fn object(lab: &Lab, kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "devops.ostler.dev/v1alpha1", "kind": kind,
        "metadata": { "name": name, "namespace": lab.namespace }, "spec": spec })
}

/// A Secret with one key, `value`.
fn secret(lab: &Lab, name: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": lab.namespace },
        "stringData": { "value": value } })
}

/// Starts a host with components of the pack, and with the grants, accounts and roles of `deploy/`: what is missing there
/// fails the tests.
async fn start(lab: &mut Lab, components: &[&str]) {
    lab.apply_yaml(&localize(DEPLOYMENT, lab)).await;
    lab.settings.grants = Grants::parse(&read_grants(lab), "devops-grants.yaml").expect("the grants parse");
    lab.settings.require_service_account = true;
    lab.install(components);
    lab.start_host().await;
}

/// Puts the namespace of the test in place of those of `deploy/`, also in place of that of Argo CD.
fn localize(text: &str, lab: &Lab) -> String {
    let mut local = text.to_owned();
    for (before, after) in [
        ("namespace: devops\n", "namespace: {}\n"),
        ("namespace: argocd\n", "namespace: {}\n"),
        ("namespace: ostler-system\n", "namespace: {}\n"),
        ("namespace: devops,", "namespace: {},"),
        ("namespaces: [argocd]", "namespaces: [{}]"),
        ("targetNamespaces: [argocd]", "targetNamespaces: [{}]"),
    ] {
        local = local.replace(before, &after.replace("{}", &lab.namespace));
    }
    local
}

/// The grants of `deploy/`, for any server.
fn read_grants(lab: &Lab) -> String {
    let mut all: Value = serde_saphyr::from_str(&localize(GRANTS, lab)).expect("YAML");
    for (_, grant) in all["plugins"].as_object_mut().expect("plugins") {
        let secrets = grant.get_mut("secrets").and_then(Value::as_array_mut);
        for secret in secrets.into_iter().flatten() {
            if secret.get("origins").is_some() {
                secret["origins"] = json!(["*", "http://*:*"]);
            }
        }
    }
    all.to_string()
}

/// Each plugin of the grants has its account and roles.
#[test]
fn grants_have_accounts_and_roles() {
    let grants: Value = serde_saphyr::from_str(GRANTS).expect("YAML");
    let documents = DEPLOYMENT.split("\n---\n");
    let documents: Vec<Value> = documents
        .map(|document| serde_saphyr::from_str(document).expect("YAML"))
        .collect();
    let plugins = grants["plugins"].as_object().expect("plugins");
    assert_eq!(plugins.len(), 8);
    for (name, grant) in plugins {
        assert_eq!(
            grant["serviceAccount"],
            json!({ "namespace": "devops", "name": name })
        );
        for kind in ["ServiceAccount", "Role", "RoleBinding"] {
            let is_there = |d: &Value| d["kind"] == kind && d["metadata"]["name"] == **name;
            assert!(documents.iter().any(is_there), "{kind} {name}");
        }
    }
}
