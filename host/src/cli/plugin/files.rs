//! Files of a project's folders: CRDs, samples and the responses of simulated upstreams.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Extensions of files with objects.
pub const OBJECT_EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Lists the files of a folder that have one of these extensions and are not hidden, in the order of their names. A folder that is not
/// there has none.
///
/// # Errors
/// The folder can't be read.
pub fn list_files(folder: &Path, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| folder.display().to_string()),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !is_hidden && extensions.contains(&extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a file as text.
///
/// # Errors
/// Names the file.
pub fn read_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
