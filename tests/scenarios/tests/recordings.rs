//! Recordings: failed reconciles are kept, replay identically, show where another build diverges, and contain no secret.

mod commands;

use std::sync::Arc;

use ostler::testing::{
    engine::Engine,
    grants::Grants,
    inspection,
    key::Gvk,
    limits::PluginLimits,
    plugin::{LoadState, SlotReport},
    recording::{Retention, format::Recording, value::RecordedValue},
    replay::{Difference, Replayed, replay},
};
use ostler_test_harness::{
    ADMIN_PASSWORD, Lab, PACK_GRANTS, concourse::kind, greeting_kind, read_component, scenario,
};
use serde_json::{Value, json};
use wasmparser::{Parser, Payload, TypeRef};

/// Grants of the probe without access to Secrets.
const NO_SECRETS: &str = "
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, list, apply], namespaces: ['*']}
";

fn probe() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Probe")
}

fn probe_with_steps(lab: &Lab, name: &str, steps: Value) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"steps": steps}})
}

/// A probe that reads, writes, reads again and fails terminally.
fn failing_probe(lab: &Lab, name: &str) -> Value {
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
    probe_with_steps(
        lab,
        name,
        json!([
            {"do": "get", "kind": "ConfigMap", "name": "first"},
            {"do": "apply", "object": map.to_string()},
            {"do": "get", "kind": "ConfigMap", "name": name},
            {"do": "park"},
        ]),
    )
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}})
}

/// Starts a host with the probe, without access to Secrets.
async fn start_probe_host(lab: &mut Lab) {
    lab.settings.grants = Grants::parse(&[PACK_GRANTS, NO_SECRETS].concat(), "grants.yaml").expect("grants");
    lab.install(&["tests/probe"]);
    lab.start_host().await;
}

/// Runs a component against a recording, in an engine of its own.
async fn replay_recording(wasm: &[u8], recording: &Recording) -> Result<Replayed, String> {
    let inspection = inspection::inspect(wasm).expect("a component");
    let engine = Engine::new(2, PluginLimits::default().memory, None, None).expect("an engine");
    let compiled = engine.compile(wasm, inspection.wasi).expect("it compiles");
    replay(&engine, &compiled, Arc::new(recording.clone())).await
}

/// Another build: a text in its data is replaced by another of the same length.
fn replace_text(wasm: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut out = wasm.to_vec();
    let at: Vec<_> = memchr::memmem::find_iter(wasm, from.as_bytes()).collect();
    assert!(!at.is_empty(), "{from:?} is in the component");
    for start in at {
        out[start..start + to.len()].copy_from_slice(to.as_bytes());
    }
    out
}

/// Another build: `reconcile` traps in its first instruction.
fn make_trapping(wasm: &[u8]) -> Vec<u8> {
    let (mut imported, mut wanted, mut next) = (0, None, 0);
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.expect("a component") {
            Payload::Version { .. } => (imported, wanted, next) = (0, None, 0),
            Payload::ImportSection(imports) => {
                let imports = imports.into_imports().map(|i| i.expect("an import").ty);
                imported = imports.filter(|ty| matches!(ty, TypeRef::Func(_))).count();
            }
            Payload::ExportSection(exports) => {
                let mut exports = exports.into_iter().map(|e| e.expect("an export"));
                wanted = exports
                    .find(|e| e.name.ends_with("reconciler@0.1.0#reconcile"))
                    .map(|e| e.index as usize);
            }
            Payload::CodeSectionEntry(body) => {
                if wanted == Some(imported + next) {
                    let mut operators = body.get_operators_reader().expect("operators");
                    let (_, start) = operators.read_with_offset().expect("one");
                    let (_, end) = operators.read_with_offset().expect("another");
                    let mut out = wasm.to_vec();
                    out[start..end].fill(0x01); // nop
                    out[start] = 0x00; // unreachable
                    wasmparser::Validator::new()
                        .validate_all(&out)
                        .expect("still a component");
                    return out;
                }
                next += 1;
            }
            _ => {}
        }
    }
    panic!("no `reconcile` in the component");
}

