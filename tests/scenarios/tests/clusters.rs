//! Other clusters: a plugin reads and writes objects of a second API server, and is woken by them.

mod attacks;
mod capabilities;
mod chaos;
mod figures;
mod fleet;
mod home;
mod impersonation;
mod observe;
mod watches;

use std::time::{Duration, Instant};

use kube::api::{DeleteParams, Patch, PatchParams};
use ostler::{
    HostSettings,
    testing::{
        key::Gvk,
        plan::{PlanRequest, plan},
    },
};
use ostler_test_harness::{
    Lab, SecondCluster, find_condition,
    probe::{config_map, kind, write},
    scenario,
};
use serde_json::{Value, json};

/// Finalizer of a Cluster that is in use.
const PROTECTION: &str = "ostler.dev/cluster-protection";

fn cluster_kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Cluster")
}

/// Applies the Secret `NAME` with a kubeconfig, and a Cluster of the same name.
async fn apply_cluster(lab: &Lab, name: &str, kubeconfig: &str) {
    apply_kubeconfig(lab, name, kubeconfig).await;
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"kubeconfigSecretRef": {"name": name}},
    }))
    .await;
}

/// Formats a kubeconfig for a server, with this field of its user.
fn format_kubeconfig(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

async fn apply_kubeconfig(lab: &Lab, name: &str, kubeconfig: &str) {
    lab.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": lab.namespace},
        "stringData": {"kubeconfig": kubeconfig},
    }))
    .await;
}

