//! Plugins with another home cluster: the second cluster is the onboarding cluster, on which the objects are, and the lab's is
//! the platform cluster, on which the host runs.

use std::time::{Duration, Instant};

use kube::{
    api::{Api, DeleteParams, ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{
    Lab, SecondCluster, find_condition,
    probe::{config_map, kind, write},
    scenario,
};
use serde_json::{Value, json};

use super::{apply_cluster, apply_kubeconfig, cluster_kind};

const PROBE_CRD: &str = include_str!("../../../probe/crd.yaml");
const FINALIZER: &str = "tests.ostler.dev/probe";
const PROTECTION: &str = "ostler.dev/cluster-protection";

/// The onboarding cluster, with the kinds of the probe.
struct Onboarding(SecondCluster);

impl Onboarding {
    async fn start(lab: &Lab) -> Self {
        Self::with_kinds(lab, SecondCluster::start(lab).await).await
    }

    async fn with_kinds(lab: &Lab, cluster: SecondCluster) -> Self {
        let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let api: Api<DynamicObject> = Api::all_with(cluster.client().clone(), &ApiResource::from_gvk(&gvk));
        for document in PROBE_CRD.split("\n---") {
            let crd: Value = serde_saphyr::from_str(document).expect("YAML");
            let Some(name) = crd["metadata"]["name"].as_str() else {
                continue;
            };
            let parameters = PatchParams::apply("test").force();
            api.patch(name, &parameters, &Patch::Apply(&crd))
                .await
                .expect("applied");
        }
        let onboarding = Self(cluster);
        lab.wait_until("the kinds are served on the onboarding cluster", async || {
            for gvk in [kind(), selected_kind()] {
                if onboarding
                    .api(lab, &gvk)
                    .list(&ListParams::default())
                    .await
                    .is_err()
                {
                    return false;
                }
            }
            true
        })
        .await;
        onboarding
    }

    fn api(&self, lab: &Lab, gvk: &Gvk) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind));
        Api::namespaced_with(self.0.client().clone(), &lab.namespace, &resource)
    }

    async fn get(&self, lab: &Lab, gvk: &Gvk, name: &str) -> Option<Value> {
        let found = self.api(lab, gvk).get_opt(name).await.expect("a response");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    async fn apply_probe(&self, lab: &Lab, name: &str, steps: Value, cleanup: Value) {
        let object = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
            "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"steps": steps, "cleanup": cleanup}});
        let parameters = PatchParams::apply("test").force();
        self.api(lab, &kind())
            .patch(name, &parameters, &Patch::Apply(object))
            .await
            .expect("applied");
    }

    async fn delete_probe(&self, lab: &Lab, name: &str) {
        self.api(lab, &kind())
            .delete(name, &DeleteParams::default())
            .await
            .expect("deleted");
    }

    async fn wait_seen(&self, lab: &Lab, name: &str, seen: &[&str]) {
        lab.wait_until(&format!("status.seen of {name} is {seen:?}"), async || {
            let probe = self.get(lab, &kind(), name).await.unwrap_or_default();
            probe["status"]["seen"] == json!(seen)
        })
        .await;
    }

    async fn wait_gone(&self, lab: &Lab, name: &str) {
        lab.wait_until(&format!("{name} is gone"), async || {
            self.get(lab, &kind(), name).await.is_none()
        })
        .await;
    }
}

fn selected_kind() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "SelectedProbe")
}

fn plugin_kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

/// What the probe may do with `onboarding` as its home cluster. Others may use the onboarding cluster as well.
fn permissions(lab: &Lab) -> Value {
    let verbs = json!(["get", "list", "apply", "create", "patch", "delete", "hold"]);
    let on_clusters = json!(["get", "list", "apply", "create", "patch", "delete"]);
    json!({
        "reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"], "namespaces": [lab.namespace]}],
        "kubernetes": [
            {"kinds": ["ConfigMap"], "verbs": verbs, "namespaces": ["*"]},
            {"kinds": ["ConfigMap"], "verbs": on_clusters, "namespaces": ["*"], "clusters": ["in-cluster"]},
        ],
        "events": true,
    })
}

