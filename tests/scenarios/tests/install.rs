//! `ostler install` and `uninstall`, and the chart with Helm.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Command, Output},
};

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch},
    discovery::{Discovery, verbs},
};
use ostler::testing::{
    key::Gvk,
    manifest::{self, Manifest},
};
use ostler_test_harness::{
    Lab, probe, process::HostProcess, prometheus, read_component, scenario, workspace_root,
};
use serde_json::{Value, json};

use crate::observability::ostler;

/// Kinds of `ostler.dev`.
const OWN_KINDS: [&str; 3] = ["clusters", "plugins", "upstreams"];

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command of `ostler` for the cluster of a lab. Returns its success, standard output and standard error.
async fn run(lab: &Lab, arguments: &[&str]) -> (bool, String, String) {
    let kubeconfig = lab.kubeconfig.to_str().expect("a path");
    let output = ostler(&[arguments, &["--kubeconfig", kubeconfig]].concat()).await;
    (
        output.status.success(),
        text_of(&output.stdout),
        text_of(&output.stderr),
    )
}

/// Kind, namespace and name of all objects of a cluster but Events.
async fn list_cluster(lab: &Lab) -> BTreeSet<String> {
    let discovery = Discovery::new(lab.client.clone())
        .run()
        .await
        .expect("discovered");
    let mut found = BTreeSet::new();
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) || resource.kind == "Event" {
                continue;
            }
            let all: Api<DynamicObject> = Api::all_with(lab.client.clone(), &resource);
            let listed = all.list(&ListParams::default()).await.expect("listed");
            found.extend(listed.items.iter().map(|object| {
                let metadata = &object.metadata;
                let namespace = metadata.namespace.as_deref().unwrap_or_default();
                format!(
                    "{} {namespace}/{}",
                    resource.kind,
                    metadata.name.as_deref().unwrap_or_default()
                )
            }));
        }
    }
    found
}

/// The whole life of an installation. A process stands for the pods of the host: the embedded server has no kubelet.
#[scenario(embedded = "it removes the kinds of the host")]
async fn plugin_installation_without_a_host_changes_nothing(lab: Lab) {
    let file = lab.path().join("greeting.wasm");
    std::fs::write(&file, read_component("examples/greeting")).expect("written");
    let install = ["plugin", "install", file.to_str().expect("a path")];
    let before = list_cluster(&lab).await;
    let (good, _, error) = run(&lab, &[&install[..], &["--host-namespace", "elsewhere"]].concat()).await;
    let remedy = "no host is installed in namespace elsewhere, which does not exist: --host-namespace names that of the host";
    assert!(!good && error == format!("ostler: {remedy}\n"), "{error}");
    assert_eq!(list_cluster(&lab).await, before);

    let crds = lab.api(
        &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "",
    );
    for kind in OWN_KINDS {
        crds.delete(&format!("{kind}.ostler.dev"), &DeleteParams::default())
            .await
            .expect("deleted");
        lab.wait_until("its objects are deleted, and it with them", async || {
            crds.get_opt(&format!("{kind}.ostler.dev"))
                .await
                .expect("an answer")
                .is_none()
        })
        .await;
    }
    let before = list_cluster(&lab).await;
    let (good, _, error) = run(&lab, &install).await;
    assert!(
        !good && error.contains("no host is installed in this cluster"),
        "{error}"
    );
    assert_eq!(list_cluster(&lab).await, before);
    let (good, objects, error) = run(&lab, &[&install[..], &["--dry-run"]].concat()).await;
    assert!(good && objects.contains("kind: Plugin"), "{error}");
}

