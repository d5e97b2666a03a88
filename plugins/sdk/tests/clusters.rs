//! Objects on other clusters in the simulated host.

use ostler_sdk::{ApplyOptions, gvk, mock::MockHost, prelude::*};

/// An object with a copy on another cluster.
#[ostler_sdk::resource(group = "tests.dev", version = "v1", namespaced, doc = "A copy.")]
pub struct ReplicaSpec {}

/// Makes the copy.
#[ostler_sdk::reconciler]
pub fn copy(ctx: &Context, replica: &Replica) -> Result<Outcome, Failure> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": replica.name(), "namespace": replica.namespace() },
    });
    let options = ApplyOptions {
        cluster: Some("fleet/east".into()),
        owned: true,
        force: true,
        ..ApplyOptions::default()
    };
    ctx.apply_with(&object, &options)?;
    Ok(Outcome::await_change())
}

/// Owner references do not cross clusters: the host marks the object instead.
#[test]
fn owned_object_on_another_cluster_has_no_owner_reference() {
    let host = MockHost::new();
    let object = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {}});
    host.reconcile(&copy, &object).expect("reconciles");
    assert_eq!(host.writes(), ["apply ConfigMap a owned on fleet/east"]);
    let reference = gvk("", "v1", "ConfigMap").named("b", "a");
    assert_eq!(host.object(&reference), None, "not on the own cluster");
    let made = host.object(&reference.on_cluster("fleet/east")).expect("applied");
    assert_eq!(made["metadata"].get("ownerReferences"), None);
}
