//! Verification of servers whose certificate no known authority has signed.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};

/// Accepts a certificate whoever has signed it, if the server proves to have its private key.
#[derive(Debug)]
pub struct UnsignedVerifier {
    /// SHA-256 of the only certificate that is accepted, in hexadecimal digits; none for any certificate.
    digest: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl UnsignedVerifier {
    /// A verifier that accepts any certificate.
    pub fn accept_any() -> Self {
        Self::new(None)
    }

    /// A verifier that accepts the certificate with this SHA-256 in hexadecimal digits.
    pub fn accept_digest(digest: String) -> Self {
        Self::new(Some(digest))
    }

    fn new(digest: Option<String>) -> Self {
        Self {
            digest,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
        }
    }
}

impl ServerCertVerifier for UnsignedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_accepted = |digest: &String| format!("{:x}", Sha256::digest(certificate)) == *digest;
        if self.digest.as_ref().is_none_or(is_accepted) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
