//! Builds whom the bench measures: as their users would, optimised.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::plan::Play;
use crate::{
    cargo, components, paths,
    process::{Child, check_interrupt, tail},
    progress::Step,
};

/// What is built.
pub struct Programs {
    /// The driver.
    pub driver: PathBuf,
    /// The driver's arguments that say where the operators are.
    pub arguments: Vec<String>,
}

impl Programs {
    /// Builds what these plays need.
    pub fn build(plays: &[Play]) -> Result<Self> {
        let has = |play: &Play, name: &str| play.subjects.iter().any(|s| s.starts_with(name));
        let needs = |name: &str| plays.iter().any(|p| has(p, name));
        let (pack, samples) = plays
            .iter()
            .filter(|p| has(p, "ostler"))
            .partition::<Vec<_>, _>(|p| p.has_pack());
        let bench = paths::root().join("tests/bench");
        let mut arguments = Vec::new();
        let mut program = |flag: &str, path: &Path| {
            arguments.extend([format!("--{flag}"), path.display().to_string()]);
        };
        if needs("ostler") {
            program("ostler", &cargo::release_binary("ostler")?);
        }
        if !pack.is_empty() {
            let built = components::build(|guest| guest.pack == "concourse")?;
            let component = built.first().context("the pack is built")?;
            program("pack", component.path.parent().context("in a folder")?);
            program("pack-grants", &paths::root().join("deploy/grants.yaml"));
            program("crds", &paths::root().join("crds"));
            program("simulator", &cargo::release_binary("concourse-simulator")?);
        }
        if !samples.is_empty() {
            let built = components::build(|guest| guest.name == "bench-plugin")?;
            let component = built.first().context("the bench's plugin is built")?;
            program("component", &component.path);
            program("grants", &bench.join("grants.yaml"));
            program("store", &cargo::release_binary("bench-store")?);
        }
        if needs("kube-rs") {
            program("kube-rs", &cargo::release_binary("bench-kube-rs")?);
        }
        if needs("controller-runtime") {
            program("controller-runtime", &go(&bench.join("controller-runtime"))?);
        }
        if needs("kopf") {
            program("kopf", &python(&bench.join("kopf/requirements.txt"))?);
            program("kopf-operator", &bench.join("kopf/operator.py"));
        }
        Ok(Self {
            driver: cargo::release_binary("bench-driver")?,
            arguments,
        })
    }
}

/// What sources are, in a few letters.
fn key(files: &[PathBuf]) -> Result<String> {
    let mut key = Sha256::new();
    for file in files {
        key.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
    }
    Ok(format!("{:x}", key.finalize())[..16].to_owned())
}

fn go(source: &Path) -> Result<PathBuf> {
    let files = ["go.mod", "go.sum", "api.go", "main.go", "meter.go"].map(|f| source.join(f));
    let folder = paths::target("bench")?.join(format!("go-{}", key(&files)?));
    let binary = folder.join("operator");
    if binary.is_file() {
        return Ok(binary);
    }
    let step = Step::new("Building the controller-runtime operator (minutes the first time)");
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
    run("go build", command, &folder.join("build.log"))?;
    fs::rename(partial, &binary)?;
    step.done("");
    Ok(binary)
}

fn python(requirements: &Path) -> Result<PathBuf> {
    let folder = paths::target("bench")?.join(format!("python-{}", key(&[requirements.to_owned()])?));
    let (kopf, complete) = (folder.join("bin/kopf"), folder.join("complete"));
    if complete.is_file() {
        return Ok(kopf);
    }
    let step = Step::new("Installing Kopf");
    fs::create_dir_all(&folder)?;
    let log = folder.join("install.log");
    let mut command = Command::new("python3");
    command.args(["-m", "venv"]).arg(&folder);
    run("python3 -m venv", command, &log)?;
    let mut command = Command::new(folder.join("bin/pip"));
    command
        .args(["install", "--quiet", "--requirement"])
        .arg(requirements);
    run("pip install", command, &log)?;
    fs::write(complete, "")?;
    step.done("");
    Ok(kopf)
}

fn run(name: &str, command: Command, log: &Path) -> Result<()> {
    let mut child = Child::spawn_logged(name, command, log)?;
    let status = child.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("{name}: {status}; the end of {}:\n{}", log.display(), tail(log));
    }
    Ok(())
}
