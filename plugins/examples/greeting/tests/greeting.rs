//! Tests of the example against the SDK's in-memory host.

use greeting::{Greeter, GreetingSpec};
use ostler_sdk::{Condition, Next, Resolution, crd, gvk, mock::MockHost, serde_json::json};

#[test]
fn greeting_is_applied_as_config_map_once() {
    let host = MockHost::new();
    let object = json!({
        "metadata": { "name": "world", "namespace": "default" },
        "spec": { "name": "World", "salutation": "Hi" },
    });
    let outcome = host.reconcile(&Greeter, &object).expect("reconciles");
    assert_eq!(outcome.next, Next::AwaitChange);
    assert_eq!(
        outcome.conditions,
        [Condition::new_true("Ready", "Greeted", "Hi, World!")]
    );
    assert_eq!(host.writes(), ["apply ConfigMap world owned"]);
    let map = host
        .object(&gvk("", "v1", "ConfigMap").named("default", "world"))
        .expect("applied");
    assert_eq!(map["data"]["greeting"], "Hi, World!");

    host.reconcile(&Greeter, &object).expect("reconciles again");
    assert_eq!(host.writes().len(), 1, "nothing changed");
}

#[test]
fn missing_grant_and_invalid_spec_have_distinct_resolutions() {
    let host = MockHost::new();
    let object = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": { "name": "A" } });
    host.deny("kubernetes.apply");
    let failure = host.reconcile(&Greeter, &object).expect_err("may not write");
    assert_eq!(failure.resolution, Resolution::Denied("kubernetes.apply".into()));

    let wrong = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": {} });
    let failure = host.reconcile(&Greeter, &wrong).expect_err("has no name");
    assert_eq!(failure.resolution, Resolution::Terminal);
    assert!(failure.message.contains("name"), "{}", failure.message);
}

#[test]
fn cleanup_emits_farewell_and_succeeds() {
    let host = MockHost::new();
    let object = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": { "name": "A" } });
    let outcome = host.cleanup(&Greeter, &object).expect("cleans up");
    assert_eq!(outcome.next, Next::AwaitChange);
    assert_eq!(host.events(), [("Farewell".into(), "Goodbye, A!".into())]);
}

/// `UPDATE_CRDS=1 cargo test -p greeting` writes the file.
#[test]
fn checked_in_crd_matches_generated_one() {
    let (name, text) = crd::file::<GreetingSpec>();
    let path = format!("{}/../../../crds/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_CRDS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let checked_in = std::fs::read_to_string(&path).expect("is checked in");
    assert_eq!(checked_in, text, "run it again with UPDATE_CRDS=1");
}