/// Has a probe write to the cluster `east`, and waits until it is protected, which changes the Cluster and wakes its users.
async fn protect_east(lab: &Lab) {
    let write = on_east(lab, write("apply", "of-user", "1"));
    lab.apply_probe("user", json!([write]), json!([])).await;
    lab.wait_seen("user", &[r#"{"v":"1"}"#]).await;
    lab.wait_until("the Cluster is protected", async || {
        let cluster = lab.get(&cluster_kind(), "east").await.unwrap_or_default();
        cluster["metadata"]["finalizers"].to_string().contains(PROTECTION)
    })
    .await;
    lab.wait_idle().await;
}

/// Waits until an object is not Ready, with a message that contains this.
async fn wait_not_ready(lab: &Lab, gvk: &Gvk, name: &str, message: &str) {
    lab.wait_until(&format!("{name} is not Ready: {message}"), async || {
        let object = lab.get(gvk, name).await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        ready["status"] == "False" && ready["message"].as_str().is_some_and(|m| m.contains(message))
    })
    .await;
}

/// A step on a cluster of the lab's namespace.
fn on_cluster(lab: &Lab, cluster: &str, mut step: Value) -> Value {
    step["cluster"] = format!("{}/{cluster}", lab.namespace).into();
    step
}

/// A step on the cluster `east` of the lab's namespace.
fn on_east(lab: &Lab, step: Value) -> Value {
    on_cluster(lab, "east", step)
}

#[scenario]
async fn objects_of_another_cluster_are_read_written_and_watched(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    // The same name exists on both clusters.
    lab.apply_config_map("twin", "a", "home").await;
    east.apply_config_map(&lab, "twin", "east").await;
    let near = json!({"do": "get", "kind": "ConfigMap", "name": "twin"});
    let far = on_east(&lab, near.clone());
    let list = on_east(&lab, json!({"do": "list", "kind": "ConfigMap"}));
    let made = on_east(&lab, write("apply", "made", "1"));
    lab.apply_probe("p", json!([near, far, made, list]), json!([]))
        .await;
    // It waits for the Cluster, which does not exist yet.
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    let cluster = lab.wait_ready(&cluster_kind(), "east").await;
    assert!(
        cluster["status"]["version"]
            .as_str()
            .is_some_and(|v| v.starts_with("v1.")),
        "{cluster}"
    );
    for condition in ["Connected", "Authenticated"] {
        assert_eq!(find_condition(&cluster, condition)["status"], "True", "{cluster}");
    }
    lab.wait_seen(
        "p",
        &[r#"{"v":"home"}"#, r#"{"v":"east"}"#, r#"{"v":"1"}"#, "made,twin"],
    )
    .await;
    assert_eq!(east.config_map(&lab, "made").await, Some(json!({"v": "1"})));
    assert!(
        lab.get(&config_map(), "made").await.is_none(),
        "written to one cluster only"
    );
    // A change there wakes the object here, and so do a new and a deleted one.
    let changed = Instant::now();
    east.apply_config_map(&lab, "twin", "changed").await;
    lab.wait_seen(
        "p",
        &[
            r#"{"v":"home"}"#,
            r#"{"v":"changed"}"#,
            r#"{"v":"1"}"#,
            "made,twin",
        ],
    )
    .await;
    assert!(
        changed.elapsed() < Duration::from_secs(10),
        "{:?}",
        changed.elapsed()
    );
    east.apply_config_map(&lab, "another", "x").await;
    lab.wait_seen(
        "p",
        &[
            r#"{"v":"home"}"#,
            r#"{"v":"changed"}"#,
            r#"{"v":"1"}"#,
            "another,made,twin",
        ],
    )
    .await;
    east.api("ConfigMap", Some(&lab.namespace))
        .delete("twin", &Default::default())
        .await
        .expect("deleted");
    lab.wait_seen(
        "p",
        &[r#"{"v":"home"}"#, "absent", r#"{"v":"1"}"#, "another,made"],
    )
    .await;
    // A foreign change of what it applied is reverted.
    east.apply_config_map(&lab, "made", "2").await;
    lab.wait_until("the change is reverted", async || {
        east.config_map(&lab, "made").await == Some(json!({"v": "1"}))
    })
    .await;
    lab.wait_idle().await;
    let woken = lab.wake_causes(&kind(), "p");
    let names: Vec<String> = woken.iter().map(ToString::to_string).collect();
    let far = format!("dependency ConfigMap/{0}/east:{0}/twin", lab.namespace);
    assert!(names.contains(&far), "{names:?}");
}

#[scenario]
async fn use_of_a_cluster_needs_a_grant_and_an_allowed_namespace(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.wait_ready(&cluster_kind(), "east").await;
    // The grant of the probe is for ConfigMaps on clusters of its own namespace.
    let secret = on_east(&lab, json!({"do": "get", "kind": "Secret", "name": "x"}));
    lab.apply_probe("secret", json!([secret]), json!([])).await;
    let mut foreign = json!({"do": "get", "kind": "ConfigMap", "name": "x"});
    foreign["cluster"] = "elsewhere/east".into();
    lab.apply_probe("foreign", json!([foreign]), json!([])).await;
    for (name, field) in [("secret", "/east]"), ("foreign", "clusters: [elsewhere/east]")] {
        wait_not_ready(&lab, &kind(), name, field).await;
    }
    // A kubeconfig that runs programs is refused, and shows why.
    let exec = format_kubeconfig("https://127.0.0.1", "exec: {command: sh, apiVersion: v1}");
    apply_cluster(&lab, "exec", &exec).await;
    lab.wait_condition(&cluster_kind(), "exec", "Ready", "False", "InvalidSpec")
        .await;
    wait_not_ready(&lab, &cluster_kind(), "exec", "users[].user.exec").await;
    // So is an address that Upstreams may not have.
    let internal = format!("https://10.0.0.1:{}", lab.api_address().port());
    apply_cluster(&lab, "internal", &format_kubeconfig(&internal, "token: t")).await;
    lab.wait_condition(&cluster_kind(), "internal", "Ready", "False", "AddressNotAllowed")
        .await;
}

#[scenario]
async fn dead_cluster_costs_its_own_objects_only(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    let kubeconfig = east.kubeconfig();
    apply_cluster(&lab, "east", kubeconfig).await;
    east.apply_config_map(&lab, "there", "1").await;
    let far = on_east(&lab, json!({"do": "get", "kind": "ConfigMap", "name": "there"}));
    lab.apply_probe("far", json!([far]), json!([])).await;
    lab.wait_seen("far", &[r#"{"v":"1"}"#]).await;
    east.set_down(true);
    // Many objects use the dead cluster at once.
    let made = on_east(&lab, write("apply", "made", "1"));
    for i in 0..30 {
        lab.apply_probe(&format!("dead-{i}"), json!([made]), json!([]))
            .await;
    }
    wait_not_ready(&lab, &cluster_kind(), "east", "").await;
    // An object of the own cluster is reconciled meanwhile.
    let started = Instant::now();
    let near = json!({"do": "get", "kind": "ConfigMap", "name": "near"});
    lab.apply_config_map("near", "a", "1").await;
    lab.apply_probe("near", json!([near]), json!([])).await;
    lab.wait_seen("near", &[r#"{"v":"1"}"#]).await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    // They wait for the Cluster, which is no error.
    wait_not_ready(&lab, &kind(), "dead-29", "Cluster").await;
}

#[scenario]
async fn rotated_credentials_end_no_watch(mut lab: Lab) {
    let east = SecondCluster::start_embedded(&lab).await;
    lab.start_probe().await;
    let kubeconfig = east.kubeconfig();
    apply_cluster(&lab, "east", kubeconfig).await;
    let far = on_east(&lab, json!({"do": "get", "kind": "ConfigMap", "name": "c"}));
    lab.apply_probe("p", json!([far]), json!([])).await;
    lab.wait_seen("p", &["absent"]).await;
    let cluster = format!("{}/east", lab.namespace);
    let before = lab
        .host()
        .services()
        .clusters
        .find(&cluster)
        .expect("a connection");
    let count_watches = || {
        let counters = east.embedded().counters();
        (
            counters.of("list", "configmaps"),
            counters.of("watch", "configmaps"),
        )
    };
    // The list is served before its watch is requested.
    lab.wait_until("the kind is watched", async || count_watches().1 > 0)
        .await;
    let watches = count_watches();
    apply_kubeconfig(
        &lab,
        "east",
        &kubeconfig.replace("token: anybody", "token: rotated"),
    )
    .await;
    lab.wait_idle().await;
    east.apply_config_map(&lab, "c", "1").await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    let after = lab
        .host()
        .services()
        .clusters
        .find(&cluster)
        .expect("a connection");
    assert!(std::sync::Arc::ptr_eq(&before, &after), "the connection stays");
    assert_eq!(count_watches(), watches, "nothing is listed or watched again");
}

#[scenario]
async fn plan_shows_changes_on_another_cluster_and_makes_none(lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.install(&["tests/probe"]);
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    east.apply_config_map(&lab, "there", "1").await;
    lab.apply_config_map("made", "a", "of the own cluster").await;
    let read = on_east(&lab, json!({"do": "get", "kind": "ConfigMap", "name": "there"}));
    let made = on_east(&lab, write("apply", "made", "1"));
    lab.apply_probe("p", json!([read, made]), json!([])).await;
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
    let changed: Vec<String> = report.changes.iter().map(|c| c.object.clone()).collect();
    let far = format!("ConfigMap/{0}/east:{0}/made", lab.namespace);
    assert!(changed.contains(&far), "{changed:?} {:?}", report.notes);
    assert!(
        !changed.contains(&format!("ConfigMap/{}/made", lab.namespace)),
        "{changed:?}"
    );
    assert!(
        east.config_map(&lab, "made").await.is_none(),
        "nothing is written"
    );
}

#[scenario]
async fn plan_names_only_the_lost_clusters_that_it_uses(lab: Lab) {
    lab.install(&["tests/probe"]);
    for name in ["used", "unused"] {
        apply_cluster(&lab, name, "no kubeconfig").await;
    }
    let read = on_cluster(
        &lab,
        "used",
        json!({"do": "get", "kind": "ConfigMap", "name": "there"}),
    );
    lab.apply_probe("p", json!([read]), json!([])).await;
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
    let [note] = &report.notes[..] else {
        panic!("one note: {:?}", report.notes)
    };
    let expected = format!("Cluster/{}/used is not connected to: ", lab.namespace);
    assert!(note.starts_with(&expected), "{note}");
}

/// A step that applies a ConfigMap on the cluster `east` as an owned object.
fn own(lab: &Lab, name: &str) -> Value {
    own_on(lab, "east", name, "1")
}

/// A step that applies a ConfigMap with a value on a cluster as an owned object.
fn own_on(lab: &Lab, cluster: &str, name: &str, value: &str) -> Value {
    let mut step = on_cluster(lab, cluster, write("apply", name, value));
    step["owned"] = true.into();
    step
}

/// Waits until a deleted owner says that it waits for its objects, with this text.
async fn wait_objects_remain(lab: &Lab, name: &str, message: &str) {
    lab.wait_until(&format!("{name} waits for its objects: {message}"), async || {
        let object = lab.get(&kind(), name).await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        ready["reason"] == "OwnedObjectsRemain"
            && ready["message"].as_str().is_some_and(|m| m.contains(message))
    })
    .await;
}

#[scenario(real = "finalizers and garbage collection")]
async fn owned_objects_of_another_cluster_are_gone_before_their_owner(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    east.apply_config_map(&lab, "stranger", "1").await;
    lab.apply_probe("p", json!([own(&lab, "a"), own(&lab, "b")]), json!([]))
        .await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#, r#"{"v":"1"}"#]).await;
    let api = east.api("ConfigMap", Some(&lab.namespace));
    let owner = lab.get(&kind(), "p").await.expect("a probe");
    let made = api.get("a").await.expect("made");
    assert_eq!(
        json!(made.metadata.labels.expect("labels")["ostler.dev/owner-uid"]),
        owner["metadata"]["uid"]
    );
    // Whoever may edit the owner writes another object into the inventory.
    let listed = owner["metadata"]["annotations"]["ostler.dev/owned-objects"]
        .as_str()
        .expect("an inventory");
    let entry = |name: &str| format!("ConfigMap.v1 {0}/east {0}/{name}", lab.namespace);
    assert_eq!(listed, format!("{}, {}", entry("a"), entry("b")));
    let listed = format!("{listed}, {}", entry("stranger"));
    let annotated = json!({"metadata": {"annotations": {"ostler.dev/owned-objects": listed}}});
    lab.patch(&kind(), "p", annotated).await;
    // The deletion of one of them takes a while.
    let finalizers = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    api.patch(
        "b",
        &PatchParams::default(),
        &finalizers(json!(["tests.ostler.dev/slow"])),
    )
    .await
    .expect("patched");
    lab.delete(&kind(), "p").await;
    wait_objects_remain(&lab, "p", "/b: it is being deleted").await;
    assert!(
        api.get_opt("a").await.expect("an answer").is_none(),
        "deleted at once"
    );
    let released = Instant::now();
    api.patch("b", &PatchParams::default(), &finalizers(json!(null)))
        .await
        .expect("patched");
    lab.wait_gone(&kind(), "p").await;
    // It is woken by the deletion, and not by the timer of 30 seconds.
    assert!(
        released.elapsed() < Duration::from_secs(15),
        "{:?}",
        released.elapsed()
    );
    assert!(api.get_opt("b").await.expect("an answer").is_none());
    assert!(
        api.get_opt("stranger").await.expect("an answer").is_some(),
        "it was never taken over"
    );
}

#[scenario]
async fn owner_and_cluster_stay_while_the_cluster_is_away(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.apply_probe("p", json!([own(&lab, "a")]), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    let secret = Gvk::new("", "v1", "Secret");
    let connection = [(cluster_kind(), "east"), (secret, "east")];
    for (gvk, name) in &connection {
        lab.wait_until(&format!("{} {name} is protected", gvk.kind), async || {
            let object = lab.get(gvk, name).await.unwrap_or_default();
            object["metadata"]["finalizers"].to_string().contains(PROTECTION)
        })
        .await;
    }
    east.set_down(true);
    // As the deletion of a namespace does it: the credentials first.
    for (gvk, name) in connection.iter().rev() {
        lab.delete(gvk, name).await;
    }
    lab.delete(&kind(), "p").await;
    wait_objects_remain(&lab, "p", "ConfigMap/").await;
    lab.host = None;
    lab.start_host().await;
    wait_objects_remain(&lab, "p", "Cluster").await;
    for (gvk, name) in &connection {
        assert!(
            lab.get(gvk, name).await.is_some(),
            "{} is needed for the deletion",
            gvk.kind
        );
    }
    east.set_down(false);
    lab.wait_gone(&kind(), "p").await;
    assert!(east.config_map(&lab, "a").await.is_none());
    for (gvk, name) in &connection {
        lab.wait_gone(gvk, name).await;
    }
}

#[scenario]
async fn cluster_that_is_gone_for_good_is_let_go_by_its_annotation(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.apply_probe("p", json!([own(&lab, "a")]), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    east.set_down(true);
    lab.delete(&kind(), "p").await;
    wait_objects_remain(&lab, "p", "ConfigMap/").await;
    let annotations = json!({"metadata": {"annotations": {"ostler.dev/deletion-policy": "Orphan"}}});
    lab.patch(&cluster_kind(), "east", annotations).await;
    lab.wait_gone(&kind(), "p").await;
    lab.wait_until("an Event names what was let go", async || {
        let events = lab.list(&Gvk::new("", "v1", "Event")).await;
        let orphaned = events.iter().filter(|event| event["reason"] == "Orphaned");
        orphaned
            .filter_map(|event| event["message"].as_str())
            .any(|note| note.contains("/a"))
    })
    .await;
}

#[scenario(real = "server-side apply and conflicts")]
async fn object_of_another_owner_is_not_taken_over(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.apply_probe("first", json!([own(&lab, "a")]), json!([])).await;
    lab.wait_seen("first", &[r#"{"v":"1"}"#]).await;
    lab.apply_probe("second", json!([own(&lab, "a")]), json!([]))
        .await;
    wait_not_ready(&lab, &kind(), "second", "another object owns it").await;
    lab.delete(&kind(), "second").await;
    lab.wait_gone(&kind(), "second").await;
    assert!(
        east.config_map(&lab, "a").await.is_some(),
        "it is the object of the first"
    );
    lab.delete(&kind(), "first").await;
    lab.wait_gone(&kind(), "first").await;
    assert!(east.config_map(&lab, "a").await.is_none());
}

/// A host with a Cluster watches all Plugins, since those of other hosts may have their objects there.
#[scenario]
async fn plugin_of_another_host_is_left_alone(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    // The selector of this host does not match it.
    let name = format!("other-{}", lab.namespace);
    lab.apply(
        json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin", "metadata": {"name": name},
        "spec": {"source": {"file": format!("{name}.wasm")}}}),
    )
    .await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    protect_east(&lab).await;
    lab.delete(&kind(), "user").await;
    lab.delete(&cluster_kind(), "east").await;
    // It is not released while a plugin of this host is being loaded.
    lab.wait_gone(&cluster_kind(), "east").await;
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let other = plugins.get(&name).await.expect("the Plugin");
    assert_eq!(other.data["status"], Value::Null);
    assert_eq!(other.metadata.finalizers, None);
    plugins
        .delete(&name, &DeleteParams::default())
        .await
        .expect("deleted");
}

#[scenario]
async fn owned_object_that_its_plugin_deletes_leaves_the_inventory(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.apply_probe("p", json!([own(&lab, "a"), own(&lab, "b")]), json!([]))
        .await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#, r#"{"v":"1"}"#]).await;
    let delete = |name: &str| on_east(&lab, json!({"do": "delete", "kind": "ConfigMap", "name": name}));
    lab.apply_probe("p", json!([delete("a"), own(&lab, "b")]), json!([]))
        .await;
    lab.wait_seen("p", &["deleted", r#"{"v":"1"}"#]).await;
    let inventory = async || {
        let probe = lab.get(&kind(), "p").await.expect("a probe");
        probe["metadata"]["annotations"]["ostler.dev/owned-objects"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(
        inventory().await,
        Some(format!("ConfigMap.v1 {0}/east {0}/b", lab.namespace))
    );
    lab.apply_probe("p", json!([delete("b")]), json!([])).await;
    lab.wait_seen("p", &["deleted"]).await;
    assert_eq!(inventory().await, None);
    // Nothing needs the Cluster any more.
    lab.apply_probe("p", json!([]), json!([])).await;
    lab.wait_seen("p", &[]).await;
    lab.delete(&cluster_kind(), "east").await;
    lab.wait_gone(&cluster_kind(), "east").await;
    lab.delete(&kind(), "p").await;
    lab.wait_gone(&kind(), "p").await;
}
