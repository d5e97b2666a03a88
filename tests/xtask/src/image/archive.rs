//! OCI images of one layer, written as archives without a container runtime.
//!
//! The same files give the same digest, as long as gzip is the same: entries are sorted, without times and owners.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use ostler_builder::toolchain::run_logged;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::process::check_interrupt;

/// User of images, the same as in other images without a shell.
pub const NON_ROOT_USER: &str = "65532:65532";

/// An image of one layer, for the architecture of this machine.
pub struct Image {
    entry_point: Vec<String>,
    /// User and group of the process; root by default.
    pub user: &'static str,
    /// Environment variables, `NAME=VALUE`.
    pub environment: Vec<&'static str>,
    /// Level of the compression of the layer, from 1 (fast) to 9.
    pub compression: u8,
    /// Maximum compressed size; none for any.
    pub max_bytes: Option<usize>,
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    mode: u32,
    content: Content,
}

enum Content {
    Directory,
    File(Vec<u8>),
    /// Path that a symbolic link leads to.
    Link(String),
}

/// An image in a file.
pub struct Archive {
    /// Digest of its manifest.
    pub digest: String,
    /// Size of its layer and configuration.
    pub compressed_bytes: usize,
}

impl Image {
    /// An image without files.
    pub fn new<const N: usize>(entry_point: [&str; N]) -> Self {
        Self {
            entry_point: entry_point.map(str::to_owned).to_vec(),
            user: "0:0",
            environment: Vec::new(),
            compression: 1,
            max_bytes: None,
            entries: BTreeMap::new(),
        }
    }

    /// Adds the content of a file at a path without a leading slash. Folders above it are added.
    pub fn add_file(&mut self, path: &str, source: &Path, mode: u32) -> Result<()> {
        let bytes = fs::read(source).with_context(|| format!("reading {}", source.display()))?;
        for parent in Path::new(path).ancestors().skip(1) {
            if parent != Path::new("") {
                self.add_directory(&parent.display().to_string(), 0o755);
            }
        }
        let content = Content::File(bytes);
        self.entries.insert(path.to_owned(), Entry { mode, content });
        Ok(())
    }

    /// Adds a symbolic link, in a folder that is there.
    pub fn add_link(&mut self, path: &str, target: &str) {
        let content = Content::Link(target.to_owned());
        self.entries
            .insert(path.to_owned(), Entry { mode: 0o777, content });
    }

    /// Adds a folder, unless it is there.
    pub fn add_directory(&mut self, path: &str, mode: u32) {
        let content = Content::Directory;
        self.entries
            .entry(format!("{path}/"))
            .or_insert(Entry { mode, content });
    }

    /// Packs the entries as a compressed tar archive, a layer.
    pub fn pack_layer(&self) -> Result<Vec<u8>> {
        compress(&self.pack_entries()?, self.compression)
    }

    fn pack_entries(&self) -> Result<Vec<u8>> {
        pack_entries(self.entries.iter().map(|(path, entry)| (path.as_str(), entry)))
    }

    /// Writes an OCI image layout as a tar archive, as `ctr images import`, `podman load` and `skopeo` read it.
    ///
    /// Specification: <https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md>.
    pub fn write_archive(&self, name: &str, output: &Path) -> Result<Archive> {
        let layer = self.pack_entries()?;
        check_interrupt()?;
        let compressed = compress(&layer, self.compression)?;
        let config = serde_json::to_vec(&json!({
            "architecture": machine_architecture(),
            "os": "linux",
            "config": {
                "User": self.user,
                "Env": self.environment,
                "Entrypoint": self.entry_point,
            },
            "rootfs": {"type": "layers", "diff_ids": [digest_of(&layer)]},
        }))?;
        drop(layer);
        const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
        const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
        const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor(CONFIG_TYPE, &config),
            "layers": [descriptor(LAYER_TYPE, &compressed)],
        }))?;
        let mut reference = descriptor(MANIFEST_TYPE, &manifest);
        reference["platform"] = json!({"architecture": machine_architecture(), "os": "linux"});
        reference["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
        let index = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [reference]}))?;
        let archive = Archive {
            digest: digest_of(&manifest),
            compressed_bytes: compressed.len() + config.len(),
        };
        if let Some(max) = self.max_bytes {
            let bytes = archive.compressed_bytes;
            ensure!(
                bytes <= max,
                "the image {name} has {bytes} bytes, more than {max}"
            );
        }
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec();
        let mut files = BTreeMap::from([
            ("index.json".to_owned(), index),
            ("oci-layout".to_owned(), layout),
        ]);
        for blob in [compressed, config, manifest] {
            let digest = digest_of(&blob).replace(':', "/");
            files.insert(format!("blobs/{digest}"), blob);
        }
        let files: BTreeMap<_, _> = files
            .into_iter()
            .map(|(path, bytes)| {
                let content = Content::File(bytes);
                (path, Entry { mode: 0o644, content })
            })
            .collect();
        let bytes = pack_entries(files.iter().map(|(path, entry)| (path.as_str(), entry)))?;
        let mut file = File::create(output).with_context(|| format!("creating {}", output.display()))?;
        file.write_all(&bytes)
            .with_context(|| format!("writing {}", output.display()))?;
        Ok(archive)
    }
}

