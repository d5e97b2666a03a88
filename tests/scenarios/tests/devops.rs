//! The DevOps pack: the whole host with simulators of Jenkins and of Argo CD's controller, a real git server and a real
//! registry. In the tier `argocd` the controller is the real one.

mod argo;
mod argo_cd;
mod argo_server;
mod cluster;
mod events;
mod failures;
mod gate;
mod ingress;
mod jenkins;
mod matrix;
mod pack;
mod project;
mod registry;
mod steps;
mod whole;
mod workflow;

use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::Lab;
use serde_json::{Value, json};

const GRANTS: &str = include_str!("../../../deploy/devops-grants.yaml");
const DNS_GRANTS: &str = include_str!("../../../deploy/dns-grants.yaml");

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

/// Starts a host with components of the pack.
async fn start(lab: &mut Lab, components: &[&str]) {
    prepare(lab, components).await;
    lab.start_host().await;
}

/// Installs components of the pack, with the grants of `deploy/` and the accounts and roles that follow from them, that of the host
/// included: what is missing there fails the tests.
async fn prepare(lab: &mut Lab, components: &[&str]) {
    let mut grants = read_grants(GRANTS, lab);
    if components.iter().any(|component| component.starts_with("dns/")) {
        for (name, grant) in read_grants(DNS_GRANTS, lab)["plugins"]
            .as_object()
            .expect("plugins")
        {
            grants["plugins"][name] = grant.clone();
        }
    }
    let grants = Grants::parse(&grants.to_string(), "devops-grants.yaml").expect("the grants parse");
    lab.use_accounts(components, grants).await;
    lab.install(components);
}

/// Puts the namespace of the test in place of those of `deploy/`, also in place of that of Argo CD.
fn localize(text: &str, lab: &Lab) -> String {
    let mut local = text.to_owned();
    for (before, after) in [
        ("namespace: devops,", "namespace: {},"),
        ("namespace: dns,", "namespace: {},"),
        ("namespaces: [argocd]", "namespaces: [{}]"),
        ("targetNamespaces: [argocd]", "targetNamespaces: [{}]"),
    ] {
        local = local.replace(before, &after.replace("{}", &lab.namespace));
    }
    local
}

/// Grants of `deploy/`, for any server.
fn read_grants(text: &str, lab: &Lab) -> Value {
    let mut all: Value = serde_saphyr::from_str(&localize(text, lab)).expect("YAML");
    for (_, grant) in all["plugins"].as_object_mut().expect("plugins") {
        let secrets = grant.get_mut("secrets").and_then(Value::as_array_mut);
        for secret in secrets.into_iter().flatten() {
            if secret.get("origins").is_some() {
                secret["origins"] = json!(["*", "http://*:*"]);
            }
        }
    }
    all
}
