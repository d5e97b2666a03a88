//! `Plugin` objects govern plugins: what is loaded, what it may do, what serves beside it, and what it goes back to.

#[path = "plugins/canary.rs"]
mod canary;
#[path = "plugins/rollback.rs"]
mod rollback;

use std::{collections::BTreeMap, sync::Arc};

use canary::{a_canary_has_its_share_and_is_promoted, a_canary_that_does_worse_goes_back};
use ostler::testing::{
    engine::Cache,
    key::Gvk,
    oci::{ComponentInterfaces, ComponentStore, PullLimits, Reference, RegistryAuth},
    plugin::{LoadState, Report},
    signature::SigningKey,
};
use ostler_test_harness::{
    Lab, find_condition, read_component,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, Registry},
    scenarios, with_note, workspace_root,
};
use rollback::{a_build_that_traps_goes_back, a_file_that_traps_goes_back};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

scenarios!(
    an_object_governs_a_plugin,
    grants_change_at_run_time,
    what_is_agreed_counts_while_a_build_is_pulled,
    a_configuration_is_held_to_its_schema,
    a_suspended_plugin_keeps_its_objects_waiting,
    what_is_refused_says_why,
    a_canary_has_its_share_and_is_promoted,
    a_canary_that_does_worse_goes_back,
    a_build_that_traps_goes_back,
    a_file_that_traps_goes_back,
    a_plugin_stays_while_objects_need_it,
    a_plugin_lets_its_objects_go,
    a_component_from_a_registry
);

/// Plugins are cluster-scoped and named as their component is: on a shared cluster one test at a time has one.
static ONE: Mutex<()> = Mutex::const_new(());

fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

fn greeting() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

/// The only test with Plugins, of which none of this name is left by another.
async fn alone(lab: &Lab, name: &str) -> MutexGuard<'static, ()> {
    let guard = ONE.lock().await;
    forget(lab, name).await;
    guard
}

/// Takes a Plugin away, whatever stands in the way.
async fn forget(lab: &Lab, name: &str) {
    let api = lab.api(&kind(), "");
    if api.get_opt(name).await.expect("an answer").is_none() {
        return;
    }
    let _ = api.delete(name, &Default::default()).await;
    lab.wait_until("the Plugin is gone", async || {
        let none = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = api.patch(name, &Default::default(), &none).await;
        plugin(lab, name).await.is_null()
    })
    .await;
}

/// A Plugin; null when there is none.
async fn plugin(lab: &Lab, name: &str) -> Value {
    let found = lab.api(&kind(), "").get_opt(name).await.expect("an answer");
    found.map_or(Value::Null, |p| serde_json::to_value(p).expect("JSON"))
}

async fn govern(lab: &Lab, name: &str, spec: Value) {
    let object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": name, "labels": {"lab": lab.namespace}}, "spec": spec});
    lab.apply(object).await;
}

/// Waits until a Plugin says this of its newest generation; gives it.
async fn says(lab: &Lab, name: &str, kind: &str, status: &str, reason: &str) -> Value {
    lab.wait_until(
        &format!("Plugin {name} has {kind}={status} ({reason})"),
        async || {
            let object = plugin(lab, name).await;
            let found = find_condition(&object, kind);
            let observed = found["observedGeneration"] == object["metadata"]["generation"];
            observed && found["status"] == status && found["reason"] == reason
        },
    )
    .await;
    plugin(lab, name).await
}

fn message(plugin: &Value, kind: &str) -> String {
    find_condition(plugin, kind)["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn report(lab: &Lab, name: &str) -> Report {
    let reports = lab.host().registry().reports();
    reports.into_iter().find(|r| r.name == name).expect("it is known")
}

async fn misbehave(lab: &Lab, name: &str, behaviour: &str, tier: &str) {
    lab.apply(
        json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": name, "namespace": lab.namespace, "labels": {"tier": tier}},
        "spec": {"behaviour": behaviour}}),
    )
    .await;
}

async fn greet(lab: &Lab, name: &str) {
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}}),
    )
    .await;
}

