//! `ostler plugin install` and `uninstall`: the rights that they give are exactly those that the plugin and the host need.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Command, Output},
    sync::{Arc, Mutex},
};

use kube::api::{ListParams, Patch};
use ostler::testing::{
    grants::{Grants, ServiceAccount},
    key::Gvk,
    manifest::{self, Manifest},
    plugin::install::host_objects,
};
use ostler_test_harness::{
    Lab, find_condition, greeting_kind,
    process::host_binary,
    read_component,
    registry::RegistryProcess,
    rights::{Rights, bound_rules, client_as_host},
    scenario,
    signing::{PRIVATE_KEY, PUBLIC_KEY},
};
use serde_json::{Value, json};

const GREETING_COMPONENT: &str = "examples/greeting";
const PLUGIN_LABEL: &str = "ostler.dev/plugin-name=greeting";

/// Rules that this plugin asks for and its objects do not need.
const UNUSED_RULES: &[&str] = &[
    // It reads and deletes none, though its manifest asks for it.
    "greeting get configmaps",
    "greeting delete configmaps",
    // Only for an admission plugin that is off by default.
    "greeting update greetings/finalizers.examples.ostler.dev",
    // An apply that creates the object is authorized for both verbs by the API server itself.
    "greeting create configmaps",
];

/// The service account of the host of a test.
fn host_account(lab: &Lab) -> ServiceAccount {
    ServiceAccount {
        namespace: format!("{}-system", lab.namespace),
        name: "ostler".into(),
    }
}

/// Applies the rights of the host.
async fn apply_host_rights(lab: &Lab) {
    let host = host_account(lab);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": host.namespace}}))
        .await;
    for object in host_objects(&host) {
        lab.apply(object).await;
    }
}

/// Runs a command of `ostler plugin` for the host of the test.
async fn run_plugin_command(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(host_binary());
    command.arg("plugin").args(arguments);
    if arguments[0] == "install" {
        command.args(["--host-namespace", &host_account(lab).namespace]);
    }
    command
        .arg("--kubeconfig")
        .arg(&lab.kubeconfig)
        .env("NO_COLOR", "1");
    // The API server may be in this process.
    tokio::task::spawn_blocking(move || command.output().expect("ostler runs"))
        .await
        .expect("it ends")
}

/// Installs a file in the namespace of the test. There may be no host yet.
async fn install(lab: &Lab, file: &str, more: &[&str]) -> Output {
    let arguments = [
        &["install", file, "--no-wait", "--namespace", &lab.namespace][..],
        more,
    ]
    .concat();
    run_plugin_command(lab, &arguments).await
}

fn expect_success(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn plugin_file(lab: &Lab) -> PathBuf {
    lab.settings.plugins.join("greeting.wasm")
}

/// Gives the Plugin to the host of this test: hosts of other tests leave it alone.
async fn label_plugin(lab: &Lab) {
    let label = Patch::Merge(json!({"metadata": {"labels": {"lab": lab.namespace}}}));
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    plugins
        .patch("greeting", &Default::default(), &label)
        .await
        .expect("labelled");
}

async fn read_spec(lab: &Lab) -> Value {
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let plugin = plugins.get("greeting").await.expect("the Plugin");
    plugin.data["spec"].clone()
}

/// The greeting component with these permissions besides those that it needs.
fn greeting_with_permissions(more: &str) -> Vec<u8> {
    let text = format!(
        "permissions:
  reconciles: [{{group: examples.ostler.dev, kinds: [Greeting]}}]
  kubernetes:
  - {{kinds: [ConfigMap], verbs: [apply]}}
{more}"
    );
    let manifest = Manifest::parse(&text, "plugin.yaml").expect("a manifest");
    manifest::embed_manifest(&read_component(GREETING_COMPONENT), &manifest).expect("a component")
}

fn greeting_object(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace}, "spec": {"name": "you"}})
}

/// Kinds, namespaces and names of the labelled objects of the plugin.
async fn list_installed(lab: &Lab) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io";
    let mut found = Vec::new();
    for (group, kind) in [
        ("", "ServiceAccount"),
        (rbac, "Role"),
        (rbac, "RoleBinding"),
        (rbac, "ClusterRole"),
        (rbac, "ClusterRoleBinding"),
    ] {
        let api = lab.api(&Gvk::new(group, "v1", kind), "");
        let listed = api.list(&ListParams::default().labels(PLUGIN_LABEL)).await;
        for object in listed.expect("a list") {
            let mut object = serde_json::to_value(object).expect("JSON");
            object["kind"] = kind.into();
            found.push(object);
        }
    }
    found
}

