//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::{
    admin::Admin,
    grants::Grants,
    host::{Host, Settings},
};

/// Ostler runs Kubernetes reconcilers that are WebAssembly components.
#[derive(Parser)]
#[command(name = "ostler", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reconcile: run the plugins of a directory against a cluster.
    Run(Run),
    /// Develop: the same against an API server of its own, when there is no cluster.
    Dev(Dev),
    /// Print the CRDs of the host's own kinds as YAML.
    Crds,
}

#[derive(Args)]
struct Run {
    /// Kubeconfig of the cluster; without it `$KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Dev {
    /// Where to write the kubeconfig of the API server.
    #[arg(long, default_value = "ostler-dev.kubeconfig")]
    kubeconfig: PathBuf,
    /// Address of the API server.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Directory of components; what is saved there is swapped in.
    #[arg(long, default_value = "plugins")]
    plugins: PathBuf,
    /// File that says what each plugin may do; without it none may do anything.
    #[arg(long)]
    grants: Option<PathBuf>,
    /// Namespace to be confined to; may be given more than once. All without it.
    #[arg(long = "namespace")]
    namespaces: Vec<String>,
    /// Reconciles at the same time.
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Seconds after which a deletion that is stuck says what can be done.
    #[arg(long, default_value_t = 600)]
    deletion_deadline: u64,
    /// Directory for compiled code. Only this user may be able to write to it.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Address of the admin server (health, facts).
    #[arg(long, default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
    /// File to write when started: JSON with the admin server's URL and the process id.
    #[arg(long)]
    ready_file: Option<PathBuf>,
    /// How log lines look.
    #[arg(long, value_enum, default_value = "pretty")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Pretty,
    Json,
}

/// Parses the arguments and runs until a signal, or an error, ends it.
pub fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("ostler: no runtime: {e}");
            return std::process::ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.command)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ostler: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(run) => {
            log_to_stderr(run.common.log_format);
            let client = client(run.kubeconfig).await?;
            serve(client, run.common).await
        }
        Command::Dev(dev) => {
            log_to_stderr(dev.common.log_format);
            let options = ostler_apiserver::Options {
                listen: dev.listen,
                ..Default::default()
            };
            let server = ostler_apiserver::Server::start(options).await?;
            std::fs::write(&dev.kubeconfig, server.kubeconfig())
                .with_context(|| format!("writing {}", dev.kubeconfig.display()))?;
            info!(url = server.url(), kubeconfig = %dev.kubeconfig.display(), "API server");
            let client = client(Some(dev.kubeconfig)).await?;
            serve(client, dev.common).await
        }
        Command::Crds => {
            print!("{}", crate::upstream::crd_yaml());
            Ok(())
        }
    }
}

async fn serve(client: kube::Client, common: Common) -> anyhow::Result<()> {
    let grants = match &common.grants {
        None => Grants::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("reading the grants {}", path.display()))?;
            Grants::parse(&text, &path.display().to_string()).map_err(|e| anyhow::anyhow!("{e}"))?
        }
    };
    let settings = Settings {
        plugins: common.plugins,
        grants,
        namespaces: common.namespaces,
        workers: common.workers.max(1),
        deletion_deadline: Duration::from_secs(common.deletion_deadline),
        cache: common.cache,
        ..Settings::default()
    };
    // Before anything is started: a signal that comes early must not be lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut host = Host::start(client, settings).await?;
    let admin = Admin {
        services: host.services().clone(),
        registry: host.registry().clone(),
        ledger: host.ledger().clone(),
    };
    let address = admin
        .serve(common.admin)
        .await
        .with_context(|| format!("the admin address {}", common.admin))?;
    info!(admin = %format!("http://{address}"), "started");
    if let Some(path) = &common.ready_file {
        let facts = json!({"admin": format!("http://{address}"), "pid": std::process::id()});
        let partial = path.with_extension("partial");
        std::fs::write(&partial, facts.to_string())
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    tokio::select! {
        _ = terminate.recv() => info!("terminated"),
        _ = interrupt.recv() => info!("interrupted"),
        e = host.failed() => return Err(e),
    }
    Ok(())
}

/// A client of the cluster. Its TLS is rustls with ring, wherever it runs.
pub async fn client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    // Fails only when somebody was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = match kubeconfig {
        Some(path) => {
            let read =
                Kubeconfig::read_from(&path).with_context(|| format!("the kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer()
            .await
            .context("no cluster: give --kubeconfig, or try `ostler dev`")?,
    };
    // A watch is silent for as long as nothing happens; it ends by its own timeout.
    config.read_timeout = Some(Duration::from_secs(320));
    Ok(kube::Client::try_from(config)?)
}

fn log_to_stderr(format: LogFormat) {
    let filter =
        EnvFilter::try_from_env("OSTLER_LOG").unwrap_or_else(|_| EnvFilter::new("info,wasmtime=warn"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Pretty => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
