//! Prometheus and its rule tester, from Debian's package.

use std::path::PathBuf;

use anyhow::{Context, Result};
use ostler_builder::toolchain;

use crate::{debian, paths};

/// Returns the folder of `prometheus` and `promtool`: one of the `PATH`, or that which their Debian package is extracted into.
pub fn find_or_fetch() -> Result<PathBuf> {
    if let Some(path) = toolchain::find_in_path("promtool") {
        let folder = path.parent().context("a folder")?;
        if folder.join("prometheus").is_file() {
            return Ok(folder.to_owned());
        }
    }
    let folder = paths::create_target_subdir("prometheus")?;
    let programs = folder.join("usr/bin");
    if !programs.join("promtool").is_file() {
        debian::extract_packages(&["prometheus"], &folder)?;
    }
    Ok(programs)
}
