//! The DevOps pack: the whole host with simulators of Jenkins and of Argo CD's controller, a real git server and a real
//! registry.

mod argo;
mod ingress;
mod jenkins;
mod project;
mod registry;

use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::Lab;
use serde_json::{Value, json};

const DEVOPS_GRANTS: &str = include_str!("grants.yaml");

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

/// Starts a host with components of the pack and the grants of these tests.
async fn start(lab: &mut Lab, components: &[&str]) {
    lab.settings.grants = Grants::parse(DEVOPS_GRANTS, "grants.yaml").expect("the grants parse");
    lab.install(components);
    lab.start_host().await;
}
