//! The crates that the host is built of.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// Lists the crates that the host is built of, each as `NAME vVERSION FEATURES`: those that `edges` of `cargo tree` lead to, with these
/// `flags` of Cargo.
///
/// # Errors
/// Cargo.lock does not fit the manifests, or crates cannot be fetched.
pub fn list_crates(checkout: &Path, edges: &str, flags: &[&str]) -> Result<BTreeSet<String>> {
    let mut command = cargo::cargo_command();
    command
        .current_dir(checkout)
        .args(["tree", "--package", "ostler", "--edges", edges]);
    command
        .args(["--prefix", "none", "--format", "{p} | {f}", "--locked"])
        .args(flags);
    let output = command.output().context("running cargo")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree: {}", error.trim());
    let lines = String::from_utf8(output.stdout).context("cargo tree")?;
    let crates = lines.lines().filter_map(|line| {
        let (package, features) = line.split_once(" | ")?;
        // Crates of the workspace have their path behind the version, and repeated ones a mark behind the features.
        let (mut words, features) = (package.split(' '), features.trim_end_matches("(*)").trim_end());
        Some(format!("{} {} {features}", words.next()?, words.next()?))
    });
    Ok(crates.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::paths;

    /// Crates that only the development commands need.
    const DEVELOPMENT_CRATES: &[&str] = &["ostler-apiserver", "ostler-builder", "kube-cel", "wat"];
    /// Crates that are large and released often, so that a second version easily comes in unnoticed.
    const SINGLE_VERSION_CRATES: &[&str] = &[
        "json-patch",
        "reqwest",
        "serde-saphyr",
        "wasm-encoder",
        "wasmparser",
        "wasmtime",
        "wit-component",
        "wit-parser",
    ];

    /// The crates linked into the host, each with its versions.
    fn linked_crates(flags: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in list_crates(paths::workspace_root(), "normal,no-proc-macro", flags).unwrap() {
            let mut words = line.split(' ');
            if let (Some(name), Some(version)) = (words.next(), words.next()) {
                versions.entry(name.into()).or_default().insert(version.into());
            }
        }
        versions
    }

    #[test]
    fn production_host_links_no_development_crates() {
        let production = linked_crates(&["--no-default-features"]);
        let development = linked_crates(&[]);
        for name in DEVELOPMENT_CRATES {
            assert!(
                !production.contains_key(*name),
                "{name} is linked without the feature `dev`; `cargo tree -p ostler --no-default-features -e normal -i {name}` names its dependents"
            );
            assert!(
                development.contains_key(*name),
                "{name} is not linked with the feature `dev` either: remove it from the list"
            );
        }
    }

    #[test]
    fn host_links_one_version_of_large_crates() {
        let crates = linked_crates(&["--no-default-features"]);
        for name in SINGLE_VERSION_CRATES {
            let versions = crates.get(*name).map(BTreeSet::len).unwrap_or_default();
            assert!(
                versions <= 1,
                "{name} is linked in several versions: {:?}",
                crates[*name]
            );
        }
    }
}
