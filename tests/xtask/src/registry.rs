//! The real OCI registry for tests: Debian's docker-registry.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ostler_builder::toolchain;

use crate::{paths, progress};

const PACKAGE: &str = "docker-registry";

/// Finds it, or takes it out of its package. It is not installed: that would start it as a service.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = toolchain::on_path(PACKAGE) {
        return Ok(path);
    }
    let folder = paths::target(PACKAGE)?;
    let binary = folder.join("usr/bin").join(PACKAGE);
    if !binary.is_file() {
        unpack(&folder).with_context(|| format!("install Debian's package {PACKAGE}"))?;
    }
    Ok(binary)
}

fn unpack(folder: &Path) -> Result<()> {
    progress::say(&format!("Fetching Debian's {PACKAGE} (for tests)"));
    fs::create_dir_all(folder)?;
    let download = || {
        run(Command::new("apt-get")
            .args(["--quiet", "download", PACKAGE])
            .current_dir(folder))
    };
    if download().is_err() {
        // A fresh machine knows no packages.
        toolchain::apt_get(&["update"])?;
        download()?;
    }
    for entry in fs::read_dir(folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb")
                .arg("--extract")
                .arg(&package)
                .arg(folder))?;
            fs::remove_file(&package)?;
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    // On stderr, so that stdout stays for results.
    let status = command
        .stdout(std::io::stderr())
        .status()
        .with_context(|| name.clone())?;
    match status.success() {
        true => Ok(()),
        false => bail!("{name}: {status}"),
    }
}
