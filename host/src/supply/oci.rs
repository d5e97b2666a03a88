//! Components in OCI registries: pulled by digest, verified, kept on disk; and pushed.
//!
//! The distribution API is spoken here, on the HTTP client that is there anyway, and every answer is bounded while it
//! is read. The crate `oci-client` reads manifests and tokens of any size into memory, and brings a second HTTP
//! client; `oci-wasm` a fourth WIT parser.
//!
//! ```text
//! reference → digest → signatures → manifest → layer → component
//!                          └─────── cache ───────┘
//! ```

mod auth;
mod cache;
mod manifest;
mod push;
mod reference;
mod registry;
mod signatures;

use std::{collections::BTreeSet, future::Future, path::PathBuf, sync::Arc, time::Duration};

use tracing::warn;

pub use self::{
    auth::{Auth, AuthError},
    manifest::Shape,
    push::Pushed,
    reference::{Digest, Reference, ReferenceError},
    registry::Progress,
};
use self::{cache::Cache, registry::Registry};
use crate::supply::signature::{Fingerprint, Found, Policy, SignatureError, Verdict};

/// What a pull may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a component.
    pub component_bytes: u64,
    /// Bytes of the cache; what was used last stays.
    pub cache_bytes: u64,
    /// Time of a pull.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            component_bytes: 64 << 20,
            cache_bytes: 1 << 30,
            time: Duration::from_secs(300),
        }
    }
}

/// Pulls components and keeps them.
#[derive(Clone)]
pub struct Store {
    http: reqwest::Client,
    cache: Option<Cache>,
    limits: Limits,
    tags: bool,
    plain: BTreeSet<String>,
}

/// A component that was pulled, and what is known of it.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The component.
    pub wasm: Vec<u8>,
    /// The artifact's digest, which pins it.
    pub digest: String,
    /// Nothing had to be asked of the registry for it but its tag, perhaps.
    pub cached: bool,
    /// Why the registry could not be asked what a tag means now, and the cache answered.
    pub offline: Option<String>,
    /// The keys of the policy that have signed it.
    pub signers: Vec<Fingerprint>,
    /// Why the policy is not met, where that is not required.
    pub unsigned: Option<SignatureError>,
}

/// Why a component could not be pulled, or pushed. Never has a credential in it, or anything else a server said but
/// the codes of the distribution API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// A tag alone, which may be another component tomorrow.
    #[error(
        "{reference} has no digest, and a tag may be another component tomorrow: {}",
        pin(reference, found)
    )]
    DigestRequired {
        /// The reference.
        reference: String,
        /// What it means now, if that could be found out.
        found: Option<String>,
    },
    /// The registry does not answer, or not as registries do.
    #[error("{0}")]
    PullFailed(String),
    /// There is no such artifact.
    #[error("{0}")]
    NotFound(String),
    /// The registry does not let us.
    #[error("{0}")]
    Unauthorized(String),
    /// What came is not what was asked for.
    #[error("{what} has the digest {found}, not {wanted}: it was changed on the way, or in the registry")]
    DigestMismatch {
        /// What came.
        what: String,
        /// As it should be.
        wanted: String,
        /// As it is.
        found: String,
    },
    /// Something else than a component.
    #[error("{0}")]
    NotAComponent(String),
    /// More bytes than allowed.
    #[error("{0}")]
    TooLarge(String),
    /// The policy wants a signature, and there is none.
    #[error("{0}")]
    SignatureMissing(SignatureError),
    /// The policy wants another signature than there is.
    #[error("{0}")]
    SignatureInvalid(SignatureError),
}

fn pin(reference: &str, found: &Option<String>) -> String {
    match found {
        Some(digest) => format!("pin {reference}@{digest}"),
        None => "add @sha256:… (what `ostler plugin push` printed)".into(),
    }
}

impl PullError {
    /// The reason of a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DigestRequired { .. } => "DigestRequired",
            Self::PullFailed(_) => "PullFailed",
            Self::NotFound(_) => "NotFound",
            Self::Unauthorized(_) => "Unauthorized",
            Self::DigestMismatch { .. } => "DigestMismatch",
            Self::NotAComponent(_) => "NotAComponent",
            Self::TooLarge(_) => "TooLarge",
            Self::SignatureMissing(_) => "SignatureMissing",
            Self::SignatureInvalid(_) => "SignatureInvalid",
        }
    }

    /// Whether the same may go well a little later, without anybody doing anything about it.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::PullFailed(_))
    }
}

