//! Watches of another cluster end when nothing reads there any more.

use ostler::testing::scope::{Projection, Scope};

use super::*;
use ostler_test_harness::scenario;

/// The scopes that are watched on the cluster `east`; none without a connection.
fn list_watches(lab: &Lab) -> Vec<Scope> {
    let cluster = format!("{}/east", lab.namespace);
    let connection = lab.host().services().clusters.find(&cluster);
    let watched = connection.map(|connection| connection.access.cache.informers.scopes());
    watched.into_iter().flatten().map(|(scope, _)| scope).collect()
}

#[scenario(real = "watches and lists")]
async fn unused_watch_of_another_cluster_is_stopped(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    lab.settings.watch_linger = Duration::from_millis(200);
    lab.start_probe().await;
    apply_cluster(&lab, "east", east.kubeconfig()).await;
    lab.wait_ready(&cluster_kind(), "east").await;
    assert_eq!(list_watches(&lab), [], "nothing has read there");
    let count_lists = || {
        lab.embedded
            .as_ref()
            .map(|_| east.embedded().counters().of("list", "configmaps"))
    };
    let before = count_lists();
    east.apply_config_map(&lab, "c", "1").await;
    let read = json!([on_east(
        &lab,
        json!({"do": "get", "kind": "ConfigMap", "name": "c"})
    )]);
    for name in ["a", "b"] {
        lab.apply_probe(name, read.clone(), json!([])).await;
        lab.wait_seen(name, &[r#"{"v":"1"}"#]).await;
    }
    assert_eq!(list_watches(&lab).len(), 1, "shared by both");
    assert_eq!(count_lists(), before.map(|count| count + 1));
    // One reader is left, and is woken still.
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_seen("a", &[]).await;
    east.apply_config_map(&lab, "c", "2").await;
    lab.wait_seen("b", &[r#"{"v":"2"}"#]).await;
    assert_eq!(list_watches(&lab).len(), 1);
    lab.delete(&kind(), "b").await;
    lab.wait_gone(&kind(), "b").await;
    lab.wait_until("the watch is stopped", async || list_watches(&lab).is_empty())
        .await;
    let cluster = format!("{}/east", lab.namespace);
    let key = lab.key(&config_map(), "c").with_cluster(&cluster);
    let cached = lab.host().services().cache.store.get(&key, Projection::Full);
    assert!(cached.is_none(), "its objects are dropped");
    assert_eq!(count_lists(), before.map(|count| count + 1));
    // The next read starts another one, which the deletion of the Cluster ends.
    lab.apply_probe("a", read, json!([])).await;
    lab.wait_seen("a", &[r#"{"v":"2"}"#]).await;
    assert_eq!(list_watches(&lab).len(), 1);
    assert_eq!(count_lists(), before.map(|count| count + 2));
    lab.delete(&cluster_kind(), "east").await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_gone(&cluster_kind(), "east").await;
    lab.wait_until("the connection is closed", async || {
        lab.host()
            .services()
            .clusters
            .find(&format!("{}/east", lab.namespace))
            .is_none()
    })
    .await;
    let cached = lab.host().services().cache.store.get(&key, Projection::Full);
    assert!(cached.is_none(), "its objects are dropped");
}
