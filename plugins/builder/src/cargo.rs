//! Cargo, with its progress and what it made.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The cargo that runs this, or the usual one.
#[must_use]
pub fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What `cargo run` tells this program of itself: ring's build script looks at it, and would have much
    // built anew.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A line of `--message-format json`.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(Artifact),
    #[serde(other)]
    Other,
}

/// What cargo made of a target.
#[derive(Debug, Deserialize)]
pub struct Artifact {
    /// The target it is made of.
    pub target: Target,
    /// The files.
    pub filenames: Vec<PathBuf>,
    /// The binary, when it is one.
    pub executable: Option<PathBuf>,
    /// How it was built.
    profile: Profile,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A target of a package.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// What is made of it: `cdylib`, `bin` and so on.
    #[serde(default)]
    pub crate_types: Vec<String>,
}

impl Artifact {
    /// Of a line that tells of one.
    #[must_use]
    pub fn of(line: &str) -> Option<Self> {
        match serde_json::from_str(line) {
            Ok(Message::CompilerArtifact(artifact)) => Some(artifact),
            _ => None,
        }
    }

    /// Whether it is a test.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.profile.test
    }

    /// The WebAssembly module among the files of the library of this package.
    #[must_use]
    pub fn module(&self, package: &str) -> Option<&PathBuf> {
        let named = self.target.name == package.replace('-', "_");
        let mut files = self.filenames.iter().filter(|_| named);
        files.find(|file| file.extension().is_some_and(|e| e == "wasm"))
    }
}

/// What cargo is at, when a line of its stderr says only that.
#[must_use]
pub fn activity(line: &str) -> Option<String> {
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
    // The folder of a crate of our own is not news.
    found.then(|| plain.split(" (").next().unwrap_or(plain).to_owned())
}

/// Runs a build; gives what was made, and what the compiler warned of.
///
/// # Errors
/// The compiler's own words.
pub fn build(mut command: Command, progress: &mut dyn FnMut(&str)) -> Result<(Vec<Artifact>, Vec<String>)> {
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
        lines.filter_map(|line| Artifact::of(&line)).collect::<Vec<_>>()
    });
    let mut said = Vec::new();
    for line in stderr.lines().map_while(Result::ok) {
        match activity(&line) {
            Some(what) => progress(&what),
            None => said.push(line),
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{}", said.join("\n").trim());
    }
    Ok((artifacts.join().unwrap_or_default(), said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_from_diagnostics() {
        assert_eq!(
            activity("\u{1b}[1m\u{1b}[32m   Compiling\u{1b}[0m kube v5.0.0 (/x/y)").as_deref(),
            Some("Compiling kube v5.0.0")
        );
        assert_eq!(activity("error[E0308]: mismatched types"), None);
        assert_eq!(activity("warning: unused import"), None);
    }

    #[test]
    fn artifacts_are_read() {
        let line = r#"{"reason":"compiler-artifact","package_id":"x","target":{"kind":["bin"],"name":"ostler"},"filenames":["/t/ostler"],"executable":"/t/ostler","profile":{"test":false},"fresh":true}"#;
        let artifact = Artifact::of(line).expect("an artifact");
        assert_eq!(
            (artifact.target.name.as_str(), artifact.executable.clone()),
            ("ostler", Some("/t/ostler".into()))
        );
        assert!(!artifact.is_test() && artifact.module("ostler").is_none());
        assert!(Artifact::of(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(Artifact::of("not JSON").is_none());
    }
}
