//! The same examples in four languages have the same observable behaviour. The cost per language is measured by
//! `cargo test --release -p ostler-scenarios -- --ignored --nocapture languages::figures`.

mod site;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
};
use ostler::testing::{
    bindings::{reconciler, types},
    capabilities::PluginCall,
    dispatcher::Cause,
    engine::{CompileCache, Compiled, Engine, Inspector},
    grants::Grants,
    inspection,
    key::Gvk,
    limits::PluginLimits,
    plugin_policy::PluginPolicy,
    trap::Trap,
};
use ostler_test_harness::{Lab, compiled_dir, probe::config_map, read_component, scenario, workspace_root};
use serde_json::{Value, json};

#[scenario]
async fn bookmark_in_rust_behaves_as_documented(lab: Lab) {
    check_bookmark("bookmark-rust", lab).await;
}

#[scenario]
async fn bookmark_in_javascript_behaves_as_documented(lab: Lab) {
    check_bookmark("bookmark-js", lab).await;
}

#[scenario]
async fn bookmark_in_python_behaves_as_documented(lab: Lab) {
    check_bookmark("bookmark-python", lab).await;
}

#[scenario]
async fn bookmark_in_go_behaves_as_documented(lab: Lab) {
    check_bookmark("bookmark-go", lab).await;
}

#[scenario]
async fn site_in_rust_is_provisioned_and_deprovisioned_in_order(lab: Lab) {
    site::check_site("site-rust", lab).await;
}

#[scenario]
async fn site_in_javascript_is_provisioned_and_deprovisioned_in_order(lab: Lab) {
    site::check_site("site-js", lab).await;
}

#[scenario]
async fn site_in_python_is_provisioned_and_deprovisioned_in_order(lab: Lab) {
    site::check_site("site-python", lab).await;
}

#[scenario]
async fn site_in_go_is_provisioned_and_deprovisioned_in_order(lab: Lab) {
    site::check_site("site-go", lab).await;
}

const PAGE_TEXT: &str = "Grüße, 世界 🦀 <&> \"\\\n";

/// An upstream with configurable responses that records its requests.
#[derive(Clone, Default)]
struct PageServer(Arc<Mutex<PageState>>);

#[derive(Default)]
struct PageState {
    answers: BTreeMap<String, (u16, String)>,
    asked: Vec<String>,
}

impl PageServer {
    /// Starts listening and returns the URL.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new().fallback(respond).with_state(self.clone());
        tokio::spawn(async { axum::serve(listener, router).await });
        url
    }

    fn set_response(&self, what: &str, status: u16, body: &str) {
        let mut state = self.0.lock().expect("lock");
        state.answers.insert(what.into(), (status, body.into()));
    }

    fn count_requests(&self, what: &str) -> usize {
        let state = self.0.lock().expect("lock");
        state.asked.iter().filter(|asked| *asked == what).count()
    }
}

async fn respond(State(pages): State<PageServer>, request: Request) -> (StatusCode, String) {
    let what = format!("{} {}", request.method(), request.uri());
    let mut state = pages.0.lock().expect("lock");
    state.asked.push(what.clone());
    let (status, body) = state.answers.get(&what).cloned().unwrap_or_default();
    (
        StatusCode::from_u16(status).unwrap_or(StatusCode::NOT_FOUND),
        body,
    )
}

fn bookmarks() -> Gvk {
    Gvk::new("examples.ostler.dev", "v1alpha1", "Bookmark")
}

fn bookmark(lab: &Lab, name: &str, path: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Bookmark",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"title": format!("Ünïcode {name}"), "upstream": "pages", "path": path, "every": 1}})
}

/// The observable state of an object and its child, without timestamps and versions.
async fn observed_state(lab: &Lab, name: &str) -> Value {
    let object = lab.get(&bookmarks(), name).await.expect("there");
    let child = lab.get(&config_map(), name).await.unwrap_or_default();
    let mut status = object["status"].clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        let condition = condition.as_object_mut().expect("an object");
        condition.retain(|field, _| field != "lastTransitionTime");
    }
    let owner = &child["metadata"]["ownerReferences"][0];
    json!({"status": status, "finalizers": object["metadata"]["finalizers"], "data": child["data"],
        "owner": [owner["kind"], owner["name"], owner["controller"]]})
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 1})
}

