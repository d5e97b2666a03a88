//! `ArgoSetting`: projects, repositories and applications in Argo CD.

use ostler_sdk::{api, resource};

use crate::SecretKey;

/// Label of the objects in Argo CD's namespace that an ArgoSetting manages; its value is the setting's UID. An object
/// without it belongs to another user: it is neither changed nor deleted.
pub const OWNER_LABEL: &str = "devops.ostler.dev/argo-setting";
/// Annotation of these objects with the setting's namespace and name, for people.
pub const OWNER_ANNOTATION: &str = "devops.ostler.dev/argo-setting-name";

/// Argo CD's name of the cluster it runs in.
const LOCAL_SERVER: &str = "https://kubernetes.default.svc";

/// Projects, repositories and applications in an Argo CD: of this cluster by its custom resources, of another one by its API.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "ArgoSetting",
    namespaced,
    status = ArgoSettingStatus,
    shortname = "argoset",
    category = "devops",
    doc = "Projects, repositories and applications in Argo CD.",
    printcolumn(name = "Argo", type = "string", json_path = ".spec.argoNamespace"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Synced", type = "string", json_path = ".status.syncedApplications"),
    printcolumn(name = "Suspended", type = "boolean", json_path = ".spec.suspend", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "has(self.projects)", message = "projects are required")]
#[validation(
    rule = "self.argoNamespace == oldSelf.argoNamespace",
    message = "argoNamespace is immutable"
)]
#[validation(
    rule = "has(self.server) == has(oldSelf.server) && (!has(self.server) || self.server.url == oldSelf.server.url)",
    message = "server.url is immutable, and server can be neither added nor removed"
)]
pub struct ArgoSettingSpec {
    /// Namespace in which Argo CD looks for its objects.
    #[serde(default = "default_argo_namespace")]
    #[schemars(length(min = 1, max = 63))]
    pub argo_namespace: String,
    /// An Argo CD that is reached by its API, and not by the custom resources of this cluster.
    pub server: Option<ArgoConnection>,
    /// Projects: what their applications may deploy, and where to.
    #[schemars(length(min = 1, max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub projects: Vec<ArgoProject>,
    /// Repositories, each of one project.
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub repositories: Vec<ArgoRepository>,
    /// Applications.
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub applications: Vec<ArgoApplication>,
    /// Suspends reconciliation; nothing is changed in Argo CD meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

fn default_argo_namespace() -> String {
    "argocd".into()
}

/// Argo CD's name of the cluster it runs in.
#[must_use]
pub fn default_server() -> String {
    LOCAL_SERVER.into()
}

/// The API of an Argo CD.
#[api]
pub struct ArgoConnection {
    /// URL of the API server.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"))]
    pub url: String,
    /// A token of an account (`argocd account generate-token`).
    pub token_ref: SecretKey,
    /// The certificate authority to trust, as PEM.
    pub ca_ref: Option<SecretKey>,
}

/// A project (`AppProject`). Its applications may use the repositories that name it, and no others.
#[api]
pub struct ArgoProject {
    /// Name of the AppProject.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Description for people.
    #[schemars(length(max = 255))]
    pub description: Option<String>,
    /// Clusters and namespaces that its applications may deploy to.
    #[schemars(length(min = 1, max = 50))]
    pub destinations: Vec<ArgoDestination>,
    /// Cluster-scoped kinds that its applications may contain, as `group/Kind` (`/Namespace` for the core group); none by
    /// default.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub cluster_resources: Vec<String>,
}

/// A cluster and a namespace.
#[api]
#[derive(Eq, PartialOrd, Ord)]
pub struct ArgoDestination {
    /// URL of the cluster's API server; defaults to the cluster of Argo CD.
    #[serde(default = "default_server")]
    #[schemars(length(min = 1, max = 2048))]
    pub server: String,
    /// Namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
}

/// A repository, and the credentials that Argo CD reads it with.
#[api]
#[validation(
    rule = "!has(self.passwordRef) || self.url.startsWith('https://') || self.url.startsWith('http://')",
    message = "a password is for http(s) URLs"
)]
pub struct ArgoRepository {
    /// Name, unique in this setting.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// URL of the repository, as applications name it.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of the project that may use it.
    #[schemars(length(min = 1, max = 63))]
    pub project: String,
    /// User name; leave it out with a token.
    #[schemars(length(min = 1, max = 255))]
    pub username: Option<String>,
    /// Password or token.
    pub password_ref: Option<SecretKey>,
    /// Accepts any certificate of the server. For tests only.
    #[serde(default)]
    pub insecure: bool,
}

