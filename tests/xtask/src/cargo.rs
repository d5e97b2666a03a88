//! Runs of cargo in the workspace.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use ostler_builder::cargo::{CargoArtifact, parse_activity};
use serde::Deserialize;

use crate::{
    paths,
    pgo::PgoStage,
    process::{Child, check_interrupt},
    progress::{BuildStep, print_result},
};

/// Returns a command of the cargo that runs this process, in the workspace.
pub fn cargo_command() -> Command {
    let mut command = ostler_builder::cargo::cargo_command();
    command.current_dir(paths::workspace_root());
    command
}

/// Runs a build and shows the current crate as progress. The error is the output of the compiler.
pub fn run_build(mut command: Command, step: &BuildStep) -> Result<Vec<CargoArtifact>> {
    if command.get_current_dir().is_none() {
        command.current_dir(paths::workspace_root());
    }
    command
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if console::colors_enabled_stderr() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = Child::spawn("cargo", command)?;
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    let mut artifacts = Vec::new();
    let messages = std::thread::scope(|scope| {
        let messages = scope.spawn(|| {
            let mut messages = Vec::new();
            for line in stderr.lines().map_while(Result::ok) {
                match parse_activity(&line) {
                    Some(what) => step.set_status(what),
                    None => messages.push(line),
                }
            }
            messages
        });
        for line in stdout.lines().map_while(Result::ok) {
            artifacts.extend(CargoArtifact::parse(&line));
        }
        messages.join().unwrap_or_default()
    });
    let status = child.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("cargo build: {status}\n{}", messages.join("\n"));
    }
    Ok(artifacts)
}

/// Builds binaries of the workspace. Returns their paths by name.
pub fn build_debug_binaries(packages: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    build_binaries(BuildStep::new("Building the host"), packages, &[])
}

/// Builds the optimized binary of one package, without default features as the image has it. One package at a time,
/// so that no other package adds features to its dependencies.
pub fn build_release_binary(package: &str) -> Result<PathBuf> {
    let step = BuildStep::new(format!("Building {package}, optimized"));
    let mut built = build_binaries(step, &[package], &["--release", "--no-default-features"])?;
    built.remove(package).context("cargo reported no binary")
}

/// Builds a binary of a package that needs no library of the image it runs in, with a profile.
pub fn build_static_binary(package: &str, profile: &str) -> Result<PathBuf> {
    let step = BuildStep::new(format!("Building {package}, static"));
    let mut command = cargo_command();
    command
        .args(["build", "--package", package, "--profile", profile])
        // With a target, the flag does not apply to procedural macros.
        .args(["--target", &find_host_target()?])
        .env("RUSTFLAGS", STATIC_FLAG);
    find_binary(command, package, step)
}

/// Flag of a binary without libraries.
const STATIC_FLAG: &str = "-Ctarget-feature=+crt-static";

/// Folder of the builds of images in a checkout.
pub const IMAGE_TARGET: &str = "target/image";

/// A binary of an image. The same sources and compiler give the same bytes, wherever the checkout and cargo's folders are.
pub struct ImageBinary<'a> {
    /// Package with a binary of the same name.
    pub package: &'a str,
    /// Profile of the build.
    pub profile: &'a str,
    /// Without libraries.
    pub is_static: bool,
    /// Profile-guided optimization.
    pub pgo: Option<PgoStage>,
}

