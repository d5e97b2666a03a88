//! `JenkinsSetting`: folders, pipelines and credentials in Jenkins.

use ostler_sdk::{api, resource};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::{LocalReference, SecretKey};

/// Characters that are encoded in a segment of a path.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Folders, pipelines and credentials in a Jenkins server. The pipelines are defined by a file in a git repository.
#[resource(
    group = "devops.ostler.dev",
    version = "v1alpha1",
    kind = "JenkinsSetting",
    namespaced,
    status = JenkinsSettingStatus,
    shortname = "jenset",
    category = "devops",
    doc = "Folders, pipelines and credentials in Jenkins.",
    printcolumn(name = "URL", type = "string", json_path = ".spec.url"),
    printcolumn(name = "Project", type = "string", json_path = ".spec.project"),
    printcolumn(name = "Ready", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Commit", type = "string", json_path = ".status.commit", priority = 1),
    printcolumn(name = "Age", type = "date", json_path = ".metadata.creationTimestamp")
)]
#[validation(rule = "self.project == oldSelf.project", message = "project is immutable")]
pub struct JenkinsSettingSpec {
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
    /// Name of the project's folder.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub project: String,
    /// Environments, each a folder in that of the project, with the same pipelines.
    #[schemars(length(min = 1, max = 20), extend("x-kubernetes-list-type" = "set"))]
    pub environments: Vec<String>,
    /// Definition of the pipelines.
    pub git: JenkinsGit,
    /// Credentials that the pipelines use, in the project's folder.
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub credentials: Vec<JenkinsCredential>,
    /// Suspends reconciliation; nothing is changed in Jenkins meanwhile.
    #[serde(default)]
    pub suspend: bool,
}

/// A file in a git repository that defines pipelines.
#[api]
pub struct JenkinsGit {
    /// The GitCredentials of the repository.
    pub credentials_ref: LocalReference,
    /// Branch or tag.
    #[serde(default = "main_branch")]
    #[schemars(length(min = 1, max = 255))]
    pub revision: String,
    /// Path of the file.
    #[serde(default = "default_config_path")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

fn main_branch() -> String {
    "main".into()
}

fn default_config_path() -> String {
    "devops.yaml".into()
}

/// A credential in Jenkins.
#[api]
pub struct JenkinsCredential {
    /// ID of the credential.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9._-]+$"))]
    pub id: String,
    /// Kind of the credential.
    #[serde(default)]
    pub kind: JenkinsCredentialKind,
    /// User name, for the kind UsernamePassword.
    #[schemars(length(max = 255))]
    pub username: Option<String>,
    /// The password or text.
    pub secret_ref: SecretKey,
}

/// Kind of a credential.
#[api]
#[derive(Copy, Default, Eq)]
pub enum JenkinsCredentialKind {
    /// A user name and a password.
    #[default]
    UsernamePassword,
    /// A text.
    SecretText,
}

/// Observed state in Jenkins.
#[api]
#[derive(Default)]
pub struct JenkinsSettingStatus {
    /// URL of the server on which this object manages the project's folder. It is recorded before the first write.
    pub claimed_server: Option<String>,
    /// Commit whose definition was applied last.
    pub commit: Option<String>,
    /// Pipelines that this object manages.
    pub pipelines: Vec<JenkinsPipelineState>,
    /// IDs of the credentials that this object manages, each with the digest of what was written.
    pub credentials: std::collections::BTreeMap<String, String>,
}

/// A pipeline in Jenkins.
#[api]
pub struct JenkinsPipelineState {
    /// Environment, which is its folder.
    pub environment: String,
    /// Name of the pipeline.
    pub name: String,
    /// Digest of the configuration that was written last.
    pub config_hash: String,
}

/// Path of a pipeline on the Jenkins server.
#[must_use]
pub fn job_path(project: &str, environment: &str, pipeline: &str) -> String {
    let mut path = String::new();
    for segment in [project, environment, pipeline] {
        path.push_str("/job/");
        path.extend(utf8_percent_encode(segment, SEGMENT));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_path_encodes_each_segment() {
        assert_eq!(
            job_path("shop", "alpha", "build it"),
            "/job/shop/job/alpha/job/build%20it"
        );
        assert_eq!(job_path("a/b", "?", "#"), "/job/a%2Fb/job/%3F/job/%23");
    }
}
