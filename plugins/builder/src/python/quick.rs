//! Quick builds for `ostler plugin dev`: the interpreter with the SDK is compiled once, and each save writes the plugin's sources into its
//! memory. componentize-py takes 8 s, and the host compiles the same functions from its cache.
//!
//! The plugin's modules are imported at each call and not once in the build, which is slower at run time.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use memchr::memmem;

use super::{COMPILER_PACKAGE, PreparedBuild, SDK_FILES};
use crate::{
    contract,
    fingerprint::InputDigest,
    tools::{BuildDir, TEST_DIRS},
};

/// Entry module of a quick build.
const QUICK_MODULE: &str = "quick_main";
const QUICK_SOURCE: &str = include_str!("quick_main.py");
/// First bytes of the memory for sources, by which it is found in the component.
const MARK: &[u8; 32] = b"ostler: sources of the plugin >>";
/// The byte of memory that is not used.
const FILLER: u8 = b'Z';
/// Bytes before the sources: the mark, and their length.
const HEADER_BYTES: usize = MARK.len() + 8;
/// Minimum size of the memory for sources.
const MIN_CAPACITY: usize = 256 << 10;
/// Files and folders of a project that its modules do not read.
const UNREAD_FILES: [&str; 10] = [
    "pyproject.toml",
    "requirements.txt",
    "plugin.yaml",
    "README.md",
    "LICENSE",
    "Makefile",
    "crds",
    "samples",
    "upstreams",
    "grants.yaml",
];

/// Builds a component from the compiled interpreter. Returns none for a plugin that needs a whole build: its modules may read files when
/// they are imported, and there are none at run time.
///
/// # Errors
/// The output of the tools.
pub(super) fn build(
    dir: &BuildDir,
    prepared: &PreparedBuild,
    progress: &mut dyn FnMut(&str),
) -> Result<Option<Vec<u8>>> {
    if may_read_files(&prepared.stage)? {
        return Ok(None);
    }
    let scanned = &prepared.scanned;
    let sources = serde_json::to_vec(&scanned.modules)?;
    let capacity = (2 * sources.len() + HEADER_BYTES)
        .next_power_of_two()
        .max(MIN_CAPACITY);
    let hidden_mark: Vec<u8> = MARK.iter().map(|byte| byte ^ 0x55).collect();
    let settings = format!(
        "CAPACITY = {capacity}\nHIDDEN_MARK = bytes({hidden_mark:?})\nIMPORTS = {}\n",
        serde_json::to_string(&scanned.imports)?
    );
    let mut inputs = InputDigest::default();
    let contract = contract::WIT_FILES.iter().chain([&contract::FULL_WORLD]);
    let files = contract.chain(&SDK_FILES).map(|(_, text)| *text);
    for text in files.chain([COMPILER_PACKAGE, prepared.world, QUICK_SOURCE, &settings]) {
        inputs.add(text.as_bytes());
    }
    if let Some(packages) = &prepared.packages {
        inputs.add(packages.as_os_str().as_encoded_bytes());
    }
    let base = dir.work.join("quick.wasm");
    inputs.make_unless_current(&base, || {
        let folder = dir.write_files("quick", &SDK_FILES)?;
        let module = format!("{QUICK_MODULE}.py");
        dir.write_files(
            "quick",
            &[(&module, QUICK_SOURCE), ("ostler_quick.py", &settings)],
        )?;
        prepared.componentize(dir, &folder, QUICK_MODULE, progress)
    })?;
    let mut component = fs::read(&base).with_context(|| base.display().to_string())?;
    write_sources(&mut component, capacity, &sources)?;
    Ok(Some(component))
}

/// Returns true if a project has files beside its modules that these may read.
fn may_read_files(stage: &Path) -> Result<bool> {
    for entry in fs::read_dir(stage).with_context(|| stage.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if UNREAD_FILES.iter().chain(&TEST_DIRS).any(|known| name == *known) {
            continue;
        }
        let path = entry.path();
        let is_read = match entry.file_type()?.is_dir() {
            true => may_read_files(&path)?,
            false => path.extension().is_none_or(|extension| extension != "py"),
        };
        if is_read {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the sources into the memory for them.
fn write_sources(component: &mut [u8], capacity: usize, sources: &[u8]) -> Result<()> {
    let found: Vec<_> = memmem::find_iter(component, MARK).take(2).collect();
    let memory = match *found {
        [at] => component.get_mut(at..at + capacity),
        _ => None,
    };
    let Some(memory) = memory.filter(|memory| memory[MARK.len()..].iter().all(|byte| *byte == FILLER)) else {
        bail!(
            "the component of {COMPILER_PACKAGE} has no room for the sources of the plugin: `ostler plugin build` does without"
        );
    };
    memory[MARK.len()..HEADER_BYTES].copy_from_slice(&(sources.len() as u64).to_le_bytes());
    memory[HEADER_BYTES..HEADER_BYTES + sources.len()].copy_from_slice(sources);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(marks: usize) -> Vec<u8> {
        let memory = [&MARK[..], &[FILLER; 64]].concat();
        [b"before".to_vec(), memory.repeat(marks), b"after".to_vec()].concat()
    }

    #[test]
    fn sources_are_written_where_the_memory_for_them_is() {
        let mut bytes = component(1);
        write_sources(&mut bytes, MARK.len() + 64, b"{}").unwrap();
        assert!(bytes.starts_with(b"before") && bytes.ends_with(b"after"));
        let at = 6 + MARK.len();
        assert_eq!(bytes[at..at + 11], *b"\x02\0\0\0\0\0\0\0{}Z");
    }

    #[test]
    fn component_without_one_whole_memory_is_refused() {
        let mut split = component(1);
        split[6 + MARK.len() + 63] = 0;
        for mut bytes in [component(0), component(2), split] {
            assert!(write_sources(&mut bytes, MARK.len() + 64, b"{}").is_err());
        }
        assert!(
            write_sources(&mut component(1), 4096, b"{}").is_err(),
            "it ends before"
        );
    }

    #[test]
    fn project_with_data_beside_its_modules_needs_a_whole_build() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for name in [
            "main.py",
            "pyproject.toml",
            "crds/a.yaml",
            "package/module.py",
            "samples/a.yaml",
        ] {
            write(name);
        }
        assert!(!may_read_files(folder.path()).unwrap());
        write("package/data.json");
        assert!(may_read_files(folder.path()).unwrap());
    }
}
