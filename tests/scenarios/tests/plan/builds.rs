//! Which plugins a plan is made with: what a new build would change, its hooks included, and `Plugin` objects.

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
    registry::Registry,
    scenarios, with_note,
};
use serde_json::{Value, json};

use super::{file, plan_request, planned, probe, settings, settled};

scenarios!(
    a_new_build_says_what_it_would_change,
    a_new_build_has_what_is_agreed_with_the_one_before,
    plugin_objects_are_planned_with,
    hooks_are_planned,
);

/// The build before knows another way: here the same with a note, whose objects are as they should be, and one that
/// does not load.
async fn a_new_build_says_what_it_would_change(mut lab: Lab) {
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
    // The words of a step are in the component: one that knows no `apply` refuses it.
    let other = lab.path().join("other.wasm");
    let bytes = reworded(
        &read_component("tests/probe"),
        b"a step says so",
        b"A STEP SAID SO",
    );
    std::fs::write(&other, bytes).expect("written");
    lab.start_host().await;
    lab.apply_probe("p", json!([{"do": "yield"}]), json!([])).await;
    lab.wait_condition(&kind(), "p", "Ready", "False", "AsTold").await;
    lab.wait_idle().await;
    drop(lab.host.take());
    let before = planned(&lab, plan_request(&lab)).await;
    assert!(!before.changed(), "{}", before.text());
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
        change.diff.contains("-    message: a step says so"),
        "{}",
        change.diff
    );
    assert!(
        change.diff.contains("+    message: A STEP SAID SO"),
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
    let why = format!("{:#}", refused.expect_err("it is none"));
    assert!(why.contains("broken.wasm"), "{why}");
}

/// A build asks for less than the one before, and has its configuration: what it is granted is what it asks for itself.
async fn a_new_build_has_what_is_agreed_with_the_one_before(mut lab: Lab) {
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
    let reads = "permissions: {kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}";
    let report = planned(&lab, modest(reads)).await;
    let text = report.text();
    assert!(
        text.contains("PermissionDenied") && text.contains("its manifest does not ask for it"),
        "{text}"
    );
    assert!(!text.contains("ConfigMap/"), "{text}");
    // Its configuration is the one of the build before, held to its own schema.
    let wants = "permissions: {kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}]}
config: {schema: {type: object, required: [word], properties: {word: {type: string}}}}";
    let refused = plan(lab.client.clone(), settings(&lab), &modest(wants)).await;
    let why = format!("{:#}", refused.expect_err("it lacks a word"));
    assert!(why.contains("modest.wasm") && why.contains("word"), "{why}");
    std::fs::write(lab.settings.plugins.join("probe.yaml"), "word: yes-and-no").expect("written");
    let report = planned(&lab, modest(wants)).await;
    assert!(report.text().contains("+  v: \"2\""), "{}", report.text());
}

