//! Build directories, tools and up-to-date checks, shared by the builders of JavaScript, Python and Go.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{contract, fingerprint::InputDigest, replace_file, toolchain};

/// Folders of a plugin's tests.
pub(crate) const TEST_DIRS: [&str; 2] = ["test", "tests"];

/// Directories of a plugin's build. Nothing is written beside its source.
#[derive(Debug)]
pub struct BuildDir {
    /// Folder of the plugin.
    pub source: PathBuf,
    /// Target folder of the checkout the plugin is in, or of the plugin itself.
    pub target: PathBuf,
    /// Folder for intermediate files.
    pub work: PathBuf,
    /// Folder of installed tools, shared by all plugins of this user.
    tools: PathBuf,
    /// Name of the plugin's package.
    pub name: String,
}

impl BuildDir {
    /// Determines the directories for the plugin in a folder.
    ///
    /// # Errors
    /// When the folder does not exist.
    pub fn new(source: &Path, name: &str) -> Result<Self> {
        let source = source
            .canonicalize()
            .with_context(|| source.display().to_string())?;
        let (target, _) = find_target_dir(&source);
        Ok(Self {
            tools: crate::cache_dir(&target).join("tools"),
            work: target.join("plugins").join(name),
            name: name.to_owned(),
            source,
            target,
        })
    }

    /// Copies the source, without its tests, together with `extra` files, so that no tool writes into the source. Returns the copy's
    /// folder.
    ///
    /// # Errors
    /// When a file can't be read or written.
    pub fn stage_source(&self, extra: &[(&str, &str)]) -> Result<PathBuf> {
        let stage = self.work.join("stage");
        if stage.exists() {
            fs::remove_dir_all(&stage).with_context(|| format!("clearing {}", stage.display()))?;
        }
        for (path, bytes) in read_sources(&self.source)? {
            // A test runner would find their copies, too.
            if !TEST_DIRS.iter().any(|tests| path.starts_with(tests)) {
                replace_file(&stage.join(path), &bytes)?;
            }
        }
        self.write_files("stage", extra)?;
        Ok(stage)
    }

    /// Writes files into a subfolder of the work folder. Returns the subfolder.
    ///
    /// # Errors
    /// When one can't be written.
    pub fn write_files(&self, folder: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
        let folder = self.work.join(folder);
        for (name, text) in files {
            replace_file(&folder.join(name), text.as_bytes())?;
        }
        Ok(folder)
    }

    /// Writes the contract as files, for tools that read it from a folder.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write_wit(&self) -> Result<PathBuf> {
        self.write_files("wit", &[contract::FULL_WORLD])?;
        self.write_files("wit", &contract::WIT_FILES)
    }

    /// Returns the previous component when source, contract and tools are unchanged, and builds a new one otherwise.
    ///
    /// # Errors
    /// Those of `make`, and when a file can't be read or written.
    pub fn build_unless_current(
        &self,
        tools: &[&str],
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let mut inputs = InputDigest::default();
        for (path, bytes) in read_sources(&self.source)? {
            inputs.add(path.as_os_str().as_encoded_bytes());
            inputs.add(&bytes);
        }
        let contract = contract::WIT_FILES.iter().flat_map(|(name, text)| [name, text]);
        for text in contract.chain(tools) {
            inputs.add(text.as_bytes());
        }
        let component = self.work.join("component.wasm");
        inputs.make_unless_current(&component, make)?;
        fs::read(&component).with_context(|| format!("reading {}", component.display()))
    }

    /// Installs a tool once for all plugins that share the tools folder. Returns the tool's folder; `install` is called
    /// with an empty one.
    ///
    /// # Errors
    /// Those of `install`.
    pub fn install_tool(&self, name: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let tools = &self.tools;
        fs::create_dir_all(tools).with_context(|| format!("making {}", tools.display()))?;
        // Only one of several concurrent builds installs.
        let lock = File::create(tools.join(format!("{name}.lock")))?;
        lock.lock()?;
        let (folder, installed) = (tools.join(name), tools.join(format!("{name}.installed")));
        if installed.exists() && folder.is_dir() {
            return Ok(folder);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        install(&folder)?;
        fs::write(installed, "")?;
        Ok(folder)
    }

    /// Runs a command and returns its stdout. Paths of the copy in its error are shown relative to the source.
    ///
    /// # Errors
    /// The output of the command, or that it does not exist.
    pub fn run_command(&self, command: Command) -> Result<String> {
        run_command(command).map_err(|e| {
            let stage = format!("{}/", self.work.join("stage").display());
            strip_prefix(e.context(format!("building {}", self.source.display())), &stage)
        })
    }
}

/// Removes a path from the text of an error.
fn strip_prefix(error: anyhow::Error, path: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    if text.contains(path) {
        return anyhow::anyhow!(text.replace(path, ""));
    }
    error
}

