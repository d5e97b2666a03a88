//! Manifests of the OCI image format, as the CNCF's guidance for WebAssembly artifacts lays them out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{PullError, reference::Digest, shorten_text};

/// Media type of an OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Media types accepted for a manifest: those that are no component are named in the error.
pub const ACCEPTED_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// Media type of a component's config.
pub const WASM_CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// Media type of a component.
pub const WASM_LAYER: &str = "application/wasm";
/// Media type of the config of a container image, and of cosign's signatures.
pub const IMAGE_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const HELM_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";

/// Maximum size of a manifest, by the specification.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// A descriptor: content by digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the content.
    pub media_type: String,
    /// Digest of the content.
    pub digest: String,
    /// Size of the content in bytes.
    pub size: u64,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// In an index: the artifact type of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

impl Descriptor {
    /// The descriptor of these bytes.
    pub fn for_bytes(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.into(),
            digest: Digest::of_bytes(bytes).to_string(),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
            artifact_type: None,
        }
    }
}

/// The manifest of an artifact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Always 2.
    pub schema_version: u32,
    /// Media type; if missing, that of the registry's response counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The descriptor of the config.
    pub config: Descriptor,
    /// The descriptors of the layers.
    #[serde(default)]
    pub layers: Vec<Descriptor>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An index of manifests.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ImageIndex {
    /// The descriptors of the manifests.
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

impl ImageManifest {
    /// A manifest of these parts.
    pub fn new(config: Descriptor, layers: Vec<Descriptor>, annotations: BTreeMap<String, String>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(OCI_MANIFEST.into()),
            config,
            layers,
            annotations,
        }
    }

    /// The manifest as bytes; equal parts yield equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("no map has other keys than strings")
    }
}

/// Finds the component's layer, or returns an error that names what the artifact is instead. `media_type` is that of
/// the registry's response.
pub fn find_component(
    media_type: Option<&str>,
    bytes: &[u8],
    limit: u64,
) -> Result<(Digest, u64), PullError> {
    let not = |what: String| {
        PullError::NotAComponent(format!(
            "{what}; a component has one layer of {WASM_LAYER} and a config of {WASM_CONFIG} (`ostler plugin push` makes it so)"
        ))
    };
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        media_type: Option<String>,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|e| {
        not(format!(
            "what the registry gave is no manifest ({})",
            shorten_text(e)
        ))
    })?;
    match head.media_type.as_deref().or(media_type) {
        Some(OCI_INDEX | DOCKER_LIST) => {
            return Err(not(
                "an image index, which has a manifest for each platform".into()
            ));
        }
        Some(DOCKER_MANIFEST) => return Err(not("a container image in Docker's format".into())),
        Some(OCI_MANIFEST) | None => {}
        Some(other) => return Err(not(format!("a manifest of type {:?}", shorten_text(other)))),
    }
    let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(|e| {
        not(format!(
            "what the registry gave is no manifest ({})",
            shorten_text(e)
        ))
    })?;
    match &*manifest.config.media_type {
        WASM_CONFIG => {}
        IMAGE_CONFIG | DOCKER_CONFIG => return Err(not("a container image".into())),
        HELM_CONFIG => return Err(not("a Helm chart".into())),
        other => {
            return Err(not(format!(
                "an artifact with a config of type {:?}",
                shorten_text(other)
            )));
        }
    }
    let [layer] = &*manifest.layers else {
        return Err(not(format!("an artifact with {} layers", manifest.layers.len())));
    };
    if layer.media_type != WASM_LAYER {
        return Err(not(format!(
            "an artifact with a layer of type {:?}",
            shorten_text(&layer.media_type)
        )));
    }
    if layer.size > limit {
        return Err(PullError::TooLarge(format!(
            "the component has {} bytes; {limit} are allowed",
            layer.size
        )));
    }
    let digest = Digest::parse(&layer.digest)
        .ok_or_else(|| not("an artifact whose layer has no sha256 digest".into()))?;
    Ok((digest, layer.size))
}

/// The interfaces of a component, as its config lists them.
#[derive(Clone, Debug, Default)]
pub struct ComponentInterfaces {
    /// Imported interfaces.
    pub imports: Vec<String>,
    /// Exported interfaces.
    pub exports: Vec<String>,
}

/// The config of a component. It depends on the component alone, so that repeated pushes have the same digest.
pub fn build_config(wasm: &Digest, shape: &ComponentInterfaces) -> Vec<u8> {
    let config = json!({
        // Required by other tools.
        "created": "1970-01-01T00:00:00Z",
        "architecture": "wasm",
        "os": "wasip2",
        "layerDigests": [wasm.as_str()],
        "component": {"exports": shape.exports, "imports": shape.imports},
    });
    config.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn manifest(config: &str, layers: &[&str]) -> Vec<u8> {
        let layers = layers
            .iter()
            .map(|t| Descriptor::for_bytes(t, b"\0asm"))
            .collect();
        ImageManifest::new(Descriptor::for_bytes(config, b"{}"), layers, BTreeMap::new()).to_bytes()
    }

    #[test]
    fn component_layer_is_found() {
        let bytes = manifest(WASM_CONFIG, &[WASM_LAYER]);
        let found = find_component(None, &bytes, 4).expect("a component");
        assert_eq!(found, (Digest::of_bytes(b"\0asm"), 4));
        let error = find_component(None, &bytes, 3).expect_err("too large");
        assert_eq!(error.reason(), "TooLarge");
    }

    #[test]
    fn other_artifact_is_named_in_error() {
        let index = serde_json::to_vec(&json!({"mediaType": OCI_INDEX, "manifests": []})).expect("JSON");
        for (bytes, given, what) in [
            (b"<html>".to_vec(), None, "no manifest"),
            (b"{}".to_vec(), None, "no manifest"),
            (index, Some(OCI_MANIFEST), "an image index"),
            (b"{}".to_vec(), Some(DOCKER_MANIFEST), "Docker's format"),
            (b"{}".to_vec(), Some("text/html"), "text/html"),
            (manifest(IMAGE_CONFIG, &[WASM_LAYER]), None, "a container image"),
            (manifest(HELM_CONFIG, &["x"]), None, "a Helm chart"),
            (manifest("a/b", &[WASM_LAYER]), None, "a config of type \"a/b\""),
            (manifest(WASM_CONFIG, &[]), None, "0 layers"),
            (manifest(WASM_CONFIG, &[WASM_LAYER, WASM_LAYER]), None, "2 layers"),
            (
                manifest(WASM_CONFIG, &["text/plain"]),
                None,
                "a layer of type \"text/plain\"",
            ),
        ] {
            let error = find_component(given, &bytes, 100).expect_err(what);
            assert_eq!(error.reason(), "NotAComponent");
            assert!(error.to_string().contains(what), "{error}\nexpected: {what}");
        }
    }

    proptest! {
        /// Arbitrary responses yield a component or an error, and never a panic.
        #[test]
        fn any_answer(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in any::<prop::sample::Index>()) {
            let whole = manifest(WASM_CONFIG, &[WASM_LAYER]);
            let mut bytes = whole[..cut.index(whole.len() + 1)].to_vec();
            for (at, byte) in flips {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            if let Ok((_, size)) = find_component(None, &bytes, 100) {
                prop_assert!(size <= 100);
            }
        }
    }
}