#[scenario]
async fn failed_reconcile_is_recorded_and_replays_identically(mut lab: Lab) {
    start_probe_host(&mut lab).await;
    lab.apply(failing_probe(&lab, "bad")).await;
    lab.apply(probe_with_steps(
        &lab,
        "good",
        json!([{"do": "get", "kind": "ConfigMap", "name": "first"}]),
    ))
    .await;
    lab.wait_condition(&probe(), "bad", "Ready", "False", "Requested")
        .await;
    lab.wait_ready(&probe(), "good").await;
    lab.wait_idle().await;
    let store = &lab.host().services().recordings;
    let kept = store.list();
    assert!(!kept.is_empty());
    assert!(
        kept.iter().all(|f| *f.key().name == *"bad"),
        "only what failed is kept"
    );
    let recording = store
        .last(&lab.key(&probe(), "bad"))
        .expect("it is kept")
        .to_recording();
    assert!(
        recording.ended.contains("terminal: Requested"),
        "{}",
        recording.ended
    );
    let functions: Vec<_> = recording.calls.iter().map(|c| &*c.function).collect();
    let effects: Vec<_> = functions
        .iter()
        .filter(|f| f.starts_with("kubernetes."))
        .collect();
    assert_eq!(
        effects,
        [&"kubernetes.get", &"kubernetes.apply", &"kubernetes.get"]
    );
    // The replay uses the parsed text, so it also tests the file format.
    let recording = Recording::parse(&recording.to_text(), "r.json").expect("its own format");
    let wasm = read_component("tests/probe");
    let same = replay_recording(&wasm, &recording)
        .await
        .expect("it can be replayed");
    assert!(same.same && same.differences.is_empty(), "{same:#?}");
    assert_eq!((same.calls, &*same.ended), (recording.calls.len(), "failure"));
    // A successful reconcile is kept for a while, too.
    let good = store
        .last(&lab.key(&probe(), "good"))
        .expect("a kept recording")
        .to_recording();
    assert!(
        replay_recording(&wasm, &good)
            .await
            .expect("it can be replayed")
            .same
    );
    // Stands for a build that behaves differently: the recorded input is edited so that the second read differs.
    let mut other = recording.clone();
    let RecordedValue::Record(request) = &mut other.request else {
        panic!("a request")
    };
    for (name, value) in request {
        if let (RecordedValue::Bytes(object), "object") = (value, &**name) {
            let mut edited: Value = serde_json::from_slice(object).expect("JSON");
            edited["spec"]["steps"][2]["name"] = "elsewhere".into();
            *object = edited.to_string().into();
        }
    }
    let second = functions
        .iter()
        .rposition(|f| *f == "kubernetes.get")
        .expect("two reads")
        + 1;
    let departed = replay_recording(&wasm, &other).await.expect("it can be replayed");
    assert!(!departed.same);
    let Some(Difference::Diverged {
        call,
        function,
        changes,
        ..
    }) = departed.differences.last()
    else {
        panic!("{departed:#?}")
    };
    assert_eq!((*call, &**function), (second, "kubernetes.get"));
    assert_eq!(changes[0].path, "ref.name");
    assert_eq!(changes[0].replayed, Some(json!("elsewhere")));
}

#[scenario]
async fn recordings_beyond_the_count_are_evicted(mut lab: Lab) {
    lab.settings.record.max_count = 5;
    // One worker, so that reconciles end in the order in which they started.
    lab.settings.workers = 1;
    start_probe_host(&mut lab).await;
    for i in 0..20 {
        lab.apply(failing_probe(&lab, &format!("p{i}"))).await;
    }
    for i in 0..20 {
        lab.wait_condition(&probe(), &format!("p{i}"), "Ready", "False", "Requested")
            .await;
    }
    lab.wait_idle().await;
    let store = &lab.host().services().recordings;
    assert_eq!((store.size().0, store.list().len()), (5, 5));
    let at: Vec<_> = store.list().iter().map(|f| f.started_at()).collect();
    assert!(at.iter().max() == at.first(), "the newest recordings are kept");
}

#[scenario]
async fn recording_of_a_secret_reader_omits_values(mut lab: Lab) {
    // The lab's default grants let the probe read Secrets.
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": lab.namespace},
        "stringData": {"password": ADMIN_PASSWORD}}),
    )
    .await;
    let reads = json!([{"do": "get", "kind": "Secret", "name": "s"}, {"do": "park"}]);
    lab.apply(probe_with_steps(&lab, "thief", reads)).await;
    lab.wait_condition(&probe(), "thief", "Ready", "False", "Requested")
        .await;
    lab.wait_idle().await;
    let kept = lab.host().services().recordings.last(&lab.key(&probe(), "thief"));
    let recording = kept.expect("it is kept").to_recording();
    let text = recording.to_text();
    assert!(
        text.contains("kubernetes.get") && text.contains("terminal: Requested"),
        "{text}"
    );
    for secret in [
        ADMIN_PASSWORD,
        "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ",
        "\"password\"",
    ] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let error = replay_recording(&read_component("tests/probe"), &recording)
        .await
        .expect_err("the recording has no values to respond with");
    assert!(error.contains("readSecrets"), "{error}");
}

