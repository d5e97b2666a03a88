//! The way from an empty cluster to a Ready object, by the commands of the README.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use ostler::testing::{
    key::Gvk,
    oci::{ComponentStore, OciReference, PullLimits, RegistryAuth},
    signature::{SignaturePolicy, SigningKey},
};
use ostler_test_harness::{
    Lab, component_path, greeting_kind,
    process::host_binary,
    scenario,
    signing::{PRIVATE_KEY, PUBLIC_KEY},
    terminal::TerminalRecording,
    workspace_root,
};
use serde_json::{Value, json};

use crate::console::UPDATE_VARIABLE;

/// Registry of the documentation, in whose place a test has another one.
const DOCUMENTED_REGISTRY: &str = "registry.example.org";
/// Namespace of the documentation.
const DOCUMENTED_NAMESPACE: &str = "demo";
/// Limit of the time of all commands until the object is Ready.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Kinds that an empty cluster does not have.
const INSTALLED_KINDS: [&str; 4] = [
    "plugins.ostler.dev",
    "upstreams.ostler.dev",
    "clusters.ostler.dev",
    "greetings.examples.ostler.dev",
];

/// Returns the three commands of the README.
fn read_commands() -> Vec<Vec<String>> {
    let path = workspace_root().join("README.md");
    let text = std::fs::read_to_string(path).expect("the README");
    let blocks = text.split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split_once("```").map(|(block, _)| block));
    let block = blocks.find(|block| block.starts_with("ostler install --image"));
    let lines = block.expect("the commands of the installation").lines();
    let split = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let commands: Vec<Vec<String>> = lines.map(split).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    commands
}

/// Returns the address of the node's registry, `HOST:PORT`.
pub(super) fn registry_address() -> String {
    std::env::var("OSTLER_TEST_NODE_REGISTRY")
        .expect("OSTLER_TEST_NODE_REGISTRY names no registry: run `cargo xtask test node`")
}

/// A command of `ostler` in the folder of a lab.
fn build_command(lab: &Lab, arguments: &[String]) -> Command {
    let mut command = Command::new(host_binary());
    command
        .args(arguments)
        .current_dir(lab.path())
        .env("KUBECONFIG", &lab.kubeconfig)
        .env_remove("OSTLER_ADMIN");
    command
}

async fn run_in_folder(lab: &Lab, arguments: &[String]) -> Output {
    let mut command = build_command(lab, arguments);
    tokio::task::spawn_blocking(move || command.output().expect("ostler runs"))
        .await
        .expect("it ends")
}

/// Runs a command that has to succeed. Returns its standard output.
pub(super) async fn run_successfully(lab: &Lab, arguments: &[String]) -> String {
    let output = run_in_folder(lab, arguments).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{error}");
    text
}

/// Signs the image in the registry with the key of the tests.
async fn sign_image(registry: &str, name: &str) {
    let store = ComponentStore::new(None, PullLimits::default())
        .with_tags()
        .with_plain_http([registry.to_owned()]);
    let reference: OciReference = format!("{registry}/{name}").parse().expect("a reference");
    let auth = RegistryAuth::anonymous();
    let digest = store
        .verify_artifact(&reference, &auth, &SignaturePolicy::none())
        .await;
    let digest = digest.expect("the image");
    let key = SigningKey::from_pem(PRIVATE_KEY).expect("a key");
    store
        .sign_digest(&reference, &digest, &auth, &key)
        .await
        .expect("signed");
}

