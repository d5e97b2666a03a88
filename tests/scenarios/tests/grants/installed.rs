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
use ostler_test_harness::{Lab, process::host_binary, read_component};
use serde_json::{Value, json};

use crate::shipped::{Rights, bound_rules, client_as_host};

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

fn greeting() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Greeting")
}

/// The service account of the host of a test.
fn host_account(lab: &Lab) -> ServiceAccount {
    ServiceAccount {
        namespace: format!("{}-system", lab.namespace),
        name: "ostler".into(),
    }
}

/// Applies the rights of the host. Its cluster-scoped binding has a name of the test's own, since other tests use the same
/// cluster.
async fn apply_host_rights(lab: &Lab) {
    let host = host_account(lab);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": host.namespace}}))
        .await;
    for mut object in host_objects(&host) {
        if object["kind"] == "ClusterRoleBinding" {
            object["metadata"]["name"] = format!("ostler:cluster:{}", lab.namespace).into();
        }
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

/// Installs a file in the namespace of the test.
async fn install(lab: &Lab, file: &str, more: &[&str]) -> Output {
    let arguments = [&["install", file, "--namespace", &lab.namespace][..], more].concat();
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
        .collect();
    let output = install(&lab, &file, &[]).await;
    expect_success(&output);
    assert!(
        stderr(&output).contains("get,apply,delete ConfigMap"),
        "{}",
        stderr(&output)
    );
    let installed = list_installed(&lab).await;
    // The Plugin is not labelled.
    assert_eq!(installed.len() + 1, printed.len(), "{installed:#?}");

    // Hosts of other tests leave the Plugin alone.
    let label = Patch::Merge(json!({"metadata": {"labels": {"lab": lab.namespace}}}));
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    plugins
        .patch("greeting", &Default::default(), &label)
        .await
        .expect("labelled");
    lab.settings.grants = Grants::default();
    lab.settings.require_service_account = true;
    let host = host_account(&lab);
    lab.settings.own_namespace = Some(host.namespace.clone());
    let rights = Arc::new(Mutex::new(Rights::default()));
    let client = client_as_host(lab.client.clone(), host.user_name(), rights.clone());
    lab.start_host_with(client).await;
    let object = json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "hello", "namespace": lab.namespace}, "spec": {"name": "you"}});
    lab.apply(object).await;
    lab.wait_ready(&greeting(), "hello").await;
    lab.delete(&greeting(), "hello").await;
    lab.wait_gone(&greeting(), "hello").await;

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
pub async fn upgrade_with_new_permissions_needs_consent(lab: Lab) {
    let _lock = lab.lock_plugin("greeting").await;
    apply_host_rights(&lab).await;
    let component = read_component(GREETING_COMPONENT);
    let with_permissions = |more: &str| {
        let text = format!(
            "permissions:
  reconciles: [{{group: examples.ostler.dev, kinds: [Greeting]}}]
  kubernetes: [{{kinds: [ConfigMap], verbs: [apply]}}]
{more}"
        );
        let manifest = Manifest::parse(&text, "plugin.yaml").expect("a manifest");
        manifest::embed_manifest(&component, &manifest).expect("a component")
    };
    let write = |wasm: &[u8]| std::fs::write(plugin_file(&lab), wasm).expect("written");
    let file = plugin_file(&lab).display().to_string();

    write(&with_permissions("  secrets: [{names: [token]}]\n"));
    let refused = install(&lab, &file, &[]).await;
    assert!(
        !refused.status.success() && stderr(&refused).contains("--origin"),
        "{}",
        stderr(&refused)
    );
    expect_success(&install(&lab, &file, &["--origin", "https://ci.example.com"]).await);
    let spec = async || {
        let plugins = lab.api(&ostler::testing::plugin::kind(), "");
        let plugin = plugins.get("greeting").await.expect("the Plugin");
        plugin.data["spec"].clone()
    };
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
    write(&with_permissions(more));
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

    write(&with_permissions(""));
    let output = install(&lab, &file, &[]).await;
    expect_success(&output);
    assert!(
        stderr(&output).contains("no new permissions"),
        "{}",
        stderr(&output)
    );
    assert!(spec().await["grants"].get("secrets").is_none());
    // Installed for all namespaces, the roles of the namespace are deleted; this is new for the kinds it reconciles.
    let everywhere = run_plugin_command(&lab, &["install", &file]).await;
    assert!(
        stderr(&everywhere).contains("reconcile Greeting"),
        "{}",
        stderr(&everywhere)
    );
    assert!(!everywhere.status.success());
    expect_success(&run_plugin_command(&lab, &["install", &file, "--yes"]).await);
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
