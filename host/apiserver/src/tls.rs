//! HTTPS with a self-signed certificate, which the kubeconfig contains.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// Certificate and handshake of the server.
pub struct ServerTls {
    /// Accepts TLS connections.
    pub acceptor: TlsAcceptor,
    /// The certificate as PEM, for the kubeconfig: clients trust this server only.
    pub certificate: String,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl ServerTls {
    /// Creates a certificate for an address. It lasts as long as the process.
    pub fn new(address: IpAddr) -> anyhow::Result<Self> {
        let names = vec![
            address.to_string(),
            "localhost".into(),
            "kubernetes.default.svc".into(),
        ];
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(names).context("making a certificate")?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate: cert.pem(),
        })
    }
}
