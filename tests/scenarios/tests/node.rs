//! The host in pods of a real node, installed as the documentation says.

mod figures;
mod operations;
mod three_commands;

use std::{
    net::IpAddr,
    process::{Command, Output},
};

use futures::{StreamExt, stream};
use kube::api::{DeleteParams, DynamicObject};
use ostler::testing::key::Gvk;
use ostler_test_harness::{Lab, component_path, process::host_binary, scenario, workspace_root};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    admin::{create_token, write_kubeconfig},
    observability::ostler,
    steps::{artifact_key, containers::SHIM_IMAGE, pods, steps},
};

/// An installation of the host in a namespace of its own, for objects in that of the test.
struct Installation {
    lab: Lab,
    namespace: String,
}

impl Installation {
    /// Installs the host with the command of the documentation, which ends when both replicas are available.
    async fn start(lab: Lab) -> Self {
        let namespace = format!("{}-system", lab.namespace);
        let installation = Self { lab, namespace };
        let lab = &installation.lab;
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        lab.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lab.namespace, "labels": labels}}))
            .await;
        let installed = installation
            .run_command(&[
                "install",
                "--image",
                "ostler:latest",
                "--values",
                &installation.write_values(),
            ])
            .await;
        let text = String::from_utf8_lossy(&installed.stdout).into_owned();
        let error = String::from_utf8_lossy(&installed.stderr).into_owned();
        assert!(installed.status.success(), "{text}{error}");
        assert!(
            text.contains(&format!("runs in {}", installation.namespace)),
            "{text}"
        );
        let checked = installation.run_command(&["check"]).await;
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        for words in [
            "✔ API server",
            "✔ host         2 of 2 replicas are ready",
            "✔ leader",
        ] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
        installation
    }

    /// The values of the test: the kinds are those of all tests, and stay.
    fn write_values(&self) -> String {
        let values = json!({"crds": {"install": false}, "watchNamespaces": [self.lab.namespace]});
        let path = self.lab.path().join("values.yaml");
        std::fs::write(&path, values.to_string()).expect("written");
        path.to_str().expect("a path").to_owned()
    }

    /// Runs a command of `ostler` about the host of the test.
    async fn run_command(&self, arguments: &[&str]) -> Output {
        let kubeconfig = self.lab.kubeconfig.to_str().expect("a path");
        let place = ["--namespace", &self.namespace, "--kubeconfig", kubeconfig];
        ostler(&[arguments, &place].concat()).await
    }

    /// Reads a file of `deploy/`, with the namespace of the test in place of that of the documentation.
    fn read_manifest(&self, file: &str) -> String {
        let path = workspace_root().join("deploy").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.replace("namespace: steps", &format!("namespace: {}", self.lab.namespace))
    }

    /// Installs the steps pack with the command of the documentation, which ends when a host in a pod serves it.
    async fn install_steps(&self) {
        let config = self.lab.path().join("config.yaml");
        std::fs::write(&config, json!({ "shimImage": SHIM_IMAGE }).to_string()).expect("written");
        let mut command = Command::new(host_binary());
        command
            .args(["plugin", "install"])
            .arg(component_path("steps/steps-step"))
            .args(["--namespace", &self.lab.namespace])
            .args(["--host-namespace", &self.namespace])
            .arg("--config")
            .arg(&config)
            .arg("--kubeconfig")
            .arg(&self.lab.kubeconfig)
            .env("NO_COLOR", "1");
        let output = tokio::task::spawn_blocking(move || command.output().expect("ostler runs"))
            .await
            .expect("it ends");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Fails unless all that is open in the pods of the host are the probes of the kubelet and what asks for a token.
    async fn check_ports(&self) {
        let pods = self.lab.api(&pods(), &self.namespace);
        let pods = pods.list(&Default::default()).await.expect("pods");
        let client = Client::builder().no_proxy().danger_accept_invalid_certs(true);
        let client = client.build().expect("a client");
        let get = async |url: String| client.get(url).send().await.expect("a response").status();
        for pod in &pods.items {
            let address: IpAddr = pod.data["status"]["podIP"]
                .as_str()
                .and_then(|address| address.parse().ok())
                .expect("an address");
            assert_eq!(list_open_ports(address).await, [8080, 8443]);
            assert_eq!(
                get(format!("http://{address}:8080/healthz")).await,
                StatusCode::OK
            );
            for path in [
                "/metrics",
                "/objects",
                "/recordings",
                "/status",
                "/record?kind=step&name=greet",
            ] {
                assert_eq!(
                    get(format!("http://{address}:8080{path}")).await,
                    StatusCode::NOT_FOUND,
                    "{path}"
                );
                let secure = get(format!("https://{address}:8443{path}")).await;
                assert_eq!(secure, StatusCode::UNAUTHORIZED, "{path}");
            }
        }
    }

    /// Runs `kubectl ostler` for a service account of the test's namespace, whose rights are those of the documentation.
    async fn run_kubectl_plugin(&self, kubeconfig: &str, arguments: &[&str]) -> Output {
        let plugin = self.lab.path().join("kubectl-ostler");
        if !plugin.exists() {
            std::os::unix::fs::symlink(host_binary(), &plugin).expect("a link");
        }
        // kubectl runs it so.
        let mut command = Command::new(plugin);
        command
            .args(arguments)
            .args(["--host-namespace", &self.namespace, "--kubeconfig", kubeconfig])
            .env_remove("OSTLER_ADMIN");
        tokio::task::spawn_blocking(move || command.output().expect("kubectl runs"))
            .await
            .expect("it ends")
    }

    /// Creates a service account that may use the command and see Steps. Returns its kubeconfig.
    async fn create_user(&self) -> String {
        let (lab, name) = (&self.lab, "viewer");
        let namespace = &lab.namespace;
        lab.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}))
            .await;
        let group = "rbac.authorization.k8s.io";
        let rules = json!([{"apiGroups": ["steps.ostler.dev"], "resources": ["steps"], "verbs": ["get", "list", "patch"]}]);
        lab.apply(json!({"apiVersion": format!("{group}/v1"), "kind": "Role",
            "metadata": {"name": "viewer", "namespace": namespace}, "rules": rules}))
            .await;
        for (place, role) in [(namespace, "viewer"), (&self.namespace, "ostler:user")] {
            lab.apply(json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
                "metadata": {"name": "viewer", "namespace": place},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]}))
                .await;
        }
        write_kubeconfig(lab, name, &json!({ "token": create_token(lab, name).await }))
    }

    /// The command finds the leader by its Lease and reaches it through the API server, with the rights of its user.
    async fn check_kubectl_plugin(&self, user: &str) {
        let namespace = &self.lab.namespace;
        let run = async |arguments: &[&str]| {
            let output = self.run_kubectl_plugin(user, arguments).await;
            let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
            (output.status.success(), text(output.stdout), text(output.stderr))
        };
        let (good, table, error) = run(&["get", "steps", "-n", namespace]).await;
        assert!(
            good && table.contains("step/greet") && table.contains("Ready"),
            "{table}{error}"
        );
        let (good, text, error) = run(&["explain", "step/greet", "-n", namespace]).await;
        assert!(good && text.contains("steps-step"), "{text}{error}");
        let (good, _, error) = run(&["status"]).await;
        assert!(!good && error.contains("may not get /status"), "{error}");
        let (good, _, error) = run(&["record", "step/greet", "--last", "-n", namespace]).await;
        assert!(!good && error.contains("may not record"), "{error}");
    }

    /// The host goes with its pods, and with what it has made for itself.
    async fn check_uninstallation(&self) {
        let removed = self.run_command(&["uninstall", "--orphan"]).await;
        let text = String::from_utf8_lossy(&removed.stdout).into_owned();
        let error = String::from_utf8_lossy(&removed.stderr).into_owned();
        assert!(removed.status.success(), "{text}{error}");
        for words in ["Deployment", "Lease", "Secret", "ConfigMap", "Role"] {
            assert!(
                text.contains(&format!("{words} {}/", self.namespace)),
                "{words} in {text}{error}"
            );
        }
        let pods = self.lab.api(&pods(), &self.namespace);
        let pods = pods.list(&Default::default()).await.expect("pods");
        assert!(pods.items.is_empty(), "{:?}", pods.items);
    }

    /// Waits until a Step has ended well. Returns its status.
    async fn wait_succeeded(&self, name: &str) -> Value {
        let step = self.lab.wait_ready(&steps(), name).await;
        let status = step["status"].clone();
        assert_eq!(
            (&status["phase"], &status["exitCode"]),
            (&json!("Succeeded"), &json!(0)),
            "{status:#}"
        );
        status
    }
}

