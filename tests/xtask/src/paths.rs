//! Where things are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
pub use ostler_builder::replace;

/// The root of the workspace.
pub fn root() -> &'static Path {
    // tests/xtask is two folders down.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// A folder under target/ that is made when it isn't there.
pub fn target(name: &str) -> Result<PathBuf> {
    let path = target_dir().join(name);
    fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    Ok(path)
}

/// The target folder, wherever cargo was told to have it.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}
