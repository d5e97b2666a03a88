//! Secrets in written objects: the host inserts them, and no plugin reads them again.

use std::sync::{Arc, Mutex};

use ostler::testing::{
    engine::Engine,
    grants::Grants,
    inspection,
    key::Gvk,
    limits::PluginLimits,
    recording::{Retention, format::Recording},
    replay::replay,
};
use ostler_test_harness::{Lab, captured_logs, find_condition, probe::kind, read_component, scenario};
use serde_json::{Value, json};

const OLD_VALUE: &str = "an-inserted-value-0001";
const NEW_VALUE: &str = "an-inserted-value-0002";

fn secrets() -> Gvk {
    Gvk::new("", "v1", "Secret")
}

/// Starts a host whose probe may write the Secret `source` into Secrets of a namespace, and read all Secrets.
async fn start(lab: &mut Lab, target: &str) {
    start_with(lab, target, "readSecrets: true").await;
}

async fn start_with(lab: &mut Lab, target: &str, more: &str) {
    let text = format!(
        "plugins:
  probe:
    reconciles: [{{group: tests.ostler.dev, kinds: [Probe, SelectedProbe]}}]
    kubernetes:
    - {{kinds: [Secret], verbs: [get, list, apply, create, patch, delete], namespaces: ['*']}}
    secrets:
    - {{names: [source], targetNamespaces: [{target}]}}
    events: true
    {more}
"
    );
    lab.settings.grants = Grants::parse(&text, "grants.yaml").expect("they parse");
    lab.install(&["tests/probe"]);
    lab.start_host().await;
}

fn source(lab: &Lab, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "source", "namespace": lab.namespace},
        "stringData": {"key": value}})
}

/// A step that writes the Secret `copy` with the value of `source`.
fn insert() -> Value {
    let copy = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "copy"},
        "stringData": {"config": "password=(inserted-secret);", "plain": "public"}});
    json!({"do": "insert", "name": "source", "body": "key", "object": copy.to_string()})
}

/// Waits until the Secret `copy` in the API server has this value.
async fn wait_copied(lab: &Lab, value: &str) -> Value {
    let expected = encode(&format!("password={value};"));
    lab.wait_until("the Secret has the value", async || {
        let copy = lab.get(&secrets(), "copy").await;
        copy.is_some_and(|copy| copy["data"]["config"] == *expected)
    })
    .await;
    lab.get(&secrets(), "copy").await.expect("there")
}

fn encode(text: &str) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}

#[scenario(real = "server-side apply and conflicts")]
async fn secret_is_written_rotated_and_hidden(mut lab: Lab) {
    let found = Arc::new(Mutex::new((0u32, 0u32)));
    let counts = found.clone();
    lab.settings.inspect = Some(ostler::testing::engine::Inspector::new(move |memory: &[u8]| {
        let has = |word: &str| memory.windows(word.len()).any(|w| w == word.as_bytes());
        let mut counts = counts.lock().expect("lock");
        counts.0 += u32::from(has("(inserted-secret)"));
        // As it is, and within the value in base64.
        let is_leaked = has("an-inserted-value") || has("aW5zZXJ0ZWQtdmFsdWU");
        counts.1 += u32::from(is_leaked);
    }));
    start(&mut lab, "Same").await;
    lab.apply(source(&lab, OLD_VALUE)).await;
    lab.apply_probe("writer", json!([insert()]), json!([])).await;
    let written = lab.wait_ready(&kind(), "writer").await;
    wait_copied(&lab, OLD_VALUE).await;
    let seen = json!({"config": encode("password=(inserted-secret);"), "plain": encode("public")});
    assert_eq!(written["status"]["seen"], json!([seen.to_string()]));

    // Another object, and another way to read it.
    let get = json!({"do": "get", "kind": "Secret", "name": "copy"});
    let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let patch = json!({"do": "patch", "kind": "Secret", "name": "copy", "object": label});
    lab.apply_probe("reader", json!([get, patch]), json!([])).await;
    let read = lab.wait_ready(&kind(), "reader").await;
    let hidden = json!({"config": "Kioq", "plain": encode("public")}).to_string();
    assert_eq!(read["status"]["seen"], json!([hidden, hidden]));
    let unmark = json!({"metadata": {"annotations": null}}).to_string();
    let unmark = json!({"do": "patch", "kind": "Secret", "name": "copy", "object": unmark});
    lab.apply_probe("unmarker", json!([unmark]), json!([])).await;
    lab.wait_condition(&kind(), "unmarker", "Ready", "False", "Invalid")
        .await;

    lab.apply(source(&lab, NEW_VALUE)).await;
    let copy = wait_copied(&lab, NEW_VALUE).await;
    assert_eq!(copy["data"]["plain"], encode("public"));
    lab.wait_idle().await;
    let (searched, leaked) = *found.lock().expect("lock");
    assert!(searched > 0, "no memory had the placeholder");
    assert_eq!(leaked, 0, "memories with the secret");
    let mut texts = captured_logs();
    for probe in lab.list(&kind()).await {
        texts += &probe.to_string();
    }
    assert!(
        !texts.contains("an-inserted-value"),
        "the value is in a log or a status"
    );
}

