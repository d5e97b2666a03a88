//! What the builders of JavaScript, Python and Go share: where they work, what they run, and what need not be built
//! again.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{contract, replace, toolchain};

/// Where a plugin is built, never beside its source.
#[derive(Debug)]
pub struct Workplace {
    /// Its folder.
    pub source: PathBuf,
    /// `target` of the checkout it is in, or its own.
    pub target: PathBuf,
    /// For what is made on the way.
    pub folder: PathBuf,
    /// For tools: of the checkout, or of all plugins of this user.
    tools: PathBuf,
    /// Name of the plugin's package.
    pub name: String,
}

impl Workplace {
    /// That of the plugin in a folder.
    ///
    /// # Errors
    /// When the folder isn't there.
    pub fn of(source: &Path, name: &str) -> Result<Self> {
        let source = source
            .canonicalize()
            .with_context(|| source.display().to_string())?;
        let (target, alone) = target(&source);
        let tools = if alone {
            crate::cache(&target)
        } else {
            target.clone()
        };
        Ok(Self {
            tools: tools.join("tools"),
            folder: target.join("plugins").join(name),
            name: name.to_owned(),
            source,
            target,
        })
    }

    /// Copies the source, so that no tool leaves anything in it, with files besides. Gives the copy's folder.
    ///
    /// # Errors
    /// When a file can't be read or written.
    pub fn stage(&self, besides: &[(&str, &str)]) -> Result<PathBuf> {
        let stage = self.folder.join("stage");
        if stage.exists() {
            fs::remove_dir_all(&stage).with_context(|| format!("clearing {}", stage.display()))?;
        }
        for (path, bytes) in sources(&self.source)? {
            replace(&stage.join(path), &bytes)?;
        }
        self.write("stage", besides)?;
        Ok(stage)
    }

    /// Writes files into a folder of the workplace; gives that.
    ///
    /// # Errors
    /// When one can't be written.
    pub fn write(&self, folder: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
        let folder = self.folder.join(folder);
        for (name, text) in files {
            replace(&folder.join(name), text.as_bytes())?;
        }
        Ok(folder)
    }

    /// The contract, for tools that want it as files.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn wit(&self) -> Result<PathBuf> {
        self.write("wit", &contract::FILES)
    }

    /// The component that was made of this source with these tools before, or a new one.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn unless_current(&self, tools: &[&str], make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut hash = Sha256::new();
        let files = sources(&self.source)?;
        let files = files
            .iter()
            .map(|(path, bytes)| (path.as_os_str().as_encoded_bytes(), &bytes[..]));
        let contract = contract::FILES
            .iter()
            .map(|(name, text)| (name.as_bytes(), text.as_bytes()));
        let tools = tools.iter().map(|text| (&b""[..], text.as_bytes()));
        for (name, bytes) in files.chain(contract).chain(tools) {
            for part in [name, bytes] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        let digest = format!("{:x}", hash.finalize());
        let (component, made_of) = (self.folder.join("component.wasm"), self.folder.join("made-of"));
        if fs::read_to_string(&made_of).is_ok_and(|old| old == digest)
            && let Ok(wasm) = fs::read(&component)
        {
            return Ok(wasm);
        }
        let wasm = make()?;
        replace(&component, &wasm)?;
        replace(&made_of, digest.as_bytes())?;
        Ok(wasm)
    }

    /// A tool that is installed once for all plugins there; gives its folder. `install` is called
    /// with an empty one.
    ///
    /// # Errors
    /// Those of `install`.
    pub fn tool(&self, name: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let tools = &self.tools;
        fs::create_dir_all(tools).with_context(|| format!("making {}", tools.display()))?;
        // Of two builds at the same time one installs.
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

    /// Runs a command; its words on failure speak of the source, not of the copy.
    ///
    /// # Errors
    /// What it says, or that it is not there.
    pub fn run(&self, command: Command) -> Result<String> {
        run(command).map_err(|e| {
            let stage = format!("{}/", self.folder.join("stage").display());
            e.context(format!("building {}", self.source.display()))
                .replaced(&stage)
        })
    }
}

trait Replaced {
    fn replaced(self, stage: &str) -> Self;
}

impl Replaced for anyhow::Error {
    fn replaced(self, stage: &str) -> Self {
        let text = format!("{self:#}");
        if text.contains(stage) {
            return anyhow::anyhow!(text.replace(stage, ""));
        }
        self
    }
}

/// Runs a command; gives its stdout.
///
/// # Errors
/// What it says, or that it is not there.
pub fn run(mut command: Command) -> Result<String> {
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
    let mut said = text(&output.stderr);
    // Where in the tool it happened helps nobody.
    if let Some(at) = said.find("\nStack backtrace:") {
        said.truncate(at);
    }
    if said.is_empty() {
        said = text(&output.stdout);
    }
    bail!("{program}: {}\n{}", output.status, said.trim_end())
}

/// That a program is there; otherwise installs Debian's packages that have it, or says how.
///
/// # Errors
/// The command that would install it.
pub fn require(program: &[&str], packages: &[&str], install: bool) -> Result<()> {
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
        toolchain::apt_install(packages)?;
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

/// The target folder: of the checkout the plugin is in, where there is one.
fn target(source: &Path) -> (PathBuf, bool) {
    let checkout = source
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").is_file());
    match (checkout, std::env::var_os("CARGO_TARGET_DIR")) {
        (Some(checkout), Some(target)) => (checkout.join(target), false),
        (Some(checkout), None) => (checkout.join("target"), false),
        (None, _) => (source.join("target"), true),
    }
}

/// The files of a plugin, without what tools leave beside them.
fn sources(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
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
    fn what_is_current_is_not_built_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("main.py"), "one").unwrap();
        let build = |tool: &str| {
            let mut built = false;
            let place = Workplace::of(folder.path(), "some").unwrap();
            let wasm = place
                .unless_current(&[tool], || {
                    built = true;
                    Ok(fs::read(folder.path().join("main.py"))?)
                })
                .unwrap();
            (built, wasm)
        };
        assert_eq!(build("1"), (true, b"one".to_vec()));
        // What the build itself has left does not count.
        assert_eq!(build("1"), (false, b"one".to_vec()));
        assert_eq!(build("2"), (true, b"one".to_vec()));
        fs::write(folder.path().join("main.py"), "two").unwrap();
        assert_eq!(build("2"), (true, b"two".to_vec()));
    }

    #[test]
    fn a_plugin_is_built_in_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["lib/a.js", ".git/x", "node_modules/y", "index.js"] {
            replace(&folder.path().join(name), b"text").unwrap();
        }
        let place = Workplace::of(folder.path(), "some").unwrap();
        let stage = place.stage(&[("sdk/b.js", "more")]).unwrap();
        let mut found: Vec<_> = sources(&stage)
            .unwrap()
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        found.sort();
        assert_eq!(found, ["index.js", "lib/a.js", "sdk/b.js"].map(PathBuf::from));
    }

    #[test]
    fn a_tool_that_is_missing_is_named_with_its_packages() {
        let said = require(&["no-such-program", "--version"], &["no-such"], false)
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("no-such-program") && said.contains("apt-get install no-such"),
            "{said}"
        );
    }

    #[test]
    fn errors_speak_of_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let place = Workplace::of(folder.path(), "some").unwrap();
        let mut command = Command::new("sh");
        let said = format!(
            "echo {}/stage/main.py:3: wrong >&2; exit 1",
            place.folder.display()
        );
        command.args(["-c", &said]);
        let said = format!("{:#}", place.run(command).unwrap_err());
        assert!(said.contains("\nmain.py:3: wrong"), "{said}");
    }
}
