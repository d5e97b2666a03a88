//! Recordings: what fails is kept, replays the same, says where another build departs, and has no secret in it.

#[path = "tape/asked.rs"]
mod asked;

use std::sync::Arc;

use asked::{a_trace_follows_reconciles_live, record_and_replay_on_the_command_line};
use ostler::testing::{
    engine::Engine,
    grants::Grants,
    inspection,
    key::Gvk,
    limits::Limits,
    plugin::{LoadState, Report},
    recording::{Keep, format::Recording, value::RecordedValue},
    replay::{Difference, Replayed, replay},
};
use ostler_test_harness::{ADMIN_PASSWORD, Lab, PACK_GRANTS, concourse::kind, read_component, scenarios};
use serde_json::{Value, json};
use wasmparser::{Parser, Payload, TypeRef};

scenarios!(
    what_fails_is_kept_and_replays_the_same,
    recordings_are_bounded,
    a_plugin_that_reads_secrets_leaves_no_value,
    a_new_build_is_probed_with_recordings,
    a_trace_follows_reconciles_live,
    a_component_in_javascript_replays_the_same,
    a_component_in_python_replays_the_same,
    record_and_replay_on_the_command_line,
);
mod pack {
    ostler_test_harness::scenarios!(simulated: no_secret_in_any_recording_and_every_one_replays);
    use super::no_secret_in_any_recording_and_every_one_replays;
}

/// What the probe may do where it may not read Secrets.
const NO_SECRETS: &str = "
  probe:
    kubernetes:
    - {kinds: [ConfigMap], verbs: [get, list, apply]}
";

fn probe() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Probe")
}

fn steps(lab: &Lab, name: &str, steps: Value) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"steps": steps}})
}

