//! A plugin's manifest: what it asks for, as a section of its component.
//!
//! What stands in it is the host's to judge; here it is only carried.

use std::{io::ErrorKind, path::Path};

use anyhow::{Context, Result, bail};

/// The custom section.
pub const SECTION: &str = "ostler:manifest";
/// The file beside the source.
pub const FILE: &str = "plugin.yaml";

/// The manifest of a folder as it goes into the component; none when there is none.
///
/// # Errors
/// When it is no YAML, or no mapping.
pub fn section(folder: &Path) -> Result<Option<Vec<u8>>> {
    let path = folder.join(FILE);
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
    fn a_manifest_is_carried_as_json() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(section(folder.path()).unwrap(), None);
        let write = |text| std::fs::write(folder.path().join(FILE), text).unwrap();
        write("permissions: {events: true}\n");
        assert_eq!(
            section(folder.path()).unwrap().unwrap(),
            br#"{"permissions":{"events":true}}"#
        );
        for (wrong, words) in [("- a list", "a mapping is needed"), ("a: [", "is not YAML")] {
            write(wrong);
            let said = format!("{:#}", section(folder.path()).unwrap_err());
            assert!(said.contains("plugin.yaml") && said.contains(words), "{said}");
        }
    }
}