async fn check_bookmark(plugin: &str, mut lab: Lab) {
    let grants = format!(
        "plugins:\n  {plugin}:\n    reconciles: [{{group: examples.ostler.dev, kinds: ['*']}}]\n    kubernetes: [{{kinds: [ConfigMap], verbs: [apply]}}]\n    \
         upstreams: [{{methods: [GET, DELETE], paths: [/*]}}]\n    events: true\n"
    );
    lab.settings.grants = Grants::parse(&grants, "grants.yaml").expect("grants");
    lab.install(&[&format!("examples/{plugin}")]);
    lab.apply(bookmark(&lab, "home", "/home?a=b")).await;
    lab.start_host().await;

    // Without an Upstream the object waits, and is woken by its creation.
    lab.wait_condition(&bookmarks(), "home", "Ready", "False", "NotFound")
        .await;
    let (pages, kind) = (PageServer::default(), bookmarks());
    pages.set_response("GET /home?a=b", 200, PAGE_TEXT);
    lab.apply(json!({"apiVersion": "ostler.dev/v1alpha1", "kind": "Upstream",
        "metadata": {"name": "pages", "namespace": lab.namespace}, "spec": {"url": pages.start().await}}))
        .await;
    lab.wait_ready(&kind, "home").await;
    let kept = json!({
        "status": {
            "conditions": [
                condition("Ready", "True", "Kept", "Ünïcode home is kept"),
                condition("Reachable", "True", "Answered", "GET /home?a=b was answered with 200"),
            ],
            "observedGeneration": 1, "httpStatus": 200, "bytes": PAGE_TEXT.len(),
        },
        "finalizers": ["examples.ostler.dev/bookmark"],
        "data": {"title": "Ünïcode home", "page": PAGE_TEXT},
        "owner": ["Bookmark", "home", true],
    });
    assert_eq!(observed_state(&lab, "home").await, kept);

    // It polls, and writes nothing without a change.
    let (writes, asked) = (lab.api_writes(), pages.count_requests("GET /home?a=b"));
    lab.wait_until("it has polled", async || {
        pages.count_requests("GET /home?a=b") >= asked + 2
    })
    .await;
    assert_eq!(lab.api_writes(), writes);
    assert!(lab.wake_causes(&kind, "home").contains(&Cause::Poll));

    // A changed page is stored; an error response is reported, and the stored page stays.
    pages.set_response("GET /home?a=b", 200, "new");
    lab.wait_until("the page is followed", async || {
        observed_state(&lab, "home").await["data"]["page"] == "new"
    })
    .await;
    pages.set_response("GET /home?a=b", 500, "no");
    lab.wait_condition(&kind, "home", "Reachable", "False", "UnexpectedAnswer")
        .await;
    let broken = observed_state(&lab, "home").await;
    let said = "GET /home?a=b was answered with 500";
    for expected in [
        condition("Ready", "False", "UnexpectedAnswer", said),
        condition("Reachable", "False", "UnexpectedAnswer", said),
        condition("Reconciling", "True", "UnexpectedAnswer", said),
    ] {
        let conditions = broken["status"]["conditions"].as_array().expect("conditions");
        assert!(conditions.contains(&expected), "{expected} is not in {broken}");
    }
    assert_eq!(broken["data"]["page"], "new");
    pages.set_response("GET /home?a=b", 200, PAGE_TEXT);
    lab.wait_ready(&kind, "home").await;
    assert_eq!(observed_state(&lab, "home").await, kept);

    // An invalid spec is terminal: no request is sent, and the object can be deleted.
    lab.apply(bookmark(&lab, "wrong", "no-slash")).await;
    lab.wait_condition(&kind, "wrong", "Stalled", "True", "InvalidPath")
        .await;
    let wrong = observed_state(&lab, "wrong").await;
    let refused = condition(
        "Ready",
        "False",
        "InvalidPath",
        "spec.path: no-slash does not start with /",
    );
    let conditions = wrong["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.contains(&refused), "{refused} is not in {wrong}");
    assert_eq!(wrong["data"], Value::Null);
    lab.delete(&kind, "wrong").await;
    lab.wait_gone(&kind, "wrong").await;

    // Cleanup waits for the upstream's response; then the object and its child are deleted.
    pages.set_response("DELETE /home?a=b", 503, "not now");
    lab.delete(&kind, "home").await;
    lab.wait_until("the upstream is called", async || {
        pages.count_requests("DELETE /home?a=b") > 0
    })
    .await;
    lab.wait_condition(&kind, "home", "Ready", "False", "UnexpectedAnswer")
        .await;
    pages.set_response("DELETE /home?a=b", 204, "");
    lab.wait_gone(&kind, "home").await;
    lab.wait_gone(&config_map(), "home").await;
    lab.wait_until("the event of its cleanup is written", async || {
        let events = lab.list(&Gvk::new("", "v1", "Event")).await;
        events
            .iter()
            .any(|e| e["reason"] == "Forgotten" && e["message"] == "Ünïcode home is forgotten")
    })
    .await;
    let traps = lab.host().stats().all_objects();
    let traps: Vec<_> = traps
        .iter()
        .flat_map(|facts| &facts.errors)
        .filter(|e| e.reason.starts_with("Plugin"))
        .collect();
    assert!(traps.is_empty(), "{traps:?}");
}

/// Limits of a measurement, with a CPU time that no component exceeds.
fn measuring_limits() -> PluginLimits {
    PluginLimits {
        cpu_time: Duration::from_secs(60),
        ..PluginLimits::default()
    }
}

/// Runs one reconcile without a host, in which all host calls are denied.
async fn call_reconcile(
    engine: &Engine,
    compiled: &Compiled,
    object: Value,
) -> Result<reconciler::Failure, Trap> {
    let policy = PluginPolicy {
        plugin: "measured".into(),
        grants: Grants::default().grants_for("measured"),
        config: b"{}".to_vec(),
        limits: measuring_limits(),
    };
    let request = reconciler::Request {
        object: object.to_string().into_bytes(),
        ref_: types::ObjectRef {
            gvk: types::Gvk {
                group: "examples.ostler.dev".into(),
                version: "v1alpha1".into(),
                kind: "Bookmark".into(),
            },
            cluster: None,
            namespace: Some("default".into()),
            name: "home".into(),
        },
        attempt: 0,
        causes: vec!["change".into()],
    };
    let (answer, _) = engine
        .reconcile(compiled, PluginCall::new(Arc::new(policy), None), request, false)
        .await;
    answer.map(|result| result.expect_err("all is denied"))
}

/// Measures one reconcile. All host calls are denied, so that only the component is measured.
async fn measure_call(engine: &Engine, compiled: &Compiled) -> Duration {
    let object = json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Bookmark",
        "metadata": {"name": "home", "namespace": "default"},
        "spec": {"title": "Home", "upstream": "pages", "path": "/home", "every": 1}});
    let began = Instant::now();
    let answer = call_reconcile(engine, compiled, object).await;
    let took = began.elapsed();
    let failure = answer.expect("it does not trap");
    assert_eq!(failure.reason, "PermissionDenied", "{failure:?}");
    took
}

