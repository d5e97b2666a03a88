//! The in-memory cluster of the mock behaves as an API server does.

mod table;

use ostler_sdk::{DeleteOptions, Preconditions, gvk, mock::MockHost, prelude::*, serde_json::Value};

/// An object whose reconcile does one thing with the ConfigMap of its name.
#[ostler_sdk::resource(group = "tests.dev", version = "v1", namespaced)]
pub struct PairSpec {
    /// What is done with the ConfigMap.
    pub action: String,
}

/// Executes the action of a Pair.
#[ostler_sdk::reconciler]
pub fn act(ctx: &Context, pair: &Pair) -> Result<Outcome, Failure> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": pair.name(), "namespace": pair.namespace() },
    });
    let reference = gvk("", "v1", "ConfigMap").named(pair.namespace(), pair.name());
    let written: Value = match &*pair.spec.action {
        "create" => ctx.create(&map, true)?.json()?,
        "apply" => ctx.apply_owned(&map)?.json()?,
        uid => {
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: Some(uid.into()),
                    resource_version: None,
                },
                ..DeleteOptions::default()
            };
            ctx.delete_with(&reference, &options)?;
            Value::Null
        }
    };
    Ok(Outcome::await_change().status(&written["metadata"]))
}

/// Runs an action. Returns the UID of the written object, or the error.
fn run(host: &MockHost, action: &str) -> Result<String, Failure> {
    let pair = json!({"metadata": {"name": "a", "namespace": "b", "uid": "p"}, "spec": {"action": action}});
    let status = host.reconcile(&act, &pair)?.status.unwrap_or_default();
    let status: Value = ostler_sdk::serde_json::from_slice(&status).expect("JSON");
    Ok(status["uid"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn object_of_the_same_name_has_another_uid() {
    let host = MockHost::new();
    let first = run(&host, "create").expect("created");
    assert!(!first.is_empty());
    assert_eq!(
        run(&host, "apply").expect("applied"),
        first,
        "it is the same object"
    );
    assert_eq!(host.writes(), ["create ConfigMap a owned"], "nothing changed");
    run(&host, &first).expect("deleted");
    let second = run(&host, "apply").expect("applied");
    assert!(!second.is_empty() && second != first, "{second}");
    // The precondition protects it from a deletion that was meant for the first.
    run(&host, &first).expect_err("refused");
    assert!(host.object(&gvk("", "v1", "ConfigMap").named("b", "a")).is_some());
}
