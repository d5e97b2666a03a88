//! The real Argo CD: API server, application controller and repo server, built once from the Go module in tests/argocd-controller.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::go::GoProgram;

/// The Go module of Argo CD, which has its manifests, too.
const ARGO_CD_MODULE: &str = "github.com/argoproj/argo-cd/v3";
/// Names of the parts of the binary, which looks at the name it is called by.
const PROGRAM_NAMES: [&str; 5] = [
    "argocd-application-controller",
    "argocd-git-ask-pass",
    "argocd-redis",
    "argocd-repo-server",
    "argocd-server",
];
/// Script by the name that the repo server gives to git as the program for passwords.
const ASK_PASS_SCRIPT: (&str, &str) = ("argocd", "#!/bin/sh\nexec argocd-git-ask-pass \"$@\"\n");
/// Manifests, by the folder that they are copied to.
const MANIFESTS: [(&str, &str); 2] = [("crds", "manifests/crds"), ("config", "manifests/base/config")];
/// Script that the repo server runs beside git.
const VERIFY_SCRIPT: &str = "hack/git-verify-wrapper.sh";

/// Builds the programs, unless they are there. Returns their folder, which also has the CRDs and the configuration of Argo CD.
pub fn build_programs() -> Result<PathBuf> {
    let program = GoProgram {
        name: "argocd-controller",
        title: "Building the real Argo CD (8 minutes the first time)",
        linker_flags: "-s -w",
        package: ".",
    };
    let binary = program.build(|folder| install(&find_module(&program.source())?, folder, program.name))?;
    let folder = binary.parent().context("a binary is in a folder")?;
    Ok(folder.to_owned())
}

/// Returns the folder of Argo CD's module.
fn find_module(source: &Path) -> Result<PathBuf> {
    let mut command = Command::new("go");
    command.args(["list", "-m", "-f", "{{.Dir}}", ARGO_CD_MODULE]);
    let output = command
        .current_dir(source)
        .env("GOFLAGS", "-mod=readonly")
        .output()
        .context("running go list")?;
    if !output.status.success() {
        bail!("go list: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let folder = String::from_utf8(output.stdout).context("go list")?;
    Ok(PathBuf::from(folder.trim()))
}

/// Adds links, the script and the manifests beside the binary. An installation that was interrupted is repeated.
fn install(module: &Path, folder: &Path, binary: &str) -> Result<()> {
    for name in PROGRAM_NAMES {
        match symlink(binary, folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("linking {name}"));
            }
            _ => {}
        }
    }
    let (name, text) = ASK_PASS_SCRIPT;
    let ask_pass = folder.join(name);
    fs::write(&ask_pass, text).with_context(|| format!("writing {name}"))?;
    fs::set_permissions(&ask_pass, fs::Permissions::from_mode(0o755))?;
    let script = folder.join("git-verify-wrapper.sh");
    copy(&module.join(VERIFY_SCRIPT), &script)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    for (name, source) in MANIFESTS {
        let (source, target) = (module.join(source), folder.join(name));
        fs::create_dir_all(&target)?;
        for entry in fs::read_dir(&source).with_context(|| source.display().to_string())? {
            let entry = entry?;
            if entry.file_name() != "kustomization.yaml" {
                copy(&entry.path(), &target.join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}

/// Copies the content of a file. Those of modules are read-only, and would stay so.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_manifests_and_script_are_installed_twice() {
        let (module, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, source) in MANIFESTS {
            let source = module.path().join(source);
            fs::create_dir_all(&source).unwrap();
            fs::write(source.join(format!("{name}.yaml")), name).unwrap();
            fs::write(source.join("kustomization.yaml"), "resources: []").unwrap();
        }
        let script = module.path().join(VERIFY_SCRIPT);
        fs::create_dir_all(script.parent().unwrap()).unwrap();
        fs::write(&script, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o444)).unwrap();
        for _ in 0..2 {
            install(module.path(), folder.path(), "argocd-controller").unwrap();
        }
        for name in PROGRAM_NAMES {
            let link = fs::read_link(folder.path().join(name)).unwrap();
            assert_eq!(link, Path::new("argocd-controller"));
        }
        for name in ["git-verify-wrapper.sh", ASK_PASS_SCRIPT.0] {
            let installed = fs::metadata(folder.path().join(name)).unwrap();
            assert_eq!(installed.permissions().mode() & 0o777, 0o755, "{name}");
        }
        assert_eq!(fs::read(folder.path().join("crds/crds.yaml")).unwrap(), b"crds");
        assert!(!folder.path().join("config/kustomization.yaml").exists());
    }

    /// The repo server finds the program for passwords by its name.
    #[test]
    fn programs_are_those_of_the_go_program() {
        let source =
            fs::read_to_string(crate::paths::workspace_root().join("tests/argocd-controller/main.go"))
                .unwrap();
        for name in PROGRAM_NAMES {
            assert!(source.contains(&format!("case \"{name}\":")), "{name}");
        }
    }
}
