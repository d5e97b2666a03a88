//! Crates.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    Made, Options, cargo, component,
    toolchain::{self, Toolchain},
};

/// The crate of a folder, as `cargo metadata` tells it.
#[derive(Debug, PartialEq, Eq)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// The target folder of its workspace.
    pub target: PathBuf,
    /// Whether it is a workspace of its own.
    pub alone: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<cargo::Target>,
}

impl Crate {
    /// Asks cargo about a folder.
    ///
    /// # Errors
    /// Cargo's own words, or what makes it no plugin.
    pub fn of(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?;
        let output = cargo::command()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(&folder)
            .output()
            .context("running cargo: is Rust installed? See https://rustup.rs")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::find(
            &folder.join("Cargo.toml"),
            serde_json::from_slice(&output.stdout)?,
        )
    }

    fn find(manifest: &Path, metadata: Metadata) -> Result<Self> {
        let alone = metadata.packages.len() == 1;
        let package = metadata
            .packages
            .into_iter()
            .find(|p| p.manifest_path == manifest);
        let package = package.with_context(|| {
            format!(
                "{}: no package: a plugin has a [package], not only a [workspace]",
                manifest.display()
            )
        })?;
        let is_plugin = |t: &cargo::Target| t.crate_types.iter().any(|c| c == "cdylib");
        if !package.targets.iter().any(is_plugin) {
            bail!(
                "{}: no plugin: [lib] needs crate-type = [\"cdylib\", \"rlib\"]",
                manifest.display()
            );
        }
        Ok(Self {
            name: package.name,
            target: metadata.target_directory,
            alone,
        })
    }
}

/// Completes a `cargo build` for components: their profile, and a target folder of their own, since toolchain and flags
/// are others than those of the rest.
pub fn for_components(command: &mut Command, target: &Path) {
    command
        .args(["--lib", "--profile", "component"])
        .env("CARGO_TARGET_DIR", target.join("wasm"));
    for setting in PROFILE {
        command
            .arg("--config")
            .arg(format!("profile.component.{setting}"));
    }
}

/// `cargo test` of the crate in a folder, built in the same place.
///
/// # Errors
/// As [`Crate::of`].
pub fn test(folder: &Path) -> Result<Command> {
    let this = Crate::of(folder)?;
    let mut command = cargo::command();
    command.arg("test").current_dir(folder);
    if this.alone {
        command.env("CARGO_TARGET_DIR", crate::cache(&this.target).join("native"));
    }
    Ok(command)
}

/// Small first; names would be two fifths of a component.
const PROFILE: [&str; 6] = [
    "inherits=\"release\"",
    "opt-level=\"z\"",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "strip=\"symbols\"",
];

/// What is made of the crate in a folder.
///
/// # Errors
/// The compiler's own words, or a tool that is missing.
pub fn make(folder: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Made> {
    let this = Crate::of(folder)?;
    let toolchain = Toolchain::find(options.install)?;
    let mut command = toolchain.build();
    let target = if this.alone {
        crate::cache(&this.target)
    } else {
        this.target.clone()
    };
    for_components(&mut command, &target);
    command.current_dir(folder);
    let (artifacts, warnings) = cargo::build(command, progress)?;
    let module = artifacts.iter().find_map(|a| a.module(&this.name));
    let module = module.with_context(|| format!("cargo made no .wasm file of {}", this.name))?;
    progress("making a component of it");
    let wasm = finish(module).with_context(|| format!("making a component of {}", this.name))?;
    Ok(Made {
        name: this.name,
        wasm,
        place: this.target,
        warnings,
    })
}

/// The component of a module that cargo made.
///
/// # Errors
/// When it is none, or would do more than its capabilities.
pub fn finish(module: &Path) -> Result<Vec<u8>> {
    let module = std::fs::read(module).with_context(|| format!("reading {}", module.display()))?;
    let component = component::encode(&toolchain::optimise(module)?)?;
    component::without_wasi(&component)?;
    Ok(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_makes_no_component_is_told_what_to_add() {
        let of = |crate_types: &str| {
            let text = format!(
                r#"{{"packages": [{{"name": "a-b", "manifest_path": "/x/Cargo.toml",
                    "targets": [{{"name": "a_b", "crate_types": {crate_types}}}]}}], "target_directory": "/x/target"}}"#
            );
            let metadata = serde_json::from_str(&text).unwrap();
            Crate::find(Path::new("/x/Cargo.toml"), metadata)
        };
        assert_eq!(of(r#"["cdylib", "rlib"]"#).unwrap().name, "a-b");
        let said = of(r#"["lib"]"#).unwrap_err().to_string();
        assert!(
            said.contains("/x/Cargo.toml") && said.contains("crate-type"),
            "{said}"
        );
    }
}