/// An application (`Application`): what is deployed where.
#[api]
pub struct ArgoApplication {
    /// Name of the Application.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Name of its project.
    #[schemars(length(min = 1, max = 63))]
    pub project: String,
    /// Manifests to deploy.
    pub source: ApplicationSource,
    /// Cluster and namespace; defaults to the only destination of its project.
    pub destination: Option<ArgoDestination>,
    /// Has Argo CD sync by itself. Without it, a DeploymentRecord or a user starts each sync.
    pub automated: Option<AutomatedSync>,
    /// Lets Argo CD create the namespace of the destination.
    #[serde(default)]
    pub create_namespace: bool,
    /// Decides how long the application exists.
    #[serde(default)]
    pub lifetime: ApplicationLifetime,
}

/// A directory of manifests in a repository.
#[api]
pub struct ApplicationSource {
    /// URL of the repository; it has to be in `repositories` for the application's project.
    #[serde(rename = "repoURL")]
    #[schemars(length(min = 1, max = 2048))]
    pub repo_url: String,
    /// Directory in the repository.
    #[serde(default = "root_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Branch, tag or commit.
    #[serde(default = "head_revision")]
    #[schemars(length(min = 1, max = 255))]
    pub revision: String,
    /// Values for a Helm chart in the directory.
    pub helm: Option<HelmSource>,
}

fn root_path() -> String {
    ".".into()
}

fn head_revision() -> String {
    "HEAD".into()
}

/// Values for a Helm chart.
#[api]
#[derive(Eq)]
pub struct HelmSource {
    /// Files of values, relative to the directory.
    pub value_files: Vec<String>,
    /// Parameters, as `helm --set` takes them.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<HelmParameter>,
}

/// A parameter of a Helm chart.
#[api]
#[derive(Eq)]
pub struct HelmParameter {
    /// Name of the parameter.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Value of the parameter.
    pub value: String,
}

/// Syncs by Argo CD itself.
#[api]
#[derive(Copy, Eq)]
pub struct AutomatedSync {
    /// Deletes objects that are no longer in the repository.
    #[serde(default)]
    pub prune: bool,
    /// Reverts changes that others make in the cluster.
    #[serde(default)]
    pub self_heal: bool,
}

/// Decides how long an application exists.
#[api]
#[derive(Copy, Default, Eq)]
pub enum ApplicationLifetime {
    /// As long as the ArgoSetting lists it.
    #[default]
    Permanent,
    /// While a DeploymentRecord uses it: it is deleted, with what it deployed, when the time to live of the last one has
    /// ended.
    Deployment,
}

/// Observed state in Argo CD.
#[api]
#[derive(Default)]
pub struct ArgoSettingStatus {
    /// Secrets of repositories in Argo CD's namespace that this object manages, by name. A name is recorded before the
    /// Secret is first written.
    pub repository_secrets: Vec<String>,
    /// Projects in the Argo CD of `spec.server` that this object manages, by name. A name is recorded before the project is first
    /// written.
    pub server_projects: Vec<String>,
    /// Repositories in the Argo CD of `spec.server` that this object manages, recorded in the same way.
    pub server_repositories: Vec<ServerRepository>,
    /// State of each application that exists.
    pub applications: Vec<ApplicationState>,
    /// Number of applications that are Synced, and of all, as `2/3`.
    pub synced_applications: Option<String>,
}

/// A repository in an Argo CD, of which a project has one of each URL.
#[api]
#[derive(Eq)]
pub struct ServerRepository {
    /// Name of the project.
    pub project: String,
    /// URL of the repository.
    pub url: String,
}

/// State of an application, as Argo CD shows it.
#[api]
#[derive(Default)]
pub struct ApplicationState {
    /// Name of the Application.
    pub name: String,
    /// Sync status: Synced, OutOfSync or Unknown.
    pub sync: Option<String>,
    /// Health: Healthy, Progressing, Degraded, Suspended, Missing or Unknown.
    pub health: Option<String>,
    /// Commit that was compared last.
    pub revision: Option<String>,
    /// First error that Argo CD shows.
    pub error: Option<String>,
}

/// The field selector of the DeploymentRecords that still need an application of a setting: those that neither are deleted nor
/// have begun their clean-up. The application comes first, since the host indexes the first field that has to be equal.
#[must_use]
pub fn application_users(setting: &str, application: &str) -> String {
    format!(
        "spec.sync.application={application},spec.sync.settingRef.name={setting},metadata.deletionTimestamp=,\
         status.ttl.phase!=Cleanup,status.ttl.phase!=Completed"
    )
}
