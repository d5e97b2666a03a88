//! Profile-guided optimization of the host: an instrumented build counts what it executes in benches, and the compiler lays out and
//! inlines the image's binary accordingly. The counts are in the repository, so that images are reproducible and need no training.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use ostler_builder::{replace_file, toolchain::run_logged};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    bench,
    cargo::{ImageBinary, query_rustc},
    dependencies::list_crates,
    image, paths,
    progress::{BuildStep, print_result, print_status},
};

/// Folder of the profile in a checkout.
const FOLDER: &str = "host/pgo";
/// The indexed profile of LLVM, compressed.
const PROFILE_FILE: &str = "ostler.profdata.xz";
/// The symbols of the functions that were executed, a line each, compressed.
const FUNCTIONS_FILE: &str = "functions.txt.xz";
/// Compiler and dependencies of the profile.
const ORIGIN_FILE: &str = "origin.json";
/// Benches that train: many objects that converge, reconciles without and with writes, and a pack with an upstream.
const TRAINING_BENCHES: [&str; 5] = [
    "converge-1k",
    "fanout-1k",
    "converge-10k",
    "noop-10k",
    "concourse",
];

/// Platform of the profile. On others some crates differ, and the functions of all others find their counts.
const TRAINED_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Instrumentation or optimization of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgoStage {
    /// The binary counts what it executes, and writes the counts where `LLVM_PROFILE_FILE` says.
    Instrument,
    /// The binary is optimized by an indexed profile.
    Optimize {
        /// The profile.
        profile: PathBuf,
        /// The list of the functions that it has counts of.
        functions: PathBuf,
    },
}

impl PgoStage {
    /// Returns the flags of rustc. `default_folder` gets the counts of programs of the build itself.
    pub fn rustc_flags(&self, default_folder: &Path) -> Vec<String> {
        match self {
            Self::Instrument => vec![format!("-Cprofile-generate={}", default_folder.display())],
            Self::Optimize { profile, functions } => vec![
                format!("-Cprofile-use={}", profile.display()),
                // The functions that are executed often are in a section of their own, and in each section those come first that
                // are executed at all, such as those of the start: the kernel maps the pages around one that is touched, too.
                "-Clink-arg=-Wl,-z,keep-text-section-prefix".into(),
                format!("-Clink-arg=-Wl,--symbol-ordering-file={}", functions.display()),
                // Some are inlined everywhere.
                "-Clink-arg=-Wl,--no-warn-symbol-ordering".into(),
                // The parts of functions that are not executed are elsewhere. By default those that are executed seldom are, too.
                "-Cllvm-args=-split-machine-functions".into(),
                "-Cllvm-args=-mfs-psi-cutoff=0".into(),
            ],
        }
    }
}

/// Compiler and dependencies that a profile was made with. Names of functions contain both, so that others do not find their counts.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProfileOrigin {
    /// Version of rustc.
    rustc: String,
    /// SHA-256 of the list of the crates that the host is built of.
    crates: String,
}

impl ProfileOrigin {
    fn of(checkout: &Path) -> Result<Self> {
        let flags = ["--no-default-features", "--target", TRAINED_TARGET];
        let crates = list_crates(checkout, "normal,build", &flags)?;
        let crates: Vec<String> = crates.into_iter().collect();
        Ok(Self {
            rustc: query_rustc(&["--version"])?,
            crates: format!("{:x}", Sha256::digest(crates.join("\n"))),
        })
    }

    /// Explains why a profile of this origin helps less than a new one; none if it is of the present compiler and dependencies.
    fn explain_age(&self, now: &Self) -> Option<String> {
        let what = if self.rustc != now.rustc {
            format!("{}, and this is {}", self.rustc, now.rustc)
        } else if self.crates != now.crates {
            "other dependencies".into()
        } else {
            return None;
        };
        Some(format!(
            "{FOLDER} is of {what}: the host is optimized less. `cargo xtask pgo` makes another profile"
        ))
    }
}

/// Unpacks the profile of a checkout into a folder, unless it is there. None without a profile that this compiler can read.
pub fn unpack_profile(checkout: &Path, folder: &Path) -> Result<Option<PgoStage>> {
    let source = checkout.join(FOLDER);
    let origin = source.join(ORIGIN_FILE);
    let origin: ProfileOrigin =
        serde_json::from_slice(&fs::read(&origin).with_context(|| origin.display().to_string())?)?;
    let now = ProfileOrigin::of(checkout)?;
    if let Some(age) = origin.explain_age(&now) {
        print_status(&age);
    }
    if origin.rustc != now.rustc {
        return Ok(None);
    }
    Ok(Some(PgoStage::Optimize {
        profile: unpack_file(&source.join(PROFILE_FILE), folder)?,
        functions: unpack_file(&source.join(FUNCTIONS_FILE), folder)?,
    }))
}

/// Decompresses a file into a folder, unless it is there. Returns the path of the result, whose name has a digest of the
/// content: Cargo builds again when a flag changes, not when a file does.
fn unpack_file(source: &Path, folder: &Path) -> Result<PathBuf> {
    let digest = Sha256::digest(fs::read(source).with_context(|| source.display().to_string())?);
    let file = folder.join(format!(
        "{digest:x}.{}",
        source.file_stem().unwrap_or_default().display()
    ));
    if !file.is_file() {
        replace_file(&file, &run_xz(&["--decompress"], source)?)?;
    }
    Ok(file)
}