/// The object has no spec, which the schema of the kind would refuse. Rust and Go parse it into types, and return a failure.
#[scenario(embedded = "it needs no API server")]
async fn uncaught_exception_is_reported_with_its_file_and_line() {
    for (name, source, statement, message) in [
        (
            "bookmark-js",
            "index.js",
            "spec.path.startsWith",
            "TypeError: cannot read property 'path' of undefined",
        ),
        (
            "bookmark-python",
            "main.py",
            "bookmark[\"metadata\"]",
            "KeyError: 'metadata'",
        ),
    ] {
        let cache = CompileCache {
            directory: compiled_dir(),
            compiler: None,
        };
        let engine = Engine::new(2, measuring_limits().memory, Some(cache), None).expect("an engine");
        let wasm = read_component(&format!("examples/{name}"));
        let wasi = inspection::inspect(&wasm).expect("a plugin").wasi;
        let compiled = engine.compile(&wasm, wasi).expect("compiles");
        let trap = call_reconcile(&engine, &compiled, json!({}))
            .await
            .expect_err(name);
        let path = workspace_root().join("plugins/examples").join(name).join(source);
        let text = std::fs::read_to_string(path).expect("the source");
        let line = 1 + text
            .lines()
            .position(|line| line.contains(statement))
            .expect("the statement");
        let shown = trap.to_string();
        assert!(
            shown.contains(message) && shown.contains(&format!("{source}:{line})")),
            "{shown}"
        );
        let stack = trap.stack().unwrap_or_default();
        assert!(
            stack.lines().count() > 1 && stack.contains("reconcile"),
            "{stack}"
        );
    }
}