/// Installs a plugin by the command, runs the host as its service account, and uninstalls the plugin: no request is refused,
/// no rule is unused, and nothing is left.
#[scenario(real = "RBAC and impersonation")]
pub async fn installed_plugin_runs_with_exactly_its_rights(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    lab.install(&[GREETING_COMPONENT]);
    let file = plugin_file(&lab).display().to_string();

    let printed = install(&lab, &file, &["--dry-run"]).await;
    expect_success(&printed);
    assert!(list_installed(&lab).await.is_empty(), "a dry run applies nothing");
    let printed = String::from_utf8(printed.stdout).expect("YAML");
    let printed: Vec<Value> = printed
        .split("---\n")
        .map(|document| serde_saphyr::from_str(document).expect("YAML"))
        .filter(|object: &Value| object["kind"] != "CustomResourceDefinition")
        .collect();
    let output = install(&lab, &file, &[]).await;
    expect_success(&output);
    assert!(
        stderr(&output).contains("get,apply,delete ConfigMap"),
        "{}",
        stderr(&output)
    );
    let installed = list_installed(&lab).await;
    let host = host_account(&lab);
    let accounts: Vec<&Value> = installed
        .iter()
        .filter(|o| o["kind"] == "ServiceAccount")
        .collect();
    // Users of the namespace of the objects may create pods there.
    assert_eq!(accounts.len(), 1);
    assert_eq!(accounts[0]["metadata"]["namespace"], host.namespace);
    // The Plugin is not labelled.
    assert_eq!(installed.len() + 1, printed.len(), "{installed:#?}");

    label_plugin(&lab).await;
    lab.settings.grants = Grants::default();
    lab.settings.require_service_account = true;
    lab.settings.own_namespace = Some(host.namespace.clone());
    let rights = Arc::new(Mutex::new(Rights::default()));
    let client = client_as_host(lab.client.clone(), host.user_name(), rights.clone());
    lab.start_host_with(client).await;
    lab.apply(greeting_object(&lab, "hello")).await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    lab.delete(&greeting_kind(), "hello").await;
    lab.wait_gone(&greeting_kind(), "hello").await;

    // The host removes the finalizer of the Plugin.
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
    assert_eq!(list_installed(&lab).await, Vec::<Value>::new());
    let bindings = lab
        .list(&Gvk::new("rbac.authorization.k8s.io", "v1", "RoleBinding"))
        .await;
    assert!(bindings.is_empty(), "{bindings:#?}");

    // The role of the host in a namespace belongs to no plugin, only its binding does.
    let own_roles: Vec<Value> = installed
        .into_iter()
        .filter(|object| object["roleRef"]["name"] != "ostler:namespace")
        .collect();
    let bound = bound_rules(&own_roles);
    let rights = rights.lock().expect("lock");
    // After the end of its roles the host is refused.
    let own: BTreeSet<String> = rights
        .used
        .iter()
        .filter(|right| {
            right.starts_with("greeting ") || right.contains("greetings") || right.contains("configmaps")
        })
        .cloned()
        .collect();
    let missing: Vec<_> = own.difference(&bound).collect();
    assert!(missing.is_empty(), "used without a rule: {missing:#?}");
    let unused: BTreeSet<&str> = bound.difference(&rights.used).map(String::as_str).collect();
    let expected: BTreeSet<&str> = UNUSED_RULES.iter().copied().collect();
    assert_eq!(unused, expected, "rules without use");
}

