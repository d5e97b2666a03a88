//! Planned objects: edits, new objects, deletions, and reads of planned state.

use ostler::testing::{
    grants::Grants,
    plan::{PlanRequest, PlannedAction, Verdict},
};
use ostler_test_harness::{Lab, probe::write, scenario};
use serde_json::json;

use super::{file, plan_request, planned, planned_with, probe, settled, snapshot, would_be};

#[scenario]
async fn plan_without_changes_is_empty(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let before = snapshot(&lab).await;
    for objects in [
        vec![],
        vec!["probe/p".to_owned()],
        vec!["Probes.tests.ostler.dev/p".to_owned()],
    ] {
        let report = planned(
            &lab,
            PlanRequest {
                objects,
                ..plan_request(&lab)
            },
        )
        .await;
        assert!(!report.has_changes(), "{}", report.text());
        assert_eq!(report.text(), "");
        assert_eq!(report.objects.len(), 1, "{:?}", report.objects);
        assert_eq!(report.objects[0].verdict, Verdict::Done);
    }
    assert_eq!(snapshot(&lab).await, before);
}

#[scenario(real = "dry run")]
async fn edit_is_planned_as_diff(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let before = snapshot(&lab).await;
    let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
    let report = planned_with(&lab, edited).await;
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
            "   labels:",
        ]
    );
    assert_eq!(child.by, [format!("Probe/{namespace}/p")]);
    assert!(child.unchecked.is_empty() && !child.guess);
    // The diff has the spec of the file and the status that the host would write.
    let diff = &object.diff;
    assert!(diff.contains("-  generation: 1\n+  generation: 2\n"), "{diff}");
    assert!(
        diff.contains(r#"-  - "{\"v\":\"1\"}""#) && diff.contains(r#"+  - "{\"v\":\"2\"}""#),
        "{diff}"
    );
    assert!(diff.contains("+  observedGeneration: 2\n"), "{diff}");
    assert_eq!(snapshot(&lab).await, before);
}

#[scenario]
async fn new_object_is_planned_with_its_dependents(mut lab: Lab) {
    lab.install(&["tests/probe"]);
    // The first probe creates the second, which creates a ConfigMap.
    let inner = probe(&lab, "inner", json!([write("apply", "child", "1")]), json!([]));
    let steps = json!([{"do": "apply", "object": inner.to_string()},
        {"do": "ready", "apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe", "name": "inner"}]);
    let grants = "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{group: '*', kinds: ['*'], verbs: [get, apply], namespaces: ['*']}]}}";
    lab.settings.grants = Grants::parse(grants, "grants.yaml").expect("grants");
    let before = snapshot(&lab).await;
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    let namespace = &lab.namespace;
    let found: Vec<(&str, PlannedAction)> = report.changes.iter().map(|c| (&*c.object, c.action)).collect();
    let names = ["ConfigMap", "Probe", "Probe"]
        .into_iter()
        .zip(["child", "inner", "p"]);
    let names: Vec<String> = names
        .map(|(kind, name)| format!("{kind}/{namespace}/{name}"))
        .collect();
    let expected: Vec<(&str, PlannedAction)> = names.iter().map(|n| (&**n, PlannedAction::Create)).collect();
    assert_eq!(found, expected, "{}", report.text());
    let [child, inner, p] = ["child", "inner", "p"].map(|name| would_be(&report, name));
    assert_eq!(child["metadata"]["ownerReferences"][0]["name"], "inner");
    assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], "<uid>");
    // Both have the host's finalizers, and the first became Ready after it waited for the second.
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
    // The text of the same plan is reproducible.
    let again = PlanRequest {
        files: file(probe(&lab, "p", p["spec"]["steps"].clone(), json!([]))),
        ..plan_request(&lab)
    };
    assert_eq!(planned(&lab, again).await.text(), report.text());
    assert_eq!(snapshot(&lab).await, before);
}