/// The spec of a Plugin `hostile`.
fn spec(file: &str, canary: Option<(&str, Value)>) -> Value {
    let mut spec = json!({"source": {"file": file}, "grants": {"events": true}});
    if let Some((file, objects)) = canary {
        spec["canary"] = json!({"source": {"file": file}, "objects": objects});
    }
    spec
}

/// The component `hostile`, in a build that traps where the other does what it is told.
fn brittle(wasm: &[u8]) -> Vec<u8> {
    let (word, other) = (b"ostler-hostile-build:sound--", b"ostler-hostile-build:brittle");
    let at = wasm
        .windows(word.len())
        .position(|w| w == word)
        .expect("it is marked");
    let mut wasm = wasm.to_vec();
    wasm[at..at + other.len()].copy_from_slice(other);
    wasm
}

/// Which build reconciled each object last, by name.
fn builds(lab: &Lab) -> Vec<(String, String)> {
    let facts = lab
        .host()
        .stats()
        .all_objects()
        .into_iter()
        .filter(|f| f.kind == "Hostile");
    let mut builds: Vec<_> = facts.map(|f| (f.name, f.plugin_digest)).collect();
    builds.sort();
    builds
}

async fn an_object_governs_a_plugin(mut lab: Lab) {
    let _alone = alone(&lab, "greeting").await;
    let text =
        std::fs::read_to_string(workspace_root().join("deploy/examples/plugin.yaml")).expect("the example");
    let mut example: Value = serde_saphyr::from_str(&text).expect("YAML");
    example["metadata"]["labels"] = json!({"lab": lab.namespace});
    lab.apply(example).await;
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let served = report(&lab, "greeting");
    assert_eq!(
        (&*served.file, served.state),
        ("Plugin/greeting", LoadState::Serving)
    );
    greet(&lab, "hello").await;
    lab.wait_ready(&greeting(), "hello").await;
    let told = says(&lab, "greeting", "Ready", "True", "Ready").await;
    let status = &told["status"];
    assert_eq!(status["running"]["digest"], served.digest);
    assert_eq!(status["running"]["shortDigest"], served.digest[..12]);
    assert_eq!(status["running"]["source"], "greeting.wasm");
    assert_eq!(status["lastGoodDigest"], served.digest);
    assert_eq!(status["kinds"], json!(["Greeting.v1alpha1.examples.ostler.dev"]));
    assert_eq!(
        status["requested"],
        json!(["get,apply,delete ConfigMap", "emit Events"])
    );
    assert_eq!(status["granted"], status["requested"]);
    assert!(message(&told, "Loaded").contains("grants file"), "{told:#}");
    // What it uses is told when it is asked.
    let now =
        kube::api::Patch::Merge(json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}}));
    let api = lab.api(&kind(), "");
    api.patch("greeting", &Default::default(), &now)
        .await
        .expect("patched");
    lab.wait_until("it tells what was used", async || {
        let used = plugin(&lab, "greeting").await["status"]["used"].clone();
        used.as_array()
            .is_some_and(|u| u.iter().any(|line| line == "get,apply,delete ConfigMap"))
    })
    .await;
    // The newest file serves, and without the object the directory does as ever.
    lab.install_bytes(
        "greeting",
        &with_note(&read_component("examples/greeting"), "newer"),
    );
    lab.wait_until("the newer build serves", async || {
        report(&lab, "greeting").digest != served.digest
    })
    .await;
    lab.wait_until("the status says so", async || {
        plugin(&lab, "greeting").await["status"]["running"]["digest"] == report(&lab, "greeting").digest
    })
    .await;
    forget(&lab, "greeting").await;
    lab.wait_until("the directory's serves", async || {
        let reports = lab.host().registry().reports();
        let of_file = reports.iter().find(|r| r.file == "greeting.wasm");
        of_file.is_some_and(|r| r.state == LoadState::Serving)
    })
    .await;
    greet(&lab, "again").await;
    lab.wait_ready(&greeting(), "again").await;
}

