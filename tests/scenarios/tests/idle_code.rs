//! The code of plugins that nobody calls: unloaded after a while, and loaded again by the next call.

use std::{sync::Arc, time::Duration};

use ostler::testing::{
    capabilities::PluginCall,
    engine::{CompileCache, Engine},
    grants::Grants,
    inspection,
    limits::PluginLimits,
    plugin_policy::PluginPolicy,
};
use ostler_test_harness::{Lab, greeting_kind, process::HostProcess, read_component, scenario};
use serde_json::json;

/// Number of objects whose reconciles call an unloaded plugin together.
const GREETINGS: usize = 20;

#[scenario]
async fn code_of_an_idle_plugin_is_unmapped_until_its_next_call(lab: Lab) {
    lab.install(&["examples/greeting"]);
    let host = HostProcess::start(&lab, "host", &["--leader-elect=false"]);
    host.wait_started(&lab).await;
    assert_eq!(host.list_mapped_code().len(), 1, "ten minutes have not passed");
    drop(host);
    let host = HostProcess::start(&lab, "host", &["--leader-elect=false", "--unload-after", "1s"]);
    host.wait_started(&lab).await;
    for round in 0..2 {
        for number in 0..GREETINGS {
            lab.apply(json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
                "metadata": {"name": format!("g{round}-{number}"), "namespace": lab.namespace}, "spec": {"name": "Ada"}}))
            .await;
        }
        for number in 0..GREETINGS {
            lab.wait_ready(&greeting_kind(), &format!("g{round}-{number}"))
                .await;
        }
        lab.wait_until("no code is mapped", async || host.list_mapped_code().is_empty())
            .await;
        let loaded = host
            .fetch_metric(r#"ostler_plugin_code_loaded{plugin="greeting"}"#)
            .await;
        assert!(loaded == 0.0, "the metric says {loaded}");
    }
}

#[scenario(embedded = "it needs no API server")]
async fn unloaded_code_is_loaded_again_although_the_cache_was_emptied(lab: Lab) {
    let cache = || CompileCache {
        directory: lab.path().join("code"),
        compiler: None,
    };
    let wasm = read_component("examples/greeting");
    let wasi = inspection::inspect(&wasm).expect("a plugin").wasi;
    let engine = Engine::new(2, PluginLimits::default().memory, Some(cache()), None).expect("an engine");
    let compiled_here = engine.compile(&wasm, wasi).expect("it compiles");
    assert_eq!(engine.unload_idle(Duration::ZERO), 0, "code without a file stays");
    drop(compiled_here);

    let compiled = engine.compile(&wasm, wasi).expect("it is in the cache");
    assert_eq!(engine.unload_idle(Duration::from_secs(3600)), 0, "it is not idle");
    std::fs::remove_dir_all(cache().directory).expect("removed");
    for _ in 0..2 {
        lab.wait_until("the code is unloaded", async || {
            engine.unload_idle(Duration::ZERO) == 1
        })
        .await;
        assert!(!compiled.is_loaded());
        let policy = PluginPolicy {
            plugin: "greeting".into(),
            grants: Grants::default().grants_for("greeting"),
            config: Vec::new(),
            limits: PluginLimits::default(),
        };
        let described = engine
            .describe(&compiled, PluginCall::new(Arc::new(policy), None))
            .await;
        assert_eq!(described.expect("it is loaded again").name, "greeting");
        assert!(compiled.is_loaded());
    }
}
