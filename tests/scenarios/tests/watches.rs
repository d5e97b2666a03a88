//! Watches follow reads: a reconcile is woken by changes of what it read, by object, label and field, and by no others.

use std::time::Duration;

use kube::api::PatchParams;
use ostler::testing::{
    dispatcher::Cause,
    scope::{Projection, Scope},
};
use ostler_test_harness::{
    Lab,
    probe::{config_map, kind},
    proxy::Proxy,
    scenarios,
};
use serde_json::json;

scenarios!(
    read_of_absent_object_wakes_on_creation,
    list_wakes_by_label_and_field,
    metadata_read_stores_metadata_only,
    unused_watch_is_stopped,
    list_of_600_objects_is_complete,
    reconcile_now_annotation_requests_one_reconcile,
    broken_watch_misses_no_change_and_wakes_only_its_readers,
);

fn woken_by(lab: &Lab, name: &str) -> Vec<String> {
    let on = |cause: &Cause| match cause {
        Cause::Dependency(on) => Some(on.name.to_string()),
        _ => None,
    };
    lab.wake_causes(&kind(), name).iter().filter_map(on).collect()
}

/// The watches of ConfigMaps and Secrets.
fn watches(lab: &Lab) -> Vec<Scope> {
    let scopes = lab.host().services().cache.informers.scopes();
    let scopes = scopes.into_iter().map(|(scope, _)| scope);
    scopes
        .filter(|s| matches!(&*s.gvk.kind, "ConfigMap" | "Secret"))
        .collect()
}

async fn read_of_absent_object_wakes_on_creation(mut lab: Lab) {
    lab.start_probe().await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "later"});
    lab.apply_probe("p", json!([get]), json!([])).await;
    lab.wait_seen("p", &["absent"]).await;
    lab.apply_config_map("unrelated", "a", "1").await;
    lab.apply_config_map("later", "a", "1").await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    lab.apply_config_map("later", "a", "2").await;
    lab.wait_seen("p", &[r#"{"v":"2"}"#]).await;
    lab.delete(&config_map(), "later").await;
    lab.wait_seen("p", &["absent"]).await;
    assert_eq!(woken_by(&lab, "p"), ["later"; 3]);
}

async fn list_wakes_by_label_and_field(mut lab: Lab) {
    lab.start_probe().await;
    let labels = json!({"do": "list", "kind": "ConfigMap", "labels": "l=a"});
    let fields = json!({"do": "list", "kind": "ConfigMap", "labels": "l in (a,b)", "fields": "data.v=1"});
    lab.apply_probe("p", json!([labels, fields]), json!([])).await;
    lab.wait_seen("p", &["", ""]).await;
    lab.apply_config_map("x", "a", "1").await;
    lab.wait_seen("p", &["x", "x"]).await;
    // It leaves both lists, one after the other. An object in neither list enqueues nothing.
    lab.apply_config_map("x", "b", "1").await;
    lab.wait_seen("p", &["", "x"]).await;
    lab.apply_config_map("x", "b", "2").await;
    lab.wait_seen("p", &["", ""]).await;
    lab.wait_idle().await;
    let before = woken_by(&lab, "p").len();
    lab.apply_config_map("x", "c", "1").await;
    lab.apply_config_map("y", "b", "3").await;
    lab.apply_config_map("z", "a", "1").await;
    lab.wait_seen("p", &["z", "z"]).await;
    let since = woken_by(&lab, "p").split_off(before);
    assert_eq!(since, ["z"], "an object in no list enqueues nothing");
}

async fn metadata_read_stores_metadata_only(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("m", "a", &"x".repeat(10_000)).await;
    let metadata = json!({"do": "metadata", "kind": "ConfigMap", "name": "m"});
    lab.apply_probe("p", json!([metadata]), json!([])).await;
    lab.wait_seen("p", &["present"]).await;
    let forms: Vec<Projection> = watches(&lab).iter().map(|s| s.projection).collect();
    assert!(forms.iter().all(|f| *f == Projection::Metadata), "{forms:?}");
    let key = lab.key(&config_map(), "m");
    let kept = lab
        .host()
        .services()
        .cache
        .store
        .get(&key, Projection::Metadata)
        .expect("it is kept");
    assert!(kept.json.len() < 5_000, "{} bytes are kept", kept.json.len());
    lab.delete(&config_map(), "m").await;
    lab.wait_seen("p", &["absent"]).await;
}

async fn unused_watch_is_stopped(mut lab: Lab) {
    lab.settings.watch_linger = Duration::from_millis(200);
    // Grants without `hold`, since kinds that may be held are always watched.
    lab.settings.grants = ostler::testing::grants::Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], kubernetes: [{kinds: [ConfigMap], verbs: [get, list], namespaces: ['*']}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    assert_eq!(watches(&lab), []);
    let list = json!({"do": "list", "kind": "ConfigMap", "labels": "l=a"});
    lab.apply_probe("p", json!([list]), json!([])).await;
    lab.wait_seen("p", &[""]).await;
    lab.wait_until("there is one watch", async || watches(&lab).len() == 1)
        .await;
    assert!(watches(&lab)[0].selector.is_some(), "as narrow as the list is");
    lab.apply_config_map("x", "a", "1").await;
    lab.wait_seen("p", &["x"]).await;
    lab.apply_probe("p", json!([]), json!([])).await;
    lab.wait_until("the watch is stopped", async || watches(&lab).is_empty())
        .await;
    assert!(
        lab.host()
            .services()
            .cache
            .store
            .get(&lab.key(&config_map(), "x"), Projection::Full)
            .is_none()
    );
    // The same list starts a new watch.
    lab.apply_probe("p", json!([list]), json!([])).await;
    lab.wait_seen("p", &["x"]).await;
    lab.delete(&kind(), "p").await;
    lab.wait_gone(&kind(), "p").await;
    lab.wait_until("the watch is stopped with its object", async || {
        watches(&lab).is_empty()
    })
    .await;
}

/// A list of more than one page: a streaming list if the server supports it, else page by page.
async fn list_of_600_objects_is_complete(mut lab: Lab) {
    let api = lab.api(&config_map(), &lab.namespace);
    for i in 0..600 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("m{i:03}"), "labels": {"l": if i < 597 { "a" } else { "b" }}}});
        api.patch(
            &format!("m{i:03}"),
            &PatchParams::apply("test"),
            &kube::api::Patch::Apply(&map),
        )
        .await
        .expect("applied");
    }
    lab.start_probe().await;
    // A field selector is evaluated by the host, so the list needs all objects.
    let wide = json!({"do": "list", "kind": "ConfigMap", "fields": "metadata.labels.l=b"});
    lab.apply_probe("p", json!([wide]), json!([])).await;
    lab.wait_seen("p", &["m597,m598,m599"]).await;
    let services = lab.host().services();
    assert!(services.cache.store.size().objects >= 600);
    lab.delete(&config_map(), "m598").await;
    lab.wait_seen("p", &["m597,m599"]).await;
}

