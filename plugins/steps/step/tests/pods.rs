//! The pods of the four permutations of inputs and outputs, compared with checked-in ones.

use std::{env, fs, path::Path};

use ostler_sdk::{
    ObjectMeta, from_value,
    serde_json::{self, Value, json},
};
use steps_api::{Step, StepStatus};
use steps_protocol::{FetchConfig, InputSource, RunConfig, ServeConfig};
use steps_step::{pod::build_pod, settings::StepSettings};

fn settings() -> StepSettings {
    from_value(&json!({"shimImage": "registry.example.com/ostler/shim:0.1.0"})).expect("settings")
}

fn step(spec: Value) -> Step {
    let metadata = ObjectMeta {
        name: "unit".into(),
        namespace: "ci".into(),
        uid: "uid-1".into(),
        ..ObjectMeta::default()
    };
    Step {
        metadata,
        spec: from_value(&spec).expect("a spec"),
        status: StepStatus::default(),
    }
}

fn spec(has_inputs: bool, has_outputs: bool) -> Value {
    let mut spec = json!({
        "image": "golang:1.25",
        "process": {"path": "go", "args": ["test", "./..."], "dir": "/work/source", "env": [{"name": "GOFLAGS", "value": "-mod=mod"}]},
    });
    if has_inputs {
        spec["inputs"] = json!([
            {"name": "source", "fromStep": "checkout", "path": "/work/source"},
            {"name": "cache", "fromStep": "restore", "artifact": "modules", "path": "/work/cache"},
        ]);
    }
    if has_outputs {
        spec["outputs"] = json!([{"name": "report", "path": "/work/report"}]);
    }
    spec
}

fn sources() -> Vec<InputSource> {
    let source = |name: &str, artifact: &str, step: &str, address: &str| InputSource {
        name: name.into(),
        artifact: artifact.into(),
        step: step.into(),
        address: address.into(),
        digest: format!("sha256:{}", "0".repeat(64)),
        bytes: 1024,
    };
    vec![
        source("source", "source", "uid-checkout", "10.0.0.7:17788"),
        source("cache", "modules", "uid-restore", "[fd00::8]:17788"),
    ]
}

fn build(spec: Value) -> Value {
    let step = step(spec);
    let sources = if step.spec.inputs.is_empty() {
        vec![]
    } else {
        sources()
    };
    build_pod(&step, 1, &settings(), &sources)
}

#[test]
fn pods_of_the_four_permutations_are_the_checked_in_ones() {
    for (name, has_inputs, has_outputs) in [
        ("neither", false, false),
        ("outputs", false, true),
        ("inputs", true, false),
        ("both", true, true),
    ] {
        let pod = build(spec(has_inputs, has_outputs));
        let text = serde_json::to_string_pretty(&pod).expect("JSON") + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.json"));
        if env::var_os("UPDATE_GOLDEN_PODS").is_some() {
            fs::write(&path, &text).expect("is written");
        }
        let expected = fs::read_to_string(&path).expect("is checked in");
        assert_eq!(
            text, expected,
            "{name}: UPDATE_GOLDEN_PODS=1 cargo test -p steps-step --test pods"
        );
    }
}

#[test]
fn containers_are_those_of_the_permutation() {
    for (has_inputs, has_outputs, init, containers) in [
        (false, false, "install", vec!["process"]),
        (false, true, "install", vec!["process", "streamer"]),
        (true, false, "fetch", vec!["process"]),
        (true, true, "fetch", vec!["process", "streamer"]),
    ] {
        let pod = build(spec(has_inputs, has_outputs));
        let names = |list: &Value| -> Vec<String> {
            let all = list.as_array().expect("a list").iter();
            all.map(|container| container["name"].as_str().expect("a name").to_owned())
                .collect()
        };
        assert_eq!(names(&pod["spec"]["initContainers"]), [init]);
        assert_eq!(names(&pod["spec"]["containers"]), containers);
    }
}

/// Every volume that is mounted exists, none is left over, and the process does not have the key.
#[test]
fn volumes_are_those_that_are_mounted_and_the_process_has_no_key() {
    for (has_inputs, has_outputs) in [(false, false), (false, true), (true, false), (true, true)] {
        let pod = build(spec(has_inputs, has_outputs));
        let names = |list: &Value| -> Vec<String> {
            let all = list.as_array().expect("a list").iter();
            let mut all: Vec<_> = all
                .map(|item| item["name"].as_str().expect("a name").to_owned())
                .collect();
            all.sort();
            all.dedup();
            all
        };
        let spec = &pod["spec"];
        let lists = [&spec["initContainers"], &spec["containers"]];
        let containers: Vec<&Value> = lists
            .into_iter()
            .flat_map(|list| list.as_array().expect("a list"))
            .collect();
        let mut mounted: Vec<String> = containers
            .iter()
            .flat_map(|container| names(&container["volumeMounts"]))
            .collect();
        mounted.sort();
        mounted.dedup();
        assert_eq!(names(&spec["volumes"]), mounted);
        assert!(!names(&spec["containers"][0]["volumeMounts"]).contains(&"key".to_owned()));
    }
}

