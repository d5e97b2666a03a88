//! Components in OCI registries: pulled by digest, verified, cached on disk; and pushed.
//!
//! The distribution API is implemented here, on the host's HTTP client, with every response bounded while it is read.
//! The crate `oci-client` reads manifests and tokens of any size into memory and brings a second HTTP client;
//! `oci-wasm` brings a fourth WIT parser. `oci-spec` would replace the few types used here by as many lines of builders
//! and conversions.
//!
//! ```text
//!  reference → digest → signatures → manifest → layer → component
//!                           └─────── cache ───────┘
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
    auth::{AuthError, RegistryAuth},
    manifest::ComponentInterfaces,
    push::PushedComponent,
    reference::{Digest, OciReference, ReferenceError},
    registry::UploadProgress,
};
use self::{cache::DiskCache, registry::OciRegistry};
use crate::{
    kube::well_known::plugin_reason,
    supply::signature::{Fingerprint, FoundSignatures, SignatureError, SignaturePolicy, Verification},
};

/// Limits of a pull.
#[derive(Clone, Debug)]
pub struct PullLimits {
    /// Maximum size of a component in bytes.
    pub component_bytes: u64,
    /// Maximum size of the cache in bytes; the files used last are kept.
    pub cache_bytes: u64,
    /// Timeout of a pull.
    pub timeout: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            component_bytes: 64 << 20,
            cache_bytes: 1 << 30,
            timeout: Duration::from_secs(300),
        }
    }
}

/// A store of components: pulls them from registries and caches them.
#[derive(Clone)]
pub struct ComponentStore {
    http: registry::HttpClients,
    cache: Option<DiskCache>,
    limits: PullLimits,
    allow_tags: bool,
    plain_http: BTreeSet<String>,
}

/// A pulled component.
#[derive(Clone, Debug)]
pub struct PulledComponent {
    /// The component.
    pub wasm: Vec<u8>,
    /// The artifact's digest, which pins the component.
    pub digest: String,
    /// The component came from the cache; at most the tag was resolved by the registry.
    pub cached: bool,
    /// The error of the registry, if a tag was resolved from the cache instead.
    pub offline: Option<String>,
    /// The keys of the policy that have signed the component.
    pub signers: Vec<Fingerprint>,
    /// The violation of a policy that is not required.
    pub unsigned: Option<SignatureError>,
}

/// The error of a pull or push. It contains no credentials, and of the server's text only the error codes of the
/// distribution API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The reference has only a tag, which may be another component tomorrow.
    #[error(
        "{reference} has no digest, and a tag may be another component tomorrow: {}",
        pin_hint(reference, found)
    )]
    DigestRequired {
        /// The reference.
        reference: String,
        /// The tag's current digest, if it could be resolved.
        found: Option<String>,
    },
    /// The registry does not respond, or not as the distribution API requires.
    #[error("{0}")]
    PullFailed(String),
    /// The artifact does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The registry denies access.
    #[error("{0}")]
    Unauthorized(String),
    /// The content does not have the requested digest.
    #[error("{what} has the digest {found}, not {wanted}: it was changed on the way, or in the registry")]
    DigestMismatch {
        /// The content.
        what: String,
        /// The requested digest.
        wanted: String,
        /// The digest of the content.
        found: String,
    },
    /// The artifact is not a component.
    #[error("{0}")]
    NotAComponent(String),
    /// The content exceeds a limit.
    #[error("{0}")]
    TooLarge(String),
    /// The policy requires a signature, and there is none.
    #[error("{0}")]
    SignatureMissing(SignatureError),
    /// The policy requires another signature than there is.
    #[error("{0}")]
    SignatureInvalid(SignatureError),
}

fn pin_hint(reference: &str, found: &Option<String>) -> String {
    match found {
        Some(digest) => format!("pin {reference}@{digest}"),
        None => "add @sha256:… (what `ostler plugin push` printed)".into(),
    }
}

impl PullError {
    /// The reason of a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DigestRequired { .. } => plugin_reason::DIGEST_REQUIRED,
            Self::PullFailed(_) => plugin_reason::PULL_FAILED,
            Self::NotFound(_) => plugin_reason::NOT_FOUND,
            Self::Unauthorized(_) => plugin_reason::UNAUTHORIZED,
            Self::DigestMismatch { .. } => plugin_reason::DIGEST_MISMATCH,
            Self::NotAComponent(_) => plugin_reason::NOT_A_COMPONENT,
            Self::TooLarge(_) => plugin_reason::TOO_LARGE,
            Self::SignatureMissing(_) => plugin_reason::SIGNATURE_MISSING,
            Self::SignatureInvalid(_) => plugin_reason::INVALID_SIGNATURE,
        }
    }

    /// A retry may succeed without any change.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::PullFailed(_))
    }

    /// The signatures violate the policy.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::SignatureMissing(_) | Self::SignatureInvalid(_))
    }
}

