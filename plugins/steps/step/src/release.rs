//! The requests of a process that has ended. The scheduler counts those of every container until the whole pod has ended, and the
//! streamer keeps it for as long as consumers may need the artifacts: without a release, finished Steps fill the node, and a
//! consumer could wait for the CPU of the producers that it holds.
//!
//! The subresource `resize` of the pod sets them to zero (Kubernetes 1.33 and later). The kubelet applies it to a container that has
//! ended at once, since there is nothing to change.

use ostler_sdk::{Preconditions, prelude::*, serde_json::Value};
use steps_api::Step;

use crate::{observe::find_container, pod::PROCESS_CONTAINER, pod_reference, read_pod_fields};

/// Resources that a resize may change.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Sets the requests of the process to zero if it has ended and its pod has not. Returns false if the API server did not answer. A
/// refusal is final and changes nothing for the Step: a server without the subresource, a LimitRange with a minimum.
pub fn release_requests(ctx: &Context, step: &Step, attempt: i64, live: &Value) -> Result<bool, Failure> {
    let is_deleted = !live["metadata"]["deletionTimestamp"].is_null();
    // Without outputs there is no streamer, and the pod ends with the process.
    let goes_on = !step.spec.outputs.is_empty() && !is_deleted && live["status"]["phase"] == "Running";
    let process = find_container(&live["status"]["containerStatuses"], PROCESS_CONTAINER);
    if !goes_on || !process["state"]["terminated"].is_object() {
        return Ok(true);
    }
    let Some(pod) = read_pod_fields(ctx, step, attempt, false, &["metadata.uid", "spec.containers"])? else {
        return Ok(true);
    };
    let Some(containers) = release_containers(&pod["spec"]["containers"]) else {
        return Ok(true);
    };
    let patch = json!({ "spec": { "containers": containers } });
    let preconditions = Preconditions::uid(pod["metadata"]["uid"].as_str().unwrap_or_default());
    let resized = ctx.patch_subresource(&pod_reference(step, attempt), "resize", &patch, &preconditions);
    Ok(!matches!(
        resized,
        Err(Error::Unavailable(_) | Error::Throttled(_))
    ))
}

/// The names and resources of all containers, in their order, with requests of zero for the process; none if it has none already.
fn release_containers(containers: &Value) -> Option<Vec<Value>> {
    let mut is_released = false;
    let mut resized = Vec::new();
    for container in containers.as_array()? {
        let mut resources = container["resources"].clone();
        if container["name"] == PROCESS_CONTAINER
            && let Some(requests) = resources["requests"].as_object_mut()
        {
            for (name, quantity) in requests {
                if RESIZABLE.contains(&name.as_str()) && *quantity != "0" {
                    *quantity = "0".into();
                    is_released = true;
                }
            }
        }
        resized.push(json!({ "name": container["name"], "resources": resources }));
    }
    is_released.then_some(resized)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_alone_loses_its_requests_of_cpu_and_memory() {
        let process = json!({"limits": {"memory": "2Gi"}, "requests": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}});
        let other = json!({"requests": {"cpu": "10m"}});
        let containers = json!([
            {"name": "process", "image": "a", "resources": process},
            {"name": "streamer", "image": "b", "resources": other},
            {"name": "injected", "image": "c", "resources": {}},
        ]);
        let released = release_containers(&containers).expect("requests");
        assert_eq!(
            Value::from(released.clone()),
            json!([
                {"name": "process", "resources": {"limits": {"memory": "2Gi"},
                    "requests": {"cpu": "0", "memory": "0", "nvidia.com/gpu": "1"}}},
                {"name": "streamer", "resources": other},
                {"name": "injected", "resources": {}},
            ])
        );
        assert_eq!(release_containers(&released.into()), None, "once");
        assert_eq!(release_containers(&Value::Null), None);
    }
}
