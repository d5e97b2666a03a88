//! `ostler plan`: tells what would change, and changes nothing.

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use ostler::{
    cluster::{ApiError, Cluster, Patch},
    gate::Gate,
    grants::Grants,
    host::Settings,
    key::Gvk,
    manifest::{self, Manifest},
    oci::{Auth, Limits, Shape, Store},
    plan::{Action, Report, Verdict, Wish, plan},
};
use ostler_test_harness::{
    GRANTS, Lab, PASSWORD, component_bytes,
    concourse::{self, CONFIG},
    probe::{kind, write},
    process, rebuilt,
    registry::Registry,
    scenarios,
};
use serde_json::{Value, json};

scenarios!(
    nothing_to_do_is_nothing_to_say,
    an_edit_is_shown_as_it_would_be_written,
    a_new_object_is_planned_with_all_that_follows,
    a_second_write_builds_on_the_first,
    a_deletion_is_planned_with_its_cleanup,
    what_is_planned_is_read,
    a_long_list_has_what_is_planned,
    a_new_build_says_what_it_would_change,
    a_new_build_has_what_is_agreed_with_the_one_before,
    plugin_objects_are_planned_with,
    a_secret_is_never_shown,
    a_missing_grant_is_told,
    what_the_server_refuses_is_refused,
    no_write_gets_out,
    hooks_are_planned,
    what_is_not_checked_is_marked,
    the_chain_is_planned_from_files,
    on_the_command_line,
);

scenarios!(simulated: requests_are_shown_and_not_sent);

/// How the lab's plugins are planned with.
fn settings(lab: &Lab) -> Settings {
    Settings {
        namespaces: Vec::new(),
        ..lab.settings.clone()
    }
}

fn wish(lab: &Lab) -> Wish {
    Wish {
        namespace: Some(lab.namespace.clone()),
        default_namespace: lab.namespace.clone(),
        ..Wish::default()
    }
}

fn file(object: Value) -> Vec<(String, Value)> {
    vec![("file.yaml".into(), object)]
}

async fn planned(lab: &Lab, wish: Wish) -> Report {
    plan(lab.client.clone(), settings(lab), &wish)
        .await
        .expect("a plan")
}

/// The versions of everything in the test's namespace that a plan might touch.
async fn snapshot(lab: &Lab) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let core = ["ConfigMap", "Secret", "Event"].map(|kind| Gvk::new("", "v1", kind));
    let pack = ["Instance", "Team", "Pipeline"].map(concourse::kind);
    let ours = [kind(), Gvk::new("ostler.dev", "v1alpha1", "Upstream")];
    for gvk in core.into_iter().chain(pack).chain(ours) {
        for object in lab.list(&gvk).await {
            let metadata = &object["metadata"];
            versions.insert(
                format!("{gvk} {}", metadata["name"]),
                metadata["resourceVersion"].to_string(),
            );
        }
    }
    versions
}

fn probe(lab: &Lab, name: &str, steps: Value, cleanup: Value) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"steps": steps, "cleanup": cleanup}})
}

/// A probe that has done what it should, and no host any more.
async fn settled(lab: &mut Lab, steps: Value, cleanup: Value) {
    lab.start_probe().await;
    lab.probe("p", steps, cleanup).await;
    lab.ready(&kind(), "p").await;
    lab.idle().await;
    drop(lab.host.take());
}

async fn nothing_to_do_is_nothing_to_say(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let before = snapshot(&lab).await;
    for objects in [
        vec![],
        vec!["probe/p".to_owned()],
        vec!["Probes.tests.ostler.dev/p".to_owned()],
    ] {
        let report = planned(
            &lab,
            Wish {
                objects,
                ..wish(&lab)
            },
        )
        .await;
        assert!(!report.changed(), "{}", report.text());
        assert_eq!(report.text(), "");
        assert_eq!(report.objects.len(), 1, "{:?}", report.objects);
        assert_eq!(report.objects[0].verdict, Verdict::Done);
    }
    assert_eq!(snapshot(&lab).await, before);
}

