//! A cache of pulled content on disk: blobs by digest, and their signatures.
//!
//! Its content is not trusted: blobs are compared with their digest when read, and signatures are verified. Two hosts
//! may share it, and a broken disk costs only another pull.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use tracing::{info, warn};

use super::Digest;
use crate::supply::signature::Signature;

/// Age after which a partial file is removed: its process has ended without renaming it.
const PARTIAL_FILE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum size of the signatures of a component, and of a tag.
const MAX_METADATA_BYTES: u64 = 4 << 20;

/// A cache directory.
#[derive(Clone, Debug)]
pub struct DiskCache {
    directory: PathBuf,
    limit: u64,
}

impl DiskCache {
    /// A cache in this directory, with a maximum size in bytes.
    pub fn new(directory: PathBuf, limit: u64) -> Self {
        Self { directory, limit }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.directory.join("blobs/sha256").join(digest.hex())
    }

    fn signatures_path(&self, digest: &Digest) -> PathBuf {
        self.directory.join("signatures").join(digest.hex())
    }

    fn tag_path(&self, reference: &str) -> PathBuf {
        self.directory
            .join("tags")
            .join(Digest::of_bytes(reference.as_bytes()).hex())
    }

    /// Reads a blob, if it is there, intact and within the limit.
    pub fn read_blob(&self, digest: &Digest, most: u64) -> Option<Vec<u8>> {
        let path = self.blob_path(digest);
        let bytes = read_file(&path, most)?;
        if Digest::of_bytes(&bytes) != *digest {
            warn!(file = %path.display(), "removing corrupt file from component cache");
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(bytes)
    }

    /// Writes a blob.
    pub fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        write_atomically(&self.blob_path(digest), bytes)
    }

    /// Reads the signatures that were valid for a digest.
    pub fn read_signatures(&self, digest: &Digest) -> Option<Vec<Signature>> {
        serde_json::from_slice(&read_file(&self.signatures_path(digest), MAX_METADATA_BYTES)?).ok()
    }

    /// Writes the signatures of a digest.
    pub fn write_signatures(&self, digest: &Digest, signatures: &[Signature]) -> io::Result<()> {
        write_atomically(&self.signatures_path(digest), &serde_json::to_vec(signatures)?)
    }

    /// Reads the digest of a tag.
    pub fn read_tag(&self, reference: &str) -> Option<Digest> {
        let bytes = read_file(&self.tag_path(reference), MAX_METADATA_BYTES)?;
        Digest::parse(std::str::from_utf8(&bytes).ok()?)
    }

    /// Writes the digest of a tag.
    pub fn write_tag(&self, reference: &str, digest: &Digest) -> io::Result<()> {
        write_atomically(&self.tag_path(reference), digest.as_str().as_bytes())
    }

    /// Removes the files used longest ago until the size is within the limit, except `but`.
    pub fn evict_to_limit(&self, but: &[&Digest]) -> io::Result<()> {
        let but: Vec<_> = but.iter().map(|digest| self.blob_path(digest)).collect();
        let (mut files, now) = (Vec::new(), SystemTime::now());
        for folder in ["blobs/sha256", "signatures", "tags"] {
            let Ok(entries) = fs::read_dir(self.directory.join(folder)) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                // Another process may have removed it.
                let Ok(metadata) = entry.metadata() else { continue };
                let (path, used) = (entry.path(), metadata.modified()?);
                let partial = path.extension().is_some();
                if partial
                    && now
                        .duration_since(used)
                        .is_ok_and(|age| age > PARTIAL_FILE_TIMEOUT)
                {
                    let _ = fs::remove_file(&path);
                } else if !partial {
                    files.push((used, metadata.len(), path));
                }
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if total <= self.limit {
                break;
            }
            if !but.contains(&path) {
                info!(file = %path.display(), "evicting file from component cache");
                fs::remove_file(&path)?;
                total -= length;
            }
        }
        Ok(())
    }
}

/// Reads a file within the limit and marks it as used.
fn read_file(path: &Path, most: u64) -> Option<Vec<u8>> {
    use io::Read;
    let file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    (&file)
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .ok()?;
    if bytes.len() as u64 > most {
        return None;
    }
    // On a read-only disk it is not marked.
    let _ = file.set_modified(SystemTime::now());
    Some(bytes)
}

/// Writes a file as a whole: a reader sees all of it or nothing.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT_SUFFIX: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let unique = format!(
        "{}-{}.partial",
        std::process::id(),
        NEXT_SUFFIX.fetch_add(1, Ordering::Relaxed)
    );
    let partial = path.with_extension(unique);
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, DiskCache) {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = DiskCache::new(directory.path().join("deep/down"), limit);
        (directory, cache)
    }

    #[test]
    fn blob_is_read_only_if_intact_and_within_limit() {
        let (_directory, cache) = cache(100);
        let digest = Digest::of_bytes(b"hello");
        assert_eq!(cache.read_blob(&digest, 10), None);
        cache.write_blob(&digest, b"hello").expect("kept");
        assert_eq!(cache.read_blob(&digest, 5).as_deref(), Some(&b"hello"[..]));
        assert_eq!(cache.read_blob(&digest, 4), None, "larger than asked for");
        fs::write(cache.blob_path(&digest), b"jello").expect("broken");
        assert_eq!(cache.read_blob(&digest, 5), None);
        assert!(!cache.blob_path(&digest).exists(), "what is broken is gone");
        cache.write_tag("a.io/b:1", &digest).expect("kept");
        assert_eq!(cache.read_tag("a.io/b:1"), Some(digest));
        assert_eq!(cache.read_tag("a.io/b:2"), None);
    }

    #[test]
    fn eviction_keeps_recently_used_blobs() {
        let (_directory, cache) = cache(8);
        let blobs: Vec<_> = [b"one1", b"two2", b"thre"]
            .map(|b| (Digest::of_bytes(b), b))
            .to_vec();
        for (i, (digest, bytes)) in blobs.iter().enumerate() {
            cache.write_blob(digest, *bytes).expect("kept");
            let file = fs::File::options()
                .write(true)
                .open(cache.blob_path(digest))
                .expect("there");
            let age = Duration::from_secs(1000 - i as u64);
            file.set_modified(SystemTime::now() - age).expect("aged");
        }
        assert!(cache.read_blob(&blobs[0].0, 4).is_some(), "used");
        let left = cache.directory.join("blobs/sha256/x.1-1.partial");
        fs::write(&left, b"left behind").expect("written");
        let file = fs::File::options().write(true).open(&left).expect("there");
        file.set_modified(SystemTime::now() - 2 * PARTIAL_FILE_TIMEOUT)
            .expect("aged");
        cache.evict_to_limit(&[&blobs[2].0]).expect("trimmed");
        let there: Vec<_> = blobs
            .iter()
            .map(|(d, _)| cache.read_blob(d, 4).is_some())
            .collect();
        assert_eq!(there, [true, false, true]);
        assert!(!left.exists());
    }

    #[test]
    fn eviction_keeps_excepted_blobs() {
        let (_directory, cache) = cache(1);
        let digest = Digest::of_bytes(b"large");
        cache.write_blob(&digest, b"large").expect("kept");
        cache.evict_to_limit(&[&digest]).expect("trimmed");
        assert!(cache.read_blob(&digest, 5).is_some());
    }
}
