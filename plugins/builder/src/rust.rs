//! Crates.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

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
    /// What its component is to be.
    pub optimize: Optimize,
}

/// What a component is to be: `[package.metadata.ostler] optimize = "…"` in its `Cargo.toml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimize {
    /// `size`, which is meant where nothing is said: small ones are fetched, compiled and swapped sooner.
    #[default]
    Size,
    /// `speed`: half as large again, and its calls take three quarters of the time.
    Speed,
}

impl Optimize {
    /// As a package's metadata says.
    ///
    /// # Errors
    /// Another word than these.
    pub fn of(metadata: &Value) -> Result<Self> {
        Ok(match metadata.pointer("/ostler/optimize") {
            None => Self::default(),
            Some(word) if word == "size" => Self::Size,
            Some(word) if word == "speed" => Self::Speed,
            Some(other) => {
                bail!("[package.metadata.ostler] optimize is {other}: it is \"size\" or \"speed\"")
            }
        })
    }

    /// The profile of cargo that stands for it.
    fn profile(self) -> &'static str {
        match self {
            Self::Size => "component",
            Self::Speed => "component-fast",
        }
    }

    /// Cargo's level.
    fn level(self) -> &'static str {
        match self {
            Self::Size => "opt-level=\"z\"",
            Self::Speed => "opt-level=3",
        }
    }

    /// The level of binaryen's wasm-opt.
    pub(crate) fn binaryen(self) -> &'static str {
        match self {
            Self::Size => "-Oz",
            Self::Speed => "-O3",
        }
    }
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
    #[serde(default)]
    metadata: Value,
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
        let optimize = Optimize::of(&package.metadata).with_context(|| manifest.display().to_string())?;
        Ok(Self {
            name: package.name,
            target: metadata.target_directory,
            alone,
            optimize,
        })
    }
}

/// Completes a `cargo build` for components: their profile, and a target folder of their own, since toolchain and flags
/// are others than those of the rest.
pub fn for_components(command: &mut Command, target: &Path, optimize: Optimize) {
    let profile = optimize.profile();
    command
        .args(["--lib", "--profile", profile])
        .env("CARGO_TARGET_DIR", target.join("wasm"));
    for setting in PROFILE.iter().chain([&optimize.level()]) {
        command
            .arg("--config")
            .arg(format!("profile.{profile}.{setting}"));
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

/// Names would be two fifths of a component.
const PROFILE: [&str; 5] = [
    "inherits=\"release\"",
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
    for_components(&mut command, &target, this.optimize);
    command.current_dir(folder);
    let (artifacts, warnings) = cargo::build(command, progress)?;
    let module = artifacts.iter().find_map(|a| a.module(&this.name));
    let module = module.with_context(|| format!("cargo made no .wasm file of {}", this.name))?;
    progress("making a component of it");
    let wasm =
        finish(module, this.optimize).with_context(|| format!("making a component of {}", this.name))?;
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
pub fn finish(module: &Path, optimize: Optimize) -> Result<Vec<u8>> {
    let module = std::fs::read(module).with_context(|| format!("reading {}", module.display()))?;
    let component = component::encode(&toolchain::optimise(module, optimize)?)?;
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

    #[test]
    fn a_crate_says_what_its_component_is_to_be() {
        let of = |said: Value| Optimize::of(&serde_json::json!({"ostler": {"optimize": said}}));
        assert_eq!(Optimize::of(&Value::Null).unwrap(), Optimize::Size);
        assert_eq!(of("size".into()).unwrap(), Optimize::Size);
        assert_eq!(of("speed".into()).unwrap(), Optimize::Speed);
        for wrong in ["fast".into(), Value::Null, 3.into()] {
            let said = of(wrong).unwrap_err().to_string();
            assert!(
                said.contains("optimize") && said.contains("\"size\" or \"speed\""),
                "{said}"
            );
        }
    }
}
