//! A plugin's manifest, `plugin.yaml`, as the custom section it travels in. The host says what is in it.

use std::{io::ErrorKind, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

/// Name of the custom section.
const SECTION: &str = "ostler:manifest";

/// The section to append to the component of the plugin in this folder; empty when it has no manifest.
pub fn section(folder: &Path) -> Result<Vec<u8>> {
    let file = folder.join("plugin.yaml");
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("reading {}", file.display())),
    };
    let manifest: Value = serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    Ok(custom(SECTION, manifest.to_string().as_bytes()))
}

/// A custom section of a component.
fn custom(name: &str, contents: &[u8]) -> Vec<u8> {
    let name = [&leb128(name.len()), name.as_bytes()].concat();
    [&[0], &leb128(name.len() + contents.len())[..], &name, contents].concat()
}

fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use wasmparser::{Parser, Payload};

    use super::*;

    #[test]
    fn a_manifest_becomes_a_section_and_none_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(section(folder.path()).unwrap().is_empty());
        std::fs::write(folder.path().join("plugin.yaml"), "asks: {events: true}").unwrap();
        let component = [b"\0asm\x0d\0\x01\0", &section(folder.path()).unwrap()[..]].concat();
        let found = Parser::new(0)
            .parse_all(&component)
            .find_map(|payload| match payload {
                Ok(Payload::CustomSection(custom)) => {
                    Some((custom.name().to_owned(), custom.data().to_vec()))
                }
                _ => None,
            });
        let wanted = (SECTION.to_owned(), br#"{"asks":{"events":true}}"#.to_vec());
        assert_eq!(found, Some(wanted));
        std::fs::write(folder.path().join("plugin.yaml"), "asks: [").unwrap();
        let said = format!("{:#}", section(folder.path()).expect_err("no YAML"));
        assert!(said.contains("plugin.yaml"), "{said}");
    }
}
