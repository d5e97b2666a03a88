//! Runs of cargo: progress, diagnostics and artifacts.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Returns a command of the cargo that runs this process, or of the one in the `PATH`.
#[must_use]
pub fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets these for this process. The build script of ring depends on them, so that passing them on
    // would rebuild it and everything above it.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A line that cargo prints with `--message-format json`.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(CargoArtifact),
    #[serde(other)]
    Other,
}

/// Output of cargo for one target.
#[derive(Debug, Deserialize)]
pub struct CargoArtifact {
    /// Path of the `Cargo.toml` of its package.
    #[serde(default)]
    pub manifest_path: PathBuf,
    /// Target it was built from.
    pub target: CargoTarget,
    /// Files that were written.
    pub filenames: Vec<PathBuf>,
    /// Path of the executable, for a binary or a test.
    pub executable: Option<PathBuf>,
    /// Profile it was built with.
    profile: Profile,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A target of a package.
#[derive(Debug, Deserialize)]
pub struct CargoTarget {
    /// Name of the target.
    pub name: String,
    /// Crate types: `cdylib`, `bin` and so on.
    #[serde(default)]
    pub crate_types: Vec<String>,
}

impl CargoArtifact {
    /// Parses a line of cargo's JSON; `None` for messages of other kinds.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        match serde_json::from_str(line) {
            Ok(Message::CompilerArtifact(artifact)) => Some(artifact),
            _ => None,
        }
    }

    /// Returns whether this is a test executable.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.profile.test
    }

    /// Returns the WebAssembly module, when this is the library of `package`.
    #[must_use]
    pub fn find_module(&self, package: &str) -> Option<&PathBuf> {
        let named = self.target.name == package.replace('-', "_");
        let mut files = self.filenames.iter().filter(|_| named);
        files.find(|file| file.extension().is_some_and(|e| e == "wasm"))
    }
}

/// Returns cargo's current activity (`Compiling kube v5.0.0`) when a line of its stderr is nothing else.
#[must_use]
pub fn parse_activity(line: &str) -> Option<String> {
    let plain = console::strip_ansi_codes(line);
    let plain = plain.trim_start();
    let words = [
        "Compiling",
        "Checking",
        "Downloading",
        "Downloaded",
        "Updating",
        "Locking",
        "Adding",
        "Removing",
        "Blocking",
        "Finished",
    ];
    let found = words.iter().any(|word| plain.starts_with(word));
    // The path of a workspace member is left out.
    found.then(|| plain.split(" (").next().unwrap_or(plain).to_owned())
}

/// Runs a build. Returns its artifacts and the compiler's warnings.
///
/// # Errors
/// The output of the compiler.
pub fn run_build(
    mut command: Command,
    progress: &mut dyn FnMut(&str),
) -> Result<(Vec<CargoArtifact>, Vec<String>)> {
    command
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if console::colors_enabled_stderr() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let program = command.get_program().display().to_string();
    let mut child = command
        .spawn()
        .with_context(|| format!("running {program}: is Rust installed? See https://rustup.rs"))?;
    let stdout = BufReader::new(child.stdout.take().context("piped")?);
    let stderr = BufReader::new(child.stderr.take().context("piped")?);
    let artifacts = std::thread::spawn(move || {
        let lines = stdout.lines().map_while(Result::ok);
        lines
            .filter_map(|line| CargoArtifact::parse(&line))
            .collect::<Vec<_>>()
    });
    let mut diagnostics = Vec::new();
    for line in stderr.lines().map_while(Result::ok) {
        match parse_activity(&line) {
            Some(what) => progress(&what),
            None => diagnostics.push(line),
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{}", diagnostics.join("\n").trim());
    }
    Ok((artifacts.join().unwrap_or_default(), diagnostics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_lines_are_separated_from_diagnostics() {
        assert_eq!(
            parse_activity("\u{1b}[1m\u{1b}[32m   Compiling\u{1b}[0m kube v5.0.0 (/x/y)").as_deref(),
            Some("Compiling kube v5.0.0")
        );
        assert_eq!(parse_activity("error[E0308]: mismatched types"), None);
        assert_eq!(parse_activity("warning: unused import"), None);
    }

    #[test]
    fn compiler_artifact_line_is_parsed() {
        let line = r#"{"reason":"compiler-artifact","package_id":"x","target":{"kind":["bin"],"name":"ostler"},"filenames":["/t/ostler"],"executable":"/t/ostler","profile":{"test":false},"fresh":true}"#;
        let artifact = CargoArtifact::parse(line).expect("an artifact");
        assert_eq!(
            (artifact.target.name.as_str(), artifact.executable.clone()),
            ("ostler", Some("/t/ostler".into()))
        );
        assert!(!artifact.is_test() && artifact.find_module("ostler").is_none());
        assert!(CargoArtifact::parse(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(CargoArtifact::parse("not JSON").is_none());
    }
}
