//! Runs the pods of Steps without containers, for the demo: each process takes some seconds and succeeds.
//!
//! `kubelet-simulator NAMESPACE` uses the cluster of `KUBECONFIG`, and prints a line when it has started.

use std::{process::ExitCode, time::Duration};

use jiff::Timestamp;
use kube::Client;
use kubelet_simulator::{Course, Kubelet, succeed_with_outputs};
use serde_json::Value;

/// Time that each process takes, from the creation of its pod, in seconds.
const PROCESS_SECONDS: i64 = 3;
/// Interval at which the processes are looked at.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> ExitCode {
    let Some(namespace) = std::env::args().nth(1) else {
        eprintln!("usage: kubelet-simulator NAMESPACE");
        return ExitCode::from(2);
    };
    let client = match Client::try_default().await {
        Ok(client) => client,
        Err(error) => {
            eprintln!("kubelet-simulator: {error}");
            return ExitCode::FAILURE;
        }
    };
    let kubelet = Kubelet::start(client, &namespace, choose_course);
    println!("without containers");
    let mut interval = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        interval.tick().await;
        kubelet.refresh();
    }
}

/// Lets a process run for its time.
fn choose_course(pod: &Value) -> Course {
    let created = pod["metadata"]["creationTimestamp"]
        .as_str()
        .and_then(|text| text.parse::<Timestamp>().ok());
    let age = created.map_or(0, |created| (Timestamp::now() - created).get_seconds());
    if age < PROCESS_SECONDS {
        Course::Running
    } else {
        succeed_with_outputs(pod)
    }
}
