//! `ostler get`, `reconcile`, `suspend`, `resume` and `top` as their users call them.

use std::process::Command;

use ostler_test_harness::{Lab, greeting_kind, process::host_binary, scenario};
use serde_json::{Value, json};

use crate::observability::{FollowedCommand, ostler, serve_admin};

/// Output of a command: its success, standard output and standard error.
type Output = (bool, String, String);

/// Runs `ostler` for a host and the cluster of a lab.
async fn run(lab: &Lab, url: &str, arguments: &[&str]) -> Output {
    let kubeconfig = lab.kubeconfig.to_str().expect("a path");
    let place = ["--admin", url, "--kubeconfig", kubeconfig];
    let output = ostler(&[arguments, &place].concat()).await;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn greeting(lab: &Lab, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": name, "namespace": lab.namespace, "labels": {"team": name}}, "spec": {"name": "Ada"}})
}

#[scenario]
async fn objects_are_listed_reconciled_suspended_and_resumed_by_commands(mut lab: Lab) {
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let (_, url) = serve_admin(&lab).await;
    let namespace = lab.namespace.clone();
    let (good, text, error) = run(&lab, &url, &["get", "-n", &namespace]).await;
    assert!(
        good && text.is_empty() && error.contains("no objects are reconciled in namespace"),
        "{text}{error}"
    );
    for name in ["a", "b"] {
        lab.apply(greeting(&lab, name)).await;
        lab.wait_ready(&greeting_kind(), name).await;
    }
    lab.wait_idle().await;

    let (_, table, _) = run(&lab, &url, &["get", "greeting", "-n", &namespace]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(
        lines[0].starts_with("OBJECT") && lines[1].starts_with("greeting/a  Ready  Greeted"),
        "{table}"
    );
    let (_, table, _) = run(&lab, &url, &["get", "-A", "-o", "wide", "-l", "team=b"]).await;
    assert!(
        table.starts_with("NAMESPACE") && table.contains("greeting/b") && !table.contains("greeting/a"),
        "{table}"
    );
    assert!(table.contains("Hello, Ada!"), "the message in\n{table}");
    let (_, json, _) = run(&lab, &url, &["get", "greeting/a", "-n", &namespace, "-o", "json"]).await;
    let listed: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&listed[0]["name"], &listed[0]["state"]),
        (&json!("a"), &json!("Ready"))
    );
    assert_eq!(listed[0]["plugin"], "greeting");
    let (_, yaml, _) = run(&lab, &url, &["get", "greeting/a", "-n", &namespace, "-o", "yaml"]).await;
    let same: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(same[0]["name"], listed[0]["name"]);
    for (arguments, words) in [
        (["get", "greeting/c"], "there is no greeting/c"),
        (["get", "teem"], "there are Greeting.v1alpha1.examples.ostler.dev"),
        (["get", "--selector=a b"], "the label selector"),
        (["reconcile", "greeting/c"], "there is no greeting/c"),
    ] {
        let (good, _, error) = run(&lab, &url, &arguments).await;
        assert!(!good && error.contains(words), "{arguments:?}: {error}");
    }

    let watching = ["get", "greeting", "-w", "-n", &namespace, "--admin", &url];
    let mut watched = FollowedCommand::start(&watching);
    watched.wait_line("greeting/b").await;
    let reconciles = lab.wake_causes(&greeting_kind(), "a").len();
    let (good, text, _) = run(&lab, &url, &["reconcile", "greeting/a", "-n", &namespace]).await;
    assert!(good && text.starts_with("greeting/a: "), "{text}");
    lab.wait_until("it is reconciled once more", async || {
        lab.wake_causes(&greeting_kind(), "a").len() > reconciles
    })
    .await;
    let (good, text, error) = run(
        &lab,
        &url,
        &["suspend", "greeting/a", "greeting/b", "-n", &namespace],
    )
    .await;
    assert!(good && text.contains("greeting/a suspended"), "{text}{error}");
    watched.wait_line("greeting/a Paused").await;
    let paused = lab.get(&greeting_kind(), "a").await.expect("the greeting");
    assert_eq!(paused["metadata"]["annotations"]["ostler.dev/paused"], "true");
    let (good, _, error) = run(&lab, &url, &["resume", "greeting/a", "-n", &namespace]).await;
    assert!(good, "{error}");
    watched.wait_line("greeting/a Ready").await;
    lab.delete(&greeting_kind(), "b").await;
    watched.wait_line("greeting/b deleted").await;

    let completer = lab.path().join("kubectl_complete-ostler");
    std::os::unix::fs::symlink(host_binary(), &completer).expect("a link");
    let complete = async |words: &[&str]| {
        let mut command = Command::new(&completer);
        command.args(words).env("OSTLER_ADMIN", &url);
        let output = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await;
        String::from_utf8(output.expect("it ends").stdout).expect("UTF-8")
    };
    assert_eq!(complete(&["get", "gr"]).await, "greeting\n:4\n");
    assert_eq!(complete(&["explain", "gr"]).await, "greeting/\n:4\n");
    assert_eq!(complete(&["explain", "greeting/"]).await, "greeting/a\n:4\n");
    assert_eq!(complete(&["logs", "--plugin", "g"]).await, "greeting\n:4\n");
    assert_eq!(complete(&["get", "-n", ""]).await, format!("{namespace}\n:4\n"));
    assert!(complete(&["sus"]).await.starts_with("suspend\n"));

    let (good, table, error) = run(&lab, &url, &["top", "--interval", "100ms", "-o", "wide"]).await;
    assert!(good && table.starts_with("PLUGIN"), "{table}{error}");
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(
        matches!(&rows[..], [row] if row.starts_with("greeting ")),
        "plugins only:\n{table}"
    );
}