/// Makes the profile of this checkout: builds the instrumented host, runs the benches, and merges the counts of its processes.
pub fn make_profile() -> Result<()> {
    let checkout = paths::workspace_root();
    let profdata = find_profdata()?;
    let binary = ImageBinary {
        pgo: Some(PgoStage::Instrument),
        ..image::HOST_BINARY
    };
    let host = binary.build(checkout)?;
    let counts = TempDir::new()?;
    let pattern = counts.path().join("%p-%m.profraw");
    bench::train_host(&TRAINING_BENCHES, &host, &pattern)?;

    let step = BuildStep::new("Merging the counts");
    let folder = checkout.join(FOLDER);
    let files = fs::read_dir(counts.path())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!files.is_empty(), "the host wrote no counts");
    let merged = counts.path().join("ostler.profdata");
    let mut command = Command::new(&profdata);
    command.arg("merge").arg("--output").arg(&merged).args(&files);
    run_logged("llvm-profdata", command)?;
    let compressed = run_xz(&["-9", "--extreme"], &merged)?;
    replace_file(&folder.join(PROFILE_FILE), &compressed)?;
    let functions = counts.path().join("functions.txt");
    fs::write(&functions, list_executed_functions(&profdata, &merged)?)?;
    let listed = run_xz(&["-9", "--extreme"], &functions)?;
    replace_file(&folder.join(FUNCTIONS_FILE), &listed)?;
    let mut origin = serde_json::to_string_pretty(&ProfileOrigin::of(checkout)?)?;
    origin.push('\n');
    replace_file(&folder.join(ORIGIN_FILE), origin.as_bytes())?;
    step.finish("");
    print_result(&format!(
        "{FOLDER}/{PROFILE_FILE}: {:.1} MB, of {} processes",
        compressed.len() as f64 / 1e6,
        files.len()
    ));
    Ok(())
}

/// Lists the functions that a profile has counts of, a line each.
fn list_executed_functions(profdata: &Path, profile: &Path) -> Result<String> {
    let mut show = Command::new(profdata);
    show.args(["show", "--all-functions", "--counts"]).arg(profile);
    let output = show.output().context("running llvm-profdata")?;
    ensure!(output.status.success(), "llvm-profdata show: {}", output.status);
    let functions = parse_executed_functions(&String::from_utf8(output.stdout)?);
    ensure!(!functions.is_empty(), "no function was executed");
    Ok(functions.into_iter().map(|name| name + "\n").collect())
}

/// Parses the functions with counts from what `llvm-profdata show` prints: the name of a function, indented by two, above its
/// counts. The names of those that are local to a file have the file before a semicolon.
fn parse_executed_functions(shown: &str) -> BTreeSet<String> {
    let mut executed = BTreeSet::new();
    let mut name = "";
    for line in shown.lines() {
        if let Some(counts) = line.trim_start().strip_prefix("Block counts: ") {
            if counts.contains(|c: char| c.is_ascii_digit() && c != '0') {
                executed.insert(name.to_owned());
            }
        } else if let Some(heading) = line.strip_prefix("  ").and_then(|l| l.strip_suffix(':')) {
            name = heading.rsplit(';').next().unwrap_or(heading);
        }
    }
    executed
}

/// Finds LLVM's tool for profiles, of the version that rustc has.
fn find_profdata() -> Result<PathBuf> {
    let libraries = query_rustc(&["--print", "target-libdir"])?;
    let tool = Path::new(&libraries).with_file_name("bin").join("llvm-profdata");
    if !tool.is_file() {
        let mut install = Command::new("rustup");
        install.args(["component", "add", "llvm-tools"]);
        run_logged("rustup", install)
            .context("the profile needs the llvm-profdata of rustc's LLVM: rustup's component llvm-tools")?;
    }
    ensure!(tool.is_file(), "rustup has installed no {}", tool.display());
    Ok(tool)
}

/// Returns what xz makes of a file.
fn run_xz(options: &[&str], file: &Path) -> Result<Vec<u8>> {
    let output = Command::new("xz")
        .args(options)
        .arg("--stdout")
        .arg(file)
        .output()
        .context("the profile needs xz-utils")?;
    ensure!(
        output.status.success(),
        "xz {}: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_of_another_compiler_or_other_dependencies_is_told() {
        let origin = |rustc: &str, crates: &str| ProfileOrigin {
            rustc: rustc.into(),
            crates: crates.into(),
        };
        let kept = origin("rustc 1.95.0", "a");
        assert_eq!(kept.explain_age(&origin("rustc 1.95.0", "a")), None);
        let of_compiler = kept.explain_age(&origin("rustc 1.96.0", "a")).unwrap();
        assert!(
            of_compiler.contains("rustc 1.95.0, and this is rustc 1.96.0"),
            "{of_compiler}"
        );
        let of_crates = kept.explain_age(&origin("rustc 1.95.0", "b")).unwrap();
        assert!(of_crates.contains("other dependencies"), "{of_crates}");
    }

    #[test]
    fn functions_without_counts_are_not_listed() {
        let shown = "Counters:
  a.rcgu;_ZN1a4coldE:
    Hash: 0x0a4d0ad3efffffff
    Counters: 2
    Block counts: [0, 0]
  a.rcgu;_ZN1a4usedE:
    Hash: 0x0a4d0ad3efffffff
    Counters: 2
    Block counts: [0, 3]
  main:
    Hash: 0x0a4d0ad3efffffff
    Counters: 1
    Block counts: [10]
Instrumentation level: IR
";
        let functions: Vec<_> = parse_executed_functions(shown).into_iter().collect();
        assert_eq!(functions, ["_ZN1a4usedE", "main"]);
    }
}