impl ImageBinary<'_> {
    /// Builds the binary in a checkout, without default features, and returns its path.
    pub fn build(&self, checkout: &Path) -> Result<PathBuf> {
        let step = BuildStep::new(format!("Building {}, optimized", self.package));
        let cargo_home = std::env::home_dir().context("no home directory")?.join(".cargo");
        let cargo_home = std::env::var_os("CARGO_HOME").map_or(cargo_home, PathBuf::from);
        let target = checkout.join(IMAGE_TARGET);
        let mut rust_flags = Vec::new();
        let mut c_flags = Vec::new();
        // The last one that matches is taken.
        for (path, name) in [
            (&*cargo_home, "/cargo"),
            (checkout, "/ostler"),
            (&target, "/target"),
        ] {
            let path = path.display();
            rust_flags.push(format!("--remap-path-prefix={path}={name}"));
            c_flags.push(format!("-ffile-prefix-map={path}={name}"));
        }
        // By the linker: its build ID would be a hash of the names of symbols, too, of which a profile leaves some to the folder.
        rust_flags.push("-Cstrip=symbols".into());
        if let Some(pgo) = &self.pgo {
            rust_flags.extend(pgo.rustc_flags(&target.join("pgo")));
        }
        let mut command = cargo_command();
        command
            .current_dir(checkout)
            .args(["build", "--package", self.package, "--profile", self.profile])
            .arg("--no-default-features")
            // Its path would be a part of the names of symbols.
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_BUILD_BUILD_DIR", &target)
            .env("CFLAGS", c_flags.join(" "));
        if self.is_static {
            command.args(["--target", &find_host_target()?]);
            rust_flags.push(STATIC_FLAG.into());
        }
        command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags.join("\u{1f}"));
        find_binary(command, self.package, step)
    }
}

/// Runs a build, and returns the binary of a package.
fn find_binary(command: Command, package: &str, step: BuildStep) -> Result<PathBuf> {
    let mut built = find_executables(run_build(command, &step)?);
    step.finish("");
    built.remove(package).context("cargo reported no binary")
}

/// Returns the target of this machine.
fn find_host_target() -> Result<String> {
    query_rustc(&["--print", "host-tuple"])
}

