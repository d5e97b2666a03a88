//! Manifests: the little of the OCI image format that components need, in the layout of the CNCF's
//! guidance for WebAssembly artifacts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{PullError, reference::Digest, short};

/// An image manifest of OCI.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// An image index of OCI.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Everything a registry may have under a name: what is no component is told by what it is instead.
pub const ANY: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// The config of a component.
pub const CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// The component.
pub const WASM: &str = "application/wasm";
/// The config of what is a container image, and of cosign's signatures.
pub const IMAGE_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const HELM_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";

/// A manifest has no more bytes; the specification's own limit.
pub const BYTES: u64 = 4 << 20;

/// A thing by digest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Its digest.
    pub digest: String,
    /// Its bytes.
    pub size: u64,
    /// What is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// In an index: what the manifest is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

impl Descriptor {
    /// Describes these bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.into(),
            digest: Digest::of(bytes).to_string(),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
            artifact_type: None,
        }
    }
}

/// A manifest of one artifact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// What it is; where it is missing, the registry's answer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What it is about.
    pub config: Descriptor,
    /// What it has.
    #[serde(default)]
    pub layers: Vec<Descriptor>,
    /// What is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A list of manifests.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Index {
    /// Them.
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

impl Manifest {
    /// Of these parts.
    pub fn new(config: Descriptor, layers: Vec<Descriptor>, annotations: BTreeMap<String, String>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST.into()),
            config,
            layers,
            annotations,
        }
    }

    /// As bytes, the same for the same parts.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("no map has other keys than strings")
    }
}

/// Finds the component's layer, or says what the artifact is instead. `media_type` is the registry's word.
pub fn component(media_type: Option<&str>, bytes: &[u8], limit: u64) -> Result<(Digest, u64), PullError> {
    let not = |what: String| {
        PullError::NotAComponent(format!(
            "{what}; a component has one layer of {WASM} and a config of {CONFIG} (`ostler plugin push` makes it so)"
        ))
    };
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        media_type: Option<String>,
    }
    let head: Head = serde_json::from_slice(bytes)
        .map_err(|e| not(format!("what the registry gave is no manifest ({})", short(e))))?;
    match head.media_type.as_deref().or(media_type) {
        Some(INDEX | DOCKER_LIST) => {
            return Err(not(
                "an image index, which has a manifest for each platform".into()
            ));
        }
        Some(DOCKER_MANIFEST) => return Err(not("a container image in Docker's format".into())),
        Some(MANIFEST) | None => {}
        Some(other) => return Err(not(format!("a manifest of type {:?}", short(other)))),
    }
    let manifest: Manifest = serde_json::from_slice(bytes)
        .map_err(|e| not(format!("what the registry gave is no manifest ({})", short(e))))?;
    match &*manifest.config.media_type {
        CONFIG => {}
        IMAGE_CONFIG | DOCKER_CONFIG => return Err(not("a container image".into())),
        HELM_CONFIG => return Err(not("a Helm chart".into())),
        other => {
            return Err(not(format!(
                "an artifact with a config of type {:?}",
                short(other)
            )));
        }
    }
    let [layer] = &*manifest.layers else {
        return Err(not(format!("an artifact with {} layers", manifest.layers.len())));
    };
    if layer.media_type != WASM {
        return Err(not(format!(
            "an artifact with a layer of type {:?}",
            short(&layer.media_type)
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

/// What a component asks for and offers, as its config tells it.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// The interfaces it imports.
    pub imports: Vec<String>,
    /// The interfaces it exports.
    pub exports: Vec<String>,
}

/// The config of a component. It depends on the component alone, so that the same one has the same digest whoever
/// pushes it, and when.
pub fn config(wasm: &Digest, shape: &Shape) -> Vec<u8> {
    let config = json!({
        // Other tools need one.
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
        let layers = layers.iter().map(|t| Descriptor::of(t, b"\0asm")).collect();
        Manifest::new(Descriptor::of(config, b"{}"), layers, BTreeMap::new()).bytes()
    }

    #[test]
    fn finds_the_component() {
        let bytes = manifest(CONFIG, &[WASM]);
        let found = component(None, &bytes, 4).expect("a component");
        assert_eq!(found, (Digest::of(b"\0asm"), 4));
        let error = component(None, &bytes, 3).expect_err("too large");
        assert_eq!(error.reason(), "TooLarge");
    }

    #[test]
    fn says_what_it_is_instead() {
        let index = serde_json::to_vec(&json!({"mediaType": INDEX, "manifests": []})).expect("JSON");
        for (bytes, given, what) in [
            (b"<html>".to_vec(), None, "no manifest"),
            (b"{}".to_vec(), None, "no manifest"),
            (index, Some(MANIFEST), "an image index"),
            (b"{}".to_vec(), Some(DOCKER_MANIFEST), "Docker's format"),
            (b"{}".to_vec(), Some("text/html"), "text/html"),
            (manifest(IMAGE_CONFIG, &[WASM]), None, "a container image"),
            (manifest(HELM_CONFIG, &["x"]), None, "a Helm chart"),
            (manifest("a/b", &[WASM]), None, "a config of type \"a/b\""),
            (manifest(CONFIG, &[]), None, "0 layers"),
            (manifest(CONFIG, &[WASM, WASM]), None, "2 layers"),
            (
                manifest(CONFIG, &["text/plain"]),
                None,
                "a layer of type \"text/plain\"",
            ),
        ] {
            let error = component(given, &bytes, 100).expect_err(what);
            assert_eq!(error.reason(), "NotAComponent");
            assert!(error.to_string().contains(what), "{error}\nexpected: {what}");
        }
    }

    proptest! {
        /// Whatever a registry gives, the answer is a component or an error, and never a panic.
        #[test]
        fn any_answer(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in any::<prop::sample::Index>()) {
            let whole = manifest(CONFIG, &[WASM]);
            let mut bytes = whole[..cut.index(whole.len() + 1)].to_vec();
            for (at, byte) in flips {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            if let Ok((_, size)) = component(None, &bytes, 100) {
                prop_assert!(size <= 100);
            }
        }
    }
}
