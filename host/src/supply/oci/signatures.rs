//! Where signatures are found: in the artifact that is tagged for it, or among what refers to the digest.

use std::collections::BTreeMap;

use super::{
    Digest, PullError,
    manifest::{Descriptor, IMAGE_CONFIG, Manifest},
    registry::Registry,
    short,
};
use crate::supply::signature::{Found, Signature};

/// The layer of a signature.
pub const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Where its signature is.
pub const ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// How types of bundles begin; versions follow.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// Signatures that are looked at; a registry may have any number.
const MOST: usize = 32;
/// Bytes of one.
const BYTES: u64 = 256 << 10;

/// The tag of the artifact with a digest's signatures.
pub fn tag(digest: &Digest) -> String {
    format!("sha256-{}.sig", digest.hex())
}

/// The manifest of that artifact.
pub async fn manifest(
    registry: &Registry,
    digest: &Digest,
) -> Result<Option<Result<Manifest, String>>, PullError> {
    let answer = registry.manifest(&tag(digest)).await?;
    Ok(answer.map(|answer| {
        serde_json::from_slice(&answer.bytes)
            .map_err(|e| format!("what is tagged {} is no manifest: {}", tag(digest), short(e)))
    }))
}

/// Adds the signatures of the artifact `sha256-….sig`.
pub async fn tagged(registry: &Registry, digest: &Digest, found: &mut Found) -> Result<(), PullError> {
    let manifest = match manifest(registry, digest).await? {
        None => return Ok(()),
        Some(Ok(manifest)) => manifest,
        Some(Err(what)) => {
            found.malformed.push(what);
            return Ok(());
        }
    };
    for layer in manifest.layers.iter().take(MOST) {
        match simple(registry, layer).await {
            Ok(signature) => found.signatures.push(signature),
            Err(Bad::Malformed(what)) => found.malformed.push(what),
            Err(Bad::Pull(e)) => return Err(e),
        }
    }
    Ok(())
}

/// Adds the signatures of the bundles that refer to the digest.
pub async fn referring(registry: &Registry, digest: &Digest, found: &mut Found) -> Result<(), PullError> {
    let referrers = registry.referrers(digest).await?.into_iter();
    let bundles = referrers.filter(|d| d.artifact_type.as_deref().is_some_and(|t| t.starts_with(BUNDLE)));
    for descriptor in bundles.take(MOST) {
        match bundle(registry, &descriptor).await {
            Ok(signatures) => found.signatures.extend(signatures),
            Err(Bad::Malformed(what)) => found.malformed.push(what),
            Err(Bad::Pull(e)) => return Err(e),
        }
    }
    Ok(())
}

/// Why a signature could not be read.
enum Bad {
    /// It is wrong itself, which must not hide others.
    Malformed(String),
    /// The registry does not answer.
    Pull(PullError),
}

impl From<PullError> for Bad {
    fn from(error: PullError) -> Self {
        match error {
            e @ (PullError::PullFailed(_) | PullError::Unauthorized(_)) => Self::Pull(e),
            e => Self::Malformed(e.to_string()),
        }
    }
}

impl From<String> for Bad {
    fn from(what: String) -> Self {
        Self::Malformed(what)
    }
}

async fn simple(registry: &Registry, layer: &Descriptor) -> Result<Signature, Bad> {
    if layer.media_type != SIMPLE {
        return Err(Bad::Malformed(format!(
            "its layer is of type {:?}, not {SIMPLE}",
            short(&layer.media_type)
        )));
    }
    let signature = layer.annotations.get(ANNOTATION);
    let signature = signature.ok_or_else(|| format!("its layer has no annotation {ANNOTATION}"))?;
    let payload = blob(registry, layer).await?;
    Ok(Signature::simple(payload, signature)?)
}

async fn bundle(registry: &Registry, descriptor: &Descriptor) -> Result<Vec<Signature>, Bad> {
    let digest = parse(&descriptor.digest)?;
    let answer = registry.manifest(digest.as_str()).await?;
    let answer = answer.ok_or_else(|| registry.missing(digest.as_str()))?;
    super::registry::matches("a bundle's manifest", &digest, &answer.bytes)?;
    let manifest: Manifest = serde_json::from_slice(&answer.bytes)
        .map_err(|e| format!("a bundle's manifest can't be read: {}", short(e)))?;
    let mut layers = manifest.layers.iter();
    let layer = layers.find(|layer| layer.media_type.starts_with(BUNDLE));
    let layer = layer.ok_or_else(|| format!("a bundle's manifest has no layer of type {BUNDLE}…"))?;
    Ok(Signature::of_bundle(&blob(registry, layer).await?)?)
}

async fn blob(registry: &Registry, layer: &Descriptor) -> Result<Vec<u8>, Bad> {
    if layer.size > BYTES {
        return Err(Bad::Malformed(format!("a signature of {} bytes", layer.size)));
    }
    Ok(registry.blob(&parse(&layer.digest)?, layer.size).await?)
}

fn parse(digest: &str) -> Result<Digest, Bad> {
    Digest::parse(digest).ok_or_else(|| Bad::Malformed(format!("{:?} is no digest", short(digest))))
}

/// The layer of a signature, and the config of an artifact with these layers.
pub fn layer(payload: &[u8], signature_base64: String) -> Descriptor {
    Descriptor {
        annotations: BTreeMap::from([(ANNOTATION.to_owned(), signature_base64)]),
        ..Descriptor::of(SIMPLE, payload)
    }
}

/// The config of an artifact with these layers: it looks like an image's, for registries that take nothing else.
pub fn config(layers: &[Descriptor]) -> (Descriptor, Vec<u8>) {
    let digests: Vec<_> = layers.iter().map(|layer| &layer.digest).collect();
    let config = serde_json::json!({
        "architecture": "", "os": "", "created": "1970-01-01T00:00:00Z", "config": {},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let bytes = config.to_string().into_bytes();
    (Descriptor::of(IMAGE_CONFIG, &bytes), bytes)
}