#[scenario(embedded = "it deletes kinds that other tests use")]
async fn uninstalled_host_leaves_the_cluster_as_it_was(lab: Lab) {
    let definitions = lab.api(
        &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "",
    );
    for kind in OWN_KINDS {
        let name = format!("{kind}.ostler.dev");
        definitions
            .delete(&name, &DeleteParams::default())
            .await
            .expect("deleted");
    }
    let (good, text, error) = run(&lab, &["check"]).await;
    assert!(good, "{text}{error}");
    assert!(
        text.contains("! kinds") && text.contains("! host") && text.contains("`ostler install`"),
        "{text}"
    );
    let before = list_cluster(&lab).await;
    let system = format!("{}-system", lab.namespace);
    let place = ["--namespace", &system];

    let (good, text, error) = run(&lab, &[&["install", "--no-wait"][..], &place].concat()).await;
    assert!(good, "{error}");
    assert!(text.starts_with(&format!("Namespace {system} applied")), "{text}");
    assert!(
        text.trim_end()
            .ends_with(&format!("Deployment {system}/ostler applied")),
        "{text}"
    );
    let installed = list_cluster(&lab).await;
    let (good, text, error) = run(&lab, &[&["install", "--no-wait"][..], &place].concat()).await;
    assert!(good && !text.contains("Namespace"), "it exists: {text}{error}");
    assert_eq!(
        list_cluster(&lab).await,
        installed,
        "the same command changes nothing"
    );

    let (good, text, error) = run(&lab, &[&["check"][..], &place].concat()).await;
    assert!(
        !good && text.contains("✘ host         0 of 2 replicas are ready"),
        "{text}{error}"
    );
    assert!(
        text.contains("✔ rights") && text.contains("✔ kinds") && text.contains("✔ clock"),
        "{text}"
    );

    let election = ["--leader-elect", "--lease-namespace", &system];
    let mut host = Some(HostProcess::start(&lab, "host", &election));
    host.as_ref().expect("a host").wait_started(&lab).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ostler-0", "namespace": system,
        "labels": {"app.kubernetes.io/name": "ostler"}},
        "spec": {"containers": [{"name": "ostler", "image": "ostler"}]}});
    lab.apply(pod).await;
    let asks = Manifest::parse(
        "permissions: {reconciles: [{group: tests.ostler.dev, kinds: ['*']}]}",
        "plugin.yaml",
    )
    .expect("a manifest");
    let component = manifest::embed_manifest(&read_component("tests/probe"), &asks).expect("a component");
    lab.install_bytes("probe", &component);
    let file = lab.settings.plugins.join("probe.wasm");
    let file = file.to_str().expect("a path");
    let install = [
        "plugin",
        "install",
        file,
        "--no-wait",
        "--namespace",
        &lab.namespace,
        "--host-namespace",
        &system,
    ];
    let (good, _, error) = run(&lab, &install).await;
    assert!(good, "{error}");
    let plugins = lab.api(&ostler::testing::plugin::kind(), "");
    let label = Patch::Merge(json!({"metadata": {"labels": {"lab": lab.namespace}}}));
    plugins
        .patch("probe", &Default::default(), &label)
        .await
        .expect("labelled");
    lab.apply_probe("kept", json!([]), json!([])).await;
    lab.wait_seen("kept", &[]).await;
    let (_, text, _) = run(&lab, &[&["check"][..], &place].concat()).await;
    assert!(
        text.contains("✔ leader") && text.contains("✔ plugins      1 plugins"),
        "{text}"
    );

    let (good, text, error) = run(&lab, &[&["uninstall"][..], &place].concat()).await;
    assert!(!good && text.is_empty(), "{text}");
    let left = format!(
        "1 objects have a finalizer that only their plugin removes (Probe {}/kept)",
        lab.namespace
    );
    assert!(error.contains(&left) && error.contains("--orphan"), "{error}");

    let kubeconfig = lab.kubeconfig.to_str().expect("a path").to_owned();
    let arguments = [
        &["uninstall", "--orphan", "--kubeconfig", &kubeconfig][..],
        &place,
    ]
    .concat();
    let uninstalling = ostler(&arguments);
    let end_host = async {
        let deployments = lab.api(&Gvk::new("apps", "v1", "Deployment"), &system);
        lab.wait_until("the Deployment is deleted", async || {
            deployments.get_opt("ostler").await.expect("an answer").is_none()
        })
        .await;
        drop(host.take());
        let pods = lab.api(&Gvk::new("", "v1", "Pod"), &system);
        let now = DeleteParams::default().grace_period(0);
        pods.delete("ostler-0", &now).await.expect("deleted");
    };
    let (output, ()) = tokio::join!(uninstalling, end_host);
    let (text, error) = (text_of(&output.stdout), text_of(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    let probe = lab.get(&probe::kind(), "kept").await.expect("the object stays");
    let finalizers = probe["metadata"]["finalizers"].as_array();
    assert!(finalizers.is_none_or(Vec::is_empty), "{probe:#}");
    lab.delete(&probe::kind(), "kept").await;
    let after = list_cluster(&lab).await;
    let more: Vec<&String> = after.difference(&before).collect();
    let less: Vec<&String> = before.difference(&after).collect();
    assert!(
        more.is_empty() && less.is_empty(),
        "more: {more:?}, less: {less:?}, in\n{text}"
    );
}

#[scenario(embedded = "it needs no API server that runs pods")]
async fn installation_of_another_manager_is_left_alone(lab: Lab) {
    let system = format!("{}-system", lab.namespace);
    let name = |name: &str| json!({"name": name, "namespace": system, "labels": {"app.kubernetes.io/managed-by": "Helm"}});
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}}))
        .await;
    let labels = json!({"app": "a"});
    lab.apply(
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": name("ostler"), "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "a", "image": "a"}]}}}}),
    )
    .await;
    for command in ["install", "uninstall"] {
        let (good, _, error) = run(&lab, &[command, "--namespace", &system]).await;
        assert!(
            !good && error.contains("nothing was changed") && error.contains("Helm"),
            "{error}"
        );
    }
    let invalid = lab.path().join("values.yaml");
    std::fs::write(&invalid, "replicas: 3\nlogFormat: xml\n").expect("written");
    let values = [
        "install",
        "--dry-run",
        "--values",
        invalid.to_str().expect("a path"),
    ];
    let (good, _, error) = run(&lab, &values).await;
    assert!(
        !good && error.contains("replicas: the chart has no such value") && error.contains("logFormat"),
        "{error}"
    );
}

