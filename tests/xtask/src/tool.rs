//! Programs of crates.io that commands of this crate run.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use crate::{paths, progress::print_result};

/// Returns a program of the package's name: the one in the `PATH`, or else one that this function installs into the build
/// cache of the user, so that a fresh clone has it. It is not installed for the user. Without optimization, because its build
/// takes longer than its runs.
pub fn find_or_install(package: &str, version: &str, flags: &[&str]) -> Result<PathBuf> {
    let root = ostler_builder::cache_dir(&paths::target_dir()).join(format!("{package}-{version}"));
    let installed = root.join("bin").join(package);
    for program in [PathBuf::from(package), installed.clone()] {
        let found = Command::new(&program).arg("--version").output();
        if found.is_ok_and(|output| output.status.success()) {
            return Ok(program);
        }
    }
    print_result(&format!("installing {package} {version} (some minutes, once)"));
    let status = Command::new(env!("CARGO"))
        .args([
            "install",
            package,
            "--version",
            version,
            "--locked",
            "--quiet",
            "--debug",
        ])
        .args(flags)
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .arg("--root")
        .arg(root)
        .status()?;
    ensure!(status.success(), "`cargo install {package}` failed: {status}");
    Ok(installed)
}
