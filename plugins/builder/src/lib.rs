//! Builds a plugin's folder into a component: detects the language, runs its tools, encodes their output as a
//! component and embeds the manifest.

pub mod cargo;
pub mod component;
pub mod contract;
pub mod crds;
pub mod fingerprint;
pub mod go;
pub mod javascript;
pub mod manifest;
pub mod objects;
pub mod progress;
pub mod python;
pub mod rust;
pub mod sdk;
pub mod toolchain;
pub mod tools;

use std::{
    fmt, fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Language a plugin is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A Rust crate.
    Rust,
    /// An npm package.
    JavaScript,
    /// A Python project.
    Python,
    /// A Go module.
    Go,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Rust, Self::JavaScript, Self::Python, Self::Go];

    /// Returns the file that marks a folder as a plugin in this language.
    #[must_use]
    pub fn marker(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::JavaScript => "package.json",
            Self::Python => "pyproject.toml",
            Self::Go => "go.mod",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rust => "Rust",
            Self::JavaScript => "JavaScript",
            Self::Python => "Python",
            Self::Go => "Go",
        })
    }
}

/// Options of a build.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// Path of the component; the default is below the target folder of the plugin.
    pub out: Option<PathBuf>,
    /// Install missing tools, where this machine's package manager has them.
    pub install: bool,
    /// Build in a way that makes the next build of a changed source fast, if the language has one. Such a component is slower at
    /// run time.
    pub quick: bool,
}

/// A component that was built and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltComponent {
    /// Name of the plugin's package.
    pub name: String,
    /// Path of the component.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: usize,
    /// False when the file already had these bytes.
    pub changed: bool,
    /// Warnings of the compiler, verbatim.
    pub warnings: Vec<String>,
}

/// A component as built from source, before the manifest is embedded.
#[derive(Clone, Debug)]
pub struct RawComponent {
    /// Name of the package.
    pub name: String,
    /// Bytes of the component.
    pub wasm: Vec<u8>,
    /// Default output directory of the plugin.
    pub output_dir: PathBuf,
    /// See [`BuiltComponent::warnings`].
    pub warnings: Vec<String>,
}

/// Detects the language of a plugin by the marker file in its folder.
///
/// # Errors
/// When the folder has the marker of no language, or of more than one.
pub fn detect_language(folder: &Path) -> Result<Language> {
    if !folder.is_dir() {
        bail!("{}: no such folder", folder.display());
    }
    let found: Vec<_> = Language::ALL
        .into_iter()
        .filter(|l| folder.join(l.marker()).is_file())
        .collect();
    match *found {
        [language] => Ok(language),
        [] => bail!(
            "{}: no plugin: it has no {}; `ostler plugin new NAME --kind Kind.version.group` makes one",
            folder.display(),
            Language::ALL.map(Language::marker).join(", ")
        ),
        [a, b, ..] => bail!(
            "{}: it has {} and {}: keep the one the plugin is built from",
            folder.display(),
            a.marker(),
            b.marker()
        ),
    }
}

/// Builds a plugin. `progress` receives a short text about each part of the build.
///
/// # Errors
/// The output of the compiler, a missing tool with the command that installs it, or an invalid manifest.
pub fn build_plugin(
    folder: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<BuiltComponent> {
    let language = detect_language(folder)?;
    // First, because a wrong manifest should not cost minutes of compilation.
    let manifest = manifest::read_manifest(folder)?;
    let sections = objects::read_sections(folder)?;
    sdk::write_sdk(folder)?;
    let built = match language {
        Language::Rust => rust::build_component(folder, options, progress)?,
        Language::JavaScript => javascript::build_component(folder, options, progress)?,
        Language::Python => python::build_component(folder, options, progress)?,
        Language::Go => go::build_component(folder, options, progress)?,
    };
    let mut wasm = built.wasm;
    if let Some(manifest) = manifest {
        component::append_section(&mut wasm, manifest::MANIFEST_SECTION, &manifest);
    }
    for (section, documents) in sections {
        component::append_section(&mut wasm, section, &documents);
    }
    let path = options
        .out
        .clone()
        .unwrap_or_else(|| built.output_dir.join(format!("{}.wasm", built.name)));
    let changed = replace_file(&path, &wasm)?;
    Ok(BuiltComponent {
        name: built.name,
        path,
        bytes: wasm.len(),
        changed,
        warnings: built.warnings,
    })
}

/// Returns the directory shared by the builds of all plugins outside of a checkout: `$OSTLER_BUILD_CACHE`, a folder of
/// the user's cache, or `own` when there is no home directory.
#[must_use]
pub fn cache_dir(own: &Path) -> PathBuf {
    let of = |name: &str| {
        let value = std::env::var_os(name);
        value.filter(|v| !v.is_empty()).map(PathBuf::from)
    };
    of("OSTLER_BUILD_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|cache| cache.join("ostler")))
        .or_else(|| of("HOME").map(|home| home.join(".cache/ostler")))
        .unwrap_or_else(|| own.to_owned())
}

/// Replaces a file atomically, by a rename. Returns false and leaves the file alone when it already has these bytes, so
/// that its modification time stays.
///
/// # Errors
/// When the file can't be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let folder = path.parent().context("a file in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let mut partial = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("writing in {}", folder.display()))?;
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
    fn folder_with_one_marker_is_detected_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = detect_language(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("no plugin") && error.contains("ostler plugin new"),
            "{error}"
        );
        for language in Language::ALL {
            let marker = folder.path().join(language.marker());
            fs::write(&marker, "").unwrap();
            assert_eq!(detect_language(folder.path()).unwrap(), language);
            fs::remove_file(marker).unwrap();
        }
        fs::write(folder.path().join("go.mod"), "").unwrap();
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        let error = detect_language(folder.path()).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml and go.mod"), "{error}");
        let error = detect_language(&folder.path().join("nowhere"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("nowhere: no such folder"), "{error}");
    }

    #[test]
    fn replace_file_writes_only_other_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        assert!(replace_file(&path, b"one").unwrap());
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(!replace_file(&path, b"one").unwrap());
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        assert!(replace_file(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no partial file left");
    }
}
