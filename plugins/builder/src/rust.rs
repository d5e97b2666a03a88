//! Plugins in Rust.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    BuildOptions, RawComponent, cargo, component,
    toolchain::{self, Toolchain},
};

/// The crate in a folder, according to `cargo metadata`.
#[derive(Debug, PartialEq, Eq)]
pub struct Crate {
    /// Name of the package.
    pub name: String,
    /// The target folder of its workspace.
    pub target: PathBuf,
    /// True when it is not a member of a larger workspace.
    pub alone: bool,
    /// Goal its component is optimized for.
    pub optimize: Optimize,
}

/// Optimization goal of a component: `[package.metadata.ostler] optimize = "…"` in its `Cargo.toml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optimize {
    /// `size`, the default: a small component is fetched, compiled and swapped sooner.
    #[default]
    Size,
    /// `speed`: 1.5 times the size, and calls take three quarters of the time.
    Speed,
}

impl Optimize {
    /// Reads the goal from a package's metadata.
    ///
    /// # Errors
    /// When the value is neither `size` nor `speed`.
    pub fn from_metadata(metadata: &Value) -> Result<Self> {
        Ok(match metadata.pointer("/ostler/optimize") {
            None => Self::default(),
            Some(word) if word == "size" => Self::Size,
            Some(word) if word == "speed" => Self::Speed,
            Some(other) => {
                bail!("[package.metadata.ostler] optimize is {other}: it is \"size\" or \"speed\"")
            }
        })
    }

    /// Returns the cargo profile of this goal.
    fn cargo_profile(self) -> &'static str {
        match self {
            Self::Size => "component",
            Self::Speed => "component-fast",
        }
    }

    /// Returns the profile setting of cargo for this goal.
    fn cargo_level(self) -> &'static str {
        match self {
            Self::Size => "opt-level=\"z\"",
            Self::Speed => "opt-level=3",
        }
    }

    /// Returns the level of binaryen's wasm-opt for this goal.
    pub(crate) fn binaryen_level(self) -> &'static str {
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
    targets: Vec<cargo::CargoTarget>,
    #[serde(default)]
    metadata: Value,
}

impl Crate {
    /// Reads the crate in a folder.
    ///
    /// # Errors
    /// The output of cargo, or the reason why the crate is not a plugin.
    pub fn read(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| folder.display().to_string())?;
        let output = cargo::cargo_command()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(&folder)
            .output()
            .context("running cargo: is Rust installed? See https://rustup.rs")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::from_metadata(
            &folder.join("Cargo.toml"),
            serde_json::from_slice(&output.stdout)?,
        )
    }

    fn from_metadata(manifest: &Path, metadata: Metadata) -> Result<Self> {
        let alone = metadata.packages.len() == 1;
        let package = metadata
            .packages
            .into_iter()
            .find(|p| p.manifest_path == manifest);
        let package = package.with_context(|| {
            format!(
                "{}: it has no [package]: build the folder of the plugin's package, not that of its workspace",
                manifest.display()
            )
        })?;
        let is_plugin = |t: &cargo::CargoTarget| t.crate_types.iter().any(|c| c == "cdylib");
        if !package.targets.iter().any(is_plugin) {
            bail!(
                "{}: not a plugin: [lib] needs crate-type = [\"cdylib\", \"rlib\"]",
                manifest.display()
            );
        }
        let optimize =
            Optimize::from_metadata(&package.metadata).with_context(|| manifest.display().to_string())?;
        Ok(Self {
            name: package.name,
            target: metadata.target_directory,
            alone,
            optimize,
        })
    }
}

/// Adds the flags of components to a `cargo build`: their profile, and a target folder of their own, because another
/// toolchain or other flags would invalidate the builds of the workspace.
pub fn add_component_flags(command: &mut Command, target: &Path, optimize: Optimize) {
    let profile = optimize.cargo_profile();
    command
        .args(["--lib", "--profile", profile])
        .env("CARGO_TARGET_DIR", target.join("wasm"));
    for setting in PROFILE_SETTINGS.iter().chain([&optimize.cargo_level()]) {
        command
            .arg("--config")
            .arg(format!("profile.{profile}.{setting}"));
    }
}

