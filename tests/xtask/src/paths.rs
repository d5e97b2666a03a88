//! Where things are.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

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
fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Writes a file so that no reader ever sees half of it; leaves it alone (and
/// says so by `false`) when it already has these bytes.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let folder = path.parent().context("a file in a folder")?;
    fs::create_dir_all(folder)?;
    let mut partial = tempfile::NamedTempFile::new_in(folder)?;
    partial.write_all(bytes)?;
    partial
        .persist(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace_writes_only_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        assert!(replace(&path, b"one").unwrap());
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(!replace(&path, b"one").unwrap());
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        assert!(replace(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no partial file left"
        );
    }
}
