//! A component that misbehaves costs that reconcile only; its neighbours go on.

use std::time::Duration;

use ostler::key::Gvk;
use ostler_test_harness::{Lab, condition, scenarios};
use serde_json::{Value, json};

scenarios!(hostile: traps,
    panics,
    loops_for_ever,
    allocates_without_end,
    recurses_without_end,
    returns_nonsense,
    calls_and_chatters_without_end
);

fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

fn object(lab: &Lab, name: &str, behaviour: &str) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"behaviour": behaviour}})
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}})
}

/// One object misbehaves; objects of the same plugin and of another are made after that and become Ready all the
/// same, and the one that misbehaved says what happened and recovers when it is told to behave.
async fn costs_its_own_reconcile(lab: &mut Lab, behaviour: &str, reason: &str, words: &str) {
    lab.settings.limits.cpu = Duration::from_millis(200);
    lab.install(&["hostile/hostile", "examples/greeting"]);
    lab.start_host().await;
    lab.apply(object(lab, "bad", behaviour)).await;
    let bad = lab.condition(&hostile(), "bad", "Ready", "False", reason).await;
    let message = condition(&bad, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(message.contains(words), "{message:?} should speak of {words:?}");
    lab.apply(object(lab, "good", "behave")).await;
    lab.apply(greeting(lab, "neighbour")).await;
    lab.ready(&hostile(), "good").await;
    lab.ready(
        &Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting"),
        "neighbour",
    )
    .await;
    lab.apply(object(lab, "bad", "behave")).await;
    lab.ready(&hostile(), "bad").await;
}

async fn traps(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "trap", "PluginTrapped", "unreachable").await;
}

async fn panics(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "panic", "PluginTrapped", "trapped").await;
    assert!(
        ostler_test_harness::logs().contains("as told"),
        "the panic's own words are in the log"
    );
}

async fn loops_for_ever(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "loop", "PluginTimeout", "does it loop?").await;
}

async fn allocates_without_end(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "grow", "PluginOutOfMemory", "64 MiB").await;
}

async fn recurses_without_end(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "recurse", "PluginTrapped", "trapped").await;
}

async fn returns_nonsense(mut lab: Lab) {
    costs_its_own_reconcile(&mut lab, "nonsense", "PluginStatusInvalid", "not a JSON object").await;
}

async fn calls_and_chatters_without_end(mut lab: Lab) {
    lab.settings.limits.host_calls = 100;
    lab.install(&["hostile/hostile"]);
    lab.start_host().await;
    for behaviour in ["call", "chatter"] {
        lab.apply(object(&lab, behaviour, behaviour)).await;
        // What is over the limit is dropped; the reconcile itself is none the worse.
        lab.ready(&hostile(), behaviour).await;
    }
}
