//! `ostler plan`: shows the changes that reconciling would make, without making them.

mod builds;
mod limits;
mod objects;
mod pack;

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
};

use ostler::HostSettings;
use ostler::testing::{
    key::Gvk,
    plan::{PlanReport, PlanRequest, plan},
};
use ostler_test_harness::{
    Lab, PACK_GRANTS, compiled_dir, concourse,
    probe::{kind, write},
    process, scenario,
};
use serde_json::{Value, json};

/// Settings of a plan with the lab's plugins.
fn settings(lab: &Lab) -> HostSettings {
    HostSettings {
        namespaces: Vec::new(),
        ..lab.settings.clone()
    }
}

fn plan_request(lab: &Lab) -> PlanRequest {
    PlanRequest {
        namespace: Some(lab.namespace.clone()),
        default_namespace: lab.namespace.clone(),
        ..PlanRequest::default()
    }
}

fn file(object: Value) -> Vec<(String, Value)> {
    vec![("file.yaml".into(), object)]
}

async fn planned(lab: &Lab, plan_request: PlanRequest) -> PlanReport {
    plan(lab.client.clone(), settings(lab), &plan_request)
        .await
        .expect("a plan")
}

/// The plan of one object in a file.
async fn planned_with(lab: &Lab, object: Value) -> PlanReport {
    let files = file(object);
    planned(
        lab,
        PlanRequest {
            files,
            ..plan_request(lab)
        },
    )
    .await
}

/// The error of a plan that an object in a file makes fail.
async fn refused_with(lab: &Lab, object: Value) -> String {
    let files = file(object);
    let refused = plan(
        lab.client.clone(),
        settings(lab),
        &PlanRequest {
            files,
            ..plan_request(lab)
        },
    )
    .await;
    format!("{:#}", refused.expect_err("the plan fails"))
}

/// The planned object of this name.
fn would_be(report: &PlanReport, name: &str) -> Value {
    let end = format!("/{name}");
    let change = report.changes.iter().find(|c| c.object.ends_with(&end));
    change.and_then(|c| c.planned.clone()).expect("planned")
}

/// The resourceVersions of all objects in the test's namespace that a plan might write.
async fn snapshot(lab: &Lab) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let core = ["ConfigMap", "Secret", "Event"].map(|kind| Gvk::new("", "v1", kind));
    let pack = ["Instance", "Team", "Pipeline"].map(concourse::kind);
    let ours = [kind(), Gvk::new("ostler.dev", "v1alpha1", "Upstream")];
    for gvk in core.into_iter().chain(pack).chain(ours) {
        for object in lab.list(&gvk).await {
            let metadata = &object["metadata"];
            versions.insert(
                format!("{gvk} {}", metadata["name"]),
                metadata["resourceVersion"].to_string(),
            );
        }
    }
    versions
}

fn probe(lab: &Lab, name: &str, steps: Value, cleanup: Value) -> Value {
    json!({"apiVersion": "tests.ostler.dev/v1alpha1", "kind": "Probe",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"steps": steps, "cleanup": cleanup}})
}

/// Reconciles a probe until it is idle, and stops the host.
async fn settled(lab: &mut Lab, steps: Value, cleanup: Value) {
    lab.start_probe().await;
    lab.apply_probe("p", steps, cleanup).await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_idle().await;
    drop(lab.host.take());
}

fn ostler(lab: &Lab, arguments: &[&str], grants: &str) -> Output {
    let file = lab.path().join("plan-grants.yaml");
    std::fs::write(&file, grants).expect("written");
    Command::new(process::host_binary())
        .args([
            "plan",
            "--allow-network",
            "127.0.0.1",
            "--namespace",
            &lab.namespace,
        ])
        .arg("--kubeconfig")
        .arg(&lab.kubeconfig)
        .arg("--plugin-dir")
        .arg(&lab.settings.plugins)
        .arg("--grants")
        .arg(file)
        .arg("--plugin-selector")
        .arg(format!("lab={}", lab.namespace))
        .arg("--cache-dir")
        .arg(compiled_dir())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("it runs")
}

#[scenario]
async fn plan_command_prints_diff_and_sets_exit_code(mut lab: Lab) {
    settled(&mut lab, json!([write("apply", "child", "1")]), json!([])).await;
    let grants = format!(
        "{PACK_GRANTS}  probe: {{reconciles: [{{group: tests.ostler.dev, kinds: ['*']}}], kubernetes: [{{kinds: [ConfigMap], verbs: [get, list, apply], namespaces: ['*']}}], events: true}}\n"
    );
    let run = |arguments: &[&str]| ostler(&lab, arguments, &grants);
    let result = |output: &Output| {
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(result(&run(&[])), (Some(0), String::new(), String::new()));
    let file = lab.path().join("edit.yaml");
    let edited = probe(&lab, "p", json!([write("apply", "child", "2")]), json!([]));
    std::fs::write(&file, edited.to_string()).expect("written");
    let file = file.to_str().expect("a path");
    let (code, out, error) = result(&run(&["-f", file]));
    assert_eq!((code, &*error), (Some(1), ""), "{out}");
    assert!(
        out.contains("-  v: \"1\"\n+  v: \"2\"\n") && !out.contains('\x1b'),
        "{out}"
    );
    let (code, out, _) = result(&run(&["-f", file, "-o", "json"]));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &report["changes"][0]["action"]),
        (Some(1), &json!("update"))
    );
    let (code, out, error) = result(&run(&["team/none"]));
    assert_eq!((code, &*out), (Some(2), ""), "{error}");
    assert!(error.contains("they reconcile Probe"), "{error}");
    let (code, _, error) = result(&run(&["-f", "nowhere.yaml"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("nowhere.yaml"), "{error}");
}
