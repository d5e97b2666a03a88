//! Plugins of a plan: the changes and hooks of a new build, and `Plugin` objects.

use std::{collections::BTreeMap, sync::Arc};

use ostler::testing::{
    grants::Grants,
    key::Gvk,
    manifest::{self, Manifest},
    oci::{ComponentInterfaces, ComponentStore, PullLimits, RegistryAuth},
    plan::{PlanRequest, plan},
};
use ostler_test_harness::{
    Lab, PACK_GRANTS,
    probe::{kind, write},
    process, read_component,
    registry::RegistryProcess,
    scenario, with_note,
};
use serde_json::{Value, json};

use super::{file, plan_request, planned, probe, settings, settled};

/// A rebuilt component without changes plans nothing, one with another message plans a diff, and one that does not load
/// fails the plan.
#[scenario]
async fn new_build_is_planned_with_its_changes(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let same = lab.path().join("same.wasm");
    std::fs::write(&same, with_note(&read_component("tests/probe"), "another build")).expect("written");
    let report = planned(
        &lab,
        PlanRequest {
            builds: vec![same.clone()],
            ..plan_request(&lab)
        },
    )
    .await;
    assert_eq!(report.text(), "");
    assert_eq!(report.objects.len(), 1);
    // A build with another message in its data segment.
    let other = lab.path().join("other.wasm");
    let bytes = replace_text(
        &read_component("tests/probe"),
        b"requested by a step",
        b"REQUESTED BY A STEP",
    );
    std::fs::write(&other, bytes).expect("written");
    lab.start_host().await;
    lab.apply_probe("p", json!([{"do": "yield"}]), json!([])).await;
    lab.wait_condition(&kind(), "p", "Ready", "False", "Requested")
        .await;
    lab.wait_idle().await;
    drop(lab.host.take());
    let before = planned(&lab, plan_request(&lab)).await;
    assert!(!before.has_changes(), "{}", before.text());
    let report = planned(
        &lab,
        PlanRequest {
            builds: vec![other],
            ..plan_request(&lab)
        },
    )
    .await;
    let [change] = &report.changes[..] else {
        panic!("one change: {}", report.text());
    };
    assert!(
        change.diff.contains("-    message: requested by a step"),
        "{}",
        change.diff
    );
    assert!(
        change.diff.contains("+    message: REQUESTED BY A STEP"),
        "{}",
        change.diff
    );
    let broken = lab.path().join("broken.wasm");
    std::fs::write(&broken, b"no component").expect("written");
    let refused = plan(
        lab.client.clone(),
        settings(&lab),
        &PlanRequest {
            builds: vec![broken],
            ..plan_request(&lab)
        },
    )
    .await;
    let why = format!("{:#}", refused.expect_err("not a component"));
    assert!(why.contains("broken.wasm"), "{why}");
}

/// A build that requests fewer permissions than the one it replaces gets only those, and inherits its configuration.
#[scenario]
async fn replacing_build_inherits_grants_and_config(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let modest = |text: &str| {
        let manifest = Manifest::parse(text, "plugin.yaml").expect("it parses");
        let path = lab.path().join("modest.wasm");
        let wasm = manifest::embed_manifest(&read_component("tests/probe"), &manifest).expect("a component");
        std::fs::write(&path, wasm).expect("written");
        PlanRequest {
            builds: vec![path],
            files: file(probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]))),
            ..plan_request(&lab)
        }
    };
    let reads = "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}";
    let report = planned(&lab, modest(reads)).await;
    let text = report.text();
    assert!(
        text.contains("PermissionDenied") && text.contains("its manifest does not ask for it"),
        "{text}"
    );
    assert!(!text.contains("ConfigMap/"), "{text}");
    // The inherited configuration is validated against the schema of the new build.
    let wants = "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}]}
config: {schema: {type: object, required: [word], properties: {word: {type: string}}}}";
    let refused = plan(lab.client.clone(), settings(&lab), &modest(wants)).await;
    let why = format!("{:#}", refused.expect_err("it lacks a word"));
    assert!(why.contains("modest.wasm") && why.contains("word"), "{why}");
    std::fs::write(lab.settings.plugins.join("probe.yaml"), "word: yes-and-no").expect("written");
    let report = planned(&lab, modest(wants)).await;
    assert!(report.text().contains("+  v: \"2\""), "{}", report.text());
}