async fn reconcile_now_annotation_requests_one_reconcile(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("p", json!([{"do": "park"}]), json!([])).await;
    lab.wait_condition(&kind(), "p", "Stalled", "True", "Requested")
        .await;
    lab.wait_idle().await;
    let reconciles = || {
        lab.host()
            .stats()
            .object(&lab.key(&kind(), "p"))
            .map(|f| f.reconciles)
    };
    let before = reconciles();
    for value in ["1", "2"] {
        let annotations = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": value}}});
        lab.patch(&kind(), "p", annotations).await;
        lab.wait_until("the annotation enqueued it", async || {
            let manual = lab
                .wake_causes(&kind(), "p")
                .iter()
                .filter(|c| **c == Cause::Manual)
                .count();
            manual.to_string() == value
        })
        .await;
    }
    lab.wait_idle().await;
    assert_eq!(reconciles(), before.map(|n| n + 2));
}

/// The API server is down for a while and the watch's resourceVersion expires: changes in between are seen, and unchanged
/// objects enqueue nothing.
async fn broken_watch_misses_no_change_and_wakes_only_its_readers(mut lab: Lab) {
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    let client = lab.client_at(proxy.address()).await;
    lab.install(&["tests/probe"]);
    lab.start_host_with(client).await;
    for i in 0..30 {
        lab.apply_config_map(&format!("m{i}"), "a", "0").await;
        let get = json!({"do": "get", "kind": "ConfigMap", "name": format!("m{i}")});
        lab.apply_probe(&format!("p{i}"), json!([get]), json!([])).await;
    }
    for i in 0..30 {
        lab.wait_seen(&format!("p{i}"), &[r#"{"v":"0"}"#]).await;
    }
    lab.wait_idle().await;
    let reconciles = || {
        lab.host()
            .stats()
            .all_objects()
            .iter()
            .map(|f| f.reconciles)
            .sum::<u64>()
    };
    for round in 1..=3 {
        let before = reconciles();
        proxy.set_down(true);
        let changed = format!("m{round}");
        lab.apply_config_map(&changed, "a", "1").await;
        lab.delete(&config_map(), &format!("m{}", round + 10)).await;
        // Expires the watch's resourceVersion (410 Gone); the real server has no such control.
        if let Some(server) = &lab.embedded {
            server.compact();
        }
        proxy.set_down(false);
        lab.wait_seen(&format!("p{round}"), &[r#"{"v":"1"}"#]).await;
        lab.wait_seen(&format!("p{}", round + 10), &["absent"]).await;
        lab.wait_idle().await;
        assert_eq!(reconciles() - before, 2, "two changes, two reconciles");
    }
}

mod tls {
    mod embedded {
        /// The embedded API server serves HTTPS to the host and to any other client of its kubeconfig.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn embedded_server_speaks_https() {
            let options = ostler_apiserver::Options {
                tls: true,
                ..Default::default()
            };
            let lab = ostler_test_harness::Lab::embedded_with(options).await;
            let url = lab
                .embedded
                .as_ref()
                .map(|server| server.url())
                .unwrap_or_default();
            assert!(url.starts_with("https://"), "{url}");
            super::super::read_of_absent_object_wakes_on_creation(lab).await;
        }
    }
}
