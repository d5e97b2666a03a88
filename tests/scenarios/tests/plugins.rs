//! `Plugin` objects: source, grants, configuration, suspension, canary, rollback and deletion of a plugin.

mod canary;
mod revocation;
mod rollback;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::http::Method;
use ostler::testing::{
    engine::CompileCache,
    key::Gvk,
    oci::{ComponentInterfaces, ComponentStore, OciReference, PullLimits, PushedComponent, RegistryAuth},
    plugin::{LoadState, SlotReport},
    signature::SigningKey,
};
use ostler_test_harness::{
    Lab, find_condition, greeting_kind,
    process::{HostProcess, Signal},
    read_component,
    registry::{REGISTRY_PASSWORD, REGISTRY_USER, RegistryProcess},
    replace_text, scenario,
    signing::{PRIVATE_KEY, PUBLIC_KEY},
    with_note, workspace_root,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::protection::refuse_requests;

/// Refused writes of an object, with exponential backoff, in more time than the first reconcile of another one takes.
const REFUSALS: usize = 8;

fn kind() -> Gvk {
    Gvk::new("ostler.dev", "v1alpha1", "Plugin")
}

fn hostile() -> Gvk {
    Gvk::new("tests.ostler.dev", "v1alpha1", "Hostile")
}

/// A Plugin object; null if there is none.
async fn plugin(lab: &Lab, name: &str) -> Value {
    let found = lab.api(&kind(), "").get_opt(name).await.expect("an answer");
    found.map_or(Value::Null, |p| serde_json::to_value(p).expect("JSON"))
}

async fn apply_plugin(lab: &Lab, name: &str, spec: Value) {
    let object = json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": name, "labels": {"lab": lab.namespace}}, "spec": spec});
    lab.apply(object).await;
}

/// Installs the probe, by a Plugin object.
async fn install_probe(lab: &Lab) {
    lab.install(&["tests/probe"]);
    let grants = json!({"reconciles": [{"group": "tests.ostler.dev", "kinds": ["*"]}]});
    let spec = json!({"source": {"file": "probe.wasm"}, "grants": grants});
    apply_plugin(lab, "probe", spec).await;
}

/// Pushes a component to the repository of its plugin in a public registry.
async fn push_component(registry: &RegistryProcess, plugin: &str, wasm: Vec<u8>) -> PushedComponent {
    let reference: OciReference = format!("{}/plugins/{plugin}:1", registry.address())
        .parse()
        .expect("a reference");
    ComponentStore::new(None, PullLimits::default())
        .push_component(
            &reference,
            &RegistryAuth::anonymous(),
            wasm.into(),
            &ComponentInterfaces::default(),
            BTreeMap::new(),
            Arc::new(|_| {}),
        )
        .await
        .expect("pushed")
}

/// Waits until a Plugin has this condition for its current generation, and returns it.
async fn wait_plugin_condition(lab: &Lab, name: &str, kind: &str, status: &str, reason: &str) -> Value {
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

/// Deletes the Plugin `probe`, and waits until its condition says that these objects remain. Returns the message.
async fn delete_with_objects_left(lab: &Lab, start: &str) -> String {
    let api = lab.api(&kind(), "");
    api.delete("probe", &Default::default()).await.expect("accepted");
    lab.wait_until("the condition names the remaining objects", async || {
        let object = plugin(lab, "probe").await;
        find_condition(&object, "Ready")["reason"] == "ObjectsRemain"
            && message(&object, "Ready").starts_with(start)
    })
    .await;
    message(&plugin(lab, "probe").await, "Ready")
}

fn message(plugin: &Value, kind: &str) -> String {
    find_condition(plugin, kind)["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn report(lab: &Lab, name: &str) -> SlotReport {
    let reports = lab.host().registry().reports();
    reports
        .into_iter()
        .find(|r| r.name == name)
        .expect("a report of the plugin")
}

async fn apply_hostile(lab: &Lab, name: &str, behaviour: &str, tier: &str) {
    lab.apply(
        json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Hostile",
        "metadata": {"name": name, "namespace": lab.namespace, "labels": {"tier": tier}},
        "spec": {"behaviour": behaviour}}),
    )
    .await;
}

async fn apply_greeting(lab: &Lab, name: &str) {
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": name}}),
    )
    .await;
}

