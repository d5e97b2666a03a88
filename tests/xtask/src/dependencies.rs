//! Tests of the crates that the host links.

use std::collections::{BTreeMap, BTreeSet};

use crate::cargo;

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
    let mut command = cargo::cargo_command();
    command.args(["tree", "--package", "ostler", "--edges", "normal,no-proc-macro"]);
    command
        .args(["--prefix", "none", "--format", "{p}", "--locked"])
        .args(flags);
    let output = command.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            crates.entry(name.into()).or_default().insert(version.into());
        }
    }
    crates
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
