//! Programs with which people use a cluster, each built once from a Go module in tests/: kubectl, Helm and kustomize.

use std::path::PathBuf;

use anyhow::Result;

use crate::{control_plane, go::GoProgram};

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

/// Builds kubectl, unless it is there. Returns its binary.
pub fn build_kubectl() -> Result<PathBuf> {
    let flags = control_plane::release_flags()?;
    let program = GoProgram {
        name: "kubectl",
        title: "Building kubectl (2 minutes the first time)",
        linker_flags: &flags,
        package: ".",
    };
    program.build(|_| Ok(()))
}
