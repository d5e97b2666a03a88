//! The bodies of messages. Unknown fields are ignored, so that a sender may be newer than the plugin.

use std::collections::BTreeMap;

use ostler_sdk::api;

use crate::{DeploymentState, DevOpsProjectSpec, IngressResourceSpec};

/// Message type that sets up a project.
pub const DEVOPS_INITIALIZE: &str = "DevOpsInitialize";
/// Message type that starts a deployment.
pub const DEVOPS_RECONCILE: &str = "DevOpsReconcile";
/// Message type of the progress of a deployment.
pub const DEVOPS_RECONCILE_HEARTBEAT: &str = "DevOpsReconcileJobHeartbeat";

/// Sets up a project: becomes a DevOpsProject.
#[api]
#[serde(rename_all = "snake_case")]
pub struct DevOpsInitialize {
    /// ID of the event.
    pub id: String,
    /// Name of the project.
    pub project: String,
    /// Namespace of the project; defaults to the one that the plugin is configured with.
    pub namespace: Option<String>,
    /// Spec of the DevOpsProject, as in the CRD.
    pub spec: DevOpsProjectSpec,
}

/// Starts a deployment: becomes a DeploymentRecord that is named by the ID.
#[api]
#[serde(rename_all = "snake_case")]
pub struct DevOpsReconcile {
    /// ID of the deployment.
    pub id: String,
    /// Name of the project.
    pub project: String,
    /// Namespace of the project; defaults to the one that the plugin is configured with.
    pub namespace: Option<String>,
    /// Environment to deploy to.
    pub environment: String,
    /// Branch, tag or commit; defaults to that of the environment.
    pub revision: Option<String>,
    /// Pipeline that builds it; without it, what is in the repository is deployed.
    pub pipeline: Option<String>,
    /// The address of the deployment.
    pub ingress: Option<IngressResourceSpec>,
    /// Parameters of the build.
    pub parameters: BTreeMap<String, String>,
    /// Seconds after which the deployment is cleaned up; 0 for never. Defaults to three hours.
    pub ttl_seconds: Option<i64>,
}

/// Progress of a deployment.
#[api]
#[serde(rename_all = "snake_case")]
pub struct DevOpsReconcileJobHeartbeat {
    /// Always `heartbeat`.
    pub operation: String,
    /// ID of the deployment.
    pub id: String,
    /// Result so far.
    pub status: DeploymentState,
    /// Phase: initializing, building, deploying or verifying.
    pub phase: String,
    /// The phase in words.
    pub phase_message: String,
    /// URL of the deployment once it is live; null before.
    #[serde(default, skip_serializing_if = "never")]
    pub url: Option<String>,
}

/// A heartbeat has all of its fields, also those that are null.
fn never(_: &Option<String>) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use ostler_sdk::serde_json::{json, to_value};

    use super::*;

    #[test]
    fn heartbeat_has_exactly_the_fields_of_the_original() {
        let heartbeat = DevOpsReconcileJobHeartbeat {
            operation: "heartbeat".into(),
            id: "d-1".into(),
            status: DeploymentState::Running,
            phase: "building".into(),
            phase_message: "Build 7 is running.".into(),
            url: None,
        };
        let expected = json!({
            "operation": "heartbeat", "id": "d-1", "status": "running", "phase": "building",
            "phase_message": "Build 7 is running.", "url": null,
        });
        assert_eq!(to_value(&heartbeat).expect("JSON"), expected);
    }
}
