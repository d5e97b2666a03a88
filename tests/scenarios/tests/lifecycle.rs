//! Hooks run once per build, before the first reconcile. While `initialize` fails, only the objects of that plugin wait;
//! while `upgrade` fails, only that object.

use ostler::testing::{
    admin::{explain::ObjectExplanation, question::Question},
    dispatcher::Cause,
    grants::Grants,
    key::Gvk,
    plugin::HookState,
};
use ostler_test_harness::{
    Lab, PACK_GRANTS, find_condition, greeting_kind, probe::config_map, process::LIFECYCLE_GRANTS,
    read_component, scenario, with_note,
};
use serde_json::{Value, json};

const UPGRADES: &str = "tests.ostler.dev/upgrades";

fn beats() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Beat")
}

async fn beat(lab: &Lab, name: &str, upgrade: &str) {
    lab.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"behaviour": "beat", "upgrade": upgrade}}))
        .await;
}

fn configure(lab: &Lab, config: &Value) {
    std::fs::write(lab.settings.plugins.join("lifecycle.yaml"), config.to_string()).expect("written");
}

fn prepare(lab: &mut Lab, config: &Value) {
    lab.settings.grants =
        Grants::parse(&format!("{PACK_GRANTS}{LIFECYCLE_GRANTS}"), "grants").expect("they parse");
    configure(lab, config);
    lab.install(&["tests/lifecycle", "examples/greeting"]);
}

/// The state of the hooks in the registry's report.
fn hooks(lab: &Lab) -> HookState {
    let reports = lab.host().registry().reports();
    let report = reports.into_iter().find(|r| r.name == "lifecycle");
    report.expect("it is loaded").hooks
}

fn explained(lab: &Lab, name: &str) -> ObjectExplanation {
    let admin = lab.admin();
    let question = Question {
        kind: "beat".into(),
        namespace: Some(lab.namespace.clone()),
        name: name.into(),
    };
    admin.explain(&question).expect("explained")
}

async fn wait_hooks_fail(lab: &Lab, words: &str) {
    lab.wait_until(
        &format!("the report contains {words:?}"),
        async || matches!(hooks(lab), HookState::Failed(why) if why.contains(words)),
    )
    .await;
}

/// `data.FIELD` of a ConfigMap; null if it does not exist.
async fn data(lab: &Lab, name: &str, field: &str) -> Value {
    let found = lab.get(&config_map(), name).await.unwrap_or_default();
    found["data"][field].clone()
}

async fn upgrades(lab: &Lab, name: &str) -> Value {
    let object = lab.get(&beats(), name).await.expect("it is there");
    object["metadata"]["annotations"][UPGRADES].clone()
}

#[scenario(real = "CRDs: changes and validation")]
async fn hooks_run_once_per_build_before_the_first_reconcile(mut lab: Lab) {
    let config = json!({"namespace": lab.namespace});
    prepare(&mut lab, &config);
    beat(&lab, "old", "count").await;
    lab.start_host().await;
    lab.wait_ready(&beats(), "old").await;
    assert_eq!(
        data(&lab, "old", "upgrades").await,
        "1",
        "upgraded before it was reconciled"
    );
    assert_eq!(hooks(&lab), HookState::Done);
    // Objects created later have this version and need no upgrade.
    beat(&lab, "new", "count").await;
    lab.wait_ready(&beats(), "new").await;
    assert_eq!(data(&lab, "new", "upgrades").await, "0");
    assert_eq!(
        upgrades(&lab, "new").await,
        Value::Null,
        "a new object is not annotated"
    );
    assert_eq!(data(&lab, "initialized", "times").await, "1");

    let wasm = read_component("tests/lifecycle");
    lab.install_bytes("lifecycle", &with_note(&wasm, "another build"));
    for (name, times) in [("old", "2"), ("new", "1")] {
        lab.wait_until(&format!("{name} is reconciled upgraded"), async || {
            data(&lab, name, "upgrades").await == times
        })
        .await;
        assert_eq!(upgrades(&lab, name).await, times);
    }
    assert_eq!(data(&lab, "initialized", "times").await, "2");
    let generation = &lab.get(&beats(), "old").await.expect("it is there")["metadata"]["generation"];
    assert_eq!(*generation, 1, "its spec is unchanged");
}

#[scenario]
async fn objects_wait_while_initialize_fails(mut lab: Lab) {
    prepare(&mut lab, &json!({"failure": "the migration is not finished"}));
    lab.start_host().await;
    wait_hooks_fail(&lab, "initialize: unavailable: the migration is not finished").await;
    beat(&lab, "waiting", "count").await;
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "neighbour", "namespace": lab.namespace}, "spec": {"name": "neighbour"}}),
    )
    .await;
    lab.wait_ready(&greeting_kind(), "neighbour").await;
    let waiting = lab.get(&beats(), "waiting").await.expect("it is there");
    assert_eq!(find_condition(&waiting, "Ready"), Value::Null);
    assert_eq!(lab.get(&config_map(), "waiting").await, None);
    // `explain` of the object shows the same reason.
    let next = explained(&lab, "waiting").next;
    assert_eq!(next.place, "held", "{next:?}");
    assert!(
        next.why
            .contains("initialize: unavailable: the migration is not finished"),
        "{next:?}"
    );
    configure(&lab, &json!({}));
    lab.wait_ready(&beats(), "waiting").await;
    assert_eq!(hooks(&lab), HookState::Done);
    lab.wait_idle().await;
    assert_ne!(explained(&lab, "waiting").next.place, "held");
}

