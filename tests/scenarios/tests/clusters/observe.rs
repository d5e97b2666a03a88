//! Recordings, replays, metrics, traces and explanations of reconciles that use another cluster.

use std::sync::Arc;

use futures::StreamExt;
use ostler::testing::{
    admin::question::Question,
    dispatcher::Cause,
    engine::Engine,
    grants::Grants,
    inspection,
    limits::PluginLimits,
    queue::Priority,
    recording::{comparison::ValueChange, format::Recording, trace::TraceLine, value::RecordedValue},
    replay::{Difference, Replayed, replay},
};
use ostler_test_harness::{read_component, scenario};

use super::*;

/// Grants of the probe without access to Secrets, whose values a recording would lack.
const CONFIG_MAPS_ONLY: &str = "plugins:
  probe:
    reconciles: [{group: tests.ostler.dev, kinds: ['*']}]
    kubernetes: [{kinds: [ConfigMap], verbs: [get, list, apply, create, patch], clusters: ['Same/*']}]
";

/// Starts a host with a probe `p` that reads, lists, applies, creates and patches on the cluster `east`, and has the further
/// steps.
async fn start_recorded(lab: &mut Lab, east: &SecondCluster, more: &[Value]) {
    lab.settings.grants = Grants::parse(CONFIG_MAPS_ONLY, "grants.yaml").expect("they parse");
    lab.start_probe().await;
    apply_cluster(lab, "east", east.kubeconfig()).await;
    // A wake-up would create the object again.
    protect_east(lab).await;
    for name in ["there", "patched"] {
        east.apply_config_map(lab, name, "1").await;
    }
    let mut create = write("create", "created", "1");
    create["owned"] = false.into();
    let mut steps: Vec<Value> = [
        json!({"do": "get", "kind": "ConfigMap", "name": "there"}),
        json!({"do": "list", "kind": "ConfigMap", "labels": "tier=none"}),
        write("apply", "made", "1"),
        json!({"do": "patch", "kind": "ConfigMap", "name": "patched", "object": "{\"data\": {\"w\": \"2\"}}"}),
        create,
    ]
    .map(|step| on_east(lab, step))
    .to_vec();
    steps.extend_from_slice(more);
    lab.apply_probe("p", json!(steps), json!([])).await;
}

/// Runs the probe against a recording, in an engine of its own.
async fn replay_recording(recording: &Recording) -> Replayed {
    let wasm = read_component("tests/probe");
    let inspection = inspection::inspect(&wasm).expect("a component");
    let engine = Engine::new(2, PluginLimits::default().memory, None, None).expect("an engine");
    let compiled = engine.compile(&wasm, inspection.wasi).expect("it compiles");
    let replayed = replay(&engine, &compiled, Arc::new(recording.clone())).await;
    replayed.expect("it can be replayed")
}

/// Renames the cluster of a step in the recorded input, as if the build used another cluster.
fn rename_cluster(recording: &mut Recording, step: usize, cluster: &str) {
    let RecordedValue::Record(request) = &mut recording.request else {
        panic!("a request")
    };
    let objects = request.iter_mut().filter(|(name, _)| &**name == "object");
    for (_, value) in objects {
        let RecordedValue::Bytes(object) = value else {
            panic!("an object")
        };
        let mut edited: Value = serde_json::from_slice(object).expect("JSON");
        edited["spec"]["steps"][step]["cluster"] = cluster.into();
        *object = edited.to_string().into();
    }
}

#[scenario]
async fn reconcile_on_another_cluster_is_recorded_and_replays(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    start_recorded(&mut lab, &east, &[json!({"do": "park"})]).await;
    lab.wait_condition(&kind(), "p", "Ready", "False", "Requested")
        .await;
    lab.wait_idle().await;
    let store = &lab.host().services().recordings;
    let kept = store.last(&lab.key(&kind(), "p")).expect("it is kept");
    let recording = kept.to_recording();
    let functions = recording.calls.iter().map(|call| &*call.function);
    let functions: Vec<_> = functions.filter(|f| f.starts_with("kubernetes.")).collect();
    let expected = ["get", "list", "apply", "patch", "create"].map(|name| format!("kubernetes.{name}"));
    assert_eq!(functions, expected);
    let recording = Recording::parse(&recording.to_text(), "r.json").expect("its own format");
    // The replay reads and writes nothing there.
    east.set_down(true);
    let same = replay_recording(&recording).await;
    assert!(same.same && same.differences.is_empty(), "{same:#?}");
    assert_eq!((same.calls, &*same.ended), (recording.calls.len(), "failure"));
    // A build that reads or writes on another cluster diverges at that call.
    for (step, name) in ["get", "list", "apply", "patch", "create"]
        .into_iter()
        .enumerate()
    {
        let mut other = recording.clone();
        rename_cluster(&mut other, step, "elsewhere/west");
        let diverged = replay_recording(&other).await;
        let found = diverged.differences.iter().any(|difference| match difference {
            Difference::Diverged {
                function, changes, ..
            }
            | Difference::Arguments {
                function, changes, ..
            } => {
                let is_cluster = |change: &ValueChange| {
                    change.path.ends_with("cluster") && change.replayed == Some(json!("elsewhere/west"))
                };
                **function == *format!("kubernetes.{name}") && changes.iter().any(is_cluster)
            }
            _ => false,
        });
        assert!(found && !diverged.same, "{name}: {diverged:#?}");
    }
}

