//! A host beside another one on the same cluster, as `ostler plugin dev --kubeconfig` runs it: it serves its own plugins, and leaves
//! what belongs to the installation.

use std::net::SocketAddr;

use kube::api::DeleteParams;
use ostler::testing::{key::Gvk, upstream::upstream_gvk};
use ostler_test_harness::{
    Lab, SecondCluster,
    probe::{kind, write},
    proxy::Proxy,
    scenario,
};
use serde_json::{Value, json};

fn cluster_kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Cluster")
}

fn plugin_kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

async fn apply_secret(lab: &Lab, name: &str, key: &str, value: &str) {
    lab.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": lab.namespace},
        "stringData": {key: value},
    }))
    .await;
}

/// Applies an Upstream with credentials, and returns the proxy in front of its server, which counts connections.
async fn apply_upstream(lab: &Lab, name: &str) -> Proxy {
    let (_, address) = lab.concourse.url().split_once("://").expect("a URL");
    let address: SocketAddr = address.parse().expect("an address");
    let proxy = Proxy::start(address).await.expect("the proxy starts");
    apply_secret(lab, name, "password", "not-a-secret").await;
    let auth = json!({"basic": {"username": "u", "passwordSecretRef": {"name": name, "key": "password"}}});
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"url": format!("http://{}", proxy.address()), "auth": auth},
    }))
    .await;
    proxy
}

async fn status(lab: &Lab, gvk: &Gvk, name: &str) -> Value {
    lab.get(gvk, name).await.expect("it exists")["status"].clone()
}

#[scenario]
async fn host_beside_another_connects_only_to_what_its_plugins_use(mut lab: Lab) {
    lab.settings.shares_cluster = true;
    let (used, unused) = (
        apply_upstream(&lab, "used").await,
        apply_upstream(&lab, "unused").await,
    );
    let east = SecondCluster::start(&lab).await;
    apply_secret(&lab, "east", "kubeconfig", east.kubeconfig()).await;
    lab.apply(json!({
        "apiVersion": "ostler.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "east", "namespace": lab.namespace},
        "spec": {"kubeconfigSecretRef": {"name": "east"}},
    }))
    .await;
    lab.install(&["tests/probe"]);
    lab.start_host().await;
    let plugin_name = format!("other-{}", lab.namespace);
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": plugin_name, "labels": {"lab": lab.namespace}},
        "spec": {"source": {"file": "missing.wasm"}}}))
        .await;

    let request = |upstream: &str| json!({"do": "http", "name": upstream, "path": "/"});
    lab.apply_probe("p", json!([request("used")]), json!([])).await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_ready(&upstream_gvk(), "used").await;
    assert!(used.count_accepted() > 0);
    lab.wait_idle().await;
    assert_eq!(unused.count_accepted(), 0, "no plugin uses it");
    assert_eq!(status(&lab, &upstream_gvk(), "unused").await, json!(null));
    assert_eq!(status(&lab, &cluster_kind(), "east").await, json!(null));

    let mut on_east = write("apply", "made", "1");
    on_east["cluster"] = format!("{}/east", lab.namespace).into();
    let steps = json!([request("used"), request("unused"), on_east]);
    lab.patch(&kind(), "p", json!({"spec": {"steps": steps}})).await;
    lab.wait_ready(&upstream_gvk(), "unused").await;
    lab.wait_ready(&cluster_kind(), "east").await;
    lab.wait_ready(&kind(), "p").await;
    let plugins = lab.api(&plugin_kind(), "");
    let plugin = plugins.get(&plugin_name).await.expect("a Plugin");
    assert_eq!(plugin.data["status"], json!(null), "another host loads it");

    // What it protected for its users is released by it.
    lab.delete(&kind(), "p").await;
    lab.wait_gone(&kind(), "p").await;
    for (gvk, name) in [
        (upstream_gvk(), "used"),
        (upstream_gvk(), "unused"),
        (cluster_kind(), "east"),
    ] {
        lab.delete(&gvk, name).await;
        lab.wait_gone(&gvk, name).await;
    }
    plugins
        .delete(&plugin_name, &DeleteParams::default())
        .await
        .expect("deleted");
}
