//! The real OCI registry for tests: Debian's docker-registry.

use std::path::PathBuf;

use anyhow::Result;
use ostler_builder::toolchain;

use crate::{debian, paths};

const REGISTRY_PACKAGE: &str = "docker-registry";

/// Finds the registry in the `PATH`, or extracts it from its Debian package.
pub fn find_or_fetch() -> Result<PathBuf> {
    if let Some(path) = toolchain::find_in_path(REGISTRY_PACKAGE) {
        return Ok(path);
    }
    let folder = paths::create_target_subdir(REGISTRY_PACKAGE)?;
    let binary = folder.join("usr/bin").join(REGISTRY_PACKAGE);
    if !binary.is_file() {
        debian::extract_packages(&[REGISTRY_PACKAGE], &folder)?;
    }
    Ok(binary)
}
