//! The real kubectl: its commands print the same with both servers, and its `rollout status` ends with the stand-ins.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use ostler_apiserver::ServerOptions;
use regex::Regex;

use crate::target::embedded_with;

/// A Deployment and its Service, as a user writes them.
const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "web:1", ports: [{containerPort: 80}], env: [{name: A, value: "1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"#;

/// The other workloads with a rollout.
const SETS: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  serviceName: store
  replicas: 2
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec: {containers: [{name: store, image: "store:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: "agent:1"}]}
"#;

/// Files of the commands, by name.
const FILES: [(&str, &str); 6] = [
    ("web.yaml", WEB),
    ("sets.yaml", SETS),
    (
        "cm.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: shared}, data: {a: one, b: two}}",
    ),
    (
        "claimed.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: shared}, data: {a: other}}",
    ),
    (
        "unknown.yaml",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: bad}, spec: {replica: 2}}",
    ),
    (
        "invalid.yaml",
        "{apiVersion: v1, kind: Service, metadata: {name: Bad}, spec: {ports: [{port: 99999}]}}",
    ),
];

/// Commands whose output is compared, in their order.
const COMMANDS: [&str; 73] = [
    "apply -f web.yaml",
    "apply -f web.yaml",
    "get deploy,svc",
    "get deploy web -o wide",
    "get deploy web -o yaml",
    "get svc web -o yaml",
    "get deploy web -o name",
    "get deploy web -o jsonpath={.spec.template.spec.containers[0].env[0].value}",
    "get deploy -l app=web -o custom-columns=NAME:.metadata.name,IMAGE:.spec.template.spec.containers[*].image",
    "get deploy --field-selector metadata.name=other",
    "get deploy missing",
    "get deploy missing --ignore-not-found",
    "get nonsense",
    "describe deploy web",
    "describe svc web",
    "set env deploy/web B=2",
    "set env deploy/web A-",
    "set env deploy/web --list",
    "set image deploy/web web=web:2",
    "set image deploy/web other=web:2",
    "set resources deploy/web --limits=cpu=200m,memory=64Mi --requests=cpu=100m",
    "scale deploy/web --replicas=3",
    "scale deploy/web --current-replicas=2 --replicas=4",
    "patch deploy web -p {\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"side:1\"}]}}}}",
    "patch deploy web --type=merge -p {\"spec\":{\"minReadySeconds\":5}}",
    "patch deploy web --type=json -p [{\"op\":\"remove\",\"path\":\"/spec/minReadySeconds\"}]",
    "patch deploy web --type=json -p [{\"op\":\"test\",\"path\":\"/spec/replicas\",\"value\":7}]",
    "get deploy web -o jsonpath={.spec.template.spec.containers[*].name}",
    "rollout pause deploy/web",
    "rollout resume deploy/web",
    "rollout restart deploy/web",
    "rollout history deploy/web",
    "label deploy web tier=front",
    "label deploy web tier=back",
    "label deploy web tier=back --overwrite",
    "label deploy web tier-",
    "annotate deploy web note=text",
    "diff -f web.yaml",
    "apply -f web.yaml --server-side",
    "apply -f web.yaml --server-side --force-conflicts",
    "apply -f cm.yaml --server-side --field-manager=one",
    "apply -f claimed.yaml --server-side --field-manager=two",
    "apply -f claimed.yaml --server-side --field-manager=two --force-conflicts",
    "get cm shared -o yaml --show-managed-fields",
    "apply -f unknown.yaml",
    "apply -f unknown.yaml --validate=false",
    "apply -f invalid.yaml",
    "create -f web.yaml",
    "replace -f cm.yaml",
    "create cm other --from-literal=key=value",
    "create secret generic hidden --from-literal=key=value",
    "get secret hidden -o jsonpath={.data.key}",
    "create sa robot",
    "create role reader --verb=get,list --resource=configmaps",
    "create rolebinding readers --role=reader --serviceaccount=NAMESPACE:robot",
    "auth can-i get configmaps --as=system:serviceaccount:NAMESPACE:robot",
    "auth can-i create configmaps --as=system:serviceaccount:NAMESPACE:robot",
    "get cm other --as=system:serviceaccount:NAMESPACE:robot",
    "create cm third --from-literal=a=b --as=system:serviceaccount:NAMESPACE:robot",
    "describe role reader",
    "explain deployment.spec.strategy.rollingUpdate",
    "explain deployment.spec.nonsense",
    "create job once --image=once:1",
    "get job once",
    "run single --image=single:1",
    "get pod single -o wide",
    "get events",
    "wait --for=jsonpath={.data.a}=one cm/shared --timeout=10s",
    "wait --for=condition=Available deploy/missing --timeout=1s",
    "delete cm other",
    "delete cm other",
    "delete -f web.yaml",
    "get all,cm,secret,sa,role,rolebinding",
];

/// What differs between two runs, and how it is written in its place.
static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let masks = [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \+\d{4}", "TIME"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
        (r#"resourceVersion: "\d+""#, "resourceVersion: N"),
        (r"\b10\.\d+\.\d+\.\d+", "ADDRESS"),
        (r"(LIVE|MERGED)-\d+", "$1"),
        (r" +\d+s\b", " AGE"),
        // The reason, which the real server does not give.
        (r": operation \d+: .*", ""),
        (r" +", " "),
    ];
    masks
        .map(|(mask, text)| (Regex::new(mask).expect("a mask"), text))
        .into()
});

/// kubectl with one server, in a namespace.
struct Kubectl<'a> {
    folder: &'a Path,
    kubeconfig: PathBuf,
    namespace: &'a str,
}

impl Kubectl<'_> {
    fn run(&self, command: &str) -> Output {
        let binary = std::env::var_os("OSTLER_TEST_KUBECTL")
            .expect("OSTLER_TEST_KUBECTL must name the binary of kubectl: cargo xtask test real");
        let command = command.replace("NAMESPACE", self.namespace);
        Command::new(binary)
            .args(command.split(' '))
            .args(["--namespace", self.namespace])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.kubeconfig.with_extension("home"))
            .current_dir(self.folder)
            .output()
            .expect("kubectl runs")
    }

    /// Runs a command that must succeed, and returns what it prints.
    fn expect(&self, command: &str) -> String {
        let output = self.run(command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {command}\n{text}{errors}");
        text
    }

    /// The exit code of a command and what it prints, without what differs between two runs.
    fn answer(&self, command: &str) -> String {
        let output = self.run(command);
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let mut text = format!("{text}{errors}(exit code {})", output.status.code().unwrap_or(-1));
        for (mask, replacement) in MASKS.iter() {
            text = mask.replace_all(&text, *replacement).into_owned();
        }
        text
    }
}

