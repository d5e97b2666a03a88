//! The manifest of a plugin: its permissions asked for, and the schema of its configuration.
//!
//! Its author writes it as `plugin.yaml`; it travels as JSON in a custom section at the top level of the component, so
//! that the host reads it without running the component.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasmparser::{Parser, Payload};

use crate::{kube::renamed_fields::explain_unknown_field, policy::grants::Permissions};

/// Name of the custom section.
pub const SECTION_NAME: &str = "ostler:manifest";
/// Name of the manifest file.
pub const FILE_NAME: &str = "plugin.yaml";
/// Maximum size of a manifest.
const MAX_MANIFEST_BYTES: usize = 256 << 10;

/// The manifest of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The permissions it asks for. All others are denied, whatever is granted.
    #[serde(default)]
    pub permissions: Permissions,
    /// Its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,
}

/// The configuration that a plugin takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// JSON schema of the configuration.
    pub schema: Value,
}

/// The reason for an unreadable manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not a component.
    #[error("it is not a component: {0}")]
    NotAComponent(String),
    /// The component has several manifests.
    #[error("it has {0} custom sections `{SECTION_NAME}`: one is allowed")]
    Duplicate(usize),
    /// The manifest exceeds the maximum size.
    #[error("its manifest has {0} bytes: {MAX_MANIFEST_BYTES} at most")]
    TooLarge(usize),
    /// The manifest is invalid. Names the field.
    #[error("its manifest: {0}")]
    Invalid(String),
}

impl Manifest {
    /// Parses a `plugin.yaml`. The error names the file, the place and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        let manifest: Self =
            serde_saphyr::from_str(text).map_err(|e| format!("{file}: {}", explain_unknown_field(e)))?;
        manifest.check_fields().map_err(|e| format!("{file}: {e}"))?;
        Ok(manifest)
    }

    fn check_fields(&self) -> Result<(), String> {
        self.permissions
            .check_fields()
            .map_err(|e| format!("permissions.{e}"))?;
        match &self.config {
            Some(config) if !config.schema.is_object() => {
                Err("config.schema is no JSON schema: a mapping is needed".into())
            }
            _ => Ok(()),
        }
    }
}

/// Reads the manifest of a component; `None` if it has none.
pub fn read_manifest(wasm: &[u8]) -> Result<Option<Manifest>, ManifestError> {
    let found = sections(wasm)?;
    let [(_, contents)] = &found[..] else {
        return match found.len() {
            0 => Ok(None),
            several => Err(ManifestError::Duplicate(several)),
        };
    };
    if contents.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge(contents.len()));
    }
    let manifest: Manifest =
        serde_json::from_slice(contents).map_err(|e| ManifestError::Invalid(e.to_string()))?;
    manifest.check_fields().map_err(ManifestError::Invalid)?;
    Ok(Some(manifest))
}

/// Embeds a manifest into a component, in place of an earlier one.
pub fn embed_manifest(wasm: &[u8], manifest: &Manifest) -> Result<Vec<u8>, ManifestError> {
    let contents = serde_json::to_vec(manifest).map_err(|e| ManifestError::Invalid(e.to_string()))?;
    let mut out = Vec::with_capacity(wasm.len() + contents.len() + 32);
    let mut copied = 0;
    for (section, _) in sections(wasm)? {
        out.extend_from_slice(&wasm[copied..section.start]);
        copied = section.end;
    }
    out.extend_from_slice(&wasm[copied..]);
    let length = leb128(SECTION_NAME.len()).len() + SECTION_NAME.len() + contents.len();
    out.push(0);
    out.extend(leb128(length));
    out.extend(leb128(SECTION_NAME.len()));
    out.extend_from_slice(SECTION_NAME.as_bytes());
    out.extend_from_slice(&contents);
    Ok(out)
}

