//! Waits until the replicas of the host run, and says meanwhile what keeps them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus},
    core::v1::{ContainerStatus, Pod},
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::HOST_NAME;

/// Interval between reads of the Deployment.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Reasons of containers that wait for nothing but their start.
const STARTING_REASONS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Waits until all replicas of a generation of the Deployment are available.
///
/// # Errors
/// They are not within the timeout. The error has the last reason.
pub async fn wait_rollout(
    client: &Client,
    namespace: &str,
    generation: i64,
    timeout: Duration,
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deadline = Instant::now() + timeout;
    // A pod alternates between the reasons of a failed pull.
    let mut reported = BTreeSet::new();
    loop {
        let deployment = deployments
            .get(HOST_NAME)
            .await
            .context("reading the Deployment")?;
        let replicas = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let status = deployment.status.unwrap_or_default();
        if is_complete(&status, generation, replicas) {
            return Ok(());
        }
        let pods = list_pods(client, namespace).await?;
        let available = status.available_replicas.unwrap_or_default();
        let obstacle = find_obstacle(&status, &pods);
        let obstacle = obstacle.unwrap_or_else(|| format!("{available} of {replicas} replicas are ready"));
        if Instant::now() > deadline {
            bail!("the host does not run after {} s: {obstacle}", timeout.as_secs());
        }
        if reported.insert(obstacle.clone()) {
            eprintln!("waiting for Deployment {namespace}/{HOST_NAME}: {obstacle}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Lists the pods of the host.
///
/// # Errors
/// The list failed.
pub async fn list_pods(client: &Client, namespace: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let own = ListParams::default().labels(&format!("app.kubernetes.io/name={HOST_NAME}"));
    let listed = pods.list(&own).await.context("listing the pods of the host")?;
    Ok(listed.items)
}

/// As `kubectl rollout status` decides it.
fn is_complete(status: &DeploymentStatus, generation: i64, replicas: i32) -> bool {
    let observed = status.observed_generation.unwrap_or_default() >= generation;
    let count = |number: Option<i32>| number.unwrap_or_default();
    observed
        && count(status.updated_replicas) >= replicas
        && count(status.replicas) <= count(status.updated_replicas)
        && count(status.available_replicas) >= replicas
}

/// The reason why a pod does not start, or why there is none.
pub fn find_obstacle(status: &DeploymentStatus, pods: &[Pod]) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let refused =
        conditions.find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True");
    if let Some(refused) = refused {
        return refused.message.clone();
    }
    pods.iter().find_map(|pod| {
        let status = pod.status.as_ref()?;
        let mut containers = status.container_statuses.iter().flatten();
        let waits = containers.find_map(describe_container);
        let mut conditions = status.conditions.iter().flatten();
        let unscheduled = || {
            conditions
                .find(|c| c.type_ == "PodScheduled" && c.status == "False")?
                .message
                .clone()
        };
        let reason = waits.or_else(unscheduled)?;
        Some(format!("pod {}: {reason}", pod.name_any()))
    })
}

fn describe_container(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    if STARTING_REASONS.contains(&reason) {
        return None;
    }
    let ended = container
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    let message = waiting.message.clone().or_else(|| ended?.message.clone());
    Some(match message {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rollout_is_complete_when_all_replicas_are_new_and_available() {
        let status = |observed: i64, updated: i32, all: i32, available: i32| -> DeploymentStatus {
            serde_json::from_value(json!({"observedGeneration": observed, "updatedReplicas": updated,
                "replicas": all, "availableReplicas": available}))
            .expect("a status")
        };
        assert!(is_complete(&status(3, 2, 2, 2), 3, 2));
        assert!(!is_complete(&status(2, 2, 2, 2), 3, 2), "not observed yet");
        assert!(
            !is_complete(&status(3, 2, 3, 2), 3, 2),
            "one of the former ones is left"
        );
        assert!(!is_complete(&status(3, 2, 2, 1), 3, 2));
        assert!(!is_complete(&DeploymentStatus::default(), 1, 2));
    }

    #[test]
    fn obstacle_is_the_refusal_of_pods_or_what_a_container_waits_for() {
        let pod = |status: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "ostler-1"}, "status": status}))
                .expect("a pod")
        };
        let waiting = |reason: &str| {
            json!({"containerStatuses": [{"name": "ostler", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "of this"}}}]})
        };
        let none = DeploymentStatus::default();
        assert_eq!(find_obstacle(&none, &[pod(waiting("ContainerCreating"))]), None);
        assert_eq!(
            find_obstacle(&none, &[pod(waiting("ImagePullBackOff"))]).as_deref(),
            Some("pod ostler-1: ImagePullBackOff: of this")
        );
        let unscheduled =
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no nodes"}]});
        assert_eq!(
            find_obstacle(&none, &[pod(unscheduled)]).as_deref(),
            Some("pod ostler-1: no nodes")
        );
        let refused =
            serde_json::from_value(json!({"conditions": [{"type": "ReplicaFailure", "status": "True",
            "message": "violates PodSecurity"}]}));
        assert_eq!(
            find_obstacle(&refused.expect("a status"), &[]).as_deref(),
            Some("violates PodSecurity")
        );
    }
}
