//! `require-ready`, `require-condition`, `create` and `patch` on another cluster.

use kube::api::{Api, DynamicObject, ListParams};
use ostler::testing::grants::Grants;

use super::*;
use ostler_test_harness::scenario;

/// Grants of a probe that reads Probes of other clusters, which nothing reconciles there.
const PROBES_OF_CLUSTERS: &str = "plugins:
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes: [{group: tests.ostler.dev, kinds: [Probe], verbs: [get], clusters: ['Same/*']}]
";

/// Installs the CRD of the Probe on the other cluster, as the host's own cluster has it. Returns the API of its objects.
async fn install_probe_kind(lab: &Lab, east: &SecondCluster) -> Api<DynamicObject> {
    let crd = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let name = "probes.tests.ostler.dev";
    let home = lab.api(&crd, "").get(name).await.expect("a CRD");
    let copy = json!({"apiVersion": crd.api_version(), "kind": &*crd.kind, "metadata": {"name": name},
        "spec": home.data["spec"]});
    let parameters = PatchParams::apply("test").force();
    let applied = east
        .api_of(&crd, None)
        .patch(name, &parameters, &Patch::Apply(copy))
        .await;
    applied.expect("applied");
    let probes = east.api_of(&kind(), Some(&lab.namespace));
    lab.wait_until("the other cluster serves Probes", async || {
        probes.list(&ListParams::default().limit(1)).await.is_ok()
    })
    .await;
    probes
}

/// Sets the conditions of an object of the other cluster, each with its status.
async fn set_conditions(probes: &Api<DynamicObject>, name: &str, conditions: &[(&str, &str)]) {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(condition, status)| {
            json!({"type": condition, "status": status, "reason": "Tested", "message": "set by the test",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1})
        })
        .collect();
    let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let patched = probes.patch_status(name, &PatchParams::default(), &status).await;
    patched.expect("patched");
}

#[scenario]
async fn required_object_of_another_cluster_wakes_when_it_becomes_ready(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    let probes = install_probe_kind(&lab, &east).await;
    lab.settings.grants = Grants::parse(PROBES_OF_CLUSTERS, "grants.yaml").expect("they parse");
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    for action in ["ready", "condition"] {
        let step = json!({"do": action, "apiVersion": kind().api_version(), "kind": "Probe", "name": "there",
            "condition": "Synced"});
        lab.apply_probe(action, json!([on_east(&lab, step)]), json!([]))
            .await;
        wait_not_ready(&lab, &kind(), action, "there").await;
    }
    let far = json!({"apiVersion": kind().api_version(), "kind": "Probe", "metadata": {"name": "there"}, "spec": {}});
    let created = probes
        .patch("there", &PatchParams::apply("test"), &Patch::Apply(far))
        .await;
    created.expect("created");
    lab.wait_idle().await;
    for action in ["ready", "condition"] {
        wait_not_ready(&lab, &kind(), action, "there").await;
    }
    set_conditions(&probes, "there", &[("Ready", "True"), ("Synced", "False")]).await;
    lab.wait_seen("ready", &["present"]).await;
    lab.wait_idle().await;
    wait_not_ready(&lab, &kind(), "condition", "there").await;
    set_conditions(&probes, "there", &[("Ready", "False"), ("Synced", "True")]).await;
    lab.wait_seen("condition", &["present"]).await;
    wait_not_ready(&lab, &kind(), "ready", "there").await;
    // Changes there woke them, and not a timer.
    let far = format!("dependency Probe/{0}/east:{0}/there", lab.namespace);
    for action in ["ready", "condition"] {
        let woken = lab.wake_causes(&kind(), action);
        let names: Vec<String> = woken.iter().map(ToString::to_string).collect();
        assert!(names.contains(&far), "{action}: {names:?}");
    }
}

