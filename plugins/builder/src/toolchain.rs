//! The Rust toolchain for WebAssembly: rustup's where it has the target, Debian's packages otherwise.

use std::{
    io::{IsTerminal, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    cargo,
    progress::{BuildStep, print_status},
    rust::Optimize,
};

/// Target of Rust plugins. Without WASI, so that a component's import list is its capability list.
pub const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// Packages of Debian's Rust, which can build the standard library for any target from source.
const DEBIAN_PACKAGES: [&str; 5] = ["rustc-web", "cargo-web", "rust-web-src", "lld", "binaryen"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_WASM_OPT: &str = "/usr/bin/wasm-opt";

/// Flags for any compiler. Compressed relocations save a tenth of a component.
const SIZE_FLAGS: &str = "-Clink-arg=--compress-relocations";
/// Flags for a compiler that builds the standard library: also without `Debug` texts and source locations.
const BUILD_STD_SIZE_FLAGS: &str =
    "-Clink-arg=--compress-relocations -Zfmt-debug=none -Zlocation-detail=none";

/// Wrapper of rustc for the crate of the plugin alone: its panics have their locations, which costs about 100 bytes. Those of
/// the standard library and of dependencies stay out. It cannot be a flag of a profile: `RUSTFLAGS` come after these.
const LOCATION_WRAPPER: &str = "#!/bin/sh\nexec \"$@\" -Zlocation-detail=file,line\n";

/// Maximum number of log lines in the error of a failed command.
const MAX_TAIL_LINES: usize = 20;

/// A toolchain that can build for WebAssembly.
#[derive(Debug)]
pub enum Toolchain {
    /// The installed toolchain has the target.
    Installed,
    /// Debian's toolchain, which builds the standard library from source.
    Debian {
        /// Linker for WebAssembly.
        linker: PathBuf,
    },
}

impl Toolchain {
    /// Finds a toolchain, and installs Debian's when there is none and `install` is set.
    ///
    /// # Errors
    /// Names the missing part and the command that installs it.
    pub fn find(install: bool) -> Result<Self> {
        let sysroot = find_sysroot("rustc").context("no Rust: see https://rustup.rs")?;
        if sysroot.join("lib/rustlib").join(WASM_TARGET).is_dir() {
            return Ok(Self::Installed);
        }
        if !debian_is_complete() {
            if !install {
                bail!(
                    "this machine can't build for WebAssembly: {}",
                    manual_instructions()
                );
            }
            install_debian_toolchain()?;
        }
        let linker = find_linker(&sysroot).context("no linker for wasm: neither rust-lld nor wasm-ld")?;
        Ok(Self::Debian { linker })
    }

    /// Has a build keep the locations of panics in the crates of its workspace. `folder` is for the wrapper of rustc.
    ///
    /// # Errors
    /// When the wrapper can't be written.
    pub fn keep_locations(&self, command: &mut Command, folder: &Path) -> Result<()> {
        // A compiler that does not build the standard library keeps all locations.
        if let Self::Debian { .. } = self {
            let wrapper = folder.join("keep-locations.sh");
            write_script(&wrapper, LOCATION_WRAPPER)
                .with_context(|| format!("writing {}", wrapper.display()))?;
            command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
        }
        Ok(())
    }

    /// Returns the command `cargo build` for the target.
    #[must_use]
    pub fn cargo_build(&self) -> Command {
        let mut command = match self {
            Self::Installed => cargo::cargo_command(),
            Self::Debian { linker } => {
                let mut command = Command::new(DEBIAN_CARGO);
                // The calling cargo has set these for another toolchain.
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
        // RUSTFLAGS would override the flags of the target.
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(name);
        }
        let flags = match self {
            Self::Installed => SIZE_FLAGS,
            Self::Debian { .. } => BUILD_STD_SIZE_FLAGS,
        };
        command
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags)
            .args(["build", "--target", WASM_TARGET]);
        if let Self::Debian { .. } = self {
            command.args([
                "-Zbuild-std=std,panic_abort",
                "-Zbuild-std-features=optimize_for_size",
            ]);
        }
        command
    }
}

/// Writes an executable file, unless it is there. It is renamed into place: another build may run it at this moment.
fn write_script(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o755))?;
    file.persist(path)?;
    Ok(())
}

