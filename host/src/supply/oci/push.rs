//! Components into registries, and signatures beside them.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;

use super::{
    Auth, Digest, PullError, Reference, Shape, Store,
    manifest::{CONFIG, Descriptor, Manifest, WASM, config},
    registry::Progress,
    signatures,
};
use crate::supply::signature::{Found, Policy, SigningKey, simple_payload};

/// A component that was pushed.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// Where it is, with its digest.
    pub reference: Reference,
    /// The artifact's digest.
    pub digest: Digest,
    /// The component's bytes.
    pub size: u64,
    /// The registry had it already.
    pub existed: bool,
}

impl Store {
    /// Pushes a component under the reference's tag, or by digest where it has none.
    pub async fn push(
        &self,
        reference: &Reference,
        auth: &Auth,
        wasm: Bytes,
        shape: &Shape,
        annotations: BTreeMap<String, String>,
        progress: Progress,
    ) -> Result<Pushed, PullError> {
        self.in_time(reference, async {
            let registry = self.registry(reference, auth)?;
            let layer = Descriptor::of(WASM, &wasm);
            let config = Bytes::from(config(&Digest::of(&wasm), shape));
            let about = Descriptor::of(CONFIG, &config);
            let manifest = Manifest::new(about, vec![layer], annotations).bytes();
            let mut existed = true;
            let silent: Progress = Arc::new(|_| {});
            for (bytes, progress) in [(&config, &silent), (&wasm, &progress)] {
                let digest = Digest::of(bytes);
                if !registry.has(&digest).await? {
                    existed = false;
                    registry.upload(&digest, bytes, progress).await?;
                }
            }
            progress(wasm.len() as u64);
            let digest = Digest::of(&manifest);
            let name = reference.tag().unwrap_or(digest.as_str());
            registry.put_manifest(name, &manifest).await?;
            Ok(Pushed {
                reference: reference.pinned(digest.clone()),
                digest,
                size: wasm.len() as u64,
                existed,
            })
        })
        .await
    }

    /// Signs a digest as `cosign sign --key` does in its simple layout, beside what others have signed; nothing
    /// changes where the key has signed it already.
    pub async fn sign(
        &self,
        reference: &Reference,
        digest: &Digest,
        auth: &Auth,
        key: &SigningKey,
    ) -> Result<(), PullError> {
        self.in_time(reference, async {
            let registry = self.registry(reference, auth)?;
            let mut found = Found::default();
            signatures::tagged(&registry, digest, &mut found).await?;
            let own = Policy::any_of(vec![key.public()]);
            if own.verify(digest.as_str(), &found).is_ok() {
                return Ok(());
            }
            let payload = simple_payload(&registry.place(), digest.as_str());
            let signature = key
                .sign(&payload)
                .ok_or_else(|| PullError::PullFailed("the system gives no random numbers".into()))?;
            let mut layers = match signatures::manifest(&registry, digest).await? {
                Some(Ok(manifest)) => manifest.layers,
                _ => Vec::new(),
            };
            layers.push(signatures::layer(&payload, BASE64_STANDARD.encode(signature)));
            let (about, config) = signatures::config(&layers);
            let silent: Progress = Arc::new(|_| {});
            for bytes in [payload, config].map(Bytes::from) {
                registry.upload(&Digest::of(&bytes), &bytes, &silent).await?;
            }
            let manifest = Manifest::new(about, layers, BTreeMap::new()).bytes();
            registry.put_manifest(&signatures::tag(digest), &manifest).await
        })
        .await
    }
}
