//! Verification of a component's signatures. Pure; the signatures are fetched by [`crate::supply::oci`].
//!
//! Two layouts are supported, both written by sigstore's `cosign sign --key`: *simple signing*, a small payload that
//! names the digest, signed as it is; and the *bundle*, an in-toto statement in a DSSE envelope. Written with ring,
//! which TLS needs anyway: the crate `sigstore` with only keys enabled is 120 crates more.

mod key;
mod payload;

use base64::{Engine, prelude::BASE64_STANDARD};
pub use key::{Fingerprint, KeyError, PublicKey, SigningKey};
pub use payload::simple_payload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A signature as found in a registry, not yet verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The layout of payload and signature.
    pub layout: Layout,
    /// The signed payload.
    #[serde(with = "base64_bytes")]
    pub payload: Vec<u8>,
    /// The signature.
    #[serde(with = "base64_bytes")]
    pub signature: Vec<u8>,
}

/// The layout of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// The payload is signed as it is.
    Simple,
    /// The payload is signed together with its type, as DSSE specifies.
    Dsse {
        /// The payload's type.
        payload_type: String,
    },
}

/// The signatures found for a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundSignatures {
    /// Signatures that can be checked.
    pub signatures: Vec<Signature>,
    /// Errors of malformed signatures.
    pub malformed: Vec<String>,
}

/// The number of keys that must have signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Quorum {
    /// One key suffices.
    #[default]
    AnyOf,
    /// All keys are needed.
    AllOf,
}

/// The signatures that a component needs.
#[derive(Clone, Debug, Default)]
pub struct SignaturePolicy {
    /// The trusted keys.
    pub keys: Vec<PublicKey>,
    /// The number of keys that must have signed.
    pub quorum: Quorum,
    /// Refuses components that do not meet the policy; otherwise the violation is only reported.
    pub required: bool,
    /// A policy that must be met as well.
    pub base: Option<Box<SignaturePolicy>>,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// The keys of the policy that have signed it.
    pub signers: Vec<Fingerprint>,
    /// The violation of a policy that is not required.
    pub problem: Option<SignatureError>,
}

/// The violation of a signature policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The component has no signature.
    #[error("{digest} is not signed")]
    Missing {
        /// The component.
        digest: String,
    },
    /// The component is signed by other keys.
    #[error(
        "{digest} has {found}, none by a key of the policy ({})",
        join_fingerprints(keys)
    )]
    Untrusted {
        /// The component.
        digest: String,
        /// Number of signatures, as text.
        found: String,
        /// The trusted keys.
        keys: Vec<Fingerprint>,
    },
    /// A valid signature of another digest.
    #[error("the signature beside {digest} is of {signed}: was it copied from another component?")]
    OtherDigest {
        /// The component.
        digest: String,
        /// The signed digest.
        signed: String,
    },
    /// Some keys have signed it, but not all.
    #[error(
        "{digest} must be signed by every key of the policy, and is not by {}",
        join_fingerprints(missing)
    )]
    Incomplete {
        /// The component.
        digest: String,
        /// The keys that have not signed.
        missing: Vec<Fingerprint>,
    },
    /// A signature is malformed.
    #[error("the signature of {digest} is malformed: {what}")]
    Malformed {
        /// The component.
        digest: String,
        /// The defect.
        what: String,
    },
    /// The registry does not respond, and the cache has no valid signature.
    #[error("whether {digest} is signed could not be found out: {why}")]
    Unknown {
        /// The component.
        digest: String,
        /// The error of the registry.
        why: String,
    },
    /// The policy requires a signature and has no keys.
    #[error("the policy requires a signature and has no keys: add one, or don't require it")]
    NoKeys,
}