/// Optimizes a module with binaryen's wasm-opt, which saves a tenth of its size or more. Without wasm-opt the module is
/// returned as it is.
///
/// # Errors
/// The output of wasm-opt.
pub fn optimize_module(module: Vec<u8>, optimize: Optimize) -> Result<Vec<u8>> {
    let Some(wasm_opt) = find_in_path("wasm-opt") else {
        return Ok(module);
    };
    let folder = tempfile::tempdir()?;
    let [before, after] = ["before.wasm", "after.wasm"].map(|name| folder.path().join(name));
    std::fs::write(&before, &module)?;
    // Features that rustc enables for this target.
    let output = Command::new(&wasm_opt)
        .args([optimize.binaryen_level(), "--reorder-functions"])
        .args(["--enable-bulk-memory", "--enable-sign-ext"])
        .args(["--enable-mutable-globals", "--enable-multivalue"])
        .args(["--enable-nontrapping-float-to-int", "--enable-reference-types"])
        .arg(&before)
        .arg("--output")
        .arg(&after)
        .output()
        .with_context(|| format!("running {}", wasm_opt.display()))?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            wasm_opt.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(std::fs::read(after)?)
}

fn find_sysroot(rustc: &str) -> Result<PathBuf> {
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
    // Debian's plain rustc package lacks the sources of the standard library.
    let sources = find_sysroot(DEBIAN_RUSTC).map(|s| s.join("lib/rustlib/src/rust/library/std/Cargo.toml"));
    let programs = [DEBIAN_CARGO, DEBIAN_WASM_OPT];
    programs.iter().all(|p| Path::new(p).is_file()) && sources.is_ok_and(|s| s.is_file())
}

/// Finds a linker. rustup's own matches its LLVM; one in the `PATH` is the second choice.
fn find_linker(sysroot: &Path) -> Option<PathBuf> {
    let of = |sysroot: &Path| {
        let targets = std::fs::read_dir(sysroot.join("lib/rustlib")).ok()?;
        targets
            .flatten()
            .map(|t| t.path().join("bin/rust-lld"))
            .find(|l| l.is_file())
    };
    of(sysroot)
        .or_else(|| find_in_path("rust-lld"))
        .or_else(|| find_in_path("wasm-ld"))
}

/// Finds a program in the `PATH`.
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn install_debian_toolchain() -> Result<()> {
    if !Path::new("/usr/bin/apt-get").is_file() {
        bail!(
            "this machine can't build for WebAssembly: {}",
            manual_instructions()
        );
    }
    install_packages(&DEBIAN_PACKAGES).with_context(manual_instructions)?;
    if !debian_is_complete() {
        bail!(
            "the packages are installed, but {DEBIAN_RUSTC} still lacks the sources of the standard library: {}",
            manual_instructions()
        );
    }
    Ok(())
}

