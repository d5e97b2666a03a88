//! The TLS settings of an upstream: trusted authorities, and the client certificate.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{SecretKeySelector, SecretStore, SendError, missing_secret, object::UpstreamObject};
use crate::client::server_verifier::UnsignedVerifier;

/// The system's certificate authorities, read once.
fn system_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}

/// The TLS configuration of an Upstream and its Secrets.
pub fn build_config(upstream: &UpstreamObject, secrets: &dyn SecretStore) -> Result<ClientConfig, SendError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let invalid = |e: rustls::Error| SendError::Invalid(format!("spec.tls: {e}"));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let read = |selector: &SecretKeySelector| {
        let key = upstream.secret_key(selector);
        let value = secrets.get(&key).ok_or_else(|| missing_secret(&key))?;
        Ok::<_, SendError>((key, value))
    };
    let certificates = |selector: &SecretKeySelector| {
        let (key, pem) = read(selector)?;
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.expose()).collect();
        let parsed = parsed.ok().filter(|certificates| !certificates.is_empty());
        parsed.ok_or_else(|| SendError::Invalid(format!("{key} has no PEM certificates")))
    };
    let tls = upstream.spec.tls.as_ref();
    let mut roots = system_roots().clone();
    if let Some(selector) = tls.and_then(|tls| tls.ca_secret_ref.as_ref()) {
        for certificate in certificates(selector)? {
            let key = upstream.secret_key(selector);
            roots
                .add(certificate)
                .map_err(|e| SendError::Invalid(format!("{key}: {e}")))?;
        }
    }
    let builder = if tls.is_some_and(|tls| tls.insecure_skip_verify) {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(UnsignedVerifier::accept_any()))
    } else {
        builder.with_root_certificates(roots)
    };
    let mut config = match upstream.client_certificate() {
        None => builder.with_no_client_auth(),
        Some([certificate, key]) => {
            let chain = certificates(&certificate)?;
            let (name, pem) = read(&key)?;
            let key = PrivateKeyDer::from_pem_slice(pem.expose())
                .map_err(|_| SendError::Invalid(format!("{name} has no PEM private key")))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| SendError::Invalid(format!("{name} and its certificate: {e}")))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
