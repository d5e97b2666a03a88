//! Traces over OTLP, as received by a collector.

use std::{
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use axum::{body::Bytes, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    trace::v1::{Span, status::StatusCode},
};
use ostler_test_harness::{ADMIN_PASSWORD, Lab, concourse::kind, process, scenario};
use prost::Message;
use serde_json::Value;

/// Receives traces like an OpenTelemetry collector.
#[derive(Clone, Default)]
struct Receiver {
    spans: Arc<Mutex<Vec<Span>>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Receiver {
    async fn start(&self) -> String {
        let receiver = self.clone();
        let take = async move |body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body.clone()).expect("OTLP");
            receiver.bytes.lock().expect("lock").extend_from_slice(&body);
            let scopes = request.resource_spans.into_iter().flat_map(|r| r.scope_spans);
            receiver
                .spans
                .lock()
                .expect("lock")
                .extend(scopes.flat_map(|s| s.spans));
            ExportTraceServiceResponse::default().encode_to_vec()
        };
        let routes = axum::Router::new().route("/v1/traces", post(take));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    /// Spans of this name below the reconciles of an object: host calls and their requests.
    fn children(&self, object: &str, name: &str) -> Vec<Span> {
        let spans = self.spans.lock().expect("lock");
        let mut children = Vec::new();
        let under = |parent: &Span| {
            let of = |s: &&Span| s.parent_span_id == parent.span_id && s.trace_id == parent.trace_id;
            spans.iter().filter(of).cloned().collect::<Vec<_>>()
        };
        for reconcile in spans
            .iter()
            .filter(|s| s.name == "reconcile" && attribute(s, "object") == object)
        {
            for call in under(reconcile) {
                children.extend(under(&call));
                children.push(call);
            }
        }
        children.retain(|s| s.name == name);
        children
    }
}

fn attribute(span: &Span, name: &str) -> String {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let found = span.attributes.iter().find(|a| a.key == name);
    match found.and_then(|a| a.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        _ => String::new(),
    }
}

/// A host in a separate process, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[scenario]
async fn otlp_trace_has_a_span_per_reconcile_and_host_call(lab: Lab) {
    let receiver = Receiver::default();
    let endpoint = receiver.start().await;
    lab.install(&ostler_test_harness::concourse::PACK_COMPONENTS);
    let log = std::fs::File::create(lab.path().join("ostler.log")).expect("a log");
    let process = Command::new(process::host_binary())
        .args([
            "run",
            "--log-format",
            "json",
            "--admin-bind-address",
            "127.0.0.1:0",
        ])
        .args([
            "--leader-elect",
            "false",
            "--watch-namespace",
            &lab.namespace,
            "--kubeconfig",
        ])
        .arg(&lab.kubeconfig)
        .arg("--plugin-selector")
        .arg(format!("lab={}", lab.namespace))
        .arg("--plugin-dir")
        .arg(&lab.settings.plugins)
        .arg("--grants")
        .arg(ostler_test_harness::workspace_root().join("tests/grants.yaml"))
        .args(["--allow-network", "127.0.0.1"])
        .arg("--cache-dir")
        .arg(ostler_test_harness::compiled_dir())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .map(Process)
        .expect("the host starts");
    lab.apply(lab.team_object()).await;
    lab.wait_condition(&kind("Team"), "platform", "Ready", "False", "InstanceNotReady")
        .await;
    for object in [
        lab.password_secret(lab.concourse.password()),
        lab.registry_secret("registry-pass-0001"),
        lab.pipeline_config_map(ostler_test_harness::concourse::PIPELINE_YAML),
        lab.instance_object(),
        lab.pipeline_object(),
    ] {
        lab.apply(object).await;
    }
    lab.wait_ready(&kind("Pipeline"), "app").await;
    let name = |kind_name: &str, name: &str| lab.key(&kind(kind_name), name).to_string();
    let (team, pipeline) = (name("Team", "platform"), name("Pipeline", "app"));
    lab.wait_until("the traces are exported", async || {
        let refused = receiver.children(&team, "kubernetes.require-ready");
        let failed = |s: &Span| {
            s.status
                .as_ref()
                .is_some_and(|s| s.code() == StatusCode::Error && s.message == "NotReady")
        };
        let sent = receiver.children(&pipeline, "http.request");
        refused.iter().any(failed)
            && refused
                .iter()
                .any(|s| attribute(s, "object") == name("Instance", "ci") && !failed(s))
            && sent.iter().any(|s| {
                attribute(s, "method") == "PUT" && attribute(s, "http.response.status_code").starts_with("20")
            })
    })
    .await;
    let spans = receiver.spans.lock().expect("lock").clone();
    let reconciles: Vec<_> = spans.iter().filter(|s| s.name == "reconcile").collect();
    assert!(
        reconciles.iter().all(|s| s.parent_span_id.is_empty()),
        "each reconcile is a root span"
    );
    let of_team: Vec<_> = reconciles
        .iter()
        .filter(|s| attribute(s, "object") == team)
        .collect();
    assert!(
        of_team
            .iter()
            .all(|s| attribute(s, "plugin") == "concourse-team" && !attribute(s, "result").is_empty())
    );
    // A log line and its trace have the same reconcile id.
    let log = std::fs::read_to_string(lab.path().join("ostler.log")).expect("the log");
    let lines = log
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{l}: {e}")));
    let mut ids = lines
        .filter(|l| l["object"] == team && l["plugin"] == "concourse-team" && l["reconcile"].is_string());
    let line = ids
        .next()
        .unwrap_or_else(|| panic!("a line about {team} in\n{log}"));
    assert!(
        of_team
            .iter()
            .any(|s| line["reconcile"] == attribute(s, "reconcile")),
        "{line}"
    );
    // Data that was read or written is never exported.
    let bytes = receiver.bytes.lock().expect("lock").clone();
    for never in [
        ADMIN_PASSWORD,
        "registry-pass-0001",
        "resource_types",
        "image_resource",
    ] {
        assert!(
            !bytes.windows(never.len()).any(|w| w == never.as_bytes()),
            "{never} in a trace"
        );
        assert!(!log.contains(never), "{never} in the log");
    }
    drop(process);
}