/// Installs Debian packages.
pub(crate) fn install_packages(packages: &[&str]) -> Result<()> {
    run_apt_get(&["update"])?;
    run_apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

/// Returns the instructions for a machine without apt-get.
fn manual_instructions() -> String {
    format!(
        "run `rustup target add {WASM_TARGET}`, or on Debian `apt-get install {}`",
        DEBIAN_PACKAGES.join(" ")
    )
}

/// Runs apt-get as root, quietly: its output goes to a log.
///
/// # Errors
/// The last lines of the log when apt-get fails.
pub fn run_apt_get(arguments: &[&str]) -> Result<()> {
    let is_root = rustix::process::getuid().is_root();
    let mut command = if is_root {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    };
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("--quiet=2")
        .args(arguments);
    let name = format!("apt-get {}", arguments.join(" "));
    // sudo asks for its password on the terminal, where a spinner would overwrite the question.
    if !is_root && std::io::stderr().is_terminal() {
        print_status(&format!("Running {name}"));
        return run_logged(&name, command);
    }
    let step = BuildStep::new(format!("Running {name}"));
    run_logged(&name, command)?;
    step.finish("");
    Ok(())
}

/// Runs a command with its output in a log, which is removed when the command succeeds.
///
/// # Errors
/// The path and the last lines of the log when the command fails.
pub fn run_logged(name: &str, mut command: Command) -> Result<()> {
    let log = tempfile::Builder::new()
        .prefix("ostler-")
        .suffix(".log")
        .tempfile()
        .context("creating a log file")?;
    // In the process group of this process, so that sudo may ask for a password.
    let status = command
        .stdout(log.as_file().try_clone()?)
        .stderr(log.as_file().try_clone()?)
        .status()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if status.success() {
        return Ok(());
    }
    let (_, path) = log.keep()?;
    let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    let lines: Vec<_> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(MAX_TAIL_LINES)..];
    bail!(
        "{name}: {status}; the end of {}:\n{}",
        path.display(),
        tail.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_command_reports_the_tail_of_its_log_and_nothing_else() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 1000; echo 'E: no such package' >&2; exit 100"]);
        let error = run_logged("apt-get install x", command).unwrap_err().to_string();
        assert!(
            error.starts_with("apt-get install x: exit status: 100; the end of /"),
            "{error}"
        );
        assert!(error.ends_with("\n999\n1000\nE: no such package"), "{error}");
        assert!(error.lines().count() <= MAX_TAIL_LINES + 1, "{error}");
        let path = error
            .split_once("the end of ")
            .and_then(|(_, rest)| rest.split_once(":\n"));
        let (path, _) = path.expect("the path of the log");
        assert!(
            std::fs::read_to_string(path).unwrap().starts_with("1\n2\n"),
            "the log is complete"
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn successful_command_is_silent_and_leaves_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("path");
        let mut command = Command::new("sh");
        command
            .args(["-c", "readlink /proc/$$/fd/2 > \"$0\""])
            .arg(&written);
        run_logged("sh", command).unwrap();
        let log = std::fs::read_to_string(written).unwrap();
        assert!(log.contains("ostler-") && log.contains(".log"), "{log}");
        assert!(!Path::new(log.trim_end()).exists(), "{log}");
    }

    #[test]
    fn linker_of_the_sysroot_is_preferred() {
        let sysroot = tempfile::tempdir().unwrap();
        let bin = sysroot.path().join("lib/rustlib/some-host/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("rust-lld"), "").unwrap();
        assert_eq!(find_linker(sysroot.path()), Some(bin.join("rust-lld")));
    }

    #[test]
    fn debian_cargo_builds_std_with_its_own_rustc() {
        let command = Toolchain::Debian { linker: "/ld".into() }.cargo_build();
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(
            arguments,
            [
                "build",
                "--target",
                WASM_TARGET,
                "-Zbuild-std=std,panic_abort",
                "-Zbuild-std-features=optimize_for_size"
            ]
        );
        let environment: Vec<_> = command.get_envs().collect();
        assert!(environment.contains(&("RUSTUP_TOOLCHAIN".as_ref(), None)));
        assert!(environment.contains(&("RUSTC".as_ref(), Some(DEBIAN_RUSTC.as_ref()))));
    }

    #[test]
    fn crate_of_the_plugin_keeps_its_locations() {
        let folder = tempfile::tempdir().unwrap();
        let toolchain = Toolchain::Debian { linker: "/ld".into() };
        for _ in 0..2 {
            let mut command = toolchain.cargo_build();
            toolchain.keep_locations(&mut command, folder.path()).unwrap();
            let wrapper = folder.path().join("keep-locations.sh");
            let set = ("RUSTC_WORKSPACE_WRAPPER".as_ref(), Some(wrapper.as_os_str()));
            assert!(command.get_envs().any(|variable| variable == set));
            // By the shell: the child of another test's fork may still have the file open, and then it cannot be executed (ETXTBSY).
            let printed = Command::new("sh")
                .arg(&wrapper)
                .args(["echo", "a b"])
                .output()
                .unwrap();
            assert_ne!(wrapper.metadata().unwrap().permissions().mode() & 0o100, 0);
            assert_eq!(
                String::from_utf8_lossy(&printed.stdout),
                "a b -Zlocation-detail=file,line\n"
            );
        }
    }

    /// Calls `check` with each source file below a directory.
    fn visit_sources(directory: &Path, check: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                visit_sources(&path, check);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                check(&path, &std::fs::read_to_string(&path).expect("a source file"));
            }
        }
    }

    /// With `-Zfmt-debug=none` such a placeholder prints nothing.
    #[test]
    fn messages_of_components_have_no_debug_placeholders() {
        let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = 0;
        for pack in ["concourse", "devops", "dns", "examples"] {
            visit_sources(&plugins.join(pack), &mut |path, text| {
                if path.components().any(|part| part.as_os_str() == "tests") {
                    return;
                }
                files += 1;
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                for (i, line) in code.lines().enumerate() {
                    let has_debug = [":?}", ":#?}"]
                        .iter()
                        .any(|placeholder| line.contains(placeholder));
                    assert!(!has_debug, "{}:{}: {line}", path.display(), i + 1);
                }
            });
        }
        assert!(files > 50, "{files}");
    }
}
