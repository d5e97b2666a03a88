//! The archive of `kubectl ostler`, and its manifest for krew, the package manager of kubectl's plugins.
//!
//! Specification: <https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/>.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    image::{self, Image, Profile, machine_architecture},
    paths,
    progress::BuildStep,
};

/// Name of the binary, by which kubectl finds the plugin.
const BINARY: &str = "kubectl-ostler";

/// Options of `cargo xtask krew`.
#[derive(clap::Args)]
pub struct KrewOptions {
    /// Compilation of the command.
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Address below which the archive is published.
    #[arg(
        long,
        default_value = "https://example.org/ostler/releases",
        value_name = "URL"
    )]
    url: String,
}

/// Builds the archive and the manifest, and prints their paths.
pub fn build_archive(options: &KrewOptions) -> Result<()> {
    let binary = image::build_host_binary(paths::workspace_root(), options.profile)?;
    let step = BuildStep::new("Building the archive");
    let stripped = image::strip_binary(&binary)?;
    let license = paths::workspace_root().join("LICENSE");
    let archive = pack_files(stripped.path(), &license)?;
    let folder = paths::create_target_subdir("krew")?;
    let file = format!("{BINARY}-linux-{}.tar.gz", machine_architecture());
    let url = format!("{}/{file}", options.url.trim_end_matches('/'));
    let digest = format!("{:x}", Sha256::digest(&archive));
    let manifest = build_manifest(env!("CARGO_PKG_VERSION"), machine_architecture(), &url, &digest);
    let [archive_file, manifest_file] = [&*file, "ostler.yaml"].map(|name| folder.join(name));
    fs::write(&archive_file, &archive).with_context(|| format!("writing {}", archive_file.display()))?;
    let manifest = serde_saphyr::to_string(&manifest)?;
    fs::write(&manifest_file, manifest).with_context(|| format!("writing {}", manifest_file.display()))?;
    step.finish("");
    println!("{}", archive_file.display());
    println!("{}", manifest_file.display());
    println!("{:.1} MB compressed", archive.len() as f64 / 1e6);
    Ok(())
}

/// The archive of a binary and the license, without times and owners.
fn pack_files(binary: &Path, license: &Path) -> Result<Vec<u8>> {
    let mut files = Image::new([""]);
    files.compression = 9;
    files.add_file(BINARY, binary, 0o755)?;
    files.add_file("LICENSE", license, 0o644)?;
    files.pack_layer()
}

fn build_manifest(version: &str, architecture: &str, url: &str, digest: &str) -> Value {
    json!({
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "ostler"},
        "spec": {
            "version": format!("v{version}"),
            "shortDescription": "Show and control objects that Ostler reconciles",
            "description": "Shows the objects that reconcilers in WebAssembly take care of: their states, why they are not Ready, what \
                            they wait for and when they are reconciled next. Finds the leader of the host by itself, and shows what \
                            the user of the kubeconfig may see.",
            "platforms": [{
                "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
                "uri": url,
                "sha256": digest,
                "bin": BINARY,
                "files": [{"from": BINARY, "to": "."}, {"from": "LICENSE", "to": "."}],
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_the_binary_and_the_license_that_the_manifest_names() {
        let folder = tempfile::tempdir().unwrap();
        let [binary, license] = ["binary", "license"].map(|name| {
            let path = folder.path().join(name);
            fs::write(&path, name).unwrap();
            path
        });
        let archive = pack_files(&binary, &license).unwrap();
        assert_eq!(
            archive,
            pack_files(&binary, &license).unwrap(),
            "it is reproducible"
        );
        let file = folder.path().join("archive.tar.gz");
        fs::write(&file, &archive).unwrap();
        let listed = std::process::Command::new("tar")
            .arg("-tvzf")
            .arg(&file)
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<&str> = listed.lines().collect();
        assert!(
            lines[0].ends_with(" LICENSE") && lines[1].ends_with(" kubectl-ostler"),
            "{listed}"
        );
        assert!(lines[1].starts_with("-rwxr-xr-x"), "{listed}");
        let manifest = build_manifest("1.2.3", "amd64", "https://example.org/a.tar.gz", "00");
        assert_eq!(manifest["spec"]["version"], "v1.2.3");
        for file in manifest["spec"]["platforms"][0]["files"].as_array().unwrap() {
            assert!(listed.contains(file["from"].as_str().unwrap()), "{file}");
        }
    }
}