/// Removes the kinds that an installation makes, with objects that other tests have left.
async fn empty_cluster(lab: &Lab) {
    let definitions = lab.api(
        &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "",
    );
    for name in INSTALLED_KINDS {
        match definitions.delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    lab.wait_until("the kinds are deleted", async || {
        let listed = definitions.list(&Default::default()).await.expect("kinds").items;
        let is_installed = |definition: &&DynamicObject| {
            let name = definition.metadata.name.as_deref();
            name.is_some_and(|name| INSTALLED_KINDS.contains(&name))
        };
        let left: Vec<_> = listed.iter().filter(is_installed).collect();
        for definition in &left {
            remove_finalizers(lab, definition).await;
        }
        left.is_empty()
    })
    .await;
}

/// Removes the finalizers of all objects of a kind. A host that is still ending may set them again, and the API server answers 429 and 404
/// while it removes the kind: so callers repeat it.
async fn remove_finalizers(lab: &Lab, definition: &DynamicObject) {
    let spec = &definition.data["spec"];
    let word = |value: &Value| value.as_str().expect("a text").to_owned();
    let kind = Gvk::new(
        &word(&spec["group"]),
        &word(&spec["versions"][0]["name"]),
        &word(&spec["names"]["kind"]),
    );
    let objects = match lab.api(&kind, "").list(&Default::default()).await {
        Ok(objects) => objects.items,
        Err(error) => return println!("{kind:?} cannot be listed: {error}"),
    };
    let held = objects
        .iter()
        .filter(|object| object.metadata.finalizers.is_some());
    for object in held {
        let name = object.metadata.name.as_deref().expect("a name");
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        println!("{kind:?} {namespace}/{name} had {:?}", object.metadata.finalizers);
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let patched = lab
            .api(&kind, namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await;
        if let Err(error) = patched {
            println!("{kind:?} {namespace}/{name}: {error}");
        }
    }
}

/// The image and the plugin are signed, in a registry, and on no node. What the commands have in addition is what the registry of the
/// tests lacks: TLS.
#[scenario(node_only = "pods, and images from a registry", alone)]
async fn commands_of_the_readme_lead_from_an_empty_cluster_to_a_ready_object(lab: Lab) {
    let registry = registry_address();
    empty_cluster(&lab).await;
    let write = |name: &str, text: &str| std::fs::write(lab.path().join(name), text).expect("written");
    write("cosign.pub", PUBLIC_KEY);
    write("cosign.key", PRIVATE_KEY);
    write(
        "values.yaml",
        &json!({ "plainHttpRegistries": [registry] }).to_string(),
    );
    let greeting = json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "hello", "namespace": DOCUMENTED_NAMESPACE}, "spec": {"name": "World"}});
    let commands = read_commands();
    let [host, plugin, object] = &commands[..] else {
        panic!("three commands: {commands:?}");
    };
    let on_registry = |command: &[String], more: &[&str]| -> Vec<String> {
        let documented = command.iter().skip(1);
        let own = documented.map(|word| word.replace(DOCUMENTED_REGISTRY, &registry));
        own.chain(more.iter().map(|word| (*word).to_owned())).collect()
    };
    let install_host = on_registry(host, &["--values", "values.yaml", "--plain-http"]);

    let unsigned = run_in_folder(&lab, &install_host).await;
    let error = String::from_utf8_lossy(&unsigned.stderr);
    assert!(
        !unsigned.status.success() && error.contains("nothing was changed, since the image is not verified"),
        "{error}"
    );
    sign_image(&registry, "ostler:0.1.0").await;
    let component = component_path("examples/greeting").display().to_string();
    let pushed = format!("{registry}/plugins/greeting:0.1.0");
    let push = [
        "plugin",
        "push",
        &component,
        &pushed,
        "--sign",
        "cosign.key",
        "--plain-http",
    ];
    run_successfully(&lab, &push.map(str::to_owned)).await;

    let mut recording = TerminalRecording::default();
    let run = |typed: &[String], arguments: &[String], recording: &mut TerminalRecording| {
        let mut command = build_command(&lab, arguments);
        tokio::task::block_in_place(|| recording.run(&typed.join(" "), &mut command))
    };
    let began = Instant::now();
    let text = run(host, &install_host, &mut recording);
    assert!(text.contains("runs in ostler-system"), "{text}");
    let host_time = began.elapsed();
    let text = run(plugin, &on_registry(plugin, &["--plain-http"]), &mut recording);
    assert!(text.contains("Plugin greeting serves"), "{text}");
    let plugin_time = began.elapsed();
    assert_eq!(object.join(" "), "kubectl apply --filename greeting.yaml");
    lab.apply(greeting).await;
    let greetings = lab.api(&greeting_kind(), DOCUMENTED_NAMESPACE);
    lab.wait_until("the greeting is Ready", async || {
        let greeting = greetings.get("hello").await.expect("the greeting");
        let conditions = greeting.data["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
    .await;
    let whole_time = began.elapsed();
    println!(
        "from an empty cluster to a Ready object: host {:.1} s, plugin {:.1} s, object {:.1} s; {:.1} s in all",
        host_time.as_secs_f64(),
        (plugin_time - host_time).as_secs_f64(),
        (whole_time - plugin_time).as_secs_f64(),
        whole_time.as_secs_f64()
    );
    assert!(whole_time < MAX_TIME, "{whole_time:?}");
    // Not every machine has kubectl: that is what it prints.
    recording.add_lines(
        &object.join(" "),
        &["greeting.examples.ostler.dev/hello created"],
        whole_time - plugin_time,
    );
    let shown = [
        "get",
        "--namespace",
        DOCUMENTED_NAMESPACE,
        "--host-namespace",
        "ostler-system",
    ];
    let mut command = build_command(&lab, &shown.map(str::to_owned));
    let text =
        tokio::task::block_in_place(|| recording.run("kubectl ostler get --namespace demo", &mut command));
    assert!(
        text.contains("greeting/hello") && text.contains("Ready  Greeted"),
        "{text}"
    );
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        let picture = recording.to_svg(&[(&registry, DOCUMENTED_REGISTRY)]);
        std::fs::write(workspace_root().join("docs/three-commands.svg"), picture).expect("written");
    }

    let deployments = lab.api(&Gvk::new("apps", "v1", "Deployment"), "ostler-system");
    let deployment = deployments.get("ostler").await.expect("the Deployment");
    let image = &deployment.data["spec"]["template"]["spec"]["containers"][0]["image"];
    let image = image.as_str().expect("an image");
    assert!(
        image.starts_with(&format!("{registry}/ostler@sha256:")),
        "pinned: {image}"
    );

    lab.api(&Gvk::new("", "v1", "Namespace"), "")
        .delete(DOCUMENTED_NAMESPACE, &DeleteParams::default())
        .await
        .expect("deleted");
    lab.wait_until("the namespace is deleted", async || {
        greetings.get_opt("hello").await.expect("an answer").is_none()
    })
    .await;
    run_successfully(&lab, &["uninstall".to_owned()]).await;
    lab.restore_kinds().await;
}
