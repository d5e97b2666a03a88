//! The toolchain that builds guests: whichever is there, so that nobody must know.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{cargo, rust::Optimize};

/// The target of the guests: no WASI, so that a component's import list is its capability list.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// Debian's Rust, which can build the standard library for any target from source.
const DEBIAN_PACKAGES: [&str; 5] = ["rustc-web", "cargo-web", "rust-web-src", "lld", "binaryen"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_OPTIMISER: &str = "/usr/bin/wasm-opt";

/// For any compiler: addresses in as many bytes as they need, which is a tenth of a component.
const SMALL: &str = "-Clink-arg=--compress-relocations";
/// For one that builds the standard library: neither `Debug` texts nor places in the source.
const SMALLER: &str = "-Clink-arg=--compress-relocations -Zfmt-debug=none -Zlocation-detail=none";

/// A way to build for wasm.
#[derive(Debug)]
pub enum Toolchain {
    /// The usual toolchain has the target.
    Installed,
    /// Debian's, with the standard library built from source.
    Debian {
        /// A linker for wasm.
        linker: PathBuf,
    },
}

impl Toolchain {
    /// Finds one; `install`s one if need be.
    ///
    /// # Errors
    /// What is missing, and the command that installs it.
    pub fn find(install: bool) -> Result<Self> {
        let sysroot = sysroot("rustc").context("no Rust: see https://rustup.rs")?;
        if sysroot.join("lib/rustlib").join(TARGET).is_dir() {
            return Ok(Self::Installed);
        }
        if !debian_is_complete() {
            if !install {
                bail!("this machine can't build for WebAssembly: {}", by_hand());
            }
            self::install()?;
        }
        let linker = linker(&sysroot).context("no linker for wasm: neither rust-lld nor wasm-ld")?;
        Ok(Self::Debian { linker })
    }

    /// The start of a `cargo build` for the target.
    #[must_use]
    pub fn build(&self) -> Command {
        let mut command = match self {
            Self::Installed => cargo::command(),
            Self::Debian { linker } => {
                let mut command = Command::new(DEBIAN_CARGO);
                // What the calling cargo left in the environment speaks of another toolchain.
                for name in [
                    "CARGO",
                    "RUSTUP_TOOLCHAIN",
                    "RUSTC_WRAPPER",
                    "RUSTC_WORKSPACE_WRAPPER",
                ] {
                    command.env_remove(name);
                }
                command
                    .env("RUSTC", DEBIAN_RUSTC)
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
                command
            }
        };
        // The target's flags, and only these: RUSTFLAGS would take their place.
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(name);
        }
        let flags = match self {
            Self::Installed => SMALL,
            Self::Debian { .. } => SMALLER,
        };
        command
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags)
            .args(["build", "--target", TARGET]);
        if let Self::Debian { .. } = self {
            command.args([
                "-Zbuild-std=std,panic_abort",
                "-Zbuild-std-features=optimize_for_size",
            ]);
        }
        command
    }
}

/// Makes a module smaller, by a tenth and more, or faster, where binaryen's wasm-opt is there.
///
/// # Errors
/// What wasm-opt says.
pub fn optimise(module: Vec<u8>, optimize: Optimize) -> Result<Vec<u8>> {
    let Some(optimiser) = on_path("wasm-opt") else {
        return Ok(module);
    };
    let folder = tempfile::tempdir()?;
    let [before, after] = ["before.wasm", "after.wasm"].map(|name| folder.path().join(name));
    std::fs::write(&before, &module)?;
    // The features are those rustc itself uses.
    let output = Command::new(&optimiser)
        .args([optimize.binaryen(), "--reorder-functions"])
        .args(["--enable-bulk-memory", "--enable-sign-ext"])
        .args(["--enable-mutable-globals", "--enable-multivalue"])
        .args(["--enable-nontrapping-float-to-int", "--enable-reference-types"])
        .arg(&before)
        .arg("--output")
        .arg(&after)
        .output()
        .with_context(|| format!("running {}", optimiser.display()))?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            optimiser.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(std::fs::read(after)?)
}

fn sysroot(rustc: &str) -> Result<PathBuf> {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    if !output.status.success() {
        bail!(
            "`{rustc} --print sysroot`: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

fn debian_is_complete() -> bool {
    // The standard library's sources are what Debian's plain rustc lacks.
    let sources = sysroot(DEBIAN_RUSTC).map(|s| s.join("lib/rustlib/src/rust/library/std/Cargo.toml"));
    let programs = [DEBIAN_CARGO, DEBIAN_OPTIMISER];
    programs.iter().all(|p| Path::new(p).is_file()) && sources.is_ok_and(|s| s.is_file())
}

/// rustup's own linker fits any LLVM of its age; the system's is the second choice.
fn linker(sysroot: &Path) -> Option<PathBuf> {
    let of = |sysroot: &Path| {
        let targets = std::fs::read_dir(sysroot.join("lib/rustlib")).ok()?;
        targets
            .flatten()
            .map(|t| t.path().join("bin/rust-lld"))
            .find(|l| l.is_file())
    };
    of(sysroot)
        .or_else(|| on_path("rust-lld"))
        .or_else(|| on_path("wasm-ld"))
}

/// A program in the path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn install() -> Result<()> {
    if !Path::new("/usr/bin/apt-get").is_file() {
        bail!("this machine can't build for WebAssembly: {}", by_hand());
    }
    crate::progress::say(&format!(
        "Installing {} (to build for WebAssembly)",
        DEBIAN_PACKAGES.join(" ")
    ));
    apt_install(&DEBIAN_PACKAGES).with_context(by_hand)?;
    if !debian_is_complete() {
        bail!(
            "the packages are installed, but {DEBIAN_RUSTC} is not one with all that is needed: {}",
            by_hand()
        );
    }
    Ok(())
}

/// Installs packages of Debian.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    apt_get(&["update"])?;
    apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

/// What a person can do where nothing can be done here.
fn by_hand() -> String {
    format!(
        "run `rustup target add {TARGET}`, or on Debian `apt-get install {}`",
        DEBIAN_PACKAGES.join(" ")
    )
}

/// Runs apt-get, as root.
///
/// # Errors
/// When it fails.
pub fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = if rustix::process::getuid().is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    };
    // In this process' own group, so that sudo may ask for a password; on stderr, so that
    // stdout stays for results.
    let status = command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("--quiet")
        .args(arguments)
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if !status.success() {
        bail!("apt-get {}: {status}", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linker_of_the_sysroot_comes_first() {
        let sysroot = tempfile::tempdir().unwrap();
        let bin = sysroot.path().join("lib/rustlib/some-host/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("rust-lld"), "").unwrap();
        assert_eq!(linker(sysroot.path()), Some(bin.join("rust-lld")));
    }

    #[test]
    fn debians_cargo_is_told_all_it_needs() {
        let command = Toolchain::Debian { linker: "/ld".into() }.build();
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(
            arguments,
            [
                "build",
                "--target",
                TARGET,
                "-Zbuild-std=std,panic_abort",
                "-Zbuild-std-features=optimize_for_size"
            ]
        );
        let environment: Vec<_> = command.get_envs().collect();
        assert!(environment.contains(&("RUSTUP_TOOLCHAIN".as_ref(), None)));
        assert!(environment.contains(&("RUSTC".as_ref(), Some(DEBIAN_RUSTC.as_ref()))));
    }
}
