//! The logic, against the SDK's host in memory.

<<without messages>>
<<without finalizer>>
use <<crate>>::{<<kind>>Spec, reconcile};
<<with finalizer>>
use <<crate>>::{<<kind>>Reconciler, <<kind>>Spec};
<<end>>
use ostler_sdk::{Condition, crd, gvk, mock::MockHost, serde_json::json};
<<with messages>>
<<without finalizer>>
use <<crate>>::{<<kind>>Spec, handle, reconcile};
<<with finalizer>>
use <<crate>>::{<<kind>>Reconciler, <<kind>>Spec, handle};
<<end>>
use ostler_sdk::{Condition, Delivery, Disposition, crd, gvk, mock::MockHost, serde_json::json};
<<end>>

#[test]
fn message_is_written_to_a_config_map() {
    let host = MockHost::new();
    let object = json!({
        "metadata": { "name": "a", "namespace": "b" },
        "spec": { "message": "Hello" },
    });
<<without finalizer>>
    let outcome = host.reconcile(&reconcile, &object).expect("reconciles");
<<with finalizer>>
    let outcome = host.reconcile(&<<kind>>Reconciler, &object).expect("reconciles");
<<end>>
    let ready = Condition::new_true("Ready", "Applied", "message applied: Hello");
    assert_eq!(outcome.conditions, [ready]);
    let map = host.object(&gvk("", "v1", "ConfigMap").named("b", "a"));
    assert_eq!(map.expect("applied")["data"]["message"], "Hello");

<<without finalizer>>
    host.reconcile(&reconcile, &object).expect("reconciles again");
<<with finalizer>>
    host.reconcile(&<<kind>>Reconciler, &object).expect("reconciles again");
<<end>>
    assert_eq!(host.writes().len(), 1, "nothing more to write");
}
<<with finalizer>>

#[test]
fn cleanup_deletes_the_config_map() {
    let host = MockHost::new();
    let object = json!({
        "metadata": { "name": "a", "namespace": "b" },
        "spec": { "message": "Hello" },
    });
    let map = gvk("", "v1", "ConfigMap").named("b", "a");
    host.reconcile(&<<kind>>Reconciler, &object).expect("reconciles");
    assert!(host.object(&map).is_some(), "applied");
    // The second one finds nothing to delete, which is no error.
    for _ in 0..2 {
        host.cleanup(&<<kind>>Reconciler, &object).expect("cleans up");
        assert_eq!(host.object(&map), None);
    }
}
<<end>>

<<with messages>>
#[test]
fn message_creates_its_object_once() {
    let host = MockHost::new();
    let body = json!({ "name": "a", "message": "Hello" }).to_string();
    for _ in 0..2 {
        let delivery = Delivery::new("requests", body.clone().into_bytes());
        assert_eq!(host.handle(&handle, &delivery), Ok(Disposition::Ack));
    }
    assert_eq!(host.writes(), ["create <<kind>> a"]);
    let garbage = Delivery::new("requests", b"{".to_vec());
    let refused = host.handle(&handle, &garbage).expect("a disposition");
    assert!(matches!(refused, Disposition::Reject(_)), "{refused:?}");
}

<<end>>
/// `ostler plugin crds` writes the file.
#[test]
fn checked_in_crd_matches_the_types() {
    let (name, text) = crd::file::<<<kind>>Spec>();
    let path = format!("{}/crds/{name}", env!("CARGO_MANIFEST_DIR"));
    let there = std::fs::read_to_string(&path).expect("is there");
    assert!(there == text, "{path} differs from the types: run `ostler plugin crds`");
}
