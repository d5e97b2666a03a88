//! Cargo, with its progress and what it made.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ostler_builder::cargo::{Artifact, activity};
use serde::Deserialize;

use crate::{
    paths,
    process::{Child, check_interrupt},
    progress::{Step, print, say},
};

/// The cargo that runs this, in the workspace.
pub fn command() -> Command {
    let mut command = ostler_builder::cargo::command();
    command.current_dir(paths::root());
    command
}

/// Runs a build, with the current crate as progress; the error is the compiler's own.
pub fn build(mut command: Command, step: &Step) -> Result<Vec<Artifact>> {
    command
        .arg("--message-format=json-render-diagnostics")
        .current_dir(paths::root())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if console::colors_enabled_stderr() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = Child::spawn("cargo", command)?;
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    let mut artifacts = Vec::new();
    let said = std::thread::scope(|scope| {
        let said = scope.spawn(|| {
            let mut said = Vec::new();
            for line in stderr.lines().map_while(Result::ok) {
                match activity(&line) {
                    Some(what) => step.at(what),
                    None => said.push(line),
                }
            }
            said
        });
        for line in stdout.lines().map_while(Result::ok) {
            artifacts.extend(Artifact::of(&line));
        }
        said.join().unwrap_or_default()
    });
    let status = child.wait()?;
    check_interrupt()?;
    if !status.success() {
        bail!("cargo build: {status}\n{}", said.join("\n"));
    }
    Ok(artifacts)
}

/// Builds binaries of the workspace; gives the path of each by name.
pub fn binaries(packages: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    build_binaries(Step::new("Building the host"), packages, &[])
}

/// Builds the optimised binary of one package, without default features as the image has it. One package at a time,
/// so that no other package adds features to its dependencies.
pub fn release_binary(package: &str) -> Result<PathBuf> {
    let step = Step::new(format!("Building {package}, optimised"));
    let mut built = build_binaries(step, &[package], &["--release", "--no-default-features"])?;
    built.remove(package).context("it was built")
}

fn build_binaries(step: Step, packages: &[&str], flags: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = command();
    command.args(["build", "--bins"]).args(flags);
    for package in packages {
        command.args(["--package", package]);
    }
    let found = executables(build(command, &step)?);
    for package in packages {
        if !found.contains_key(*package) {
            bail!("the package {package} has no binary of its name");
        }
    }
    step.done("");
    Ok(found)
}

/// Builds the tests of the whole workspace and the binaries they run: all at once, so that what they
/// depend on is built with one set of features, and once.
pub fn tests() -> Result<BTreeMap<String, PathBuf>> {
    let step = Step::new("Building the host and the tests");
    let mut command = command();
    command.args(["test", "--workspace", "--no-run"]);
    let found = executables(build(command, &step)?);
    step.done("");
    Ok(found)
}

/// The binaries among what was built, tests left out, by name.
fn executables(artifacts: Vec<Artifact>) -> BTreeMap<String, PathBuf> {
    let binaries = artifacts.into_iter().filter(|a| !a.is_test());
    binaries
        .filter_map(|a| Some((a.target.name, a.executable?)))
        .collect()
}

/// Writes (or checks) the CRDs of packs and host.
pub fn crds(check: bool) -> Result<()> {
    let generated = tempfile::tempdir()?;
    let pack = [
        "--package",
        "concourse-api",
        "--features",
        "crds",
        "--bin",
        "crds",
        "--",
    ];
    run_quietly(&pack, &[generated.path().as_os_str()])?;
    let host = run_quietly(
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
            paths::root().join("crds").join(entry.file_name()),
            std::fs::read(entry.path())?,
        );
        if check {
            if std::fs::read(&path).ok().as_deref() != Some(&new) {
                stale.push(entry.file_name().to_string_lossy().into_owned());
            }
        } else if paths::replace(&path, &new)? {
            print(&format!("crds/{}", entry.file_name().display()));
        }
    }
    if !stale.is_empty() {
        bail!("not current: {}; run `cargo xtask crds`", stale.join(", "));
    }
    Ok(())
}

/// The stdout of `cargo run` with these arguments.
fn run_quietly(cargo: &[&str], arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let mut command = command();
    command.args(["run", "--quiet"]).args(cargo).args(arguments);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo run {}: {}", cargo.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// How long tests may say nothing: none takes as long, so something hangs.
const SILENCE: Duration = Duration::from_mins(15);

/// Runs `cargo test`, passing on what it says; `each` sees every line of stdout.
pub fn test(command: Command, each: impl FnMut(&str)) -> Result<bool> {
    test_within(SILENCE, command, each)
}

fn test_within(silence: Duration, mut command: Command, mut each: impl FnMut(&str)) -> Result<bool> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Child::spawn("cargo test", command)?;
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    // Neither is joined: what a test has left behind may hold the pipes open for ever.
    std::thread::spawn(|| {
        for line in stderr.lines().map_while(Result::ok) {
            say(&line);
        }
    });
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let (mut said, mut slow) = (Instant::now(), BTreeSet::new());
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                said = Instant::now();
                watch(&mut slow, &line);
                each(&line);
                print(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if child.has_ended() => break,
            Err(mpsc::RecvTimeoutError::Timeout) if said.elapsed() > silence => {
                let slow: Vec<_> = slow.into_iter().collect();
                bail!(
                    "the tests have said nothing for {} s and were ended; not finished: {}",
                    silence.as_secs(),
                    if slow.is_empty() {
                        "unknown".to_owned()
                    } else {
                        slow.join(", ")
                    }
                );
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait()?;
    check_interrupt()?;
    Ok(status.success())
}

/// Keeps the names of tests that take long: the runner says when one does, and when it ends.
fn watch(slow: &mut BTreeSet<String>, line: &str) {
    let Some(test) = line.strip_prefix("test ") else {
        return;
    };
    if let Some((name, _)) = test.split_once(" has been running for over ") {
        slow.insert(name.to_owned());
    } else if let Some((name, _)) = test.split_once(" ... ") {
        slow.remove(name);
    }
}

/// A package of the workspace, as `cargo metadata` tells it.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Where its Cargo.toml is.
    pub manifest_path: PathBuf,
    /// `[package.metadata]`.
    #[serde(default)]
    pub metadata: serde_json::Value,
}

impl Package {
    /// The folder it is in.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }
}

/// The packages of the workspace.
pub fn packages() -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let output = command()
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

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn tests_that_hang_are_ended_and_named() {
        let said = "echo 'test a has been running for over 60 seconds'; \
            echo 'test b has been running for over 60 seconds'; echo 'test a ... ok'; sleep 600";
        let error = test_within(Duration::from_secs(2), sh(said), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("not finished: b"), "{error}");
    }

    #[test]
    fn what_a_test_leaves_behind_holds_nobody_up() {
        let (mut lines, began) = (Vec::new(), Instant::now());
        let passed = test_within(
            Duration::from_secs(60),
            sh("echo one; setsid sleep 40 & exit 3"),
            |l| lines.push(l.to_owned()),
        );
        assert!(!passed.unwrap());
        assert_eq!(lines, ["one"]);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_workspace_has_this_package() {
        let packages = packages().unwrap();
        let xtask = packages.iter().find(|p| p.name == "xtask").expect("xtask");
        assert!(xtask.folder().ends_with("tests/xtask"));
    }
}
