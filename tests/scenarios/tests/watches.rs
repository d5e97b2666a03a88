//! Watches follow reads: a reconcile is woken by changes of what it read, by object, label and field, and by no others.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use ostler::testing::{
    dispatcher::Cause,
    key::{Gvk, ObjectRef},
    scope::{Projection, Scope},
};
use ostler_test_harness::{
    Lab,
    probe::{config_map, kind},
    proxy::Proxy,
    scenario,
};
use serde_json::{Value, json};

use crate::observability::{count_requests, serve_admin};

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

#[scenario(real = "watches and lists")]
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

#[scenario(real = "watches and lists")]
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

#[scenario(real = "watches and lists")]
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

#[scenario(real = "watches and lists")]
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

/// What the host finds to be unneeded may become needed before it stops the watch, as here everything was.
#[scenario(real = "watches and lists")]
async fn needed_scope_without_a_watch_is_watched_again(mut lab: Lab) {
    lab.settings.watch_linger = Duration::from_millis(200);
    lab.start_probe().await;
    lab.apply_config_map("m", "a", "1").await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "m"});
    lab.apply_probe("p", json!([get]), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    lab.wait_idle().await;
    let informers = &lab.host().services().cache.informers;
    let stopped = informers.stop_unneeded(&[], Duration::ZERO);
    for needed in ["ConfigMap", "Probe"] {
        assert!(
            stopped.iter().any(|scope| *scope.gvk.kind == *needed),
            "{stopped:?}"
        );
    }
    lab.apply_config_map("m", "a", "2").await;
    lab.wait_seen("p", &[r#"{"v":"2"}"#]).await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "n"});
    lab.apply_probe("p", json!([get]), json!([])).await;
    lab.wait_seen("p", &["absent"]).await;
}

/// A list of more than one page: a streaming list if the server supports it, else page by page.
#[scenario(real = "watches and lists")]
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

#[scenario]
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
#[scenario(real = "watches and lists")]
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
    // Without retries: the status of a reconcile may be written over a connection that was just cut.
    let wakes = || {
        let causes = (0..30).flat_map(|i| lab.wake_causes(&kind(), &format!("p{i}")));
        causes.filter(|cause| *cause != Cause::Retry).count()
    };
    for round in 1..=3 {
        let before = wakes();
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
        assert_eq!(wakes() - before, 2, "two changes wake two readers");
    }
}

/// The connections of the host die without a word: changes are seen once the watches count as dead.
#[scenario(real = "watches and lists")]
async fn silent_watch_is_resumed_after_the_idle_timeout(mut lab: Lab) {
    lab.settings.watch_idle_timeout = Duration::from_secs(3);
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    let client = lab.client_at(proxy.address()).await;
    lab.install(&["tests/probe"]);
    lab.start_host_with(client).await;
    lab.apply_config_map("m", "a", "0").await;
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "m"});
    lab.apply_probe("p", json!([get]), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"0"}"#]).await;
    lab.wait_idle().await;
    proxy.silence_established();
    lab.apply_config_map("m", "a", "1").await;
    let stored = async || {
        let store = &lab.host().services().cache.store;
        let map = store.get(&lab.key(&config_map(), "m"), Projection::Full);
        map.is_some_and(|map| map.field_text("data.v") == "1")
    };
    lab.wait_until("the change arrives by a new connection", stored)
        .await;
}

/// Each of 200 objects lists by a label of its own.
/// The label of owned objects.
const OWNER_LABEL: &str = "ostler.dev/owner-uid";

/// Grants without `hold`, since kinds that may be held are always watched.
const CHILD_GRANTS: &str = "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], \
    kubernetes: [{kinds: [ConfigMap], verbs: [get, list, apply, create, delete], namespaces: ['*']}]}}";

/// The label selectors of the watches of ConfigMaps; empty for one of all ConfigMaps.
fn watched_labels(lab: &Lab) -> Vec<String> {
    let watches = watches(lab).into_iter();
    let watches = watches.map(|scope| scope.selector.map(|s| s.to_string()).unwrap_or_default());
    watches.collect()
}