/// Runs a command and returns its stdout.
///
/// # Errors
/// The output of the command, or that it does not exist.
pub fn run_command(mut command: Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .env_remove("RUST_BACKTRACE")
        .output()
        .with_context(|| format!("running {program}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let mut output_text = text(&output.stderr);
    // A backtrace of the tool itself does not help the author of a plugin.
    if let Some(at) = output_text.find("\nStack backtrace:") {
        output_text.truncate(at);
    }
    if output_text.is_empty() {
        output_text = text(&output.stdout);
    }
    bail!("{program}: {}\n{}", output.status, output_text.trim_end())
}

/// Checks that a program runs, and otherwise installs Debian's packages of it if `install` is set.
///
/// # Errors
/// Names the command that would install it.
pub fn require_program(program: &[&str], packages: &[&str], install: bool) -> Result<()> {
    let there = || {
        let mut command = Command::new(program[0]);
        let command = command
            .args(&program[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if there() {
        return Ok(());
    }
    if install && Path::new("/usr/bin/apt-get").is_file() {
        toolchain::install_packages(packages)?;
    }
    if there() {
        return Ok(());
    }
    bail!(
        "`{}` does not run on this machine: install it, on Debian with `apt-get install {}`",
        program.join(" "),
        packages.join(" ")
    )
}

/// Returns true for a plugin outside of a checkout.
///
/// # Errors
/// When the folder does not exist.
pub(crate) fn is_alone(source: &Path) -> Result<bool> {
    let source = source
        .canonicalize()
        .with_context(|| source.display().to_string())?;
    Ok(find_target_dir(&source).1)
}

/// Finds the target folder: that of the checkout the plugin is in, or its own (then the flag is true).
fn find_target_dir(source: &Path) -> (PathBuf, bool) {
    let checkout = source
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").is_file());
    match (checkout, std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(checkout), Some(target)) => (checkout.join(target), false),
        (Some(checkout), None) => (checkout.join("target"), false),
        (None, _) => (source.join("target"), true),
    }
}

/// Reads the files of a plugin, except hidden ones and the output of tools.
fn read_sources(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(within) = folders.pop() {
        for entry in fs::read_dir(&within).with_context(|| format!("reading {}", within.display()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.') || ["target", "node_modules", "__pycache__"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
                found.push((path.strip_prefix(folder)?.to_owned(), bytes));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_is_rebuilt_only_when_source_or_tools_change() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("main.py"), "one").unwrap();
        let build = |tool: &str| {
            let mut built = false;
            let dir = BuildDir::new(folder.path(), "some").unwrap();
            let wasm = dir
                .build_unless_current(&[tool], || {
                    built = true;
                    Ok(fs::read(folder.path().join("main.py"))?)
                })
                .unwrap();
            (built, wasm)
        };
        assert_eq!(build("1"), (true, b"one".to_vec()));
        // The output of the first build is not part of the source.
        assert_eq!(build("1"), (false, b"one".to_vec()));
        assert_eq!(build("2"), (true, b"one".to_vec()));
        fs::write(folder.path().join("main.py"), "two").unwrap();
        assert_eq!(build("2"), (true, b"two".to_vec()));
    }

    #[test]
    fn staged_source_lacks_hidden_files_tests_and_tool_output() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "lib/a.js",
            ".git/x",
            "node_modules/y",
            "index.js",
            "test/a.test.js",
        ] {
            replace_file(&folder.path().join(name), b"text").unwrap();
        }
        let dir = BuildDir::new(folder.path(), "some").unwrap();
        let stage = dir.stage_source(&[("sdk/b.js", "more")]).unwrap();
        let mut found: Vec<_> = read_sources(&stage)
            .unwrap()
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        found.sort();
        assert_eq!(found, ["index.js", "lib/a.js", "sdk/b.js"].map(PathBuf::from));
    }

    #[test]
    fn missing_tool_error_names_its_packages() {
        let output_text = require_program(&["no-such-program", "--version"], &["no-such"], false)
            .unwrap_err()
            .to_string();
        assert!(
            output_text.contains("no-such-program") && output_text.contains("apt-get install no-such"),
            "{output_text}"
        );
    }

    #[test]
    fn command_error_shows_paths_relative_to_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let dir = BuildDir::new(folder.path(), "some").unwrap();
        let mut command = Command::new("sh");
        let output_text = format!("echo {}/stage/main.py:3: wrong >&2; exit 1", dir.work.display());
        command.args(["-c", &output_text]);
        let output_text = format!("{:#}", dir.run_command(command).unwrap_err());
        assert!(output_text.contains("\nmain.py:3: wrong"), "{output_text}");
    }
}