fn home(lab: &Lab) -> String {
    format!("{}/onboarding", lab.namespace)
}

/// Sets the home cluster of the probe in the grants of the plugin directory.
fn grant_home(lab: &mut Lab) {
    let mut grant = permissions(lab);
    grant["cluster"] = home(lab).into();
    let grants = json!({ "plugins": { "probe": grant } });
    lab.settings.grants = Grants::parse(&grants.to_string(), "grants").expect("they parse");
}

/// Starts a host with the probe, whose home cluster is the onboarding cluster.
async fn start(lab: &mut Lab) -> Onboarding {
    let onboarding = Onboarding::start(lab).await;
    grant_home(lab);
    lab.start_probe().await;
    apply_cluster(lab, "onboarding", onboarding.0.kubeconfig()).await;
    lab.wait_ready(&cluster_kind(), "onboarding").await;
    onboarding
}

/// A step on the platform cluster, which owns what it writes.
fn on_platform(mut step: Value) -> Value {
    step["cluster"] = "in-cluster".into();
    step["owned"] = true.into();
    step
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.iter().any(|f| f == finalizer))
}

#[scenario]
async fn objects_of_the_home_cluster_are_reconciled_there_and_cleaned_up(mut lab: Lab) {
    // The same kind and name on the platform cluster is none of the plugin's.
    lab.apply_probe("p", json!([write("apply", "stranger", "1")]), json!([]))
        .await;
    let onboarding = start(&mut lab).await;
    lab.apply_config_map("settings", "a", "platform").await;
    onboarding
        .0
        .apply_config_map(&lab, "settings", "onboarding")
        .await;
    let read = json!({"do": "get", "kind": "ConfigMap", "name": "settings"});
    let steps = json!([
        read,
        on_platform(read.clone()),
        write("apply", "near", "1"),
        on_platform(write("apply", "far", "1")),
        {"do": "checkpoint", "object": "{\"seen\": [\"saved\"]}"},
    ]);
    // The cleanup uses both clusters, too.
    let cleanup = json!([{"do": "delete", "kind": "ConfigMap", "name": "settings"}]);
    onboarding.apply_probe(&lab, "p", steps, cleanup).await;
    let seen = |platform: &str| {
        [
            r#"{"v":"onboarding"}"#.to_owned(),
            format!(r#"{{"v":"{platform}"}}"#),
            r#"{"v":"1"}"#.into(),
            r#"{"v":"1"}"#.into(),
            "saved".into(),
        ]
    };
    let wait_seen = async |platform: &str| {
        let seen = seen(platform);
        let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
        onboarding.wait_seen(&lab, "p", &seen).await;
    };
    wait_seen("platform").await;
    let probe = onboarding.get(&lab, &kind(), "p").await.expect("it exists");
    assert_eq!(find_condition(&probe, "Ready")["status"], "True", "{probe}");
    assert_eq!(probe["status"]["phase"], "Ready");
    assert!(has_finalizer(&probe, FINALIZER), "{probe}");
    // What it owns in its own cluster has an owner reference, and the inventory has the rest.
    let near = onboarding.get(&lab, &config_map(), "near").await.expect("made");
    assert_eq!(
        near["metadata"]["ownerReferences"][0]["uid"],
        probe["metadata"]["uid"]
    );
    let far = lab.get(&config_map(), "far").await.expect("made");
    assert_eq!(far["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(
        far["metadata"]["labels"]["ostler.dev/owner-uid"],
        probe["metadata"]["uid"]
    );
    assert_eq!(
        probe["metadata"]["annotations"]["ostler.dev/owned-objects"],
        format!("ConfigMap.v1 in-cluster {}/far", lab.namespace)
    );
    // Changes on both clusters wake it.
    lab.apply_config_map("settings", "a", "changed").await;
    wait_seen("changed").await;
    onboarding.0.apply_config_map(&lab, "near", "2").await;
    lab.wait_until("the change is reverted", async || {
        onboarding.0.config_map(&lab, "near").await == Some(json!({"v": "1"}))
    })
    .await;
    lab.wait_idle().await;
    let key = lab.key(&kind(), "p").with_cluster(&home(&lab));
    let causes = lab.host().causes(&key);
    let names: Vec<String> = causes.iter().map(ToString::to_string).collect();
    let platform = format!("dependency ConfigMap/{}/settings", lab.namespace);
    assert!(names.contains(&platform), "{names:?}");
    // The host restarts, and again in the middle of the deletion.
    lab.host = None;
    lab.start_host().await;
    lab.wait_until("it is reconciled again", async || {
        lab.host()
            .stats()
            .object(&key)
            .is_some_and(|stats| stats.reconciles > 0)
    })
    .await;
    let kept = json!({"metadata": {"finalizers": ["tests.ostler.dev/kept"]}});
    lab.patch(&config_map(), "far", kept).await;
    onboarding.delete_probe(&lab, "p").await;
    lab.wait_until("it waits for what it owns on the platform cluster", async || {
        let probe = onboarding.get(&lab, &kind(), "p").await.unwrap_or_default();
        find_condition(&probe, "Ready")["reason"] == "OwnedObjectsRemain"
    })
    .await;
    lab.host = None;
    let released = json!({"metadata": {"finalizers": null}});
    lab.patch(&config_map(), "far", released).await;
    lab.start_host().await;
    onboarding.wait_gone(&lab, "p").await;
    assert!(lab.get(&config_map(), "far").await.is_none());
    assert_eq!(
        onboarding.0.config_map(&lab, "settings").await,
        None,
        "its cleanup has deleted it"
    );
    let stranger = lab.get(&kind(), "p").await.expect("it exists");
    assert_eq!(stranger["status"], Value::Null, "{stranger}");
    assert!(!has_finalizer(&stranger, FINALIZER));
    assert!(lab.get(&config_map(), "stranger").await.is_none());
}

#[scenario]
async fn object_of_the_home_cluster_holds_nothing_and_fails_with_the_reason(mut lab: Lab) {
    let onboarding = start(&mut lab).await;
    lab.apply_config_map("held", "a", "1").await;
    let hold = json!({"do": "hold", "kind": "ConfigMap", "name": "held"});
    onboarding
        .apply_probe(&lab, "p", json!([on_platform(hold)]), json!([]))
        .await;
    lab.wait_until("it is not Ready", async || {
        let probe = onboarding.get(&lab, &kind(), "p").await.unwrap_or_default();
        let ready = find_condition(&probe, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False" && message.contains("only on the host's own")
    })
    .await;
    // Its Event is on its own cluster.
    onboarding
        .apply_probe(&lab, "p", json!([{"do": "park"}]), json!([]))
        .await;
    lab.wait_until("an Event says why", async || {
        let events = onboarding.api(&lab, &Gvk::new("", "v1", "Event"));
        let listed = events.list(&ListParams::default()).await.expect("a list");
        let mut reasons = listed.items.iter().map(|event| &event.data);
        reasons.any(|event| event["reason"] == "Requested" && event["involvedObject"]["name"] == "p")
    })
    .await;
    let events = lab.list(&Gvk::new("", "v1", "Event")).await;
    assert!(
        !events.iter().any(|event| event["involvedObject"]["name"] == "p"),
        "{events:?}"
    );
    onboarding.delete_probe(&lab, "p").await;
    onboarding.wait_gone(&lab, "p").await;
}

#[scenario]
async fn home_cluster_that_is_away_keeps_its_objects_waiting(mut lab: Lab) {
    let onboarding = start(&mut lab).await;
    let steps = |value: &str| json!([on_platform(write("apply", "far", value))]);
    onboarding.apply_probe(&lab, "p", steps("1"), json!([])).await;
    onboarding.wait_seen(&lab, "p", &[r#"{"v":"1"}"#]).await;
    onboarding.0.set_down(true);
    let now = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}});
    lab.patch(&cluster_kind(), "onboarding", now).await;
    lab.wait_until("the Cluster is not Ready", async || {
        let cluster = lab.get(&cluster_kind(), "onboarding").await.unwrap_or_default();
        find_condition(&cluster, "Ready")["status"] == "False"
    })
    .await;
    // It is woken by the platform cluster, and waits for its own.
    lab.apply_config_map("far", "a", "drift").await;
    let started = Instant::now();
    lab.wait_idle().await;
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    lab.host = None;
    lab.start_host().await;
    onboarding.0.set_down(false);
    lab.wait_ready(&cluster_kind(), "onboarding").await;
    lab.wait_until("the drift is put right", async || {
        lab.get(&config_map(), "far").await.unwrap_or_default()["data"]["v"] == "1"
    })
    .await;
    onboarding.apply_probe(&lab, "p", steps("2"), json!([])).await;
    onboarding.wait_seen(&lab, "p", &[r#"{"v":"2"}"#]).await;
}

#[scenario]
async fn rotated_credentials_of_the_home_cluster_end_no_watch(mut lab: Lab) {
    let server = SecondCluster::start_embedded(&lab).await;
    let onboarding = Onboarding::with_kinds(&lab, server).await;
    grant_home(&mut lab);
    lab.start_probe().await;
    let kubeconfig = onboarding.0.kubeconfig();
    apply_cluster(&lab, "onboarding", kubeconfig).await;
    let steps = |value: &str| json!([on_platform(write("apply", "far", value))]);
    onboarding.apply_probe(&lab, "p", steps("1"), json!([])).await;
    onboarding.wait_seen(&lab, "p", &[r#"{"v":"1"}"#]).await;
    let count_watches = || {
        let counters = onboarding.0.embedded().counters();
        (counters.of("list", "probes"), counters.of("watch", "probes"))
    };
    let watches = count_watches();
    assert!(watches.1 > 0, "{watches:?}");
    let rotated = kubeconfig.replace("token: anybody", "token: rotated");
    assert_ne!(rotated, kubeconfig);
    apply_kubeconfig(&lab, "onboarding", &rotated).await;
    lab.wait_idle().await;
    // The test lists and watches nothing itself.
    onboarding.apply_probe(&lab, "p", steps("2"), json!([])).await;
    onboarding.wait_seen(&lab, "p", &[r#"{"v":"2"}"#]).await;
    assert_eq!(count_watches(), watches, "nothing is listed or watched again");
    // Another server is another connection, through which everything is listed again.
    let elsewhere = Onboarding::with_kinds(&lab, SecondCluster::start_embedded(&lab).await).await;
    let other = json!([on_platform(write("apply", "other", "3"))]);
    elsewhere.apply_probe(&lab, "q", other, json!([])).await;
    apply_kubeconfig(&lab, "onboarding", elsewhere.0.kubeconfig()).await;
    elsewhere.wait_seen(&lab, "q", &[r#"{"v":"3"}"#]).await;
}

#[scenario]
async fn plugin_shows_a_missing_home_cluster_and_keeps_it(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    let onboarding = Onboarding::start(&lab).await;
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": "probe", "labels": {"lab": lab.namespace}},
        "spec": {"source": {"file": "probe.wasm"}, "cluster": home(&lab), "grants": permissions(&lab)}}))
        .await;
    let steps = json!([on_platform(write("apply", "far", "1"))]);
    onboarding.apply_probe(&lab, "p", steps, json!([])).await;
    let get_plugin = async || {
        let found = lab.api(&plugin_kind(), "").get_opt("probe").await;
        let found = found.expect("a response");
        found.map_or(Value::Null, |plugin| serde_json::to_value(plugin).expect("JSON"))
    };
    let wait_reason = async |status: &str, reason: &str| {
        lab.wait_until(&format!("the Plugin has Ready={status} ({reason})"), async || {
            let ready = find_condition(&get_plugin().await, "Ready");
            ready["status"] == status && ready["reason"] == reason
        })
        .await;
    };
    wait_reason("False", "ClusterNotFound").await;
    let ready = find_condition(&get_plugin().await, "Ready");
    let message = ready["message"].as_str().expect("a message");
    assert!(
        message.contains(&home(&lab)) && message.contains("create it"),
        "{message}"
    );
    apply_cluster(&lab, "onboarding", "no kubeconfig").await;
    wait_reason("False", "ClusterNotReady").await;
    apply_kubeconfig(&lab, "onboarding", onboarding.0.kubeconfig()).await;
    onboarding.wait_seen(&lab, "p", &[r#"{"v":"1"}"#]).await;
    wait_reason("True", "Ready").await;
    // It stays as long as the plugin does, which stays as long as its objects need their cleanup.
    let secret = Gvk::new("", "v1", "Secret");
    for (gvk, name) in [(cluster_kind(), "onboarding"), (secret, "onboarding")] {
        lab.wait_until(&format!("{} is protected", gvk.kind), async || {
            has_finalizer(&lab.get(&gvk, name).await.unwrap_or_default(), PROTECTION)
        })
        .await;
    }
    lab.delete(&cluster_kind(), "onboarding").await;
    lab.api(&plugin_kind(), "")
        .delete("probe", &DeleteParams::default())
        .await
        .expect("deleted");
    wait_reason("False", "ObjectsRemain").await;
    onboarding.delete_probe(&lab, "p").await;
    onboarding.wait_gone(&lab, "p").await;
    assert!(lab.get(&config_map(), "far").await.is_none());
    lab.wait_until("the Plugin is gone", async || get_plugin().await.is_null())
        .await;
    lab.wait_gone(&cluster_kind(), "onboarding").await;
}

#[scenario]
async fn plan_shows_what_objects_of_the_home_cluster_would_change(mut lab: Lab) {
    use ostler::{
        HostSettings,
        testing::plan::{PlanRequest, plan},
    };
    let onboarding = Onboarding::start(&lab).await;
    grant_home(&mut lab);
    lab.install(&["tests/probe"]);
    apply_cluster(&lab, "onboarding", onboarding.0.kubeconfig()).await;
    let steps = json!([
        write("apply", "near", "1"),
        on_platform(write("apply", "far", "1")),
    ]);
    onboarding.apply_probe(&lab, "p", steps, json!([])).await;
    let settings = HostSettings {
        namespaces: Vec::new(),
        ..lab.settings.clone()
    };
    let request = PlanRequest {
        namespace: Some(lab.namespace.clone()),
        default_namespace: lab.namespace.clone(),
        ..PlanRequest::default()
    };
    let report = plan(lab.client.clone(), settings, &request)
        .await
        .expect("a plan");
    let changed: Vec<&str> = report.changes.iter().map(|change| &*change.object).collect();
    let near = format!("ConfigMap/{}:{}/near", home(&lab), lab.namespace);
    let far = format!("ConfigMap/{}/far", lab.namespace);
    for object in [near, far] {
        assert!(changed.contains(&&*object), "{changed:?} {:?}", report.notes);
    }
    assert!(
        onboarding.0.config_map(&lab, "near").await.is_none(),
        "nothing is written"
    );
    let probe = onboarding.get(&lab, &kind(), "p").await.expect("it exists");
    assert!(!has_finalizer(&probe, FINALIZER), "{probe}");
}