async fn an_edit_is_shown_as_it_would_be_written(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let before = snapshot(&lab).await;
    let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
    let report = planned(
        &lab,
        Wish {
            files: file(edited),
            ..wish(&lab)
        },
    )
    .await;
    let [child, object] = &report.changes[..] else {
        panic!("two changes: {}", report.text());
    };
    let namespace = &lab.namespace;
    assert_eq!(
        child.diff.lines().map(str::trim_end).collect::<Vec<_>>(),
        [
            &*format!("--- live/ConfigMap/{namespace}/child"),
            &*format!("+++ planned/ConfigMap/{namespace}/child"),
            "@@ -1,6 +1,6 @@",
            " apiVersion: v1",
            " data:",
            "-  v: \"1\"",
            "+  v: \"2\"",
            " kind: ConfigMap",
            " metadata:",
            "   name: child",
        ]
    );
    assert_eq!(child.by, [format!("Probe/{namespace}/p")]);
    assert!(child.unchecked.is_empty() && !child.guess);
    // The spec of the file, and the status as the host would write it.
    let diff = &object.diff;
    assert!(diff.contains("-  generation: 1\n+  generation: 2\n"), "{diff}");
    assert!(
        diff.contains(r#"-  - "{\"v\":\"1\"}""#) && diff.contains(r#"+  - "{\"v\":\"2\"}""#),
        "{diff}"
    );
    assert!(diff.contains("+  observedGeneration: 2\n"), "{diff}");
    assert_eq!(snapshot(&lab).await, before);
}

async fn a_new_object_is_planned_with_all_that_follows(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    // The first makes the second, which makes a ConfigMap.
    let inner = probe(&lab, "inner", json!([write("apply", "child", "1")]), json!([]));
    let steps = json!([{"do": "apply", "object": inner.to_string()},
        {"do": "ready", "apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe", "name": "inner"}]);
    let grants = "plugins: {probe: {kubernetes: [{group: '*', kinds: ['*'], verbs: [get, apply]}]}}";
    lab.settings.grants = Grants::parse(grants, "grants.yaml").expect("grants");
    let before = snapshot(&lab).await;
    let report = planned(
        &lab,
        Wish {
            files: file(probe(&lab, "p", steps, json!([]))),
            ..wish(&lab)
        },
    )
    .await;
    let namespace = &lab.namespace;
    let found: Vec<(&str, Action)> = report.changes.iter().map(|c| (&*c.object, c.action)).collect();
    let names = ["ConfigMap", "Probe", "Probe"]
        .into_iter()
        .zip(["child", "inner", "p"]);
    let names: Vec<String> = names
        .map(|(kind, name)| format!("{kind}/{namespace}/{name}"))
        .collect();
    let expected: Vec<(&str, Action)> = names.iter().map(|n| (&**n, Action::Create)).collect();
    assert_eq!(found, expected, "{}", report.text());
    let at = |name: &str| {
        let change = report.changes.iter().find(|c| c.object.ends_with(name));
        change.and_then(|c| c.planned.clone()).expect("planned")
    };
    let (child, inner, p) = (at("/child"), at("/inner"), at("/p"));
    assert_eq!(child["metadata"]["ownerReferences"][0]["name"], "inner");
    assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], "<uid>");
    // Finalizers as the host would put them, and a status that has waited for the other.
    for one in [&inner, &p] {
        assert_eq!(
            one["metadata"]["finalizers"],
            json!(["tests.ostler.dev/probe"]),
            "{one}"
        );
        assert_eq!(one["status"]["phase"], "Ready", "{one}");
        assert_eq!(one["status"]["conditions"][0]["lastTransitionTime"], "<now>");
    }
    assert_eq!(p["status"]["seen"], json!(["present", "present"]));
    assert!(
        report.objects.iter().all(|o| o.verdict == Verdict::Done),
        "{:?}",
        report.objects
    );
    // What it says does not differ from one time to the next.
    let again = Wish {
        files: file(probe(&lab, "p", p["spec"]["steps"].clone(), json!([]))),
        ..wish(&lab)
    };
    assert_eq!(planned(&lab, again).await.text(), report.text());
    assert_eq!(snapshot(&lab).await, before);
}

