//! The SDKs that this program carries until they are in registries. They are written into the folder of a project, where its
//! manifest refers to them, and are those of this program's contract.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use include_dir::{Dir, include_dir};

use crate::{Language, contract, detect_language, go, javascript, python, replace_file, tools};

/// Folder of the SDK in a project.
pub const SDK_DIR: &str = ".ostler/sdk";

/// Folder of the Rust SDK's package in [`SDK_DIR`]; its relative paths are those of this workspace.
pub const RUST_SDK_DIR: &str = ".ostler/sdk/plugins/sdk";

/// Lock file of this workspace, whose versions of the SDK's dependencies are the tested ones.
pub const RUST_LOCK_FILE: &str = include_str!("../../../Cargo.lock");

/// A crate of the Rust SDK.
struct SdkCrate {
    /// Its folder in the workspace.
    path: &'static str,
    manifest: &'static str,
    sources: Dir<'static>,
}

static RUST_CRATES: [SdkCrate; 4] = [
    SdkCrate {
        path: "plugins/sdk",
        manifest: include_str!("../../sdk/Cargo.toml"),
        sources: include_dir!("$CARGO_MANIFEST_DIR/../sdk/src"),
    },
    SdkCrate {
        path: "plugins/sdk/macros",
        manifest: include_str!("../../sdk/macros/Cargo.toml"),
        sources: include_dir!("$CARGO_MANIFEST_DIR/../sdk/macros/src"),
    },
    SdkCrate {
        path: "host/readiness",
        manifest: include_str!("../../../host/readiness/Cargo.toml"),
        sources: include_dir!("$CARGO_MANIFEST_DIR/../../host/readiness/src"),
    },
    SdkCrate {
        path: "host/selector",
        manifest: include_str!("../../../host/selector/Cargo.toml"),
        sources: include_dir!("$CARGO_MANIFEST_DIR/../../host/selector/src"),
    },
];

/// Manifest of this workspace, from which the crates of the SDK inherit.
const WORKSPACE_MANIFEST: &str = include_str!("../../../Cargo.toml");

/// Writes the SDK of a project's language into its folder. A project that takes its SDK from elsewhere is left alone: one in
/// Rust whose manifest does not name the folder, and one in another language that is inside of a checkout.
///
/// # Errors
/// When the folder is no plugin, or can't be written.
pub fn write_sdk(folder: &Path) -> Result<()> {
    let language = detect_language(folder)?;
    let is_own = match language {
        Language::Rust => fs::read_to_string(folder.join("Cargo.toml"))?.contains(SDK_DIR),
        _ => tools::is_alone(folder)?,
    };
    if !is_own {
        return Ok(());
    }
    let write = |name: &str, text: &str| replace_file(&folder.join(SDK_DIR).join(name), text.as_bytes());
    match language {
        Language::Rust => {
            write("Cargo.toml", &render_workspace_manifest())?;
            for (name, text) in contract::WIT_FILES {
                write(&format!("plugins/sdk/wit/{name}"), text)?;
            }
            for SdkCrate {
                path,
                manifest,
                sources,
            } in &RUST_CRATES
            {
                write(&format!("{path}/Cargo.toml"), manifest)?;
                write_dir(&folder.join(SDK_DIR).join(path).join("src"), sources)?;
            }
        }
        Language::JavaScript => {
            for (name, text) in javascript::SDK_FILES.into_iter().chain(javascript::TEST_FILES) {
                write(name.trim_start_matches("node_modules/ostler/"), text)?;
            }
            link_node_module(folder)?;
        }
        Language::Python => {
            for (name, text) in python::SDK_FILES.into_iter().chain(python::TEST_FILES) {
                write(name, text)?;
            }
        }
        Language::Go => {
            for (name, text) in go::SDK_FILES.into_iter().chain(go::TEST_FILES) {
                write(name, text)?;
            }
        }
    }
    Ok(())
}

fn write_dir(folder: &Path, dir: &Dir<'_>) -> Result<()> {
    for file in dir.files() {
        replace_file(&folder.join(file.path()), file.contents())?;
    }
    dir.dirs().try_for_each(|inner| write_dir(folder, inner))
}

/// Makes `import … from "ostler"` resolvable for Node and editors, by the link that `npm install` would make for the dependency
/// `file:.ostler/sdk`. A package that npm has installed from a registry is left alone.
fn link_node_module(folder: &Path) -> Result<()> {
    let link = folder.join("node_modules/ostler");
    if link.exists() {
        return Ok(());
    }
    // A link to a folder that is gone exists, too.
    let _ = fs::remove_file(&link);
    let modules = link.parent().context("a file in a folder")?;
    fs::create_dir_all(modules).with_context(|| format!("making {}", modules.display()))?;
    std::os::unix::fs::symlink(Path::new("..").join(SDK_DIR), &link)
        .with_context(|| format!("writing {}", link.display()))
}