/// A program that `cargo xtask test` has built, by the environment variable with its path.
fn find_program(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.unwrap_or_else(|| panic!("{variable} names no binary: run `cargo xtask test node`"))
        .into()
}

/// Runs Helm.
async fn helm(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(find_program("OSTLER_TEST_HELM"));
    command
        .args(arguments)
        .env("KUBECONFIG", &lab.kubeconfig)
        .env("HELM_CACHE_HOME", lab.path().join("cache"))
        .env("HELM_CONFIG_HOME", lab.path().join("config"))
        .env("HELM_DATA_HOME", lab.path().join("data"));
    tokio::task::spawn_blocking(move || command.output().expect("helm runs"))
        .await
        .expect("it ends")
}

async fn run_helm(lab: &Lab, arguments: &[&str]) -> String {
    let output = helm(lab, arguments).await;
    let text = text_of(&output.stdout);
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        text_of(&output.stderr)
    );
    text
}

fn chart() -> String {
    let path: PathBuf = workspace_root().join("deploy/chart");
    path.to_str().expect("a path").to_owned()
}

/// The objects of a stream of YAML documents by kind and name, without what tells Helm from `ostler install`. Files in YAML are compared
/// by their content.
fn parse_objects(yaml: &str) -> Vec<(String, Value)> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap_or_else(|e| panic!("{e}"));
    let mut objects: Vec<(String, Value)> = documents
        .into_iter()
        .filter(|object| object.is_object() && object["kind"] != "Namespace")
        .map(|mut object| {
            object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = Value::Null;
            if let Some(text) = object["data"]["grants.yaml"].as_str() {
                object["data"]["grants.yaml"] = serde_saphyr::from_str(text).expect("YAML");
            }
            (
                format!("{} {}", object["kind"], object["metadata"]["name"]),
                object,
            )
        })
        .collect();
    objects.sort_by(|(a, _), (b, _)| a.cmp(b));
    objects
}