/// Finalizer, spec, status and a mark of who holds it, each on top of what was planned before; and what a field
/// manager gives up goes.
async fn a_second_write_builds_on_the_first(mut lab: Lab) {
    let both = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}, "data": {"a": "1", "b": "2"}});
    settled(
        &mut lab,
        json!([{"do": "apply", "object": both.to_string()}]),
        json!([]),
    )
    .await;
    let one =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}, "data": {"a": "3"}});
    let steps = json!([{"do": "hold", "kind": "ConfigMap", "name": "child"},
        {"do": "apply", "object": one.to_string()},
        {"do": "get", "kind": "ConfigMap", "name": "child"}]);
    let report = planned(
        &lab,
        Wish {
            files: file(probe(&lab, "p", steps, json!([]))),
            ..wish(&lab)
        },
    )
    .await;
    let child = report.changes.iter().find(|c| c.object.ends_with("/child"));
    let child = child.and_then(|c| c.planned.clone()).expect("planned");
    assert_eq!(child["data"], json!({"a": "3"}), "{}", report.text());
    assert_eq!(
        child["metadata"]["finalizers"].as_array().map(Vec::len),
        Some(1),
        "{child}"
    );
    let p = report.changes.iter().find(|c| c.object.ends_with("/p"));
    let p = p.and_then(|c| c.planned.clone()).expect("planned");
    assert_eq!(p["status"]["seen"][2], r#"{"a":"3"}"#, "{}", report.text());
}

async fn a_deletion_is_planned_with_its_cleanup(mut lab: Lab) {
    let steps = json!([write("apply", "child", "1")]);
    settled(&mut lab, steps, json!([write("force", "left", "behind")])).await;
    let before = snapshot(&lab).await;
    let objects = vec!["probe/p".to_owned()];
    let report = planned(
        &lab,
        Wish {
            objects: objects.clone(),
            delete: true,
            ..wish(&lab)
        },
    )
    .await;
    let found: Vec<(&str, Action)> = report
        .changes
        .iter()
        .map(|c| (c.object.rsplit('/').next().unwrap_or_default(), c.action))
        .collect();
    assert_eq!(
        found,
        [
            ("child", Action::Delete),
            ("left", Action::Create),
            ("p", Action::Delete)
        ],
        "{}",
        report.text()
    );
    assert!(report.changes[0].by.contains(&"the garbage collector".to_owned()));
    assert_eq!(snapshot(&lab).await, before);
    // A cleanup that does not end keeps it.
    lab.probe("p", json!([]), json!([{"do": "yield"}])).await;
    let report = planned(
        &lab,
        Wish {
            objects,
            delete: true,
            ..wish(&lab)
        },
    )
    .await;
    let p = report
        .changes
        .iter()
        .find(|c| c.object.ends_with("/p"))
        .expect("it");
    assert_eq!(p.action, Action::Update);
    assert!(p.diff.contains("+  deletionTimestamp: <now>\n"), "{}", p.diff);
    assert!(
        report.text().contains("/p waits: AsTold: a step says so"),
        "{}",
        report.text()
    );
}