/// Returns the command `cargo test` for the crate in a folder. A crate outside of a checkout uses the shared cache.
///
/// # Errors
/// As [`Crate::read`].
pub fn test_command(folder: &Path) -> Result<Command> {
    let this = Crate::read(folder)?;
    let mut command = cargo::cargo_command();
    command.arg("test").current_dir(folder);
    if this.alone {
        command.env("CARGO_TARGET_DIR", crate::cache_dir(&this.target).join("native"));
        // A debugger is for the author's code: without its data, dependencies take a ninth less time.
        for of in ["package.\"*\"", "build-override"] {
            command.args(["--config", &format!("profile.dev.{of}.debug=false")]);
        }
    }
    Ok(command)
}

/// Prefix of the ignored tests that `#[ostler_sdk::resource]` adds, each of which writes the CRD of its kind.
const CRD_TEST_PREFIX: &str = "write_crd_of_";
/// Environment variable of the SDK with the folder that these tests write to.
const CRDS_VARIABLE: &str = "OSTLER_CRDS";

/// Returns the command that writes the CRDs of the types in a crate's library into the folder `out`.
///
/// # Errors
/// As [`Crate::read`].
pub fn crds_command(folder: &Path, out: &Path) -> Result<Command> {
    let mut command = test_command(folder)?;
    command
        .args(["--quiet", "--lib", "--", "--ignored", CRD_TEST_PREFIX])
        .env(CRDS_VARIABLE, out);
    Ok(command)
}

/// Settings of both profiles. Symbols are stripped because names would be two fifths of a component.
const PROFILE_SETTINGS: [&str; 5] = [
    "inherits=\"release\"",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "strip=\"symbols\"",
];

/// Builds the crate in a folder.
///
/// # Errors
/// The output of the compiler, or a missing tool.
pub fn build_component(
    folder: &Path,
    options: &BuildOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<RawComponent> {
    let this = Crate::read(folder)?;
    let toolchain = Toolchain::find(options.install)?;
    let mut command = toolchain.cargo_build();
    let target = if this.alone {
        crate::cache_dir(&this.target)
    } else {
        this.target.clone()
    };
    add_component_flags(&mut command, &target, this.optimize);
    // In a workspace the builds of all its plugins share their dependencies, and none has another flag.
    if this.alone {
        toolchain.keep_locations(&mut command, &target.join("wasm"))?;
    }
    command.current_dir(folder);
    let (artifacts, warnings) = cargo::run_build(command, progress)?;
    let module = artifacts.iter().find_map(|a| a.find_module(&this.name));
    let module = module.with_context(|| format!("cargo built no .wasm file from {}", this.name))?;
    progress("encoding the component");
    let wasm = finish_component(module, this.optimize)
        .with_context(|| format!("encoding the component of {}", this.name))?;
    Ok(RawComponent {
        name: this.name,
        wasm,
        output_dir: this.target,
        warnings,
    })
}

/// Optimizes a module that cargo built and encodes it as a component.
///
/// # Errors
/// When it is not a module of the contract, or imports WASI.
pub fn finish_component(module: &Path, optimize: Optimize) -> Result<Vec<u8>> {
    let module = std::fs::read(module).with_context(|| format!("reading {}", module.display()))?;
    let component = component::encode_component(&toolchain::optimize_module(module, optimize)?)?;
    component::reject_wasi(&component)?;
    Ok(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_without_cdylib_is_refused_with_the_remedy() {
        let of = |crate_types: &str| {
            let text = format!(
                r#"{{"packages": [{{"name": "a-b", "manifest_path": "/x/Cargo.toml",
                    "targets": [{{"name": "a_b", "crate_types": {crate_types}}}]}}], "target_directory": "/x/target"}}"#
            );
            let metadata = serde_json::from_str(&text).unwrap();
            Crate::from_metadata(Path::new("/x/Cargo.toml"), metadata)
        };
        assert_eq!(of(r#"["cdylib", "rlib"]"#).unwrap().name, "a-b");
        let error = of(r#"["lib"]"#).unwrap_err().to_string();
        assert!(
            error.contains("/x/Cargo.toml") && error.contains("crate-type"),
            "{error}"
        );
    }

    #[test]
    fn optimize_is_size_or_speed() {
        let of = |error: Value| Optimize::from_metadata(&serde_json::json!({"ostler": {"optimize": error}}));
        assert_eq!(Optimize::from_metadata(&Value::Null).unwrap(), Optimize::Size);
        assert_eq!(of("size".into()).unwrap(), Optimize::Size);
        assert_eq!(of("speed".into()).unwrap(), Optimize::Speed);
        for wrong in ["fast".into(), Value::Null, 3.into()] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(
                error.contains("optimize") && error.contains("\"size\" or \"speed\""),
                "{error}"
            );
        }
    }
}
