//! Expansion of the attribute macros for a struct and a function.

use ostler_sdk::{crd, gvk, mock::MockHost, prelude::*};

/// A note, kept in a ConfigMap
/// of the same name.
///
/// It is short.
#[ostler_sdk::resource(group = "tests.dev", version = "v1", namespaced)]
pub struct NoteSpec {
    /// Text of the note.
    pub text: String,
}

/// Stores the note.
#[ostler_sdk::reconciler]
pub fn keep(ctx: &Context, note: &Note) -> Result<Outcome, Failure> {
    if note.spec.text.is_empty() {
        return Err(Failure::terminal("Empty", "there is nothing to keep"));
    }
    ctx.apply_owned(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": note.name(), "namespace": note.namespace() },
        "data": { "text": note.spec.text },
    }))?;
    Ok(Outcome::await_change())
}

#[test]
fn kind_derives_from_struct_attributes() {
    let (name, _) = crd::file::<NoteSpec>();
    assert_eq!(name, "tests.dev_notes.yaml");
    let crd = crd::crd::<NoteSpec>();
    assert_eq!(crd["spec"]["names"]["kind"], "Note");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(
        schema["description"],
        "A note, kept in a ConfigMap of the same name."
    );
}

/// A counter.
#[ostler_sdk::resource(group = "tests.dev", version = "v1", namespaced, status = CounterStatus)]
pub struct CounterSpec {
    /// Step of the counter.
    pub step: i64,
}

/// Observed state of the counter.
#[ostler_sdk::api]
#[derive(Default)]
pub struct CounterStatus {
    /// Current count.
    pub count: i64,
}

/// The API server would refuse the conditions of a failure before the first count.
#[test]
fn status_may_consist_of_conditions_alone() {
    let crd = crd::crd::<CounterSpec>();
    let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
    assert_eq!(status["properties"]["count"]["type"], "integer");
    assert!(status["properties"]["conditions"].is_object());
    assert!(status["required"].is_null(), "{status}");
}

#[test]
fn reconciler_attribute_implements_the_guest_trait() {
    let host = MockHost::new();
    let note = |text: &str| json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"text": text}});
    let outcome = host.reconcile(&keep, &note("short")).expect("reconciles");
    assert_eq!(outcome, Outcome::await_change());
    let map = host.object(&gvk("", "v1", "ConfigMap").named("b", "a"));
    assert_eq!(map.expect("applied")["data"]["text"], "short");
    let failure = host.reconcile(&keep, &note("")).expect_err("it is empty");
    assert_eq!(failure.reason, "Empty");
}
