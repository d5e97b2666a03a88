//! Tests of the lifecycle hooks with the SDK's mock of the host.

use lifecycle::{Counted, UPGRADES};
use ostler_sdk::serde_json::json;
use ostler_sdk::{Error, gvk, mock::MockHost};

#[test]
fn initialize_uses_capabilities_without_an_object() {
    let host = MockHost::new();
    host.initialize(&Counted).expect("nothing to do");
    assert!(host.writes().is_empty());
    host.set_config(json!({"namespace": "here"}));
    for times in ["1", "2"] {
        host.initialize(&Counted).expect("counted");
        let counter = gvk("", "v1", "ConfigMap").named("here", "initialized");
        assert_eq!(
            host.object(&counter).expect("it is there")["data"]["times"],
            times
        );
    }
    host.set_config(json!({"failure": "as requested"}));
    assert_eq!(
        host.initialize(&Counted),
        Err(Error::Unavailable("as requested".into()))
    );
}

#[test]
fn upgrade_returns_object_with_changed_annotations() {
    let object = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "a", "annotations": {"kept": "yes"}}, "spec": {"behaviour": "beat"}});
    let upgraded = MockHost::new()
        .upgrade(&Counted, &object)
        .expect("upgraded")
        .expect("it differs");
    assert_eq!(
        upgraded["metadata"]["annotations"],
        json!({"kept": "yes", UPGRADES: "1"})
    );
    assert_eq!(upgraded["spec"], object["spec"]);
}