#[scenario]
async fn missing_secret_is_waited_for_and_missing_grant_denied(mut lab: Lab) {
    start(&mut lab, "elsewhere").await;
    lab.apply(source(&lab, OLD_VALUE)).await;
    lab.apply_probe("writer", json!([insert()]), json!([])).await;
    let denied = lab
        .wait_condition(&kind(), "writer", "Ready", "False", "PermissionDenied")
        .await;
    let message = find_condition(&denied, "Ready")["message"].to_string();
    assert!(message.contains("targetNamespaces: [Same]"), "{message}");
    assert_eq!(lab.get(&secrets(), "copy").await, None);

    lab.host = None;
    lab.delete(&secrets(), "source").await;
    start(&mut lab, "Same").await;
    lab.wait_condition(&kind(), "writer", "Ready", "False", "NotFound")
        .await;
    assert_eq!(lab.get(&secrets(), "copy").await, None);
    lab.apply(source(&lab, NEW_VALUE)).await;
    lab.wait_ready(&kind(), "writer").await;
    wait_copied(&lab, NEW_VALUE).await;
}

#[scenario]
async fn unchanged_object_is_not_written_by_the_next_leader(mut lab: Lab) {
    start(&mut lab, "Same").await;
    lab.apply(source(&lab, OLD_VALUE)).await;
    lab.apply_probe("writer", json!([insert()]), json!([])).await;
    lab.wait_ready(&kind(), "writer").await;
    let before = wait_copied(&lab, OLD_VALUE).await;
    lab.host = None;
    start(&mut lab, "Same").await;
    lab.apply_probe("other", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "other").await;
    lab.wait_idle().await;
    let after = lab.get(&secrets(), "copy").await.expect("there");
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
}

#[scenario]
async fn recording_has_the_placeholder_and_replays(mut lab: Lab) {
    lab.settings.record.retention = Retention::All;
    // The values of a plugin that reads Secrets are not recorded.
    start_with(&mut lab, "Same", "").await;
    lab.apply(source(&lab, OLD_VALUE)).await;
    lab.apply_probe("writer", json!([insert()]), json!([])).await;
    lab.wait_ready(&kind(), "writer").await;
    wait_copied(&lab, OLD_VALUE).await;
    lab.wait_idle().await;
    let recordings: Vec<_> = lab
        .host()
        .services()
        .recordings
        .list()
        .iter()
        .map(|kept| kept.to_recording())
        .filter(|recording| {
            recording
                .calls
                .iter()
                .any(|call| call.function == "kubernetes.apply")
        })
        .collect();
    assert!(!recordings.is_empty(), "no apply was recorded");
    let wasm = read_component("tests/probe");
    let inspection = inspection::inspect(&wasm).expect("a component");
    let cache = lab.settings.cache.clone();
    let engine = Engine::new(2, PluginLimits::default().memory, cache, None).expect("an engine");
    let compiled = engine.compile(&wasm, inspection.wasi).expect("it compiles");
    for recording in recordings {
        let text = recording.to_text();
        assert!(text.contains("(inserted-secret)"), "{text}");
        for leak in ["an-inserted-value", "aW5zZXJ0ZWQtdmFsdWU"] {
            assert!(!text.contains(leak), "{leak} in {text}");
        }
        let parsed = Recording::parse(&text, "r.json").expect("its own format");
        let replayed = replay(&engine, &compiled, Arc::new(parsed)).await;
        let replayed = replayed.expect("it can be replayed");
        assert!(replayed.same, "{replayed:#?}");
    }
}
