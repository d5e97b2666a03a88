//! The API types of the DevOps pack (`devops.ostler.dev/v1alpha1`), and what its reconcilers share.

mod argo;
mod common;
#[cfg(not(target_arch = "wasm32"))]
mod crds;
mod deployment;
mod events;
mod git;
mod ingress;
mod jenkins;
mod project;
mod registry;

pub use argo::{
    ApplicationLifetime, ApplicationSource, ApplicationState, ArgoApplication, ArgoConnection,
    ArgoDestination, ArgoProject, ArgoRepository, ArgoSetting, ArgoSettingSpec, ArgoSettingStatus,
    AutomatedSync, HelmParameter, HelmSource, OWNER_ANNOTATION, OWNER_LABEL, ServerRepository,
    application_users, default_server,
};
pub use common::{
    UpstreamReference, argo_upstream, check_secure_url, describe_deletion, git_upstream, jenkins_upstream,
    registry_upstream, secret_selector, upstream_manifest, with_authenticated,
};
#[cfg(not(target_arch = "wasm32"))]
pub use crds::crds;
pub use deployment::{
    BuildPhase, CleanupStep, DeploymentBuild, DeploymentBuildStatus, DeploymentIngress, DeploymentPhase,
    DeploymentRecord, DeploymentRecordSpec, DeploymentRecordStatus, DeploymentState, DeploymentSync,
    DeploymentTimeouts, HeartbeatStatus, HeartbeatTarget, SyncStatus, TtlPhase, TtlStatus,
};
pub use events::{
    DEVOPS_INITIALIZE, DEVOPS_RECONCILE, DEVOPS_RECONCILE_HEARTBEAT, DevOpsInitialize, DevOpsReconcile,
    DevOpsReconcileJobHeartbeat,
};
pub use git::{GitCredentials, GitCredentialsSpec, GitCredentialsStatus};
pub use ingress::{
    CertificateIssuer, DnsTarget, IngressBackend, IngressCertificate, IngressDns, IngressResource,
    IngressResourceSpec, IngressResourceStatus, IssuerKind, PathType, ServiceReference,
};
pub use jenkins::{
    JenkinsCredential, JenkinsCredentialKind, JenkinsGit, JenkinsPipelineState, JenkinsSetting,
    JenkinsSettingSpec, JenkinsSettingStatus, job_path,
};
pub use ostler_sdk::{LocalReference, SecretKey};
pub use project::{
    DevOpsProject, DevOpsProjectSpec, DevOpsProjectStatus, ProjectArgo, ProjectEnvironment, ProjectGit,
    ProjectJenkins, ProjectRegistry, application_name,
};
pub use registry::{
    ContainerRegistry, ContainerRegistrySpec, ContainerRegistryStatus, ImagePullSecret, PullSecretState,
};

use ostler_sdk::{Condition, Outcome};

/// The outcome for a suspended object, which is reached without any request.
#[must_use]
pub fn suspended_outcome() -> Outcome {
    let message = "Not reconciled while spec.suspend is true.";
    Outcome::await_change().with(Condition::new_false("Ready", "Suspended", message))
}