/// Renders a workspace of the SDK's crates, with what they inherit from this one.
fn render_workspace_manifest() -> String {
    let inherited: Vec<&str> = RUST_CRATES
        .iter()
        .flat_map(|sdk| sdk.manifest.lines())
        .filter_map(|line| line.split_once(".workspace = true"))
        .map(|(name, _)| name)
        .collect();
    let mut text = String::from("[workspace]\nresolver = \"3\"\nmembers = [\n");
    for SdkCrate { path, .. } in &RUST_CRATES {
        text += &format!("    {path:?},\n");
    }
    text += "]\n";
    let mut section = "";
    for line in WORKSPACE_MANIFEST.lines() {
        if line.starts_with('[') {
            section = line;
            if section.starts_with("[workspace.") {
                text += &format!("\n{line}\n");
            }
            continue;
        }
        let key = line.split_once(" = ").map(|(key, _)| key);
        let is_inherited = match section {
            "[workspace.dependencies]" => key.is_some_and(|key| inherited.contains(&key)),
            section => section.starts_with("[workspace.") && key.is_some(),
        };
        if is_inherited {
            text += &format!("{line}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn new_project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            replace_file(&folder.path().join(name), text.as_bytes()).unwrap();
        }
        folder
    }

    #[test]
    fn rust_sdk_in_a_project_is_a_workspace_that_cargo_reads() {
        let manifest = format!(
            "[package]\nname = \"p\"\nedition = \"2024\"\n[workspace]\nexclude = [\".ostler\"]\n[lib]\npath = \"lib.rs\"\n\
             [dependencies]\nostler-sdk = {{ path = {RUST_SDK_DIR:?} }}\n"
        );
        let folder = new_project(&[
            ("Cargo.toml", &manifest),
            ("Cargo.lock", RUST_LOCK_FILE),
            ("lib.rs", ""),
        ]);
        write_sdk(folder.path()).unwrap();
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["metadata", "--no-deps", "--format-version", "1"]);
        let read_metadata = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
        };
        let metadata = read_metadata(command.current_dir(folder.path()));
        assert_eq!(metadata["packages"].as_array().unwrap().len(), 1, "{metadata}");
        // Each dependency is inherited from the workspace that was written.
        let metadata = read_metadata(command.current_dir(folder.path().join(SDK_DIR)));
        assert_eq!(metadata["packages"].as_array().unwrap().len(), RUST_CRATES.len());
        let sdk = folder.path().join(RUST_SDK_DIR);
        assert!(sdk.join("src/provision/helm.rs").is_file() && sdk.join("src/host_status.json").is_file());
    }

    #[test]
    fn sdk_is_written_where_the_project_has_none_of_its_own() {
        let folder = new_project(&[("package.json", "{}")]);
        write_sdk(folder.path()).unwrap();
        let types = fs::read_to_string(folder.path().join("node_modules/ostler/index.d.ts")).unwrap();
        assert!(types.contains("export function plugin("));
        write_sdk(folder.path()).unwrap();

        for files in [
            // In a checkout.
            &[("package.json", "{}"), ("Cargo.lock", "")][..],
            &[("Cargo.toml", "[dependencies]\nostler-sdk = \"1\"\n")],
        ] {
            let folder = new_project(files);
            write_sdk(folder.path()).unwrap();
            assert!(!folder.path().join(SDK_DIR).exists(), "{files:?}");
        }
    }

    /// Each file of an SDK is in a list, or is a test of the SDK or a program of the builder.
    #[test]
    fn lists_of_sdk_files_are_complete() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let names = |files: &[(&'static str, &str)]| files.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let lists = [
            ("sdk-go", [names(&go::SDK_FILES), names(&go::TEST_FILES)].concat()),
            (
                "sdk-js",
                [names(&javascript::SDK_FILES), names(&javascript::TEST_FILES)].concat(),
            ),
            (
                "sdk-python",
                [names(&python::SDK_FILES), names(&python::TEST_FILES)].concat(),
            ),
        ];
        for (sdk, listed) in lists {
            let mut folders = vec![root.join(sdk)];
            let mut found = 0;
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path
                        .strip_prefix(root.join(sdk))
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    let is_other = name == "pyproject.toml"
                        || ["_test.go", ".test.mjs", "_test.py", ".pyc"]
                            .iter()
                            .any(|end| name.ends_with(end))
                        || ["crds/main.go", "crds.mjs", "crds.py"].contains(&&*name);
                    let is_listed = listed
                        .iter()
                        .any(|file| file.trim_start_matches("node_modules/ostler/") == name);
                    assert_ne!(
                        is_other, is_listed,
                        "{sdk}/{name}: put it into a list of its builder"
                    );
                    found += usize::from(is_listed);
                }
            }
            assert_eq!(found, listed.len(), "{sdk}");
        }
    }

    #[test]
    fn link_to_a_folder_that_is_gone_is_replaced() {
        let folder = new_project(&[("package.json", "{}")]);
        fs::create_dir(folder.path().join("node_modules")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", folder.path().join("node_modules/ostler")).unwrap();
        write_sdk(folder.path()).unwrap();
        assert!(folder.path().join("node_modules/ostler/index.js").is_file());
    }
}