/// Lets the probe own ConfigMaps, and stops watches that nobody needs after a time.
fn grant_children(lab: &mut Lab, watch_linger: Duration) {
    lab.settings.grants =
        ostler::testing::grants::Grants::parse(CHILD_GRANTS, "grants.yaml").expect("grants");
    lab.settings.watch_linger = watch_linger;
}

/// Reads a child, which is absent at first, and applies it.
fn read_and_apply(name: &str, value: &str) -> Value {
    let child =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}});
    json!([
        {"do": "get", "kind": "ConfigMap", "name": name},
        {"do": "apply", "object": child.to_string()},
    ])
}

#[scenario(real = "watches and lists")]
async fn child_read_by_its_name_is_watched_by_the_label_of_owned_objects(mut lab: Lab) {
    grant_children(&mut lab, Duration::from_millis(200));
    lab.start_probe().await;
    lab.apply_probe("p", read_and_apply("c", "1"), json!([])).await;
    lab.wait_seen("p", &["absent", r#"{"v":"1"}"#]).await;
    let has_label = |child: Option<Value>, owner: &Value| {
        child.is_some_and(|child| child["metadata"]["labels"][OWNER_LABEL] == owner["metadata"]["uid"])
    };
    let owner = lab.get(&kind(), "p").await.expect("a probe");
    assert!(has_label(lab.get(&config_map(), "c").await, &owner));
    assert_eq!(watched_labels(&lab), [OWNER_LABEL], "{:?}", watches(&lab));
    // A change and a deletion by another client, and the removal of the label, wake the owner.
    lab.patch(&config_map(), "c", json!({"data": {"v": "2"}})).await;
    lab.wait_seen("p", &[r#"{"v":"2"}"#, r#"{"v":"1"}"#]).await;
    lab.delete(&config_map(), "c").await;
    lab.wait_seen("p", &["absent", r#"{"v":"1"}"#]).await;
    lab.patch(
        &config_map(),
        "c",
        json!({"metadata": {"labels": {OWNER_LABEL: null}}}),
    )
    .await;
    lab.wait_until("the label is back", async || {
        has_label(lab.get(&config_map(), "c").await, &owner)
    })
    .await;
    lab.wait_until("the child is watched by its label alone", async || {
        watched_labels(&lab) == [OWNER_LABEL]
    })
    .await;
    // One that is read before it is applied, and exists, takes no request.
    lab.wait_idle().await;
    let Some(server) = &lab.embedded else { return };
    server.counters().reset();
    lab.patch(
        &kind(),
        "p",
        json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}}),
    )
    .await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#, r#"{"v":"1"}"#]).await;
    for verb in ["get", "list", "apply"] {
        assert_eq!(server.counters().of(verb, "configmaps"), 0, "{verb}");
    }
}

/// Each event of a child would be sent and parsed twice.
#[scenario(real = "watches and lists")]
async fn watch_of_owned_objects_is_stopped_once_one_of_the_whole_kind_covers_it(mut lab: Lab) {
    grant_children(&mut lab, Duration::from_secs(600));
    lab.apply_config_map("shared", "a", "0").await;
    lab.start_probe().await;
    lab.apply_probe("p", read_and_apply("c", "1"), json!([])).await;
    lab.wait_seen("p", &["absent", r#"{"v":"1"}"#]).await;
    assert_eq!(watched_labels(&lab), [OWNER_LABEL], "{:?}", watches(&lab));
    let steps = json!([{"do": "get", "kind": "ConfigMap", "name": "shared"}]);
    lab.apply_probe("reader", steps, json!([])).await;
    lab.wait_seen("reader", &[r#"{"v":"0"}"#]).await;
    lab.wait_until("the watch of the kind serves both", async || {
        watched_labels(&lab) == [""]
    })
    .await;
    lab.patch(&config_map(), "c", json!({"data": {"v": "2"}})).await;
    lab.wait_seen("p", &[r#"{"v":"2"}"#, r#"{"v":"1"}"#]).await;
    lab.apply_config_map("shared", "a", "3").await;
    lab.wait_seen("reader", &[r#"{"v":"3"}"#]).await;
    assert_eq!(watched_labels(&lab), [""], "{:?}", watches(&lab));
}

/// A child from before the host labelled owned objects, or one that another client has created.
#[scenario(real = "watches and lists")]
async fn child_without_the_label_is_read_and_gets_it(mut lab: Lab) {
    grant_children(&mut lab, Duration::from_millis(200));
    lab.apply_config_map("c", "a", "0").await;
    lab.start_probe().await;
    let steps = json!([{"do": "get", "kind": "ConfigMap", "name": "c"}]);
    lab.apply_probe("reader", steps, json!([])).await;
    lab.wait_seen("reader", &[r#"{"v":"0"}"#]).await;
    assert_eq!(watched_labels(&lab), [""]);
    lab.apply_probe("owner", read_and_apply("c", "1"), json!([]))
        .await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;
    lab.wait_until("the child is watched by its label alone", async || {
        watched_labels(&lab) == [OWNER_LABEL]
    })
    .await;
    let uid = async || {
        lab.get(&config_map(), "c")
            .await
            .map(|child| child["metadata"]["uid"].clone())
    };
    let before = uid().await.expect("a child");
    lab.delete(&config_map(), "c").await;
    // The reader may find it absent as well, and then watch the kind, whose first list wakes the owner once more: what the owner
    // saw first is not to be seen for long.
    lab.wait_until("it is made anew", async || {
        uid().await.is_some_and(|uid| uid != before)
    })
    .await;
    lab.wait_until("its owner has seen it", async || {
        let owner = lab.get(&kind(), "owner").await.unwrap_or_default();
        owner["status"]["seen"][1] == r#"{"v":"1"}"#
    })
    .await;
    lab.wait_seen("reader", &[r#"{"v":"1"}"#]).await;
    let child = lab.get(&config_map(), "c").await.expect("a child");
    let owner = lab.get(&kind(), "owner").await.expect("a probe");
    assert_eq!(child["metadata"]["labels"][OWNER_LABEL], owner["metadata"]["uid"]);
}

#[scenario(real = "watches and lists")]
async fn many_selectors_share_few_watches(mut lab: Lab) {
    lab.start_probe().await;
    for i in 0..200 {
        let list = json!({"do": "list", "kind": "ConfigMap", "labels": format!("l=own-{i}")});
        lab.apply_probe(&format!("p{i}"), json!([list]), json!([])).await;
    }
    for i in 0..200 {
        lab.wait_seen(&format!("p{i}"), &[""]).await;
    }
    let full = watches(&lab)
        .into_iter()
        .filter(|s| s.projection == Projection::Full);
    let full: Vec<Scope> = full.collect();
    assert!(full.len() <= 9, "{} watches", full.len());
    for i in [0, 7, 8, 199] {
        lab.apply_config_map(&format!("m{i}"), &format!("own-{i}"), "1")
            .await;
        lab.wait_seen(&format!("p{i}"), &[&format!("m{i}")]).await;
        assert_eq!(woken_by(&lab, &format!("p{i}")), [format!("m{i}")]);
    }
}

#[scenario(real = "watches and lists")]
async fn cluster_scoped_kind_is_listed_on_a_confined_host(mut lab: Lab) {
    lab.settings.namespaces.push("default".into());
    lab.settings.grants = ostler::testing::grants::Grants::parse(
        "plugins: {probe: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}], \
         kubernetes: [{kinds: [Namespace], verbs: [get, list], namespaces: ['*']}]}}",
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    let namespace = lab.namespace.clone();
    let list = json!({"do": "list", "kind": "Namespace", "fields": format!("metadata.name={namespace}")});
    lab.apply_probe("p", json!([list]), json!([])).await;
    lab.wait_seen("p", &[&namespace]).await;
    let scopes = lab.host().services().cache.informers.scopes().into_iter();
    let scopes: Vec<Scope> = scopes
        .map(|(s, _)| s)
        .filter(|s| *s.gvk.kind == *"Namespace")
        .collect();
    assert_eq!(scopes.len(), 1, "{scopes:?}");
}

#[scenario(real = "watches and lists")]
async fn deletion_is_visible_at_once_and_does_not_wake_its_author(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_config_map("m", "a", "1").await;
    // The watch is there before the deletion: its first list would wake the object, too.
    let get = json!({"do": "get", "kind": "ConfigMap", "name": "m"});
    lab.apply_probe("p", json!([get]), json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#]).await;
    lab.wait_idle().await;
    let before = woken_by(&lab, "p").len();
    let steps = json!([
        {"do": "get", "kind": "ConfigMap", "name": "m"},
        {"do": "delete", "kind": "ConfigMap", "name": "m"},
        {"do": "get", "kind": "ConfigMap", "name": "m"},
    ]);
    lab.apply_probe("p", steps, json!([])).await;
    lab.wait_seen("p", &[r#"{"v":"1"}"#, "deleted", "absent"]).await;
    lab.wait_idle().await;
    assert_eq!(woken_by(&lab, "p")[before..], [""; 0]);
    assert!(lab.get(&config_map(), "m").await.is_none());
    // The next one of that name is another object.
    lab.apply_config_map("m", "a", "2").await;
    lab.wait_seen("p", &[r#"{"v":"2"}"#, "deleted", "absent"]).await;
    lab.wait_idle().await;
    assert_eq!(woken_by(&lab, "p")[before..], ["m"]);
}

/// Changes the CRD of a kind with objects that have a map `data` of text fields.
async fn define_fields(lab: &Lab, group: &str, fields: &[&str], default: Option<(&str, &str)>) {
    let field = |name: &&str| {
        let mut schema = json!({"type": "string"});
        if let Some((_, value)) = default.filter(|(defaulted, _)| defaulted == name) {
            schema["default"] = value.into();
        }
        ((*name).to_owned(), schema)
    };
    let properties: serde_json::Map<String, Value> = fields.iter().map(field).collect();
    let schema =
        json!({"type": "object", "properties": {"data": {"type": "object", "properties": properties}}});
    lab.apply(
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]}}),
    )
    .await;
}

/// Applies a Gadget as soon as the API server knows all its fields.
async fn apply_gadget(lab: &Lab, gadget: &Gvk, name: &str, data: Value) {
    let object = json!({"apiVersion": gadget.api_version(), "kind": "Gadget",
        "metadata": {"name": name, "namespace": lab.namespace}, "data": data});
    let parameters = PatchParams::apply("test").force().validation_strict();
    let api = lab.api(gadget, &lab.namespace);
    let patch = Patch::Apply(&object);
    lab.wait_until(&format!("{name} is applied"), async || {
        api.patch(name, &parameters, &patch).await.is_ok()
    })
    .await;
}

/// For a while after a change of a CRD, the watches of an API server show objects by the former schema. The watch that is resumed
/// does not repeat them, and a new default changes no resourceVersion.
#[scenario(real = "watches and lists")]
async fn changed_crd_shows_new_fields_and_defaults_of_cached_objects(mut lab: Lab) {
    let group = format!("{}.example.org", lab.namespace);
    let gadget = Gvk::new(&group, "v1", "Gadget");
    let names: Vec<String> = (0..12).map(|number| format!("g{number}")).collect();
    define_fields(&lab, &group, &["a"], None).await;
    lab.settings.grants = ostler::testing::grants::Grants::parse(
        &format!(
            "plugins: {{probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}], \
             kubernetes: [{{group: {group}, kinds: [Gadget], verbs: [get, list], namespaces: ['*']}}]}}}}"
        ),
        "grants.yaml",
    )
    .expect("grants");
    lab.start_probe().await;
    for name in &names {
        apply_gadget(&lab, &gadget, name, json!({"a": "1"})).await;
    }
    let step =
        |name| json!({"do": "get", "apiVersion": gadget.api_version(), "kind": "Gadget", "name": name});
    let steps: Vec<Value> = names.iter().map(step).collect();
    lab.apply_probe("p", json!(steps), json!([])).await;
    lab.wait_seen("p", &[r#"{"a":"1"}"#; 12]).await;

    define_fields(&lab, &group, &["a", "b"], None).await;
    for name in &names {
        apply_gadget(&lab, &gadget, name, json!({"a": "1", "b": "2"})).await;
    }
    lab.wait_seen("p", &[r#"{"a":"1","b":"2"}"#; 12]).await;

    define_fields(&lab, &group, &["a", "b", "c"], Some(("c", "3"))).await;
    lab.wait_seen("p", &[r#"{"a":"1","b":"2","c":"3"}"#; 12]).await;
    let crd = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    lab.api(&crd, "")
        .delete(&format!("gadgets.{group}"), &DeleteParams::default())
        .await
        .expect("deleted");
}

/// The CRD of the probes loses its status subresource while the host runs, and gains it again. Without it the API server raises the
/// generation with each write of the status. On a shared server, other scenarios have probes of the same CRD.
#[scenario(real = "CRDs: changes and validation", alone)]
async fn status_follows_a_status_subresource_that_comes_and_goes(mut lab: Lab) {
    let crd_kind = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let file = ostler_test_harness::workspace_root().join("tests/probe/crd.yaml");
    let crd = std::fs::read_to_string(file).expect("the CRD");
    let (crd, _) = crd.split_once("\n---").expect("several CRDs");
    let crd: Value = serde_saphyr::from_str(crd).expect("a CRD");
    let name = crd["metadata"]["name"].as_str().expect("a name").to_owned();
    lab.start_probe().await;
    for (round, subresources) in [(1, None), (2, Some(json!({"status": {}})))] {
        lab.apply_config_map("m", "a", &format!("before-{round}")).await;
        let get = json!({"do": "get", "kind": "ConfigMap", "name": "m"});
        lab.apply_probe("p", json!([get]), json!([])).await;
        lab.wait_seen("p", &[&format!(r#"{{"v":"before-{round}"}}"#)])
            .await;
        let mut changed = crd.clone();
        for version in changed["spec"]["versions"].as_array_mut().expect("versions") {
            match &subresources {
                Some(subresources) => version["subresources"] = subresources.clone(),
                None => drop(version.as_object_mut().expect("a version").remove("subresources")),
            }
        }
        let api = lab.api(&crd_kind, "");
        let params = kube::api::PatchParams::apply("test").force();
        api.patch(&name, &params, &kube::api::Patch::Apply(&changed))
            .await
            .expect("the CRD is changed");
        lab.wait_until("the change is served", async || {
            let served = lab
                .client
                .list_api_group_resources("tests.ostler.dev/v1alpha1")
                .await;
            let served = served.expect("discovery").resources;
            served.iter().any(|r| r.name == "probes/status") == subresources.is_some()
        })
        .await;
        lab.apply_config_map("m", "a", &format!("after-{round}")).await;
        lab.wait_seen("p", &[&format!(r#"{{"v":"after-{round}"}}"#)])
            .await;
        lab.wait_ready(&kind(), "p").await;
        lab.wait_idle().await;
        // A status that is current is not written again.
        let count_reconciles = || {
            let stats = lab.host().stats().object(&lab.key(&kind(), "p"));
            stats.map_or(0, |stats| stats.reconciles)
        };
        let (writes, reconciles) = (lab.api_writes(), count_reconciles());
        let now = json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": format!("{round}")}}});
        lab.patch(&kind(), "p", now).await;
        lab.wait_until("it is reconciled again", async || count_reconciles() > reconciles)
            .await;
        lab.wait_idle().await;
        assert_eq!(lab.api_writes(), writes);
    }
}

/// The annotation of an object claims 10,000 holds of kinds and objects that there are not.
#[scenario]
async fn made_up_holds_cost_few_requests(mut lab: Lab) {
    lab.start_probe().await;
    lab.apply_probe("p", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_idle().await;
    let (_, url) = serve_admin(&lab).await;
    let holds: Vec<String> = (0..2500)
        .flat_map(|i| {
            [
                format!("ConfigMap.v1 {}/a{i}", lab.namespace),
                format!("K{i}.v1 n/a"),
                format!("Kind.v1.g{i}.io n/a"),
                format!("Secret.v1 n/a{i}?x=/"),
            ]
        })
        .collect();
    let before = count_requests(&url).await;
    let annotations = json!({"ostler.dev/holds": holds.join(", "), "ostler.dev/reconcile-now": "1"});
    lab.patch(&kind(), "p", json!({"metadata": {"annotations": annotations}}))
        .await;
    lab.wait_until("it is reconciled", async || {
        lab.wake_causes(&kind(), "p").contains(&Cause::Manual)
    })
    .await;
    lab.wait_idle().await;
    let sent = count_requests(&url).await - before;
    // Twice the limit `holds`: as many entries count.
    assert!(sent <= 200.0, "{sent} requests");
}

/// 50 watches, each of a namespace, as Secrets are watched.
/// The embedded API server speaks HTTP/1.1, where each watch has a connection.
#[scenario(real_only = "watches and lists")]
async fn many_watches_share_one_connection(mut lab: Lab) {
    let proxy = Proxy::start(lab.api_address()).await.expect("a proxy");
    let client = lab.client_at(proxy.address()).await;
    lab.install(&["tests/probe"]);
    lab.start_host_with(client).await;
    lab.apply_probe("p", json!([]), json!([])).await;
    lab.wait_ready(&kind(), "p").await;
    let before = proxy.count_accepted();
    let informers = &lab.host().services().cache.informers;
    let namespaces: Vec<String> = (0..50).map(|i| format!("{}-{i}", lab.namespace)).collect();
    for namespace in &namespaces {
        let scope = Scope {
            gvk: Gvk::new("", "v1", "Secret"),
            cluster: "".into(),
            namespace: namespace.as_str().into(),
            selector: None,
            projection: Projection::Metadata,
        };
        let synced = informers.wait_synced(&scope, Duration::from_secs(30)).await;
        assert_eq!(synced, Ok(scope), "a watch of its own");
    }
    // The watches are open: each sees a Secret that comes after its list.
    let secret = Gvk::new("", "v1", "Secret");
    for namespace in &namespaces {
        lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await;
        lab.apply(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}),
        )
        .await;
        lab.wait_until(&format!("the Secret of {namespace} arrives"), async || {
            let key = ObjectRef::new(secret.clone(), namespace, "s");
            let store = &lab.host().services().cache.store;
            store.get(&key, Projection::Metadata).is_some()
        })
        .await;
    }
    // Lists are requests of their own, and may need a new connection where the server has closed an idle one.
    let opened = proxy.count_accepted() - before;
    assert!(opened <= 5, "{opened} connections for 50 watches");
}

/// The embedded API server serves HTTPS to the host and to any other client of its kubeconfig.
#[scenario(embedded = "it is about the embedded API server")]
async fn embedded_server_speaks_https() {
    let options = ostler_apiserver::ServerOptions {
        tls: true,
        ..Default::default()
    };
    let lab = Lab::embedded_with(options).await;
    let url = lab
        .embedded
        .as_ref()
        .map(|server| server.url())
        .unwrap_or_default();
    assert!(url.starts_with("https://"), "{url}");
    read_of_absent_object_wakes_on_creation(lab).await;
}
