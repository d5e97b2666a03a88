//! The embedded API server as a program of its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use ostler_apiserver::{Options, Server};
use tokio::signal::unix::{SignalKind, signal};

/// A Kubernetes API server in memory.
#[derive(Parser)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Speak HTTPS; the kubeconfig carries the certificate.
    #[arg(long)]
    tls: bool,
    /// Where to write a kubeconfig.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // Before anybody learns the address: a signal sent at once must not be lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = Server::start(Options {
        listen: arguments.listen,
        tls: arguments.tls,
        ..Options::default()
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