/// Reads, writes, reads again and gives up.
fn failing(lab: &Lab, name: &str) -> Value {
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
    steps(
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

/// A host with the probe, which may not read Secrets.
async fn probing(lab: &mut Lab) {
    lab.settings.grants = Grants::parse(&[PACK_GRANTS, NO_SECRETS].concat(), "grants.yaml").expect("grants");
    lab.install(&["tests/probe"]);
    lab.start_host().await;
}

/// Runs a component against a recording, in an engine of its own.
async fn replayed(wasm: &[u8], recording: &Recording) -> Result<Replayed, String> {
    let inspection = inspection::inspect(wasm).expect("a component");
    let engine = Engine::new(2, Limits::default().memory, None, None).expect("an engine");
    let compiled = engine.compile(wasm, inspection.wasi).expect("it compiles");
    replay(&engine, &compiled, Arc::new(recording.clone())).await
}

/// Another build: a text in its data is another one of the same length.
fn patched(wasm: &[u8], from: &str, to: &str) -> Vec<u8> {
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
fn trapping(wasm: &[u8]) -> Vec<u8> {
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
                    let (start, end) = (start as usize, end as usize);
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

async fn what_fails_is_kept_and_replays_the_same(mut lab: Lab) {
    probing(&mut lab).await;
    lab.apply(failing(&lab, "bad")).await;
    lab.apply(steps(
        &lab,
        "good",
        json!([{"do": "get", "kind": "ConfigMap", "name": "first"}]),
    ))
    .await;
    lab.wait_condition(&probe(), "bad", "Ready", "False", "AsTold")
        .await;
    lab.wait_ready(&probe(), "good").await;
    lab.wait_idle().await;
    let tapes = &lab.host().services().recordings;
    let kept = tapes.kept();
    assert!(!kept.is_empty());
    assert!(
        kept.iter().all(|f| *f.key().name == *"bad"),
        "only what failed is kept"
    );
    let recording = tapes
        .last(&lab.key(&probe(), "bad"))
        .expect("it is kept")
        .recording();
    assert!(
        recording.ended.contains("terminal: AsTold"),
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
    // From the file: what is written is read back to the byte.
    let recording = Recording::parse(&recording.text(), "r.json").expect("its own format");
    let wasm = read_component("tests/probe");
    let same = replayed(&wasm, &recording).await.expect("it can be replayed");
    assert!(same.same && same.differences.is_empty(), "{same:#?}");
    assert_eq!((same.calls, &*same.ended), (recording.calls.len(), "failure"));
    // What succeeded is remembered for a while, too.
    let good = tapes
        .last(&lab.key(&probe(), "good"))
        .expect("it is remembered")
        .recording();
    assert!(replayed(&wasm, &good).await.expect("it can be replayed").same);
    // A build that does otherwise, here by being told otherwise: it reads something else in its second read.
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
    let departed = replayed(&wasm, &other).await.expect("it can be replayed");
    assert!(!departed.same);
    let Some(Difference::Departed {
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

async fn recordings_are_bounded(mut lab: Lab) {
    lab.settings.record.count = 5;
    // One after the other: what begins later ends later.
    lab.settings.workers = 1;
    probing(&mut lab).await;
    for i in 0..20 {
        lab.apply(failing(&lab, &format!("p{i}"))).await;
    }
    for i in 0..20 {
        lab.wait_condition(&probe(), &format!("p{i}"), "Ready", "False", "AsTold")
            .await;
    }
    lab.wait_idle().await;
    let tapes = &lab.host().services().recordings;
    assert_eq!((tapes.size().0, tapes.kept().len()), (5, 5));
    let at: Vec<_> = tapes.kept().iter().map(|f| f.at()).collect();
    assert!(at.iter().max() == at.first(), "the newest are kept");
}

async fn a_plugin_that_reads_secrets_leaves_no_value(mut lab: Lab) {
    // As the lab has it, the probe may.
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    lab.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": lab.namespace},
        "stringData": {"password": ADMIN_PASSWORD}}),
    )
    .await;
    let reads = json!([{"do": "get", "kind": "Secret", "name": "s"}, {"do": "park"}]);
    lab.apply(steps(&lab, "thief", reads)).await;
    lab.wait_condition(&probe(), "thief", "Ready", "False", "AsTold")
        .await;
    lab.wait_idle().await;
    let kept = lab.host().services().recordings.last(&lab.key(&probe(), "thief"));
    let recording = kept.expect("it is kept").recording();
    let text = recording.text();
    assert!(
        text.contains("kubernetes.get") && text.contains("terminal: AsTold"),
        "{text}"
    );
    for secret in [
        ADMIN_PASSWORD,
        "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ",
        "\"password\"",
    ] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let error = replayed(&read_component("tests/probe"), &recording)
        .await
        .expect_err("there is nothing to answer with");
    assert!(error.contains("readSecrets"), "{error}");
}

async fn a_new_build_is_probed_with_recordings(mut lab: Lab) {
    let wasm = read_component("examples/greeting");
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    for i in 0..5 {
        lab.apply(greeting(&lab, &format!("g{i}"))).await;
    }
    for i in 0..5 {
        lab.wait_ready(
            &Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting"),
            &format!("g{i}"),
        )
        .await;
    }
    lab.wait_idle().await;
    let report = || -> Report { lab.host().registry().reports()[0].clone() };
    let good = report().digest;
    // It would trap on what the one that serves has done.
    lab.install_bytes("greeting", &trapping(&wasm));
    lab.wait_until("the build that traps is refused", async || {
        report().state == LoadState::Refused
    })
    .await;
    let refused = report();
    assert_eq!(refused.digest, good, "the old one goes on");
    assert!(
        refused.message.contains("traps where the build before did not")
            && refused.message.contains("Greeting/"),
        "{}",
        refused.message
    );
    lab.apply(greeting(&lab, "after")).await;
    lab.wait_ready(&Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting"), "after")
        .await;
    lab.wait_idle().await;
    // It greets otherwise: that is said, and it serves.
    lab.install_bytes("greeting", &patched(&wasm, "Hello", "Howdy"));
    lab.wait_until("the new build serves", async || report().digest != good)
        .await;
    lab.wait_until("its probe is told", async || report().preflight.is_some())
        .await;
    let swapped = report();
    let probe = swapped.preflight.expect("it was probed");
    assert!(probe.replayed >= 1 && probe.same == 0, "{probe:#?}");
    assert_eq!(probe.differing.len(), probe.replayed, "{probe:#?}");
    let what = &probe.differing[0].what;
    assert!(what.contains("kubernetes.apply: object.data.greeting"), "{what}");
    assert!(what.contains("Hello") && what.contains("Howdy"), "{what}");
    println!(
        "{} recordings in {} ms, the swap took {:?} ms",
        probe.replayed, probe.milliseconds, swapped.swapped_ms
    );
    // The same again under another digest: nothing is different.
    let howdy = report().digest;
    lab.wait_idle().await;
    let again = ostler_test_harness::with_note(&patched(&wasm, "Hello", "Howdy"), "rebuilt");
    lab.install_bytes("greeting", &again);
    lab.wait_until("the rebuilt one serves", async || {
        report().digest != howdy && report().preflight.is_some()
    })
    .await;
    let probe = report().preflight.expect("it was probed");
    assert!(probe.replayed >= 1 && probe.same == probe.replayed, "{probe:#?}");
    // When it is gone nothing is kept for builds that will not come.
    let of_it = || lab.host().services().recordings.of_plugin("greeting").len();
    assert!(of_it() > 0);
    std::fs::remove_file(lab.settings.plugins.join("greeting.wasm")).expect("removed");
    lab.wait_until("its recordings are forgotten", async || of_it() == 0)
        .await;
}

async fn a_component_in_javascript_replays_the_same(lab: Lab) {
    bookmark("bookmark-js", lab).await;
}

async fn a_component_in_python_replays_the_same(lab: Lab) {
    bookmark("bookmark-python", lab).await;
}

/// Python's components import WASI, and are told the time and dice by it: both are on the tape.
async fn bookmark(plugin: &str, mut lab: Lab) {
    lab.settings.record.keep = Keep::All;
    let grants = format!("plugins:\n  {plugin}:\n    upstreams: [{{methods: [GET], paths: [/*]}}]\n");
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
    let kept = lab
        .host()
        .services()
        .recordings
        .last(&lab.key(&bookmarks, "home"));
    let recording = kept.expect("it is kept").recording();
    let said = recording.text();
    assert_eq!(recording.wasi.is_some(), plugin == "bookmark-python", "{said}");
    assert!(!recording.calls.is_empty(), "{said}");
    let recording = Arc::new(Recording::parse(&recording.text(), "r.json").expect("its own format"));
    // As the host compiles it, so that its code is in the cache.
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

async fn no_secret_in_any_recording_and_every_one_replays(mut lab: Lab) {
    lab.settings.record.keep = Keep::All;
    lab.settings.record.count = 500;
    lab.start_pack().await;
    // Without its password at first, so that failures are among them.
    lab.apply(lab.instance_object()).await;
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    lab.apply_chain().await;
    let kept = lab.host().services().recordings.kept();
    let recordings: Vec<_> = kept.iter().map(|f| f.recording()).collect();
    let mut functions = std::collections::BTreeSet::new();
    for recording in &recordings {
        let text = recording.text();
        for secret in [ADMIN_PASSWORD, "registry-pass-000", "Y29ycmVjdC1ob3JzZS"] {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
        functions.extend(recording.calls.iter().map(|c| c.function.clone()));
    }
    // That there was something to find it in: requests, answers and digests of Secrets.
    for function in [
        "http.send-all",
        "http.secret-digest",
        "kubernetes.apply",
        "kubernetes.require-ready",
    ] {
        assert!(functions.contains(function), "no {function} in {functions:?}");
    }
    // Every one of them, calls over HTTP included, comes to the same again.
    let mut engines = std::collections::BTreeMap::new();
    for recording in &recordings {
        let name = recording.plugin.name.clone();
        let (engine, compiled) = engines.entry(name.clone()).or_insert_with(|| {
            let wasm = read_component(&format!("concourse/{name}"));
            let cache = lab.settings.cache.clone();
            let engine = Engine::new(2, Limits::default().memory, cache, None).expect("an engine");
            let compiled = engine.compile(&wasm, false).expect("it compiles");
            (engine, compiled)
        });
        let parsed = Recording::parse(&recording.text(), "r.json").expect("its own format");
        let replayed = replay(engine, compiled, Arc::new(parsed))
            .await
            .expect("it can be replayed");
        assert!(replayed.same, "{}: {replayed:#?}", recording.object);
    }
    println!("{} recordings replayed the same", recordings.len());
    // Another build of the team's asks another path: it is said at which call.
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
    let other = patched(
        &read_component("concourse/concourse-team"),
        "/api/v1/teams",
        "/api/v2/teams",
    );
    let replayed = replayed(&other, recording).await.expect("it can be replayed");
    let first = replayed
        .differences
        .iter()
        .find(|d| d.of_effects())
        .expect("it differs");
    match first {
        Difference::Departed { call, changes, .. } | Difference::Arguments { call, changes, .. } => {
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
