//! Components of the same sources, kept for all checkouts of a user: a fresh clone has none to build, and the same bytes as before, whose
//! compiled code is cached by their digest, too.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use ostler_builder::{fingerprint::InputDigest, replace_file};

use crate::paths;

/// What components are made of, below the root of the workspace. A folder counts with all of its files.
const SOURCES: [&str; 15] = [
    ".cargo/config.toml",
    "Cargo.lock",
    "Cargo.toml",
    "crds",
    "host/readiness",
    "host/selector",
    "host/schema",
    "plugins",
    "tests/bench/plugin",
    "tests/bench/plugins",
    "tests/hostile",
    "tests/lifecycle",
    "tests/probe",
    "tests/xtask/src/components.rs",
    "wit",
];
/// Programs that make them, with the arguments by which they print their versions.
const PROGRAMS: [&[&str]; 6] = [
    &["rustc", "-vV"],
    &["/usr/bin/rustc", "-vV"],
    &["/usr/bin/wasm-opt", "--version"],
    &["go", "version"],
    &["node", "--version"],
    &["python3", "--version"],
];
/// Names of folders whose files are made by tools.
const GENERATED_FOLDERS: [&str; 3] = ["target", "node_modules", "__pycache__"];

/// Name of the folder in the cache of the user.
pub const FOLDER: &str = "components";

/// The components of the sources and programs as they were when it was opened.
pub struct ComponentCache {
    folder: PathBuf,
    /// Digest of the sources.
    sources: String,
}

impl ComponentCache {
    /// Opens the folder of the present sources and programs.
    ///
    /// # Errors
    /// When a source cannot be read.
    pub fn open() -> Result<Self> {
        let (mut programs, mut sources) = (InputDigest::default(), InputDigest::default());
        for program in PROGRAMS {
            let output = Command::new(program[0]).args(&program[1..]).output();
            // One that is missing is part of the key as well.
            programs.add(&output.map(|output| output.stdout).unwrap_or_default());
        }
        let root = paths::workspace_root();
        for source in SOURCES {
            add_source(&mut sources, root, &root.join(source))?;
        }
        let sources = sources.digest();
        let mut key = InputDigest::default();
        key.add(sources.as_bytes());
        key.add(programs.digest().as_bytes());
        let cache = ostler_builder::cache_dir(&paths::target_dir());
        Ok(Self {
            folder: cache.join(FOLDER).join(key.digest()),
            sources,
        })
    }

    /// Opens the folder for what was built since this one was opened: programs may have been installed meanwhile. None if a source
    /// has changed meanwhile.
    ///
    /// # Errors
    /// As [`ComponentCache::open`].
    pub fn reopen(self) -> Result<Option<Self>> {
        let now = Self::open()?;
        Ok((now.sources == self.sources).then_some(now))
    }

    /// Copies a component to its place, if it is there. Returns whether that has changed the file; none if it has to be built.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn restore(&self, pack: &str, name: &str, path: &Path) -> Result<Option<bool>> {
        let Ok(bytes) = fs::read(self.locate(pack, name)) else {
            return Ok(None);
        };
        let changed = replace_file(path, &bytes)?;
        if changed {
            // It says what the file was made of before.
            let _ = fs::remove_file(path.with_extension("inputs"));
        }
        Ok(Some(changed))
    }

    /// Keeps a component that was built.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn store(&self, pack: &str, name: &str, path: &Path) -> Result<()> {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        replace_file(&self.locate(pack, name), &bytes)?;
        Ok(())
    }

    fn locate(&self, pack: &str, name: &str) -> PathBuf {
        self.folder.join(pack).join(name).with_extension("wasm")
    }
}

/// Adds a file, or the files of a folder in the order of their names, each with its path.
fn add_source(inputs: &mut InputDigest, root: &Path, path: &Path) -> Result<()> {
    let context = || path.display().to_string();
    if !path.is_dir() {
        let name = path.strip_prefix(root)?;
        inputs.add(name.as_os_str().as_encoded_bytes());
        inputs.add(&fs::read(path).with_context(context)?);
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(context)?;
    let mut entries = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        if !GENERATED_FOLDERS.contains(&&*name) {
            add_source(inputs, root, &entry)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::components;

    fn digest(root: &Path) -> String {
        let mut inputs = InputDigest::default();
        add_source(&mut inputs, root, root).unwrap();
        inputs.digest()
    }

    #[test]
    fn digest_changes_with_each_source_and_no_generated_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("src")).unwrap();
        fs::write(root.join("src/lib.rs"), "one").unwrap();
        let first = digest(root);
        for name in GENERATED_FOLDERS {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("made"), "by a tool").unwrap();
        }
        assert_eq!(digest(root), first);
        fs::write(root.join("src/lib.rs"), "two").unwrap();
        let edited = digest(root);
        fs::rename(root.join("src/lib.rs"), root.join("src/main.rs")).unwrap();
        let renamed = digest(root);
        assert!(first != edited && edited != renamed);
    }

    #[test]
    fn restored_component_replaces_another_one_and_its_marker() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ComponentCache {
            folder: folder.path().join("cache"),
            sources: String::new(),
        };
        let path = folder.path().join("built.wasm");
        assert_eq!(cache.restore("pack", "name", &path).unwrap(), None);
        fs::write(&path, "built").unwrap();
        cache.store("pack", "name", &path).unwrap();
        assert_eq!(cache.restore("pack", "name", &path).unwrap(), Some(false));
        fs::write(&path, "other").unwrap();
        fs::write(path.with_extension("inputs"), "of the other").unwrap();
        assert_eq!(cache.restore("pack", "name", &path).unwrap(), Some(true));
        assert_eq!(fs::read(&path).unwrap(), b"built");
        assert!(!path.with_extension("inputs").exists());
    }

    /// A component of a folder that is missing there would be restored after an edit.
    #[test]
    fn every_guest_is_below_a_source() {
        let root = paths::workspace_root();
        for guest in components::list_guests().unwrap() {
            let mut sources = SOURCES.iter();
            assert!(
                sources.any(|source| guest.folder.starts_with(root.join(source))),
                "{}",
                guest.folder.display()
            );
        }
    }
}