/// Values that reach all templates.
fn all_values() -> Value {
    json!({
        "replicaCount": 1,
        "image": {"repository": "registry.example.org:5000/ostler", "tag": "1.2"},
        "imagePullSecrets": [{"name": "registry"}],
        "watchNamespaces": ["ci", "demo"],
        "pluginSelector": "team in (ci, web)",
        "grants": {"network": {"allow": ["10.96.0.0/12"]}, "components": {"pluginFiles": false}},
        "plainHttpRegistries": ["registry:5000"],
        "certificateAuthorities": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
        "proxy": {"url": "http://proxy.example.org:3128", "exclude": "10.96.0.1,.svc"},
        "logFormat": "pretty",
        "extraArgs": ["--workers=4", "--record=all"],
        "extraEnv": [{"name": "OSTLER_LOG", "value": "debug"}],
        "resources": {"limits": {"memory": "1Gi", "cpu": 2}},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"example.org/a": "true"},
        "networkPolicy": {"egressPorts": [443, 5671], "metricsNamespaceLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "serviceMonitor": {"create": true, "labels": {"release": "main"}},
        "prometheusRule": {"create": true, "labels": {"release": "main"}},
        "dashboard": {"create": true, "labels": {"grafana_dashboard": "2"}},
    })
}

/// What Helm and `ostler install` make of the same values is the same.
#[scenario(node_only = "Helm, which the other tiers do not have")]
async fn chart_is_rendered_by_helm_and_by_the_command_alike(lab: Lab) {
    let off = json!({"crds": {"install": false}, "clusterRoles": {"create": false},
        "podDisruptionBudget": {"create": false}, "networkPolicy": {"create": false}});
    for (number, values) in [json!({}), all_values(), off].iter().enumerate() {
        let path = lab.path().join(format!("values-{number}.yaml"));
        std::fs::write(&path, values.to_string()).expect("written");
        let path = path.to_str().expect("a path");
        run_helm(&lab, &["lint", "--strict", &chart(), "--values", path]).await;
        let release = ["--namespace", "ostler-system", "--values", path];
        // Helm that is built from source takes an old one for the version of the cluster.
        let version = ["--kube-version", "1.33.0"];
        let by_helm = run_helm(
            &lab,
            &[&["template", "ostler", &chart()][..], &release, &version].concat(),
        )
        .await;
        let output = ostler(&[&["install", "--dry-run"][..], &release].concat()).await;
        let by_command = text_of(&output.stdout);
        assert!(output.status.success(), "{}", text_of(&output.stderr));
        let (by_helm, by_command) = (parse_objects(&by_helm), parse_objects(&by_command));
        assert_eq!(by_helm, by_command, "values {values}");
    }
    let invalid = helm(
        &lab,
        &[
            "template",
            "ostler",
            &chart(),
            "--kube-version",
            "1.33.0",
            "--set",
            "replicas=3",
        ],
    )
    .await;
    assert!(!invalid.status.success(), "{}", text_of(&invalid.stdout));
}

/// The life of a release. ClusterRoles and kinds are those of other tests.
#[scenario(node_only = "Helm, and pods", alone)]
async fn release_is_installed_upgraded_rolled_back_and_uninstalled_by_helm(lab: Lab) {
    let system = format!("{}-system", lab.namespace);
    let values = lab.path().join("values.yaml");
    let shared = json!({"image": {"tag": "latest"}, "crds": {"install": false}, "clusterRoles": {"create": false},
        "watchNamespaces": [lab.namespace]});
    std::fs::write(&values, shared.to_string()).expect("written");
    let values = values.to_str().expect("a path");
    for object in ostler::testing::plugin::install::host_objects(&ostler::testing::grants::ServiceAccount {
        namespace: system.clone(),
        name: "ostler".into(),
    }) {
        if object["kind"] == "ClusterRole" {
            lab.apply(object).await;
        }
    }
    let chart = chart();
    let release = ["--namespace", &system, "--wait", "--timeout", "2m"];
    let install = [
        "install",
        "ostler",
        &chart,
        "--create-namespace",
        "--values",
        values,
    ];
    let text = run_helm(&lab, &[&install[..], &release].concat()).await;
    assert!(
        text.contains("STATUS: deployed") && text.contains("kubectl ostler status --host-namespace"),
        "{text}"
    );
    let deployments = lab.api(&Gvk::new("apps", "v1", "Deployment"), &system);
    let replicas = async || {
        deployments.get("ostler").await.expect("a Deployment").data["status"]["readyReplicas"].clone()
    };
    assert_eq!(replicas().await, 2);
    let (good, _, error) = run(&lab, &["uninstall", "--namespace", &system]).await;
    assert!(!good && error.contains("helm uninstall"), "{error}");
    let upgrade = [
        "upgrade",
        "ostler",
        &chart,
        "--values",
        values,
        "--set",
        "replicaCount=1",
    ];
    run_helm(&lab, &[&upgrade[..], &release].concat()).await;
    assert_eq!(replicas().await, 1);
    run_helm(&lab, &[&["rollback", "ostler", "1"][..], &release].concat()).await;
    assert_eq!(replicas().await, 2);
    run_helm(&lab, &[&["uninstall", "ostler"][..], &release].concat()).await;
    assert!(deployments.get_opt("ostler").await.expect("an answer").is_none());
}

