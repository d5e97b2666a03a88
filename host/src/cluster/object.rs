//! The parts of a `Cluster` that its connection needs, read from a stored object.

use super::spec::{Cluster, ClusterSpec};
use crate::kube::{
    key::{Gvk, ObjectRef},
    object::KubeObject,
};

/// A `Cluster` as its connection needs it.
#[derive(Clone, Debug)]
pub struct ClusterObject {
    /// The uid: another object of the same name gets another connection.
    pub uid: String,
    /// Namespace of the Cluster and its Secret.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The spec.
    pub spec: ClusterSpec,
}

impl ClusterObject {
    /// Parses a stored object; the error names the field.
    pub fn from_object(object: &KubeObject) -> Result<Self, String> {
        let cluster: Cluster =
            serde_json::from_slice(&object.json.text()).map_err(|e| format!("Cluster: {}", e))?;
        Ok(Self {
            uid: object.uid.to_string(),
            namespace: cluster.metadata.namespace.unwrap_or_default(),
            name: cluster.metadata.name.unwrap_or_default(),
            spec: cluster.spec,
        })
    }

    /// The Secret with the kubeconfig.
    pub fn kubeconfig_secret(&self) -> ObjectRef {
        let name = &self.spec.kubeconfig_secret_ref.name;
        ObjectRef::new(Gvk::secret(), &self.namespace, name)
    }

    /// Objects of this namespace may use the Cluster.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        let mut allowed = self.spec.allowed_namespaces.iter();
        *namespace == self.namespace || allowed.any(|n| n == "*" || n == namespace)
    }
}
