//! Files that are made again only when what they are made of has changed.

use std::{fs, path::Path};

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::replace_file;

/// Digest of what a file is made of.
#[derive(Default)]
pub struct InputDigest(Sha256);

impl InputDigest {
    /// Adds an input. Its length is hashed, too, so that two inputs are never taken for two others with the same text.
    pub fn add(&mut self, input: &[u8]) {
        self.0.update((input.len() as u64).to_le_bytes());
        self.0.update(input);
    }

    /// Returns the digest of the inputs so far, in hexadecimal.
    #[must_use]
    pub fn digest(self) -> String {
        format!("{:x}", self.0.finalize())
    }

    /// Makes a file, unless it is there and was made of the same. The digest stands beside it, with the extension `inputs`.
    /// Returns true if the file has changed.
    ///
    /// # Errors
    /// Those of `make`, and when a file can't be written.
    pub fn make_unless_current(self, path: &Path, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<bool> {
        let digest = self.digest();
        let marker = path.with_extension("inputs");
        if path.is_file() && fs::read_to_string(&marker).is_ok_and(|made_of| made_of == digest) {
            return Ok(false);
        }
        let changed = replace_file(path, &make()?)?;
        replace_file(&marker, digest.as_bytes())?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn of(inputs: &[&str]) -> InputDigest {
        let mut fingerprint = InputDigest::default();
        for input in inputs {
            fingerprint.add(input.as_bytes());
        }
        fingerprint
    }

    #[test]
    fn file_is_made_again_when_an_input_has_changed_or_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("component.wasm");
        let make =
            |inputs: &[&str], bytes: &[u8]| of(inputs).make_unless_current(&path, || Ok(bytes.to_vec()));
        assert!(make(&["ab", "c"], b"one").unwrap());
        assert!(!make(&["ab", "c"], b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(make(&["a", "bc"], b"two").unwrap());
        assert!(
            !make(&["a", "bc", ""], b"two").unwrap(),
            "made again, to the same bytes"
        );
        fs::remove_file(&path).unwrap();
        assert!(make(&["a", "bc", ""], b"two").unwrap());
    }

    #[test]
    fn file_whose_making_fails_is_not_current() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("component.wasm");
        of(&["a"])
            .make_unless_current(&path, || Ok(b"one".to_vec()))
            .unwrap();
        assert!(of(&["b"]).make_unless_current(&path, || bail!("no")).is_err());
        assert!(
            of(&["b"])
                .make_unless_current(&path, || Ok(b"two".to_vec()))
                .unwrap()
        );
    }
}