/// Reads the trace of one reconcile of the probe `p`, which it requests.
async fn trace_reconcile(lab: &Lab, url: &str) -> Vec<TraceLine> {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let path = format!("{url}/trace?kind=probe&name=p&namespace={}", lab.namespace);
    let response = client.get(path).send().await.expect("a response");
    assert!(response.status().is_success());
    let dispatcher = &lab.host().services().dispatcher;
    dispatcher.enqueue(&lab.key(&kind(), "p"), Priority::High, Cause::Manual);
    let mut body = response.bytes_stream();
    let (mut text, mut lines) = (String::new(), Vec::<TraceLine>::new());
    while !matches!(lines.last(), Some(TraceLine::End { .. })) {
        let chunk = body.next().await.expect("more").expect("bytes");
        text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        while let Some((line, rest)) = text.split_once('\n') {
            if !line.is_empty() {
                lines.push(serde_json::from_str(line).expect("a line"));
            }
            text = rest.to_owned();
        }
    }
    lines
}

#[scenario]
async fn metrics_traces_and_explanations_name_the_cluster(mut lab: Lab) {
    let east = SecondCluster::start(&lab).await;
    start_recorded(&mut lab, &east, &[]).await;
    lab.wait_ready(&kind(), "p").await;
    // An object is created once, so the further reconciles are without this step.
    let mut spec = lab.get(&kind(), "p").await.expect("it exists")["spec"]["steps"].clone();
    spec.as_array_mut().expect("steps").pop();
    lab.apply_probe("p", spec, json!([])).await;
    lab.wait_ready(&kind(), "p").await;
    lab.wait_idle().await;
    let admin = lab.admin();
    let address = admin
        .serve_local("127.0.0.1:0".parse().expect("an address"))
        .await;
    let url = format!("http://{}", address.expect("it binds"));

    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let response = client.get(format!("{url}/metrics")).send().await;
    let metrics = response.expect("a response").text().await.expect("a text");
    let host = format!("host=\"{}/east\"", lab.namespace);
    for (method, minimum) in [("GET", 3), ("PATCH", 2), ("POST", 1)] {
        let sent: f64 = metrics
            .lines()
            .filter(|line| line.starts_with("rest_client_requests_total{code=\"20"))
            .filter(|line| line.contains(&host) && line.contains(&format!("method=\"{method}\"")))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum();
        assert!(sent >= f64::from(minimum), "{sent} requests with {method}");
    }

    let lines = trace_reconcile(&lab, &url).await;
    let calls = lines.iter().filter_map(|line| match line {
        TraceLine::Call {
            function, arguments, ..
        } => Some((&**function, &**arguments)),
        _ => None,
    });
    let calls: Vec<_> = calls.filter(|(f, _)| f.starts_with("kubernetes.")).collect();
    let names: Vec<_> = calls.iter().map(|(function, _)| *function).collect();
    assert_eq!(
        names,
        ["get", "list", "apply", "patch"].map(|name| format!("kubernetes.{name}"))
    );
    let cluster = format!("{}/east", lab.namespace);
    assert!(
        calls.iter().all(|(_, arguments)| arguments.contains(&cluster)),
        "{calls:#?}"
    );

    let question = Question {
        kind: "probe".into(),
        namespace: Some(lab.namespace.clone()),
        name: "p".into(),
    };
    let explained = lab.admin().explain(&question).expect("explained");
    let reads: Vec<_> = explained.reads.iter().map(|read| &*read.what).collect();
    for name in ["there", "made", "patched"] {
        let far = format!("ConfigMap/{cluster}:{}/{name}", lab.namespace);
        assert!(reads.contains(&&*far), "{far} in {reads:?}");
    }
    let list = format!("ConfigMap in {cluster}:{} where tier=none", lab.namespace);
    assert!(reads.contains(&&*list), "{list} in {reads:?}");
}