async fn grants_change_at_run_time(mut lab: Lab) {
    let _alone = alone(&lab, "greeting").await;
    lab.install(&["examples/greeting"]);
    let spec = |grants: Value| json!({"source": {"file": "greeting.wasm"}, "grants": grants});
    govern(&lab, "greeting", spec(json!({"events": true}))).await;
    lab.start_host().await;
    greet(&lab, "hello").await;
    lab.wait_until("it is denied, in words of the Plugin", async || {
        let object = lab.get(&greeting(), "hello").await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        let why = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False" && why.contains("spec.grants.kubernetes")
    })
    .await;
    let told = says(&lab, "greeting", "Granted", "False", "GrantsMissing").await;
    assert!(
        message(&told, "Granted").contains("get,apply,delete ConfigMap"),
        "{told:#}"
    );
    let before = report(&lab, "greeting");
    let all = json!({"kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply", "delete"]}], "events": true});
    govern(&lab, "greeting", spec(all)).await;
    lab.wait_ready(&greeting(), "hello").await;
    let told = says(&lab, "greeting", "Granted", "True", "AllGranted").await;
    assert_eq!(find_condition(&told, "Ready")["status"], "True");
    let after = report(&lab, "greeting");
    assert_eq!(
        (after.digest, after.served),
        (before.digest, before.served),
        "the same build, agreed otherwise"
    );
    forget(&lab, "greeting").await;
}

/// Waits until a new Greeting may not do what it needs.
async fn denied(lab: &Lab, name: &str) {
    greet(lab, name).await;
    lab.wait_until(&format!("{name} is denied, in words of the Plugin"), async || {
        let object = lab.get(&greeting(), name).await.unwrap_or_default();
        let why = find_condition(&object, "Ready")["message"].clone();
        why.as_str()
            .unwrap_or_default()
            .contains("spec.grants.kubernetes")
    })
    .await;
}

async fn what_is_agreed_counts_while_a_build_is_pulled(mut lab: Lab) {
    let _alone = alone(&lab, "greeting").await;
    // A registry that takes connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let at = silent.local_addr().expect("an address");
    lab.settings.plain_http = vec![at.to_string()];
    let oci = json!({"oci": {"reference": format!("{at}/plugins/greeting@sha256:{}", "0".repeat(64))}});
    let file = json!({"file": "greeting.wasm"});
    let spec = |source: &Value, grants: Value| json!({"source": source, "grants": grants});
    let all = || json!({"kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply", "delete"]}], "events": true});
    let none = || json!({"events": true});
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    greet(&lab, "file").await;
    lab.wait_ready(&greeting(), "file").await;
    // An object binds what a file has brought, before its own build is there.
    govern(&lab, "greeting", spec(&oci, none())).await;
    denied(&lab, "bound").await;
    govern(&lab, "greeting", spec(&file, all())).await;
    lab.wait_ready(&greeting(), "bound").await;
    says(&lab, "greeting", "Ready", "True", "Ready").await;
    govern(&lab, "greeting", spec(&oci, none())).await;
    denied(&lab, "less").await;
    // Taken back before anything came of it.
    govern(&lab, "greeting", spec(&file, all())).await;
    lab.wait_ready(&greeting(), "less").await;
    says(&lab, "greeting", "Ready", "True", "Ready").await;
    forget(&lab, "greeting").await;
}

