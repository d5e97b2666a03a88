//! What a new build would change, its hooks included.

use ostler::{
    grants::Grants,
    plan::{Wish, plan},
};
use ostler_test_harness::{
    GRANTS, Lab, component_bytes,
    probe::{kind, write},
    process, rebuilt, scenarios,
};
use serde_json::json;

use super::{planned, settings, settled, wish};
scenarios!(a_new_build_says_what_it_would_change, hooks_are_planned,);

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
    let mut bytes = component_bytes("tests/probe");
    let said = b"a step says so";
    let places: Vec<usize> = (0..bytes.len() - said.len())
        .filter(|at| bytes[*at..].starts_with(said))
        .collect();
    assert!(!places.is_empty(), "the component has its words");
    for at in places {
        bytes[at..at + said.len()].copy_from_slice(b"A STEP SAID SO");
    }
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