/// `Plugin` objects configure the plugins of a plan as they do those of a host.
#[scenario]
async fn plan_uses_plugin_objects(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let plugins = Gvk::new("ostler.dev", "v1alpha1", "Plugin");
    let object = |verbs: Value, more: Value| {
        let mut object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
            "spec": {"source": {"file": "probe.wasm"}, "grants": {"reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": verbs}]}}});
        for (field, value) in more.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        object
    };
    let both = || json!(["get", "apply"]);
    let edit = || {
        let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
        PlanRequest {
            files: file(edited),
            ..plan_request(&lab)
        }
    };
    let expect_text = async |plan_request: PlanRequest, words: &str| {
        let text = planned(&lab, plan_request).await.text();
        assert!(text.contains(words), "{words} in\n{text}");
        text
    };
    // The grants file allows it; the Plugin object, which takes precedence, does not.
    lab.apply(object(json!(["get"]), json!({}))).await;
    let text = expect_text(edit(), "PermissionDenied").await;
    assert!(text.contains("spec.grants.kubernetes"), "{text}");
    // The same applies to another build of the plugin.
    let other = lab.path().join("other.wasm");
    std::fs::write(&other, with_note(&read_component("tests/probe"), "another build")).expect("written");
    let with = |builds: &[&std::path::Path]| PlanRequest {
        builds: builds.iter().map(|b| b.to_path_buf()).collect(),
        ..edit()
    };
    expect_text(with(&[&other]), "spec.grants.kubernetes").await;
    // The Plugin object may also come from a file.
    let allowing = ("plugin.yaml".to_owned(), object(both(), json!({})));
    let mut wanted = edit();
    wanted.files.push(allowing);
    let text = expect_text(wanted, "+  v: \"2\"").await;
    assert!(
        text.contains("# Plugin/probe is changed by plugin.yaml"),
        "{text}"
    );
    lab.apply(object(both(), json!({}))).await;
    expect_text(edit(), "+  v: \"2\"").await;
    expect_text(with(&[&other]), "+  v: \"2\"").await;
    // Objects of a suspended plugin wait.
    lab.apply(object(both(), json!({"suspend": true}))).await;
    let text = expect_text(edit(), "the objects of probe wait: its Plugin is suspended").await;
    assert!(!text.contains("ConfigMap/"), "{text}");
    // The canary reconciles its share of the objects.
    lab.install_bytes(
        "canary",
        &replace_text(
            &read_component("tests/probe"),
            b"requested by a step",
            b"REQUESTED BY A STEP",
        ),
    );
    let canary = json!({"source": {"file": "canary.wasm"}, "objects": {"weight": 100}});
    lab.apply(object(both(), json!({"suspend": false, "canary": canary})))
        .await;
    let parked = || PlanRequest {
        files: file(probe(&lab, "p", json!([{"do": "park"}]), json!([]))),
        ..plan_request(&lab)
    };
    expect_text(parked(), "Requested: REQUESTED BY A STEP").await;
    lab.apply(object(both(), json!({"suspend": false, "canary": null})))
        .await;
    // A file of the same plugin that its Plugin object does not name is left out.
    let text = expect_text(parked(), "Requested: requested by a step").await;
    assert!(
        text.contains("canary.wasm is left out of the plan: the Plugin object probe configures its plugin"),
        "{text}"
    );
    // Without any plugin the plan fails with the reasons.
    for name in ["probe.wasm", "canary.wasm"] {
        std::fs::remove_file(lab.settings.plugins.join(name)).expect("removed");
    }
    let refused = plan(lab.client.clone(), settings(&lab), &edit()).await;
    let why = format!("{:#}", refused.expect_err("no component"));
    assert!(
        why.contains("the Plugin probe is left out of the plan: FileNotFound: probe.wasm"),
        "{why}"
    );
    // A component from a registry needs no plugin directory.
    let registry = RegistryProcess::start_public();
    let reference = format!("{}/plugins/probe:1", registry.address());
    let pushed = ComponentStore::new(None, PullLimits::default())
        .push_component(
            &reference.parse().expect("a reference"),
            &RegistryAuth::anonymous(),
            read_component("tests/probe").into(),
            &ComponentInterfaces::default(),
            BTreeMap::new(),
            Arc::new(|_| {}),
        )
        .await
        .expect("pushed");
    let source = json!({"oci": {"reference": pushed.reference.to_string()}});
    lab.apply(object(both(), json!({"source": source}))).await;
    lab.settings.plugins = lab.path().join("nowhere");
    let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
    let files = file(edited);
    let text = planned(
        &lab,
        PlanRequest {
            files,
            ..plan_request(&lab)
        },
    )
    .await
    .text();
    assert!(text.contains("+  v: \"2\""), "{text}");
    let api = lab.api(&plugins, "");
    api.delete("probe", &Default::default()).await.expect("deleted");
}

/// A component with a text in its data replaced by another of the same length.
fn replace_text(wasm: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut wasm = wasm.to_vec();
    let places: Vec<usize> = (0..wasm.len() - from.len())
        .filter(|at| wasm[*at..].starts_with(from))
        .collect();
    assert!(!places.is_empty(), "the component contains the text");
    for at in places {
        wasm[at..at + from.len()].copy_from_slice(to);
    }
    wasm
}

/// A plan shows the upgrades of stored objects by the hooks, and reports a hook that fails.
#[scenario]
async fn plan_runs_hooks(mut lab: Lab) {
    let grants = format!("{PACK_GRANTS}{}", process::LIFECYCLE_GRANTS);
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.install(&["tests/lifecycle"]);
    let beat = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "b", "namespace": lab.namespace}, "spec": {"behaviour": "beat"}});
    lab.apply(beat).await;
    let report = planned(&lab, plan_request(&lab)).await;
    let diff: String = report.changes.iter().map(|c| &*c.diff).collect();
    assert!(diff.contains("+    tests.ostler.dev/upgrades: \"1\""), "{diff}");
    // The reconcile sees the upgraded object.
    assert!(diff.contains("+  upgrades: \"1\""), "{diff}");
    let config = json!({"failure": "as requested"}).to_string();
    std::fs::write(lab.settings.plugins.join("lifecycle.yaml"), config).expect("written");
    let report = planned(&lab, plan_request(&lab)).await;
    assert!(!report.has_changes(), "{}", report.text());
    let text = report.text();
    assert!(
        text.contains("the objects of lifecycle would wait: initialize: unavailable: as requested"),
        "{text}"
    );
}
