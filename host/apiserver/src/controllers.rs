//! Stand-ins for the controllers of workloads and Services.
//!
//! Without them nothing ever becomes ready on a server without nodes. They report at once what a cluster with free nodes
//! reports in the end: status and conditions of workloads, bound claims, endpoints and addresses of Services. No pod is created.

use serde_json::{Value, json};

use crate::conditions::{condition, with_times};
use crate::metadata::SIMULATE_ANNOTATION;
use crate::object::current_time;
use crate::request::PatchKind;
use crate::state::RequestHandler;
use crate::storage::{GroupResource, StoredKey, StoredObject};
use crate::write::{Edit, FieldValidation, WriteParameters};

/// `fieldManager` of what the stand-ins write, as on a real cluster.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Address of load balancers, from the range for documentation.
const LOAD_BALANCER_ADDRESS: &str = "192.0.2.1";
/// Maximum number of endpoints in a slice, as on a real cluster.
const MAX_ENDPOINTS: u64 = 100;
/// Plurals of the workloads in the group `apps` that have pods behind Services.
const APPS_PLURALS: [&str; 4] = ["daemonsets", "deployments", "replicasets", "statefulsets"];

/// How the pods of a workload behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    Succeed,
    Fail,
    Hang,
}

impl Behavior {
    fn of(object: &Value) -> Self {
        match object["metadata"]["annotations"][SIMULATE_ANNOTATION].as_str() {
            Some("Fail") => Self::Fail,
            Some("Hang") => Self::Hang,
            _ => Self::Succeed,
        }
    }
}

/// Follows a write: updates the status of a workload, a claim or a Service, and the endpoints that it changes.
pub fn follow_write(api: &RequestHandler, resource: &GroupResource, object: &StoredObject) {
    let key = object.key();
    let name = (resource.group.as_str(), resource.plural.as_str());
    if let Some(live) = api.storage.get(resource, &key)
        && let Some(status) = report_status(name, &live.value)
    {
        write_status(api, resource, &key, status);
    }
    match name {
        ("", "services") => {
            if let Some(service) = api.storage.get(resource, &key) {
                write_endpoints(api, &key.namespace, &service.value);
            }
        }
        ("apps", plural) if APPS_PLURALS.contains(&plural) => {
            let (services, _) = api
                .storage
                .list(&GroupResource::new("", "services"), Some(&key.namespace));
            for service in services {
                write_endpoints(api, &key.namespace, &service.value);
            }
        }
        _ => {}
    }
}