fn write_files(folder: &Path) {
    for (name, text) in FILES {
        std::fs::write(folder.join(name), text).expect("written");
    }
}

/// Commands of kubectl print the same with both servers.
pub async fn commands_of_kubectl_are_answered_alike() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write_files(folder.path());
    let (server, _) = embedded_with(ServerOptions::default()).await;
    let kubeconfig = folder.path().join("embedded");
    std::fs::write(&kubeconfig, server.kubeconfig()).expect("written");
    let real = std::env::var_os("OSTLER_TEST_KUBECONFIG").expect("a kubeconfig of the real control plane");
    let namespace = format!("kubectl-{}", std::process::id());
    let kubectl = |kubeconfig| Kubectl {
        folder: folder.path(),
        kubeconfig,
        namespace: &namespace,
    };
    let (embedded, real) = (kubectl(kubeconfig), kubectl(real.into()));
    let mut differences = String::new();
    for kubectl in [&embedded, &real] {
        kubectl.expect("create namespace NAMESPACE");
    }
    for command in COMMANDS {
        let (left, right) = (embedded.answer(command), real.answer(command));
        if left != right {
            differences += &format!("kubectl {command}\n--- embedded\n{left}\n--- real\n{right}\n\n");
        }
    }
    real.expect("delete namespace NAMESPACE --wait=false");
    server.shutdown().await;
    assert!(differences.is_empty(), "{differences}");
}

/// `kubectl rollout status` and `wait` end with the stand-ins for controllers, for each workload and after each change.
pub async fn rollouts_end_with_the_stand_ins() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    write_files(folder.path());
    let (server, _) = embedded_with(ServerOptions {
        controllers: true,
        ..ServerOptions::default()
    })
    .await;
    let kubeconfig = folder.path().join("embedded");
    std::fs::write(&kubeconfig, server.kubeconfig()).expect("written");
    let kubectl = Kubectl {
        folder: folder.path(),
        kubeconfig,
        namespace: "default",
    };
    kubectl.expect("apply -f web.yaml -f sets.yaml");
    let status = |workload: &str| kubectl.expect(&format!("rollout status {workload} --timeout=60s"));
    for _ in 0..2 {
        let rolled_out = status("deploy/web");
        assert!(
            rolled_out.contains("deployment \"web\" successfully rolled out"),
            "{rolled_out}"
        );
        let complete = status("statefulset/store");
        assert!(
            complete.contains("roll out complete: 2 new pods have been updated"),
            "{complete}"
        );
        let rolled_out = status("daemonset/agent");
        assert!(
            rolled_out.contains("daemon set \"agent\" successfully rolled out"),
            "{rolled_out}"
        );
        kubectl.expect("set image deploy/web statefulset/store daemonset/agent *=next:2");
        kubectl.expect("scale deploy/web --replicas=4");
        kubectl.expect("scale statefulset/store --replicas=2");
    }
    kubectl.expect("wait --for=condition=Available deploy/web --timeout=60s");
    kubectl.expect("create job once --image=once:1");
    kubectl.expect("wait --for=condition=Complete job/once --timeout=60s");
    server.shutdown().await;
}