impl From<SignatureError> for PullError {
    fn from(error: SignatureError) -> Self {
        match error.is_missing() {
            true => Self::SignatureMissing(error),
            false => Self::SignatureInvalid(error),
        }
    }
}

impl Store {
    /// A store that keeps what it pulls in this directory, which only this user may be able to write to; without one
    /// nothing is kept.
    pub fn new(directory: Option<PathBuf>, limits: Limits) -> Self {
        Self {
            http: registry::client(),
            cache: directory.map(|directory| Cache::new(directory, limits.cache_bytes)),
            limits,
            tags: false,
            plain: BTreeSet::new(),
        }
    }

    /// Takes references without digest, too: for development.
    #[must_use]
    pub fn with_tags(self) -> Self {
        Self { tags: true, ..self }
    }

    /// Speaks plain HTTP with these registries (`HOST:PORT`); it always does with those on this machine.
    #[must_use]
    pub fn with_plain_http(mut self, registries: impl IntoIterator<Item = String>) -> Self {
        self.plain.extend(registries);
        self
    }

    /// Pulls a component, from the cache where that has it.
    ///
    /// What the policy asks for is found first: nothing else is read of what nobody vouches for. What is in the cache
    /// is as good as what is in the registry, signatures included, because both are verified; so a host starts
    /// while its registry is down.
    pub async fn pull(
        &self,
        reference: &Reference,
        auth: &Auth,
        policy: &Policy,
    ) -> Result<Pulled, PullError> {
        self.in_time(reference, async {
            let registry = self.registry(reference, auth)?;
            let (digest, offline) = self.resolve(&registry, reference).await?;
            let verdict = self.vouch(&registry, &digest, policy).await?;
            let (wasm, cached) = self.component(&registry, &digest).await?;
            Ok(Pulled {
                wasm,
                digest: digest.to_string(),
                cached,
                offline,
                signers: verdict.signers,
                unsigned: verdict.problem,
            })
        })
        .await
    }

    async fn in_time<T>(
        &self,
        reference: &Reference,
        work: impl Future<Output = Result<T, PullError>>,
    ) -> Result<T, PullError> {
        let late = |_| {
            PullError::PullFailed(format!(
                "{} took longer than {:?}",
                reference.registry(),
                self.limits.time
            ))
        };
        tokio::time::timeout(self.limits.time, work).await.map_err(late)?
    }

    fn registry(&self, reference: &Reference, auth: &Auth) -> Result<Registry, PullError> {
        let plain = reference.is_loopback() || self.plain.contains(reference.registry());
        Registry::new(&self.http, reference, auth, plain)
    }

