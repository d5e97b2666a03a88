//! Hot swap of a plugin under load: no edit is lost, no call fails, and an invalid build never serves.

use ostler::testing::{key::Gvk, plugin::LoadState};
use ostler_test_harness::{Lab, greeting_kind, read_component, scenario, with_note};
use serde_json::{Value, json};

const OBJECT_COUNT: usize = 200;
const SWAP_COUNT: usize = 10;

fn greeting(lab: &Lab, i: usize, name: &str) -> Value {
    json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": format!("g{i}"), "namespace": lab.namespace}, "spec": {"name": name}})
}

#[scenario]
async fn ten_swaps_under_load_lose_no_edit(mut lab: Lab) {
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let wasm = read_component("examples/greeting");
    for i in 0..OBJECT_COUNT {
        lab.apply(greeting(&lab, i, "round 0")).await;
    }
    for round in 1..=SWAP_COUNT {
        lab.install_bytes("greeting", &with_note(&wasm, &format!("build {round}")));
        for i in 0..OBJECT_COUNT {
            lab.apply(greeting(&lab, i, &format!("round {round}"))).await;
        }
        let served = || lab.host().registry().reports()[0].clone();
        lab.wait_until("the new build serves", async || {
            lab.host()
                .stats()
                .all_objects()
                .iter()
                .any(|f| f.plugin_digest == served().digest)
        })
        .await;
    }
    let gvk = greeting_kind();
    let last = format!("Hello, round {SWAP_COUNT}!");
    let maps = Gvk::new("", "v1", "ConfigMap");
    lab.wait_until("every last edit is reconciled", async || {
        let found = lab.list(&maps).await;
        found.iter().filter(|m| m["data"]["greeting"] == last).count() == OBJECT_COUNT
    })
    .await;
    for i in 0..OBJECT_COUNT {
        lab.wait_ready(&gvk, &format!("g{i}")).await;
    }
    lab.wait_idle().await;
    let report = lab.host().registry().reports()[0].clone();
    assert_eq!((report.state, &*report.message), (LoadState::Serving, ""));
    let facts = lab.host().stats().all_objects();
    assert_eq!(
        facts.iter().map(|f| f.overlaps).sum::<u64>(),
        0,
        "no object is reconciled concurrently"
    );
    assert_eq!(facts.iter().map(|f| f.failures).sum::<u64>(), 0, "no call failed");
    let swapped = report.swapped_ms.expect("it was swapped");
    println!("last swap {swapped:.0} ms, host RSS {} KiB", resident_kib());
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0)
}

#[scenario]
async fn invalid_build_is_refused_and_the_previous_one_serves(mut lab: Lab) {
    lab.install(&["examples/greeting"]);
    lab.start_host().await;
    let wasm = read_component("examples/greeting");
    let good = lab.host().registry().reports()[0].digest.clone();
    for (bad, words) in [
        (wasm[..wasm.len() / 2].to_vec(), "broken or cut off"),
        (b"\0asm\x01\0\0\0".to_vec(), "core module"),
        (b"not wasm at all".to_vec(), "not WebAssembly"),
    ] {
        lab.install_bytes("greeting", &bad);
        lab.wait_until(&format!("the report contains {words:?}"), async || {
            let report = lab.host().registry().reports()[0].clone();
            report.state == LoadState::Refused && report.message.contains(words) && report.digest == good
        })
        .await;
    }
    lab.apply(greeting(&lab, 0, "still here")).await;
    lab.wait_ready(&greeting_kind(), "g0").await;
    lab.install_bytes("greeting", &with_note(&wasm, "fixed"));
    lab.wait_until("the fixed build serves", async || {
        let report = lab.host().registry().reports()[0].clone();
        report.state == LoadState::Serving && report.digest != good
    })
    .await;
}
