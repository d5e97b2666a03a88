//! Keys: ECDSA on P-256 and Ed25519, as PEM.

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

/// What comes before an uncompressed point of P-256 in a SubjectPublicKeyInfo.
const P256: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P256_BYTES: usize = 65;
/// The same of an Ed25519 key.
const EDWARDS: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const EDWARDS_BYTES: usize = 32;

/// Names a public key: SHA-256 of its SubjectPublicKeyInfo.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint(String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no key. Never has any of the text in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another kind of text.
    #[error("no PEM {expected}: it begins with -----BEGIN {expected}-----{hint}")]
    NotPem {
        /// The label it should have.
        expected: &'static str,
        /// What to do about what is there.
        hint: &'static str,
    },
    /// Another algorithm.
    #[error("neither an ECDSA P-256 nor an Ed25519 key")]
    Algorithm,
}

/// A key that verifies.
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
    /// Reads what `cosign generate-key-pair` writes to cosign.pub, or `openssl pkey -pubout`.
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
        Self::from_info(&info).ok_or(KeyError::Algorithm)
    }

    fn from_info(info: &[u8]) -> Option<Self> {
        let of = |algorithm, prefix: &[u8], length| {
            let bytes = info.strip_prefix(prefix).filter(|bytes| bytes.len() == length)?;
            Some(Self {
                algorithm,
                bytes: bytes.to_vec(),
                fingerprint: Fingerprint(format!("sha256:{}", encode_hex(&Sha256::digest(info)))),
            })
        };
        of(Algorithm::P256, P256, P256_BYTES).or_else(|| of(Algorithm::Ed25519, EDWARDS, EDWARDS_BYTES))
    }

    /// Its name.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether the signature is this key's, of this message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
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

/// A key that signs.
pub struct SigningKey(Pair);

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// Reads PKCS#8 that is not encrypted, as `openssl genpkey` writes it.
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
            Ok(pair) => Pair::P256(pair),
            // Unchecked, because openssl's keys have no public half to compare with.
            Err(_) => Pair::Ed25519(
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| KeyError::Algorithm)?,
            ),
        };
        Ok(Self(pair))
    }

    /// The other half.
    pub fn public(&self) -> PublicKey {
        let info = match &self.0 {
            Pair::P256(pair) => [P256, pair.public_key().as_ref()].concat(),
            Pair::Ed25519(pair) => [EDWARDS, pair.public_key().as_ref()].concat(),
        };
        PublicKey::from_info(&info).expect("made of its own parts")
    }

    /// Signs a message; none where the system has no randomness.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        match &self.0 {
            Pair::P256(pair) => pair
                .sign(&SystemRandom::new(), message)
                .ok()
                .map(|signature| signature.as_ref().to_vec()),
            Pair::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
        }
    }
}
