//! From a plugin's folder to its component: finds the language, runs its tools, makes a component of what they made
//! and puts the manifest into it.

pub mod cargo;
pub mod component;
pub mod contract;
pub mod go;
pub mod javascript;
pub mod manifest;
pub mod progress;
pub mod python;
pub mod rust;
pub mod toolchain;
pub mod tools;

use std::{
    fmt, fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// What a plugin is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A crate.
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

    /// The file that tells a folder of this language.
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

/// How to build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where to write the component; in the folder's own place for what is built without it.
    pub out: Option<PathBuf>,
    /// Install tools that are missing, where this machine's package manager has them.
    pub install: bool,
}

/// A component that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Name of the package it was made of.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: usize,
    /// Whether this build changed it.
    pub changed: bool,
    /// What the compiler warned of, as it says it.
    pub warnings: Vec<String>,
}

/// What a language's builder made, before the manifest is in it.
#[derive(Clone, Debug)]
pub struct Made {
    /// Name of the package.
    pub name: String,
    /// The component.
    pub wasm: Vec<u8>,
    /// Where the folder's builds go, when nobody says where.
    pub place: PathBuf,
    /// See [`Built::warnings`].
    pub warnings: Vec<String>,
}

/// The language a folder is written in.
///
/// # Errors
/// When it is none that is known, or two.
pub fn detect(folder: &Path) -> Result<Language> {
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

/// Builds a plugin. `progress` is told what is going on, in a few words.
///
/// # Errors
/// The compiler's own words, a tool that is missing and the command that installs it, or what is wrong with the
/// manifest.
pub fn build(folder: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Built> {
    let language = detect(folder)?;
    // Before the minutes of a compiler.
    let manifest = manifest::section(folder)?;
    let made = match language {
        Language::Rust => rust::make(folder, options, progress)?,
        Language::JavaScript => javascript::make(folder, options, progress)?,
        Language::Python => python::make(folder, options, progress)?,
        Language::Go => go::make(folder, options, progress)?,
    };
    let mut wasm = made.wasm;
    if let Some(manifest) = manifest {
        component::append_section(&mut wasm, manifest::SECTION, &manifest);
    }
    let path = options
        .out
        .clone()
        .unwrap_or_else(|| made.place.join(format!("{}.wasm", made.name)));
    let changed = replace(&path, &wasm)?;
    Ok(Built {
        name: made.name,
        path,
        bytes: wasm.len(),
        changed,
        warnings: made.warnings,
    })
}

/// Where plugins that are no part of a checkout have what can be built or installed once for all of them:
/// `$OSTLER_BUILD_CACHE`, or a place in the user's cache; where there is no user, in their own folder.
#[must_use]
pub fn cache(own: &Path) -> PathBuf {
    let of = |name: &str| {
        let value = std::env::var_os(name);
        value.filter(|v| !v.is_empty()).map(PathBuf::from)
    };
    of("OSTLER_BUILD_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|cache| cache.join("ostler")))
        .or_else(|| of("HOME").map(|home| home.join(".cache/ostler")))
        .unwrap_or_else(|| own.to_owned())
}

/// Writes a file so that no reader ever sees half of it; leaves it alone (and says so by `false`) when it already has
/// these bytes.
///
/// # Errors
/// When it can't be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<bool> {
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
    fn a_folder_tells_its_language() {
        let folder = tempfile::tempdir().unwrap();
        let said = detect(folder.path()).unwrap_err().to_string();
        assert!(
            said.contains("no plugin") && said.contains("ostler plugin new"),
            "{said}"
        );
        for language in Language::ALL {
            let marker = folder.path().join(language.marker());
            fs::write(&marker, "").unwrap();
            assert_eq!(detect(folder.path()).unwrap(), language);
            fs::remove_file(marker).unwrap();
        }
        fs::write(folder.path().join("go.mod"), "").unwrap();
        fs::write(folder.path().join("Cargo.toml"), "").unwrap();
        let said = detect(folder.path()).unwrap_err().to_string();
        assert!(said.contains("Cargo.toml and go.mod"), "{said}");
        let said = detect(&folder.path().join("nowhere")).unwrap_err().to_string();
        assert!(said.contains("nowhere: no such folder"), "{said}");
    }

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
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no partial file left");
    }
}
