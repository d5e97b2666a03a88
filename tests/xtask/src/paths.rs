//! Paths of the workspace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
pub use ostler_builder::replace_file;

/// Returns the root of the workspace.
pub fn workspace_root() -> &'static Path {
    // This crate is in tests/xtask.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Returns a folder below target/, creating it if needed.
pub fn create_target_subdir(name: &str) -> Result<PathBuf> {
    let path = target_dir().join(name);
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// Returns cargo's target folder.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace_root().join(dir),
        None => workspace_root().join("target"),
    }
}
