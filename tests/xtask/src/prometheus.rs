//! The rule tester of Prometheus, from Debian's package.

use std::path::PathBuf;

use anyhow::Result;
use ostler_builder::toolchain;

use crate::{debian, paths};

/// Finds promtool in the `PATH`, or extracts it from its Debian package.
pub fn find_or_fetch() -> Result<PathBuf> {
    if let Some(path) = toolchain::find_in_path("promtool") {
        return Ok(path);
    }
    let folder = paths::create_target_subdir("prometheus")?;
    let binary = folder.join("usr/bin/promtool");
    if !binary.is_file() {
        debian::extract_packages(&["prometheus"], &folder)?;
    }
    Ok(binary)
}
