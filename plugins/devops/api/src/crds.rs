use ostler_sdk::crd::file;

use crate::{
    ArgoSettingSpec, ContainerRegistrySpec, DeploymentRecordSpec, DevOpsProjectSpec, GitCredentialsSpec,
    IngressResourceSpec, JenkinsSettingSpec,
};

/// File name and text of every CRD of the pack.
#[must_use]
pub fn crds() -> Vec<(String, String)> {
    vec![
        file::<DevOpsProjectSpec>(),
        file::<ArgoSettingSpec>(),
        file::<JenkinsSettingSpec>(),
        file::<ContainerRegistrySpec>(),
        file::<GitCredentialsSpec>(),
        file::<DeploymentRecordSpec>(),
        file::<IngressResourceSpec>(),
    ]
}