/// Returns the line that rustc prints for these arguments.
pub fn query_rustc(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("rustc");
    command.args(arguments);
    let output = command.output().context("running rustc")?;
    if !output.status.success() {
        bail!("rustc: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let line = String::from_utf8(output.stdout).context("rustc")?;
    Ok(line.trim().to_owned())
}

fn build_binaries(step: BuildStep, packages: &[&str], flags: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo_command();
    command.args(["build", "--bins"]).args(flags);
    for package in packages {
        command.args(["--package", package]);
    }
    let found = find_executables(run_build(command, &step)?);
    for package in packages {
        if !found.contains_key(*package) {
            bail!("the package {package} has no binary of the same name");
        }
    }
    step.finish("");
    Ok(found)
}

/// Lints that a build checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lints {
    /// Those of the compiler, as warnings.
    Rustc,
    /// Those of clippy too, as errors. Clippy is a compiler, and what it builds is complete: a pass of `cargo clippy`, which checks
    /// every dependency again without using what is built, would take minutes.
    Clippy,
}

impl Lints {
    /// Sets the compiler of the workspace's packages.
    pub fn add_to(self, command: &mut Command) {
        if self == Self::Clippy {
            command
                .env(
                    "RUSTC_WORKSPACE_WRAPPER",
                    paths::workspace_root().join(".cargo/clippy.sh"),
                )
                .env("CLIPPY_ARGS", "-Dwarnings")
                // Clippy 1.95 panics on what it has compiled in parts before ("incremental compilation error").
                .env("CARGO_INCREMENTAL", "0");
        }
    }
}

/// Checks the host without default features, as the image has it, by clippy.
pub fn lint_production() -> Result<()> {
    let step = BuildStep::new("Checking the host without default features");
    let mut command = cargo_command();
    // As a test and in the workspace: it shares the dependencies of the tests then, which have features of their own.
    command.args([
        "test",
        "--workspace",
        "--no-run",
        "--no-default-features",
        "--bin",
        "ostler",
    ]);
    Lints::Clippy.add_to(&mut command);
    run_build(command, &step)?;
    step.finish("");
    Ok(())
}

/// A test executable.
#[derive(Clone, Debug)]
pub struct TestExecutable {
    /// Name of its target.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Folder of its package, in which cargo would run it.
    pub folder: PathBuf,
}

impl TestExecutable {
    /// Returns its command, in the folder and with the variable that cargo would run it with.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds tests of the workspace and the binaries they run. Returns both. Always for the whole workspace, so that the features of
/// dependencies are the same whatever is built; `targets` are names of integration tests, or none for all tests.
pub fn build_tests(
    targets: &[&str],
    lints: Lints,
) -> Result<(BTreeMap<String, PathBuf>, Vec<TestExecutable>)> {
    let step = BuildStep::new("Building the host and the tests");
    let mut command = cargo_command();
    command.args(["test", "--workspace", "--no-run"]);
    lints.add_to(&mut command);
    for target in targets {
        command.args(["--test", target]);
    }
    let (tests, others): (Vec<_>, Vec<_>) = run_build(command, &step)?
        .into_iter()
        .partition(CargoArtifact::is_test);
    let tests = tests.into_iter().filter_map(|artifact| {
        Some(TestExecutable {
            folder: artifact.manifest_path.parent()?.to_owned(),
            name: artifact.target.name,
            path: artifact.executable?,
        })
    });
    let tests = tests.collect();
    step.finish("");
    Ok((find_executables(others), tests))
}

/// Returns the binaries among the artifacts by name.
fn find_executables(artifacts: Vec<CargoArtifact>) -> BTreeMap<String, PathBuf> {
    artifacts
        .into_iter()
        .filter_map(|a| Some((a.target.name, a.executable?)))
        .collect()
}

/// Writes the CRDs of packs and host, or with `check` compares them with the files.
pub fn write_crds(check: bool) -> Result<()> {
    let generated = tempfile::tempdir()?;
    for package in ["concourse-api", "devops-api", "dns-api", "steps-api"] {
        let arguments = ["--package", package, "--features", "crds", "--bin", "crds", "--"];
        read_output(&arguments, &[generated.path().as_os_str()])?;
    }
    let host = read_output(
        &["--package", "ostler", "--bin", "ostler", "--"],
        &["crds".as_ref()],
    )?;
    for document in host.split("---\n").filter(|d| !d.trim().is_empty()) {
        let crd: serde_json::Value = serde_saphyr::from_str(document).context("a CRD of the host")?;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        let (plural, group) = name.split_once('.').context("PLURAL.GROUP")?;
        std::fs::write(generated.path().join(format!("{group}_{plural}.yaml")), document)?;
    }

    let mut stale = Vec::new();
    for entry in std::fs::read_dir(generated.path())? {
        let entry = entry?;
        let (path, new) = (
            paths::workspace_root().join("crds").join(entry.file_name()),
            std::fs::read(entry.path())?,
        );
        if check {
            if std::fs::read(&path).ok().as_deref() != Some(&new) {
                stale.push(entry.file_name().to_string_lossy().into_owned());
            }
        } else if paths::replace_file(&path, &new)? {
            print_result(&format!("crds/{}", entry.file_name().display()));
        }
    }
    if !stale.is_empty() {
        bail!("out of date: {}; run `cargo xtask crds`", stale.join(", "));
    }
    Ok(())
}

/// Returns the stdout of `cargo run` with these arguments.
fn read_output(cargo: &[&str], arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let mut command = cargo_command();
    command.args(["run", "--quiet"]).args(cargo).args(arguments);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo run {}: {}", cargo.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A package of the workspace, from `cargo metadata`.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Path of its Cargo.toml.
    pub manifest_path: PathBuf,
    /// Its table `[package.metadata]`.
    #[serde(default)]
    pub metadata: serde_json::Value,
}

impl Package {
    /// Returns its folder.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }
}

/// Lists the packages of the workspace.
pub fn list_packages() -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let output = cargo_command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(serde_json::from_slice::<Metadata>(&output.stdout)?.packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_lists_this_package() {
        let packages = list_packages().unwrap();
        let xtask = packages.iter().find(|p| p.name == "xtask").expect("xtask");
        assert!(xtask.folder().ends_with("tests/xtask"));
    }
}