/// Returns entries as a tar archive without times and owners.
fn pack_entries<'a>(entries: impl Iterator<Item = (&'a str, &'a Entry)>) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let (kind, bytes): (_, &[u8]) = match &entry.content {
            Content::Directory => (tar::EntryType::Directory, &[]),
            Content::File(bytes) => (tar::EntryType::Regular, bytes),
            Content::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                archive.append_link(&mut header, path, target)?;
                continue;
            }
        };
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, path, bytes)?;
    }
    Ok(archive.into_inner()?)
}

/// Compresses with gzip, without name and time.
fn compress(bytes: &[u8], level: u8) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("layer");
    fs::write(&file, bytes)?;
    let mut gzip = Command::new("gzip");
    gzip.args(["--no-name", &format!("-{level}")]).arg(&file);
    run_logged("gzip", gzip)?;
    fs::read(folder.path().join("layer.gz")).context("reading the output of gzip")
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest_of(bytes), "size": bytes.len()})
}

fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Returns the architecture of this machine as images name it.
pub fn machine_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(folder: &Path, order: [&str; 2]) -> Image {
        let mut image = Image::new(["/bin/a"]);
        for name in order {
            let source = folder.join(name);
            fs::write(&source, format!("content of {name}")).unwrap();
            image.add_file(&format!("bin/{name}"), &source, 0o755).unwrap();
        }
        image.add_link("bin/c", "a");
        image
    }

    #[test]
    fn compression_is_reproducible_and_has_levels() {
        let text = "a layer of an image, ".repeat(10_000);
        let [fast, best] = [1, 9].map(|level| compress(text.as_bytes(), level).unwrap());
        assert!(best.len() < fast.len() && fast.len() < text.len() / 10);
        assert_eq!(compress(text.as_bytes(), 9).unwrap(), best);
    }

    #[test]
    fn same_content_gives_the_same_archive() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let first = sample(folder.path(), ["a", "b"])
            .write_archive("localhost/x:1", &at("first.tar"))
            .unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9000);
        let second = sample(folder.path(), ["b", "a"]);
        for name in ["a", "b"] {
            File::options()
                .write(true)
                .open(at(name))
                .unwrap()
                .set_modified(later)
                .unwrap();
        }
        let second = second.write_archive("localhost/x:1", &at("second.tar")).unwrap();
        assert_eq!(first.digest, second.digest);
        assert_eq!(
            fs::read(at("first.tar")).unwrap(),
            fs::read(at("second.tar")).unwrap()
        );
        let mut other = sample(folder.path(), ["a", "b"]);
        other.user = NON_ROOT_USER;
        assert_ne!(
            other
                .write_archive("localhost/x:1", &at("other.tar"))
                .unwrap()
                .digest,
            first.digest
        );
    }

    #[test]
    fn image_beyond_its_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("image.tar");
        let mut image = sample(folder.path(), ["a", "b"]);
        let archive = image.write_archive("localhost/x:1", &output).unwrap();
        image.max_bytes = Some(archive.compressed_bytes);
        image.write_archive("localhost/x:1", &output).unwrap();
        image.max_bytes = Some(archive.compressed_bytes - 1);
        let error = image.write_archive("localhost/x:1", &output).err().unwrap();
        assert!(
            error.to_string().starts_with("the image localhost/x:1 has"),
            "{error}"
        );
    }

    /// Every digest of the layout is that of a blob, and the digest of the layer that of its content.
    #[test]
    fn archive_is_an_oci_layout() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("image.tar");
        let archive = sample(folder.path(), ["a", "b"])
            .write_archive("localhost/x:1", &output)
            .unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(File::open(&output).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        let read = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let bytes = &files[&format!("blobs/{}", digest.replace(':', "/"))];
            assert_eq!(digest_of(bytes), digest);
            assert_eq!(descriptor["size"], bytes.len());
            bytes.clone()
        };
        assert_eq!(read("oci-layout")["imageLayoutVersion"], "1.0.0");
        let index = read("index.json");
        assert_eq!(index["manifests"][0]["digest"], *archive.digest);
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        let compressed = folder.path().join("layer.gz");
        fs::write(&compressed, blob(&manifest["layers"][0])).unwrap();
        let mut gzip = Command::new("gzip");
        let layer = gzip
            .arg("--decompress")
            .arg("--stdout")
            .arg(&compressed)
            .output()
            .unwrap()
            .stdout;
        assert_eq!(config["rootfs"]["diff_ids"][0], digest_of(&layer));
        let paths: Vec<_> = tar::Archive::new(&*layer)
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths, ["bin/", "bin/a", "bin/b", "bin/c"]);
    }
}
