//! What a component says of itself before anybody runs it: what it asks for, and how it is configured.
//!
//! Its author writes it as `plugin.yaml`; it travels as JSON in a custom section at the top level of the component.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasmparser::{Parser, Payload};

use crate::policy::grants::Permissions;

/// Name of the custom section.
pub const SECTION: &str = "ostler:manifest";
/// Name of the file.
pub const FILE: &str = "plugin.yaml";
/// No manifest is larger.
const MOST_BYTES: usize = 256 << 10;

/// A plugin's manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What it wants to do. What it doesn't ask for it may not do, whatever is granted.
    #[serde(default)]
    pub asks: Permissions,
    /// Its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,
}

/// How a plugin is configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// JSON schema of what an administrator may say.
    pub schema: Value,
}

/// Why there is no telling what a component asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// It is no component.
    #[error("it is not a component: {0}")]
    NoComponent(String),
    /// It has more than one.
    #[error("it has {0} custom sections `{SECTION}`: one is allowed")]
    Several(usize),
    /// It is larger than any needs to be.
    #[error("its manifest has {0} bytes: {MOST_BYTES} at most")]
    Large(usize),
    /// It can't be understood. Names the field.
    #[error("its manifest: {0}")]
    Invalid(String),
}

impl Manifest {
    /// Reads a `plugin.yaml`. The error names the file, the place and the field.
    pub fn parse(text: &str, file: &str) -> Result<Self, String> {
        let manifest: Self = serde_saphyr::from_str(text).map_err(|e| format!("{file}: {e}"))?;
        manifest.check().map_err(|e| format!("{file}: {e}"))?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        self.asks.check().map_err(|e| format!("asks.{e}"))?;
        match &self.config {
            Some(config) if !config.schema.is_object() => {
                Err("config.schema is no JSON schema: a mapping is needed".into())
            }
            _ => Ok(()),
        }
    }
}

/// The manifest of a component; none when it has none.
pub fn read(wasm: &[u8]) -> Result<Option<Manifest>, BadManifest> {
    let found = sections(wasm)?;
    let [(_, contents)] = &found[..] else {
        return match found.len() {
            0 => Ok(None),
            several => Err(BadManifest::Several(several)),
        };
    };
    if contents.len() > MOST_BYTES {
        return Err(BadManifest::Large(contents.len()));
    }
    let manifest: Manifest =
        serde_json::from_slice(contents).map_err(|e| BadManifest::Invalid(e.to_string()))?;
    manifest.check().map_err(BadManifest::Invalid)?;
    Ok(Some(manifest))
}

/// The component with this manifest, in place of one it had.
pub fn embed(wasm: &[u8], manifest: &Manifest) -> Result<Vec<u8>, BadManifest> {
    let contents = serde_json::to_vec(manifest).map_err(|e| BadManifest::Invalid(e.to_string()))?;
    let mut out = Vec::with_capacity(wasm.len() + contents.len() + 32);
    let mut copied = 0;
    for (section, _) in sections(wasm)? {
        out.extend_from_slice(&wasm[copied..section.start]);
        copied = section.end;
    }
    out.extend_from_slice(&wasm[copied..]);
    let length = leb128(SECTION.len()).len() + SECTION.len() + contents.len();
    out.push(0);
    out.extend(leb128(length));
    out.extend(leb128(SECTION.len()));
    out.extend_from_slice(SECTION.as_bytes());
    out.extend_from_slice(&contents);
    Ok(out)
}

/// Where the manifests at the top level are, and what they contain. Those of modules and components inside are
/// not this one's.
fn sections(wasm: &[u8]) -> Result<Vec<(Range<usize>, &[u8])>, BadManifest> {
    let no_component = |e: wasmparser::BinaryReaderError| BadManifest::NoComponent(e.to_string());
    if !Parser::is_component(wasm) {
        return Err(BadManifest::NoComponent("its header is not a component's".into()));
    }
    let mut found = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(no_component)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) if depth > 0 => depth -= 1,
            Payload::CustomSection(section) if depth == 0 && section.name() == SECTION => {
                // Before the contents: one byte that says `custom`, and how long they are.
                let Range { start, end } = section.range();
                let contents = start as usize..end as usize;
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
asks:
  kubernetes:
  - {kinds: [ConfigMap], verbs: [get, apply]}
  events: true
config:
  schema: {type: object}
";
        Manifest::parse(text, FILE).expect("parses")
    }

    #[test]
    fn what_is_embedded_is_read_and_again_replaces_it() {
        assert_eq!(read(EMPTY), Ok(None));
        let one = embed(EMPTY, &manifest()).expect("embedded");
        assert_eq!(read(&one), Ok(Some(manifest())));
        let two = embed(&one, &Manifest::default()).expect("embedded");
        assert_eq!(read(&two), Ok(Some(Manifest::default())));
        assert_eq!(two, embed(EMPTY, &Manifest::default()).expect("embedded"));
    }

    #[test]
    fn that_of_a_component_inside_is_not_this_ones() {
        let inner = embed(EMPTY, &manifest()).expect("embedded");
        let mut outer = EMPTY.to_vec();
        outer.push(4);
        outer.extend(leb128(inner.len()));
        outer.extend_from_slice(&inner);
        assert_eq!(read(&outer), Ok(None));
        let outer = embed(&outer, &Manifest::default()).expect("embedded");
        assert_eq!(read(&outer), Ok(Some(Manifest::default())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(matches!(
            read(b"\0asm\x01\0\0\0"),
            Err(BadManifest::NoComponent(_))
        ));
        assert!(matches!(read(b"x"), Err(BadManifest::NoComponent(_))));
        let section = embed(EMPTY, &manifest()).expect("embedded")[EMPTY.len()..].to_vec();
        let twice = [EMPTY, &section, &section].concat();
        assert_eq!(read(&twice), Err(BadManifest::Several(2)));
        for (text, words) in [
            ("aks: {}", "aks"),
            ("asks: {kubernets: []}", "kubernets"),
            (
                "asks: {kubernetes: [{kinds: [], verbs: [get]}]}",
                "asks.kubernetes[0].kinds is empty",
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
        /// Whatever bytes: an answer, no panic. And what is read of a mutated component can be embedded again.
        #[test]
        fn any_bytes(start in prop::sample::select(vec![true, false]), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = if start { [EMPTY, &bytes].concat() } else { bytes };
            if let Ok(found) = read(&bytes) {
                let again = embed(&bytes, &found.unwrap_or_default()).expect("embedded");
                prop_assert!(read(&again).is_ok());
            }
        }

        #[test]
        fn mutated(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = embed(EMPTY, &manifest()).expect("embedded");
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(&bytes);
        }

        /// Of any shape: understood, or refused with a word of where.
        #[test]
        fn any_document(kinds in prop::collection::vec("[A-Za-z*]{0,8}", 0..4), events in any::<bool>(), extra in "[a-z]{1,6}") {
            let document = json!({"asks": {"kubernetes": [{"kinds": kinds, "verbs": ["get"]}], "events": events}});
            let parsed = Manifest::parse(&document.to_string(), FILE);
            prop_assert_eq!(parsed.is_ok(), !kinds.is_empty() && kinds.iter().all(|k| !k.is_empty()));
            let mut more = document.clone();
            more[format!("x{extra}")] = true.into();
            prop_assert!(Manifest::parse(&more.to_string(), FILE).is_err());
        }
    }
}
