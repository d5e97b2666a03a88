//! Memory of the host's process that its allocator keeps.

use std::thread;

use ostler_test_harness::{Lab, greeting_kind, process::HostProcess, scenario};
use serde_json::json;

#[scenario]
async fn host_process_has_an_arena_for_each_core_beside_that_of_its_main_thread(lab: Lab) {
    lab.install(&["examples/greeting"]);
    // Compiling and loading a component starts threads that allocate, too.
    let host = HostProcess::start(&lab, "host", &["--leader-elect=false"]);
    host.wait_started(&lab).await;
    lab.apply(
        json!({"apiVersion": "examples.ostler.dev/v1alpha1", "kind": "Greeting",
        "metadata": {"name": "ada", "namespace": lab.namespace}, "spec": {"name": "Ada"}}),
    )
    .await;
    lab.wait_ready(&greeting_kind(), "ada").await;
    let cores = thread::available_parallelism().expect("a number");
    assert_eq!(host.count_arenas(), cores.get());
}