/// Lists and reads of others see what is planned, deletions included.
async fn what_is_planned_is_read(lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.map("there", "x", "1").await;
    let labelled = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "labels": {"l": "x"}},
        "data": {"v": "1"}});
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=x"});
    let writer = probe(
        &lab,
        "a",
        json!([list, {"do": "apply", "object": labelled.to_string()}, list]),
        json!([]),
    );
    let reader = probe(
        &lab,
        "b",
        json!([list, {"do": "metadata", "kind": "ConfigMap", "name": "new"}]),
        json!([]),
    );
    let files = [writer, reader]
        .map(|object| ("file.yaml".to_owned(), object))
        .to_vec();
    let report = planned(&lab, Wish { files, ..wish(&lab) }).await;
    let seen = |name: &str| {
        let change = report.changes.iter().find(|c| c.object.ends_with(name));
        change.and_then(|c| c.planned.clone()).expect("planned")["status"]["seen"].clone()
    };
    // The list was looked at again when what was made came into it.
    assert_eq!(seen("/a")[2], "new,there", "{}", report.text());
    assert_eq!(seen("/b")[0], "new,there", "{}", report.text());
    assert_ne!(seen("/b")[1], "absent");
}

/// More objects than fit a page, and one more that is planned.
async fn a_long_list_has_what_is_planned(lab: Lab) {
    const COUNT: usize = 520;
    lab.install(&["tests/probe"]);
    let names: Vec<String> = (0..COUNT).map(|n| format!("m{n:03}")).collect();
    futures::future::join_all(names.iter().map(|name| lab.map(name, "x", "1"))).await;
    let labelled = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "labels": {"l": "x"}},
        "data": {"v": "1"}});
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=x"});
    let steps = json!([{"do": "apply", "object": labelled.to_string()}, list]);
    let report = planned(
        &lab,
        Wish {
            files: file(probe(&lab, "p", steps, json!([]))),
            ..wish(&lab)
        },
    )
    .await;
    let p = report.changes.iter().find(|c| c.object.ends_with("/p"));
    let p = p.and_then(|c| c.planned.clone()).expect("planned");
    let seen = p["status"]["seen"][1].as_str().unwrap_or_default();
    assert_eq!(seen, format!("{},new", names.join(",")), "{}", report.text());
}

