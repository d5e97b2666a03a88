//! The embedded API server as a program.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use ostler_apiserver::{EmbeddedServer, ServerOptions};
use tokio::signal::unix::{SignalKind, signal};

/// A Kubernetes API server in memory.
#[derive(Parser)]
struct Arguments {
    /// Address of the listener; with port 0 the system chooses a port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Serve HTTPS; the kubeconfig contains the certificate.
    #[arg(long)]
    tls: bool,
    /// Report workloads as ready, as a cluster with free nodes does.
    #[arg(long)]
    controllers: bool,
    /// File to write a kubeconfig to.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // Before the address is printed, so that a signal sent at once is not lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = EmbeddedServer::start(ServerOptions {
        listen: arguments.listen,
        tls: arguments.tls,
        controllers: arguments.controllers,
        ..ServerOptions::default()
    })
    .await?;
    if let Some(path) = &arguments.kubeconfig {
        std::fs::write(path, server.kubeconfig()).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{}", server.url());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.shutdown().await;
    Ok(())
}
