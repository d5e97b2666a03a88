//! `cargo xtask deny`: checks licenses, bans, sources and advisories of the dependencies.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{paths, progress::print_result, tool};

/// The release of cargo-deny that checks the dependencies.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Checks the dependencies as `deny.toml` says; installs cargo-deny where it is missing. Advisories
/// are left out, with a message, where their database can't be fetched: it is a repository of its own.
pub fn check_dependencies() -> Result<()> {
    let program = tool::find_or_install("cargo-deny", CARGO_DENY_VERSION, &[])?;
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
