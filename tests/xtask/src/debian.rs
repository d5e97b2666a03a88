//! Servers for tests from their Debian packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use ostler_builder::toolchain;

use crate::{paths, progress::BuildStep};

/// Extracts packages into a folder. They are not installed, because that would start their servers as services.
pub fn extract_packages(packages: &[&str], folder: &Path) -> Result<()> {
    let mut download = Command::new("apt-get");
    download.args(["--quiet=2", "download"]).args(packages);
    extract_downloaded(packages, folder, download)
}

/// Returns the folder of this name with packages and those of their dependencies that are not installed, and extracts them unless it
/// has been done.
pub fn find_or_extract(packages: &[&str], name: &str) -> Result<PathBuf> {
    let folder = paths::create_target_subdir(name)?;
    // Written last, so that an extraction that was interrupted is repeated.
    let complete = folder.join("complete");
    if !complete.is_file() {
        extract_with_dependencies(packages, &folder)?;
        fs::write(&complete, "")?;
    }
    Ok(folder)
}

/// Extracts packages into a folder, with those of their dependencies that are not installed: the names of libraries
/// differ between releases.
fn extract_with_dependencies(packages: &[&str], folder: &Path) -> Result<()> {
    // apt-get keeps incomplete files there.
    fs::create_dir_all(folder.join("partial"))?;
    let mut download = Command::new("apt-get");
    download
        .args(["--quiet=2", "--yes", "--no-install-recommends", "--download-only"])
        .args(["--option", "Debug::NoLocking=true", "--option"])
        .arg(format!("Dir::Cache::archives={}", folder.display()))
        .arg("install")
        .args(packages);
    extract_downloaded(packages, folder, download)
}

fn extract_downloaded(packages: &[&str], folder: &Path, command: Command) -> Result<()> {
    let name = packages.first().copied().unwrap_or_default();
    let step = BuildStep::new(format!("Fetching Debian's {name} for the tests"));
    fs::create_dir_all(folder)?;
    let download = || {
        let mut again = Command::new(command.get_program());
        again.args(command.get_args()).current_dir(folder);
        toolchain::run_logged("apt-get", again)
    };
    let fetch = || -> Result<()> {
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
        Ok(())
    };
    fetch().with_context(|| format!("the tests need {name}: install Debian's package of this name"))?;
    step.finish("");
    Ok(())
}