/// An overlay changes the base.
#[scenario(node_only = "kustomize, which the other tiers do not have")]
async fn kustomize_base_is_changed_by_an_overlay(lab: Lab) {
    let base = lab.path().join("base");
    std::fs::create_dir(&base).expect("a folder");
    for file in ["kustomization.yaml", "ostler.yaml"] {
        std::fs::copy(workspace_root().join("deploy/base").join(file), base.join(file)).expect("copied");
    }
    let overlay = lab.path().join("overlay");
    std::fs::create_dir(&overlay).expect("a folder");
    let changes = json!({"resources": ["../base"], "replicas": [{"name": "ostler", "count": 1}],
        "images": [{"name": "ostler", "newName": "registry.example.org/ostler", "newTag": "1"}]});
    std::fs::write(overlay.join("kustomization.yaml"), changes.to_string()).expect("written");
    let mut command = Command::new(find_program("OSTLER_TEST_KUSTOMIZE"));
    command.arg("build").arg(&overlay);
    let output = tokio::task::spawn_blocking(move || command.output().expect("kustomize runs"))
        .await
        .expect("it ends");
    assert!(output.status.success(), "{}", text_of(&output.stderr));
    let objects = parse_objects(&text_of(&output.stdout));
    let deployment = objects
        .iter()
        .find(|(name, _)| name == "\"Deployment\" \"ostler\"");
    let (_, deployment) = deployment.expect("the Deployment");
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(
        deployment["spec"]["template"]["spec"]["containers"][0]["image"],
        "registry.example.org/ostler:1"
    );
}

/// Each alert fires by the series of a fault and resolves after it, as Prometheus evaluates the rules.
#[scenario(node_only = "Prometheus, which the other tiers do not have")]
async fn alerts_fire_by_the_series_of_faults_and_resolve(_lab: Lab) {
    for arguments in [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ] {
        let mut command = Command::new(prometheus::find_program("promtool"));
        command
            .args(arguments)
            .current_dir(workspace_root().join("deploy"));
        let output = tokio::task::spawn_blocking(move || command.output().expect("promtool runs"))
            .await
            .expect("it ends");
        let text = format!("{}{}", text_of(&output.stdout), text_of(&output.stderr));
        assert!(output.status.success() && text.contains("SUCCESS"), "{text}");
    }
    let read =
        |file: &str| std::fs::read_to_string(workspace_root().join("deploy").join(file)).expect("a file");
    let rules: Value = serde_saphyr::from_str(&read("alerts.yaml")).expect("YAML");
    let tests: Value = serde_saphyr::from_str(&read("alerts.test.yaml")).expect("YAML");
    let tests = tests["tests"].as_array().expect("tests").iter();
    let tested: Vec<&Value> = tests
        .flat_map(|test| test["alert_rule_test"].as_array().expect("tests"))
        .collect();
    for rule in rules["groups"][0]["rules"].as_array().expect("rules") {
        let of_rule = || tested.iter().filter(|test| test["alertname"] == rule["alert"]);
        let fires = of_rule().any(|test| test.get("exp_alerts").is_some());
        let resolves = of_rule().any(|test| test.get("exp_alerts").is_none());
        assert!(fires && resolves, "{} has no test", rule["alert"]);
    }
}