/// The build before knows another way: here the same with a note, whose objects are as they should be, and one that
/// does not load.
async fn a_new_build_says_what_it_would_change(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let same = lab.path().join("same.wasm");
    std::fs::write(&same, rebuilt(&component_bytes("tests/probe"), "another build")).expect("written");
    let report = planned(
        &lab,
        Wish {
            builds: vec![same.clone()],
            ..wish(&lab)
        },
    )
    .await;
    assert_eq!(report.text(), "");
    assert_eq!(report.objects.len(), 1);
    // The words of a step are in the component: one that knows no `apply` refuses it.
    let other = lab.path().join("other.wasm");
    let bytes = reworded(
        &component_bytes("tests/probe"),
        b"a step says so",
        b"A STEP SAID SO",
    );
    std::fs::write(&other, bytes).expect("written");
    lab.start_host().await;
    lab.probe("p", json!([{"do": "yield"}]), json!([])).await;
    lab.condition(&kind(), "p", "Ready", "False", "AsTold").await;
    lab.idle().await;
    drop(lab.host.take());
    let before = planned(&lab, wish(&lab)).await;
    assert!(!before.changed(), "{}", before.text());
    let report = planned(
        &lab,
        Wish {
            builds: vec![other],
            ..wish(&lab)
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
        &Wish {
            builds: vec![broken],
            ..wish(&lab)
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
        let wasm = manifest::embed(&component_bytes("tests/probe"), &manifest).expect("a component");
        std::fs::write(&path, wasm).expect("written");
        Wish {
            builds: vec![path],
            files: file(probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]))),
            ..wish(&lab)
        }
    };
    let reads = "asks: {kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}";
    let report = planned(&lab, modest(reads)).await;
    let text = report.text();
    assert!(
        text.contains("PermissionDenied") && text.contains("its manifest does not ask for it"),
        "{text}"
    );
    assert!(!text.contains("ConfigMap/"), "{text}");
    // Its configuration is the one of the build before, held to its own schema.
    let wants = "asks: {kubernetes: [{kinds: [ConfigMap], verbs: [get, apply]}]}
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
        Wish {
            files: file(edited),
            ..wish(&lab)
        }
    };
    let says = async |wish: Wish, words: &str| {
        let text = planned(&lab, wish).await.text();
        assert!(text.contains(words), "{words} in\n{text}");
        text
    };
    // The grants file allows it; the object, which counts, doesn't.
    lab.apply(object(json!(["get"]), json!({}))).await;
    let text = says(edit(), "PermissionDenied").await;
    assert!(text.contains("spec.grants.kubernetes"), "{text}");
    // So it is for another build of it.
    let other = lab.path().join("other.wasm");
    std::fs::write(&other, rebuilt(&component_bytes("tests/probe"), "another build")).expect("written");
    let with = |builds: &[&std::path::Path]| Wish {
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
    lab.apply(object(both(), json!({"suspended": true}))).await;
    let text = says(edit(), "the objects of probe wait: its Plugin is suspended").await;
    assert!(!text.contains("ConfigMap/"), "{text}");
    // Of the same kind of objects the canary has its part.
    lab.install_bytes(
        "canary",
        &reworded(
            &component_bytes("tests/probe"),
            b"a step says so",
            b"A STEP SAID SO",
        ),
    );
    let canary = json!({"source": {"file": "canary.wasm"}, "objects": {"share": 100}});
    lab.apply(object(both(), json!({"suspended": false, "canary": canary})))
        .await;
    let parked = || Wish {
        files: file(probe(&lab, "p", json!([{"do": "park"}]), json!([]))),
        ..wish(&lab)
    };
    says(parked(), "AsTold: A STEP SAID SO").await;
    lab.apply(object(both(), json!({"suspended": false, "canary": null})))
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
        why.contains("the Plugin probe is not planned with: FileMissing: probe.wasm"),
        "{why}"
    );
    // One from a registry needs no directory.
    let registry = Registry::open();
    let reference = format!("{}/plugins/probe:1", registry.address());
    let pushed = Store::new(None, Limits::default())
        .push(
            &reference.parse().expect("a reference"),
            &Auth::anonymous(),
            component_bytes("tests/probe").into(),
            &Shape::default(),
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
    let text = planned(&lab, Wish { files, ..wish(&lab) }).await.text();
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

async fn a_secret_is_never_shown(lab: Lab) {
    const WORD: &str = "tell-nobody-0001";
    lab.install(&["tests/probe"]);
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": lab.namespace},
            "stringData": {"word": value, "same": "unchanged-0000"}})
    };
    lab.apply(secret("tell-nobody-0000")).await;
    // A guest that may read Secrets hands one on: in its status, and in a ConfigMap.
    let leak =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "leak"}, "data": {"v": WORD}});
    let steps = json!([{"do": "get", "kind": "Secret", "name": "s"}, {"do": "apply", "object": leak.to_string()},
        {"do": "force", "object": secret(WORD).to_string()}]);
    let report = planned(
        &lab,
        Wish {
            files: file(probe(&lab, "p", steps, json!([]))),
            ..wish(&lab)
        },
    )
    .await;
    let text = report.text() + &serde_json::to_string(&report).expect("JSON");
    let namespace = &lab.namespace;
    assert!(
        text.contains(&format!("Secret/{namespace}/s is changed")),
        "{text}"
    );
    assert!(
        text.contains("-  word: \"*** (before)\"\n+  word: \"*** (after)\""),
        "{text}"
    );
    assert!(text.contains("+  v: \"***\""), "{text}");
    for secret in ["tell-nobody-000", "unchanged-0000"] {
        assert!(!text.contains(secret), "{text}");
    }
    // dGVsbC1ub2JvZHktMDAw is how each of them begins in base64.
    assert!(!text.contains("dGVsbC1ub2JvZHktMDAw"), "{text}");
}