async fn a_configuration_is_held_to_its_schema(mut lab: Lab) {
    let _alone = alone(&lab, "lifecycle").await;
    lab.install(&["tests/lifecycle"]);
    let spec = |config: Value| {
        json!({"source": {"file": "lifecycle.wasm"}, "config": config,
            "grants": {"kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}})
    };
    govern(&lab, "lifecycle", spec(json!({"writer": 7}))).await;
    lab.start_host().await;
    let told = says(&lab, "lifecycle", "Loaded", "False", "InvalidConfig").await;
    assert!(
        message(&told, "Loaded").contains("config.writer: Invalid value"),
        "{told:#}"
    );
    assert_eq!(find_condition(&told, "Stalled")["status"], "True");
    assert_eq!(report(&lab, "lifecycle").state, LoadState::Failed);
    govern(&lab, "lifecycle", spec(json!({"writer": "me"}))).await;
    says(&lab, "lifecycle", "Ready", "True", "Ready").await;
    let beats = Gvk::new("tests.ostler.dev", "v1alpha1", "Beat");
    lab.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "b", "namespace": lab.namespace}, "spec": {"behaviour": "beat"}}))
        .await;
    lab.wait_ready(&beats, "b").await;
    let written = lab
        .get(&Gvk::new("", "v1", "ConfigMap"), "b")
        .await
        .expect("a trace");
    assert_eq!(written["data"]["writer"], "me");
    govern(&lab, "lifecycle", spec(json!({"writter": "you"}))).await;
    let told = says(&lab, "lifecycle", "Loaded", "False", "InvalidConfig").await;
    let why = message(&told, "Loaded");
    assert!(
        why.contains("config.writter: unknown field") && why.contains("serves on"),
        "{why}"
    );
    assert_eq!(report(&lab, "lifecycle").state, LoadState::Refused);
    forget(&lab, "lifecycle").await;
}

