use serde_json::json;

use super::*;

/// Merges fields into a copy of an object.
fn merge(object: &Value, change: &Value) -> Value {
    let Some(fields) = change.as_object() else {
        return change.clone();
    };
    let mut merged = if object.is_object() {
        object.clone()
    } else {
        json!({})
    };
    for (name, value) in fields {
        merged[name] = merge(&object[name], value);
    }
    merged
}

/// Checks a ready object, and for each change the reason for which it is not ready any more.
fn check(group: &str, kind: &str, ready: &Value, changes: &[(Value, &str)]) {
    assert_eq!(check_built_in(group, kind, ready), Ok(()), "{kind} {ready}");
    for (change, reason) in changes {
        let changed = merge(ready, change);
        let found = check_built_in(group, kind, &changed).map_err(|e| e.reason);
        let expected = if reason.is_empty() {
            Ok(())
        } else {
            Err((*reason).to_owned())
        };
        assert_eq!(found, expected, "{kind} {changed}");
    }
}

fn conditions(all: &[(&str, &str, &str)]) -> Value {
    let conditions: Vec<Value> = all
        .iter()
        .map(|(kind, status, reason)| json!({ "type": kind, "status": status, "reason": reason, "message": "m" }))
        .collect();
    json!({ "status": { "conditions": conditions } })
}

#[test]
fn deployment_is_ready_when_its_rollout_is_complete() {
    let ready = json!({ "metadata": { "generation": 2 }, "spec": { "replicas": 3 }, "status": {
        "observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3, "readyReplicas": 3,
        "conditions": [{ "type": "Available", "status": "True" }, { "type": "Progressing", "status": "True" }] } });
    check(
        "apps",
        "Deployment",
        &ready,
        &[
            (
                json!({ "metadata": { "generation": 3 } }),
                "GenerationNotObserved",
            ),
            (
                json!({ "status": { "observedGeneration": null } }),
                "GenerationNotObserved",
            ),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                "Terminating",
            ),
            (json!({ "status": { "replicas": 2 } }), "PodsNotCreated"),
            (json!({ "status": { "updatedReplicas": 1 } }), "PodsNotUpdated"),
            (json!({ "status": { "replicas": 4 } }), "PodsNotRemoved"),
            (
                json!({ "status": { "availableReplicas": null } }),
                "PodsNotAvailable",
            ),
            (json!({ "status": { "readyReplicas": 2 } }), "PodsNotReady"),
            (
                conditions(&[("Progressing", "False", "ProgressDeadlineExceeded")]),
                "ProgressDeadlineExceeded",
            ),
            (
                conditions(&[("ReplicaFailure", "True", "FailedCreate")]),
                "FailedCreate",
            ),
            (
                conditions(&[("Available", "False", "MinimumReplicasUnavailable")]),
                "MinimumReplicasUnavailable",
            ),
            (conditions(&[]), ""),
        ],
    );
    let one_by_default =
        json!({ "metadata": { "generation": 1 }, "spec": {}, "status": { "observedGeneration": 1 } });
    let refused = check_built_in("apps", "Deployment", &one_by_default).expect_err("no pods");
    assert_eq!(refused.message, "0 of 1 pods are created");
    let none = json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 0 }, "status": { "observedGeneration": 1 } });
    assert_eq!(check_built_in("apps", "Deployment", &none), Ok(()));
}

#[test]
fn stateful_set_is_ready_when_its_revision_is_current() {
    let ready = json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 3 }, "status": { "observedGeneration": 1,
        "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "currentRevision": "a", "updateRevision": "a" } });
    let partition = |n: i64, updated: i64| {
        json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": n } } },
            "status": { "updateRevision": "b", "updatedReplicas": updated } })
    };
    check(
        "apps",
        "StatefulSet",
        &ready,
        &[
            (json!({ "status": { "replicas": 2 } }), "PodsNotCreated"),
            (json!({ "status": { "readyReplicas": 2 } }), "PodsNotReady"),
            (json!({ "status": { "replicas": 4 } }), "PodsNotRemoved"),
            (json!({ "status": { "updateRevision": "b" } }), "PodsNotUpdated"),
            (partition(2, 1), ""),
            (partition(2, 0), "PodsNotUpdated"),
            (partition(5, 0), ""),
            (
                json!({ "spec": { "updateStrategy": { "type": "OnDelete" } }, "status": { "updateRevision": "b" } }),
                "",
            ),
        ],
    );
}

#[test]
fn daemon_set_is_ready_on_all_of_its_nodes() {
    let ready = json!({ "metadata": { "generation": 1 }, "status": { "observedGeneration": 1, "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2, "numberReady": 2 } });
    check(
        "apps",
        "DaemonSet",
        &ready,
        &[
            (
                json!({ "status": { "desiredNumberScheduled": null } }),
                "PodsNotScheduled",
            ),
            (
                json!({ "status": { "currentNumberScheduled": 1 } }),
                "PodsNotScheduled",
            ),
            (
                json!({ "status": { "updatedNumberScheduled": 1 } }),
                "PodsNotUpdated",
            ),
            (
                json!({ "status": { "updatedNumberScheduled": 1 }, "spec": { "updateStrategy": { "type": "OnDelete" } } }),
                "",
            ),
            (
                json!({ "status": { "numberAvailable": null } }),
                "PodsNotAvailable",
            ),
            (json!({ "status": { "numberReady": 1 } }), "PodsNotReady"),
            // No node is selected.
            (json!({ "status": { "desiredNumberScheduled": 0 } }), ""),
        ],
    );
}

#[test]
fn replica_set_is_ready_with_its_pods() {
    let ready = json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 1 }, "status": { "observedGeneration": 1,
        "replicas": 1, "fullyLabeledReplicas": 1, "availableReplicas": 1, "readyReplicas": 1 } });
    check(
        "apps",
        "ReplicaSet",
        &ready,
        &[
            (
                json!({ "status": { "availableReplicas": 0 } }),
                "PodsNotAvailable",
            ),
            (json!({ "spec": { "replicas": 0 } }), "PodsNotRemoved"),
            (
                conditions(&[("ReplicaFailure", "True", "FailedCreate")]),
                "FailedCreate",
            ),
        ],
    );
}

