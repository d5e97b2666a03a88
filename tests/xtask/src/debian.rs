//! Servers for tests from their Debian packages.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use ostler_builder::toolchain;

use crate::progress::Step;

/// Extracts packages into a folder. They are not installed, because that would start their servers as services.
pub fn extract_packages(packages: &[&str], folder: &Path) -> Result<()> {
    let name = packages.first().copied().unwrap_or_default();
    let step = Step::new(format!("Fetching Debian's {name} for the tests"));
    fs::create_dir_all(folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command
            .args(["--quiet=2", "download"])
            .args(packages)
            .current_dir(folder);
        toolchain::run_logged("apt-get download", command)
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
