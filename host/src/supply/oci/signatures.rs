//! Discovery of signatures: the artifact tagged for a digest, and the referrers of the digest.

use std::collections::BTreeMap;

use super::{
    Digest, PullError,
    manifest::{Descriptor, IMAGE_CONFIG, ImageManifest},
    registry::OciRegistry,
    shorten_text,
};
use crate::supply::signature::{FoundSignatures, Signature};

/// Media type of a signature's layer.
pub const SIMPLE_SIGNING_LAYER: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation that contains the signature.
pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// Prefix of the media types of bundles; a version follows.
const BUNDLE_TYPE_PREFIX: &str = "application/vnd.dev.sigstore.bundle";

/// Maximum number of signatures read; a registry may have any number.
const MAX_SIGNATURES: usize = 32;
/// Maximum size of a signature in bytes.
const MAX_SIGNATURE_BYTES: u64 = 256 << 10;

/// The tag of the artifact with a digest's signatures.
pub fn signature_tag(digest: &Digest) -> String {
    format!("sha256-{}.sig", digest.hex())
}

/// Fetches the manifest of that artifact.
pub async fn fetch_signature_manifest(
    registry: &OciRegistry,
    digest: &Digest,
) -> Result<Option<Result<ImageManifest, String>>, PullError> {
    let answer = registry.fetch_manifest(&signature_tag(digest)).await?;
    Ok(answer.map(|answer| {
        serde_json::from_slice(&answer.bytes).map_err(|e| {
            format!(
                "what is tagged {} is no manifest: {}",
                signature_tag(digest),
                shorten_text(e)
            )
        })
    }))
}

/// Adds the signatures of the artifact `sha256-….sig`.
pub async fn collect_tagged(
    registry: &OciRegistry,
    digest: &Digest,
    found: &mut FoundSignatures,
) -> Result<(), PullError> {
    let manifest = match fetch_signature_manifest(registry, digest).await? {
        None => return Ok(()),
        Some(Ok(manifest)) => manifest,
        Some(Err(what)) => {
            found.malformed.push(what);
            return Ok(());
        }
    };
    for layer in manifest.layers.iter().take(MAX_SIGNATURES) {
        match read_simple(registry, layer).await {
            Ok(signature) => found.signatures.push(signature),
            Err(SignatureReadError::Malformed(what)) => found.malformed.push(what),
            Err(SignatureReadError::Pull(e)) => return Err(e),
        }
    }
    Ok(())
}

/// Adds the signatures of the bundles that refer to the digest.
pub async fn collect_referrers(
    registry: &OciRegistry,
    digest: &Digest,
    found: &mut FoundSignatures,
) -> Result<(), PullError> {
    let referrers = registry.fetch_referrers(digest).await?.into_iter();
    let bundles = referrers.filter(|d| {
        d.artifact_type
            .as_deref()
            .is_some_and(|t| t.starts_with(BUNDLE_TYPE_PREFIX))
    });
    for descriptor in bundles.take(MAX_SIGNATURES) {
        match read_bundle(registry, &descriptor).await {
            Ok(signatures) => found.signatures.extend(signatures),
            Err(SignatureReadError::Malformed(what)) => found.malformed.push(what),
            Err(SignatureReadError::Pull(e)) => return Err(e),
        }
    }
    Ok(())
}

/// The reason for an unreadable signature.
enum SignatureReadError {
    /// The signature is malformed, which must not hide others.
    Malformed(String),
    /// The registry does not respond.
    Pull(PullError),
}

impl From<PullError> for SignatureReadError {
    fn from(error: PullError) -> Self {
        match error {
            e @ (PullError::PullFailed(_) | PullError::Unauthorized(_)) => Self::Pull(e),
            e => Self::Malformed(e.to_string()),
        }
    }
}

impl From<String> for SignatureReadError {
    fn from(what: String) -> Self {
        Self::Malformed(what)
    }
}

async fn read_simple(registry: &OciRegistry, layer: &Descriptor) -> Result<Signature, SignatureReadError> {
    if layer.media_type != SIMPLE_SIGNING_LAYER {
        return Err(SignatureReadError::Malformed(format!(
            "its layer is of type {:?}, not {SIMPLE_SIGNING_LAYER}",
            shorten_text(&layer.media_type)
        )));
    }
    let signature = layer.annotations.get(SIGNATURE_ANNOTATION);
    let signature = signature.ok_or_else(|| format!("its layer has no annotation {SIGNATURE_ANNOTATION}"))?;
    let payload = fetch_layer(registry, layer).await?;
    Ok(Signature::from_simple(payload, signature)?)
}

async fn read_bundle(
    registry: &OciRegistry,
    descriptor: &Descriptor,
) -> Result<Vec<Signature>, SignatureReadError> {
    let digest = parse_digest(&descriptor.digest)?;
    let answer = registry.fetch_manifest(digest.as_str()).await?;
    let answer = answer.ok_or_else(|| registry.not_found_error(digest.as_str()))?;
    super::registry::check_digest("a bundle's manifest", &digest, &answer.bytes)?;
    let manifest: ImageManifest = serde_json::from_slice(&answer.bytes)
        .map_err(|e| format!("a bundle's manifest can't be read: {}", shorten_text(e)))?;
    let mut layers = manifest.layers.iter();
    let layer = layers.find(|layer| layer.media_type.starts_with(BUNDLE_TYPE_PREFIX));
    let layer =
        layer.ok_or_else(|| format!("a bundle's manifest has no layer of type {BUNDLE_TYPE_PREFIX}…"))?;
    Ok(Signature::from_bundle(&fetch_layer(registry, layer).await?)?)
}

async fn fetch_layer(registry: &OciRegistry, layer: &Descriptor) -> Result<Vec<u8>, SignatureReadError> {
    if layer.size > MAX_SIGNATURE_BYTES {
        return Err(SignatureReadError::Malformed(format!(
            "a signature of {} bytes",
            layer.size
        )));
    }
    Ok(registry
        .fetch_blob(&parse_digest(&layer.digest)?, layer.size)
        .await?)
}

fn parse_digest(digest: &str) -> Result<Digest, SignatureReadError> {
    Digest::parse(digest)
        .ok_or_else(|| SignatureReadError::Malformed(format!("{:?} is no digest", shorten_text(digest))))
}

/// The layer descriptor of a signature.
pub fn signature_layer(payload: &[u8], signature_base64: String) -> Descriptor {
    Descriptor {
        annotations: BTreeMap::from([(SIGNATURE_ANNOTATION.to_owned(), signature_base64)]),
        ..Descriptor::for_bytes(SIMPLE_SIGNING_LAYER, payload)
    }
}

/// The config of an artifact with these layers. It resembles an image's, for registries that accept nothing else.
pub fn signature_config(layers: &[Descriptor]) -> (Descriptor, Vec<u8>) {
    let digests: Vec<_> = layers.iter().map(|layer| &layer.digest).collect();
    let config = serde_json::json!({
        "architecture": "", "os": "", "created": "1970-01-01T00:00:00Z", "config": {},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let bytes = config.to_string().into_bytes();
    (Descriptor::for_bytes(IMAGE_CONFIG, &bytes), bytes)
}