async fn read_lease(lab: &Lab, namespace: &str) -> DynamicObject {
    let leases = lab.api(&Gvk::new("coordination.k8s.io", "v1", "Lease"), namespace);
    leases.get("ostler").await.expect("the Lease")
}

/// Returns the name of the pod that leads in a namespace.
async fn find_leader(lab: &Lab, namespace: &str) -> Option<String> {
    let lease = read_lease(lab, namespace).await;
    let holder = lease.data["spec"]["holderIdentity"].as_str()?;
    let pods = lab.api(&pods(), namespace);
    let pods = pods.list(&Default::default()).await.expect("pods");
    let mut names = pods.items.into_iter().filter_map(|pod| pod.metadata.name);
    names.find(|name| holder.starts_with(name.as_str()))
}

/// Lists the TCP ports of an address that accept connections.
async fn list_open_ports(address: IpAddr) -> Vec<u16> {
    let connect = async |port| TcpStream::connect((address, port)).await.is_ok().then_some(port);
    let mut open: Vec<u16> = stream::iter(1..=u16::MAX)
        .map(connect)
        .buffer_unordered(256)
        .filter_map(std::future::ready)
        .collect()
        .await;
    open.sort_unstable();
    open
}

/// Installed by the manifests of `deploy/` and `ostler plugin install`, under restricted pod security. The examples run in
/// containers, and one takes what the other has made. When the pod of the leader is killed, the other replica goes on.
#[scenario(node_only = "installation, and containers")]
async fn installed_host_runs_steps_and_survives_its_leader(lab: Lab) {
    let _plugin = lab.lock_plugin("steps-step").await;
    let installation = Installation::start(lab).await;
    let lab = &installation.lab;
    installation.check_ports().await;
    installation.install_steps().await;
    lab.apply(artifact_key(&lab.namespace)).await;
    let samples = installation.read_manifest("examples/steps.yaml");
    lab.apply_yaml(&samples).await;
    for (name, log) in [("greet", ""), ("print", "Hello\n")] {
        let status = installation.wait_succeeded(name).await;
        assert_eq!(status["logTail"].as_str().unwrap_or_default(), log, "{status:#}");
        assert_eq!(status["attempt"], 1, "{status:#}");
    }

    let user = installation.create_user().await;
    installation.check_kubectl_plugin(&user).await;

    let leader = find_leader(lab, &installation.namespace)
        .await
        .expect("a pod leads");
    lab.api(&pods(), &installation.namespace)
        .delete(&leader, &DeleteParams::default().grace_period(0))
        .await
        .expect("deleted");
    lab.apply_yaml(&samples.replace("name: print", "name: print-again"))
        .await;
    let status = installation.wait_succeeded("print-again").await;
    assert_eq!(status["logTail"], "Hello\n");
    let next = find_leader(lab, &installation.namespace)
        .await
        .expect("a pod leads");
    assert_ne!(next, leader);
    installation.check_kubectl_plugin(&user).await;
    // What had ended before ran once.
    for name in ["greet", "print"] {
        assert_eq!(installation.wait_succeeded(name).await["attempt"], 1);
    }
    installation.check_uninstallation().await;
}