/// The ranges and contents of the manifest sections at the top level. Those of nested modules and components belong to
/// them.
fn sections(wasm: &[u8]) -> Result<Vec<(Range<usize>, &[u8])>, ManifestError> {
    let no_component = |e: wasmparser::BinaryReaderError| ManifestError::NotAComponent(e.to_string());
    if !Parser::is_component(wasm) {
        return Err(ManifestError::NotAComponent(
            "its header is not a component's".into(),
        ));
    }
    let mut found = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(no_component)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) if depth > 0 => depth -= 1,
            Payload::CustomSection(section) if depth == 0 && section.name() == SECTION_NAME => {
                // Before the contents: one byte that says `custom`, and how long they are.
                let contents = section.range();
                let start = contents.start - 1 - leb_before(wasm, contents.start, contents.len());
                found.push((start..contents.end, section.data()));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// How many bytes a length takes that ends here. It need not be the shortest way to write it.
fn leb_before(wasm: &[u8], end: usize, length: usize) -> usize {
    let value = |bytes: &[u8]| {
        let (last, continued) = bytes.split_last()?;
        (last & 0x80 == 0 && continued.iter().all(|b| b & 0x80 != 0)).then(|| {
            let parts = bytes.iter().enumerate();
            parts.fold(0u64, |value, (i, b)| value | u64::from(b & 0x7f) << (7 * i))
        })
    };
    let fits = |n: &usize| {
        let bytes = end.checked_sub(*n).and_then(|start| wasm.get(start..end));
        let custom = end.checked_sub(n + 1).and_then(|at| wasm.get(at));
        custom == Some(&0) && bytes.and_then(value) == Some(length as u64)
    };
    (1..=5).find(fits).unwrap_or(1)
}

fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        bytes.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            return bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    fn manifest() -> Manifest {
        let text = "
permissions:
  kubernetes:
  - {kinds: [ConfigMap], verbs: [get, apply]}
  events: true
config:
  schema: {type: object}
";
        Manifest::parse(text, FILE_NAME).expect("parses")
    }

    #[test]
    fn embedded_manifest_is_read_and_replaced() {
        assert_eq!(read_manifest(EMPTY), Ok(None));
        let one = embed_manifest(EMPTY, &manifest()).expect("embedded");
        assert_eq!(read_manifest(&one), Ok(Some(manifest())));
        let two = embed_manifest(&one, &Manifest::default()).expect("embedded");
        assert_eq!(read_manifest(&two), Ok(Some(Manifest::default())));
        assert_eq!(
            two,
            embed_manifest(EMPTY, &Manifest::default()).expect("embedded")
        );
    }

    #[test]
    fn nested_component_manifest_is_ignored() {
        let inner = embed_manifest(EMPTY, &manifest()).expect("embedded");
        let mut outer = EMPTY.to_vec();
        outer.push(4);
        outer.extend(leb128(inner.len()));
        outer.extend_from_slice(&inner);
        assert_eq!(read_manifest(&outer), Ok(None));
        let outer = embed_manifest(&outer, &Manifest::default()).expect("embedded");
        assert_eq!(read_manifest(&outer), Ok(Some(Manifest::default())));
    }

    #[test]
    fn invalid_manifest_error_names_place() {
        assert!(matches!(
            read_manifest(b"\0asm\x01\0\0\0"),
            Err(ManifestError::NotAComponent(_))
        ));
        assert!(matches!(
            read_manifest(b"x"),
            Err(ManifestError::NotAComponent(_))
        ));
        let section = embed_manifest(EMPTY, &manifest()).expect("embedded")[EMPTY.len()..].to_vec();
        let twice = [EMPTY, &section, &section].concat();
        assert_eq!(read_manifest(&twice), Err(ManifestError::Duplicate(2)));
        for (text, words) in [
            ("aks: {}", "aks"),
            ("permissions: {kubernets: []}", "kubernets"),
            (
                "permissions: {kubernetes: [{kinds: [], verbs: [get]}]}",
                "permissions.kubernetes[0].kinds is empty",
            ),
            ("config: {schema: 1}", "config.schema is no JSON schema"),
        ] {
            let error = Manifest::parse(text, "x/plugin.yaml").unwrap_err();
            assert!(
                error.contains("x/plugin.yaml") && error.contains(words),
                "{error}"
            );
        }
    }

    proptest! {
        /// Arbitrary bytes never panic, and a component that can be read can be embedded into again.
        #[test]
        fn arbitrary_bytes_never_panic(start in prop::sample::select(vec![true, false]), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = if start { [EMPTY, &bytes].concat() } else { bytes };
            if let Ok(found) = read_manifest(&bytes) {
                let again = embed_manifest(&bytes, &found.unwrap_or_default()).expect("embedded");
                prop_assert!(read_manifest(&again).is_ok());
            }
        }

        #[test]
        fn mutated_component_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = embed_manifest(EMPTY, &manifest()).expect("embedded");
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read_manifest(&bytes);
        }

        /// Arbitrary documents are parsed, or refused with an error.
        #[test]
        fn arbitrary_document_is_parsed_or_refused(kinds in prop::collection::vec("[A-Za-z*]{0,8}", 0..4), events in any::<bool>(), extra in "[a-z]{1,6}") {
            let document = json!({"permissions": {"kubernetes": [{"kinds": kinds, "verbs": ["get"]}], "events": events}});
            let parsed = Manifest::parse(&document.to_string(), FILE_NAME);
            prop_assert_eq!(parsed.is_ok(), !kinds.is_empty() && kinds.iter().all(|k| !k.is_empty()));
            let mut more = document.clone();
            more[format!("x{extra}")] = true.into();
            prop_assert!(Manifest::parse(&more.to_string(), FILE_NAME).is_err());
        }
    }
}
