//! Addresses of the admin server.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tracing::info;

use crate::{
    admin::{
        Admin,
        certificate::{CertificateFiles, ServerCertificate},
    },
    leader::endpoint::{OwnEndpoint, SecureEndpoint},
};

/// The address of the admin server without another one.
pub const DEFAULT_ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);

/// Addresses that the admin server binds to.
#[derive(Args)]
pub struct AdminAddresses {
    /// Loopback address where everything is served without authentication: health, metrics, status, logs, recordings. Defaults to
    /// 127.0.0.1:8081, or to none with a secure address: a port-forward to the pod would reach it.
    #[arg(long, value_name = "ADDRESS")]
    admin_bind_address: Option<SocketAddr>,
    /// Address where only health is served, by HTTP: `/healthz` and `/readyz`. None by default.
    #[arg(long, value_name = "ADDRESS")]
    health_bind_address: Option<SocketAddr>,
    /// Address where everything but health is served by HTTPS, to users with a bearer token or a client certificate that the API
    /// server accepts, and as far as their rights go. None by default.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// Health.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
    /// Everything but health, for authenticated users.
    #[serde(skip_serializing_if = "Option::is_none")]
    secure: Option<String>,
}

impl AdminAddresses {
    /// Starts to serve at all addresses, and publishes the secure one. The namespace is that of the pod.
    ///
    /// # Errors
    /// An address can't be bound or is not meant for what would be served there; the certificate can't be read.
    pub async fn serve(
        &self,
        admin: &Admin,
        namespace: &str,
        endpoint: &OwnEndpoint,
    ) -> anyhow::Result<ServedAddresses> {
        let mut served = ServedAddresses {
            admin: None,
            health: None,
            secure: None,
        };
        let default = || {
            self.secure_bind_address
                .is_none()
                .then_some(DEFAULT_ADMIN_ADDRESS)
        };
        if let Some(address) = self.admin_bind_address.or_else(default) {
            let bound = admin.clone().serve_local(address).await;
            let bound = bound.with_context(|| format!("--admin-bind-address {address}"))?;
            served.admin = Some(format!("http://{bound}"));
        }
        if let Some(address) = self.health_bind_address {
            let bound = admin.clone().serve_health(address).await;
            let bound = bound.with_context(|| format!("--health-bind-address {address}"))?;
            served.health = Some(format!("http://{bound}"));
        }
        if let Some(address) = self.secure_bind_address {
            let certificate = Arc::new(self.certificate(address)?);
            let bound = admin.clone().serve_secure(address, certificate.clone()).await;
            let bound = bound.with_context(|| format!("--secure-bind-address {address}"))?;
            served.secure = Some(format!("https://{bound}"));
            let (namespace, pod) = (namespace.to_owned(), read_host_name());
            endpoint.publish(move || SecureEndpoint {
                namespace: namespace.clone(),
                pod: pod.clone(),
                port: bound.port(),
                certificate: certificate.digest(),
            });
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

/// The host name of this machine, which is the name of the pod in one; empty where the kernel tells none.
pub fn read_host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