/// The rules of the Pod Security Standard `restricted`, for all containers.
#[test]
fn pod_meets_the_restricted_standard_unless_the_spec_says_otherwise() {
    let pod = build(spec(true, true));
    let security = &pod["spec"]["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    assert_ne!(security["runAsUser"], 0);
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array().expect("a list") {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false, "{container}");
            assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}), "{container}");
            assert_ne!(security["privileged"], true, "{container}");
            assert!(
                container["resources"]["requests"]["memory"].is_string(),
                "{container}"
            );
        }
    }
    let mut privileged = spec(false, true);
    privileged["securityContext"] = json!({
        "runAsUser": 0, "runAsNonRoot": false, "privileged": true, "allowPrivilegeEscalation": true,
        "capabilities": {"add": ["NET_ADMIN"]},
    });
    let pod = build(privileged);
    assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 0);
    let process = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(
        (&process["privileged"], &process["capabilities"]["add"]),
        (&json!(true), &json!(["NET_ADMIN"]))
    );
    // The shim's own containers get none of it.
    let streamer = &pod["spec"]["containers"][1]["securityContext"];
    assert_eq!(streamer["capabilities"], json!({"drop": ["ALL"]}));
    assert_ne!(streamer["privileged"], true);
}

/// The kubelet replaces `$(NAME)` in arguments and variables, and `$$` by `$`.
#[test]
fn arguments_and_variables_arrive_without_expansion() {
    let mut spec = spec(true, true);
    spec["process"]["args"] = json!(["$(HOME)", "$$", "a$b", "\"quoted\""]);
    spec["process"]["env"] = json!([
        {"name": "A", "value": "$(B) $$"},
        {"name": "S", "secretKeyRef": {"name": "login", "key": "password"}},
    ]);
    let pod = build(spec);
    let containers = &pod["spec"]["containers"];
    let argument = |container: &Value| expand(container["args"][0].as_str().expect("an argument"));
    let run: RunConfig = serde_json::from_str(&argument(&containers[0])).expect("a configuration");
    assert_eq!(run.process.args, ["$(HOME)", "$$", "a$b", "\"quoted\""]);
    assert_eq!(
        expand(containers[0]["env"][0]["value"].as_str().expect("a value")),
        "$(B) $$"
    );
    let key = &containers[0]["env"][1]["valueFrom"]["secretKeyRef"];
    assert_eq!(*key, json!({"name": "login", "key": "password"}));
    let serve: ServeConfig = serde_json::from_str(&argument(&containers[1])).expect("a configuration");
    assert_eq!(
        (&*serve.step, &*serve.outputs),
        ("uid-1", &["report".to_owned()][..])
    );
    let fetch: FetchConfig =
        serde_json::from_str(&argument(&pod["spec"]["initContainers"][0])).expect("a configuration");
    assert_eq!((fetch.inputs.len(), fetch.timeout_seconds), (2, 600));
}

/// The expansion of the kubelet, for texts without known variables.
fn expand(text: &str) -> String {
    let mut expanded = String::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '$' && chars.peek() == Some(&'$') {
            chars.next();
        } else {
            assert!(char != '$' || chars.peek() != Some(&'('), "is expanded: {text}");
        }
        expanded.push(char);
    }
    expanded
}

#[test]
fn limits_and_timeout_of_the_spec_are_those_of_the_process() {
    let mut spec = spec(false, false);
    spec["resources"] = json!({"limits": {"memory": "64Mi"}, "requests": {"cpu": "2"}});
    spec["timeout"] = json!("1m30.5s");
    spec["process"]["user"] = json!("1000:1001");
    let pod = build(spec);
    let process = &pod["spec"]["containers"][0];
    assert_eq!(
        process["resources"],
        json!({"limits": {"memory": "64Mi"}, "requests": {"cpu": "2"}})
    );
    let run: RunConfig =
        serde_json::from_str(process["args"][0].as_str().expect("text")).expect("a configuration");
    assert_eq!(run.timeout_seconds, Some(91));
    assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 1000);
    // The report has to be written before the kubelet kills the shim.
    assert!(
        run.grace_seconds
            < pod["spec"]["terminationGracePeriodSeconds"]
                .as_u64()
                .expect("seconds")
    );
}
