//! Go programs of the tests, each built once per version of its sources.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{
    paths,
    process::{Child, check_interrupt, read_tail},
    progress::BuildStep,
};

/// A Go program in `tests/NAME`.
pub struct GoProgram<'a> {
    /// Name of its folder, of that in the build cache of the user, and of the binary.
    pub name: &'a str,
    /// Description of the build, for the progress.
    pub title: &'a str,
    /// Flags of the linker.
    pub linker_flags: &'a str,
    /// Package that is built: `.`, or that of a tool which the module names.
    pub package: &'a str,
}

impl GoProgram<'_> {
    /// Returns the folder of the sources.
    pub fn source(&self) -> PathBuf {
        paths::workspace_root().join("tests").join(self.name)
    }

    /// Builds the program, unless there is a binary of the same sources. `install` adds what belongs beside it. Returns the
    /// binary.
    pub fn build(&self, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let source = self.source();
        let key = Self::digest_sources(&source)?;
        // For all checkouts of the user.
        let cache = ostler_builder::cache_dir(&paths::target_dir());
        let folder = cache.join(self.name).join(&key[..16]);
        let binary = folder.join(self.name);
        if binary.is_file() {
            return Ok(binary);
        }
        fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        let step = BuildStep::new(self.title.to_owned());
        lock.lock()?;
        if !binary.is_file() {
            let partial = folder.join("partial");
            self.run_go_build(&partial, &folder.join("build.log"))?;
            install(&folder)?;
            fs::rename(&partial, &binary)?;
        }
        step.finish("");
        Ok(binary)
    }

    /// Returns a digest of the sources.
    fn digest_sources(source: &Path) -> Result<String> {
        let mut key = Sha256::new();
        let entries = fs::read_dir(source).with_context(|| format!("reading {}", source.display()))?;
        let mut files = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        files.sort();
        for file in files {
            if file
                .extension()
                .is_some_and(|e| e == "go" || e == "mod" || e == "sum")
            {
                key.update(fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
            }
        }
        Ok(format!("{:x}", key.finalize()))
    }

    fn run_go_build(&self, output: &Path, log: &Path) -> Result<()> {
        // It runs beside the Rust build, which it must not slow down.
        let mut command = Command::new("nice");
        command
            .args(["-n", "10", "go", "build", "-trimpath"])
            .args(["-ldflags", self.linker_flags, "-o"])
            .arg(output)
            .arg(self.package)
            .current_dir(self.source())
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly");
        let mut child = Child::spawn_logged("go build", command, log)?;
        let status = child.wait()?;
        check_interrupt()?;
        match status.code() {
            Some(0) => Ok(()),
            Some(127) => bail!("{} needs Go (https://go.dev/dl): {}", self.name, read_tail(log)),
            _ => bail!(
                "go build: {status}; the end of {}:\n{}",
                log.display(),
                read_tail(log)
            ),
        }
    }
}
