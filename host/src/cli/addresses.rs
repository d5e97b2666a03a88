//! Addresses of the admin server.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tracing::info;

use crate::admin::{
    Admin,
    certificate::{CertificateFiles, ServerCertificate},
};

/// Addresses that the admin server binds to.
#[derive(Args)]
pub struct AdminAddresses {
    /// Loopback address where everything is served without authentication: health, metrics, status, logs, recordings.
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "ADDRESS")]
    admin_bind_address: SocketAddr,
    /// Address where only health is served, by HTTP: `/healthz` and `/readyz`. None by default.
    #[arg(long, value_name = "ADDRESS")]
    health_bind_address: Option<SocketAddr>,
    /// Address where everything but health is served by HTTPS, to users with a bearer token that the API server accepts, and as far
    /// as their rights go. None by default.
    #[arg(long, value_name = "ADDRESS")]
    secure_bind_address: Option<SocketAddr>,
    /// File with the certificate of the secure address in PEM format, and those of its issuers. It may be replaced at any time.
    /// Without it, the host makes a certificate for itself.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key_file",
        requires = "secure_bind_address"
    )]
    tls_cert_file: Option<PathBuf>,
    /// File with the private key of the certificate in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_key_file: Option<PathBuf>,
}

/// The URLs of the admin server.
#[derive(Debug, Serialize)]
pub struct ServedAddresses {
    /// Everything, on the loopback interface.
    pub admin: String,
    /// Health.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
    /// Everything but health, for authenticated users.
    #[serde(skip_serializing_if = "Option::is_none")]
    secure: Option<String>,
}

impl AdminAddresses {
    /// Starts to serve at all addresses.
    ///
    /// # Errors
    /// An address can't be bound or is not meant for what would be served there; the certificate can't be read.
    pub async fn serve(&self, admin: &Admin) -> anyhow::Result<ServedAddresses> {
        let local = self.admin_bind_address;
        let bound = admin.clone().serve_local(local).await;
        let bound = bound.with_context(|| format!("--admin-bind-address {local}"))?;
        let mut served = ServedAddresses {
            admin: format!("http://{bound}"),
            health: None,
            secure: None,
        };
        if let Some(address) = self.health_bind_address {
            let bound = admin.clone().serve_health(address).await;
            let bound = bound.with_context(|| format!("--health-bind-address {address}"))?;
            served.health = Some(format!("http://{bound}"));
        }
        if let Some(address) = self.secure_bind_address {
            let certificate = Arc::new(self.certificate(address)?);
            let bound = admin.clone().serve_secure(address, certificate).await;
            let bound = bound.with_context(|| format!("--secure-bind-address {address}"))?;
            served.secure = Some(format!("https://{bound}"));
        }
        info!(
            admin = served.admin,
            health = served.health,
            secure = served.secure,
            "serving health and metrics"
        );
        Ok(served)
    }

    fn certificate(&self, address: SocketAddr) -> anyhow::Result<ServerCertificate> {
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(certificate), Some(key)) => ServerCertificate::read(CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            _ => ServerCertificate::make(address),
        }
    }
}