async fn a_suspended_plugin_keeps_its_objects_waiting(mut lab: Lab) {
    let _alone = alone(&lab, "greeting").await;
    lab.install(&["examples/greeting", "hostile/hostile"]);
    let spec = |suspend: bool| {
        json!({"source": {"file": "greeting.wasm"}, "suspend": suspend,
            "grants": {"kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}})
    };
    govern(&lab, "greeting", spec(true)).await;
    greet(&lab, "early").await;
    lab.start_host().await;
    greet(&lab, "late").await;
    let told = says(&lab, "greeting", "Healthy", "Unknown", "Suspended").await;
    assert_eq!(find_condition(&told, "Loaded")["status"], "True");
    assert_eq!(find_condition(&told, "Ready")["reason"], "Suspended");
    // Others go on, and are done after these would have been.
    misbehave(&lab, "neighbour", "behave", "x").await;
    lab.wait_ready(&hostile(), "neighbour").await;
    for name in ["early", "late"] {
        let waiting = lab.get(&greeting(), name).await.expect("it is there");
        assert!(waiting["status"].is_null(), "{waiting:#}");
    }
    govern(&lab, "greeting", spec(false)).await;
    for name in ["early", "late"] {
        lab.wait_ready(&greeting(), name).await;
    }
    govern(&lab, "greeting", spec(true)).await;
    says(&lab, "greeting", "Healthy", "Unknown", "Suspended").await;
    greet(&lab, "later").await;
    misbehave(&lab, "another", "behave", "x").await;
    lab.wait_ready(&hostile(), "another").await;
    let waiting = lab.get(&greeting(), "later").await.expect("it is there");
    assert!(waiting["status"].is_null(), "{waiting:#}");
    forget(&lab, "greeting").await;
}

async fn what_is_refused_says_why(mut lab: Lab) {
    let _alone = alone(&lab, "hostile").await;
    // The schema's part.
    for (spec, words) in [
        (json!({"source": {}}), "exactly one of oci and file"),
        (json!({"source": {"file": "../hostile.wasm"}}), "spec.source.file"),
        (
            json!({"source": {"oci": {"reference": "registry.example.org/a:latest"}}}),
            "spec.source.oci.reference",
        ),
        (
            json!({"source": {"file": "a.wasm"}, "verify": {"keys": ["k"]}}),
            "a file has no signature",
        ),
        (
            json!({"source": {"file": "a.wasm"}, "canary": {"source": {"file": "b.wasm"}, "objects": {}}}),
            "exactly one of weight and labelSelector",
        ),
    ] {
        let object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
            "metadata": {"name": "hostile", "labels": {"lab": lab.namespace}}, "spec": spec});
        let refused = lab.try_apply(object).await.expect_err(words).to_string();
        assert!(refused.contains(words), "{refused}");
    }
    // The host's.
    lab.install(&["hostile/hostile"]);
    lab.install_bytes("module", b"\0asm\x01\0\0\0");
    lab.install_bytes("bare", &bare(&read_component("hostile/hostile")));
    let file = |file: &str| json!({"source": {"file": file}});
    govern(&lab, "hostile", file("absent.wasm")).await;
    lab.start_host().await;
    for (spec, reason, words) in [
        (file("absent.wasm"), "FileNotFound", "absent.wasm"),
        (file("module.wasm"), "NotAComponent", "core module"),
        (file("bare.wasm"), "ManifestMissing", "plugin.yaml"),
        (
            json!({"source": {"file": "hostile.wasm"}, "limits": {"memory": "5Gi"}}),
            "InvalidSpec",
            "limits.memory",
        ),
    ] {
        govern(&lab, "hostile", spec).await;
        let told = says(&lab, "hostile", "Loaded", "False", reason).await;
        assert!(message(&told, "Loaded").contains(words), "{told:#}");
    }
    govern(&lab, "hostile", file("hostile.wasm")).await;
    says(&lab, "hostile", "Ready", "True", "Ready").await;
    // A file that nobody names, of a plugin that is governed.
    lab.install_bytes("second", &with_note(&read_component("hostile/hostile"), "second"));
    lab.wait_until("the second one is refused", async || {
        let reports = lab.host().registry().reports();
        let second = reports.into_iter().find(|r| r.file == "second.wasm");
        second.is_some_and(|r| {
            r.reason == "ManagedByPluginObject" && r.message.contains("Plugin object hostile")
        })
    })
    .await;
    // Another's component.
    let _ = lab
        .api(&kind(), "")
        .delete("elsewhere", &Default::default())
        .await;
    govern(&lab, "elsewhere", file("second.wasm")).await;
    let told = says(&lab, "elsewhere", "Loaded", "False", "NameMismatch").await;
    assert!(
        message(&told, "Loaded").contains("is the plugin hostile"),
        "{told:#}"
    );
    forget(&lab, "elsewhere").await;
    forget(&lab, "hostile").await;
}

/// A component without its manifest: the section gets another name of the same length.
fn bare(wasm: &[u8]) -> Vec<u8> {
    let (name, other) = (b"ostler:manifest", b"nobody:manifest");
    let at = wasm
        .windows(name.len())
        .position(|w| w == name)
        .expect("a manifest");
    let mut wasm = wasm.to_vec();
    wasm[at..at + name.len()].copy_from_slice(other);
    wasm
}

fn probe() -> Gvk {
    ostler_test_harness::probe::kind()
}

async fn a_plugin_stays_while_objects_need_it(mut lab: Lab) {
    let _alone = alone(&lab, "probe").await;
    lab.install(&["tests/probe"]);
    govern(&lab, "probe", json!({"source": {"file": "probe.wasm"}})).await;
    lab.start_host().await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "a").await;
    let api = lab.api(&kind(), "");
    api.delete("probe", &Default::default()).await.expect("accepted");
    lab.wait_until("it says what it waits for", async || {
        let ready = find_condition(&plugin(&lab, "probe").await, "Ready");
        let why = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "ObjectsRemain" && why.starts_with("1 objects need it") && why.contains("/a)")
    })
    .await;
    // It works until then.
    lab.apply_probe("b", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "b").await;
    lab.delete(&probe(), "a").await;
    lab.delete(&probe(), "b").await;
    lab.wait_until("it is gone", async || plugin(&lab, "probe").await.is_null())
        .await;
}