/// Returns the fields of the status to merge, where null removes a field. Returns none for other kinds, and where nothing
/// changes any more.
fn report_status(resource: (&str, &str), object: &Value) -> Option<Value> {
    let (behavior, generation) = (Behavior::of(object), &object["metadata"]["generation"]);
    let replicas = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = if behavior == Behavior::Succeed {
        replicas
    } else {
        0
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Some(match resource {
        ("apps", "deployments") => json!({
            "observedGeneration": generation, "replicas": count(replicas), "updatedReplicas": count(replicas),
            "readyReplicas": count(ready), "availableReplicas": count(ready), "unavailableReplicas": count(replicas - ready),
            "conditions": with_times(object, &deployment_conditions(name, behavior)),
        }),
        ("apps", "statefulsets") => {
            let revision = format!("{name}-{generation}");
            json!({
                "observedGeneration": generation, "replicas": replicas, "readyReplicas": count(ready),
                "availableReplicas": ready, "currentReplicas": count(replicas), "updatedReplicas": count(replicas),
                "currentRevision": revision, "updateRevision": revision, "collisionCount": 0,
            })
        }
        ("apps", "daemonsets") => {
            let ready = u64::from(behavior == Behavior::Succeed);
            json!({
                "observedGeneration": generation, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
                "updatedNumberScheduled": 1, "numberReady": ready, "numberMisscheduled": 0,
                "numberAvailable": count(ready), "numberUnavailable": count(1 - ready),
            })
        }
        ("apps", "replicasets") => json!({
            "observedGeneration": generation, "replicas": replicas, "fullyLabeledReplicas": count(replicas),
            "readyReplicas": count(ready), "availableReplicas": count(ready),
        }),
        ("batch", "jobs") => return report_job(object, behavior),
        ("", "persistentvolumeclaims") => match behavior {
            Behavior::Succeed => json!({
                "phase": "Bound", "accessModes": object["spec"]["accessModes"],
                "capacity": object["spec"]["resources"]["requests"],
            }),
            Behavior::Fail => json!({ "phase": "Lost" }),
            Behavior::Hang => json!({ "phase": "Pending" }),
        },
        ("", "services") if object["spec"]["type"] == "LoadBalancer" && behavior == Behavior::Succeed => {
            json!({ "loadBalancer": { "ingress": [{ "ip": LOAD_BALANCER_ADDRESS, "ipMode": "VIP" }] } })
        }
        _ => return None,
    })
}

/// A counter that the real controllers omit when it is zero.
fn count(number: u64) -> Value {
    match number {
        0 => Value::Null,
        _ => number.into(),
    }
}

fn deployment_conditions(name: &str, behavior: Behavior) -> [Value; 2] {
    let available = match behavior {
        Behavior::Succeed => condition(
            "Available",
            true,
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        ),
        Behavior::Fail | Behavior::Hang => condition(
            "Available",
            false,
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    let progressing = match behavior {
        Behavior::Succeed => condition(
            "Progressing",
            true,
            "NewReplicaSetAvailable",
            &format!("Deployment \"{name}\" has successfully progressed."),
        ),
        Behavior::Fail => condition(
            "Progressing",
            false,
            "ProgressDeadlineExceeded",
            &format!("Deployment \"{name}\" has timed out progressing."),
        ),
        Behavior::Hang => condition(
            "Progressing",
            true,
            "ReplicaSetUpdated",
            &format!("Deployment \"{name}\" is progressing."),
        ),
    };
    [available, progressing]
}

/// Reports a Job that has run. One that has ended stays as it is.
fn report_job(object: &Value, behavior: Behavior) -> Option<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    if conditions.any(|c| matches!(c["type"].as_str(), Some("Complete" | "Failed")) && c["status"] == "True")
    {
        return None;
    }
    if spec["suspend"] == true {
        let suspended = condition("Suspended", true, "JobSuspended", "Job suspended");
        return Some(
            json!({ "startTime": null, "active": null, "conditions": with_times(object, &[suspended]) }),
        );
    }
    let start = match status["startTime"].as_str() {
        Some(time) => time.to_owned(),
        None => current_time(),
    };
    Some(match behavior {
        Behavior::Succeed => {
            let (reason, message) = ("CompletionsReached", "Reached expected number of succeeded pods");
            let ended = ["SuccessCriteriaMet", "Complete"].map(|kind| condition(kind, true, reason, message));
            json!({
                "startTime": start, "completionTime": current_time(), "active": null, "ready": 0, "terminating": 0,
                "succeeded": spec["completions"].as_u64().unwrap_or(1), "uncountedTerminatedPods": {},
                "conditions": with_times(object, &ended),
            })
        }
        Behavior::Fail => {
            let (reason, message) = (
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
            let ended = ["FailureTarget", "Failed"].map(|kind| condition(kind, true, reason, message));
            json!({
                "startTime": start, "active": null, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {},
                "failed": spec["backoffLimit"].as_u64().unwrap_or(6) + 1, "conditions": with_times(object, &ended),
            })
        }
        Behavior::Hang => json!({
            "startTime": start, "active": spec["parallelism"].as_u64().unwrap_or(1), "ready": 0, "terminating": 0,
            "uncountedTerminatedPods": {},
        }),
    })
}

fn write_status(api: &RequestHandler, resource: &GroupResource, key: &StoredKey, status: Value) {
    let patch = Edit::Patch(PatchKind::Merge, json!({ "status": status }));
    edit(api, resource, "status", key, &patch);
}

/// Writes as the controllers do. An error means that the object is gone, or that somebody has written what the schema refuses:
/// the next write of it is followed again.
fn edit(api: &RequestHandler, resource: &GroupResource, subresource: &str, key: &StoredKey, edit: &Edit) {
    let Some(kind) = api.registry.get_by_resource(resource) else {
        return;
    };
    let Some(version) = kind.stored_version() else {
        return;
    };
    let context = WriteParameters {
        kind: &kind,
        version,
        subresource,
        manager: CONTROLLER_MANAGER,
        validation: FieldValidation::Ignore,
        dry_run: false,
        requester: None,
    };
    if let Err(error) = api.edit_object(&context, Some(&key.namespace), &key.name, edit) {
        tracing::debug!(
            resource = resource.plural,
            name = key.name,
            error = error.message,
            "not written"
        );
    }
}

/// Writes the EndpointSlice and the Endpoints of a Service: an address for each ready pod of the workloads that it selects.
fn write_endpoints(api: &RequestHandler, namespace: &str, service: &Value) {
    let Some(selector) = service["spec"]["selector"].as_object().filter(|s| !s.is_empty()) else {
        return;
    };
    if service["metadata"]["deletionTimestamp"].is_string() {
        return;
    }
    let mut pods = 0;
    for plural in APPS_PLURALS {
        let (workloads, _) = api
            .storage
            .list(&GroupResource::new("apps", plural), Some(namespace));
        for workload in &workloads {
            let labels = &workload.value["spec"]["template"]["metadata"]["labels"];
            if selector.iter().all(|(key, value)| labels[key] == *value) {
                let status = &workload.value["status"];
                let ready = status["readyReplicas"].as_u64();
                pods += ready.or(status["numberReady"].as_u64()).unwrap_or_default();
            }
        }
    }
    let addresses: Vec<String> = (0..pods.min(MAX_ENDPOINTS))
        .map(|n| format!("10.244.0.{}", n + 1))
        .collect();
    let ports: Vec<Value> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let number = port["targetPort"].as_u64().or(port["port"].as_u64());
            json!({ "name": port["name"].as_str().unwrap_or_default(), "port": number,
                "protocol": port["protocol"].as_str().unwrap_or("TCP") })
        })
        .collect();
    let (name, uid) = (&service["metadata"]["name"], &service["metadata"]["uid"]);
    let name = name.as_str().unwrap_or_default();
    let owner = json!({ "apiVersion": "v1", "kind": "Service", "name": name, "uid": uid, "controller": true,
        "blockOwnerDeletion": true });
    let slice_name = format!("{name}-endpoints");
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| {
            json!({ "addresses": [address], "conditions": { "ready": true, "serving": true, "terminating": false } })
        })
        .collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": slice_name, "namespace": namespace, "ownerReferences": [owner], "labels": {
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        } },
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    });
    let subsets: Vec<Value> = match addresses.as_slice() {
        [] => Vec::new(),
        all => {
            let addresses: Vec<Value> = all.iter().map(|ip| json!({ "ip": ip })).collect();
            vec![json!({ "addresses": addresses, "ports": ports })]
        }
    };
    let legacy = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": { "name": name, "namespace": namespace, "ownerReferences": [owner] }, "subsets": subsets,
    });
    for (resource, name, object) in [
        (
            GroupResource::new("discovery.k8s.io", "endpointslices"),
            &*slice_name,
            slice,
        ),
        (GroupResource::new("", "endpoints"), name, legacy),
    ] {
        let key = StoredKey::new(namespace, name);
        edit(api, &resource, "", &key, &Edit::Apply(object, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(behavior: Option<&str>) -> Value {
        let mut object = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "generation": 3, "annotations": {} }, "spec": { "replicas": 2 } });
        if let Some(behavior) = behavior {
            object["metadata"]["annotations"][SIMULATE_ANNOTATION] = behavior.into();
        }
        object
    }

    #[test]
    fn deployment_reports_what_its_annotation_simulates() {
        for (behavior, ready, available, progressing) in [
            (None, json!(2), "True", ("True", "NewReplicaSetAvailable")),
            (
                Some("Fail"),
                Value::Null,
                "False",
                ("False", "ProgressDeadlineExceeded"),
            ),
            (Some("Hang"), Value::Null, "False", ("True", "ReplicaSetUpdated")),
        ] {
            let status = report_status(("apps", "deployments"), &deployment(behavior)).unwrap();
            assert_eq!(status["observedGeneration"], 3);
            assert_eq!(status["updatedReplicas"], 2);
            assert_eq!(status["readyReplicas"], ready, "{behavior:?}");
            assert_eq!(status["conditions"][0]["status"], available);
            let shown = &status["conditions"][1];
            assert_eq!(
                (shown["status"].as_str(), shown["reason"].as_str()),
                (Some(progressing.0), Some(progressing.1))
            );
        }
    }

    #[test]
    fn condition_without_transition_keeps_its_time() {
        let mut object = deployment(None);
        let known = json!({ "type": "Available", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z",
            "lastUpdateTime": "2020-01-01T00:00:00Z" });
        object["status"] = json!({ "conditions": [known, { "type": "Custom", "status": "True" }] });
        let status = report_status(("apps", "deployments"), &object).unwrap();
        let [custom, available, progressing] = &status["conditions"].as_array().unwrap()[..] else {
            panic!("{status}")
        };
        assert_eq!(custom["type"], "Custom");
        assert_eq!(available["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_ne!(progressing["lastTransitionTime"], "2020-01-01T00:00:00Z");
    }

    #[test]
    fn ended_job_stays_as_it_is() {
        let mut job = json!({ "kind": "Job", "metadata": { "name": "j" }, "spec": { "completions": 3 } });
        let status = report_status(("batch", "jobs"), &job).unwrap();
        assert_eq!(status["succeeded"], 3);
        job["status"] = status;
        job["metadata"]["annotations"] = json!({ SIMULATE_ANNOTATION: "Fail" });
        assert_eq!(report_status(("batch", "jobs"), &job), None);
    }
}
