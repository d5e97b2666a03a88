//! The manifest of a plugin (the permissions it asks for), embedded as a section of its component.
//!
//! The builder only checks that it is a YAML mapping; the host validates its fields.

use std::{io::ErrorKind, path::Path};

use anyhow::{Context, Result, bail};

/// Name of the custom section.
pub const MANIFEST_SECTION: &str = "ostler:manifest";
/// Name of the file beside the source.
pub const MANIFEST_FILE: &str = "plugin.yaml";

/// Reads the manifest of a folder as JSON; `None` when there is no such file.
///
/// # Errors
/// When the file is not YAML, or not a mapping.
pub fn read_manifest(folder: &Path) -> Result<Option<Vec<u8>>> {
    let path = folder.join(MANIFEST_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
    };
    let value: serde_json::Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", path.display()))?;
    if !value.is_object() {
        bail!(
            "{}: a mapping is needed, such as `permissions: {{}}`",
            path.display()
        );
    }
    Ok(Some(value.to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_is_read_as_json_and_must_be_a_mapping() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_manifest(folder.path()).unwrap(), None);
        let write = |text| std::fs::write(folder.path().join(MANIFEST_FILE), text).unwrap();
        write("permissions: {events: true}\n");
        assert_eq!(
            read_manifest(folder.path()).unwrap().unwrap(),
            br#"{"permissions":{"events":true}}"#
        );
        for (wrong, words) in [("- a list", "a mapping is needed"), ("a: [", "is not YAML")] {
            write(wrong);
            let error = format!("{:#}", read_manifest(folder.path()).unwrap_err());
            assert!(error.contains("plugin.yaml") && error.contains(words), "{error}");
        }
    }
}