impl SignatureError {
    /// There is no signature, rather than an invalid one.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

fn join_fingerprints(keys: &[Fingerprint]) -> String {
    keys.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl SignaturePolicy {
    /// A policy that accepts all components.
    pub fn none() -> Self {
        Self::default()
    }

    /// A policy that requires the signature of one key.
    pub fn any_of(keys: Vec<PublicKey>) -> Self {
        Self {
            keys,
            quorum: Quorum::AnyOf,
            required: true,
            base: None,
        }
    }

    /// A policy that requires the signatures of all keys.
    pub fn all_of(keys: Vec<PublicKey>) -> Self {
        Self {
            quorum: Quorum::AllOf,
            ..Self::any_of(keys)
        }
    }

    /// Makes the policy permissive: a component that violates it is accepted, with a warning.
    #[must_use]
    pub fn permissive(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }

    /// Adds a policy that must be met as well.
    #[must_use]
    pub fn with_base(self, base: Self) -> Self {
        Self {
            base: Some(Box::new(base)),
            ..self
        }
    }

    /// Signatures make a difference to this policy.
    pub fn needs_signatures(&self) -> bool {
        self.has_own_rule() || self.base.as_ref().is_some_and(|base| base.needs_signatures())
    }

    /// A component without signatures may be refused.
    pub fn is_required(&self) -> bool {
        self.required || self.base.as_ref().is_some_and(|base| base.is_required())
    }

    fn has_own_rule(&self) -> bool {
        self.required || !self.keys.is_empty()
    }

    /// Verifies the signatures of a digest.
    pub fn verify_digest(
        &self,
        digest: &str,
        found: &FoundSignatures,
    ) -> Result<Verification, SignatureError> {
        let mut verified = match &self.base {
            Some(base) => base.verify_digest(digest, found)?,
            None => Verification::default(),
        };
        if !self.has_own_rule() {
            return Ok(verified);
        }
        let (signers, problem) = self.evaluate_signatures(digest, found);
        if self.required
            && let Some(problem) = problem
        {
            return Err(problem);
        }
        let known = verified.signers.clone();
        verified
            .signers
            .extend(signers.into_iter().filter(|signer| !known.contains(signer)));
        verified.problem = problem.or(verified.problem);
        Ok(verified)
    }

    fn evaluate_signatures(
        &self,
        digest: &str,
        found: &FoundSignatures,
    ) -> (Vec<Fingerprint>, Option<SignatureError>) {
        let (mut signers, mut missing, mut other) = (Vec::new(), Vec::new(), None);
        let mut malformed = found.malformed.clone();
        for key in &self.keys {
            let mut signed = false;
            for signature in &found.signatures {
                // The payload is parsed only after its signature is verified.
                if key.verify_message(&signature.signed_message(), &signature.signature) {
                    match signature.claimed_digests() {
                        Ok(digests) if digests.iter().any(|d| d == digest) => signed = true,
                        Ok(digests) => other = other.or(Some(digests.join(", "))),
                        Err(what) => malformed.push(what),
                    }
                }
            }
            let fingerprint = key.fingerprint().clone();
            if signed {
                signers.push(fingerprint);
            } else {
                missing.push(fingerprint);
            }
        }
        let enough = match self.quorum {
            Quorum::AnyOf => !signers.is_empty(),
            Quorum::AllOf => missing.is_empty() && !signers.is_empty(),
        };
        let digest = digest.to_owned();
        // Several may apply; the most specific is reported.
        let problem = if enough {
            None
        } else if self.keys.is_empty() {
            Some(SignatureError::NoKeys)
        } else if let Some(signed) = other {
            Some(SignatureError::OtherDigest { digest, signed })
        } else if !signers.is_empty() {
            Some(SignatureError::Incomplete { digest, missing })
        } else if let Some(what) = malformed.into_iter().next() {
            Some(SignatureError::Malformed { digest, what })
        } else if found.signatures.is_empty() {
            Some(SignatureError::Missing { digest })
        } else {
            let found = match found.signatures.len() {
                1 => "one signature".to_owned(),
                n => format!("{n} signatures"),
            };
            Some(SignatureError::Untrusted {
                digest,
                found,
                keys: missing,
            })
        };
        (signers, problem)
    }
}

/// Serializes bytes as base64.
mod base64_bytes {
    use super::*;

    pub fn serialize<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
