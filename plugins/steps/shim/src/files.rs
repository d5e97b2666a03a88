//! Files in the shared volume.

use std::path::{Path, PathBuf};

/// The packed output. It appears complete, by a rename.
pub fn artifact_path(root: &str, name: &str) -> PathBuf {
    Path::new(root).join("artifacts").join(format!("{name}.tar.lz4"))
}

/// The digest of a packed output, which the streamer sends along. It appears before the artifact does.
pub fn digest_path(root: &str, name: &str) -> PathBuf {
    Path::new(root).join("artifacts").join(format!("{name}.digest"))
}

/// The mark of an input that has been unpacked and checked.
pub fn fetched_path(root: &str, name: &str) -> PathBuf {
    Path::new(root).join("fetched").join(name)
}
