//! The steps pack: the whole host with a kubelet without containers. What a shim would report is in the termination messages.

mod artifacts;
pub mod containers;
mod deletion;
mod failures;
mod load;
mod restarts;

use kubelet_simulator::{Kubelet, succeed_with_outputs};
use ostler::testing::{grants::Grants, key::Gvk};
use ostler_test_harness::{Lab, find_condition};
use serde_json::{Value, json};

/// Component of the pack.
const COMPONENT: &str = "steps/steps-step";

const GRANTS: &str = include_str!("../../../deploy/steps-grants.yaml");

/// The kind Step.
pub fn steps() -> Gvk {
    Gvk::new("steps.ostler.dev", "v1alpha1", "Step")
}

pub fn pods() -> Gvk {
    Gvk::new("", "v1", "Pod")
}

/// Returns the Secret with the key of the artifacts.
pub fn artifact_key(namespace: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "steps-artifact-key", "namespace": namespace },
        "stringData": { "key": "0123456789abcdef0123456789abcdef" } })
}

/// Starts a host with the pack.
async fn start_pack(mut lab: Lab, config: Value) -> Lab {
    install_pack(&mut lab, config).await;
    lab.start_host().await;
    lab
}

/// Installs the pack with the grants of `deploy/`, and the accounts and roles that follow from them: what is missing there fails the
/// tests. Returns the grants.
async fn install_pack(lab: &mut Lab, config: Value) -> String {
    let mut grants: Value = serde_saphyr::from_str(&localize(GRANTS, lab)).expect("YAML");
    // What is refused is tried again at this interval.
    grants["plugins"]["steps-step"]["reconcile"] = json!({ "waitInterval": "100ms" });
    let text = grants.to_string();
    let grants = Grants::parse(&text, "steps-grants.yaml").expect("they parse");
    lab.use_accounts(&[COMPONENT], grants).await;
    std::fs::write(lab.settings.plugins.join("steps-step.yaml"), config.to_string()).expect("written");
    lab.install(&[COMPONENT]);
    lab.apply(artifact_key(&lab.namespace)).await;
    text
}

/// Starts a kubelet for the pods of Steps, whose processes succeed unless they are directed otherwise.
fn start_kubelet(lab: &Lab) -> Kubelet {
    Kubelet::start(lab.client.clone(), &lab.namespace, succeed_with_outputs)
}

/// A lab with a kubelet and a host with the pack.
struct StepsLab {
    lab: Lab,
    kubelet: Kubelet,
}

impl StepsLab {
    async fn start(lab: Lab) -> Self {
        Self::start_with(lab, json!({})).await
    }

    /// Starts a host with further settings of the pack.
    async fn start_with(lab: Lab, mut config: Value) -> Self {
        config["shimImage"] = "registry.example.com/shim:1".into();
        let lab = start_pack(lab, config).await;
        let kubelet = start_kubelet(&lab);
        Self { lab, kubelet }
    }

    async fn restart_host(&mut self) {
        self.lab.host = None;
        self.lab.start_host().await;
    }

    /// A Step whose process takes no inputs.
    fn step(&self, name: &str) -> Value {
        json!({ "apiVersion": "steps.ostler.dev/v1alpha1", "kind": "Step",
            "metadata": { "name": name, "namespace": self.lab.namespace },
            "spec": { "image": "busybox:1.37", "process": { "path": "true" } } })
    }

    /// One with the output `binary`.
    fn producer(&self, name: &str) -> Value {
        let mut step = self.step(name);
        step["spec"]["outputs"] = json!([{ "name": "binary", "path": "/work/out" }]);
        step
    }

    /// One with the output of another as its input.
    fn consumer(&self, name: &str, producer: &str) -> Value {
        let mut step = self.step(name);
        step["spec"]["inputs"] = json!([{ "name": "binary", "fromStep": producer, "path": "/work/in" }]);
        step
    }

    async fn status(&self, name: &str) -> Value {
        let step = self.lab.get(&steps(), name).await.unwrap_or_default();
        step["status"].clone()
    }

    /// Waits until a Step has a phase. Returns its status.
    async fn wait_phase(&self, name: &str, phase: &str) -> Value {
        let description = format!("Step {name} is {phase}");
        self.lab
            .wait_until(&description, async || self.status(name).await["phase"] == phase)
            .await;
        self.status(name).await
    }

    /// Waits until Ready of a Step is False with this reason. Returns the message.
    async fn wait_reason(&self, name: &str, reason: &str) -> String {
        let step = self
            .lab
            .wait_condition(&steps(), name, "Ready", "False", reason)
            .await;
        let message = find_condition(&step, "Ready")["message"].as_str().map(Into::into);
        message.unwrap_or_default()
    }

    /// The pod of this name, if it exists.
    async fn pod(&self, name: &str) -> Option<Value> {
        self.lab.get(&pods(), name).await
    }

    async fn wait_pod(&self, name: &str) -> Value {
        let description = format!("Pod {name} is created");
        self.lab
            .wait_until(&description, async || self.pod(name).await.is_some())
            .await;
        self.pod(name).await.expect("it was there")
    }
}

/// Puts the namespace of the test in place of that of `deploy/`.
fn localize(text: &str, lab: &Lab) -> String {
    let namespace = &lab.namespace;
    text.replace("namespace: steps\n", &format!("namespace: {namespace}\n"))
        .replace("namespace: steps,", &format!("namespace: {namespace},"))
}
