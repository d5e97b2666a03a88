//! The logic, against the SDK's host in memory.

<<without messages>>
use <<crate>>::{<<kind>>Spec, reconcile};
use ostler_sdk::{Condition, crd, gvk, mock::Host, serde_json::json};
<<with messages>>
use <<crate>>::{<<kind>>Spec, handle, reconcile};
use ostler_sdk::{Condition, Delivery, Disposition, crd, gvk, mock::Host, serde_json::json};
<<end>>

#[test]
fn message_is_written_to_a_config_map() {
    let host = Host::new();
    let object = json!({
        "metadata": { "name": "a", "namespace": "b" },
        "spec": { "message": "Hello" },
    });
    let outcome = host.reconcile(&reconcile, &object).expect("reconciles");
    let ready = Condition::new_true("Ready", "Applied", "message applied: Hello");
    assert_eq!(outcome.conditions, [ready]);
    let map = host.object(&gvk("", "v1", "ConfigMap").named("b", "a"));
    assert_eq!(map.expect("applied")["data"]["message"], "Hello");

    host.reconcile(&reconcile, &object).expect("reconciles again");
    assert_eq!(host.writes().len(), 1, "nothing more to write");
}

<<with messages>>
#[test]
fn message_creates_its_object_once() {
    let host = Host::new();
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
/// `UPDATE_CRDS=1 cargo test` writes the file.
#[test]
fn checked_in_crd_matches_the_types() {
    let (name, text) = crd::file::<<<kind>>Spec>();
    let path = format!("{}/crds/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let there = std::fs::read_to_string(&path).expect("is there");
    assert_eq!(there, text, "run it again with UPDATE_CRDS=1");
}
