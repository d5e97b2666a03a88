//! Helm and kustomize, each built once from a Go module in tests/.

use std::path::PathBuf;

use anyhow::Result;

use crate::go::GoProgram;

/// Builds Helm, unless it is there. Returns its binary.
pub fn build_helm() -> Result<PathBuf> {
    let program = GoProgram {
        name: "helm",
        title: "Building Helm (4 minutes the first time)",
        linker_flags: "-s -w",
        package: "helm.sh/helm/v3/cmd/helm",
    };
    program.build(|_| Ok(()))
}

/// Builds kustomize, unless it is there. Returns its binary.
pub fn build_kustomize() -> Result<PathBuf> {
    let program = GoProgram {
        name: "kustomize",
        title: "Building kustomize (20 seconds the first time)",
        linker_flags: "-s -w",
        package: "sigs.k8s.io/kustomize/kustomize/v5",
    };
    program.build(|_| Ok(()))
}