async fn a_missing_grant_is_told(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.settings.grants = Grants::parse(
        "plugins: {probe: {kubernetes: [{kinds: [ConfigMap], verbs: [get]}]}}",
        "grants.yaml",
    )
    .expect("grants");
    let object = probe(&lab, "p", json!([write("apply", "child", "1")]), json!([]));
    let report = planned(
        &lab,
        Wish {
            files: file(object),
            ..wish(&lab)
        },
    )
    .await;
    assert_eq!(
        report.changes.len(),
        1,
        "nothing but what the host says of it: {}",
        report.text()
    );
    assert_eq!(report.objects[0].verdict, Verdict::Parked);
    let text = report.text();
    assert!(
        text.contains("/p fails, until something changes: PermissionDenied: "),
        "{text}"
    );
    assert!(text.contains("verbs: [apply]"), "{text}");
}

async fn what_the_server_refuses_is_refused(lab: Lab) {
    lab.install(&["tests/probe"]);
    // In a file it is the person's mistake.
    let mut wrong = probe(&lab, "p", json!([]), json!([]));
    wrong["spec"]["steps"] = json!("none");
    let refused = plan(
        lab.client.clone(),
        settings(&lab),
        &Wish {
            files: file(wrong),
            ..wish(&lab)
        },
    )
    .await;
    let why = format!("{:#}", refused.expect_err("the schema does not allow it"));
    assert!(why.contains("file.yaml") && why.contains("spec.steps"), "{why}");
    // By a plugin it is the plugin's.
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_A_Name"}, "data": {}});
    let steps = json!([{"do": "apply", "object": config.to_string()}]);
    let report = planned(
        &lab,
        Wish {
            files: file(probe(&lab, "p", steps, json!([]))),
            ..wish(&lab)
        },
    )
    .await;
    assert_eq!(report.objects[0].verdict, Verdict::Parked, "{}", report.text());
    assert!(report.text().contains("RFC 1123"), "{}", report.text());
    let missing = Wish {
        objects: vec!["probe/none".into()],
        ..wish(&lab)
    };
    let missing = plan(lab.client.clone(), settings(&lab), &missing).await;
    assert!(format!("{:#}", missing.expect_err("it is not there")).contains("does not exist"));
}

/// Whatever is wrong before it: the door to the API server lets nothing through but dry runs.
async fn no_write_gets_out(lab: Lab) {
    lab.map("there", "x", "1").await;
    let before = snapshot(&lab).await;
    let cluster = Cluster::new(lab.client.clone()).gated(Gate::shut());
    let maps = format!("/api/v1/namespaces/{}/configmaps", lab.namespace);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}).to_string();
    let there = format!("{maps}/there");
    let patch = json!({"data": {"v": "2"}}).to_string().into_bytes();
    let refused =
        |result: Result<_, ApiError>| assert!(matches!(result, Err(ApiError::Deposed(_))), "{result:?}");
    refused(cluster.create(&maps, object.clone().into_bytes()).await);
    refused(
        cluster
            .create(&format!("{maps}?dryRun=None"), object.clone().into_bytes())
            .await,
    );
    refused(cluster.patch(&there, Patch::Merge, patch.clone()).await);
    refused(cluster.delete(&there, b"{}".to_vec()).await);
    // The server would not look at the query of this one.
    refused(
        cluster
            .delete(&format!("{there}?dryRun=All"), b"{}".to_vec())
            .await,
    );
    let tried = cluster
        .patch(&format!("{there}?dryRun=All"), Patch::Merge, patch)
        .await;
    assert!(tried.is_ok(), "{tried:?}");
    let options = json!({"dryRun": ["All"]}).to_string().into_bytes();
    let tried = cluster.delete(&there, options).await;
    assert!(tried.is_ok(), "{tried:?}");
    assert_eq!(snapshot(&lab).await, before);
}