/// The spec of a Plugin `hostile`.
fn spec(file: &str, canary: Option<(&str, Value)>) -> Value {
    let mut spec = json!({"source": {"file": file}, "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}], "events": true}});
    if let Some((file, objects)) = canary {
        spec["canary"] = json!({"source": {"file": file}, "objects": objects});
    }
    spec
}

/// A build of the component `hostile` that traps on the behaviour `brittle`, which the other build executes.
pub(crate) fn make_brittle(wasm: &[u8]) -> Vec<u8> {
    let (word, other) = (b"ostler-hostile-build:sound--", b"ostler-hostile-build:brittle");
    let at = wasm
        .windows(word.len())
        .position(|w| w == word)
        .expect("it is marked");
    let mut wasm = wasm.to_vec();
    wasm[at..at + other.len()].copy_from_slice(other);
    wasm
}

/// The digest of the build that reconciled each object last, by name.
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

#[scenario]
async fn plugin_object_takes_over_plugin_of_directory(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
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
    apply_greeting(&lab, "hello").await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    let object = wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    let status = &object["status"];
    assert_eq!(status["running"]["digest"], served.digest);
    assert_eq!(status["running"]["shortDigest"], served.digest[..12]);
    assert_eq!(status["running"]["source"], "greeting.wasm");
    assert_eq!(status["lastGoodDigest"], served.digest);
    assert_eq!(status["kinds"], json!(["Greeting.v1alpha1.examples.ostler.dev"]));
    assert_eq!(
        status["requested"],
        json!([
            "reconcile Greeting.examples.ostler.dev",
            "get,apply,delete ConfigMap in the same namespace",
            "emit Events"
        ])
    );
    assert_eq!(status["granted"], status["requested"]);
    assert!(message(&object, "Loaded").contains("grants file"), "{object:#}");
    // Used permissions are reported with the next reconcile of the Plugin.
    let now =
        kube::api::Patch::Merge(json!({"metadata": {"annotations": {"ostler.dev/reconcile-now": "1"}}}));
    let api = lab.api(&kind(), "");
    api.patch("greeting", &Default::default(), &now)
        .await
        .expect("patched");
    lab.wait_until("its status lists used permissions", async || {
        let used = plugin(&lab, "greeting").await["status"]["used"].clone();
        used.as_array().is_some_and(|u| {
            u.iter()
                .any(|line| line == "get,apply,delete ConfigMap in the same namespace")
        })
    })
    .await;
    // A changed file is reloaded; after the deletion of the object the directory serves the file again.
    lab.install_bytes(
        "greeting",
        &with_note(&read_component("examples/greeting"), "newer"),
    );
    lab.wait_until("the newer build serves", async || {
        report(&lab, "greeting").digest != served.digest
    })
    .await;
    lab.wait_until("the status has its digest", async || {
        plugin(&lab, "greeting").await["status"]["running"]["digest"] == report(&lab, "greeting").digest
    })
    .await;
    lab.delete_plugin("greeting").await;
    lab.wait_until("the file of the directory serves", async || {
        let reports = lab.host().registry().reports();
        let of_file = reports.iter().find(|r| r.file == "greeting.wasm");
        of_file.is_some_and(|r| r.state == LoadState::Serving)
    })
    .await;
    apply_greeting(&lab, "again").await;
    lab.wait_ready(&greeting_kind(), "again").await;
}

#[scenario]
async fn changed_grants_apply_without_reload(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    lab.install(&["examples/greeting"]);
    let spec = |grants: Value| json!({"source": {"file": "greeting.wasm"}, "grants": grants});
    apply_plugin(
        &lab,
        "greeting",
        spec(json!({"reconciles": [{"group": "*", "kinds": ["*"]}], "events": true})),
    )
    .await;
    lab.start_host().await;
    apply_greeting(&lab, "hello").await;
    lab.wait_until("it is denied with the field of the Plugin object", async || {
        let object = lab.get(&greeting_kind(), "hello").await.unwrap_or_default();
        let ready = find_condition(&object, "Ready");
        let why = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False" && why.contains("spec.grants.kubernetes")
    })
    .await;
    let object = wait_plugin_condition(&lab, "greeting", "Granted", "False", "GrantsMissing").await;
    assert!(
        message(&object, "Granted").contains("get,apply,delete ConfigMap"),
        "{object:#}"
    );
    let before = report(&lab, "greeting");
    let all = json!({"reconciles": [{"group": "*", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply", "delete"]}], "events": true});
    apply_plugin(&lab, "greeting", spec(all)).await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    let object = wait_plugin_condition(&lab, "greeting", "Granted", "True", "AllGranted").await;
    assert_eq!(find_condition(&object, "Ready")["status"], "True");
    let after = report(&lab, "greeting");
    assert_eq!(
        (after.digest, after.served),
        (before.digest, before.served),
        "the same build with other grants"
    );
    lab.delete_plugin("greeting").await;
}

/// Applies a Greeting and waits until a missing grant denies it.
async fn expect_denied(lab: &Lab, name: &str) {
    apply_greeting(lab, name).await;
    lab.wait_until(
        &format!("{name} is denied with the field of the Plugin object"),
        async || {
            let object = lab.get(&greeting_kind(), name).await.unwrap_or_default();
            let why = find_condition(&object, "Ready")["message"].clone();
            why.as_str()
                .unwrap_or_default()
                .contains("spec.grants.kubernetes")
        },
    )
    .await;
}

#[scenario]
async fn changed_grants_apply_while_a_build_is_pulled(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    // A registry that accepts connections and never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let at = silent.local_addr().expect("an address");
    lab.settings.plain_http = vec![at.to_string()];
    let oci = json!({"oci": {"reference": format!("{at}/plugins/greeting@sha256:{}", "0".repeat(64))}});
    let file = json!({"file": "greeting.wasm"});
    let spec = |source: &Value, grants: Value| json!({"source": source, "grants": grants});
    let all = || json!({"reconciles": [{"group": "*", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply", "delete"]}], "events": true});
    let none = || json!({"reconciles": [{"group": "*", "kinds": ["*"]}], "events": true});
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    apply_greeting(&lab, "file").await;
    lab.wait_ready(&greeting_kind(), "file").await;
    // The grants of an object apply to the build of a file while its own build is being pulled.
    apply_plugin(&lab, "greeting", spec(&oci, none())).await;
    expect_denied(&lab, "bound").await;
    apply_plugin(&lab, "greeting", spec(&file, all())).await;
    lab.wait_ready(&greeting_kind(), "bound").await;
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    apply_plugin(&lab, "greeting", spec(&oci, none())).await;
    expect_denied(&lab, "less").await;
    // The change of the source is reverted before the pull finishes.
    apply_plugin(&lab, "greeting", spec(&file, all())).await;
    lab.wait_ready(&greeting_kind(), "less").await;
    wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    lab.delete_plugin("greeting").await;
}

#[scenario]
async fn invalid_config_is_refused_with_its_field(mut lab: Lab) {
    let _lock = lab.lock_plugin("lifecycle").await;
    lab.install(&["tests/lifecycle"]);
    let spec = |config: Value| {
        json!({"source": {"file": "lifecycle.wasm"}, "config": config,
            "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"], "namespaces": ["*"]}], "events": true}})
    };
    apply_plugin(&lab, "lifecycle", spec(json!({"writer": 7}))).await;
    lab.start_host().await;
    let object = wait_plugin_condition(&lab, "lifecycle", "Loaded", "False", "InvalidConfig").await;
    assert!(
        message(&object, "Loaded").contains("config.writer: Invalid value"),
        "{object:#}"
    );
    assert_eq!(find_condition(&object, "Stalled")["status"], "True");
    assert_eq!(report(&lab, "lifecycle").state, LoadState::Failed);
    apply_plugin(&lab, "lifecycle", spec(json!({"writer": "me"}))).await;
    wait_plugin_condition(&lab, "lifecycle", "Ready", "True", "Ready").await;
    let beats = Gvk::new("tests.ostler.dev", "v1alpha1", "Beat");
    lab.apply(json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Beat",
        "metadata": {"name": "b", "namespace": lab.namespace}, "spec": {"behaviour": "beat"}}))
        .await;
    lab.wait_ready(&beats, "b").await;
    let written = lab
        .get(&Gvk::new("", "v1", "ConfigMap"), "b")
        .await
        .expect("the ConfigMap");
    assert_eq!(written["data"]["writer"], "me");
    apply_plugin(&lab, "lifecycle", spec(json!({"writter": "you"}))).await;
    let object = wait_plugin_condition(&lab, "lifecycle", "Loaded", "False", "InvalidConfig").await;
    let why = message(&object, "Loaded");
    assert!(
        why.contains("config.writter: unknown field") && why.contains("serves on"),
        "{why}"
    );
    assert_eq!(report(&lab, "lifecycle").state, LoadState::Refused);
    lab.delete_plugin("lifecycle").await;
}

#[scenario]
async fn objects_of_suspended_plugin_wait(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    lab.install(&["examples/greeting", "hostile/hostile"]);
    let spec = |suspend: bool| {
        json!({"source": {"file": "greeting.wasm"}, "suspend": suspend,
            "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}})
    };
    apply_plugin(&lab, "greeting", spec(true)).await;
    apply_greeting(&lab, "early").await;
    lab.start_host().await;
    apply_greeting(&lab, "late").await;
    let object = wait_plugin_condition(&lab, "greeting", "Healthy", "Unknown", "Suspended").await;
    assert_eq!(find_condition(&object, "Loaded")["status"], "True");
    assert_eq!(find_condition(&object, "Ready")["reason"], "Suspended");
    // An object of another plugin, applied later, becomes Ready, so the others had time to be reconciled.
    apply_hostile(&lab, "neighbour", "behave", "x").await;
    lab.wait_ready(&hostile(), "neighbour").await;
    for name in ["early", "late"] {
        let waiting = lab.get(&greeting_kind(), name).await.expect("it is there");
        assert!(waiting["status"].is_null(), "{waiting:#}");
    }
    apply_plugin(&lab, "greeting", spec(false)).await;
    for name in ["early", "late"] {
        lab.wait_ready(&greeting_kind(), name).await;
    }
    apply_plugin(&lab, "greeting", spec(true)).await;
    wait_plugin_condition(&lab, "greeting", "Healthy", "Unknown", "Suspended").await;
    apply_greeting(&lab, "later").await;
    apply_hostile(&lab, "another", "behave", "x").await;
    lab.wait_ready(&hostile(), "another").await;
    let waiting = lab.get(&greeting_kind(), "later").await.expect("it is there");
    assert!(waiting["status"].is_null(), "{waiting:#}");
    lab.delete_plugin("greeting").await;
}

#[scenario]
async fn refused_plugin_objects_name_the_cause(mut lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    // Rejected by the schema of the CRD.
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
    // Refused by the host.
    lab.install(&["hostile/hostile"]);
    lab.install_bytes("module", b"\0asm\x01\0\0\0");
    lab.install_bytes("bare", &strip_manifest(&read_component("hostile/hostile")));
    let file = |file: &str| json!({"source": {"file": file}, "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}]}});
    apply_plugin(&lab, "hostile", file("absent.wasm")).await;
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
        apply_plugin(&lab, "hostile", spec).await;
        let object = wait_plugin_condition(&lab, "hostile", "Loaded", "False", reason).await;
        assert!(message(&object, "Loaded").contains(words), "{object:#}");
    }
    apply_plugin(&lab, "hostile", file("hostile.wasm")).await;
    wait_plugin_condition(&lab, "hostile", "Ready", "True", "Ready").await;
    // A file of a plugin that has a Plugin object, which names another file.
    lab.install_bytes("second", &with_note(&read_component("hostile/hostile"), "second"));
    lab.wait_until("the second one is refused", async || {
        let reports = lab.host().registry().reports();
        let second = reports.into_iter().find(|r| r.file == "second.wasm");
        second.is_some_and(|r| {
            r.reason == "ManagedByPluginObject" && r.message.contains("Plugin object hostile")
        })
    })
    .await;
    // The component of another plugin.
    let _ = lab
        .api(&kind(), "")
        .delete("elsewhere", &Default::default())
        .await;
    apply_plugin(&lab, "elsewhere", file("second.wasm")).await;
    let object = wait_plugin_condition(&lab, "elsewhere", "Loaded", "False", "NameMismatch").await;
    assert!(
        message(&object, "Loaded").contains("is the plugin hostile"),
        "{object:#}"
    );
    lab.delete_plugin("elsewhere").await;
    lab.delete_plugin("hostile").await;
}

#[scenario]
async fn host_that_waits_for_a_silent_registry_is_alive_and_ends_on_sigterm(lab: Lab) {
    let _lock = lab.lock_plugin("hostile").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let reference = format!("{address}/plugins/hostile@sha256:{}", "0".repeat(64));
    apply_plugin(
        &lab,
        "hostile",
        json!({"source": {"oci": {"reference": reference}}}),
    )
    .await;
    let mut host = HostProcess::start(&lab, "a", &[]);
    let _pull = silent.accept().await.expect("the host pulls the component");
    host.wait_logged(&lab, "serving health and metrics").await;
    let log = host.log();
    let (_, rest) = log.split_once("admin=").expect("the address of the admin server");
    let admin = rest
        .split_whitespace()
        .next()
        .expect("an address")
        .trim_matches('"');
    let probe = async |path: &str| {
        let answer = reqwest::get(format!("{admin}{path}")).await;
        answer.expect("the admin server answers").status().as_u16()
    };
    assert_eq!(
        (probe("/healthz").await, probe("/readyz").await),
        (200, 503),
        "alive for the kubelet, and not ready"
    );
    host.send_signal(Signal::TERM);
    assert!(host.wait_exit(&lab).await.success());
    assert!(!host.log().contains("started"), "{}", host.log());
    lab.delete_plugin("hostile").await;
}

/// A component without a manifest: the section gets another name of the same length.
fn strip_manifest(wasm: &[u8]) -> Vec<u8> {
    let (name, other) = (b"ostler:manifest", b"ignore:manifest");
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

#[scenario]
async fn deleted_plugin_stays_while_objects_need_cleanup(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    install_probe(&lab).await;
    lab.start_host().await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "a").await;
    let why = delete_with_objects_left(&lab, "1 objects need it").await;
    assert!(why.contains("/a)"), "{why}");
    // The plugin keeps reconciling until then.
    lab.apply_probe("b", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "b").await;
    lab.delete(&probe(), "a").await;
    lab.delete(&probe(), "b").await;
    lab.wait_until("it is gone", async || plugin(&lab, "probe").await.is_null())
        .await;
}

/// A Plugin that is deleted in between would leave the object with a finalizer that nobody removes.
#[scenario]
async fn object_gets_its_finalizer_after_the_plugin_has_its_own(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    install_probe(&lab).await;
    lab.apply_probe("a", json!([]), json!([{"do": "park"}])).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let is_open = Arc::new(AtomicBool::new(false));
    let client = {
        let (is_open, refused) = (is_open.clone(), refused.clone());
        refuse_requests(lab.client.clone(), move |request| {
            let path = request.uri().path();
            let is_write = request.method() == Method::PATCH || request.method() == Method::PUT;
            let is_object = path.contains("/plugins/") && !path.ends_with("/status");
            let is_refused = is_write && is_object && !is_open.load(Ordering::Relaxed);
            refused.fetch_add(usize::from(is_refused), Ordering::Relaxed);
            is_refused
        })
    };
    lab.start_host_with(client).await;
    lab.wait_until("its finalizer was refused for more than a second", async || {
        refused.load(Ordering::Relaxed) >= REFUSALS
    })
    .await;
    let waiting = lab.get(&probe(), "a").await.expect("it is there");
    assert_eq!(waiting["metadata"]["finalizers"], Value::Null);
    is_open.store(true, Ordering::Relaxed);
    let ready = lab.wait_ready(&probe(), "a").await;
    assert!(ready["metadata"]["finalizers"].is_array());
}

/// Nothing reconciles the objects of the kind any more, which a person has to learn.
#[scenario]
async fn plugin_names_objects_of_a_kind_that_its_build_drops(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    install_probe(&lab).await;
    lab.start_host().await;
    let selected = Gvk::new("tests.ostler.dev", "v1alpha1", "SelectedProbe");
    for name in ["a", "b"] {
        let metadata = json!({"name": name, "namespace": lab.namespace, "labels": {"tier": "a"}});
        let object = json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "SelectedProbe", "metadata": metadata, "spec": {}});
        lab.apply(object).await;
        lab.wait_ready(&selected, name).await;
    }
    lab.host = None;
    // Of the same length: the descriptor of the component names the kind.
    let dropped = replace_text(&read_component("tests/probe"), "SelectedProbe", "DroppedsProbe");
    lab.install_bytes("probe", &dropped);
    lab.start_host().await;
    let object = wait_plugin_condition(&lab, "probe", "Healthy", "False", "ObjectsRemain").await;
    let why = message(&object, "Healthy").to_owned();
    assert!(
        why.contains("/a") && why.contains("/b") && why.contains("tests.ostler.dev/selected"),
        "{why}"
    );
    assert_eq!(find_condition(&object, "Ready")["reason"], "ObjectsRemain");

    // The objects of the other kind are reconciled, and the Plugin stays while any are left.
    lab.apply_probe("c", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "c").await;
    lab.delete(&probe(), "c").await;
    lab.wait_gone(&probe(), "c").await;
    delete_with_objects_left(&lab, "2 objects need it").await;
    // A build that reconciles the kind cleans up.
    for name in ["a", "b"] {
        lab.delete(&selected, name).await;
    }
    lab.install(&["tests/probe"]);
    for name in ["a", "b"] {
        lab.wait_gone(&selected, name).await;
    }
    lab.wait_until("it is gone", async || plugin(&lab, "probe").await.is_null())
        .await;
}

/// As when everything that was installed is deleted, the CRDs first.
#[scenario(embedded = "it deletes CRDs that other tests need on a shared server")]
async fn plugin_whose_crd_is_deleted_before_it_is_deleted_too(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    install_probe(&lab).await;
    lab.start_host().await;
    lab.apply_probe("a", json!([]), json!([])).await;
    lab.wait_ready(&probe(), "a").await;
    let crds = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    for plural in ["probes", "selectedprobes"] {
        let name = format!("{plural}.tests.ostler.dev");
        let deleted = lab.api(&crds, "").delete(&name, &Default::default()).await;
        deleted.expect("accepted");
        lab.wait_until("the CRD is gone", async || {
            let found = lab.api(&crds, "").get_opt(&name).await;
            found.expect("an answer").is_none()
        })
        .await;
    }
    // A host that has never listed the kind knows nothing of its objects.
    lab.host = None;
    lab.start_host().await;
    let api = lab.api(&kind(), "");
    api.delete("probe", &Default::default()).await.expect("accepted");
    lab.wait_until("the Plugin is gone", async || {
        plugin(&lab, "probe").await.is_null()
    })
    .await;
}

#[scenario]
async fn deletion_policy_orphan_releases_objects_of_plugin(mut lab: Lab) {
    let _lock = lab.lock_plugin("probe").await;
    install_probe(&lab).await;
    lab.start_host().await;
    lab.apply_probe("a", json!([]), json!([{"do": "park"}])).await;
    lab.wait_ready(&probe(), "a").await;
    // Without its file, the directory does not serve the plugin again.
    std::fs::remove_file(lab.settings.plugins.join("probe.wasm")).expect("removed");
    wait_plugin_condition(&lab, "probe", "Loaded", "False", "FileNotFound").await;
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
    // Nothing would ever remove what is known of it: the leader does not watch its kind any more.
    let known = || lab.host().stats().keys();
    lab.wait_until("its objects are forgotten", async || {
        known().iter().all(|key| key.gvk != probe())
    })
    .await;
    lab.delete(&probe(), "a").await;
    lab.wait_gone(&probe(), "a").await;
}

#[scenario]
async fn signed_component_is_pulled_from_a_private_registry(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    let mut registry = RegistryProcess::start_private();
    let at = registry.address();
    let config =
        json!({"auths": {at: {"username": REGISTRY_USER, "password": REGISTRY_PASSWORD}}}).to_string();
    let auth = RegistryAuth::from_docker_config(config.as_bytes()).expect("credentials");
    let store = ComponentStore::new(None, PullLimits::default());
    let reference: OciReference = format!("{at}/plugins/greeting:1").parse().expect("a reference");
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
    // A cache of its own: a component that another test cached would not be pulled.
    lab.settings.cache = Some(CompileCache {
        directory: lab.path().join("cache"),
        compiler: None,
    });
    for object in [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": lab.namespace},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keys", "namespace": lab.namespace},
            "data": {"cosign.pub": PUBLIC_KEY}}),
    ] {
        lab.apply(object).await;
    }
    let mut spec = json!({"source": {"oci": {"reference": pinned}},
        "grants": {"reconciles": [{"group": "*", "kinds": ["*"]}], "kubernetes": [{"kinds": ["ConfigMap"], "verbs": ["get", "apply"]}], "events": true}});
    apply_plugin(&lab, "greeting", spec.clone()).await;
    lab.start_host().await;
    wait_plugin_condition(&lab, "greeting", "Loaded", "False", "Unauthorized").await;
    spec["source"]["oci"]["pullSecretRef"] = json!({"namespace": lab.namespace, "name": "pull"});
    let keys = json!({"namespace": lab.namespace, "name": "keys", "key": "cosign.pub"});
    spec["verify"] = json!({"keysFrom": [{"configMapKeyRef": keys}]});
    apply_plugin(&lab, "greeting", spec).await;
    let object = wait_plugin_condition(&lab, "greeting", "Loaded", "False", "SignatureMissing").await;
    assert!(!object.to_string().contains(REGISTRY_PASSWORD), "{object:#}");
    let key = SigningKey::from_pem(PRIVATE_KEY).expect("a key");
    store
        .sign_digest(&reference, &pushed.digest, &auth, &key)
        .await
        .expect("signed");
    // The pull is retried without a change of the object.
    let object = wait_plugin_condition(&lab, "greeting", "Ready", "True", "Ready").await;
    assert!(message(&object, "Loaded").starts_with("signed by "), "{object:#}");
    assert_eq!(object["status"]["running"]["source"], pinned);
    apply_greeting(&lab, "hello").await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    // A host starts from its cache while the registry is down.
    registry.stop();
    lab.host.take();
    lab.start_host().await;
    assert_eq!(report(&lab, "greeting").state, LoadState::Serving);
    apply_greeting(&lab, "again").await;
    lab.wait_ready(&greeting_kind(), "again").await;
    lab.delete_plugin("greeting").await;
}
