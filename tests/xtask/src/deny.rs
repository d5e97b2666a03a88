//! `cargo xtask deny`: checks licenses, bans, sources and advisories of the dependencies.

use std::{path::PathBuf, process::Command};

use anyhow::{Result, ensure};

use crate::{paths, progress::print_result};

/// The release of cargo-deny that checks the dependencies.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Checks the dependencies as `deny.toml` says; installs cargo-deny into `target/cargo-deny` where it is missing. Advisories
/// are left out, with a message, where their database can't be fetched: it is a repository of its own.
pub fn check_dependencies() -> Result<()> {
    let program = find_cargo_deny()?;
    let run = |arguments: &[&str]| {
        Command::new(&program)
            .args(["--log-level", "error"])
            .args(arguments)
            .current_dir(paths::workspace_root())
            .status()
    };
    let checked = run(&["check", "bans", "licenses", "sources"])?;
    ensure!(
        checked.success(),
        "`cargo deny check bans licenses sources` failed: {checked}"
    );
    if !run(&["fetch", "db"])?.success() {
        print_result("advisories were not checked: their database can't be fetched");
        return Ok(());
    }
    let checked = run(&["check", "--disable-fetch", "advisories"])?;
    ensure!(
        checked.success(),
        "`cargo deny check advisories` failed: {checked}"
    );
    Ok(())
}

/// The cargo-deny in the `PATH`, or else the one that this command installs. It is not installed for the user.
fn find_cargo_deny() -> Result<PathBuf> {
    let root = paths::target_dir().join("cargo-deny");
    let installed = root.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), installed.clone()] {
        let found = Command::new(&program).arg("--version").output();
        if found.is_ok_and(|output| output.status.success()) {
            return Ok(program);
        }
    }
    print_result("installing cargo-deny (some minutes, once)");
    let status = Command::new(env!("CARGO"))
        .args(["install", "cargo-deny", "--locked", "--quiet"])
        .args(["--version", CARGO_DENY_VERSION])
        .arg("--root")
        .arg(root)
        .status()?;
    ensure!(status.success(), "`cargo install cargo-deny` failed: {status}");
    Ok(installed)
}