#[scenario(real = "CRDs: changes and validation")]
async fn upgrade_that_changes_spec_is_refused_and_holds_up_no_other_object(mut lab: Lab) {
    prepare(&mut lab, &json!({}));
    beat(&lab, "plain", "count").await;
    beat(&lab, "rebel", "overreach").await;
    lab.start_host().await;
    lab.wait_ready(&beats(), "plain").await;
    assert_eq!(data(&lab, "plain", "upgrades").await, "1");
    lab.wait_until("its status has the reason", async || {
        let rebel = lab.get(&beats(), "rebel").await.expect("it is there");
        let ready = find_condition(&rebel, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "UpgradeFailed" && message.contains("it changes spec.interval")
    })
    .await;
    assert_eq!(hooks(&lab), HookState::Done);
    let rebel = lab.get(&beats(), "rebel").await.expect("it is there");
    assert_eq!(rebel["spec"].get("interval"), None);
    assert_eq!(
        lab.get(&config_map(), "rebel").await,
        None,
        "it is not reconciled before it is upgraded"
    );
    beat(&lab, "rebel", "count").await;
    lab.wait_ready(&beats(), "rebel").await;
    assert_eq!(upgrades(&lab, "rebel").await, "1");
    assert_eq!(data(&lab, "rebel", "upgrades").await, "1");
}

/// Also a build that was initialized while it was granted its kinds.
#[scenario]
async fn revoked_grant_stops_upgrades(mut lab: Lab) {
    prepare(&mut lab, &json!({}));
    let revoked = LIFECYCLE_GRANTS.replace(
        "tests.ostler.dev, kinds: ['*']",
        "tests.ostler.dev, kinds: [Other]",
    );
    assert_ne!(revoked, LIFECYCLE_GRANTS);
    let file = lab.path().join("grants.yaml");
    std::fs::write(&file, format!("{PACK_GRANTS}{LIFECYCLE_GRANTS}")).expect("written");
    lab.settings.grants_file = Some(file.clone());
    beat(&lab, "old", "fail").await;
    lab.start_host().await;
    lab.wait_until("its upgrade fails", async || {
        let old = lab.get(&beats(), "old").await.expect("it is there");
        find_condition(&old, "Ready")["reason"] == "UpgradeFailed"
    })
    .await;
    std::fs::write(&file, format!("{PACK_GRANTS}{revoked}")).expect("written");
    lab.wait_until("it is denied", async || {
        let old = lab.get(&beats(), "old").await.expect("it is there");
        find_condition(&old, "Ready")["reason"] == "PermissionDenied"
    })
    .await;
    // The next version could be upgraded.
    beat(&lab, "old", "count").await;
    lab.wait_until("the host has seen it", async || {
        lab.wake_causes(&beats(), "old").last() == Some(&Cause::Change)
    })
    .await;
    lab.wait_idle().await;
    assert_eq!(upgrades(&lab, "old").await, Value::Null);
}

/// Its watch is not one per namespace, as those of the other kinds of such a host are.
#[scenario(real = "CRDs: changes and validation")]
async fn cluster_scoped_kind_is_reconciled_and_cleaned_up_on_a_confined_host(mut lab: Lab) {
    assert!(!lab.settings.namespaces.is_empty(), "it is confined");
    prepare(&mut lab, &json!({}));
    // On the real server all tests share the objects in no namespace.
    let (kind, name) = (
        Gvk::new("tests.ostler.dev", "v1alpha1", "ClusterBeat"),
        lab.namespace.clone(),
    );
    let object = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "ClusterBeat",
        "metadata": {"name": name}, "spec": {}});
    lab.apply(object).await;
    lab.start_host().await;
    let objects = lab.api(&kind, "");
    let read = async || {
        let found = objects.get_opt(&name).await.expect("a response");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    };
    lab.wait_until("it is Ready", async || {
        let object = read().await.expect("it is there");
        find_condition(&object, "Ready")["status"] == "True"
    })
    .await;
    let object = read().await.expect("it is there");
    assert_eq!(
        object["metadata"]["finalizers"],
        json!(["tests.ostler.dev/cluster-beat"])
    );
    let scopes = lab.host().services().cache.informers.scopes();
    let scopes = scopes.into_iter().map(|(scope, _)| scope);
    let namespaces: Vec<String> = scopes
        .filter(|scope| scope.gvk == kind)
        .map(|scope| scope.namespace.to_string())
        .collect();
    assert!(namespaces.iter().any(String::is_empty), "{namespaces:?}");
    objects
        .delete(&name, &Default::default())
        .await
        .expect("accepted");
    lab.wait_until("it is cleaned up", async || read().await.is_none())
        .await;
}
