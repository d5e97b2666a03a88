//! The real OCI registry for tests: Debian's docker-registry.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use ostler_builder::toolchain;

use crate::{paths, progress::Step};

const REGISTRY_PACKAGE: &str = "docker-registry";

/// Finds the registry in the `PATH`, or extracts it from its Debian package. The package is not installed, because
/// that would start the registry as a service.
pub fn find_or_fetch() -> Result<PathBuf> {
    if let Some(path) = toolchain::find_in_path(REGISTRY_PACKAGE) {
        return Ok(path);
    }
    let folder = paths::create_target_subdir(REGISTRY_PACKAGE)?;
    let binary = folder.join("usr/bin").join(REGISTRY_PACKAGE);
    if !binary.is_file() {
        fetch_package(&folder).with_context(|| {
            format!("the tests need {REGISTRY_PACKAGE}: install Debian's package of this name")
        })?;
    }
    Ok(binary)
}

fn fetch_package(folder: &Path) -> Result<()> {
    let step = Step::new(format!("Fetching Debian's {REGISTRY_PACKAGE} for the tests"));
    fs::create_dir_all(folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command
            .args(["--quiet=2", "download", REGISTRY_PACKAGE])
            .current_dir(folder);
        toolchain::run_logged("apt-get download", command)
    };
    if download().is_err() {
        // A fresh machine has no package lists.
        toolchain::run_apt_get(&["update"])?;
        download()?;
    }
    for entry in fs::read_dir(folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|e| e == "deb") {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").arg(&package).arg(folder);
            toolchain::run_logged("dpkg-deb", command)?;
            fs::remove_file(&package)?;
        }
    }
    step.finish("");
    Ok(())
}
