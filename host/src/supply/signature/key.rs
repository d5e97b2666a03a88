//! Keys: ECDSA on P-256 and Ed25519, as PEM.
//!
//! ring verifies raw keys, so the SubjectPublicKeyInfo around them is compared with its two possible prefixes. The
//! crate `spki` would take as many lines to compare OIDs, and three crates more.

use std::fmt;

use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
        KeyPair, UnparsedPublicKey,
    },
};
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kube::hash::encode_hex;

/// DER prefix of an uncompressed P-256 point in a SubjectPublicKeyInfo.
const P256_SPKI_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P256_POINT_BYTES: usize = 65;
/// DER prefix of an Ed25519 key in a SubjectPublicKeyInfo.
const ED25519_SPKI_PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const ED25519_KEY_BYTES: usize = 32;

/// The fingerprint of a public key: SHA-256 of its SubjectPublicKeyInfo.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint(String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error of an invalid key. It contains no part of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is not PEM with the expected label.
    #[error("no PEM {expected}: it begins with -----BEGIN {expected}-----{hint}")]
    NotPem {
        /// The expected label.
        expected: &'static str,
        /// The remedy for the label found.
        hint: &'static str,
    },
    /// The algorithm is not supported.
    #[error("neither an ECDSA P-256 nor an Ed25519 key")]
    Algorithm,
}

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    bytes: Vec<u8>,
    fingerprint: Fingerprint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    P256,
    Ed25519,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "PublicKey({:?}, {})", self.algorithm, self.fingerprint)
    }
}

impl PublicKey {
    /// Parses the file cosign.pub of `cosign generate-key-pair`, or the output of `openssl pkey -pubout`.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let info = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).map_err(|_| KeyError::NotPem {
            expected: "PUBLIC KEY",
            hint: match pem {
                _ if pem.contains("PRIVATE KEY-----") => ", and this is a private key",
                _ if pem.contains("BEGIN CERTIFICATE-----") => {
                    "; `openssl x509 -pubkey -noout` takes it out of a certificate"
                }
                _ => "",
            },
        })?;
        Self::from_spki(&info).ok_or(KeyError::Algorithm)
    }

    fn from_spki(info: &[u8]) -> Option<Self> {
        let of = |algorithm, prefix: &[u8], length| {
            let bytes = info.strip_prefix(prefix).filter(|bytes| bytes.len() == length)?;
            Some(Self {
                algorithm,
                bytes: bytes.to_vec(),
                fingerprint: Fingerprint(format!("sha256:{}", encode_hex(&Sha256::digest(info)))),
            })
        };
        of(Algorithm::P256, P256_SPKI_PREFIX, P256_POINT_BYTES)
            .or_else(|| of(Algorithm::Ed25519, ED25519_SPKI_PREFIX, ED25519_KEY_BYTES))
    }

    /// The fingerprint.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// The signature of this message is valid.
    pub fn verify_message(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = match self.algorithm {
            Algorithm::P256 => UnparsedPublicKey::new(
                &ECDSA_P256_SHA256_ASN1 as &dyn ring::signature::VerificationAlgorithm,
                &self.bytes,
            ),
            Algorithm::Ed25519 => UnparsedPublicKey::new(
                &ED25519 as &dyn ring::signature::VerificationAlgorithm,
                &self.bytes,
            ),
        };
        key.verify(message, signature).is_ok()
    }
}

/// A private key.
pub struct SigningKey(SigningPair);

enum SigningPair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// Parses unencrypted PKCS#8, as `openssl genpkey` writes it.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| KeyError::NotPem {
            expected: "PRIVATE KEY",
            hint: match pem {
                _ if pem.contains("ENCRYPTED SIGSTORE") || pem.contains("ENCRYPTED COSIGN") => {
                    "; a key that cosign encrypted is for `cosign sign --key`"
                }
                _ if pem.contains("BEGIN ENCRYPTED PRIVATE KEY") => {
                    "; `openssl pkcs8 -in KEY -out PLAIN` decrypts it"
                }
                _ if pem.contains("BEGIN EC PRIVATE KEY") => {
                    "; `openssl pkcs8 -topk8 -nocrypt -in KEY -out PKCS8` makes it so"
                }
                _ => "",
            },
        })?;
        let der = key.secret_pkcs8_der();
        let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &SystemRandom::new());
        let pair = match p256 {
            Ok(pair) => SigningPair::P256(pair),
            // Unchecked: OpenSSL writes keys without the public half to compare with.
            Err(_) => SigningPair::Ed25519(
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| KeyError::Algorithm)?,
            ),
        };
        Ok(Self(pair))
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        let info = match &self.0 {
            SigningPair::P256(pair) => [P256_SPKI_PREFIX, pair.public_key().as_ref()].concat(),
            SigningPair::Ed25519(pair) => [ED25519_SPKI_PREFIX, pair.public_key().as_ref()].concat(),
        };
        PublicKey::from_spki(&info).expect("made of its own parts")
    }

    /// Signs a message; `None` if the system has no randomness.
    pub fn sign_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        match &self.0 {
            SigningPair::P256(pair) => pair
                .sign(&SystemRandom::new(), message)
                .ok()
                .map(|signature| signature.as_ref().to_vec()),
            SigningPair::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
        }
    }
}