/// What governs the plugins of the cluster governs them in its plan.
async fn plugin_objects_are_planned_with(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let plugins = Gvk::new("ostler.dev", "v1alpha1", "Plugin");
    let object = |verbs: Value, more: Value| {
        let mut object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
            "spec": {"source": {"file": "probe.wasm"}, "grants": {"kubernetes": [{"kinds": ["ConfigMap"], "verbs": verbs}]}}});
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
    let says = async |plan_request: PlanRequest, words: &str| {
        let text = planned(&lab, plan_request).await.text();
        assert!(text.contains(words), "{words} in\n{text}");
        text
    };
    // The grants file allows it; the object, which counts, doesn't.
    lab.apply(object(json!(["get"]), json!({}))).await;
    let text = says(edit(), "PermissionDenied").await;
    assert!(text.contains("spec.grants.kubernetes"), "{text}");
    // So it is for another build of it.
    let other = lab.path().join("other.wasm");
    std::fs::write(&other, with_note(&read_component("tests/probe"), "another build")).expect("written");
    let with = |builds: &[&std::path::Path]| PlanRequest {
        builds: builds.iter().map(|b| b.to_path_buf()).collect(),
        ..edit()
    };
    says(with(&[&other]), "spec.grants.kubernetes").await;
    // A file may have the Plugin, too.
    let allowing = ("plugin.yaml".to_owned(), object(both(), json!({})));
    let mut wanted = edit();
    wanted.files.push(allowing);
    let text = says(wanted, "+  v: \"2\"").await;
    assert!(
        text.contains("# Plugin/probe is changed by plugin.yaml"),
        "{text}"
    );
    lab.apply(object(both(), json!({}))).await;
    says(edit(), "+  v: \"2\"").await;
    says(with(&[&other]), "+  v: \"2\"").await;
    // What is suspended waits.
    lab.apply(object(both(), json!({"suspend": true}))).await;
    let text = says(edit(), "the objects of probe wait: its Plugin is suspended").await;
    assert!(!text.contains("ConfigMap/"), "{text}");
    // Of the same kind of objects the canary has its part.
    lab.install_bytes(
        "canary",
        &reworded(
            &read_component("tests/probe"),
            b"a step says so",
            b"A STEP SAID SO",
        ),
    );
    let canary = json!({"source": {"file": "canary.wasm"}, "objects": {"weight": 100}});
    lab.apply(object(both(), json!({"suspend": false, "canary": canary})))
        .await;
    let parked = || PlanRequest {
        files: file(probe(&lab, "p", json!([{"do": "park"}]), json!([]))),
        ..plan_request(&lab)
    };
    says(parked(), "AsTold: A STEP SAID SO").await;
    lab.apply(object(both(), json!({"suspend": false, "canary": null})))
        .await;
    // A second file of the plugin is one too many.
    let text = says(parked(), "AsTold: a step says so").await;
    assert!(
        text.contains("canary.wasm is not planned with: the Plugin probe governs its plugin"),
        "{text}"
    );
    // Nothing to plan with: it is said why.
    for name in ["probe.wasm", "canary.wasm"] {
        std::fs::remove_file(lab.settings.plugins.join(name)).expect("removed");
    }
    let refused = plan(lab.client.clone(), settings(&lab), &edit()).await;
    let why = format!("{:#}", refused.expect_err("no component"));
    assert!(
        why.contains("the Plugin probe is not planned with: FileNotFound: probe.wasm"),
        "{why}"
    );
    // One from a registry needs no directory.
    let registry = Registry::start_public();
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

/// A component with other words in it, of the same length.
fn reworded(wasm: &[u8], said: &[u8], says: &[u8]) -> Vec<u8> {
    let mut wasm = wasm.to_vec();
    let places: Vec<usize> = (0..wasm.len() - said.len())
        .filter(|at| wasm[*at..].starts_with(said))
        .collect();
    assert!(!places.is_empty(), "the component has its words");
    for at in places {
        wasm[at..at + said.len()].copy_from_slice(says);
    }
    wasm
}

/// What a new build does to stored objects before it reconciles them; and where it can't.
async fn hooks_are_planned(mut lab: Lab) {
    let grants = format!("{PACK_GRANTS}{}", process::LIFECYCLE_GRANTS);
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.install(&["tests/lifecycle"]);
    let beat = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "b", "namespace": lab.namespace}, "spec": {"behaviour": "beat"}});
    lab.apply(beat).await;
    let report = planned(&lab, plan_request(&lab)).await;
    let diff: String = report.changes.iter().map(|c| &*c.diff).collect();
    assert!(diff.contains("+    tests.ostler.dev/upgrades: \"1\""), "{diff}");
    // It was reconciled after that.
    assert!(diff.contains("+  upgrades: \"1\""), "{diff}");
    let config = json!({"failure": "as told"}).to_string();
    std::fs::write(lab.settings.plugins.join("lifecycle.yaml"), config).expect("written");
    let report = planned(&lab, plan_request(&lab)).await;
    assert!(!report.changed(), "{}", report.text());
    let text = report.text();
    assert!(
        text.contains("the objects of lifecycle would wait: initialize: unavailable: as told"),
        "{text}"
    );
}
