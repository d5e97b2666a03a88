//! Builds of the measured operators, optimized as their users would build them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::plan::DriverRun;
use crate::{
    cargo, components,
    image::{self, Profile},
    paths,
    process::{Child, check_interrupt, read_tail},
    progress::BuildStep,
};

/// Paths of the built programs.
pub struct BuiltPrograms {
    /// Path of the driver.
    pub driver: PathBuf,
    /// Arguments of the driver with the paths of the operators.
    pub arguments: Vec<String>,
    /// Environment of the driver, and so of the operators.
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl BuiltPrograms {
    /// Builds the programs that these runs need, the host unless it is given.
    pub fn build(runs: &[DriverRun], host: Option<&Path>) -> Result<Self> {
        let has = |run: &DriverRun, name: &str| run.subjects.iter().any(|s| s.starts_with(name));
        let needs = |name: &str| runs.iter().any(|p| has(p, name));
        let (pack, samples) = runs
            .iter()
            .filter(|p| has(p, "ostler"))
            .partition::<Vec<_>, _>(|p| p.has_pack());
        let bench = paths::workspace_root().join("tests/bench");
        let mut arguments = Vec::new();
        let mut program = |flag: &str, path: &Path| {
            arguments.extend([format!("--{flag}"), path.display().to_string()]);
        };
        if needs("ostler") {
            program("ostler", &find_or_build_host(host)?);
        }
        if !pack.is_empty() {
            let built = components::build_components(|guest| guest.pack == "concourse")?;
            let component = built.first().context("the pack is built")?;
            program("pack", component.path.parent().context("in a folder")?);
            program("pack-grants", &paths::workspace_root().join("tests/grants.yaml"));
            program("crds", &paths::workspace_root().join("crds"));
            program("simulator", &cargo::build_release_binary("concourse-simulator")?);
        }
        if !samples.is_empty() {
            let subjects: Vec<_> = samples.iter().flat_map(|run| &run.subjects).collect();
            let plugin = |subject: &str| {
                let language = subject.strip_prefix("ostler")?;
                Some(format!("bench-plugin{language}"))
            };
            let wanted: Vec<_> = subjects.iter().filter_map(|subject| plugin(subject)).collect();
            for component in components::build_components(|guest| wanted.contains(&guest.name))? {
                let flag = component.name.replacen("bench-plugin", "component", 1);
                program(&flag, &component.path);
            }
            program("grants", &bench.join("grants.yaml"));
        }
        if samples.iter().any(|run| run.measures_store()) {
            program("store", &cargo::build_release_binary("bench-store")?);
        }
        if needs("kube-rs") {
            program("kube-rs", &cargo::build_release_binary("bench-kube-rs")?);
        }
        if needs("controller-runtime") {
            program(
                "controller-runtime",
                &build_go(&bench.join("controller-runtime"))?,
            );
        }
        if needs("kopf") {
            program("kopf", &install_python(&bench.join("kopf/requirements.txt"))?);
            program("kopf-operator", &bench.join("kopf/operator.py"));
        }
        Ok(Self {
            driver: cargo::build_release_binary("bench-driver")?,
            arguments,
            environment: Vec::new(),
        })
    }
}

/// Returns the binary of the host that is measured: the given one, or that of the image.
pub fn find_or_build_host(host: Option<&Path>) -> Result<PathBuf> {
    match host {
        Some(host) => Ok(host.to_owned()),
        None => image::build_host_binary(paths::workspace_root(), Profile::Release),
    }
}

/// Returns a short hash of source files.
fn source_key(files: &[PathBuf]) -> Result<String> {
    let mut key = Sha256::new();
    for file in files {
        key.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(format!("{:x}", key.finalize())[..16].to_owned())
}

fn build_go(source: &Path) -> Result<PathBuf> {
    let files = ["go.mod", "go.sum", "api.go", "main.go", "meter.go"].map(|f| source.join(f));
    let folder = paths::create_target_subdir("bench")?.join(format!("go-{}", source_key(&files)?));
    let binary = folder.join("operator");
    if binary.is_file() {
        return Ok(binary);
    }
    let step = BuildStep::new("Building the controller-runtime operator (minutes the first time)");
    fs::create_dir_all(&folder)?;
    let partial = folder.join("partial");
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&partial)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly");
    run_logged("go build", command, &folder.join("build.log"))?;
    fs::rename(partial, &binary)?;
    step.finish("");
    Ok(binary)
}

fn install_python(requirements: &Path) -> Result<PathBuf> {
    let folder = paths::create_target_subdir("bench")?
        .join(format!("python-{}", source_key(&[requirements.to_owned()])?));
    let (kopf, complete) = (folder.join("bin/kopf"), folder.join("complete"));
    if complete.is_file() {
        return Ok(kopf);
    }
    let step = BuildStep::new("Installing Kopf");
    fs::create_dir_all(&folder)?;
    let log = folder.join("install.log");
    let mut command = Command::new("python3");
    command.args(["-m", "venv"]).arg(&folder);
    run_logged("python3 -m venv", command, &log)?;
    let mut command = Command::new(folder.join("bin/pip"));
    command
        .args(["install", "--quiet", "--requirement"])
        .arg(requirements);
    run_logged("pip install", command, &log)?;
    fs::write(complete, "")?;
    step.finish("");
    Ok(kopf)
}

fn run_logged(name: &str, command: Command, log: &Path) -> Result<()> {
    let mut child = Child::spawn_logged(name, command, log)?;
    let status = child.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!(
            "{name}: {status}; the end of {}:\n{}",
            log.display(),
            read_tail(log)
        );
    }
    Ok(())
}