#[scenario]
async fn requirements_and_writes_of_another_cluster_need_a_grant(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.wait_ready(&cluster_kind(), "east").await;
    // The probe has these grants for the host's own cluster only.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "made"}}).to_string();
    let steps = [
        json!({"do": "ready", "apiVersion": kind().api_version(), "kind": "Probe", "name": "x"}),
        json!({"do": "condition", "apiVersion": kind().api_version(), "kind": "Probe", "name": "x", "condition": "Ready"}),
        json!({"do": "create", "object": secret}),
        json!({"do": "patch", "kind": "Secret", "name": "x", "object": "{\"type\": \"Opaque\"}"}),
    ];
    let field = format!("clusters: [{}/east]", lab.namespace);
    for step in steps {
        let action = step["do"].as_str().expect("an action").to_owned();
        lab.apply_probe(&action, json!([on_east(&lab, step)]), json!([]))
            .await;
        wait_not_ready(&lab, &kind(), &action, &field).await;
    }
    let secrets = east.api("Secret", Some(&lab.namespace));
    assert!(secrets.get_opt("made").await.expect("a response").is_none());
}

#[scenario(real = "server-side apply and conflicts")]
async fn object_of_another_cluster_is_patched_and_kept_so(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    east.apply_config_map(&lab, "there", "1").await;
    lab.apply_config_map("there", "a", "home").await;
    let maps = east.api("ConfigMap", Some(&lab.namespace));
    let overtaken = maps
        .get("there")
        .await
        .expect("it exists")
        .metadata
        .resource_version;
    let patch = |name: &str| {
        on_east(
            &lab,
            json!({"do": "patch", "kind": "ConfigMap", "name": name, "object": "{\"data\": {\"w\": \"2\"}}"}),
        )
    };
    lab.apply_probe("p", json!([patch("there")]), json!([])).await;
    let patched = json!({"v": "1", "w": "2"});
    lab.wait_seen("p", &[&patched.to_string()]).await;
    assert_eq!(east.config_map(&lab, "there").await, Some(patched.clone()));
    let home = lab.get(&config_map(), "there").await.expect("it exists");
    assert_eq!(home["data"], json!({"v": "home"}), "one cluster only");
    // A foreign change of the patched field wakes the probe.
    let foreign = Patch::Merge(json!({"data": {"w": "3"}}));
    let changed = maps.patch("there", &PatchParams::default(), &foreign).await;
    changed.expect("changed");
    lab.wait_until("the change is patched back", async || {
        east.config_map(&lab, "there").await == Some(patched.clone())
    })
    .await;
    let mut late = patch("there");
    late["object"] = "{\"data\": {\"w\": \"late\"}}".into();
    late["resourceVersion"] = json!(overtaken);
    lab.apply_probe("late", json!([late]), json!([])).await;
    lab.wait_condition(&kind(), "late", "Ready", "False", "Conflict")
        .await;
    assert_eq!(east.config_map(&lab, "there").await, Some(patched));
    lab.apply_probe("missing", json!([patch("missing")]), json!([]))
        .await;
    lab.wait_condition(&kind(), "missing", "Ready", "False", "NotFound")
        .await;
}

#[scenario(real = "server-side apply and conflicts")]
async fn object_is_created_on_another_cluster_once(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    // A wake-up would create the objects again.
    protect_east(&lab).await;
    let create = |name: &str, owned: bool| {
        let mut step = on_east(&lab, write("create", name, "1"));
        step["owned"] = owned.into();
        json!([step])
    };
    lab.apply_probe("free", create("free", false), json!([])).await;
    lab.apply_probe("owner", create("owned", true), json!([])).await;
    for name in ["free", "owner"] {
        lab.wait_seen(name, &[r#"{"v":"1"}"#]).await;
    }
    assert!(lab.get(&config_map(), "free").await.is_none(), "one cluster only");
    lab.apply_probe("second", create("free", false), json!([])).await;
    lab.wait_condition(&kind(), "second", "Ready", "False", "Conflict")
        .await;
    for name in ["free", "owner"] {
        lab.delete(&kind(), name).await;
        lab.wait_gone(&kind(), name).await;
    }
    assert_eq!(east.config_map(&lab, "owned").await, None, "gone with its owner");
    assert_eq!(east.config_map(&lab, "free").await, Some(json!({"v": "1"})));
}