/// A team that is edited and one that is made: Concourse is read and not written.
async fn requests_are_shown_and_not_sent(mut lab: Lab) {
    lab.start_pack().await;
    lab.chain().await;
    drop(lab.host.take());
    lab.concourse.reset_counters();
    let before = snapshot(&lab).await;
    let mut team = lab.team();
    team["spec"]["roles"][0]["users"] = json!(["local:test", "local:somebody-new"]);
    let report = planned(
        &lab,
        Wish {
            files: file(team),
            ..wish(&lab)
        },
    )
    .await;
    let [request] = &report.requests[..] else {
        panic!("one request: {}", report.text());
    };
    assert_eq!(
        (&*request.method, &*request.path),
        ("PUT", "/api/v1/teams/platform")
    );
    assert!(
        request.body.to_string().contains("local:somebody-new"),
        "{request:?}"
    );
    assert!(!request.guess);
    let text = report.text();
    assert!(text.contains("+ PUT /api/v1/teams/platform\n"), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
    let change = report.changes.iter().find(|c| c.object.starts_with("Team/"));
    assert!(
        change.is_some_and(|c| c.guess),
        "its status rests on the answer: {text}"
    );
    let counters = lab.concourse.counters();
    assert!(counters.reads > 0, "it is really read");
    assert_eq!(counters.writes, 0);
    assert_eq!(snapshot(&lab).await, before);
}

/// An empty cluster, and files of the whole chain: as much as can be known.
async fn the_chain_is_planned_from_files(lab: Lab) {
    lab.install(&concourse::COMPONENTS);
    let before = snapshot(&lab).await;
    let objects = [
        lab.pipeline(),
        lab.team(),
        lab.instance(),
        lab.config(CONFIG),
        lab.registry("registry-pass-0001"),
        lab.secret(lab.concourse.password()),
    ];
    let files = objects.map(|object| ("chain.yaml".to_owned(), object)).to_vec();
    let report = planned(&lab, Wish { files, ..wish(&lab) }).await;
    let text = report.text();
    for kind in ["Instance", "Team", "Pipeline", "Upstream", "Secret", "ConfigMap"] {
        let created = |c: &ostler::plan::Change| {
            c.object.starts_with(&format!("{kind}/")) && c.action == Action::Create
        };
        assert!(report.changes.iter().any(created), "{kind}: {text}");
    }
    // What is asked before anything was guessed is known, and nothing after that.
    let guesses: Vec<bool> = report.requests.iter().map(|r| r.guess).collect();
    assert_eq!(guesses.first(), Some(&false), "{text}");
    assert!(guesses.iter().skip(1).all(|guess| *guess), "{text}");
    // Of the Instance everything is known: Concourse was asked, and logged in to.
    let of = |kind: &str| {
        report
            .objects
            .iter()
            .find(|o| o.object.starts_with(kind))
            .expect("looked at")
    };
    assert_eq!(
        (of("Instance/").verdict, of("Instance/").guess),
        (Verdict::Done, false),
        "{text}"
    );
    // The Team is written, and what comes after that is a guess.
    assert!(
        report
            .requests
            .iter()
            .any(|r| r.method == "PUT" && r.path.starts_with("/api/v1/teams/")),
        "{text}"
    );
    assert!(of("Team/").guess && of("Pipeline/").guess, "{text}");
    for secret in [lab.concourse.password(), "registry-pass-0001"] {
        assert!(!text.contains(secret), "{text}");
    }
    assert_eq!(snapshot(&lab).await, before);
    assert!(lab.concourse.team("platform").is_none());
}

/// What a new build does to stored objects before it reconciles them; and where it can't.
async fn hooks_are_planned(mut lab: Lab) {
    let grants = format!("{GRANTS}{}", process::MORE_GRANTS);
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.install(&["tests/lifecycle"]);
    let beat = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "b", "namespace": lab.namespace}, "spec": {"behaviour": "beat"}});
    lab.apply(beat).await;
    let report = planned(&lab, wish(&lab)).await;
    let diff: String = report.changes.iter().map(|c| &*c.diff).collect();
    assert!(diff.contains("+    tests.ostler.dev/upgrades: \"1\""), "{diff}");
    // It was reconciled after that.
    assert!(diff.contains("+  upgrades: \"1\""), "{diff}");
    let config = json!({"failure": "as told"}).to_string();
    std::fs::write(lab.settings.plugins.join("lifecycle.yaml"), config).expect("written");
    let report = planned(&lab, wish(&lab)).await;
    assert!(!report.changed(), "{}", report.text());
    let text = report.text();
    assert!(
        text.contains("the objects of lifecycle would wait: initialize: unavailable: as told"),
        "{text}"
    );
}

