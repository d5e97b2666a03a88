//! The pod of a Step, as a pure function of its spec and the sources of its inputs.
//!
//! | inputs | outputs | init container | containers |
//! |---|---|---|---|
//! | no | no | `install` | `process` |
//! | no | yes | `install` | `process`, `streamer` |
//! | yes | no | `fetch` | `process` |
//! | yes | yes | `fetch` | `process`, `streamer` |
//!
//! Both init containers put the shim into the shared volume. The streamer is an ordinary container, not a native sidecar:
//! the kubelet stops those as soon as the process ends, which is when consumers begin to need it.

use std::collections::BTreeMap;

use ostler_sdk::{
    duration,
    serde::Serialize,
    serde_json::{self, Value, json},
};
use steps_api::{EnvVariable, Step, StepSpec};
use steps_protocol::{
    Directory, FetchConfig, INPUTS_ANNOTATION, InputSource, KEY_PATH, ProcessConfig, ROOT_PATH, RunConfig,
    SHIM_PATH, SOURCES_PATH, STREAMER_PORT, ServeConfig,
};

use crate::settings::StepSettings;

/// Label of all pods of Steps, with the value `true`, by which network policies select them.
pub const POD_LABEL: &str = "steps.ostler.dev/pod";

/// Init container that installs the shim.
pub const INSTALL_CONTAINER: &str = "install";

/// Init container that fetches the inputs.
pub const FETCH_CONTAINER: &str = "fetch";

/// Container of the process.
pub const PROCESS_CONTAINER: &str = "process";

/// Container of the streamer.
pub const STREAMER_CONTAINER: &str = "streamer";

/// User of the process, unless the Step names one: that of distroless images.
const DEFAULT_USER: i64 = 65_532;

/// Seconds between SIGTERM and SIGKILL.
const GRACE_SECONDS: u64 = 30;

/// Seconds that a pod stays on a node that does not answer: the default of 300 is long for a step.
const NODE_LOST_SECONDS: i64 = 60;

/// Directory of the inputs in the init container.
const INPUTS_PATH: &str = "/var/run/ostler/inputs";

/// Name of the pod of an attempt. It is the same for each reconcile, so that a pod is not created twice.
pub fn pod_name(step: &Step, attempt: i64) -> String {
    format!("{}-{attempt}", step.name())
}

/// Builds the pod of an attempt.
pub fn build_pod(step: &Step, attempt: i64, settings: &StepSettings, sources: &[InputSource]) -> Value {
    let spec = &step.spec;
    let mut annotations = json!({ "kubectl.kubernetes.io/default-container": PROCESS_CONTAINER });
    if !spec.inputs.is_empty() {
        annotations[INPUTS_ANNOTATION] = encode_sources(sources).into();
    }
    let mut containers = vec![build_process(spec)];
    if !spec.outputs.is_empty() {
        containers.push(build_streamer(step, settings));
    }
    let pull_secrets: Vec<_> = spec
        .image_pull_secrets
        .iter()
        .map(|secret| json!({ "name": secret.name }))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(step, attempt),
            "namespace": step.namespace(),
            "labels": { POD_LABEL: "true" },
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "imagePullSecrets": pull_secrets,
            "securityContext": build_pod_security(spec),
            "tolerations": build_tolerations(),
            "initContainers": [build_init(spec, settings)],
            "containers": containers,
            "volumes": build_volumes(spec, settings),
        },
    })
}

fn build_tolerations() -> Vec<Value> {
    let tolerate = |condition: &str| {
        json!({
            "key": format!("node.kubernetes.io/{condition}"),
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOST_SECONDS,
        })
    };
    ["not-ready", "unreachable"].map(tolerate).to_vec()
}

/// The annotation with the sources.
pub fn encode_sources(sources: &[InputSource]) -> String {
    serde_json::to_string(sources).unwrap_or_default()
}

/// The user of all containers, so that the process may change what the fetcher has unpacked.
pub fn user_id(spec: &StepSpec) -> i64 {
    let named = spec
        .process
        .user
        .as_deref()
        .and_then(|user| user.split(':').next());
    let numeric = named.and_then(|user| user.parse().ok());
    spec.security_context
        .run_as_user
        .or(numeric)
        .unwrap_or(DEFAULT_USER)
}