impl From<SignatureError> for PullError {
    fn from(error: SignatureError) -> Self {
        if error.is_missing() {
            Self::SignatureMissing(error)
        } else {
            Self::SignatureInvalid(error)
        }
    }
}

impl ComponentStore {
    /// A store with a cache in this directory, which only this user must be able to write to; without one, nothing is
    /// cached.
    pub fn new(directory: Option<PathBuf>, limits: PullLimits) -> Self {
        Self {
            http: registry::build_clients(),
            cache: directory.map(|directory| DiskCache::new(directory, limits.cache_bytes)),
            limits,
            allow_tags: false,
            plain_http: BTreeSet::new(),
        }
    }

    /// Accepts references without a digest, for development.
    #[must_use]
    pub fn with_tags(self) -> Self {
        Self {
            allow_tags: true,
            ..self
        }
    }

    /// Uses plain HTTP for these registries (`HOST:PORT`); loopback addresses always use it.
    #[must_use]
    pub fn with_plain_http(mut self, registries: impl IntoIterator<Item = String>) -> Self {
        self.plain_http.extend(registries);
        self
    }

    /// Pulls a component, from the cache if it is there.
    ///
    /// Signatures are verified first: nothing else is read of a component that is not trusted. Cached content is as
    /// good as the registry's, signatures included, because both are verified; so a host starts while its registry is
    /// down.
    pub async fn pull_component(
        &self,
        reference: &OciReference,
        auth: &RegistryAuth,
        policy: &SignaturePolicy,
    ) -> Result<PulledComponent, PullError> {
        self.run_with_timeout(reference, async {
            let registry = self.open_registry(reference, auth)?;
            let (digest, offline) = self.resolve_digest(&registry, reference).await?;
            let verdict = self.verify_signatures(&registry, &digest, policy).await?;
            let (wasm, cached) = self.fetch_component(&registry, &digest).await?;
            Ok(PulledComponent {
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

    /// Verifies the signatures of an artifact or image without pulling it: of a component that was accepted before, say. Returns the
    /// digest that they are valid for.
    ///
    /// # Errors
    /// A violation of the policy ([`PullError::is_violation`]) is a finding: the registry has shown the component. Any other
    /// error means that the signatures could not be looked up.
    pub async fn verify_artifact(
        &self,
        reference: &OciReference,
        auth: &RegistryAuth,
        policy: &SignaturePolicy,
    ) -> Result<Digest, PullError> {
        self.run_with_timeout(reference, async {
            let registry = self.open_registry(reference, auth)?;
            let (digest, _) = self.resolve_digest(&registry, reference).await?;
            let verified = self.verify_signatures(&registry, &digest, policy).await;
            // Registries answer 404 to every request about a repository that the client may not see: then the absence of
            // signatures is no finding.
            if verified.as_ref().is_err_and(PullError::is_violation)
                && registry.fetch_manifest(digest.as_str()).await?.is_none()
            {
                return Err(registry.not_found_error(digest.as_str()));
            }
            verified.map(|_| digest)
        })
        .await
    }

    async fn run_with_timeout<T>(
        &self,
        reference: &OciReference,
        work: impl Future<Output = Result<T, PullError>>,
    ) -> Result<T, PullError> {
        let late = |_| {
            PullError::PullFailed(format!(
                "{} took longer than {:?}",
                reference.registry(),
                self.limits.timeout
            ))
        };
        tokio::time::timeout(self.limits.timeout, work)
            .await
            .map_err(late)?
    }

    fn open_registry(&self, reference: &OciReference, auth: &RegistryAuth) -> Result<OciRegistry, PullError> {
        let plain_http = reference.is_loopback() || self.plain_http.contains(reference.registry());
        OciRegistry::new(&self.http, reference, auth, plain_http)
    }

    /// The digest of a reference, and the registry's error if a tag was resolved from the cache.
    async fn resolve_digest(
        &self,
        registry: &OciRegistry,
        reference: &OciReference,
    ) -> Result<(Digest, Option<String>), PullError> {
        if let Some(digest) = reference.digest() {
            return Ok((digest.clone(), None));
        }
        let tag = reference.tag().unwrap_or("latest");
        let name = reference.to_string();
        let found = match registry.fetch_manifest(tag).await {
            Ok(Some(answer)) => Ok(Digest::of_bytes(&answer.bytes)),
            Ok(None) => Err(registry.not_found_error(&format!("tag {tag}"))),
            Err(e) => Err(e),
        };
        if !self.allow_tags {
            return Err(PullError::DigestRequired {
                reference: name,
                found: found.ok().map(|digest| digest.to_string()),
            });
        }
        match found {
            Ok(digest) => {
                let resolved = digest.clone();
                self.write_cache(move |cache| cache.write_tag(&name, &resolved))
                    .await;
                Ok((digest, None))
            }
            Err(e) if e.is_transient() => {
                let kept = self.read_cache(move |cache| cache.read_tag(&name)).await;
                kept.map(|digest| (digest, Some(e.to_string()))).ok_or(e)
            }
            Err(e) => Err(e),
        }
    }

    /// Verifies the policy by the cached signatures, or else by those the registry has now.
    async fn verify_signatures(
        &self,
        registry: &OciRegistry,
        digest: &Digest,
        policy: &SignaturePolicy,
    ) -> Result<Verification, PullError> {
        if !policy.needs_signatures() {
            return Ok(Verification::default());
        }
        let of = digest.clone();
        let signatures = self
            .read_cache(move |cache| cache.read_signatures(&of))
            .await
            .unwrap_or_default();
        let mut found = FoundSignatures {
            signatures,
            malformed: Vec::new(),
        };
        let met = |found: &FoundSignatures| {
            let verdict = policy.verify_digest(digest.as_str(), found).ok();
            verdict.filter(|verdict| verdict.problem.is_none())
        };
        if let Some(verdict) = met(&found) {
            return Ok(verdict);
        }
        let asked = async {
            // The older layout first: it takes one request less.
            signatures::collect_tagged(registry, digest, &mut found).await?;
            match met(&found) {
                Some(_) => Ok(()),
                None => signatures::collect_referrers(registry, digest, &mut found).await,
            }
        };
        match asked.await {
            Err(e) if e.is_transient() && !policy.is_required() => {
                let (digest, why) = (digest.to_string(), e.to_string());
                return Ok(Verification {
                    signers: Vec::new(),
                    problem: Some(SignatureError::Unknown { digest, why }),
                });
            }
            asked => asked?,
        }
        let verdict = policy.verify_digest(digest.as_str(), &found)?;
        if verdict.problem.is_none() {
            let of = digest.clone();
            self.write_cache(move |cache| cache.write_signatures(&of, &found.signatures))
                .await;
        }
        Ok(verdict)
    }

    /// The component of a digest; true if all of it was cached.
    async fn fetch_component(
        &self,
        registry: &OciRegistry,
        digest: &Digest,
    ) -> Result<(Vec<u8>, bool), PullError> {
        let (bytes, media_type, manifest_cached) =
            match self.read_cached_blob(digest, manifest::MAX_MANIFEST_BYTES).await {
                Some(bytes) => (bytes, None, true),
                None => {
                    let answer = registry.fetch_manifest(digest.as_str()).await?;
                    let answer = answer.ok_or_else(|| registry.not_found_error(digest.as_str()))?;
                    registry::check_digest("the manifest", digest, &answer.bytes)?;
                    (answer.bytes, answer.media_type, false)
                }
            };
        let (layer, size) =
            manifest::find_component(media_type.as_deref(), &bytes, self.limits.component_bytes)?;
        let (wasm, layer_cached) = match self.read_cached_blob(&layer, size).await {
            Some(wasm) => (wasm, true),
            None => (registry.fetch_blob(&layer, size).await?, false),
        };
        if !wasmparser::Parser::is_component(&wasm) {
            let what = if wasm.starts_with(b"\0asm") {
                "a core module, not a component"
            } else {
                "not WebAssembly, though its layer says so"
            };
            return Err(PullError::NotAComponent(what.into()));
        }
        let (wasm, kept) = (Arc::new(wasm), manifest_cached && layer_cached);
        if !kept {
            let (digest, wasm) = (digest.clone(), wasm.clone());
            self.write_cache(move |cache| {
                cache.write_blob(&digest, &bytes)?;
                cache.write_blob(&layer, &wasm)?;
                cache.evict_to_limit(&[&digest, &layer])
            })
            .await;
        }
        Ok((Arc::unwrap_or_clone(wasm), kept))
    }

    async fn read_cached_blob(&self, digest: &Digest, most: u64) -> Option<Vec<u8>> {
        let digest = digest.clone();
        self.read_cache(move |cache| cache.read_blob(&digest, most)).await
    }

    /// Reads from the cache on a thread that may block.
    async fn read_cache<T: Send + 'static>(
        &self,
        read: impl FnOnce(&DiskCache) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let cache = self.cache.clone()?;
        tokio::task::spawn_blocking(move || read(&cache)).await.ok()?
    }

    /// Writes to the cache. A failure is logged and does not fail the pull.
    async fn write_cache(&self, write: impl FnOnce(&DiskCache) -> std::io::Result<()> + Send + 'static) {
        let Some(cache) = self.cache.clone() else {
            return;
        };
        let directory = cache.directory().display().to_string();
        let written = tokio::task::spawn_blocking(move || write(&cache)).await;
        if let Ok(Err(e)) = written {
            warn!(%directory, error = %e, "writing component cache failed");
        }
    }
}

/// The part of a foreign text that may appear in an error.
fn shorten_text(text: impl ToString) -> String {
    text.to_string()
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect()
}