#[scenario]
async fn new_build_is_tested_with_recordings(mut lab: Lab) {
    let wasm = read_component("examples/greeting");
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    for i in 0..5 {
        lab.apply(greeting(&lab, &format!("g{i}"))).await;
    }
    for i in 0..5 {
        lab.wait_ready(&greeting_kind(), &format!("g{i}")).await;
    }
    lab.wait_idle().await;
    let report = || -> SlotReport { lab.host().registry().reports()[0].clone() };
    let good = report().digest;
    // A build that traps on the recorded reconciles is refused.
    lab.install_bytes("greeting", &make_trapping(&wasm));
    lab.wait_until("the build that traps is refused", async || {
        report().state == LoadState::Refused
    })
    .await;
    let refused = report();
    assert_eq!(refused.digest, good, "the previous build serves");
    assert!(
        refused.message.contains("traps where the previous build did not")
            && refused.message.contains("Greeting/"),
        "{}",
        refused.message
    );
    lab.apply(greeting(&lab, "after")).await;
    lab.wait_ready(&greeting_kind(), "after").await;
    lab.wait_idle().await;
    // A build with another result serves, and the difference is reported.
    lab.install_bytes("greeting", &replace_text(&wasm, "Hello", "Howdy"));
    lab.wait_until("the new build serves", async || report().digest != good)
        .await;
    lab.wait_until("its preflight is reported", async || report().preflight.is_some())
        .await;
    let swapped = report();
    let probe = swapped.preflight.expect("a preflight");
    assert!(probe.replayed >= 1 && probe.same == 0, "{probe:#?}");
    assert_eq!(probe.differing.len(), probe.replayed, "{probe:#?}");
    let what = &probe.differing[0].what;
    assert!(what.contains("kubernetes.apply: object.data.greeting"), "{what}");
    assert!(what.contains("Hello") && what.contains("Howdy"), "{what}");
    println!(
        "{} recordings in {} ms, the swap took {:?} ms",
        probe.replayed, probe.milliseconds, swapped.swapped_ms
    );
    // The same code under another digest shows no difference.
    let howdy = report().digest;
    lab.wait_idle().await;
    let again = ostler_test_harness::with_note(&replace_text(&wasm, "Hello", "Howdy"), "rebuilt");
    lab.install_bytes("greeting", &again);
    lab.wait_until("the rebuilt one serves", async || {
        report().digest != howdy && report().preflight.is_some()
    })
    .await;
    let probe = report().preflight.expect("a preflight");
    assert!(probe.replayed >= 1 && probe.same == probe.replayed, "{probe:#?}");
    // The recordings of a removed plugin are deleted, since there is no build to test with them.
    let of_it = || lab.host().services().recordings.list_replayable("greeting").len();
    assert!(of_it() > 0);
    std::fs::remove_file(lab.settings.plugins.join("greeting.wasm")).expect("removed");
    lab.wait_until("its recordings are deleted", async || of_it() == 0)
        .await;
}

#[scenario]
async fn javascript_component_replays_identically(lab: Lab) {
    replay_bookmark("bookmark-js", lab).await;
}

#[scenario]
async fn python_component_replays_identically(lab: Lab) {
    replay_bookmark("bookmark-python", lab).await;
}

