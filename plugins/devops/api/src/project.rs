//! `DevOpsProject`: a project with all of its settings.

use ostler_sdk::{api, resource};

use crate::{
    ArgoConnection, ArgoDestination, AutomatedSync, ImagePullSecret, IngressResourceSpec, JenkinsCredential,
    SecretKey,
};

/// A project: its repository, registry, pipelines and environments. It applies the four settings.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "DevOpsProject",
    namespaced,
    status = DevOpsProjectStatus,
    shortname = "devproj",
    category = "devops",
    doc = "A project: repository, registry, pipelines and environments.",
    printcolumn(name = "Repository", type = "string", json_path = ".spec.git.url"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "has(self.environments)", message = "environments are required")]
pub struct DevOpsProjectSpec {
    /// The git repository.
    pub git: ProjectGit,
    /// The container registry.
    pub registry: ProjectRegistry,
    /// The Argo CD.
    pub argo: ProjectArgo,
    /// The Jenkins server; without it, nothing is built.
    pub jenkins: Option<ProjectJenkins>,
    /// Environments, such as alpha and production.
    #[schemars(length(min = 1, max = 20), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub environments: Vec<ProjectEnvironment>,
    /// Suspends reconciliation of the project and of its settings.
    #[serde(default)]
    pub suspend: bool,
}

/// The git repository of a project.
#[api]
pub struct ProjectGit {
    /// URL of the repository.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"))]
    pub url: String,
    /// Branch with the definition of the pipelines.
    #[serde(default = "main_branch")]
    #[schemars(length(min = 1, max = 255))]
    pub revision: String,
    /// Path of the definition of the pipelines.
    #[serde(default = "default_config_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub config_path: String,
    /// User name; leave it out with a token.
    #[schemars(length(min = 1, max = 255))]
    pub username: Option<String>,
    /// Password or token.
    pub password_ref: Option<SecretKey>,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
}

fn main_branch() -> String {
    "main".into()
}

fn default_config_path() -> String {
    "devops.yaml".into()
}

/// The container registry of a project.
#[api]
pub struct ProjectRegistry {
    /// URL of the registry.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^/]+/?$"))]
    pub url: String,
    /// Repository of the project's images.
    #[schemars(length(min = 1, max = 255))]
    pub repository: Option<String>,
    /// User name.
    #[schemars(length(min = 1, max = 255))]
    pub username: Option<String>,
    /// Password or token.
    pub password_ref: Option<SecretKey>,
    /// URL of the token server if it is on another host, as in a ContainerRegistry.
    #[serde(rename = "tokenURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^?#@]+$"))]
    pub token_url: Option<String>,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Secrets for pulling images, of type `kubernetes.io/dockerconfigjson`.
    #[schemars(length(max = 100))]
    pub image_pull_secrets: Vec<ImagePullSecret>,
}

/// The Argo CD of a project.
#[api]
pub struct ProjectArgo {
    /// Namespace in which Argo CD looks for its objects.
    #[serde(default = "default_argo_namespace")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// An Argo CD that is reached by its API, as in an ArgoSetting.
    pub server: Option<ArgoConnection>,
}

fn default_argo_namespace() -> String {
    "argocd".into()
}

/// The Jenkins server of a project.
#[api]
pub struct ProjectJenkins {
    /// URL of the Jenkins server.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"))]
    pub url: String,
    /// User of the API token.
    #[schemars(length(min = 1, max = 255))]
    pub username: String,
    /// The API token.
    pub token_ref: SecretKey,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
    /// Credentials that the pipelines use.
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub credentials: Vec<JenkinsCredential>,
}

/// An environment of a project.
#[api]
pub struct ProjectEnvironment {
    /// Name of the environment.
    #[schemars(
        length(min = 1, max = 40),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Cluster and namespace of its application.
    pub destination: ArgoDestination,
    /// Directory of its manifests in the repository.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Branch, tag or commit of its manifests.
    #[serde(default = "head_revision")]
    #[schemars(length(min = 1, max = 255))]
    pub revision: String,
    /// Pipeline that builds it; without it, nothing is built.
    #[schemars(length(min = 1, max = 128))]
    pub pipeline: Option<String>,
    /// Has Argo CD sync by itself.
    pub automated: Option<AutomatedSync>,
    /// Its application exists while a DeploymentRecord uses it, and is deleted when its time to live has ended.
    #[serde(default)]
    pub temporary: bool,
    /// The address of its deployments.
    pub ingress: Option<IngressResourceSpec>,
}

fn head_revision() -> String {
    "HEAD".into()
}

/// Observed state of a project.
#[api]
#[derive(Default)]
pub struct DevOpsProjectStatus {
    /// Commit of the repository that was validated last.
    pub commit: Option<String>,
}

/// Name of the application of an environment in Argo CD.
#[must_use]
pub fn application_name(project: &str, environment: &str) -> String {
    [project, "-", environment].concat()
}