/// Lines that are neither empty nor a comment.
fn count_lines(file: &str) -> usize {
    let text =
        std::fs::read_to_string(workspace_root().join("plugins/examples").join(file)).expect("the source");
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with('#'))
        .count()
}

const LANGUAGE_EXAMPLES: [(&str, &str, &str); 4] = [
    ("Rust", "bookmark-rust", "bookmark-rust/src/lib.rs"),
    ("Go", "bookmark-go", "bookmark-go/main.go"),
    ("JavaScript", "bookmark-js", "bookmark-js/index.js"),
    ("Python", "bookmark-python", "bookmark-python/main.py"),
];

/// Cost of the example in each language: the minimum of many calls, to exclude the load of other processes.
mod figures {
    use super::*;

    fn engine(cached: bool, inspector: Option<Inspector>) -> Engine {
        let cache = CompileCache {
            directory: compiled_dir(),
            compiler: None,
        };
        Engine::new(2, measuring_limits().memory, cached.then_some(cache), inspector).expect("an engine")
    }

    fn compile_example(engine: &Engine, name: &str) -> (usize, Arc<Compiled>, Duration) {
        let wasm = read_component(&format!("examples/{name}"));
        let wasi = inspection::inspect(&wasm).expect("a plugin").wasi;
        let began = Instant::now();
        let compiled = engine.compile(&wasm, wasi).expect("compiles");
        (wasm.len(), compiled, began.elapsed())
    }

    #[tokio::test]
    #[ignore = "measures: see the top of this file"]
    async fn measure_calls() {
        const CALL_COUNT: usize = 200;
        println!("| language | lines | component | call | ×Rust | linear memory |");
        println!("|---|---:|---:|---:|---:|---:|");
        let mut rust: Option<f64> = None;
        for (language, name, source) in LANGUAGE_EXAMPLES {
            let engine_of_calls = engine(true, None);
            let (bytes, component, _) = compile_example(&engine_of_calls, name);
            let mut least = Duration::MAX;
            for _ in 0..CALL_COUNT {
                least = least.min(measure_call(&engine_of_calls, &component).await);
            }
            let least = least.as_secs_f64();
            let ratio = least / *rust.get_or_insert(least);
            // A separate engine, since memory inspection slows calls down.
            let seen = Arc::new(AtomicUsize::new(0));
            let counted = seen.clone();
            let inspector = Inspector::new(move |memory| {
                counted.fetch_add(memory.len(), Ordering::Relaxed);
            });
            let engine = engine(true, Some(inspector));
            measure_call(&engine, &compile_example(&engine, name).1).await;
            println!(
                "| {language} | {} | {:.2} MB | {:.2} ms | {ratio:.0} | {:.1} MB |",
                count_lines(source),
                bytes as f64 / 1e6,
                least * 1e3,
                seen.load(Ordering::Relaxed) as f64 / 1e6,
            );
        }
    }

    #[tokio::test]
    #[ignore = "measures: see the top of this file"]
    async fn measure_cold_compile() {
        println!("| language | cold compile | ×Rust |");
        println!("|---|---:|---:|");
        let mut rust: Option<f64> = None;
        for (language, name, _) in LANGUAGE_EXAMPLES {
            let took = compile_example(&engine(false, None), name).2.as_secs_f64();
            let ratio = took / *rust.get_or_insert(took);
            println!("| {language} | {took:.1} s | {ratio:.0} |");
        }
    }
}
