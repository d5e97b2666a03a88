//! The manifest of a plugin: its permissions asked for, and the schema of its configuration.
//!
//! Its author writes it as `plugin.yaml`; it travels as JSON in a custom section at the top level of the component, so
//! that the host reads it without running the component.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasm_encoder::{Component, CustomSection, RawSection};
use wasmparser::{Parser, Payload};

use crate::policy::grants::Permissions;

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
    /// Permissions that the plugin requests. All others are denied, whatever is granted.
    #[serde(default)]
    pub permissions: Permissions,
    /// Configuration that the plugin takes. When unset, it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,
}

/// The configuration that a plugin takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Structural JSON schema of the configuration, as in a CustomResourceDefinition.
    pub schema: Value,
}

/// The reason for an unreadable manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not a component.
    #[error("it is not a component: {0}")]
    NotAComponent(String),
    /// The component has several sections of a name.
    #[error("it has {0} custom sections `{1}`: one is allowed")]
    Duplicate(usize, &'static str),
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
        let manifest: Self = serde_saphyr::from_str(text).map_err(|e| format!("{file}: {}", e))?;
        manifest.check_fields().map_err(|e| format!("{file}: {e}"))?;
        Ok(manifest)
    }

    fn check_fields(&self) -> Result<(), String> {
        self.permissions
            .check_fields()
            .map_err(|e| format!("permissions.{e}"))?;
        let reconciles = self
            .permissions
            .reconciles
            .iter()
            .map(|entry| ("reconciles", &entry.group));
        let kubernetes = self
            .permissions
            .kubernetes
            .iter()
            .map(|entry| ("kubernetes", &entry.group));
        for (field, group) in reconciles.chain(kubernetes) {
            if let Some((name, version)) = group.split_once('/') {
                return Err(format!(
                    "permissions.{field}: group: {group:?} has the version {version:?}: write {name:?}"
                ));
            }
        }
        match &self.config {
            Some(config) if !config.schema.is_object() => {
                Err("config.schema is no JSON schema: a mapping is needed".into())
            }
            Some(config) => check_types(&config.schema, "config.schema"),
            None => Ok(()),
        }
    }
}

/// The types of a structural schema.
const SCHEMA_TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];

/// Checks the types in a schema: with an unknown one no configuration would be valid.
fn check_types(schema: &Value, field: &str) -> Result<(), String> {
    if let Some(found) = schema.get("type")
        && !found.as_str().is_some_and(|found| SCHEMA_TYPES.contains(&found))
    {
        let known = SCHEMA_TYPES.join(", ");
        return Err(format!("{field}.type: {found} is no type: write one of {known}"));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        check_types(inner, &format!("{field}.properties.{name}"))?;
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(name) {
            check_types(inner, &format!("{field}.{name}"))?;
        }
    }
    Ok(())
}

/// Reads the manifest of a component; `None` if it has none.
pub fn read_manifest(wasm: &[u8]) -> Result<Option<Manifest>, ManifestError> {
    let Some(contents) = find_section(wasm, SECTION_NAME)? else {
        return Ok(None);
    };
    if contents.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge(contents.len()));
    }
    let manifest: Manifest =
        serde_json::from_slice(contents).map_err(|e| ManifestError::Invalid(e.to_string()))?;
    manifest.check_fields().map_err(ManifestError::Invalid)?;
    Ok(Some(manifest))
}

/// Finds the contents of a custom section at the top level of a component; `None` if it has none.
///
/// # Errors
/// The bytes are not a component, or have several sections of this name.
pub fn find_section<'a>(wasm: &'a [u8], name: &'static str) -> Result<Option<&'a [u8]>, ManifestError> {
    let sections = read_sections(wasm)?;
    let found = sections.iter().filter_map(|section| section.custom);
    let found: Vec<_> = found.filter(|(found, _)| *found == name).collect();
    match found[..] {
        [] => Ok(None),
        [(_, contents)] => Ok(Some(contents)),
        _ => Err(ManifestError::Duplicate(found.len(), name)),
    }
}

/// Embeds a manifest into a component, in place of an earlier one.
pub fn embed_manifest(wasm: &[u8], manifest: &Manifest) -> Result<Vec<u8>, ManifestError> {
    let contents = serde_json::to_vec(manifest).map_err(|e| ManifestError::Invalid(e.to_string()))?;
    let mut component = Component::new();
    for section in read_sections(wasm)? {
        if section.custom.is_none_or(|(name, _)| name != SECTION_NAME) {
            component.section(&RawSection {
                id: section.id,
                data: section.data,
            });
        }
    }
    component.section(&CustomSection {
        name: SECTION_NAME.into(),
        data: contents.into(),
    });
    Ok(component.finish())
}

/// A section at the top level of a component.
struct Section<'a> {
    id: u8,
    data: &'a [u8],
    /// Name and contents of a custom section.
    custom: Option<(&'a str, &'a [u8])>,
}

/// The sections at the top level. Those of nested modules and components belong to them.
fn read_sections(wasm: &[u8]) -> Result<Vec<Section<'_>>, ManifestError> {
    if !Parser::is_component(wasm) {
        return Err(ManifestError::NotAComponent(
            "its header is not a component's".into(),
        ));
    }
    let mut sections = Vec::new();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(|e| ManifestError::NotAComponent(e.to_string()))?;
        if depth == 0
            && let Some((id, range)) = payload.as_section()
        {
            let custom = match &payload {
                Payload::CustomSection(custom) => Some((custom.name(), custom.data())),
                _ => None,
            };
            // The parser announces a nested module before its bytes, so a truncated file may end before the range.
            let data = wasm
                .get(range)
                .ok_or_else(|| ManifestError::NotAComponent("the file ends within a section".into()))?;
            sections.push(Section { id, data, custom });
        }
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) if depth > 0 => depth -= 1,
            _ => {}
        }
    }
    Ok(sections)
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
        let mut outer = Component::new();
        // The ID of a nested component.
        outer.section(&RawSection { id: 4, data: &inner });
        let outer = outer.finish();
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
        assert_eq!(
            read_manifest(&twice),
            Err(ManifestError::Duplicate(2, SECTION_NAME))
        );
        for (text, words) in [
            ("aks: {}", "aks"),
            ("permissions: {kubernets: []}", "kubernets"),
            (
                "permissions: {kubernetes: [{kinds: [], verbs: [get]}]}",
                "permissions.kubernetes[0].kinds is empty",
            ),
            (
                "permissions: {kubernetes: [{group: apps/v1, kinds: [Deployment], verbs: [get]}]}",
                "permissions.kubernetes: group: \"apps/v1\" has the version \"v1\": write \"apps\"",
            ),
            ("config: {schema: 1}", "config.schema is no JSON schema"),
            (
                "config: {schema: {type: objekt}}",
                "config.schema.type: \"objekt\" is no type: write one of object, array",
            ),
            (
                "config: {schema: {properties: {a: {items: {type: [string]}}}}}",
                "config.schema.properties.a.items.type: [\"string\"] is no type",
            ),
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
