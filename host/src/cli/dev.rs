//! `ostler dev`: a host with an embedded API server.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::Context;
use clap::Args;
use ipnet::IpNet;
use tracing::info;

use super::{Common, config, serve};

/// Arguments of `ostler dev`.
#[derive(Args)]
pub struct Dev {
    /// File to write the kubeconfig of the API server to.
    #[arg(long, default_value = "ostler-dev.kubeconfig")]
    kubeconfig: PathBuf,
    /// Address of the API server.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Serve the API over HTTPS; the kubeconfig contains the certificate.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Dev {
    /// Runs until a signal or an error ends it.
    pub async fn run(mut self) -> anyhow::Result<()> {
        // Upstreams under development run on this machine.
        self.common
            .networks
            .extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(IpNet::from));
        let options = ostler_apiserver::Options {
            listen: self.listen,
            tls: self.tls,
            ..Default::default()
        };
        let server = ostler_apiserver::Server::start(options).await?;
        std::fs::write(&self.kubeconfig, server.kubeconfig())
            .with_context(|| format!("writing {}", self.kubeconfig.display()))?;
        info!(url = server.url(), kubeconfig = %self.kubeconfig.display(), "API server");
        serve(config(Some(self.kubeconfig)).await?, self.common, None).await
    }
}