fn build_pod_security(spec: &StepSpec) -> Value {
    let context = &spec.security_context;
    let user = user_id(spec);
    json!({
        "runAsNonRoot": context.run_as_non_root.unwrap_or(true),
        "runAsUser": user,
        "runAsGroup": context.run_as_group.unwrap_or(user),
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

fn build_process_security(spec: &StepSpec) -> Value {
    let context = &spec.security_context;
    let mut capabilities = json!({ "drop": ["ALL"] });
    if let Some(added) = context.capabilities.as_ref().filter(|all| !all.add.is_empty()) {
        capabilities["add"] = added.add.clone().into();
    }
    json!({
        "allowPrivilegeEscalation": context.allow_privilege_escalation.unwrap_or(false),
        "privileged": context.privileged.unwrap_or(false),
        "readOnlyRootFilesystem": context.read_only_root_filesystem.unwrap_or(false),
        "capabilities": capabilities,
    })
}

/// The security context of the shim's own containers, which is restricted whatever the process has.
fn build_shim_security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

fn build_shim_resources() -> Value {
    json!({
        "requests": { "cpu": "10m", "memory": "16Mi" },
        "limits": { "memory": "64Mi" },
    })
}

fn build_process(spec: &StepSpec) -> Value {
    let process = &spec.process;
    let directory = |name: &str, path: &str| Directory {
        name: name.to_owned(),
        path: path.to_owned(),
    };
    let config = RunConfig {
        process: ProcessConfig {
            path: process.path.clone(),
            args: process.args.clone(),
            dir: process.dir.clone(),
            user: process.user.clone(),
        },
        inputs: spec.inputs.iter().map(|input| input.name.clone()).collect(),
        outputs: spec
            .outputs
            .iter()
            .map(|output| directory(&output.name, &output.path))
            .collect(),
        timeout_seconds: spec
            .timeout
            .as_deref()
            .and_then(duration)
            .map(|ms| ms.div_ceil(1000)),
        // Below that of the pod, so that the report is written in time.
        grace_seconds: GRACE_SECONDS - 10,
        log_tail_bytes: usize::try_from(spec.log_tail_bytes).unwrap_or_default(),
        root: ROOT_PATH.into(),
        termination_path: "/dev/termination-log".into(),
    };
    let mut mounts = vec![json!({ "name": "ostler", "mountPath": ROOT_PATH })];
    let mounted =
        |volume: &str, name: &str, path: &str| json!({ "name": volume, "mountPath": path, "subPath": name });
    mounts.extend(
        spec.inputs
            .iter()
            .map(|input| mounted("inputs", &input.name, &input.path)),
    );
    mounts.extend(
        spec.outputs
            .iter()
            .map(|output| mounted("outputs", &output.name, &output.path)),
    );
    let variables: Vec<_> = process.env.iter().map(build_variable).collect();
    let mut container = json!({
        "name": PROCESS_CONTAINER,
        "image": spec.image,
        "command": [SHIM_PATH, "run"],
        "args": [encode_argument(&config)],
        "env": variables,
        "resources": build_resources(spec),
        "securityContext": build_process_security(spec),
        "volumeMounts": mounts,
    });
    if let Some(policy) = spec.image_pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    container
}

fn build_variable(variable: &EnvVariable) -> Value {
    match &variable.secret_key_ref {
        Some(key) => json!({
            "name": variable.name,
            "valueFrom": { "secretKeyRef": { "name": key.name, "key": key.key } },
        }),
        None => json!({
            "name": variable.name,
            "value": escape_expansion(variable.value.as_deref().unwrap_or_default()),
        }),
    }
}

fn build_resources(spec: &StepSpec) -> Value {
    let resources = &spec.resources;
    // Without a request, the scheduler would put any number of processes on a node; a limit is a request, too.
    let mut requests: BTreeMap<&str, &str> = [("cpu", "100m"), ("memory", "128Mi")]
        .into_iter()
        .filter(|(name, _)| !resources.limits.contains_key(*name))
        .collect();
    requests.extend(
        resources
            .requests
            .iter()
            .map(|(name, quantity)| (name.as_str(), quantity.as_str())),
    );
    let mut built = json!({ "requests": requests });
    if !resources.limits.is_empty() {
        built["limits"] = json!(resources.limits);
    }
    built
}

fn build_init(spec: &StepSpec, settings: &StepSettings) -> Value {
    let shared = json!({ "name": "ostler", "mountPath": ROOT_PATH });
    let (name, args, mounts) = if spec.inputs.is_empty() {
        (INSTALL_CONTAINER, json!([]), vec![shared])
    } else {
        let path = |name: &str| format!("{INPUTS_PATH}/{name}");
        let start = duration(&spec.start_timeout).unwrap_or_default();
        let config = FetchConfig {
            inputs: spec
                .inputs
                .iter()
                .map(|input| Directory {
                    name: input.name.clone(),
                    path: path(&input.name),
                })
                .collect(),
            timeout_seconds: start.div_ceil(1000),
            root: ROOT_PATH.into(),
            sources_path: SOURCES_PATH.into(),
            key_path: KEY_PATH.into(),
            termination_path: "/dev/termination-log".into(),
        };
        let mounts = vec![
            shared,
            json!({ "name": "inputs", "mountPath": INPUTS_PATH }),
            json!({ "name": "key", "mountPath": parent(KEY_PATH), "readOnly": true }),
            json!({ "name": "sources", "mountPath": parent(SOURCES_PATH), "readOnly": true }),
        ];
        (FETCH_CONTAINER, json!([encode_argument(&config)]), mounts)
    };
    json!({
        "name": name,
        "image": settings.shim_image,
        "command": ["/shim", name],
        "args": args,
        "resources": build_shim_resources(),
        "securityContext": build_shim_security(),
        "volumeMounts": mounts,
    })
}

fn build_streamer(step: &Step, settings: &StepSettings) -> Value {
    let config = ServeConfig {
        step: step.metadata.uid.clone(),
        outputs: step
            .spec
            .outputs
            .iter()
            .map(|output| output.name.clone())
            .collect(),
        listen: format!("[::]:{STREAMER_PORT}"),
        root: ROOT_PATH.into(),
        key_path: KEY_PATH.into(),
        termination_path: "/dev/termination-log".into(),
    };
    json!({
        "name": STREAMER_CONTAINER,
        "image": settings.shim_image,
        "command": ["/shim", "serve"],
        "args": [encode_argument(&config)],
        "ports": [{ "name": "artifacts", "containerPort": STREAMER_PORT }],
        "resources": build_shim_resources(),
        "securityContext": build_shim_security(),
        "volumeMounts": [
            { "name": "ostler", "mountPath": ROOT_PATH, "readOnly": true },
            { "name": "key", "mountPath": parent(KEY_PATH), "readOnly": true },
        ],
    })
}

fn build_volumes(spec: &StepSpec, settings: &StepSettings) -> Vec<Value> {
    let mut volumes = vec![json!({ "name": "ostler", "emptyDir": {} })];
    if !spec.inputs.is_empty() {
        volumes.push(json!({ "name": "inputs", "emptyDir": {} }));
        let field = format!("metadata.annotations['{INPUTS_ANNOTATION}']");
        let item = json!({ "path": "inputs", "fieldRef": { "fieldPath": field } });
        volumes.push(json!({ "name": "sources", "downwardAPI": { "items": [item] } }));
    }
    if !spec.outputs.is_empty() {
        volumes.push(json!({ "name": "outputs", "emptyDir": {} }));
    }
    if !spec.inputs.is_empty() || !spec.outputs.is_empty() {
        let secret = json!({
            "secretName": settings.key_secret,
            "items": [{ "key": "key", "path": "key" }],
            "defaultMode": 0o444,
        });
        volumes.push(json!({ "name": "key", "secret": secret }));
    }
    volumes
}

fn encode_argument(config: &impl Serialize) -> String {
    escape_expansion(&serde_json::to_string(config).unwrap_or_default())
}

/// Doubles the dollar signs: the kubelet expands `$(NAME)` in arguments and in variables.
fn escape_expansion(text: &str) -> String {
    text.replace('$', "$$")
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(parent, _)| parent)
}