/// Finalizer, spec, status and hold are planned on top of each other, and a field that is no longer applied is removed.
#[scenario]
async fn second_write_is_planned_on_top_of_the_first(mut lab: Lab) {
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
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    let child = would_be(&report, "child");
    assert_eq!(child["data"], json!({"a": "3"}), "{}", report.text());
    assert_eq!(
        child["metadata"]["finalizers"].as_array().map(Vec::len),
        Some(1),
        "{child}"
    );
    let p = would_be(&report, "p");
    assert_eq!(p["status"]["seen"][2], r#"{"a":"3"}"#, "{}", report.text());
}

#[scenario]
async fn deletion_is_planned_with_its_cleanup(mut lab: Lab) {
    let steps = json!([write("apply", "child", "1")]);
    settled(&mut lab, steps, json!([write("force", "left", "behind")])).await;
    let before = snapshot(&lab).await;
    let objects = vec!["probe/p".to_owned()];
    let report = planned(
        &lab,
        PlanRequest {
            objects: objects.clone(),
            delete: true,
            ..plan_request(&lab)
        },
    )
    .await;
    let found: Vec<(&str, PlannedAction)> = report
        .changes
        .iter()
        .map(|c| (c.object.rsplit('/').next().unwrap_or_default(), c.action))
        .collect();
    assert_eq!(
        found,
        [
            ("child", PlannedAction::Delete),
            ("left", PlannedAction::Create),
            ("p", PlannedAction::Delete)
        ],
        "{}",
        report.text()
    );
    assert!(report.changes[0].by.contains(&"the garbage collector".to_owned()));
    assert_eq!(snapshot(&lab).await, before);
    // A cleanup that does not finish keeps the object.
    lab.apply_probe("p", json!([]), json!([{"do": "yield"}])).await;
    let report = planned(
        &lab,
        PlanRequest {
            objects,
            delete: true,
            ..plan_request(&lab)
        },
    )
    .await;
    let p = report
        .changes
        .iter()
        .find(|c| c.object.ends_with("/p"))
        .expect("it");
    assert_eq!(p.action, PlannedAction::Update);
    assert!(p.diff.contains("+  deletionTimestamp: <now>\n"), "{}", p.diff);
    assert!(
        report.text().contains("/p waits: Requested: requested by a step"),
        "{}",
        report.text()
    );
}

/// Lists and reads of other objects return planned objects.
#[scenario]
async fn reads_and_lists_return_planned_objects(lab: Lab) {
    lab.install(&["tests/probe"]);
    lab.apply_config_map("there", "x", "1").await;
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
    let report = planned(
        &lab,
        PlanRequest {
            files,
            ..plan_request(&lab)
        },
    )
    .await;
    let seen = |name: &str| would_be(&report, name)["status"]["seen"].clone();
    // The list woke its reader when the new object came into it.
    assert_eq!(seen("a")[2], "new,there", "{}", report.text());
    assert_eq!(seen("b")[0], "new,there", "{}", report.text());
    assert_ne!(seen("b")[1], "absent");
}

/// A list of more than one page includes the planned object.
#[scenario]
async fn paged_list_includes_planned_object(lab: Lab) {
    const COUNT: usize = 520;
    lab.install(&["tests/probe"]);
    let names: Vec<String> = (0..COUNT).map(|n| format!("m{n:03}")).collect();
    futures::future::join_all(names.iter().map(|name| lab.apply_config_map(name, "x", "1"))).await;
    let labelled = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "labels": {"l": "x"}},
        "data": {"v": "1"}});
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=x"});
    let steps = json!([{"do": "apply", "object": labelled.to_string()}, list]);
    let report = planned_with(&lab, probe(&lab, "p", steps, json!([]))).await;
    let p = would_be(&report, "p");
    let seen = p["status"]["seen"][1].as_str().unwrap_or_default();
    assert_eq!(seen, format!("{},new", names.join(",")), "{}", report.text());
}

#[scenario(real = "dry run")]
async fn patch_is_planned_and_not_sent(mut lab: Lab) {
    settled(&mut lab, json!([]), json!([])).await;
    lab.apply_config_map("target", "x", "1").await;
    let before = snapshot(&lab).await;
    let patch =
        json!({"do": "patch", "kind": "ConfigMap", "name": "target", "object": "{\"data\": {\"v\": \"2\"}}"});
    let report = planned_with(&lab, probe(&lab, "p", json!([patch]), json!([]))).await;
    assert_eq!(would_be(&report, "target")["data"]["v"], "2", "{}", report.text());
    assert_eq!(snapshot(&lab).await, before);
}