/// Python's components import WASI and get time and random numbers from it; both are recorded.
async fn replay_bookmark(plugin: &str, mut lab: Lab) {
    lab.settings.record.retention = Retention::All;
    let grants = format!(
        "plugins:\n  {plugin}:\n    reconciles: [{{group: '*', kinds: ['*']}}]\n    upstreams: [{{methods: [GET], paths: [/*]}}]\n"
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.install(&[&format!("examples/{plugin}")]);
    lab.start_host().await;
    let bookmarks = Gvk::new("examples.ostler.dev", "v1alpha1", "Bookmark");
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Bookmark",
        "metadata": {"name": "home", "namespace": lab.namespace},
        "spec": {"title": "Home", "upstream": "nowhere", "path": "/", "every": 60}}),
    )
    .await;
    lab.wait_condition(&bookmarks, "home", "Ready", "False", "NotFound")
        .await;
    let find = || {
        let recordings = &lab.host().services().recordings;
        recordings.last(&lab.key(&bookmarks, "home"))
    };
    // It is kept after the write of the status.
    lab.wait_until("the recording is kept", async || find().is_some())
        .await;
    let recording = find().expect("it is kept").to_recording();
    let text = recording.to_text();
    assert_eq!(recording.wasi.is_some(), plugin == "bookmark-python", "{text}");
    assert!(!recording.calls.is_empty(), "{text}");
    let recording = Arc::new(Recording::parse(&recording.to_text(), "r.json").expect("its own format"));
    // The engine has the host's settings, so that the compiled code is found in the cache.
    let limits = &lab.settings.limits;
    let engine = Engine::new(
        lab.settings.workers * 2,
        limits.memory,
        lab.settings.cache.clone(),
        None,
    );
    let engine = engine.expect("an engine");
    let compiled = engine.compile(&read_component(&format!("examples/{plugin}")), true);
    let compiled = compiled.expect("it compiles");
    for _ in 0..2 {
        let replayed = replay(&engine, &compiled, recording.clone()).await;
        let replayed = replayed.expect("it can be replayed");
        assert!(replayed.same, "{replayed:#?}");
    }
}

#[scenario(simulated)]
async fn recordings_of_the_pack_have_no_secret_and_replay(mut lab: Lab) {
    lab.settings.record.retention = Retention::All;
    lab.settings.record.max_count = 500;
    lab.start_pack().await;
    // The password is missing at first, so that failures are recorded as well.
    lab.apply(lab.instance_object()).await;
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.apply_chain().await;
    let kept = lab.host().services().recordings.list();
    let recordings: Vec<_> = kept.iter().map(|f| f.to_recording()).collect();
    let mut functions = std::collections::BTreeSet::new();
    for recording in &recordings {
        let text = recording.to_text();
        for secret in [ADMIN_PASSWORD, "registry-pass-000", "Y29ycmVjdC1ob3JzZS"] {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
        functions.extend(recording.calls.iter().map(|c| c.function.clone()));
    }
    // The recordings include requests, responses and digests of Secrets, where a secret could be found.
    for function in [
        "http.send-all",
        "http.secret-digest",
        "kubernetes.apply",
        "kubernetes.require-ready",
    ] {
        assert!(functions.contains(function), "no {function} in {functions:?}");
    }
    // Every recording, including HTTP calls, replays identically.
    let mut engines = std::collections::BTreeMap::new();
    for recording in &recordings {
        let name = recording.plugin.name.clone();
        let (engine, compiled) = engines.entry(name.clone()).or_insert_with(|| {
            let wasm = read_component(&format!("concourse/{name}"));
            let cache = lab.settings.cache.clone();
            let engine = Engine::new(2, PluginLimits::default().memory, cache, None).expect("an engine");
            let compiled = engine.compile(&wasm, false).expect("it compiles");
            (engine, compiled)
        });
        let parsed = Recording::parse(&recording.to_text(), "r.json").expect("its own format");
        let replayed = replay(engine, compiled, Arc::new(parsed))
            .await
            .expect("it can be replayed");
        assert!(replayed.same, "{}: {replayed:#?}", recording.object);
    }
    println!("{} recordings replayed the same", recordings.len());
    // Another build of the team plugin requests another path: the replay reports the call.
    let of_team = |r: &&Recording| {
        r.object.starts_with("Team/") && r.calls.iter().any(|c| c.function.starts_with("http.send"))
    };
    let recording = recordings.iter().find(of_team).expect("a team that was made");
    let sends = recording
        .calls
        .iter()
        .position(|c| c.function.starts_with("http.send"))
        .expect("a request")
        + 1;
    let other = replace_text(
        &read_component("concourse/concourse-team"),
        "/api/v1/teams",
        "/api/v2/teams",
    );
    let replayed = replay_recording(&other, recording)
        .await
        .expect("it can be replayed");
    let first = replayed
        .differences
        .iter()
        .find(|d| d.affects_others())
        .expect("it differs");
    match first {
        Difference::Diverged { call, changes, .. } | Difference::Arguments { call, changes, .. } => {
            assert!(*call >= sends, "{replayed:#?}");
            let path = changes.iter().find(|c| c.path.ends_with("pathAndQuery"));
            assert!(
                path.is_some_and(|c| c
                    .replayed
                    .as_ref()
                    .is_some_and(|p| p.to_string().contains("/api/v2/"))),
                "{changes:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}
