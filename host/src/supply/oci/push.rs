//! Pushes of components to registries, and of their signatures.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;

use super::{
    ComponentInterfaces, ComponentStore, Digest, OciReference, PullError, RegistryAuth,
    manifest::{Descriptor, ImageManifest, WASM_CONFIG, WASM_LAYER, build_config},
    registry::UploadProgress,
    signatures,
};
use crate::supply::signature::{FoundSignatures, SignaturePolicy, SigningKey, simple_payload};

/// A pushed component.
#[derive(Clone, Debug)]
pub struct PushedComponent {
    /// The reference, with the digest.
    pub reference: OciReference,
    /// The artifact's digest.
    pub digest: Digest,
    /// The component's size in bytes.
    pub size: u64,
    /// The registry had all blobs already.
    pub already_present: bool,
}

impl ComponentStore {
    /// Pushes a component under the reference's tag, or by digest without a tag.
    pub async fn push_component(
        &self,
        reference: &OciReference,
        auth: &RegistryAuth,
        wasm: Bytes,
        shape: &ComponentInterfaces,
        annotations: BTreeMap<String, String>,
        progress: UploadProgress,
    ) -> Result<PushedComponent, PullError> {
        self.run_with_timeout(reference, async {
            let registry = self.open_registry(reference, auth)?;
            let layer = Descriptor::for_bytes(WASM_LAYER, &wasm);
            let config = Bytes::from(build_config(&Digest::of_bytes(&wasm), shape));
            let about = Descriptor::for_bytes(WASM_CONFIG, &config);
            let manifest = ImageManifest::new(about, vec![layer], annotations).to_bytes();
            let mut already_present = true;
            let silent: UploadProgress = Arc::new(|_| {});
            for (bytes, progress) in [(&config, &silent), (&wasm, &progress)] {
                let digest = Digest::of_bytes(bytes);
                if !registry.has_blob(&digest).await? {
                    already_present = false;
                    registry.upload_blob(&digest, bytes, progress).await?;
                }
            }
            progress(wasm.len() as u64);
            let digest = Digest::of_bytes(&manifest);
            let name = reference.tag().unwrap_or(digest.as_str());
            registry.put_manifest(name, &manifest).await?;
            Ok(PushedComponent {
                reference: reference.with_digest(digest.clone()),
                digest,
                size: wasm.len() as u64,
                already_present,
            })
        })
        .await
    }

    /// Signs a digest as `cosign sign --key` does in its simple layout, and keeps existing signatures. Nothing changes
    /// if the key has signed it already.
    pub async fn sign_digest(
        &self,
        reference: &OciReference,
        digest: &Digest,
        auth: &RegistryAuth,
        key: &SigningKey,
    ) -> Result<(), PullError> {
        self.run_with_timeout(reference, async {
            let registry = self.open_registry(reference, auth)?;
            let mut found = FoundSignatures::default();
            signatures::collect_tagged(&registry, digest, &mut found).await?;
            let own = SignaturePolicy::any_of(vec![key.public_key()]);
            if own.verify_digest(digest.as_str(), &found).is_ok() {
                return Ok(());
            }
            let payload = simple_payload(&registry.full_name(), digest.as_str());
            let signature = key
                .sign_message(&payload)
                .ok_or_else(|| PullError::PullFailed("the system gives no random numbers".into()))?;
            let mut layers = match signatures::fetch_signature_manifest(&registry, digest).await? {
                Some(Ok(manifest)) => manifest.layers,
                _ => Vec::new(),
            };
            layers.push(signatures::signature_layer(
                &payload,
                BASE64_STANDARD.encode(signature),
            ));
            let (about, config) = signatures::signature_config(&layers);
            let silent: UploadProgress = Arc::new(|_| {});
            for bytes in [payload, config].map(Bytes::from) {
                registry
                    .upload_blob(&Digest::of_bytes(&bytes), &bytes, &silent)
                    .await?;
            }
            let manifest = ImageManifest::new(about, layers, BTreeMap::new()).to_bytes();
            registry
                .put_manifest(&signatures::signature_tag(digest), &manifest)
                .await
        })
        .await
    }
}
