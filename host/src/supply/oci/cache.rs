//! What was pulled, on disk: blobs by digest, signatures beside them.
//!
//! Nothing in it is trusted: a blob is compared with its digest when it is read, a signature is verified. So two hosts
//! may share it, and a broken disk costs no more than another pull.

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

/// What a process left behind that did not end well, after so long.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);
/// Bytes of the signatures of one component, and of a tag.
const SMALL: u64 = 4 << 20;

/// A directory of what was pulled.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
    limit: u64,
}

impl Cache {
    /// In this directory, with so many bytes at most.
    pub fn new(directory: PathBuf, limit: u64) -> Self {
        Self { directory, limit }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.directory.join("blobs/sha256").join(digest.hex())
    }

    fn signatures_of(&self, digest: &Digest) -> PathBuf {
        self.directory.join("signatures").join(digest.hex())
    }

    fn tag_of(&self, reference: &str) -> PathBuf {
        self.directory
            .join("tags")
            .join(Digest::of(reference.as_bytes()).hex())
    }

    /// A blob, if it is there, whole and not larger.
    pub fn get(&self, digest: &Digest, most: u64) -> Option<Vec<u8>> {
        let path = self.blob(digest);
        let bytes = read(&path, most)?;
        if Digest::of(&bytes) != *digest {
            warn!(file = %path.display(), "not what its name says: removed, and pulled again");
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(bytes)
    }

    /// Keeps a blob.
    pub fn put(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        write(&self.blob(digest), bytes)
    }

    /// The signatures of a digest that were good once.
    pub fn signatures(&self, digest: &Digest) -> Option<Vec<Signature>> {
        serde_json::from_slice(&read(&self.signatures_of(digest), SMALL)?).ok()
    }

    /// Keeps the signatures of a digest.
    pub fn put_signatures(&self, digest: &Digest, signatures: &[Signature]) -> io::Result<()> {
        write(&self.signatures_of(digest), &serde_json::to_vec(signatures)?)
    }

    /// What a tag meant.
    pub fn tag(&self, reference: &str) -> Option<Digest> {
        let bytes = read(&self.tag_of(reference), SMALL)?;
        Digest::parse(std::str::from_utf8(&bytes).ok()?)
    }

    /// Keeps what a tag means.
    pub fn put_tag(&self, reference: &str, digest: &Digest) -> io::Result<()> {
        write(&self.tag_of(reference), digest.as_str().as_bytes())
    }

    /// Removes what was not used for longest, until there is room; never these.
    pub fn trim(&self, but: &[&Digest]) -> io::Result<()> {
        let but: Vec<_> = but.iter().map(|digest| self.blob(digest)).collect();
        let (mut files, now) = (Vec::new(), SystemTime::now());
        for folder in ["blobs/sha256", "signatures", "tags"] {
            let Ok(entries) = fs::read_dir(self.directory.join(folder)) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                // Another process may have been faster.
                let Ok(metadata) = entry.metadata() else { continue };
                let (path, used) = (entry.path(), metadata.modified()?);
                let partial = path.extension().is_some();
                if partial && now.duration_since(used).is_ok_and(|age| age > LEFT_BEHIND) {
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
                info!(file = %path.display(), "removed from the component cache: it is full");
                fs::remove_file(&path)?;
                total -= length;
            }
        }
        Ok(())
    }
}

/// A file of no more than so many bytes, marked as used.
fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
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
    // On a read-only disk it just doesn't count as used.
    let _ = file.set_modified(SystemTime::now());
    Some(bytes)
}

/// Writes a file as a whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(path);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let unique = format!(
        "{}-{}.partial",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
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

    fn cache(limit: u64) -> (tempfile::TempDir, Cache) {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = Cache::new(directory.path().join("deep/down"), limit);
        (directory, cache)
    }

    #[test]
    fn gives_back_what_it_was_given_and_nothing_else() {
        let (_directory, cache) = cache(100);
        let digest = Digest::of(b"hello");
        assert_eq!(cache.get(&digest, 10), None);
        cache.put(&digest, b"hello").expect("kept");
        assert_eq!(cache.get(&digest, 5).as_deref(), Some(&b"hello"[..]));
        assert_eq!(cache.get(&digest, 4), None, "larger than asked for");
        fs::write(cache.blob(&digest), b"jello").expect("broken");
        assert_eq!(cache.get(&digest, 5), None);
        assert!(!cache.blob(&digest).exists(), "what is broken is gone");
        cache.put_tag("a.io/b:1", &digest).expect("kept");
        assert_eq!(cache.tag("a.io/b:1"), Some(digest));
        assert_eq!(cache.tag("a.io/b:2"), None);
    }

    #[test]
    fn what_was_used_last_stays() {
        let (_directory, cache) = cache(8);
        let blobs: Vec<_> = [b"one1", b"two2", b"thre"].map(|b| (Digest::of(b), b)).to_vec();
        for (i, (digest, bytes)) in blobs.iter().enumerate() {
            cache.put(digest, *bytes).expect("kept");
            let file = fs::File::options()
                .write(true)
                .open(cache.blob(digest))
                .expect("there");
            let age = Duration::from_secs(1000 - i as u64);
            file.set_modified(SystemTime::now() - age).expect("aged");
        }
        assert!(cache.get(&blobs[0].0, 4).is_some(), "used");
        let left = cache.directory.join("blobs/sha256/x.1-1.partial");
        fs::write(&left, b"left behind").expect("written");
        let file = fs::File::options().write(true).open(&left).expect("there");
        file.set_modified(SystemTime::now() - 2 * LEFT_BEHIND)
            .expect("aged");
        cache.trim(&[&blobs[2].0]).expect("trimmed");
        let there: Vec<_> = blobs.iter().map(|(d, _)| cache.get(d, 4).is_some()).collect();
        assert_eq!(there, [true, false, true]);
        assert!(!left.exists());
    }

    #[test]
    fn never_removes_what_it_is_told_to_keep() {
        let (_directory, cache) = cache(1);
        let digest = Digest::of(b"large");
        cache.put(&digest, b"large").expect("kept");
        cache.trim(&[&digest]).expect("trimmed");
        assert!(cache.get(&digest, 5).is_some());
    }
}
