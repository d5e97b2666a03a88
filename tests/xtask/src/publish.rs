//! The packages of the SDKs, as the registries of their languages would get them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ostler_builder::tools::{require_program, run_command};
use serde::Deserialize;

use crate::{paths, progress::BuildStep};

/// Crates of the Rust SDK, each after those that it depends on.
const CRATES: [&str; 4] = [
    "ostler-readiness",
    "ostler-selector",
    "ostler-sdk-macros",
    "ostler-sdk",
];

/// Options of `cargo xtask publish`.
#[derive(clap::Args)]
pub struct PublishOptions {
    /// Build the packages in target/publish and print what each registry would get.
    #[arg(long)]
    dry_run: bool,
}

/// A package as a registry would get it.
struct SdkPackage {
    registry: &'static str,
    name: String,
    version: String,
    files: Vec<String>,
}

/// Builds and prints the packages.
pub fn publish_packages(options: &PublishOptions) -> Result<()> {
    if !options.dry_run {
        bail!(
            "nothing is published yet: --dry-run builds the packages and prints what each registry would get"
        );
    }
    let mut packages = Vec::new();
    for (name, build) in [
        ("crates.io", build_crates as fn() -> Result<Vec<SdkPackage>>),
        ("npm", build_npm_package),
        ("PyPI", build_wheel),
        ("Go", list_go_module),
    ] {
        let step = BuildStep::new(format!("Packages for {name}"));
        let built = build()?;
        step.finish(built.len());
        packages.extend(built);
    }
    for SdkPackage {
        registry,
        name,
        version,
        files,
    } in &packages
    {
        println!("{registry}: {name} {version}, {} files", files.len());
        for file in files {
            println!("  {file}");
        }
    }
    Ok(())
}

/// Packs the crates and compiles each from its package, so that none needs a file beside it.
fn build_crates() -> Result<Vec<SdkPackage>> {
    let mut packages = Vec::new();
    let crates = || CRATES.iter().flat_map(|name| ["--package", name]);
    run_in_workspace(
        Command::new("cargo")
            .args(["package", "--allow-dirty"])
            .args(crates()),
    )?;
    for name in CRATES {
        let listed = run_in_workspace(Command::new("cargo").args([
            "package",
            "--allow-dirty",
            "--list",
            "--package",
            name,
        ]))?;
        packages.push(SdkPackage {
            registry: "crates.io",
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            files: listed.lines().map(str::to_owned).collect(),
        });
    }
    Ok(packages)
}

/// The output of `npm pack --json` for a package.
#[derive(Deserialize)]
struct NpmPackage {
    name: String,
    version: String,
    files: Vec<NpmFile>,
}

#[derive(Deserialize)]
struct NpmFile {
    path: String,
}

fn build_npm_package() -> Result<Vec<SdkPackage>> {
    require_program(&["npm", "--version"], &["nodejs", "npm"], true)?;
    let folder = paths::create_target_subdir("publish")?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--json", "--pack-destination"])
        .arg(folder)
        .current_dir(sdk_folder("sdk-js"));
    let packed: Vec<NpmPackage> = serde_json::from_str(&run_command(pack)?).context("the output of npm")?;
    let packages = packed.into_iter().map(|package| SdkPackage {
        registry: "npm",
        name: package.name,
        version: package.version,
        files: package.files.into_iter().map(|file| file.path).collect(),
    });
    Ok(packages.collect())
}

/// Builds a wheel of a copy of the SDK: setuptools writes beside the sources.
fn build_wheel() -> Result<Vec<SdkPackage>> {
    require_program(
        &["python3", "-c", "import ensurepip, venv"],
        &["python3", "python3-venv"],
        true,
    )?;
    let folder = paths::create_target_subdir("publish")?;
    let (copy, venv) = (folder.join("python"), folder.join("venv"));
    for old in [&copy, &venv] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("clearing {}", old.display()))?;
        }
    }
    fs::create_dir_all(&copy)?;
    for entry in fs::read_dir(sdk_folder("sdk-python"))? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, copy.join(path.file_name().context("a file")?))?;
        }
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&venv);
    run_command(make)?;
    let mut wheel = Command::new(venv.join("bin/python"));
    wheel
        .args([
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "wheel",
            "--no-deps",
            "--wheel-dir",
        ])
        .arg(&copy)
        .arg(&copy);
    run_command(wheel)?;
    let mut entries = fs::read_dir(&copy)?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = entries
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("pip has built no wheel")?;
    let mut list = Command::new("python3");
    list.args(["-m", "zipfile", "--list"]).arg(&file);
    let listed = run_command(list)?;
    let files = listed
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    let name = file
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut parts = name.split('-');
    Ok(vec![SdkPackage {
        registry: "PyPI",
        name: parts.next().unwrap_or_default().replace('_', "-"),
        version: parts.next().unwrap_or_default().to_owned(),
        files: files.map(str::to_owned).collect(),
    }])
}

/// The packages of the Go module. Go has no registry: its proxy fetches the files of a tag.
fn list_go_module() -> Result<Vec<SdkPackage>> {
    let folder = sdk_folder("sdk-go");
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&folder).envs([
            ("GOWORK", "off"),
            ("GOOS", "wasip1"),
            ("GOARCH", "wasm"),
        ]);
        run_command(command)
    };
    require_program(&["go", "version"], &["golang"], true)?;
    go(&["build", "./..."])?;
    let name = go(&["list", "-m"])?;
    let sources =
        "{{range .GoFiles}}{{$.Dir}}/{{.}}\n{{end}}{{range .IgnoredGoFiles}}{{$.Dir}}/{{.}}\n{{end}}";
    let listed = go(&["list", "-f", sources, "./..."])?;
    let root = folder.canonicalize()?;
    let files = listed.lines().filter(|line| !line.is_empty()).map(|line| {
        let path = Path::new(line);
        path.strip_prefix(&root).unwrap_or(path).display().to_string()
    });
    let mut files: Vec<_> = files.collect();
    files.push("go.mod".to_owned());
    files.sort();
    Ok(vec![SdkPackage {
        registry: "Go (tag)",
        name,
        version: format!("v{}", env!("CARGO_PKG_VERSION")),
        files,
    }])
}

fn run_in_workspace(command: &mut Command) -> Result<String> {
    let mut owned = Command::new(command.get_program());
    owned
        .args(command.get_args())
        .current_dir(paths::workspace_root());
    run_command(owned)
}

fn sdk_folder(name: &str) -> PathBuf {
    paths::workspace_root().join("plugins").join(name)
}
