//! Jobs, Resources and Workers: their specs are applied to Concourse, restored after drift, and undone by deletion.

mod jobs;
mod person;
mod resources;
mod workers;

use ostler::testing::{dispatcher::Cause, queue::Priority};
use ostler_test_harness::{Lab, concourse::kind, scenario};

/// Ends the poll interval of an object now, and waits until the queue is empty.
pub async fn poll(lab: &Lab, kind_name: &str, name: &str) {
    let key = lab.key(&kind(kind_name), name);
    lab.host()
        .services()
        .dispatcher
        .enqueue(&key, Priority::Normal, Cause::Poll);
    lab.wait_idle().await;
}

/// Number of reconciles of an object.
pub fn reconciles(lab: &Lab, kind_name: &str, name: &str) -> u64 {
    let key = lab.key(&kind(kind_name), name);
    lab.host()
        .stats()
        .object(&key)
        .map_or(0, |facts| facts.reconciles)
}

/// Requests to Concourse since its counters were reset whose path contains a part, as method and path.
pub fn requests(lab: &Lab, part: &str) -> Vec<String> {
    let requests = lab.concourse.requests();
    let of_part = requests.iter().filter(|r| r.path.contains(part));
    of_part.map(|r| format!("{} {}", r.method, r.path)).collect()
}

#[scenario(simulated)]
async fn samples_become_ready(mut lab: Lab) {
    lab.concourse.set_worker("worker-1", "running");
    lab.start_pack().await;
    for text in [
        include_str!("../../../deploy/examples/concourse.yaml"),
        include_str!("../../../deploy/examples/concourse-operations.yaml"),
    ] {
        let text = text
            .replace("namespace: ci\n", &format!("namespace: {}\n", lab.namespace))
            .replace("\n  name: ci\n", &format!("\n  name: {}\n", lab.namespace))
            .replace("${CONCOURSE_URL}", lab.concourse.url())
            .replace("${CONCOURSE_USER}", "test")
            .replace("${CONCOURSE_PASSWORD}", ostler_test_harness::ADMIN_PASSWORD);
        lab.apply_yaml(&text).await;
    }
    for (kind_name, name) in [
        ("Job", "browser-tests"),
        ("Resource", "source"),
        ("Worker", "worker-1"),
    ] {
        lab.wait_ready(&kind(kind_name), name).await;
    }
}
