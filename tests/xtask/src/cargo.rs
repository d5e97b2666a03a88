//! Runs of cargo in the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ostler_builder::cargo::{Artifact, parse_activity};
use serde::Deserialize;

use crate::{
    paths,
    process::{Child, check_interrupt},
    progress::{Step, print_result, print_status},
};

/// Returns a command of the cargo that runs this process, in the workspace.
pub fn cargo_command() -> Command {
    let mut command = ostler_builder::cargo::cargo_command();
    command.current_dir(paths::workspace_root());
    command
}

/// Runs a build and shows the current crate as progress. The error is the output of the compiler.
pub fn run_build(mut command: Command, step: &Step) -> Result<Vec<Artifact>> {
    command
        .arg("--message-format=json-render-diagnostics")
        .current_dir(paths::workspace_root())
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
            artifacts.extend(Artifact::parse(&line));
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
    build_binaries(Step::new("Building the host"), packages, &[])
}

/// Builds the optimized binary of one package, without default features as the image has it. One package at a time,
/// so that no other package adds features to its dependencies.
pub fn build_release_binary(package: &str) -> Result<PathBuf> {
    let step = Step::new(format!("Building {package}, optimized"));
    let mut built = build_binaries(step, &[package], &["--release", "--no-default-features"])?;
    built.remove(package).context("cargo reported no binary")
}

fn build_binaries(step: Step, packages: &[&str], flags: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
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

/// Builds the tests of the whole workspace and the binaries they run. In one run, so that dependencies are built once,
/// with one set of features.
pub fn build_tests() -> Result<BTreeMap<String, PathBuf>> {
    let step = Step::new("Building the host and the tests");
    let mut command = cargo_command();
    command.args(["test", "--workspace", "--no-run"]);
    let found = find_executables(run_build(command, &step)?);
    step.finish("");
    Ok(found)
}

/// Returns the binaries among the artifacts by name, without tests.
fn find_executables(artifacts: Vec<Artifact>) -> BTreeMap<String, PathBuf> {
    let binaries = artifacts.into_iter().filter(|a| !a.is_test());
    binaries
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

/// Timeout between two lines of test output. No single test takes as long.
const OUTPUT_TIMEOUT: Duration = Duration::from_mins(15);

/// Runs `cargo test` and passes its output on. `each` receives every line of stdout. Returns whether all tests passed.
pub fn run_tests(command: Command, each: impl FnMut(&str)) -> Result<bool> {
    run_tests_within(OUTPUT_TIMEOUT, command, each)
}

fn run_tests_within(timeout: Duration, mut command: Command, mut each: impl FnMut(&str)) -> Result<bool> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Child::spawn("cargo test", command)?;
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    // Neither thread is joined: a process that a test has left behind may keep the pipes open.
    std::thread::spawn(|| {
        for line in stderr.lines().map_while(Result::ok) {
            print_status(&line);
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
    let (mut last_output, mut slow) = (Instant::now(), BTreeSet::new());
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                last_output = Instant::now();
                track_slow_tests(&mut slow, &line);
                each(&line);
                print_result(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if child.has_ended() => break,
            Err(mpsc::RecvTimeoutError::Timeout) if last_output.elapsed() > timeout => {
                let slow: Vec<_> = slow.into_iter().collect();
                bail!(
                    "the tests printed nothing for {} s and were terminated; not finished: {}",
                    timeout.as_secs(),
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

/// Updates the set of slow tests from the runner's lines about tests that take long or end.
fn track_slow_tests(slow: &mut BTreeSet<String>, line: &str) {
    let Some(test) = line.strip_prefix("test ") else {
        return;
    };
    if let Some((name, _)) = test.split_once(" has been running for over ") {
        slow.insert(name.to_owned());
    } else if let Some((name, _)) = test.split_once(" ... ") {
        slow.remove(name);
    }
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

    fn shell_command(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn hanging_tests_are_terminated_and_named() {
        let messages = "echo 'test a has been running for over 60 seconds'; \
            echo 'test b has been running for over 60 seconds'; echo 'test a ... ok'; sleep 600";
        let error = run_tests_within(Duration::from_secs(2), shell_command(messages), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("not finished: b"), "{error}");
    }

    #[test]
    fn process_left_behind_by_a_test_does_not_block_the_run() {
        let (mut lines, began) = (Vec::new(), Instant::now());
        let passed = run_tests_within(
            Duration::from_secs(60),
            shell_command("echo one; setsid sleep 40 & exit 3"),
            |l| lines.push(l.to_owned()),
        );
        assert!(!passed.unwrap());
        assert_eq!(lines, ["one"]);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn workspace_lists_this_package() {
        let packages = list_packages().unwrap();
        let xtask = packages.iter().find(|p| p.name == "xtask").expect("xtask");
        assert!(xtask.folder().ends_with("tests/xtask"));
    }
}