    /// The digest that is meant, and why the registry could not be asked for it.
    async fn resolve(
        &self,
        registry: &Registry,
        reference: &Reference,
    ) -> Result<(Digest, Option<String>), PullError> {
        if let Some(digest) = reference.digest() {
            return Ok((digest.clone(), None));
        }
        let tag = reference.tag().unwrap_or("latest");
        let name = reference.to_string();
        let found = match registry.manifest(tag).await {
            Ok(Some(answer)) => Ok(Digest::of(&answer.bytes)),
            Ok(None) => Err(registry.missing(&format!("tag {tag}"))),
            Err(e) => Err(e),
        };
        if !self.tags {
            return Err(PullError::DigestRequired {
                reference: name,
                found: found.ok().map(|digest| digest.to_string()),
            });
        }
        match found {
            Ok(digest) => {
                let kept = digest.clone();
                self.keep(move |cache| cache.put_tag(&name, &kept)).await;
                Ok((digest, None))
            }
            Err(e) if e.is_transient() => {
                let kept = self.kept(move |cache| cache.tag(&name)).await;
                kept.map(|digest| (digest, Some(e.to_string()))).ok_or(e)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether the policy is met: by what the cache has, or else by what the registry has now.
    async fn vouch(
        &self,
        registry: &Registry,
        digest: &Digest,
        policy: &Policy,
    ) -> Result<Verdict, PullError> {
        if !policy.asks() {
            return Ok(Verdict::default());
        }
        let of = digest.clone();
        let signatures = self
            .kept(move |cache| cache.signatures(&of))
            .await
            .unwrap_or_default();
        let mut found = Found {
            signatures,
            malformed: Vec::new(),
        };
        let met = |found: &Found| {
            let verdict = policy.verify(digest.as_str(), found).ok();
            verdict.filter(|verdict| verdict.problem.is_none())
        };
        if let Some(verdict) = met(&found) {
            return Ok(verdict);
        }
        let asked = async {
            // The older layout first: it takes one request less to find.
            signatures::tagged(registry, digest, &mut found).await?;
            match met(&found) {
                Some(_) => Ok(()),
                None => signatures::referring(registry, digest, &mut found).await,
            }
        };
        match asked.await {
            Err(e) if e.is_transient() && !policy.required => {
                let (digest, why) = (digest.to_string(), e.to_string());
                return Ok(Verdict {
                    signers: Vec::new(),
                    problem: Some(SignatureError::Unknown { digest, why }),
                });
            }
            asked => asked?,
        }
        let verdict = policy.verify(digest.as_str(), &found)?;
        if verdict.problem.is_none() {
            let of = digest.clone();
            self.keep(move |cache| cache.put_signatures(&of, &found.signatures))
                .await;
        }
        Ok(verdict)
    }

    /// The component of a digest, and whether all of it was in the cache.
    async fn component(&self, registry: &Registry, digest: &Digest) -> Result<(Vec<u8>, bool), PullError> {
        let (bytes, media_type, manifest_kept) = match self.kept_blob(digest, manifest::BYTES).await {
            Some(bytes) => (bytes, None, true),
            None => {
                let answer = registry.manifest(digest.as_str()).await?;
                let answer = answer.ok_or_else(|| registry.missing(digest.as_str()))?;
                registry::matches("the manifest", digest, &answer.bytes)?;
                (answer.bytes, answer.media_type, false)
            }
        };
        let (layer, size) = manifest::component(media_type.as_deref(), &bytes, self.limits.component_bytes)?;
        let (wasm, layer_kept) = match self.kept_blob(&layer, size).await {
            Some(wasm) => (wasm, true),
            None => (registry.blob(&layer, size).await?, false),
        };
        if !wasmparser::Parser::is_component(&wasm) {
            let what = match wasm.starts_with(b"\0asm") {
                true => "a core module, not a component",
                false => "not WebAssembly, though its layer says so",
            };
            return Err(PullError::NotAComponent(what.into()));
        }
        let (wasm, kept) = (Arc::new(wasm), manifest_kept && layer_kept);
        if !kept {
            let (digest, wasm) = (digest.clone(), wasm.clone());
            self.keep(move |cache| {
                cache.put(&digest, &bytes)?;
                cache.put(&layer, &wasm)?;
                cache.trim(&[&digest, &layer])
            })
            .await;
        }
        Ok((Arc::unwrap_or_clone(wasm), kept))
    }

    async fn kept_blob(&self, digest: &Digest, most: u64) -> Option<Vec<u8>> {
        let digest = digest.clone();
        self.kept(move |cache| cache.get(&digest, most)).await
    }

    /// Reads from the cache, away from the threads that must not block.
    async fn kept<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Cache) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let cache = self.cache.clone()?;
        tokio::task::spawn_blocking(move || read(&cache)).await.ok()?
    }

    /// Writes to the cache. That it can't is told, and no reason not to go on.
    async fn keep(&self, write: impl FnOnce(&Cache) -> std::io::Result<()> + Send + 'static) {
        let Some(cache) = self.cache.clone() else {
            return;
        };
        let directory = cache.directory().display().to_string();
        let written = tokio::task::spawn_blocking(move || write(&cache)).await;
        if let Ok(Err(e)) = written {
            warn!(%directory, "the component cache can't be written to: {e}");
        }
    }
}

/// As much of a text as an error needs, whoever wrote it.
fn short(text: impl ToString) -> String {
    text.to_string()
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect()
}
