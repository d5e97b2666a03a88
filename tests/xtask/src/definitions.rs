//! CustomResourceDefinitions that others publish in Go modules, by which the embedded API server is compared with the real one.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// Modules with their versions, and the folder of each that has the definitions.
const MODULES: [(&str, &str); 5] = [
    ("sigs.k8s.io/gateway-api@v1.3.0", "config/crd/experimental"),
    ("github.com/cert-manager/cert-manager@v1.18.2", "deploy/crds"),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.84.0",
        "example/prometheus-operator-crd",
    ),
    ("github.com/crossplane/crossplane@v1.20.0", "cluster/crds"),
    ("github.com/tektoncd/pipeline@v1.2.0", "config/300-crds"),
];

/// What `go mod download -json` prints of a module.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DownloadedModule {
    #[serde(default)]
    dir: PathBuf,
    #[serde(default)]
    error: String,
}

/// Downloads the modules, unless Go has them. Returns the folders with definitions as a list of paths.
pub fn download_definitions() -> Result<OsString> {
    let folders = MODULES
        .into_iter()
        .map(|(module, folder)| Ok(download_module(module)?.join(folder)));
    let folders = folders.collect::<Result<Vec<_>>>()?;
    env::join_paths(folders).context("joining the folders of definitions")
}

fn download_module(module: &str) -> Result<PathBuf> {
    let mut command = Command::new("go");
    // Outside of any module, so that no requirements of others are resolved.
    command
        .args(["mod", "download", "-json", module])
        .current_dir(env::temp_dir())
        .env("GOFLAGS", "");
    let output = command.output().context("running go mod download")?;
    let found: DownloadedModule = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "go mod download {module}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    })?;
    if !found.error.is_empty() {
        bail!("go mod download {module}: {}", found.error);
    }
    Ok(found.dir)
}
