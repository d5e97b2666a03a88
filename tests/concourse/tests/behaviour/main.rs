//! What was not recorded: faults, counters, pages, tokens, roles, event streams, the control endpoints.

mod api;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod events;
mod faults;

use std::time::{Duration, Instant};

use common::SimulatorClient;
use concourse_simulator::{ConcourseSimulator, SimulatorOptions};

/// Starts a simulator whose clock steps on request only, and a logged-in client.
async fn start() -> (ConcourseSimulator, SimulatorClient) {
    start_with(SimulatorOptions {
        clock: None,
        ..SimulatorOptions::default()
    })
    .await
}

async fn start_with(options: SimulatorOptions) -> (ConcourseSimulator, SimulatorClient) {
    let simulator = ConcourseSimulator::start(options).await.expect("a simulator");
    let client = SimulatorClient::logged_in(&simulator).await;
    simulator.reset_counters();
    (simulator, client)
}

/// Waits until this holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "timed out waiting until {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A job `j` with a task, and a job `k` that is triggered by the resource `r`.
const CONFIG: &str = "resources: [{name: r, type: git, source: {}}]\njobs:\n\
    - {name: j, plan: [{task: t, config: {platform: linux, run: {path: sh, args: [-c, echo hello]}}}]}\n\
    - {name: k, plan: [{get: r, trigger: true}]}\n";

/// A running pipeline `p`.
async fn pipeline(client: &SimulatorClient) {
    assert_eq!(client.save("p", CONFIG).await.expect("an answer"), 201);
    client.done("PUT", "/api/v1/teams/main/pipelines/p/unpause").await;
}

/// Triggers the job; gives the build's id.
async fn trigger(client: &SimulatorClient) -> u64 {
    let build = client
        .done("POST", "/api/v1/teams/main/pipelines/p/jobs/j/builds")
        .await;
    let build: serde_json::Value = serde_json::from_str(&build).expect("JSON");
    build["id"].as_u64().expect("an id")
}

async fn status(client: &SimulatorClient, method: &str, path: &str) -> u16 {
    client
        .ask(method, path)
        .send()
        .await
        .expect("an answer")
        .status()
        .as_u16()
}