/// The component carries the kind that it reconciles, and an upgrade keeps the versions in which objects are stored.
#[scenario(embedded = "it deletes a kind that other tests use")]
async fn kinds_that_a_component_carries_are_installed_with_it(lab: Lab) {
    let definitions = lab.api(
        &Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "",
    );
    let name = "greetings.examples.ostler.dev";
    definitions
        .delete(name, &DeleteParams::default())
        .await
        .expect("deleted");
    let wasm = read_component("examples/greeting");
    lab.install_bytes("greeting", &wasm);
    let file = lab.settings.plugins.join("greeting.wasm");
    let file = file.to_str().expect("a path");
    let system = format!("{}-system", lab.namespace);
    lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}}))
        .await;
    let install = [
        "plugin",
        "install",
        file,
        "--no-wait",
        "--namespace",
        &lab.namespace,
        "--host-namespace",
        &system,
    ];
    let (good, _, error) = run(&lab, &[&install[..], &["--no-crds"]].concat()).await;
    assert!(
        !good && error.contains("the API server does not serve Greeting"),
        "{error}"
    );
    let (good, text, error) = run(&lab, &[&install[..], &["--dry-run"]].concat()).await;
    assert!(good && text.contains("kind: CustomResourceDefinition"), "{error}");
    assert!(definitions.get_opt(name).await.expect("an answer").is_none());
    let (good, text, error) = run(&lab, &install).await;
    assert!(
        good && error.contains(&format!("  new CustomResourceDefinition {name}")),
        "{text}{error}"
    );
    assert!(
        text.starts_with(&format!("CustomResourceDefinition {name} applied")),
        "{text}"
    );
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "a", "namespace": lab.namespace}, "spec": {"name": "Ada"}}),
    )
    .await;
    let (good, text, error) = run(&lab, &install).await;
    assert!(
        good && !text.contains("CustomResourceDefinition") && !error.contains(name),
        "it is the same: {text}{error}"
    );
    let printed = {
        let output = ostler(&["plugin", "inspect", file]).await;
        text_of(&output.stdout)
    };
    assert!(printed.contains(name), "{printed}");

    // Components that carry something else.
    let asks = "permissions: {reconciles: [{group: tests.ostler.dev, kinds: [Probe]}]}";
    let asks = Manifest::parse(asks, "plugin.yaml").expect("a manifest");
    let probe = manifest::embed_manifest(&read_component("tests/probe"), &asks).expect("a component");
    let served = definitions
        .get("probes.tests.ostler.dev")
        .await
        .expect("the kind");
    let mut renamed = served.data["spec"].clone();
    renamed["versions"][0]["name"] = "v1beta1".into();
    let definition = |name: &str, spec: &Value| json!([{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec}]);
    let foreign = json!({"group": "example.org", "scope": "Cluster", "names": {"kind": "Secret", "plural": "secrets"},
        "versions": [{"name": "v1"}]});
    let file = lab.settings.plugins.join("probe.wasm");
    let install = [
        "plugin",
        "install",
        file.to_str().expect("a path"),
        "--no-wait",
        "--host-namespace",
        &system,
    ];
    for (carried, words) in [
        (
            definition("probes.tests.ostler.dev", &renamed),
            "no longer has the version v1alpha1 of probes.tests.ostler.dev",
        ),
        (
            definition("secrets.example.org", &foreign),
            "secrets.example.org, whose kind its manifest does not request",
        ),
        (
            json!([{"kind": "Secret", "metadata": {"name": "a"}}]),
            "it carries a, which is no CustomResourceDefinition",
        ),
    ] {
        lab.install_bytes("probe", &append_section(&probe, b"ostler:crds", &carried));
        let (good, text, error) = run(&lab, &install).await;
        assert!(!good && text.is_empty() && error.contains(words), "{text}{error}");
    }
}

/// The component with a further custom section: id 0, the size in LEB128, the name with its length, and the contents.
fn append_section(wasm: &[u8], name: &[u8], contents: &Value) -> Vec<u8> {
    let contents = contents.to_string();
    let mut size = 1 + name.len() + contents.len();
    let mut changed = [wasm, &[0]].concat();
    while size >= 0x80 {
        changed.push(u8::try_from(size & 0x7f).expect("seven bits") | 0x80);
        size >>= 7;
    }
    changed.push(u8::try_from(size).expect("seven bits"));
    changed.push(u8::try_from(name.len()).expect("a short name"));
    [&changed, name, contents.as_bytes()].concat()
}
