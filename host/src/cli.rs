//! The command line.

use std::{
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::{
    admin::Admin,
    election::Timing,
    grants::Grants,
    host::{Host, Settings},
    lease,
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
    election: Election,
    #[command(flatten)]
    common: Common,
}

/// Several hosts may run: one leads, the others stand by.
#[derive(Args)]
struct Election {
    /// Lead before reconciling. Only where no other host ever runs may it be false.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    leader_elect: bool,
    /// Name of the Lease; hosts of the same stand in for each other.
    #[arg(long, default_value = "ostler")]
    lease_name: String,
    /// Namespace of the Lease; without it the pod's own, or the kubeconfig's.
    #[arg(long)]
    lease_namespace: Option<String>,
    /// Name of this process in the Lease, which no other may have; without it made of the host's name.
    #[arg(long)]
    identity: Option<String>,
    /// Seconds after which others take over from a leader that doesn't renew its lease.
    #[arg(long, default_value = "15", value_parser = seconds)]
    lease_duration: Duration,
    /// Seconds after which a leader that can't renew its lease stops.
    #[arg(long, default_value = "10", value_parser = seconds)]
    renew_deadline: Duration,
    /// Seconds between attempts to get or renew the lease.
    #[arg(long, default_value = "2", value_parser = seconds)]
    retry_period: Duration,
}

impl Election {
    fn settings(self, config: &kube::Config) -> Option<lease::Settings> {
        let identity = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!(
                "{}_{:016x}",
                host.trim(),
                RandomState::new().hash_one(std::process::id())
            )
        };
        self.leader_elect.then(|| lease::Settings {
            config: config.clone(),
            namespace: self
                .lease_namespace
                .unwrap_or_else(|| config.default_namespace.clone()),
            name: self.lease_name,
            identity: self.identity.unwrap_or_else(identity),
            timing: Timing {
                lease: self.lease_duration,
                renew: self.renew_deadline,
                retry: self.retry_period,
            },
        })
    }
}

/// Seconds, with a fraction if need be.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is needed")?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
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
    /// Seconds that reconciles have to end after SIGTERM or SIGINT; a second signal ends at once.
    #[arg(long, default_value = "25", value_parser = seconds)]
    grace_period: Duration,
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
            let config = config(run.kubeconfig).await?;
            let election = run.election.settings(&config);
            serve(kube::Client::try_from(config)?, run.common, election).await
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
            serve(client, dev.common, None).await
        }
        Command::Crds => {
            print!("{}", crate::upstream::crd_yaml());
            Ok(())
        }
    }
}

async fn serve(
    client: kube::Client,
    common: Common,
    election: Option<lease::Settings>,
) -> anyhow::Result<()> {
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
        election,
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
        _ = terminate.recv() => info!("terminated: draining"),
        _ = interrupt.recv() => info!("interrupted: draining"),
        e = host.failed() => return Err(e),
    }
    tokio::select! {
        () = host.drain(common.grace_period) => Ok(()),
        _ = terminate.recv() => anyhow::bail!("terminated again: not drained"),
        _ = interrupt.recv() => anyhow::bail!("interrupted again: not drained"),
    }
}

/// A client of the cluster. Its TLS is rustls with ring, wherever it runs.
pub async fn client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    Ok(kube::Client::try_from(config(kubeconfig).await?)?)
}

/// How to reach the cluster.
async fn config(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Config> {
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
    Ok(config)
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