/// In a namespace that is only planned the server can't be asked, and that is said.
async fn what_is_not_checked_is_marked(lab: Lab) {
    lab.install(&["tests/probe"]);
    let new = format!("{}-new", lab.namespace);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new}});
    let mut object = probe(&lab, "p", json!([write("apply", "child", "1")]), json!([]));
    object["metadata"]["namespace"] = json!(new);
    let files = [namespace, object]
        .map(|object| ("file.yaml".to_owned(), object))
        .to_vec();
    let wish = Wish {
        namespace: Some(new.clone()),
        files,
        ..wish(&lab)
    };
    let report = planned(&lab, wish).await;
    let text = report.text();
    let why = format!("#   not checked by the API server: its namespace {new} is only planned");
    assert_eq!(text.matches(&why).count(), 2, "{text}");
    assert!(
        report.objects.iter().all(|o| o.verdict == Verdict::Done),
        "{text}"
    );
    // What can be checked is.
    let namespace = report.changes.iter().find(|c| c.object.starts_with("Namespace/"));
    assert!(namespace.is_some_and(|c| c.unchecked.is_empty()), "{text}");
}

fn ostler(lab: &Lab, arguments: &[&str], grants: &str) -> Output {
    let file = lab.path().join("plan-grants.yaml");
    std::fs::write(&file, grants).expect("written");
    Command::new(process::binary())
        .args([
            "plan",
            "--allow-network",
            "127.0.0.1",
            "--namespace",
            &lab.namespace,
        ])
        .arg("--kubeconfig")
        .arg(&lab.kubeconfig)
        .arg("--plugins")
        .arg(&lab.settings.plugins)
        .arg("--grants")
        .arg(file)
        .arg("--plugin-selector")
        .arg(format!("lab={}", lab.namespace))
        .arg("--cache")
        .arg(ostler_test_harness::workspace().join("target/compiled"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("it runs")
}

async fn on_the_command_line(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let grants = format!(
        "{GRANTS}  probe: {{kubernetes: [{{kinds: [ConfigMap], verbs: [get, list, apply]}}], events: true}}\n"
    );
    let run = |arguments: &[&str]| ostler(&lab, arguments, &grants);
    let said = |output: &Output| {
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(said(&run(&[])), (Some(0), String::new(), String::new()));
    let file = lab.path().join("edit.yaml");
    let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
    std::fs::write(&file, edited.to_string()).expect("written");
    let file = file.to_str().expect("a path");
    let (code, out, error) = said(&run(&["-f", file]));
    assert_eq!((code, &*error), (Some(1), ""), "{out}");
    assert!(
        out.contains("-  v: \"1\"\n+  v: \"2\"\n") && !out.contains('\x1b'),
        "{out}"
    );
    let (code, out, _) = said(&run(&["-f", file, "-o", "json"]));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &report["changes"][0]["action"]),
        (Some(1), &json!("update"))
    );
    let (code, out, error) = said(&run(&["team/none"]));
    assert_eq!((code, &*out), (Some(2), ""), "{error}");
    assert!(error.contains("they reconcile Probe"), "{error}");
    let (code, _, error) = said(&run(&["-f", "nowhere.yaml"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("nowhere.yaml"), "{error}");
}
