//! Signatures of components: who vouches for a digest. Pure; what is verified here was fetched by [`crate::supply::oci`].
//!
//! Two layouts are known, both written by sigstore's `cosign sign --key`: *simple signing*, a small payload that
//! names the digest, signed as it is; and the *bundle*, an in-toto statement in a DSSE envelope. Written with ring,
//! which TLS has brought: the crate `sigstore` with nothing but keys is 120 crates more.

mod key;
mod payload;

use base64::{Engine, prelude::BASE64_STANDARD};
pub use key::{Fingerprint, KeyError, PublicKey, SigningKey};
pub use payload::simple_payload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A signature as it was found, not yet believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// How payload and signature belong together.
    pub layout: Layout,
    /// What is signed.
    #[serde(with = "base64_bytes")]
    pub payload: Vec<u8>,
    /// The signature itself.
    #[serde(with = "base64_bytes")]
    pub signature: Vec<u8>,
}

/// How a signature is laid out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// The payload is signed as it is.
    Simple,
    /// The payload is signed together with its type, as DSSE says.
    Dsse {
        /// The payload's type.
        payload_type: String,
    },
}

/// What was found beside a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Signatures that can be checked.
    pub signatures: Vec<Signature>,
    /// What is wrong with the others.
    pub malformed: Vec<String>,
}

/// How many of a policy's keys must have signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Quorum {
    /// One is enough.
    #[default]
    AnyOf,
    /// Every one.
    AllOf,
}

/// Whose signatures a component needs.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Whom to believe.
    pub keys: Vec<PublicKey>,
    /// How many of them.
    pub quorum: Quorum,
    /// Whether a component without is refused; otherwise it is only told.
    pub required: bool,
}

/// What the signatures say of a digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The keys of the policy that have signed it.
    pub signers: Vec<Fingerprint>,
    /// Why the policy is not met, where that is not required.
    pub problem: Option<SignatureError>,
}

/// Why a component counts as not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Nobody has signed it.
    #[error("{digest} is not signed")]
    Missing {
        /// The component.
        digest: String,
    },
    /// Signed by others.
    #[error("{digest} has {found}, none by a key of the policy ({})", list(keys))]
    Untrusted {
        /// The component.
        digest: String,
        /// How many signatures there are.
        found: String,
        /// The keys that would do.
        keys: Vec<Fingerprint>,
    },
    /// A good signature, of something else.
    #[error("the signature beside {digest} is of {signed}: was it copied from another component?")]
    OtherDigest {
        /// The component.
        digest: String,
        /// What is signed.
        signed: String,
    },
    /// Some keys have signed it, not all.
    #[error(
        "{digest} must be signed by every key of the policy, and is not by {}",
        list(missing)
    )]
    Incomplete {
        /// The component.
        digest: String,
        /// Who has not.
        missing: Vec<Fingerprint>,
    },
    /// Something that should be a signature and can't be read.
    #[error("the signature of {digest} is malformed: {what}")]
    Malformed {
        /// The component.
        digest: String,
        /// What is wrong.
        what: String,
    },
    /// The registry could not be asked, and the cache does not know.
    #[error("whether {digest} is signed could not be found out: {why}")]
    Unknown {
        /// The component.
        digest: String,
        /// What the registry, or the way to it, said.
        why: String,
    },
    /// A policy nobody can meet.
    #[error("the policy requires a signature and has no keys: add one, or don't require it")]
    NoKeys,
}

impl SignatureError {
    /// Whether there is none, rather than a bad one.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
}

fn list(keys: &[Fingerprint]) -> String {
    keys.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Policy {
    /// Anything goes.
    pub fn none() -> Self {
        Self::default()
    }

    /// One of these keys is required.
    pub fn any_of(keys: Vec<PublicKey>) -> Self {
        Self {
            keys,
            quorum: Quorum::AnyOf,
            required: true,
        }
    }

    /// All of these keys are required.
    pub fn all_of(keys: Vec<PublicKey>) -> Self {
        Self {
            quorum: Quorum::AllOf,
            ..Self::any_of(keys)
        }
    }

    /// The same, where a component that does not meet it is told of and taken.
    #[must_use]
    pub fn optional(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }

    /// Whether signatures make a difference.
    pub fn asks(&self) -> bool {
        self.required || !self.keys.is_empty()
    }

    /// Whether this digest may be believed, and whom.
    pub fn verify(&self, digest: &str, found: &Found) -> Result<Verdict, SignatureError> {
        if !self.asks() {
            return Ok(Verdict::default());
        }
        let (signers, problem) = self.judge(digest, found);
        match problem {
            Some(problem) if self.required => Err(problem),
            problem => Ok(Verdict { signers, problem }),
        }
    }

    fn judge(&self, digest: &str, found: &Found) -> (Vec<Fingerprint>, Option<SignatureError>) {
        let (mut signers, mut missing, mut other) = (Vec::new(), Vec::new(), None);
        let mut malformed = found.malformed.clone();
        for key in &self.keys {
            let mut signed = false;
            for signature in &found.signatures {
                // Nothing is read from a payload before its signature holds.
                if key.verifies(&signature.message(), &signature.signature) {
                    match signature.claims() {
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
        // The most telling of what may be wrong at the same time.
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

/// Bytes as base64 in JSON.
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