/// A build that asks for more is not installed over another one without consent, and one that asks for less loses rules.
#[scenario]
pub async fn upgrade_with_new_permissions_needs_consent(lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    let write = |wasm: &[u8]| std::fs::write(plugin_file(&lab), wasm).expect("written");
    let file = plugin_file(&lab).display().to_string();

    write(&greeting_with_permissions("  secrets: [{names: [token]}]\n"));
    let refused = install(&lab, &file, &[]).await;
    assert!(
        !refused.status.success() && stderr(&refused).contains("--origin"),
        "{}",
        stderr(&refused)
    );
    expect_success(&install(&lab, &file, &["--origin", "https://ci.example.com"]).await);
    let spec = async || read_spec(&lab).await;
    let installed = spec().await;
    assert_eq!(
        installed["grants"]["secrets"][0]["origins"],
        json!(["https://ci.example.com"])
    );
    assert_eq!(
        installed["grants"]["reconciles"][0]["namespaces"],
        json!([lab.namespace])
    );

    let more = "  secrets: [{names: [token]}]
  events: true
";
    write(&greeting_with_permissions(more));
    let refused = install(&lab, &file, &[]).await;
    let text = stderr(&refused);
    assert!(
        !refused.status.success() && text.contains("emit Events") && text.contains("--yes"),
        "{text}"
    );
    assert!(!text.contains("ConfigMap"), "{text}");
    assert_eq!(spec().await, installed, "nothing was changed");
    expect_success(&install(&lab, &file, &["--yes"]).await);
    assert_eq!(spec().await["grants"]["events"], true);
    // The origins of before are kept.
    assert_eq!(spec().await["grants"]["secrets"], installed["grants"]["secrets"]);

    write(&greeting_with_permissions(""));
    let output = install(&lab, &file, &[]).await;
    expect_success(&output);
    assert!(
        stderr(&output).contains("no new permissions"),
        "{}",
        stderr(&output)
    );
    assert!(spec().await["grants"].get("secrets").is_none());
    // Installed for all namespaces, the roles of the namespace are deleted; this is new for the kinds it reconciles.
    let everywhere = run_plugin_command(&lab, &["install", &file, "--no-wait"]).await;
    assert!(
        stderr(&everywhere).contains("reconcile Greeting"),
        "{}",
        stderr(&everywhere)
    );
    assert!(!everywhere.status.success());
    expect_success(&run_plugin_command(&lab, &["install", &file, "--no-wait", "--yes"]).await);
    let kinds: BTreeSet<String> = list_installed(&lab)
        .await
        .iter()
        .map(|o| format!("{} {}", o["kind"], o["metadata"]["namespace"]).replace('"', ""))
        .collect();
    let system = host_account(&lab).namespace;
    let expected = [
        "ClusterRole null".to_owned(),
        "ClusterRoleBinding null".to_owned(),
        format!("Role {system}"),
        format!("RoleBinding {system}"),
        format!("ServiceAccount {system}"),
    ];
    assert_eq!(kinds, expected.into());
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
    assert_eq!(list_installed(&lab).await, Vec::<Value>::new());
}

/// Both commands say what the host finds, at once and once.
#[scenario]
pub async fn install_and_uninstall_wait_for_the_host_and_say_what_keeps_it(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    lab.settings.grants = Grants::default();
    lab.start_host().await;
    // The plugin directory of the host does not have the file yet.
    let elsewhere = lab.path().join("new");
    std::fs::create_dir(&elsewhere).expect("created");
    let elsewhere = elsewhere.join("greeting.wasm");
    std::fs::write(&elsewhere, read_component(GREETING_COMPONENT)).expect("written");
    let elsewhere = elsewhere.display().to_string();
    let install = ["install", &elsewhere, "--namespace", &lab.namespace];
    let unseen = run_plugin_command(&lab, &[&install[..], &["--timeout", "1s"]].concat()).await;
    let text = stderr(&unseen);
    assert!(
        !unseen.status.success()
            && text.contains("no host has dealt with it")
            && text.contains("--plugin-selector"),
        "{text}"
    );
    label_plugin(&lab).await;
    let absent = run_plugin_command(&lab, &[&install[..], &["--timeout", "3s"]].concat()).await;
    let text = stderr(&absent);
    assert!(!absent.status.success(), "{text}");
    assert_eq!(text.matches("FileNotFound: greeting.wasm").count(), 1, "{text}");
    assert!(
        text.contains("does not serve its build") && text.contains("ostler plugin uninstall"),
        "{text}"
    );
    std::fs::write(plugin_file(&lab), read_component(GREETING_COMPONENT)).expect("written");
    let installed = run_plugin_command(&lab, &install).await;
    expect_success(&installed);
    let text = String::from_utf8_lossy(&installed.stdout).into_owned();
    assert!(text.contains("Plugin greeting serves 0.1.0"), "{text}");
    // It could work everywhere, and works where it is installed.
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let plugin = plugins.get("greeting").await.expect("the Plugin");
    let granted = find_condition(&plugin.data, "Granted");
    assert_eq!(
        (&granted["status"], &granted["reason"]),
        (&json!("True"), &json!("AllGranted"))
    );

    lab.apply(greeting_object(&lab, "hello")).await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    let kept = run_plugin_command(&lab, &["uninstall", "greeting", "--timeout", "3s"]).await;
    let text = stderr(&kept);
    assert!(!kept.status.success(), "{text}");
    let remaining = format!(
        "1 objects need it for their cleanup (Greeting/{}/hello). Delete them, or",
        lab.namespace
    );
    for line in [
        &*remaining,
        "deletion-policy=Orphan",
        "force-delete=true",
        "the deletion goes on",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
    }
    lab.delete(&greeting_kind(), "hello").await;
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
    assert_eq!(list_installed(&lab).await, Vec::<Value>::new());
}

