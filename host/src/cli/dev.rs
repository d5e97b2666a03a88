//! `ostler dev`: runs a host with an embedded API server.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context;
use clap::Args;
use tracing::info;

use super::{Common, kubeconfig::load_kubeconfig, serve_host};
use crate::policy::network::loopback_networks;

/// Arguments of `ostler dev`.
#[derive(Args)]
pub struct DevCommand {
    /// File to which the kubeconfig of the embedded API server is written.
    #[arg(long, value_name = "FILE", default_value = "ostler-dev.kubeconfig")]
    kubeconfig: PathBuf,
    /// Address that the embedded API server binds to.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Serve the embedded API server over HTTPS. The kubeconfig contains its CA certificate.
    #[arg(long)]
    tls: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

impl DevCommand {
    /// Runs until a signal or an error ends it.
    pub async fn run(mut self) -> anyhow::Result<()> {
        // Upstreams under development run on this machine.
        self.common.networks.extend(loopback_networks());
        let options = ostler_apiserver::ServerOptions {
            listen: self.listen,
            tls: self.tls,
            controllers: true,
            ..Default::default()
        };
        let server = ostler_apiserver::EmbeddedServer::start(options).await?;
        std::fs::write(&self.kubeconfig, server.kubeconfig())
            .with_context(|| format!("writing {}", self.kubeconfig.display()))?;
        info!(url = server.url(), kubeconfig = %self.kubeconfig.display(), "embedded API server started");
        serve_host(load_kubeconfig(Some(self.kubeconfig)).await?, self.common, None).await
    }
}