async fn a_plugin_lets_its_objects_go(mut lab: Lab) {
    let _alone = alone(&lab, "probe").await;
    lab.install(&["tests/probe"]);
    govern(&lab, "probe", json!({"source": {"file": "probe.wasm"}})).await;
    lab.start_host().await;
    lab.apply_probe("a", json!([]), json!([{"do": "park"}])).await;
    lab.wait_ready(&probe(), "a").await;
    // Nothing that would take it up again.
    std::fs::remove_file(lab.settings.plugins.join("probe.wasm")).expect("removed");
    says(&lab, "probe", "Loaded", "False", "FileNotFound").await;
    let orphan = kube::api::Patch::Merge(
        json!({"metadata": {"annotations": {"ostler.dev/deletion-policy": "Orphan"}}}),
    );
    let api = lab.api(&kind(), "");
    api.patch("probe", &Default::default(), &orphan)
        .await
        .expect("patched");
    api.delete("probe", &Default::default()).await.expect("accepted");
    lab.wait_until("it is gone", async || plugin(&lab, "probe").await.is_null())
        .await;
    lab.wait_until("it is unloaded", async || {
        lab.host().registry().reports().is_empty()
    })
    .await;
    let left = lab.get(&probe(), "a").await.expect("it is there");
    let finalizers = left["metadata"]["finalizers"].as_array();
    assert!(finalizers.is_none_or(Vec::is_empty), "{left:#}");
    lab.delete(&probe(), "a").await;
    lab.wait_gone(&probe(), "a").await;
}

/// A key made of ones, and its public half: nobody else's.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\n-----END PRIVATE KEY-----\n";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n-----END PUBLIC KEY-----\n";

async fn a_component_from_a_registry(mut lab: Lab) {
    let _alone = alone(&lab, "greeting").await;
    let mut registry = Registry::start_private();
    let at = registry.address();
    let config =
        json!({"auths": {at: {"username": REGISTRY_USER, "password": REGISTRY_PASSWORD}}}).to_string();
    let auth = RegistryAuth::from_docker_config(config.as_bytes()).expect("credentials");
    let store = ComponentStore::new(None, PullLimits::default());
    let reference: Reference = format!("{at}/plugins/greeting:1").parse().expect("a reference");
    let wasm = read_component("examples/greeting").into();
    let quiet = Arc::new(|_| {});
    let pushed = store
        .push_component(
            &reference,
            &auth,
            wasm,
            &ComponentInterfaces::default(),
            BTreeMap::new(),
            quiet,
        )
        .await
        .expect("pushed");
    let pinned = pushed.reference.to_string();
    // Of this test alone: what is cached needs no registry.
    lab.settings.cache = Some(Cache {
        directory: lab.path().join("cache"),
        compiler: None,
    });
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": lab.namespace},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keys", "namespace": lab.namespace},
            "data": {"cosign.pub": PUBLIC}}),
    ] {
        lab.apply(object).await;
    }
    let mut spec = json!({"source": {"oci": {"reference": pinned}},
        "grants": {"kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}});
    govern(&lab, "greeting", spec.clone()).await;
    lab.start_host().await;
    says(&lab, "greeting", "Loaded", "False", "Unauthorized").await;
    spec["source"]["oci"]["pullSecretRef"] = json!({"namespace": lab.namespace, "name": "pull"});
    let keys = json!({"namespace": lab.namespace, "name": "keys", "key": "cosign.pub"});
    spec["verify"] = json!({"keysFrom": [{"configMapKeyRef": keys}]});
    govern(&lab, "greeting", spec).await;
    let told = says(&lab, "greeting", "Loaded", "False", "SignatureMissing").await;
    assert!(!told.to_string().contains(REGISTRY_PASSWORD), "{told:#}");
    let key = SigningKey::from_pem(PRIVATE).expect("a key");
    store
        .sign_digest(&reference, &pushed.digest, &auth, &key)
        .await
        .expect("signed");
    // It is tried again by itself.
    let told = says(&lab, "greeting", "Ready", "True", "Ready").await;
    assert!(message(&told, "Loaded").starts_with("signed by "), "{told:#}");
    assert_eq!(told["status"]["running"]["source"], pinned);
    greet(&lab, "hello").await;
    lab.wait_ready(&greeting(), "hello").await;
    // A host starts while the registry is down.
    registry.stop();
    lab.host.take();
    lab.start_host().await;
    assert_eq!(report(&lab, "greeting").state, LoadState::Serving);
    greet(&lab, "again").await;
    lab.wait_ready(&greeting(), "again").await;
    forget(&lab, "greeting").await;
}