/// The roles of one namespace do not allow the list of all objects with the finalizer.
#[scenario(real = "RBAC and impersonation")]
pub async fn plugin_in_one_namespace_is_uninstalled_from_a_host_of_all_namespaces(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    lab.install(&[GREETING_COMPONENT]);
    let file = plugin_file(&lab).display().to_string();
    expect_success(&install(&lab, &file, &[]).await);
    label_plugin(&lab).await;
    let host = host_account(&lab);
    lab.settings.grants = Grants::default();
    lab.settings.namespaces = Vec::new();
    lab.settings.own_namespace = Some(host.namespace.clone());
    let client = client_as_host(lab.client.clone(), host.user_name(), Arc::default());
    lab.start_host_with(client).await;
    lab.apply(greeting_object(&lab, "hello")).await;
    lab.wait_ready(&greeting_kind(), "hello").await;
    // It still needs the plugin for its cleanup.
    let remaining = run_plugin_command(&lab, &["uninstall", "greeting", "--timeout", "5s"]).await;
    let text = stderr(&remaining);
    assert!(
        !remaining.status.success() && text.contains("1 objects need it for their cleanup"),
        "{text}"
    );
    lab.delete(&greeting_kind(), "hello").await;
    lab.wait_gone(&greeting_kind(), "hello").await;
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
    assert_eq!(list_installed(&lab).await, Vec::<Value>::new());
}

/// After the change no build would remove the finalizers of objects in the former namespace.
#[scenario]
pub async fn plugin_is_not_moved_away_from_objects_with_its_finalizer(lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    lab.install(&[GREETING_COMPONENT]);
    let file = plugin_file(&lab).display().to_string();
    expect_success(&install(&lab, &file, &[]).await);
    let mut object = greeting_object(&lab, "hello");
    object["metadata"]["finalizers"] = json!(["examples.ostler.dev/greeting"]);
    lab.apply(object).await;
    let installed = read_spec(&lab).await;
    let other = format!("{}-other", lab.namespace);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}))
        .await;
    let move_away = ["install", &file, "--no-wait", "--namespace", &other, "--yes"];
    let refused = run_plugin_command(&lab, &move_away).await;
    let text = stderr(&refused);
    assert!(
        !refused.status.success()
            && text.contains(&format!("{}/hello", lab.namespace))
            && text.contains("nothing was changed"),
        "{text}"
    );
    assert_eq!(read_spec(&lab).await, installed);
    // With the former namespace it may have another one.
    expect_success(&install(&lab, &file, &["--namespace", &other, "--yes"]).await);
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let greetings = lab.api(&greeting_kind(), &lab.namespace);
    greetings
        .patch("hello", &Default::default(), &none)
        .await
        .expect("patched");
    expect_success(&run_plugin_command(&lab, &move_away).await);
    assert_eq!(
        read_spec(&lab).await["grants"]["reconciles"][0]["namespaces"],
        json!([other])
    );
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
    assert_eq!(list_installed(&lab).await, Vec::<Value>::new());
}

