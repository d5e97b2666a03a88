//! Types that the specs of several kinds share.

use ostler_sdk::{UpstreamRef, api};

/// A reference to another object in the same namespace.
#[api]
pub struct LocalReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A key of a Secret in the object's own namespace.
#[api]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A reference to an Upstream.
#[api]
pub struct UpstreamReference {
    /// Name of the Upstream.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Upstream; defaults to the namespace of the referring object.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

impl UpstreamReference {
    /// The reference as host functions take it.
    #[must_use]
    pub fn upstream_ref(&self) -> UpstreamRef {
        let upstream = UpstreamRef::new(&self.name);
        match &self.namespace {
            Some(namespace) => upstream.in_namespace(namespace),
            None => upstream,
        }
    }
}

/// Name of the Upstream that a JenkinsSetting owns.
#[must_use]
pub fn jenkins_upstream(setting: &str) -> String {
    ["jenkins-", setting].concat()
}

/// Name of the Upstream that a GitCredentials object owns.
#[must_use]
pub fn git_upstream(credentials: &str) -> String {
    ["git-", credentials].concat()
}

/// Name of the Upstream that a ContainerRegistry owns.
#[must_use]
pub fn registry_upstream(registry: &str) -> String {
    ["registry-", registry].concat()
}