#[test]
fn job_is_ready_when_it_is_complete() {
    let ready = conditions(&[("SuccessCriteriaMet", "True", ""), ("Complete", "True", "")]);
    check(
        "batch",
        "Job",
        &ready,
        &[
            (conditions(&[]), "JobNotComplete"),
            (conditions(&[("Complete", "False", "")]), "JobNotComplete"),
            (
                conditions(&[("Failed", "True", "BackoffLimitExceeded")]),
                "BackoffLimitExceeded",
            ),
            (
                conditions(&[("Suspended", "True", "JobSuspended")]),
                "JobSuspended",
            ),
        ],
    );
    let running = json!({ "status": { "active": 2, "failed": 1 } });
    let message = check_built_in("batch", "Job", &running)
        .expect_err("running")
        .message;
    assert_eq!(
        message,
        "it is not complete: 2 pods active, 0 succeeded, 1 failed"
    );
}

#[test]
fn pod_is_ready_when_its_containers_are_or_have_succeeded() {
    let ready =
        json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let waiting = |field: &str, reason: &str| {
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "ContainersNotReady" }],
            field: [{ "name": "web", "state": { "waiting": { "reason": reason } } }] } })
    };
    check(
        "",
        "Pod",
        &ready,
        &[
            (
                conditions(&[("PodScheduled", "False", "Unschedulable")]),
                "Unschedulable",
            ),
            (conditions(&[]), "ConditionMissing"),
            (
                merge(&conditions(&[]), &json!({ "status": { "phase": "Succeeded" } })),
                "",
            ),
            (
                json!({ "status": { "phase": "Failed", "reason": "Evicted" } }),
                "Evicted",
            ),
            (
                waiting("containerStatuses", "CrashLoopBackOff"),
                "CrashLoopBackOff",
            ),
            (waiting("initContainerStatuses", "ErrImagePull"), "ErrImagePull"),
            (
                waiting("containerStatuses", "ContainerCreating"),
                "ContainersNotReady",
            ),
        ],
    );
}

#[test]
fn service_of_a_load_balancer_is_ready_with_an_address() {
    let pending = json!({ "spec": { "type": "LoadBalancer" } });
    check(
        "",
        "Service",
        &json!({ "spec": { "type": "ClusterIP" } }),
        &[
            (pending.clone(), "AddressPending"),
            (
                merge(
                    &pending,
                    &json!({ "status": { "loadBalancer": { "ingress": [] } } }),
                ),
                "AddressPending",
            ),
            (
                merge(
                    &pending,
                    &json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "10.0.0.1" }] } } }),
                ),
                "",
            ),
            (
                merge(&pending, &json!({ "spec": { "externalIPs": ["10.0.0.1"] } })),
                "",
            ),
        ],
    );
}

#[test]
fn kinds_with_a_phase_or_a_condition_are_ready_by_it() {
    let phase = |phase: &str| json!({ "status": { "phase": phase } });
    check(
        "",
        "PersistentVolumeClaim",
        &phase("Bound"),
        &[
            (phase("Pending"), "Pending"),
            (phase("Lost"), "Lost"),
            (json!({ "status": null }), "PhaseMissing"),
        ],
    );
    check(
        "",
        "PersistentVolume",
        &phase("Available"),
        &[(phase("Released"), "Released")],
    );
    check(
        "",
        "Namespace",
        &phase("Active"),
        &[(phase("Terminating"), "Terminating")],
    );
    check(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &conditions(&[("NamesAccepted", "True", ""), ("Established", "True", "")]),
        &[
            (conditions(&[]), "ConditionMissing"),
            (conditions(&[("NamesAccepted", "False", "Conflict")]), "Conflict"),
            (
                conditions(&[("Established", "False", "Installing")]),
                "Installing",
            ),
        ],
    );
    check(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &json!({ "status": { "certificate": "YQ==" } }),
        &[
            (json!({ "status": { "certificate": "" } }), "CertificatePending"),
            (conditions(&[("Denied", "True", "No")]), "No"),
        ],
    );
}

#[test]
fn kind_without_a_rule_is_ready_unless_its_condition_is_not() {
    check(
        "",
        "ConfigMap",
        &json!({ "metadata": {} }),
        &[
            (conditions(&[("Ready", "False", "Because")]), "Because"),
            (conditions(&[("Other", "False", "Because")]), ""),
            (
                json!({ "metadata": { "generation": 2 }, "status": { "observedGeneration": 1 } }),
                "GenerationNotObserved",
            ),
            (
                json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
                "Terminating",
            ),
        ],
    );
    assert!(is_built_in_group("") && is_built_in_group("apps"));
    assert!(!is_built_in_group("gateway.networking.k8s.io") && !is_built_in_group("example.com"));
}

#[test]
fn object_of_unexpected_shape_is_checked_without_a_panic() {
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
        for object in [
            json!(null),
            json!([]),
            json!({ "status": "x", "spec": 1, "metadata": [] }),
        ] {
            let _ = check_built_in("apps", kind, &object);
        }
    }
    for kind in ["Pod", "Service", "PersistentVolumeClaim", "ConfigMap"] {
        let _ = check_built_in(
            "",
            kind,
            &json!({ "status": { "conditions": {}, "containerStatuses": 1 } }),
        );
    }
}