/// The former build runs until the new one is loaded, which may take its time or fail.
#[scenario(real = "RBAC and impersonation")]
pub async fn upgrade_takes_no_rights_from_the_build_that_serves(mut lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    let former = "  - {kinds: [Service], verbs: [get]}\n  events: true\n";
    std::fs::write(plugin_file(&lab), greeting_with_permissions(former)).expect("written");
    let file = plugin_file(&lab).display().to_string();
    expect_success(&install(&lab, &file, &[]).await);
    label_plugin(&lab).await;
    lab.settings.grants = Grants::default();
    lab.start_host().await;
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    lab.wait_until("the former build serves", async || {
        let plugin = plugins.get("greeting").await.expect("the Plugin");
        plugin.data["status"]["running"]["digest"].is_string()
    })
    .await;
    let is_allowed = async || {
        let roles = lab
            .list(&Gvk::new("rbac.authorization.k8s.io", "v1", "Role"))
            .await;
        let own = roles
            .iter()
            .find(|role| role["metadata"]["name"] == "ostler:greeting");
        let in_role = own.expect("the role").to_string().contains("services");
        let in_grants = read_spec(&lab).await["grants"].to_string().contains("Service");
        assert_eq!(in_role, in_grants);
        in_role
    };
    assert!(is_allowed().await);

    // The plugin directory of the host does not have the new build yet.
    let new = greeting_with_permissions("");
    let elsewhere = lab.path().join("new");
    std::fs::create_dir(&elsewhere).expect("created");
    std::fs::write(elsewhere.join("greeting.wasm"), &new).expect("written");
    let elsewhere = elsewhere.join("greeting.wasm").display().to_string();
    let waiting = install(&lab, &elsewhere, &["--timeout", "2s"]).await;
    let text = stderr(&waiting);
    assert!(
        !waiting.status.success() && text.contains("the rights of the former build are kept"),
        "{text}"
    );
    assert!(is_allowed().await);
    std::fs::write(plugin_file(&lab), &new).expect("written");
    expect_success(&install(&lab, &elsewhere, &[]).await);
    assert!(!is_allowed().await);
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
}

/// The host would refuse the new build, after the roles were changed for it.
#[scenario]
pub async fn upgrade_without_the_signature_that_the_plugin_requires_is_refused(lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    let registry = RegistryProcess::start_public();
    lab.install(&[GREETING_COMPONENT]);
    let (key, private) = (lab.path().join("cosign.pub"), lab.path().join("cosign.key"));
    std::fs::write(&key, PUBLIC_KEY).expect("written");
    std::fs::write(&private, PRIVATE_KEY).expect("written");
    let (key, private) = (key.display().to_string(), private.display().to_string());
    let reference = |tag: &str| format!("{}/plugins/greeting:{tag}", registry.address());
    let push = async |tag: &str, more: &str, sign: &[&str]| {
        std::fs::write(plugin_file(&lab), greeting_with_permissions(more)).expect("written");
        let file = plugin_file(&lab).display().to_string();
        let mut command = Command::new(host_binary());
        command
            .args(["plugin", "push", &file, &reference(tag)])
            .args(sign);
        let output = tokio::task::spawn_blocking(move || command.output().expect("ostler runs"));
        expect_success(&output.await.expect("it ends"));
    };
    push("1", "", &["--sign", &private]).await;
    push("2", "  events: true\n", &[]).await;
    expect_success(&install(&lab, &reference("1"), &["--key", &key]).await);
    let installed = read_spec(&lab).await;
    let unsigned = install(&lab, &reference("2"), &["--yes"]).await;
    let text = stderr(&unsigned);
    assert!(
        !unsigned.status.success() && text.contains("spec.verify of the installed plugin greeting"),
        "{text}"
    );
    let file = install(&lab, &plugin_file(&lab).display().to_string(), &["--yes"]).await;
    assert!(
        stderr(&file).contains("a file has no signatures"),
        "{}",
        stderr(&file)
    );
    assert_eq!(read_spec(&lab).await, installed);
    // The same build with its signature, by a key in a ConfigMap.
    push("2", "  events: true\n", &["--sign", &private]).await;
    lab.apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "keys", "namespace": lab.namespace}, "data": {"cosign.pub": PUBLIC_KEY}}))
        .await;
    let from =
        json!([{"configMapKeyRef": {"namespace": lab.namespace, "name": "keys", "key": "cosign.pub"}}]);
    let patch = Patch::Merge(json!({"spec": {"verify": {"keys": null, "keysFrom": from}}}));
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    plugins
        .patch("greeting", &Default::default(), &patch)
        .await
        .expect("patched");
    expect_success(&install(&lab, &reference("2"), &["--yes", "--force-conflicts"]).await);
    assert_eq!(read_spec(&lab).await["grants"]["events"], true);
    expect_success(&run_plugin_command(&lab, &["uninstall", "greeting"]).await);
}
